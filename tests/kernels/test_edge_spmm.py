"""The generalised SpMM of edges: all operators, reductions and shapes against dense sums."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradgradcheck

from spgnn.errors import InputError
from spgnn.kernels import edge_add as add_ends
from spgnn.kernels import edge_spmm, torch_kernels
from spgnn.kernels.edge_spmm import EDGE_OPS, EDGE_REDUCTIONS
from spgnn.pattern import Pattern

from .conftest import DTYPES, work_by

SHAPES = ("number", "heads", "full")
# Columns repeat and are in no order; rows are empty, short, and longer than a task.
LENGTHS = [3, 0, 1, 7, 2, 0, 4, 5]


def some_pattern(lengths, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    indptr = torch.tensor([0, *lengths]).cumsum(0)
    indices = torch.randint(columns, (int(indptr[-1]),), generator=generator)
    return Pattern(indptr, indices, (len(lengths), columns))


def operands(pattern, op, shape, *, heads=2, width=3, dtype=torch.float64, seed=1):
    """X [cols, heads, f] and values; X is None with "copy". Of div, no value is near 0."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(pattern.shape[1], heads, width, generator=generator, dtype=torch.float64)
    sizes = {"number": (), "heads": (heads,), "full": (heads, width)}[shape]
    values = torch.randn(pattern.nnz, *sizes, generator=generator, dtype=torch.float64)
    if op == "div":
        values = values + values.sign()
    if op == "outer":
        return X[:, 0].to(dtype), values.reshape(pattern.nnz, heads * width)[:, :4].to(dtype)
    return None if op == "copy" else X.to(dtype), values.to(dtype)


def reference(pattern, X, values, op, reduce):
    """One message for each nonzero, reduced by torch, in the dtype of the operands."""
    rows = torch.arange(pattern.shape[0]).repeat_interleave(pattern.row_lengths)
    message = values
    if X is not None:
        x = X[pattern.indices.long()]
        v = values.reshape(*values.shape, *[1] * (x.dim() - values.dim()))
        message = {
            "mul": lambda: x * v,
            "add": lambda: x + v,
            "sub": lambda: x - v,
            "div": lambda: x / v,
            "add_relu": lambda: torch.relu(x + v),
            "outer": lambda: values[:, :, None] * x[:, None, :],
        }[op]()
    out = message.new_zeros(pattern.shape[0], *message.shape[1:])
    index = rows.reshape(-1, *[1] * (message.dim() - 1)).expand_as(message)
    how = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}[reduce]
    return out.scatter_reduce(0, index, message, how, include_self=False)


def cases():
    return [
        (op, reduce, shape)
        for op in EDGE_OPS
        for reduce in EDGE_REDUCTIONS
        for shape in SHAPES
        if op not in ("add_relu", "outer") or shape == "full"
        if op != "outer" or reduce in ("sum", "mean")
    ]


@pytest.mark.parametrize(("op", "reduce", "shape"), cases())
def test_values_and_gradients(op, reduce, shape):
    for lengths, heads, width in (
        (LENGTHS, 2, 3),
        ([40, 0, 2100, 4], 1, 17),
        ([0, 0], 2, 4),
        ([], 3, 2),
    ):
        pattern = some_pattern(lengths, 9)
        X, values = operands(pattern, op, shape, heads=heads, width=width)
        leaves = [t.requires_grad_() for t in (X, values) if t is not None]
        mine, dense = (f(pattern, X, values, op, reduce) for f in (edge_spmm, reference))
        torch.testing.assert_close(mine, dense)
        G = torch.randn_like(mine)
        for got, wanted in zip(
            torch.autograd.grad(mine, leaves, G), torch.autograd.grad(dense, leaves, G), strict=True
        ):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("op", "reduce", "shape"), [c for c in cases() if c[0] != "copy"])
def test_second_derivatives(op, reduce, shape):
    pattern = some_pattern([3, 0, 2, 1], 5)
    leaves = [t.requires_grad_() for t in operands(pattern, op, shape, width=2)]
    assert gradgradcheck(lambda X, values: edge_spmm(pattern, X, values, op, reduce), leaves)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 33, 77])
def test_dtypes_and_widths(instruction_set, threads, dtype, width):
    pattern = some_pattern([*LENGTHS, 2100, 17], 50)
    for op, reduce, shape in cases():
        X, values = operands(pattern, op, shape, heads=1, width=width, dtype=dtype)
        wide = None if X is None else X.double()
        right = reference(pattern, wide, values.double(), op, reduce)
        scale = right.abs()
        if reduce in ("sum", "mean"):
            sizes = None if wide is None else wide.abs()
            sign = -1 if op == "sub" else 1
            scale = reference(pattern, sizes, sign * values.double().abs(), op, reduce).abs()
        results = []
        for count in (1, 3):
            threads(count)
            results.append(edge_spmm(pattern, X, values, op, reduce))
        assert torch.equal(*results)
        bound = {torch.float64: 1e-13, torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
        assert results[0].dtype == dtype
        assert bool(((results[0].double() - right).abs() <= bound * (scale + 1)).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_in_every_dtype_keep_threads_apart(threads, dtype):
    pattern = some_pattern([*LENGTHS, 2100], 50)
    for op, reduce in (("mul", "sum"), ("div", "sum"), ("add_relu", "sum"), ("mul", "max")):
        grads = []
        for count in (1, 3):
            threads(count)
            leaves = [t.requires_grad_() for t in operands(pattern, op, "full", dtype=dtype)]
            edge_spmm(pattern, *leaves, op, reduce).sum().backward()
            grads.append([leaf.grad for leaf in leaves])
        wide = [t.requires_grad_() for t in operands(pattern, op, "full", dtype=dtype)]
        doubles = [t.detach().double().requires_grad_() for t in wide]
        reference(pattern, *doubles, op, reduce).sum().backward()
        for one, other, right in zip(*grads, [d.grad for d in doubles], strict=True):
            assert torch.equal(one, other)
            bound = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 6e-2}[dtype]
            torch.testing.assert_close(one.double(), right, rtol=bound, atol=bound)


def test_sums_of_ends(instruction_set):
    for lengths in (LENGTHS, [0, 0], [2100, 1]):
        pattern = some_pattern(lengths, 7)
        generator = torch.Generator().manual_seed(3)
        sizes = pattern.shape[0], pattern.shape[1], pattern.nnz
        G, X, V = (
            torch.randn(size, 19, generator=generator, dtype=torch.float64, requires_grad=True)
            for size in sizes
        )
        rows = torch.arange(pattern.shape[0]).repeat_interleave(pattern.row_lengths)
        right = G[rows] + X[pattern.indices.long()] + V
        mine = add_ends(pattern, G, X, V)
        torch.testing.assert_close(mine, right)
        C = torch.randn_like(right)
        for got, wanted in zip(
            torch.autograd.grad(mine, (G, X, V), C),
            torch.autograd.grad(right, (G, X, V), C),
            strict=True,
        ):
            torch.testing.assert_close(got, wanted)
    small = some_pattern([2, 0, 1], 3)
    leaves = [torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (3, 3, 3)]
    assert gradgradcheck(lambda *t: add_ends(small, *t).pow(2), leaves)
    with pytest.raises(InputError, match="G must be"):
        add_ends(small, leaves[0][:1], *leaves[1:])


def test_what_is_no_number_is_extreme():
    pattern = some_pattern([3], 3)
    X, values = torch.ones(3, 1), torch.tensor([1.0, float("nan"), 2.0])
    for reduce in ("max", "min"):
        assert bool(edge_spmm(pattern, X, values, "mul", reduce).isnan().all())


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("dtype", "large"), [(torch.bfloat16, 100), (torch.float32, 1e6)])
def test_differences_are_made_before_they_are_summed(monkeypatch, native, dtype, large):
    """The difference of two sums would be rounded apart; and both stay integers here."""
    if not native:
        work_by(monkeypatch, torch_kernels)
    pattern = Pattern(torch.tensor([0, 64, 64]), torch.zeros(64, dtype=torch.int32), (2, 1))
    X = torch.full((1, 2, 3), large + 1, dtype=dtype)
    for shape in ((64,), (64, 2), (64, 2, 3)):
        values = torch.full(shape, large, dtype=dtype)
        values[:5] = large - 1
        for op, sign in (("sub", 1), ("add", -1)):
            for reduce, right in (("sum", 69), ("mean", 69 / 64), ("max", 2), ("min", 1)):
                found = edge_spmm(pattern, X, sign * values, op, reduce)
                assert found.tolist() == [[[right] * 3] * 2, [[0] * 3] * 2], (op, reduce, shape)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("op", [op for op in EDGE_OPS if op not in ("copy", "outer")])
def test_signs_of_zero_infinities_and_the_smallest_numbers(monkeypatch, native, op):
    """One nonzero a row, and values of every shape: what torch makes of two numbers."""
    if not native:
        work_by(monkeypatch, torch_kernels)
    inf, nan = float("inf"), float("nan")
    numbers = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-45, 3e38])
    x, v = (t.flatten() for t in torch.meshgrid(numbers, numbers, indexing="ij"))
    n = len(x)
    pattern = Pattern(torch.arange(n + 1), torch.arange(n), (n, n))
    X = x[:, None, None].expand(-1, 2, 17).contiguous()
    right = reference(pattern, X, v[:, None, None].expand_as(X), op, "max")
    for sizes in ((), (2,), (2, 17)):
        if op == "add_relu" and len(sizes) < 2:
            continue
        values = v.reshape(n, *[1] * len(sizes)).expand(n, *sizes).contiguous()
        for reduce in EDGE_REDUCTIONS:
            found = edge_spmm(pattern, X, values, op, reduce)
            torch.testing.assert_close(found, right, equal_nan=True, rtol=1e-6, atol=0)
            if reduce in ("max", "min"):  # a sum begins with 0
                assert torch.equal(found.signbit() | found.isnan(), right.signbit() | right.isnan())


def test_nothing_of_all_edges_is_made():
    pattern = some_pattern([50] * 200, 100)
    X = torch.randn(100, 64, requires_grad=True)
    values = torch.randn(pattern.nnz, 64)
    sizes = []

    def memory(t):
        return t.untyped_storage().data_ptr()

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made = result if isinstance(result, tuple | list) else (result,)
            tensors = [t for t in made if isinstance(t, torch.Tensor)]
            sizes.extend(t.numel() for t in tensors if memory(t) != memory(values))
            return result

    for op in EDGE_OPS[:4] + EDGE_OPS[5:6]:
        for reduce in EDGE_REDUCTIONS:
            with Watched():
                edge_spmm(pattern, X, values, op, reduce).sum().backward()
    assert max(sizes) < values.numel() / 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "pow"}, "op pow: choose one of"),
        ({"reduce": "median"}, "reduce median: choose one of"),
        ({"X": None}, "takes X as well"),
        ({"op": "copy"}, "takes values alone"),
        ({"values": torch.ones(3)}, r"values of op=\"mul\" must be"),
        ({"values": torch.ones(4, 5)}, r"\[4, 2\]"),
        ({"values": torch.ones(4).double()}, "float32"),
        ({"op": "add_relu", "values": torch.ones(4)}, "add_relu"),
        ({"X": torch.ones(2, 2)}, r"\[3, f\]"),
        ({"op": "outer", "reduce": "max", "values": torch.ones(4, 2)}, "no reduce"),
        ({"pattern": 3}, "pattern must be"),
        ({"values": None}, "values must be"),
    ],
)
def test_errors(change, words):
    given = {
        "pattern": some_pattern([1, 3], 3),
        "X": torch.ones(3, 2),
        "values": torch.ones(4),
    } | change
    with pytest.raises(InputError, match=words):
        edge_spmm(**given)
