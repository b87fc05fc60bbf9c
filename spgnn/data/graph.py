"""The records: a whole graph, and a block of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.data.labels import check_labels, label_columns
from spgnn.data.narrow import narrow, narrow_features
from spgnn.data.structure import rename_columns, slice_rows, union_with_transpose
from spgnn.errors import InputError
from spgnn.sparse import CSR

MASKS = ("train_mask", "val_mask", "test_mask")


@dataclass(frozen=True, eq=False, kw_only=True)
class VertexData:
    """What is known of each vertex; any of it may be ``None``.

    Parameters
    ----------
    x : Tensor float32 [rows, f], or CSR with values of that shape
        In a `Graph` or `GraphBlock` other dtypes become float32 (`spgnn.data.narrow`).
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
        """The same record with one column of each mask with several, as vectors.

        Raises
        ------
        InputError
            If a mask has no such column.
        """
        if self.train_mask is not None and not 0 <= split < self.splits:
            if not self.splits:
                raise InputError(f"split {split} does not exist: the masks have no columns")
            raise InputError(
                f"split {split} does not exist: the masks have {self.splits} column(s), "
                f"so it must be in [0, {self.splits})"
            )
        masks = {name: getattr(self, name) for name in MASKS}
        return replace(
            self,
            **{name: m[:, split] for name, m in masks.items() if m is not None and m.dim() == 2},
        )

    def take(self, rows: Tensor | slice) -> dict[str, Any]:
        """The five arrays at some rows, by name (views, if ``rows`` is a slice)."""
        taken: dict[str, Any] = {}
        for name in ("x", "y", *MASKS):
            array = getattr(self, name)
            if array is None:
                taken[name] = None
            elif isinstance(array, CSR):
                taken[name] = (
                    slice_rows(array, rows) if isinstance(rows, slice) else take_rows(array, rows)
                )
            else:
                taken[name] = array[rows]
        return taken

    def _check_vertices(self, rows: int, owner: str) -> None:
        if isinstance(self.x, CSR):
            object.__setattr__(self, "x", narrow(self.x, f"{owner}: x"))
        elif self.x is not None:
            object.__setattr__(self, "x", narrow_features(self.x, f"{owner}: x"))
        if self.x is not None and (self.x.shape[0] != rows or len(self.x.shape) != 2):
            raise InputError(f"{owner}: x must be [{rows}, features], got {list(self.x.shape)}")
        if isinstance(self.x, CSR) and self.x.values is None:
            raise InputError(f"{owner}: sparse features need values")
        if self.y is not None:
            check_labels(self.y, rows, owner)
        for name in MASKS:
            mask = getattr(self, name)
            if mask is None:
                continue
            if mask.dtype != torch.bool or mask.dim() not in (1, 2) or mask.shape[0] != rows:
                raise InputError(
                    f"{owner}: {name} must be bool [{rows}] or [{rows}, splits], "
                    f"got {mask.dtype} {list(mask.shape)}"
                )
            if self.train_mask is not None and mask.shape != self.train_mask.shape:
                raise InputError(
                    f"{owner}: {name} is {list(mask.shape)}, "
                    f"but train_mask {list(self.train_mask.shape)}"
                )


@dataclass(frozen=True, eq=False)
class Graph(VertexData):
    """A whole graph.

    A record shares the arrays it is made of, where they have the right dtype: they may be mapped
    files. `spgnn.data.from_scipy` and its siblings copy.

    Parameters
    ----------
    name : str
    adjacency : CSR [n, n]
        Unscaled and canonical (columns of a row sorted, none twice). Row = destination: row i
        lists the vertices whose features vertex i receives. Values only if edges have weights.
        Wider numbers than float32 and int32 become these (`spgnn.data.narrow`).
    directed : bool
        Whether the pattern may differ from its transpose.
    vertex_ids : Tensor int64 [n], optional
        Where each vertex stood in the source, if it has been moved.

    Raises
    ------
    InputError
        If the arrays contradict each other, or a weight does not fit float32.
    """

    name: str
    adjacency: CSR
    directed: bool
    vertex_ids: Tensor | None = None

    def __post_init__(self) -> None:
        rows, cols = self.adjacency.shape
        if rows != cols:
            raise InputError(
                f"{self.name}: the matrix is {rows} × {cols}; a graph needs as many rows as columns"
            )
        object.__setattr__(self, "adjacency", narrow(self.adjacency, self.name))
        self._check_vertices(rows, self.name)
        if self.vertex_ids is not None:
            _check_ids(self.vertex_ids, rows, self.name)

    @property
    def vertices(self) -> int:
        """Number of vertices n."""
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
        """Whether edges have weights."""
        return self.adjacency.values is not None

    def relabel(self, order: Tensor) -> Graph:
        """The same graph in another order: new vertex i is old vertex ``order[i]``.

        Parameters
        ----------
        order : Tensor int64 [n]
            A permutation, as from ``RowLayout`` labels: ``labels.argsort(stable=True)``.
        """
        position = inverse_permutation(order)
        return replace(
            self,
            adjacency=rename_columns(take_rows(self.adjacency, order), position),
            vertex_ids=order.clone() if self.vertex_ids is None else self.vertex_ids[order],
            **self.take(order),
        )

    def block(self, first: int, last: int) -> GraphBlock:
        """Rows [first, last); arrays are views, columns stay global."""
        rows = slice(first, last)
        ids = torch.arange(first, last) if self.vertex_ids is None else self.vertex_ids[rows]
        return GraphBlock(slice_rows(self.adjacency, rows), first, ids, **self.take(rows))

    def symmetrised(self) -> Graph:
        """The undirected graph with an edge wherever this one has one, in either direction.

        Weights of (i, j) and (j, i) are the larger of the two, so that an already symmetric
        graph stays as it is.
        """
        return replace(self, adjacency=union_with_transpose(self.adjacency), directed=False)


@dataclass(frozen=True, eq=False)
class GraphBlock(VertexData):
    """Rows [first_row, first_row + rows) of a graph; shares its arrays as a `Graph` does.

    Parameters
    ----------
    adjacency : CSR [rows, n]
        With global columns.
    first_row : int
    vertex_ids : Tensor int64 [rows]
        Where each vertex stood in the source.
    """

    adjacency: CSR
    first_row: int
    vertex_ids: Tensor

    def __post_init__(self) -> None:
        rows, cols = self.adjacency.shape
        if not 0 <= self.first_row <= cols - rows:
            raise InputError(
                f"rows [{self.first_row}, {self.first_row + rows}) outside [0, {cols})"
            )
        owner = f"rows from {self.first_row}"
        object.__setattr__(self, "adjacency", narrow(self.adjacency, owner))
        self._check_vertices(rows, owner)
        _check_ids(self.vertex_ids, rows, owner)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.adjacency.shape[0]


def _check_ids(vertex_ids: Tensor, rows: int, owner: str) -> None:
    if vertex_ids.shape != (rows,) or vertex_ids.dtype != torch.int64:
        found = f"{vertex_ids.dtype} {list(vertex_ids.shape)}"
        raise InputError(f"{owner}: vertex_ids must be int64 [{rows}], got {found}")


def vertex_ids_of(record: Graph | GraphBlock) -> Tensor:
    """Where each vertex of a record stood in the source, int64 [rows]."""
    if record.vertex_ids is None:
        return torch.arange(record.adjacency.shape[0])
    return record.vertex_ids


def inverse_permutation(order: Tensor) -> Tensor:
    """Where each old index went.

    Raises
    ------
    InputError
        If ``order`` is not a permutation of [0, n).
    """
    n = order.shape[0]
    inverse = torch.full((n,), -1, dtype=torch.int64)
    if n and (int(order.min()) < 0 or int(order.max()) >= n):
        raise InputError(f"order must be a permutation of [0, {n})")
    inverse[order] = torch.arange(n)
    if n and int(inverse.min()) < 0:
        raise InputError(f"order must be a permutation of [0, {n}); some vertex is named twice")
    return inverse
