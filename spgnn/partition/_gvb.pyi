from collections.abc import Callable

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
    alpha_coarse: float
    alpha_fine: float
    alpha_last: float

def partition(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    weights: npt.NDArray[np.int64],
    options: Options,
    cover: bool,
    initial: npt.NDArray[np.int32] | None,
    progress: Callable[[str, float], None] | None,
) -> npt.NDArray[np.int32]: ...
def canonical(indptr: npt.NDArray[np.int64], indices: npt.NDArray[np.int32]) -> bool: ...
def cover_send(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    labels: npt.NDArray[np.int32],
    parts: int,
) -> npt.NDArray[np.int64]: ...
def replay(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    split: npt.NDArray[np.uint8],
    labels: npt.NDArray[np.int32],
    parts: int,
    vertices: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
) -> tuple[int, npt.NDArray[np.int64], npt.NDArray[np.int64], float]: ...
