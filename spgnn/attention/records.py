"""What attention hands from step to step: rows, what gradients need, original numbers."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from spgnn.attention.scores import Kept
from spgnn.kernels.attention import AttentionDropout


class Forward(NamedTuple):
    """The rows that were made, and what the gradient needs: tensors only, empty if not needed.

    Attributes
    ----------
    out : Tensor [rows, heads * channels]
    lse : Tensor [rows, heads]
        Logarithm of the sum of exp(score) over all edges of a row, on whatever rank.
    kept : Kept
        Of the rows before the fold.
    ends : Tensor [rows before the fold, …]
        Empty where there is none.
    fetched : Tensor [fetched rows, heads * channels]
    asked : Tensor [partials for others, …]
        Their destinations' ends.
    asked_kept : Kept
    """

    out: Tensor
    lse: Tensor
    kept: Kept
    ends: Tensor
    fetched: Tensor
    asked: Tensor
    asked_kept: Kept


class Gradients(NamedTuple):
    """Of a layer's operands; that of edges is ``None`` where there were no edge scores."""

    Z: Tensor
    ends: Tensor
    a: Tensor
    edges: Tensor | None


class Ids(NamedTuple):
    """Original numbers of vertices, int64: what dropout of an edge is a function of."""

    rows: Tensor
    columns: Tensor
    fetched: Tensor
    asked: Tensor


class Rate(NamedTuple):
    """Dropout of weights: its probability and key, and the vertices' original numbers."""

    p: float
    key: int
    ids: Ids

    def of(self, rows: Tensor, columns: Tensor) -> AttentionDropout:
        """The same for one block."""
        return AttentionDropout(self.key, self.p, rows, columns)


class Blocks(NamedTuple):
    """Something for each block: that at hand, that of fetched sources, that of partials."""

    local: AttentionDropout | None = None
    remote: AttentionDropout | None = None
    asked: AttentionDropout | None = None

    @classmethod
    def of(cls, rate: Rate | None) -> Blocks:
        """Dropout of every block."""
        if rate is None:
            return cls()
        rows, columns, fetched, asked = rate.ids
        return cls(rate.of(rows, columns), rate.of(rows, fetched), rate.of(asked, columns))
