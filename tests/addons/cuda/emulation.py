"""Stands in for `spgnn.addons.cuda.device.launch`: runs the kernels' source on the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from spgnn.addons.cuda import device, programs

HERE = Path(__file__).parent
EMULATION = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++ on Linux"
)
# Kernels read packs of numbers as whole words, which only nvcc's dialect of C++ allows.
FLAGS = ("-std=c++20", "-Og", "-fPIC", "-fno-strict-aliasing", "-fno-gnu-unique")
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Winvalid-pch",
    "-Wno-unknown-pragmas",
    "-Wno-maybe-uninitialized",
)
OUTCOMES = {1: "only some threads reached a barrier", 2: "access outside an array"}


class EmulatedDevice:
    """Compiles each kernel on first use into ``folder`` and runs it with guarded memory."""

    def __init__(self, folder: Path, headers: Sequence[str] = programs.SOURCES) -> None:
        self.folder = folder
        self.seed = 0
        self.launched: list[str] = []
        self._kernels: dict[str, ctypes.CDLL] = {}
        runtime = folder / "libemulation.so"
        _compile("-shared", HERE / "emulation.cpp", "-o", runtime)
        self._runtime = ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
        self._runtime.allocate_guarded.restype = ctypes.c_void_p
        self._runtime.allocate_guarded.argtypes = [ctypes.c_size_t]
        self._runtime.free_guarded.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        # All that kernels have in common is read once: half of what compiling one takes.
        self._sources = folder / "kernels.hpp"
        includes = "".join(f'#include "{name}"\n' for name in ("emulation.hpp", *headers))
        self._sources.write_text(includes)
        _compile("-x", "c++-header", self._sources, "-o", f"{self._sources}.gch")

    def launch(
        self, kernel: str, grid: tuple[int, int], arguments: Sequence[device.Argument]
    ) -> None:
        """As `spgnn.addons.cuda.device.launch`, for CPU tensors."""
        self.launched.append(kernel)
        library = self._library(kernel)
        kinds = "".join(
            "d" if isinstance(a, float) else "i" if isinstance(a, int) else "p" for a in arguments
        )
        assert kinds == library.signature().decode(), kernel
        assert grid[0] < 2**31
        assert grid[1] < 2**16
        arrays = [_Guarded(self._runtime, a) for a in arguments if isinstance(a, Tensor)]
        addresses = iter(arrays)
        values = [
            ctypes.c_double(a)
            if isinstance(a, float)
            else ctypes.c_longlong(a)
            if isinstance(a, int)
            else ctypes.c_void_p(None if a is None else next(addresses).address)
            for a in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        outcome = library.launch(*grid, device.THREADS, self.seed, pointers)
        for array in arrays:
            array.copy_back_and_free()
        assert outcome == 0, f"{OUTCOMES[outcome]}: {kernel}"

    def _library(self, kernel: str) -> ctypes.CDLL:
        if kernel not in self._kernels:
            name = hashlib.sha256(kernel.encode()).hexdigest()[:16]
            text = self.folder / f"{name}.cpp"
            text.write_text(f'#include "{self._sources.name}"\nEMULATE({kernel})\n')
            library = self.folder / f"{name}.so"
            _compile("-shared", text, self.folder / "libemulation.so", "-o", library)
            self._kernels[kernel] = ctypes.CDLL(str(library))
            self._kernels[kernel].signature.restype = ctypes.c_char_p
        return self._kernels[kernel]


class _Guarded:
    """A copy of a tensor's memory that faults when a kernel reads or writes beyond its end."""

    def __init__(self, runtime: ctypes.CDLL, tensor: Tensor) -> None:
        self.runtime, self.tensor = runtime, tensor
        last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        self.bytes = (last + 1) * tensor.element_size() if tensor.numel() else 0
        # Ending where a page ends, it is aligned to whatever pack its columns are a multiple of.
        self.address: int = runtime.allocate_guarded(self.bytes)
        ctypes.memmove(self.address, tensor.data_ptr(), self.bytes)

    def copy_back_and_free(self) -> None:
        ctypes.memmove(self.tensor.data_ptr(), self.address, self.bytes)
        self.runtime.free_guarded(self.address, self.bytes)


def _compile(*arguments: str | Path) -> None:
    include = [f"-I{HERE}", f"-I{Path(device.__file__).parent / 'src'}"]
    subprocess.run(["g++", *FLAGS, *WARNINGS, *include, *arguments], check=True)


def cpu_properties(_: torch.device) -> SimpleNamespace:
    """Small, so that even small blocks are cut into every size of tile and slice."""
    return SimpleNamespace(multi_processor_count=1, L2_cache_size=100_000)
