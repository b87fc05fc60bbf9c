"""Training on a graph that is larger than memory: rows in parts, what does not fit on a disk."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgnn.autograd import with_backward
from spgnn.chunked.blocks import Stretch
from spgnn.chunked.budget import LIBRARIES, Budget, agreed, decide, recomputed, spare
from spgnn.chunked.features import Held, MadeUp, OnDisk, propagated
from spgnn.chunked.matrix import received_ids
from spgnn.chunked.network import Network
from spgnn.chunked.predict import Forecast
from spgnn.chunked.room import Places, Room
from spgnn.chunked.rows import (
    Inspected,
    Kept,
    even_bounds,
    inspected,
    reached,
    whole_matrix,
)
from spgnn.chunked.segments import Segments
from spgnn.chunked.state import Layers, Source, Vertices, release
from spgnn.chunked.table import OutputRows, keep_nothing, memory_rows
from spgnn.comm import Communicator, Mesh
from spgnn.config import TrainConfig
from spgnn.data.normalise import WITH_LOOPS, row_normalise_features
from spgnn.direct import Transfers
from spgnn.errors import InputError, memory_for
from spgnn.exchange import Algorithm
from spgnn.files import scratch_directory
from spgnn.frontend.from_config import dense_for_max, normalisation_of, random_features
from spgnn.nn import DropoutKeys, Stack, weights_of
from spgnn.progress import working
from spgnn.sparse import CSR
from spgnn.train.found import Found, Labelled, adjacency_of, found_in
from spgnn.train.measure import gathered
from spgnn.train.sizes import first_propagates, reaches, sizes_of
from spgnn.train.task import (
    Predictions,
    Scores,
    Task,
    decaying_first,
    graph_section,
    model_of,
    widths_of,
)
from spgnn.train.vertices import Objective, as_taken


class InParts(Task):
    """Vertices that are learnt by a model whose rows are worked through in parts. Collective.

    Parameters
    ----------
    config : TrainConfig
    comm : Communicator
        All ranks.
    idle_bytes : int
        Resident memory of this rank before it loaded any data.
    outputs : int, optional
        Nothing is to be learnt: the model makes so many columns.

    Attributes
    ----------
    meta : GraphMeta
    features, classes : int
    budget : Budget
    counts : Transfers
        What was read and written so far.
    moved : Transfers
        In the last epoch, without evaluating.

    Raises
    ------
    InputError
        If the data set, the model or the budget is wrong; on all ranks alike.
    """

    def __init__(
        self, config: TrainConfig, comm: Communicator, idle_bytes: int, outputs: int | None = None
    ) -> None:
        self.comm, self.config, self._outputs = comm, config, outputs
        self.counts, self.moved = Transfers(), Transfers()
        self._scratch = ExitStack()
        mesh = Mesh.build(comm, Algorithm("1d").axes(comm.size))
        with memory_for(f"the rows of {config.data.dataset}"):
            try:
                directory = _spill(config.storage.spill, comm, self._scratch)
                self._outputs_kept = OutputRows(directory)
                self.room = Room(Places(), directory, torch.float32, self.counts)
                with working(f"reading {config.data.dataset}", shown=comm.rank == 0):
                    found = found_in(config, comm, self.counts, directory)
                if isinstance(found.X, CSR):
                    found = replace(found, X=dense_for_max(config, found.X))
                self.meta = found.meta
                with working("building what epochs read", shown=comm.rank == 0):
                    self._prepare(found, mesh, idle_bytes)
            except BaseException:
                self._scratch.close()
                keep_nothing()
                raise
        self.described = config.model.described

    def _prepare(self, found: Found, mesh: Mesh, idle_bytes: int) -> None:
        """Look at the rows, share out the memory, and build what epochs work on."""
        config, comm, storage = self.config, self.comm, self.config.storage
        first, last = found.layout.range(comm.rank)
        rows = last - first
        self.features = self.meta.features if found.X is not None else config.data.random_features
        if not self.features:
            raise InputError(f"{self.meta.name} has no features; --random-features F makes some up")
        # More parts than rows would be empty, and each takes its time.
        asked = min(storage.chunks, comm.agree(rows))
        looked = even_bounds(found.starts, rows, asked or 64)
        adjacency = adjacency_of(found, looked)
        loops = config.model.model in WITH_LOOPS
        kind = normalisation_of(config)
        seen = inspected(adjacency, comm, kind, loops=loops, ids=found.ids)
        if self._outputs is None:
            self.labels = comm.on_every_rank(lambda: Labelled.of(config, found, looked))
        self.classes = self._outputs or self.labels.classes
        self.model: Stack = model_of(config, self.features, self.classes)
        self.model.to(weights_of(config.training.dtype))
        self.model.train(self._outputs is None)
        segments = Segments(self.model)
        self.propagates = first_propagates(config, found.X)
        labels = None if self._outputs is not None else self.labels
        widths = widths_of(config, self.features, self.classes)
        self.sizes = sizes_of(
            config, segments, found, adjacency, seen, widths=widths, labels=labels
        )
        itself = idle_bytes + LIBRARIES
        memory = storage.memory - itself if storage.memory else None
        dtype = torch.float64 if config.training.dtype == "float64" else torch.float32
        directory = self.room.directory
        self.room = Room(Places(), directory, dtype, self.counts)

        def decided(again: frozenset[int]) -> Budget:
            spill, sizes = directory is not None, self.sizes
            mine = comm.on_every_rank(
                lambda: decide(
                    sizes, memory, asked or None, spill=spill, itself=itself, again=again
                ),
            )
            return agreed(comm, mine)

        # Inference keeps nothing.
        recompute = "never" if self._outputs is not None else storage.recompute
        self.budget = recomputed(self.sizes.looks, recompute, decided)
        self.room = Room(self.budget.places, directory, dtype, self.counts)
        self._spare = spare(self.sizes, self.budget, memory, itself)
        self._spare.keep()
        self._build(found, seen, mesh, segments, memory)

    def _build(
        self,
        found: Found,
        seen: Inspected,
        mesh: Mesh,
        segments: Segments,
        memory: int | None,
    ) -> None:
        """The matrix, A·X, what each layer works on, and what it is trained towards."""
        config, comm, room = self.config, self.comm, self.room
        first, last = found.layout.range(comm.rank)
        bounds = even_bounds(found.starts, last - first, self.budget.parts)
        keep = Kept(
            room.directory,
            on_disk="matrix" in room.places.on_disk,
            sort_bytes=self.budget.bytes // 4,
            counts=self.counts,
        )
        self.whole = whole_matrix(
            adjacency_of(found, bounds), seen, mesh, keep, multiplied=segments.multiplies
        )
        vertices = Vertices(
            bounds,
            found.ids,
            None if seen.row_scale is None else seen.row_scale.to(room.dtype),
            None if seen.column_scale is None else seen.column_scale.to(room.dtype),
            self._source(found, bounds, room.dtype),
            None,
            received_ids(self.whole, found.ids) if segments.drops_edges else None,
        )
        if self.propagates:
            half = config.storage.spill_dtype == "bfloat16"
            table = propagated(
                self.whole,
                vertices,
                self.features,
                room,
                columns=self._feature_columns(memory),
                stored=torch.bfloat16 if half else room.dtype,
            )
            vertices = replace(vertices, propagated=table)
        self.network = Network(segments, vertices, room, self.budget.again, self._tick, comm)
        self.everything = Layers([self.whole] * segments.layers, bounds)
        if self._outputs is None:
            self._aim(segments, last - first)

    def _aim(self, segments: Segments, rows: int) -> None:
        """Set up the rows of each layer and the objective. Collective."""
        config, comm = self.config, self.comm
        self.training = self._layers(segments, self.labels.taken_by(rows, training=True))
        self.evaluation = self._layers(segments, self.labels.taken_by(rows, training=False))
        y, masks = self.labels.y, self.labels.masks
        name, classes = self.meta.name, self.classes
        self.objective = Objective.of(config.aim, name, y, masks, classes=classes, comm=comm)
        self.criterion = self.objective.criterion
        self._train_rows = self.labels.rows[masks[0]]
        self._train_y = as_taken(self.objective.kind, y)[masks[0]]
        self.seed = config.training.seed

    def _layers(self, segments: Segments, wanted: Tensor) -> Layers:
        """The rows of each layer, if outputs of some rows are looked at. Collective."""
        if not reaches(self.config, segments):
            return self.everything
        looks = [segments.looks_at_itself(number) for number in range(segments.layers)]
        return reached(self.whole, wanted, segments.layers, looks, self.comm)

    def _feature_columns(self, memory: int | None) -> int:
        """Of a panel while A·X is made, the same on all ranks."""
        sizes, width = self.sizes, 32
        if memory:
            matrix = 0 if "matrix" in self.room.places.on_disk else sizes.matrix_bytes
            free = max(memory - sizes.fixed_bytes - matrix, 0) // 2
            width = free // (sizes.itemsize * max(sizes.rows + sizes.received, 1))
        return max(1, -self.comm.agree(-min(width, self.features)))

    def _source(self, found: Found, bounds: tuple[int, ...], dtype: torch.dtype) -> Source:
        """Features, as the first layer takes them."""
        norm = self.config.data.feature_norm
        rows_sum_up = norm == "row" or (norm == "auto" and self.meta.bag_of_words)

        def ready(X: Tensor | CSR) -> Tensor | CSR:
            X = X.to(dtype)
            return row_normalise_features(X) if rows_sum_up else X

        if found.X is None:
            seed = self.config.training.seed
            return MadeUp(
                lambda ids, first, last: random_features(ids, first, last, seed).to(dtype),
                self.features,
                bounds,
                found.ids,
            )
        if isinstance(found.X, Stretch):
            return OnDisk(found.X, self.features, bounds, ready=ready, counts=self.counts)
        return Held(found.X, bounds, ready)

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over all training vertices. Collective."""
        keys = DropoutKeys(torch.empty(0, dtype=torch.int64), self.seed, epoch)
        before = self.counts.copy()
        total = self.network.loss(self.training, keys, self.share)

        def backward(scale: Tensor) -> None:
            self.network.backward(self.training, keys, scale)
            self.moved = self.counts.since(before)

        return with_backward(total, backward)

    def share(self, part: int, chosen: Tensor | None, outputs: Tensor) -> Tensor:
        """The share of the loss that some rows of a part have."""
        inside, here = self._in_part(self._train_rows, part, chosen)
        mask = torch.ones(len(inside), dtype=torch.bool)
        return self.objective.share(outputs[inside], self._train_y[here], mask)

    def _in_part(self, rows: Tensor, part: int, chosen: Tensor | None) -> tuple[Tensor, slice]:
        """Of some own rows those in a part: where among its chosen rows, and which of them."""
        first, last = self.whole.bounds[part : part + 2]
        low, high = torch.searchsorted(rows, torch.tensor([first, last])).tolist()
        inside = rows[low:high] - first
        found = inside if chosen is None else torch.searchsorted(chosen, inside)
        return found, slice(low, high)

    def scores(self) -> Scores:
        """Validation loss, then scores on train, validation and test. Collective."""
        return self.objective.scores(self.outputs(), self.comm)

    def outputs(self) -> Tensor:
        """Outputs of vertices with a label. Collective."""
        rows = self.labels.rows
        found: Tensor | None = None
        for part, chosen, H in self.network.outputs(self.evaluation):
            inside, here = self._in_part(rows, part, chosen)
            if found is None:
                found = memory_rows(len(rows), H.shape[1], H.dtype)
            found[here] = H[inside]
        assert found is not None
        return found

    def all_outputs(self) -> Tensor:
        """Outputs of all own vertices [own rows, columns]. Collective.

        In a file that is mapped into memory, if there is a directory to spill to.
        """
        rows = self.whole.bounds[-1]
        found: Tensor | None = None
        with torch.no_grad():
            for part, _, H in self.network.outputs(self.everything):
                if found is None:
                    found = self._outputs_kept.make(rows, H)
                found[slice(*self.whole.bounds[part : part + 2])] = H
                self.give_back()
        assert found is not None
        return found

    def give_back(self) -> None:
        """Let go of the memory of outputs that lie in a file."""
        self._outputs_kept.give_back()

    @property
    def vertex_ids(self) -> Tensor:
        """Original ids of own vertices, int64."""
        given, rows = self.network.vertices.ids, self.whole.bounds[-1]
        return torch.arange(given, given + rows) if isinstance(given, int) else given

    def predictions(self) -> Predictions:
        """Scores, and what follows, of all own vertices. Collective."""
        scores = self.all_outputs().float()
        decided = []
        for first, last in pairwise(self.whole.bounds):
            decided.append(self.objective.decided(scores[first:last]))
            self.give_back()
        arrays = {name: torch.cat([part[name] for part in decided]) for name in decided[0]}
        return Predictions(self.vertex_ids, arrays | {"scores": scores}, self.give_back)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As Kipf & Welling (2017, section 5.2), only the first layer decays."""
        return decaying_first(self.model, self.model, self.config.training.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, and the size of the graph: that of training in memory."""
        size = f"{self.meta.vertices} vertices and {self.meta.edges} edges"
        layers = "→".join(map(str, widths_of(self.config, self.features, self.classes)))
        return {**self.described, "layers": layers, "seed": self.seed, "a graph of": size}

    @property
    def forecast(self) -> Forecast:
        """Bytes that this rank reads and writes in an epoch of training."""
        sizes = self.sizes
        told = self.network, self.training, sizes.widths, sizes.operands
        return Forecast.of(*told, learns=sizes.learns, norms=sizes.norms)

    def sections(self) -> dict[str, Any]:
        """The graph, shares of the memory, and bytes that an epoch read and wrote. Collective.

        Amplification is what was transferred, whole pages, over what would have been read if all
        columns of every operand were in memory at once.
        """
        forecast, moved = self.forecast, self.moved
        planned, least = forecast.bytes(), forecast.in_one_panel.bytes()
        transferred = moved.moved_in + moved.moved_out
        mine = [planned.read, planned.written, moved.read, moved.written, transferred]
        names = "planned_read", "planned_written", "read", "written", "transferred"
        by_rank = gathered(self.comm, [*mine, least.bytes])
        *totals, needed = by_rank.sum(axis=0).astype(int).tolist()
        storage = {
            "chunks": self.budget.parts,
            "on_disk": sorted(self.budget.places.on_disk),
            "panel_bytes": self.budget.places.panel_bytes,
            "recomputed_layers": sorted(self.budget.again),
            **{f"{name}_bytes": total for name, total in zip(names, totals, strict=True)},
            "amplification": totals[-1] / needed if needed else None,
        }
        meta = replace(self.meta, features=self.features, classes=self.classes)
        return {"graph": graph_section(meta), "storage": storage}

    def close(self) -> None:
        """Remove what lies on the disk, and give up the memory of tables."""
        self.network.forget()
        release(self.network.vertices.propagated)
        self._scratch.close()
        keep_nothing()

    def _tick(self, done: int, total: int) -> None:
        if done % self.budget.parts == 0:
            self._spare.make_room()
        if self.progress is not None:
            self.progress("parts of this epoch", done, total)


def _spill(directory: str | None, comm: Communicator, stack: ExitStack) -> Path | None:
    """A rank's own directory for what does not fit; closing the stack removes it. Collective."""
    if directory is None:
        return None
    scratch = scratch_directory(directory, f"--spill {directory}")
    return comm.on_every_rank(lambda: stack.enter_context(scratch))
