"""Host side of the CUDA kernels: picks template instances, allocates, starts them in order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.plan import PerTensor, Plan, make_plan, make_segments, tile_items
from spgnn.sparse import CSR

WARP = 32
PACK_BYTES = 16  # most that one load instruction moves
ACCUMULATORS = 16  # most running sums of a thread; more would spill registers
MOST_PACKS = 4
ROW_BYTES_LIMIT = 2**32  # the kernel's arithmetic on 32-bit indices
ROWS_IN_FLIGHT = 4  # kRowsInFlight of rows.cuh
SUM_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
}
_CPP = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bfloat16: "spgnn::Bfloat16",
    torch.int32: "int",
    torch.int64: "long long",
}

_kept = PerTensor()


@dataclass(frozen=True)
class ThreadShape:
    """Who computes a row: ``lanes`` threads with ``packs`` packs of ``vector`` columns each."""

    vector: int
    lanes: int
    packs: int

    @property
    def columns(self) -> int:
        """Columns that a group of threads covers."""
        return self.vector * self.lanes * self.packs


def thread_shape(columns: int, vector: int) -> ThreadShape:
    """The fewest lanes and packs that cover all columns in as few, equal sweeps as possible."""
    needed = -(-columns // vector)
    lanes = min(WARP, 1 << (needed - 1).bit_length())
    most_packs = min(MOST_PACKS, max(1, ACCUMULATORS // vector))
    sweeps = -(-needed // (lanes * most_packs))
    return ThreadShape(vector, lanes, -(-needed // (lanes * sweeps)))


def vector_width(*matrices: Tensor) -> int:
    """Most elements that all the matrices can be read and written by at once."""
    width = PACK_BYTES // max(m.element_size() for m in matrices)
    while width > 1 and not all(_divides(width, m) for m in matrices):
        width //= 2
    return width


def _divides(width: int, matrix: Tensor) -> bool:
    aligned = matrix.data_ptr() % (width * matrix.element_size()) == 0
    return aligned and matrix.shape[1] % width == 0 and matrix.stride(0) % width == 0


def spmm_instance(
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    weighted: bool,
    mapped: bool,
    sizes: tuple[ThreadShape, int],
) -> str:
    """The C++ name of the kernel for dtypes of X, Y and indices, a thread shape and tile items."""
    shape, items = sizes
    flags = (str(weighted).lower(), str(mapped).lower())
    numbers = (str(n) for n in (shape.vector, shape.lanes, shape.packs, items))
    return f"spgnn::spmm<{', '.join((*(_CPP[t] for t in dtypes), *flags, *numbers))}>"


@dataclass(frozen=True, eq=False)
class Operand:
    """A CSR block as the kernel takes it; its row r is row ``row_map[r]`` of the result."""

    indptr: Tensor
    indices: Tensor
    values: Tensor | None = None
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None
    row_map: Tensor | None = None


def spmm(A: CSR, X: Tensor, out: Tensor, accumulate: bool) -> None:
    """Y = A X or Y += A X, into ``out``."""
    if out.numel():
        operand = Operand(
            A.indptr.contiguous(),
            A.indices.contiguous(),
            *(None if a is None else a.contiguous() for a in (A.values, A.row_scale, A.col_scale)),
        )
        _multiply(operand, _plan(A.indptr), X, out, accumulate)


def _plan(indptr: Tensor) -> Plan:
    def make() -> Plan:
        items = len(indptr) - 1 + int(indptr[-1])
        return make_plan(indptr, tile_items(items, device.multiprocessors(indptr.device)))

    return _kept.get(indptr, "plan", make)


def _multiply(A: Operand, plan: Plan, X: Tensor, out: Tensor, accumulate: bool) -> None:
    columns = X.shape[1]
    if X.stride(0) * X.element_size() >= ROW_BYTES_LIMIT:
        X = X.contiguous()
    shape = thread_shape(columns, vector_width(X, out))
    carry, carried = None, plan.carried
    if carried is not None:
        padded = -(-columns // 4) * 4  # rows of whole packs
        carry = torch.empty(
            (len(carried.indices), padded), dtype=SUM_DTYPE[X.dtype], device=X.device
        )
    weighted = A.values is not None or A.col_scale is not None
    device.launch(
        spmm_instance(
            (X.dtype, out.dtype, A.indices.dtype),
            weighted,
            A.row_map is not None,
            (shape, plan.items),
        ),
        (len(plan.tiles) - 1, -(-columns // shape.columns)),
        (
            A.indptr,
            A.indices,
            A.values,
            A.col_scale,
            A.row_scale,
            A.row_map,
            plan.tiles,
            X,
            X.stride(0),
            out,
            out.stride(0),
            carry,
            0 if carry is None else carry.stride(0),
            columns,
            int(accumulate),
        ),
    )
    if carry is not None and carried is not None:
        rows = carried.rows if A.row_map is None else A.row_map[carried.rows]
        sums = Operand(carried.indptr, carried.indices, row_scale=A.row_scale, row_map=rows)
        _multiply(sums, carried.plan, carry[:, :columns], out, accumulate)


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]], into ``out``."""
    if not out.numel():
        return
    _check_range(rows, X.shape[0])
    vector, lanes = _row_shape(X, out)
    device.launch(
        f"spgnn::gather_rows<{_CPP[X.dtype]}, {_CPP[rows.dtype]}, {vector}, {lanes}>",
        (-(-len(rows) // (device.THREADS // lanes * ROWS_IN_FLIGHT)), 1),
        (
            X,
            X.stride(0),
            rows.contiguous(),
            None if scale is None else scale.contiguous(),
            out,
            out.stride(0),
            len(rows),
            X.shape[1],
        ),
    )


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i], as a product with the 0/1 matrix that adds the listed rows."""
    if not X.numel():
        return
    _check_range(rows, Y.shape[0])
    listed = _kept.get(rows, "segments", lambda: make_segments(rows))
    weights = None if scale is None else scale.contiguous()
    operand = Operand(listed.indptr, listed.order, col_scale=weights, row_map=listed.rows)
    _multiply(operand, _plan(listed.indptr), X, Y, accumulate=True)


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    """X / (1 - p) where kept, 0 elsewhere, into ``out``."""
    if not out.numel():
        return
    vector, lanes = _row_shape(X, out)
    device.launch(
        f"spgnn::dropout_rows<{_CPP[X.dtype]}, {vector}, {lanes}>",
        (-(-len(vertex_ids) // (device.THREADS // lanes)), 1),
        (
            X,
            X.stride(0),
            vertex_ids.long().contiguous(),
            out,
            out.stride(0),
            len(vertex_ids),
            X.shape[1],
            (key + 2**63) % 2**64 - 2**63,
            round(p * 2**32),
            1.0 / (1.0 - p),
        ),
    )


def _row_shape(X: Tensor, out: Tensor) -> tuple[int, int]:
    shape = thread_shape(X.shape[1], vector_width(X, out))
    return shape.vector, shape.lanes


def _check_range(rows: Tensor, limit: int) -> None:
    """Look at each list once: reading its extremes waits for the device."""
    if not len(rows):
        return
    low, high = _kept.get(rows, "extremes", lambda: [int(v) for v in torch.aminmax(rows)])
    if low < 0 or high >= limit:
        raise InputError(f"row {low if low < 0 else high} outside [0, {limit})")
