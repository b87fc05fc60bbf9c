"""The CUDA kernels on a GPU, through the public operations, against the reference on the CPU."""

import numpy as np
import pytest
import torch

from spgnn import kernels
from spgnn.errors import InputError
from spgnn.kernels import torch_kernels as cusparse
from spgnn.kernels.cuda import device
from spgnn.sparse import SUM_DTYPE

from . import oracle as reference
from .cuda_cases import (
    PARTS,
    ROUNDING,
    SKEWED,
    WIDTHS,
    assert_product,
    assert_products,
    assert_softmax,
    block,
    matrix,
    multiply,
    some_scores,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not device.available(), reason="needs CuPy"),
]


def on_gpu(X: torch.Tensor) -> torch.Tensor:
    """The matrix on the GPU, with the strides it has on the CPU."""
    whole = X.as_strided((X.untyped_storage().size() // X.element_size(),), (1,), 0).cuda()
    return whole.as_strided(X.shape, X.stride(), X.storage_offset())


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_any_width(columns, dtype):
    A, X = block(SKEWED, parts=("values",), dtype=dtype), matrix(800, columns, dtype)
    assert_product(kernels.spmm(A.to("cuda"), X.cuda()).cpu(), A, X)


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("dtype", ROUNDING)
def test_any_parts(dtype, parts):
    A, X = block(SKEWED, parts=parts, dtype=dtype), matrix(800, 64, dtype)
    assert_product(kernels.spmm(A.to("cuda"), X.cuda()).cpu(), A, X)


@pytest.mark.parametrize("columns", [2000, 4099])
def test_more_columns_than_one_sweep_covers(columns):
    A, X = block(SKEWED), matrix(800, columns)
    assert_product(kernels.spmm(A.to("cuda"), X.cuda()).cpu(), A, X)


@pytest.mark.parametrize(("padding", "offset"), [(4, 0), (2, 2), (1, 0), (0, 3)])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_strided_operands(padding, offset, dtype):
    A = block(SKEWED, parts=("row_scale",), dtype=dtype)
    X = matrix(800, 64, dtype, padding=padding, offset=offset)
    out = matrix(len(SKEWED), 64, dtype, padding=3 * padding, offset=offset, seed=2)
    before, written = out.double(), on_gpu(out)
    kernels.spmm(A.to("cuda"), on_gpu(X), written, accumulate=True)
    assert_product(written.cpu(), A, X, added=before)


def test_int64_indices():
    A, X = block(SKEWED, index=torch.int64), matrix(800, 64)
    assert_product(kernels.spmm(A.to("cuda"), X.cuda()).cpu(), A, X)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_transposed(dtype):
    A = block(SKEWED, parts=("values", "row_scale", "col_scale"), dtype=dtype)
    X = matrix(len(SKEWED), 64, dtype)
    assert_product(kernels.spmm(A.to("cuda").T, X.cuda()).cpu(), A.T, X)


@pytest.mark.parametrize("columns", [1, 16, 128])
def test_a_row_of_a_million_nonzeros(columns):
    lengths = [*[3] * 1000, 1_000_000, *[0] * 50, *[3] * 1000]
    A, X = block(lengths, 1_200_000), matrix(1_200_000, columns)
    wide = cusparse.as_torch(A, torch.float64)
    expected, magnitude = torch.sparse.mm(wide, X.double()), torch.sparse.mm(wide, X.double().abs())
    block_on_gpu = A.to("cuda")
    first = kernels.spmm(block_on_gpu, X.cuda())
    assert bool(((first.cpu().double() - expected).abs() <= 1e-5 * magnitude + 1e-30).all())
    for _ in range(5):
        assert torch.equal(kernels.spmm(block_on_gpu, X.cuda()), first), "bits differ between runs"


@pytest.mark.parametrize("seed", range(20))
def test_random_blocks_have_the_same_bits_every_time(seed):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.pareto(0.8, 20_000) * rng.integers(0, 5, 20_000), 3000).astype(int)
    columns = int(rng.choice([1, 7, 16, 41, 64, 100, 256]))
    A, X = block(lengths, 3000, parts=("values",), seed=seed), matrix(3000, columns, seed=seed)
    wide = cusparse.as_torch(A, torch.float64)
    magnitude = torch.sparse.mm(wide.abs(), X.double().abs())
    A_gpu, X_gpu = A.to("cuda"), X.cuda()
    first = kernels.spmm(A_gpu, X_gpu)
    error = (first.cpu().double() - torch.sparse.mm(wide, X.double())).abs()
    assert bool((error <= 1e-5 * magnitude + 1e-30).all())
    for _ in range(10):
        assert torch.equal(kernels.spmm(A_gpu, X_gpu), first)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 17, 64, 300])
def test_gather_scatter_and_dropout_equal_the_cpu(dtype, columns):
    rng = np.random.default_rng(6)
    X, rows = matrix(500, columns, dtype), torch.from_numpy(rng.integers(0, 500, 3001))
    scale = torch.randn(3001, dtype=SUM_DTYPE[dtype])
    for listed in (rows, rows.int()):
        assert torch.equal(kernels.gather_rows(X.cuda(), listed.cuda()).cpu(), X[rows])
    scaled = kernels.gather_rows(X.cuda(), rows.cuda(), scale.cuda()).cpu()
    expected = reference.gather_rows(X, rows, scale)
    assert torch.allclose(scaled.double(), expected, rtol=ROUNDING[dtype], atol=0)

    added = matrix(3001, columns, dtype, seed=7)
    Y = kernels.scatter_add_rows(X.cuda(), rows.cuda(), added.cuda(), scale.cuda()).cpu()
    expected = reference.scatter_add_rows(X, rows, added, scale)
    magnitude = reference.scatter_add_rows(X.abs(), rows, added.abs(), scale.abs())
    assert bool(((Y.double() - expected).abs() <= ROUNDING[dtype] * magnitude).all())

    ids = torch.arange(500) * 1_000_003
    for p in (0.0, 0.5, 0.9):
        dropped = kernels.dropout_rows(X.cuda(), ids.cuda(), 12345, p).cpu()
        assert torch.equal(dropped, kernels.dropout_rows(X, ids, 12345, p))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 17, 64, 300])
def test_quantised_rows_equal_the_cpu(dtype, columns):
    X, ids = matrix(500, columns, dtype), torch.arange(500) * 1_000_003
    X[7, 0], X[8] = torch.inf, 2.5
    each = torch.tensor([16, 8, 4, 2, 1] * 100, dtype=torch.uint8)
    for bits in (16, 8, 4, 2, 1, each):
        there = bits.cuda() if isinstance(bits, torch.Tensor) else bits
        results = []
        for rows, width, numbers in ((X, bits, ids), (X.cuda(), there, ids.cuda())):
            residual, lost = rows / 4, torch.zeros(2, dtype=torch.float64, device=rows.device)
            residual[7] = 0
            packed = kernels.quantise_rows(
                rows, width, numbers, 12345, residual=residual, lost=lost
            )
            back = kernels.dequantise_rows(packed, width, columns, dtype)
            results.append([t.cpu().double().nan_to_num(0.5) for t in (packed, residual, back)])
            assert lost.isnan().any()
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 17, 64, 300])
def test_sddmm(dtype, columns):
    A = block(SKEWED, parts=("row_scale", "col_scale"), dtype=dtype)
    G, X = (matrix(n, 2 * columns, dtype, seed=n).unflatten(1, (2, columns)) for n in A.shape)
    B = A.to("cuda")
    assert_products(kernels.sddmm(B, G.cuda(), X.cuda()).cpu(), A, G, X)
    first = kernels.sddmm(B, G[:, 0].cuda(), X[:, 0].cuda())
    assert_products(first.cpu(), A, G[:, 0], X[:, 0])
    assert torch.equal(kernels.sddmm(B, G[:, 0].cuda(), X[:, 0].cuda()), first)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_edge_softmax(dtype, heads):
    pattern = block([*SKEWED, 100_000], 120_000).pattern
    scores = some_scores(pattern, heads, dtype)
    weights = kernels.edge_softmax(pattern.to("cuda"), scores.cuda())
    assert_softmax(weights.cpu(), pattern, scores)
    assert torch.equal(kernels.edge_softmax(pattern.to("cuda"), scores.cuda()), weights)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("columns", [1, 16, 33])
def test_heads(dtype, columns):
    A = block(SKEWED, parts=("row_scale",), dtype=dtype)
    A = A.with_values(torch.randn(A.nnz, 3, dtype=SUM_DTYPE[dtype]))
    X = matrix(800, 3 * columns, dtype).unflatten(1, (3, columns))
    Y = kernels.spmm(A.to("cuda"), X.cuda()).cpu()
    for head in range(3):
        assert_product(Y[:, head], A.with_values(A.values[:, head]), X[:, head])


def test_gradients_equal_those_on_the_cpu():
    """Attention over two heads: every kernel, first and second derivatives."""
    A = block(SKEWED).to(torch.float64)

    def gradients(where):
        B = A.to(where)
        X = matrix(800, 32, torch.float64).unflatten(1, (2, 16)).to(where).requires_grad_()
        G = matrix(len(SKEWED), 32, torch.float64, seed=8).unflatten(1, (2, 16)).to(where)
        weights = kernels.edge_softmax(B.pattern, kernels.sddmm(B, G, X) / 8)
        Y = kernels.spmm(B.with_values(weights), X)
        (first,) = torch.autograd.grad(Y.square().sum(), X, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), X)
        return Y.detach().cpu(), first.detach().cpu(), second.cpu()

    for found, expected in zip(gradients("cuda"), gradients("cpu"), strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_what_is_kept_can_be_used_on_another_stream():
    A, X = block([*SKEWED, *[3] * 200_000]).to("cuda"), matrix(800, 16).cuda()
    expected = kernels.spmm(A, X)
    torch.cuda.synchronize()
    for _ in range(5):
        B = A.pattern.indptr.clone()  # a new tensor: a new tiling
        fresh = type(A).of(B, A.indices, A.shape)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            kernels.spmm(fresh, X)
        with torch.cuda.stream(second):
            Y = kernels.spmm(fresh, X)
        torch.cuda.synchronize()
        assert torch.equal(Y, expected)


def test_works_on_the_current_stream():
    A, X = block(SKEWED).to("cuda"), matrix(800, 64).cuda()
    expected = kernels.spmm(A, X)
    late = torch.zeros_like(X)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(X)  # a kernel on any other stream would still see zeros
        Y = kernels.spmm(A, late)
    stream.synchronize()
    assert torch.equal(Y, expected)


def test_products_can_be_captured_in_a_graph():
    A, X = block(SKEWED).to("cuda"), matrix(800, 64).cuda()
    expected = kernels.spmm(A, X)
    out = torch.zeros_like(expected)
    graph = torch.cuda.CUDAGraph()
    kernels.spmm(A, X, out)  # compiles what the capture launches
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        kernels.spmm(A, X, out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_rows_out_of_range():
    with pytest.raises(InputError, match="outside"):
        kernels.gather_rows(matrix(5, 4).cuda(), torch.tensor([0, 5]).cuda())


@pytest.mark.parametrize("dtype", ROUNDING)
def test_cusparse_agrees(dtype):
    A, X = block(SKEWED, parts=("values", "row_scale"), dtype=dtype), matrix(800, 64, dtype)
    assert_product(multiply(cusparse, A.to("cuda"), X.cuda()).cpu(), A, X)
    scores = some_scores(A, 2, dtype)
    weights = torch.empty_like(scores, device="cuda")
    cusparse.edge_softmax(A.indptr.cuda(), scores.cuda(), weights)
    assert_softmax(weights.cpu(), A.pattern, scores)
