"""How threads share the heads of a row, and arguments that all kernels of attention have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from spgnn.kernels.attention_rules import AttentionDropout
from spgnn.kernels.cuda.device import Argument
from spgnn.kernels.cuda.shapes import MOST_PACKS, PACK_BYTES, WARP, lanes_for, vector_width

SUM_BYTES = 64  # of a thread's running sums; more would not fit into shared memory


@dataclass(frozen=True)
class HeadShape:
    """Who computes a row of heads: ``group`` threads, ``lanes`` of them for each head.

    Each has ``packs`` packs of ``vector`` columns of its head at a time.
    """

    heads: int
    width: int
    vector: int
    lanes: int
    group: int
    packs: int

    @classmethod
    def of(
        cls, heads: int, matrices: Sequence[Tensor], sums: Sequence[Tensor | None], arrays: int
    ) -> HeadShape:
        """The fewest lanes that hold a head, for a score is made again by each of them.

        Parameters
        ----------
        heads : int
        matrices : sequence of Tensor [rows, heads * width]
            Of one dtype, read or written by packs.
        sums : sequence of Tensor
            Wider ones.
        arrays : int
            Of running sums.
        """
        width = matrices[0].shape[1] // heads
        vector = vector_width(*(matrix.unflatten(1, (heads, width)) for matrix in matrices))
        wide = max(4, matrices[0].element_size())
        while vector > 1 and not all(_aligned(array, vector) for array in sums):
            vector //= 2
        needed = max(1, -(-width // vector))
        most_packs = min(MOST_PACKS, max(1, SUM_BYTES // (vector * wide * arrays)))
        lanes = lanes_for(-(-needed // most_packs))
        sweeps = -(-needed // (lanes * most_packs))
        group = min(WARP, lanes * lanes_for(heads))
        return cls(heads, width, vector, lanes, group, -(-needed // (lanes * sweeps)))

    @property
    def parameters(self) -> tuple[int, int, int, int]:
        """As the templates take them."""
        return self.vector, self.lanes, self.group, self.packs

    @property
    def column_tiles(self) -> int:
        """How often the columns of a head are swept."""
        return max(1, -(-self.width // (self.vector * self.lanes * self.packs)))

    @property
    def tiles(self) -> int:
        """Second dimension of the grid."""
        return self.column_tiles * self.head_tiles

    @property
    def head_tiles(self) -> int:
        """How many groups the heads of a row take."""
        return -(-self.heads // (self.group // self.lanes))

    @property
    def arguments(self) -> tuple[int, int, int]:
        """As the kernels take them."""
        return self.heads, self.width, self.column_tiles

    def carry(self, slots: int, arrays: int, numbers: int, like: Tensor) -> Tensor:
        """Rows that cross tiles: arrays as wide as rows, then numbers of heads."""
        columns = arrays * self.heads * self.width + numbers * self.heads
        return like.new_empty((slots, -(-columns // 4) * 4))


def _aligned(array: Tensor | None, vector: int) -> bool:
    if array is None:
        return True
    return array.data_ptr() % min(PACK_BYTES, vector * array.element_size()) == 0


def dropout_arguments(dropout: AttentionDropout | None) -> tuple[Argument, ...]:
    """A rule of dropout as the kernels take it."""
    if dropout is None:
        return None, None, 0, 0, 1.0
    key = (dropout.key + 2**63) % 2**64 - 2**63
    scale = round(dropout.p * 2**32), 1.0 / (1.0 - dropout.p)
    return dropout.row_ids, dropout.col_ids, key, *scale
