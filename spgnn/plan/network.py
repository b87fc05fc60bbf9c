"""What one training epoch of a model does, found by running it on tensors that have no data."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.exchange import Step
from spgnn.nn import (
    MODELS,
    DropoutKeys,
    Features,
    Order,
    Precision,
    Propagated,
    Propagation,
    Stack,
    dtype_of,
    masked_cross_entropy,
)
from spgnn.pattern import Pattern
from spgnn.plan.machine import Float64Array
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

# The model is tried on a rank with MOST_ROWS - l rows where layer l begins, so that the length of a
# dimension says of which rows it is. Nothing of that size has data, but for sparse features.
MOST_ROWS = 1_000_003
_SOFTMAX = {"_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"}
_DENSE = {"mm", "addmm", "addmm_"}
_FREE = {"empty", "empty_like", "new_empty", "detach", "view", "t", "permute", "transpose"}
_FREE |= {"expand", "alias", "as_strided"}
Optimizer = Literal["adam", "adamw", "sgd"]
ModelKind = Literal["gcn", "sage", "gin"]
Kind = Literal["elementwise", "dropout", "softmax"]


@dataclass(frozen=True)
class Network:
    """The model whose training is priced, and how its operands are kept.

    Attributes
    ----------
    widths : tuple of int
        Features, hidden widths, classes.
    kind : {"gcn", "sage", "gin"}
    order : {"auto", "paper"}
    dropout : float
    input_dropout : bool
        Whether features are dropped as well.
    sparse : bool
        Whether features are stored sparse.
    ghosts : bool
        Whether the second layer's remote rows are recomputed.
    dtype : {"float32", "bfloat16", "float64"}
        Of activations, messages and dense features.
    optimizer : {"adam", "adamw", "sgd"}
    act, norm, residual, jk
        As the training command has them; ``node`` is the layer norm of each vertex.
    """

    widths: tuple[int, ...]
    kind: ModelKind = "gcn"
    order: Order = "auto"
    dropout: float = 0.0
    input_dropout: bool = True
    sparse: bool = False
    ghosts: bool = False
    optimizer: Optimizer = "adam"
    dtype: Precision = "float32"
    act: str = "relu"
    norm: str = "none"
    residual: bool = False
    jk: str = "none"

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.widths) - 1

    @property
    def itemsize(self) -> int:
        """Bytes of a number of the dense features."""
        return dtype_of(self.dtype).itemsize

    @property
    def drops_features(self) -> bool:
        """Whether the first layer's input changes in every epoch."""
        return self.dropout > 0 and self.input_dropout

    @property
    def propagated(self) -> bool:
        """Whether A·X is made once, as the training command does where it can."""
        possible = self.order == "auto" and not self.drops_features
        return possible and (self.ghosts or not self.sparse)

    @property
    def keeps_both(self) -> bool:
        """Whether X stays beside A·X: for weights of the vertex itself."""
        return self.propagated and (self.kind != "gcn" or self.residual)

    @property
    def takes_all_rows(self) -> bool:
        """Whether a norm takes statistics over all vertices: then no layer leaves rows out."""
        return self.norm not in ("none", "node")

    @property
    def summed(self) -> tuple[int, ...]:
        """Numbers of each sum over all ranks that norms take, forward and backward."""
        if not self.takes_all_rows:
            return ()
        hidden = self.widths[1:-1]
        if self.jk != "none":  # the last layer is a hidden one as well
            hidden = (*hidden, hidden[-1] if hidden else self.widths[-1])
        return tuple(n for width in hidden for n in (width + 1, 2 * width, 2 * width))

    @property
    def keeps_sparse(self) -> bool:
        """Whether features are sparse in training; order paper and ghosts make them dense."""
        return self.sparse and self.order == "auto" and not self.propagated

    @property
    def takes_ghosts(self) -> bool:
        """Whether ghosts fit the model."""
        return self.layers > 1 and not self.drops_features

    @property
    def weights(self) -> int:
        """Parameters, biases included."""
        return sum(parameter.numel() for parameter in self.model().parameters())

    def model(self) -> Stack:
        """The model itself, without data."""
        options: dict[str, Any] = {"order": self.order} if self.kind == "gcn" else {}
        options |= {"act": self.act, "residual": self.residual, "jk": self.jk}
        if self.norm == "node":
            options |= {"norm": "layer", "norm_kwargs": {"mode": "node"}}
        elif self.norm != "none":
            options["norm"] = self.norm
        with torch.device("meta"):
            return MODELS[self.kind].of(
                self.widths, dropout=self.dropout, input_dropout=self.input_dropout, **options
            )


@dataclass(frozen=True)
class Product:
    """A product with the distributed matrix of a layer, or the adjoint of one."""

    layer: int
    width: int
    dtype: torch.dtype
    adjoint: bool

    @property
    def words(self) -> float:
        """Width of an operand of float32 that has as many bytes."""
        return self.width * self.dtype.itemsize / torch.float32.itemsize


@dataclass(frozen=True)
class Dense:
    """A dense product: operations for each row of layer `at`; the smaller of the other sides."""

    at: int
    flops: float
    width: int


@dataclass(frozen=True)
class Sparse:
    """A product of the sparse features, or of their transpose, with something of some width."""

    width: int
    adjoint: bool


@dataclass(frozen=True)
class Pass:
    """One pass over rows of layer `at`: bytes read and written for each, and at which rate."""

    at: int
    nbytes: float
    kind: Kind


@dataclass(frozen=True, eq=False)
class Epoch:
    """One training epoch on one rank, for any numbers of rows.

    Attributes
    ----------
    steps : tuple
        In order.
    alive : float64 [times, layers + 1]
        Bytes for each row where layer l begins, at all times that may be the worst.
    """

    steps: tuple[Product | Dense | Sparse | Pass, ...]
    alive: Float64Array

    @property
    def products(self) -> tuple[Product, ...]:
        """Those with distributed matrices: the same that ``nn.recorded_products`` finds."""
        return tuple(step for step in self.steps if isinstance(step, Product))

    def activations(self, rows: Any) -> Float64Array:
        """The most bytes alive at a time, float64 [P], with rows [layers + 1, P]."""
        return np.asarray((self.alive @ rows).max(axis=0), np.float64)


def trace(network: Network) -> Epoch:
    """Run one epoch on torch's meta device: shapes, and no data.

    Parameters
    ----------
    network : Network
    """
    count = network.layers
    steps: list[Product | Dense | Sparse | Pass] = []
    ids = [
        torch.empty(MOST_ROWS - layer, dtype=torch.int64, device="meta")
        for layer in range(count + 1)
    ]
    X = _features(network)
    keys = DropoutKeys(ids[0], 0, 0)
    layers = [
        Propagation(cast(DistMatrix, _Recorder(layer, steps)), ids[layer]) for layer in range(count)
    ]
    model = network.model().to(dtype_of(network.dtype))
    if isinstance(X, CSR):
        model.input_dropout = False  # masks of what is stored depend on data
    mask = torch.empty_like(ids[-1], dtype=torch.bool)
    with _Watch(steps, X, count + 1) as watch:
        # As in training, nobody keeps the scores: their logarithms are enough for backward.
        masked_cross_entropy(model(X, layers, keys), ids[-1], mask, 1).backward()
    return Epoch(tuple(steps), np.array(watch.times))


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


class _Recorder:
    """Stands for the distributed matrix of a layer, and notes what is multiplied with it."""

    handle = 0

    def __init__(self, layer: int, steps: list[Any]) -> None:
        self.columns, self.rows = MOST_ROWS - layer, MOST_ROWS - layer - 1
        self._layer, self._steps = layer, steps

    def next_step(self, H_local: Tensor) -> Step:
        """Nobody counts."""
        return Step()

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """Note ``A·H``."""
        return self._noted(H_local, self.rows, adjoint=False)

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """Note ``Aᵀ·G``."""
        return self._noted(G_local, self.columns, adjoint=True)

    def _noted(self, operand: Tensor, rows: int, *, adjoint: bool) -> Tensor:
        width = operand.shape[1]
        self._steps.append(Product(self._layer, width, operand.dtype, adjoint))
        return operand.new_empty(rows, width)


class _Watch(TorchDispatchMode):
    """Sees every operator: notes its cost, and the bytes alive after it."""

    def __init__(self, steps: list[Any], X: Features, sizes: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps, self._sizes = steps, sizes
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
        if name in _DENSE:
            self._steps.append(self._dense(*args[-2:]))
        elif name == "spmm":
            self._steps.append(Sparse(_tensors(result)[0].shape[1], adjoint=not made))
        elif (made or given) and name not in _FREE:
            at = self._at((*made, *given)[0])
            moved = sum(t.numel() * t.element_size() / max(t.shape) for t in (*made, *given))
            self._steps.append(Pass(cast(int, at), moved, _kind(name, args)))
        for tensor in made:
            self._keep(tensor)
        return result

    def _at(self, tensor: Tensor) -> int | None:
        """Of which layer's rows a tensor is."""
        for length in tensor.shape:
            if 0 <= MOST_ROWS - length < self._sizes:
                return MOST_ROWS - length
        return None

    def _keep(self, tensor: Tensor) -> None:
        storage, at = tensor.untyped_storage(), self._at(tensor)
        key = storage._cdata
        if key in self._alive or at is None:
            return
        self._alive[key] = at, storage.nbytes() / (MOST_ROWS - at)
        weakref.finalize(storage, self._alive.pop, key, None)
        now = [0.0] * self._sizes
        for where, nbytes in self._alive.values():
            now[where] += nbytes
        self.times.append(now)

    def _dense(self, a: Tensor, b: Tensor) -> Dense:
        at = self._at(a) if self._at(a) is not None else self._at(b)
        others = [n for n in (*a.shape, b.shape[1]) if n != MOST_ROWS - cast(int, at)]
        return Dense(cast(int, at), 2 * prod(others), min(others))


def _written(func: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """What an operator that returns nothing has written."""
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
