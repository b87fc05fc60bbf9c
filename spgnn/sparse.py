"""Sparse matrices of one rank: a pattern, values and scalings; their blocks of rows and columns."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.pattern import Pattern, Selection, described, index_dtype
from spgnn.torch_internals import transforms_active

if TYPE_CHECKING:
    import scipy.sparse as sp

# The dtype in which products with operands of a dtype are summed: that of values and scalings.
SUM_DTYPE = {
    torch.float32: torch.float32,
    torch.float64: torch.float64,
    torch.bfloat16: torch.float32,
}
EXACT = "a whole number that float32 holds exactly, as it does all up to 2^24 = 16777216"
EVERY_INTEGER = "float32 holds every integer up to 2^24 = 16777216 in size"


@dataclass(frozen=True, eq=False)
class CSR:
    """A sparse matrix ``diag(row_scale) · B · diag(col_scale)`` with B a pattern and its values.

    The normalised adjacency of an unweighted graph is two scalings of a 0/1 matrix, so it stores
    no values at all. Any of ``values``, ``row_scale``, ``col_scale`` may be ``None`` (all ones).

    Tensors are shared with the caller, not copied: values may require a gradient, and all of them
    may be mapped files. What torch then writes to the values is seen here; for a matrix of
    its own, give copies, or use `from_scipy`.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    values : Tensor, floating [nnz] or [nnz, heads], optional
    row_scale, col_scale : Tensor, floating [rows] and [cols], optional

    Raises
    ------
    InputError
        If an array does not fit the pattern.
    """

    pattern: Pattern
    values: Tensor | None = None
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None

    def __post_init__(self) -> None:
        rows, cols = self.pattern.shape
        for name, length in (("values", self.nnz), ("row_scale", rows), ("col_scale", cols)):
            array: Tensor | None = getattr(self, name)
            if array is None:
                continue
            dims = (1, 2) if name == "values" else (1,)
            if (
                array.shape[:1] != (length,)
                or array.dim() not in dims
                or not array.is_floating_point()
            ):
                heads = f" or [{length}, heads]" if name == "values" else ""
                raise InputError(
                    f"{name} must be floating [{length}]{heads}, got {described(array)}"
                )
            if array.device != self.device:
                raise InputError(f"{name} is on {array.device}, indices on {self.device}")
            if not torch.compiler.is_compiling() and array.is_neg():  # put off by torch
                object.__setattr__(self, name, array.resolve_neg())

    @classmethod
    def of(
        cls, indptr: Tensor, indices: Tensor, shape: tuple[int, int], values: Tensor | None = None
    ) -> CSR:
        """A block from the arrays of CSR form, which it shares; `with_scales` adds scalings."""
        return cls(Pattern(indptr, indices, shape), values)

    @classmethod
    def from_scipy(cls, A: Any) -> CSR:
        """Copy any SciPy sparse matrix or array; duplicates are summed, indices sorted.

        Values become float32 or float64 (integers and other types float32). A boolean matrix
        becomes a block without values, in which entries that are False do not occur; nor do zeros
        in the blocks of a BSR matrix, which fill them up. Other zeros that are stored stay.

        Raises
        ------
        InputError
            If values are complex, or float32 rounds an integer or a sum of integers.
        """
        import scipy.sparse as sp  # a quarter of a second, which products do not need

        original, A = A, sp.csr_array(A)
        form = getattr(original, "format", "dense")
        shared = form == A.format  # every other format is converted into new arrays
        kind = A.dtype.kind
        if kind not in "biuf":
            raise InputError(f"values must be real numbers, got {A.dtype}")
        if kind in "iu":
            _check_exact(A.data)
            A = sp.csr_array((A.data.astype(np.float64), A.indices, A.indptr), shape=A.shape)
        zeros = (kind == "b" or form == "bsr") and not A.data.all()
        if zeros or not A.has_canonical_format:
            A, shared = A.copy(), False
            if zeros:
                A.eliminate_zeros()
            A.sum_duplicates()
        values = None
        if kind != "b":
            if kind in "iu":
                _check_exact(A.data)
            dtype = A.dtype if A.dtype in (np.float32, np.float64) and kind == "f" else np.float32
            # A copy: a change that NumPy makes would go unseen by what is derived from the values.
            values = torch.from_numpy(np.array(A.data, dtype=dtype))
        indptr = torch.from_numpy(A.indptr.astype(np.int64))
        indices = torch.from_numpy(A.indices.copy() if shared else A.indices)
        return cls.of(indptr, indices, (int(A.shape[0]), int(A.shape[1])), values)

    def to_scipy(self) -> sp.csr_array:
        """A copy of the whole matrix, scalings multiplied in, as a SciPy array (float32 if 0/1)."""
        import scipy.sparse as sp

        if self.values is None:
            scales = [s for s in (self.row_scale, self.col_scale) if s is not None]
            values = torch.ones(self.nnz, dtype=scales[0].dtype if scales else torch.float32)
        elif self.values.dim() == 1:
            values = self.values.detach().clone()
        else:
            raise InputError(
                f"values of several heads, {described(self.values)}, make no one matrix"
            )
        if self.row_scale is not None:
            values *= self.row_scale.repeat_interleave(self.row_lengths)
        if self.col_scale is not None:
            values *= self.col_scale[self.indices.long()]
        if values.dtype == torch.bfloat16:
            values = values.float()
        places = (a.cpu().numpy().copy() for a in (self.indices, self.indptr))
        return sp.csr_array((values.cpu().numpy(), *places), shape=self.shape)

    @property
    def indptr(self) -> Tensor:
        """int64 [rows + 1]."""
        return self.pattern.indptr

    @property
    def indices(self) -> Tensor:
        """int32 (or int64) [nnz]."""
        return self.pattern.indices

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, cols)."""
        return self.pattern.shape

    @property
    def nnz(self) -> int:
        """Number of stored entries."""
        return self.pattern.nnz

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self.pattern.device

    @property
    def row_lengths(self) -> Tensor:
        """Nonzeros of each row, int64 [rows]."""
        return self.pattern.row_lengths

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern, values and scalings (of a transpose that was made, nothing)."""
        return self.pattern.nbytes + sum(a.nbytes for a in self._numbers() if a is not None)

    @property
    def transpose_nbytes(self) -> int:
        """Bytes that the transpose adds."""
        if self.values is None:
            return self.pattern.transpose_nbytes
        order = self.nnz * index_dtype(self.nnz).itemsize
        return self.pattern.transpose_nbytes + order + self.values.nbytes

    @property
    def T(self) -> CSR:
        """The transpose. It is kept, and recomputed if values were changed since.

        Values that require a gradient are never kept, nor those made inside a transform of
        ``torch.func``: the transpose's are computed from them, differentiably. What changes values
        behind torch's back (a NumPy array that shares their memory) goes unseen.
        """
        version = _version(self.values)
        reference, *versions = self.__dict__.get("_transpose", (lambda: None,))
        other: CSR | None = reference()
        if other is not None and versions == [version, _version(other.values)]:
            return other
        pattern, values = self.pattern.T, self.values
        if values is not None:
            moved = values.index_select(0, self.pattern.order)
            # Symmetric in its values as well: one array is enough.
            same = pattern is self.pattern and not moved.requires_grad
            values = values if same and torch.equal(moved, values) else moved
        transpose = CSR(pattern, values, self.col_scale, self.row_scale)
        if version is not None and not transforms_active():  # which wraps what is made inside it
            # Weak on the other side, so that both go when the last user of this one does.
            theirs = _version(values)
            self.__dict__["_transpose"] = (lambda: transpose), version, theirs
            transpose.__dict__["_transpose"] = weakref.ref(self), theirs, version
        return transpose

    def with_values(self, values: Tensor | None) -> CSR:
        """The same pattern and scalings with other values."""
        return replace(self, values=values)

    def with_scales(self, row_scale: Tensor | None, col_scale: Tensor | None) -> CSR:
        """The same pattern and values between other scalings."""
        return replace(self, row_scale=row_scale, col_scale=col_scale)

    def with_own_numbers(self) -> CSR:
        """The same pattern with copies of values and scalings, which nobody else writes to."""
        return CSR(self.pattern, *(None if a is None else a.clone() for a in self._numbers()))

    def to(self, target: torch.dtype | torch.device | str) -> CSR:
        """Move to a device, or get ready for products with operands of a dtype.

        Values and scalings have the dtype in which such products are summed (`SUM_DTYPE`), so a
        block for bfloat16 holds float32. The pattern is shared, or moved with both its sides.

        Raises
        ------
        InputError
            If products with operands of that dtype do not exist.
        """
        if isinstance(target, torch.dtype):
            if target not in SUM_DTYPE:
                raise InputError(
                    f"no products with {target}; choose {', '.join(map(str, SUM_DTYPE))}"
                )
            target, pattern = SUM_DTYPE[target], self.pattern
        else:
            pattern = self.pattern.to(target)
        moved = [None if array is None else array.to(target) for array in self._numbers()]
        if pattern is self.pattern and all(
            a is b for a, b in zip(moved, self._numbers(), strict=True)
        ):
            return self
        return CSR(pattern, *moved)

    def _numbers(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.values, self.row_scale, self.col_scale

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: self.__dict__[field.name] for field in fields(self)}

    def __repr__(self) -> str:
        parts = ("values", "row_scale", "col_scale")
        names = [name for name in parts if getattr(self, name) is not None]
        return f"CSR({self.shape[0]}×{self.shape[1]}, nnz={self.nnz}, {'+'.join(names) or '0/1'})"


def as_csr(A: Any) -> CSR:
    """A matrix of this library, of SciPy or of torch as a CSR; InputError if it is none of them."""
    if isinstance(A, CSR):
        return A
    if isinstance(A, Tensor) and A.layout != torch.strided and A.dim() == 2:
        if A.requires_grad:
            raise InputError(
                "a sparse tensor that requires a gradient: give CSR.of(indptr, indices, shape, "
                "values) with values that do"
            )
        if A.layout != torch.sparse_csr:
            A = A.to_sparse_coo().coalesce()
            rows, columns = A.indices()
            lengths = torch.bincount(rows, minlength=A.shape[0])
            indptr = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        else:
            indptr, columns = A.crow_indices().long(), A.col_indices()
        return CSR.of(indptr, columns, (A.shape[0], A.shape[1]), A.values())
    if hasattr(A, "tocsr"):
        return CSR.from_scipy(A)
    raise InputError(f"a matrix must be a CSR, or sparse and of SciPy or torch, got {described(A)}")


def exact_in_float32(numbers: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """True for finite numbers that float32 holds without rounding, bool of their shape."""
    kind = numbers.dtype
    if kind.kind in "biu" and kind.itemsize <= 2:
        return np.ones(numbers.shape, np.bool_)
    with np.errstate(over="ignore", under="ignore"):
        single = numbers.astype(np.float32)
    if kind.kind == "f":
        return np.asarray(single == numbers)
    # The largest integers become powers of two, which are none of the dtype.
    inside = single.astype(np.float64) < float(np.iinfo(kind).max)
    return np.asarray(inside & (np.where(inside, single, 0).astype(kind) == numbers))


def _check_exact(numbers: npt.NDArray[Any]) -> None:
    exact = exact_in_float32(numbers)
    if not exact.all():
        number = int(numbers[np.argmin(exact)])
        raise InputError(f"values hold {number}; {EVERY_INTEGER}")


def _version(values: Tensor | None) -> int | None:
    """Number of writes of torch to some values; ``None`` if that cannot be relied on."""
    if values is None:
        return 0
    return None if values.requires_grad or values.is_inference() else values._version


def check_degrees(degree: npt.NDArray[np.float64], ids: Tensor | int = 0) -> None:
    """Refuse negative degrees [rows]; the error names the first vertex by its original id."""
    negative = np.flatnonzero(degree < 0)
    if negative.size:
        row = int(negative[0])
        vertex = ids + row if isinstance(ids, int) else int(ids[row])
        raise InputError(
            f"vertex {vertex} has degree {degree[row]:g}, the sum of the weights of its in-edges: "
            "normalisation needs 0 or more; give weights that are not negative, or normalise "
            "nothing (data.normalisation none, GCNConv(normalize=False))"
        )


def take_rows(A: CSR, rows: Tensor) -> CSR:
    """Any rows of a block, in the order asked for."""
    cols, scale = A.shape[1], None if A.row_scale is None else A.row_scale[rows]
    if isinstance(A.pattern, Selection):
        values = None if A.values is None else A.values[rows]
        return CSR(Selection(A.indices[rows], cols), values, scale, A.col_scale)
    indptr = torch.zeros(len(rows) + 1, dtype=torch.int64, device=A.device)
    torch.cumsum(A.row_lengths[rows], 0, out=indptr[1:])
    source = entries_of(A, rows)
    values = None if A.values is None else A.values[source]
    pattern = Pattern.trusted(indptr, A.indices[source], (len(rows), cols))
    return CSR(pattern, values, scale, A.col_scale)


def entries_of(A: CSR, rows: Tensor) -> Tensor:
    """The numbers of the entries of some rows, row after row, int64."""
    lengths = A.row_lengths[rows]
    # Entry k of new row r is entry k + (old start − new start) of the old arrays.
    shift = (A.indptr[rows] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
    return shift + torch.arange(len(shift), device=A.device)


def keep_columns(A: CSR, columns: Tensor) -> CSR:
    """The same entries where only some rising columns [m] are left, in which all entries lie."""
    number = torch.empty(A.shape[1], dtype=index_dtype(len(columns)), device=A.device)
    number[columns] = torch.arange(len(columns), dtype=number.dtype, device=A.device)
    indices, shape = number[A.indices], (A.shape[0], len(columns))
    if isinstance(A.pattern, Selection):
        pattern: Pattern = Selection(indices, len(columns))
    else:
        pattern = Pattern.trusted(A.indptr, indices, shape)
    scale = None if A.col_scale is None else A.col_scale[columns]
    return CSR(pattern, A.values, A.row_scale, scale)


def side_by_side(left: CSR, right: CSR | None) -> CSR:
    """``[left right]`` without their scalings; both have values, or both have none."""
    if right is None:
        return CSR(left.pattern, left.values)
    shape = left.shape[0], left.shape[1] + right.shape[1]
    # Entries move right by what their row has of the other block before them.
    count = partial(torch.arange, device=left.device)
    places = (
        count(left.nnz) + right.indptr[:-1].repeat_interleave(left.row_lengths),
        count(right.nnz) + left.indptr[1:].repeat_interleave(right.row_lengths),
    )
    indices = left.indices.new_empty(left.nnz + right.nnz)
    indices[places[0]] = left.indices
    indices[places[1]] = right.indices + left.shape[1]
    pattern = Pattern.trusted(left.indptr + right.indptr, indices, shape)
    if left.values is None or right.values is None:
        return CSR(pattern)
    values = left.values.new_empty(len(indices))
    values[places[0]] = left.values
    values[places[1]] = right.values
    return CSR(pattern, values)
