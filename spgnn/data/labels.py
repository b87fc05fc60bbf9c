"""Labels: one class a vertex, several at once, or numbers; and which of them are known."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError

UNKNOWN = -1
LabelKind = Literal["classes", "several", "numbers"]
# How labels of each kind are held: dtype of torch and of a file, and whether there are columns.
_HELD: dict[LabelKind, tuple[torch.dtype, str, bool]] = {
    "classes": (torch.int64, "<i8", False),
    "several": (torch.int8, "|i1", True),
    "numbers": (torch.float32, "<f4", True),
}
WANTED = "y must be int64 [{n}], int8 [{n}, labels] or float32 [{n}, numbers]"
Labels = npt.NDArray[Any]


def label_kind(y: Tensor) -> LabelKind:
    """What labels are, by the dtype that they are held in."""
    return next(kind for kind, (dtype, *_) in _HELD.items() if dtype == y.dtype)


def known_labels(y: Tensor) -> Tensor:
    """Which labels are known, bool of the shape of y."""
    return ~y.isnan() if y.is_floating_point() else y > UNKNOWN


def labelled(y: Tensor) -> Tensor:
    """Vertices of which at least one label is known, bool [rows]."""
    known = known_labels(y)
    return known if known.dim() == 1 else known.any(dim=1)


def label_columns(y: Tensor | None) -> int:
    """Classes that single labels speak of, or columns of labels; 0 if there are none."""
    if y is None or (y.dim() == 1 and not len(y)):
        return 0
    return max(int(y.max()) + 1, 0) if y.dim() == 1 else int(y.shape[1])


def classes_of(y: Tensor) -> int:
    """Largest class + 1, of one class a vertex; 0 if these are several labels, or numbers.

    Parameters
    ----------
    y : Tensor [rows, …]
        Of any dtype. Whole floating numbers count as classes, NaN where there is none.
    """
    if y.dim() > 2 or y[:1].numel() > 1:
        return 0
    known = y[y.isfinite()]
    whole = not y.is_floating_point() or bool((known == known.round()).all())
    return max(int(known.max()) + 1, 0) if len(known) and whole else 0


def check_labels(y: Tensor, rows: int, owner: str) -> None:
    """Refuse labels that are not held as they must be.

    Raises
    ------
    InputError
    """
    shapes = {dtype: 2 if columns else 1 for dtype, _, columns in _HELD.values()}
    if shapes.get(y.dtype) != y.dim() or len(y) != rows:
        wanted = WANTED.format(n=rows)
        raise InputError(f"{owner}: {wanted}, got {y.dtype} {list(y.shape)}")


def stored_as(dtype: str, dimensions: int, columns: int) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a row of labels in a file; classes, if what is there is of no kind.

    Parameters
    ----------
    dtype : str
    dimensions : int
        Of the array that is there.
    columns : int
        That it must have, if it has any.
    """
    for _, stored, several in _HELD.values():
        if (stored, 1 + several) == (dtype, dimensions):
            return stored, (columns,) if several else ()
    return _HELD["classes"][1], ()


def labels_of_table(table: Labels) -> Labels:
    """Labels that are no vector of integers, as they are held.

    Parameters
    ----------
    table : bool or integers [n, labels], or floating [n] or [n, numbers]
        −1 in a table of integers, and NaN among numbers, is what is not known.

    Raises
    ------
    InputError
        Of the first that is wrong, without an owner.
    """
    if table.dtype.kind == "f":
        with np.errstate(over="ignore", under="ignore"):
            single = table.astype(np.float32)
        _check(table, ~np.isinf(single), "a finite number, or NaN where not known")
        return single[:, None] if single.ndim == 1 else single
    good = (table == 0) | (table == 1) | (table == UNKNOWN)
    _check(table, good, "0 or 1, or -1 where not known")
    return table.astype(np.int8)


def _check(table: Labels, good: npt.NDArray[np.bool_], rule: str) -> None:
    if not good.all():
        place = np.unravel_index(int(np.argmin(good)), good.shape)
        where = ", ".join(str(int(i)) for i in place)
        raise InputError(f"y[{where}] is {table[place]}; it must be {rule}")
