"""The only importer of CuPy: compiles the sources for the device at hand and starts kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from spgnn.errors import InputError

SOURCES = (
    "types.cuh",
    "merge_path.cuh",
    "spmm.cuh",
    "rows.cuh",
    "nonzeros.cuh",
    "edges.cuh",
    "quantise.cuh",
    "heads.cuh",
    "attention.cuh",
    "attention_v2.cuh",
)
THREADS = 128  # kThreads of types.cuh

WARP = 32
PACK_BYTES = 16  # most that one load instruction moves
ACCUMULATORS = 16  # most running sums of a thread; more would spill registers
MOST_PACKS = 4
_CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "spgnn::Bfloat16",
    torch.int32: "int",
    torch.int64: "long long",
}

Argument = Tensor | int | float | None
T = TypeVar("T")


def available() -> bool:
    """True if CuPy can be imported."""
    try:
        cupy()
    except InputError:
        return False
    return True


@cache
def cupy() -> ModuleType:
    """CuPy, imported on first use.

    Raises
    ------
    InputError
        If it is not installed.
    """
    try:
        import cupy as module
    except ImportError as error:
        raise InputError(
            f"the CUDA kernels need CuPy ({error}); install it with: pip install spgnn[gpu]"
        ) from None
    found: ModuleType = module
    return found


@cache
def source() -> str:
    """All kernels as one text.

    NVRTC's cache is keyed by the text: it would not see a change in an included file.
    """
    folder = Path(__file__).parent / "src"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in SOURCES)
    return re.sub(r'#pragma once|#include ".*"', "", text)


def multiprocessors(device: torch.device) -> int:
    """Number of streaming multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def finish(device: torch.device) -> None:
    """Wait until all that was begun on torch's current stream is done."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def launch(kernel: str, grid: tuple[int, int], arguments: Sequence[Argument]) -> None:
    """Start a kernel on torch's current stream.

    Parameters
    ----------
    kernel : str
        A template instance, say ``"spgnn::dropout_rows<float, 4, 32>"``; compiled on first use,
        then kept by CuPy on disk.
    grid : (x, y)
        Blocks of `THREADS` threads.
    arguments : sequence
        Tensors (shared through DLPack), integers (``long long``), floats (``double``) and
        ``None`` (a null pointer).
    """
    device = next(a.device for a in arguments if isinstance(a, Tensor))
    stream = torch.cuda.current_stream(device)
    with cupy().cuda.Device(device.index), _shared_stream(stream.cuda_stream, device.index):
        _kernel(kernel, device.index)(grid, (THREADS,), tuple(_argument(a) for a in arguments))


@cache
def _kernel(kernel: str, device: int) -> Any:
    # The device is a key only: a function belongs to the device that was current.
    module = cupy().RawModule(
        code=source(), options=("-std=c++17",), name_expressions=(kernel,), backend="nvrtc"
    )
    return module.get_function(kernel)


class _TorchStream:
    """CUDA stream protocol around a stream that torch owns."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


@cache
def _shared_stream(pointer: int, device: int) -> Any:
    stream = cupy().cuda.Stream
    if hasattr(stream, "from_external"):
        return stream.from_external(_TorchStream(pointer))
    return cupy().cuda.ExternalStream(pointer, device)


def _argument(argument: Argument) -> Any:
    if argument is None:
        return np.uintp(0)
    if isinstance(argument, Tensor):
        tensor = argument.detach()
        if tensor.dtype == torch.bfloat16:  # which CuPy's DLPack does not know; the address matters
            tensor = tensor.view(torch.int16)
        return cupy().from_dlpack(tensor)
    return np.int64(argument) if isinstance(argument, int) else np.float64(argument)


_remembered: Any = WeakTensorKeyDictionary()


def remembered(tensor: Tensor, question: object, make: Callable[[], T]) -> T:
    """The answer of ``make()`` to a question about a tensor, while it lives and is not written to.

    An answer is complete on the device before anyone can find it: another stream or thread that
    does need not wait.
    """
    now = 0 if tensor.is_inference() else tensor._version
    version, answers = _remembered.get(tensor, (None, {}))
    if version != now:
        answers = {}
        _remembered[tensor] = (now, answers)
    if question not in answers:
        answer = make()
        finish(tensor.device)
        answers[question] = answer
    found: T = answers[question]
    return found


class ThreadShape(NamedTuple):
    """Threads that compute a row: ``lanes`` with ``packs`` packs of ``vector`` columns each."""

    vector: int
    lanes: int
    packs: int

    @property
    def columns(self) -> int:
        """Columns that a group of threads covers."""
        return self.vector * self.lanes * self.packs


def thread_shape(columns: int, vector: int) -> ThreadShape:
    """The fewest lanes and packs that cover all columns in as few, equal sweeps as possible."""
    needed = -(-columns // vector)
    lanes = lanes_for(needed)
    most_packs = min(MOST_PACKS, max(1, ACCUMULATORS // vector))
    sweeps = -(-needed // (lanes * most_packs))
    return ThreadShape(vector, lanes, -(-needed // (lanes * sweeps)))


def lanes_for(items: int) -> int:
    """Threads that share so many items: a power of two, at most a warp."""
    return min(WARP, 1 << (items - 1).bit_length())


def vector_width(*matrices: Tensor) -> int:
    """Most elements that all the matrices can be read and written by at once."""
    width = PACK_BYTES // max(m.element_size() for m in matrices)
    while width > 1 and not all(_divides(width, m) for m in matrices):
        width //= 2
    return width


def _divides(width: int, matrix: Tensor) -> bool:
    *steps, _ = matrix.stride()
    aligned = matrix.data_ptr() % (width * matrix.element_size()) == 0
    return aligned and matrix.shape[-1] % width == 0 and all(step % width == 0 for step in steps)


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
