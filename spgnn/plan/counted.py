"""The plans of a model on all ranks, counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import Census
from spgnn.plan.pairs import PairsCensus
from spgnn.plan.weighed import BESIDE


@dataclass(frozen=True, eq=False)
class Counted:
    """All plans of a model on all ranks, counted.

    Attributes
    ----------
    whole : Census
        Of the whole matrix, which evaluation works with.
    layers : tuple of Census or None
        ``None`` where a layer works on the whole matrix, or multiplies nothing.
    rows : int64 [layers + 1, P]
        Where layer l begins, ghosts included; last, where the loss begins.
    ghosts : int64 [P]
        Rows of other ranks that are recomputed.
    together : bool
        Whether all ranks are on one node.
    pairs : PairsCensus, optional
        Where links are learnt: what comes after the layers.
    """

    whole: Census
    layers: tuple[Census | None, ...]
    rows: Int64Array
    ghosts: Int64Array
    together: bool
    pairs: PairsCensus | None = None

    def of(self, layer: int) -> Census:
        """Census of a layer's matrix in training; after the last layer, of the pairs' sources."""
        if layer == len(self.layers) and self.pairs is not None:
            return self.pairs
        return self.layers[layer] or self.evaluated(layer)

    def evaluated(self, layer: int) -> Census:
        """Census of a layer's matrix in evaluation."""
        if layer == len(self.layers):
            return self.of(layer)
        return self.whole

    def beside(self, layer: int) -> Int64Array:
        """Rows of a layer other than its input and output, for each kind in `BESIDE`, [6, P]."""
        census = self.of(layer)
        if census.weighed is not None:
            return census.weighed.beside
        found = np.zeros((len(BESIDE), len(self.ghosts)), np.int64)
        hops = [hop for stage in census.stages for hop in stage.hops]
        found[BESIDE.index("received")] = sum(hop.received.sum(axis=0) for hop in hops)
        return found

    @property
    def every_row(self) -> Int64Array:
        """Rows of all kinds, as an `Epoch` counts them: [kinds, P]."""
        beside = [self.beside(layer) for layer in range(len(self.layers))]
        pairs = [] if self.pairs is None else [self.pairs.pairs[None]]
        return np.concatenate((self.rows, *beside, *pairs))

    @property
    def all(self) -> list[Census]:
        """Each matrix once."""
        found = [self.whole, *(one for one in self.layers if one is not None)]
        if self.pairs is not None:
            found += [self.pairs, *self.pairs.judged]
        return list({id(census): census for census in found}.values())
