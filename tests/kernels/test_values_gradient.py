"""The gradient in the values of a block: products of rows of G and X where it has nonzeros."""

import pytest
import torch

from spgnn.errors import InputError
from spgnn.kernels import reference, registration, reorder, spmm, spmm_transposed
from spgnn.sparse import CSR

from .conftest import DTYPES, SUM_DTYPE, assert_close, random_block, random_dense

SHAPES = {
    "usual": (40, 23, [3, 0, 7, 1] * 10),
    "empty": (5, 4, [0] * 5),
    "no rows": (0, 4, []),
    "long row": (6, 9000, [0, 2, 9000, 0, 1, 0]),
}


def operands(A, G, X):
    return A.indptr, A.indices, A.row_scale, A.col_scale, G, X


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [0, 1, 3, 16, 17, 64, 129])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_products_match_the_reference(instruction_set, dtype, columns, index):
    for seed, (rows, cols, lengths) in enumerate(SHAPES.values()):
        for parts in ((), ("row_scale",), ("row_scale", "col_scale")):
            A = random_block(rows, cols, lengths, seed, dtype=dtype, parts=parts, index=index)
            G = random_dense(rows, columns, seed + 10, dtype, padding=2)
            X = random_dense(cols, columns, seed + 20, dtype, padding=1)
            absolute = CSR.of(A.indptr, A.indices, A.shape).with_scales(
                *(None if s is None else s.abs() for s in (A.row_scale, A.col_scale))
            )
            magnitude = reference.sddmm(absolute, G.abs(), X.abs())
            expected = reference.sddmm(A, G, X)
            for product in (registration.sddmm, registration._sddmm_by_gathering):
                assert_close(product(*operands(A, G, X)), expected, magnitude, SUM_DTYPE[dtype])


def test_bits_do_not_depend_on_threads(threads):
    A = random_block(500, 300, [250, 3, 0, 9] * 125, 0)
    G, X = random_dense(500, 33, 1), random_dense(300, 33, 2)
    threads(1)
    expected = registration.sddmm(*operands(A, G, X))
    for count in (2, 3, 5):
        threads(count)
        assert torch.equal(registration.sddmm(*operands(A, G, X)), expected)


@pytest.mark.parametrize("multiply", [spmm, spmm_transposed])
def test_gradient_matches_finite_differences(multiply):
    A = random_block(6, 5, [2, 0, 3, 5, 1, 2], 0, dtype=torch.float64, parts=("values",))
    scales = torch.rand(6, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    X = random_dense(5 if multiply is spmm else 6, 3, 1, torch.float64).requires_grad_()

    def product(values, X):
        return multiply(CSR(A.indptr, A.indices, A.shape, values, *scales), X)

    assert A.values is not None
    torch.autograd.gradcheck(product, (A.values.requires_grad_(), X))


@pytest.mark.parametrize("multiply", [spmm, spmm_transposed])
def test_learnt_values_are_never_stale(multiply):
    A = random_block(6, 6, [2, 0, 3, 5, 1, 2], 0, parts=("values",))
    values = A.values
    assert values is not None
    values.requires_grad_()
    for _ in range(3):
        X = random_dense(6, 4, 1).requires_grad_()
        multiply(A, X).square().sum().backward()
        now = CSR.of(A.indptr, A.indices, A.shape, values.detach().clone())
        again = X.detach().requires_grad_()
        multiply(now, again).square().sum().backward()
        assert torch.equal(X.grad, again.grad)
        with torch.no_grad():
            values -= 0.1 * values.grad


def test_gradient_of_values_alone_needs_no_transpose():
    A = random_block(6, 4, [2, 0, 3, 1, 4, 2], 0, parts=("values",))
    A.values.requires_grad_()
    spmm(A, random_dense(4, 3, 1)).sum().backward()
    assert "T" not in A.__dict__
    assert A.values.grad is not None


def test_fake_has_the_right_shape():
    A = random_block(6, 4, [2, 0, 3, 1, 4, 2], 0)
    G, X = random_dense(6, 3, 0, torch.bfloat16), random_dense(4, 3, 1, torch.bfloat16)
    torch.library.opcheck(
        registration.sddmm, operands(A, G, X), test_utils=("test_schema", "test_faketensor")
    )


def test_what_cannot_be_learnt_is_refused():
    A = random_block(6, 6, [2, 0, 3, 1, 4, 2], 0, parts=("values",))
    A.values.requires_grad_()
    X = random_dense(6, 3, 1)
    with pytest.raises(InputError, match="not differentiable"):
        spmm(A, X, out=torch.empty(6, 3))
    A.__dict__["_reordering"] = ()
    with pytest.raises(InputError, match="reordered"):
        spmm(A, X)
    assert not reorder(A).kept
    scaled = random_block(6, 6, [2, 0, 3, 1, 4, 2], 0, parts=("row_scale",))
    scaled.row_scale.requires_grad_()
    with pytest.raises(InputError, match="row_scale of a block is a constant"):
        spmm(scaled, X)
