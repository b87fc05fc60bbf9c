"""The operations as torch sees them: registered, traceable, visible to profilers."""

import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.kernels import (
    dropout_rows,
    gather_rows,
    registration,
    scatter_add_rows,
    spmm,
    spmm_transposed,
)

from .conftest import random_block, random_dense


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


@pytest.fixture
def A():
    return random_block(6, 6, [2, 0, 3, 1, 6, 2], 0, parts=("values", "row_scale"))


@pytest.fixture
def X():
    return random_dense(6, 4, 1)


def test_every_operation_is_seen_by_name(A, X):
    rows = torch.tensor([0, 5, 5])
    with Recorder() as seen:
        spmm(A, X)
        spmm(A, X, out=torch.empty(6, 4), accumulate=False)
        spmm_transposed(A, X)
        gather_rows(X, rows)
        scatter_add_rows(torch.zeros(6, 4), rows, X[:3])
        dropout_rows(X, torch.arange(6), 1, 0.5)
    ours = [name for name in seen.names if name.startswith("spgnn::")]
    names = ["spmm", "spmm", "spmm_transposed", "gather_rows", "scatter_add_rows", "dropout_rows"]
    assert ours == [f"spgnn::{name}" for name in names]


def test_backward_runs_the_transposed_product(A, X):
    Y = spmm(A, X.requires_grad_())
    with Recorder() as seen:
        Y.sum().backward()
    assert "spgnn::spmm_transposed" in seen.names


def test_operators_pass_torchs_own_checks(A, X):
    rows, ids = torch.tensor([0, 5, 5]), torch.arange(6)
    T = A.T
    block = (A.indptr, A.indices, A.values, None, T.indptr, T.indices, T.values, None)
    block = (*block, A.row_scale, A.col_scale)
    wanted = X.clone().requires_grad_()
    cases = [
        (registration.spmm, (*block, wanted)),
        (registration.spmm_transposed, (*block, wanted)),
        (registration.spmm_out, (*block, X, torch.ones(6, 4), True)),
        (registration.spmm_transposed_out, (*block, X, torch.ones(6, 4), False)),
        (registration.gather_rows, (wanted, rows, None)),
        (registration.gather_rows_out, (X, rows, torch.rand(3), torch.ones(3, 4))),
        (registration.scatter_add_rows, (torch.ones(6, 4), rows, X[:3].clone(), None)),
        (registration.dropout_rows, (wanted, ids, 3, 0.5)),
    ]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator, arguments in cases:
        torch.library.opcheck(operator, arguments, test_utils=checks)


def test_compile_and_export_do_not_break(A, X):
    A.T  # noqa: B018  made beforehand: SciPy cannot be traced

    class Layer(torch.nn.Module):
        def forward(self, X):
            return torch.relu(spmm_transposed(A, spmm(A, X))) + 1

    layer = Layer()
    expected = layer(X)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(X), expected)
    exported = torch.export.export(layer, (X,))
    assert torch.equal(exported.module()(X), expected)
    assert "spgnn.spmm.default" in str(exported.graph)


def test_gradient_under_compile(A, X):
    A.T  # noqa: B018

    def loss(X):
        return spmm(A, X).square().sum()

    plain, traced = X.clone().requires_grad_(), X.clone().requires_grad_()
    loss(plain).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(traced).backward()
    assert torch.equal(plain.grad, traced.grad)


def test_kernels_work_in_a_forked_child():
    # A product on one thread enters no parallel region, so a child may fork after one.
    program = """
import os, torch
from spgnn import CSR
from spgnn.kernels import spmm
n = 4000
A = CSR.of(torch.arange(0, 20 * n + 1, 20), torch.arange(20 * n, dtype=torch.int32) % n, (n, n))
X = torch.ones(n, 16)
torch.set_num_threads(1)
expected = spmm(A, X)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(spmm(A, X), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
