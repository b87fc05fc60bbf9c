"""A rank opens its own part of a graph that was cut before."""

from __future__ import annotations

import numpy as np
import torch

from spgnn.blocks import take_rows
from spgnn.comm import Communicator
from spgnn.data.distribute.share import RankShare, Slices
from spgnn.data.graph import GraphBlock, VertexData
from spgnn.data.shards import ShardDirectory
from spgnn.data.structure import slice_rows, with_columns
from spgnn.errors import InputError
from spgnn.layout import Int64Array, RowLayout


def from_shards(
    shards: ShardDirectory, comm: Communicator, parts: int, *, shares: int = 1
) -> RankShare:
    """Open this rank's part of a sharded graph, and nothing else. Collective.

    Parameters
    ----------
    shards : ShardDirectory
    comm : Communicator
        All ranks; their number is a multiple of that of parts.
    parts : int
    shares : int
        See :func:`spgnn.data.distribute.scatter`.

    Raises
    ------
    InputError
        If the directory has another number of parts.
    """
    c = comm.size // parts
    if shards.meta.parts != parts:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but {comm.size} ranks "
            f"with c = {c} need {parts}; write it with --parts {parts}"
        )
    block = shards.block(comm.rank // c)
    if c == 1:
        return RankShare(
            shards.meta,
            shards.layout,
            block.adjacency,
            block.vertex_ids,
            VertexData(**block.take(slice(None))),
        )
    position = shards.layout.dealt(block.first_row + np.arange(block.rows), c) - block.first_row
    order = np.argsort(position)
    slices = Slices(parts, c, shares)
    layout = slices.cut(shards.layout, None)
    if slices.weighted:
        layout = _balanced_slices(slices, shards.layout, block, order, comm)
    first, last = layout.range(comm.rank)
    rows = torch.from_numpy(order[first - block.first_row : last - block.first_row])
    own = take_rows(block.adjacency, rows)
    columns = torch.from_numpy(shards.layout.dealt(own.indices.numpy(), c))
    return RankShare(
        shards.meta,
        layout,
        with_columns(own, columns),
        block.vertex_ids[rows],
        VertexData(**block.take(rows)),
    )


def _balanced_slices(
    slices: Slices, parts: RowLayout, block: GraphBlock, order: Int64Array, comm: Communicator
) -> RowLayout:
    """Slices of all block rows such that each has its share of the entries in its columns.

    What a rank multiplies are the nonzeros in the columns of its slice and those like it. Every
    rank counts the columns of some rows; the first rank of each block row adds up and cuts.
    """
    c = slices.each
    j = comm.rank % c
    some = slice_rows(block.adjacency, slice(block.rows * j // c, block.rows * (j + 1) // c))
    columns, counts = np.unique(some.indices.numpy(), return_counts=True)
    per_rank = np.zeros(comm.size, np.int64)
    per_rank[::c] = np.bincount(parts.owner(columns), minlength=parts.parts)
    pairs = torch.from_numpy(np.stack((columns.astype(np.int64), counts), axis=1))
    exchanged = comm.exchange_counts(per_rank.tolist())
    received = pairs.new_empty(int(sum(exchanged.recv)), 2)
    comm.alltoallv(pairs.contiguous(), received, exchanged).wait()
    weights = np.zeros(block.rows)
    found = received.numpy()
    np.add.at(weights, found[:, 0] - block.first_row, found[:, 1])
    here = slices.cut(RowLayout(np.array([0, block.rows])), weights[order])
    cuts = torch.from_numpy(here.offsets[:-1] + block.first_row)
    all_cuts = cuts.new_empty(comm.size * c)
    comm.all_gather(cuts, all_cuts, [c] * comm.size)
    first_of_each = all_cuts.view(comm.size, c)[::c].ravel()
    return RowLayout(np.append(first_of_each.numpy(), parts.rows))
