from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

class Options:
    parts: int
    max_weight: list[int]
    seed: int
    receive: bool
    threads: int
    starts: int
    cycles: int
    greedy_rounds: int
    peak_rounds: int
    search_passes: int
    search_budget: int
    patience: int

def partition(
    begin: npt.NDArray[np.int64],
    columns: npt.NDArray[Any],
    weights: npt.NDArray[np.int64],
    options: Options,
    cover: bool,
    initial: npt.NDArray[np.int32] | None,
    progress: Callable[[str, float], None] | None,
) -> npt.NDArray[np.int32]: ...
def canonical(begin: npt.NDArray[np.int64], columns: npt.NDArray[Any]) -> bool: ...
def cover_send(
    begin: npt.NDArray[np.int64],
    columns: npt.NDArray[Any],
    labels: npt.NDArray[np.int32],
    parts: int,
) -> npt.NDArray[np.int64]: ...
def replay(
    begin: npt.NDArray[np.int64],
    columns: npt.NDArray[Any],
    split: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int32],
    parts: int,
    vertices: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], float]: ...
