"""The .npy arrays of a zip archive: read whole, streamed a few rows at a time, or mapped.

Nothing is allocated before the sizes in the array's header, the archive's directory and the file
agree, and no array but one of numbers is read.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from spgnn.data.formats.npy import NotNumbersError, NpyHeader, read_header
from spgnn.data.formats.reading import check_regular, reading
from spgnn.data.memory import check_memory
from spgnn.errors import InputError

Array = npt.NDArray[Any]
_PIECE = 1 << 20  # bytes read at once
_DEFLATE_LIMIT = 1032  # times; no deflated byte holds more
_ENCRYPTED = 0x1
_UTF8 = 0x800
_LOCAL_HEADER, _LOCAL_MAGIC = struct.Struct("<4s5H3L2H"), b"PK\x03\x04"
_END, _END_MAGIC = struct.Struct("<4s4H2LH"), b"PK\x05\x06"
_LONGEST_COMMENT = 2**16 - 1
_LONGEST_WORD = 1024  # bytes of its array
_WORD = re.compile(
    rb"\x93NUMPY.{2,6}\{'descr': '[<>|=]?[SU][0-9]{1,2}', 'fortran_order': False, "
    rb"'shape': \((?:1,)?\), ?\} *\n(.*)",
    re.DOTALL,
)
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
            for begin in range(0, len(view), _PIECE):
                piece = self._file.read(min(_PIECE, len(view) - begin))
                if len(piece) != min(_PIECE, len(view) - begin):
                    raise EOFError("it ends early")
                view[begin : begin + len(piece)] = piece
        return array.astype(array.dtype.newbyteorder("="), copy=False)


class Archive:
    """An .npz file.

    Raises
    ------
    InputError
        On opening, if it is no zip archive.
    """

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._zip.close()

    def __contains__(self, name: object) -> bool:
        return name in self._members

    @property
    def names(self) -> list[str]:
        """The arrays there are."""
        return list(self._members)

    @contextmanager
    def stream(self, name: str) -> Iterator[ArrayStream]:
        """Read an array from its beginning.

        Raises
        ------
        InputError
            If there is none of that name, it is damaged, or holds anything but numbers. The
            checksum is compared when the last number has been read.
        """
        info = self._checked(name)
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            file = cast(BinaryIO, self._zip.open(info))
        with file:
            with reading(self.path, f"array '{name}' is damaged or truncated"):
                try:
                    header = read_header(file)
                except NotNumbersError as error:
                    raise InputError(f"{self.path}: array '{name}' {error}") from None
                if header.size + header.nbytes != info.file_size:
                    raise ValueError(
                        f"its header promises {header.nbytes} bytes of numbers, the archive "
                        f"{info.file_size - header.size}"
                    )
            yield ArrayStream(self.path, name, file, header)

    def array(self, name: str) -> Array:
        """A whole array; its checksum is compared.

        Raises
        ------
        InputError
            As `stream`.
        """
        with self.stream(name) as stream:
            header = stream.header
            # A few bytes that are packed well can ask for a thousand times their size.
            check_memory(f"{self.path}: array '{name}'", header.nbytes)
            flat = stream.take(header.nbytes // header.dtype.itemsize)
        return flat.reshape(header.shape, order="F" if header.fortran_order else "C")

    def word(self, name: str) -> str:
        """A short text in ASCII, as NumPy stores one: SciPy's array ``format`` is one.

        Raises
        ------
        InputError
        """
        info = self._checked(name)
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            with self._zip.open(info) as file:
                raw = file.read(_LONGEST_WORD)
            # Bytes, or UCS-4 of either byte order: in ASCII, zeros are all that differs.
            found = _WORD.fullmatch(raw)
            text = b"" if found is None else found[1].replace(b"\0", b"")
            if found is None or not text.isalnum():
                raise ValueError("it is no word")
        return text.decode("ascii")

    def mapped(self, name: str) -> Array | None:
        """An array that is stored as it is, mapped into memory for reading; otherwise ``None``.

        Its checksum is not compared.
        """
        info = self._checked(name)
        with self.stream(name) as stream:
            header = stream.header
        if info.compress_type != zipfile.ZIP_STORED or not header.nbytes:
            return None
        with reading(self.path, f"array '{name}' is damaged or truncated"):
            with self.path.open("rb") as file:
                file.seek(info.header_offset)
                local = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            begin = info.header_offset + _LOCAL_HEADER.size + sum(local[-2:]) + header.size
            order: Literal["F", "C"] = "F" if header.fortran_order else "C"
            mapped = np.memmap(self.path, header.dtype, "r", int(begin), header.shape, order)
        return np.asarray(mapped)

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
    """See that the directory lists what there is: a damaged name would hide an array.

    Raises
    ------
    ValueError
    """
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
