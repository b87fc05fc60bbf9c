"""Tables one after another: the parts of a graph directory, for instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from spgnn.errors import InputError
from spgnn.layout import Int64Array
from spgnn.store.rows import Counts, Pending, Rows


class StackedRows(Rows):
    """The rows of several tables as those of one.

    Parameters
    ----------
    tables : sequence of Rows, at least one
        Of the same width and dtype.

    Raises
    ------
    InputError
        If there is none, or they differ.
    """

    def __init__(self, tables: Sequence[Rows]) -> None:
        kinds = list(dict.fromkeys((table.width, table.dtype) for table in tables))
        if len(kinds) != 1:
            shown = " and ".join(f"{dtype} [·, {width}]" for width, dtype in kinds) or "none"
            raise InputError(f"stacked tables must have one width and dtype, got {shown}")
        super().__init__(sum(table.rows for table in tables), *kinds[0])
        self.tables = list(tables)
        self._begins = np.concatenate(([0], np.cumsum([table.rows for table in tables])))

    @property
    def counts(self) -> Counts:
        """What this table was asked for, and what was read of those it is made of."""
        parts = [table.counts for table in self.tables]
        return replace(
            self._asked,
            rows_read=sum(part.rows_read for part in parts),
            bytes_read=sum(part.bytes_read for part in parts),
        )

    def begin(self, ids: Int64Array, out: Tensor, places: Int64Array | None = None) -> Pending:
        """Begins with every table that has some of the rows."""
        table_of = np.searchsorted(self._begins, ids, side="right") - 1
        begun = []
        for number in np.unique(table_of).tolist():
            chosen = np.flatnonzero(table_of == number)
            targets = chosen if places is None else places[chosen]
            inside = ids[chosen] - self._begins[number]
            begun.append(self.tables[number].begin(inside, out, targets))

        def wait() -> None:
            for pending in begun:
                pending.wait()

        return Pending(wait)

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(map(str, self.tables)))
