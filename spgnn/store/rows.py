"""A table of rows somewhere, and what asking it for rows costs."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError
from spgnn.kernels.recycling import new_rows
from spgnn.layout import Int64Array


@dataclass
class Counts:
    """What a table was asked for, and what that took.

    Attributes
    ----------
    rows_needed, bytes_needed : int
        Rows asked for, and their bytes.
    rows_read, bytes_read : int
        Rows that came from where the table really lies (a disk, another rank), and the bytes that
        were moved for them: of a disk whole blocks, whatever of them was wanted.
    hits : int
        Of `rows_needed`, those that a cache had.
    """

    rows_needed: int = 0
    rows_read: int = 0
    bytes_needed: int = 0
    bytes_read: int = 0
    hits: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, **more: int) -> None:
        """Count some more; from any thread."""
        with self._lock:
            for name, value in more.items():
                setattr(self, name, getattr(self, name) + value)

    @property
    def hit_rate(self) -> float:
        """Hits among the rows needed; 0 before any were."""
        return self.hits / max(self.rows_needed, 1)

    def record(self) -> dict[str, int]:
        """The numbers by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.repr}


class Pending:
    """Rows under way; what they come to must not be touched before `wait` returns."""

    def __init__(self, finish: Callable[[], None] | None = None) -> None:
        self._finish = finish

    def wait(self) -> None:
        """Block until the rows are there. Waiting again does nothing.

        Raises
        ------
        InputError
            If they cannot be read.
        """
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()


class Rows(ABC):
    """A table [rows, width] somewhere.

    Attributes
    ----------
    rows, width : int
    dtype : torch.dtype
    """

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        self.rows, self.width, self.dtype = rows, width, dtype
        self._asked = Counts()

    @property
    def counts(self) -> Counts:
        """What the table was asked for, and what that took."""
        return self._asked

    @property
    def fetches_together(self) -> bool:
        """Whether `prefetch` fetches what it is told in one go, and is collective."""
        return False

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.width * self.dtype.itemsize

    def gather(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Some rows.

        Parameters
        ----------
        ids : Tensor int64 [k]
            In any order; may repeat.
        out : Tensor [k, width], optional
            Contiguous, of this dtype, on the CPU; otherwise a new one is returned.

        Raises
        ------
        InputError
            If an id is not in [0, rows), `out` does not fit, or rows cannot be read.
        """
        wanted = self._checked(ids)
        out = self._room(len(wanted), out)
        self._asked.add(rows_needed=len(wanted), bytes_needed=len(wanted) * self.row_bytes)
        self.begin(wanted, out).wait()
        return out

    def prefetch(self, ids: Sequence[Tensor]) -> None:  # noqa: B027 - most tables ignore it
        """Say what the next calls of `gather` will ask for, one tensor a call, in order.

        Never necessary. What it is good for depends on the table; by default for nothing.
        """

    def forget(self) -> None:  # noqa: B027 - most tables ignore it
        """What `prefetch` was told and has not been gathered never comes."""

    @abstractmethod
    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Start fetching row ``ids[i]`` into ``out[places[i]]``; counts what is read.

        For other tables to build on: the ids are in range, and `out` fits.

        Parameters
        ----------
        ids : int64 [k]
        out : Tensor [at least k, width]
        places : int64 [k], optional
            By default 0 … k − 1.
        """

    def _checked(self, ids: Tensor) -> Int64Array:
        return check_ids(ids, self.rows, str(self))

    def _room(self, rows: int, out: Tensor | None) -> Tensor:
        if out is None:
            return new_rows(rows, torch.empty(0, self.width, dtype=self.dtype))
        fits = out.shape == (rows, self.width) and out.dtype == self.dtype
        if not fits or not out.is_contiguous() or out.device.type != "cpu":
            raise InputError(
                f"out must be a contiguous {self.dtype} [{rows}, {self.width}] in memory, "
                f"got {out.dtype} {list(out.shape)}"
            )
        return out

    def __str__(self) -> str:
        return f"table of {self.rows} rows"


class MemoryRows(Rows):
    """Rows that are in memory (or mapped there).

    Parameters
    ----------
    table : Tensor [rows, width]
    """

    def __init__(self, table: Tensor) -> None:
        if table.dim() != 2:
            raise InputError(f"a table of rows must be [rows, width], got {list(table.shape)}")
        super().__init__(table.shape[0], table.shape[1], table.dtype)
        self.table = table.contiguous()

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Copies at once; nothing is read."""
        copy_rows(self.table, ids, out, places)
        return Pending()


def check_ids(ids: Tensor, rows: int, name: str) -> Int64Array:
    """Numbers of rows, as NumPy has them.

    Raises
    ------
    InputError
        If they are not int64 [k] in [0, rows); says of what.
    """
    if ids.dim() != 1 or ids.dtype != torch.int64:
        raise InputError(f"row ids must be int64 [k], got {ids.dtype} {list(ids.shape)}")
    wanted = np.ascontiguousarray(ids.numpy(force=True))
    if len(wanted):
        low, high = int(wanted.min()), int(wanted.max())
        if low < 0 or high >= rows:
            wrong = low if low < 0 else high
            raise InputError(f"{name}: no row {wrong}; it has rows 0 to {rows - 1}")
    return wanted


def copy_rows(
    source: Tensor, from_row: Int64Array | None, target: Tensor, to_row: Int64Array | None
) -> None:
    """Copy row ``from_row[i]`` of one contiguous table to row ``to_row[i]`` of another, in order.

    One of the two may be left out: 0, 1, ….
    """
    given = from_row if from_row is not None else to_row
    assert given is not None
    every = np.arange(len(given))
    _native.copy_rows(
        as_bytes(source),
        every if from_row is None else from_row,
        as_bytes(target),
        every if to_row is None else to_row,
        source.shape[1] * source.dtype.itemsize,
    )


def as_bytes(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The memory of a contiguous tensor."""
    return tensor.detach().view(-1).view(torch.uint8).numpy()
