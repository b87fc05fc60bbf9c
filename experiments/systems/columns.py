"""Batches whose first layer is computed where the columns of the features are.

P3 (Gandhi & Iyer, OSDI 2021): rank r holds columns r of *all* features. Of each batch the sampled
structure of the first layer goes to all ranks (push); each multiplies its columns by its rows of
the first weights, and the partial sums, as wide as the first layer, are added up at the batch's
rank, which goes on alone (pull). Features never travel.

Unlike in P3 all weights are replicated: those of the first layer are in the all-reduce of the
gradients, so optimisers, clipping, evaluation and checkpoints are those of any other mode. Not
here: its pipeline, which pushes later batches with weights that are some steps old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.addons.batches import (
    Batch,
    BatchOptions,
    Counts,
    Exact,
    Metadata,
    Mode,
    RankBatches,
    as_dtype,
    offsets_of,
)
from spgnn.autograd import product
from spgnn.comm import Communicator, RowCounts
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Step
from spgnn.graph import (
    Aggregation,
    Block,
    LocalMatrix,
    Normalisation,
    Propagated,
    block_pattern,
    densified,
)
from spgnn.layout import RowLayout
from spgnn.pattern import index_dtype
from spgnn.sparse import CSR
from spgnn.torch_internals import named

_SIZES = 4  # of a structure: targets, vertices, edges, and which values these have


class SumAtOwners:
    """Partial rows of all ranks' batches to the sum of those of this rank's. Collective.

    The operand are rows [sum(sizes), f], batch after batch; all ranks have as many. The adjoint
    hands the gradients of each batch to all ranks.
    """

    def __init__(self, sizes: Sequence[int], comm: Communicator, counts: Counts) -> None:
        self.rows, self.columns = sizes[comm.rank], sum(sizes)
        self._sizes, self._comm, self._traffic = sizes, comm, counts
        self._counts = RowCounts(sizes, [self.rows] * comm.size, max(sizes))
        self.handle = named(self)

    def next_step(self, H_local: Tensor) -> Step:
        """Always exact."""
        return EXACT

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """The sums, without autograd."""
        size, width = self._comm.size, H_local.shape[1]
        parts = H_local.new_empty(size * self.rows, width)
        self._comm.alltoallv(H_local.contiguous(), parts, self._counts).wait()
        self._traffic.add(bytes_read=(size - 1) * self.rows * width * H_local.itemsize)
        return parts.view(size, self.rows, width).sum(0)

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """Everyone's gradients, without autograd."""
        dH = G_local.new_empty(self.columns, G_local.shape[1])
        self._comm.all_gather(G_local.contiguous(), dH, self._sizes)
        others = self.columns - self.rows
        self._traffic.add(bytes_read=others * G_local.shape[1] * G_local.itemsize)
        return dH


class SplitBlock(Block):
    """The first layer's block of this rank's batch, next to those of all other ranks' batches.

    It takes this rank's columns of the features of all their vertices, batch after batch, and makes
    whole rows of this rank's batch.

    Parameters
    ----------
    blocks : sequence of Block
        Of each rank's batch.
    columns : slice
        Of the features, that are this rank's.
    comm : Communicator
    counts : Counts
        Bytes of rows and gradients from other ranks are counted there.
    """

    whole_rows = False

    def __init__(
        self, blocks: Sequence[Block], columns: slice, comm: Communicator, counts: Counts
    ) -> None:
        own = blocks[comm.rank]
        super().__init__(own.pattern, own.vertex_ids)
        self._blocks, self._columns_here = blocks, columns
        self._sum = SumAtOwners([block.rows for block in blocks], comm, counts)

    def aggregate(self, request: Aggregation) -> Tensor:
        """Z [rows, f_out] of a sum with a weight. Collective, and so is its backward."""
        H, W, R = request.operand, request.weight, request.root
        is_sum = request.reduce == "sum" and request.edge is None and request.dropped is None
        if not is_sum or W is None or not isinstance(H, Tensor):
            raise self._refusal(f"({request.reduce})")
        here = self._columns_here
        W, R = W[:, here], None if R is None else R[:, here]
        sizes = [block.columns for block in self._blocks]
        parts = [
            block.aggregate(replace(request, operand=rows, weight=W, root=R))
            if block.rows
            else W.new_zeros(0, len(W))
            for block, rows in zip(self._blocks, H.split(sizes), strict=True)
        ]
        return product(self._sum, torch.cat(parts))

    def matrix(self, normalisation: Normalisation = "none") -> LocalMatrix:
        """Refused: rows of the features are on no rank."""
        raise self._refusal(f"({normalisation})")

    def own(self, H: Tensor | Propagated) -> Tensor:
        """Refused: rows of the features are on no rank."""
        raise self._refusal("that looks at a vertex's own row")

    @staticmethod
    def _refusal(what: str) -> InputError:
        return InputError(
            f"a first layer {what} needs whole rows of features; where ranks hold columns it must "
            "be a sum of neighbours with a weight, as of gcn, sage and gin"
        )


class ColumnBatches(RankBatches):
    """Batches whose features are columns, and whose first layer is computed on all ranks.

    ``model(batch.x, batch.layers, batch.keys)`` and its backward are collective, so a rank that has
    no seeds in a step gets a batch without any. Structures travel while the steps before are
    trained on; ids, degrees and labels of all vertices are on every rank.
    """

    is_shared = True

    def __init__(
        self, exact: RankBatches, table: Tensor, columns: slice, width: int, everyone: Metadata
    ) -> None:
        none = torch.zeros(0, dtype=torch.int64)
        super().__init__(
            exact.ranks,
            exact.sampler,
            exact.steps,
            lambda epoch: [one or (none, none) for one in exact.inputs(epoch)],
            exact.options,
            is_whole=exact.is_whole,
        )
        # Columns of this rank of all features [n, …], which they are, and how many there are.
        self.table, self.columns, self.width = table, columns, width
        self.everyone = everyone  # metadata of all vertices

    def join(self, model: Any, batch: Any) -> Tensor | None:
        """The other ranks need this one's columns."""
        first = batch.layers[0]
        request = model.convolutions[0].aggregation(batch.x, first, None, None)
        out: Tensor = first.aggregate(request).sum()
        return out

    def _completed(
        self, epoch: int, steps: Sequence[int], chosen: Any, samples: Any
    ) -> Callable[[], list[Batch | None]]:
        """Push the structures of the first layers; the result waits for them. Collective."""
        batches = [
            self._batch(epoch, step, input_id, drawn, self.everyone.of(drawn[0].nodes), None)
            for (step, (_, input_id)), drawn in zip(chosen, samples, strict=True)
        ]
        first = [batch.layers[0] for batch in batches]
        sizes = [
            [
                block.rows,
                block.columns,
                block.pattern.nnz,
                (block.edge_weight is not None) + 2 * (block.factors is not None),
            ]
            for block in first
        ]
        comm, own = self.ranks.comm, torch.tensor(sizes, dtype=torch.int64).view(-1, _SIZES)
        everyone = own.new_empty(comm.size * len(own), _SIZES)
        comm.all_gather(own, everyone, [len(own)] * comm.size)
        by_rank = everyone.view(comm.size, len(own), _SIZES)
        self.ranks.counts.add(bytes_read=(comm.size - 1) * own.nbytes)
        arriving = [
            self._push(block, sample.nodes, by_rank[:, number].tolist())
            for number, (block, (sample, _)) in enumerate(zip(first, samples, strict=True))
        ]

        def finish() -> list[Batch | None]:
            for batch, arrive in zip(batches, arriving, strict=True):
                blocks, nodes = arrive()
                split = SplitBlock(blocks, self.columns, comm, self.ranks.counts)
                batch.layers = [split, *batch.layers[1:]]
                batch.x = kernels.gather_rows(self.table, torch.cat(nodes))
                needed = batch.num_nodes
                bytes_needed = needed * self.width * self.table.itemsize
                self.ranks.counts.add(rows_needed=needed, bytes_needed=bytes_needed)
            return [*batches]

        return finish

    def _push(
        self, block: Block, nodes: Tensor, sizes: list[list[int]]
    ) -> Callable[[], tuple[list[Block], list[Tensor]]]:
        """Send a block to all ranks; the result waits for theirs, and their vertices. Collective.

        The lengths of its rows, its vertices, its indices, and what values its edges have.
        """
        comm, of_vertices = self.ranks.comm, index_dtype(self.ranks.layout.rows)
        arrays = [block.pattern.row_lengths.int(), nodes.to(of_vertices)]
        arrays += [block.pattern.indices.int()]
        arrays += [a for a in (block.edge_weight, block.factors) if a is not None]
        mine = torch.cat([array.contiguous().view(torch.uint8) for array in arrays])
        lengths = [
            4 * (targets + edges * (1 + values.bit_count())) + of_vertices.itemsize * vertices
            for targets, vertices, edges, values in sizes
        ]
        send, recv = [len(mine)] * comm.size, list(lengths)
        send[comm.rank] = recv[comm.rank] = 0
        received = mine.new_empty(sum(recv))
        counts = RowCounts(send, recv, max(lengths))
        pending = comm.apart().alltoallv(mine.repeat(comm.size - 1), received, counts)
        self.ranks.counts.add(bytes_read=len(received))

        def arrive() -> tuple[list[Block], list[Tensor]]:
            pending.wait()
            blocks, vertices = [], []
            for rank, part in enumerate(received.split(recv)):
                if rank == comm.rank:
                    blocks.append(block)
                    vertices.append(nodes)
                    continue
                theirs, of_theirs = self._block(part, *sizes[rank])
                blocks.append(theirs)
                vertices.append(of_theirs)
            return blocks, vertices

        return arrive

    def _block(
        self, packed: Tensor, targets: int, vertices: int, edges: int, values: int
    ) -> tuple[Block, Tensor]:
        """Another rank's block, as `_push` sent it, and its vertices."""
        of_vertices = index_dtype(self.ranks.layout.rows)
        dtypes = [torch.int32, of_vertices, torch.int32, *[torch.float32] * values.bit_count()]
        counts = [targets, vertices, edges, *[edges] * values.bit_count()]
        sizes = [count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True)]
        parts = zip(packed.split(sizes), dtypes, strict=True)
        lengths, nodes, indices, *floats = [as_dtype(part, dtype) for part, dtype in parts]
        nodes, everyone = nodes.long(), self.everyone
        block = Block(
            block_pattern(offsets_of(lengths), indices, vertices),
            nodes,
            edge_weight=floats.pop(0) if values & 1 else None,
            factors=floats.pop(0) if values & 2 else None,
            degrees=(lambda: everyone.of(nodes).degrees) if self.options.of_graph else None,
        )
        return block, nodes


class Columns(Mode):
    """The batches of one process, with features split by columns over ranks."""

    samplers = None

    @classmethod
    def check(cls, config: Any) -> None:
        """The first layer must be W X, summed over neighbours."""
        model = config.model
        wrong = ""
        if model.attends:
            # P3 itself adds partial H W up at one more exchange, before attention.
            wrong = f"--model gcn, sage or gin, whose first layer is a sum, not {model.model}"
        elif model.reduces_rows:
            wrong = f"--aggregate mean or sum, not {model.aggregate}"
        elif model.residual:
            wrong = "no --residual: no rank has whole rows of features"
        elif model.input_dropout:
            wrong = "model.input-dropout off"
        if wrong:
            raise InputError(f"--distributed columns needs {wrong}")

    def strategy(
        self, share: RankShare, comm: Communicator, options: BatchOptions
    ) -> ColumnBatches:
        """Exact batches, with features split by columns. Collective."""
        exact = Exact().strategy(share, comm, options)
        ranks = exact.ranks
        x = densified(ranks.x) if isinstance(ranks.x, CSR) else ranks.x
        width = int(x.shape[1])
        if width < comm.size:
            raise InputError(
                f"{share.meta.name}: {width} columns of features cannot be split over "
                f"{comm.size} ranks"
            )
        columns = RowLayout.even(width, comm.size)
        packed = ranks.metadata.packed()
        everyone = packed.new_empty(ranks.layout.rows, packed.shape[1])
        comm.all_gather(packed, everyone, ranks.layout.sizes.tolist())
        table = own_columns(x, columns, ranks.layout, comm)
        own = slice(*columns.range(comm.rank))
        return ColumnBatches(exact, table, own, width, ranks.metadata.unpacked(everyone))


def own_columns(x: Tensor, columns: RowLayout, rows: RowLayout, comm: Communicator) -> Tensor:
    """Own rows [own rows, f] of all ranks to own columns of all rows, [n, own columns]."""
    mine = columns.sizes[comm.rank]
    send, recv = len(x) * columns.sizes, rows.sizes * mine
    sent = torch.cat([part.reshape(-1) for part in x.split(columns.sizes.tolist(), 1)])
    received = sent.new_empty(rows.rows, int(mine))
    counts = RowCounts(send, recv, int(rows.sizes.max() * columns.sizes.max()))
    comm.alltoallv(sent, received.view(-1), counts).wait()
    return received
