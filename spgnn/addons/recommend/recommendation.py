"""Embeddings of users and items, learnt from pairs on the whole graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spgnn.addons.recommend.config import RecommendConfig
from spgnn.addons.recommend.interactions import Interactions, open_interactions
from spgnn.addons.recommend.pairs import Pairs, PairSampler, pair_loss
from spgnn.addons.recommend.propagation import Propagation
from spgnn.addons.recommend.ranking import recall_and_ndcg, top_k
from spgnn.addons.recommend.readers import Array
from spgnn.addons.recommend.share import Share
from spgnn.addons.recommend.tables import RowUpdate, initial_rows
from spgnn.comm import Communicator, Mesh
from spgnn.data import GraphSource, MemorySource, RankShare
from spgnn.errors import InputError, memory_for
from spgnn.exchange import Algorithm
from spgnn.frontend import Placement, scattered_share
from spgnn.graph import DistGraph, write_rows
from spgnn.memory import check_memory
from spgnn.progress import working
from spgnn.sparse import take_rows
from spgnn.train import Criterion, Predictions, Scores, Task


class PairTask(Task):
    """Task of learning from pairs of users and items, wherever embeddings lie."""

    sizes: dict[str, int]

    def __init__(self, config: RecommendConfig, comm: Communicator) -> None:
        self.config, self.comm, self.model = config, comm, nn.Module()
        self.update = RowUpdate(config.training.optimizer)
        self.mesh = Mesh.build(comm, Algorithm("1d").axes(comm.size))
        self.partition_report: dict[str, Any] | None = None
        self._sides: dict[str, Array] = {}
        self.split = "files"

    def scatter(self, interactions: Interactions | None) -> tuple[RankShare, Tensor]:
        """Own rows of the graph, which rank 0 reads, and the items of `Share.of`. Collective."""
        config, comm = self.config, self.comm
        opened = [] if interactions is None else [interactions]
        data, how, seed = config.data, config.algorithm, config.training.seed

        def read() -> Interactions:
            if not opened:
                with memory_for(data.dataset), working(f"reading {data.dataset}"):
                    opened.append(
                        open_interactions(
                            data.dataset,
                            test_share=data.test_share,
                            seed=seed,
                            split=data.split,
                            form=data.form,
                            least_rating=data.least_rating,
                        )
                    )
            return opened[0]

        def source() -> GraphSource:
            return MemorySource(read().graph())

        users, self.split = comm.from_rank_zero(lambda: (read().shape[0], read().split))
        placement = Placement(
            config.distribution,
            how.partition,
            imbalance=how.imbalance,
            seed=seed,
            nodes=config.distribution.nodes(comm.size, comm.ranks_a_node()),
        )
        rows, self.partition_report = scattered_share(data.dataset, source, placement, comm)
        self.name, self.vertex_ids = rows.meta.name, rows.vertex_ids
        share, items = Share.of(rows.layout, rows.vertex_ids, users, lambda: read().test, comm)
        self.share = share
        if comm.rank == 0 and (config.job.predictions or config.job.top_k):
            self._sides = read().sides()
        return rows, items

    def measure(self, interactions: int) -> None:
        """Say how large all of it is. Collective."""
        self.sizes = {
            "users": self.share.users,
            "items": self.share.items,
            "interactions": interactions,
            "test_interactions": self.comm.agree(self.share.test.nnz, "sum"),
        }

    @abstractmethod
    def outputs(self) -> Tensor:
        """The propagated embeddings of own rows. Collective."""

    def predictions(self) -> Predictions:
        """The embedding of every user, and then of every item, with their ids. Collective."""
        columns, sides = dict[str, Array](), self._sides
        if sides:  # texts if any id is one
            columns["side"] = np.repeat([*sides], [*map(len, sides.values())])
            columns["id"] = np.concatenate([*sides.values()])
        return Predictions(self.vertex_ids, {"embedding": self.outputs()}, columns=columns)

    @abstractmethod
    def best(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """As :func:`top_k`, of some own users, whose numbers rise. Collective."""

    def scores(self) -> Scores:
        """Recall@K and NDCG@K over test items. Collective."""
        k, test = self.config.sampling.k, self.share.test
        recall = ndcg = None
        if self.sizes["test_interactions"]:
            tested = (test.row_lengths > 0).nonzero()[:, 0]
            sums = recall_and_ndcg(self.best(tested)[0], take_rows(test, tested), k)
            self.comm.all_reduce(sums).wait()
            recall, ndcg = (sums[:2] / sums[2]).tolist()
        return {f"test_recall@{k}": recall, f"test_ndcg@{k}": ndcg}

    @torch.no_grad()
    def write_top_k(self, path: str) -> None:
        """Write a row for each user and each of its best items, best first. Collective."""
        users = self.share.user_ids
        items, scores = self.best(torch.arange(len(users)))
        there = items >= 0
        rank = torch.arange(items.shape[1])
        ids = users[:, None] * items.shape[1] + rank
        columns = {"user": users[:, None].expand_as(items), "item": items, "score": scores}
        arrays = {name: column[there] for name, column in columns.items()}
        write_rows(path, arrays, ids[there], self.comm, f"--top-k {path}", names=self._sides)

    @property
    def criterion(self) -> Criterion:  # type: ignore[override]
        return Criterion(f"test_ndcg@{self.config.sampling.k}", higher=True)

    @torch.no_grad()
    def loss(self, epoch: int) -> Tensor:
        """Take all steps of an epoch; the mean of their losses. Collective."""
        losses = torch.zeros((), dtype=torch.float64)
        for step in range(self.steps):
            losses += self.step(epoch, step)
        return losses / max(self.steps, 1)

    @abstractmethod
    def step(self, epoch: int, step: int) -> Tensor:
        """Take a step at the rate `lr`; its loss on all ranks. Collective."""

    @property
    def signature(self) -> Mapping[str, Any]:
        how, sampling = self.config.model, self.config.sampling
        return {
            "embeddings": f"{how.dim} wide, {how.layers} layers, weights {how.weights}",
            "pairs": f"{sampling.loss} of {sampling.batch_size} {sampling.draw} with "
            f"{sampling.negatives} negatives",
            "rows by": self.config.training.optimizer,
            "seed": self.config.training.seed,
            "a graph of": ", ".join(f"{count} {name}" for name, count in self.sizes.items()),
        }

    def sections(self) -> dict[str, Any]:
        return {
            "graph": {"name": self.name, **self.sizes, "split": self.split},
            "steps_per_epoch": self.steps,
            "partition": self.partition_report,
        }


class Recommendation(PairTask):
    """Embeddings of users and items, their propagation, and a loss of pairs. Collective."""

    def __init__(
        self, config: RecommendConfig, comm: Communicator, interactions: Interactions | None = None
    ) -> None:
        super().__init__(config, comm)
        rows, items = self.scatter(interactions)
        assert rows.adjacency is not None
        block = take_rows(rows.adjacency, self.share.user_rows)
        self.share = self.share.of_users(0, len(self.share.user_rows), block, items)
        graph = DistGraph(rows, comm, config.distribution)
        del rows, block, items
        self.propagation = Propagation(graph, config.model.of_layers)
        graph.release()
        self.sampler = PairSampler(self.share, comm, config.sampling, config.training.seed)
        width, own = config.model.dim, len(self.vertex_ids)
        widths = self.update.widths(width)
        what = f"{own} embeddings of {width} numbers with --optimizer {self.update.kind}"
        comm.on_every_rank(lambda: check_memory(what, 4 * own * (4 * width + sum(widths.values()))))
        with memory_for(what):
            self.rows = initial_rows(self.vertex_ids, width, config.training.seed)
            self.moments = {n: torch.zeros(own, columns) for n, columns in widths.items()}
        self.steps = self.sampler.steps
        self.measure(self.sampler.interactions)

    def step(self, epoch: int, step: int) -> Tensor:
        loss, gradient = self.gradient(self.sampler.pairs(epoch, step))
        number = epoch * self.steps + step + 1
        self.update.step_(self.rows, gradient, self.moments, self.lr, number)
        return loss

    @torch.no_grad()
    def gradient(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Loss of the pairs of all ranks, and the gradient of own embeddings. Collective."""
        E, share, how, comm = self.rows, self.share, self.config.sampling, self.comm
        numbers, pairs, total = self._items_of(pairs)
        fetched = share.fetch(numbers, self.mesh)
        # Vertices of the step, and how often each occurs.
        of_items = torch.bincount(
            torch.cat((pairs.positives, pairs.negatives.flatten())), minlength=len(numbers)
        )
        often = fetched.adjoint(of_items.float()[:, None])[:, 0]
        of_users = torch.bincount(pairs.users, minlength=len(share.user_rows))
        users, items = of_users.nonzero()[:, 0], often.nonzero()[:, 0]
        rows = torch.cat((share.user_rows[users], share.item_rows[items]))
        few = self.propagation.rows_of(rows)
        F = self.propagation.forward(E, rows, few)
        own_items = F.new_zeros(len(share.item_rows), F.shape[1])
        own_items[items] = F[len(users) :]
        if how.loss == "in-batch":
            counts = self._on_all_ranks(torch.bincount(pairs.positives, minlength=len(numbers)))
        else:
            counts = of_items
        place = torch.empty_like(of_users)
        place[users] = torch.arange(len(users))
        pairs = pairs._replace(users=place[pairs.users])
        some, total = F[: len(users)], max(total, 1)
        loss, d_users, d_items = pair_loss(
            how, some, fetched.forward(own_items), counts, pairs, total
        )
        G = torch.cat((d_users, fetched.adjoint(d_items)[items]))
        del F, some, own_items, d_users, d_items
        gradient = self.propagation.adjoint(G, rows, few)
        decay = self.config.training.weight_decay / total
        if decay:
            weight = decay * torch.cat((of_users[users].float(), often[items]))[:, None]
            chosen = E[rows]
            loss = loss + (weight * chosen.square()).sum().double() / 2
            gradient.index_add_(0, rows, weight * chosen)
        loss = loss.reshape(1)
        comm.all_reduce(loss).wait()
        return loss[0], gradient

    def _items_of(self, pairs: Pairs) -> tuple[Tensor, Pairs, int]:
        """Places of the items of a step, which pairs then number, and its pairs on all ranks."""
        used = torch.zeros(self.share.items, dtype=torch.bool)
        used[pairs.positives] = True
        used[pairs.negatives.flatten()] = True
        if self.config.sampling.loss == "in-batch":
            used = self._on_all_ranks(used.int()) > 0
        places = used.nonzero()[:, 0]
        number = used.cumsum(0) - 1
        numbered = Pairs(pairs.users, number[pairs.positives], number[pairs.negatives])
        return places, numbered, self.comm.agree(len(pairs.users), "sum")

    def _on_all_ranks(self, counts: Tensor) -> Tensor:
        self.comm.all_reduce(counts).wait()
        return counts

    def outputs(self) -> Tensor:
        return self.propagation.rounded(self.rows)

    def best(self, users: Tensor) -> tuple[Tensor, Tensor]:
        F, share, k = self.outputs(), self.share, self.config.sampling.k
        rows, items = F[share.user_rows[users]], F[share.item_rows]
        del F
        ids = share.item_ids[slice(*share.layout.range(self.comm.rank))]
        seen = take_rows(share.train, users)
        return top_k(rows, items, k, seen=seen, item_ids=ids, comm=self.comm)

    def state(self) -> dict[str, Tensor]:
        """Own rows, their moments and the vertices that they are of."""
        return {"rows": self.rows, "vertex_ids": self.vertex_ids, **self.moments}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`. Collective."""

        def check() -> None:
            if not torch.equal(state["vertex_ids"], self.vertex_ids):
                raise InputError("its rows are those of another partition")

        self.comm.on_every_rank(check)
        for name, table in ({"rows": self.rows} | self.moments).items():
            table.copy_(state[name])
