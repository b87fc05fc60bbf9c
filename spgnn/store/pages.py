"""Memory that begins at a page, for direct transfers and for large tables.

It is kept for the next piece of about the same size: the system hands out each page filled with
zeros, on the first touch, which takes longer than a disk takes to fill it.
"""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.kernels.recycling import Keeper

PAGE = 4096
_LARGE = 1 << 21  # bytes of a large page
_FILLED = 0.9
Bytes = npt.NDArray[np.uint8]


def padded(nbytes: int) -> int:
    """Rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def _mapped(nbytes: int) -> Tensor:
    # Shared ones, as Python maps them by default, never have large pages.
    pages = mmap.mmap(-1, max(nbytes, PAGE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


_keeper = Keeper(_mapped, _FILLED)


def page_buffer(nbytes: int) -> Bytes:
    """So many bytes, uninitialised, whose address is a multiple of a page."""
    return _keeper.take(padded(nbytes))[:nbytes]


def keep_pages(most: int | None) -> None:
    """How many bytes of pages there may be, in use and kept.

    Parameters
    ----------
    most : int, optional
        What is in use may exceed it. ``None``, as at the beginning: one piece is kept, but none of
        those that are free now.
    """
    _keeper.bound(most)


def pages_held() -> int:
    """Bytes of pages that are in use or kept."""
    return _keeper.bytes_in_use + _keeper.nbytes
