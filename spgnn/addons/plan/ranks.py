"""Virtual ranks: a graph arranged for an algorithm, and the plans of all ranks, counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.addons.plan.counts import (
    EXTRA_ROWS,
    AttentionCounts,
    HopCounts,
    MatrixCounts,
    Moved,
    StageCounts,
    count,
    total_of,
)
from spgnn.addons.plan.graphs import Dataset
from spgnn.config import TrainConfig
from spgnn.data import (
    Arrangement,
    Pairs,
    Slices,
    add_self_loops,
    degree_scales,
    divided,
    normalisation_of,
    renumbered,
    slice_rows,
)
from spgnn.errors import InputError
from spgnn.exchange import BYTES_OF_COLUMN, BYTES_OF_COUNTS, Algorithm, build_all, fetch, layered
from spgnn.layout import Axes, Int64Array, RowLayout, inverse_permutation
from spgnn.pattern import Selection
from spgnn.sparse import CSR

# Sources of pairs that are drawn: of longer runs some epochs stand for all.
MOST_DRAWN = 4_000_000
_ID = 8  # bytes of a row's number in the response of the directory of ids
# Nonzeros of a graph up to which plans are built; of larger ones a sample of vertices is looked at:
# so many nonzeros, in stretches of neighbouring vertices all over the graph.
EXACT, SAMPLED, STRETCHES = 100_000_000, 4_000_000, 256
_FLOAT, _INDEX, _OFFSET = 4, 4, 8


@dataclass(frozen=True, eq=False)
class PairCounts:
    """Pairs of vertices that all ranks score, of whose sources they fetch the rows."""

    sources: MatrixCounts  # of the exchange of the sources, in a mean epoch
    requests: Moved  # bytes in a mean epoch to find sources and request their rows
    links: Int64Array  # that a rank trains on, [P]
    scored: tuple[MatrixCounts, ...]  # of the links for validation, and for testing
    scored_links: Int64Array  # [2, P]


@dataclass(frozen=True, eq=False)
class ModelCounts:
    """The plans of a model on all ranks."""

    whole: MatrixCounts  # of the whole matrix, which evaluation works with
    layers: tuple[MatrixCounts | None, ...]  # None: the whole matrix, or nothing is multiplied
    # Where layer l begins, recomputed halo included; last, where the loss begins: [layers + 1, P].
    rows: Int64Array
    halo: Int64Array  # rows of other ranks that are recomputed, [P]
    one_node: bool  # all ranks are on one node
    feature_nonzeros: Int64Array | None = None  # of each rank's features, if those are sparse
    pairs: PairCounts | None = None  # where links are learnt

    def of(self, layer: int) -> MatrixCounts:
        """Counts of a layer's matrix in training; after the last layer, of the pairs' sources."""
        if layer == len(self.layers):
            assert self.pairs is not None
            return self.pairs.sources
        return self.layers[layer] or self.whole

    def extra_rows(self, layer: int) -> Int64Array:
        """Rows of a layer other than its input and output, for each kind in `EXTRA_ROWS`."""
        matrix, nobody = self.of(layer), np.zeros_like(self.halo)
        rows = dict.fromkeys(EXTRA_ROWS, nobody)
        rows["edges"] = total_of([*matrix.nonzeros.values()])
        if (parts := matrix.attention) is None:
            rows["received"] = total_of([nobody, *(hop.received_rows for hop in matrix.hops)])
        else:
            rows |= {"received": parts.fetched, "requested": parts.requested}
            rows |= {"partial": parts.partial, "merged": parts.merged}
            rows["gathered"] = nobody if parts.fold is None else parts.partial
            rows["shared"] = nobody if parts.sums is None else parts.columns
        return np.stack(list(rows.values()))

    @property
    def all_rows(self) -> Int64Array:
        """Rows of all kinds, as an `Epoch` counts them: [kinds, P]."""
        extra = [self.extra_rows(layer) for layer in range(len(self.layers))]
        pairs = [] if self.pairs is None else [self.pairs.links[None]]
        return np.concatenate((self.rows, *extra, *pairs))

    @property
    def matrices(self) -> list[MatrixCounts]:
        """Each once."""
        matrices = [self.whole, *(one for one in self.layers if one is not None)]
        if self.pairs is not None:
            matrices += [self.pairs.sources, *self.pairs.scored]
        return list({id(one): one for one in matrices}.values())


class VirtualRanks:
    """A graph arranged for algorithms with as many parts and copies: plans of all ranks."""

    def __init__(
        self,
        dataset: Dataset,
        labels: npt.ArrayLike | None,
        config: TrainConfig,
        ranks: int,
        ranks_a_node: int,
        counted: dict[Algorithm, MatrixCounts] | None = None,
    ) -> None:
        algorithm = config.distribution
        parts, (_, shares) = algorithm.parts(ranks), algorithm.copies(ranks)
        self.dataset, self.ranks, self.ranks_a_node = dataset, ranks, ranks_a_node
        self.arranged = Arrangement.of(
            dataset.structure, labels, Slices(parts, ranks // parts, shares)
        )
        self.layout = self.arranged.ranks
        self.estimates = dataset.structure.nnz > EXACT
        self._config, self._attends = config, config.model.attends
        self._normalisation, self.loops = normalisation_of(
            config.model.model, config.model.aggregate, config.data.normalisation
        )
        self._known = {} if counted is None else counted

    def whole(self, algorithm: Algorithm) -> MatrixCounts:
        """Counts of the plans of the whole matrix; known ones are not built again."""
        if algorithm not in self._known:
            if self.estimates:
                counts = self._estimated(algorithm)
            else:
                blocks, column_scale = self._blocks
                plans = algorithm.plans(blocks, self.layout, column_scale)
                axes = algorithm.axes(self.ranks)
                counts = count(plans, axes, self.ranks_a_node, attends=self._attends)
            self._known[algorithm] = counts
        return self._known[algorithm]

    def counted(self, config: TrainConfig) -> ModelCounts:
        """Counts of the plans of all layers, as the training command makes them."""
        how, layers, layout = config.algorithm, config.model.layers, self.layout
        algorithm, own = config.distribution, layout.sizes
        propagated = config.propagates_once(sparse=self.dataset.sparse)
        pairs = self._graph[1] if config.aim.task == "links" else None
        nonzeros = self.dataset.feature_nonzeros
        if nonzeros is not None:
            sums = np.concatenate(([0], np.cumsum(nonzeros[self.arranged.order.numpy()])))
            nonzeros = np.diff(sums[layout.offsets])
        counts = ModelCounts(
            self.whole(algorithm),
            (None,) * layers,
            np.stack([own] * (layers + 1)),
            np.zeros_like(own),
            self.ranks <= self.ranks_a_node,
            nonzeros,
            pairs,
        )
        prunes = how.prune and not config.model.makes_all_rows
        plain = self.ranks == 1 or algorithm.named.layers is None
        if not prunes and not how.recompute_halo and plain:
            return counts
        blocks, column_scale = self._blocks
        labelled, axes = self.dataset.labelled[self.arranged.order], algorithm.axes(self.ranks)
        schemes = []
        for rank, block in enumerate(blocks):
            rows = slice(*layout.range(rank))
            options: dict[str, Any] = {
                "layers": layers,
                "labelled": labelled[rows].nonzero()[:, 0] if prunes else None,
                "propagated": propagated,
                "recompute_halo": how.recompute_halo,
                "column_scale": None if column_scale is None else column_scale[rows],
            }
            schemes.append(layered(algorithm, block, layout, rank, **options))
        of_ranks, rows_of = build_all(schemes, axes), counts.rows
        of_layers: list[MatrixCounts | None] = [None] * layers
        for layer in range(layers):
            plans = [plan.plan for one in of_ranks if (plan := one.layers[layer]) is not None]
            if plans:
                of_layers[layer] = count(plans, axes, self.ranks_a_node, attends=self._attends)
                rows_of[layer] = [plan.shape[1] for plan in plans]
        rows_of[layers] = [len(one.rows) for one in of_ranks]
        rows_of[propagated] = [len(one.first) for one in of_ranks]
        if propagated:
            rows_of[0] = rows_of[1]
        halo = np.array([0 if one.halo is None else one.halo.volume.receive for one in of_ranks])
        return replace(counts, layers=tuple(of_layers), halo=halo)

    @cached_property
    def _graph(self) -> tuple[CSR, PairCounts | None]:
        """Graph of training, in the order of ranks; and the pairs, for link prediction."""
        A = self.arranged.rows(self.dataset.structure, 0, self.dataset.vertices)
        return (A, None) if self._config.aim.task != "links" else self._without_pairs(A)

    @property
    def _ids(self) -> Tensor:
        """Original ids, in the order of ranks."""
        order, ids = self.arranged.order, self.dataset.ids
        return order if ids is None else ids[order]

    @cached_property
    def _blocks(self) -> tuple[list[CSR], Tensor | None]:
        """Every rank's rows with their scales, and those of all columns."""
        A, _ = self._graph
        if self.loops:
            A = add_self_loops(A)
        row_scale, own_scale = degree_scales(A, self._normalisation, self._ids)
        blocks = []
        for rank in range(self.ranks):
            own = slice(*self.layout.range(rank))
            scale = None if row_scale is None else row_scale[own].clone()
            blocks.append(slice_rows(A, own).with_scales(scale, None))
        return blocks, own_scale

    def _without_pairs(self, A: CSR) -> tuple[CSR, PairCounts]:
        """The graph without the links that are held out, and the pairs of all ranks."""
        aim, seed = self._config.aim, self._config.training.seed
        if self.estimates:
            raise InputError(f"--task links: pairs are planned of at most {EXACT} nonzeros")
        targets = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
        sources, shares = A.indices.long(), (aim.val_links, aim.test_links)
        ends = self._ids[targets], self._ids[sources]
        splits, stays = divided(*ends, shares, seed, directed=self.dataset.directed)
        trained, *held_out = (
            Pairs(targets[here], sources[here], ends[0][here], ends[1][here]) for here in splits
        )
        epochs = self._config.training.epochs
        drawn = max(1, len(trained.targets) * (1 + aim.negatives))
        epochs_drawn = max(1, min(epochs, MOST_DRAWN // drawn))
        numbers = [number * epochs // epochs_drawn for number in range(epochs_drawn)]
        of_epochs = [
            self._of_pairs(trained, aim.negatives, f"negatives of epoch {number}")
            for number in numbers
        ]
        scored = [
            self._of_pairs(pairs, aim.eval_negatives, f"{split} negatives")[0]
            for split, pairs in zip(("val", "test"), held_out, strict=True)
        ]
        own = [np.diff(self._cuts(pairs)) for pairs in (trained, *held_out)]
        pairs = PairCounts(
            _mean([sources for sources, _ in of_epochs]),
            np.mean([requests for _, requests in of_epochs], axis=0),
            own[0],
            tuple(scored),
            np.stack(own[1:]),
        )
        return renumbered(A, stays, A.indices, A.shape[1]), pairs

    def _of_pairs(self, pairs: Pairs, many: int, purpose: str) -> tuple[MatrixCounts, Moved]:
        """Counts of the plans that fetch sources, and bytes that ranks send to make them."""
        drawn = pairs.drawn(self.layout.rows, many, self._config.training.seed, purpose)
        place = torch.from_numpy(inverse_permutation(self._ids.numpy()))
        rows, axes = place[drawn], Axes.grid(self.ranks, 1)
        stretches = [slice(*cut) for cut in pairwise(self._cuts(pairs).tolist())]

        def fetched(layout: RowLayout, of_ranks: Sequence[Tensor]) -> MatrixCounts:
            lists = [CSR(Selection(rows, layout.rows)) for rows in of_ranks]
            schemes = [fetch(rows, layout, rank) for rank, rows in enumerate(lists)]
            return count(build_all(schemes, axes), axes, self.ranks_a_node)

        sources = [torch.cat((pairs.sources[one], rows[one].flatten())) for one in stretches]
        rows_fetched = fetched(self.layout, sources)
        even = RowLayout.even(self.layout.rows, self.ranks)
        directory = fetched(even, [drawn[one].flatten() for one in stretches])
        # Ranks tell each other how many rows they want, and which; the directory responds.
        nodes = np.arange(self.ranks) // self.ranks_a_node
        away = np.array([np.count_nonzero(nodes != node) for node in nodes])
        numbers = 2 * BYTES_OF_COUNTS * np.stack((self.ranks - 1 - away, away))
        requests = np.stack((numbers, numbers, 0 * numbers)).astype(np.float64)
        for matrix, response in ((rows_fetched, 0), (directory, _ID)):
            for hop in matrix.hops:
                requests[:2] += BYTES_OF_COLUMN * hop.rows[::-1] + response * hop.rows
        return rows_fetched, requests

    def _cuts(self, pairs: Pairs) -> Int64Array:
        """Offset of each rank's first pair; pairs are in the order of their targets."""
        return np.searchsorted(pairs.targets.numpy(), self.layout.offsets)

    def _estimated(self, algorithm: Algorithm, sampled: int = SAMPLED) -> MatrixCounts:
        """Counts from a sample of vertices, of 1D or 1.5D with whole columns."""
        layout, structure, ranks, c = self.layout, self.dataset.structure, self.ranks, algorithm.c
        own, node = layout.sizes, self.ranks_a_node
        lengths = structure.row_lengths[self.arranged.order].numpy()
        entries = np.diff(np.concatenate(([0], np.cumsum(lengths)))[layout.offsets]) + own
        seen, remote, needed, between = (np.zeros(ranks, np.int64) for _ in range(4))
        share = min(1.0, sampled / max(structure.nnz, 1))
        cuts = np.arange(min(STRETCHES, layout.rows) + 1) * layout.rows
        for first, end in pairwise((cuts // min(STRETCHES, layout.rows)).tolist()):
            last = first + max(1, int(np.ceil((end - first) * share)))
            rows = self.arranged.rows(structure, first, last)
            part = layout.owner(rows.indices.numpy()) // c
            vertex = np.repeat(np.arange(first, last), rows.row_lengths.numpy())
            rank = layout.owner(vertex)
            far = part != rank // c
            remote += np.bincount(rank[far], minlength=ranks)
            travels = np.unique(np.stack((vertex[far], part[far])), axis=1)
            sender = layout.owner(travels[0])
            # Its peer along "row" has the same place in its own block row.
            outside = (travels[1] * c + sender % c) // node != sender // node
            needed += np.bincount(sender, minlength=ranks)
            between += np.bincount(sender[outside], minlength=ranks)
            seen += np.bincount(layout.owner(np.arange(first, last)), minlength=ranks)
        scale = own / np.maximum(seen, 1)
        sent = np.stack(((needed - between) * scale, between * scale)).round().astype(np.int64)
        far_entries = np.minimum(entries, (remote * scale).round().astype(np.int64))

        rows_sent, nobody = sent.sum(axis=0), np.zeros_like(own)
        inside = np.array([[1], [0]])
        peers = inside * np.minimum(ranks // c - 1, rows_sent)
        hop = HopCounts(np.stack((sent, sent)), np.stack((peers, peers)), rows_sent)
        hops = (hop,) if ranks > c else ()
        stages = [
            StageCounts(own * c, own, entries - far_entries, far_entries, 2 * rows_sent, hops)
        ]
        fold = None
        if c > 1:
            added, others = inside * (c - 1) * own, inside * np.full(ranks, c - 1)
            fold = HopCounts(np.stack((added, added)), np.stack((others, others)), added[0])
            stages.append(StageCounts(own, own * c, own, added[0], added[0], (fold,)))
        matrix = _INDEX * (entries + rows_sent) + 2 * _OFFSET * own * c + 2 * _FLOAT * own
        attention = AttentionCounts(
            rows=own,
            columns=own,
            partial=own * c,
            fetched=rows_sent * (ranks > c),
            requested=nobody,
            local=entries - far_entries,
            remote=far_entries,
            summed=nobody,
            buffered=2 * rows_sent,
            fetch=hops,
            sums=None,
            fold=fold,
        )
        return MatrixCounts(
            tuple(stages), matrix, matrix, attention=attention if self._attends else None
        )


def can_be_estimated(config: TrainConfig) -> bool:
    """True if a sample predicts a configuration's traffic: whole columns, no plans of layers."""
    how = config.algorithm
    plain = how.algo in ("1d", "1.5d") and how.cover == "column" and how.node_size == 1
    return plain and not (how.relays or how.recompute_halo or how.prune)


def _mean(matrices: Sequence[MatrixCounts]) -> MatrixCounts:
    """The mean of plans that have one stage of at most one hop."""
    first, stages = matrices[0], [matrix.stages[0] for matrix in matrices]
    hops = []
    for same in zip(*(stage.hops for stage in stages), strict=True):
        rows, peers = np.mean([(hop.rows, hop.peers) for hop in same], axis=0)
        hops.append(replace(same[0], rows=rows, peers=peers))
    return replace(first, stages=(replace(stages[0], hops=tuple(hops)),))
