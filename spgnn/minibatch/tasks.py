"""What is learnt in batches: what labels say of vertices, or which of them are linked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spgnn.comm import Communicator, SoloCommunicator
from spgnn.data.graph import inverse_permutation
from spgnn.data.splits import Pairs
from spgnn.errors import InputError
from spgnn.minibatch.batch import Batch
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.links import LinkNeighborLoader
from spgnn.minibatch.loader import NeighborLoader
from spgnn.minibatch.materials import Materials
from spgnn.minibatch.train import BatchTask
from spgnn.nn.pairs import pairs_cross_entropy
from spgnn.train import Scores
from spgnn.train.links import HELD_OUT, LinkJudge, LinkModel, purpose_of
from spgnn.train.objective import Objective, as_taken
from spgnn.train.task import Predictions

_PAIRS = 1 << 16  # that are scored at once


def task_of(config: MiniBatchConfig, made_of: Materials, comm: Communicator) -> BatchTask:
    """What ``--task`` asks for.

    Raises
    ------
    InputError
        If the data set has nothing of the kind to learn from.
    """
    task = LinkBatches if config.aim.task == "links" else VertexBatches
    return task(config, made_of, comm)


class VertexBatches(BatchTask):
    """A model that finds what labels say of each vertex; seeds are training vertices.

    Parameters
    ----------
    config, made_of, comm
        As of `BatchTask`.
    """

    def __init__(self, config: MiniBatchConfig, made_of: Materials, comm: Communicator) -> None:
        super().__init__(config, made_of, comm, made_of.classes)
        self.objective = Objective.of(
            config.aim,
            made_of.meta.name,
            made_of.y,
            made_of.masks,
            classes=made_of.classes,
            comm=SoloCommunicator(),
        )
        self.criterion = self.objective.criterion
        source = replace(made_of.source, vertices={"y": as_taken(self.objective.kind, made_of.y)})
        fanouts, drawn = config.sampling.fanouts, _drawn(config, comm)
        self.loader = NeighborLoader(source, fanouts, made_of.seeds, **drawn)

    def loss_of(self, batch: Batch) -> Tensor:
        """The mean over the seeds of a batch."""
        out = self.model(batch.x, batch.layers, batch.keys)
        y = batch.y[: batch.batch_size]
        everybody = torch.ones(batch.batch_size, dtype=torch.bool)
        loss = self.objective.loss
        return loss.share(out, y, everybody, float(loss.weight_of(y, everybody)))

    def scores_here(self) -> Scores:
        """Validation loss and scores of the exact model on the whole graph."""
        return self.objective.scores(self.outputs(), SoloCommunicator())

    def predictions(self) -> Predictions:
        """Scores of every vertex, and what follows."""
        scores = self.outputs().float()
        return self.own_share(self.objective.decided(scores) | {"scores": scores})


class LinkBatches(BatchTask):
    """A model that tells links from made-up pairs; seeds are ends of training links.

    The pairs that are held out, and those they are ranked among, are those of
    `spgnn.train.LinkPrediction`. A training link meets other sources at its target that have no
    edge to it, drawn anew in each epoch.

    Parameters
    ----------
    config, made_of, comm
        As of `BatchTask`; the graph has no links but those for training.

    Raises
    ------
    InputError
        If there is no link to learn from.
    """

    def __init__(self, config: MiniBatchConfig, made_of: Materials, comm: Communicator) -> None:
        assert made_of.links is not None
        training, *self.held_out = made_of.links
        if not len(training.targets):
            raise InputError(f"{made_of.meta.name}: no link is left to train on")
        aim, width, seed = config.aim, config.model.hidden, config.training.seed
        super().__init__(config, made_of, comm, width)
        model = LinkModel.of(aim, self.layers, width, seed)
        self.model, self.decoder = model, model.decoder
        self.judge, self.aim, self.seed = LinkJudge.of(aim), aim, seed
        self.criterion = self.judge.criterion
        self.loader = LinkNeighborLoader(
            replace(made_of.source, vertices={}),
            config.sampling.fanouts,
            torch.stack((training.sources, training.targets)),
            neg_sampling_ratio=aim.negatives,
            **_drawn(config, comm),
        )

    def loss_of(self, batch: Batch) -> Tensor:
        """The mean over the links of a batch and over as many made-up ones each."""
        Z = self.layers(batch.x, batch.layers, batch.keys)
        source, target = batch.edge_label_index
        scores = self.decoder(Z[source], Z[target])
        links = len(batch.input_id)
        return pairs_cross_entropy(scores[:links], scores[links:]) / len(scores)

    def scores_here(self) -> Scores:
        """Validation loss, then scores on links for validation and for testing."""
        Z, found = self.outputs(), Scores()
        for split, pairs in zip(HELD_OUT, self.held_out, strict=True):
            scores, total = self._scored(Z, pairs, purpose_of(split)), len(pairs.targets)
            found |= self.judge.of_split(split, *scores, total, SoloCommunicator())
        return found

    def predictions(self) -> Predictions:
        """The embedding of every vertex."""
        return self.own_share({"embedding": self.outputs().float()})

    @property
    def signature(self) -> Mapping[str, Any]:
        """Of the layers and the batches, and the decoder."""
        return {**super().signature, "task": "links", "decoder": self.aim.decoder}

    def _scored(self, Z: Tensor, pairs: Pairs, purpose: str) -> tuple[Tensor, Tensor]:
        """Of links [pairs], and of made-up ones [pairs, count], so many of them at once."""
        source, count = self.made_of.source, self.aim.eval_negatives
        others = pairs.drawn(source.rows, count, self.seed, purpose)
        if source.vertex_ids is not None:
            others = inverse_permutation(source.vertex_ids)[others]
        every = torch.cat((pairs.sources[:, None], others), dim=1)
        step = max(1, _PAIRS // (1 + count))
        parts = [
            self.decoder(Z[some], Z[targets][:, None])
            for some, targets in zip(every.split(step), pairs.targets.split(step), strict=True)
        ]
        scores = torch.cat(parts) if parts else Z.new_empty(0, 1 + count)
        return scores[:, 0], scores[:, 1:]


def _drawn(config: MiniBatchConfig, comm: Communicator) -> dict[str, Any]:
    """How batches are drawn and fetched, in the words of loaders."""
    how = config.sampling
    return {
        "batch_size": how.batch_size,
        "shuffle": True,
        "replace": how.replace,
        "sampler": how.sampler,
        "resample": how.resample,
        "normalise": how.degrees,
        "superbatch": how.superbatch,
        "pack_epochs": config.storage.pack_epochs,
        "prefetch": how.prefetch,
        "num_workers": how.workers,
        "seed": config.training.seed,
        "rank": comm.rank,
        "ranks": comm.size,
    }
