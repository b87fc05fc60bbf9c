from typing import Any

import numpy.typing as npt

def is_symmetric(indptr: npt.NDArray[Any], indices: npt.NDArray[Any], cols: int) -> bool: ...
def transpose(
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    cols: int,
    t_indptr: npt.NDArray[Any],
    t_indices: npt.NDArray[Any],
) -> None: ...
def transposed_order(
    indptr: npt.NDArray[Any],
    indices: npt.NDArray[Any],
    t_indptr: npt.NDArray[Any],
    order: npt.NDArray[Any],
) -> None: ...
def uniform_rows(
    ids: npt.NDArray[Any],
    streams: npt.NDArray[Any],
    columns: npt.NDArray[Any],
    out: npt.NDArray[Any],
    threads: int,
) -> None: ...
