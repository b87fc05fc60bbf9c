"""What only CUDA has, emulated: tiles, packs, the order of threads; and faults of the emulation."""

from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.addons.cuda import device, tiling
from spgnn.addons.cuda import kernels as native
from spgnn.addons.cuda import operations as host
from spgnn.errors import InputError
from spgnn.kernels import cpu, dequantise_rows, edge_spmm, quantise_rows, spmm
from spgnn.sparse import CSR
from tests.kernels.conftest import assert_product, work_by

from .conftest import SKEWED, block, matrix, multiply, some_scores
from .emulation import EMULATION, EmulatedDevice

pytestmark = [pytest.mark.usefixtures("emulated"), EMULATION]
WIDTHS = [1, 3, 16, 47, 128, 129, 300, 1024]


@pytest.mark.parametrize("columns", WIDTHS)
def test_spmm_of_any_width(emulated, columns):
    A = block(SKEWED, parts=("values",))
    X = matrix(800, columns)
    assert_product(multiply(native, A, X), A, X)
    assert len(emulated.launched) == 2, "rows that cross tiles need a second product"


@pytest.mark.parametrize(("padding", "offset"), [(4, 0), (2, 2), (1, 0), (0, 3)])
def test_strided_and_unaligned_operands(padding, offset):
    A = block(SKEWED, parts=("row_scale",))
    X = matrix(800, 64, padding=padding, offset=offset)
    out = matrix(len(SKEWED), 64, padding=3 * padding, offset=offset)
    out.fill_(torch.nan)  # written over, not read
    around = out.as_strided((len(SKEWED) - 1, 3 * padding), (64 + 3 * padding, 1), offset + 64)
    assert multiply(native, A, X, out) is out
    assert_product(out, A, X)
    assert bool(around.isnan().all()), "memory between the rows was written"


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


@pytest.mark.parametrize("sign", [1, 0])
def test_extremes_of_tiny_tiles_are_those_of_the_cpu(monkeypatch, emulated, sign):
    """Many levels of carried rows; all messages equal (the first stays), and −∞ in the others."""
    pattern = block([7, 800, 0, 3, 800, 16, 32]).pattern
    X, V = torch.full((800, 16), -torch.inf), sign * matrix(pattern.nnz, 16).sign()
    X[::9] = 2 * sign
    X[400, 3] = torch.nan
    for op, largest in product((0, 1), (True, False)):
        out, arg = torch.empty(7, 16), torch.empty(7, 16, dtype=torch.int32)
        results = []
        with monkeypatch.context() as patch:
            for module, patched in ((cpu, False), (native, True)):
                if patched:
                    patch.setattr(tiling, "TILE_ITEMS", (16,))
                module.edge_extremes(pattern.indptr, pattern.indices, X, V, op, largest, out, arg)
                results.append((out.nan_to_num(0.5), arg.clone()))
        assert all(map(torch.equal, *results))
    assert len(emulated.launched) > 12


class Names(TorchDispatchMode):
    """The names of all operators that run."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.add(str(function))
        return function(*args, **(kwargs or {}))


def test_extremes_are_differentiated_twice_without_atomics(monkeypatch):
    work_by(monkeypatch, native)
    A = CSR(block([3, 0, 5, 1], 7).pattern)
    X, V = (matrix(n, 4, torch.float64).requires_grad_() for n in (7, A.nnz))
    with Names() as names:
        for function in (
            lambda X, V: spmm(A, X * V[:7], reduce="max"),
            lambda X, V: edge_spmm(A.pattern, X.view(7, 2, 2), V[:, :2], "div", "min"),
        ):
            assert torch.autograd.gradcheck(function, (X, V))
            assert torch.autograd.gradgradcheck(function, (X, V))
    assert {"spgnn.extreme_adjoint.default", "spgnn.pick_extremes.default"} <= names.seen
    assert not [name for name in names.seen if "scatter" in name or "index_put" in name]


def test_messages_are_made_before_they_are_summed(monkeypatch):
    """One number of values for a column, a head or a row, as the CPU has it; and gradients."""
    pattern = block([3, 0, 5, 1], 7).pattern
    X, V = (matrix(n, 8).requires_grad_() for n in (7, pattern.nnz))
    results = []
    for module in (cpu, native):
        with monkeypatch.context() as patch:
            work_by(patch, module)
            for op, values in (("sub", V.view(-1, 2, 4)), ("add", V[:, :2]), ("div", V[:, 0])):
                out = edge_spmm(pattern, X.view(7, 2, 4), values, op)
                results.append([out, *torch.autograd.grad(out.sum(), (X, V))])
    for mine, theirs in zip(results[:3], results[3:], strict=True):
        for one, other in zip(mine, theirs, strict=True):
            torch.testing.assert_close(one, other)


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


def test_bits_over_nonzeros_do_not_depend_on_the_order_of_threads(emulated):
    A = block(SKEWED)
    indptr, indices = A.indptr, A.indices
    G, X = matrix(len(SKEWED), 17), matrix(800, 17, seed=2)
    scores, V = some_scores(A, 2, torch.float32), matrix(A.nnz, 17, seed=3)
    found = []
    for emulated.seed in (1, 2, 3):
        weights = torch.empty_like(scores)
        native.edge_softmax(indptr, scores, weights)
        numbers = torch.empty(A.nnz)
        native.sddmm(indptr, indices, None, None, G, X, numbers)
        assert len(emulated.launched) == 3, "a long row is shared by a whole block"
        sums = torch.empty_like(G)
        native.edge_sum(indptr, indices, None, X, None, V, 0, sums)
        assert len(emulated.launched) == 5, "rows that cross tiles need a second pass"
        emulated.launched.clear()
        found.append(torch.cat((numbers, weights.flatten(), sums.flatten())))
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


def test_rows_are_packed_in_one_launch_and_lists_that_are_known_are_not_looked_at(
    emulated, monkeypatch
):
    """However many rows there are; their bits are those of the CPU."""
    X, ids, listed = (
        matrix(3000, 24, torch.bfloat16),
        torch.arange(3000),
        torch.arange(3000).flip(0),
    )
    packed = {bits: quantise_rows(X, bits, ids, 1, rows=listed) for bits in (16, 4)}
    device.remember(listed, "extremes", [0, 2999])
    with monkeypatch.context() as patch:
        work_by(patch, native)
        patch.setattr(torch, "aminmax", None)
        for bits, expected in packed.items():
            emulated.launched.clear()
            assert torch.equal(quantise_rows(X, bits, ids, 1, rows=listed), expected)
            dequantise_rows(expected, bits, 24, torch.bfloat16, out=X.clone(), rows=listed)
            names = [name.partition("<")[0] for name in emulated.launched]
            assert names == ["spgnn::quantise_rows", "spgnn::dequantise_rows"]
        with pytest.raises(InputError, match=r"row 2999 outside \[0, 2998\)"):
            quantise_rows(X[:2998], 16, ids, 1, rows=listed)
