"""One batch: some seeds, their sampled neighbourhood, and the tables of its graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spgnn.addons.batches.sampled_graph import GraphTables, entries_of
from spgnn.addons.batches.sampling import Hop, Sample, offsets_of
from spgnn.errors import InputError
from spgnn.graph import Block, block_pattern
from spgnn.nn import DropoutKeys
from spgnn.pattern import Pattern
from spgnn.sparse import CSR


class Batch:
    """A mini-batch. Whatever the graph knows of its vertices and edges is an attribute.

    Where the graph has something of a name that a batch has itself (``layers``, ``keys``), it is
    ``batch.attributes[name]``. Fields are those of a batch of PyG's ``NeighborLoader``: ``out =
    model(batch.x, batch.edge_index)[:batch.batch_size]`` is right for PyG's modules. Layers of
    `spgnn.nn` take `layers`, and make the seeds' rows only: ``out = model(batch.x, batch.layers,
    batch.keys)``.

    Attributes
    ----------
    x : Tensor or CSR [m, f], or None
        Features.
    n_id : Tensor int64 [m]
        Vertices of the graph: the seeds first, then the others in the order found. As in PyG, if
        the ``Data`` has an ``n_id`` of its own, that of these vertices.
    input_id : Tensor int64 [batch_size]
        Places of the seeds among the loader's input nodes; their vertices where these are a mask.
    seed_time : Tensor int64 [batch_size], or None
    batch : Tensor int64 [m], or None
        The seed that a vertex belongs to, where samples are disjoint; else what the ``Data`` has.
    place : Draw
    """

    def __init__(
        self,
        tables: GraphTables,
        sample: Sample,
        x: Tensor | CSR | None,
        input_id: Tensor,
        *,
        of_graph: bool = True,
    ) -> None:
        self._tables, self._sample, self._of_graph = tables, sample, of_graph
        vars(self).update(sample.extra)
        self.x, self.input_id, self.place = x, input_id, sample.draw
        # A copy: what renumbers them must not change what is looked up later.
        self.n_id, self.batch_size = sample.nodes.clone(), sample.seeds
        if x is None and "x" in tables.vertices:
            self.x = entries_of("x", tables.vertices["x"], sample.nodes)
        if "n_id" in tables.vertices:
            self.n_id = tables.vertices["n_id"][sample.nodes]
        self.batch = sample.batch
        if sample.batch is None and "batch" in tables.vertices:
            self.batch = tables.vertices["batch"][sample.nodes]
        self.device = torch.device("cpu")
        self.copied: torch.cuda.Event | None = None  # features are on their way to a device

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with an excerpt of its graph instead of the graph."""
        sample, numbers = self._sample, torch.zeros(0, dtype=torch.int64)
        if self._has_numbers:
            _ = getattr(self, "e_id", None)  # from here on, edges are numbered by the excerpt
            drawn = [self._named(hop.edge_ids) for hop in sample.hops if hop.edge_ids is not None]
            numbers, places = torch.cat([numbers, *drawn]).unique(return_inverse=True)
            parts = places.split([len(part) for part in drawn])
            hops = [
                replace(hop, edge_ids=part) for hop, part in zip(sample.hops, parts, strict=True)
            ]
            sample = replace(sample, hops=hops)
        tables = self._tables.excerpt(sample.nodes, numbers, degrees=self._of_graph)
        sample = replace(sample, nodes=torch.arange(len(sample.nodes)))
        derived = ("layers", "graph", "_edge_numbers", "attributes")
        state = {name: value for name, value in vars(self).items() if name not in derived}
        return state | {"_tables": tables, "_sample": sample, "input_id": self.input_id.clone()}

    def __repr__(self) -> str:
        return f"Batch({self.batch_size} of {self.num_nodes} vertices, {self.num_edges} edges)"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        tables = self._tables
        value: Any
        if name == "e_id" and self._has_numbers:
            raise AttributeError("no e_id: a DistGraph does not say which edge of the source it is")
        if name == "e_id" or (name in tables.edges and not self._has_numbers):
            raise AttributeError(f"no {name}: the loader was not asked for edge_ids=True")
        if any(name in table for table in (tables.vertices, tables.edges, tables.others)):
            value = self._known(name)
        elif name in ("y", "edge_weight", "edge_attr", "seed_time"):
            value = None  # as PyG's Data
        else:
            raise AttributeError(f"a batch has no {name}, and neither has its graph")
        self.__dict__[name] = value
        return value

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """All that the graph has of these vertices and edges, and of itself, by name."""
        tables = self._tables
        edges = tables.edges if self._has_numbers else ()
        return {name: self._known(name) for name in (*tables.vertices, *edges, *tables.others)}

    def _known(self, name: str) -> Any:
        tables = self._tables
        if name in tables.vertices:
            return entries_of(name, tables.vertices[name], self._sample.nodes).to(self.device)
        if name in tables.edges:
            return entries_of(name, tables.edges[name], self._edge_numbers).to(self.device)
        return tables.others[name]

    @property
    def num_nodes(self) -> int:
        """Vertices."""
        return len(self.n_id)

    @property
    def num_edges(self) -> int:
        """Edges of `edge_index`."""
        return sum(self.num_sampled_edges)

    @cached_property
    def layers(self) -> list[Block]:
        """The block of each layer of a model, the outermost hop first."""
        blocks = []
        for hop in reversed(self._sample.hops):
            pattern = block_pattern(hop.indptr, hop.indices, hop.sources)
            degrees = partial(self._tables.degrees, self._sample.nodes[: hop.sources])
            options: dict[str, Any] = {"factors": hop.weights}
            options["degrees"] = degrees if self._of_graph else None
            blocks.append(self._block(pattern, hop, **options))
        return blocks

    @cached_property
    def graph(self) -> Block:
        """The edges of `edge_index` as one square block, for layers of several hops."""
        column, row = self.edge_index.cpu()
        indptr = offsets_of(torch.bincount(row, minlength=self.num_nodes))
        return self._block(block_pattern(indptr, column, self.num_nodes), None)

    @cached_property
    def vertex_ids(self) -> Tensor:
        """Original ids of its vertices."""
        return self._ids.to(self.device)

    @cached_property
    def keys(self) -> DropoutKeys:
        """Keys of dropout: functions of the loader's seed, the step and the vertex."""
        return DropoutKeys(self.vertex_ids, self.place.seed, self.place.iteration)

    @cached_property
    def edge_index(self) -> Tensor:
        """Sources and targets of all sampled edges, int64 [2, edges], hop after hop.

        Of a vertex that several hops drew neighbours of, those of the first.
        """
        if not self._sample.hops:
            raise InputError("a batch of this mode has layers, and no edge_index")
        parts = []
        for hop, begin in self._new_rows():
            indptr = hop.indptr[begin:]
            rows = torch.arange(begin, hop.targets).repeat_interleave(indptr.diff())
            parts.append(torch.stack((hop.indices[int(indptr[0]) :].long(), rows)))
        return torch.cat(parts, 1).to(self.device)

    @cached_property
    def e_id(self) -> Tensor:
        """Numbers of these edges in the graph as it was given, int64 [edges]."""
        if not self._has_e_id:
            raise AttributeError  # __getattr__ says why
        numbers = self._edge_numbers
        if "e_id" in self._tables.edges:
            numbers = self._tables.edges["e_id"][numbers]
        return numbers.to(self.device, copy=True)

    @property
    def _has_e_id(self) -> bool:
        return self._has_numbers and (self._tables.numbers_edges or "e_id" in self._tables.edges)

    @property
    def _has_numbers(self) -> bool:
        return all(hop.edge_ids is not None for hop in self._sample.hops)

    @cached_property
    def _edge_numbers(self) -> Tensor:
        parts = [
            hop.edge_ids[int(hop.indptr[begin]) :]
            for hop, begin in self._new_rows()
            if hop.edge_ids is not None
        ]
        return self._named(torch.cat(parts))

    @cached_property
    def num_sampled_nodes(self) -> list[int]:
        """Seeds, and how many vertices each hop found."""
        sizes = [self.batch_size, *(hop.sources for hop in self._sample.hops)]
        return [sizes[0], *(b - a for a, b in pairwise(sizes))]

    @cached_property
    def num_sampled_edges(self) -> list[int]:
        """Edges of each hop in `edge_index`."""
        return [hop.edges - int(hop.indptr[begin]) for hop, begin in self._new_rows()]

    @property
    def sampled_edges(self) -> int:
        """Edges of all layers together."""
        return sum(hop.edges for hop in self._sample.hops)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same on a device; what is asked for later comes there as well."""
        x, input_id = None if self.x is None else self.x.to(device), self.input_id.to(device)
        moved = Batch(self._tables, self._sample, x, input_id, of_graph=self._of_graph)
        vars(moved).update({name: t.to(device) for name, t in self._sample.extra.items()})
        moved.device = torch.device(device)
        moved.n_id = self.n_id.to(device)
        moved.batch = None if self.batch is None else self.batch.to(device)
        if "layers" in vars(self):  # prepared
            moved.layers = [block.to(device) for block in self.layers]
        return moved

    def pyg(self) -> Any:
        """The same as a PyG ``Data``; what was sampled is the batch's own."""
        from torch_geometric.data import Data  # an optional dependency

        own = {"x", "edge_index", "input_id", "batch_size", "n_id", "num_nodes"}
        own |= {"num_sampled_nodes", "num_sampled_edges", *self._sample.extra}
        if self.batch is not None:
            own.add("batch")
        if self._has_e_id:
            own.add("e_id")
        result = Data()
        for name, value in (self.attributes | {name: getattr(self, name) for name in own}).items():
            result[name] = value
        return result

    def prepare(self) -> Batch:
        """Make now what training will need of its structure; called by the thread that fetches."""
        for block in self.layers[1:]:
            _ = block.pattern.T
        return self

    @cached_property
    def _ids(self) -> Tensor:
        return self._tables.ids_of(self._sample.nodes)

    def _block(self, pattern: Pattern, hop: Hop | None, **options: Any) -> Block:
        tables = {name: self._of_edges(name, hop) for name in ("edge_attr", "edge_type")}
        block = Block(
            pattern,
            self._ids[: pattern.shape[1]],
            edge_weight=self._of_edges("edge_weight", hop),
            attributes={name: t for name, t in tables.items() if t is not None},
            **options,
        )
        return block.to(self.device)

    def _of_edges(self, name: str, hop: Hop | None) -> Tensor | None:
        """A table of the edges of a hop, or of those of `edge_index`."""
        if name not in self._tables.edges:
            return None
        if not self._has_numbers:
            raise InputError(f"batches need the numbers of edges (edge_ids), for their {name}")
        numbers = self._edge_numbers
        if hop is not None:
            assert hop.edge_ids is not None
            numbers = self._named(hop.edge_ids)
        table = self._tables.edges[name][numbers]
        return table.reshape(-1).float() if name == "edge_weight" else table

    def _named(self, edge_ids: Tensor) -> Tensor:
        order = self._tables.edge_ids
        return edge_ids if order is None else order[edge_ids]

    def _new_rows(self) -> Iterator[tuple[Hop, int]]:
        """Each hop, and the first of its rows that no hop before has."""
        begin = 0
        for hop in self._sample.hops:
            yield hop, begin
            begin = hop.targets


class CopyAhead:
    """Copies features of batches to a GPU, on a stream of its own, while it trains on others.

    A loader's ``transform``, so it is called by the thread that fetches. Rows that were gathered
    into pinned memory (`Rows.pinned`) go from there; others, sparse ones apart, by way of it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batch: Batch) -> Batch:
        x = batch.x
        if isinstance(x, Tensor):
            with torch.cuda.stream(self._stream):
                rows = x if x.is_pinned() else x.pin_memory()
                batch.x = rows.to(self.device, non_blocking=True)
                batch.copied = self._stream.record_event()
        return batch

    def arrived(self, batch: Batch) -> Batch:
        """The batch on the device: what is computed from now on waits for its features there."""
        if batch.copied is not None:
            assert isinstance(batch.x, Tensor)
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(batch.copied)
            batch.x.record_stream(stream)  # or its memory goes to the next batch too early
        return batch.to(self.device)
