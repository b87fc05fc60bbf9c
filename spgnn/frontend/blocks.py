"""Graphs of which every rank brings its own rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, on_every_rank
from spgnn.data import (
    GraphBlock,
)
from spgnn.data.distribute import RankShare
from spgnn.data.graph import MASKS, VertexData, label_columns
from spgnn.data.normalise import is_bag_of_words
from spgnn.data.source import GraphMeta
from spgnn.errors import InputError
from spgnn.frontend.sharing import Placement
from spgnn.layout import RowLayout
from spgnn.sparse import CSR


def share_of_blocks(
    block: GraphBlock, how: Placement, comm: Communicator, name: str, refused: Sequence[str]
) -> RankShare:
    """Take the block that this rank brought for its share. Collective.

    Parameters
    ----------
    block : GraphBlock
        Rows of this rank; those of rank 0 come first, and there are no gaps.
    how : Placement
        Of which the algorithm counts: rows stay where they are.
    comm : Communicator
        All ranks.
    name : str
        What messages call the graph.
    refused : names of arguments that were given beside it

    Raises
    ------
    InputError
        On all ranks, if blocks do not fit each other.
    """
    sizes = torch.zeros(comm.size, dtype=torch.int64)
    sizes[comm.rank] = block.rows
    comm.all_reduce(sizes).wait()
    layout = RowLayout(np.append(0, np.cumsum(sizes.numpy())))
    on_every_rank(comm, lambda: _check(block, layout, how, comm.rank, refused))
    block = on_every_rank(comm, lambda: _of_split(block, how.split))
    comm.check_agreement(
        "distribute",
        x=None if block.x is None else (type(block.x).__name__, int(block.x.shape[1])),
        weighted=block.adjacency.values is not None,
        y=None if block.y is None else (block.y.dtype, tuple(block.y.shape[1:])),
        **{key: _trailing(getattr(block, key)) for key in MASKS},
    )
    edges, largest = block.adjacency.nnz, label_columns(block.y) - 1
    words = comm.agree(int(not is_bag_of_words(block.x))) == 0
    meta = GraphMeta(
        name=name,
        vertices=layout.rows,
        edges=comm.agree(edges, "sum"),
        features=block.features,
        classes=max(comm.agree(largest) + 1, 0),
        directed=True,  # nobody has looked
        weighted=block.adjacency.values is not None,
        offsets=tuple(layout.offsets.tolist()),
        sparse_features=isinstance(block.x, CSR),
        bag_of_words=words,
        labelled=block.y is not None,
        splits=block.splits,
    )
    # Features are shared, for they may be mapped files; the rest is small, and its owner may write.
    small = {key: t for key in ("y", *MASKS) if (t := getattr(block, key)) is not None}
    data = VertexData(x=block.x, **{key: t.clone() for key, t in small.items()})
    adjacency = block.adjacency.with_own_numbers()
    return RankShare(meta, layout, adjacency, block.vertex_ids.clone(), data)


def _of_split(block: GraphBlock, split: int | None) -> GraphBlock:
    return block if split is None or not block.splits else block.select_split(split)


def _trailing(mask: Tensor | None) -> tuple[int, ...] | None:
    return None if mask is None else tuple(mask.shape[1:])


def _check(
    block: GraphBlock, layout: RowLayout, how: Placement, rank: int, refused: Sequence[str]
) -> None:
    if refused:
        raise InputError(f"{refused[0]}= belongs to a SciPy matrix; a block has its own")
    if how.symmetrise:
        raise InputError("symmetrise: blocks are ready-made; symmetrise before cutting")
    if not layout.rows:
        raise InputError("blocks without vertices")
    first = layout.range(rank)[0]
    if block.first_row != first:
        raise InputError(
            f"the block begins with row {block.first_row}, ranks before hold {first} rows; blocks "
            "follow each other in the order of ranks"
        )
    if block.adjacency.shape[1] != layout.rows:
        raise InputError(
            f"the block has {block.adjacency.shape[1]} columns, all blocks together "
            f"{layout.rows} rows"
        )
