"""Operations under torch's transforms and in a distributed matrix, on a GPU, against the CPU."""

import subprocess
import sys

import pytest
import torch
from torch.func import hessian, jvp, vmap

from spgnn import DistMatrix, Mesh, RowLayout, kernels
from spgnn.comm import SoloCommunicator
from spgnn.kernels.cross_entropy import cross_entropy_sum
from spgnn.kernels.cuda import device

from .cuda_cases import SKEWED, block, matrix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(not device.available(), reason="needs CuPy"),
    # Torch's own, where it first differentiates in forward mode.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
]

GPU = "cuda"
DOUBLE = torch.float64
ROWS = torch.arange(900) * 7 % 800


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


def test_cross_entropy_equals_that_on_the_cpu():
    def gradient(X):
        wanted = X.detach().requires_grad_()
        target = (torch.arange(800) % 10 - 1).clamp(max=7).to(X.device)
        cross_entropy_sum(wanted, target).square().backward()
        return wanted.grad

    assert_same_on_both(gradient, matrix(800, 8, DOUBLE))


def test_hessian_equals_that_on_the_cpu():
    A = block([3, 0, 2, 1], 4, dtype=DOUBLE)

    def loss(X):
        B = A.to(X.device)
        return kernels.spmm(B.with_values(kernels.sddmm(B, X, X).exp()), X).square().sum()

    assert_same_on_both(hessian(loss), 0.3 * matrix(4, 2, DOUBLE))


@pytest.mark.parametrize("columns", [1, 16, 300])
def test_scatter_add_by_lists_of_both_types(columns):
    Y, X = matrix(800, columns).to(GPU), matrix(900, columns, seed=2).to(GPU)
    wide, narrow = (
        kernels.scatter_add_rows(Y.clone(), rows.to(GPU), X) for rows in (ROWS, ROWS.int())
    )
    expected = Y.cpu().index_add(0, ROWS, X.cpu())
    assert torch.equal(wide, narrow)
    assert torch.allclose(wide.cpu(), expected, rtol=1e-5, atol=1e-5)


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
