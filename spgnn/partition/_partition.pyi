from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_Progress = Callable[[int, int], None] | None
_CoverVolume = tuple[_Int64, _Int64, _Int64]

def count_volumes(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    parts: int,
    threads: int,
    table_bytes: int,
    progress: _Progress,
) -> tuple[_CoverVolume, _CoverVolume, int]: ...
def count_minimum_covers(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    parts: int,
    threads: int,
    progress: _Progress,
) -> _CoverVolume: ...
def column_nets(indptr: _Int64, indices: _Int32) -> tuple[_Int64, _Int32]: ...
def symmetrize(indptr: _Int64, indices: _Int32) -> tuple[_Int64, _Int32]: ...
def stream_partition(
    indptr: _Int64,
    indices: _Int32,
    weights: _Int64,
    parts: int,
    imbalance: float,
    seed: int,
    cluster_passes: int,
    refine_passes: int,
    attempts: int,
    initial: _Int32 | None,
    threads: int,
    progress: _Progress,
) -> _Int32: ...
def parse_labels(text: bytes, parts: int, labels: _Int32) -> None: ...
def format_labels(labels: npt.NDArray[Any]) -> bytes: ...
