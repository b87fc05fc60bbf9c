"""What one training epoch of a model does, found by running it on tensors that have no data."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.exchange import Step
from spgnn.nn import GCN, DropoutKeys, Order, Propagated, masked_cross_entropy
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

# As many rows has the rank on which the model is tried. Prime, so that a dimension of that length
# is one of rows; nothing of that size is ever allocated.
ROWS = 1_000_003
_SOFTMAX = {"_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"}
_FREE = {"empty", "empty_like", "new_empty", "detach", "view", "t", "permute", "transpose"}
_FREE |= {"expand", "alias", "as_strided"}
Optimizer = Literal["adam", "sgd"]


@dataclass(frozen=True)
class Network:
    """The model whose training is priced, and how its operands are kept.

    Attributes
    ----------
    widths : tuple of int
        Features, hidden widths, classes.
    kind : {"gcn"}
    order : {"auto", "paper"}
    dropout : float
    sparse : bool
        Whether features are stored sparse.
    optimizer : {"adam", "sgd"}
    """

    widths: tuple[int, ...]
    kind: Literal["gcn"] = "gcn"
    order: Order = "auto"
    dropout: float = 0.0
    sparse: bool = False
    optimizer: Optimizer = "adam"

    @property
    def propagated(self) -> bool:
        """Whether A·X is made once, as the training command does where it can."""
        return not self.sparse and self.order == "auto" and self.dropout == 0

    @property
    def keeps_sparse(self) -> bool:
        """Whether features are sparse in training; order paper makes them dense."""
        return self.sparse and self.order == "auto"

    @property
    def weights(self) -> int:
        """Parameters, biases included."""
        return sum((a + 1) * b for a, b in zip(self.widths, self.widths[1:], strict=False))

    def model(self) -> GCN:
        """The model itself."""
        return GCN(self.widths, dropout=self.dropout, order=self.order)


@dataclass(frozen=True)
class Product:
    """A product with the distributed matrix, or the adjoint of one."""

    layer: int
    width: int
    dtype: torch.dtype
    adjoint: bool


@dataclass(frozen=True)
class Dense:
    """A dense product: operations for each row, and the smaller of its two other dimensions."""

    flops: float
    width: int


@dataclass(frozen=True)
class Sparse:
    """A product of the sparse features, or of their transpose, with something of some width."""

    width: int
    adjoint: bool


@dataclass(frozen=True)
class Pass:
    """One pass over rows: bytes read and written for each, and which rate they have."""

    nbytes: float
    kind: Literal["elementwise", "dropout", "softmax"]


@dataclass(frozen=True)
class Epoch:
    """One training epoch on one rank, for any number of rows.

    Attributes
    ----------
    steps : tuple
        In order.
    activations : float
        The most bytes alive at a time, for each row.
    """

    steps: tuple[Product | Dense | Sparse | Pass, ...]
    activations: float

    @property
    def products(self) -> tuple[Product, ...]:
        """Those with the distributed matrix: the same that ``nn.recorded_products`` finds."""
        return tuple(step for step in self.steps if isinstance(step, Product))


def trace(network: Network) -> Epoch:
    """Run one epoch on torch's meta device: shapes, and no data.

    Parameters
    ----------
    network : Network
    """
    model = network.model().to("meta")
    ids = torch.empty(ROWS, dtype=torch.int64, device="meta")
    X = _features(network)
    keys = None if isinstance(X, Propagated | CSR) and network.dropout == 0 else ids
    if isinstance(X, CSR):
        keys = None  # masks of sparse features depend on data; hidden layers are narrow
    recorder = _Recorder(model)
    with _Watch(recorder, X) as watch:
        matrix = cast(DistMatrix, recorder)
        logits = model(matrix, X, None if keys is None else DropoutKeys(keys, 0, 0))
        loss = masked_cross_entropy(logits, ids, torch.empty_like(ids, dtype=torch.bool), 1)
        loss.backward()
    return Epoch(tuple(recorder.steps), watch.most / ROWS)


def _features(network: Network) -> Tensor | CSR | Propagated:
    width = network.widths[0]
    if network.keeps_sparse:
        pattern = Pattern.trusted(torch.arange(ROWS + 1), torch.zeros(ROWS).int(), (ROWS, width))
        _ = pattern.T
        return CSR(pattern).to("meta")
    X = torch.empty(ROWS, width, device="meta")
    return Propagated(X) if network.propagated else X


class _Recorder:
    """Stands for the distributed matrix, and notes what is multiplied with it in which layer."""

    rows = columns = ROWS
    handle = 0

    def __init__(self, model: GCN) -> None:
        self.steps: list[Product | Dense | Sparse | Pass] = []
        self._layer = 0
        self._layers: list[int] = []
        for number, layer in enumerate(model.layers):
            layer.register_forward_pre_hook(lambda *_, number=number: self._enter(number))

    def _enter(self, number: int) -> None:
        self._layer = number

    def next_step(self, H_local: Tensor) -> Step:
        """The number of a product is what its adjoint is known by."""
        self._layers.append(self._layer)
        return Step(product=len(self._layers) - 1)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """Note a product."""
        return self._multiply(H_local, step)

    adjoint = forward

    def _multiply(self, H_local: Tensor, step: Step) -> Tensor:
        width, layer = H_local.shape[1], self._layers[step.product]
        self.steps.append(Product(layer, width, H_local.dtype, step.adjoint))
        return H_local.new_empty(ROWS, width)


class _Watch(TorchDispatchMode):
    """Sees every operator: notes its cost, and the bytes alive after it."""

    def __init__(self, recorder: _Recorder, X: Tensor | CSR | Propagated) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps = recorder.steps
        self._alive: dict[int, int] = {}
        if not isinstance(X, CSR):  # views of the features are not made here
            given = X.AX_local if isinstance(X, Propagated) else X
            self._alive[given.untyped_storage()._cdata] = 0
        self.most = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [t for t in _tensors(result) if _is_long(t)]
        given = [t for t in _tensors(args) if _is_long(t)]
        name = func.name().partition("::")[2].partition(".")[0]
        if name == "mm":
            self._steps.append(_dense(*args))
        elif name == "spmm":
            self._steps.append(Sparse(_tensors(result)[0].shape[1], adjoint=not made))
        elif (made or given) and name not in _FREE:
            moved = sum(map(_bytes_a_row, (*made, *given)))
            self._steps.append(Pass(moved, _kind(name)))
        for tensor in made:
            self._keep(tensor)
        return result

    def _keep(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        weakref.finalize(storage, self._alive.pop, key, None)
        self.most = max(self.most, sum(self._alive.values()))


def _dense(a: Tensor, b: Tensor) -> Dense:
    (m, k), (_, n) = a.shape, b.shape
    others = [size for size in (m, k, n) if size != ROWS]
    return Dense(2 * prod(others), min(others))


def _kind(name: str) -> Literal["elementwise", "dropout", "softmax"]:
    if name == "dropout_rows":
        return "dropout"
    return "softmax" if name in _SOFTMAX else "elementwise"


def _tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, tuple | list):
        return [tensor for value in values for tensor in _tensors(value)]
    return []


def _is_long(tensor: Tensor) -> bool:
    return ROWS in tensor.shape


def _bytes_a_row(tensor: Tensor) -> float:
    return tensor.numel() * tensor.element_size() / ROWS
