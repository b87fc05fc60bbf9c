"""A rank's rows of the adjacency, with self-loops and scalings, and the matrix made of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spgnn.comm import Mesh
from spgnn.data.distribute import RankShare
from spgnn.data.normalise import Normalisation, add_self_loops, degree_scales
from spgnn.exchange import Algorithm
from spgnn.layout import RowLayout
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


@dataclass(frozen=True, eq=False)
class NormalisedRows:
    """What a matrix is built of.

    Attributes
    ----------
    block : CSR [own rows, n]
        With its row scale.
    column_scale : Tensor [own rows], optional
        Of the columns that the rank owns.
    edge_labels : Tensor, integers [nnz], optional
        The rank that multiplies each nonzero, in a vertex cut.
    """

    block: CSR
    column_scale: Tensor | None
    edge_labels: Tensor | None

    def to(self, dtype: torch.dtype) -> NormalisedRows:
        """The same for operands of a dtype."""
        scale = None if self.column_scale is None else self.column_scale.to(dtype)
        return replace(self, block=self.block.to(dtype), column_scale=scale)

    def matrix(
        self, layout: RowLayout, mesh: Mesh, algorithm: Algorithm, overlap: bool = True
    ) -> DistMatrix:
        """The distributed matrix. Collective."""
        return DistMatrix.build(
            self.block,
            layout,
            mesh,
            algorithm=algorithm,
            column_scale=self.column_scale,
            edge_labels=self.edge_labels,
            overlap=overlap,
        )


def normalised(share: RankShare, rank: int, kind: Normalisation, *, loops: int) -> NormalisedRows:
    """Own rows of the adjacency, or of A + I, normalised.

    Parameters
    ----------
    share : RankShare
        With its adjacency.
    rank : int
    kind : {"sym", "row", "none"}
        See :func:`spgnn.data.normalise.degree_scales`.
    loops : int
        The weight of the self-loop that a vertex without one gets; 0: none.

    Raises
    ------
    InputError
        If a degree is negative, on this rank alone.
    """
    assert share.adjacency is not None
    block = share.adjacency
    if loops:
        block = add_self_loops(block, share.layout.range(rank)[0], loops)
    edge_labels = _edge_labels(share, block, rank)
    row_scale, own_scale = degree_scales(block, kind, share.vertex_ids)
    return NormalisedRows(block.with_scales(row_scale, None), own_scale, edge_labels)


def with_single_loops(block: CSR, first_row: int) -> CSR:
    """The same rows, with 1 for the number of self-loops of each vertex that has any."""
    assert block.values is not None
    row = torch.arange(first_row, first_row + block.shape[0]).repeat_interleave(block.row_lengths)
    return block.with_values(torch.where(block.indices == row, 1.0, block.values))


def _edge_labels(share: RankShare, block: CSR, rank: int) -> Tensor | None:
    """The rank of each nonzero of a block that may have got self-loops, which stay here."""
    if share.edge_labels is None:
        return None
    assert share.adjacency is not None
    first = share.layout.range(rank)[0]
    marked = share.adjacency.with_values(share.edge_labels.float())
    if block.nnz > marked.nnz:
        marked = add_self_loops(marked, first)
    assert marked.values is not None
    row = torch.arange(first, first + block.shape[0]).repeat_interleave(block.row_lengths)
    return torch.where(block.indices == row, rank, marked.values.int())
