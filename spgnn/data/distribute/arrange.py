"""In which order vertices stand once they have parts, and which rank owns which rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.data.distribute.share import Slices
from spgnn.data.graph import inverse_permutation
from spgnn.data.shards import partition_order
from spgnn.data.structure import rename_columns
from spgnn.layout import RowLayout
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Arrangement:
    """Vertices in the order of their parts, each part cut into slices of neighbouring ranks.

    Attributes
    ----------
    order : Tensor int64 [n]
        New row i is row ``order[i]`` of the source.
    position : Tensor int64 [n], or ``None`` if the order is the source's
        The inverse of the order.
    parts, ranks : RowLayout
        New rows of each part, and of each rank.
    """

    order: Tensor
    position: Tensor | None
    parts: RowLayout
    ranks: RowLayout

    @classmethod
    def of(cls, structure: CSR, labels: npt.ArrayLike | None, slices: Slices) -> Arrangement:
        """Arrange a graph.

        Parameters
        ----------
        structure : CSR [n, n]
            As it is stored, without self-loops.
        labels : int [n] in [0, parts), optional
            ``None`` for even blocks.
        slices : Slices

        Raises
        ------
        InputError
            If the labels do not fit the graph.
        """
        n = structure.shape[0]
        layout, order = partition_order(labels, n, slices.parts)
        entries = None
        if slices.each > 1:
            order = order[np.argsort(layout.dealt(np.arange(n), slices.each))]
        if slices.weighted:
            entries = torch.bincount(structure.indices, minlength=n)[order].numpy()
        moves = labels is not None or slices.each > 1
        position = inverse_permutation(order) if moves else None
        return cls(order, position, layout, slices.cut(layout, entries))

    def rows(self, structure: CSR, first: int, last: int) -> CSR:
        """New rows [first, last) of the adjacency, with new columns."""
        A = take_rows(structure, self.order[first:last])
        return A if self.position is None else rename_columns(A, self.position)
