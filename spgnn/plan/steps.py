"""What one training epoch of a model consists of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from spgnn.layout import Int64Array
from spgnn.plan.census import Census, sum_of
from spgnn.plan.hops import LEVELS, HopCensus, Moved
from spgnn.plan.machine import Float64Array
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
        """What it moves."""
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
        """Those that have wires, and how many columns go on them."""
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
        """What travels."""
        return Shape(self.width, self.heads, self.dtype, self.whole_rows)

    def traffic(self, census: Census) -> Moved:
        """What it moves."""
        nothing = np.zeros((3, len(LEVELS), len(census.matrix)))
        moved = self.of(census).exchanges(self.shape, adjoint=self.adjoint)
        sent, received, messages = np.sum([nothing, *map(np.stack, moved)], axis=0)
        return sent, received, messages

    def exchanges(self, census: Census) -> list[list[Moved]]:
        """One after the other."""
        moved = self.of(census).plain.exchanges(self.shape, adjoint=self.adjoint)
        return [[each] for each in moved]

    def buffer_bytes(self, census: Census) -> Int64Array:
        """Of rows of sources."""
        return np.asarray(self.dtype.itemsize * self.width * self.of(census).kept, np.int64)

    def hops(self, census: Census) -> Iterator[tuple[HopCensus, int]]:
        """Those that have wires, and how many columns go on them."""
        weighed = self.of(census)
        if weighed.fetch is not None:
            yield weighed.fetch, self.width
        for way in (weighed.sums, weighed.fold):
            if way is not None:
                yield way, self.width * (1 + self.whole_rows)

    @staticmethod
    def of(census: Census) -> WeighedCensus:
        """What it works on."""
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
