"""Without CuPy, and around it: the way through torch, one notice, what a launch hands over."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels import cuda
from spgnn.kernels import torch_kernels as cusparse
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda import operations as nonzeros
from spgnn.sparse import SUM_DTYPE

from . import oracle as reference
from .cuda_cases import (
    PARTS,
    ROUNDING,
    SKEWED,
    assert_product,
    assert_products,
    assert_softmax,
    assert_sums,
    block,
    matrix,
    multiply,
    products,
    some_scores,
)


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


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("parts", PARTS)
def test_products_through_torch(dtype, parts):
    A, X = block(SKEWED, parts=parts, dtype=dtype), matrix(800, 17, dtype)
    out = torch.full((len(SKEWED), 17), float("nan"), dtype=dtype)
    assert_product(multiply(cusparse, A, X, out), A, X)
    before = out.double().clone()
    assert_product(multiply(cusparse, A, X, out, accumulate=True), A, X, added=before)
    A = A.with_values(matrix(A.nnz, 2, SUM_DTYPE[dtype]))
    X = matrix(800, 34, dtype).unflatten(1, (2, 17))
    assert_product(multiply(cusparse, A, X)[:, 1], A.with_values(A.values[:, 1]), X[:, 1])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("heads", [1, 3])
def test_nonzeros_through_torch(dtype, heads, monkeypatch):
    A = block(SKEWED, parts=("row_scale", "col_scale"), dtype=dtype)
    G, X = (matrix(n, 17 * heads, dtype, seed=n).unflatten(1, (heads, 17)) for n in A.shape)
    G, X = (G[:, 0], X[:, 0]) if heads == 1 else (G, X)
    whole = products(cusparse, A, G, X)
    assert_products(whole, A, G, X)
    monkeypatch.setattr(cusparse, "GATHERED_BYTES", 1000)
    assert torch.equal(products(cusparse, A, G, X), whole)

    scores = some_scores(A, heads, dtype)
    weights = torch.empty_like(scores)
    cusparse.edge_softmax(A.indptr, scores, weights)
    assert_softmax(weights, A.pattern, scores)
    other = matrix(A.nnz, heads, dtype, seed=3)
    cusparse.row_sums(A.indptr, weights, None, scores)
    assert_sums(scores, A.pattern, weights)
    cusparse.row_sums(A.indptr, weights, other, scores)
    assert_sums(scores, A.pattern, weights.double() * other.double())


@pytest.mark.parametrize("columns", [1, 64, 5000])
def test_gathered_rows_stay_below_a_number_of_bytes(columns, monkeypatch):
    A, G, X = block([30] * 90, 500), matrix(90, columns), matrix(500, columns)
    monkeypatch.setattr(cusparse, "GATHERED_BYTES", 2**16)
    largest, multiply_ = [0], torch.Tensor.__mul__
    monkeypatch.setattr(
        torch.Tensor,
        "__mul__",
        lambda a, b: largest.append(a.nbytes + b.nbytes) or multiply_(a, b),
    )
    found = products(cusparse, A, G, X)
    monkeypatch.undo()
    assert_products(found, A, G, X)
    assert 0 < max(largest) <= max(2**16, 2 * 4 * columns)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_rows_through_torch(dtype):
    X, Y = matrix(6, 5, dtype), matrix(4, 5, dtype, seed=2)
    rows, scale = torch.tensor([3, 0, 3, 3, 1, 0]), torch.randn(6).to(SUM_DTYPE[dtype])
    for factor in (None, scale):
        gathered = X.new_empty(6, 5)
        cusparse.gather_rows(X, rows, factor, gathered)
        expected = reference.gather_rows(X, rows, factor)
        assert torch.allclose(gathered.double(), expected, rtol=ROUNDING[dtype], atol=0)
        expected = reference.scatter_add_rows(Y, rows, X, factor)
        added = Y.clone()
        cusparse.scatter_add_rows(added, rows, X, factor)
        assert torch.allclose(added.double(), expected, rtol=0, atol=10 * ROUNDING[dtype])
    dropped = torch.empty_like(X)
    cusparse.dropout_rows(X, torch.arange(6), 7, 0.5, dropped)
    assert torch.equal(dropped, reference.dropout_rows(X, torch.arange(6), 7, 0.5))


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
