"""1.5D as Algorithm 2 of the ICPP'24 paper has it, with replicated rows, to compare with."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spgnn import InputError
from spgnn.comm import RowCounts
from spgnn.exchange import (
    Algorithm,
    Hop,
    NamedScheme,
    Plan,
    Scheme,
    Stage,
    expand,
    fold,
    grid,
    of_block_row,
    rows_from,
)
from spgnn.layout import Axes, Int64Array, RowLayout
from spgnn.pattern import Pattern, Selection, index_dtype
from spgnn.sparse import CSR


def replicated(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    axes: Axes,
    rank: int,
    column_scale: Tensor | None = None,
    edge_labels: Tensor | None = None,
) -> Scheme[Plan]:
    """1.5D as it is written in ICPP'24, Algorithm 2, to compare with; c² divides P."""
    c, i, j = axes.size("replica"), *(axes.coordinate(axis, rank) for axis in axes.names)
    if c == 1:
        return (yield from grid(algorithm, block, layout, axes, rank, column_scale))
    rows = layout.grouped(c)
    s = rows.parts // c
    folds, block = yield from of_block_row(block, layout, c, c * s)
    # Of H, ranks (·, j) see these block columns alone; those that hold other rows have none.
    begin, end = (int(rows.offsets[number]) for number in (j * s, (j + 1) * s))
    pattern = Pattern.trusted(block.indptr, block.indices - begin, (block.shape[0], end - begin))
    block = CSR(pattern, block.values, block.row_scale)
    columns = RowLayout(np.clip(rows.offsets - begin, 0, end - begin))
    gathered = all_gather(layout.sizes[i * c : (i + 1) * c], j, column_scale, makes=i // s == j)
    members = np.arange(rows.parts)
    expanded = yield from expand(algorithm, block, columns, members, i)
    return Plan((gathered, expanded, *fold(folds, j)))


def all_gather(sizes: Int64Array, me: int, column_scale: Tensor | None, *, makes: bool) -> Stage:
    """The rows of all peers along "replica", in order; received in any case, made if `makes`."""
    rows, own = int(sizes.sum()), int(sizes[me])
    apart = np.arange(len(sizes)) != me
    theirs = torch.from_numpy(np.repeat(apart, sizes)[: rows if makes else 0])

    def placed(here: Tensor, columns: int) -> CSR:
        entries = torch.arange(columns if makes else 0, dtype=index_dtype(columns))
        return rows_from(here.int(), entries, None, None, columns)

    send = CSR(Selection(torch.arange(own).repeat(len(sizes) - 1), own))
    hop = Hop(
        "replica",
        send.with_scales(None, column_scale),
        RowCounts(own * apart, sizes * apart, int(sizes.max())),
    )
    L = placed(~theirs, own).with_scales(None, column_scale)
    return Stage(L, placed(theirs, rows - own), (hop,))


def _check(algorithm: Algorithm, ranks: int) -> None:
    if ranks % algorithm.c**2:
        raise InputError(
            f"--algo {algorithm.algo} needs --c whose square divides {ranks} ranks, "
            f"not {algorithm.c}"
        )


REPLICATED = NamedScheme(
    build=replicated,
    can=frozenset({"replicas", "oblivious", "partial_sums", "relays", "peers", "learnt_values"})
    | {"comparison"},
    check=_check,
)
