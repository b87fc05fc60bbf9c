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
        """Bytes of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: BinaryIO) -> NpyHeader:
    """Read the header that an open file begins with, of any dtype (versions 1 to 3)."""

    def read(size: int) -> bytes:
        content = file.read(size)
        if len(content) != size:
            raise ValueError("ends within its header")
        return content

    beginning = read(8)
    if beginning[:6] != b"\x93NUMPY" or beginning[6] not in (1, 2, 3):
        raise ValueError("no .npy array")
    layout = struct.Struct("<H" if beginning[6] == 1 else "<I")
    (length,) = layout.unpack(read(layout.size))
    if length > _LONGEST:
        raise ValueError(f"a header of {length} bytes")
    text = io.BytesIO(struct.pack("<H", length) + read(length))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that Python 2 wrote, of dtypes that age
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(text)
    except (MemoryError, RecursionError):  # of Python's parser
        raise ValueError("its header is not NumPy's") from None
    if len(shape) > _MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise ValueError("its header is not NumPy's")
    return NpyHeader(dtype, tuple(map(int, shape)), fortran_order, 8 + layout.size + length)


def header_bytes(dtype: np.dtype[Any], shape: Sequence[int]) -> bytes:
    """The header of an array in C order; always `HEADER_BYTES` long, so it can be written over."""
    file = io.BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(file, described)
    assert file.tell() == HEADER_BYTES
    return file.getvalue()


Array = npt.NDArray[Any]
_READ_BYTES = 1 << 20  # bytes read at once
_DEFLATE_LIMIT = 1032  # times; no deflated byte holds more
_ENCRYPTED = 0x1
_UTF8 = 0x800
_LOCAL_HEADER, _LOCAL_MAGIC = struct.Struct("<4s5H3L2H"), b"PK\x03\x04"
_END, _END_MAGIC = struct.Struct("<4s4H2LH"), b"PK\x05\x06"
_LONGEST_COMMENT = 2**16 - 1
_LONGEST_WORD = 1024  # bytes
_COUNT_ELSEWHERE = 2**16 - 1  # the number of entries of a very large archive


class ArrayStream:
    """An array of an archive, read from its beginning."""

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
    """An .npz file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular(path)
        with reading(path, "not an .npz file, or a truncated one"):
            self._bytes = path.stat().st_size
            self._zip = zipfile.ZipFile(path)
            with path.open("rb") as file:
                _check_directory(file, self._zip.infolist())
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = info.filename.removesuffix(".npy")
            if name in self._members:
                self._zip.close()
                raise InputError(f"{path}: holds two arrays '{name}'")
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
        """The arrays there are."""
        return list(self._members)

    @contextmanager
    def stream(self, name: str) -> Iterator[ArrayStream]:
        """Read an array from its beginning."""
        info = self._checked(name)
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            file = cast(BinaryIO, self._zip.open(info))
        with file:
            with reading(self.path, f"array '{name}' is damaged or truncated"):
                header = read_header(file)
                kind = header.dtype
                if kind.kind not in "biuf" or kind.itemsize > 8:
                    what = f"'{kind.str}'" if kind.names is None else "records"
                    raise InputError(f"{self.path}: array '{name}' holds {what}, not numbers")
                if header.size + header.nbytes != info.file_size:
                    raise ValueError(
                        f"its header promises {header.nbytes} bytes of numbers, the archive "
                        f"{info.file_size - header.size}"
                    )
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
        info = self._checked(name)
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            with self._zip.open(info) as file:
                header = read_header(cast(BinaryIO, file))
                small = math.prod(header.shape) == 1 and header.nbytes <= _LONGEST_WORD
                if header.dtype.kind not in "SU" or not small:
                    raise ValueError("it is no word")
                raw = file.read(header.nbytes)
            # Bytes, or UCS-4 of either byte order: in ASCII, zeros are all that differs.
            text = raw.replace(b"\0", b"").decode("ascii")
            if not text.isalnum():
                raise ValueError("it is no word")
        return text

    def mapped(self, name: str) -> tuple[NpyHeader, Array | None]:
        """The header of an array; and the array, mapped for reading, if it is stored as it is.

        Its checksum is not compared.
        """
        info = self._checked(name)
        with self.stream(name) as stream:
            header = stream.header
        if info.compress_type != zipfile.ZIP_STORED or not header.nbytes:
            return header, None
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            with self.path.open("rb") as file:
                file.seek(info.header_offset)
                local = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            begin = info.header_offset + _LOCAL_HEADER.size + sum(local[-2:]) + header.size
            order: Literal["F", "C"] = "F" if header.fortran_order else "C"
            mapped = np.memmap(self.path, header.dtype, "r", int(begin), header.shape, order)
        return header, np.asarray(mapped)

    def _checked(self, name: str) -> zipfile.ZipInfo:
        """The directory's entry, if the file can hold what it promises."""
        if name not in self._members:
            raise InputError(f"{self.path}: no array '{name}'")
        info = self._members[name]
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.flag_bits & _ENCRYPTED:
            fault = "is encrypted"
        elif not stored and info.compress_type != zipfile.ZIP_DEFLATED:
            fault = f"is compressed by method {info.compress_type}; save it with np.savez"
        elif (
            not 0 <= info.header_offset <= self._bytes - info.compress_size
            or (stored and info.file_size != info.compress_size)
            or info.file_size > _DEFLATE_LIMIT * (info.compress_size + 1)
        ):
            fault = "is damaged or truncated: its size in the archive's directory cannot be"
        else:
            return info
        raise InputError(f"{self.path}: array '{name}' {fault}")


def _check_directory(file: BinaryIO, entries: Sequence[zipfile.ZipInfo]) -> None:
    """See that the directory lists what there is: a damaged name would hide an array."""
    file.seek(-min(_END.size + _LONGEST_COMMENT, file.seek(0, os.SEEK_END)), os.SEEK_END)
    tail = file.read()
    end = _END.unpack_from(tail, tail.rindex(_END_MAGIC))
    if len(entries) != end[4] and end[4] != _COUNT_ELSEWHERE:
        raise ValueError(f"its directory lists {len(entries)} arrays, but should {end[4]}")
    for entry in entries:
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        name = entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF8 else "cp437")
        if header[:4] != _LOCAL_MAGIC or file.read(len(name)) != name:
            raise ValueError(f"'{entry.orig_filename}' does not begin where its directory says")


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
        """Bytes of its numbers."""
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
        """Write some more rows."""
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
        """Close the file, complete or not."""
        self._file.close()


def open_array(path: Path, record: ArrayRecord, *, writable: bool, check: bool = True) -> Array:
    """Map an array."""
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
        if (_digest(array) != record.digest) if small else (_sample(array) != record.sample):
            raise _damaged(path)
    return array


def check_array(path: Path, record: ArrayRecord) -> None:
    """Compare all bytes of an array with its digest."""
    if _digest(open_array(path, record, writable=False, check=False)) != record.digest:
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


def _digest(array: Array) -> str:
    hasher = hasher_of_digest()
    for piece in _pieces(array):
        hasher.update(piece)
    return hasher.hexdigest()


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
