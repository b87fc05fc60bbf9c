"""Arrays in files: .npy, .npz, and .npy with digests; never a pickle."""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Self, cast

import numpy as np
import numpy.typing as npt

from spgnn.data.source import is_count
from spgnn.errors import InputError
from spgnn.files import check_regular, check_unpacked, digest, hasher_of_digest, reading
from spgnn.memory import check_memory

Array = npt.NDArray[Any]
HEADER_BYTES = 128  # of the headers written here, whatever they say
_LONGEST = 10_000  # bytes of a header; NumPy's own limit
_MOST_DIMENSIONS = 8


class NpyHeader(NamedTuple):
    """The header of an .npy array, and its own size in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO) -> NpyHeader:
    """Read the header that an open file begins with, of any dtype (versions 1 to 3)."""
    magic, layout = file.read(8), np.lib.format
    if magic[:6] != b"\x93NUMPY" or magic[6] not in (1, 2, 3):
        raise ValueError("no .npy array")
    # Version 3 differs from 2 in the names of columns alone.
    read = layout.read_array_header_1_0 if magic[6] == 1 else layout.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that Python 2 wrote, of dtypes that age
            shape, fortran_order, dtype = read(file, max_header_size=_LONGEST)
    except (MemoryError, RecursionError):  # of Python's parser
        raise ValueError("its header is not NumPy's") from None
    if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise ValueError("its header is not NumPy's")
    return NpyHeader(dtype, tuple(map(int, shape)), fortran_order, file.tell())


def header_bytes(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """The header of an array in C order; always `HEADER_BYTES` long, so it can be written over."""
    file = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, described)
    assert file.tell() == HEADER_BYTES
    return file.getvalue()


_READ_BYTES = 1 << 20  # bytes read at once
_END, _END_MAGIC = struct.Struct("<4s4H2LH"), b"PK\x05\x06"  # of an archive's directory
_LONGEST_COMMENT = _COUNT_ELSEWHERE = 2**16 - 1  # bytes; entries of a very large archive
_LENGTHS, _LOCAL_HEADER = 26, 30  # where a member states lengths of its name and extras; bytes
_LONGEST_WORD = 1024  # bytes


class ArrayStream:
    def __init__(self, path: Path, name: str, file: BinaryIO, header: NpyHeader) -> None:
        self.header = header
        self._path, self._name, self._file = path, name, file

    def take(self, items: int) -> Array:
        """The next numbers, [items], in native byte order."""
        array = np.empty(items, self.header.dtype)
        view = array.view(np.uint8).data
        with reading(self._path, f"array '{self._name}' is damaged or truncated"):
            for begin in range(0, len(view), _READ_BYTES):
                piece = self._file.read(min(_READ_BYTES, len(view) - begin))
                if len(piece) != min(_READ_BYTES, len(view) - begin):
                    raise EOFError("it ends early")
                view[begin : begin + len(piece)] = piece
        return array.astype(array.dtype.newbyteorder("="), copy=False)


class Archive:
    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular(path)
        with reading(path, "not an .npz file, or a truncated one"):
            self._bytes = path.stat().st_size
            self._zip = zipfile.ZipFile(path)
        self._members: dict[str, zipfile.ZipInfo] = {}
        try:
            self._read_directory()
        except BaseException:
            self._zip.close()
            raise

    def _read_directory(self) -> None:
        """See that the directory lists what there is: a damaged name would hide an array."""
        entries = self._zip.infolist()
        with reading(self.path, "not an .npz file, or a truncated one"):
            with self.path.open("rb") as file:
                file.seek(-min(_END.size + _LONGEST_COMMENT, self._bytes), os.SEEK_END)
                tail = file.read()
            count = _END.unpack_from(tail, tail.rindex(_END_MAGIC))[4]
            if count not in (len(entries), _COUNT_ELSEWHERE):
                raise ValueError(f"its directory lists {len(entries)} arrays, but should {count}")
        for info in entries:
            name = info.filename.removesuffix(".npy")
            with reading(self.path, f"array '{name}' is damaged or truncated"):
                self._zip.open(info).close()  # compares its name with what stands before it
            if name in self._members:
                raise InputError(f"{self.path}: holds two arrays '{name}'")
            if name != info.filename:
                self._members[name] = info

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def __contains__(self, name: object) -> bool:
        return name in self._members

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[BinaryIO, NpyHeader]]:
        """An array, its header read."""
        if name not in self._members:
            raise InputError(f"{self.path}: no array '{name}'")
        info = self._members[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            fault = f"is compressed by method {info.compress_type}; save it with np.savez"
            raise InputError(f"{self.path}: array '{name}' {fault}")
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            file = cast(BinaryIO, self._zip.open(info))
        with file:
            with reading(self.path, f"array '{name}' is damaged or truncated"):
                header = read_header(file)
            yield file, header

    @contextmanager
    def stream(self, name: str) -> Iterator[ArrayStream]:
        """Read an array from its beginning."""
        with self._opened(name) as (file, header):
            kind = header.dtype
            if kind.kind not in "biuf" or kind.itemsize > 8:
                what = f"'{kind.str}'" if kind.names is None else "records"
                raise InputError(f"{self.path}: array '{name}' holds {what}, not numbers")
            stored = self._members[name].file_size - header.size
            if header.nbytes != stored:
                fault = (
                    f"its header promises {header.nbytes} bytes of numbers, the archive {stored}"
                )
                raise InputError(f"{self.path}: array '{name}' is damaged or truncated: {fault}")
            yield ArrayStream(self.path, name, file, header)

    def array(self, name: str) -> Array:
        """A whole array; its checksum is compared."""
        with self.stream(name) as stream:
            header = stream.header
            # A few bytes that are packed well can ask for a thousand times their size.
            what = f"{self.path}: array '{name}'"
            check_memory(what, header.nbytes)
            check_unpacked(what, header.nbytes, self._bytes, "save it by np.savez")
            flat = stream.take(header.nbytes // header.dtype.itemsize)
        return flat.reshape(header.shape, order="F" if header.fortran_order else "C")

    def word(self, name: str) -> str:
        """A short text in ASCII, as NumPy stores one: SciPy's array ``format`` is one."""
        with (
            self._opened(name) as (file, header),
            reading(self.path, f"array '{name}' is damaged or truncated"),
        ):
            small = math.prod(header.shape) == 1 and header.nbytes <= _LONGEST_WORD
            raw = file.read(header.nbytes) if small and header.dtype.kind in "SU" else b""
            # Bytes, or UCS-4 of either byte order: in ASCII, zeros are all that differs.
            text = raw.replace(b"\0", b"").decode("ascii")
            if not text.isalnum():
                raise ValueError("it is no word")
        return text

    def mapped(self, name: str) -> tuple[NpyHeader, Array | None]:
        """The header of an array; and the array, mapped for reading, if it is stored as it is.

        Its checksum is not compared.
        """
        with self.stream(name) as stream:
            header, info = stream.header, self._members[name]
        if info.compress_type != zipfile.ZIP_STORED or not header.nbytes:
            return header, None
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            with self.path.open("rb") as file:
                file.seek(info.header_offset + _LENGTHS)
                behind = sum(struct.unpack("<2H", file.read(4))) + header.size
            begin = info.header_offset + _LOCAL_HEADER + behind
            order: Literal["F", "C"] = "F" if header.fortran_order else "C"
            mapped = np.memmap(self.path, header.dtype, "r", begin, header.shape, order)
        return header, np.asarray(mapped)


# Opening an array of at most so many bytes compares the digest of all of them, opening a larger one
# that of a sample; so a damaged array is found without reading gigabytes.
CHECKED_WHOLE = 1 << 26
_PIECE = 1 << 24  # bytes that are hashed or written at once
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14
_DTYPES = ("<i8", "<i4", "<f4", "|b1", "|i1")


@dataclass(frozen=True)
class ArrayRecord:
    """Dtype, shape, and digests of all bytes of an array that was written and of a sample."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    sample: str

    @classmethod
    def of(cls, name: str, entry: Any) -> ArrayRecord:
        """The record that an entry of a JSON object describes."""
        names = sorted(field.name for field in fields(cls))
        if not isinstance(entry, dict) or sorted(entry) != names:
            raise InputError(f"'{name}' must have {', '.join(names)}")
        shape = entry["shape"]
        right = isinstance(shape, list) and len(shape) in (1, 2)
        if not right or not all(map(is_count, shape)) or entry["dtype"] not in _DTYPES:
            raise InputError(f"'{name}' must be a vector or table of {', '.join(_DTYPES)}")
        return cls(**entry | {"shape": tuple(shape)})

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class ArrayWriter:
    """A vector or table of unknown length, written row by row."""

    def __init__(self, path: Path, like: Array) -> None:
        self.path, self._dtype, self._row = path, like.dtype, like.shape[1:]
        self._file = path.open("wb")
        self._file.write(header_bytes(self._dtype, (0, *self._row)))
        self._hasher = hasher_of_digest()
        self._rows = 0

    def append(self, rows: Array) -> None:
        assert rows.dtype == self._dtype
        assert rows.shape[1:] == self._row
        for piece in _pieces(rows):
            self._file.write(piece)
            self._hasher.update(piece)
        self._rows += len(rows)

    def finish(self) -> ArrayRecord:
        """Complete the file, and say what is in it."""
        shape = (self._rows, *self._row)
        self._file.seek(0)
        self._file.write(header_bytes(self._dtype, shape))
        self._file.close()
        written = _map(self.path, self._dtype, shape, writable=False)
        return ArrayRecord(self._dtype.str, shape, self._hasher.hexdigest(), _sample(written))

    def close(self) -> None:
        self._file.close()


def open_array(path: Path, record: ArrayRecord, *, writable: bool, check: bool = True) -> Array:
    header = header_bytes(np.dtype(record.dtype), record.shape)
    check_regular(path)
    with reading(path, "truncated or not an array"):
        size = os.path.getsize(path)
        with path.open("rb") as file:
            same = file.read(HEADER_BYTES) == header
        if size != HEADER_BYTES + record.nbytes:
            raise ValueError(f"{size} bytes, but must have {HEADER_BYTES + record.nbytes}")
        if not same:
            raise ValueError("its header does not say what part.json says")
        array = _map(path, np.dtype(record.dtype), record.shape, writable=writable)
    if check:
        small = record.nbytes <= CHECKED_WHOLE
        if (
            (digest(*_pieces(array)) != record.digest)
            if small
            else (_sample(array) != record.sample)
        ):
            raise _damaged(path)
    return array


def check_array(path: Path, record: ArrayRecord) -> None:
    array = open_array(path, record, writable=False, check=False)
    if digest(*_pieces(array)) != record.digest:
        raise _damaged(path)


def _map(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], *, writable: bool) -> Array:
    if 0 in shape:
        return np.empty(shape, dtype)  # an empty stretch of a file cannot be mapped
    return np.asarray(np.memmap(path, dtype, "c" if writable else "r", HEADER_BYTES, shape))


def _pieces(array: Array) -> Iterator[memoryview]:
    """The bytes of an array in C order, a bounded number at a time."""
    rows = max(1, _PIECE // max(array[:1].nbytes, 1))
    for first in range(0, len(array), rows):
        yield _bytes(np.ascontiguousarray(array[first : first + rows]))


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _sample(array: Array) -> str:
    """The digest of pieces that lie evenly over the array's bytes, first and last among them."""
    view = _bytes(array)
    if len(view) <= _SAMPLES * _SAMPLE_BYTES:
        return digest(view)
    last = len(view) - _SAMPLE_BYTES
    begins = (last * i // (_SAMPLES - 1) for i in range(_SAMPLES))
    return digest(*(view[begin : begin + _SAMPLE_BYTES] for begin in begins))


def _damaged(path: Path) -> InputError:
    return InputError(f"{path}: damaged: its numbers are not those that were written")
