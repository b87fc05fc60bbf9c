"""One part of a graph directory: its description, and its arrays as what they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spgnn.data.formats.npy import HEADER_BYTES
from spgnn.data.formats.reading import check_regular, reading
from spgnn.data.graph import MASKS
from spgnn.data.labels import labels_of_table, stored_as
from spgnn.data.meta import GraphMeta, is_count, json_object
from spgnn.data.shards.arrays import Array, ArrayRecord, check_array, open_array
from spgnn.data.structure import block_of
from spgnn.errors import InputError, shortened
from spgnn.files import digest
from spgnn.pattern import numpy_index_dtype
from spgnn.sparse import CSR

PART = "part.json"
# What a description may name: nothing else is opened, wherever a name may lead.
ARRAYS = (
    "indptr",
    "indices",
    "values",
    "vertex_ids",
    "x",
    "x_indptr",
    "x_indices",
    "x_values",
    "y",
)
_LONGEST = 1 << 20  # bytes of a description


class Part:
    """Rows [offsets[part], offsets[part + 1]) of a graph directory, opened.

    Parameters
    ----------
    folder : Path
    part : int
    meta : GraphMeta
        Of the whole graph.
    expected : str
        The digest of the part's ``part.json``.

    Raises
    ------
    InputError
        If the folder holds another part, or its description is missing or damaged.
    """

    def __init__(self, folder: Path, part: int, meta: GraphMeta, expected: str) -> None:
        self.folder, self.meta = folder, meta
        self.first, last = meta.offsets[part : part + 2]
        self.rows = last - self.first
        self._verified: set[str] = set()
        check_regular(folder / PART)
        with reading(folder / PART, "not the description of a part"):
            if (folder / PART).stat().st_size > _LONGEST:
                raise ValueError(f"more than {_LONGEST} bytes")
            text = (folder / PART).read_bytes()
        self.records = _records(self, part, text, expected)

    def wrong(self, what: str) -> InputError:
        """What an error in this part looks like."""
        return InputError(f"{self.folder}: {what}")

    def check(self) -> None:
        """Compare all bytes of all arrays with their digests.

        Raises
        ------
        InputError
        """
        for name, record in self.records.items():
            check_array(self._path(name), record)
            self._verified.add(name)

    def array(self, name: str, dtype: str, shape: tuple[int, ...], *, writable: bool) -> Array:
        """Map an array; its digest is compared the first time.

        Raises
        ------
        InputError
            If it is missing, damaged, or of another dtype or shape.
        """
        record = self._record(name)
        if (record.dtype, record.shape) != (dtype, shape):
            raise InputError(
                f"{self._path(name)}: is {record.dtype} {list(record.shape)}, "
                f"but must be {dtype} {list(shape)}"
            )
        unknown = name not in self._verified
        array = open_array(self._path(name), record, writable=writable, check=unknown)
        if unknown and dtype == "|b1" and array.size and array.view(np.uint8).max() > 1:
            raise self.wrong(f"{name} holds something that is neither false nor true")
        self._verified.add(name)
        return array

    def tensor(self, name: str, dtype: str, row: tuple[int, ...] = ()) -> Tensor:
        """An array of one entry a row, mapped privately: written pages never reach the file."""
        return torch.from_numpy(self.array(name, dtype, (self.rows, *row), writable=True))

    def take(self, name: str, dtype: str, row: tuple[int, ...], rows: Array) -> Tensor:
        """Some entries of an array of one entry a row."""
        return torch.from_numpy(self.array(name, dtype, (self.rows, *row), writable=False)[rows])

    def pattern(self, prefix: str = "", *, writable: bool = False) -> tuple[Array, Array]:
        """(indptr, indices) of the adjacency (prefix ``""``) or the features (``"x_"``)."""
        dtype = np.dtype(numpy_index_dtype(self._columns(prefix))).str
        indptr = self.array(f"{prefix}indptr", "<i8", (self.rows + 1,), writable=writable)
        entries = self._record(f"{prefix}indices").shape[:1]
        return indptr, self.array(f"{prefix}indices", dtype, entries, writable=writable)

    def csr(self, prefix: str = "") -> CSR:
        """The adjacency or the features, mapped privately."""
        indptr, indices = self.pattern(prefix, writable=True)
        values = None
        if prefix or self.meta.weighted:
            values = self.array(f"{prefix}values", "<f4", indices.shape, writable=True)
        return self._block(indptr, indices, prefix, values)

    def take_csr(self, prefix: str, rows: Array) -> CSR:
        """Some rows of the adjacency or the features; only their entries are read."""
        indptr, indices = self.pattern(prefix)
        begins, ends = indptr[rows], indptr[rows + 1]
        if len(rows) and not (begins.min() >= 0 and (begins <= ends).all()):
            raise self.wrong(f"{prefix}indptr must rise from 0")
        if len(rows) and ends.max() > len(indices):
            raise self.wrong(f"{prefix}indptr ends beyond the {len(indices)} entries")
        taken = np.concatenate(([0], np.cumsum(ends - begins)))
        place = np.arange(taken[-1]) + np.repeat(begins - taken[:-1], ends - begins)
        values = None
        if prefix or self.meta.weighted:
            values = self.array(f"{prefix}values", "<f4", indices.shape, writable=False)[place]
        return self._block(taken, indices[place], prefix, values)

    def place(self, name: str) -> tuple[Path, int] | None:
        """The file of an array, and where its numbers begin; ``None`` if there is no such array.

        Its size, and a sample of its numbers, are those that were written.

        Raises
        ------
        InputError
        """
        if name not in self.records:
            return None
        open_array(self._path(name), self.records[name], writable=False)
        return self._path(name), HEADER_BYTES

    def vertex_ids(self) -> Tensor:
        """Where each vertex stood in the source."""
        if not self.moved:
            return torch.arange(self.first, self.first + self.rows)
        ids = self.tensor("vertex_ids", "<i8")
        if len(ids) and int(ids.min()) < 0:
            raise self.wrong(f"vertex_ids holds {int(ids.min())}; ids are at least 0")
        return ids

    @property
    def moved(self) -> bool:
        """Whether vertices stood elsewhere in the source."""
        return "vertex_ids" in self.records

    def check_labels(self, y: Tensor) -> None:
        """Refuse classes outside [-1, classes), and what is no label.

        Raises
        ------
        InputError
        """
        if y.dim() == 2:
            try:
                labels_of_table(y.numpy())
            except InputError as error:
                raise self.wrong(str(error)) from None
            return
        wrong = (y < -1) | (y >= self.meta.classes)
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            allowed = f"[0, {self.meta.classes}), or -1"
            raise self.wrong(f"y[{row}] is {int(y[row])}; it must be in {allowed}")

    def row_arrays(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The arrays of one entry a row that the graph has: dtype and shape of an entry."""
        arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        if self.meta.features and not self.meta.sparse_features:
            arrays["x"] = ("<f4", (self.meta.features,))
        if self.meta.labelled:
            y = self._record("y")
            arrays["y"] = stored_as(y.dtype, len(y.shape), self.meta.classes)
        if self.meta.splits:
            # With splits there is a training mask at least; one split may be a vector.
            vector = self.meta.splits == 1 and len(self._record(MASKS[0]).shape) == 1
            present = (name for name in MASKS if name == MASKS[0] or name in self.records)
            arrays |= dict.fromkeys(present, ("|b1", () if vector else (self.meta.splits,)))
        return arrays

    def _columns(self, prefix: str) -> int:
        return self.meta.features if prefix else self.meta.vertices

    def _block(self, indptr: Array, indices: Array, prefix: str, values: Array | None) -> CSR:
        try:
            return block_of(indptr, indices, (len(indptr) - 1, self._columns(prefix)), values)
        except InputError as error:
            raise self.wrong(f"{prefix}{error}") from None

    def _record(self, name: str) -> ArrayRecord:
        if name not in self.records:
            raise self.wrong(f"no array '{name}', which meta.json says there is")
        return self.records[name]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"


def write_part(folder: Path, part: int, records: Mapping[str, ArrayRecord]) -> str:
    """Write ``part.json``; its digest."""
    arrays = {name: asdict(record) for name, record in sorted(records.items())}
    text = (json.dumps({"part": part, "arrays": arrays}, indent=1) + "\n").encode()
    (folder / PART).write_bytes(text)
    return digest(text)


def _records(opened: Part, part: int, text: bytes, expected: str) -> dict[str, ArrayRecord]:
    """What a description says, if it is that of this part."""
    described, fault = {}, ""
    try:
        described = json_object(text.decode("utf-8", "replace"))
    except InputError as error:
        fault = f": {error}"
    number = described.get("part")
    if digest(text) != expected:
        if is_count(number) and number != part:
            raise opened.wrong(f"holds part {number}; it was copied over part {part}")
        raise opened.wrong(f"is not the part that was written; it was changed or copied{fault}")
    arrays = described.get("arrays")
    if not isinstance(arrays, dict):
        raise opened.wrong(f"{PART} does not describe a part{fault}")
    for name in arrays:
        if name not in (*ARRAYS, *MASKS):
            raise opened.wrong(f"{PART} names an array '{shortened(name, 40)}', which no part has")
    try:
        return {name: ArrayRecord.of(name, entry) for name, entry in arrays.items()}
    except InputError as error:
        raise opened.wrong(f"{PART}: {error}") from None
