"""Graphs whose rows are read when they are needed, and what every rank may know of one."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from spgnn.data.graph import Graph, VertexData
from spgnn.data.normalise import is_bag_of_words
from spgnn.data.structure import select_rows
from spgnn.errors import InputError, printable
from spgnn.files import AnyPath
from spgnn.progress import Progress
from spgnn.sparse import CSR

_LARGEST = 2**53  # JSON's integers are safe up to here, and no size is larger
_LONGEST_NAME = 1000


@dataclass(frozen=True, kw_only=True)
class GraphMeta:
    """Sizes of a graph, and kinds of the data of its vertices.

    ``offsets`` are those of the ``RowLayout``: part p owns rows [offsets[p], offsets[p + 1]).
    ``splits`` counts columns of the masks (0: no masks). ``bag_of_words`` is
    `spgnn.data.normalise.is_bag_of_words` of the whole feature matrix.
    """

    name: str
    vertices: int
    edges: int
    features: int = 0
    classes: int = 0
    directed: bool
    weighted: bool
    offsets: tuple[int, ...]
    sparse_features: bool = False
    bag_of_words: bool = False
    labelled: bool = False
    splits: int = 0

    @property
    def parts(self) -> int:
        return len(self.offsets) - 1

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> GraphMeta:
        """The description in a parsed JSON object, which may hold more."""
        wrong = "not a description of a graph"
        values: dict[str, Any] = {}
        for field in fields(cls):
            if field.name not in record:
                raise InputError(f"{wrong}: no '{field.name}'")
            value = values[field.name] = record[field.name]
            if field.type == "str":
                fits = type(value) is str and len(value) <= _LONGEST_NAME and value.isprintable()
                words = f"at most {_LONGEST_NAME} printable characters"
            elif field.type == "bool":
                fits, words = type(value) is bool, "true or false"
            elif field.type == "int":
                fits, words = is_count(value), "an integer of at least 0"
            else:
                fits = type(value) is list and all(map(is_count, value))
                words = "a list of integers of at least 0"
            if not fits:
                raise InputError(f"{wrong}: '{field.name}' must be {words}")
        offsets = values["offsets"] = tuple(values["offsets"])
        if len(offsets) < 2 or offsets[0] != 0 or any(a > b for a, b in pairwise(offsets)):
            raise InputError(f"{wrong}: 'offsets' must rise from 0")
        if offsets[-1] != values["vertices"]:
            raise InputError(f"{wrong}: offsets end with {offsets[-1]}, not {values['vertices']}")
        return cls(**values)


def shown_name(name: str) -> str:
    """A name that any terminal may show and every description may hold."""
    return printable(name)[:_LONGEST_NAME]


def describe(graph: Graph) -> GraphMeta:
    """The description of a graph that is not cut."""
    return GraphMeta(
        name=shown_name(graph.name),
        vertices=graph.vertices,
        edges=graph.edges,
        features=graph.features,
        classes=graph.classes,
        directed=graph.directed,
        weighted=graph.weighted,
        offsets=(0, graph.vertices),
        sparse_features=isinstance(graph.x, CSR),
        bag_of_words=is_bag_of_words([graph.x]),
        labelled=graph.y is not None,
        splits=graph.splits,
    )


def json_object(text: str) -> dict[str, Any]:
    """The object that a text from outside describes, however odd the text."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise InputError("not a JSON object")
    return loaded


def is_count(value: object) -> bool:
    """True if a value from JSON is a number of things."""
    return type(value) is int and 0 <= value <= _LARGEST


PIECE_BYTES = 1 << 26  # of features that are read at once


class GraphSource(ABC):
    """A graph that hands out its structure, and rows of everything else.

    Opening one checks it: what is wrong with its arrays is said before any of them is handed out.

    Attributes
    ----------
    meta : GraphMeta
    decided : mapping of str
        What in a file decides its direction, vertices and weights; empty for what is no file.
    write_ids : callable (path) or None
        Writes the ids of all vertices to a Parquet file, if they are strings.
    """

    meta: GraphMeta
    decided: Mapping[str, str] = MappingProxyType({})
    write_ids: Callable[[AnyPath], object] | None = None

    @property
    def vertex_ids(self) -> Tensor | None:
        """The place of each vertex in the graph's own source, int64 [n], if any has been moved."""
        return None

    @property
    def random_access(self) -> bool:
        """True if a few rows cost about as much as they are of all."""
        return True

    def edge_attr(self) -> Tensor | None:
        """Features of edges, float32 [nnz, k] in the order of `structure`, if it has any."""
        return None

    @abstractmethod
    def structure(self) -> CSR:
        """The adjacency [n, n], with its weights."""

    @abstractmethod
    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices, int64 [rows] in any order, or a slice."""

    def adjacency(self, ids: Tensor | slice) -> CSR:
        """Some rows of the adjacency, in the order asked for; columns stay global."""
        return select_rows(self.structure(), ids)

    def pieces(self, rows: int | None = None) -> Iterator[tuple[int, VertexData]]:
        """All vertices once, a few at a time: (number of the first, data of the next `rows`).

        A graph without vertices has one piece, an empty one.

        Parameters
        ----------
        rows : int, optional
            By default as many as make pieces of `PIECE_BYTES` or less.
        """
        rows = rows or self.piece_rows
        for first in range(0, max(self.meta.vertices, 1), rows):
            yield first, self.rows(slice(first, min(first + rows, self.meta.vertices)))

    @property
    def piece_rows(self) -> int:
        """Rows of a piece, as the width of dense float32 features suggests."""
        return max(1, PIECE_BYTES // (4 * self.meta.features + 16))

    def graph(self) -> Graph:
        """All of it, in memory (or mapped, where the source is)."""
        meta, data = self.meta, self.rows(slice(0, self.meta.vertices)).take(slice(None))
        A, attr = self.structure(), self.edge_attr()
        return Graph(meta.name, A, meta.directed, self.vertex_ids, attr, **data)


class MemorySource(GraphSource):
    def __init__(
        self,
        graph: Graph,
        decided: Mapping[str, str] | None = None,
        write_ids: Callable[[AnyPath], object] | None = None,
    ) -> None:
        self._graph, self.decided, self.write_ids = graph, decided or {}, write_ids
        self.meta = describe(graph)

    @property
    def vertex_ids(self) -> Tensor | None:
        return self._graph.vertex_ids

    def structure(self) -> CSR:
        return self._graph.adjacency

    def edge_attr(self) -> Tensor | None:
        return self._graph.edge_attr

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Views, if ``ids`` is a slice."""
        return VertexData(**self._graph.take(ids))

    def graph(self) -> Graph:
        return self._graph


class GraphFile(ABC):
    """A file in some format, opened: a subclass stands in ``spgnn.registry.READERS`` by suffix.

    Attributes
    ----------
    is_text : bool
        Whether the file may be packed, as .gz, .bz2 or .xz.
    """

    is_text: ClassVar[bool] = True

    @abstractmethod
    def __init__(self, path: Path) -> None:
        """Look at the beginning; ``InputError`` if it is no such file."""

    @classmethod
    def recognises(cls, path: AnyPath) -> bool:
        """True for a folder or a pattern of such files."""
        return False

    @abstractmethod
    def source(self, progress: Progress | None = None) -> GraphSource:
        """Read the graph."""


def ids_of(ids: Tensor | slice, vertices: int) -> Tensor:
    """The vertices that a slice or a tensor names, int64."""
    return torch.arange(*ids.indices(vertices)) if isinstance(ids, slice) else ids.long()
