"""Training on batches: the trainer of whole graphs, with a step a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator, broadcast_value
from spgnn.data import GraphMeta
from spgnn.minibatch.batch import Batch
from spgnn.minibatch.config import MiniBatchConfig
from spgnn.minibatch.loader import NeighborLoader
from spgnn.minibatch.materials import Materials
from spgnn.minibatch.together import average_buffers
from spgnn.minibatch.whole import of_all
from spgnn.nn import MODELS, BatchNorm, Stack
from spgnn.store import Rows
from spgnn.train import Scores, Task, Trainer
from spgnn.train.callbacks import Callback
from spgnn.train.task import Predictions, decaying_first


class BatchTask(Task):
    """Something that is learnt batch by batch, where every rank holds the whole graph.

    Parameters
    ----------
    config : MiniBatchConfig
        Settled.
    made_of : Materials
    comm : Communicator
        All ranks, which hold the same.
    outputs : int
        Width of the last layer.

    Attributes
    ----------
    layers : Stack
    model : Module
        All that is trained; here the layers.
    loader : NeighborLoader
        Of this rank's batches.
    """

    loader: NeighborLoader

    def __init__(
        self, config: MiniBatchConfig, made_of: Materials, comm: Communicator, outputs: int
    ) -> None:
        self.made_of, self.comm = made_of, comm
        self.layers = model_of(config, made_of.features, outputs)
        self.model: nn.Module = self.layers
        self.weight_decay = config.training.weight_decay
        self._signature = signature_of(config, made_of.features, outputs, made_of.meta, comm)

    def loss(self, epoch: int) -> Tensor:
        """Of the first batch of an epoch."""
        self.loader.epoch = epoch
        return self.loss_of(next(iter(self.loader)))

    @abstractmethod
    def loss_of(self, batch: Batch) -> Tensor:
        """The mean over the seeds of a batch."""

    @abstractmethod
    def scores_here(self) -> Scores:
        """Validation loss and scores of the exact model on the whole graph."""

    def scores(self) -> Scores:
        """Validation loss and scores, which rank 0 finds for all. Collective."""
        found = self.scores_here() if self.comm.rank == 0 else None
        told: Scores = broadcast_value(self.comm, found)
        return told

    def outputs(self) -> Tensor:
        """What the layers make of every vertex, with all of its neighbours."""
        return of_all(self.layers, self.made_of.source)

    def own_share(self, arrays: Mapping[str, Tensor]) -> Predictions:
        """Of what is known of every vertex this rank's share."""
        ids = torch.arange(self.made_of.source.rows)
        mine = ids.tensor_split(self.comm.size)[self.comm.rank]
        originals = self.made_of.source.ids_of(mine)
        return Predictions(originals, {name: array[mine] for name, array in arrays.items()})

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The first layer decays, as in full-graph training."""
        return decaying_first(self.layers, self.model, self.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, size of the graph, and the batches."""
        return self._signature


class BatchTrainer(Trainer):
    """Trains a `BatchTask`: a step for as many batches as there are ranks, gradients averaged.

    Parameters
    ----------
    task : BatchTask
    config : MiniBatchConfig
    comm : Communicator
    callbacks : sequence of Callback

    Attributes
    ----------
    batches : int
        Of an epoch, over all ranks.
    rows_read : dict of int
        What training has had read of the features.
    """

    task: BatchTask

    def __init__(
        self,
        task: BatchTask,
        config: MiniBatchConfig,
        comm: Communicator,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(task, config.training, comm, callbacks)
        loader = task.loader
        self.batches = loader.batches
        self.steps_per_epoch = -(-self.batches // comm.size)
        self.rows_read = dict.fromkeys(("rows_read", "bytes_read", "hits"), 0)

    def train_epoch(self, epoch: int) -> Tensor:
        """A step for every batch; the mean of their losses. Collective."""
        model, loader = self.task.model.train(), self.task.loader
        loader.epoch, total, own = epoch, torch.zeros(()), 0
        before = self._counts()
        batches: Iterator[Batch] = iter(loader)
        try:
            for step in range(self.steps_per_epoch):
                together = min(self.comm.size, self.batches - step * self.comm.size)
                loss = torch.zeros(())
                for batch in islice(batches, 1):  # in the last step, not for every rank
                    own += 1
                    with self._precision():
                        loss = self.task.loss_of(batch) / together
                    loss.backward()
                    loss = loss.detach()
                total += self._sum_gradients(loss) * together
                if self.options.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), self.options.clip)
                self.optimizer.step()
                self.optimizer.zero_grad()
        finally:
            _closed(batches)
            for name, count in self._counts().items():
                self.rows_read[name] += count - before[name]
        average_buffers(model, self.comm, own)
        return total / max(self.batches, 1)

    def _counts(self) -> dict[str, int]:
        """Of the table of features so far; evaluation reads it as well."""
        x = self.task.loader.source.x
        if not isinstance(x, Rows):
            return dict.fromkeys(self.rows_read, 0)
        counts = x.counts
        return {name: getattr(counts, name) for name in self.rows_read}


def model_of(config: MiniBatchConfig, features: int, classes: int) -> Stack:
    """The model that the flags describe, its weights drawn from the seed."""
    how = config.model
    made = MODELS[how.model].of(
        [features, *_widths(config, classes)],
        dropout=how.dropout,
        input_dropout=how.input_dropout,
        seed=config.training.seed,
        **how.options,
    )
    for module in made.modules():
        if isinstance(module, BatchNorm):
            # The last batch of an epoch may be one vertex without neighbours.
            module.allow_single_element = True
    return made


def signature_of(
    config: MiniBatchConfig, features: int, classes: int, meta: GraphMeta, comm: Communicator
) -> dict[str, Any]:
    """What a checkpoint has to be of: model, layers, seed, size of the graph, and the batches."""
    return {
        **config.model.described,
        "layers": "→".join(map(str, [features, *_widths(config, classes)])),
        "seed": config.training.seed,
        "a graph of": f"{meta.vertices} vertices and {meta.edges} edges",
        "batches of": _batches_of(config, comm.size),
    }


def _batches_of(config: MiniBatchConfig, ranks: int) -> str:
    """What decides which batches there are, in words; the usual is left out."""
    how, where = config.sampling, config.distribution
    if where.distributed == "cluster":
        return (
            f"{where.clusters_a_batch} of {where.clusters} clusters × {ranks} and {where.boundary} "
            "hops around them"
        )
    told = f"{how.batch_size} × {ranks} with {how.num_neighbors} neighbours"
    told += f" by {how.sampler}" if how.sampler != "neighbor" else ""
    told += ", replaced" * how.replace + ", drawn anew in each layer" * how.resample
    # Exact ones are those of ranks that hold the whole graph.
    parts = where.distributed in ("local", "historical")
    return told + f" ({where.distributed})" if parts else told


def _widths(config: MiniBatchConfig, classes: int) -> list[int]:
    return [*[config.model.hidden] * (config.model.layers - 1), classes]


def _closed(batches: Any) -> None:
    close: Callable[[], None] | None = getattr(batches, "close", None)
    if close is not None:
        close()
