"""Directories of tables of several vertex types: one a type, and one a relation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.addons.io.columns import SUFFIXES, ColumnFiles, is_text, require_arrow, words_around
from spgnn.addons.io.parquet import (
    BETWEEN,
    RENAME,
    PairTable,
    TypedPlace,
    VertexTable,
    files_in,
    name_of,
    typed_place,
)
from spgnn.data import shown_name
from spgnn.errors import InputError, shortened
from spgnn.files import AnyPath, name_in

EdgeType = tuple[str, str, str]
_TABLES = "nodes/TYPE and edges/SOURCE__NAME__TARGET"
_LOGGER = logging.getLogger(__name__)


class TypedTables:
    """The tables of a directory in memory, by the names that PyG's ``HeteroData`` has.

    ``tables["paper"]`` has ``num_nodes``, and ``x``, ``y``, masks and ``time`` where the file has
    them; ``tables["author", "writes", "paper"]`` has ``edge_index``, and ``edge_weight``,
    ``edge_attr`` and ``time``. `names` are the ids of each type's vertices: strings, or integers.
    """

    def __init__(self, path: AnyPath) -> None:
        place = typed_place(path)
        if place is None:
            raise InputError(f"{path}: not a directory of {_TABLES}")
        _check_others(Path(path), place)
        self.names: dict[str, npt.NDArray[Any]] = {}
        self._stores: dict[Any, dict[str, Any]] = {}
        tables = {name: _vertices(name, file) for name, file in place.types.items()}
        relations = {_relation(file, tables): file for file in place.relations}
        for name, table in tables.items():
            rows = table.rows(slice(0, table.meta.vertices)).take(slice(None))
            time = {} if table.time is None else {"time": table.time}
            self._stores[name] = {"num_nodes": table.meta.vertices, **rows, **time}
            self.names[name] = _names(table)
        for relation, file in relations.items():
            self._stores[relation] = _edges(relation, file, tables)
        self.node_types, self.edge_types = list(tables), list(relations)
        # What is known of the whole graph stands first, as in PyG.
        self.stores = self.node_stores = [{"name": shown_name(name_in(Path(path)))}]

    def __getitem__(self, key: str | EdgeType) -> dict[str, Any]:
        return self._stores[key]


def _check_others(folder: Path, place: TypedPlace) -> None:
    """Refuse what is neither a table of a type nor one of a relation."""
    read = {*place.types.values(), *place.relations}
    inside = {table.parent for table in read}
    for part in sorted([*folder.iterdir(), *(part for each in inside for part in each.iterdir())]):
        table = part.is_dir() or part.suffix.lower() in SUFFIXES
        if part.name[0] in "._" or part in read | inside or (part.parent == folder and not table):
            continue
        raise InputError(f"{part}: neither of {_TABLES}, of {', '.join(SUFFIXES)}")


def _vertices(name: str, path: Path) -> VertexTable:
    files = files_in([path])
    if not files:
        raise InputError(f"{path}: holds no files of {', '.join(SUFFIXES)}")
    columns = list(ColumnFiles(files).types)
    own = _column_of(name, columns)
    named = {"id": own} if own is not None and "id" not in columns else {}
    table = VertexTable(path, files, named, text=None)
    if not table.meta.vertices:
        raise InputError(f"{path}: holds no vertices")
    _log(path, table.not_read)
    return table


def _column_of(name: str, columns: Sequence[str]) -> str | None:
    """The column that is called as a type is, as in ``paper_id``."""
    names = (f"{name}_id", f"{name}id", name)
    return next((c for like in names for c in columns if c.lower() == like.lower()), None)


def _log(path: Path, not_read: Sequence[str]) -> None:
    if not_read:
        _LOGGER.warning("%s: not read: columns %s", path, ", ".join(not_read))


def _names(table: VertexTable) -> npt.NDArray[Any]:
    """The ids of a table as they stand in the file."""
    numbers = np.arange(table.meta.vertices)
    if table.ids is None:
        return numbers
    if table.vertex_ids is not None:
        return table.vertex_ids.numpy()
    texts = require_arrow(table.files.paths[0]).chunked_array(list(table.ids.arrays(numbers)))
    return np.asarray(texts.cast("large_string").to_numpy(), np.str_)


def _relation(path: Path, types: Mapping[str, Any]) -> EdgeType:
    """The source type, the name and the target type in the name of a table."""
    text = name_of(path)
    fitting = [
        (source, text[len(source) + 2 : len(text) - len(target) - 2], target)
        for source in types
        for target in types
        if text.startswith(source + BETWEEN)
        and text.endswith(BETWEEN + target)
        and len(text) > len(source) + len(target) + 4
    ]
    if len(fitting) != 1:
        listed = shortened(", ".join(types), 80) or "none"
        raise InputError(f"{path}: no SOURCE__NAME__TARGET of types in nodes: {listed}")
    return fitting[0]


def _edges(relation: EdgeType, path: Path, tables: Mapping[str, VertexTable]) -> dict[str, Any]:
    """The ends of all edges of a relation as rows of vertices, and what else is known of each."""
    files = ColumnFiles(files_in([path]) or [path])
    sides = tables[relation[0]], tables[relation[2]]
    own = [_column_of(name, list(files.types)) for name in (relation[0], relation[2])]
    if own.count(None) == 1 and len(files.types) == 2:
        own[own.index(None)] = next(name for name in files.types if name not in own)
    named = {}
    if (
        None not in own
        and own[0] != own[1]
        and not any(
            words_around(role, name) == set()
            for role in ("source", "target")
            for name in files.types
        )
    ):
        named = dict(zip(("source", "target"), map(str, own), strict=True))
    roles = ("source", "target", "weight", "edge_attr", "time")
    edges = PairTable(files, named, roles, RENAME)
    for name, table in zip(edges.ends, sides, strict=True):
        kinds = files.types[name], table.kind
        if is_text(kinds[0]) != is_text(kinds[1]):
            owner = table.files.paths[0]
            raise InputError(f"{path}: column '{name}' is {kinds[0]}, ids of {owner} {kinds[1]}")
    _log(path, edges.not_read)
    arrays = edges.read([table.number for table in sides])
    if not arrays:
        raise InputError(f"{path}: holds no edges")
    rows = {role: torch.from_numpy(array) for role, array in arrays.items()}
    result = {"edge_index": torch.stack((rows.pop("source"), rows.pop("target")))}
    if "weight" in rows:
        result["edge_weight"] = rows.pop("weight").float()
    return result | rows
