"""Memory of large results, kept for the next result of about the same size.

The system hands out large pieces of memory page by page and filled with zeros, on the first write.
For a product that took as long as the product itself, each time: the C library gives pieces of
32 MiB and more back at once. Here a result's memory is kept when the last tensor that shares it is
gone, and the next result that fits takes it over.
"""

from __future__ import annotations

import threading
from collections import deque
from math import prod

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from spgnn.kernels.library import native

# Smaller pieces the C library keeps by itself.
SMALLEST = 2**25
# A kept piece is taken for a result of at least this share of its size.
LEAST_FILLED = 0.75


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
    """Pieces of memory that are free at the moment.

    Together they are never larger than the largest result so far, so a process needs at most the
    memory of one more result than it would otherwise.

    Pieces come back whenever the last user of a result forgets it: in another thread, or in the
    middle of any line of this one, where the collector runs. So a piece that comes back is only put
    down. Whoever gets hold of the lock, and nobody waits for it, sorts it in.
    """

    def __init__(self) -> None:
        self._came_back: deque[Tensor] = deque()
        self._lock = threading.Lock()
        self._free: list[Tensor] = []
        self._most = 0

    def new_rows(self, rows: int, X: Tensor) -> Tensor:
        """Uninitialised [rows, …] with the other lengths, dtype and device of X."""
        shape = (rows, *X.shape[1:])
        if isinstance(X, FakeTensor) or not X.is_cpu:
            return X.new_empty(shape)
        nbytes = prod(shape) * X.element_size()
        if nbytes < SMALLEST:
            return X.new_empty(shape)
        # Torch keeps the array, the array the lease, as long as any tensor has this storage.
        array = np.asarray(_Lease(self, self._take(nbytes)))
        storage = torch.from_numpy(array).untyped_storage()
        strides = [prod(shape[place + 1 :]) for place in range(len(shape))]
        return X.new_empty(0).set_(storage, 0, shape, strides)

    def put(self, piece: Tensor) -> None:
        """Keep a piece that nobody uses any more, and let go of the oldest if that is too much."""
        self._came_back.append(piece)
        self._sort_in()

    @property
    def nbytes(self) -> int:
        """Bytes of the pieces that are free."""
        return sum(piece.nbytes for piece in self._free)

    def _take(self, nbytes: int) -> Tensor:
        self._most = max(self._most, nbytes)
        piece = None
        if self._lock.acquire(blocking=False):
            try:
                piece = self._found(nbytes)
            finally:
                self._lock.release()
            self._sort_in()
        if piece is None:
            piece = torch.empty(nbytes, dtype=torch.uint8)
            native.advise_huge_pages(piece.data_ptr(), nbytes)
        return piece

    def _found(self, nbytes: int) -> Tensor | None:
        for place, piece in enumerate(self._free):
            if LEAST_FILLED * piece.nbytes <= nbytes <= piece.nbytes:
                return self._free.pop(place)
        return None

    def _sort_in(self) -> None:
        # Looked at again afterwards: who came meanwhile did not get the lock, and left.
        while self._came_back and self._lock.acquire(blocking=False):
            try:
                while self._came_back:
                    self._free.append(self._came_back.popleft())
                while self.nbytes > self._most:
                    self._free.pop(0)
            finally:
                self._lock.release()


new_rows = Keeper().new_rows
