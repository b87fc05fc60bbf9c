import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_Index = npt.NDArray[np.int32] | npt.NDArray[np.int64]
_Hop = tuple[_Int64, _Int32, _Int64 | None, int]

class _Neighbors:
    def __init__(
        self,
        indptr: _Int64,
        indices: _Index,
        cols: int,
        ids: _Int64 | None,
        order: _Int64 | None,
    ) -> None: ...
    def sample(
        self,
        seeds: _Int64,
        fanouts: _Int64,
        seed: int,
        epoch: int,
        batch: int,
        replace: bool,
        edge_ids: bool,
        threads: int,
    ) -> tuple[_Int64, list[_Hop]]: ...
    def sample_hop(
        self,
        targets: _Int64,
        fanout: int,
        hop: int,
        seed: int,
        epoch: int,
        batch: int,
        replace: bool,
        edge_ids: bool,
        threads: int,
    ) -> tuple[_Int64, _Index, _Int64 | None]: ...

class Neighbors32(_Neighbors): ...
class Neighbors64(_Neighbors): ...

def relabel(targets: _Int64, columns: _Index, threads: int) -> tuple[_Int64, _Int32]: ...
