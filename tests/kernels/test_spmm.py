import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.errors import InputError
from spgnn.kernels import spmm
from spgnn.sparse import CSR

from . import oracle as reference
from .conftest import DTYPES, SUM_DTYPE, assert_close, random_block, random_dense

PARTS = [(), ("values",), ("row_scale", "col_scale"), ("values", "row_scale", "col_scale")]
WIDTHS = [1, 3, 16, 17, 31, 32, 64, 127, 129, 300]


def magnitude(A: CSR, X: torch.Tensor) -> torch.Tensor:
    return reference.dense(A).abs() @ X.double().abs()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_spmm_matches_reference(instruction_set, dtype, parts, columns):
    lengths = np.random.default_rng(1).integers(0, 40, 57)
    A = random_block(57, 83, lengths, 2, dtype=dtype, parts=parts)
    X = random_dense(83, columns, 3, dtype)
    assert_close(spmm(A, X), reference.spmm(A, X), magnitude(A, X), dtype)


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=40),
    cols=st.integers(1, 50),
    columns=st.integers(0, 70),
    padding=st.integers(0, 5),
    parts=st.sets(st.sampled_from(["values", "row_scale", "col_scale"])),
    dtype=st.sampled_from(DTYPES),
    index=st.sampled_from([torch.int32, torch.int64]),
    accumulate=st.booleans(),
    transposed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_spmm_any_shape(
    lengths, cols, columns, padding, parts, dtype, index, accumulate, transposed, seed
):
    rows = len(lengths)
    A = random_block(rows, cols, lengths, seed, dtype=dtype, parts=parts, index=index)
    n_in, n_out = (rows, cols) if transposed else (cols, rows)
    X = random_dense(n_in, columns, seed, dtype, padding)
    out = random_dense(n_out, columns, seed + 1, dtype, padding)
    B = reference.dense(A).T if transposed else reference.dense(A)
    expected = B @ X.double() + (out.double() if accumulate else 0)
    size = B.abs() @ X.double().abs() + out.double().abs() * accumulate
    multiplied = A.T if transposed else A
    returned = spmm(multiplied, X, out=out, accumulate=accumulate)
    assert returned is out
    assert_close(out, expected, size, dtype)
    if not accumulate:
        assert torch.equal(spmm(multiplied, X), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("parts", "columns"), list(zip(PARTS, [16, 150, 150, 16], strict=True)))
def test_bits_do_not_depend_on_threads(instruction_set, threads, dtype, parts, columns):
    # Rows longer than a task are cut into pieces; lengths sit around the cut.
    lengths = [3, 2048, 2049, 0, 5000, 1, 4096, 5, 2050, 0, *[7] * 700, 4500]
    A = random_block(len(lengths), 5000, lengths, 5, dtype=dtype, parts=parts)
    X = random_dense(5000, columns, 6, dtype)
    start = random_dense(len(lengths), columns, 7, dtype)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append((spmm(A, X), spmm(A, X, out=start.clone(), accumulate=True)))
    for Y, Y_added in results[1:]:
        assert torch.equal(Y, results[0][0])
        assert torch.equal(Y_added, results[0][1])
    slow, size = reference.spmm(A, X), magnitude(A, X)
    assert_close(results[0][0], slow, size, dtype)
    assert_close(results[0][1], slow + start.double(), size + start.double().abs(), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_bits_do_not_depend_on_how_X_is_read(
    instruction_set, use_near_bytes, dtype, parts, columns
):
    lengths = np.random.default_rng(1).integers(0, 40, 57)
    lengths[5] = 4500  # more than two tasks
    A = random_block(57, 5000, lengths, 2, dtype=dtype, parts=parts)
    X, Y = random_dense(5000, columns, 3, dtype, 1), random_dense(57, columns, 4, dtype)
    X[7], X[8, 0] = -0.0, torch.inf
    results = []
    for near_bytes in (0, 2**40):
        use_near_bytes(near_bytes)
        results.append(spmm(A, X, out=Y.clone(), accumulate=True).view(torch.uint8))
    assert torch.equal(*results)


def test_a_row_does_not_depend_on_the_others():
    lengths = np.random.default_rng(1).integers(0, 6000, 40)
    A = random_block(40, 7000, lengths, 2)
    X = random_dense(7000, 20, 3)
    whole = spmm(A, X)
    for row in range(40):
        begin, end = int(A.indptr[row]), int(A.indptr[row + 1])
        alone = CSR.of(torch.tensor([0, end - begin]), A.indices[begin:end], (1, 7000))
        assert torch.equal(spmm(alone, X)[0], whole[row])


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (3000, 4)])
def test_empty_blocks(shape):
    rows, cols = shape
    A = random_block(rows, cols, [0] * rows, 0)
    assert torch.equal(spmm(A, torch.ones(cols, 6)), torch.zeros(rows, 6))
    assert torch.equal(spmm(A.T, torch.ones(rows, 6)), torch.zeros(cols, 6))
    out = torch.ones(rows, 6)
    assert torch.equal(spmm(A, torch.ones(cols, 6), out=out, accumulate=True), torch.ones(rows, 6))


def test_other_strides_are_copied():
    A = random_block(20, 30, [4] * 20, 1)
    X = random_dense(30, 8, 2)
    assert torch.equal(spmm(A, X.T.contiguous().T), spmm(A, X))
    assert torch.equal(spmm(A, X[:1].expand(30, 8)), spmm(A, X[:1].repeat(30, 1)))


def test_out_writes_nothing_beside_its_columns(instruction_set):
    A = random_block(20, 30, [4] * 20, 1)
    for dtype in DTYPES:
        wide = torch.full((20, 40), 7.0, dtype=dtype)
        spmm(A, random_dense(30, 21, 2, dtype), out=wide[:, 5:26])
        assert bool((wide[:, :5] == 7).all())
        assert bool((wide[:, 26:] == 7).all())


def test_columns_of_one_wide_matrix_do_not_overlap():
    A = random_block(20, 20, [4] * 20, 1)
    wide = random_dense(20, 30, 2)
    expected = spmm(A, wide[:, :12])
    assert torch.equal(spmm(A, wide[:, :12], out=wide[:, 12:24]), expected)
    with pytest.raises(InputError, match="overlap"):
        spmm(A, wide[:, :12], out=wide[:, 11:23])


@pytest.mark.parametrize("parts", PARTS)
def test_gradient(parts):
    A = random_block(9, 12, [3, 0, 5, 1, 2, 4, 0, 7, 2], 4, dtype=torch.float64, parts=parts)
    X = random_dense(12, 5, 1, torch.float64).requires_grad_()
    G = random_dense(9, 5, 2, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: spmm(A, X), X)
    assert torch.autograd.gradcheck(lambda G: spmm(A.T, G), G)
    assert torch.autograd.gradgradcheck(lambda X: spmm(A, X).square(), X)


def test_bad_input_is_named():
    A = random_block(4, 5, [1] * 4, 0, parts=("values",))
    X = torch.ones(5, 3)
    learned = random_block(4, 5, [1] * 4, 0, parts=("row_scale",))
    learned.row_scale.requires_grad_()
    cases = [
        (lambda: spmm(learned, X), "cannot require a gradient"),
        (lambda: spmm(A, torch.ones(4, 3)), r"X must be \[5, f\]"),
        (lambda: spmm(A, torch.ones(5)), r"\[rows, f\]"),
        (lambda: spmm(A, X.half()), "float32, float64 or bfloat16"),
        (lambda: spmm(A, X.double()), "values of the block must be torch.float64"),
        (lambda: spmm(A, X, accumulate=True), "needs out"),
        (lambda: spmm(A, X, out=torch.ones(5, 3)), r"out must be torch.float32 \[4, 3\]"),
        (lambda: spmm(A, X, out=torch.ones(3, 4).T), "unit column stride"),
        (lambda: spmm(A, X.clone().requires_grad_(), out=torch.ones(4, 3)), "not differentiable"),
        (lambda: spmm(A, X, out=X[:4]), "overlap"),
        (lambda: spmm(A.T, X), r"X must be \[4, f\]"),
        (lambda: spmm(A, X.numpy()), "X must be a torch.Tensor, got ndarray"),
        (lambda: spmm(A, 3), "X must be a torch.Tensor, got int"),
        (lambda: spmm(A, X, out=3), "out must be a torch.Tensor, got int"),
        (lambda: spmm(A.pattern, X), "A must be a spgnn.CSR, got Pattern"),
        (lambda: spmm(A.to_scipy(), X), "A must be a spgnn.CSR, got csr_array"),
        (lambda: spmm(reference.dense(A), X), "A must be a spgnn.CSR, got Tensor"),
    ]
    for call, message in cases:
        with pytest.raises(InputError, match=message):
            call()


def test_sums_are_float32_for_bfloat16():
    # 1 + 2⁻¹⁰ many times: bfloat16 sums would stay at 1.
    A = random_block(1, 1024, [1024], 0)
    X = torch.full((1024, 3), 2.0**-10, dtype=torch.bfloat16)
    assert torch.equal(spmm(A, X), torch.ones(1, 3, dtype=torch.bfloat16))
    assert SUM_DTYPE[torch.bfloat16] == torch.float32
