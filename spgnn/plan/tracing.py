"""Steps of one training epoch of a model, recorded by running it on tensors without data."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from math import prod
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.attention.operators import Weighed
from spgnn.autograd import product
from spgnn.exchange import Step as Count
from spgnn.graph.dry import DryMatrix, dry_attention
from spgnn.graph.features import Features, Propagated
from spgnn.graph.moments import Moments, moments
from spgnn.graph.protocol import Aggregation, Graph, Matrix, Normalisation
from spgnn.nn import DropoutKeys, dtype_of, masked_cross_entropy
from spgnn.nn.links import ScoredPairs, pairs_cross_entropy
from spgnn.pattern import Pattern
from spgnn.plan.network import (
    Dense,
    Epoch,
    Extreme,
    Kind,
    Network,
    Pass,
    Product,
    Sparse,
    Step,
    Weighing,
)
from spgnn.plan.weighed import BESIDE
from spgnn.sparse import CSR, SUM_DTYPE

# The model runs on a rank with MOST_ROWS - l rows where layer l begins, so that the length of a
# dimension identifies its rows. Nothing of that size has data, except for sparse features. Layer l
# has further sizes that differ from rank to rank: see `BESIDE`.
MOST_ROWS = 1_000_003
_SOFTMAX = {"cross_entropy", "cross_entropy_gradient"}
_DENSE = {"mm", "addmm", "addmm_"}
_FREE = {"empty", "empty_like", "new_empty", "detach", "view", "t", "permute", "transpose"}
_FREE |= {"expand", "alias", "as_strided"}
_WEIGHING = ("attend", "attend_backward")
# Which of the results of `attend` are destinations before a fold.
_GATHERED = 5


def trace(network: Network) -> Epoch:
    """Run one epoch on torch's meta device: shapes, and no data.

    Parameters
    ----------
    network : Network
    """
    count = network.layers
    steps: list[Step] = []
    ids = [
        torch.empty(MOST_ROWS - layer, dtype=torch.int64, device="meta")
        for layer in range(count + 1)
    ]
    X = _features(network)
    keys = DropoutKeys(ids[0], 0, 0)
    layers = [_Layer(_Recorder(layer, steps, network), ids[layer]) for layer in range(count)]
    model = network.model().to(dtype_of(network.dtype))
    if isinstance(X, CSR):
        model.input_dropout = False  # masks of what is stored depend on data
    mask = torch.empty_like(ids[-1], dtype=torch.bool)
    with _Watch(steps, X, network) as watch:
        # As in training, nobody keeps the scores: their logarithms are enough for backward.
        if network.links is None:
            masked_cross_entropy(model(X, layers, keys), ids[-1], mask, 1).backward()
        else:
            _scored(model(X, layers, keys), network, steps).backward()
    return Epoch(tuple(steps), np.array(watch.times))


def _scored(Z: Tensor, network: Network, steps: list[Step]) -> Tensor:
    """The loss of pairs of embeddings."""
    assert network.links is not None
    many, links = network.links.negatives, _pairs(network.layers)
    targets = torch.empty(links, dtype=torch.int64, device="meta")
    sources = _Sources(network.layers, steps, network, links * (1 + many))
    scorer = network.scorer().to(dtype_of(network.dtype))
    return pairs_cross_entropy(*ScoredPairs(targets, sources, many).scores(Z, scorer))


def _features(network: Network) -> Features:
    width = network.widths[0]
    if network.keeps_sparse:
        rows = MOST_ROWS
        pattern = Pattern.trusted(torch.arange(rows + 1), torch.zeros(rows).int(), (rows, width))
        _ = pattern.T
        return CSR(pattern).to("meta")
    dtype = dtype_of(network.dtype)
    X = torch.empty(MOST_ROWS - network.propagated, width, dtype=dtype, device="meta")
    if not network.propagated:
        return X
    return Propagated(X, torch.empty_like(X) if network.keeps_both else None)


def _size(layers: int, layer: int, which: str) -> int:
    """Rows of a layer that only this stands for."""
    return MOST_ROWS - _place(layers, layer, which)


def _pairs(layers: int) -> int:
    """Links of a rank: after all other sizes."""
    return MOST_ROWS - _place(layers, layers, BESIDE[0])


def _place(layers: int, layer: int, which: str) -> int:
    return layers + 1 + len(BESIDE) * layer + BESIDE.index(which)


class _Layer(Graph):
    """Graph of one layer, without data."""

    def __init__(self, recorder: _Recorder, vertex_ids: Tensor) -> None:
        self._recorder, self.vertex_ids = recorder, vertex_ids

    @property
    def num_rows(self) -> int:
        """Rows that the layer makes."""
        return self._recorder.rows

    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """There is none."""
        raise AssertionError("a plan knows sums, largest neighbours and attention")

    def linear(self, normalisation: Normalisation) -> _Recorder:
        """The recorder of products."""
        return self._recorder

    def moments(self, x: Tensor) -> Moments:
        """Moments without data."""
        return moments(x, None, None)

    def _reduced(self, request: Aggregation, operand: Tensor) -> Tensor:
        if request.reduce == "attention":
            return dry_attention(self._recorder, request, 0)
        return product(self._recorder, operand)


class _Recorder(DryMatrix):
    """The matrix of a layer, with a shape and no entries; records its products as steps."""

    def __init__(self, layer: int, steps: list[Step], network: Network) -> None:
        super().__init__(MOST_ROWS - layer - 1, MOST_ROWS - layer)
        self._layer, self._steps, self._network = layer, steps, network
        self._kept: list[Tensor] = []
        self.record = self
        sizes = {name: _size(network.layers, layer, name) for name in BESIDE}
        self.pieces = SimpleNamespace(
            fetched=sizes["received"],
            asked=sizes["asked"],
            partial_rows=sizes["partial"],
            fold=sizes["gathered"],
        )

    @property
    def attention(self) -> _Recorder:
        """The sizes of attention over it."""
        return self

    def append(self, told: Weighed) -> None:
        """Note a layer of attention, or its gradient."""
        width, dtype, adjoint, heads, whole_rows, _ = told
        drops = self._network.drops_edges
        self._steps.append(Weighing(self._layer, width, dtype, adjoint, heads, whole_rows, drops))

    def forward(self, H_local: Tensor, step: Count) -> Tensor:
        """Note ``A·H``."""
        made = self._noted(H_local, self.rows, adjoint=False)
        if self._network.extreme:
            # Which rows were the largest is known while these are still side by side.
            self._kept.append(torch.empty_like(made, dtype=torch.int32))
            self._halo(H_local)
        return made

    def adjoint(self, G_local: Tensor, step: Count) -> Tensor:
        """Note ``Aᵀ·G``."""
        if self._network.extreme:
            self._halo(G_local.new_empty(self.columns, G_local.shape[1]))
        self._kept.clear()
        return self._noted(G_local, self.columns, adjoint=True)

    def _halo(self, H_local: Tensor) -> None:
        """For a moment, rows and those of others are side by side."""
        received = _size(self._network.layers, self._layer, "received")
        _ = torch.empty_like(H_local), H_local.new_empty(received, H_local.shape[1])

    def _noted(self, operand: Tensor, rows: int, *, adjoint: bool) -> Tensor:
        width = operand.shape[1]
        kind = Extreme if self._network.extreme else Product
        self._steps.append(kind(self._layer, width, operand.dtype, adjoint))
        return operand.new_empty(rows, width)


class _Sources(_Recorder):
    """Stands for what fetches sources of pairs, after the last layer."""

    def __init__(self, layer: int, steps: list[Step], network: Network, rows: int) -> None:
        super().__init__(layer, steps, network)
        self.rows = rows

    def forward(self, H_local: Tensor, step: Count) -> Tensor:
        """Note that sources are fetched."""
        return self._fetched(H_local, self.rows, adjoint=False)

    def adjoint(self, G_local: Tensor, step: Count) -> Tensor:
        """Note that their gradients return."""
        return self._fetched(G_local, self.columns, adjoint=True)

    def _fetched(self, operand: Tensor, rows: int, *, adjoint: bool) -> Tensor:
        width = operand.shape[1]
        self._steps.append(Product(self._layer, width, operand.dtype, adjoint))
        return operand.new_empty(rows, width)


class _Watch(TorchDispatchMode):
    """Sees every operator: notes its cost, and the bytes alive after it."""

    def __init__(self, steps: list[Step], X: Features, network: Network) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps, self._layers = steps, (layers := network.layers)
        links, pairs = network.links, _pairs(layers)
        self._sizes = sizes = layers + 1 + len(BESIDE) * layers + (links is not None)
        # Made-up pairs, and both together, are so many times the links.
        many = 0 if links is None else links.negatives
        self._of_pairs = {n * pairs for n in (many, 1 + many)} - {0} if links else set[int]()
        self._alive: dict[int, tuple[int, float]] = {}
        self.times: list[list[float]] = [[0.0] * sizes]
        given = [X.AX_local, X.X_local] if isinstance(X, Propagated) else [X]
        for tensor in _tensors(given):  # views of the features are not made here
            self._alive[tensor.untyped_storage()._cdata] = 0, 0.0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        written = _written(func, args) if result is None else result
        made = [t for t in _tensors(written) if self._at(t) is not None]
        given = [t for t in _tensors(args) if self._at(t) is not None]
        name = func.name().partition("::")[2].partition(".")[0]
        if name in _WEIGHING:
            self._weighed(_tensors(result), adjoint=name == _WEIGHING[1])
            return result
        if name in _DENSE:
            self._steps.append(self._dense(*args[-2:]))
        elif name == "spmm":
            self._steps.append(Sparse(_tensors(result)[0].shape[1], adjoint=not made))
        elif (made or given) and name not in _FREE:
            at = self._at((*made, *given)[0])
            moved = sum(map(self._row_bytes, (*made, *given)))
            self._steps.append(Pass(cast(int, at), moved, _kind(name, args)))
        for tensor in made:
            self._keep(tensor)
        return result

    def _at(self, tensor: Tensor) -> int | None:
        """Layer whose rows a tensor has."""
        places = (self._place_of(length) for length in tensor.shape)
        return next((place for place in places if place is not None), None)

    def _place_of(self, length: int) -> int | None:
        """Layer that has so many rows."""
        if length in self._of_pairs:
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

    def _weighed(self, made: Sequence[Tensor], *, adjoint: bool) -> None:
        """Record the result of an attention layer, and its temporary memory."""
        step = self._steps[-1]
        assert isinstance(step, Weighing)
        for place, tensor in enumerate(made):
            self._keep(tensor, self._place(step, "gathered") if place == _GATHERED else None)
        now = self._now()
        for name, nbytes in _meanwhile(step, adjoint=adjoint).items():
            now[step.layer if name == "columns" else self._place(step, name)] += nbytes
        self.times.append(now)

    def _place(self, step: Weighing, which: str) -> int:
        return _place(self._layers, step.layer, which)

    def _dense(self, a: Tensor, b: Tensor) -> Dense:
        at = self._at(a) if self._at(a) is not None else self._at(b)
        lengths = (*a.shape, b.shape[1])
        others = [n for n in lengths if self._place_of(n) != at]
        each = max(lengths) / (MOST_ROWS - cast(int, at))
        return Dense(cast(int, at), 2 * prod(others) * each, min(others))


def _meanwhile(step: Weighing, *, adjoint: bool) -> dict[str, float]:
    """Bytes that a layer of attention takes while it is made, for each row of `BESIDE`."""
    row, score = step.width * step.dtype.itemsize, step.heads * SUM_DTYPE[step.dtype].itemsize
    wide = step.width * SUM_DTYPE[step.dtype].itemsize
    # What travels is packed, and unpacked where it arrives.
    if not adjoint:
        state = wide + 2 * score
        travels = 2 * (row + score)
        return {
            "columns": score,
            "received": score,
            "partial": state,
            "gathered": travels + row + score,  # means of all, those that stay, those that leave
            "asked": state + travels,
            "merged": travels,
        }
    whole = row + 2 * score
    ends = row if step.whole_rows else score
    return {
        "columns": score,
        "received": row + score,
        "partial": 2 * ends + score,  # of one block, and of all before
        "gathered": 2 * whole,
        "asked": 2 * whole + ends,
        "merged": whole + ends,
        "shared": row,
    }


def _written(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Tensors that an operator without a result has written."""
    named = zip(func._schema.arguments, args, strict=False)
    return _tensors([a for argument, a in named if argument.is_write])


def _kind(name: str, args: tuple[Any, ...]) -> Kind:
    if name == "dropout_rows" or (name == "update_rows" and args[2] is not None):
        return "dropout"
    return "softmax" if name in _SOFTMAX else "elementwise"


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, tuple | list):
        return [tensor for value in values for tensor in _tensors(value)]
    return []
