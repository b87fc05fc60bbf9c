import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_UInt64 = npt.NDArray[np.uint64]
_Float32 = npt.NDArray[np.float32]
_Float64 = npt.NDArray[np.float64]
_Index = npt.NDArray[np.int32] | npt.NDArray[np.int64]
_Hop = tuple[_Int64, _Int32, _Int64 | None, _Float32 | None, int]
_Sample = tuple[_Int64, list[_Hop], _Int64 | None]

class _Graph:
    def __init__(
        self,
        indptr: _Int64,
        indices: _Index,
        cols: int,
        ids: _Int64 | None,
        column_ids: _Int64 | None,
        order: _Int64 | None,
        times: _Int64 | None,
        weights: _Float64 | None,
        first_entries: bool,
        threads: int,
    ) -> None: ...
    def neighbors(
        self,
        seeds: list[_Int64],
        limits: list[_Int64],
        fanouts: _Int64,
        draws: _UInt64,
        strategy: int,
        replace: bool,
        disjoint: bool,
        directed: bool,
        resample: bool,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def hop(
        self,
        targets: _Int64,
        roots: _Int64 | None,
        limits: _Int64 | None,
        fanout: int,
        hop: int,
        draw: _UInt64,
        strategy: int,
        replace: bool,
        edge_ids: bool,
        threads: int,
    ) -> tuple[_Int64, _Index, _Int64 | None, _Float32 | None]: ...
    def labor(
        self,
        seeds: list[_Int64],
        fanouts: _Int64,
        draws: _UInt64,
        first_hop: int,
        iterations: int,
        same_every_hop: bool,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def ladies(
        self,
        seeds: list[_Int64],
        counts: _Int64,
        draws: _UInt64,
        first_hop: int,
        squares: _Float64,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def fastgcn(
        self,
        seeds: list[_Int64],
        counts: _Int64,
        draws: _UInt64,
        first_hop: int,
        vertices: _Graph,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def induced(self, vertices: list[_Int64], edge_ids: bool, threads: int) -> list[_Sample]: ...
    def walks(self, starts: _Int64, length: int, draw: _UInt64, threads: int) -> _Int64: ...
    def negatives(
        self,
        sources: _Int64,
        count: int,
        vertices: _Graph,
        by_weight: bool,
        excluded: bool,
        draw: _UInt64,
        threads: int,
    ) -> _Int64: ...

class Graph32(_Graph): ...
class Graph64(_Graph): ...

def row_order(
    indptr: _Int64, indices: _Index, ids: _Int64 | None, times: _Int64 | None, threads: int
) -> _Int64 | None: ...
def relabel(targets: _Int64, columns: _Index, threads: int) -> tuple[_Int64, _Int32]: ...
def instruction_sets() -> list[str]: ...
def use_instruction_set(name: str) -> None: ...
