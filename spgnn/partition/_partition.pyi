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

class Libra:
    def __init__(self, vertices: int, parts: int, limit: int, seed: int) -> None: ...
    def add(self, first: int, indptr: _Int64, columns: _Int32, labels: _Int32) -> None: ...

def lower_degree_labels(
    indptr: _Int64, indices: _Int32, owners: _Int32, threads: int
) -> _Int32: ...
def count_cut(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    owners: _Int32 | None,
    parts: int,
    most_vertices: int,
    threads: int,
) -> tuple[_Int32, _Int64, _Int64, _Int64, _Int64, _Int64, _Int64]: ...
def count_levels(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    parts: int,
    parts_per_node: int,
    threads: int,
) -> tuple[_Int64, _Int64, _Int64, _Int64, _Int64, _Int64]: ...
def parse_labels(text: bytes, parts: int, labels: _Int32) -> None: ...
def format_labels(labels: npt.NDArray[Any]) -> bytes: ...
