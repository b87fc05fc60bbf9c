"""Which side of a block pays: its columns (send rows of H), its rows (send partial sums), or both.

Per block (i, k) of the matrix, every nonzero must be covered by its column or by its row. What is
covered by a column needs that row of H at rank i; what is covered by a row is summed at rank k and
travels as one partial sum. The cheapest choice is a minimum vertex cover of the block's bipartite
graph (Hopcroft & Karp 1973; König 1931), as in SuperGNN and SHIRO.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from spgnn.exchange._cover import minimum_vertex_cover
from spgnn.layout import Int64Array

Cover = Literal["column", "row", "minimum"]
COVERS: tuple[str, ...] = get_args(Cover)


def covered_by_row(
    rows: Int64Array, columns: Int64Array, owners: Int64Array, cover: Cover
) -> npt.NDArray[np.bool_]:
    """Say of each remote nonzero whether its row pays (a partial sum is sent) or its column.

    Parameters
    ----------
    rows, columns, owners : int64 [nnz]
        Local row, global column, and the rank that owns the column. Nonzeros of one owner form
        one block; blocks are covered independently.
    cover : {"column", "row", "minimum"}

    Returns
    -------
    bool [nnz]
        Never true for a nonzero whose column is in the cover: its row of H arrives anyway.
    """
    if cover == "column":
        return np.zeros(len(rows), dtype=np.bool_)
    if cover == "row":
        return np.ones(len(rows), dtype=np.bool_)
    # All blocks at once: a row that meets two owners is two vertices, so blocks stay disjoint.
    order = np.lexsort((rows, owners))
    sorted_rows, sorted_owners = rows[order], owners[order]
    starts = np.ones(len(rows), dtype=np.bool_)
    starts[1:] = (sorted_rows[1:] != sorted_rows[:-1]) | (sorted_owners[1:] != sorted_owners[:-1])
    begin = np.append(np.flatnonzero(starts), len(rows)).astype(np.int64)
    needed, compact = np.unique(columns[order], return_inverse=True)
    _, column_cover = minimum_vertex_cover(begin, compact.astype(np.int64), len(needed))
    by_row = np.empty(len(rows), dtype=np.bool_)
    by_row[order] = column_cover[compact] == 0
    return by_row
