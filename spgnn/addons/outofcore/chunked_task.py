"""Vertices' labels learnt on a graph that is larger than memory, chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spgnn.addons.outofcore.adjacency import even_bounds
from spgnn.addons.outofcore.blocks import Blocks, FileBlocks, FileExtent
from spgnn.addons.outofcore.chunked_graph import ChunkedDataset, ChunkedGraph, Labels, ids_of
from spgnn.addons.outofcore.passes import ChunkedPass
from spgnn.addons.outofcore.steps import chunked
from spgnn.addons.outofcore.storage import Storage
from spgnn.addons.outofcore.tables import memory_rows
from spgnn.autograd import with_backward
from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data import ShardDirectory, VertexData, is_graph_file, labelled, open_shards
from spgnn.direct import Transfers, keep_pages
from spgnn.errors import InputError, memory_for
from spgnn.files import scratch_directory
from spgnn.frontend import (
    check_edge_features,
    dense_for_reduction,
    is_cut,
    made_up_labels,
    masks_of,
    normalisation_of,
    random_features,
    share_of,
)
from spgnn.nn import DropoutKeys, multiplied_in, weights_of
from spgnn.progress import ProgressBar, working
from spgnn.registry import OPENERS
from spgnn.sparse import CSR
from spgnn.train import (
    Objective,
    Predictions,
    Scores,
    Task,
    as_taken,
    decaying_first,
    gathered,
    graph_section,
    model_of,
)

# Times the bytes of a file of edges that reading it in memory is assumed to take.
_READ_IN_MEMORY = 8


class ChunkedTask(Task):
    """Labels of vertices, learnt by a model whose rows are processed in chunks. Collective."""

    has_budget = True
    reads_besides = 0  # bytes of an epoch that are no layer's

    def __init__(
        self, config: TrainConfig, comm: Communicator, idle_bytes: int, outputs: int | None = None
    ) -> None:
        self.comm, self.config = comm, config
        self.counts, self.moved = Transfers(), Transfers()
        self._scratch = ExitStack()
        with memory_for(f"the rows of {config.data.dataset}"):
            try:
                self._open(idle_bytes, outputs)
            except BaseException:
                self._scratch.close()
                keep_pages(None)
                raise

    def _open(self, idle_bytes: int, outputs: int | None) -> None:
        config, comm = self.config, self.comm
        directory, spill = None, config.extension(Storage).spill
        if spill is not None:
            scratch = scratch_directory(spill, f"--spill {spill}")
            directory = comm.on_every_rank(lambda: self._scratch.enter_context(scratch))
        with working(f"reading {config.data.dataset}", shown=comm.rank == 0):
            dataset = open_dataset(config, comm, self.counts, directory, outputs)
        self.meta = dataset.meta
        self.layers = model_of(config, self.meta.features, self.meta.classes)
        self.layers.to(weights_of(config.training.dtype)).train(outputs is None)
        self.model: nn.Module = self.layers
        with working("building what epochs read", shown=comm.rank == 0):
            model = chunked(self.layers, dataset.edge_dim)
            self.graph = ChunkedGraph(
                dataset,
                model,
                config,
                comm,
                directory=directory,
                counts=self.counts,
                itself=idle_bytes,
            )
            self._pass = ChunkedPass(self.graph, model, self._tick)
            if outputs is None:
                self._learn(dataset)

    def _learn(self, dataset: ChunkedDataset) -> None:
        """The rows of each layer, in training and in evaluation, and the objective. Collective."""
        labels = dataset.labels
        assert labels is not None
        rows, train = self.graph.bounds[-1], labels.masks[0]
        self._training = self.graph.matrices_for(labels.mask(rows, training=True), training=True)
        self._evaluation = self.graph.matrices_for(
            labels.mask(rows, training=False), training=False
        )
        self.objective = Objective.of(
            self.config.aim,
            self.meta.name,
            labels.y,
            labels.masks,
            classes=self.meta.classes,
            comm=self.comm,
        )
        self.criterion = self.objective.criterion
        self._labelled = labels.rows
        self._train_rows = labels.rows[train]
        self._train_y = as_taken(self.objective.kind, labels.y)[train]

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over all training vertices. Collective."""
        keys = DropoutKeys(torch.empty(0, dtype=torch.int64), self.config.training.seed, epoch)
        before = self.counts.copy()
        total = self._loss_of(keys)

        def backward(scale: Tensor) -> None:
            with multiplied_in(self.config.training.dtype, "cpu"):
                self._pass.backward(scale)
            self.moved = self.counts.since(before)

        return with_backward(total, backward)

    def _loss_of(self, keys: DropoutKeys) -> Tensor:
        """The loss; gradients wait until it is sent backward."""
        return self._pass.loss(self._training, keys, self._share)

    def _share(self, chunk: int, chosen: Tensor | None, outputs: Tensor) -> Tensor:
        """The share of the loss that some rows of a chunk have."""
        inside, here = self._in_chunk(self._train_rows, chunk, chosen)
        mask = torch.ones(len(inside), dtype=torch.bool)
        return self.objective.share(outputs[inside], self._train_y[here], mask)

    def _in_chunk(self, rows: Tensor, chunk: int, chosen: Tensor | None) -> tuple[Tensor, slice]:
        """Places of some own rows among the chosen ones of a chunk, and which rows these are."""
        first, last = self.graph.bounds[chunk : chunk + 2]
        low, high = torch.searchsorted(rows, torch.tensor([first, last])).tolist()
        inside = rows[low:high] - first
        return (inside if chosen is None else torch.searchsorted(chosen, inside), slice(low, high))

    def scores(self) -> Scores:
        """Validation loss, then scores on train, validation and test. Collective."""
        outputs: Tensor | None = None
        for chunk, chosen, H in self._pass.outputs(self._evaluation):
            inside, here = self._in_chunk(self._labelled, chunk, chosen)
            if outputs is None:
                outputs = memory_rows(len(self._labelled), H.shape[1], H.dtype)
            outputs[here] = H[inside]
        assert outputs is not None
        return self.objective.scores(outputs, self.comm)

    def all_outputs(self) -> Tensor:
        """Outputs of all own vertices [own rows, columns]. Collective."""
        outputs: Tensor | None = None
        with torch.no_grad():
            for chunk, _, H in self._pass.outputs(self.graph.whole):
                if outputs is None:
                    outputs = self.graph.output_rows(H)
                outputs[slice(*self.graph.bounds[chunk : chunk + 2])] = H
                self.graph.give_back()
        assert outputs is not None
        return outputs

    def results(self) -> Predictions:
        """The outputs of all own vertices. Collective."""
        return Predictions(
            self.graph.vertex_ids, {"rows": self.all_outputs()}, self.graph.give_back
        )

    def predictions(self) -> Predictions:
        """Scores, and what follows, of all own vertices. Collective."""
        scores = self.all_outputs().float()
        decided = []
        for first, last in pairwise(self.graph.bounds):
            decided.append(self.objective.decided(scores[first:last]))
            self.graph.give_back()
        arrays = {name: torch.cat([chunk[name] for chunk in decided]) for name in decided[0]}
        arrays["scores"] = scores
        return Predictions(self.graph.vertex_ids, arrays, self.graph.give_back)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As Kipf & Welling (2017, section 5.2), only the first layer decays."""
        return decaying_first(self.layers, self.model, self.config.training.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, and the size of the graph: that of training in memory."""
        size = f"{self.meta.vertices} vertices and {self.meta.edges} edges"
        layers = "→".join(map(str, self.config.widths(self.meta.features, self.meta.classes)))
        seed = self.config.training.seed
        described = self.config.model.described
        return {**described, "layers": layers, "seed": seed, "a graph of": size}

    def sections(self) -> dict[str, Any]:
        """The graph, shares of the memory, and bytes that an epoch read and wrote. Collective."""
        budget, moved = self.graph.budget, self.moved
        sizes = self.graph.sizes.of_matrices(self._training)
        # As if all columns of every operand were in memory at once.
        one_panel = replace(budget, placement=replace(budget.placement, panel_bytes=0))
        least, (read, written) = sum(one_panel.traffic(sizes)), budget.traffic(sizes)
        read, least = read + self.reads_besides, least + self.reads_besides
        transferred = moved.moved_in + moved.moved_out
        mine = [read, written, moved.read, moved.written, transferred, least]
        names = "planned_read", "planned_written", "read", "written", "transferred"
        *totals, needed = gathered(self.comm, mine).sum(axis=0).astype(int).tolist()
        storage = {
            **budget.record,
            **{f"{name}_bytes": total for name, total in zip(names, totals, strict=True)},
            "amplification": totals[-1] / needed if needed else None,
        }
        return {"graph": graph_section(self.meta), "storage": storage}

    def close(self) -> None:
        """Remove what lies on the disk, and give up the memory of tables."""
        self._pass.forget()
        self.graph.close()
        self._scratch.close()

    def _tick(self, done: int, total: int) -> None:
        if done % self.graph.budget.chunks == 0:
            self.graph.freed.make_room()
        if self.progress is not None:
            self.progress("chunks of this epoch", done, total)


def open_dataset(
    config: TrainConfig,
    comm: Communicator,
    counts: Transfers,
    scratch: Path | None,
    outputs: int | None = None,
) -> ChunkedDataset:
    """Own rows of the data set: of a graph directory read later, else in memory. Collective."""
    name, data, memory = config.data.dataset, config.data, config.extension(Storage).memory
    alone = comm.size == 1 and data.graph_split is None and scratch is not None
    large = alone and memory is not None and is_graph_file(name)
    if comm.from_rank_zero(lambda: is_cut(name, comm.size)):
        if data.symmetrise:
            raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
        rows = comm.on_every_rank(lambda: _in_directory(config, open_shards(name), comm, counts))
    elif scratch is not None and large and _READ_IN_MEMORY * os.path.getsize(name) > (memory or 0):
        rows = _in_directory(config, _sorted_into(scratch, config), comm, counts)
    else:
        share, _ = share_of(config, comm)
        adjacency = share.adjacency
        assert adjacency is not None
        if config.model.uses_edges:
            attr = share.edge_attr
            check_edge_features(config, share.meta, 0 if attr is None else attr.shape[1])
            adjacency = adjacency.with_values(attr)
        rows = ChunkedDataset(
            share.meta,
            share.layout,
            Blocks([adjacency], adjacency.shape[1]),
            share.vertex_ids,
            share.data,
            share.data.x,
        )
    meta, X = rows.meta, rows.X
    edge_dim = config.model.edge_dim if config.model.uses_edges else 0
    features = data.random_features if X is None else meta.features
    if not features:
        raise InputError(f"{meta.name} has no features; --random-features F makes some up")
    classes, labels = outputs or 0, None
    if outputs is None and config.aim.task == "links":
        from spgnn.addons.outofcore.chunked_links import without_held_out  # which needs this module

        classes, rows = config.model.hidden, without_held_out(config, rows, comm, scratch, counts)
        meta = rows.meta
    elif outputs is None:
        classes = data.random_classes if rows.data.y is None else meta.classes
        if not classes:
            raise InputError(f"{meta.name} has no labels; --random-classes C makes some up")
        labels = comm.on_every_rank(lambda: _labels(config, rows, comm.rank))
    row_normalise = X is not None and (
        data.feature_norm == "row" or (data.feature_norm == "auto" and meta.bag_of_words)
    )
    if X is None:
        X = partial(random_features, seed=config.training.seed)
    elif isinstance(X, CSR):
        X = dense_for_reduction(config, X)
    return replace(
        rows,
        meta=replace(meta, features=features, classes=classes),
        X=X,
        row_normalise=row_normalise,
        normalisation="none" if edge_dim else normalisation_of(config),
        edge_dim=edge_dim,
        loops=config.model.registered.loops,
        labels=labels,
    )


def _sorted_into(scratch: Path, config: TrainConfig) -> ShardDirectory:
    """The graph of a file of edges, in a directory with one part."""
    data, memory = config.data, config.extension(Storage).memory
    assert memory is not None
    with ProgressBar() as progress:
        source = OPENERS.need("through disk", f"{data.dataset}, larger than memory", "io")(
            data.dataset,
            directory=scratch / "graph",
            memory=memory,
            symmetrise=data.symmetrise,
            progress=progress,
        )
    assert isinstance(source, ShardDirectory)
    return source


def _in_directory(
    config: TrainConfig, shards: ShardDirectory, comm: Communicator, counts: Transfers
) -> ChunkedDataset:
    if shards.meta.parts != comm.size:
        raise InputError(
            f"{shards.directory}: holds {shards.meta.parts} parts, but there are {comm.size} "
            f"ranks; write it with --parts {comm.size}"
        )
    rank, meta, edge_dim = comm.rank, shards.meta, config.model.edge_dim
    values = "edge_attr" if config.model.uses_edges else "values"
    if config.model.uses_edges:
        check_edge_features(config, meta, shards.edge_dim(rank))

    def extent(name: str) -> Any:
        place = shards.place(rank, name)
        return None if place is None else FileExtent(*place)

    first, last = shards.layout.range(rank)
    ids, data = shards.vertices_of(rank)
    return ChunkedDataset(
        meta,
        shards.layout,
        FileBlocks(
            (0, last - first),
            meta.vertices,
            indptr=extent("indptr"),
            indices=extent("indices"),
            values=extent(values) if meta.weighted or values == "edge_attr" else None,
            counts=counts,
            width=max(edge_dim, 1),
        ),
        first if ids is None else ids,
        data.select_split(config.data.split),
        shards.features_of(rank) or extent("x"),
    )


def _labels(config: TrainConfig, dataset: ChunkedDataset, rank: int) -> Labels:
    """A chunk at a time: most vertices of the largest graphs have no label."""
    rows, labels, masks = list[Tensor](), list[Tensor](), list[list[Tensor]]()
    begin, end = dataset.layout.range(rank)
    for first, last in pairwise(even_bounds(dataset.blocks.start, end - begin, 64)):
        ids = ids_of(dataset.ids, first, last)
        data = VertexData(**dataset.data.take(slice(first, last)))
        y = made_up_labels(config, ids) if data.y is None else data.y
        split = masks_of(data, ids, y, config.training.seed)
        here = (labelled(y) & (split[0] | split[1] | split[2])).nonzero()[:, 0]
        rows.append(here + first)
        labels.append(y[here])
        masks.append([mask[here] for mask in split])
    joined = [torch.cat(parts) for parts in zip(*masks, strict=True)]
    return Labels(torch.cat(rows), torch.cat(labels), joined)
