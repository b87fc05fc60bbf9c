from typing import Any

import numpy as np
import numpy.typing as npt

_Block = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[Any]]
_Demand = tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.int32],
    npt.NDArray[Any],
]

def demand(
    indptr: npt.NDArray[np.int64],
    indices: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    members: npt.NDArray[np.int64],
    me: int,
    cover: int,
    weighted: bool,
) -> tuple[_Block, _Block, _Demand]: ...
def minimum_vertex_cover(
    begin: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], num_columns: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]: ...
def choose_agents(
    block: npt.NDArray[np.int64],
    home: npt.NDArray[np.int64],
    begin: npt.NDArray[np.int64],
    candidate: npt.NDArray[np.int64],
    blocks: int,
    ranks: int,
) -> npt.NDArray[np.int64]: ...
