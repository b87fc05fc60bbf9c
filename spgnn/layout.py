"""Owners of rows (RowLayout) and arrangements of ranks (Axes)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, unknown

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
# The axis along which all ranks are peers; every arrangement has it.
EVERYONE = "everyone"
# The axes between nodes, and inside a node.
NODE, LOCAL = "node", "local"


def grouped_order(group: npt.NDArray[np.integer], groups: int) -> Int64Array:
    """The order in which members of each of `groups` lie together, in the order they had."""
    # Keys of two bytes are sorted by counting, longer ones by comparing.
    narrow = np.uint16 if groups <= 1 << 16 else np.int64
    return np.argsort(group.astype(narrow, copy=False), kind="stable")


def inverse_permutation(order: Int64Array) -> Int64Array:
    """The new place of each old index; ``InputError`` if `order` is no permutation of [0, n)."""
    n = len(order)
    inverse = np.full(n, -1)
    if n and (order.min() < 0 or order.max() >= n):
        raise InputError(f"order must be a permutation of [0, {n})")
    inverse[order] = np.arange(n)
    if n and inverse.min() < 0:
        raise InputError(f"order must be a permutation of [0, {n}); some vertex is named twice")
    return inverse


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
        offsets = np.array(self.offsets, dtype=np.int64)  # a copy: the caller's may change
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
        owners = np.searchsorted(self.offsets, np.asarray(rows), side="right") - 1
        return owners.astype(np.int64, copy=False)

    def grouped(self, size: int) -> RowLayout:
        """The coarser layout in which every `size` neighbouring parts are one."""
        if self.parts % size:
            raise InputError(f"{self.parts} parts cannot be grouped by {size}")
        return RowLayout(self.offsets[::size])

    def split(
        self, pieces: int, weights: npt.ArrayLike | None = None, shares: Float64Array | None = None
    ) -> RowLayout:
        """The finer layout in which every part is cut into `pieces` of about equal weight.

        Weights [rows] are not negative; by default every row weighs the same. With `shares`
        [pieces], positive, the weights of the pieces are in their proportion.
        """
        if weights is None and shares is None:
            size, rest = np.divmod(self.sizes[:, None], pieces)
            number = np.arange(pieces)
            cuts = self.offsets[:-1, None] + number * size + np.minimum(number, rest)
            return RowLayout(np.append(cuts.ravel(), self.rows))
        # A hair for every row, so that rows without weight are shared out as well.
        weight = np.ones(self.rows) if weights is None else np.asarray(weights, np.float64) + 1e-3
        before = np.concatenate(([0], np.cumsum(weight)))
        begin, end = before[self.offsets[:-1]], before[self.offsets[1:]]
        if shares is None:
            targets = begin[:, None] + (end - begin)[:, None] * np.arange(pieces) / pieces
        else:
            first = np.concatenate(([0], np.cumsum(shares)[:-1])) / np.sum(shares)
            targets = begin[:, None] + (end - begin)[:, None] * first
        # The row whose middle lies at a cut goes to the side that has more of it.
        cuts = np.searchsorted((before[1:] + before[:-1]) / 2, targets)
        cuts = np.clip(cuts, self.offsets[:-1, None], self.offsets[1:, None])
        cuts[:, 0] = self.offsets[:-1]
        return RowLayout(np.append(cuts.ravel(), self.rows))

    def dealt(self, rows: npt.ArrayLike, pieces: int) -> Int64Array:
        """New numbers of rows when every part deals its rows to `pieces` hands, to and fro.

        Neighbouring rows come into different hands, so that hands are alike however rows are
        sorted. The rows of one hand follow each other. A formula: no rank needs a table.
        """
        rows = np.asarray(rows, np.int64)
        part = self.owner(rows)
        turn, card = np.divmod(rows - self.offsets[part], pieces)
        hand = np.where(turn % 2 == 0, card, pieces - 1 - card)
        turns, rest = np.divmod(self.sizes[part], pieces)
        # The last turn may not reach all hands.
        extra = np.where(
            turns % 2 == 0, np.minimum(hand, rest), np.maximum(0, hand - (pieces - rest))
        )
        return np.asarray(self.offsets[part] + hand * turns + extra + turn, np.int64)


@dataclass(frozen=True)
class Axes:
    """Ranks arranged along named axes, the last one fastest.

    Two ranks are peers along an axis if they differ in nothing but their coordinate on it. Along
    "everyone", which is not named among the axes, all are.

    Parameters
    ----------
    names : tuple of str
    sizes : tuple of int
        Ranks along each axis, at least 1.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or len(set(self.names)) != len(self.names):
            raise InputError(f"axes {self.names} of sizes {self.sizes}: one name for each size")
        if not self.names or min(self.sizes) < 1:
            raise InputError(f"axes {self.names} have sizes {self.sizes}; each is at least 1")

    @classmethod
    def grid(cls, ranks: int, c: int = 1, shares: int = 1) -> Axes:
        """P/c × c ranks, "row" by "replica": rank r sits at (r // c, r % c).

        Ranks with the same row hold one block row of A; rows of H travel along "row", partial
        sums along "replica". c = 1 is the 1D algorithm. With several shares of the feature
        columns, P/(c·shares) × c × shares ranks: the third axis is "feature".

        Raises
        ------
        InputError
            If c, or the number of shares, does not divide the number of ranks.
        """
        if c < 1 or ranks % c:
            raise InputError(f"replication factor c = {c} must divide the number of ranks {ranks}")
        if shares < 1 or ranks // c % shares:
            raise InputError(f"{shares} shares of the columns must divide {ranks} ranks / c = {c}")
        if shares == 1:
            return cls(("row", "replica"), (ranks // c, c))
        return cls(("row", "replica", "feature"), (ranks // (c * shares), c, shares))

    @classmethod
    def of_nodes(cls, ranks: int, size: int, c: int = 1, groups: tuple[int, ...] = ()) -> Axes:
        """P/N × N ranks, "node" by "local": rank r is on node r // N.

        With c > 1, the ranks of a node are N/c × c, "local" by "replica", as in `grid`. Smaller
        groups of neighbours inside a node, whose sizes rise, have an axis each, between "node" and
        "local": "local 4" is between the groups of 2, say, inside groups of 4.

        Raises
        ------
        InputError
            If N, the ranks of a node, does not divide the number of ranks, c or the size of a group
            does not divide the next one.
        """
        if size < 1 or ranks % size:
            raise InputError(f"{size} ranks a node must divide the number of ranks {ranks}")
        sizes = (c, *groups, size)
        if c < 1 or size % c:
            raise InputError(f"replication factor c = {c} must divide the {size} ranks of a node")
        for smaller, larger in pairwise(sizes):
            if smaller < 1 or larger % smaller:
                raise InputError(f"groups of {larger} ranks must consist of groups of {smaller}")
        inner = [f"{LOCAL} {larger}" for larger in sizes[:1:-1]]
        names = (NODE, *inner, LOCAL, "replica")[: None if c > 1 else -1]
        each = (ranks // size, *(b // a for a, b in reversed(list(pairwise(sizes)))), c)
        return cls(names, each[: len(names)])

    @property
    def ranks(self) -> int:
        """Ranks in all."""
        return prod(self.sizes)

    def size(self, axis: str) -> int:
        """Ranks along an axis."""
        return self.ranks if axis == EVERYONE else self.sizes[self._number(axis)]

    def coordinate(self, axis: str, rank: int) -> int:
        """The place of a rank on an axis."""
        return rank // self._stride(axis) % self.size(axis)

    def group(self, axis: str, rank: int) -> range:
        """A rank and its peers along an axis, in order of their coordinate."""
        stride = self._stride(axis)
        first = rank - self.coordinate(axis, rank) * stride
        return range(first, first + self.size(axis) * stride, stride)

    def groups(self, axis: str) -> list[range]:
        """All groups of peers along an axis, by their first ranks."""
        firsts = (rank for rank in range(self.ranks) if self.coordinate(axis, rank) == 0)
        return [self.group(axis, rank) for rank in firsts]

    def _number(self, axis: str) -> int:
        if axis not in self.names:
            raise unknown("axis", axis, self.names)
        return self.names.index(axis)

    def _stride(self, axis: str) -> int:
        if axis == EVERYONE:
            return 1
        return prod(self.sizes[self._number(axis) + 1 :])
