"""Sampled batches of graphs of several vertex types, as PyG's ``HeteroData``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from spgnn.addons.batches import (
    BatchOptions,
    Counts,
    Hop,
    NeighborSampler,
    RelationSampler,
    Strategy,
    TypedSample,
    is_integer,
    offsets_of,
)
from spgnn.addons.hetero.blocks import EDGE_ATTRIBUTES, HeteroBlock
from spgnn.addons.hetero.data import HeteroArrays
from spgnn.addons.hetero.typed_graph import EdgeType, HeteroDistGraph
from spgnn.data import with_edge_index
from spgnn.errors import InputError, unknown
from spgnn.graph import block_pattern
from spgnn.pattern import Pattern, described, index_dtype

Lookup = Callable[[EdgeType, Tensor], tuple[dict[str, Tensor], Tensor]]
"""Attributes of a relation's edges, and the rows in these of edge ids of its hops."""


class TypedGraph:
    """A graph of several vertex types on one process that batches are drawn from.

    Attributes
    ----------
    rows : int
        Vertices of the type that seeds are of.
    vertices : dict of Tensor
        Attributes of these.
    """

    x = pattern = None

    def __init__(self, data: Any, how: BatchOptions, counts: Counts) -> None:
        for name, usual in (("store", None), ("structure", None), ("sampler", "neighbor")):
            if getattr(how, name) != usual:
                raise InputError(f"{name} is not for a graph of several vertex types")
        self.data = data = as_hetero_data(data)
        self._arrays, self._counts = HeteroArrays.read(data, None), counts
        self.aim, self._orders = how.input_nodes[0], dict[EdgeType, Tensor]()
        self.name, self.rows = f"vertex type {self.aim!r}", self._arrays.sizes[self.aim]
        self.vertices = self._arrays.vertices[self.aim]

    @staticmethod
    def arguments(
        data: Any, counts: Any, inputs: Any
    ) -> tuple[list[tuple[int, ...]], tuple[str, Any]]:
        """Fan-outs by hop and relation, and input nodes with their type."""
        from torch_geometric.sampler import NumNeighbors  # an optional dependency

        if not isinstance(counts, list | tuple | dict | NumNeighbors):
            got = type(counts).__name__
            raise InputError(f"num_neighbors must be a list or a dictionary of lists, got {got}")
        of_one = inputs if isinstance(inputs, tuple) else (inputs, None)
        if len(of_one) != 2 or not isinstance(of_one[0], str):
            raise InputError("input_nodes of several vertex types: give (type, vertices or a mask)")
        if of_one[0] not in data.node_types:
            raise unknown("vertex type", of_one[0], data.node_types)
        numbers = counts if isinstance(counts, NumNeighbors) else NumNeighbors(counts)
        try:
            by_relation = numbers.get_values(data.edge_types)
        except ValueError as error:
            raise InputError(f"num_neighbors: {error}") from None
        return list(zip(*by_relation.values(), strict=True)), of_one

    @staticmethod
    def strategy(graph: HeteroDistGraph, how: BatchOptions) -> Strategy:
        """The batches of a rank of several. Collective."""
        from spgnn.addons.hetero.rank_batches import typed_batches

        return typed_batches(graph, how)

    def ids_of(self, nodes: Tensor) -> Tensor:
        """Original ids of some vertices."""
        return nodes

    def sampler(
        self,
        how: BatchOptions,
        *,
        disjoint: bool,
        subgraph_type: bool,
        weight_attr: str | None,
        time_attr: str | None,
        seeds_have_times: bool,
        last: bool,
    ) -> RelationSampler:
        """The sampler that a loader's arguments describe."""
        arrays, times = self._arrays, self._collected("time_attr", time_attr)
        weights = self._collected("weight_attr", weight_attr)
        if any(isinstance(name, str) for name in weights):
            raise InputError(f"weight_attr {weight_attr} is of vertices, and edges have weights")
        if time_attr is not None and not seeds_have_times and self.aim not in times:
            raise InputError(f"time_attr {time_attr}: {self.name} has none, so give input_time")
        dtype, relations = index_dtype(max(arrays.sizes.values())), {}
        node_times = {name: t for name, t in times.items() if isinstance(name, str)}
        for name, (source, target) in arrays.edges.items():
            order = self._orders[name] = target.argsort(stable=True)
            shape = arrays.sizes[name[2]], arrays.sizes[name[0]]
            indptr = offsets_of(torch.bincount(target, minlength=shape[0]))
            relations[name] = NeighborSampler(
                Pattern.trusted(indptr, source[order].to(dtype), shape),
                [],
                weights=weights[name][order] if name in weights else None,
                edge_times=times[name][order] if name in times else None,
                node_times=node_times.get(name[0]),
                temporal_strategy="last" if last else "uniform",
            )
        return RelationSampler(
            relations,
            arrays.sizes,
            how.num_neighbors,  # type: ignore[arg-type]
            aim=self.aim,
            node_times=node_times,
            replace=how.replace,
            disjoint=disjoint,
            directed=not subgraph_type,
            resample=how.resample,
            threads=None if how.num_workers < 2 else 1,
        )

    def _collected(self, option: str, name: str | None) -> dict[Any, Tensor]:
        """A number of each vertex or edge, of the types or relations that have it."""
        if name is None:
            return {}
        timed, values = option == "time_attr", dict[Any, Tensor]()
        stores: list[Any] = [self._arrays.vertices, self._arrays.attributes]
        for owner, attributes in (pair for store in stores for pair in store.items()):
            table = attributes.get(name)
            if table is None:
                continue
            if table.numel() != len(table) or (timed and not is_integer(table)):
                right = "an integer" if timed else "a number"
                raise InputError(f"{option} {name} must be {right} each, got {described(table)}")
            values[owner] = table.reshape(-1).to(torch.int64 if timed else torch.float64)
        if len({isinstance(owner, str) for owner in values}) != 1:
            fault = "both vertices and edges have it" if values else "nothing has it"
            raise InputError(f"{option} {name}: {fault}")
        return values

    def batch(self, sample: TypedSample, input_id: Tensor) -> Any:
        """A batch of a sample, with what the graph has of its vertices and edges."""
        from torch_geometric.loader.utils import filter_hetero_data

        index, places = drawn_edges(sample)
        numbers = {name: self._orders[name][at] for name, at in places.items()}
        source, target = ({name: ends[row] for name, ends in index.items()} for row in (0, 1))
        batch = filter_hetero_data(self.data, dict(sample.nodes), source, target, dict(numbers))
        for owner, ids in (*sample.nodes.items(), *numbers.items()):
            name = "n_id" if isinstance(owner, str) else "e_id"
            if name not in batch[owner]:
                batch[owner][name] = ids
        for x in batch.collect("x", allow_empty=True).values():
            self._counts.add(rows_needed=len(x), bytes_needed=x.nbytes)
        named, orders = self._arrays.attributes, self._orders
        return completed(
            batch, sample, self.aim, input_id, lambda name, ids: (named[name], orders[name][ids])
        )


def as_hetero_data(data: Any) -> Any:
    """Edges of a ``HeteroData`` as ``edge_index``; a graph that is on this process alone as one."""
    if not isinstance(data, HeteroDistGraph):
        for name in data.edge_types:
            store = with_edge_index(data[name])
            if store is not data[name] or "adj_t" in store:
                data = copy.copy(data)
                values = {key: value for key, value in store.items() if key != "adj_t"}
                data[name].clear()
                data[name].update(values)
        return data
    from torch_geometric.data import HeteroData  # an optional dependency

    result = HeteroData()
    for key, vertices in data.vertices.items():
        result[key].update({**vertices._shared, **vertices.attributes})
        result[key].num_nodes = vertices.num_nodes
    for name, relation in data.relations.items():
        result[name].update({**relation._shared, **relation.attributes})
        rows, index = own_edges(data, name)
        result[name].edge_index = torch.stack((rows[index[0]], index[1]))
    return result.to("cpu")


def own_edges(graph: HeteroDistGraph, name: EdgeType) -> tuple[Tensor, Tensor]:
    """Rows of sources, and a relation's edges from places in these to own rows, by own row."""
    relation, sources = graph.relation(name), graph.vertices[name[0]]
    if graph.covered:
        source, target = torch.from_numpy(relation.index)
        rows, place = source.unique(return_inverse=True)
        return rows, torch.stack((place, target))
    own = torch.arange(*sources.layout.range(graph.comm.rank), device=sources.device)
    return sources.halo(own).cpu(), relation.local_edge_index.cpu()


def drawn_edges(sample: TypedSample) -> tuple[dict[EdgeType, Tensor], dict[EdgeType, Tensor]]:
    """Each relation's edges, int64 [2, edges], hop after hop, and their edge ids.

    Of a vertex that several hops drew neighbours of, those of the first.
    """
    index: dict[EdgeType, Tensor] = {}
    edge_ids: dict[EdgeType, Tensor] = {}
    for name in sample.hops[0] if sample.hops else ():
        begin, ends, numbers = 0, [], []
        for hop in (hops[name] for hops in sample.hops):
            indptr = hop.indptr[begin:]
            first = int(indptr[0])
            rows = torch.arange(begin, hop.targets).repeat_interleave(indptr.diff())
            ends.append(torch.stack((hop.indices[first:].long(), rows)))
            assert hop.edge_ids is not None
            numbers.append(hop.edge_ids[first:])
            begin = hop.targets
        index[name], edge_ids[name] = torch.cat(ends, 1), torch.cat(numbers)
    return index, edge_ids


def completed(
    batch: Any, sample: TypedSample, aim: str, input_id: Tensor, attributes: Lookup
) -> Any:
    """A batch with what a loader says of it: PyG's fields, and ``layers`` for layers of ours."""
    sizes = [dict.fromkeys(sample.nodes, 0) | {aim: sample.seeds}]
    for hops in sample.hops:
        sizes.append(sizes[-1] | {name[0]: hop.sources for name, hop in hops.items()})
    for kind in sample.nodes:
        ends = [0, *(size[kind] for size in sizes)]
        batch[kind].num_sampled_nodes = [b - a for a, b in pairwise(ends)]
        if sample.batch is not None:
            batch[kind].batch = sample.batch[kind]
    for name in sample.hops[0] if sample.hops else ():
        begins = [0, *(size[name[2]] for size in sizes)]
        batch[name].num_sampled_edges = [
            hops[name].edges - int(hops[name].indptr[begin])
            for hops, begin in zip(sample.hops, begins, strict=False)
        ]
    own = batch[aim]
    own.input_id, own.seed_time = input_id, sample.extra.get("seed_time")
    own.batch_size = sample.seeds

    def make(hops: Mapping[EdgeType, Hop], name: EdgeType) -> Any:
        hop = hops[name]
        assert hop.edge_ids is not None
        pattern = block_pattern(hop.indptr, hop.indices, hop.sources)
        named, rows = attributes(name, hop.edge_ids)
        own = {key: named[key][rows] for key in EDGE_ATTRIBUTES if key in named}
        return pattern, own, hop.weights

    batch.layers = []
    for hops, rows, columns in zip(sample.hops, sizes, sizes[1:], strict=False):
        ids = {kind: batch[kind].n_id[:count] for kind, count in columns.items()}
        batch.layers.insert(0, HeteroBlock(rows, ids, list(hops), partial(make, hops)))
    return batch
