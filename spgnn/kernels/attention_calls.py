"""How the C++ kernels of attention are called: rows packed, arrays as addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spgnn.kernels.library import address, dense, native, threads, unit_stride
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE

__all__ = ["Shape", "address", "dense", "threads"]

NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
EDGE_WORK = 8  # multiplications that a nonzero costs beside those of its features
NO_DROPOUT = (0, 0, False, 0, 0, 1.0)
STORED, MERGED, FINISHED = range(3)  # Ending of attention_types.hpp
COLUMNS, COLUMNS_V2, ROWS_V2 = range(3)  # Side of attention_backward_kernel.hpp


def call(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    """The C++ function of that name for a dtype."""
    getattr(native, f"{name}_{NAMES[dtype]}")(*arguments)


@dataclass(frozen=True)
class Shape:
    """Heads, and the columns of each."""

    heads: int
    width: int

    @property
    def padded(self) -> int:
        """Heads as they are packed: a power of two, or a multiple of 16."""
        if self.heads > 16:
            return -(-self.heads // 16) * 16
        return int(1 << max(0, self.heads - 1).bit_length())

    @property
    def words(self) -> tuple[int, int, int]:
        """For C++."""
        return self.heads, self.padded, self.width

    def threads(self, edges: int) -> int:
        """For so many nonzeros."""
        return threads(edges * self.padded * (self.width + EDGE_WORK))

    def pack(
        self, matrices: Sequence[Tensor], numbers: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[int, int]]:
        """Rows as the other side gathers them: the memory, and what C++ is told of it."""
        rows, dtype = matrices[0].shape[0], matrices[0].dtype
        columns = -(-self.padded * self.width // 16) * 16
        used = len(matrices) * columns * dtype.itemsize
        used += len(numbers) * self.padded * SUM_DTYPE[dtype].itemsize
        stride = -(-used // 64) * 64
        packed = new_rows(rows, torch.empty(0, stride, dtype=torch.uint8))
        matrices = [unit_stride(matrix) for matrix in matrices]
        numbers = [array.contiguous() for array in numbers]
        second = (address(matrices[1]), matrices[1].stride(0)) if len(matrices) > 1 else (0, 0)
        arrays = [array.data_ptr() for array in numbers] + [0] * (3 - len(numbers))
        described = packed.data_ptr(), stride
        first = matrices[0].data_ptr(), matrices[0].stride(0)
        work = threads(rows * self.heads * self.width)
        call(
            "attention_pack",
            dtype,
            self.words,
            rows,
            *first,
            *second,
            tuple(arrays),
            described,
            work,
        )
        return packed, described


def block(pattern: Pattern, order: Tensor | None = None) -> tuple[Any, ...]:
    """A pattern for C++."""
    indices = pattern.indices.data_ptr(), pattern.indices.dtype == torch.int64
    listed = address(order), order is not None and order.dtype == torch.int64
    return pattern.indptr.data_ptr(), pattern.shape[0], indices, listed


def own(
    first: Tensor | None, second: Tensor | None = None, *numbers: Tensor
) -> tuple[int, int, int, int, int, int]:
    """Rows of this side for C++: unit column stride, numbers contiguous."""
    words = []
    for matrix in (first, second):
        words += [0, 0] if matrix is None else [matrix.data_ptr(), matrix.stride(0)]
    arrays = [array.data_ptr() for array in numbers] + [0] * (2 - len(numbers))
    return (*words, *arrays)  # type: ignore[return-value]


def dropout_words(
    key: int, p: float, own_ids: Tensor | None, other_ids: Tensor | None, by_column: bool
) -> tuple[Any, ...]:
    """A rule of dropout for C++."""
    if own_ids is None or other_ids is None or not p:
        return NO_DROPOUT
    rule = native.mix64(key % 2**64), round(p * 2**32), 1.0 / (1.0 - p)
    return own_ids.data_ptr(), other_ids.data_ptr(), by_column, *rule
