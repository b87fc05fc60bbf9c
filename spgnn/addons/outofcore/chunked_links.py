"""Links learnt on a graph that is larger than memory: pairs are scored chunk by chunk.

Links to train on are edges of the matrix, which are read once more; embeddings of all own vertices
and their gradients are in memory, for the ends of pairs are anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgnn.addons.outofcore.adjacency import even_bounds
from spgnn.addons.outofcore.blocks import Blocks, MatrixStorage
from spgnn.addons.outofcore.chunked_graph import ChunkedDataset, ids_of
from spgnn.addons.outofcore.chunked_task import ChunkedTask
from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data import Directory, Pairs, hold_out, of_columns
from spgnn.direct import Transfers
from spgnn.errors import InputError
from spgnn.exchange import Step
from spgnn.nn import DropoutKeys, ScoredPairs, pairs_cross_entropy, weights_of
from spgnn.sparse import CSR
from spgnn.train import (
    HELD_OUT,
    LinkModel,
    LinkScores,
    Predictions,
    Scores,
    purpose_of,
    scored_pairs,
)


def without_held_out(
    config: TrainConfig,
    dataset: ChunkedDataset,
    comm: Communicator,
    scratch: Path | None,
    counts: Transfers,
) -> ChunkedDataset:
    """The same without links for validation and testing, in a directory or memory. Collective."""
    first, last = dataset.layout.range(comm.rank)
    chunks = 1 if scratch is None else 64
    blocks = dataset.blocks.cut(even_bounds(dataset.blocks.start, last - first, chunks))
    held_out = [list[Pairs]() for _ in HELD_OUT]

    def left_over() -> Iterator[CSR]:
        for left, (_, *pairs) in pairs_of(config, dataset, blocks, comm):
            for every, here in zip(held_out, pairs, strict=True):
                every.append(here)
            yield left

    rest = MatrixStorage(scratch, counts).copied("links", blocks.columns, left_over())
    rest = rest.cut((0, last - first))
    meta = replace(dataset.meta, edges=comm.agree(rest.start(last - first), "sum"))
    links = [_of_each(lambda *each: torch.cat(each), *pairs) for pairs in held_out]
    return replace(dataset, meta=meta, blocks=rest, links=links)


def pairs_of(
    config: TrainConfig, dataset: ChunkedDataset, blocks: Blocks, comm: Communicator
) -> Iterator[tuple[CSR, list[Pairs]]]:
    """Chunk by chunk, edges that stay, and links to train on, to validate and to test. Collective.

    Targets of pairs are own rows.
    """
    aim, directed = config.aim, dataset.meta.directed
    own, shares = ids_of(dataset.ids, 0, blocks.bounds[-1]), (aim.val_links, aim.test_links)
    for chunk, block in blocks.stream():
        begin, end = blocks.bounds[chunk : chunk + 2]
        sources, _ = of_columns(own, block, dataset.layout, comm)
        how: dict[str, Any] = {"seed": config.training.seed, "directed": directed}
        left, pairs, _ = hold_out(block, own[begin:end], sources, shares, **how)
        yield left, [replace(each, targets=each.targets + begin) for each in pairs]


def _of_each(function: Callable[..., Tensor], *pairs: Pairs) -> Pairs:
    """A function of each array of some pairs."""
    return Pairs(*(function(*(getattr(p, field.name) for p in pairs)) for field in fields(Pairs)))


class ChunkedLinks(ChunkedTask):
    """Links told from pairs that are made up; as `LinkPrediction` does in memory. Collective."""

    def _learn(self, dataset: ChunkedDataset) -> None:
        config, comm, graph = self.config, self.comm, self.graph
        aim, seed = config.aim, config.training.seed
        self._dataset, self._edges = replace(dataset, X=None), dataset.blocks.cut(graph.bounds)
        self.reads_besides = self._edges.nbytes
        self._directory = Directory(graph.vertex_ids, dataset.layout, comm)
        counts = torch.tensor([0, *(len(pairs.targets) for pairs in dataset.links)])
        for _, (train, *_) in self._chunks():
            counts[0] += len(train.targets)
        comm.all_reduce(counts).wait()
        self._counts: list[int] = counts.tolist()
        if not self._counts[0]:
            raise InputError(f"{self.meta.name}: no link is left to train on")
        model = LinkModel.of(aim, self.layers, config.model.hidden, seed)
        self.model, self.decoder = model.to(weights_of(config.training.dtype)), model.decoder
        self._pass.take(self.decoder.parameters())
        self._training = self._evaluation = graph.whole
        self.link_scores = LinkScores.of(aim)
        self.criterion = self.link_scores.criterion

    def _chunks(self) -> Iterator[tuple[CSR, list[Pairs]]]:
        return pairs_of(self.config, self._dataset, self._edges, self.comm)

    def _drawn(self, pairs: Pairs, negatives: int, purpose: str) -> ScoredPairs:
        """Some links, with so many made-up ones each. Collective."""
        seed, layout = self.config.training.seed, self._dataset.layout
        how = seed, purpose, self._directory, layout, self.graph.mesh
        return scored_pairs(pairs, negatives, *how)[0]

    def _loss_of(self, keys: DropoutKeys) -> Tensor:
        """The share of pairs at own targets; embeddings, and the decoder, get their gradients."""
        negatives = self.config.aim.negatives

        def scored(Z: Tensor, dZ: Tensor) -> Tensor:
            total = torch.zeros((), dtype=Z.dtype)
            for _, (train, *_) in self._chunks():
                drawn = self._drawn(train, negatives, f"negatives of epoch {keys.epoch}")
                with torch.no_grad():
                    sources, targets = (rows.requires_grad_() for rows in drawn.ends(Z))
                loss = pairs_cross_entropy(*drawn.scores_of(sources, targets, self.decoder))
                share = loss / ((1 + negatives) * self._counts[0])
                share.backward()
                total += share.detach()
                assert sources.grad is not None
                assert targets.grad is not None
                dZ.index_add_(0, drawn.targets, targets.grad)
                dZ += drawn.sources.adjoint(sources.grad, Step(adjoint=True))
            return total

        return self._pass.loss_of_all(self._training, keys, scored)

    def scores(self) -> Scores:
        """Validation loss, then scores on links for validation and for testing. Collective."""
        Z, result, bounds = self.all_outputs().clone(), Scores(), torch.tensor(self.graph.bounds)
        self.graph.give_back()  # for pairs look anywhere
        negatives = self.config.aim.eval_negatives
        for split, pairs, total in zip(
            HELD_OUT, self._dataset.links, self._counts[1:], strict=True
        ):
            parts = []
            for low, high in pairwise(torch.searchsorted(pairs.targets, bounds).tolist()):
                here = _of_each(lambda each, low=low, high=high: each[low:high], pairs)
                drawn = self._drawn(here, negatives, purpose_of(split))
                parts.append(drawn.scores(Z, self.decoder))
            links, others = (torch.cat(scores) for scores in zip(*parts, strict=True))
            result |= self.link_scores.of_split(split, links, others, total, self.comm)
        return result

    def predictions(self) -> Predictions:
        """The embedding (float32 [own rows, width]) of every own vertex. Collective."""
        arrays = {"embedding": self.all_outputs().float()}
        return Predictions(self.graph.vertex_ids, arrays, self.graph.give_back)

    @property
    def signature(self) -> Mapping[str, Any]:
        """As of vertices, with the decoder."""
        return {**super().signature, "task": "links", "decoder": self.config.aim.decoder}


def task_of(
    config: TrainConfig, comm: Communicator, idle_bytes: int, outputs: int | None = None
) -> ChunkedTask:
    """The task of a configuration; with `outputs` to apply a model. Collective."""
    links = outputs is None and config.aim.task == "links"
    return (ChunkedLinks if links else ChunkedTask)(config, comm, idle_bytes, outputs)
