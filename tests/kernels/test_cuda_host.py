"""Without CuPy, and around it: the way through torch, one notice, what a launch hands over."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels import (
    cuda,
    sddmm,
    torch_kernels,
)
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda import operations as nonzeros

from .conftest import work_by
from .cuda_cases import SKEWED, assert_product, assert_products, block, matrix, multiply


@pytest.fixture
def no_cupy(monkeypatch):
    """As where CuPy is not installed."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    for cached in (device.cupy, cuda.implementation):
        cached.cache_clear()
    yield
    for cached in (device.cupy, cuda.implementation):
        cached.cache_clear()


def test_without_cupy_one_notice_and_torch(no_cupy, recwarn):
    A, X = block(SKEWED), matrix(800, 16)
    for _ in range(2):
        assert_product(multiply(cuda.implementation(), A, X), A, X)
    # Ours alone: what other tests left behind may be collected now, and say something.
    assert sum("pip install spgnn[gpu]" in str(w.message) for w in recwarn) == 1


def test_asking_for_cupy_names_the_extra(no_cupy):
    with pytest.raises(InputError, match=r"pip install spgnn\[gpu\]"):
        device.cupy()


@pytest.mark.parametrize("columns", [1, 64, 5000])
def test_gathered_rows_stay_below_a_number_of_bytes(columns, monkeypatch):
    A, G, X = block([30] * 90, 500), matrix(90, columns), matrix(500, columns)
    work_by(monkeypatch, torch_kernels)
    whole = sddmm(A, G, X)
    monkeypatch.setattr(torch_kernels, "GATHERED_BYTES", 2**16)
    largest, multiply_ = [0], torch.Tensor.__mul__
    monkeypatch.setattr(
        torch.Tensor,
        "__mul__",
        lambda a, b: largest.append(a.nbytes + b.nbytes) or multiply_(a, b),
    )
    found = sddmm(A, G, X)
    monkeypatch.undo()
    assert torch.equal(found, whole)
    assert_products(found, A, G, X)
    assert 0 < max(largest) <= max(2**16, 2 * 4 * columns)


class FakeCupy:
    """Records what `device.launch` asks of CuPy."""

    def __init__(self) -> None:
        self.entered: list[object] = []
        self.launched: list[tuple[object, ...]] = []
        self.compiled: list[str] = []
        outer = self

        class Context:
            def __init__(self, *what: object) -> None:
                self.what = what

            def __enter__(self) -> None:
                outer.entered.append(self.what)

            def __exit__(self, *error: object) -> None:
                outer.entered.pop()

        class Stream:
            @staticmethod
            def from_external(stream):
                return Context("stream", *stream.__cuda_stream__())

        self.cuda = SimpleNamespace(Device=lambda index: Context("device", index), Stream=Stream)

    def RawModule(self, *, code, options, name_expressions, backend):
        assert "-std=c++17" in options
        assert backend == "nvrtc"
        assert "#include" not in code
        (name,) = name_expressions
        self.compiled.append(name)

        def start(grid, block, arguments):
            self.launched.append((name, grid, block, arguments, tuple(self.entered)))

        return SimpleNamespace(get_function=lambda asked: start if asked == name else None)

    def from_dlpack(self, tensor):
        return torch.from_dlpack(tensor)  # fails where the exporter would


def test_a_launch_hands_over_addresses_on_torchs_stream(monkeypatch):
    fake = FakeCupy()
    monkeypatch.setattr(device, "cupy", lambda: fake)
    for cached in (device._kernel, device._shared_stream):
        cached.cache_clear()
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=4711)
    )
    X = matrix(5, 4, torch.bfloat16, padding=4).requires_grad_()
    ids = torch.arange(5)
    for _ in range(2):
        device.launch("spgnn::k<1>", (3, 2), (None, X, ids, 7, 0.5))
    assert fake.compiled == ["spgnn::k<1>"]
    name, grid, threads, arguments, entered = fake.launched[1]
    assert (name, grid, threads) == ("spgnn::k<1>", (3, 2), (device.THREADS,))
    assert entered == (("device", None), ("stream", 0, 4711))
    null, x, i, seven, half = arguments
    assert (null.dtype, int(null)) == (np.dtype(np.uintp), 0)
    assert (x.data_ptr(), x.dtype, x.stride()) == (X.data_ptr(), torch.int16, X.stride())
    assert i.data_ptr() == ids.data_ptr()
    assert (seven.dtype, int(seven)) == (np.dtype(np.int64), 7)
    assert (half.dtype, float(half)) == (np.dtype(np.float64), 0.5)
    for cached in (device._kernel, device._shared_stream):
        cached.cache_clear()


def test_the_device_constants_match_the_sources():
    assert f"kThreads = {device.THREADS};" in device.source()
    assert f"kRowsInFlight = {nonzeros.ROWS_IN_FLIGHT};" in device.source()
    assert f"kNonzerosInFlight = {nonzeros.NONZEROS_IN_FLIGHT};" in device.source()
