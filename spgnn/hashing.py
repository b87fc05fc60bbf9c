"""Random numbers that are functions of a vertex, so that every rank can draw its own."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from spgnn import _native


def uniform(
    ids: npt.NDArray[np.int64],
    seed: int,
    purpose: str,
    columns: int | None = None,
    *,
    second: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.float64]:
    """[rows] or [rows, columns] in [0, 1): SplitMix64 hashes of (seed, purpose, ids, column)."""
    stream = _stream(seed, purpose)
    with np.errstate(over="ignore"):
        state = _mix(ids.astype(np.uint64) ^ np.uint64(stream))
        if second is not None:
            state = _mix(state + _mix(second.astype(np.uint64)))
        if columns is not None:
            state = _mix(state[:, None] + _mix(np.arange(columns, dtype=np.uint64))[None, :])
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def uniform_rows(
    ids: npt.NDArray[np.int64], seed: int, columns: Sequence[tuple[str, int]], threads: int = 1
) -> npt.NDArray[np.float32]:
    """The numbers of `uniform`, float32 [rows, columns], of many (purpose, column) at once."""
    streams = np.array([_stream(seed, purpose) for purpose, _ in columns], np.uint64)
    with np.errstate(over="ignore"):
        numbers = _mix(np.array([column for _, column in columns], np.uint64))
    numbers_of_rows = np.empty((len(ids), len(columns)), np.float32)
    rows = np.ascontiguousarray(ids, np.int64)
    _native.uniform_rows(rows, streams, numbers, numbers_of_rows, threads)
    return numbers_of_rows


def _stream(seed: int, purpose: str) -> int:
    return (seed * 0x9E3779B97F4A7C15 + zlib.crc32(purpose.encode()) * 0xD1B54A32D192ED03) % 2**64


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
