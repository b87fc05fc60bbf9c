"""An edge_index that knows its numbers: where rows are looked up at sources, the halo is fetched.

Code written for one process looks at a graph through ``edge_index`` alone: it takes rows of a
tensor at the sources of edges (``x[row]``, ``x.index_select(0, row)``), adds up at the sources, and
does all else with destinations, which are own vertices. Here the sources know what they are: a
look-up among own rows fetches the halo first, one among the rows of a halo does not, and a sum at
sources is sent to their owners. So every step of such code is exact, degrees, normalisations and
several hops included; and what is not one of these operations is refused rather than done wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.graph.foreign import caller, refuse_callers
from spgnn.torch_internals import graph_break, plain_tensors

EDGES, REVERSED, SOURCES = "edges", "reversed edges", "sources"


class TrackedIndex(Tensor):
    """Integers that may number rows of the halo, and that remember it."""

    graph: Any  # `DistVertices`, or what stands for those of another type
    kind: str

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do what is right on all ranks, or refuse."""
        kwargs = kwargs or {}
        with plain_tensors():
            handler = _HANDLERS.get(_name(func))
            result = NotImplemented if handler is None else handler(func, args, kwargs)
        if result is NotImplemented:
            raise _refused(func, (*args, *kwargs.values()))
        return result

    def __repr__(self) -> str:  # type: ignore[override]
        return f"TrackedIndex({self.kind}, {list(self.shape)})"


def tracked(index: Tensor, graph: Any, kind: str = EDGES) -> TrackedIndex:
    """An index that remembers that it numbers rows of a halo."""
    result: TrackedIndex = _plain(index).as_subclass(TrackedIndex)
    result.graph, result.kind = graph, kind
    return result


def _name(func: Callable[..., Any]) -> str:
    name = getattr(func, "__name__", "")
    if name == "__get__":  # of a property
        return f".{getattr(func, '__self__', func).__name__}"
    return name


def _plain(value: Any) -> Any:
    """The same without memory, also inside lists and tuples."""
    if isinstance(value, TrackedIndex):
        with plain_tensors():
            return value.as_subclass(Tensor)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_plain(one) for one in value)
    return value


def _refused(func: Callable[..., Any], operands: tuple[Any, ...]) -> Exception:
    lists = (value if isinstance(value, list | tuple) else [value] for value in operands)
    kinds = (one.kind for one in chain.from_iterable(lists) if isinstance(one, TrackedIndex))
    kind = next(kinds, EDGES)
    if _name(func).lstrip(".").startswith("_is"):  # torch.compile inspects the parts of a tensor
        return graph_break(
            "edge_index of several ranks fetches rows: with fullgraph=True compile modules that do "
            "not see it, or a model of spgnn.nn",
            TrackedIndex,
        )
    if "Script" in type(func).__name__:
        return InputError(
            "a scripted or traced module sees edge_index of several ranks, and cannot fetch rows "
            "of others: give it as it was before torch.jit"
        )
    shown = f"{_name(func)} of the {kind} of a distributed graph{caller()}"
    if " in HGTConv" in shown:
        return InputError(f"{shown}, which numbers all types anew: take spgnn.nn.HGTConv")
    if _name(func) in _ARITHMETIC.split():
        return InputError(
            f"{shown}: numbers of vertices are a rank's own; draw negatives of the whole Data, and "
            "take graph.pairs of them (as neg_edge_index of SuperGATConv); weights by vertex are "
            "those of graph.vertex_ids"
        )
    return InputError(
        f"{shown}: rows may be looked up at sources, and added up for own vertices, nothing else; "
        "graph.local_edge_index has the numbers alone"
    )


# What helpers compute with numbers of vertices: pairs, places in a matrix, an order.
_ARITHMETIC = "add add_ sub sub_ mul mul_ div floor_divide remainder lt gt le ge sort argsort"


def _compared(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Equality, which finds self-loops: own rows have the same numbers on both sides."""
    operands = (one for one in args if isinstance(one, TrackedIndex))
    return NotImplemented if any(map(_bipartite, operands)) else _read(func, args, kwargs)


def _bipartite(index: TrackedIndex) -> bool:
    return bool(index.graph.bipartite)


def _read(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Operations that the numbers do not matter to: shapes, types, fresh tensors."""
    return func(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()})


def _set(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Integers require no gradient; `torch.utils.checkpoint` says so of all it is given."""
    needless = getattr(func, "__self__", func).__name__ == "requires_grad" and not args[1]
    return None if needless else NotImplemented


def _same(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Copies, and other shapes of the sources."""
    first = args[0]
    if not isinstance(first, TrackedIndex):
        return _read(func, args, kwargs)  # the other operand gives its shape alone
    result = _read(func, args, kwargs)
    if first.kind != SOURCES and result.shape != first.shape:
        return NotImplemented
    return (
        tracked(result, first.graph, first.kind) if result.dtype == torch.int64 else NotImplemented
    )


def _end(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The number of vertices is asked for as the largest number plus one: that of own ones."""
    index = args[0]
    if len(args) > 1 or kwargs or not isinstance(index, TrackedIndex):
        return NotImplemented
    if "min" in _name(func):
        return _read(func, args, kwargs)
    if index.kind != SOURCES and _bipartite(index):
        return NotImplemented
    return torch.tensor(index.graph.own_rows - 1, device=index.device)


def _two_rows(edges: TrackedIndex) -> tuple[Tensor, Tensor]:
    """Sources and destinations, or destinations and sources."""
    rows = list(_plain(edges))
    place = 0 if edges.kind == EDGES else 1
    rows[place] = tracked(rows[place], edges.graph, SOURCES)
    return rows[0], rows[1]


def _unbound(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    index, dim = args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if index.kind == SOURCES or dim != 0:
        return NotImplemented
    rows = _two_rows(index)
    return iter(rows) if _name(func) == "__iter__" else rows


def _flipped(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    index, dims = args[0], args[1:] or (kwargs.get("dims"),)
    if index.kind == SOURCES or dims not in ((0,), ([0],), ((0,),)):
        return NotImplemented
    other = REVERSED if index.kind == EDGES else EDGES
    return tracked(_read(func, args, kwargs), index.graph, other)


def _joined(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Edges followed by self-loops, or sources by own vertices, which come first in the halo."""
    pieces = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    indices = [piece for piece in pieces if isinstance(piece, TrackedIndex)]
    kinds = {piece.kind for piece in indices}
    graphs = {id(piece.graph) for piece in indices}
    # Between types there are no self-loops to add; numbers of two halos have nothing in common.
    if len(kinds) != 1 or len(graphs) != 1 or any(map(_bipartite, indices)):
        return NotImplemented
    along = 0 if kinds == {SOURCES} else 1
    if dim not in (along, -1):
        return NotImplemented
    return tracked(func(_plain(list(pieces)), dim), indices[0].graph, indices[0].kind)


def _stacked(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Two rows become edges again."""
    pieces = list(args[0])
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    places = [place for place, piece in enumerate(pieces) if isinstance(piece, TrackedIndex)]
    if dim != 0 or len(pieces) != 2 or len(places) != 1 or pieces[places[0]].kind != SOURCES:
        return NotImplemented
    kind = (EDGES, REVERSED)[places[0]]
    return tracked(func(_plain(pieces), 0), pieces[places[0]].graph, kind)


def _item(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``edge_index[0]``, ``edge_index[:, kept]``, ``row[kept]``; ``x[row]``, ``x[:, row]``."""
    operand, key = args
    if isinstance(operand, TrackedIndex):
        return _item_of_index(operand, key)
    keys = key if isinstance(key, tuple) else (key,)
    dims = [dim for dim, one in enumerate(keys) if isinstance(one, TrackedIndex)]
    others = [one for dim, one in enumerate(keys) if dim not in dims]
    if len(dims) != 1 or any(one != slice(None) for one in others):
        return NotImplemented
    return _looked_up(operand, dims[0], keys[dims[0]])


def _item_of_index(operand: TrackedIndex, key: Any) -> Any:
    if operand.kind == SOURCES:
        return tracked(_plain(operand)[_plain(key)], operand.graph, SOURCES)
    keys = key if isinstance(key, tuple) else (key,)
    if isinstance(keys[0], int) and -2 <= keys[0] < 2:
        row = _two_rows(operand)[keys[0]]
        if len(keys) == 1:
            return row
        return _item_of_index(row, keys[1:]) if isinstance(row, TrackedIndex) else row[keys[1:]]
    if isinstance(key, list) and key == [1, 0]:
        return _flipped(torch.flip, (operand, (0,)), {})
    if len(keys) == 2 and keys[0] in (slice(None), Ellipsis):
        return tracked(_plain(operand)[:, _plain(keys[1])], operand.graph, operand.kind)
    return NotImplemented


def _selected(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``index_select``, and ``gather`` with an index that is the same along other dimensions."""
    operand, dim, index = _arguments(args, kwargs, "input", "dim", "index")
    if isinstance(operand, TrackedIndex):
        along = 0 if operand.kind == SOURCES else 1
        if dim % operand.dim() != along or isinstance(index, TrackedIndex):
            return NotImplemented
        return tracked(_plain(operand).index_select(along, index), operand.graph, operand.kind)
    if _name(func) != "gather":
        return _looked_up(operand, dim, index)
    line, shape = _line(index, dim), _plain(index).shape
    if line is None or operand.dim() != len(shape):
        return NotImplemented
    return _region(_looked_up(operand, dim, line), shape, None)


def _looked_up(operand: Tensor, dim: int, index: TrackedIndex) -> Any:
    """Rows of a tensor of own vertices at the sources of edges. Collective."""
    if index.kind != SOURCES or index.dim() != 1 or not operand.dim():
        return NotImplemented
    refuse_callers()
    graph, rows = index.graph, operand.shape[dim]
    if rows == graph.halo_rows:  # and never that of own rows, where there are other ranks
        return graph.looked_up(operand.index_select(dim, _plain(index)))
    if rows != graph.own_rows:
        of_all = rows == getattr(graph, "num_nodes", None)
        raise InputError(
            f"rows at the sources of edges are taken of a tensor {list(operand.shape)}{caller()}; "
            f"this rank has {graph.own_rows} vertices, and {graph.halo_rows} rows in their halo"
            + (
                "; weights by vertex number are those of graph.vertex_ids: give them to an "
                "Embedding, or to RGCNConv as x"
            )
            * of_all
        )
    whole = graph.halo(operand.movedim(dim, 0))
    return graph.looked_up(whole.index_select(0, _plain(index)).movedim(0, dim))


def _added(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``scatter_add`` and ``index_add`` at the sources: sums are sent to the owners. Collective."""
    kwargs = dict(kwargs)
    alpha = kwargs.pop("alpha", 1)
    if len(args) + len(kwargs) != 4:
        return NotImplemented
    operand, dim, index, source = _arguments(args, kwargs, "input", "dim", "index", "src")
    name, shape = _name(func), None
    if name.startswith("scatter"):
        shape = _plain(index).shape
        index = _line(index, dim)
    if index is None or index.kind != SOURCES or isinstance(source, TrackedIndex):
        return NotImplemented
    graph = index.graph
    if not operand.dim() == source.dim() > 0 or operand.shape[dim] != graph.own_rows:
        return NotImplemented  # each rank would have a part of the sum
    if shape is not None:  # of the source, torch takes what has an index
        source = _region(source, shape, None)
    rows = source.movedim(dim, 0)
    there = rows.new_zeros((graph.halo_rows, *rows.shape[1:]))
    there = there.index_add(0, _plain(index), rows, alpha=alpha)
    sums = graph.halo_sum(there).movedim(0, dim)
    result = operand if name.endswith("_") else operand.clone()
    _region(result, sums.shape, dim).add_(sums)
    return result


def _region(t: Tensor, shape: torch.Size, whole: int | None) -> Tensor:
    """The first entries along every dimension, as many as a shape says; all along one of them."""
    for dim, size in enumerate(shape):
        if whole is None or dim != whole % len(shape):
            t = t.narrow(dim, 0, size)
    return t


def _written(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``t[row[loops]] = …``: only own vertices can be written to, as where an edge is a loop."""
    operand, key, value = args
    if isinstance(operand, TrackedIndex) or getattr(key, "kind", "") != SOURCES:
        return NotImplemented
    place = _plain(key)
    if place.numel() and int(place.max()) >= key.graph.own_rows:
        raise InputError("a row of another rank is written to at the source of an edge")
    operand[place] = value
    return None


def _line(index: Any, dim: int) -> TrackedIndex | None:
    """The index along one dimension, if it is the same along all others."""
    if not isinstance(index, TrackedIndex) or index.kind != SOURCES:
        return None
    plain = _plain(index).movedim(dim, 0)
    if not plain.numel():  # a rank without edges takes part in sums, and so does one without width
        return tracked(plain.new_zeros(len(plain)), index.graph, SOURCES)
    line = plain.reshape(len(plain), -1)
    if not torch.equal(line, line[:, :1].expand_as(line)):
        return None
    return tracked(line[:, 0], index.graph, SOURCES)


def _arguments(args: Any, kwargs: Any, *names: str) -> tuple[Any, ...]:
    """Arguments by place or name; torch calls the last of a sum `src` or `source`."""
    rest = (kwargs[name] if name in kwargs else kwargs["source"] for name in names[len(args) :])
    return (*args, *rest)


_READ = """
    size dim ndimension numel nelement __len__ stride is_contiguous element_size get_device
    is_floating_point is_complex is_sparse new_zeros new_ones new_empty new_full new_tensor
    zeros_like ones_like empty_like full_like is_same_size __hash__
    .shape .dtype .device .layout .ndim .is_cuda .is_sparse .is_sparse_csr .is_meta .requires_grad
    .is_quantized .is_leaf .grad .grad_fn .is_nested .is_mps .is_xpu .is_cpu .itemsize .nbytes
    .names .is_mkldnn .is_xla .is_vulkan .is_ipu .is_mtia .is_maia .is_sparse_csr
"""
_HANDLERS: dict[str, Callable[[Callable[..., Any], Any, Any], Any]] = {
    **dict.fromkeys(_READ.split(), _read),
    **dict.fromkeys(("eq", "ne", "__eq__", "__ne__"), _compared),
    **dict.fromkeys(("clone", "contiguous", "to", "cpu", "cuda", "long", "detach"), _same),
    **dict.fromkeys(("view", "reshape", "expand", "expand_as", "unsqueeze", "flatten"), _same),
    **dict.fromkeys(("max", "amax", "min", "amin"), _end),
    **dict.fromkeys(("unbind", "__iter__"), _unbound),
    **dict.fromkeys(("cat", "concat"), _joined),
    **dict.fromkeys(("index_select", "gather"), _selected),
    **dict.fromkeys(("scatter_add_", "scatter_add", "index_add_", "index_add"), _added),
    "__set__": _set,
    "flip": _flipped,
    "stack": _stacked,
    "__getitem__": _item,
    "__setitem__": _written,
}
