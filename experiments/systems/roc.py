"""A partition corrected by the seconds of the first epochs, as in Roc (Jia et al., MLSys'20).

The seconds that a rank works in an epoch are modelled as a linear function of its rows, nonzeros
and remote rows, times how slow the rank is. Cuts between neighbouring parts then move until all
ranks are predicted to work as long. Roc's parts are stretches of the vertices in their given order;
ours are stretches of an order that keeps the parts of the partition apart, and the vertices of a
part with more neighbours in lower parts first, so that what moves goes where its neighbours are.
Not here: its dynamic programme for the tensors that stay on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.comm import Communicator
from spgnn.config import Extension, TrainConfig
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.frontend import is_cut, share_of
from spgnn.layout import Int64Array
from spgnn.options import key
from spgnn.train import gathered, tried_seconds

Float64Array = npt.NDArray[np.float64]
Shared = tuple[RankShare, dict[str, Any] | None]
ROUNDS = 2  # of measuring and moving cuts
ENOUGH = 1.05  # most over mean seconds at which nothing moves
PRIOR = 0.1  # weight of the guess that each feature takes a third of the seconds


@dataclass(frozen=True)
class Rebalancing(Extension):
    """Key of the training command."""

    section = "algorithm"

    rebalance: Annotated[
        int, key("move the cuts of the partition by the seconds of E epochs, twice", "E")
    ] = 0

    def share(self, config: TrainConfig, comm: Communicator) -> tuple[Any, dict[str, Any]] | None:
        """A rank's part after the cuts have moved, and a record of it. Collective."""
        if not self.rebalance or comm.size == 1:
            return None
        data = config.data.dataset
        if comm.from_rank_zero(lambda: is_cut(data, config.distribution.parts(comm.size))):
            raise InputError(
                "algorithm.rebalance: shards are ready-made; give the graph as one file"
            )

        def working(part: Shared) -> float:
            """Seconds of an epoch in which this rank does not wait for others."""
            tried = tried_seconds(config, comm, self.rebalance + 1, part)
            return median(spent - waited for spent, waited in tried[1:])

        shared, rounds = rebalanced(config, comm, working)
        return shared, {"rebalance": {"epochs": self.rebalance, "rounds": rounds}}

    def refused(self, config: TrainConfig) -> Iterator[str]:
        """Say what has no part for each rank, or no epochs to try."""
        how = config.algorithm
        if self.rebalance and how.algo != "1d":
            yield f"algorithm.rebalance needs --algo 1d, not {how.algo}: a part for each rank"
        if self.rebalance and (config.opener or how.plan or config.training.resume):
            yield "algorithm.rebalance goes with no --chunks, --memory, --spill, --plan or --resume"


def fitted(features: Float64Array, seconds: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Seconds of a unit of each feature, and how slow each rank of the last observations is."""
    scale = np.maximum(features.mean(axis=(0, 1)), 1e-12)
    X, t = (features / scale).reshape(-1, 3), seconds.ravel()
    guess = np.full(3, t.mean() / 3)
    weight = PRIOR * len(t)
    cost = np.linalg.solve(X.T @ X + weight * np.eye(3), X.T @ t + weight * guess)
    cost = np.maximum(cost, 0) / scale
    return cost, seconds[-1] / np.maximum(features[-1] @ cost, 1e-12)


def rebalanced(
    config: TrainConfig, comm: Communicator, seconds_of: Callable[[Shared], float]
) -> tuple[Shared, list[dict[str, Any]]]:
    """A rank's part after rounds of measuring and moving cuts, and a record. Collective."""
    shared, record, seen = share_of(config, comm), list[dict[str, Any]](), list[Float64Array]()
    for _ in range(ROUNDS):
        share, _ = shared
        A = share.adjacency
        assert A is not None
        sizes, column = A.row_lengths.numpy(), A.indices.numpy()
        begin, end = share.layout.range(comm.rank)
        remote = len(np.unique(column[(column < begin) | (column >= end)]))
        numbers = [len(sizes), len(column) + len(sizes), remote, seconds_of(shared)]
        seen.append(gathered(comm, numbers))
        features, seconds = np.stack(seen)[..., :3], np.stack(seen)[..., 3]
        record.append(
            {"rows": seen[-1][:, 0].astype(int).tolist(), "seconds": seconds[-1].tolist()}
        )
        if seconds[-1].max() <= ENOUGH * seconds[-1].mean():
            break
        cost, slowness = fitted(features, seconds)
        # A part's remote rows are its nonzeros' doing.
        each = cost[0] + (sizes + 1) * (cost[1] + cost[2] * remote / max(numbers[1], 1))
        owner = share.layout.owner(column)
        nearest = np.bincount(np.repeat(np.arange(len(sizes)), sizes), owner, len(sizes))
        nearest = np.where(sizes > 0, nearest / np.maximum(sizes, 1), comm.rank)
        labels = _labels(share, np.argsort(nearest, kind="stable"), each, slowness, comm)
        shared = share_of(config, comm, labels=labels)
    return shared, record


def _labels(
    share: RankShare,
    order: Int64Array,
    each: Float64Array,
    slowness: Float64Array,
    comm: Communicator,
) -> Int64Array | None:
    """The part of every vertex, on rank 0: ranks' shares of the work are as they are fast."""
    work = gathered(comm, [each.sum()])[:, 0]
    middle = work[: comm.rank].sum() + np.cumsum(each[order]) - each[order] / 2
    cuts = np.cumsum(1 / slowness)[:-1] / (1 / slowness).sum() * work.sum()
    mine = torch.empty(len(order), 2, dtype=torch.int64)
    mine[:, 0] = share.vertex_ids
    mine[torch.from_numpy(order), 1] = torch.from_numpy(np.searchsorted(cuts, middle))
    every = torch.empty(share.layout.rows, 2, dtype=torch.int64)
    comm.all_gather(mine, every, share.layout.sizes.tolist())
    if comm.rank:
        return None
    labels = np.empty(share.layout.rows, np.int64)
    labels[every[:, 0].numpy()] = every[:, 1].numpy()
    return labels
