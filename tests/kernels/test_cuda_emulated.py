"""The CUDA kernels' own source and their host code, run on the CPU against the reference."""

import shutil
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import packed_bytes, packed_size, reference
from spgnn.kernels.cuda import cusparse, native, tiling
from spgnn.kernels.cuda import spmm as host
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


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 17, 64, 300])
def test_gather_rows(dtype, columns):
    X = matrix(50, columns, dtype, padding=8)
    rows = torch.from_numpy(np.random.default_rng(3).integers(0, 50, 301))
    copied, scaled = X.new_empty(301, columns), X.new_empty(301, columns)
    for listed in (rows, rows.int()):
        native.gather_rows(X, listed, None, copied.zero_())
        assert torch.equal(copied, X[rows])
    scale = torch.randn(301, dtype=SUM_DTYPE[dtype])
    expected = reference.gather_rows(X, rows, scale)
    native.gather_rows(X, rows, scale, scaled)
    assert torch.allclose(scaled.double(), expected, rtol=ROUNDING[dtype], atol=0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("scaled", [False, True])
def test_scatter_add_rows(dtype, scaled):
    # Row 7 is listed 2000 times: its sum is carried across tiles.
    rows = torch.from_numpy(np.random.default_rng(4).integers(0, 40, 3000))
    rows[500:2500] = 7
    X, Y = matrix(3000, 16, dtype), matrix(45, 16, dtype, padding=8, seed=5)
    scale = torch.randn(3000, dtype=SUM_DTYPE[dtype]) if scaled else None
    expected = reference.scatter_add_rows(Y, rows, X, scale)
    magnitude = reference.scatter_add_rows(
        Y.abs(), rows, X.abs(), None if scale is None else scale.abs()
    )
    again = Y.clone()
    native.scatter_add_rows(Y, rows, X, scale)
    assert bool(((Y.double() - expected).abs() <= ROUNDING[dtype] * magnitude).all())
    native.scatter_add_rows(again, rows.int(), X, scale)
    assert torch.equal(Y, again)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 3, 64, 300])
def test_dropout_has_the_bits_of_the_reference(dtype, columns):
    X = matrix(37, columns, dtype, padding=4)
    X[3] = float("inf")  # dropped all the same
    ids = torch.arange(37) * 1_000_003 + 2**40
    for key, p in ((0, 0.0), (-(2**63), 0.5), (12345, 0.9)):
        expected = reference.dropout_rows(X, ids, key, p)
        dropped = torch.empty_like(X)
        native.dropout_rows(X, ids, key, p, dropped)
        assert torch.equal(dropped, expected)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [3, 64, 300])
def test_updates_have_the_bits_of_three_operations(dtype, columns):
    Z, G = matrix(137, columns, dtype, padding=4), matrix(137, columns, dtype, seed=2)
    Z[3], Z[4, 0] = float("inf"), float("nan")
    bias = torch.linspace(-1, 1, columns).to(SUM_DTYPE[dtype])
    ids = torch.arange(137) * 1_000_003 + 2**40
    for b, drops, relu in ((bias, ids, True), (bias, None, True), (None, ids, False)):
        rule = drops, -7, 0.5 if drops is not None else 0.0
        expected, found = torch.empty_like(G), Z.clone()
        cusparse.update_rows(Z, b, *rule, relu, expected)
        native.update_rows(found, b, *rule, relu, found)
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
        results = []
        for module in (native, cusparse):
            dZ, sums = torch.empty_like(G), torch.empty(columns, dtype=SUM_DTYPE[dtype])
            kept = (expected, None) if relu else (None, drops)
            module.update_rows_backward(G, *kept, *rule[1:], dZ, sums)
            results.append((dZ, sums))
        assert torch.equal(results[0][0], results[1][0])
        assert torch.allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("columns", "index"), [(3, torch.int32), (64, torch.int64)])
def test_extremes(dtype, columns, index):
    A, B = block([5, 0, 1, 40] * 9, index=index), block([0, 0, 7, 3] * 9, index=index, seed=3)
    X = matrix(800, columns, dtype).mul(2).round()
    X[A.indices[2].long(), 0] = torch.nan
    for largest in (True, False):
        states = []
        for module in (native, cusparse):
            out, arg = X.new_empty(36, columns), torch.empty(36, columns, dtype=torch.int32)
            module.extreme(A.indptr, A.indices, X, largest, False, 0, out, arg)
            module.extreme(B.indptr, B.indices, -X, largest, True, 800, out, arg)
            states.append((out.nan_to_num(9.0), arg))
        assert torch.equal(states[0][0], states[1][0])
        assert torch.equal(states[0][1], states[1][1])


def packed_and_back(module, X, bits, rows, residual, stochastic, dtype):
    """Everything that packing and unpacking write, by one of the implementations."""
    each = bits if isinstance(bits, torch.Tensor) else None
    all_bits = 0 if each is not None else bits
    size = packed_size(X.shape[1], each) if each is not None else 0
    ids = torch.arange(len(rows)) * 1_000_003 + 2**40
    out = torch.empty(size or (len(rows), packed_bytes(X.shape[1], bits)), dtype=torch.uint8)
    residual, lost = residual.clone(), torch.ones(2, dtype=torch.float64)
    rule = all_bits, each, ids, -7, stochastic, rows
    module.quantise_rows(X, *rule, residual, lost, out)
    back = matrix(50, X.shape[1], dtype, padding=8)
    module.dequantise_rows(out, all_bits, each, torch.arange(len(rows)) + 3, back)
    bare = torch.empty_like(out)
    module.quantise_rows(X, *rule, None, None, bare)
    plain = X.new_empty((len(rows), X.shape[1]))
    module.dequantise_rows(bare, all_bits, each, None, plain)
    return out, residual, back, bare, plain, lost


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [(torch.float32, 17), (torch.float32, 300), (torch.float64, 3), (torch.bfloat16, 64)],
)
def test_quantised_rows_have_the_bits_of_the_reference(dtype, columns):
    X, residual = matrix(50, columns, dtype, padding=8), matrix(40, columns, dtype, seed=2)
    X[3, 0], X[4, columns // 2], X[5] = torch.nan, -torch.inf, 2.5
    X[6] *= 2.0**-125
    X[7] *= 2.0**126
    rows = torch.cat((torch.arange(10), torch.arange(49, 19, -1))).int()
    each = torch.tensor([16, 8, 4, 2, 1] * 8, dtype=torch.uint8)
    for bits in (16, 8, 4, 2, 1, each):
        for stochastic, listed in ((True, rows), (False, rows.long())):
            case = X, bits, listed, residual, stochastic, dtype
            *found, lost = packed_and_back(native, *case)
            *expected, sums = packed_and_back(cusparse, *case)
            for ours, theirs in zip(found, expected, strict=True):
                assert torch.equal(
                    torch.nan_to_num(ours.double(), 0.5), theirs.double().nan_to_num(0.5)
                )
            assert torch.allclose(lost, sums, rtol=1e-12, equal_nan=True)


def test_nothing_to_quantise():
    each = torch.tensor([16, 4, 1], dtype=torch.uint8)
    X, lost = matrix(3, 0), torch.zeros(2, dtype=torch.float64)
    out = torch.full((8,), 9, dtype=torch.uint8)
    native.quantise_rows(X, 0, each, torch.arange(3), 1, True, None, None, lost, out)
    assert not out.any()
    assert not lost.any()
    native.dequantise_rows(out, 0, each, None, X)
    none = torch.empty(0, 9, dtype=torch.uint8)
    native.quantise_rows(matrix(0, 5), 8, None, torch.arange(0), 1, True, None, None, None, none)
    native.dequantise_rows(none, 8, None, None, matrix(0, 5))


def test_rows_out_of_range():
    X = matrix(5, 4)
    with pytest.raises(InputError, match=r"row 5 outside \[0, 5\)"):
        native.gather_rows(X, torch.tensor([0, 5]), None, X[:2].clone())
    with pytest.raises(InputError, match=r"row -1 outside \[0, 5\)"):
        native.scatter_add_rows(X, torch.tensor([-1, 2]), X[:2], None)


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
