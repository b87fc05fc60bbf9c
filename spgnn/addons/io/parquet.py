"""Graphs in Parquet and Arrow files: tables of edges, and of vertices, read a batch at a time."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.addons.io.columns import (
    SUFFIXES,
    WORDS,
    Batch,
    ColumnFiles,
    Ids,
    column_for,
    integers_of,
    is_text,
    require_arrow,
    words_around,
)
from spgnn.addons.io.edge_files import SPARSE_IDS, EdgeFile, Edges
from spgnn.addons.io.text import check_vertices
from spgnn.data import (
    IDS,
    LABEL_GAPS,
    MASKS,
    PIECE_BYTES,
    UNKNOWN,
    WEIGHT,
    GraphMeta,
    VertexData,
    fits_float32,
    is_bag_of_words,
    is_graph_directory,
    label_columns,
    labels_of_table,
    names_of_several,
    shown_name,
)
from spgnn.errors import InputError, shortened, unknown
from spgnn.files import AnyPath, atomic_file, errors_of, name_in
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress
from spgnn.sparse import EXACT, exact_in_float32

if TYPE_CHECKING:
    import pyarrow as pa

    from spgnn.graph import DistGraph

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Reader = Callable[[Batch, str], Array]
_LOGGER = logging.getLogger(__name__)
VERTICES = re.compile(r"(vertices|vertex|nodes|node)\b", re.IGNORECASE)
EDGES = re.compile(r"edges?\b", re.IGNORECASE)
BETWEEN = "__"  # a source type, a relation and a target type
NAME, RENAME = "name {} FILE@{}=", "rename {} {}="
_SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}
_PAIR = r"[a-z_]+=[^,=]+"
_GIVEN = re.compile(rf"(?P<path>.+)@(?P<columns>{_PAIR}(?:,{_PAIR})*)", re.DOTALL)


class Place(NamedTuple):
    """Files of edges and of vertices, and the columns that the user named for something."""

    edges: list[Path]
    vertices: list[Path]
    columns: dict[str, str]


def is_tabular(path: AnyPath) -> bool:
    """True if a path leads to Parquet or Arrow: a file, a folder or a pattern of such files."""
    return place_of(path) is not None


def place_of(path: AnyPath) -> Place | None:
    """The files that a path means: one, a folder of them, or a pattern such as ``e-*.parquet``."""
    text, columns = os.fspath(path), dict[str, str]()
    match = None if os.path.exists(text) else _GIVEN.fullmatch(text)
    if match:
        text = match["path"]
        columns = dict(pair.split("=") for pair in match["columns"].split(","))
        tabular = os.path.isdir(text) or Path(text).suffix.lower() in SUFFIXES
        for role in columns if tabular else ():  # others are of another kind: sbm@seed=3
            if role not in WORDS:
                raise unknown(f"{text}@", role, WORDS)
    if os.path.isdir(text):
        parts = tables_in(Path(text))
        vertices = [part for part in parts if VERTICES.match(part.name)]
        edges = [part for part in parts if EDGES.match(part.name)]
        edges = edges or [part for part in parts if part not in vertices]
        place = Place(files_in(edges), files_in(vertices), columns)
        return place if place.edges or place.vertices else None
    if Path(text).suffix.lower() not in SUFFIXES:
        return None
    pattern = not os.path.exists(text) and glob.has_magic(text)
    files = sorted(map(Path, glob.glob(text))) if pattern else [Path(text)]
    if not files:
        raise InputError(f"{text}: no such files")
    return Place(files, [], columns)


def tables_in(folder: Path) -> list[Path]:
    """Files of tables in a folder, and folders; none that begin with a dot or an underscore."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name[0] not in "._" and (path.suffix.lower() in SUFFIXES or path.is_dir())
    ]


def files_in(parts: Iterable[Path]) -> list[Path]:
    """The files, those in folders included."""
    files: list[Path] = []
    for part in parts:
        files += files_in(tables_in(part)) if part.is_dir() else [part]
    return files


class TypedPlace(NamedTuple):
    """The tables of a directory: those of types by name, and those of relations."""

    types: dict[str, Path]
    relations: list[Path]


def typed_place(path: Any) -> TypedPlace | None:
    """The tables in ``nodes`` and ``edges`` of a directory, if the latter name two types each."""
    if not isinstance(path, str | os.PathLike) or not os.path.isdir(path):
        return None
    folders = [part for part in tables_in(Path(path)) if part.is_dir()]
    nodes, edges = (
        [table for folder in folders if kind.match(folder.name) for table in tables_in(folder)]
        for kind in (VERTICES, EDGES)
    )
    if not any(name_of(table).count(BETWEEN) >= 2 for table in edges):
        return None
    return TypedPlace({name_of(table): table for table in nodes}, edges)


def name_of(table: Path) -> str:
    """The name of a file of a table without its suffix, or of a folder."""
    return table.stem if table.suffix.lower() in SUFFIXES else table.name


class Columns:
    """The columns of a table by what they are for; in messages, `remedy` names one for a role."""

    def __init__(self, files: ColumnFiles, named: Mapping[str, str], remedy: str = NAME) -> None:
        self.files, self._given, self._remedy = files, named, remedy

    def find(self, role: str) -> str | None:
        """The column that is named for a role, or whose name has a word for it; there is one."""
        if role in self._given:
            self.files.check([self._given[role]])
            return self._given[role]
        where, remedy = self.files.paths[0], self._remedy.format("one:", role)
        # Columns that the first file lacks are refused once they are read.
        for columns in (self.files.columns, list(self.files.types)):
            names = [name for name in columns if name not in MASKS]
            if name := column_for(role, names, where, remedy):
                return name
        return None

    def pair(self, first: str, second: str, *others: str) -> tuple[str, str]:
        """Two columns of ids, by their names, or the only two; `others` are of other roles."""
        types, where = self.files.types, self.files.paths[0]
        names = [self.find(role) for role in (first, second)]
        columns = [name for name in types if name not in self.files.index]
        if names == [None, None] and len(columns) == 2:
            names = list(columns)
        remedy = self._remedy.format("two:", f"{first}=COLUMN,{second}") + "COLUMN"
        for role, name in zip((first, second), names, strict=True):
            if name is None:
                listed = shortened(", ".join(types), 80)
                raise InputError(
                    f"{where}: no column is named {role}; it has {listed or 'none'}. "
                    f"{remedy[0].upper()}{remedy[1:]}"
                )
            rivals = [
                other
                for other in columns
                if other not in (*names, *others)
                and (is_text(types[other]) or require_arrow(where).types.is_integer(types[other]))
            ]
            if role not in self._given and words_around(role, name) and rivals:
                message = f"columns '{name}' and '{rivals[0]}' may both be the {role}"
                raise InputError(f"{where}: {message}; {remedy}")
        return str(names[0]), str(names[1])

    def time(self) -> str | None:
        """The column that is named for time, or the only one of dates or timestamps."""
        if name := self.find("time"):
            return name
        where, types = self.files.paths[0], self.files.types
        names = [name for name in types if require_arrow(where).types.is_temporal(types[name])]
        if len(names) > 1:
            message = f"columns '{names[0]}' and '{names[1]}' may both be the time"
            remedy = self._remedy.format("one:", "time")
            raise InputError(f"{where}: {message}; {remedy}{names[0]}")
        return names[0] if names else None


class PairTable:
    """Rows of two ids and, if there are such columns, of a weight, features and a time."""

    def __init__(
        self,
        files: ColumnFiles,
        named: Mapping[str, str],
        roles: Sequence[str] = ("source", "target", "weight", "edge_attr"),
        remedy: str = NAME,
    ) -> None:
        self.files, columns, self._width = files, Columns(files, named, remedy), 0
        first, second, *others = roles
        places = {role: columns.time() if role == "time" else columns.find(role) for role in others}
        self.ends = columns.pair(first, second, *map(str, places.values()))
        places = {first: self.ends[0], second: self.ends[1], **places}
        self.places = {role: name for role, name in places.items() if name is not None}
        self.not_read = [name for name in files.types if name not in self.places.values()]

    def rows(
        self, numbers: Sequence[Reader], progress: Progress | None = None
    ) -> Iterator[dict[str, Array]]:
        """Arrays by role, a batch at a time; `numbers` number the ids of each side."""
        readers: dict[str, Reader] = dict.fromkeys(self.places, _weights)
        readers |= {"time": Batch.times, "edge_attr": self._features}
        readers |= zip(self.places, numbers, strict=False)  # the ends stand first
        for batch in self.files.batches([*self.places.values()], progress):
            yield {role: readers[role](batch, name) for role, name in self.places.items()}

    def _features(self, batch: Batch, name: str) -> Array:
        rows = float32_of(batch, [name], self._width)
        self._width = rows.shape[1]
        return rows

    def read(self, numbers: Sequence[Reader]) -> dict[str, Array]:
        """All of them, [rows] or [rows, width]; nothing if there is no row."""
        pieces = [piece for piece in self.rows(numbers) if len(next(iter(piece.values())))]
        roles = self.places if pieces else ()
        return {role: np.concatenate([piece[role] for piece in pieces]) for role in roles}


class TabularEdges(EdgeFile):
    """Rows of two ids, source and target, and of a weight if there is one."""

    directed = True
    is_text = False

    @classmethod
    def recognises(cls, path: AnyPath) -> bool:
        return is_tabular(path)

    def __init__(self, path: Path) -> None:
        place = place_of(path)
        assert place is not None
        if typed_place(path) is not None:
            raise InputError(
                f"{path}: tables of several vertex types: spgnn.distribute(DIR), or train with "
                "--model rgcn, rgat or hgt"
            )
        if not place.edges:
            raise InputError(f"{path}: a table of vertices alone; there is none of edges")
        self.path, self._table = path, PairTable(ColumnFiles(place.edges), place.columns)
        self._ends, types = self._table.ends, self._table.files.types
        weight = self._weight = self._table.places.get("weight")
        wheres = [f"{place.edges[0]}: column '{name}'" for name in self._ends]
        self._ids, other = (
            Ids(types[name], where) for name, where in zip(self._ends, wheres, strict=True)
        )
        if self._ids.text != other.text:
            kinds = (f"'{name}' is {types[name]}" for name in self._ends)
            raise InputError(f"{place.edges[0]}: {', '.join(kinds)}; ids are of one kind")
        self.integers = weight is not None and "int" in str(types[weight])
        self._largest, self._edges = -1, 0
        if place.vertices:
            self.vertex_table = VertexTable(
                path, place.vertices, place.columns, text=self._ids.text
            )
            self._ids = self.vertex_table.ids or self._ids
        self.not_read = self._table.not_read
        if self.vertex_table is not None:
            self.not_read += self.vertex_table.not_read
        if self.not_read:
            _LOGGER.warning("%s: not read: columns %s", path, ", ".join(self.not_read))

    def pieces(self, progress: Progress | None = None) -> Iterator[Edges]:
        """All edges; the numbers of ids that are strings change once all are known: `ranks`."""
        for piece in self._table.rows((self._number, self._number), progress):
            source, target = piece["source"], piece["target"]
            if self.vertex_table is not None:
                vertices = self.vertex_table.meta.vertices
            elif self._ids.text:
                vertices = len(self._ids)
            else:
                for end in (source, target):
                    self._largest = max(self._largest, int(end.max(initial=-1)))
                vertices = self._largest + 1
            index = numpy_index_dtype(max(vertices, 1))
            self._edges += len(source)
            ends = source.astype(index), target.astype(index)
            yield Edges(*ends, piece.get("weight"), piece.get("edge_attr"))
        if not self._edges:
            raise InputError(f"{self.path}: holds no edges")
        if self._ids.text and self.vertex_table is None:
            self.ranks, _ = self._ids.ranks()

    def _number(self, batch: Batch, name: str) -> Int64:
        if self.vertex_table is not None:
            return self.vertex_table.number(batch, name)
        return self._ids.number(batch, name) if self._ids.text else integers_of(batch, name)

    def vertices(self) -> int | None:
        """Rows of the table of vertices, ids, or as many as integers reach, unless few occur."""
        if self.vertex_table is not None:
            return self.vertex_table.meta.vertices
        if self._ids.text:
            return len(self._ids)
        if self._largest >= 2 * self._edges * SPARSE_IDS:
            return None
        check_vertices(self.path, self._largest + 1)
        return self._largest + 1

    def decided(self) -> dict[str, str]:
        if self.vertex_table is not None:
            vertices = f"rows of {self.vertex_table.files.paths[0].name}"
        elif self._ids.text or self.vertices() is None:
            vertices = "ids are names, and numbered in rising order"
        else:
            vertices = f"ids reach {self._largest}"
        weight = f"column '{self._weight}', unless all are 1"
        reasons = {
            "direction by": "'{}' → '{}'".format(*self._ends),
            "vertices by": vertices,
            "weights by": weight if self._weight else "there is no such column",
        }
        if self.vertex_table is not None and self.vertex_table.labels_by:
            reasons["labels by"] = self.vertex_table.labels_by
        if self.not_read:
            reasons["not read"] = shortened(", ".join(self.not_read), 80)
        return reasons

    def _strings(self) -> Iterator[pa.Array]:
        """The strings of all vertices in the order of their numbers, a stretch at a time."""
        order = np.arange(len(self._ids))
        if self.ranks is not None:
            order[self.ranks] = order.copy()
        return self._ids.arrays(order)

    def write_ids(self, path: AnyPath) -> None:
        """Write the ids of all vertices in the order of their numbers, if they are strings."""
        if self._ids.text:
            with TableWriter.open(path, str(path)) as table:
                for ids in self._strings():
                    table.write({"id": ids})

    def ids(self) -> pa.ChunkedArray | None:
        """The same in memory, read for this alone."""
        if not self._ids.text:
            return None
        if self.vertex_table is None:
            for _ in self.pieces():
                pass
        return require_arrow(self.path).chunked_array(list(self._strings()))


def _weights(batch: Batch, name: str) -> npt.NDArray[np.float64]:
    """A column of weights of edges."""
    stored = batch.numbers(name)
    if stored.ndim != 1:
        raise InputError(f"{batch.path}: column '{name}' holds lists; a weight is one number")
    weights = stored.astype(np.float64)
    batch.refuse(name, np.isfinite(weights), weights.__getitem__, "a finite number")
    batch.refuse(name, fits_float32(weights), weights.__getitem__, WEIGHT)
    if stored.dtype.kind != "f":
        batch.refuse(name, exact_in_float32(stored), stored.__getitem__, EXACT)
    return weights


class VertexTable:
    """Features, labels and masks, a row a vertex; all but features are in memory.

    `text` says whether edges name vertices by strings. Without it this is a table of one type of
    several: it has ids, of either kind, and may have a `time`.
    """

    def __init__(
        self, path: Path, files: Sequence[Path], named: Mapping[str, str], *, text: bool | None
    ) -> None:
        self.files = ColumnFiles(files)
        self.ids: Ids | None = None  # None if row i is vertex i
        self.vertex_ids: Tensor | None = None  # integers that are not the numbers of the rows
        self.kind: Any = None  # of ids
        columns = Columns(self.files, named, RENAME if text is None else NAME)
        identity, label, time = columns.find("id"), columns.find("label"), None
        types, self.labels_by, self.typed = self.files.types, "", text is None
        if text is None:
            if identity is None:
                listed = shortened(", ".join(types), 80) or "none"
                raise InputError(f"{files[0]}: no column 'id'; it has {listed}")
            time, self.kind = columns.time(), types[identity]
            text = is_text(self.kind)
        if identity is None:
            self.files.check_row_numbers()
        if text and (identity is None or not is_text(types[identity])):
            raise InputError(f"{files[0]}: no column 'id' of strings, which edges name vertices by")
        if not text and identity is not None and is_text(types[identity]):
            kind = types[identity]
            raise InputError(f"{files[0]}: column '{identity}' is {kind}, but edges name integers")
        masks = [name for name in MASKS if name in types]
        if not masks and "split" in types and is_text(types["split"]):
            masks = ["split"]
        rest = [name for name in types if name not in (identity, label, time, *masks)]
        numeric = [n for n in rest if n not in self.files.index and self.files.has_numbers(n)]
        if self.typed:  # keys of other tables
            integer = require_arrow(path).types.is_integer
            keys = [n for n in numeric if n.lower().endswith("id") and integer(types[n])]
            numeric = [name for name in numeric if name not in keys]
        self._features = ["x"] if "x" in rest else numeric
        self.not_read = [name for name in rest if name not in self._features]
        read = [name for name in (identity, label, time, *masks) if name is not None]
        self.time: Tensor | None = None
        self._data = self._read(read, identity, label, time, text=text)
        self._width = 0
        self._cursor: Iterator[Array] = iter(())
        self._at, self._rest = -1, np.empty((0, 0), np.float32)
        name, n, data = shown_name(name_in(path)), sum(self.files.rows), self._data
        if self._features and n:
            self._width = next(self._feature_rows()).shape[1]
        words = (torch.from_numpy(rows) for rows in self._feature_rows())
        self.meta = GraphMeta(
            name=name,
            vertices=n,
            edges=0,
            features=self._width,
            classes=label_columns(data.y),
            directed=True,
            weighted=False,
            offsets=(0, n),
            bag_of_words=bool(self._width) and is_bag_of_words(words),
            labelled=data.y is not None,
            splits=data.splits,
        )

    def _read(
        self,
        read: list[str],
        identity: str | None,
        label: str | None,
        time: str | None,
        *,
        text: bool,
    ) -> VertexData:
        """Labels and masks; ids are numbered."""
        parts: dict[str, list[Array]] = {name: [] for name in read}
        ids = None
        if identity is not None:
            ids = Ids(self.files.types[identity], f"{self.files.paths[0]}: column '{identity}'")
        for batch in self.files.batches(read) if read else ():
            for name in read:
                if name == identity:
                    assert ids is not None
                    before = len(ids)
                    numbers = ids.number(batch, name)
                    new = numbers == before + np.arange(len(numbers))
                    column = batch.columns[name]
                    rule = "an id that no row before it has"
                    batch.refuse(name, new, lambda row, c=column: f"'{c[row].as_py()}'", rule)
                    if not text:
                        parts[name].append(integers_of(batch, name))
                elif name == label:
                    parts[name].append(batch.numbers(name, missing=-1))
                elif name == time:
                    parts[name].append(batch.times(name))
                elif name == "split":
                    parts[name].append(_splits(batch))
                else:
                    mask = batch.numbers(name)
                    if mask.dtype != np.bool_:
                        raise InputError(f"{batch.path}: column '{name}' must be bool")
                    parts[name].append(mask)
        data: dict[str, Tensor] = {}
        for name, arrays in parts.items():
            array = np.concatenate(arrays) if arrays else np.empty(0, np.int64)
            if name == label:
                with errors_of(f"{self.files.paths[0]}: column '{name}'"):
                    data["y"] = _labels(array)
                if array.dtype.kind == "f" and data["y"].dtype == torch.int64:
                    self.labels_by = f"'{name}' is whole where it is not missing: classes"
            elif name == identity:
                if text:
                    self.ids = ids
                elif not np.array_equal(array, np.arange(len(array))):
                    self.ids, self.vertex_ids = ids, torch.from_numpy(array)
            elif name == time:
                self.time = torch.from_numpy(array)
            elif name == "split":
                masks = torch.from_numpy(array[:, None] == np.arange(len(MASKS)))
                data |= dict(zip(MASKS, masks.T.contiguous(), strict=True))
            else:
                data[name] = torch.from_numpy(array)
        return VertexData(**data)

    def number(self, batch: Batch, name: str) -> Int64:
        """The rows of the vertices that a column of edges names."""
        owner, vertices = self.files.paths[0], self.meta.vertices
        if self.ids is not None:
            return self.ids.number(batch, name, str(owner))
        ends = integers_of(batch, name)
        rule = f"a vertex of {owner}, in [0, {vertices})"
        batch.refuse(name, ends < vertices, ends.__getitem__, rule)
        return ends

    @property
    def piece_rows(self) -> int:
        """Rows that are read at once, as the width of features suggests."""
        return max(1, PIECE_BYTES // (4 * self._width + 16))

    def rows(self, rows: slice) -> VertexData:
        """The data of neighbouring vertices; cheap if they follow those of the call before."""
        first, last, _ = rows.indices(self.meta.vertices)
        data = self._data.take(slice(first, last))
        if self._width:
            if first != self._at:
                self._cursor, self._at = self._feature_rows(), 0
                self._rest = np.empty((0, self._width), np.float32)
                self._next(first)
            data["x"] = torch.from_numpy(self._next(last - first))
        return VertexData(**data)

    def _next(self, count: int) -> Array:
        pieces, missing = [self._rest[:0]], count
        while missing:
            if not len(self._rest):
                self._rest = next(self._cursor)
            pieces.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(pieces[-1])
        self._at += count
        return np.concatenate(pieces)

    def _feature_rows(self) -> Iterator[Array]:
        """Features of all vertices, float32 [rows, width] a batch."""
        for batch in self.files.batches(self._features) if self._features else ():
            yield float32_of(batch, self._features, self._width)


def float32_of(batch: Batch, names: Sequence[str], width: int = 0) -> npt.NDArray[np.float32]:
    """Columns of features side by side, [rows, width]; 0: of any width."""
    table = np.concatenate([_float32_of(batch, name) for name in names], axis=1)
    if width and table.shape[1] != width:
        where = f"{batch.path}, row {batch.first}, column '{names[0]}'"
        raise InputError(f"{where}: a list of {table.shape[1]} is not {width}, as in the first row")
    return table


def _float32_of(batch: Batch, name: str) -> npt.NDArray[np.float32]:
    """A column of features, [rows, width]; what float32 cannot hold is refused."""
    values = batch.numbers(name)
    floating = values.dtype.kind == "f"
    with np.errstate(over="ignore", under="ignore"):
        single = values.astype(np.float32)
    good = np.isfinite(single) if floating else exact_in_float32(values)
    each = np.asarray(good if values.ndim == 1 else np.all(good, axis=1))

    def shown(row: int) -> str:
        if values.ndim == 1:
            return str(values[row])
        element = int(np.argmin(good[row]))
        return f"element {element}, {values[row, element]},"

    batch.refuse(name, each, shown, "finite in float32" if floating else EXACT)
    return single[:, None] if single.ndim == 1 else single


def _splits(batch: Batch) -> Array:
    """The mask that each text of a column ``split`` means, or −1: null is in none."""
    texts = batch.columns["split"].dictionary_encode()
    names = texts.dictionary.cast("string").to_pylist()
    masks = np.array([*(_SPLITS.get(name, -2) for name in names), -1])
    codes: Array = masks[texts.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
    batch.refuse("split", codes > -2, lambda row: f"'{texts[row].as_py()}'", "train, val or test")
    return codes


def _labels(labels: Array) -> Tensor:
    """Classes, of integers; numbers; or several labels a vertex."""
    if labels.ndim == 1 and labels.dtype.kind == "f":
        # Integers of which some are missing: pandas stores them so.
        missing = np.isnan(labels)
        whole = np.where(missing, UNKNOWN, labels)
        good, _ = _are_classes(whole)
        if missing.any() and not missing.all() and (good & (whole == np.rint(whole))).all():
            labels = whole.astype(np.int64)
    if labels.ndim == 2 or labels.dtype.kind == "f":
        return torch.from_numpy(labels_of_table(labels))
    y = labels.astype(np.int64)
    good, classes = _are_classes(y)
    if not good.all():
        row = int(np.argmin(good))
        rule = f"a class, or null where it is not known, must be in [0, {classes})"
        raise InputError(f"row {row} is {y[row]}; {rule}")
    return torch.from_numpy(y)


def _are_classes(y: Array) -> tuple[Array, int]:
    """Mark and count numbers that are unknown or below the most classes that are plausible."""
    classes = LABEL_GAPS * len(np.unique(y[y >= 0])) + 8
    return (y >= UNKNOWN) & (y < classes), classes


# What is written --------------------------------------------------------------------------------


class TableWriter:
    """Writes rows to a Parquet file."""

    def __init__(self, file: BinaryIO, ids: pa.ChunkedArray | None) -> None:
        self.rows, self.ids, self._file = 0, ids, file
        self._writer: Any = None

    @staticmethod
    def check(what: str) -> None:
        """Refuse to write `what` without the package pyarrow."""
        require_arrow(what)

    @classmethod
    @contextmanager
    def open(cls, path: AnyPath, what: str, dataset: AnyPath | None = None) -> Iterator[Self]:
        """A file to write, which appears when the block ends well; of vertices of a `dataset`."""
        cls.check(what)
        ids = None if dataset is None else source_ids(dataset)
        with atomic_file(path, what) as file:
            writer = cls(file, ids)
            yield writer
            if writer._writer is not None:
                writer._writer.close()

    def write(self, columns: Mapping[str, Any]) -> None:
        """Append rows: arrays of NumPy or pyarrow, [rows] or [rows, width], by name."""
        arrow = require_arrow("a table")
        arrays = {
            name: arrow.FixedSizeListArray.from_arrays(array.ravel(), array.shape[1])
            if getattr(array, "ndim", 1) == 2
            else array
            for name, array in columns.items()
        }
        table = arrow.table(arrays)
        if self._writer is None:
            self._writer = arrow.parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)
        self.rows += table.num_rows


def source_ids(name_or_path: AnyPath) -> pa.ChunkedArray | None:
    """The ids of a graph's vertices in the order of their numbers, if they are strings."""
    if is_graph_directory(name_or_path):
        path = Path(name_or_path) / IDS
        return require_arrow(path).parquet.read_table(path)["id"] if path.exists() else None
    if names_of_several(os.fspath(name_or_path)) or not is_tabular(name_or_path):
        return None  # graphs that are joined have numbers of their own
    if typed_place(name_or_path) is not None:
        return None  # each type has its own
    return TabularEdges(Path(name_or_path)).ids()


def vertex_names(graph: DistGraph, path: str | None) -> npt.NDArray[np.str_] | None:
    """The ids of own vertices, if those of the source, which rank 0 reads, are strings."""

    def texts() -> Tensor | None:
        ids = None if path is None else source_ids(path)
        if ids is None:
            return None
        return names_as_rows(ids.cast("large_string").to_numpy().astype(str))

    every = graph.comm.on_rank_zero(texts)
    if not graph.comm.from_rank_zero(lambda: every is not None):
        return None
    return names_of_rows(graph.scatter(every).cpu())


def names_as_rows(names: npt.NDArray[Any]) -> Tensor:
    """Strings as rows of bytes, which can be sent; integers as they are."""
    if names.dtype.kind != "U":
        return torch.from_numpy(names)
    return torch.from_numpy(np.char.encode(names, "utf-8").view(np.uint8)).view(len(names), -1)


def names_of_rows(rows: Tensor) -> npt.NDArray[Any]:
    """The reverse."""
    own = rows.numpy()
    return np.char.decode(own.view(f"S{own.shape[1]}")[:, 0], "utf-8") if own.ndim == 2 else own


# Pairs of two sides -----------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Pairs of ids of two sides, such as users and items."""

    first: Int64
    second: Int64
    weights: npt.NDArray[np.float64] | None
    first_ids: pa.Array
    second_ids: pa.Array
    times: Array | None = None


def read_pairs(path: AnyPath) -> Pairs:
    """Read pairs of a user and an item from Parquet or Arrow: a file, a folder or a pattern.

    ``FILE@user=COLUMN,item=COLUMN,rating=COLUMN,time=COLUMN`` names columns. Of times, it may also
    be the only column of dates or timestamps.

    Raises
    ------
    InputError
        If there is no such file, no such column or no pair; names the row of an id or a weight that
        is missing or wrong.
    """
    place = place_of(path)
    if place is None or not place.edges:
        shown = ", ".join(SUFFIXES)
        raise InputError(f"{path}: neither a {shown} file, nor a folder or a pattern of such files")
    table = PairTable(ColumnFiles(place.edges), place.columns, ("user", "item", "rating", "time"))
    wheres = [f"{place.edges[0]}: column '{name}'" for name in table.ends]
    types = [table.files.types[name] for name in table.ends]
    sides = [Ids(kind, where) for kind, where in zip(types, wheres, strict=True)]
    if table.not_read:
        _LOGGER.info("%s: not read: columns %s", path, ", ".join(table.not_read))
    listed = table.read([side.number for side in sides])
    if not listed:
        raise InputError(f"{path}: holds no pairs")
    (ranks, order), (other_ranks, other_order) = (side.ranks() for side in sides)
    ids = [
        require_arrow(path).concat_arrays(list(side.arrays(rising)))
        for side, rising in zip(sides, (order, other_order), strict=True)
    ]
    first, second = ranks[listed["user"]], other_ranks[listed["item"]]
    return Pairs(first, second, listed.get("rating"), ids[0], ids[1], listed.get("time"))
