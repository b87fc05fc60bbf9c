"""From own rows to rows of a group: its columns dealt out (replicas), or all rows for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange.inspect import by_receiver, swapped, swapped_counts
from spgnn.layout import Int64Array, grouped_order
from spgnn.pattern import Pattern
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Regroup:
    """What a scheme yields to turn own rows of all columns into all rows of own columns.

    Made by :meth:`of`. The answer is the common block of a group of ranks, in their order, with the
    columns of this one.

    Attributes
    ----------
    axis : str
    rows, entries : int64 [peers]
        Rows sent to each peer (all that this rank has) and their nonzeros.
    lengths : Tensor int32 [peers × rows]
        Nonzeros of each row that go to each peer.
    columns, values : Tensor [nnz]
        By peer, then by row.
    row_scale : Tensor [rows], optional
    width : int
        Columns of the whole matrix.
    """

    axis: str
    rows: Int64Array
    entries: Int64Array
    lengths: Tensor
    columns: Tensor
    values: Tensor | None
    row_scale: Tensor | None
    width: int

    @classmethod
    def of(cls, axis: str, block: CSR, owner: Int64Array, peers: int) -> Regroup:
        """Deal the nonzeros of a block to peers.

        Parameters
        ----------
        axis : str
        block : CSR [own rows, n]
        owner : int64 [nnz]
            The peer that gets each nonzero.
        peers : int
        """
        rows = block.shape[0]
        order = torch.from_numpy(grouped_order(owner, peers))
        row = np.repeat(np.arange(rows), block.row_lengths.numpy())
        lengths = np.bincount(owner * rows + row, minlength=peers * rows)
        values = None if block.values is None else block.values[order]
        return cls(
            axis,
            np.full(peers, rows),
            np.bincount(owner, minlength=peers),
            torch.from_numpy(lengths.astype(np.int32)),
            block.indices[order],
            values,
            block.row_scale,
            block.shape[1],
        )

    def settle(self, comm: Communicator) -> CSR:
        """The exchange over a communicator."""
        rows, entries = swapped_counts(comm, self.rows, self.entries)
        scale = self.row_scale
        if scale is not None:
            scale = swapped(comm, scale.repeat(comm.size), rows)
        return _assembled(
            swapped(comm, self.lengths, rows),
            swapped(comm, self.columns, entries),
            None if self.values is None else swapped(comm, self.values, entries),
            scale,
            self.width,
        )

    @staticmethod
    def settle_all(parts: Sequence[Regroup]) -> list[CSR]:
        """The exchange of a whole group in one process."""
        rows = np.stack([part.rows for part in parts])
        entries = np.stack([part.entries for part in parts])
        lengths = by_receiver([part.lengths for part in parts], rows)
        columns = by_receiver([part.columns for part in parts], entries)
        values = by_receiver([part.values for part in parts], entries)
        scales = [part.row_scale for part in parts if part.row_scale is not None]
        scale = torch.cat(scales) if len(scales) == len(parts) else None
        blocks = []
        for part, its_lengths, its_columns, its_values in zip(
            parts, lengths, columns, values, strict=True
        ):
            assert its_lengths is not None
            assert its_columns is not None
            blocks.append(_assembled(its_lengths, its_columns, its_values, scale, part.width))
        return blocks


@dataclass(frozen=True, eq=False)
class Stacked:
    """What a scheme yields to hold all rows of its peers, in their order.

    Attributes
    ----------
    axis : str
    block : CSR [own rows, n]
    """

    axis: str
    block: CSR

    def settle(self, comm: Communicator) -> CSR:
        """The rows of all of them."""
        block, peers = self.block, comm.size
        mine = (block.row_lengths.int(), block.indices, block.values, block.row_scale)
        repeated = [None if array is None else array.repeat(peers) for array in mine]
        lengths, columns, values, scale = repeated
        assert lengths is not None
        assert columns is not None
        given = np.full(peers, block.shape[0]), np.full(peers, block.nnz)
        rows, entries = swapped_counts(comm, *given)
        return _assembled(
            swapped(comm, lengths, rows),
            swapped(comm, columns, entries),
            None if values is None else swapped(comm, values, entries),
            None if scale is None else swapped(comm, scale, rows),
            block.shape[1],
        )

    @staticmethod
    def settle_all(parts: Sequence[Stacked]) -> list[CSR]:
        """The same for a whole group in one process: one matrix, which all of them share."""
        return [stack([part.block for part in parts])] * len(parts)


@dataclass(frozen=True, eq=False)
class Joined:
    """What a scheme yields to have numbers of the rows of all peers, in their order.

    Attributes
    ----------
    axis : str
    own : Tensor [own rows]
    rows : int64 [peers]
        Rows of each peer.
    """

    axis: str
    own: Tensor
    rows: Int64Array

    def settle(self, comm: Communicator) -> Tensor:
        """The numbers of all of them."""
        everyone = self.own.new_empty(int(self.rows.sum()))
        comm.all_gather(self.own, everyone, self.rows.tolist())
        return everyone

    @staticmethod
    def settle_all(parts: Sequence[Joined]) -> list[Tensor]:
        """The same for a whole group in one process."""
        return [torch.cat([part.own for part in parts])] * len(parts)


def stack(blocks: Sequence[CSR]) -> CSR:
    """Blocks of rows [rows, n], one below the other."""
    values = [block.values for block in blocks if block.values is not None]
    scales = [block.row_scale for block in blocks if block.row_scale is not None]
    return _assembled(
        torch.cat([block.row_lengths for block in blocks]),
        torch.cat([block.indices for block in blocks]),
        torch.cat(values) if len(values) == len(blocks) else None,
        torch.cat(scales) if len(scales) == len(blocks) else None,
        blocks[0].shape[1],
    )


def _assembled(
    lengths: Tensor, columns: Tensor, values: Tensor | None, scale: Tensor | None, width: int
) -> CSR:
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    torch.cumsum(lengths, 0, out=indptr[1:])
    return CSR(Pattern.trusted(indptr, columns, (len(lengths), width)), values, scale)
