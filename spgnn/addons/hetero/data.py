"""From a PyG ``HeteroData``, or a directory of tables, on rank 0 to every rank's part of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor

from spgnn.addons.hetero.typed_graph import EdgeType, HeteroDistGraph, OwnType, width_of
from spgnn.addons.io import TypedTables, names_as_rows, names_of_rows, typed_place
from spgnn.comm import Communicator
from spgnn.config import objective_for
from spgnn.data import (
    MASKS,
    is_said_of_all,
    lists_of_vertices,
    masks_of_lists,
    numbers_vertices,
    of_own_rows,
    rows_of_vertices,
    with_edge_index,
)
from spgnn.errors import InputError, memory_for, unknown
from spgnn.exchange import Algorithm
from spgnn.files import AnyPath
from spgnn.frontend import Placement
from spgnn.graph import Edges, GraphCodecs, check_sent, copied_from_rank_zero, dealt
from spgnn.layout import Int64Array, RowLayout, grouped_order, inverse_permutation
from spgnn.partition import METHODS, check_labels, partition, read_labels
from spgnn.pattern import described
from spgnn.progress import ProgressBar
from spgnn.registry import Objective
from spgnn.sparse import CSR

_ROWS, _IDS, _NAMES, _ENDS = ("x", "y", *MASKS), "vertex_ids", "vertex_names", "edge_index"
# A nonzero of a product costs as much as so many columns of a vertex's features in a dense one.
_COLUMNS_A_NONZERO = 8


@dataclass(frozen=True, eq=False)
class HeteroArrays:
    """All of a ``HeteroData``: what each vertex type and each relation has, on the CPU."""

    sizes: dict[str, int]
    vertices: dict[str, dict[str, Tensor]]
    listed: dict[str, dict[str, Tensor]]
    edges: dict[EdgeType, Tensor]
    attributes: dict[EdgeType, dict[str, Tensor]]
    notes: dict[str | EdgeType | None, tuple[dict[str, Any], dict[str, str]]]
    names: dict[str, npt.NDArray[Any]]

    @classmethod
    def read(cls, data: Any, split: int | None) -> HeteroArrays:
        """Everything in some data that has a row for each vertex or each edge."""
        if isinstance(data, str | os.PathLike):
            data = TypedTables(data)
        arrays = cls({}, {}, {}, {}, {}, {}, getattr(data, "names", {}))
        if not hasattr(data, "node_stores"):
            raise InputError(f"a {type(data).__name__} is distributed already; give a HeteroData")
        arrays._say(None, dict(data.stores[0].items()))
        for name in data.node_types:
            arrays._read_vertices(str(name), dict(data[name].items()), split)
        if not sum(arrays.sizes.values()):
            raise InputError("this HeteroData has no vertices")
        for relation in data.edge_types:
            arrays._read_edges(tuple(map(str, relation)), data[relation])  # type: ignore[arg-type]
        return arrays

    def _read_vertices(self, name: str, named: dict[str, Any], split: int | None) -> None:
        stated = named.pop("num_nodes", None)
        arrays = {key: value for key, value in named.items() if hasattr(value, "shape")}
        if stated is None:
            sized = next((arrays[key] for key in (*_ROWS, "pos") if key in arrays), None)
            if sized is None:
                raise InputError(f"vertex type {name!r} has neither x nor num_nodes")
            stated = len(sized)
        size = self.sizes[name] = int(stated)
        lists = self.listed[name] = {} if size < 0 else lists_of_vertices(named, size)
        fixed = {key: value for key, value in arrays.items() if key in _ROWS}
        fixed = masks_of_lists(lists) | fixed
        others = {
            key: value
            for key, value in arrays.items()
            if key not in (*fixed, *lists)
            and value.shape[:1] == (size,)
            and not numbers_vertices(key, value, named)
        }
        rest = {key: value for key, value in named.items() if key not in (*fixed, *lists, *others)}
        with _about(f"vertex type {name!r}"):
            self._say(name, rest, size)
            if size < 0:
                raise InputError(f"num_nodes is {size}")
            attributes = rows_of_vertices({**fixed, **others}, size)
            for key in MASKS:
                mask = attributes.get(key)
                if mask is None:
                    continue
                if mask.dtype != torch.bool:
                    raise InputError(f"{key} must be bool, got {described(mask)}")
                if mask.dim() == 2 and split is not None:
                    if split >= mask.shape[1]:
                        raise InputError(f"{key} has {mask.shape[1]} splits, asked for {split}")
                    attributes[key] = mask[:, split].contiguous()
            for key, value in (attributes | lists).items():
                check_sent(key, value)
        self.vertices[name] = attributes

    def _read_edges(self, relation: EdgeType, store: Any) -> None:
        shown = " ".join(relation)
        for name in (relation[0], relation[2]):
            if name not in self.sizes:
                raise unknown(f"relation {shown!r} names a missing vertex type,", name, self.sizes)
        with _about(f"relation {shown!r}"):
            store = with_edge_index(store)
            named = dict(store.items())
            ends = named.pop(_ENDS, None)
            named.pop("adj_t", None)
            if not isinstance(ends, Tensor | np.ndarray):
                raise InputError("it has no edge_index")
            ends = torch.as_tensor(ends).detach().cpu()
            kind = ends.dtype
            integers = not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
            if ends.dim() != 2 or len(ends) != 2 or not (integers or not ends.numel()):
                raise InputError(f"edge_index must be integers [2, edges], got {described(ends)}")
            ends = ends.long()
            for row, side, name in ((0, "source", relation[0]), (1, "target", relation[2])):
                wrong = (ends[row] < 0) | (ends[row] >= self.sizes[name])
                for column in wrong.nonzero()[:1, 0].tolist():
                    end = f"edge_index[{row}, {column}], a {side}, is {int(ends[row, column])}"
                    raise InputError(f"{end}; {name!r} has vertices 0 to {self.sizes[name] - 1}")
            edges = ends.shape[1]
            attributes: dict[str, Tensor] = {}
            for key, value in named.items():
                fixed = key in ("edge_attr", "edge_weight")
                if fixed and (not hasattr(value, "shape") or value.shape[:1] != (edges,)):
                    raise InputError(f"{key} must have a row for each of the {edges} edges")
                if key == "edge_weight" and value.shape not in ((edges,), (edges, 1)):
                    raise InputError(f"edge_weight must be [{edges}], got {list(value.shape)}")
                has_rows = hasattr(value, "shape") and value.shape[:1] == (edges,)
                if fixed or (has_rows and not numbers_vertices(key, value, named)):
                    check_sent(key, torch.as_tensor(value))
                    attributes[key] = torch.as_tensor(value).cpu()
            self._say(relation, {k: v for k, v in named.items() if k not in attributes}, edges)
        self.edges[relation], self.attributes[relation] = ends, attributes

    def _say(self, owner: str | EdgeType | None, named: dict[str, Any], *rows: int) -> None:
        """Sort what has no row for each of so many vertices or edges."""
        shared, absent = self.notes[owner] = {}, {}
        for key, raw in named.items():
            numbers = isinstance(raw, np.ndarray) and raw.dtype.kind in "biuf"
            value = torch.from_numpy(raw) if numbers else raw
            one = isinstance(value, Tensor) and value.shape[:1] in ((), (1,))
            if is_said_of_all(value, *rows):
                shared[key] = value
            elif one and not numbers_vertices(key, value, named):
                check_sent(key, value)
                shared[key] = value.detach().cpu()
            elif key in ("x", "y") and isinstance(value, list | tuple):
                raise InputError(f"{key} is a {type(value).__name__}; give a tensor")
            elif value is not None:
                absent[key] = described(value)

    def labels(
        self, how: Placement, parts: int, objective: Objective
    ) -> tuple[dict[str, Int64Array], dict[str, Any] | None]:
        """The part of each vertex of each type, and what the partitioner predicts of all."""
        method: Any = how.partition
        if not isinstance(method, str):
            if not isinstance(method, Mapping) or set(method) != set(self.sizes):
                raise InputError(f"partition: give a dictionary of labels, {', '.join(self.sizes)}")
            raw = {}
            for name, size in self.sizes.items():
                with _about(f"partition of {name!r}"):
                    raw[name] = check_labels(method[name], size, parts)[0].astype(np.int64)
            return raw, None
        n = sum(self.sizes.values())
        if method not in METHODS and os.path.exists(method):
            how.check_ready("partition")
            return self._by_type(read_labels(method, n, parts)), None
        if method not in METHODS:
            raise unknown("partition", method, METHODS)
        A, weights = self.together()
        with ProgressBar() as progress:
            labels, report = partition(
                A,
                parts,
                method=method,
                objective=objective,
                imbalance=how.imbalance,
                seed=how.seed,
                weights=weights,
                nodes=how.nodes,
                progress=progress,
            )
        return self._by_type(labels), report

    def _by_type(self, labels: npt.NDArray[np.int32]) -> dict[str, Int64Array]:
        cuts = np.split(labels.astype(np.int64), np.cumsum([*self.sizes.values()])[:-1])
        return dict(zip(self.sizes, cuts, strict=True))

    def together(self) -> tuple[scipy.sparse.csr_array, Int64Array]:
        """All relations as one matrix, one type after another, and the work of each vertex."""
        offsets = dict(zip(self.sizes, np.cumsum([0, *self.sizes.values()]), strict=False))
        n = sum(self.sizes.values())
        sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for relation, ends in self.edges.items():
            sources.append(ends[0].numpy() + offsets[relation[0]])
            targets.append(ends[1].numpy() + offsets[relation[2]])
        source, target = np.concatenate(sources), np.concatenate(targets)
        A = scipy.sparse.csr_array((np.ones(len(source), np.bool_), (target, source)), shape=(n, n))
        widths = [width_of(self.vertices[name].get("x")) for name in self.sizes]
        weights = np.repeat(widths, list(self.sizes.values())) // _COLUMNS_A_NONZERO + 1
        return A, weights + np.bincount(target, minlength=n)


@contextmanager
def _about(what: str) -> Iterator[None]:
    """Errors inside begin with what they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _dealt(parts: Int64Array, how: Placement, ranks: int) -> Int64Array:
    """The rank of each vertex, of its part: several neighbouring ranks may have slices of one."""
    count = how.algorithm.parts(ranks)
    if count == ranks:
        return parts
    layout, slices = RowLayout.from_labels(parts, count), ranks // count
    place = layout.dealt(inverse_permutation(grouped_order(parts, count)), slices)
    return layout.split(slices).owner(place)


def distribute_types(
    data: Any,
    how: Placement,
    codecs: GraphCodecs,
    comm: Communicator,
    others: Mapping[str, Any],
    best: Callable[..., Any] | None = None,
) -> HeteroDistGraph:
    """Partition rank 0's ``HeteroData`` and give every rank its part. Collective.

    `best` of (arrays, placement, ranks) is a plan: another placement, its labels, and two records.
    """
    comm.on_every_rank(lambda: _check(others))

    def opened() -> tuple[HeteroArrays, Any, dict[str, Int64Array], Any, dict[str, Any] | None]:
        with memory_for("the HeteroData"):
            arrays = HeteroArrays.read(data, how.split)
            if not isinstance(how.partition, str):
                how.check_ready("partition")
            if best is not None:
                planned, labels, report, plan = best(arrays, how, comm.size)
                return arrays, vars(planned.algorithm), labels, report, plan
            objective = objective_for(how.algorithm.cover, how.partition, how.objective)
            labels, report = arrays.labels(how, how.algorithm.parts(comm.size), objective)
            labels = {k: _dealt(one, how, comm.size) for k, one in labels.items()}
            return arrays, vars(how.algorithm), labels, report, None

    arrays, algorithm, labels, report, plan = comm.on_rank_zero(opened) or (None,) * 5
    facts = comm.from_rank_zero(
        lambda: {
            "algorithm": algorithm,
            "plan": plan,
            "sizes": arrays and arrays.sizes,
            "relations": [list(relation) for relation in arrays.edges] if arrays else [],
            "absent": [absent for _, absent in arrays.notes.values()] if arrays else [],
        }
    )
    owners = [None, *facts["sizes"], *map(tuple, facts["relations"])]
    notes = {}
    for owner, absent in zip(owners, facts["absent"], strict=True):
        shared = arrays.notes[owner][0] if arrays is not None else None
        notes[owner] = copied_from_rank_zero(shared, comm), absent
    types: dict[str, OwnType] = {}
    positions: dict[str, Int64Array] = {}
    for name in facts["sizes"]:
        rows: dict[str, Tensor] = {}
        lists: dict[str, Tensor] = {}
        offsets = None
        if arrays is not None and labels is not None:
            order = grouped_order(labels[name], comm.size)
            positions[name] = inverse_permutation(order)
            taken = torch.from_numpy(order)
            rows = {k: t[taken] for k, t in arrays.vertices[name].items()}
            lists = {_IDS: taken, **{k: t[taken] for k, t in arrays.listed[name].items()}}
            if name in arrays.names:
                lists[_NAMES] = names_as_rows(arrays.names[name])[taken]
            offsets = RowLayout.from_labels(labels[name], comm.size).offsets.tolist()
        layout = RowLayout(np.array(comm.broadcast_value(offsets), np.int64))
        own = dealt(lists, layout.sizes, comm)
        ids, (shared, absent) = own.pop(_IDS), notes[name]
        named = own.pop(_NAMES, None)
        shared |= of_own_rows(own)
        own = dealt(rows, layout.sizes, comm)
        names = None if named is None else names_of_rows(named)
        every = None if arrays is None else arrays.names.get(name)
        types[name] = OwnType(layout, ids, own, shared, absent, names, every)
    relations: dict[EdgeType, Edges] = {}
    for relation in map(tuple, facts["relations"]):
        sent: dict[str, Tensor] = {}
        counts = np.zeros(comm.size, np.int64)
        if arrays is not None:
            source, target = arrays.edges[relation].numpy()
            source, target = positions[relation[0]][source], positions[relation[2]][target]
            by_target = np.argsort(target, kind="stable")  # those of one target stay in order
            counts = np.bincount(types[relation[2]].layout.owner(target), minlength=comm.size)
            taken = torch.from_numpy(by_target)
            sent = {key: t[taken] for key, t in arrays.attributes[relation].items()}
            sent[_ENDS] = torch.from_numpy(np.stack((source, target), axis=1)[by_target])
        own = dealt(sent, counts, comm)
        relations[relation] = Edges(own.pop(_ENDS).T.contiguous(), own)
    chosen = Algorithm(**facts["algorithm"])
    graph = HeteroDistGraph(types, relations, notes, comm, chosen, report, codecs)
    graph.plan = facts["plan"]
    return graph


def _check(others: Mapping[str, Any]) -> None:
    """Refuse what is not there for several vertex types."""
    for name, value in others.items():
        if value is not None:
            raise InputError(f"{name}= is for graphs of one vertex type; a HeteroData has several")


class OpenedTypes(NamedTuple):
    """All types as one graph, the type and the id of each vertex, and what each table holds."""

    adjacency: CSR
    columns: dict[str, npt.NDArray[Any]]
    described: dict[str, str]


def open_types(path: AnyPath) -> OpenedTypes | None:
    """Read a directory of tables of several types, if it is one."""
    if typed_place(path) is None:
        return None
    arrays = HeteroArrays.read(path, None)
    ids, sizes = list(arrays.names.values()), arrays.sizes
    if len({names.dtype.kind for names in ids}) > 1:
        ids = [names.astype(str) for names in ids]
    columns = {"type": np.repeat([*sizes], [*sizes.values()]), "id": np.concatenate(ids)}
    described = {}
    for name, rows in arrays.vertices.items():
        kinds = ", ".join(_described(key, t) for key, t in rows.items())
        described[name] = f"{sizes[name]:,} vertices: {kinds or 'ids alone'}"
    for relation, ends in arrays.edges.items():
        kinds = ", ".join(_described(k, t) for k, t in arrays.attributes[relation].items())
        described[" ".join(relation)] = f"{ends.shape[1]:,} edges" + (kinds and f": {kinds}")
    A = CSR.from_scipy(arrays.together()[0]).with_values(None)
    return OpenedTypes(A, columns, described)


def _described(name: str, rows: Tensor) -> str:
    """An attribute, its width or its classes."""
    if rows.dtype == torch.bool:
        return f"{int(rows.sum()):,} in {name}"
    return f"{name} [{rows.shape[1]}]" if rows.dim() > 1 else name


def _recognises(data: object) -> bool:
    several = hasattr(data, "node_types") and hasattr(data, "edge_types")
    return several or typed_place(data) is not None


HETERO_DATA = _recognises, distribute_types
