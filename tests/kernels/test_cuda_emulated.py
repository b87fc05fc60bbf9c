"""The CUDA kernels' own source and their host code, run on the CPU against the reference."""

import shutil
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spgnn.kernels.cuda import kernels as native
from spgnn.kernels.cuda import operations as host
from spgnn.kernels.cuda import tiling
from spgnn.sparse import SUM_DTYPE

from .cuda_cases import (
    PARTS,
    ROUNDING,
    SKEWED,
    WIDTHS,
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
from .cuda_emulation import EmulatedDevice

pytestmark = [
    pytest.mark.usefixtures("emulated"),
    pytest.mark.skipif(
        sys.platform != "linux" or shutil.which("g++") is None, reason="needs g++ on Linux"
    ),
]


@pytest.mark.parametrize("columns", WIDTHS)
def test_spmm_of_any_width(emulated, columns):
    A = block(SKEWED, parts=("values",))
    X = matrix(800, columns)
    assert_product(multiply(native, A, X), A, X)
    assert len(emulated.launched) == 2, "rows that cross tiles need a second product"


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("parts", PARTS)
def test_spmm_of_any_dtype_and_parts(dtype, parts):
    A = block(SKEWED, parts=parts, dtype=dtype)
    X = matrix(800, 64, dtype)
    assert_product(multiply(native, A, X), A, X)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("columns", [3, 300, 1024])
def test_spmm_of_other_widths_and_dtypes(dtype, columns):
    A = block(SKEWED, dtype=dtype)
    X = matrix(800, columns, dtype)
    assert_product(multiply(native, A, X), A, X)


@pytest.mark.parametrize(("padding", "offset"), [(4, 0), (2, 2), (1, 0), (0, 3)])
def test_strided_and_unaligned_operands(padding, offset):
    A = block(SKEWED, parts=("row_scale",))
    X = matrix(800, 64, padding=padding, offset=offset)
    out = matrix(len(SKEWED), 64, padding=3 * padding, offset=offset)
    around = out.as_strided((len(SKEWED) - 1, 3 * padding), (64 + 3 * padding, 1), offset + 64)
    assert multiply(native, A, X, out) is out
    assert_product(out, A, X)
    assert bool(around.isnan().all()), "memory between the rows was written"


@pytest.mark.parametrize("dtype", ROUNDING)
def test_accumulate_adds_to_out(dtype):
    A = block(SKEWED, parts=("values", "row_scale"), dtype=dtype)
    X, out = matrix(800, 64, dtype), matrix(len(SKEWED), 64, dtype, seed=2)
    before = out.double().clone()
    multiply(native, A, X, out, accumulate=True)
    assert_product(out, A, X, added=before)


def test_out_is_overwritten_not_read():
    A, X = block(SKEWED), matrix(800, 64)
    out = torch.full((len(SKEWED), 64), float("nan"))
    multiply(native, A, X, out)
    assert_product(out, A, X)


def test_int64_indices():
    A, X = block(SKEWED, index=torch.int64), matrix(800, 64)
    assert_product(multiply(native, A, X), A, X)


@pytest.mark.parametrize("items", tiling.TILE_ITEMS)
def test_every_tile_size(monkeypatch, emulated, items):
    monkeypatch.setattr(host, "tile_items", lambda *_: items)
    A, X = block(SKEWED * 3, parts=("values",)), matrix(800, 64)
    assert_product(multiply(native, A, X), A, X)
    assert f", {items}>" in emulated.launched[0]


def test_tiny_tiles_carry_through_many_levels(monkeypatch, emulated):
    monkeypatch.setattr(tiling, "TILE_ITEMS", (16,))
    A, X = block([7, 800, 0, 3, 800]), matrix(800, 16)
    assert_product(multiply(native, A, X), A, X)
    assert len(emulated.launched) > 3


@pytest.mark.parametrize("columns", [1, 16, 128])
def test_bits_do_not_depend_on_the_order_of_threads_and_blocks(emulated, columns):
    A, X = block(SKEWED, parts=("values",)), matrix(800, columns)
    results = []
    for emulated.seed in (1, 2, 3):
        results.append(multiply(native, A, X))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(
        st.one_of(st.just(0), st.integers(0, 4), st.integers(0, 90)), min_size=1, max_size=60
    ),
    columns=st.sampled_from([1, 3, 16, 64]),
    items=st.sampled_from([16, 256]),
    seed=st.integers(0, 99),
)
def test_random_blocks(monkeypatch, emulated, lengths, columns, items, seed):
    with monkeypatch.context() as patch:
        patch.setattr(tiling, "TILE_ITEMS", (items,))
        emulated.seed = seed
        A, X = block(lengths, 90, seed=seed), matrix(90, columns, seed=seed)
        assert_product(multiply(native, A, X), A, X)


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (3, 0), (0, 0), (3, 4)])
def test_nothing_to_multiply(rows, columns):
    A = block([0] * rows, 5)
    assert torch.equal(multiply(native, A, matrix(5, columns)), torch.zeros(rows, columns))
    out = matrix(rows, columns)
    assert torch.equal(multiply(native, A, matrix(5, columns), out.clone(), accumulate=True), out)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [16, 17])
def test_heads(dtype, columns):
    A = block(SKEWED, parts=("row_scale", "col_scale"), dtype=dtype)
    A = A.with_values(matrix(A.nnz, 3, SUM_DTYPE[dtype], seed=5).clone())
    X = matrix(800, 4 * columns, dtype).unflatten(1, (4, columns))[:, :3]
    Y = multiply(native, A, X)
    for head in range(3):
        one = A.with_values(A.values[:, head].contiguous())
        assert_product(Y[:, head], one, X[:, head])
    out = matrix(len(SKEWED), 3 * columns, dtype, seed=2).unflatten(1, (3, columns)).clone()
    before = out.double().clone()
    multiply(native, A, X, out, accumulate=True)
    assert_product(out[:, 1], A.with_values(A.values[:, 1]), X[:, 1], before[:, 1])


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        *((torch.float32, columns) for columns in (0, 1, 3, 16, 17, 64, 129)),
        *((torch.float64, columns) for columns in (3, 64)),
        *((torch.bfloat16, columns) for columns in (3, 64)),
    ],
)
def test_sddmm(dtype, columns):
    A = block(SKEWED, parts=("row_scale", "col_scale"), dtype=dtype)
    G = matrix(len(SKEWED), columns, dtype, padding=4)
    X = matrix(800, columns, dtype, seed=2)
    assert_products(products(native, A, G, X), A, G, X)
    bare = A.with_scales(None, None)
    assert_products(products(native, bare, G, X), bare, G, X)


@pytest.mark.parametrize("columns", [3, 16])
def test_sddmm_of_heads(columns):
    A = block([*SKEWED, 0, 0, 0], index=torch.int64)
    G, X = (matrix(n, 3 * columns, seed=n).unflatten(1, (3, columns)) for n in A.shape)
    assert_products(products(native, A, G, X), A, G, X)
    assert_products(products(native, A, G[:, 1:], X[:, 1:]), A, G[:, 1:], X[:, 1:])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("lengths", [SKEWED, [*[2] * 40, 3000, 0, 0, 1, *[2] * 4000]])
def test_softmax_and_sums_over_rows(emulated, dtype, heads, lengths):
    pattern = block(lengths, 3000).pattern
    scores = some_scores(pattern, heads, dtype)
    weights = torch.full_like(scores, torch.nan)
    native.edge_softmax(pattern.indptr, scores, weights)
    assert_softmax(weights, pattern, scores)
    assert len(emulated.launched) == 2, "a long row is shared by a whole block"
    for other in (None, matrix(pattern.nnz, heads, dtype, seed=3)):
        sums, numbers = torch.full_like(weights, torch.nan), matrix(pattern.nnz, heads, dtype)
        native.row_sums(pattern.indptr, numbers, other, sums)
        assert_sums(sums, pattern, numbers if other is None else numbers.double() * other.double())


def test_scores_without_heads_and_rows_without_nonzeros():
    for lengths in ([], [0, 0], [3, 0, 2]):
        pattern = block(lengths).pattern
        scores = matrix(pattern.nnz, 1)[:, 0]
        weights = torch.empty(pattern.nnz)
        native.edge_softmax(pattern.indptr, scores, weights)
        assert_softmax(weights, pattern, scores)


def test_bits_over_nonzeros_do_not_depend_on_the_order_of_threads(emulated):
    A = block(SKEWED)
    G, X, scores = (
        matrix(len(SKEWED), 17),
        matrix(800, 17, seed=2),
        some_scores(A, 2, torch.float32),
    )
    found = []
    for emulated.seed in (1, 2, 3):
        weights = torch.empty_like(scores)
        native.edge_softmax(A.indptr, scores, weights)
        found.append(torch.cat((products(native, A, G, X), weights.flatten())))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_tilings_are_made_once_per_pattern(emulated, monkeypatch):
    made = []
    monkeypatch.setattr(host, "make_tiling", lambda *a: made.append(a) or tiling.make_tiling(*a))
    A, X = block(SKEWED), matrix(800, 16)
    multiply(native, A, X)
    multiply(native, A.with_scales(torch.ones(A.shape[0]), None), X)
    assert len(made) == 1


FAULTY = """
__global__ void divergent(int* a) { if (threadIdx.x < 5) __syncthreads(); a[0] = 1; }
__global__ void beyond(int* a, long long n) { a[n + threadIdx.x / 127] = 1; }
__global__ void unset(float* a) {
  __shared__ float kept[128];
  if (threadIdx.x > 0) kept[threadIdx.x] = 1;
  __syncthreads();
  a[threadIdx.x] = kept[threadIdx.x];
}
__global__ void lonely(int* a) {
  if (threadIdx.x % 2) a[0] = __shfl_xor_sync(0xffu << threadIdx.x % 32 / 8 * 8, a[0], 2);
}
__global__ void summing(int* a) {
  if (threadIdx.x >= 64) return;
  int sum = static_cast<int>(threadIdx.x);
  const unsigned mates = 0xfu << threadIdx.x % 32 / 4 * 4;
  for (int offset = 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(mates, sum, offset);
  a[threadIdx.x] = sum;
}
__global__ void racing(long long* a) {
  __shared__ long long last;
  last = threadIdx.x;
  __syncthreads();
  if (threadIdx.x == 0) a[0] = last;
}
"""


def test_the_emulation_reports_faults(tmp_path):
    (tmp_path / "faulty.cuh").write_text(FAULTY)
    emulation = EmulatedDevice(tmp_path, [str(tmp_path / "faulty.cuh")])
    array = torch.zeros(128, dtype=torch.int32)
    with pytest.raises(AssertionError, match="only some threads reached a barrier"):
        emulation.launch("divergent", (1, 1), (array,))
    with pytest.raises(AssertionError, match="only some threads reached a barrier"):
        emulation.launch("lonely", (1, 1), (array,))
    emulation.launch("summing", (1, 1), (array,))
    assert torch.equal(array[:64].view(16, 4).T, (16 * torch.arange(16).int() + 6).expand(4, 16))
    with pytest.raises(AssertionError, match="access outside an array"):
        emulation.launch("beyond", (1, 1), (array, 127))
    emulation.launch("beyond", (1, 1), (array, 126))
    with pytest.raises(AssertionError):  # a missing argument
        emulation.launch("beyond", (1, 1), (array,))
    floats = torch.zeros(128)
    emulation.launch("unset", (1, 1), (floats,))
    assert floats.isnan().nonzero().tolist() == [[0]]
    seen = set()
    for emulation.seed in range(8):
        last = torch.zeros(1, dtype=torch.int64)
        emulation.launch("racing", (1, 1), (last,))
        seen.add(int(last))
    assert len(seen) > 1
