"""The operations as torch sees them: registered, traceable, transformable, visible to profilers."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn import CSR
from spgnn.errors import InputError
from spgnn.kernels import (
    cpu,
    dropout_rows,
    edge_softmax,
    gather_rows,
    library,
    scatter_add_rows,
    sddmm,
    spmm,
    torch_kernels,
)
from spgnn.kernels.update import update_rows_
from tests.comm.jobs import Forked

from .conftest import random_block, random_dense

LENGTHS = [2, 0, 3, 1, 6, 2]


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def block(parts=("values", "row_scale"), dtype=torch.float32):
    """A new one: nothing has been derived from it yet."""
    return random_block(6, 6, LENGTHS, 0, parts=parts, dtype=dtype)


@pytest.fixture
def A():
    return block()


@pytest.fixture
def X():
    return random_dense(6, 4, 1)


def test_every_operation_is_seen_by_name(A, X):
    rows = torch.tensor([0, 5, 5])
    with Recorder() as seen:
        spmm(A, X)
        spmm(A, X, out=torch.empty(6, 4), accumulate=False)
        sddmm(A, X, X)
        edge_softmax(A.pattern, A.values)
        gather_rows(X, rows)
        scatter_add_rows(torch.zeros(6, 4), rows, X[:3])
        dropout_rows(X, torch.arange(6), 1, 0.5)
    ours = [name for name in seen.names if name.startswith("spgnn::")]
    names = ["spmm", "spmm", "sddmm", "edge_softmax", "gather_rows", "scatter_add_rows"]
    assert ours == [f"spgnn::{name}" for name in (*names, "dropout_rows")]


def test_backward_is_seen_too(A, X):
    A.values.requires_grad_()
    Y = spmm(A, X.requires_grad_())
    with Recorder() as seen:
        Y.sum().backward()
    ours = [name for name in seen.names if name.startswith("spgnn::")]
    assert ours == ["spgnn::spmm", "spgnn::sddmm"]


def test_two_python_frames_between_the_call_and_c(A, X, monkeypatch):
    """`spmm` itself and what tries the plain way, or what torch's dispatcher calls."""
    stacks = []

    def kernel(*arguments):
        frame, names = sys._getframe(1), []
        while frame is not None and frame.f_code is not here:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        stacks.append(names)
        return len(stacks) <= 2

    here = sys._getframe().f_code
    monkeypatch.setattr(sys.modules[spmm.__module__], "spmm_if_plain", kernel)
    monkeypatch.setattr(cpu, "spmm", kernel)
    spmm(A, X, out=torch.empty(6, 4), accumulate=True)
    spmm(A, X)
    assert stacks == [["_plain_product", "spmm"]] * 2
    spmm(A, X)
    assert stacks[3:] == [["_multiply_into", "spmm"]]


def drawn(*shape, dtype=torch.float32):
    """The same numbers for whatever is made when tests are collected."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.rand(*shape, generator=generator, dtype=dtype)


def cases():
    """Every operator with arguments of each kind."""
    A, X, rows, ids = block(), random_dense(6, 4, 1), torch.tensor([0, 5, 5]), torch.arange(6)
    P, T, ops = A.pattern, A.pattern.T, torch.ops.spgnn
    sides = P.indptr, P.indices, T.indptr, T.indices, P.order
    scales = A.row_scale, A.col_scale
    learnt, wanted = A.values.clone().requires_grad_(), X.clone().requires_grad_()
    heads, wide = drawn(A.nnz, 2).requires_grad_(), drawn(6, 2, 3).requires_grad_()
    yield ops.spmm.default, (*sides, learnt, None, *scales, wanted, False)
    yield ops.spmm.default, (*sides, learnt, None, *scales, wanted, True)
    yield ops.spmm.default, (*sides[:4], None, A.values, A.T.values, *scales, wanted, False)
    yield ops.spmm.default, (*sides, heads, None, *scales, wide, False)
    yield ops.spmm.out, (*sides[:2], A.values, *scales, X, torch.ones(6, 4), True)
    yield ops.sddmm.default, (*sides, *scales, wanted, X.clone().requires_grad_())
    yield ops.sddmm.default, (*sides, *scales, wide, wide.detach().clone().requires_grad_())
    of_edges = drawn(A.nnz, 4).add(1).requires_grad_()
    for op in (0, 3, 5):
        yield ops.edge_sum.default, (*sides, wanted, None, of_edges, op, False)
    yield ops.edge_sum.default, (*sides, None, None, of_edges, 4, False)
    yield ops.edge_products.default, (*sides, wanted, X, None, 0)
    yield ops.edge_products.default, (*sides, wanted, X, of_edges, 1)
    yield ops.edge_extremes.default, (*sides, wanted, of_edges, 0, True)
    yield ops.edge_softmax.default, (P.indptr, learnt)
    yield ops.edge_softmax.default, (P.indptr, heads)
    yield ops.row_sums.default, (P.indptr, learnt, None)
    yield ops.row_sums.default, (P.indptr, heads, heads.detach().clone().requires_grad_())
    for listed in (rows, rows.int()):
        yield ops.gather_rows.default, (wanted, listed, drawn(3))
        yield ops.gather_rows.out, (X, listed, None, torch.ones(3, 4))
        yield (
            ops.gather_rows_adjoint.default,
            (random_dense(3, 4, 2).requires_grad_(), listed, None, 7),
        )
        yield ops.scatter_add_rows.default, (torch.ones(6, 4), listed, X[:3].clone(), None)
    yield ops.dropout_rows.default, (wanted, ids, 3, 0.5)
    bias = torch.ones(4, requires_grad=True)
    for act in range(4):
        yield ops.update_rows.default, (wanted, bias, ids, 3, 0.5, act, 0.2)
        yield ops.update_rows.in_place, (X.clone(), torch.ones(4), None, 0, 0.0, act, 0.2)
    yield ops.update_rows_backward.default, (X, X.relu(), None, 3, 0.5, 1, 0.0, True)
    yield ops.gemm_product.default, (wanted, torch.ones(3, 4, requires_grad=True), None, None)
    yield ops.gemm_gradient.default, (wanted, random_dense(6, 3, 4).requires_grad_())
    narrow = torch.ones(3, 4, requires_grad=True)
    yield ops.gemm_narrow_product.default, (X.bfloat16().requires_grad_(), narrow)
    yield ops.gemm_narrow_gradient.default, (X.bfloat16(), random_dense(6, 3, 4).bfloat16())
    two = torch.ones(3, 4, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    yield ops.gemm_product.default, (wanted, two[0], random_dense(6, 5, 2), two[1])
    yield ops.gemm_products.default, (X, torch.ones(3, 4), torch.ones(2, 4))
    yield ops.gemm_passed.default, (X, torch.ones(3, 4), None, None, random_dense(6, 3, 4))
    yield ops.gemm_gradients.default, (X, random_dense(6, 3, 4), None, random_dense(6, 2, 5))
    target = torch.tensor([1, -1, 3, 0, 0, 2])
    mask = torch.arange(6) > 1
    yield ops.cross_entropy.default, (wanted, target, None, 1.0, False)
    yield ops.cross_entropy.default, (wanted, target, mask, 3.0, False)
    yield ops.cross_entropy.default, (wanted, target, mask, 3.0, True)
    scale = torch.tensor(2.0, requires_grad=True)
    yield ops.cross_entropy_gradient.default, (scale, wanted, target, mask, 3.0)
    nobody = P.indptr, P.indices, None, None, None
    yield ops.extreme.default, (*nobody, wanted, True)
    arg = (torch.arange(24).view(6, 4) * 5 % 7 - 1).int()
    for of in ((None,) * 5, nobody):
        yield ops.extreme_adjoint.default, (wanted, arg, *of, 6)
        yield ops.pick_extremes.default, (wanted, arg, *of)
    yield ops.update_rows_backward.default, (X, None, ids, 3, 0.5, 0, 0.0, False)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: str(case[0]))
def test_operators_pass_torchs_own_checks(case):
    torch.library.opcheck(*case)


@pytest.mark.parametrize("parts", [(), ("values",), ("values", "row_scale", "col_scale")])
def test_compile_and_export_of_blocks_that_were_never_used(parts, X):
    T = block(parts).T

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.A = block(parts)

        def forward(self, X):
            return torch.relu(spmm(T, spmm(self.A, X))) + 1

    plain, traced = X.clone().requires_grad_(), X.clone().requires_grad_()
    expected = Layer()(plain)
    compiled = torch.compile(Layer(), fullgraph=True, backend="aot_eager")(traced)
    assert torch.equal(compiled, expected)
    for Y in (expected, compiled):
        Y.square().sum().backward()
    assert torch.equal(plain.grad, traced.grad)
    exported = torch.export.export(Layer(), (X,))
    assert torch.equal(exported.module()(X), expected)
    assert "spgnn.spmm.default" in str(exported.graph)
    assert torch.equal(exported.module()(plain), expected)


def test_compiled_gradients_of_everything(X):
    rows = torch.tensor([5, 0, 5])

    def loss(A, values, X):
        weights = edge_softmax(A.pattern, sddmm(A.pattern, X, X) * values)
        Y = dropout_rows(spmm(A.with_values(weights), X), torch.arange(6), 3, 0.5)
        Y = update_rows_(
            Y, values[:4], act="elu", alpha=1.0, vertex_ids=torch.arange(6), key=4, p=0.25
        )
        total = gather_rows(Y, rows).square().sum()
        out = torch.zeros(6, 4)
        with torch.no_grad():
            spmm(A, X, out=out, accumulate=True)
            scatter_add_rows(out, rows, Y[:3])
        return total + out.sum()

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaves = torch.ones(14).requires_grad_(), X.clone().requires_grad_()
        total = function(block(), *leaves)
        total.backward()
        results.append((total, *(leaf.grad for leaf in leaves)))
    for plain, traced in zip(*results, strict=True):
        torch.testing.assert_close(traced, plain, rtol=1e-6, atol=1e-6)


def test_compiled_products_follow_the_block(X):
    """Other values, another block of the same shape: never what was there when it was compiled."""
    compiled = torch.compile(spmm, fullgraph=True, backend="aot_eager")
    A = block()
    other = random_block(6, 6, [3, 1, 2, 0, 4, 4], 5, parts=("values", "row_scale"))
    for change in (lambda: A, lambda: A.values.mul_(3) is None or A, lambda: other, lambda: A):
        now = change()
        plain, traced = X.clone().requires_grad_(), X.clone().requires_grad_()
        for Y in (spmm(now, plain), compiled(now, traced)):
            Y.square().sum().backward()
        assert torch.equal(plain.grad, traced.grad)


def operations():
    """Each as a function of one array, with the array; of blocks that were never used."""
    X, double = random_dense(6, 4, 1, torch.float64), torch.float64
    rows, scale = torch.tensor([5, 0, 5]), drawn(3, dtype=double)
    values, wide = drawn(14, dtype=double), drawn(14, 2, dtype=double)
    heads = random_dense(6, 6, 3, double).view(6, 2, 3)
    A = block(("values", "row_scale"), double)
    yield "spmm in X", lambda X: spmm(A, X), X
    yield "spmm of A.T", lambda X: spmm(A.T, X), X
    yield "spmm of heads", lambda X: spmm(A.with_values(wide), X), heads
    yield "spmm in values", lambda v: spmm(A.with_values(v), X), values
    yield "spmm in values of heads", lambda v: spmm(A.with_values(v), heads), wide
    yield "sddmm in G", lambda G: sddmm(A, G, X), X
    yield "sddmm in both", lambda G: sddmm(A, G, G), X
    yield "sddmm of heads", lambda X: sddmm(A, heads, X), heads
    yield "softmax", lambda s: edge_softmax(A.pattern, s), values
    yield "softmax of heads", lambda s: edge_softmax(A.pattern, s), wide
    yield "gather", lambda X: gather_rows(X, rows, scale), X
    yield "dropout", lambda X: dropout_rows(X, torch.arange(6), 5, 0.5), X
    for act in (None, "relu", "leaky_relu", "elu"):
        options = {"act": act, "alpha": 0.2, "vertex_ids": torch.arange(6), "key": 5, "p": 0.5}
        yield "update", lambda X, o=options: update_rows_(X * 1, values[:4], **o), X


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # its own
@pytest.mark.parametrize("case", list(operations()), ids=lambda case: case[0])
def test_transforms(case):
    _, function, X = case
    other = X.flip(0)

    def loss(X):
        return function(X).pow(3).sum()

    leaf = X.clone().requires_grad_()
    # Transforms first: what they need of a block is made under them.
    derivative = grad(loss)(X)
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(derivative, expected)

    batch = torch.stack((X, other, 2 * X))
    torch.testing.assert_close(vmap(function)(batch), torch.stack([function(x) for x in batch]))
    last = batch.movedim(0, -1)
    torch.testing.assert_close(
        vmap(function, in_dims=-1, out_dims=-1)(last).movedim(-1, 0), vmap(function)(batch)
    )
    torch.testing.assert_close(vmap(grad(loss))(batch), torch.stack([grad(loss)(x) for x in batch]))

    step = 1e-6
    slope = (function(X + step * other) - function(X - step * other)) / (2 * step)
    Y, tangent = jvp(function, (X,), (other,))
    assert torch.equal(Y, function(X))
    torch.testing.assert_close(tangent, slope, rtol=1e-6, atol=1e-8)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(forward_ad.make_dual(X, other)))
        torch.testing.assert_close(dual.tangent, tangent)
    torch.testing.assert_close(jacfwd(function)(X), jacrev(function)(X))

    twice = torch.autograd.functional.hessian(loss, X)
    torch.testing.assert_close(hessian(loss)(X), twice)
    torch.testing.assert_close(jacrev(grad(loss))(X), twice)


def test_both_operands_in_one_batch():
    A, double = block((), torch.float64), torch.float64
    values, X = torch.rand(3, 14, 2, dtype=double), torch.rand(3, 6, 2, 5, dtype=double)
    found = vmap(lambda v, X: spmm(A.with_values(v), X))(values, X)
    expected = torch.stack([spmm(A.with_values(v), x) for v, x in zip(values, X, strict=True)])
    torch.testing.assert_close(found, expected)
    G = torch.rand(3, 6, 2, 5, dtype=double)
    found = vmap(lambda G, X: sddmm(A, G, X))(G, X)
    torch.testing.assert_close(
        found, torch.stack([sddmm(A, *both) for both in zip(G, X, strict=True)])
    )


def test_gradient_through_a_batch():
    A, X = block(("values",), torch.float64), random_dense(18, 4, 1, torch.float64).view(3, 6, 4)

    def total(X):
        return vmap(lambda x: spmm(A, x).pow(3))(X).sum()

    leaf = X.clone().requires_grad_()
    sum(spmm(A, x).pow(3).sum() for x in leaf).backward()
    torch.testing.assert_close(grad(total)(X), leaf.grad)


def test_batches_of_structure_are_refused_in_one_line(X):
    rows = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises(InputError, match="gather_rows: vmap takes batches of dense matrices"):
        vmap(lambda rows: torch.ops.spgnn.gather_rows(X, rows, None))(rows)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # its own
def test_the_examples_of_the_page_run():
    page = Path(__file__).parents[2] / "docs" / "kernels.md"
    programs = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) >= 5  # of which each is to end without an error
    for code in programs:
        # The default backend starts a compiler, for seconds.
        quick = code.replace("fullgraph=True", 'fullgraph=True, backend="aot_eager"')
        exec(compile(quick, str(page), "exec"), {})


def test_cuda_tensors_without_the_add_on_get_one_notice_and_torch(monkeypatch):
    monkeypatch.setattr(library, "KERNELS", {})
    with pytest.warns(RuntimeWarning, match=r"spgnn\.addons\.cuda is not installed"):
        assert library.cuda_kernels.__wrapped__() is torch_kernels


def test_kernels_work_in_a_forked_child(tmp_path):
    # A product on one thread enters no parallel region, so a child may fork after one.
    def parent() -> int:
        n = 4000
        A = CSR.of(
            torch.arange(0, 20 * n + 1, 20), torch.arange(20 * n, dtype=torch.int32) % n, (n, n)
        )
        X = torch.ones(n, 16)
        expected = spmm(A, X)
        child = Forked(
            lambda: 0 if torch.equal(spmm(A, X), expected) else 1, tmp_path, name="child"
        )
        return child.wait().status

    assert Forked(parent, tmp_path).wait().status == 0
