"""Starts kernels on torch's current stream, and chooses the threads that do the work."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spgnn.addons.cuda import programs
from spgnn.torch_internals import at_work, current_stream

THREADS = 128  # kThreads of types.cuh

WARP = 32
PACK_BYTES = 16  # most that one load instruction moves
ACCUMULATORS = 16  # most running sums of a thread, of 4 bytes; more would spill registers
MOST_PACKS = 8
_CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "spgnn::Bfloat16",
    torch.int32: "int",
    torch.int64: "long long",
}

# What the driver calls CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE.
BUFFER, BUFFER_SIZE = 1, 2
LaunchParameters = ctypes.c_void_p * 5

Argument = Tensor | int | float | None
T = TypeVar("T")


properties = cache(torch.cuda.get_device_properties)


def finish(device: torch.device) -> None:
    """Wait until all that was begun on torch's current stream is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def launch(kernel: str, grid: tuple[int, int], arguments: Sequence[Argument]) -> None:
    """Start a kernel on torch's current stream."""
    values: list[Any] = []
    index = -1
    for a in arguments:
        if isinstance(a, Tensor):
            values.append(a.data_ptr())
            index = a.get_device()
        else:
            values.append(0 if a is None else a)
    packed = _packed.kernels.get(kernel)
    if packed is None:
        packed = _packed.kernels[kernel] = Packed(arguments)
    packed.layout.pack_into(packed.memory, 0, *values)
    with at_work(index):
        driver = programs.bound("driver")
        if not driver.ctxGetCurrent():  # a thread that has not used the device yet
            programs.bound("runtime").setDevice(index)
        _, function = programs.function(kernel, index)
        stream, start = current_stream(index), driver.launchKernel
        start(function, *grid, 1, THREADS, 1, 1, 0, stream, 0, packed.address)


class Packed:
    """Memory for a kernel's arguments, used again at each launch: the driver copies them."""

    def __init__(self, arguments: Sequence[Argument]) -> None:
        kinds = ("d" if isinstance(a, float) else "q" for a in arguments)
        self.layout = struct.Struct("".join(kinds))
        self.memory = ctypes.create_string_buffer(self.layout.size)
        self._size = ctypes.c_size_t(self.layout.size)
        places = ctypes.addressof(self.memory), ctypes.addressof(self._size)
        self._extra = LaunchParameters(BUFFER, places[0], BUFFER_SIZE, places[1], None)
        self.address = ctypes.addressof(self._extra)


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.kernels: dict[str, Packed] = {}


_packed = _OfThread()


_remembered: Any = WeakTensorKeyDictionary()


def remembered(tensor: Tensor, question: object, make: Callable[[], T]) -> T:
    """The answer of ``make()`` about a tensor, while it lives and is not written to."""
    answers = _answers(tensor)
    if question not in answers:
        value = make()
        finish(tensor.device)
        answers[question] = value
    answer: T = answers[question]
    return answer


def remember(tensor: Tensor, question: object, answer: object) -> None:
    """An answer that the host knows, and that is no tensor: nobody has to find it."""
    _answers(tensor)[question] = answer


def _answers(tensor: Tensor) -> dict[object, Any]:
    now = 0 if tensor.is_inference() else tensor._version
    version, answers = _remembered.get(tensor, (None, None))
    if answers is None or version != now:
        answers = {}
        _remembered[tensor] = (now, answers)
    memory: dict[object, Any] = answers
    return memory


class ThreadShape(NamedTuple):
    """Threads that compute a row: ``lanes`` with ``packs`` packs of ``vector`` columns each."""

    vector: int
    lanes: int
    packs: int

    @property
    def columns(self) -> int:
        """Columns that a group of threads covers."""
        return self.vector * self.lanes * self.packs


@cache
def thread_shape(columns: int, vector: int, accumulators: int = ACCUMULATORS) -> ThreadShape:
    """The fewest threads that cover all columns in as few, equal sweeps as possible."""
    needed = -(-columns // vector)
    most_packs = min(MOST_PACKS, max(1, accumulators // vector))

    def shape(lanes: int) -> tuple[int, ThreadShape]:
        sweeps = -(-needed // (lanes * most_packs))
        return sweeps, ThreadShape(vector, lanes, -(-needed // (lanes * sweeps)))

    full, half = shape(lanes_for(needed)), shape(WARP // 2)
    return min(full, half, key=lambda s: (s[0], s[1].columns))[1] if needed > WARP else full[1]


def lanes_for(items: int) -> int:
    """Threads that share so many items: a power of two, at most a warp."""
    return min(WARP, 1 << (items - 1).bit_length())


def vector_width(*matrices: Tensor) -> int:
    """Most elements that all the matrices can be read and written by at once."""
    most, elements = 1, 0
    for matrix in matrices:
        size, address = matrix.element_size(), matrix.data_ptr()
        most = max(most, size)
        # The lowest bit set in any of these is the widest power of two that divides all of them.
        elements |= matrix.shape[-1] | (address // size if address % size == 0 else 1)
        for step in matrix.stride()[:-1]:
            elements |= step
    width = PACK_BYTES // most
    return min(width, elements & -elements) if elements else width


@cache
def instance(kernel: str, *parameters: torch.dtype | bool | int) -> str:
    """The C++ name of a template instance."""
    words = (
        _CPP[p] if isinstance(p, torch.dtype) else str(p).lower() if isinstance(p, bool) else str(p)
        for p in parameters
    )
    return f"spgnn::{kernel}<{', '.join(words)}>"


def unit_stride(X: Tensor) -> Tensor:
    """X with neighbouring columns next to each other."""
    return X if X.stride(-1) == 1 or X.shape[-1] == 1 else X.contiguous()


def dense(array: Tensor | None) -> Tensor | None:
    """The array without gaps."""
    return None if array is None else array.contiguous()


def strided(matrix: Tensor | None) -> tuple[Tensor | None, int]:
    """A matrix and the elements from one row to the next, as kernels take both."""
    return matrix, 0 if matrix is None else matrix.stride(0)


def listed(rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """A list as one of 32 bits, or as one of 64 bits."""
    if rows is None:
        return None, None
    rows = rows.contiguous()
    return (rows, None) if rows.dtype == torch.int32 else (None, rows)


def dropout_rule(p: float) -> tuple[int, float]:
    """Dropped below this of 32 bits, and what is multiplied with else."""
    return round(p * 2**32), 1.0 / (1.0 - p)
