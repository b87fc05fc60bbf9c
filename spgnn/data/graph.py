"""The records: a whole graph, a block of its rows, and what makes labels and numbers right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.data.structure import rename_columns, select_rows, slice_rows, union, with_entries
from spgnn.errors import InputError
from spgnn.layout import inverse_permutation
from spgnn.pattern import described
from spgnn.sparse import CSR, EVERY_INTEGER, exact_in_float32, take_rows

Array = npt.NDArray[Any]
MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexData:
    """Features, labels and masks of vertices; any may be ``None``.

    Parameters
    ----------
    x : Tensor float32 [rows, f], or CSR with values of that shape
        In a `Graph` or `GraphBlock` other dtypes become float32 (`spgnn.data.graph`).
    y : Tensor int64 [rows], int8 [rows, labels] or float32 [rows, numbers]
        The class, −1 where it is not known; or 1 for each label that a vertex has and 0 for each
        that it has not, −1 where that is not known; or numbers, NaN where not known.
    train_mask, val_mask, test_mask : Tensor bool [rows] or [rows, splits]
    """

    x: Tensor | CSR | None = None
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None

    @property
    def features(self) -> int:
        """Number of features f, 0 if there are none."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def splits(self) -> int:
        """Number of columns of the training mask: 0 if there is none, 1 if it is a vector."""
        if self.train_mask is None:
            return 0
        return 1 if self.train_mask.dim() == 1 else int(self.train_mask.shape[1])

    def select_split(self, split: int = 0) -> Self:
        """The same record with one column, which must be there, of each mask with several."""
        if self.train_mask is not None and not 0 <= split < self.splits:
            columns = f"{self.splits} column(s), from 0" if self.splits else "no columns"
            raise InputError(f"split {split} does not exist: the masks have {columns}")
        masks = {name: getattr(self, name) for name in MASKS}
        tables = {name: m[:, split] for name, m in masks.items() if m is not None and m.dim() == 2}
        return replace(self, **tables)

    def take(self, rows: Tensor | slice) -> dict[str, Any]:
        """The five arrays at some rows, by name (views, if ``rows`` is a slice)."""
        arrays = {name: getattr(self, name) for name in ("x", "y", *MASKS)}
        return {k: None if v is None else select_rows(v, rows) for k, v in arrays.items()}

    def check_vertices(self, rows: int, owner: str) -> None:
        x, y = self.x, self.y
        if x is not None:
            what = f"{owner}: x"
            x = narrow(x, what) if isinstance(x, CSR) else narrow_features(x, what)
            object.__setattr__(self, "x", x)
            if x.shape[0] != rows or len(x.shape) != 2:
                raise InputError(f"{owner}: x must be [{rows}, features], got {list(x.shape)}")
            if isinstance(x, CSR) and x.values is None:
                raise InputError(f"{owner}: sparse features need values")
        kinds = {(dtype, dim) for dtype, _, dim in _LABELS.values()}
        if y is not None and ((y.dtype, y.dim()) not in kinds or len(y) != rows):
            raise InputError(
                f"{owner}: y must be int64 [{rows}], int8 [{rows}, labels] or float32 "
                f"[{rows}, numbers], got {described(y)}"
            )
        for name in MASKS:
            mask = getattr(self, name)
            if mask is None:
                continue
            if mask.dtype != torch.bool or mask.dim() not in (1, 2) or mask.shape[0] != rows:
                raise InputError(
                    f"{owner}: {name} must be bool [{rows}] or [{rows}, splits], "
                    f"got {described(mask)}"
                )
            if self.train_mask is not None and mask.shape != self.train_mask.shape:
                raise InputError(
                    f"{owner}: {name} is {list(mask.shape)}, "
                    f"but train_mask {list(self.train_mask.shape)}"
                )


@dataclass(frozen=True, eq=False)
class Graph(VertexData):
    """A whole graph.

    A record shares the arrays it is given, where they have the right dtype: they may be mapped
    files. `spgnn.data.from_scipy` and its siblings copy.

    Parameters
    ----------
    name : str
    adjacency : CSR [n, n]
        Unscaled and canonical (columns of a row sorted, none twice). Row = destination: row i
        lists the vertices whose features vertex i receives. Values only if edges have weights.
    directed : bool
        Whether the pattern may differ from its transpose.
    vertex_ids : Tensor int64 [n], optional
        Where each vertex stood in the source, if it has been moved.
    edge_attr : Tensor float32 [nnz, k], optional
        Features of edges, in the order of the adjacency's entries.
    """

    name: str
    adjacency: CSR
    directed: bool
    vertex_ids: Tensor | None = None
    edge_attr: Tensor | None = None

    def __post_init__(self) -> None:
        rows, cols = self.adjacency.shape
        if rows != cols:
            raise InputError(
                f"{self.name}: the matrix is {rows} × {cols}; a graph needs as many rows as columns"
            )
        _check(self, self.name)

    @property
    def vertices(self) -> int:
        return self.adjacency.shape[0]

    @property
    def edges(self) -> int:
        """Stored entries of the adjacency: an undirected edge counts twice."""
        return self.adjacency.nnz

    @property
    def classes(self) -> int:
        """Largest class + 1, or columns of labels; 0 without labels."""
        return label_columns(self.y)

    @property
    def weighted(self) -> bool:
        return self.adjacency.values is not None

    def relabel(self, order: Tensor) -> Graph:
        """The same graph in another order: new vertex i is old vertex ``order[i]``."""
        position = torch.from_numpy(inverse_permutation(order.numpy()))

        def moved(A: CSR) -> CSR:
            return rename_columns(take_rows(A, order), position)

        return replace(
            self,
            adjacency=moved(self.adjacency),
            vertex_ids=vertex_ids_of(self)[order],
            edge_attr=moved_edges(self.adjacency, self.edge_attr, moved),
            **self.take(order),
        )

    def block(self, first: int, last: int) -> GraphBlock:
        """Rows [first, last); arrays are views, columns stay global."""
        rows = slice(first, last)
        ids, attr = vertex_ids_of(self)[rows], self.edge_attr
        if attr is not None:
            attr = attr[slice(*self.adjacency.indptr[[first, last]].tolist())]
        A = slice_rows(self.adjacency, rows)
        return GraphBlock(A, first, ids, attr, **self.take(rows))

    def symmetrised(self) -> Graph:
        """The undirected graph with an edge wherever this one has one, in either direction.

        Weights of (i, j) and (j, i) are the larger of the two, so that an already symmetric
        graph stays as it is.
        """
        if self.edge_attr is not None:
            raise InputError(
                f"{self.name}: symmetrise: edges have features, and those of reverse edges are not "
                "known; add both directions before"
            )
        A = with_entries(self.adjacency)
        joined = union(A, A.T.tocsr(), weighted=self.weighted)
        return replace(self, adjacency=joined, directed=False)


@dataclass(frozen=True, eq=False)
class GraphBlock(VertexData):
    """Rows [first_row, first_row + rows) of a graph, with global columns; shares its arrays too.

    `vertex_ids`, int64 [rows], say where each vertex stood in the source; `edge_attr`, float32
    [nnz, k], are features of the entries, if there are any.
    """

    adjacency: CSR
    first_row: int
    vertex_ids: Tensor
    edge_attr: Tensor | None = None

    def __post_init__(self) -> None:
        rows, cols = self.adjacency.shape
        if not 0 <= self.first_row <= cols - rows:
            raise InputError(
                f"rows [{self.first_row}, {self.first_row + rows}) outside [0, {cols})"
            )
        _check(self, f"rows from {self.first_row}")

    @property
    def rows(self) -> int:
        return self.adjacency.shape[0]


def _check(record: Graph | GraphBlock, owner: str) -> None:
    """Numbers of 32 bits; arrays that fit the adjacency, which is square or some rows."""
    rows, nnz = record.adjacency.shape[0], record.adjacency.nnz
    object.__setattr__(record, "adjacency", narrow(record.adjacency, owner))
    record.check_vertices(rows, owner)
    attr, ids = record.edge_attr, record.vertex_ids
    if attr is not None:
        if not attr.is_floating_point() or attr.dim() not in (1, 2) or len(attr) != nnz:
            raise InputError(
                f"{owner}: edge_attr must be floating numbers [{nnz}, k], one row for each entry "
                f"of the adjacency, got {described(attr)}"
            )
        table = attr[:, None] if attr.dim() == 1 else attr
        object.__setattr__(record, "edge_attr", narrow_features(table, f"{owner}: edge_attr"))
    if ids is not None and (ids.shape != (rows,) or ids.dtype != torch.int64):
        raise InputError(f"{owner}: vertex_ids must be int64 [{rows}], got {described(ids)}")


def moved_edges(A: CSR, attr: Tensor | None, move: Callable[[CSR], CSR]) -> Tensor | None:
    """Features of the entries [nnz, k] of A, in the order in which `move` leaves those of A."""
    if attr is None:
        return None
    numbers = move(A.with_values(torch.arange(A.nnz, dtype=torch.float64))).values
    assert numbers is not None
    return attr[numbers.long()]


def vertex_ids_of(record: Graph | GraphBlock) -> Tensor:
    """The place of each vertex of a record in the source, int64 [rows]."""
    if record.vertex_ids is None:
        return torch.arange(record.adjacency.shape[0])
    return record.vertex_ids


UNKNOWN = -1
LabelKind = Literal["classes", "several", "numbers"]
# Labels of each kind: dtype of torch and of a file, and dimensions.
_LABELS: dict[LabelKind, tuple[torch.dtype, str, int]] = {
    "classes": (torch.int64, "<i8", 1),
    "several": (torch.int8, "|i1", 2),
    "numbers": (torch.float32, "<f4", 2),
}


def label_kind(y: Tensor) -> LabelKind:
    """Classes, several labels a vertex, or numbers; their dtype says it."""
    if y.is_floating_point():
        return "numbers"
    return next(kind for kind, (dtype, *_) in _LABELS.items() if dtype == y.dtype)


def known_labels(y: Tensor) -> Tensor:
    """True where a label is known, bool of the shape of y."""
    if y.is_floating_point():
        return ~y.isnan()
    return y > UNKNOWN if y.dtype.is_signed else torch.ones_like(y, dtype=torch.bool)


def labelled(y: Tensor) -> Tensor:
    """Mask of the vertices with at least one known label, bool [rows]."""
    present = known_labels(y)
    return present if present.dim() == 1 else present.flatten(1).any(dim=1)


def outside_classes(y: Tensor, outputs: Tensor, ids: Tensor | None = None) -> str:
    """``y of vertex 7 is 9, no class in [0, 3): `` where outputs have no such column, or empty."""
    columns = outputs.shape[1] if outputs.dim() > 1 else 0
    if y.is_floating_point() or y[:1].numel() != 1 or columns < 2:
        return ""
    rows = (y.reshape(-1) >= columns).nonzero()
    if not len(rows):
        return ""
    where = f"row {int(rows[0])}" if ids is None else f"vertex {int(ids[rows[0]])}"
    return f"y of {where} is {int(y.reshape(-1)[rows[0]])}, no class in [0, {columns}): "


def label_columns(y: Tensor | None) -> int:
    """Classes that single labels speak of, or columns of labels; 0 if there are none."""
    if y is None or (y.dim() == 1 and not len(y)):
        return 0
    return max(int(y.max()) + 1, 0) if y.dim() == 1 else int(y.shape[1])


def classes_of(y: Tensor) -> int:
    """Largest class + 1, of one class a vertex; 0 if these are several labels, or numbers.

    Of any dtype: whole floating numbers count as classes, NaN where there is none.
    """
    if y.dim() > 2 or y[:1].numel() > 1:
        return 0
    finite = y[y.isfinite()]
    whole = not y.is_floating_point() or bool((finite == finite.round()).all())
    return max(int(finite.max()) + 1, 0) if len(finite) and whole else 0


def labels_in_files(dtype: str, dimensions: int, columns: int) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape of a row of labels like those in a file; of classes, if of no kind."""
    for _, stored, dim in _LABELS.values():
        if (stored, dim) == (dtype, dimensions):
            return stored, (columns,) * (dim - 1)
    return _LABELS["classes"][1], ()


def single_labels(values: Array) -> npt.NDArray[np.int64]:
    """Labels [n] or [n, 1], NaN where there is none, as int64 [n] with −1."""
    flat = values.reshape(-1)
    return np.where(np.isnan(flat), -1, flat).astype(np.int64) if flat.dtype.kind == "f" else flat


def labels_of_table(table: Array) -> Array:
    """Several labels a vertex as int8 [n, labels], or numbers as float32 [n, numbers]."""
    if table.dtype.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            labels = table.astype(np.float32)
        good, rule = ~np.isinf(labels), "a finite number, or NaN where not known"
        labels = labels[:, None] if labels.ndim == 1 else labels
    else:
        good = (table == 0) | (table == 1) | (table == UNKNOWN)
        labels, rule = table.astype(np.int8), "0 or 1, or -1 where not known"
    if not good.all():
        place = np.unravel_index(int(np.argmin(good)), good.shape)
        where = ", ".join(str(int(i)) for i in place)
        raise InputError(f"y[{where}] is {table[place]}; it must be {rule}")
    return labels


# SciPy's weights are float64, and its column numbers often int64. Every record passes its matrices
# through `narrow`; readers check weights with `fits_float32` first, because they know the line.
WEIGHT = "a weight that float32 can hold, 0 or 1.4e-45 to 3.4e38 in size"


def fits_float32(values: Array) -> npt.NDArray[np.bool_]:
    """True where finite values stay finite and do not become 0 in float32, bool [values]."""
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32)
    fits: npt.NDArray[np.bool_] = np.isfinite(single) & ((single != 0) | (values == 0))
    return fits


def narrow(block: CSR, owner: str, first_row: int = 0) -> CSR:
    """The same block with float32 values; errors count rows from `first_row`."""
    values = block.values
    if values is None or values.dtype == torch.float32:
        return block
    wide = values.double().numpy()
    fits = fits_float32(wide) | ~np.isfinite(wide)
    if not fits.all():
        at = int(np.argmin(fits))
        row = first_row + int(np.searchsorted(block.indptr.numpy(), at, side="right")) - 1
        place = f"({row}, {int(block.indices[at])})"
        raise InputError(f"{owner}: entry {place} is {wide[at]:g}; it must be {WEIGHT}")
    return block.with_values(values.to(torch.float32))


def narrow_features(x: Tensor, name: str) -> Tensor:
    """Dense features as float32; what is too small for it becomes 0."""
    if x.dtype == torch.float32:
        return x
    if x.is_complex():
        raise InputError(f"{name} must be real numbers, got {x.dtype}")
    single = x.to(torch.float32)
    if x.is_floating_point() and bool((single.isinf() & ~x.isinf()).any()):
        raise InputError(f"{name} holds a number too large for float32, at most 3.4e38")
    if not x.is_floating_point():
        exact = exact_in_float32(x.numpy())
        if not exact.all():
            raise InputError(f"{name} holds {int(x.numpy()[~exact][0])}; {EVERY_INTEGER}")
    return single
