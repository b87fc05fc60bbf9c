"""Placement of tables: in memory while they fit, else in files of one directory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from spgnn.chunked.table import DiskTable, MemoryTable, Table
from spgnn.direct import Transfers


@dataclass(frozen=True)
class Places:
    """Tables on the disk, and the columns of an operand in memory at a time.

    Attributes
    ----------
    on_disk : frozenset of str
        Purposes of tables: operand, product, taken, skipped, propagated.
    panel_bytes : int
        Bytes of an operand's row in memory at a time; 0: all of them.
    """

    on_disk: frozenset[str] = frozenset()
    panel_bytes: int = 0

    def panel(self, width: int, itemsize: int, heads: int = 0) -> int:
        """Columns in a panel of a table of some width.

        With attention, a panel has whole heads, and their number divides that of all heads.
        """
        limit = self.panel_bytes
        if not limit:
            return max(width, 1)
        if not heads:
            return max(1, min(width, limit // itemsize))
        channels = width // heads
        most = max(1, min(heads, limit // itemsize // channels))
        return channels * next(number for number in range(most, 0, -1) if not heads % number)


class Room:
    """Makes tables.

    Parameters
    ----------
    places : Places
    directory : Path, optional
        For files.
    dtype : torch.dtype
        What is computed with.
    counts : Transfers
    """

    def __init__(
        self, places: Places, directory: Path | None, dtype: torch.dtype, counts: Transfers
    ) -> None:
        self.places, self.directory, self.dtype, self.counts = places, directory, dtype, counts
        self._names = count()

    def table(
        self,
        purpose: str,
        bounds: tuple[int, ...],
        like: Tensor,
        extra: int = 0,
        *,
        dtype: torch.dtype | None = None,
        panel: int | None = None,
        heads: int = 0,
    ) -> Table:
        """A table as wide as a tensor, whose panels have whole heads, if there are any."""
        width, dtype = like.shape[1], dtype or self.dtype
        if purpose not in self.places.on_disk:
            return MemoryTable(bounds, width, dtype, extra)
        assert self.directory is not None
        return DiskTable(
            bounds,
            width,
            dtype,
            panel=panel or self.panel(width, heads),
            path=self.directory / f"{purpose}-{next(self._names)}",
            counts=self.counts,
        )

    def table_of(
        self,
        bounds: tuple[int, ...],
        width: int,
        dtype: torch.dtype,
        extra: int = 0,
        *,
        heads: int = 0,
    ) -> Table:
        """A table for what is multiplied, or what a product of several panels makes."""
        return self.table("operand", bounds, torch.empty(0, width, dtype=dtype), extra, heads=heads)

    def panel(self, width: int, heads: int = 0) -> int:
        """Columns of a panel of a table of some width."""
        return self.places.panel(width, self.dtype.itemsize, heads)
