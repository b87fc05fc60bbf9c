"""The only importer of CuPy: compiles the sources for the device at hand and starts kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError

SOURCES = (
    "types.cuh",
    "merge_path.cuh",
    "spmm.cuh",
    "rows.cuh",
    "update.cuh",
    "extremes.cuh",
    "sddmm.cuh",
    "segments.cuh",
    "quantise.cuh",
    "heads.cuh",
    "triples.cuh",
    "attention.cuh",
    "attention_backward.cuh",
    "attention_v2.cuh",
)
THREADS = 128  # kThreads of types.cuh

Argument = Tensor | int | float | None


def available() -> bool:
    """Whether CuPy can be imported."""
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
        # CuPy's DLPack knows no bfloat16; only the address matters here.
        return cupy().from_dlpack(tensor.view(torch.int16) if _is_bfloat16(tensor) else tensor)
    return np.int64(argument) if isinstance(argument, int) else np.float64(argument)


def _is_bfloat16(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bfloat16
