"""What every rank may know of a graph that no rank holds; JSON on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

from spgnn.data.graph import Graph
from spgnn.data.normalise import is_bag_of_words
from spgnn.errors import InputError, printable
from spgnn.layout import RowLayout
from spgnn.sparse import CSR

_LARGEST = 2**53  # JSON's integers are safe up to here, and no size is larger
_LONGEST_NAME = 1000


@dataclass(frozen=True)
class GraphMeta:
    """Sizes of a graph, and what is known of its vertices.

    ``offsets`` are those of the ``RowLayout``: part p owns rows [offsets[p], offsets[p + 1]).
    ``splits`` counts columns of the masks (0: no masks). ``bag_of_words`` is
    `spgnn.data.normalise.is_bag_of_words` of the whole feature matrix.
    """

    name: str
    vertices: int
    edges: int
    features: int
    classes: int
    directed: bool
    weighted: bool
    offsets: tuple[int, ...]
    sparse_features: bool = False
    bag_of_words: bool = False
    labelled: bool = False
    splits: int = 0

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.offsets) - 1

    def to_json(self) -> str:
        """One JSON object, a field a line."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> GraphMeta:
        """The reverse of `to_json`.

        Raises
        ------
        InputError
            If the text is not such an object.
        """
        return cls.from_record(json_object(text))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> GraphMeta:
        """As `from_json`, from a parsed object that may hold more.

        Raises
        ------
        InputError
        """
        wrong = "not a description of a graph"
        for field in fields(cls):
            if field.name not in record:
                raise InputError(f"{wrong}: no '{field.name}'")
            value = record[field.name]
            if not _FIELD_CHECKS[field.type](value):
                raise InputError(f"{wrong}: '{field.name}' must be {_FIELD_WORDS[field.type]}")
        meta = cls(**{f.name: record[f.name] for f in fields(cls)} | {"offsets": ()})
        offsets = tuple(record["offsets"])
        if len(offsets) < 2 or offsets[0] != 0 or any(a > b for a, b in pairwise(offsets)):
            raise InputError(f"{wrong}: 'offsets' must rise from 0")
        if offsets[-1] != meta.vertices:
            raise InputError(f"{wrong}: offsets end with {offsets[-1]}, not {meta.vertices}")
        return cls(**asdict(meta) | {"offsets": offsets})


def describe(graph: Graph, layout: RowLayout) -> GraphMeta:
    """What every rank may know of a graph that is split this way."""
    return GraphMeta(
        name=printable(graph.name)[:_LONGEST_NAME],
        vertices=graph.vertices,
        edges=graph.edges,
        features=graph.features,
        classes=graph.classes,
        directed=graph.directed,
        weighted=graph.weighted,
        offsets=tuple(int(v) for v in layout.offsets),
        sparse_features=isinstance(graph.x, CSR),
        bag_of_words=is_bag_of_words(graph.x),
        labelled=graph.y is not None,
        splits=graph.splits,
    )


def describe_bare(
    name: str, vertices: int, edges: int, *, directed: bool, weighted: bool
) -> GraphMeta:
    """What is known of a graph in one part, of whose vertices nothing is."""
    return GraphMeta(
        name=printable(name)[:_LONGEST_NAME],
        vertices=vertices,
        edges=edges,
        features=0,
        classes=0,
        directed=directed,
        weighted=weighted,
        offsets=(0, vertices),
    )


def json_object(text: str) -> dict[str, Any]:
    """The object that a text from outside describes, however odd the text.

    Raises
    ------
    InputError
        If it is not JSON, is nested too deeply, or is no object.
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(loaded, dict):
        raise InputError("not a JSON object")
    return loaded


def is_count(value: object) -> bool:
    """Whether a value from JSON is a number of things."""
    return type(value) is int and 0 <= value <= _LARGEST


_FIELD_CHECKS: dict[Any, Any] = {
    "str": lambda v: type(v) is str and len(v) <= _LONGEST_NAME and v.isprintable(),
    "int": is_count,
    "bool": lambda v: type(v) is bool,
    "tuple[int, ...]": lambda v: type(v) is list and all(map(is_count, v)),
}
_FIELD_WORDS: dict[Any, str] = {
    "str": f"at most {_LONGEST_NAME} printable characters",
    "int": "an integer of at least 0",
    "bool": "true or false",
    "tuple[int, ...]": "a list of integers of at least 0",
}
