"""Tiles of a CSR block for thread blocks: its merge path, cut once and cached."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.pattern import INT32_LIMIT

# Most items of a tile: large tiles waste least at their edges, small ones fill the device.
TILE_ITEMS = (1024, 512, 256)
TILES_PER_MULTIPROCESSOR = 16


@dataclass(frozen=True, eq=False)
class Tiling:
    """The tiles of a product."""

    tiles: Tensor
    items: int
    carried: CarriedRows | None


@dataclass(frozen=True, eq=False)
class CarriedRows:
    """Rows that cross tiles."""

    rows: Tensor
    indptr: Tensor
    indices: Tensor
    tiling: Tiling


def make_tiling(indptr: Tensor, items: int) -> Tiling:
    """Cut a CSR block into tiles of at most ``items`` items."""
    rows, nnz = indptr.shape[0] - 1, int(indptr[-1])
    slack = items // 4
    row_ends = indptr[1:] + torch.arange(rows, device=indptr.device)  # place among the items
    start = torch.arange(0, rows + nnz, items - slack, device=indptr.device)
    row = torch.searchsorted(row_ends, start)  # rows whose end comes before
    nonzero = start - row
    nonzero = torch.where(nonzero - indptr[row] <= slack, indptr[row], nonzero)
    row = torch.cat((row, row.new_tensor([rows])))
    nonzero = torch.cat((nonzero, nonzero.new_tensor([nnz])))

    open_at_start = nonzero > indptr[row]
    carries_tail = open_at_start[1:]
    carries_head = open_at_start[:-1] & (row[1:] > row[:-1])
    slot = torch.zeros_like(row)
    torch.cumsum(carries_tail.long() + carries_head.long(), dim=0, out=slot[1:])
    carried = None
    if slots := int(slot[-1]):
        ends = slot[:-1][carries_head] + 1  # the head is the last of a row's sums
        slot_indptr = torch.cat((slot[:1], ends))
        carried = CarriedRows(
            row[:-1][carries_head],
            slot_indptr,
            torch.arange(slots, dtype=torch.int32, device=indptr.device),
            make_tiling(slot_indptr, TILE_ITEMS[-1]),
        )
    return Tiling(torch.stack((row, nonzero, slot), dim=1), items, carried)


def tile_items(items: int, multiprocessors: int) -> int:
    """The largest tile that still gives every multiprocessor enough tiles."""
    for size in TILE_ITEMS:
        if items >= size * TILES_PER_MULTIPROCESSOR * multiprocessors:
            return size
    return TILE_ITEMS[-1]


def make_segments(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of a list, each once, and where each is listed: ``order[indptr[s]:indptr[s + 1]]``."""
    listed, order = torch.sort(rows, stable=True)
    unique, counts = torch.unique_consecutive(listed, return_counts=True)
    indptr = torch.zeros(len(unique) + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(counts, dim=0, out=indptr[1:])
    return unique.long(), indptr, order.int() if len(order) < INT32_LIMIT else order
