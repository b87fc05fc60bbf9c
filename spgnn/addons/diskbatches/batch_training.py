"""Training on batches: what is learnt of them, and a trainer with a step a batch of every rank."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from spgnn import kernels
from spgnn.addons.batches import (
    Batch,
    CopyAhead,
    Counts,
    LinkNeighborLoader,
    MemoryRows,
    Mode,
    NeighborLoader,
    Rows,
    SampledGraph,
    Superbatch,
    features_of,
    relabel,
)
from spgnn.addons.diskbatches.batch_seconds import BatchSeconds
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.addons.diskbatches.minibatch_data import Dataset
from spgnn.addons.diskbatches.superbatch import DiskSuperbatch
from spgnn.comm import Communicator, SoloCommunicator
from spgnn.command import plural
from spgnn.data import GraphMeta, Pairs, labelled
from spgnn.errors import InputError, memory_for
from spgnn.exchange import Algorithm
from spgnn.frontend import check_weights_of, dense_for_reduction, labels_of, masks_of, share_of
from spgnn.frontend import features_of as features_of_share
from spgnn.graph import Block, DistGraph, block_pattern
from spgnn.layout import inverse_permutation
from spgnn.nn import BatchNorm, Stack, pairs_cross_entropy
from spgnn.partition import partition
from spgnn.pattern import Pattern
from spgnn.progress import working
from spgnn.registry import MODELS
from spgnn.sparse import CSR
from spgnn.train import (
    HELD_OUT,
    Callback,
    LinkModel,
    LinkScores,
    Objective,
    Predictions,
    Scores,
    Task,
    Trainer,
    as_taken,
    decaying_first,
    purpose_of,
)

_PIECE = 1 << 16  # rows, or pairs, that are worked on at once


def outputs_of(model: Stack, graph: SampledGraph) -> Tensor:
    """A model's outputs for all vertices of a graph, exact, [n, columns]."""
    x, weight, device = graph.x, graph.edge_weight, next(model.parameters()).device
    in_memory = isinstance(x, MemoryRows | CSR) and isinstance(graph.pattern, Pattern)
    if in_memory and device.type == "cpu":
        assert isinstance(x, MemoryRows | CSR)
        assert isinstance(graph.pattern, Pattern)
        everybody = torch.arange(graph.rows)
        block = Block(
            graph.pattern,
            graph.ids_of(everybody),
            edge_weight=weight,
            degrees=partial(graph.degrees, everybody),
        )
        return model(x.table if isinstance(x, MemoryRows) else x, block)  # type: ignore[no-any-return]
    H, ends = torch.empty(0), graph.pattern.indptr
    for layer in range(model.num_layers):
        parts = []
        for first in range(0, graph.rows, _PIECE):
            targets = torch.arange(first, min(first + _PIECE, graph.rows))
            begin, end = int(ends[first]), int(ends[first + len(targets)])
            indptr = ends[first : first + len(targets) + 1] - begin
            nodes, indices = relabel(targets, indptr, graph.pattern.indices[begin:end])
            block = Block(
                block_pattern(indptr, indices, len(nodes)),
                graph.ids_of(nodes),
                edge_weight=None if weight is None else weight[begin:end],
                degrees=partial(graph.degrees, nodes),
            )
            rows = (
                kernels.gather_rows(H, nodes) if layer else next(features_of(x, [nodes], Counts()))
            )
            assert rows is not None
            call = model.call_of(layer)
            parts.append(model.run_layer(call, rows.to(device), block.to(device)).cpu())
        H = torch.cat(parts)
    return H


class BatchTask(Task):
    """A model that is learnt batch by batch; of a graph on every rank, or of each rank's part."""

    loader: NeighborLoader

    def __init__(
        self,
        config: MiniBatchConfig,
        comm: Communicator,
        meta: GraphMeta,
        features: int,
        outputs: int,
        dataset: Dataset | None = None,
    ) -> None:
        self.config, self.comm, self.meta, self.features = config, comm, meta, features
        self.dataset = dataset
        how = config.model
        widths = [features, *[how.hidden] * (how.layers - 1), outputs]
        self.layers: Stack = MODELS[how.model].of(
            widths,
            dropout=how.dropout,
            input_dropout=how.input_dropout,
            seed=config.training.seed,
            **how.options,
        )
        for module in self.layers.modules():
            if isinstance(module, BatchNorm):
                # The last batch of an epoch may be one vertex without neighbours.
                module.allow_single_element = True
        self.layers.to(comm.device)
        self.model: nn.Module = self.layers
        self.copies = None if comm.device.type == "cpu" else CopyAhead(comm.device)
        self._signature = {
            **how.described,
            "layers": "→".join(map(str, widths)),
            "seed": config.training.seed,
            "a graph of": f"{meta.vertices} vertices and {meta.edges} edges",
            "batches of": _batches_of(config, comm.size),
        }

    def loss(self, epoch: int) -> Tensor:
        """The loss of the first batch of an epoch."""
        self.loader.epoch = epoch
        loss, _ = self.loss_of(next(iter(self.loader)))
        assert loss is not None
        return loss

    @abstractmethod
    def loss_of(self, batch: Batch | None) -> tuple[Tensor | None, float]:
        """The mean over the seeds of a batch, and their weight; nothing of no batch."""

    def outputs(self) -> Tensor:
        """The layers' outputs for every vertex, of all of its neighbours."""
        assert self.dataset is not None
        return outputs_of(self.layers, self.dataset.graph)

    def own_share(self, arrays: Mapping[str, Tensor]) -> Predictions:
        """The share of this rank of arrays of every vertex, which all ranks hold."""
        assert self.dataset is not None
        source = self.dataset.graph
        mine = torch.arange(source.rows).tensor_split(self.comm.size)[self.comm.rank]
        return Predictions(source.ids_of(mine), {name: a[mine] for name, a in arrays.items()})

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The first layer decays, as in full-graph training."""
        return decaying_first(self.layers, self.model, self.config.training.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, size of the graph, and the batches."""
        return self._signature

    def state(self) -> dict[str, Any]:
        """The state of the mode of batches, if it has any. Collective."""
        strategy = self.loader.strategy
        return {} if strategy is None else strategy.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`. Collective."""
        assert self.loader.strategy is not None
        self.loader.strategy.load_state(state)

    def finish(self) -> None:
        """Wait for what the loader has under way. Collective."""
        if self.loader.strategy is not None:
            self.loader.strategy.close()


class VertexBatches(BatchTask):
    """Learns what labels say of each vertex; seeds are training vertices. Collective."""

    def __init__(
        self, config: MiniBatchConfig, comm: Communicator, dataset: Dataset | None = None
    ) -> None:
        self.partition_report: Any = None
        if dataset is None:
            self._on_parts(config, comm)
            return
        solo = SoloCommunicator()  # rank 0 evaluates for all
        self.classes = dataset.classes
        super().__init__(config, comm, dataset.meta, dataset.features, self.classes, dataset)
        self.objective = Objective.of(
            config.aim, dataset.meta.name, dataset.y, dataset.masks, classes=self.classes, comm=solo
        )
        self.criterion = self.objective.criterion
        y = as_taken(self.objective.kind, dataset.y)
        source = replace(dataset.graph, vertices={"y": y})
        options = loader_options(config, comm, dataset)
        if config.sampling.seed_clusters:
            count = config.sampling.seed_clusters
            with working(f"finding {plural(count, 'cluster')}", shown=comm.rank == 0):
                labels, _ = partition(
                    CSR(source.structure),
                    count,
                    seed=config.training.seed,
                    preset="fast",
                    balance=("vertices",),
                    minimum=False,
                )
            options["seed_clusters"] = torch.from_numpy(labels).long()[dataset.seeds]
        if self.copies is not None:
            options["transform"] = self.copies
            if isinstance(source.x, Rows):
                source.x.pinned = True
        self.loader = NeighborLoader(source, config.sampling.fanouts, dataset.seeds, **options)

    def _on_parts(self, config: MiniBatchConfig, comm: Communicator) -> None:
        # Whole rows are fetched, whatever full-graph training exchanges.
        whole, how = config.of_whole_graph().but(cover="column"), config.distribution
        share, self.partition_report = share_of(whole, comm, how.balance.split(","))
        check_weights_of(whole, share, comm)
        y, self.classes = comm.on_every_rank(lambda: labels_of(whole, share))
        masks = masks_of(share.data, share.vertex_ids, y, config.training.seed)
        self.objective = Objective.of(
            config.aim, share.meta.name, y, masks, classes=self.classes, comm=comm
        )
        self.criterion = self.objective.criterion
        with memory_for(f"the features of {share.meta.name}"):
            x = comm.on_every_rank(
                lambda: dense_for_reduction(whole, features_of_share(whole, share))
            )
        y = as_taken(self.objective.kind, y)
        data = replace(share.data, x=x, y=y, train_mask=masks[0] & labelled(y))
        self.share = replace(share, data=data)
        super().__init__(config, comm, share.meta, int(x.shape[1]), self.classes)
        assert config.mode is not None
        self.loader = self.part_loader(config.mode.of(config.options, self.layers))

    def part_loader(self, mode: Mode) -> NeighborLoader:
        """Batches of this rank, of all ranks' parts. Collective."""
        options = loader_options(self.config, self.comm)
        for name in ("rank", "ranks", "fixed"):
            del options[name]
        options["superbatch"] = options["superbatch"].size
        options |= {"mode": mode, "comm": self.comm}
        return NeighborLoader(self.share, self.config.sampling.fanouts, "train_mask", **options)

    @cached_property
    def graph(self) -> DistGraph:
        """The whole graph of all ranks' parts, for evaluation. Collective when first asked for."""
        return DistGraph(self.share, self.comm, Algorithm())

    def loss_of(self, batch: Batch | None) -> tuple[Tensor | None, float]:
        if batch is None:
            return None, 0.0
        strategy = self.loader.strategy
        if not batch.batch_size:
            return None if strategy is None else strategy.join(self.layers, batch), 0.0
        there = batch if self.copies is None else self.copies.arrived(batch)
        # Few rows: the loss is the host's, as labels are.
        out = self.model(there.x, there.layers, there.keys).cpu()
        y: Tensor = batch.y[: batch.batch_size]
        everybody = torch.ones(batch.batch_size, dtype=torch.bool)
        loss = self.objective.loss
        weight = float(loss.weight_of(y, everybody))
        if not weight and strategy is not None:
            return out.sum() if strategy.is_shared else None, 0.0
        return loss.share(out, y, everybody, weight), weight

    def scores(self) -> Scores:
        """Validation loss and scores of the exact model on the whole graph. Collective."""
        if self.dataset is None:
            return self.objective.scores(self.outputs(), self.comm)
        scores: Scores = self.comm.from_rank_zero(
            lambda: self.objective.scores(self.outputs(), SoloCommunicator())
        )
        return scores

    def outputs(self) -> Tensor:
        if self.dataset is not None:
            return super().outputs()
        out: Tensor = self.model(self.share.data.x, self.graph)
        return out

    def predictions(self) -> Predictions:
        """Scores of every vertex, or every own one, and what follows."""
        scores = self.outputs().float()
        arrays = self.objective.decided(scores) | {"scores": scores}
        if self.dataset is not None:
            return self.own_share(arrays)
        return Predictions(self.share.vertex_ids, arrays)


class LinkBatches(BatchTask):
    """Learns to tell links from made-up pairs; seeds are ends of training links."""

    def __init__(self, config: MiniBatchConfig, comm: Communicator, dataset: Dataset) -> None:
        assert dataset.links is not None
        training, *self.held_out = dataset.links
        if not len(training.targets):
            raise InputError(f"{dataset.meta.name}: no link is left to train on")
        aim, width, seed = config.aim, config.model.hidden, config.training.seed
        super().__init__(config, comm, dataset.meta, dataset.features, width, dataset)
        self.classes = 0
        model = LinkModel.of(aim, self.layers, width, seed)
        self.model, self.decoder = model, model.decoder
        self.link_scores, self.aim, self.seed = LinkScores.of(aim), aim, seed
        self.criterion = self.link_scores.criterion
        self._signature |= {"task": "links", "decoder": aim.decoder}
        self.loader = LinkNeighborLoader(
            replace(dataset.graph, vertices={}),
            config.sampling.fanouts,
            torch.stack((training.sources, training.targets)),
            neg_sampling_ratio=aim.negatives,
            **loader_options(config, comm, dataset),
        )

    def loss_of(self, batch: Batch | None) -> tuple[Tensor | None, float]:
        """The mean over the links of a batch and over as many made-up ones each."""
        if batch is None:
            return None, 0.0
        Z = self.layers(batch.x, batch.layers, batch.keys)
        source, target = batch.edge_label_index
        scores = self.decoder(Z[source], Z[target])
        links = len(batch.input_id)
        loss = pairs_cross_entropy(scores[:links], scores[links:]) / len(scores)
        return loss, float(len(scores))

    def scores(self) -> Scores:
        """Validation loss, then scores on links for validation and for testing. Collective."""
        scores: Scores = self.comm.from_rank_zero(self._scores_here)
        return scores

    def _scores_here(self) -> Scores:
        Z, scores = self.outputs(), Scores()
        for split, pairs in zip(HELD_OUT, self.held_out, strict=True):
            parts, total = self._score(Z, pairs, purpose_of(split)), len(pairs.targets)
            scores |= self.link_scores.of_split(split, *parts, total, SoloCommunicator())
        return scores

    def predictions(self) -> Predictions:
        """The embedding of every vertex."""
        return self.own_share({"embedding": self.outputs().float()})

    def _score(self, Z: Tensor, pairs: Pairs, purpose: str) -> tuple[Tensor, Tensor]:
        """Scores of links [pairs], and of made-up ones [pairs, count]."""
        assert self.dataset is not None
        source, count = self.dataset.graph, self.aim.eval_negatives
        others = pairs.drawn(source.rows, count, self.seed, purpose)
        if source.vertex_ids is not None:
            place = inverse_permutation(source.vertex_ids.numpy())
            others = torch.from_numpy(place)[others]
        every = torch.cat((pairs.sources[:, None], others), dim=1)
        step = max(1, _PIECE // (1 + count))
        parts = [
            self.decoder(Z[some], Z[targets][:, None])
            for some, targets in zip(every.split(step), pairs.targets.split(step), strict=True)
        ]
        scores = torch.cat(parts) if parts else Z.new_empty(0, 1 + count)
        return scores[:, 0], scores[:, 1:]


def loader_options(
    config: MiniBatchConfig, comm: Communicator, dataset: Dataset | None = None
) -> dict[str, Any]:
    """The flags as arguments of a loader."""
    how, superbatch = config.sampling, Superbatch(config.superbatch or 1)
    if dataset is not None and dataset.scratch is not None:
        superbatch = DiskSuperbatch(superbatch.size, dataset.scratch, how.overlap)
    return {
        "batch_size": how.batch_size,
        "shuffle": True,
        "replace": how.replace,
        "sampler": how.sampler,
        "resample": how.resample,
        "normalise": how.degrees,
        "superbatch": superbatch,
        "fixed": how.fixed,
        "prefetch": how.prefetch,
        "num_workers": how.workers,
        "seed": config.training.seed,
        "rank": comm.rank,
        "ranks": comm.size,
    }


def _batches_of(config: MiniBatchConfig, ranks: int) -> str:
    """Options that decide which batches there are, in words; the usual is left out."""
    how, mode = config.sampling, config.mode
    text = f"{how.batch_size} × {ranks} with {how.num_neighbors} neighbours"
    text += f" by {how.sampler}" if how.sampler != "neighbor" else ""
    text += f", in {how.seed_clusters} clusters" if how.seed_clusters else ""
    text += (
        ", the same in each epoch" * how.fixed
        + ", replaced" * how.replace
        + ", drawn anew in each layer" * how.resample
    )
    return text if mode is None else mode.describe(text, config.options, ranks)


class BatchTrainer(Trainer):
    """A step for a batch of every rank, gradients averaged."""

    task: BatchTask

    def __init__(
        self,
        task: BatchTask,
        config: MiniBatchConfig,
        comm: Communicator,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(task, options=config.training, callbacks=callbacks)
        self.steps_per_epoch = task.loader.steps
        self.rows_read = dict.fromkeys(("rows_read", "bytes_read", "reads", "hits"), 0)
        strategy = task.loader.strategy
        self.clock = BatchSeconds(comm, lambda: (0, 0) if strategy is None else strategy.pushed)
        # Steps of the others are not of the same size.
        self._by_weight = strategy is not None and not strategy.is_whole
        self._is_shared = strategy is not None and strategy.is_shared

    def train_epoch(self, epoch: int) -> Tensor:
        """All steps; the mean of their losses. Collective."""
        model, loader, clock = self.task.model.train(), self.task.loader, self.clock
        loader.epoch, totals, own = epoch, torch.zeros(2), 0
        before = self._counts()
        clock.begin()
        batches: Iterator[Batch | None] = iter(loader)
        try:
            for step in range(self.steps_per_epoch):
                batch = next(batches, None)
                clock.lap("sampling")
                with self._precision():
                    loss, weight = self.task.loss_of(batch)
                clock.lap("forward")
                if loss is not None:
                    own += weight > 0
                    (loss * weight if self._is_shared else loss).backward()
                clock.lap("backward")
                totals += self.update(step, loss, weight)
            next(batches, None)  # historical: pushes follow the last batch as well
        finally:
            batches.close()  # type: ignore[attr-defined]  # a generator
            for name, count in self._counts().items():
                self.rows_read[name] += count - before[name]
        clock.lap("sampling")
        average_buffers(model, self.comm, own)
        totals = self.total(totals)
        clock.lap("allreduce")
        return totals[0] / totals[1].clamp(min=1e-30)

    def update(self, step: int, loss: Tensor | None, weight: float) -> Tensor:
        """Learn of a step's gradients; its loss times its weight, and the weight. Collective."""
        mean, total = average_gradients(
            self.task.model, self.comm, weight, loss, weighted=self._is_shared
        )
        self.clock.lap("allreduce")
        self._step()
        total = total if self._by_weight else torch.ones(())
        self.clock.lap("other")
        return torch.stack((mean * total, total))

    def total(self, totals: Tensor) -> Tensor:
        """The sums of an epoch over all ranks, of what `update` returned. Collective."""
        return totals

    def _step(self) -> None:
        if self.options.clip:
            nn.utils.clip_grad_norm_(self._parameters, self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _counts(self) -> dict[str, int]:
        """Rows that were read of the table of features so far; evaluation reads it as well."""
        whole = self.task.dataset
        if whole is None or not isinstance(whole.graph.x, Rows):
            return dict.fromkeys(self.rows_read, 0)
        counts = whole.graph.x.counts
        return {name: getattr(counts, name) for name in self.rows_read}


def average_gradients(
    model: nn.Module,
    comm: Communicator,
    weight: float,
    loss: Tensor | None = None,
    *,
    weighted: bool = False,
) -> Tensor:
    """Make every gradient the weighted mean of those of all ranks. Collective; one all-reduce.

    With `weighted`, gradients are multiplied by weights already, and count on all ranks.

    Returns the mean of the losses and the sum of the weights, [2].
    """
    learning = [p for p in model.parameters() if p.requires_grad]
    counts = weighted or weight
    gradients = [torch.zeros_like(p) if p.grad is None or not counts else p.grad for p in learning]
    if comm.size == 1 and weight and loss is not None and not weighted:  # no rounding
        for parameter, gradient in zip(learning, gradients, strict=True):
            parameter.grad = gradient
        return torch.stack((loss.detach(), loss.new_tensor(weight)))
    own = gradients[0].new_zeros(()) if loss is None or not weight else loss.detach()
    own = own.to(gradients[0].device)
    sums = [*gradients, own * weight] if weighted else [t * weight for t in (*gradients, own)]
    (*means, mean), total = means_over_ranks(sums, weight, comm)
    for parameter, gradient in zip(learning, means, strict=True):
        parameter.grad = gradient.clone()
    return torch.stack((mean, total)).cpu()


def average_buffers(model: nn.Module, comm: Communicator, weight: float) -> None:
    """Make running moments the weighted mean of those of all ranks. Collective; one all-reduce."""
    moments = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if comm.size == 1 or not moments:
        return
    means, total = means_over_ranks([moment.double() * weight for moment in moments], weight, comm)
    if not total:
        return
    for moment, mean in zip(moments, means, strict=True):
        moment.copy_(mean)
    for buffer in model.buffers():
        if not buffer.is_floating_point():
            buffer.fill_(comm.agree(int(buffer)))


def means_over_ranks(
    tensors: Sequence[Tensor], weight: float, comm: Communicator
) -> tuple[list[Tensor], Tensor]:
    """The sum of each over all ranks, over that of the weights; and the latter."""
    flat = torch.cat([*(t.reshape(-1) for t in tensors), tensors[0].new_tensor([weight])])
    comm.all_reduce(flat).wait()
    total = flat[-1].clone()
    flat /= total.clamp(min=torch.finfo(flat.dtype).tiny)
    parts = flat[:-1].split([t.numel() for t in tensors])
    return [part.view_as(t) for part, t in zip(parts, tensors, strict=True)], total
