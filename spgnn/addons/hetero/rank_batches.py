"""Batches of a graph of several vertex types whose ranks hold their own rows alone.

The owner of a vertex draws its neighbours by each relation. All relations are one table of rows, of
each rank those of one relation after another, so a hop is one request and one response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches import (
    BatchOptions,
    Counts,
    Draw,
    Growth,
    Hop,
    Metadata,
    NeighborSampler,
    RankBatches,
    RankSampler,
    Requests,
    RowEntries,
    Strategy,
    TypedSample,
    numbered,
    of_all_ranks,
    offsets_of,
    own_mask,
    rows_of_ranks,
    step_inputs,
    steps_of,
    union_of,
)
from spgnn.addons.hetero.batches import completed, drawn_edges, own_edges
from spgnn.addons.hetero.typed_graph import EdgeType, HeteroDistGraph
from spgnn.errors import InputError, check_choice
from spgnn.graph import block_pattern
from spgnn.layout import RowLayout

_NONE = torch.zeros(0, dtype=torch.int64)


class TypedRanks:
    """One rank's relations as one table of rows, with layouts of rows and of edges.

    Attributes
    ----------
    layout : RowLayout
        Of the rows of all relations, of a rank one relation after another.
    edges : dict of RowLayout
        Of the edges of each relation.
    """

    def __init__(self, graph: HeteroDistGraph, *, local: bool) -> None:
        self.graph, self.comm, self.counts = graph, graph.comm, Counts()
        self.names, self.local = graph.edge_types, local
        here = [own_edges(graph, name)[1].shape[1] for name in self.names]
        sizes = torch.zeros(self.comm.size, len(here), dtype=torch.int64)
        sizes[self.comm.rank] = torch.tensor(here, dtype=torch.int64)
        self.comm.all_reduce(sizes).wait()
        self.edges = dict(zip(self.names, map(_layout_of, sizes.numpy().T), strict=True))
        targets = [graph.vertices[target].layout.sizes for _, _, target in self.names]
        lengths = np.array(targets, np.int64).reshape(len(self.names), self.comm.size)
        self.layout = _layout_of(lengths.sum(0))
        # The first row of each relation, on each rank.
        self.begins = np.cumsum(lengths, 0) - lengths + self.layout.offsets[:-1]

    def stacked(self, relation: int, rows: Tensor) -> Tensor:
        """Rows of a relation's target type as rows of the table."""
        layout = self.graph.vertices[self.names[relation][2]].layout
        owner = layout.owner(rows.numpy())
        moved = self.begins[relation] - layout.offsets[:-1]
        return rows + torch.from_numpy(moved[owner])


def _layout_of(sizes: Any) -> RowLayout:
    return RowLayout(np.append(0, np.cumsum(sizes, dtype=np.int64)))


class TypedGrowth(Growth):
    """A sample of several types that grows hop by hop; nodes are rows of their type's layout."""

    def __init__(self, seeds: Tensor, draw: Draw, *, ranks: TypedRanks, aim: str) -> None:
        super().__init__(seeds, draw)
        self._ranks = ranks
        self.of_types = {name: _NONE for name in ranks.graph.node_types} | {aim: seeds}
        self._typed: list[dict[EdgeType, Hop]] = []
        self._numbers: dict[EdgeType, list[Tensor]] = {name: [] for name in ranks.names}
        self._ask()

    def _ask(self) -> None:
        of_types, names = self.of_types, self._ranks.names
        rows = [self._ranks.stacked(r, of_types[name[2]]) for r, name in enumerate(names)]
        self._sizes = [len(part) for part in rows]
        self.targets = torch.cat([*rows, _NONE])

    def take(self, rows: RowEntries, hop: int) -> None:
        """The next hop, of the rows of all relations' targets."""
        assert rows.edges is not None
        first, drawn = 0, dict[EdgeType, tuple[Tensor, Tensor, Tensor]]()
        for name, size in zip(self._ranks.names, self._sizes, strict=True):
            indptr = rows.indptr[first : first + size + 1]
            begin, end = int(indptr[0]), int(indptr[-1])
            indptr, columns, numbers = indptr - begin, rows.columns[begin:end], self._numbers[name]
            self.of_types[name[0]], indices = numbered(self.of_types[name[0]], columns)
            before = sum(map(len, numbers))
            drawn[name] = indptr, indices, torch.arange(before, before + len(columns))
            numbers.append(rows.edges[begin:end])
            first += size
        self._typed.append(
            {
                name: Hop(indptr, indices, places, None, len(self.of_types[name[0]]))
                for name, (indptr, indices, places) in drawn.items()
            }
        )
        self._ask()

    def result(self) -> tuple[Any, Any]:
        """The sample, and the numbers of each relation's edges, in which edge ids are places."""
        numbers = {name: torch.cat([*parts, _NONE]) for name, parts in self._numbers.items()}
        return TypedSample(self.of_types, self._seeds, self._typed), numbers


class TypedRankSampler(RankSampler):
    """Samples of a graph of several types over ranks: those of one process, bit for bit."""

    def __init__(self, ranks: TypedRanks, aim: str, options: BatchOptions) -> None:
        self.ranks, self._ranks = ranks, ranks  # type: ignore[assignment]
        self.hops = len(options.num_neighbors)
        self._growth = partial(TypedGrowth, ranks=ranks, aim=aim)
        self._edges, self._ids = Metadata({}), None  # edges are numbered
        self._samplers, self._tables = [], []
        rank = ranks.comm.rank
        draws: dict[str, Any] = {"replace": options.replace, "resample": options.resample}
        for r, name in enumerate(ranks.names):
            targets, sources = (ranks.graph.vertices[name[end]] for end in (2, 0))
            columns, index = own_edges(ranks.graph, name)
            ids = rows_of_ranks(sources.vertex_ids.cpu(), columns, sources.layout, ranks.comm)
            numbers = torch.arange(index.shape[1]) + ranks.edges[name].offsets[rank]
            if ranks.local:
                first, last = sources.layout.range(rank)
                is_own = (columns[index[0]] >= first) & (columns[index[0]] < last)
                index, numbers = index[:, is_own], numbers[is_own]
            lengths = torch.bincount(index[1], minlength=targets.own_rows)
            sampler = NeighborSampler(
                block_pattern(offsets_of(lengths), index[0], len(columns)),
                [hop[r] for hop in options.num_neighbors],  # type: ignore[index]
                vertex_ids=ids,  # type: ignore[arg-type]  # dense
                row_ids=targets.vertex_ids.cpu(),
                edge_ids=True,
                **draws,
            )
            self._samplers.append(sampler)
            self._tables.append((columns, numbers))

    def own(self, targets: Tensor, hop: int, draw: Draw) -> RowEntries:
        """Neighbours of own rows, which come relation by relation; without communication."""
        rank, count = self._ranks.comm.rank, len(self._samplers)
        begins = torch.from_numpy(self._ranks.begins[:, rank] - self._ranks.layout.offsets[rank])
        relation = torch.searchsorted(begins, targets, right=True) - 1
        sizes = torch.bincount(relation, minlength=count).tolist()
        lengths, columns, edges = [_NONE], [_NONE], [_NONE]
        parts = zip(targets.split(sizes), self._samplers, self._tables, strict=True)
        for r, (rows, sampler, (to_row, to_edge)) in enumerate(parts):
            drawn = sampler.sample_hop(rows - begins[r], hop, draw, relation=r, relations=count)
            indptr, drawn_columns, places, _ = drawn
            assert places is not None
            lengths.append(indptr.diff())
            columns.append(to_row[drawn_columns.long()])
            edges.append(to_edge[places])
        return RowEntries(offsets_of(torch.cat(lengths)), torch.cat(columns), torch.cat(edges))


class TypedRankBatches(RankBatches):
    """Batches of a graph of several types; calls are collective."""

    def __init__(self, ranks: TypedRanks, aim: str, *args: Any, **options: Any) -> None:
        super().__init__(ranks, *args, **options)  # type: ignore[arg-type]
        self._ranks, self._aim = ranks, aim

    def _completed(
        self, epoch: int, steps: Sequence[int], chosen: Sequence[Any], samples: Any
    ) -> Callable[[], list[Any]]:
        """Fetch what the vertices and edges of some steps' samples have. Collective."""
        ranks, drawn = self._ranks, [sample for sample, _ in samples]
        lists: dict[Any, list[Tensor]] = {
            name: [sample.nodes[name] for sample in drawn] for name in ranks.graph.node_types
        }
        for name in ranks.names:
            lists[name] = [numbers[name] for _, numbers in samples]
        arriving = {owner: self._fetch(owner, rows) for owner, rows in lists.items()}

        def finish() -> list[Any]:
            tables = {owner: arrive() for owner, arrive in arriving.items()}
            batches = dict.fromkeys(steps)
            for number, ((step, (_, input_id)), sample) in enumerate(
                zip(chosen, drawn, strict=True)
            ):
                own = {owner: parts[number] for owner, parts in tables.items()}
                batches[step] = self._typed_batch(sample, input_id, own)
            return list(batches.values())

        return finish

    def _fetch(
        self, owner: str | EdgeType, rows: list[Tensor]
    ) -> Callable[[], list[dict[str, Tensor]]]:
        """Attributes of some vertices of a type, or edges of a relation. Collective."""
        graph, comm = self._ranks.graph, self._ranks.comm
        if isinstance(owner, str):
            store, layout = graph.vertices[owner], graph.vertices[owner].layout
            table = Metadata({"n_id": store.vertex_ids, **store.attributes})
        else:
            layout, table = self._ranks.edges[owner], Metadata(graph.relations[owner].attributes)
            if not table.columns:
                return lambda: [{} for _ in rows]
        table = Metadata({name: column.cpu() for name, column in table.columns.items()})
        union, places = union_of(rows)
        requests = Requests(union, layout, comm)
        arrive = requests.respond_later(table.of(requests.requested).packed())

        def finish() -> list[dict[str, Tensor]]:
            packed = arrive()
            assert isinstance(packed, Tensor)
            columns = table.unpacked(packed)
            if isinstance(owner, str):
                first, last = layout.range(comm.rank)
                remote = int(((union < first) | (union >= last)).sum())
                size = packed.shape[1]
                self.counts.add(rows_needed=len(union), bytes_needed=len(union) * size)
                self.counts.add(rows_read=remote, bytes_read=remote * size)
            return [columns.of(part).columns for part in places]

        return finish

    def _typed_batch(
        self, sample: TypedSample, input_id: Tensor, tables: dict[Any, dict[str, Tensor]]
    ) -> Any:
        from torch_geometric.data import HeteroData  # an optional dependency

        batch, graph = HeteroData(), self._ranks.graph
        index, numbers = drawn_edges(sample)
        for kind, vertices in graph.vertices.items():
            batch[kind].update({**vertices._shared, **tables[kind]})
            batch[kind].num_nodes = len(sample.nodes[kind])
        for name, relation in graph.relations.items():
            batch[name].edge_index = index.get(name, _NONE.new_zeros(2, 0))
            batch[name].update(relation._shared)
            at = numbers.get(name, _NONE)
            batch[name].update({key: rows[at] for key, rows in tables[name].items()})
        return completed(batch, sample, self._aim, input_id, lambda name, ids: (tables[name], ids))


def typed_batches(graph: HeteroDistGraph, options: BatchOptions) -> Strategy:
    """The batches of this rank: "exact" ones, of "own" seeds, or "local" ones. Collective."""
    comm, (aim, inputs), mode = graph.comm, options.input_nodes, options.mode

    def checked() -> Tensor:
        check_choice("mode, of several vertex types,", mode, ("exact", "own", "local"))
        if options.sampler != "neighbor":
            raise InputError(f"sampler {options.sampler} is for graphs of one vertex type")
        vertices = graph.vertices[aim]
        owner = f"vertices of type {aim!r} have"
        return own_mask(inputs, vertices.attributes.get, vertices.own_rows, owner)

    own = comm.on_every_rank(checked)
    options.check_agreement(comm, aim=aim, mode_of_types=str(mode))
    ranks = TypedRanks(graph, local=mode == "local")
    size, drop = options.batch_size, options.drop_last
    vertices = graph.vertices[aim]
    rows = own.nonzero()[:, 0]
    ids, rows = vertices.vertex_ids.cpu()[rows], rows + vertices.layout.range(comm.rank)[0]
    if mode == "exact":
        rows, ids = of_all_ranks(rows, ids, comm)
        steps = steps_of(len(rows), size, comm.size, drop_last=drop)
    else:
        steps = comm.agree(steps_of(len(rows), size, 1, drop_last=drop))
    seeds = step_inputs(rows, ids, options, steps, comm if mode == "exact" else None)
    sampler = TypedRankSampler(ranks, aim, options)
    return TypedRankBatches(ranks, aim, sampler, steps, seeds, options, is_whole=mode == "exact")
