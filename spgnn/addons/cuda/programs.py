"""Kernels as the driver runs them: compiled by NVRTC, kept on disk, loaded. The only user of CuPy.

CuPy's own compiler is passed by: it adds ``-ftz=true``, with which subnormal numbers become zeros
that the CPU's kernels keep, and before 14.2 keeps no template instance on disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

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
FLAGS = ("-std=c++17",)
FOLDER = "kernels"  # in $SPGNN_CACHE


@cache
def source() -> str:
    """All kernels as one text, which NVRTC takes and the cache is keyed by."""
    folder = Path(__file__).parent / "src"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in SOURCES)
    return re.sub(r'#pragma once|#include ".*"', "", text)


@cache
def bound(module: str) -> Any:
    """A module of CuPy: "runtime", "driver" or "nvrtc"."""
    import_module("cupy")  # finds the toolkit's libraries
    folder = "libs" if module == "nvrtc" else "api"
    return import_module(f"cupy_backends.cuda.{folder}.{module}")


@cache
def function(kernel: str, device: int) -> tuple[Any, int]:
    """A template instance as the driver's function, on the current device."""
    major, minor = torch.cuda.get_device_capability(device)
    name, binary = compiled(kernel, f"sm_{major}{minor}")
    module = bound("driver").moduleLoadData(binary)
    return module, bound("driver").moduleGetFunction(module, name)


def compiled(kernel: str, architecture: str) -> tuple[str, bytes]:
    """The lowered name and the machine code of a template instance."""
    key = "\n".join((source(), *FLAGS, architecture, str(bound("nvrtc").getVersion()), kernel))
    home = os.environ.get("SPGNN_CACHE")
    folder = (Path(home) if home else Path.home() / ".cache" / "spgnn") / FOLDER
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    with _one_at_a_time(file):
        try:
            written, lowered, binary = file.read_bytes().split(b"\n", 2)
            if written.decode() == kernel:
                return lowered.decode(), binary
        except (OSError, ValueError):  # not there yet, or not ours
            pass
        name, binary = compile_(kernel, architecture)
        try:
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as new:
                new.write(b"\n".join((kernel.encode(), name.encode(), binary)))
            os.replace(new.name, file)
        except OSError:  # a full or read-only disk costs time only
            pass
    return name, binary


@contextmanager
def _one_at_a_time(file: Path) -> Iterator[None]:
    """Ranks need the same kernel at the same time: one compiles it, the others wait and read."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = open(file.with_suffix(".lock"), "a")  # noqa: SIM115
    except OSError:
        yield
        return
    with lock:
        with suppress(OSError):  # a file system without locks: several compile the same
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_(kernel: str, architecture: str) -> tuple[str, bytes]:
    """The lowered name and the machine code, by NVRTC."""
    nvrtc = bound("nvrtc")
    program = nvrtc.createProgram(source(), "spgnn.cu", (), ())
    try:
        nvrtc.addNameExpression(program, kernel)
        try:
            nvrtc.compileProgram(program, (*FLAGS, f"-arch={architecture}"))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).strip()
            raise RuntimeError(f"NVRTC: {error}: {kernel} for {architecture}\n{log}") from None
        return nvrtc.getLoweredName(program, kernel), nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
