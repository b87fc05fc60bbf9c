"""One training epoch of a model, recorded by running it on tensors without data."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from spgnn.addons.plan.counts import EXTRA_ROWS, Float64Array, Product
from spgnn.config import Model, TrainConfig
from spgnn.errors import InputError
from spgnn.exchange import Step as ExchangeStep
from spgnn.graph import DryGraph, DryMatrix, Features, Propagated
from spgnn.nn import (
    DotProduct,
    DropoutKeys,
    HadamardMLP,
    Network,
    ScoredPairs,
    dtype_of,
    masked_cross_entropy,
    pairs_cross_entropy,
    weights_of,
)
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.torch_internals import DispatchMode

# The model runs on a rank with MOST_ROWS - l rows where layer l begins, so that the length of a
# dimension identifies its rows. Nothing of that size has data, except for sparse features. Layer l
# has further sizes that differ from rank to rank: see `EXTRA_ROWS`.
MOST_ROWS = 1_000_003
_SOFTMAX = {"cross_entropy", "cross_entropy_gradient"}
_DENSE = {"mm", "matmul", "addmm", "addmm_", "bmm"}
_FREE = {"empty", "empty_like", "new_empty", "detach", "view", "t", "permute", "transpose"}
_FREE |= {"expand", "alias", "as_strided"}
_ATTENTION = ("attend", "attend_backward")
# Which of the results of `attend` are destinations before a fold.
_GATHERED = 5


class Dense(NamedTuple):
    """A dense product: operations for each row of layer `at`; the smaller of the other sides."""

    at: int
    flops: float
    width: int


class Sparse(NamedTuple):
    """A product of the sparse features, or of their transpose, with something of some width."""

    width: int
    adjoint: bool


class Pass(NamedTuple):
    """One pass over rows of layer `at`: bytes read and written for each, and at which rate."""

    at: int
    nbytes: float
    kind: Literal["elementwise", "dropout", "softmax"]


Step = Product | Dense | Sparse | Pass


@dataclass(frozen=True, eq=False)
class Epoch:
    """One training epoch on one rank, for any numbers of rows."""

    config: TrainConfig
    widths: tuple[int, ...]  # features, hidden widths, outputs of the last layer
    model: Network  # without data
    trained: nn.Module  # the model, an embedding of labels before it, a decoder after it
    sparse: bool  # features are sparse in training
    propagated: bool  # A·X is computed once
    steps: tuple[Step, ...]
    # Bytes for each row where layer l begins, and then for each of what else differs from rank to
    # rank in layer l (`EXTRA_ROWS`); at all times that may be the worst: [times, kinds of rows].
    alive: Float64Array
    # Numbers of each sum over all ranks that norms and attention take, forward and backward.
    summed: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.config.model.layers

    @property
    def products(self) -> tuple[Product, ...]:
        """Products with distributed matrices: the same that ``recorded_products`` finds."""
        return tuple(step for step in self.steps if isinstance(step, Product))

    @property
    def weights(self) -> int:
        """Parameters, biases included."""
        return sum(p.numel() for p in self.trained.parameters())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters."""
        return weights_of(self.config.training.dtype).itemsize * self.weights

    @property
    def itemsize(self) -> int:
        """Bytes of a number of the dense features."""
        return dtype_of(self.config.training.dtype).itemsize

    @property
    def feature_copies(self) -> int:
        """Dense matrices of features: A·X, and X as well for weights of the vertex itself."""
        return 1 + (self.propagated and self.config.model.keeps_features)

    def activations(self, rows: Any) -> Float64Array:
        """The most bytes alive at a time, float64 [P], with rows [kinds of rows, P]."""
        return np.asarray((self.alive[:, : len(rows)] @ rows).max(axis=0), np.float64)


def edges_of(config: TrainConfig) -> tuple[str, ...]:
    """Rates of edges that a machine must have for a model: a name of `Machine.edges`, or none."""
    if config.model.attends:
        return (config.model.model,)
    return () if config.model.multiplies else ("largest",)


def trace(config: TrainConfig, features: int, classes: int, *, sparse: bool = False) -> Epoch:
    """Run one epoch on torch's meta device: shapes, and no data."""
    model, aim, dtype = config.model, config.aim, dtype_of(config.training.dtype)
    if model.registered.attends_globally == "softmax":
        raise InputError(f"--model {model.model}: work that grows with n² is not planned")
    if model.aggregates_several_times:
        raise InputError(f"--model {model.model}: layers of several products are not planned")
    propagated = config.propagates_once(sparse=sparse)
    # Others make them dense.
    multiplies = (model.propagates or model.attends) and not config.changes_features
    sparse = sparse and multiplies and not propagated and config.algorithm.order == "auto"
    links = aim.task == "links"
    widths = tuple(config.widths(features, model.hidden if links else classes))
    layers, decoder = model.layers, None
    with torch.device("meta"):
        network = config.network(features, widths[-1])
        whole: nn.Module = network
        if links:
            decoder = DotProduct() if aim.decoder == "dot" else HadamardMLP(widths[-1])
        for extension in config.extensions:
            whole = extension.model(config, whole, classes, features)
    trained = nn.ModuleList([whole, *([] if decoder is None else [decoder])]).to(dtype)
    for name, buffer in trained.named_buffers():
        if "running_" in name:  # moments are float32, whatever is multiplied
            buffer.data = buffer.float()
    # A model that looks at all vertices has the rows of the last layer throughout.
    rows = MOST_ROWS - (layers if model.attends_globally else propagated)
    X = _features(rows, widths[0], dtype, sparse, propagated, model.keeps_features)
    drops: Any = network
    if sparse:
        drops.input_dropout = False  # masks of what is stored depend on data
    recording = _Recording(config, layers, X)
    ids = [torch.empty(MOST_ROWS - n, dtype=torch.int64, device="meta") for n in range(layers + 1)]
    graphs = [
        DryGraph(_SizedMatrix(recording, n), ids[n], edges=_edges(recording, n, model, dtype))
        for n in range(layers)
    ]
    on: Any = graphs
    if model.attends_globally:
        ids[0] = ids[-1]
        on = graphs[0] = DryGraph(_SizedMatrix(recording, 0, rows, rows), ids[0])
    mask = torch.empty_like(ids[-1], dtype=torch.bool)
    keys = DropoutKeys(ids[0], 0, 0)
    with recording:
        # As in training, nobody keeps the scores: their logarithms are enough for backward.
        if decoder is None:
            masked_cross_entropy(whole(X, on, keys), ids[-1], mask, 1).backward()
        else:
            recording.loss_of_pairs(whole(X, on, keys), decoder).backward()
    if sparse:
        drops.input_dropout = model.input_dropout
    summed = tuple(numbers for graph in graphs for numbers in graph.A.sums)
    steps, alive = tuple(recording.steps), np.array(recording.times)
    return Epoch(config, widths, network, trained, sparse, propagated, steps, alive, summed)


def _features(
    rows: int, width: int, dtype: torch.dtype, sparse: bool, propagated: bool, both: bool
) -> Features:
    if sparse:
        pattern = Pattern.trusted(torch.arange(rows + 1), torch.zeros(rows).int(), (rows, width))
        _ = pattern.T
        return CSR(pattern).to("meta")
    X = torch.empty(rows, width, dtype=dtype, device="meta")
    if not propagated:
        return X
    return Propagated(X, torch.empty_like(X) if both else None)


def _edges(
    recording: _Recording, layer: int, model: Model, dtype: torch.dtype
) -> tuple[Tensor, Tensor] | None:
    if not model.uses_edges:
        return None
    edges = recording.size(layer, "edges")
    index = torch.empty(2, edges, dtype=torch.int64, device="meta")
    return index, torch.empty(edges, model.edge_dim, dtype=dtype, device="meta")


class _SizedMatrix(DryMatrix):
    """The matrix of a layer; its rows say which layer it is."""

    def __init__(
        self, recording: _Recording, layer: int, rows: int | None = None, columns: int | None = None
    ) -> None:
        super().__init__(rows or MOST_ROWS - layer - 1, columns or MOST_ROWS - layer)
        self._recording, self._layer = recording, layer
        # A layer that is not one of the model's fetches sources of pairs, as any product does.
        self._largest = recording.largest and rows is None
        self._kept: list[Tensor] = []

    @property
    def attention(self) -> Any:
        sizes = {name: self._recording.size(self._layer, name) for name in EXTRA_ROWS}
        pieces = SimpleNamespace(
            saved=sizes["received"],
            requested=sizes["requested"],
            partial_rows=sizes["partial"],
            fold=sizes["gathered"],
        )
        return SimpleNamespace(
            pieces=pieces, edges=sizes["edges"], check_edges=lambda edges, needed=False: None
        )

    def forward(self, H_local: Tensor, step: ExchangeStep) -> Tensor:
        Z = super().forward(H_local, step)
        if self._largest:
            # Which rows were the largest is known while these are still side by side.
            self._kept.append(torch.empty_like(Z, dtype=torch.int32))
            self._halo(H_local)
        return Z

    def adjoint(self, G_local: Tensor, step: ExchangeStep) -> Tensor:
        if self._largest:
            self._halo(G_local.new_empty(self.columns, G_local.shape[1]))
        self._kept.clear()
        return super().adjoint(G_local, step)

    def _halo(self, H_local: Tensor) -> None:
        """For a moment, rows and those of others are side by side."""
        received = self._recording.size(self._layer, "received")
        _ = torch.empty_like(H_local), H_local.new_empty(received, H_local.shape[1])

    def note(
        self,
        width: int,
        dtype: torch.dtype,
        step: ExchangeStep,
        heads: int = 0,
        joint: bool = False,
    ) -> None:
        drops = heads > 0 and self._recording.drops_edges
        which = self._layer, width, dtype, step.adjoint
        self._recording.steps.append(Product(*which, heads, joint, drops, self._largest))


class _Recording(DispatchMode):
    """Sees every operator: notes its cost, and the bytes alive after it."""

    def __init__(self, config: TrainConfig, layers: int, X: Features) -> None:
        super().__init__()
        model, links = config.model, config.aim.task == "links"
        dropped = model.attention_dropout
        self.drops_edges = (model.dropout if dropped is None else dropped) > 0
        self.largest = not (model.multiplies or model.attends)
        self.steps: list[Step] = []
        self._layers, self._negatives = layers, config.aim.negatives
        # Links of a rank come after all other sizes; negative pairs, and both together, are so many
        # times the links.
        self._links = self.size(layers, EXTRA_ROWS[0])
        many = config.aim.negatives
        self._pairs = {many * self._links, (1 + many) * self._links} if links else set[int]()
        self._sizes = layers + 1 + len(EXTRA_ROWS) * layers + links
        self._alive: dict[int, tuple[int, float]] = {}
        self.times: list[list[float]] = [[0.0] * self._sizes]
        inputs = [X.AX_local, X.X_local] if isinstance(X, Propagated) else [X]
        for tensor in _tensors(inputs):  # views of the features are not made here
            self._alive[tensor.untyped_storage()._cdata] = 0, 0.0

    def size(self, layer: int, which: str) -> int:
        """Rows of a layer that only this stands for."""
        return MOST_ROWS - self._place(layer, which)

    def loss_of_pairs(self, Z: Tensor, decoder: nn.Module) -> Tensor:
        """The loss of pairs of embeddings."""
        targets = torch.empty(self._links, dtype=torch.int64, device="meta")
        rows = self._links * (1 + self._negatives)
        sources = _SizedMatrix(self, self._layers, rows)
        scores = ScoredPairs(targets, sources, self._negatives).scores(Z, decoder)
        return pairs_cross_entropy(*scores)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        written = _written(func, args) if result is None else result
        outputs = [t for t in _tensors(written) if self._at(t) is not None]
        inputs = [t for t in _tensors(args) if self._at(t) is not None]
        name = func.name().partition("::")[2].partition(".")[0]
        if name in _ATTENTION:
            self._attention(_tensors(result), adjoint=name == _ATTENTION[1])
            return result
        if name in _DENSE:
            self.steps.append(self._dense(*args[-2:]))
        elif name == "spmm":
            self.steps.append(Sparse(_tensors(result)[0].shape[1], adjoint=not outputs))
        elif (outputs or inputs) and name not in _FREE:
            at = cast(int, self._at((*outputs, *inputs)[0]))
            moved = sum(map(self._row_bytes, (*outputs, *inputs)))
            dropout = name == "dropout_rows" or (name == "update_rows" and args[2] is not None)
            kind = "dropout" if dropout else "softmax" if name in _SOFTMAX else "elementwise"
            self.steps.append(Pass(at, moved, kind))  # type: ignore[arg-type]
        for tensor in outputs:
            self._keep(tensor)
        return result

    def _place(self, layer: int, which: str) -> int:
        return self._layers + 1 + len(EXTRA_ROWS) * layer + EXTRA_ROWS.index(which)

    def _at(self, tensor: Tensor) -> int | None:
        """Layer, or kind, whose rows a tensor has."""
        places = (self._place_of(length) for length in tensor.shape)
        return next((place for place in places if place is not None), None)

    def _place_of(self, length: int) -> int | None:
        if length in self._pairs:
            return self._sizes - 1
        return MOST_ROWS - length if 0 <= MOST_ROWS - length < self._sizes else None

    def _row_bytes(self, tensor: Tensor) -> float:
        """Bytes for each row of the layer that a tensor is of."""
        at = cast(int, self._at(tensor))
        return tensor.numel() * tensor.element_size() / (MOST_ROWS - at)

    def _keep(self, tensor: Tensor, at: int | None = None) -> None:
        storage, at = tensor.untyped_storage(), self._at(tensor) if at is None else at
        key = storage._cdata
        if key in self._alive or at is None:
            return
        self._alive[key] = at, storage.nbytes() / (MOST_ROWS - at)
        weakref.finalize(storage, self._alive.pop, key, None)
        self.times.append(self._now())

    def _now(self) -> list[float]:
        """Bytes alive, by what rows they are of."""
        now = [0.0] * self._sizes
        for where, nbytes in self._alive.values():
            now[where] += nbytes
        return now

    def _attention(self, results: Sequence[Tensor], *, adjoint: bool) -> None:
        """Record the result of an attention layer, and its temporary memory."""
        step = self.steps[-1]
        assert isinstance(step, Product)
        gathered = self._place(step.layer, "gathered")
        for number, tensor in enumerate(results):
            self._keep(tensor, gathered if number == _GATHERED else None)
        now = self._now()
        for name, nbytes in _temporary(step, adjoint=adjoint).items():
            now[step.layer if name == "columns" else self._place(step.layer, name)] += nbytes
        self.times.append(now)

    def _dense(self, a: Tensor, b: Tensor) -> Dense:
        at = cast(int, self._at(a) if self._at(a) is not None else self._at(b))
        lengths = (*a.shape[-2:], b.shape[-1])
        others = [n for n in lengths if self._place_of(n) != at]
        flops = 2 * prod(a.shape[:-2]) * prod(others) * max(lengths)
        return Dense(at, flops / (MOST_ROWS - at), min(others))


def _temporary(step: Product, *, adjoint: bool) -> dict[str, float]:
    """Bytes that attention takes while it is computed, for each row of `EXTRA_ROWS`."""
    row, score = step.width * step.dtype.itemsize, step.heads * SUM_DTYPE[step.dtype].itemsize
    wide = step.width * SUM_DTYPE[step.dtype].itemsize
    # What travels is packed, and unpacked where it arrives.
    if not adjoint:
        state, travels = wide + 2 * score, 2 * (row + score)
        return {
            "columns": score,
            "received": score,
            "partial": state,
            "gathered": travels + row + score,  # means of all, those that stay, those that leave
            "requested": state + travels,
            "merged": travels,
        }
    whole = row + 2 * score
    ends = row if step.joint else score
    return {
        "columns": score,
        "received": row + score,
        "partial": 2 * ends + score,  # of one block, and of all before
        "gathered": 2 * whole,
        "requested": 2 * whole + ends,
        "merged": whole + ends,
        "shared": row,
    }


def _written(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Tensors that an operator without a result has written."""
    named = zip(func._schema.arguments, args, strict=False)
    return _tensors([a for argument, a in named if argument.is_write])


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, tuple | list):
        return [tensor for value in values for tensor in _tensors(value)]
    return []
