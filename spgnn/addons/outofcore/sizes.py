"""Memory and transfers of an epoch, counted by running it on two rows: its tables only count."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.addons.outofcore.chunked_model import ChunkedModel
from spgnn.addons.outofcore.matrix import ChunkMatrix, ChunkStream, Heads, Request
from spgnn.addons.outofcore.passes import ChunkedPass
from spgnn.addons.outofcore.steps import chunked
from spgnn.addons.outofcore.tables import Placement, Table, panels_of
from spgnn.comm import SoloCommunicator
from spgnn.config import Aim
from spgnn.graph import Features
from spgnn.nn import DropoutKeys

# A layer gets a matrix of its own rows if these have at most this share of all nonzeros: in memory,
# and in files where the whole matrix lies on the disk.
OWN_MATRIX = 0.125
OWN_ON_DISK = 0.75

Event = tuple[Any, ...]
"""A verb, and the table, or layer, that it is done to."""


class LayerShape(NamedTuple):
    """Widths of one layer, and what it takes, whatever the rows are."""

    operand: int  # width of its operand; 0 for a first layer that takes A·X
    f_in: int  # widths of its input and of its output
    f_out: int
    norms: int  # number of its norms that need moments over all vertices
    reduces: bool
    heads: Heads  # of attention
    edgewise: bool  # whether it looks at edges one by one


class DryPass:
    """A model's layers, and what happens to its tables in an epoch, and in evaluation."""

    def __init__(
        self,
        model: ChunkedModel,
        *,
        sparse: bool,
        propagates: bool,
        symmetric: bool,
        links: bool = False,
    ) -> None:
        self._model, self._sparse, self._propagates = model, sparse, propagates
        self._links = links
        self._symmetric, self.jumps = symmetric, model.jumps
        self.reads_own = [model.reads_own(number) for number in range(model.layers)]
        self.keeps = propagates and model.keeps_first
        shapes = list[LayerShape]()
        for number, (width, f_out) in enumerate(pairwise(model.widths)):
            request = model.of_no_rows(number, width, sparse=sparse)
            operand = 0 if propagates and not number else request.operand.shape[1]
            reduces = not request.linear and request.scores is None
            norms, edgewise = model.norms(number), request.rows_of is not None
            wide = max(f_out, model.inner(number))
            shapes.append(LayerShape(operand, width, wide, norms, reduces, request.heads, edgewise))
        self.layers = tuple(shapes)
        self._logs: dict[tuple[frozenset[int], bool], tuple[list[Event], list[Event]]] = {}

    def passes(self, number: int) -> int:
        """Passes over a layer in an epoch: forward and backward, and two more for each norm."""
        return 2 * self.layers[number].norms + (1 if number == len(self.layers) - 1 else 2)

    def sizes(
        self,
        *,
        rows: int,
        received: int,
        nonzeros: int,
        values: int,
        itemsize: int,
        fixed_bytes: int,
        propagated_itemsize: int | None = None,
        in_files: bool = False,
    ) -> Sizes:
        """Sizes of training on a rank whose layers make all its rows; a nonzero has `values`."""
        sides, width = 2 if self._model.multiplies and not self._symmetric else 1, 0
        if self._propagates:
            width = (propagated_itemsize or itemsize) * self.layers[0].f_in
        return Sizes(
            self,
            (LayerSizes(rows, rows),) * len(self.layers),
            rows,
            received,
            sides * (8 * rows + (4 + 4 * values) * nonzeros),
            itemsize,
            fixed_bytes,
            nonzeros=nonzeros,
            propagated_bytes=rows * width,
            source_bytes=4 * rows * self.layers[0].f_in * in_files,
            sides=sides,
            keeps=self.keeps,
        )

    def events(self, recomputed: frozenset[int], keeps: bool) -> tuple[list[Event], list[Event]]:
        """Events of an epoch of training, and of an evaluation."""
        if (recomputed, keeps) not in self._logs:
            self._logs[recomputed, keeps] = self._run(recomputed, keeps)
        return self._logs[recomputed, keeps]

    def _run(self, recomputed: frozenset[int], keeps: bool) -> tuple[list[Event], list[Event]]:
        # A copy, whose norms may remember what they see.
        model = chunked(deepcopy(self._model.model), self._model.edge_dim)
        training, evaluation = list[Event](), list[Event]()
        keys = DropoutKeys(torch.empty(0, dtype=torch.int64), 0, 0)
        for log in (training, evaluation):
            matrices: Any = [
                _CountedMatrix(log, number, symmetric=self._symmetric)
                for number in range(model.layers)
            ]
            graph: Any = _CountedGraph(log, model, self._sparse, self._propagates)
            graph.recomputed, graph.keeps_first = recomputed, keeps
            whole = ChunkedPass(graph, model)
            with torch.set_grad_enabled(log is training):
                if log is training and self._links:
                    whole.loss_of_all(matrices, keys, lambda Z, dZ: torch.zeros(()))
                elif log is training:
                    whole.loss(matrices, keys, lambda chunk, rows, H: H.sum())
                if log is training:
                    whole.backward(torch.ones(()))
                else:
                    for _ in whole.outputs(matrices):
                        log.append(("score",))
        return training, evaluation


@dataclass(frozen=True)
class LayerSizes:
    """Row counts of one layer."""

    rows: int  # own rows that it makes, and that its product reads; at most,
    columns: int  # before the matrices are built
    # bytes of a matrix of its own rows, and of its transpose; 0: in memory
    own_matrix: tuple[int, int] | None = None


@dataclass(frozen=True)
class Sizes:
    """Row counts and bytes of a rank's share of the work."""

    dry: DryPass
    layers: tuple[LayerSizes, ...]
    rows: int  # own rows, and rows of other ranks that their product needs
    received: int
    matrix_bytes: int
    itemsize: int  # bytes of a number
    fixed_bytes: int  # bytes that are in memory under every budget
    nonzeros: int = 0
    pair_bytes: int = 0  # of all pairs that are scored: a chunk's are in memory
    propagated_bytes: int = 0  # bytes of A·X, if features are propagated; else 0
    source_bytes: int = 0  # bytes of reading the features from their files once; 0 in memory
    scored_bytes: int = 0
    sides: int = 1  # number of copies of the adjacency in `matrix_bytes`: 2 with its transpose
    keeps: bool = False  # whether what the first layer makes of A·X is saved for backward

    def with_labels(self, labelled: int, classes: int) -> Sizes:
        """The same with the outputs of labelled rows, and their labels and masks, in memory."""
        # Row and label, int64, for all and once more for those of training; three masks.
        of_labels = labelled * (2 * (8 + 8) + 3)
        outputs = labelled * classes * self.itemsize
        return replace(self, scored_bytes=outputs, fixed_bytes=self.fixed_bytes + of_labels)

    def with_links(self, aim: Aim, held_out: Sequence[int], width: int) -> Sizes:
        """The same with embeddings and their gradients in memory, and links that are held out."""
        # Of a pair, both rows, their product, and gradients of these; ids, and where rows are.
        pair = 6 * width * self.itemsize + 64
        trained = self.nonzeros * (1 + aim.negatives)
        scored = max(held_out) * (1 + aim.eval_negatives)
        fixed = 4 * self.rows * width * self.itemsize + 16 * self.rows + 32 * sum(held_out)
        fixed += 80 * scored  # scores, and their metrics, which sort them
        pairs = pair * max(trained, scored)
        return replace(self, fixed_bytes=self.fixed_bytes + fixed, pair_bytes=pairs)

    def at_most(self, labelled: int, nonzeros: int, total: int) -> Sizes:
        """The same if outputs of few rows are read, from how many these are alone."""
        *before, last = self.layers
        if nonzeros > OWN_MATRIX * total:
            return replace(self, layers=(*before, replace(last, rows=labelled)))
        reached = min(self.rows, nonzeros + labelled)
        before[-1:] = [replace(one, rows=reached) for one in before[-1:]]
        # On several ranks, its columns are all own rows.
        last = LayerSizes(labelled, self.rows if self.received else reached, (0, 0))
        own_bytes = 2 * (8 * (nonzeros + labelled) + 8 * last.columns) + 8 * reached
        fixed_bytes = self.fixed_bytes + own_bytes
        return replace(self, layers=(*before, last), fixed_bytes=fixed_bytes)

    def of_matrices(self, matrices: Sequence[ChunkMatrix]) -> Sizes:
        """The same with the rows of matrices that were built."""
        layers = list[LayerSizes]()
        for matrix in matrices:
            own = None
            if matrix.targets is not None and not matrix.thinned:
                own = matrix.blocks.nbytes, sum(each.nbytes for each in matrix.adjoint_blocks)
            layers.append(LayerSizes(matrix.row_bounds[-1], matrix.column_bounds[-1], own))
        return replace(self, layers=tuple(layers))


class _TwoRows(tuple[int, ...]):
    """Bounds of one chunk of two rows, that say which rows it stands for."""

    layer: int
    sources: bool  # those that the layer's product reads, or those that it makes

    @classmethod
    def of(cls, layer: int, *, sources: bool) -> _TwoRows:
        bounds = cls((0, 2))
        bounds.layer, bounds.sources = layer, sources
        return bounds


class _CountedTable(Table):
    """A table of zeros, which notes what happens to it."""

    def __init__(
        self, log: list[Event], purpose: str, bounds: _TwoRows, width: int, dtype: torch.dtype
    ) -> None:
        self._shape(bounds, width, dtype)  # there is nothing in memory
        self.purpose, self.stands_for, self.extra = purpose, bounds, 0
        self._log, self._released = log, False
        log.append(("create", self))

    def read(self, chunk: int) -> Tensor:
        self._log.append(("read", self))
        return torch.zeros(2, self.width, dtype=self.dtype)

    def write(self, chunk: int, values: Tensor) -> None:
        self._log.append(("write", self))

    def write_some(self, chunk: int, rows: Tensor | None, values: Tensor) -> None:
        self.write(chunk, values)

    def release(self) -> None:
        if not self._released:
            self._log.append(("release", self))
        self._released = True


class _CountedMatrix:
    """A layer's matrix, which makes zeros and notes when it is read."""

    sources, thinned, halo_rows = None, False, 1

    def __init__(self, log: list[Event], layer: int, *, symmetric: bool) -> None:
        self._log, self._layer = log, layer
        self.row_bounds = _TwoRows.of(layer, sources=False)
        self.column_bounds = _TwoRows.of(layer, sources=True)
        self.transposed = None if symmetric else self

    def chosen(self, chunk: int) -> None:
        """All rows."""

    def products(self, H: Table, request: Request, scores: Any = None) -> ChunkStream:
        return self._streamed("multiply", H, request, request.width or H.width)

    def adjoints(self, G: Table, new: Any, request: Request, *others: Any) -> ChunkStream:
        return self._streamed("return", G, request, request.operand.shape[1])

    def _streamed(self, verb: str, table: Table, request: Request, width: int) -> ChunkStream:
        self._log.append((verb, self._layer, table.width, request))
        yield 0, torch.zeros(2, width, dtype=table.dtype)
        self._log.append(("finish",))


class _CountedGraph:
    """A rank's share of a graph, of two rows; it makes its own tables."""

    bounds, row_scale, column_scale = (0, 2), None, None
    recomputed, keeps_first, num_nodes = frozenset[int](), False, 2

    def __init__(
        self, log: list[Event], model: ChunkedModel, sparse: bool, propagates: bool
    ) -> None:
        self._log, self.tables, self.comm = log, self, SoloCommunicator()
        self._X: Features = model.zeros(2, sparse=sparse)
        self.dtype = model.dtype
        self.propagated = None
        if propagates:
            own = _TwoRows.of(0, sources=False)
            self.propagated = self.table("propagated", own, model.widths[0])

    def table(
        self, purpose: str, bounds: _TwoRows, width: int, extra: int = 0, **how: Any
    ) -> _CountedTable:
        table = _CountedTable(self._log, purpose, bounds, width, self.dtype)
        table.extra = extra
        return table

    def panel(self, width: int, heads: int = 0) -> int:
        return width

    def features(self, chunk: int) -> Features:
        self._log.append(("read features",))
        return self._X

    def ids_of(self, chunk: int, chosen: Tensor | None) -> Tensor:
        return torch.arange(2)

    def ids_of_columns(self, matrix: object) -> Tensor:
        return torch.arange(2)

    def scale_of(self, scale: Tensor | None, chunk: int, chosen: Tensor | None) -> None:
        """There is none."""


class Count:
    """Bytes of some events, where tables lie as a placement says: in memory, read and written."""

    def __init__(
        self, events: Sequence[Event], sizes: Sizes, placement: Placement, chunks: int = 1
    ) -> None:
        self._sizes, self._placement, self._chunks = sizes, placement, chunks
        self.most = self.read = self.written = self._alive = 0
        taken = 0  # by the product that is under way
        for verb, *what in events:
            if verb in ("create", "release"):
                (table,) = what
                nbytes = self._nbytes(table) * (table.purpose not in placement.on_disk)
                self._take(nbytes if verb == "create" else -nbytes)
            elif verb in ("read", "write"):
                self._move(what[0].purpose, self._nbytes(what[0]), **{verb: 1})
            elif verb == "read features":
                self.read += sizes.source_bytes
            elif verb == "score":
                self._take(sizes.scored_bytes)
            elif verb == "finish":
                self._take(-taken)
            else:
                taken = self._product(verb, *what)
                self._take(taken)

    def _take(self, nbytes: int) -> None:
        self._alive += nbytes
        self.most = max(self.most, self._alive)

    def _move(self, purpose: str, nbytes: int, *, read: int = 0, write: int = 0) -> None:
        if purpose in self._placement.on_disk:
            self.read += read * nbytes
            self.written += write * nbytes

    def _nbytes(self, table: _CountedTable) -> int:
        if table.purpose == "propagated":
            return self._sizes.propagated_bytes
        layer = self._sizes.layers[table.stands_for.layer]
        rows = layer.columns if table.stands_for.sources else layer.rows
        # Received ones lie below, in memory alone.
        extra = table.extra * self._sizes.received * (table.purpose not in self._placement.on_disk)
        return (rows + extra) * table.width * self._sizes.itemsize

    def _product(self, verb: str, number: int, width: int, request: Request) -> int:
        """Count what a product, or the gradient of its operand, moves; the memory that it takes."""
        sizes, placement, heads = self._sizes, self._placement, request.heads
        layer, received, of_product = sizes.layers[number], sizes.received, width * sizes.itemsize
        width = request.operand.shape[1]
        row, on_disk, several = width * sizes.itemsize, "operand" in placement.on_disk, received > 0
        panel = placement.panel(width, sizes.itemsize, request.whole) if on_disk else width
        thinned = layer.own_matrix is None and layer.rows < sizes.rows
        forward, adjoint = layer.own_matrix or (0, 0)
        if "matrix" in placement.on_disk and layer.own_matrix is None:
            # Row offsets of a block begin at 0; rows of others are one block of the transpose.
            forward = adjoint = sizes.matrix_bytes // sizes.sides + 8 * self._chunks
            adjoint += 8 * (received + 1) if sizes.sides > 1 and several else 0
        scores = layer.rows * heads.score_columns * sizes.itemsize
        operand = (layer.columns + received) * panel * sizes.itemsize
        packed = 0
        if heads:  # as attention packs a panel of sources; what is sent to them takes as much
            packed = (layer.columns + received) * heads.packed(panel, sizes.itemsize)
        results, matrix = layer.rows, forward
        again = verb == "multiply" or not request.linear
        if again:
            # Backward, too, where the operand says which rows are largest, or what they weigh.
            self._move("operand", layer.columns * row, read=1)
            self._move("input", scores, read=1)
        if verb == "return":
            self._move("product", layer.rows * of_product, read=1)
            self._move("gradient", scores, write=1)
            results = layer.columns
            if request.linear:
                matrix, results = adjoint, sizes.rows if thinned else layer.columns
                self._move("operand", sizes.rows * thinned * row, read=1, write=1)
        panels = len(panels_of(width, panel))
        self.read += matrix * panels
        if panels > 1:  # which make a table of their results
            self._move("operand", results * row, read=1, write=1)
        if verb == "multiply":
            alone = bool(packed) and not several  # chunk after chunk
            return packed + (on_disk and not alone) * operand
        if request.linear:  # the gradient of the product is spread over all rows
            return (sizes.rows + received) * panel * sizes.itemsize
        if heads:  # the packed sources and their gradients, then gradients from other ranks
            return 2 * packed + several * (1 + on_disk) * operand
        # The gradient of the operand, and what other ranks send for that.
        return (1 + several + on_disk) * operand
