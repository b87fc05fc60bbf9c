"""FastGCN where rows lie on several ranks: everybody draws the same vertices of the whole graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.layout import RowLayout
from spgnn.minibatch.boundary import Boundary
from spgnn.sampling import Draw, NeighborSampler, VertexSampler
from spgnn.sampling.layerwise import parts_of_sums, squares_of, sums_of_parts
from spgnn.sparse import CSR


class FastGCNHops:
    """What a rank's own rows give to a hop of FastGCN; made on all ranks together.

    Vertices are drawn in proportion to Σ_s A_st² over all rows s. Ranks add up their parts of
    that, which are whole numbers, so the sums are those of one process bit for bit, and so are the
    vertices that each rank draws for any batch. An owner of a target then sends the entries that
    lead to them, and no others. Each rank keeps some 40 bytes for every vertex of the graph.

    Parameters
    ----------
    numbers : sequence of int
        Vertices of each hop, the seeds' first; −1: all.
    block : CSR [own rows, n]
    boundary : Boundary
    ids : Tensor int64 [own + h]
        Original ids of the boundary's columns.
    layout : RowLayout
    comm : Communicator
        All ranks.
    threads : int, optional

    Raises
    ------
    InputError
        If an argument is wrong.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        block: CSR,
        boundary: Boundary,
        *,
        ids: Tensor,
        layout: RowLayout,
        comm: Communicator,
        threads: int | None = None,
    ) -> None:
        self._columns, self._values = boundary.columns, block.values
        self._whole = NeighborSampler(
            boundary.compact(block),
            [-1] * len(numbers),
            edge_ids=True,
            vertex_ids=ids,
            threads=threads,
        )
        self.num_neighbors = [int(number) for number in numbers]
        masses = _masses(block, layout, comm)
        everyone = ids.new_empty(layout.rows)
        sizes = np.diff(layout.offsets).tolist()
        comm.all_gather(ids[: boundary.own].contiguous(), everyone, sizes)
        self._vertices = VertexSampler(masses, everyone)

    def sample_hop(
        self, targets: Tensor, hop: int, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """As :meth:`spgnn.sampling.NeighborSampler.sample_hop`, of own rows."""
        indptr, columns, numbers, _ = self._whole.sample_hop(targets, hop, draw)
        assert numbers is not None
        if not len(columns):
            return indptr, columns, numbers, torch.zeros(0)
        drawn, factors = self._vertices.sample(self.num_neighbors[hop], hop, draw)
        drawn, order = drawn.sort()
        wanted = self._columns[columns.long()]
        place = torch.searchsorted(drawn, wanted).clamp_(max=max(len(drawn) - 1, 0))
        taken = drawn[place] == wanted if len(drawn) else torch.zeros_like(wanted, dtype=torch.bool)
        if self._values is not None:  # what has no weight is no entry
            taken &= self._values[numbers] != 0
        before = torch.zeros(len(columns) + 1, dtype=torch.int64)
        torch.cumsum(taken, 0, out=before[1:])
        weights = factors[order[place[taken]]]
        return before[indptr], columns[taken], numbers[taken], weights


def _masses(block: CSR, layout: RowLayout, comm: Communicator) -> np.ndarray:
    """Σ_s A_st² of all columns t, float64 [n]. Collective."""
    values = None if block.values is None else block.values.float().abs()
    squares = squares_of(block, values)
    largest = torch.tensor([squares.max(initial=0)], dtype=torch.float64)
    comm.all_reduce(largest, "max").wait()
    entries = comm.agree(block.nnz, "sum")
    most, columns = float(largest), block.indices.numpy()
    parts = parts_of_sums(columns, squares, layout.rows, most, entries)
    together = torch.from_numpy(parts).view(-1)
    comm.all_reduce(together, "sum").wait()
    return sums_of_parts(together.view(parts.shape).numpy(), most, entries)
