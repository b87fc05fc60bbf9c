"""Memory of large results, kept for the next result of about the same size.

The system hands out large pieces of memory page by page and filled with zeros, on the first write.
For a product that took as long as the product itself, each time: the C library gives pieces of
32 MiB and more back at once, and those that end its memory. Here a result's memory is kept when the
last tensor that shares it is gone, and the next result that fits takes it over.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.torch_internals import is_fake

# Smaller pieces the C library keeps; with a limit of 4 MiB the peaks of some epochs were higher.
SMALLEST = 2**24
# A kept piece is taken for a result of at least this share of its size.
LEAST_FILLED = 0.75


def _large_pages(nbytes: int) -> Tensor:
    piece = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    _native.advise_huge_pages(piece)
    return piece


class _Lease:
    """A piece of memory in the form that NumPy reads; goes back to its keeper when forgotten."""

    def __init__(self, keeper: Keeper, piece: Tensor) -> None:
        self._keeper, self._piece = keeper, piece
        self.__array_interface__ = {
            "data": (piece.data_ptr(), False),
            "shape": (piece.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(self) -> None:
        self._keeper.put(self._piece)


class Keeper:
    """Pieces of memory that are free at the moment."""

    def __init__(
        self, allocate: Callable[[int], Tensor] = _large_pages, filled: float = LEAST_FILLED
    ) -> None:
        self._allocate, self._filled = allocate, filled
        self._came_back: deque[Tensor] = deque()
        self._went_out: deque[int] = deque()
        self._lock = threading.Lock()
        self._free: list[Tensor] = []
        self._in_use = self._largest = 0
        self._most: int | None = None

    def bound(self, most: int | None) -> None:
        """Limit the bytes of all pieces, as far as giving up free ones is enough."""
        with self._lock:
            self._most = most
            if most is None:
                self._largest = 0
            self._count()
            self._give_up(self._room)
        self._sort_in()

    def new_rows(self, rows: int, X: Tensor, columns: int | None = None) -> Tensor:
        """Uninitialised [rows, …] with the dtype, device and other lengths of X, or `columns`."""
        shape = (rows, *X.shape[1:]) if columns is None else (rows, columns)
        if (type(X) is not Tensor and is_fake(X)) or not X.is_cpu:
            return X.new_empty(shape)
        nbytes = prod(shape) * X.element_size()
        if nbytes < SMALLEST:
            return X.new_empty(*shape)  # torch reads a tuple for half a microsecond
        # Torch keeps the array, which keeps the lease, as long as any tensor has this storage.
        storage = torch.from_numpy(self.take(nbytes)).untyped_storage()
        strides = [prod(shape[place + 1 :]) for place in range(len(shape))]
        return X.new_empty(0).set_(storage, 0, shape, strides)

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """At least so many bytes, uninitialised, which come back when nobody has the array."""
        self._largest = max(self._largest, nbytes)
        piece = None
        if self._lock.acquire(blocking=False):
            try:
                piece = self._fitting(nbytes)
                if piece is None and self._most is not None:
                    self._count()
                    self._give_up(self._room - nbytes)
            finally:
                self._lock.release()
            self._sort_in()
        if piece is None:
            piece = self._allocate(nbytes)
        self._went_out.append(piece.nbytes)
        return np.asarray(_Lease(self, piece))

    def put(self, piece: Tensor) -> None:
        """Keep a piece that nobody uses any more, and let go of the oldest if that is too much."""
        self._came_back.append(piece)
        self._sort_in()

    @property
    def nbytes(self) -> int:
        """Bytes of the pieces that are free."""
        return sum(piece.nbytes for piece in self._free)

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the pieces that are not."""
        return self._in_use + sum(self._went_out)

    def _fitting(self, nbytes: int) -> Tensor | None:
        for place, piece in enumerate(self._free):
            if self._filled * piece.nbytes <= nbytes <= piece.nbytes:
                return self._free.pop(place)
        return None

    def _sort_in(self) -> None:
        # Looked at again afterwards: who came meanwhile did not get the lock, and left.
        while self._came_back and self._lock.acquire(blocking=False):
            try:
                self._count()
                while self._came_back:
                    piece = self._came_back.popleft()
                    self._in_use -= piece.nbytes
                    self._free.append(piece)
                self._give_up(self._room)
            finally:
                self._lock.release()

    @property
    def _room(self) -> int:
        """Bytes that free pieces may have."""
        return self._largest if self._most is None else self._most - self._in_use

    def _count(self) -> None:
        while self._went_out:
            self._in_use += self._went_out.popleft()

    def _give_up(self, limit: int) -> None:
        """Let go of the oldest free pieces until they have at most so many bytes."""
        while self._free and self.nbytes > limit:
            self._free.pop(0)


new_rows = Keeper().new_rows
