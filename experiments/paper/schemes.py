"""The lines of the figures: what is distributed how, and with which savings."""

from __future__ import annotations

from dataclasses import dataclass

from spgnn.config import TrainConfig


@dataclass(frozen=True)
class Scheme:
    """One line.

    Attributes
    ----------
    name : str
    exchange : {"oblivious", "sparsity-aware"}
    method : str or None
        Of the partition; ``None`` leaves vertices where they are, in even blocks.
    ours : bool
        Whether with what the paper does not have: the order that moves less, minimum vertex covers
        on a partition made for them, and no rows that no loss looks at.
    halo : bool
        Whether the second layer's remote rows are recomputed.
    """

    name: str
    exchange: str = "sparsity-aware"
    method: str | None = None
    ours: bool = False
    halo: bool = False

    def config(self, c: int, layers: int, hidden: int) -> TrainConfig:
        """A training of it: 1D, or 1.5D with c replicas."""
        return TrainConfig.of(
            algo="1d" if c == 1 else "1.5d",
            c=c,
            exchange=self.exchange,
            cover="minimum" if self.ours else "column",
            order="auto" if self.ours else "paper",
            recompute_halo=self.halo and layers > 1,
            prune=self.ours,
            layers=layers,
            hidden=hidden,
        )

    @property
    def objective(self) -> str:
        """Of the partition."""
        return "cover" if self.ours else "column"


OBLIVIOUS = Scheme("oblivious", "oblivious")
AWARE = Scheme("sparsity-aware")
METIS = Scheme("sparsity-aware + metis", method="metis")
GVB = Scheme("sparsity-aware + gvb", method="gvb")
OURS = Scheme("ours", method="gvb", ours=True)
OURS_HALO = Scheme("ours with a halo", method="gvb", ours=True, halo=True)

SCALING = (OBLIVIOUS, AWARE, GVB, OURS, OURS_HALO)
PARTITIONERS = (METIS, GVB, OURS)
BY_NAME = {scheme.name: scheme for scheme in (*SCALING, METIS)}
