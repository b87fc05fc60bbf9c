"""Who owns which rows (RowLayout) and how ranks are arranged (ProcessGrid)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Contiguous rows per part: part p owns rows [offsets[p], offsets[p + 1]).

    Parameters
    ----------
    offsets : int64 [parts + 1]
        Rises from 0 to the number of rows; equal neighbours mean an empty part.
    """

    offsets: Int64Array

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets, dtype=np.int64)
        if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise InputError("row layout offsets must rise from 0 and hold at least one part")
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def even(cls, rows: int, parts: int) -> RowLayout:
        """Equal blocks, sizes differing by at most one."""
        return cls(np.arange(parts + 1, dtype=np.int64) * rows // parts)

    @classmethod
    def from_labels(cls, labels: npt.ArrayLike, parts: int) -> RowLayout:
        """The layout after vertices were relabelled in the order of their part."""
        counts = np.bincount(np.asarray(labels, dtype=np.int64), minlength=parts)
        return cls(np.concatenate(([0], np.cumsum(counts))))

    @property
    def parts(self) -> int:
        """Number of parts, empty ones included."""
        return len(self.offsets) - 1

    @property
    def rows(self) -> int:
        """Rows in all."""
        return int(self.offsets[-1])

    @cached_property
    def sizes(self) -> Int64Array:
        """Rows of each part, int64 [parts]."""
        return np.diff(self.offsets)

    def range(self, part: int) -> tuple[int, int]:
        """First row of a part and one past its last."""
        return int(self.offsets[part]), int(self.offsets[part + 1])

    def owner(self, rows: npt.ArrayLike) -> Int64Array:
        """The part that owns each of the rows."""
        found = np.searchsorted(self.offsets, np.asarray(rows), side="right") - 1
        return found.astype(np.int64, copy=False)

    def grouped(self, size: int) -> RowLayout:
        """The coarser layout in which every `size` neighbouring parts are one."""
        if self.parts % size:
            raise InputError(f"{self.parts} parts cannot be grouped by {size}")
        return RowLayout(self.offsets[::size])

    def split(self, pieces: int) -> RowLayout:
        """The finer layout in which every part is cut into `pieces` even ones."""
        inner = np.arange(pieces) * self.sizes[:, None] // pieces
        return RowLayout(np.append((self.offsets[:-1, None] + inner).ravel(), self.rows))


@dataclass(frozen=True)
class ProcessGrid:
    """P ranks as a P/c × c grid; rank r sits at (r // c, r % c).

    Ranks with the same i form a row group: together they hold block row i of A. Ranks with the
    same j form a column group: rows of H travel inside it. c = 1 is the 1D algorithm.
    """

    size: int
    c: int = 1

    def __post_init__(self) -> None:
        if self.c < 1 or self.size % self.c:
            raise InputError(
                f"replication factor c = {self.c} must divide the number of ranks {self.size}"
            )

    @property
    def block_rows(self) -> int:
        """P/c, the number of block rows of A."""
        return self.size // self.c

    def coordinates(self, rank: int) -> tuple[int, int]:
        """(i, j) of a rank."""
        return divmod(rank, self.c)

    def row_group(self, rank: int) -> list[int]:
        """The c ranks with this rank's i, in order of j."""
        i = rank // self.c
        return list(range(i * self.c, (i + 1) * self.c))

    def column_group(self, rank: int) -> list[int]:
        """The P/c ranks with this rank's j, in order of i."""
        return list(range(rank % self.c, self.size, self.c))
