"""What is known of vertices, as rows of bytes that travel together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spgnn.data.distribute import RankShare
from spgnn.nn.block import Degrees
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR

_NARROW = torch.int16


class Facts:
    """Ids, labels and degrees of some vertices, one row each.

    Parameters
    ----------
    named : dict of Tensor [rows, …]
        ``ids``, the original ones; ``edges``, the number of in-edges in the whole graph; ``weight``
        and ``bare`` as in `spgnn.nn.block.Degrees`, where they say more; ``y``, if labels are
        known.
    """

    def __init__(self, named: dict[str, Tensor]) -> None:
        self._named = named

    @classmethod
    def of_share(cls, share: RankShare, rank: int, *, loops: bool) -> Facts:
        """Of a rank's own vertices.

        Parameters
        ----------
        share : RankShare
        rank : int
        loops : bool
            Whether any vertex of the whole graph has a self-loop.
        """
        A, y = share.adjacency, share.data.y
        assert A is not None
        named = {"ids": share.vertex_ids.to(index_dtype(share.layout.rows))}
        named["edges"] = A.row_lengths.int()
        rows = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
        if A.values is not None:
            zeros = torch.zeros(A.shape[0])
            named["weight"] = zeros.index_add_(0, rows, A.values.float())
        if loops:
            named["bare"] = torch.ones(A.shape[0])
            named["bare"][rows[loops_of(A, share.layout.range(rank)[0])]] = 0
        if y is not None:
            is_narrow = y.dtype == torch.int64 and share.meta.classes <= torch.iinfo(_NARROW).max
            named["y"] = y.to(_NARROW) if is_narrow else y
        return cls(named)

    @property
    def ids(self) -> Tensor:
        """Original ids, int64 [rows]."""
        return self._named["ids"].long()

    @property
    def y(self) -> Tensor | None:
        """Labels, as the graph has them."""
        y = self._named.get("y")
        return y.long() if y is not None and y.dtype == _NARROW else y

    @property
    def degrees(self) -> Degrees:
        """What layers have to know of them."""
        edges = self._named["edges"].long()
        return Degrees(edges, self._named.get("weight", edges.float()), self._named.get("bare"))

    def of(self, rows: Any) -> Facts:
        """Those of some rows: a tensor of numbers, or a slice."""
        return Facts({name: array[rows] for name, array in self._named.items()})

    def packed(self) -> Tensor:
        """One row of bytes each, uint8 [rows, width]."""
        return torch.cat([_bytes(array) for array in self._named.values()], 1)

    def unpacked(self, rows: Tensor) -> Facts:
        """The reverse, of any rows with the same facts."""
        widths = [_bytes(array[:0]).shape[1] for array in self._named.values()]
        parts = rows.split(widths, 1)
        named = {}
        for (name, like), part in zip(self._named.items(), parts, strict=True):
            named[name] = as_dtype(part, like.dtype).view(len(rows), *like.shape[1:])
        return Facts(named)


def loops_of(A: CSR, first: int) -> Tensor:
    """Which nonzeros of a rank's rows are self-loops, bool [nnz]."""
    rows = torch.arange(first, first + A.shape[0]).repeat_interleave(A.row_lengths)
    return A.indices == rows


def as_dtype(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Columns of rows of bytes as numbers, wherever they begin; a copy."""
    # Not contiguous(): one row alone is that already, and may begin at an odd address.
    return rows.clone(memory_format=torch.contiguous_format).view(dtype)


def _bytes(array: Tensor) -> Tensor:
    width = torch.Size(array.shape[1:]).numel()
    return array.reshape(len(array), width).contiguous().view(torch.uint8)
