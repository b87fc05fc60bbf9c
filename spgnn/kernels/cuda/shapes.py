"""How many threads share a row, how much each reads at once, and what kernels are called in C++."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WARP = 32
PACK_BYTES = 16  # most that one load instruction moves
ACCUMULATORS = 16  # most running sums of a thread; more would spill registers
MOST_PACKS = 4
_CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "spgnn::Bfloat16",
    torch.int32: "int",
    torch.int64: "long long",
}


@dataclass(frozen=True)
class ThreadShape:
    """Who computes a row: ``lanes`` threads with ``packs`` packs of ``vector`` columns each."""

    vector: int
    lanes: int
    packs: int

    @property
    def columns(self) -> int:
        """Columns that a group of threads covers."""
        return self.vector * self.lanes * self.packs


def thread_shape(columns: int, vector: int) -> ThreadShape:
    """The fewest lanes and packs that cover all columns in as few, equal sweeps as possible."""
    needed = -(-columns // vector)
    lanes = lanes_for(needed)
    most_packs = min(MOST_PACKS, max(1, ACCUMULATORS // vector))
    sweeps = -(-needed // (lanes * most_packs))
    return ThreadShape(vector, lanes, -(-needed // (lanes * sweeps)))


def lanes_for(items: int) -> int:
    """Threads that share so many items: a power of two, at most a warp."""
    return min(WARP, 1 << (items - 1).bit_length())


def vector_width(*matrices: Tensor) -> int:
    """Most elements that all the matrices can be read and written by at once."""
    width = PACK_BYTES // max(m.element_size() for m in matrices)
    while width > 1 and not all(_divides(width, m) for m in matrices):
        width //= 2
    return width


def _divides(width: int, matrix: Tensor) -> bool:
    *steps, _ = matrix.stride()
    aligned = matrix.data_ptr() % (width * matrix.element_size()) == 0
    return aligned and matrix.shape[-1] % width == 0 and all(step % width == 0 for step in steps)


def instance(kernel: str, *parameters: torch.dtype | bool | int) -> str:
    """The C++ name of a template instance."""
    words = (
        _CPP[p] if isinstance(p, torch.dtype) else str(p).lower() if isinstance(p, bool) else str(p)
        for p in parameters
    )
    return f"spgnn::{kernel}<{', '.join(words)}>"
