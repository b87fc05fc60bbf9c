"""A graph in a directory: parts of neighbouring rows, an .npy file an array, mapped when asked for.

    DIR/meta.json               what every rank may know, and a digest of each part's description
    DIR/part-00000/part.json    the arrays of the part, with their digests
    DIR/part-00000/NAME.npy     indptr, indices, [values], [vertex_ids], [y], [masks],
                                [x | x_indptr, x_indices, x_values]

A directory with one part is a graph that has not been cut yet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.data.formats.reading import check_regular, reading
from spgnn.data.graph import Graph, GraphBlock, VertexData
from spgnn.data.meta import GraphMeta, json_object
from spgnn.data.shards.arrays import Array
from spgnn.data.shards.part import Part
from spgnn.data.source import GraphSource, ids_of
from spgnn.data.structure import stack_rows
from spgnn.errors import InputError
from spgnn.files import AnyPath, digest
from spgnn.layout import RowLayout
from spgnn.progress import Progress
from spgnn.sparse import CSR

META = "meta.json"
FORMAT, VERSION = "spgnn-graph", 2
_PIECE = 1 << 22  # row offsets that are checked at once
_LONGEST = 1 << 28  # bytes of a description


@dataclass(frozen=True, eq=False)
class MappedPattern:
    """The square pattern of a directory with one part; reading it takes no memory of its own.

    Parameters
    ----------
    path : Path
    indptr : int64 [n + 1]
    indices : int32 [nnz]
        Not checked on opening; whoever reads them checks that they are in [0, n).
    """

    path: Path
    indptr: Array
    indices: Array

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return len(self.indptr) - 1, len(self.indptr) - 1


class ShardDirectory(GraphSource):
    """A graph directory, opened; parts are mapped into memory when asked for, and only those.

    Attributes
    ----------
    directory : Path
    meta : GraphMeta
    made : dict or None
        How the graph was generated, if it was.
    """

    def __init__(
        self, directory: Path, meta: GraphMeta, digests: Sequence[str], made: Any = None
    ) -> None:
        self.directory, self.meta, self.made = directory, meta, made
        self._digests = digests
        self._parts: dict[int, Part] = {}

    @property
    def layout(self) -> RowLayout:
        """Who owns which rows."""
        return RowLayout(np.array(self.meta.offsets))

    def block(self, part: int) -> GraphBlock:
        """All of one part. Arrays are private mappings: written pages never reach the file.

        Raises
        ------
        InputError
            If the part does not exist, or its files are missing, damaged or inconsistent.
        """
        opened = self._part(part)
        arrays = opened.row_arrays().items()
        data: dict[str, Any] = {name: opened.tensor(name, *kind) for name, kind in arrays}
        if self.meta.sparse_features:
            data["x"] = opened.csr("x_")
        if "y" in data:
            opened.check_labels(data["y"])
        return GraphBlock(opened.csr(), opened.first, opened.vertex_ids(), **data)

    def adjacency_of(self, part: int) -> CSR:
        """The rows of one part alone, global columns; opens nothing else."""
        return self._part(part).csr()

    def place(self, part: int, name: str) -> tuple[Path, int] | None:
        """Which file has an array of a part, and where in it its numbers begin.

        ``None`` if there is no such array. A sample of its numbers is compared with what was
        written.

        Raises
        ------
        InputError
            If the file is missing, truncated or damaged.
        """
        return self._part(part).place(name)

    def vertices_of(self, part: int) -> tuple[Tensor | None, VertexData]:
        """Original ids of a part's vertices, if they have been moved, and labels and masks."""
        opened = self._part(part)
        arrays = {n: kind for n, kind in opened.row_arrays().items() if n != "x"}
        data = {name: opened.tensor(name, *kind) for name, kind in arrays.items()}
        if "y" in data:
            opened.check_labels(data["y"])
        return opened.vertex_ids() if opened.moved else None, VertexData(**data)

    def features_of(self, part: int) -> CSR | None:
        """Sparse features of a part; ``None`` if they are dense, or there are none."""
        return self._part(part).csr("x_") if self.meta.sparse_features else None

    def pattern(self) -> MappedPattern | CSR:
        """The pattern for a partitioner: mapped if there is one part, else put together in memory.

        Raises
        ------
        InputError
            As `block`; row offsets are checked, column numbers of a mapped pattern are not.
        """
        if self.meta.parts > 1:
            return self.structure()
        opened = self._part(0)
        indptr, indices = opened.pattern()
        first, last = int(indptr[0]), int(indptr[-1])
        if first != 0 or last != len(indices):
            raise opened.wrong(f"indptr runs {first} to {last}, must rise to {len(indices)}")
        for begin in range(0, self.meta.vertices, _PIECE):
            falls = np.flatnonzero(np.diff(indptr[begin : begin + _PIECE + 1]) < 0)
            if len(falls):
                raise opened.wrong(f"indptr falls after row {begin + int(falls[0])}")
        return MappedPattern(self.directory, indptr, indices)

    def check(self, progress: Progress | None = None) -> None:
        """Read every byte of every array and compare it with what was written.

        Parameters
        ----------
        progress : called with (what, parts checked, parts), optional

        Raises
        ------
        InputError
            Naming the first array that is not what it was.
        """
        for part in range(self.meta.parts):
            self._part(part).check()
            self.block(part)
            if progress is not None:
                progress("checking parts", part + 1, self.meta.parts)

    def structure(self) -> CSR:
        """The whole adjacency: mapped if there is one part, else put together in memory."""
        return stack_rows([self.adjacency_of(part) for part in range(self.meta.parts)])

    def adjacency(self, ids: Tensor | slice) -> CSR:
        """Some rows of the adjacency; only they are read."""
        wanted, order = self._by_part(ids)
        A = stack_rows([part.take_csr("", rows) for part, rows in wanted])
        return A if order is None else take_rows(A, order)

    def rows(self, ids: Tensor | slice) -> VertexData:
        """Features, labels and masks of some vertices; only they are read."""
        wanted, order = self._by_part(ids)
        data: dict[str, Any] = {}
        for name, kind in wanted[0][0].row_arrays().items():
            found = torch.cat([part.take(name, *kind, rows) for part, rows in wanted])
            data[name] = found if order is None else found[order]
        if self.meta.sparse_features:
            x = stack_rows([part.take_csr("x_", rows) for part, rows in wanted])
            data["x"] = x if order is None else take_rows(x, order)
        return VertexData(**data)

    def graph(self) -> Graph:
        """All of it: mapped if there is one part, else put together in memory."""
        if self.meta.parts > 1:
            return super().graph()
        block, moved = self.block(0), self._part(0).moved
        data = block.take(slice(None))
        ids = block.vertex_ids if moved else None
        return Graph(self.meta.name, block.adjacency, self.meta.directed, ids, **data)

    @property
    def vertex_ids(self) -> Tensor | None:
        """Where each vertex stood in its source, int64 [n]; ``None`` if none has been moved."""
        parts = [self._part(part) for part in range(self.meta.parts)]
        if not any(part.moved for part in parts):
            return None
        return torch.cat([part.vertex_ids() for part in parts])

    def _by_part(self, ids: Tensor | slice) -> tuple[list[tuple[Part, Array]], Tensor | None]:
        """(part, its own rows) in rising order, and what brings them into the order of `ids`."""
        wanted = ids_of(ids, self.meta.vertices)
        rows, order = wanted.numpy(), None
        if bool((wanted.diff() < 0).any()):
            ascending, places = wanted.sort()
            rows, order = ascending.numpy(), places.argsort()
        if len(rows) and not 0 <= rows[0] <= rows[-1] < self.meta.vertices:
            raise InputError(f"vertices must be in [0, {self.meta.vertices})")
        offsets = np.array(self.meta.offsets)
        bounds = np.searchsorted(rows, offsets).tolist()
        found = [
            (self._part(part), rows[low:high] - offsets[part])
            for part, (low, high) in enumerate(pairwise(bounds))
            if low < high
        ]
        return found or [(self._part(0), rows)], order

    def _part(self, part: int) -> Part:
        if not 0 <= part < self.meta.parts:
            raise InputError(
                f"{self.directory}: no part {part}; it has parts 0 to {self.meta.parts - 1}"
            )
        if part not in self._parts:
            folder = self.directory / part_folder(part)
            self._parts[part] = Part(folder, part, self.meta, self._digests[part])
        return self._parts[part]


def open_shards(directory: AnyPath) -> ShardDirectory:
    """Open a graph directory; reads its description only.

    Raises
    ------
    InputError
        If it is not such a directory, or its description is damaged.
    """
    path = Path(directory)
    file = path / META
    if not os.path.isdir(path):
        raise InputError(f"{path}: no such directory")
    if not os.path.exists(file):
        raise InputError(f"{path}: not a graph directory: it has no {META}")
    check_regular(file)
    with reading(file, "not the description of a graph"):
        if file.stat().st_size > _LONGEST:
            raise ValueError(f"more than {_LONGEST} bytes")
        text = file.read_text("utf-8", "replace")
    try:
        record = json_object(text)
        _check_format(record, path)
        meta = GraphMeta.from_record(record)
        digests = record.get("digests")
        if not isinstance(digests, list) or len(digests) != meta.parts:
            raise InputError(f"not the description of a graph: 'digests' must be {meta.parts}")
        if record.get("digest") != _fingerprint(record):
            raise InputError("damaged: not what was written")
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    return ShardDirectory(path, meta, digests, record.get("made"))


def is_graph_directory(path: AnyPath) -> bool:
    """Whether a path looks like what `open_shards` opens."""
    return os.path.exists(Path(path) / META)


def write_meta(directory: Path, meta: GraphMeta, digests: Sequence[str], made: Any = None) -> None:
    """Write ``meta.json``."""
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(meta)}
    record |= {"made": made, "digests": list(digests)}
    record["digest"] = _fingerprint(record)
    (directory / META).write_text(json.dumps(record, indent=1) + "\n")


def part_folder(part: int) -> str:
    """The name of a part's folder."""
    return f"part-{part:05d}"


def _check_format(record: dict[str, Any], path: Path) -> None:
    if record.get("format") == "spgnn-csr" or ("format" not in record and "offsets" in record):
        raise InputError(
            "written by an earlier version; make the directory again with spgnn shard GRAPH "
            f"--parts K --output {path.name}, or with the generator that made it"
        )
    if record.get("format") != FORMAT:
        raise InputError("not the description of a graph directory")
    if record.get("version") != VERSION:
        shown = str(record.get("version"))[:20]
        raise InputError(f"version {shown}; this program knows {VERSION}")


def _fingerprint(record: dict[str, Any]) -> str:
    """The digest of all that a description says, but for the digest itself."""
    rest = {name: value for name, value in record.items() if name != "digest"}
    try:
        return digest(json.dumps(rest, sort_keys=True).encode())
    except RecursionError:
        return ""
