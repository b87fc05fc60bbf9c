"""The subgraph on some vertices of a graph that is distributed over ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.comm import Communicator
from spgnn.data.distribute.columns import of_columns
from spgnn.data.distribute.share import RankShare
from spgnn.data.graph import VertexData
from spgnn.layout import RowLayout
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR


def induced(share: RankShare, kept: Tensor, comm: Communicator) -> RankShare:
    """The vertices that are kept, where they are, and the edges between them. Collective.

    Parameters
    ----------
    share : RankShare
        With its adjacency.
    kept : Tensor bool [own rows]
    comm : Communicator
        All ranks.
    """
    assert share.adjacency is not None
    rows = kept.nonzero()[:, 0]
    sizes = torch.zeros(comm.size, dtype=torch.int64)
    sizes[comm.rank] = len(rows)
    comm.all_reduce(sizes).wait()
    layout = RowLayout(np.append(0, np.cumsum(sizes.numpy())))
    number = torch.full((len(kept),), -1)
    number[rows] = torch.arange(*layout.range(comm.rank))
    part = take_rows(share.adjacency, rows)
    columns = of_columns(number, part, share.layout, comm)
    stays = columns >= 0
    adjacency = renumbered(part, stays, columns, layout.rows)
    edge_labels = share.edge_labels
    if edge_labels is not None:
        in_rows = kept.repeat_interleave(share.adjacency.row_lengths)
        edge_labels = edge_labels[in_rows][stays]
    each = comm.size // share.meta.parts
    meta = replace(
        share.meta,
        vertices=layout.rows,
        edges=comm.agree(adjacency.nnz, "sum"),
        offsets=tuple(layout.offsets[::each].tolist()),
    )
    data = VertexData(**share.data.take(rows))
    return RankShare(meta, layout, adjacency, share.vertex_ids[rows], data, edge_labels)


def renumbered(block: CSR, stays: Tensor, columns: Tensor, n: int) -> CSR:
    """A block without some of its entries, and with other columns, which rise in each row as well.

    Parameters
    ----------
    block : CSR [rows, any]
    stays : Tensor bool [nnz]
    columns : Tensor, integers [nnz]
        The new one of each entry; only those of entries that stay matter.
    n : int
        How many columns there are then.

    Returns
    -------
    CSR [rows, n]
    """
    ends = torch.cat((torch.zeros(1, dtype=torch.int64), stays.cumsum(0)))
    values = None if block.values is None else block.values[stays]
    indices = columns[stays].to(index_dtype(n))
    return CSR.of(ends[block.indptr], indices, (block.shape[0], n), values)
