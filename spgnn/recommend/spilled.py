"""Embeddings, their optimiser and the graph on a disk: read and written in long stretches."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from spgnn.chunked.adjacency import even_bounds
from spgnn.chunked.blocks import Blocks, BlockWriter, MemoryBlocks
from spgnn.chunked.matrix import ChunkMatrix
from spgnn.chunked.tables import Placement, Table, TableFactory
from spgnn.comm import SoloCommunicator
from spgnn.direct import Transfers
from spgnn.files import scratch_directory
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern
from spgnn.progress import working
from spgnn.recommend.config import RecommendConfig
from spgnn.recommend.interactions import Interactions
from spgnn.recommend.pairs import PairSampler, pair_loss
from spgnn.recommend.ranking import recall_and_ndcg
from spgnn.recommend.recommendation import PairTask, interactions_of
from spgnn.recommend.share import Share
from spgnn.recommend.tables import RowUpdate, initial_rows
from spgnn.sparse import CSR, take_rows


def spilled_bounds(indptr: Tensor, users: int, chunks: int) -> tuple[int, ...]:
    """Bounds of chunks with about as many interactions each; none has users and items."""
    rows = len(indptr) - 1
    parts = list[int]()
    for first, last in ((0, users), (users, rows)):
        before = int(indptr[first])
        cuts = even_bounds(lambda row: int(indptr[first + row]) - before, last - first, chunks)  # noqa: B023
        parts += [first + cut for cut in cuts[:-1] if last > first]
    return *parts, rows


class SpilledRecommendation(PairTask):
    """The same pairs, loss and steps as in memory, on one rank, chunk by chunk.

    In memory are the items' embeddings and their gradient, the pairs of a chunk, and one table
    while the matrix streams by. A step goes through everything on the disk.

    Parameters
    ----------
    config : RecommendConfig
    name : str
    users : int
    blocks : Blocks [n, n]
        The graph of interactions: users, then items; chunks of either.
    test : CSR [users, items], optional
        Test interactions.
    directory : Path
        For tables.
    """

    def __init__(
        self,
        config: RecommendConfig,
        name: str,
        users: int,
        blocks: Blocks,
        test: CSR | None,
        directory: Path,
    ) -> None:
        self.config, self.comm, self.model = config, SoloCommunicator(), nn.Module()
        self.name, self.counts, self._scratch = name, Transfers(), ExitStack()
        self._blocks, self._bounds, self._test = blocks, blocks.bounds, test
        self._matrix = ChunkMatrix(blocks, blocks.bounds)
        n, width = blocks.bounds[-1], config.model.dim
        self._users = users
        self.sizes = {
            "users": users,
            "items": n - users,
            "interactions": blocks.nonzeros() // 2,
            "test_interactions": 0 if test is None else test.nnz,
        }
        degrees = [blocks.row_lengths(chunk) for chunk in range(len(self._bounds) - 1)]
        scale = torch.cat(degrees).float().pow_(-0.5)
        self._scale = scale.masked_fill_(scale.isinf(), 0.0)[:, None]
        self.update = RowUpdate(config.training.optimizer)
        tables = {"rows": width, **self.update.widths(width)}
        on_disk = frozenset({*(name for name, w in tables.items() if w > 1), "operand", "gradient"})
        self._factory = TableFactory(Placement(on_disk), directory, torch.float32, self.counts)
        self._tables = {name: self._new(name, columns) for name, columns in tables.items()}
        for chunk, (first, last) in enumerate(pairwise(self._bounds)):
            ids = torch.arange(first, last)
            for purpose, table in self._tables.items():
                if purpose == "rows":
                    table.write(chunk, initial_rows(ids, width, config.training.seed))
                else:
                    table.write(chunk, torch.zeros(last - first, table.width))
        every = self.sizes["interactions"]
        self.steps = -(-every // max(min(config.sampling.batch_size or every, every), 1))

    @classmethod
    def of(
        cls, config: RecommendConfig, interactions: Interactions | None = None
    ) -> SpilledRecommendation:
        """Of the data set of a configuration, whose graph is written to the disk first."""
        assert config.storage.spill is not None
        scratch, spill = ExitStack(), config.storage.spill
        try:
            directory = scratch.enter_context(scratch_directory(spill, f"--spill {spill}"))
            with working(f"reading {config.data.dataset}"):
                data = interactions or interactions_of(config)
                A, users = data.graph().adjacency, data.shape[0]
            bounds = spilled_bounds(A.indptr, users, config.storage.chunks)
            writer = BlockWriter(
                "A", A.shape[1], weighted=False, directory=directory, counts=Transfers()
            )
            for _, block in MemoryBlocks.of(A, bounds).stream():
                writer.add(block)
            test = CSR.from_scipy(data.test) if data.test.nnz else None
            task = cls(config, data.name, users, writer.finish(), test, directory)
        except BaseException:
            scratch.close()
            raise
        task._scratch = scratch
        return task

    def close(self) -> None:
        """Remove what lies on the disk."""
        for table in self._tables.values():
            table.release()
        self._scratch.close()

    @torch.no_grad()
    def train_epoch(self, epoch: int, lr: float) -> Tensor:
        losses = torch.zeros((), dtype=torch.float64)
        for step in range(self.steps):
            losses += self._step(epoch, step, lr)
        return losses / max(self.steps, 1)

    def _step(self, epoch: int, step: int, lr: float) -> Tensor:
        how, users, bounds = self.config.sampling, self._users, self._bounds
        F = self._propagated(self._tables["rows"])
        items = self._items(F)
        d_items, total = torch.zeros_like(items), 0
        loss = torch.zeros((), dtype=torch.float64)
        often = torch.zeros(bounds[-1])
        G = self._new("gradient", F.width)
        for chunk, block in self._blocks.stream():
            first, last = bounds[chunk : chunk + 2]
            if last > users:
                break
            share = self._share(first, CSR(_of_items(block, users)))
            sampler = PairSampler(
                share,
                self.comm,
                batch_size=how.batch_size,
                negatives=how.negatives,
                seed=self.config.training.seed,
                draw=how.draw,
                interactions=self.sizes["interactions"],
            )
            pairs = sampler.pairs(epoch, step)
            often[first:last] = torch.bincount(pairs.users, minlength=last - first).float()
            for places in (pairs.positives, pairs.negatives.flatten()):
                often[users:] += torch.bincount(places, minlength=len(items))
            part, d_users, of_items = pair_loss(
                how.loss, F.read(chunk), items, often[users:], pairs, 1, how.temperature
            )
            loss, total = loss + part, total + len(pairs.users)
            d_items += of_items
            G.write(chunk, d_users)
        F.release()
        for chunk, (first, last) in enumerate(pairwise(bounds)):
            if first >= users:
                G.write(chunk, d_items[first - users : last - users])
        del items, d_items
        gradient = self._propagated(G)
        G.release()
        number = epoch * self.steps + step + 1
        penalty = self._update(gradient, often, total, lr, number)
        gradient.release()
        return (loss + penalty) / max(total, 1)

    def _update(self, gradient: Table, often: Tensor, total: int, lr: float, step: int) -> Tensor:
        """Take a step of all rows; the decay of the rows of its pairs."""
        decay, penalty = self.config.training.weight_decay, torch.zeros((), dtype=torch.float64)
        for chunk, (first, last) in enumerate(pairwise(self._bounds)):
            read = {name: table.read(chunk) for name, table in self._tables.items()}
            rows, weight = read.pop("rows"), decay * often[first:last, None]
            penalty += (weight * rows.square()).sum().double() / 2
            slope = gradient.read(chunk).add_(weight * rows).div_(max(total, 1))
            self.update.step_(rows, slope, read, lr, step)
            for name, values in {"rows": rows, **read}.items():
                self._tables[name].write(chunk, values)
        return penalty

    def _propagated(self, E: Table) -> Table:
        """``Σ w_k A^k E``, a new table."""
        last, *others = reversed(self.config.model.of_layers)
        Y = self._new("operand", E.width)
        for chunk, (first, end) in enumerate(pairwise(self._bounds)):
            scale = self._scale[first:end] if others else 1.0
            Y.write(chunk, E.read(chunk) * (last * scale))
        for number, weight in enumerate(others):
            Z, final = self._new("operand", E.width), number + 1 == len(others)
            for chunk, product in self._matrix.products(Y, E.width, self._new_product):
                scale = self._scale[slice(*self._bounds[chunk : chunk + 2])]
                rows = product.mul_(scale).add_(E.read(chunk), alpha=weight)
                Z.write(chunk, rows if final else rows.mul_(scale))
            Y.release()
            Y = Z
        return Y

    @torch.no_grad()
    def sums(self) -> Tensor:
        result = torch.zeros(3, dtype=torch.float64)
        if self._test is None:
            return result
        F = self._propagated(self._tables["rows"])
        items = self._items(F)
        for chunk, block in self._blocks.stream():
            first, last = self._bounds[chunk : chunk + 2]
            if last > self._users:
                break
            test = take_rows(self._test, torch.arange(first, last))
            share = self._share(first, CSR(_of_items(block, self._users)), test)
            k = self.config.sampling.k
            result += recall_and_ndcg(F.read(chunk), items, share, k, self.comm)
        F.release()
        return result

    def _items(self, F: Table) -> Tensor:
        """The items' rows of a table, in memory."""
        rows = torch.empty(self._bounds[-1] - self._users, F.width)
        for chunk, (first, last) in enumerate(pairwise(self._bounds)):
            if first >= self._users:
                rows[first - self._users : last - self._users] = F.read(chunk)
        return rows

    def _share(self, first: int, train: CSR, test: CSR | None = None) -> Share:
        """Some users, from one on, and all items; everything is where its number says."""
        numbers = torch.arange(self.sizes["items"])
        users = torch.arange(first, first + train.shape[0])
        layout = RowLayout.even(len(numbers), 1)
        none = test or train
        return Share(users, numbers, users, numbers, numbers, layout, train, none, self._users)

    def _new(self, purpose: str, width: int) -> Table:
        return self._factory.table(purpose, self._bounds, width)

    def _new_product(self, bounds: tuple[int, ...], width: int, extra: int = 0) -> Table:
        return self._factory.table("operand", bounds, width, extra)


def _of_items(block: CSR, users: int) -> Pattern:
    """Rows of users, with columns for items alone."""
    shape = block.shape[0], block.shape[1] - users
    return Pattern.trusted(block.indptr, block.indices - users, shape)
