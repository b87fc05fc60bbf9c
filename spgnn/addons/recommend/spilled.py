"""Embeddings, their optimiser and the graph on a disk: read and written in long stretches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from spgnn.addons.outofcore import (
    Adjacency,
    Blocks,
    MatrixStorage,
    Placement,
    Table,
    TableFactory,
    even_bounds,
    statistics_of,
    whole_matrix,
)
from spgnn.addons.recommend.config import RecommendConfig
from spgnn.addons.recommend.interactions import Interactions
from spgnn.addons.recommend.pairs import PairSampler, pair_loss
from spgnn.addons.recommend.ranking import top_k
from spgnn.addons.recommend.recommendation import PairTask
from spgnn.addons.recommend.share import Share
from spgnn.addons.recommend.tables import initial_rows
from spgnn.comm import Communicator, SoloCommunicator
from spgnn.direct import Transfers
from spgnn.files import scratch_directory
from spgnn.layout import RowLayout
from spgnn.memory import check_memory
from spgnn.sparse import take_rows


def spilled_bounds(indptr: Tensor, users: int, chunks: int) -> tuple[int, ...]:
    """Bounds of chunks with about as many interactions each; none has users and items."""
    rows = len(indptr) - 1
    parts = list[int]()
    for first, last in ((0, users), (users, rows)):
        before = int(indptr[first])
        cuts = even_bounds(lambda row: int(indptr[first + row]) - before, last - first, chunks)  # noqa: B023
        parts += [first + cut for cut in cuts[:-1] if last > first]
    return *(parts or [0]), rows


class SpilledRecommendation(PairTask):
    """The same pairs, loss and steps as in memory, chunk by chunk. Collective."""

    def __init__(
        self, config: RecommendConfig, comm: Communicator, interactions: Interactions | None = None
    ) -> None:
        super().__init__(config, comm)
        assert config.storage.spill is not None
        self._scratch = ExitStack()
        scratch = scratch_directory(config.storage.spill, f"--spill {config.storage.spill}")
        self.directory = comm.on_every_rank(lambda: self._scratch.enter_context(scratch))
        try:
            rows, items = self.scatter(interactions)
            A = rows.adjacency
            assert A is not None
            # Rows rise by original id: users, and then items.
            bounds = spilled_bounds(A.indptr, len(self.share.user_rows), config.storage.chunks)
            blocks = Blocks.of(A, bounds)
            self.begin(Adjacency(blocks, rows.layout, symmetric=True, weighted=False), items)
        except BaseException:
            self._scratch.close()
            raise

    def begin(self, adjacency: Adjacency, items_of: Tensor) -> None:
        """Write matrix and tables of own rows of the graph, of chunks of users, and of items."""
        config, comm, mesh = self.config, self.comm, self.mesh
        self.counts, width = Transfers(), config.model.dim
        first, last = adjacency.layout.range(comm.rank)
        items, own = self.share.items, last - first
        what = f"--spill: {items} items and {own} own rows of {width} numbers in memory"
        comm.on_every_rank(lambda: check_memory(what, 4 * width * (3 * items + own)))
        statistics = statistics_of(adjacency, comm, "sym", loops=False)
        storage = MatrixStorage(self.directory, self.counts)
        self._matrix = whole_matrix(adjacency, statistics, mesh, storage)
        assert statistics.row_scale is not None
        self._scale = statistics.row_scale[:, None]
        self._bounds, self._users = self._matrix.bounds, len(self.share.user_rows)
        self._items_of = torch.cat((items_of[first:last], items_of[statistics.needed]))
        self._every_item = self.share.fetch(torch.arange(items), mesh)
        # From now on every rank has all items.
        self.share = replace(self.share, layout=RowLayout.even(items, 1))
        tables = {"rows": width, **self.update.widths(width)}
        on_disk = frozenset({*(name for name, w in tables.items() if w > 1), "operand", "gradient"})
        self._factory = TableFactory(Placement(on_disk), self.directory, torch.float32, self.counts)
        self._tables = {name: self._new(name, columns) for name, columns in tables.items()}
        for chunk, (begin, end) in enumerate(pairwise(self._bounds)):
            for purpose, table in self._tables.items():
                if purpose == "rows":
                    ids = self.vertex_ids[begin:end]
                    table.write(chunk, initial_rows(ids, width, config.training.seed))
                else:
                    table.write(chunk, torch.zeros(end - begin, table.width))
        every = comm.agree(self._matrix.blocks.nonzeros(), "sum") // 2
        self.measure(every)
        self.steps = -(-every // max(min(config.sampling.batch_size or every, every), 1))

    def close(self) -> None:
        for table in self._tables.values():
            table.release()
        self._scratch.close()

    def step(self, epoch: int, step: int) -> Tensor:
        how, users, bounds = self.config.sampling, self._users, self._bounds
        F = self._propagated(self._tables["rows"])
        items = self._items(F)
        d_items, of_items = torch.zeros_like(items), torch.zeros(len(items), dtype=torch.int64)
        loss, total = torch.zeros((), dtype=torch.float64), 0
        often = torch.zeros(bounds[-1])
        G = self._new("gradient", F.width)
        for chunk, share in self._users_of_chunks():
            first, last = bounds[chunk : chunk + 2]
            seed, every = self.config.training.seed, self.sizes["interactions"]
            pairs = PairSampler(share, self.comm, how, seed, every).pairs(epoch, step)
            often[first:last] = torch.bincount(pairs.users, minlength=last - first).float()
            for places in (pairs.positives, pairs.negatives.flatten()):
                of_items += torch.bincount(places, minlength=len(items))
            part, d_users, of_chunk = pair_loss(how, F.read(chunk), items, of_items, pairs, 1)
            loss, total = loss + part, total + len(pairs.users)
            d_items += of_chunk
            G.write(chunk, d_users)
        F.release()
        often[users:] = self._every_item.adjoint(of_items.float()[:, None])[:, 0]
        d_items = self._every_item.adjoint(d_items)
        for chunk, (first, last) in enumerate(pairwise(bounds)):
            if first >= users:
                G.write(chunk, d_items[first - users : last - users])
        del items, d_items
        gradient = self._propagated(G)
        G.release()
        sums = torch.stack((loss, loss.new_tensor(total)))
        self.comm.all_reduce(sums).wait()
        total = max(int(sums[1]), 1)
        penalty = self._update(gradient, often, total, epoch * self.steps + step + 1)
        self.comm.all_reduce(penalty).wait()
        gradient.release()
        return (sums[0] + penalty) / total

    def _update(self, gradient: Table, often: Tensor, total: int, step: int) -> Tensor:
        """Take a step of own rows; the decay of the rows of its pairs."""
        decay, penalty = self.config.training.weight_decay, torch.zeros((), dtype=torch.float64)
        for chunk, (first, last) in enumerate(pairwise(self._bounds)):
            read = {name: table.read(chunk) for name, table in self._tables.items()}
            rows, weight = read.pop("rows"), decay * often[first:last, None]
            penalty += (weight * rows.square()).sum().double() / 2
            slope = gradient.read(chunk).add_(weight * rows).div_(total)
            self.update.step_(rows, slope, read, self.lr, step)
            for name, values in {"rows": rows, **read}.items():
                self._tables[name].write(chunk, values)
        return penalty

    def _propagated(self, E: Table, dtype: torch.dtype = torch.float32) -> Table:
        """``Σ w_k A^k E``, a new table."""
        last, *others = reversed(self.config.model.of_layers)
        # As much memory in either dtype.
        panel = -(-E.width * torch.float32.itemsize // dtype.itemsize)
        new = partial(self._factory.table, "operand", dtype=dtype, panel=panel)
        Y = new(self._bounds, E.width)
        for chunk, (first, end) in enumerate(pairwise(self._bounds)):
            scale = self._scale[first:end] if others else 1.0
            Y.write(chunk, E.read(chunk).to(dtype) * (last * scale))
        for number, weight in enumerate(others):
            Z, final = new(self._bounds, E.width), number + 1 == len(others)
            for chunk, product in self._matrix.products(Y):
                scale = self._scale[slice(*self._bounds[chunk : chunk + 2])]
                rows = product.mul_(scale).add_(E.read(chunk), alpha=weight)
                Z.write(chunk, rows if final else rows.mul_(scale))
            Y.release()
            Y = Z
        return Y

    def outputs(self) -> Tensor:
        F = self._propagated(self._tables["rows"], torch.float64)
        rows = torch.cat([F.read(chunk).float() for chunk in range(F.chunks)])
        F.release()
        return rows

    @torch.no_grad()
    def best(self, users: Tensor) -> tuple[Tensor, Tensor]:
        F = self._propagated(self._tables["rows"], torch.float64)
        items, k, solo = self._items(F), self.config.sampling.k, SoloCommunicator()
        parts = []
        for chunk, share in self._users_of_chunks():
            first, last = self._bounds[chunk : chunk + 2]
            own = users[(users >= first) & (users < last)] - first
            rows, seen = F.read(chunk)[own].float(), take_rows(share.train, own)
            parts.append(top_k(rows, items, k, seen=seen, item_ids=share.item_ids, comm=solo))
        F.release()
        if not parts:  # a rank without users
            return top_k(items[:0], items, k, item_ids=self.share.item_ids, comm=solo)
        ids, scores = zip(*parts, strict=True)
        return torch.cat(ids), torch.cat(scores)

    def _items(self, F: Table) -> Tensor:
        """The rows of all items by place, in memory. Collective."""
        own = torch.empty(self._bounds[-1] - self._users, F.width)
        for chunk, (first, last) in enumerate(pairwise(self._bounds)):
            if first >= self._users:
                own[first - self._users : last - self._users] = F.read(chunk)
        return self._every_item.forward(own)

    def _users_of_chunks(self) -> Iterator[tuple[int, Share]]:
        """The share of the users of each chunk of users."""
        for chunk, block in self._matrix.blocks.stream():
            first, last = self._bounds[chunk : chunk + 2]
            if first >= self._users:
                break
            yield chunk, self.share.of_users(first, last, block, self._items_of)

    def _new(self, purpose: str, width: int) -> Table:
        return self._factory.table(purpose, self._bounds, width)
