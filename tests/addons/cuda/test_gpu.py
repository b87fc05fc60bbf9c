"""What only a GPU shows: sizes, streams, graphs, transforms; against the CPU.

Each operation by itself is in test_implementations.
"""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.func import hessian, jvp, vmap

from spgnn import DistMatrix, Mesh, RowLayout, kernels
from spgnn.comm import SoloCommunicator
from spgnn.kernels import torch_kernels
from spgnn.kernels.attention import AttentionDropout
from spgnn.sparse import CSR
from tests.kernels.conftest import DTYPES, ROUNDING, assert_product, random_block
from tests.kernels.test_attention import (
    KINDS,
    assert_near,
    fused,
    gat_operands,
    numbers,
    some_dropout,
    with_gradients,
)

from .conftest import ON_GPU, SKEWED, block, matrix, moved

pytestmark = [
    *ON_GPU,
    # Torch's own, where it first differentiates in forward mode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

GPU = "cuda"
DOUBLE = torch.float64
ROWS = torch.arange(900) * 7 % 800
SHAPES = [(1, 1), (3, 5), (8, 8), (17, 8), (1, 64), (4, 64), (2, 300), (1, 1024)]


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
    before, written = out.double(), moved(out, GPU)
    kernels.spmm(A.to("cuda"), moved(X, GPU), written, accumulate=True)
    assert_product(written.cpu(), A, X, added=before)


@pytest.mark.parametrize("columns", [1, 16, 128])
def test_a_row_of_a_million_nonzeros(columns):
    lengths = [*[3] * 1000, 1_000_000, *[0] * 50, *[3] * 1000]
    A, X = block(lengths, 1_200_000), matrix(1_200_000, columns)
    wide = torch_kernels.as_torch(A, torch.float64)
    expected, magnitude = torch.sparse.mm(wide, X.double()), torch.sparse.mm(wide, X.double().abs())
    block_on_gpu = A.to("cuda")
    first = kernels.spmm(block_on_gpu, X.cuda())
    assert bool(((first.cpu().double() - expected).abs() <= 1e-5 * magnitude + 1e-30).all())
    for _ in range(5):
        assert torch.equal(kernels.spmm(block_on_gpu, X.cuda()), first), "bits differ between runs"


def hub_of_a_million():
    """A row of a million nonzeros among short ones; its columns repeat, in no order."""
    indptr = torch.tensor([0, *[3] * 1000, 1_000_000, *[0] * 50, *[3] * 1000]).cumsum(0)
    indices = torch.arange(int(indptr[-1])) * 7919 % 100_003
    return CSR.of(indptr, indices, (len(indptr) - 1, 100_003))


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [(torch.float32, 1), (torch.float32, 47), (torch.float64, 16), (torch.bfloat16, 64)],
)
def test_extremes_of_a_row_of_a_million_nonzeros(columns, dtype):
    """Values and gradients are those of the CPU, to the bit, however often."""
    A = hub_of_a_million()
    X = matrix(A.shape[1], columns, dtype).mul(2).round()  # with many ties
    G = matrix(A.shape[0], columns, dtype, seed=5).mul(3).round()
    X[A.indices[777_777].long(), 0] = torch.nan
    V = matrix(A.nnz, columns, dtype, seed=6).sign()
    for reduce in ("max", "min"):
        for function in (
            lambda A, X, V, how=reduce: kernels.spmm(A, X, reduce=how),
            lambda A, X, V, how=reduce: kernels.edge_spmm(A.pattern, X, V, "mul", how),
        ):
            results = []
            for where in ("cpu", GPU, GPU):
                leaves = [t.to(where, copy=True).requires_grad_() for t in (X, V)]
                Z = function(A.to(where), *leaves)
                Z.backward(G.to(where))
                arrays = Z.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)
                results.append([a.cpu().double().nan_to_num(0.5) for a in arrays])
            for found in results[1:]:
                assert all(map(torch.equal, results[0], found))


@pytest.mark.parametrize("op", ["mul", "add_relu", "copy"])
def test_sums_of_edges_of_a_row_of_a_million_nonzeros(op):
    A = hub_of_a_million()
    pattern, there = (A.pattern.to(where) for where in ("cpu", GPU))
    X, V = matrix(A.shape[1], 47), matrix(A.nnz, 47, seed=6)
    results = []
    for P, where in ((pattern, "cpu"), (there, GPU), (there, GPU)):
        leaves = [t.double() if where == "cpu" else t.to(where) for t in (X, V)]
        leaves = [t.requires_grad_() for t in leaves[op == "copy" :]]
        Z = kernels.edge_spmm(P, leaves[0] if op != "copy" else None, leaves[-1], op)
        Z.sum().backward()
        results.append([a.detach().cpu() for a in (Z, *(leaf.grad for leaf in leaves))])
    exact, first, second = results
    assert all(map(torch.equal, first, second)), "bits differ between runs"
    for found, right in zip(first, exact, strict=True):
        assert torch.allclose(found.double(), right, rtol=1e-4, atol=2e-2)


@pytest.mark.parametrize("seed", range(20))
def test_random_blocks_have_the_same_bits_every_time(seed):
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.pareto(0.8, 20_000) * rng.integers(0, 5, 20_000), 3000).astype(int)
    columns = int(rng.choice([1, 7, 16, 41, 64, 100, 256]))
    A, X = block(lengths, 3000, parts=("values",), seed=seed), matrix(3000, columns, seed=seed)
    wide = torch_kernels.as_torch(A, torch.float64)
    magnitude = torch.sparse.mm(wide.abs(), X.double().abs())
    A_gpu, X_gpu = A.to("cuda"), X.cuda()
    first = kernels.spmm(A_gpu, X_gpu)
    error = (first.cpu().double() - torch.sparse.mm(wide, X.double())).abs()
    assert bool((error <= 1e-5 * magnitude + 1e-30).all())
    for _ in range(10):
        assert torch.equal(kernels.spmm(A_gpu, X_gpu), first)


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


def square(where):
    """A block [800, 800] with values and scalings, whose rows are as long as SKEWED's."""
    lengths = [*SKEWED, *[0] * (800 - len(SKEWED))]
    return block(lengths, parts=("values", "row_scale", "col_scale"), dtype=DOUBLE).to(where)


def product(X):
    return kernels.spmm(square(X.device), X)


# By device; made outside of whatever transform is at work.
TRANSPOSED = {}


def adjoint(X):
    return kernels.spmm(TRANSPOSED[X.device.type], X)


def learnt(X):
    A = square(X.device)
    return kernels.spmm(A.with_values(kernels.sddmm(A, X, X).square()), X)


def heads(X):
    A, wide = square(X.device), X.unflatten(1, (2, -1))
    weights = kernels.edge_softmax(A.pattern, kernels.sddmm(A.pattern, wide, wide))
    return kernels.spmm(A.with_values(weights), wide).flatten(1)


def gathered(X):
    return kernels.gather_rows(X, ROWS.int().to(X.device), ROWS.to(X)).square()


def dropped(X):
    return kernels.dropout_rows(X, torch.arange(len(X), device=X.device), 5, 0.5).square()


FUNCTIONS = [product, adjoint, learnt, heads, gathered, dropped]


def assert_same_on_both(found, X):
    """What a function makes of an operand on the GPU is what it makes of it on the CPU."""
    TRANSPOSED.update({where: square(where).T for where in ("cpu", GPU)})
    expected, on_gpu = found(X), found(X.to(GPU))
    assert on_gpu.device.type == GPU
    size = 1e-300 + float(expected.abs().max())
    assert torch.allclose(on_gpu.cpu(), expected, rtol=1e-9, atol=1e-10 * size)


def derivatives(function):
    def second(X):
        wanted = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(wanted).square().sum(), wanted, create_graph=True)
        (again,) = torch.autograd.grad(first.square().sum(), wanted)
        return torch.cat((first.detach(), again), 1)

    return second


def tangents(function):
    return lambda X: torch.cat(jvp(function, (X,), (X.flip(0),)), 1)


def batches(function):
    return lambda X: vmap(function)(torch.stack((X, 2 * X, X.flip(0))))


def compiled(function):
    def once(X):
        wanted = X.clone().requires_grad_()
        graph = torch.compile(function, backend="aot_eager")
        graph(wanted).square().sum().backward()
        return wanted.grad

    return once


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("transform", [derivatives, tangents, batches, compiled])
def test_transforms_equal_those_on_the_cpu(function, transform):
    assert_same_on_both(transform(function), matrix(800, 8, DOUBLE))


def test_hessian_equals_that_on_the_cpu():
    A = block([3, 0, 2, 1], 4, dtype=DOUBLE)

    def loss(X):
        B = A.to(X.device)
        return kernels.spmm(B.with_values(kernels.sddmm(B, X, X).exp()), X).square().sum()

    assert_same_on_both(hessian(loss), 0.3 * matrix(4, 2, DOUBLE))


def test_a_distributed_matrix_over_one_rank():
    A = square("cpu")
    D = DistMatrix.build(
        A.with_scales(A.row_scale, None),
        RowLayout.even(800, 1),
        Mesh.grid(SoloCommunicator()),
        column_scale=A.col_scale,
    )
    on = {"cpu": D, GPU: D.to(GPU)}

    def through(X):
        return on[X.device.type] @ X

    def through_halo(X):
        matrix = on[X.device.type]
        return kernels.spmm(matrix.local_matrix(), matrix.halo(X))

    X = matrix(800, 17, DOUBLE)
    for function in (through, through_halo):
        assert torch.allclose(function(X), product(X))
        assert_same_on_both(function, X)
        assert_same_on_both(derivatives(function), X)


@pytest.mark.parametrize(("backend", "asked"), [("auto", "auto"), ("gloo", "cuda")])
def test_a_job_of_one_rank_takes_the_first_gpu(backend, asked):
    code = f"from spgnn import connect; print(connect({backend!r}, {asked!r}).device)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["cuda:0"]


def rule_on_gpu(dropout):
    """A rule of dropout on the GPU."""
    if dropout is None:
        return None
    ids = dropout.row_ids.cuda(), dropout.col_ids.cuda()
    return AttentionDropout(dropout.key, dropout.p, *ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_edges_and_dropout", [False, True])
def test_attention_equals_that_on_the_cpu(kind, dtype, shape, with_edges_and_dropout):
    heads, width = shape
    lengths = [*SKEWED, 5000] if width < 300 else SKEWED
    pattern = random_block(len(lengths), 6000, lengths, 3).pattern
    operands = KINDS[kind][0](pattern, heads, width, dtype, with_edges_and_dropout)
    dropout = some_dropout(pattern) if with_edges_and_dropout else None
    G = numbers(9, len(lengths), heads * width, dtype=dtype)
    right, of_right = with_gradients(lambda o: fused(kind, pattern, o, dropout), operands, G)
    there, rule = pattern.to(GPU), rule_on_gpu(dropout)
    for _ in range(2):
        found, grads = with_gradients(
            lambda o: fused(kind, there, o, rule), moved(operands, GPU), G.cuda()
        )
        bits = [a.clone() for a in (found, *grads)]
        for one, other in zip((found, *grads), (right, *of_right), strict=True):
            assert_near(one.cpu(), other, dtype)
    assert all(map(torch.equal, bits, (found, *grads)))


@pytest.mark.parametrize("heads", [1, 8])
def test_attention_to_a_million_nonzeros(heads):
    lengths = [*[3] * 1000, 1_000_000, *[0] * 50, *[3] * 1000]
    pattern = random_block(len(lengths), 1_200_000, lengths, 5).pattern
    operands = gat_operands(pattern, heads, 8, torch.float32, False)
    G = numbers(9, len(lengths), heads * 8, dtype=torch.float32)
    right, of_right = with_gradients(lambda o: fused("gat", pattern, o, None), operands, G)
    there = pattern.to(GPU)
    found, grads = with_gradients(
        lambda o: fused("gat", there, o, None), moved(operands, GPU), G.cuda()
    )
    for one, other in zip((found, *grads), (right, *of_right), strict=True):
        assert_near(one.cpu(), other, torch.float32)
