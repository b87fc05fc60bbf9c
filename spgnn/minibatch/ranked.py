"""Mini-batch training where each rank holds its part of the graph alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator, on_every_rank
from spgnn.data.distribute import RankShare
from spgnn.data.graph import labelled
from spgnn.errors import memory_for
from spgnn.exchange import Algorithm
from spgnn.graph import DistGraph
from spgnn.minibatch.batch import Batch
from spgnn.minibatch.cluster import ClusterLoader
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.correction import Correction
from spgnn.minibatch.counts import Sampled
from spgnn.minibatch.distributed import DistributedLoader
from spgnn.minibatch.historical import History
from spgnn.minibatch.local import HistoricalLoader, PartialBatch, hidden_widths
from spgnn.minibatch.rank import RankGraph
from spgnn.minibatch.together import average_buffers, average_gradients
from spgnn.minibatch.train import model_of, signature_of
from spgnn.nn import Stack
from spgnn.train import Scores, Task, Trainer
from spgnn.train.callbacks import Callback
from spgnn.train.objective import Objective, as_taken
from spgnn.train.setup import (
    check_weights_of,
    dense_for_max,
    features_of,
    labels_of,
    masks_of,
    share_of,
)
from spgnn.train.task import Predictions, decaying_first

AnyBatch = Batch | PartialBatch


class Rounds(Protocol):
    """A loader of all ranks together; each round has a batch for every rank, or ``None``.

    Attributes
    ----------
    epoch : int
    ranks : RankGraph
    sampled : Sampled
    """

    epoch: int
    ranks: RankGraph
    sampled: Sampled

    def __len__(self) -> int:
        """Rounds of an epoch, the same on all ranks."""

    def __iter__(self) -> Iterator[Any]:
        """The rounds of the next epoch. Collective."""


class RankedTask(Task):
    """A model that finds what labels say of each vertex, learnt from one part of the graph each.

    Made on all ranks together.

    Parameters
    ----------
    config : MiniBatchConfig
        Settled.
    comm : Communicator
        All ranks.

    Attributes
    ----------
    model : Stack
    loader : Rounds
    share : RankShare
        With features and labels as the model takes them.
    """

    model: Stack

    def __init__(self, config: MiniBatchConfig, comm: Communicator) -> None:
        self.comm = comm
        whole, how = config.of_whole_graph(), config.distribution
        share, self.partition_report = share_of(whole, comm, how.balance.split(","))
        check_weights_of(whole, share, comm)
        y, self.classes = on_every_rank(comm, lambda: labels_of(whole, share))
        masks = masks_of(share.data, share.vertex_ids, y, config.training.seed)
        self.objective = Objective.of(
            config.aim, share.meta.name, y, masks, classes=self.classes, comm=comm
        )
        self.criterion = self.objective.criterion
        with memory_for(f"the features of {share.meta.name}"):
            x = on_every_rank(comm, lambda: dense_for_max(whole, features_of(whole, share)))
        taken = as_taken(self.objective.kind, y)
        data = replace(share.data, x=x, y=taken, train_mask=masks[0] & labelled(y))
        self.share = replace(share, data=data)
        self.features = int(x.shape[1])
        self.model = model_of(config, self.features, self.classes)
        self.weight_decay = config.training.weight_decay
        self.loader = _loader(config, self.share, self.model, comm)
        self._signature = signature_of(config, self.features, self.classes, share.meta, comm)

    @cached_property
    def graph(self) -> DistGraph:
        """The whole graph, for evaluation. Collective when first asked for."""
        return DistGraph(self.share, self.comm, Algorithm())

    def loss(self, epoch: int) -> Tensor:
        """Of the first round of an epoch."""
        self.loader.epoch = epoch
        loss, _ = self.loss_of(next(iter(self.loader)))
        assert loss is not None
        return loss

    def loss_of(self, batch: AnyBatch | None) -> tuple[Tensor | None, float]:
        """The mean over the seeds of a batch, and what they weigh; nothing of no batch."""
        if batch is None or not batch.batch_size:
            return None, 0.0
        out = self.model(batch.x, batch.layers, batch.keys)
        y: Tensor = batch.y[: batch.batch_size]  # type: ignore[index]  # a task has labels
        everybody = torch.ones(batch.batch_size, dtype=torch.bool)
        loss = self.objective.loss
        weight = float(loss.weight_of(y, everybody))
        if not weight:
            return None, 0.0
        return loss.share(out, y, everybody, weight), weight

    def scores(self) -> Scores:
        """Validation loss and scores of the exact model on the whole graph. Collective."""
        return self.objective.scores(self.outputs(), self.comm)

    def outputs(self) -> Tensor:
        """What the model makes of own vertices, with all of their neighbours. Collective."""
        made: Tensor = self.model(self.share.data.x, self.graph)
        return made

    def predictions(self) -> Predictions:
        """Scores of every own vertex, and what follows."""
        scores = self.outputs().float()
        arrays = self.objective.decided(scores) | {"scores": scores}
        return Predictions(self.share.vertex_ids, arrays)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The first layer decays, as in full-graph training."""
        return decaying_first(self.model, self.model, self.weight_decay)

    def close(self) -> None:
        """Wait for what the loader has under way, when training is over. Collective."""
        if isinstance(self.loader, HistoricalLoader):
            self.loader.drain()

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, size of the graph, and the batches."""
        return self._signature


class RankedTrainer(Trainer):
    """Trains a `RankedTask`: a step a round, gradients averaged; or local steps, corrected.

    Parameters
    ----------
    task : RankedTask
    config : MiniBatchConfig
    comm : Communicator
    callbacks : sequence of Callback
    """

    task: RankedTask

    def __init__(
        self,
        task: RankedTask,
        config: MiniBatchConfig,
        comm: Communicator,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(task, config.training, comm, callbacks)
        self.steps_per_epoch = len(task.loader)
        self._by_seeds = config.distribution.distributed != "exact"
        self._correction = _correction(config, task, comm)

    def train_epoch(self, epoch: int) -> Tensor:
        """A step for every round; the mean of their losses. Collective."""
        loader, correction = self.task.loader, self._correction
        self.task.model.train()
        loader.epoch, totals, own = epoch, torch.zeros(2), 0
        for step, batch in enumerate(loader):
            with self._precision():
                loss, weight = self.task.loss_of(batch)
            if loss is not None:
                own += 1
                loss.backward()
                weight = weight if self._by_seeds else 1.0
            if correction is None:
                mean, weight = average_gradients(self.task.model, self.comm, weight, loss)
                self._step()
                totals += torch.stack((mean * weight, weight))
                continue
            if loss is not None:
                self._step()
                totals += torch.stack((loss.detach() * weight, loss.new_tensor(weight)))
            correction.after(step, len(loader), self.optimizer.param_groups[0]["lr"])
        average_buffers(self.task.model, self.comm, own)
        if correction is not None:
            self.comm.all_reduce(totals).wait()
        return totals[0] / totals[1].clamp(min=1e-30)

    def _step(self) -> None:
        if self.options.clip:
            nn.utils.clip_grad_norm_(self._parameters, self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _correction(config: MiniBatchConfig, task: RankedTask, comm: Communicator) -> Correction | None:
    how = config.distribution
    if not how.correct_every:
        return None
    exact = _exact(config, task.share, comm)
    return Correction(
        task, exact, config.training, every=how.correct_every, steps=how.correct_steps
    )


def _loader(config: MiniBatchConfig, share: RankShare, model: Stack, comm: Communicator) -> Rounds:
    how, sampling = config.distribution, config.sampling
    if how.distributed == "exact":
        return _exact(config, share, comm)
    of_graph = sampling.degrees == "graph"
    if how.distributed == "cluster":
        return ClusterLoader(
            share,
            comm,
            len(sampling.fanouts),
            clusters=how.clusters,
            each=how.clusters_a_batch,
            boundary=how.boundary,
            of_graph=of_graph,
            prefetch=sampling.prefetch > 0,
            seed=config.training.seed,
        )
    history = History.parsed(str(how.historical)) if how.distributed == "historical" else None
    return HistoricalLoader(
        share,
        comm,
        sampling.fanouts,
        hidden_widths(model),
        history=history,
        batch_size=sampling.batch_size,
        shuffle=True,
        replace=sampling.replace,
        misses=how.misses,
        dtype=torch.bfloat16 if how.past == "bfloat16" else torch.float32,
        of_graph=of_graph,
        prefetch=sampling.prefetch,
        seed=config.training.seed,
    )


def _exact(config: MiniBatchConfig, share: RankShare, comm: Communicator) -> DistributedLoader:
    sampling = config.sampling
    return DistributedLoader(
        share,
        comm,
        sampling.fanouts,
        batch_size=sampling.batch_size,
        sampler=sampling.sampler,
        shuffle=True,
        replace=sampling.replace,
        resample=sampling.resample,
        of_graph=sampling.degrees == "graph",
        superbatch=sampling.superbatch,
        prefetch=sampling.prefetch > 0,
        seed=config.training.seed,
    )
