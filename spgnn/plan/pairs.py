"""Links that are learnt: which pairs each rank scores, and what it asks of others for that.

Made-up sources are drawn by a hash of the epoch and of original ids, so what moves in an epoch is
known of every epoch before there is one; the mean over the run is what an epoch is priced at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from spgnn.data.distribute import renumbered
from spgnn.data.splits import Pairs, divided
from spgnn.exchange import Plan, build_all, fetch
from spgnn.exchange.needs import BYTES_OF_COLUMN, BYTES_OF_COUNTS
from spgnn.layout import EVERYONE, Axes, Int64Array, RowLayout
from spgnn.nn.links import DotProduct, HadamardMLP
from spgnn.pattern import Selection
from spgnn.plan.census import Census, count
from spgnn.plan.hops import LEVELS, Moved, Nodes
from spgnn.sparse import CSR

# Sources that are looked at: of longer runs some epochs stand for all.
MOST_DRAWN = 4_000_000
_ROW = 8  # bytes of what a directory of ids answers
_SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class LinkTask:
    """Options of link prediction in the training command.

    Attributes
    ----------
    val_links, test_links : float
        Shares that are held out.
    negatives, eval_negatives : int
        Made-up pairs for each link, in training and where links are scored.
    decoder : {"dot", "mlp"}
    epochs : int
        Of the run.
    """

    val_links: float = 0.05
    test_links: float = 0.1
    negatives: int = 1
    eval_negatives: int = 100
    decoder: Literal["dot", "mlp"] = "dot"
    epochs: int = 100

    def scorer(self, width: int) -> nn.Module:
        """Decoder for pairs of embeddings of some width."""
        return DotProduct() if self.decoder == "dot" else HadamardMLP(width)


@dataclass(frozen=True, eq=False)
class PairsCensus(Census):
    """Exchange of the sources of all ranks' pairs; as a matrix, that of the first epoch.

    Attributes
    ----------
    epochs : tuple of Census
        Of each epoch that was looked at.
    told : tuple of float64 [2, P]
        Bytes sent and received in an epoch to find sources and ask for them.
    pairs : int64 [P]
        Links that a rank trains on.
    judged : tuple of Census
        Of links for validation and for testing.
    judged_pairs : tuple of int64 [P]
    """

    epochs: tuple[Census, ...] = ()
    told: tuple[Any, ...] = ()
    pairs: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    judged: tuple[Census, ...] = ()
    judged_pairs: tuple[Int64Array, ...] = ()

    def traffic(
        self, width: int, dtype: torch.dtype = torch.float32, *, adjoint: bool = False
    ) -> Moved:
        """Traffic of a mean epoch; forward includes the requests for the sources."""
        every = [np.stack(one.traffic(width, dtype, adjoint=adjoint)) for one in self.epochs]
        sent, received, messages = np.sum(every, axis=0) / len(every)
        if not adjoint:
            sent, received = sent + self.told[0], received + self.told[1]
        return sent, received, messages


@dataclass(frozen=True, eq=False)
class Linked:
    """A graph whose links are learnt, in the order of its ranks.

    Attributes
    ----------
    graph : CSR [n, n]
        As it is stored.
    ids : Tensor int64 [n]
        Original ids of its rows.
    layout : RowLayout
    task : LinkTask
    seed : int
    directed : bool
    ranks_a_node : int
    """

    graph: CSR
    ids: Tensor
    layout: RowLayout
    task: LinkTask
    seed: int
    directed: bool
    ranks_a_node: int

    def counted(self) -> tuple[CSR, PairsCensus]:
        """Graph without the held-out links, and the pairs of all ranks."""
        A, task = self.graph, self.task
        targets = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
        sources = A.indices.long()
        ends, shares = (self.ids[targets], self.ids[sources]), (task.val_links, task.test_links)
        splits, stays = divided(*ends, shares, self.seed, directed=self.directed)
        pairs = [
            Pairs(targets[here], sources[here], ends[0][here], ends[1][here]) for here in splits
        ]
        drawn = max(1, len(pairs[0].targets) * (1 + task.negatives))
        looked_at = max(1, min(task.epochs, MOST_DRAWN // drawn))
        epochs, told = list[Census](), np.zeros((2, len(LEVELS), self.layout.parts))
        for number in range(looked_at):
            purpose = f"negatives of epoch {number * task.epochs // looked_at}"
            census, asked = self._of_epoch(pairs[0], task.negatives, purpose)
            epochs.append(census)
            told += asked
        judged = tuple(
            self._of_epoch(each, task.eval_negatives, f"{split} negatives")[0]
            for split, each in zip(_SPLITS[1:], pairs[1:], strict=True)
        )
        own = [np.diff(self._cuts(each)) for each in pairs]
        first = epochs[0]
        left = renumbered(A, stays, A.indices, A.shape[1])
        return left, PairsCensus(
            first.factors,
            first.matrix,
            first.transpose,
            epochs=tuple(epochs),
            told=tuple(told / looked_at),
            pairs=own[0],
            judged=judged,
            judged_pairs=tuple(own[1:]),
        )

    def _of_epoch(self, pairs: Pairs, many: int, purpose: str) -> tuple[Census, Any]:
        """The plans of all ranks, counted, and bytes that they tell each other to make them."""
        drawn = pairs.drawn(self.layout.rows, many, self.seed, purpose)
        place = torch.empty_like(self.ids)
        place[self.ids] = torch.arange(len(place))
        cuts, rows = self._cuts(pairs), place[drawn]
        stretches = [slice(*cut) for cut in pairwise(cuts.tolist())]
        wanted = [torch.cat((pairs.sources[one], rows[one].flatten())) for one in stretches]
        even = RowLayout.even(self.layout.rows, self.layout.parts)
        census = self._count(self.layout, wanted)
        directory = self._count(even, [drawn[one].flatten() for one in stretches])
        return census, self._told(census, directory)

    def _cuts(self, pairs: Pairs) -> Int64Array:
        """Offset of each rank's first pair; pairs are in the order of their targets."""
        return np.searchsorted(pairs.targets.numpy(), self.layout.offsets)

    def _count(self, layout: RowLayout, wanted: Sequence[Tensor]) -> Census:
        axes = Axes.grid(layout.parts, 1)
        lists = [CSR(Selection(rows, layout.rows)) for rows in wanted]
        schemes = [fetch(rows, layout, rank) for rank, rows in enumerate(lists)]
        plans: list[Plan] = build_all(schemes, axes)
        return count(plans, axes, self.ranks_a_node)

    def _told(self, census: Census, directory: Census) -> Any:
        """Bytes sent and received, float64 [2, levels, P]."""
        ranks = self.layout.parts
        nodes = Nodes(Axes.grid(ranks, 1), self.ranks_a_node, None)
        apart = np.array([nodes.elsewhere(EVERYONE, rank).sum() for rank in range(ranks)])
        numbers = 2 * BYTES_OF_COUNTS * np.stack((ranks - 1 - apart, apart))
        told = np.stack((numbers, numbers)).astype(np.float64)
        for one, answered in ((census, 0), (directory, _ROW)):
            for hop in (hop for stage in one.stages for hop in stage.hops):
                told += BYTES_OF_COLUMN * np.stack((hop.received, hop.sent))
                told += answered * np.stack((hop.sent, hop.received))
        return told
