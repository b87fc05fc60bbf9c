"""Updates of graphs of several vertex types, relation by relation; plans are made anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.dynamic.updates import DROPPED, Changes, Growth, Int64, answers, checked, routed
from spgnn.comm import Communicator
from spgnn.data import MASKS
from spgnn.errors import InputError
from spgnn.exchange import swap_rows
from spgnn.graph import Edges

_Named = Mapping[Any, Any]


@dataclass(eq=False)
class _Type:
    """The vertices of a type in an update: new ones, and which rows ids are."""

    store: Any
    changes: Changes
    limit: int = 0
    growth: Growth = field(init=False)
    rows: dict[str, tuple[Int64, Tensor]] = field(default_factory=dict)
    row_of: Int64 = field(init=False)

    def prepare(self, name: str, comm: Communicator) -> None:
        """Agree on new vertices and their owners, and list where ids are. Collective."""
        ids, layout, size = self.store.vertex_ids.cpu().numpy(), self.store.layout, comm.size
        self.limit = comm.agree(int(ids.max(initial=-1)) + 1)
        new = np.sort(self.store.all_gather(torch.from_numpy(self.changes.vertices)).numpy())
        expected = self.limit + np.arange(len(new))
        for wrong in new[new != expected][:1]:
            raise InputError(
                f"update: new vertices of {name!r} are called {self.limit} to {expected[-1]}, "
                f"each once, got {wrong}"
            )
        owners, sizes = np.zeros(len(new), np.int64), layout.sizes.copy()
        for number in range(len(new)):
            owners[number] = sizes.argmin()
            sizes[owners[number]] += 1
        self.growth = Growth(layout, owners)
        numbers = np.arange(*layout.range(comm.rank))
        (placed, rows), _, _ = routed(comm, ids % size, ids, numbers)
        self.row_of = np.full(-(-self.limit // size), -1)
        self.row_of[placed // size] = rows

    def numbers(self, ids: Int64, comm: Communicator) -> Int64:
        """Rows of all ranks; of new vertices, after all others; −1 of others. Collective."""
        result = np.where(ids < self.limit + len(self.growth.owners), ids - self.limit, -1)
        result = np.where(result >= 0, result + self.growth.before.rows, -1)
        old, size = (ids >= 0) & (ids < self.limit), comm.size
        of = ids[old]
        result[old] = answers(comm, of % size, of, lambda one: self.row_of[one // size])
        return result


def update_types(
    graph: Any,
    add_edges: _Named | None,
    drop_edges: _Named | None,
    add_nodes: _Named | None,
    attributes: Mapping[str, _Named],
) -> int:
    """See :meth:`spgnn.addons.hetero.HeteroDistGraph.update`."""
    comm: Communicator = graph.comm
    comm.check_agreement("graph.update", version=graph.version)
    records: dict[str, Any] = {
        "add_edges": add_edges,
        "drop_edges": drop_edges,
        "add_nodes": add_nodes,
    }
    records |= attributes
    relations, types = comm.on_every_rank(lambda: _changes(graph, records))
    for name, one in types.items():
        one.prepare(name, comm)
    before, edges = graph.edges_of_all(), {}
    for name, changes in relations.items():
        edges[name] = _sent(name, changes, types, comm)
    for name, one in types.items():
        _send_rows(name, one, comm)

    def check() -> None:
        for name, (ends, _) in edges.items():
            _check_edges(name, ends, before[name])
        for name, one in types.items():
            _check_rows(name, one, comm.rank)

    comm.on_every_rank(check)
    result = {}
    for name, (ends, values) in edges.items():
        source, target = types[name[0]].growth, types[name[2]].growth
        index = before[name].index.numpy()
        index = np.stack((source.renumbered(index[0]), target.renumbered(index[1])))
        now = ends.copy()
        now[:, 0], now[:, 1] = source.renumbered(ends[:, 0]), target.renumbered(ends[:, 1])
        result[name] = replace(before[name], index=torch.from_numpy(index)).changed(now, values)
    graph.take_changes({name: _grown(one, comm.rank) for name, one in types.items()}, result)
    version: int = graph.version
    return version


def _changes(graph: Any, records: Mapping[str, Any]) -> tuple[Any, dict[str, _Type]]:
    """The changes of each relation and type, checked as far as one rank can."""
    if not graph.codec.exact:
        raise InputError("update: the graph has a codec, which keeps rows of its messages")
    by_key: dict[Any, dict[str, Any]] = {}
    for what, by_name in records.items():
        if by_name is not None and not isinstance(by_name, Mapping):
            kind = type(by_name).__name__
            raise InputError(f"update: {what} is a dictionary by relation or type, got a {kind}")
        for key, value in (by_name or {}).items():
            of_type = isinstance(key, str)
            _ = graph.labelled_vertices(key) if of_type else graph.relation(tuple(key))
            if what.endswith("_edges") if of_type else what == "add_nodes":
                by = "relation" if of_type else "vertex type"
                raise InputError(f"update: {what} is given by {by}, got {key!r}")
            by_key.setdefault(key if of_type else tuple(key), {})[what] = value
    relations, types = {}, {}
    for name, one in graph.relations.items():
        mine = by_key.get(name, {})
        ends = mine.pop("add_edges", None), mine.pop("drop_edges", None)
        relations[name] = _checked(name, *ends, None, mine, one.attributes, {}, 0)
    for name, one in graph.vertices.items():
        mine = by_key.get(name, {})
        new = mine.pop("add_nodes", None)
        rows = {key: (value, one.attributes.get(key)) for key, value in mine.items()}
        rows |= {key: (mine.get(key), like) for key, like in one.attributes.items()}
        if one.vertex_names is not None and new is not None:
            raise InputError(f"update: vertices of {name!r} have names, and take no new ones by id")
        types[name] = _Type(one, _checked(name, None, None, new, {}, {}, rows, 0))
    return relations, types


def _checked(name: Any, *arguments: Any) -> Changes:
    try:
        return checked(*arguments)
    except InputError as error:
        raise InputError(f"{error} (of {_shown(name)})") from None


def _shown(name: Any) -> str:
    return repr(name if isinstance(name, str) else " ".join(name))


def _sent(
    name: Any, changes: Changes, types: Mapping[str, _Type], comm: Communicator
) -> tuple[Int64, dict[str, Tensor]]:
    """The changes of a relation at the owners of their targets, in rows of all ranks. Collective.

    Of each edge: source, target, 1 if it is dropped, and the ids of both.
    """
    source, target, kind = changes.edges.T
    ends = [types[name[0]].numbers(source, comm), types[name[2]].numbers(target, comm)]

    def check() -> None:
        for side, numbers, ids in zip(name[::2], ends, (source, target), strict=True):
            for wrong in ids[numbers < 0][:1]:
                raise InputError(f"update: there is no vertex {wrong} of type {side!r}")

    comm.on_every_rank(check)
    edges = np.column_stack((*ends, kind, source, target))
    (edges,), counts, order = routed(comm, types[name[2]].growth.owner(ends[1]), edges)
    at = torch.from_numpy(order)
    values = changes.attributes.items()
    return edges, {key: swap_rows(comm, t[at].contiguous(), counts) for key, t in values}


def _send_rows(name: str, one: _Type, comm: Communicator) -> None:
    """Send new rows of vertices of a type to their owners. Collective."""
    for key, like in one.store.attributes.items():
        nothing = np.empty(0, np.int64), like[:0].cpu()
        ids, values = one.changes.rows.get(key, nothing)
        if not comm.agree(len(ids) + len(one.growth.owners)):
            continue
        numbers = one.numbers(ids, comm)

        def check(ids: Int64 = ids, numbers: Int64 = numbers) -> None:
            for wrong in ids[numbers < 0][:1]:
                raise InputError(f"update: there is no vertex {wrong} of type {name!r}")

        comm.on_every_rank(check)
        pairs = np.column_stack((numbers, ids))
        (at,), counts, order = routed(comm, one.growth.owner(numbers), pairs)
        sent = values[torch.from_numpy(order)].contiguous()
        one.rows[key] = at, swap_rows(comm, sent, counts)


def _check_edges(name: Any, edges: Int64, before: Edges) -> None:
    """Refuse edges that are given twice, there already, or not there once to be dropped."""
    source, target = before.index.numpy()
    most = int(max(source.max(initial=0), edges[:, 0].max(initial=0))) + 1
    keys, there = edges[:, 1] * most + edges[:, 0], target * most + source
    _, first, times = np.unique(keys, return_index=True, return_counts=True)
    for place in first[times > 1][:1]:
        raise InputError(f"update: edge {_edge(edges[place])} of {_shown(name)} is given twice")
    present, counts = np.unique(there, return_counts=True)
    place = np.searchsorted(present, keys)
    place[place == len(present)] = 0
    number = np.zeros(len(keys), np.int64)
    if len(present):
        number = np.where(present[place] == keys, counts[place], 0)
    dropped = edges[:, 2] == DROPPED
    for wrong in np.flatnonzero(number != dropped)[:1]:
        what = ("not there to be dropped", "there already", "there several times")
        edge = f"update: edge {_edge(edges[wrong])} of {_shown(name)}"
        raise InputError(f"{edge} is {what[min(number[wrong], 2)]}")


def _edge(edge: Int64) -> str:
    return f"{edge[3]} → {edge[4]}"


def _check_rows(name: str, one: _Type, rank: int) -> None:
    """Refuse rows that are given twice, and new vertices without one."""
    new = one.limit + np.flatnonzero(one.growth.owners == rank)
    for key, (at, _) in one.rows.items():
        ids, times = np.unique(at[:, 1], return_counts=True)
        for vertex in ids[times > 1][:1]:
            raise InputError(f"update: {key} of vertex {vertex} of type {name!r} is given twice")
        for vertex in np.setdiff1d(new, ids)[: key not in MASKS]:
            raise InputError(f"update: {key} of the new vertex {vertex} of {name!r} is missing")


def _grown(one: _Type, rank: int) -> tuple[Any, ...]:
    """Layout, ids and attributes of own vertices afterwards."""
    new = one.limit + np.flatnonzero(one.growth.owners == rank)
    state = dict(one.store.attributes)
    first = one.growth.after.range(rank)[0]
    for key, (at, values) in one.rows.items():
        rows = torch.cat((state[key].detach().cpu(), values.new_zeros(len(new), *values.shape[1:])))
        places = torch.from_numpy(one.growth.renumbered(at[:, 0]) - first)
        state[key] = rows.index_copy_(0, places, values)
    ids = torch.cat((one.store.vertex_ids.cpu(), torch.from_numpy(new)))
    return one.growth.after, ids, state
