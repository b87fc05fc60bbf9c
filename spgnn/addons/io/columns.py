"""Columns of tables by what they are for; those of Parquet and Arrow, a batch of rows at a time."""

from __future__ import annotations

import importlib
import json
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from spgnn._native import NameTable
from spgnn.errors import InputError, shortened
from spgnn.files import check_regular, check_unpacked, reading
from spgnn.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
SUFFIXES: tuple[str, ...] = (*PARQUET, *ARROW)
BATCH_ROWS = 1 << 20  # of a batch
_IDS = "an id is a string, or an integer of at least 0"
_PLAINLY = "write it without compression and dictionaries"

# Words in the names of columns, by what these are for.
WORDS = {
    "source": {"source", "src", "from"},
    "target": {"target", "tgt", "destination", "dest", "dst", "to"},
    "weight": {"weight", "weights"},
    "edge_attr": set[str](),
    "id": {"id", "vertex", "node"},
    "label": {"y", "label", "labels"},
    "user": {"user", "users", "u", "uid", "customer", "reader", "reviewer", "visitor", "member"},
    "item": {"item", "items", "i", "iid", "product", "movie", "book", "isbn", "artist", "track"}
    | {"article", "asin", "business"},
    "rating": {"rating", "ratings", "score", "stars", "count", "weight"},
    "time": {"time", "timestamp", "timestamps", "date", "datetime"},
}
_OF_IDS = {"id", "ids", "idx", "index", "node", "vertex"}
# What pandas calls the numbers of rows, also after reset_index() or once they have been in CSV.
_ROW_NUMBERS = re.compile(r"__index_level_[0-9]+__|index|level_[0-9]+|Unnamed: [0-9]+|\s*")


def is_row_number(name: str) -> bool:
    """True for the name of a column that only counts the rows."""
    return _ROW_NUMBERS.fullmatch(name) is not None


def words_around(role: str, name: str) -> set[str] | None:
    """The words of a column's name besides those of a role and of ids; ``None`` without the role.

    ``userId`` and ``user_id`` have none for the role user; ``From Bank`` has one for the source.
    """
    words = WORDS.get(role, {role})
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    stems = ((part.removesuffix("id"), part) for part in re.split(r"[\W\d_]+", spaced))
    parts = {stem if stem in words else part for stem, part in stems}
    if not words & parts or (words & parts == {"y"} and len(name) > 1):  # of pos_y
        return None
    return parts - words - _OF_IDS - {""}


def column_for(role: str, names: Iterable[str], where: object, remedy: str) -> str | None:
    """The column for a role: of that name, or of a name with a word for it; there is one at most.

    Names without other words come before those with.
    """
    names = list(names)
    if role in names and role != "label":
        return role
    around = {name: words for name in names if (words := words_around(role, name)) is not None}
    best = [name for name, words in around.items() if not words] or list(around)
    if len(best) > 1:
        message = f"columns '{best[0]}' and '{best[1]}' may both be the {role}"
        raise InputError(f"{where}: {message}; {remedy}{best[0]}")
    return best[0] if best else None


def require_arrow(what: object) -> ModuleType:
    """The package pyarrow; ``InputError`` about `what` without it."""
    try:
        importlib.import_module("pyarrow.parquet")  # an attribute of the package, once it is loaded
        return importlib.import_module("pyarrow")
    except ImportError:
        message = "needs the package pyarrow: pip install 'spgnn[arrow]'"
        raise InputError(f"{what}: {message}") from None


class Batch(NamedTuple):
    """Some rows of a file: the number of the first, from 0, and the columns by name."""

    path: Path
    first: int
    columns: dict[str, pa.Array]

    def refuse(self, name: str, good: Array, shown: Any, rule: str) -> None:
        """Refuse the first row that is not good; ``shown(row)`` is what stands there."""
        if not good.all():
            row = int(np.argmin(good))
            where = f"{self.path}, row {self.first + row}, column '{name}'"
            raise InputError(f"{where}: {shortened(str(shown(row)), 60)} is not {rule}")

    def check_nulls(self, name: str, column: pa.Array, rule: str, per_row: int = 1) -> None:
        """Refuse the first row with a null."""
        if column.null_count:
            row = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False))) // per_row
            where = f"{self.path}, row {self.first + row}, column '{name}'"
            raise InputError(f"{where}: there is none (null); it must be {rule}")

    def numbers(self, name: str, missing: float | None = None) -> Array:
        """A column of numbers, [rows], or of lists of equally many, [rows, width]."""
        arrow = require_arrow(self.path)
        column, types, width = self.columns[name], arrow.types, 0
        if types.is_fixed_size_list(column.type) or is_list(column.type):
            self.check_nulls(name, column, "a list of numbers")
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            width = int(lengths[0]) if len(lengths) else 0
            rule = f"{width}, as in row {self.first}"
            self.refuse(name, lengths == width, lambda row: f"a list of {lengths[row]}", rule)
            column = column.flatten()
        if types.is_decimal(column.type):
            column = column.cast(arrow.float64())
        kind = column.type
        if not is_number(kind):
            raise InputError(f"{self.path}: column '{name}' is {kind}; it must be numbers")
        if missing is None:
            self.check_nulls(name, column, "a number", width or 1)
        elif column.null_count and types.is_boolean(kind):
            column = column.cast(arrow.int8())
        if column.null_count:
            column = column.fill_null(np.nan if types.is_floating(kind) else int(missing or 0))
        values: Array = column.to_numpy(zero_copy_only=False)
        lists = is_list(self.columns[name].type)
        return values.reshape(len(self.columns[name]), width) if lists else values

    def times(self, name: str) -> Array:
        """A column of times: numbers as they are; dates and ISO 8601 in microseconds."""
        arrow, column = require_arrow(self.path), self.columns[name]
        self.check_nulls(name, column, "a time")
        if not is_number(column.type):
            try:
                column = column.cast(arrow.timestamp("us"), safe=False).cast(arrow.int64())
            except arrow.ArrowException as error:
                raise InputError(f"{self.path}: column '{name}' is no time: {error}") from None
        values = self._replace(columns={name: column}).numbers(name)
        self.refuse(name, np.isfinite(values), values.__getitem__, "a time")
        return values


def is_number(kind: pa.DataType) -> bool:
    """True for a type of integers, floating or decimal numbers, or bool."""
    return _is_any(kind, "integer", "floating", "boolean", "decimal")


def is_list(kind: pa.DataType) -> bool:
    """True for a type of lists, of fixed size or not."""
    return _is_any(kind, "list", "large_list", "fixed_size_list")


def is_text(kind: pa.DataType) -> bool:
    """True for a type of strings or bytes, also where a dictionary has them."""
    if _is_any(kind, "dictionary"):
        kind = kind.value_type
    return _is_any(kind, "string", "large_string", "string_view", "binary", "large_binary")


def _is_any(kind: pa.DataType, *names: str) -> bool:
    types = require_arrow("tables").types
    return any(getattr(types, f"is_{name}")(kind) for name in names)


class ColumnFiles:
    """Files of one table, one after another."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._types: list[dict[str, Any]] = []
        self.rows: list[int] = []
        self._indices: list[list[str | range]] = []
        for path in paths:
            check_regular(path)
            schema, rows, _ = _open(path)
            check_unpacked(path, rows, path.stat().st_size, _PLAINLY)
            repeated = [name for name in schema.names if schema.names.count(name) > 1]
            if repeated:
                raise InputError(f"{path}: two columns are called '{repeated[0]}'")
            self._types.append(dict(zip(schema.names, schema.types, strict=True)))
            self.rows.append(rows)
            self._indices.append(_index_of(schema))
        self.index = {name for index in self._indices for name in index if isinstance(name, str)}
        self.columns = list(self._types[0])
        self.types: dict[str, Any] = {}
        for types in self._types:
            self.types |= {name: types[name] for name in types if name not in self.types}

    def has_numbers(self, name: str) -> bool:
        """True if a column holds numbers in any of the files."""
        return any(name in types and is_number(types[name]) for types in self._types)

    def check_row_numbers(self) -> None:
        """Refuse rows that an index of pandas numbers otherwise than from 0."""
        begin = 0
        for path, rows, index in zip(self.paths, self.rows, self._indices, strict=True):
            for numbers in index:
                if isinstance(numbers, range):
                    same = numbers[:2] in (range(rows)[:2], range(begin, begin + rows)[:2])
                else:
                    same = is_number(self.types[numbers]) and all(
                        _counts(batch.numbers(numbers, -1), {batch.first, begin + batch.first})
                        for batch in ColumnFiles([path]).batches([numbers])
                    )
                if not same:
                    raise InputError(
                        f"{path}: no column 'id', and an index of pandas that is not 0, 1, 2, …: "
                        "reset_index(names='id') makes it the ids, reset_index(drop=True) drops it"
                    )
            begin += rows

    def check(self, columns: Sequence[str]) -> None:
        """Refuse files that lack one of these columns, or have it with another type."""
        for path, types in zip(self.paths, self._types, strict=True):
            for name in columns:
                if name not in types:
                    listed = shortened(", ".join(types), 80) or "none"
                    pairs = zip(self.paths, self._types, strict=True)
                    other = next((f"; {p.name} has one" for p, t in pairs if name in t), "")
                    raise InputError(f"{path}: no column '{name}'; it has {listed}{other}")
                if types[name] != self.types[name]:
                    raise InputError(
                        f"{path}: column '{name}' is {types[name]}, but {self.types[name]} in "
                        f"{self.paths[0]}"
                    )

    def batches(self, columns: Sequence[str], progress: Progress | None = None) -> Iterator[Batch]:
        """All rows of some columns, at most `BATCH_ROWS` at a time."""
        self.check(columns)
        done, total = 0, sum(self.rows)
        width = sum(map(_width, (self.types[name] for name in columns)))
        for path, rows in zip(self.paths, self.rows, strict=True):
            check_unpacked(path, rows * width, path.stat().st_size, _PLAINLY)
            first = 0
            _, _, batches = _open(path, columns)
            while True:
                with _decoding(path):
                    batch = next(batches, None)
                    if batch is None:
                        break
                    # Damaged lengths and text would be met as crashes.
                    batch.validate(full=True)
                for begin in range(0, batch.num_rows, BATCH_ROWS):
                    some = batch.slice(begin, BATCH_ROWS)
                    named = {name: some.column(name) for name in columns}
                    yield Batch(path, first + begin, named)
                first += batch.num_rows
                done += batch.num_rows
                if progress is not None:
                    progress(f"reading {path.name}", done, total)


def _width(kind: pa.DataType) -> int:
    """Bytes of a value, at least."""
    if require_arrow("widths").types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:  # of strings and lists
        return 1


def _index_of(schema: Any) -> list[str | range]:
    """The index of the table of pandas that a file was: columns, and ranges that are none."""
    index: list[str | range] = [name for name in schema.names if is_row_number(name)]
    with suppress(ValueError, TypeError, KeyError, RecursionError):  # whoever wrote this
        for entry in json.loads((schema.metadata or {})[b"pandas"])["index_columns"]:
            if isinstance(entry, dict):
                index.append(range(entry["start"], entry["stop"], entry["step"]))
            elif entry in schema.names and entry not in index:
                index.append(entry)
    return index


def _counts(values: Array, begins: set[int]) -> bool:
    """True if values rise by 1 from one of these."""
    return any(np.array_equal(values, np.arange(first, first + len(values))) for first in begins)


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """As `reading`; sizes in a damaged file may be such that no memory has them."""
    try:
        with reading(path):
            yield
    except (InputError, MemoryError) as error:
        fault = "" if isinstance(error, InputError) else f"{path}: damaged, or too large: "
        raise InputError(" ".join(f"{fault}{error}".split())) from None


def _open(path: Path, columns: Sequence[str] | None = None) -> tuple[Any, int, Iterator[Any]]:
    """Schema, number of rows, and record batches of some columns, of a file."""
    arrow = require_arrow(path)
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    is_parquet = path.suffix.lower() in PARQUET
    with _decoding(path):
        place = os.fsencode(path)  # the name need not be UTF-8
        if is_parquet:
            # A row group may be the whole file: pages are read when their turn has come.
            opened = arrow.OSFile(place)
            file = arrow.parquet.ParquetFile(opened, pre_buffer=False, buffer_size=1 << 20)
            batches = file.iter_batches(BATCH_ROWS, columns=columns) if columns else iter(())
            schema, rows = file.schema_arrow, file.metadata.num_rows
        else:
            schema, rows, batches = _stream_of(path, arrow, arrow.memory_map(place))
        names = schema.names  # raises, if they are no text
        if rows < 0:
            raise ValueError(f"{rows} rows of {', '.join(names)}")
        return schema, rows, batches


def _stream_of(path: Path, arrow: ModuleType, mapped: Any) -> tuple[Any, int, Iterator[Any]]:
    """The same of a mapped file of Arrow; what is wrong raises anything."""
    beginning = mapped.read(6)
    if beginning[:4] == b"FEA1":
        raise InputError(f"{path}: is Feather of version 1; write it with version 2, or as Parquet")
    # A file is a stream with a footer, which a truncated one lacks.
    whole, begin = None, 0
    if beginning == b"ARROW1":
        whole, begin = arrow.ipc.open_file(mapped), 8
    mapped.seek(begin)
    batches, rows, unpacked = _sizes(arrow.ipc.MessageReader.open_stream(mapped))
    check_unpacked(path, unpacked, path.stat().st_size, _PLAINLY)
    if whole is not None and whole.num_record_batches != batches:
        message = f"its footer lists {whole.num_record_batches} batches, but there are {batches}"
        raise ValueError(message)
    mapped.seek(begin)
    reader = arrow.ipc.open_stream(mapped)
    return reader.schema, rows, iter(reader)


def _sizes(messages: Iterable[Any]) -> tuple[int, int, int]:
    """Batches and rows of a stream of Arrow, and the bytes of what is compressed, unpacked."""
    batches = rows = unpacked = 0
    for message in messages:
        if message.type not in ("record batch", "dictionary"):
            continue
        raw, body = message.metadata.to_pybytes(), memoryview(message.body)

        def field(table: int, number: int, raw: bytes = raw) -> int:
            """The place of a field of a table; 0 if it has none."""
            (back,) = struct.unpack_from("<i", raw, table)
            (size,) = struct.unpack_from("<H", raw, table - back)
            place = 4 + 2 * number
            offset = struct.unpack_from("<H", raw, table - back + place)[0] if place < size else 0
            return table + int(offset) if offset else 0

        def follow(place: int, raw: bytes = raw) -> int:
            return place + int(struct.unpack_from("<I", raw, place)[0])

        batch = follow(field(follow(0), 2))
        if message.type == "dictionary":
            batch = follow(field(batch, 1))
        else:
            batches += 1
            rows += struct.unpack_from("<q", raw, field(batch, 0))[0] if field(batch, 0) else 0
        if field(batch, 3):  # compressed: each buffer begins with its own size
            buffers = follow(field(batch, 2))
            (count,) = struct.unpack_from("<I", raw, buffers)
            for number in range(count):
                begin, length = struct.unpack_from("<qq", raw, buffers + 4 + 16 * number)
                if length:
                    unpacked += max(struct.unpack_from("<q", body, begin)[0], 0)
    return batches, rows, unpacked


class Ids:
    """Numbers of ids, strings or integers, in the order in which they first occur."""

    def __init__(self, kind: pa.DataType, where: str) -> None:
        self.text = is_text(kind)
        self._kind, self._table = kind, NameTable()
        if not self.text and not require_arrow(where).types.is_integer(kind):
            raise InputError(f"{where} is {kind}; {_IDS}")

    def __len__(self) -> int:
        return len(self._table)

    def number(self, batch: Batch, name: str, owner: str = "") -> Int64:
        """The number of each id of a column; all must occur in the table of an `owner`, if any."""
        content = _bytes_of(batch, name) if self.text else _bytes_of_integers(batch, name)
        numbers = self._table.number(*content, bool(owner))
        if owner:
            column = batch.columns[name]
            rule = f"an id of {owner}"
            batch.refuse(name, numbers >= 0, lambda row: f"'{column[row].as_py()}'", rule)
        return numbers

    def ranks(self) -> tuple[Int64, Int64]:
        """The place of each number in the rising order of ids, and the numbers in that order."""
        order = self._table.order()
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order))
        return ranks, order

    def arrays(self, order: Int64) -> Iterator[pa.Array]:
        """The ids of some numbers, in their own type, a stretch at a time."""
        arrow = require_arrow("ids")
        for first in range(0, max(len(order), 1), BATCH_ROWS):
            begins, content = self._table.take(order[first : first + BATCH_ROWS])
            if self.text:
                buffers = [None, arrow.py_buffer(begins), arrow.py_buffer(content)]
                array = arrow.Array.from_buffers(arrow.large_binary(), len(begins) - 1, buffers)
                kind = self._kind
                if arrow.types.is_dictionary(kind):
                    kind = kind.value_type
                yield array if "binary" in str(kind) else array.cast(arrow.large_string())
            else:
                yield arrow.array(content.view(">i8").astype(np.int64))


def integers_of(batch: Batch, name: str) -> Int64:
    """A column of ids that are integers, int64."""
    arrow, column = require_arrow(batch.path), batch.columns[name]
    batch.check_nulls(name, column, "an integer of at least 0")
    if arrow.types.is_uint64(column.type):
        unsigned = column.to_numpy(zero_copy_only=False)
        small = unsigned <= np.iinfo(np.int64).max
        batch.refuse(name, small, lambda row: unsigned[row], "an integer of 63 bits")
    integers: Int64 = column.to_numpy(zero_copy_only=False).astype(np.int64)
    rule = "a vertex id, an integer of at least 0"
    batch.refuse(name, integers >= 0, lambda row: integers[row], rule)
    return integers


def _bytes_of_integers(batch: Batch, name: str) -> tuple[Int64, npt.NDArray[np.uint8]]:
    """As names: of eight bytes, the first the highest, so that they are sorted as integers are."""
    integers = integers_of(batch, name)
    return np.arange(len(integers) + 1) * 8, integers.astype(">i8").view(np.uint8)


def _bytes_of(batch: Batch, name: str) -> tuple[Int64, npt.NDArray[np.uint8]]:
    """Offsets of a column's strings among their bytes, with the end, and the bytes."""
    arrow, column = require_arrow(batch.path), batch.columns[name]
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    batch.check_nulls(name, column, "a string")
    column = column.cast(arrow.large_binary())
    _, begins, content = column.buffers()
    if not len(column):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    where = np.frombuffer(begins, np.int64, len(column) + 1, 8 * column.offset)
    stretch = np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    return where, stretch
