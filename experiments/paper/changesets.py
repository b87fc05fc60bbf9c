"""Ginex's changesets as its figures 12 and 13 have them: three passes, by torch, on any device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FIRST = 1 << 62  # the bit that marks the first of a vertex's iterations
NEVER = FIRST - 1


class Change(NamedTuple):
    """One iteration's change of the cache, and the misses before it."""

    in_ids: Tensor
    out_ids: Tensor
    in_positions: Tensor  # of in_ids in the batch
    misses: int


def tracked(batches: Sequence[Tensor], rows: int) -> tuple[Tensor, Tensor]:
    """`iters`, the iterations of each vertex, and `ptr`, where each vertex's begin: figure 12."""
    device = batches[0].device
    counts = torch.zeros(rows, dtype=torch.int64, device=device)
    for ids in batches:
        counts[ids] += 1
    ptr = counts.cumsum(0) - counts
    iters = torch.empty(int(counts.sum()) + 1, dtype=torch.int64, device=device)
    iters[-1] = NEVER
    for iteration, ids in enumerate(batches):
        iters[ptr[ids]] = iteration
        ptr[ids] += 1
    ptr -= counts
    iters[ptr[counts > 0]] |= FIRST
    return iters, ptr


def changesets(
    batches: Sequence[Tensor], rows: int, entries: int
) -> tuple[Tensor, Iterator[Change]]:
    """The first state of a cache of so many entries, and its change in each iteration."""
    iters, ptr = tracked(batches, rows)
    soonest = iters[ptr] & ~FIRST
    used = torch.cat(tuple(batches)).unique()
    state = used[soonest[used].argsort(stable=True)[:entries]]

    def changes(state: Tensor) -> Iterator[Change]:
        for ids in batches:
            misses = int((~torch.isin(ids, state)).sum())
            ptr[ids] += 1
            ended = (iters[ptr[ids]] & FIRST) != 0
            ptr[ids[ended]] = len(iters) - 1
            candidates = torch.cat((state, ids)).unique()
            following = iters[ptr[candidates]] & ~FIRST
            after = candidates[following.argsort(stable=True)[:entries]]
            in_ids = after[~torch.isin(after, state)]
            out_ids = state[~torch.isin(state, after)]
            order = ids.argsort()
            positions = order[torch.searchsorted(ids[order], in_ids)]
            yield Change(in_ids, out_ids, positions, misses)
            state = after

    return state, changes(state)
