"""The model whose training is priced, and the steps of one of its epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from spgnn.attention.pieces import check_attention
from spgnn.data.normalise import OWN_NORMALISATION, WITH_LOOPS, Normalisation
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.layout import Int64Array
from spgnn.nn import MODELS, Order, Precision, Stack, dtype_of
from spgnn.plan.census import Census, sum_of
from spgnn.plan.hops import LEVELS, HopCensus, Moved
from spgnn.plan.machine import Float64Array
from spgnn.plan.pairs import LinkTask
from spgnn.plan.weighed import Shape, WeighedCensus

Kind = Literal["elementwise", "dropout", "softmax"]


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

    def traffic(self, census: Census) -> Moved:
        """Traffic of the step."""
        return census.traffic(self.width, self.dtype, adjoint=self.adjoint)

    def exchanges(self, census: Census) -> list[list[Moved]]:
        """The same of rows as they are, in their order, by what is under way together."""
        found = [
            together
            for factor in census.factors
            for together in factor.exchanges(self.width, self.dtype, adjoint=self.adjoint)
            if together
        ]
        return found[::-1] if self.adjoint else found

    def buffer_bytes(self, census: Census) -> Int64Array:
        """Kept from product to product, int64 [P]."""
        return self.dtype.itemsize * census.buffers(self.width)

    def hops(self, census: Census) -> Iterator[tuple[HopCensus, int]]:
        """Hops that may have codecs, and the number of columns on each."""
        for factor in census.factors:
            for hop in (hop for stage in factor.parts() for hop in stage.hops):
                yield hop, factor.share(self.width)


@dataclass(frozen=True)
class Extreme(Product):
    """The largest or smallest of neighbours, which moves the rows that a product would."""

    def buffer_bytes(self, census: Census) -> Int64Array:
        """Rows that are sent; those that are received lie behind own ones."""
        sent = sum_of(
            [np.zeros_like(census.rows), *(h.sent.sum(axis=0) for h, _ in self.hops(census))]
        )
        return np.asarray(self.dtype.itemsize * self.width * sent, np.int64)


@dataclass(frozen=True)
class Weighing(Product):
    """A layer of attention, or the gradient of one, on rows of heads × channels.

    Attributes
    ----------
    heads : int
    whole_rows : bool
        Whether scores need the destination's whole row.
    drops : bool
        Whether weights are dropped.
    """

    heads: int = 1
    whole_rows: bool = False
    drops: bool = False

    @property
    def shape(self) -> Shape:
        """Shape of the messages."""
        return Shape(self.width, self.heads, self.dtype, self.whole_rows)

    def traffic(self, census: Census) -> Moved:
        """Traffic of the step."""
        nothing = np.zeros((3, len(LEVELS), len(census.matrix)))
        moved = self.of(census).exchanges(self.shape, adjoint=self.adjoint)
        sent, received, messages = np.sum([nothing, *map(np.stack, moved)], axis=0)
        return sent, received, messages

    def exchanges(self, census: Census) -> list[list[Moved]]:
        """One after the other."""
        moved = self.of(census).plain.exchanges(self.shape, adjoint=self.adjoint)
        return [[each] for each in moved]

    def buffer_bytes(self, census: Census) -> Int64Array:
        """Bytes of source rows kept from layer to layer, int64 [P]."""
        return np.asarray(self.dtype.itemsize * self.width * self.of(census).kept, np.int64)

    def hops(self, census: Census) -> Iterator[tuple[HopCensus, int]]:
        """Hops that may have codecs, and the number of columns on each."""
        weighed = self.of(census)
        if weighed.fetch is not None:
            yield weighed.fetch, self.width
        for way in (weighed.sums, weighed.fold):
            if way is not None:
                yield way, self.width * (1 + self.whole_rows)

    @staticmethod
    def of(census: Census) -> WeighedCensus:
        """The attention census of a matrix."""
        assert census.weighed is not None
        return census.weighed


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


Step = Product | Dense | Sparse | Pass


@dataclass(frozen=True, eq=False)
class Epoch:
    """One training epoch on one rank, for any numbers of rows.

    Attributes
    ----------
    steps : tuple
        In order.
    alive : float64 [times, layers + 1 + len(BESIDE) * layers]
        Bytes for each row where layer l begins, and then for each of what else differs from rank to
        rank in layer l (`spgnn.plan.weighed.BESIDE`); at all times that may be the worst.
    """

    steps: tuple[Step, ...]
    alive: Float64Array

    @property
    def products(self) -> tuple[Product, ...]:
        """Those with distributed matrices: the same that ``nn.recorded_products`` finds."""
        return tuple(step for step in self.steps if isinstance(step, Product))

    def activations(self, rows: Any) -> Float64Array:
        """The most bytes alive at a time, float64 [P], with rows [layers + 1 + …, P].

        Of what is not listed there is nothing.
        """
        return np.asarray((self.alive[:, : len(rows)] @ rows).max(axis=0), np.float64)


Optimizer = Literal["adam", "adamw", "sgd"]
ModelKind = Literal["gcn", "sage", "gin", "gat", "gatv2"]
# Options of a model that are named as the training command names them.
_ATTENTION = ("heads", "attention_dropout", "message_dropout")
PRICED = ("act", "norm", "residual", "jk", "aggregate", *_ATTENTION)
ATTENDING = ("gat", "gatv2")


@dataclass(frozen=True)
class Network:
    """The model whose training is priced, and how its operands are kept.

    Attributes
    ----------
    widths : tuple of int
        Features, hidden widths, classes.
    kind : {"gcn", "sage", "gin", "gat", "gatv2"}
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
    aggregate : {"mean", "sum", "max", "min"}
        Of sage.
    heads : int
        Of gat and gatv2.
    attention_dropout : float, optional
        Of edges; by default as of features.
    message_dropout : float
        Of what is weighed.
    links : LinkTask, optional
        Where these are learnt; the last layer then makes embeddings.
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
    aggregate: str = "mean"
    heads: int = 1
    attention_dropout: float | None = None
    message_dropout: float = 0.0
    links: LinkTask | None = None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.widths) - 1

    @property
    def attends(self) -> bool:
        """True if layers compute weights of their own for the edges."""
        return self.kind in ATTENDING

    @property
    def drops_edges(self) -> bool:
        """True if attention drops weights."""
        given = self.attention_dropout
        return (self.dropout if given is None else given) > 0

    @property
    def extreme(self) -> bool:
        """True if layers take the largest or smallest of all neighbours."""
        return self.aggregate in ("max", "min")

    @property
    def edges(self) -> tuple[str, ...]:
        """Rates of edges that a machine must have: a name of `Machine.edges`, or none."""
        return (self.kind,) if self.attends else ("largest",) * self.extreme

    @property
    def itemsize(self) -> int:
        """Bytes of a number of the dense features."""
        return dtype_of(self.dtype).itemsize

    @property
    def drops_features(self) -> bool:
        """True if the first layer's input changes in every epoch."""
        return self.dropout > 0 and self.input_dropout

    @property
    def propagated(self) -> bool:
        """True if A·X is computed once, as the training command does where it can."""
        multiplies = not self.attends and not self.extreme
        possible = multiplies and self.order == "auto" and not self.drops_features
        return possible and (self.ghosts or not self.sparse)

    @property
    def keeps_both(self) -> bool:
        """True if X is kept as well as A·X, for weights of the vertex itself."""
        return self.propagated and (self.kind != "gcn" or self.residual)

    @property
    def takes_all_rows(self) -> bool:
        """True if a norm takes statistics over all vertices: then no layer leaves rows out."""
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
        """True if features are sparse in training; order paper and others make them dense."""
        dense = self.order != "auto" or self.extreme or self.propagated
        return self.sparse and not dense

    @property
    def takes_ghosts(self) -> bool:
        """True if the model works with a recomputed halo."""
        multiplies = not self.attends and not self.extreme
        return multiplies and self.layers > 1 and not self.drops_features

    def works_with(self, algorithm: Algorithm) -> bool:
        """True if an algorithm supports the layers, as the training command decides."""
        if self.extreme:
            whole_rows = "1d", "column", "sparsity-aware", 1, "overlap"
            how = algorithm
            asked = how.algo, how.cover, how.exchange, how.node_size, how.schedule
            return asked == whole_rows
        if self.attends:
            try:
                check_attention(algorithm)
            except InputError:
                return False
        return True

    @property
    def weights(self) -> int:
        """Parameters, biases included."""
        parts = [self.model(), *(() if self.links is None else (self.scorer(),))]
        return sum(parameter.numel() for part in parts for parameter in part.parameters())

    def scorer(self) -> nn.Module:
        """Decoder that scores pairs of embeddings, without data."""
        assert self.links is not None
        return self.links.scorer(self.widths[-1]).to("meta")

    def model(self) -> Stack:
        """The model itself, without data."""
        options: dict[str, Any] = {"order": self.order} if self.kind == "gcn" else {}
        options |= {"act": self.act, "residual": self.residual, "jk": self.jk}
        if self.norm == "node":
            options |= {"norm": "layer", "norm_kwargs": {"mode": "node"}}
        elif self.norm != "none":
            options["norm"] = self.norm
        if self.aggregate != "mean":
            options["aggr"] = self.aggregate
        if self.attends:
            options |= {"heads": self.heads, "attention_dropout": self.attention_dropout}
            options |= {"message_dropout": self.message_dropout}
        with torch.device("meta"):
            return MODELS[self.kind].of(
                self.widths, dropout=self.dropout, input_dropout=self.input_dropout, **options
            )


def normalisation_of(kind: str, aggregate: str, asked: str = "auto") -> tuple[Normalisation, bool]:
    """Normalisation of the adjacency that a model uses, and whether it has self-loops.

    Parameters
    ----------
    kind : str
        Of the model.
    aggregate : str
        Of sage.
    asked : {"auto", "sym", "row", "none"}
    """
    own: Normalisation = OWN_NORMALISATION[kind] if aggregate == "mean" else "none"
    given: dict[str, Normalisation] = {"sym": "sym", "row": "row", "none": "none"}
    return given.get(asked, own), kind in WITH_LOOPS
