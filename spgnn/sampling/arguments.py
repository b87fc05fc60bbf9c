"""Arguments that several samplers take, checked and as C++ reads them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.pattern import described
from spgnn.sampling.sample import Draw

Int64Array = npt.NDArray[np.int64]
UNIFORM, WEIGHTED, LAST = range(3)  # as in hop.hpp
MOST = 2**31 - 1  # edges of a sample


def int64_list(what: str, values: Tensor, length: int | None = None) -> Int64Array:
    """A list of integers: int64 [length]."""
    wanted = "n" if length is None else length
    if not isinstance(values, Tensor):
        raise InputError(f"{what} must be a tensor, int64 [{wanted}], got {type(values).__name__}")
    if (
        values.dim() != 1
        or values.dtype != torch.int64
        or len(values) != (len(values) if length is None else length)
    ):
        raise InputError(f"{what} must be a tensor, int64 [{wanted}], got {described(values)}")
    return values.cpu().contiguous().numpy()


def positive_list(what: str, values: Tensor, length: int) -> npt.NDArray[np.float64]:
    """Floating numbers, none negative, as float64 [length]."""
    if not isinstance(values, Tensor) or not values.is_floating_point():
        got = described(values) if isinstance(values, Tensor) else type(values).__name__
        raise InputError(f"{what} must be a floating tensor [{length}], got {got}")
    if values.shape != (length,):
        raise InputError(f"{what} must be a floating tensor [{length}], got {described(values)}")
    numbers = values.detach().cpu().to(torch.float64).contiguous().numpy()
    wrong = np.flatnonzero(~((numbers >= 0) & np.isfinite(numbers)))
    if len(wrong):
        raise InputError(
            f"{what} must be finite and not negative; entry {wrong[0]} is {numbers[wrong[0]]:g}"
        )
    return numbers


def hop_counts(what: str, counts: Sequence[int], least: int = -1) -> Int64Array:
    """One number a hop."""
    if not isinstance(counts, list | tuple):
        raise InputError(f"{what} must be a list of integers, got {type(counts).__name__}")
    numbers = [check_integer(what, count, least) for count in counts]
    for number in numbers:
        if number > MOST:
            raise InputError(f"{what} must be at most {MOST}, got {number}")
    return np.array(numbers, dtype=np.int64)


def thread_count(threads: int | None) -> int:
    """Threads inside one call."""
    return torch.get_num_threads() if threads is None else check_integer("threads", threads, 1)


def vertex_lists(what: str, batches: Sequence[Tensor], draws: Sequence[Draw]) -> list[Int64Array]:
    """One list of vertices for each draw."""
    if len(batches) != len(draws):
        raise InputError(f"{what}: {len(batches)} batches, but {len(draws)} draws")
    return [int64_list(what, batch) for batch in batches]


def draw_keys(draws: Sequence[Draw]) -> npt.NDArray[np.uint64]:
    """uint64 [draws, 3]."""
    keys = [[part % 2**64 for part in (draw.seed, draw.epoch, draw.batch)] for draw in draws]
    return np.array(keys, dtype=np.uint64).reshape(-1, 3)
