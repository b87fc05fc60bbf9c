"""The lines of the figures: what is distributed how, and with which savings."""

from __future__ import annotations

from dataclasses import dataclass

from spgnn.exchange import Algorithm
from spgnn.plan import Network, Subject


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
    ghosts : bool
        Whether the second layer's remote rows are recomputed.
    """

    name: str
    exchange: str = "sparsity-aware"
    method: str | None = None
    ours: bool = False
    ghosts: bool = False

    def algorithm(self, c: int) -> Algorithm:
        """1D, or 1.5D with c replicas."""
        return Algorithm(
            "1d" if c == 1 else "1.5d",
            c,
            exchange=self.exchange,  # type: ignore[arg-type]
            cover="minimum" if self.ours else "column",
        )

    @property
    def objective(self) -> str:
        """Of the partition."""
        return "cover" if self.ours else "column"

    def network(self, subject: Subject, layers: int, hidden: int) -> Network:
        """The model: features, hidden widths, classes."""
        widths = (subject.features, *[hidden] * (layers - 1), subject.classes)
        return Network(widths, order="auto" if self.ours else "paper", ghosts=self.ghosts)


OBLIVIOUS = Scheme("oblivious", "oblivious")
AWARE = Scheme("sparsity-aware")
METIS = Scheme("sparsity-aware + metis", method="metis")
GVB = Scheme("sparsity-aware + gvb", method="gvb")
OURS = Scheme("ours", method="gvb", ours=True)
OURS_GHOSTS = Scheme("ours with ghosts", method="gvb", ours=True, ghosts=True)

SCALING = (OBLIVIOUS, AWARE, GVB, OURS, OURS_GHOSTS)
PARTITIONERS = (METIS, GVB, OURS)
BY_NAME = {scheme.name: scheme for scheme in (*SCALING, METIS)}
