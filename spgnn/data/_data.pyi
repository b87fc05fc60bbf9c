from collections.abc import Callable

import numpy as np
import numpy.typing as npt

_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_Float64 = npt.NDArray[np.float64]
_Progress = Callable[[int, int], None] | None

def parse_lines(
    text: bytes,
    first_line: int,
    head: str,
    cycle: str,
    separators: str,
    comments: str,
    blank_rows: bool,
) -> tuple[_Int64, _Float64, _Int64, _Int64, tuple[str, int, int, int, int]]: ...

class _Model:
    def count_degrees(
        self, vertices: int, edges: int, threads: int, progress: _Progress
    ) -> _Int32: ...
    def draw_rows(
        self, first: int, degrees: _Int32, edges: int, threads: int, progress: _Progress
    ) -> tuple[_Int32, _Int32]: ...

class Rmat(_Model):
    def __init__(self, vertices: int, a: float, b: float, c: float, seed: int) -> None: ...

class BlockModel(_Model):
    def __init__(
        self,
        starts: _Int64,
        district: int,
        inside: float,
        near: float,
        exponent: float,
        hub: float,
        seed: int,
    ) -> None: ...
