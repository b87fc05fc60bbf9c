"""A rank's share of a graph that is processed chunk by chunk, in memory and on a disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.outofcore.adjacency import (
    Adjacency,
    even_bounds,
    receptive_field,
    statistics_of,
    whole_matrix,
)
from spgnn.addons.outofcore.blocks import Blocks, FileExtent, MatrixStorage, rows_of
from spgnn.addons.outofcore.budget import LIBRARIES, Budget, choose, decide_together, freed_pages
from spgnn.addons.outofcore.chunked_model import ChunkedModel
from spgnn.addons.outofcore.matrix import ChunkMatrix
from spgnn.addons.outofcore.sizes import DryPass, Sizes
from spgnn.addons.outofcore.storage import Storage
from spgnn.addons.outofcore.tables import MappedRows, Table, TableFactory, panels_of, release
from spgnn.comm import Communicator, Mesh
from spgnn.config import TrainConfig
from spgnn.data import GraphMeta, Normalisation, Pairs, VertexData, row_normalise_features
from spgnn.direct import DirectFile, Transfers, keep_pages
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.layout import RowLayout
from spgnn.nn import dtype_of, weights_of
from spgnn.sparse import CSR


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels and masks of the vertices that have any."""

    rows: Tensor  # own rows, rising
    y: Tensor
    masks: Sequence[Tensor]  # train, validation, test

    def mask(self, rows: int, *, training: bool) -> Tensor:
        """Own rows whose outputs are read in training, or scored; bool [rows]."""
        mask = torch.zeros(rows, dtype=torch.bool)
        mask[self.rows[self.masks[0]] if training else self.rows] = True
        return mask


@dataclass(frozen=True, eq=False)
class ChunkedDataset:
    """The data set of a rank, in memory or in files; forgotten while a graph is trained on."""

    meta: GraphMeta  # with the features and classes that are trained on
    layout: RowLayout
    blocks: Blocks  # own rows of the adjacency, as one block
    ids: Tensor | int  # original ids; if they are consecutive, the first one
    data: VertexData  # labels and masks of all own vertices
    # Features; drawn ones are a function of original ids [rows] and columns [first, last)
    X: Tensor | CSR | FileExtent | Callable[[Tensor, int, int], Tensor] | None
    row_normalise: bool = False  # whether each row of features is divided by its sum
    normalisation: Normalisation = "none"  # of the adjacency
    loops: bool = False  # whether every vertex is to have a self-loop
    labels: Labels | None = None  # without labels and links nothing is learnt
    links: Sequence[Pairs] = ()  # for validation and for testing
    edge_dim: int = 0  # features of an edge, which are the values of blocks then

    def adjacency(self, bounds: tuple[int, ...]) -> Adjacency:
        """Own rows of the adjacency, by chunks."""
        weighted = self.meta.weighted or self.edge_dim > 0
        symmetric = not self.meta.directed and not weighted
        return Adjacency(self.blocks.cut(bounds), self.layout, symmetric, weighted)


def ids_of(ids: Tensor | int, first: int, last: int) -> Tensor:
    """Original ids of own rows [first, last); a number if they are consecutive."""
    if isinstance(ids, int):
        return torch.arange(first + ids, last + ids)
    return ids[first:last]


class ChunkedGraph:
    """Matrix, features and tables of a rank, within a budget for one model. Collective."""

    def __init__(
        self,
        dataset: ChunkedDataset,
        model: ChunkedModel,
        config: TrainConfig,
        comm: Communicator,
        *,
        directory: Path | None,
        counts: Transfers,
        itself: int,
    ) -> None:
        storage, X, labels = config.extension(Storage), dataset.X, dataset.labels
        learns = labels is not None or len(dataset.links) > 0
        self.comm, self._X, self._ids = comm, X, dataset.ids
        self.num_nodes = dataset.meta.vertices
        self._width, self._row_normalise = dataset.meta.features, dataset.row_normalise
        self.dtype = dtype_of(config.training.dtype)
        self._wide = weights_of(config.training.dtype)  # of features as they are read
        first, last = dataset.layout.range(comm.rank)
        rows = last - first
        self._file = DirectFile(X.path, counts) if isinstance(X, FileExtent) else None
        # More chunks than rows would be empty, and each takes its time.
        chunks = min(storage.chunks, comm.agree(rows)) or None
        if model.edgewise and (dataset.normalisation != "none" or model.multiplies):
            raise InputError(
                f"--model {config.model.model}: layers that look at edges one by one, and layers "
                "that multiply with a normalised matrix, are not processed in chunks together"
            )
        adjacency = dataset.adjacency(even_bounds(dataset.blocks.start, rows, chunks or 64))
        statistics = statistics_of(
            adjacency,
            comm,
            dataset.normalisation,
            loops=dataset.loops,
            ids=dataset.ids,
            dtype=self._wide,
        )
        stored = torch.bfloat16 if storage.spill_dtype == "bfloat16" else self.dtype
        sparse = isinstance(X, CSR)
        propagates = model.takes_propagated and config.propagates_once(sparse=sparse)
        # Whatever is decided, these are in memory.
        tensors = statistics.loops, statistics.row_scale, X, dataset.ids
        fixed = sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))
        fixed += 2 * X.nnz * 8 if isinstance(X, CSR) else 0
        how: dict[str, Any] = {"propagates": propagates, "symmetric": adjacency.symmetric}
        dry = DryPass(model, sparse=sparse, links=len(dataset.links) > 0, **how)
        self.sizes = dry.sizes(
            rows=rows,
            received=len(statistics.needed),
            nonzeros=dataset.blocks.start(rows),
            values=dataset.edge_dim or adjacency.weighted,
            itemsize=self.dtype.itemsize,
            fixed_bytes=fixed,
            propagated_itemsize=stored.itemsize,
            in_files=self._file is not None,
        )
        # Outputs that depend on all layers need the same rows of each; moments are of all vertices.
        every_row = model.jumps or config.model.makes_all_rows or len(model.edgewise) > 0
        self._prunes = config.algorithm.prune and not every_row
        if labels is not None:
            labelled, blocks = labels.mask(rows, training=False), adjacency.blocks
            self.sizes = self.sizes.with_labels(len(labels.rows), dataset.meta.classes)
            if self._prunes:
                nonzeros = blocks.nonzeros(labelled), blocks.nonzeros()
                self.sizes = self.sizes.at_most(len(labels.rows), *nonzeros)
        if dataset.links:
            held_out = [len(pairs.targets) for pairs in dataset.links]
            self.sizes = self.sizes.with_links(config.aim, held_out, dataset.meta.classes)
        itself += LIBRARIES
        memory = storage.memory - itself if storage.memory else None

        def decided(sizes: Sequence[Sizes], recomputed: frozenset[int]) -> list[Budget]:
            how = {"spill": directory is not None, "itself": itself, "recomputed": recomputed}
            return decide_together(sizes, memory, chunks, comm=comm, **how)

        # Inference saves nothing.
        recompute = storage.recompute if learns else "never"
        (self.sizes,), (self.budget,) = choose([self.sizes], recompute, decided, learns=learns)
        self.recomputed, self.keeps_first = self.budget.recomputed, self.sizes.keeps
        self.tables = TableFactory(self.budget.placement, directory, self.dtype, counts)
        self.freed = freed_pages(self.sizes, self.budget, memory, itself)
        self.freed.keep()
        self.bounds = even_bounds(dataset.blocks.start, rows, self.budget.chunks)
        on_disk = "matrix" in self.budget.placement.on_disk
        place = directory if on_disk else None
        self._storage = MatrixStorage(place, counts, self.budget.sort_bytes)
        self._sorts = on_disk and not comm.agree(not self.budget.can_sort(memory))
        self._multiplied = model.multiplies
        self.mesh = Mesh.build(comm, Algorithm("1d").axes(comm.size))
        self.matrix = whole_matrix(
            dataset.adjacency(self.bounds),
            statistics,
            self.mesh,
            self._storage,
            multiplied=self._multiplied,
        )
        self.row_scale, self.column_scale = statistics.row_scale, statistics.column_scale
        self._received_ids = self.matrix.received_ids(dataset.ids) if model.drops_edges else None
        if model.edgewise and model.drops_edges:
            self.matrix = replace(self.matrix, ids=self.ids_of_columns(self.matrix))
        self.propagated = self._propagate(stored, memory) if propagates else None
        self.whole = [self.matrix] * model.layers
        self._outputs: MappedRows | None = None

    def matrices_for(self, mask: Tensor, *, training: bool) -> list[ChunkMatrix]:
        """The matrix of each layer, if outputs of some rows are read, bool [n]. Collective."""
        if not self._prunes:
            return self.whole
        storage = self._storage if training and self._sorts else None
        reads_own, multiplied = self.sizes.dry.reads_own, self._multiplied
        return receptive_field(
            self.matrix, mask, reads_own, self.comm, storage, multiplied=multiplied
        )

    def ids_of(self, chunk: int, chosen: Tensor | None) -> Tensor:
        """Original ids of some rows of a chunk, or of all."""
        ids = ids_of(self._ids, *self.bounds[chunk : chunk + 2])
        return ids if chosen is None else ids[chosen]

    @property
    def vertex_ids(self) -> Tensor:
        """Original ids of own vertices, int64 [n]."""
        return ids_of(self._ids, 0, self.bounds[-1])

    def ids_of_columns(self, matrix: ChunkMatrix) -> Tensor:
        """Original ids of a matrix's columns, int64 [k + received]."""
        own = self.vertex_ids if matrix.sources is None else self.vertex_ids[matrix.sources]
        return own if self._received_ids is None else torch.cat((own, self._received_ids))

    def scale_of(self, scale: Tensor | None, chunk: int, chosen: Tensor | None) -> Tensor | None:
        """A scaling of some rows of a chunk, [rows, 1]."""
        if scale is None:
            return None
        first, last = self.bounds[chunk : chunk + 2]
        here = scale[first:last, None]
        return here if chosen is None else here[chosen]

    def features(self, chunk: int, first: int = 0, last: int | None = None) -> Tensor | CSR:
        """Features of a chunk's rows; columns [first, last) of dense ones."""
        begin, end = self.bounds[chunk : chunk + 2]
        X, width = self._X, self._width
        rows: Tensor | CSR = torch.empty(0, width)
        if isinstance(X, CSR):
            rows = rows_of(X, begin, end)
        elif isinstance(X, Tensor):
            rows = X[begin:end]
        elif callable(X):
            ids = ids_of(self._ids, begin, end)
            return X(ids, first, width if last is None else last).to(self._wide)
        elif X is not None and self._file is not None and end > begin:
            read = self._file.read(X.offset + 4 * width * begin, 4 * width * (end - begin))
            rows = torch.from_numpy(read.view(np.float32)).view(end - begin, width)
        rows = rows.to(self._wide)
        if self._row_normalise:
            rows = row_normalise_features(rows)
        return (
            rows if isinstance(rows, CSR) or (not first and last is None) else rows[:, first:last]
        )

    def _propagate(self, stored: torch.dtype, memory: int | None) -> Table:
        """A·X, computed a panel of columns after the other. Collective."""
        bounds, width, sizes = self.bounds, self._width, self.sizes
        columns = 32
        if memory:
            matrix = 0 if "matrix" in self.budget.placement.on_disk else sizes.matrix_bytes
            free = max(memory - sizes.fixed_bytes - matrix, 0) // 2
            columns = free // (self._wide.itemsize * max(sizes.rows + sizes.received, 1))
        columns = max(1, -self.comm.agree(-min(columns, width)))
        result = self.tables.table("propagated", bounds, width, dtype=stored, panel=columns)
        copy: Table | None = None
        if self._file is not None and columns < width:
            copy = self.tables.table("X", bounds, width, dtype=self._wide, panel=columns)
            for chunk in range(copy.chunks):
                copy.write(chunk, self._scaled_features(chunk, 0, width))
        for first, last in panels_of(width, columns):
            operand, begin = copy, first
            if operand is None:
                operand, begin = (Table(bounds, last - first, self._wide, self.matrix.halo_rows), 0)
                for chunk in range(operand.chunks):
                    operand.write(chunk, self._scaled_features(chunk, first, last))
            for chunk, Z in self.matrix.panel_products(operand, begin, begin + last - first):
                scale = self.scale_of(self.row_scale, chunk, None)
                result.write_panel(chunk, first, Z if scale is None else Z * scale)
        release(copy)
        result.settle()  # or its last stretches would be counted in the first epoch
        return result

    def _scaled_features(self, chunk: int, first: int, last: int) -> Tensor:
        X, scale = self.features(chunk, first, last), self.scale_of(self.column_scale, chunk, None)
        assert isinstance(X, Tensor)
        return X if scale is None else X * scale

    def output_rows(self, like: Tensor) -> Tensor:
        """Uninitialised [n, width of `like`]: in a file, if there is a directory for it."""
        rows, directory = self.bounds[-1], self.tables.directory
        if directory is None or not rows:
            return like.new_empty(rows, like.shape[1], dtype=self._wide)
        self._outputs = MappedRows(directory / "outputs", (rows, like.shape[1]), self._wide)
        return self._outputs.rows

    def give_back(self) -> None:
        """Let go of the memory of outputs that lie in a file."""
        if self._outputs is not None:
            self._outputs.give_back()

    def close(self) -> None:
        """Give up the memory of tables."""
        release(self.propagated)
        keep_pages(None)
