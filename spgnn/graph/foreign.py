"""Modules of others that look beyond a vertex's neighbours: known by name, or noticed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from traceback import walk_stack
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spgnn.comm import Communicator
from spgnn.comm.failure import guests, world
from spgnn.errors import InputError

if TYPE_CHECKING:
    from spgnn.graph.distributed import DistributedGraph

_NORM = "take a norm of spgnn.nn or a LayerNorm of each vertex, or call eval() of a batch norm"
_ATTENTION = "take attention over neighbours, as GATConv, GATv2Conv and TransformerConv have it"
_SEARCH = "it searches neighbours; make edges of the whole Data, and take EdgeConv"
_POOLED = "leave pools out, or read all vertices out with graph.mean or graph.sum"
# Classes of PyG that look at all vertices they are given, in training and afterwards; and the
# module to take in their place.
_OF_ALL_VERTICES = {
    **dict.fromkeys(
        ("DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "HeteroBatchNorm", "InstanceNorm"), _NORM
    ),
    **dict.fromkeys(("MeanSubtractionNorm", "PairNorm"), _NORM),
    **dict.fromkeys(("DynamicEdgeConv", "GravNetConv", "XConv"), _SEARCH),
    **dict.fromkeys(
        ("GPSConv", "PerformerAttention", "PolynormerAttention", "SGFormerAttention"), _ATTENTION
    ),
    "CorrectAndSmooth": "its scale is a mean error of all; take autoscale=False",
    "DeepGraphInfomax": "its summary and its permutation are of all; take a loss of graph.mean",
    "EquilibriumAggregation": "take a sum or mean over neighbours, or graph.mean",
    "HANConv": "its weights of relations are means over all; take spgnn.nn.HANConv",
    "HypergraphConv": "hyperedges have no owner; make them vertices of a HeteroData",
    "LINKX": "its weights have a row for each vertex number; take GraphSAGE, or MLPs of graph.x",
}
_POOLS = "torch_geometric.nn.pool."  # modules that choose among all vertices, or merge them
# Aggregations of PyG that go on through the padding behind a vertex's neighbours.
_PADDED = {"GRUAggregation", "LCMAggregation", "LSTMAggregation", "PatchTransformerAggregation"}
# Aggregations of PyG that cannot be called without any neighbours, as on a rank without edges, or
# for quantiles where the first vertex has none: on one process that is one vertex, here one of each
# rank.
_NEED_NEIGHBOURS = {"LCMAggregation", "MedianAggregation", "PatchTransformerAggregation"}
_NEED_NEIGHBOURS |= {"QuantileAggregation", "SetTransformerAggregation", "SortAggregation"}
_NEED_NEIGHBOURS.add("GraphMultisetTransformer")
_BEFORE, _RANKS = "_spgnn_vertex_before", "_spgnn_ranks"
_Call = tuple[tuple[Any, ...], dict[str, Any]]


def refuse_one_rank(model: nn.Module) -> None:
    """Refuse modules that would see one rank's vertices where they should see all."""
    modules = list(model.named_modules())
    # A norm that can be replaced does not matter in a model that cannot work at all.
    modules.sort(key=lambda one: _instead(one[1]) == _NORM)
    for name, module in modules:
        title = f"{name or 'the model'} ({kind_of_module(module)})"
        agree = "ranks have to agree on: call graph.replicate(model) before the first epoch"
        if sees_all(module):
            raise InputError(
                f"{title} looks at all vertices at once, and would see those of one rank: "
                + _instead(module)
            )
        if _RANKS in module.__dict__:
            continue
        if _pyg_kind(module) == "ChebConv" and module.normalization is None:
            raise InputError(
                f"{title} without normalization takes the largest weight of all edges, which "
                + agree
            )
        if _pyg_kind(module) in _PADDED:
            raise InputError(
                f"{title} pads neighbours to the largest number of them, which {agree}"
            )


def _frames() -> Iterator[FrameType]:
    """Frames of the callers of this module, innermost first."""
    frames = (frame for frame, _ in walk_stack(sys._getframe(1)))
    return (frame for frame in frames if frame.f_globals.get("__name__") != __name__)


def caller() -> str:
    """The module of others that is at work, and its function: " in SuperGATConv (helper)"."""
    inner = ""
    for frame in _frames():
        if not str(frame.f_globals.get("__name__", "")).startswith(("spgnn.", "torch.")):
            inner = inner or frame.f_code.co_name
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module):
                function = "" if inner == "forward" else f" ({inner})"
                return f" in {type(module).__name__}{function}"
    return f" in {inner}" if inner else ""


def refuse_callers() -> None:
    """Refuse a look-up that a module of PyG makes for something of all vertices."""
    for frame in _frames():
        code = frame.f_code
        kind, _, method = code.co_qualname.partition(".")
        looks = method in ("forward", "correct") and kind in _OF_ALL_VERTICES
        if looks and "torch_geometric" in code.co_filename:
            refuse_one_rank(frame.f_locals["self"])


class _Ranks:
    """The ranks of the graph that a module was given to, as long as there are any."""

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm = None if comm is None else ref(comm)

    def __call__(self) -> Communicator | None:
        comm = world() if self._comm is None else self._comm()
        if self._comm is None and comm is None and guests:
            raise InputError("a model that was unpickled: call graph.replicate(model) first")
        return comm

    def __deepcopy__(self, memo: dict[int, Any]) -> _Ranks:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _Ranks, ()  # of the job that unpickles it


def pad_alike(model: nn.Module, comm: Communicator) -> None:
    """Tell modules that pad neighbours, from now on, the largest number of them on any rank."""
    for module in model.modules():
        kind = _pyg_kind(module)
        agree = _with_bound if kind == "ChebConv" else _with_largest if kind in _PADDED else None
        if agree is not None:
            if _RANKS not in module.__dict__:
                module.register_forward_pre_hook(agree, with_kwargs=True)
            module.__dict__[_RANKS] = _Ranks(comm)
        hooks = module._forward_pre_hooks.values()
        if kind in _NEED_NEIGHBOURS and _with_vertex_before not in hooks:
            # Before the largest number of neighbours is looked for.
            module.register_forward_pre_hook(_with_vertex_before, with_kwargs=True, prepend=True)
            module.register_forward_hook(_without_it, with_kwargs=True)


def kind_of_module(module: nn.Module) -> str:
    """The name of its class; of a scripted or traced one, that of what it was made of."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return str(module.original_name) if scripted else type(module).__name__


def _instead(module: nn.Module) -> str:
    pools = type(module).__module__.startswith(_POOLS)
    return _POOLED if pools else _OF_ALL_VERTICES.get(kind_of_module(module), _NORM)


def takes_hooks(module: nn.Module) -> bool:
    """False for scripted modules; traced ones do."""
    scripted = isinstance(module, torch.jit.ScriptModule)
    return not scripted or type(module).__name__ == "TopLevelTracedModule"


def sees_all(module: nn.Module) -> bool:
    """True if a module takes all rows that it is given together, as the others' norms do."""
    kind, scripted = kind_of_module(module), isinstance(module, torch.jit.ScriptModule)
    norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    if norm or (scripted and kind.startswith("BatchNorm")):
        return module.training and not isinstance(module, nn.SyncBatchNorm)
    by_graph = kind == "LayerNorm" and getattr(module, "mode", "") == "graph"
    pools = type(module).__module__.startswith(_POOLS)
    scales = getattr(module, "autoscale", True)  # of CorrectAndSmooth: by a mean error
    looks = (kind in _OF_ALL_VERTICES and scales) or by_graph or pools
    return looks and (scripted or bool(_pyg_kind(module)))


def _pyg_kind(module: nn.Module) -> str:
    """The class of a module of PyG, nothing for others."""
    of_pyg = type(module).__module__.startswith("torch_geometric.")
    return type(module).__name__ if of_pyg else ""


def _with_largest(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    """Say the largest number of neighbours, if the caller does not. Collective."""
    comm, index, ptr = module.__dict__[_RANKS](), kwargs.get("index"), kwargs.get("ptr")
    if comm is None or kwargs.get("max_num_elements") is not None:
        return args, kwargs
    if index is None:
        counts = torch.zeros(0, dtype=torch.int64) if ptr is None else ptr.diff()
    else:
        counts = torch.bincount(index)
    largest = int(counts.max()) if counts.numel() else 0
    largest += type(module).__name__ == "PatchTransformerAggregation"  # as it counts by itself
    return args, {**kwargs, "max_num_elements": comm.agree(largest)}


def _with_bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """Say `lambda_max`, where it is not given: PyG takes it from one rank's edges. Collective."""
    comm = module.__dict__[_RANKS]()
    if comm is None or comm.size == 1 or _argument(args, kwargs, 4, "lambda_max") is not None:
        return None
    weight = _argument(args, kwargs, 2, "edge_weight")
    negative = weight is not None and comm.agree(int(bool((weight < 0).any())))
    if getattr(module, "normalization", None) is None or negative:
        raise InputError(
            "ChebConv without normalization, or of negative weights, takes the largest eigenvalue "
            "from one rank's edges: give lambda_max, the same on all ranks"
        )
    # Twice the largest entry of the Laplacian: 2, where it is normalised and no weight negative.
    return args, {**kwargs, "lambda_max": 2.0}


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int, name: str) -> Any:
    return args[place] if len(args) > place else kwargs.get(name)


def _with_vertex_before(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Call | None:
    """Put a vertex with two neighbours before the first one, if that has none."""
    index, size, dim = kwargs.get("index"), kwargs.get("dim_size"), kwargs.get("dim", -2)
    if index is None or size is None or not args:
        return None
    if len(index) > 1 and bool((index == 0).any()):
        return None
    x = args[0]
    shape = list(x.shape)
    shape[dim] = 2
    x = torch.cat((x.new_zeros(shape), x), dim)
    module.__dict__[_BEFORE] = True
    index = torch.cat((index.new_zeros(2), index + 1))
    return (x, *args[1:]), {**kwargs, "index": index, "ptr": None, "dim_size": size + 1}


def _without_it(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
    """The output without the row of the vertex that was put before the first."""
    if not module.__dict__.pop(_BEFORE, False):
        return out
    dim = kwargs.get("dim", -2)
    return out.narrow(dim, 1, out.shape[dim] - 1)


# Functions of a tensor, and the place of the dimension among their arguments.
_REDUCTIONS = """
    sum mean std var amax amin max min prod logsumexp softmax log_softmax softmin median nanmedian
    nanmean nansum sort argsort cumsum cumprod cummax cummin logcumsumexp argmax argmin mode
    std_mean var_mean count_nonzero aminmax
"""
_OVER = dict.fromkeys(_REDUCTIONS.split(), 1)
_OVER |= dict.fromkeys(("norm", "quantile", "nanquantile", "topk", "kthvalue", "normalize"), 2)
_PLACES = _OVER | {"gather": 1, "take_along_dim": 2, "linalg_vector_norm": 2}
_PLACES["cosine_similarity"] = 2
# Without a dimension they take this one; others take all.
_BY_DEFAULT = dict.fromkeys(("sort", "argsort", "topk", "kthvalue", "mode"), -1)
_BY_DEFAULT |= dict.fromkeys(("normalize", "cosine_similarity"), 1)


def dims_over(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int] | None:
    """The dimensions along which a function takes its first argument together; None of others."""
    if name not in _PLACES or not args or not isinstance(args[0], Tensor):
        return None
    place, dims = _PLACES[name], args[0].dim()
    dim = args[place] if len(args) > place else kwargs.get("dim", kwargs.get("axis"))
    if isinstance(dim, Tensor):  # the maximum of two tensors
        return []
    if dim is None and "soft" in name:  # as torch does
        dim = 0 if dims in (0, 1, 3) else 1
    dim = _BY_DEFAULT.get(name, ()) if dim is None else dim
    several = dim if isinstance(dim, tuple | list) else (dim,)
    return [one % max(dims, 1) for one in several] or list(range(dims))


_SCATTERS = {"scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"}
_SCATTERS |= {"index_add", "index_add_", "index_reduce", "index_reduce_"}
_CHOICES = {"__getitem__", "index_select", "gather", "embedding", "masked_select", "take"}
_EDGES = -1  # instead of a dimension: what comes from rows that were looked up
_PRODUCTS = {"matmul", "mm", "bmm", "__matmul__", "__rmatmul__"}
# A tensor's rows do not matter to what these make, or which dimension is which is lost.
MADE = {"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"}
_SHAPED = {"t", "T", "mT", "transpose", "permute", "swapaxes", "swapdims", "movedim", "stack"}
_SHAPED |= {"view", "reshape", "unsqueeze", "flatten"}


class _Watch(TorchFunctionMode):
    """Follows tensors that come from own rows, and refuses what takes all of them at once."""

    def __init__(self, rows: frozenset[int], module: nn.Module) -> None:
        super().__init__()
        self._rows, self._module = rows, module
        self._known: dict[int, tuple[ref[Tensor], int | None]] = {}

    def note(self, t: Tensor, dim: int | None) -> None:
        """A tensor comes from rows of own vertices; these are along a dimension, if it is known."""
        self._known[id(t)] = ref(t), dim

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(getattr(func, "__self__", None), "__name__", "")
        followed = [t for t in _tensors((*args, *kwargs.values())) if self._is_known(t)]
        # What spgnn does itself is summed over ranks afterwards.
        if followed and not sys._getframe(1).f_globals.get("__name__", "").startswith("spgnn."):
            self._check(name, args, kwargs)
        result = func(*args, **kwargs)
        if followed and name not in MADE and not name.endswith("_like"):
            for t in _tensors(result if isinstance(result, tuple | list) else (result,)):
                self.note(t, self._dim_of(t, name, followed, args))
        return result

    def _is_known(self, t: object) -> bool:
        entry = self._known.get(id(t))
        return entry is not None and entry[0]() is t

    def _dim_of(self, result: Tensor, name: str, followed: list[Tensor], args: Any) -> int | None:
        """The dimension of the vertices in a result of known tensors; ``None`` if it has none."""
        alike = [self._known[id(t)][1] for t in followed if t.shape[:1] == result.shape[:1]]
        dims = [self._known[id(t)][1] for t in followed]
        of_vertices = any(dim not in (None, _EDGES) for dim in dims)
        if name not in _SCATTERS:
            if name in _CHOICES and len(args) > 1:
                keys = [t for t in _tensors(args[1:]) if t.dim()]
                if keys:  # some of the vertices, or rows of edges
                    return 0 if keys[0].dtype == torch.bool and of_vertices else _EDGES
                return 0 if 0 in alike else None
            if not of_vertices:
                return _EDGES if _EDGES in dims else None
            if name not in _SHAPED and 0 in alike:
                return 0
        places = [dim for dim, size in enumerate(result.shape) if size in self._rows]
        return places[0] if len(places) == 1 else None

    def _check(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not args or not isinstance(args[0], Tensor):
            return
        if name in _SCATTERS:
            source = args[3] if len(args) > 3 else kwargs.get("src", kwargs.get("source"))
            along = self._known[id(source)][1] if self._is_known(source) else None
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            if along is not None and dim % args[0].dim() == along:
                self._refuse(name, args[0].shape[along] not in self._rows)
            return
        if name in _PRODUCTS and len(args) == 2 and all(map(self._is_known, args)):
            left, right = (self._known[id(t)][1] for t in args)
            if None not in (left, right) and _EDGES not in (left, right):
                # Summed over vertices, or a row of numbers for each: pairs of vertices.
                self._refuse(name, left == args[0].dim() - 1 or right == args[1].dim() - 1)
        if not self._is_known(args[0]):
            return
        along = self._known[id(args[0])][1]
        if along in (None, _EDGES) or name not in _OVER or not args[0].is_floating_point():
            return  # integers are types and numbers, which are sorted to be put back
        self._refuse(name, along in (dims_over(name, args, kwargs) or ()))

    def _refuse(self, name: str, wrong: bool) -> None:
        if wrong:
            raise InputError(
                f"{type(self._module).__name__}: {name} over the vertices is over those of one "
                "rank: graph.mean and graph.sum, or a norm of spgnn.nn, take those of all"
            )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list | dict):
            yield from _tensors(value.values() if isinstance(value, dict) else value)


class ModelHook:
    """Base of hooks: a copy of the model, or its pickle, is on its own."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


class _Once(ModelHook):
    """Hooks of a module: they watch its first call in training and its first in evaluation."""

    active: _Watch | None = None  # what is called inside a module that is watched is watched there

    def __init__(self, graph: DistributedGraph | None = None) -> None:
        self.look_at(graph)

    def look_at(self, graph: DistributedGraph | None) -> None:
        """The next calls are with rows of this graph."""
        self._graph = None if graph is None else ref(graph)
        self._seen: set[bool] = set()
        self._watch: _Watch | None = None
        self._eager: Any = None  # as compiled modules are while they are watched

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin to watch, if the module is called with rows of the graph."""
        values = [*args, *kwargs.values()]
        if torch.compiler.is_compiling() or _Once.active or module.training in self._seen:
            return
        graph = None if self._graph is None else self._graph()
        if graph is None:
            return
        rows = graph.row_counts
        own = [t for t in _tensors(values) if t.dim() and len(t) in rows]
        if not own and not any(value is graph for value in values):
            return
        if hasattr(module, "_orig_mod"):
            self._eager = torch.compiler.set_stance("force_eager")
        self._watch = _Once.active = _Watch(rows, module)
        for t in (*own, *_tensors(vars(graph).values())):
            if t.dim() and len(t) in rows:
                self._watch.note(t, 0)
        self._watch.__enter__()  # type: ignore[no-untyped-call]

    def after(self, module: nn.Module, args: Any, out: Any) -> None:
        """The call has ended, well or not."""
        if self._watch is not None and _Once.active is self._watch:
            self._watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._watch = _Once.active = None
            if self._eager is not None:
                self._eager.__exit__(None, None, None)
                self._eager = None
            if out is not None:  # which it is where the call has failed
                self._seen.add(module.training)


def watch(model: nn.Module, graph: DistributedGraph) -> None:
    """Watch a model's first calls, module by module; those of spgnn know of ranks."""
    for module in model.modules():
        if type(module).__module__.startswith("spgnn.") or not takes_hooks(module):
            continue
        hooks = [getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values()]
        followed = [one for one in hooks if isinstance(one, _Once)]
        if followed:
            followed[0].look_at(graph)
            continue
        once = _Once(graph)
        module.register_forward_pre_hook(once.before, with_kwargs=True)
        module.register_forward_hook(once.after, always_call=True)
