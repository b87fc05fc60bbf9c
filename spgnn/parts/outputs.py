"""Rows in a file that is mapped into memory, where as few of its pages stay as can be."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from spgnn.errors import InputError


class MappedRows:
    """A table of one file; removed with its directory.

    Parameters
    ----------
    path : Path
    shape : tuple of int
    dtype : torch.dtype

    Attributes
    ----------
    rows : Tensor

    Raises
    ------
    InputError
        If there is no room on the disk.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: torch.dtype) -> None:
        nbytes = max(shape[0] * shape[1] * dtype.itemsize, 1)
        try:
            with path.open("w+b") as file:
                # A page that finds no room when it is written ends the process without a word.
                os.posix_fallocate(file.fileno(), 0, nbytes)
                self._pages = mmap.mmap(file.fileno(), nbytes)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None
        count = shape[0] * shape[1]
        flat = torch.frombuffer(self._pages, dtype=dtype, count=count) if count else torch.empty(0)
        self.rows: Tensor = flat.to(dtype).view(shape)

    def give_back(self) -> None:
        """Let the system have the memory of pages that were touched; the file keeps their bytes."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)


class OutputRows:
    """Outputs of all rows: in a file, if there is a directory for it.

    Parameters
    ----------
    directory : Path, optional
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._mapped: MappedRows | None = None

    def make(self, rows: int, like: Tensor) -> Tensor:
        """Uninitialised [rows, width and dtype of `like`]."""
        if self._directory is None or not rows:
            return like.new_empty(rows, like.shape[1])
        path = self._directory / "outputs"
        self._mapped = MappedRows(path, (rows, like.shape[1]), like.dtype)
        return self._mapped.rows

    def give_back(self) -> None:
        """Let go of the memory of those that lie in a file."""
        if self._mapped is not None:
            self._mapped.give_back()
