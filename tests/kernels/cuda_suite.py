"""The GPU suite's modules, which lie beside the package, and a clock for the CPU."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """One of the scripts, imported as it imports the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        return importlib.import_module(name)


def wall_clock(call: Callable[[], Any]) -> float:
    """Seconds of a call; never none."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start + 1e-9
