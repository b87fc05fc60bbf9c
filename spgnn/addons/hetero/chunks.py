"""Layers of several vertex types from a disk: some rows at a time of those that each makes.

    forward   layer by layer, type by type, chunk by chunk: a layer's rows, into a file
    backward  in reverse: a chunk's rows again, and its gradients, which are added up in files

A chunk is a graph of its own: some vertices of one type, and all others that their edges start at.
So a layer works on it as on any graph, and what it makes of the chunk's own vertices is exact.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spgnn.addons.hetero.layers import HeteroConv, HGTConv, check_graph
from spgnn.addons.hetero.relational import RGCNConv
from spgnn.addons.hetero.typed_graph import EdgeType, HeteroDistGraph, OwnType, Relation
from spgnn.addons.hetero.typed_models import TypedModel
from spgnn.addons.outofcore import LIBRARIES, MappedRows
from spgnn.autograd import with_backward
from spgnn.comm import SoloCommunicator
from spgnn.command import nbytes
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.files import scratch_directory
from spgnn.graph import RECIPES, Edges, Normalisation
from spgnn.layout import RowLayout
from spgnn.memory import give_back_holes, resident_bytes
from spgnn.nn import DropoutKeys, Norm
from spgnn.pattern import Pattern

_PIECE = 1024  # rows that are copied from or to a file at a time
_PANEL_BYTES = 1 << 24  # of columns that travel between ranks at a time
_COPIES = 8  # of a chunk's rows, as wide as they become, in forward and backward
_COPIES_A_RELATION = 6  # more, for each relation that they are sources or targets of
_EDGE_BYTES = 160  # of numbers and scores of an edge

Rows = dict[str, Tensor]


class _Step(nn.Module):
    """One layer of a model, as a module whose parameters can be others."""

    def __init__(self, model: TypedModel, number: int) -> None:
        super().__init__()
        self.model, self.number = model, number

    def forward(self, rows: Rows, graph: HeteroDistGraph, keys: DropoutKeys | None) -> Rows:
        """As `TypedModel.step`."""
        return self.model.step(self.number, rows, graph, keys)


class _ChunkRelation(Relation):
    """Edges of a chunk, whose sources' degrees nobody knows."""

    def matrix(self, normalisation: Normalisation = "none") -> Any:
        """As of any relation, but for what takes degrees of sources."""
        if RECIPES[normalisation][1] == "sym":
            raise InputError(
                f"{self._name}: layers that divide by degrees of sources, as GCNConv, need rows in "
                "memory"
            )
        return super().matrix(normalisation)


class _ChunkGraph(HeteroDistGraph):
    """A chunk and its sources as a graph on one process."""

    relation_class = _ChunkRelation


class _Files:
    """Rows in mapped files of a directory, whose memory is given back."""

    def __init__(self, directory: Any) -> None:
        self._directory, self._numbers = directory, count()
        self._mapped: dict[int, MappedRows] = {}  # by the address of their first row

    def zeros(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """New rows [rows, width]."""
        one = MappedRows(self._directory / f"rows-{next(self._numbers)}", (rows, width), dtype)
        self._mapped[one.rows.data_ptr()] = one
        return one.rows

    def moved(self, t: Tensor, rows: int = 0) -> Tensor:
        """The same numbers in a file, followed by so many rows more."""
        flat = t.reshape(len(t), int(np.prod(t.shape[1:])))
        result = self.zeros(len(t) + rows, flat.shape[1], t.dtype)
        for first in range(0, len(t), _PIECE):
            result[first : first + _PIECE][: len(t) - first] = flat[first : first + _PIECE]
            self.give_back(result)
        return result.view(len(result), *t.shape[1:])

    def gather(self, table: Tensor, rows: Tensor) -> Tensor:
        """Some rows of a table, in memory."""
        result = table.new_empty(len(rows), table.shape[1])
        for first in range(0, len(rows), _PIECE):
            torch.index_select(
                table, 0, rows[first : first + _PIECE], out=result[first : first + _PIECE]
            )
            self.give_back(table)
        return result

    def add(self, table: Tensor, rows: Tensor, values: Tensor) -> None:
        """Add rows to some of a table."""
        for place, piece in zip(rows.split(_PIECE), values.split(_PIECE), strict=True):
            table.index_add_(0, place, piece)
            self.give_back(table)

    def give_back(self, *tables: Tensor) -> None:
        """Let the system have what was touched of some tables, or of all."""
        for one in [self._mapped[t.data_ptr()] for t in tables] or self._mapped.values():
            one.give_back()


class HeteroChunks:
    """`RGAT`, `RGCN` or `HGT` on rows that lie on a disk: exact, forward and backward. Collective.

    Called as ``chunks(model, graph)``, it returns what ``model(graph.x_dict, graph)`` does; so it
    is the ``forward`` of a :class:`spgnn.Trainer`. Features and edges of the graph move into files;
    its attributes are these from then on.

    Parameters
    ----------
    graph : HeteroDistGraph
        Of whole rows (``algo="1d"``, ``cover="column"``).
    spill : str
        Directory for features, rows of layers and edges. What is written there is removed.
    memory : int or str, optional
        Bytes that each rank may use for everything, as in ``"2GiB"``: as few chunks are taken as
        fit. By default all rows of a type are one chunk.

    Raises
    ------
    InputError
        On all ranks, if the memory is too little, or a layer looks at more than its neighbours.
    """

    takes_keys = True  # of dropout, as models do

    def __init__(
        self, graph: HeteroDistGraph, *, spill: str, memory: int | str | None = None
    ) -> None:
        check_graph("HeteroChunks", graph)
        comm = self.comm = graph.comm
        if graph.covered or not graph.codec.exact:
            raise InputError('HeteroChunks needs whole rows as they are: cover="column", no codec')
        if graph.device.type != "cpu":
            raise InputError("HeteroChunks works on CPUs")
        self.graph, self._memory = graph, nbytes(memory) if isinstance(memory, str) else memory
        stack = ExitStack()
        scratch = scratch_directory(spill, f"spill={spill}")
        directory = comm.on_every_rank(lambda: stack.enter_context(scratch))
        self.close = weakref.finalize(self, stack.close)
        self._files = _Files(directory)
        self._halo_rows = {
            name: one.own_rows + (one.A.volume.receive if comm.size > 1 else 0)
            for name, one in graph.vertices.items()
        }
        self._features: Rows = {}
        self._ids = {name: one._received(one.vertex_ids) for name, one in graph.vertices.items()}
        for name, one in graph.vertices.items():
            if "x" not in one.attributes:
                continue
            x = one.attributes["x"]
            x = x if x.dim() == 2 else x.reshape(len(x), -1)
            more = self._halo_rows[name] - len(x)
            self._features[name] = table = self._files.moved(x, more)
            one.attributes["x"] = table[: len(x)].view(one.attributes["x"].shape)
            self._fetch(name, table)
        self._starts: dict[EdgeType, Tensor] = {}
        for relation, one in graph.relations.items():
            self._move(relation, one)
        give_back_holes()
        self._tables: dict[tuple[str, int, str], Tensor] = {}
        self._steps: list[_Layer] = []
        self.calls = 0

    def __call__(
        self,
        model: TypedModel,
        graph: HeteroDistGraph | None = None,
        keys: DropoutKeys | None = None,
    ) -> Tensor:
        """Rows of the target's own vertices [own rows, f]. Collective."""
        if graph is not None and graph is not self.graph:
            raise InputError("HeteroChunks: it was made of another graph")
        self.comm.on_every_rank(lambda: self._check(model))
        self._dtype = model.lin.weight.dtype
        if not self._steps:
            self._steps = self.comm.on_every_rank(lambda: self._planned(model))
        self.calls += 1
        self._keys = None
        if model.dropout:
            self._keys = model.keys_of_call(keys, self.graph[model.target])
        parameters = [p for p in model.parameters() if p.requires_grad]
        if not torch.is_grad_enabled() or not parameters:
            return self._forward(model)
        call = self.calls

        def backward(G: Tensor) -> None:
            if call != self.calls:
                raise InputError("HeteroChunks: call backward before the next forward")
            gradients = self._gradients(model, G, parameters)
            some = [p for p in parameters if id(p) in gradients]
            torch.autograd.backward(some, [gradients[id(p)] for p in some])

        return with_backward(self._forward(model), backward)

    def _check(self, model: object) -> None:
        """Refuse what looks at more than a chunk has."""
        if not isinstance(model, TypedModel):
            raise InputError(f"HeteroChunks takes RGAT, RGCN or HGT, got {type(model).__name__}")
        for layer in model.convs:
            inside = list(layer.convs.values()) if isinstance(layer, HeteroConv) else []
            wrong = not isinstance(layer, HeteroConv | HGTConv | RGCNConv)
            wrong = wrong or not all(conv.aggregates_once for conv in inside)
            for part in layer.modules():
                if isinstance(part, Norm) and part.needs_moments:
                    wrong = True
                if wrong or isinstance(part, nn.modules.batchnorm._BatchNorm):
                    name = type(layer).__name__
                    raise InputError(
                        f"HeteroChunks: {name} looks at more than neighbours of a vertex; layers "
                        "are HeteroConv of single aggregations without norms, HGTConv and RGCNConv"
                    )

    def _move(self, relation: EdgeType, one: Any) -> None:
        """Put the edges of a relation into files."""
        files, indptr = self._files, one.pattern.indptr
        self._starts[relation] = indptr
        one.local_edge_index = files.moved(one.local_edge_index)
        indices = files.moved(one.pattern.indices)
        one.pattern = Pattern.trusted(indptr, indices, one.pattern.shape)
        one.attributes = one._attributes = {k: files.moved(t) for k, t in one.attributes.items()}
        one.edge_weight = one.attributes.get("edge_weight")
        one._matrices = {}

    def _planned(self, model: TypedModel) -> list[_Layer]:
        """Types, widths and chunks of each layer."""
        graph, dtype, steps = self.graph, model.lin.weight.dtype, list[_Layer]()
        widths = {name: table.shape[1] for name, table in self._features.items()}
        nothing = self._chunk(model.target, 0, 0)[0]
        nothing.only = None
        for number in range(len(model.convs)):
            empty = {name: torch.empty(0, f, dtype=dtype) for name, f in widths.items()}
            with torch.no_grad():
                rows = model.step(number, empty, nothing, None)
            after = {name: one.shape[1] for name, one in rows.items()}
            steps.append(_Layer(widths, after))
            widths = after
        needed, budget = {model.target}, self._budget(model)
        for step in reversed(steps):
            step.types = [name for name in graph.node_types if name in needed]
            for name in step.types:
                step.bounds[name] = self._bounds(name, step, budget, model)
            needed |= {source for source, _, target in graph.edge_types if target in needed}
        return steps

    def _budget(self, model: TypedModel) -> int | None:
        """Bytes that a chunk may take: what is left beside outputs and libraries, twice."""
        if self._memory is None:
            return None
        rows: int = self.graph[model.target].own_rows
        outputs = 4 * rows * model.lin.weight[:, :1].nbytes
        return (self._memory - resident_bytes() - LIBRARIES // 2 - outputs) // 2

    def _bounds(self, name: str, step: _Layer, budget: int | None, model: TypedModel) -> list[int]:
        """Bounds of the chunks of a type's own rows, each of which fits into a budget."""
        rows, itemsize = self.graph[name].own_rows, model.lin.weight.itemsize
        if budget is None:
            return [0, rows]

        ends = [relation for relation in self._starts if relation[2] == name]

        def of_row(kind: str) -> int:
            roles = sum(source == kind for source, *_ in ends) + len(ends) * (kind == name)
            copies = _COPIES + _COPIES_A_RELATION * roles
            return (step.before.get(kind, 0) + copies * model.width) * itemsize

        costs = np.full(rows, of_row(name), np.int64)
        for relation in ends:
            lengths = self._starts[relation].diff().numpy()
            costs += lengths * (of_row(relation[0]) + _EDGE_BYTES)
        most = int(costs.max(initial=0))
        if most > budget:
            needed = (self._memory or 0) + 2 * (most - budget)
            raise InputError(
                f"memory: about {needed // 2**20 + 1} MiB are needed, for one vertex of {name!r} "
                "and its neighbours"
            )
        before, bounds = np.append(0, costs.cumsum()), [0]
        while bounds[-1] < rows:
            bounds.append(int(np.searchsorted(before, before[bounds[-1]] + budget, "right")) - 1)
        return bounds if rows else [0, 0]

    def _chunk(self, name: str, first: int, last: int) -> tuple[HeteroDistGraph, Rows]:
        """Own vertices [first, last) of a type with their sources; rows of each type's table."""
        graph, own = self.graph, torch.arange(first, last)
        edges: dict[EdgeType, tuple[Tensor, slice]] = {}
        for relation, starts in self._starts.items():
            here = slice(0, 0)
            if relation[2] == name and last > first:
                here = slice(int(starts[first]), int(starts[last]))
            edges[relation] = graph.relation(relation).local_edge_index[:, here].clone(), here
        places: Rows = {}
        for kind in graph.node_types:
            read = [index[0] for relation, (index, _) in edges.items() if relation[0] == kind]
            others = torch.cat(read).unique() if read else own[:0]
            if kind == name:
                others = torch.cat((own, others[(others < first) | (others >= last)]))
            places[kind] = others
        relations = {}
        for relation, (index, here) in edges.items():
            place, source = places[relation[0]], index[0]
            if relation[0] == name:
                at = torch.searchsorted(place[len(own) :].contiguous(), source) + len(own)
                source = torch.where((source >= first) & (source < last), source - first, at)
            else:
                source = torch.searchsorted(place, source)
            attributes = graph.relation(relation).attributes
            relations[relation] = Edges(
                torch.stack((source, index[1] - first)),
                {key: rows[here].clone() for key, rows in attributes.items()},
            )
        self._files.give_back()
        types = {
            kind: OwnType(RowLayout(np.array([0, len(rows)])), self._ids[kind][rows], {})
            for kind, rows in places.items()
        }
        notes: dict[Any, Any] = {owner: ({}, {}) for owner in (None, *types, *relations)}
        chunk = _ChunkGraph(types, relations, notes, SoloCommunicator(), Algorithm())
        chunk.only = name
        return chunk, places

    def _runs(
        self, model: TypedModel, number: int, tables: Rows, leaves: Rows | None = None
    ) -> Iterator[tuple[str, int, int, Tensor, Rows, Rows]]:
        """A layer chunk by chunk: type, bounds, rows after it, rows before it, and their places."""
        step, layer = self._steps[number], _Step(model, number)
        for name in step.types:
            for first, last in pairwise(step.bounds[name]):
                if self._memory is not None and 2 * resident_bytes() > self._memory:
                    give_back_holes()
                chunk, places = self._chunk(name, first, last)
                x: Rows = {}
                for kind, width in step.before.items():
                    rows = places[kind]
                    empty = model.lin.weight.new_empty(0, width)
                    x[kind] = self._files.gather(tables[kind], rows) if len(rows) else empty
                    x[kind].requires_grad_(leaves is not None and number > 0)
                with torch.set_grad_enabled(leaves is not None):
                    args = x, chunk, self._keys
                    after: Rows = torch.func.functional_call(layer, leaves or {}, args)
                    out = after[name][: last - first]
                yield name, first, last, out, x, places

    def _forward(self, model: TypedModel) -> Tensor:
        """Rows of the target after the last layer; those of other layers stay in tables."""
        tables, last = self._features, len(self._steps) - 1
        with torch.no_grad():
            for number, step in enumerate(self._steps):
                if number < last:
                    after = {name: self._table("rows", number, name) for name in step.types}
                else:
                    own, width = self.graph[model.target].own_rows, step.after[model.target]
                    after = {model.target: model.lin.weight.new_zeros(own, width)}

                def work(after: Rows = after, number: int = number, tables: Rows = tables) -> None:
                    for name, first, end, out, *_ in self._runs(model, number, tables):
                        after[name][first:end] = out
                        self._files.give_back()

                self.comm.on_every_rank(work)
                for name in step.types if number < last else ():
                    self._fetch(name, after[name])
                tables = after
        return tables[model.target]

    def _gradients(
        self, model: TypedModel, G: Tensor, parameters: Sequence[Tensor]
    ) -> dict[int, Tensor]:
        """Gradients of the parameters that have any, by their `id`. Collective."""
        ids, sums = set(map(id, parameters)), dict[int, Tensor]()
        gradients = {model.target: G}
        for number in range(len(self._steps) - 1, -1, -1):
            before, earlier = self._features, dict[str, Tensor]()
            for name in self._steps[number - 1].types if number else ():
                earlier[name] = table = self._table("gradient", number - 1, name)
                for piece in table.split(_PIECE):
                    piece.zero_()
                    self._files.give_back(table)
            if number:
                before = {name: self._table("rows", number - 1, name) for name in earlier}

            def work(
                gradients: Rows = gradients,
                number: int = number,
                before: Rows = before,
                earlier: Rows = earlier,
            ) -> None:
                layer = dict(_Step(model, number).named_parameters())
                # Gradients of replicated parameters are those of all ranks; these are one chunk's.
                leaves = {n: p.detach().requires_grad_() for n, p in layer.items() if id(p) in ids}
                runs = self._runs(model, number, before, leaves)
                for name, first, last, out, x, places in runs:
                    if not out.requires_grad:
                        continue
                    rows = {kind: one for kind, one in x.items() if one.requires_grad}
                    of, G_out = [*leaves.values(), *rows.values()], gradients[name][first:last]
                    each = torch.autograd.grad(out, of, G_out.clone(), allow_unused=True)
                    for key, one in zip(leaves, each, strict=False):
                        if one is not None:
                            place = id(layer[key])
                            sums[place] = sums[place].add_(one) if place in sums else one
                    for kind, one in zip(rows, each[len(leaves) :], strict=True):
                        if one is not None and len(one):
                            self._files.add(earlier[kind], places[kind], one)

            self.comm.on_every_rank(work)
            for name, table in earlier.items():
                self._return(name, table)
            gradients = {n: table[: self.graph[n].own_rows] for n, table in earlier.items()}
        return sums

    def _table(self, what: str, number: int, name: str) -> Tensor:
        """Rows of a type after a layer but the last, or their gradients."""
        key, width = (what, number, name), self._steps[number].after[name]
        if key not in self._tables:
            rows = self._halo_rows[name]
            self._tables[key] = self._files.zeros(rows, width, self._dtype)
        return self._tables[key]

    def _panels(self, name: str, table: Tensor) -> Iterator[slice]:
        rows = self.comm.agree(self._halo_rows[name]) if self.comm.size > 1 else 1
        panel = max(1, _PANEL_BYTES // max(rows * table.dtype.itemsize, 1))
        for first in range(0, table.shape[1] if self.comm.size > 1 else 0, panel):
            yield slice(first, first + panel)

    def _fetch(self, name: str, table: Tensor) -> None:
        """Fill in the rows of other ranks below own ones. Collective."""
        one = self.graph[name]
        with torch.no_grad():
            for columns in self._panels(name, table):
                own = table[: one.own_rows, columns].contiguous()
                table[one.own_rows :, columns] = one.A.halo(own, exact=True)[one.own_rows :]
                self._files.give_back(table)

    def _return(self, name: str, table: Tensor) -> None:
        """Add gradients of rows of other ranks at their owners. Collective."""
        one = self.graph[name]
        with torch.no_grad():
            for columns in self._panels(name, table):
                table[: one.own_rows, columns] = one.A.halo_sum(table[:, columns].contiguous())
                self._files.give_back(table)


@dataclass(eq=False)
class _Layer:
    """One layer: widths before and after it, and chunks of the types that are needed after it."""

    before: Mapping[str, int]
    after: Mapping[str, int]
    types: Sequence[str] = ()
    bounds: dict[str, list[int]] = field(default_factory=dict)
