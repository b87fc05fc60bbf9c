"""Scores by rank over all ranks: areas under ROC curves, and scores of ranked links.

Nothing is gathered in one place. For areas, all ranks together sort what they have: each takes the
scores between two splitters, so equal scores meet on one rank and pairs are counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm import Communicator

Int64 = npt.NDArray[np.int64]
SAMPLES = 64  # of each rank, that splitters are chosen of
MOST_COLUMNS = 1 << 30


def areas(scores: Tensor, truth: Tensor, chosen: Tensor, comm: Communicator) -> list[float]:
    """The area under the ROC curve of each column; NaN without positives or negatives. Collective.

    That is the share of pairs of a positive and a negative in which the positive has the larger
    score; pairs of equal scores count half (Mann & Whitney 1947).

    Parameters
    ----------
    scores : Tensor [rows, columns]
        Compared as float32.
    truth : Tensor bool [rows, columns]
    chosen : Tensor bool [rows, columns]
        What counts.
    comm : Communicator
    """
    columns = scores.shape[1]
    keys = _sorted_keys(scores.detach(), truth, chosen)
    keys = _redistributed(keys, comm)
    counts = _counted(keys, columns)
    mine = torch.from_numpy(counts.reshape(1, -1))
    every = mine.new_empty(comm.size, mine.shape[1])
    comm.all_gather(mine, every, [1] * comm.size)
    positives, negatives, won = every.numpy().reshape(comm.size, 3, columns).transpose(1, 0, 2)
    # A positive also beats all negatives of the ranks before its own.
    below = np.cumsum(negatives, axis=0) - negatives
    twice = (won + 2 * positives * below).sum(axis=0)
    pairs = positives.sum(axis=0).astype(np.float64) * negatives.sum(axis=0)
    return [float(t) / (2 * p) if p else float("nan") for t, p in zip(twice, pairs, strict=True)]


def _sorted_keys(scores: Tensor, truth: Tensor, chosen: Tensor) -> Int64:
    """What counts, as integers that sort by column, then score, then truth."""
    values = scores.float().cpu().numpy() + np.float32(0)  # there is one zero
    bits = values.view(np.int32).astype(np.int64)
    # The bits of floats rise with them; those of negative ones fall.
    rising = np.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits) + 2**31
    column = np.arange(scores.shape[1], dtype=np.int64)
    keys = (column << 33) | (rising << 1) | truth.cpu().numpy()
    found: Int64 = np.sort(keys[chosen.cpu().numpy()])
    return found


def _redistributed(keys: Int64, comm: Communicator) -> Int64:
    """Sorted keys of all ranks, each rank those between two splitters, sorted. Collective."""
    if comm.size == 1:
        return keys
    taken = keys[np.arange(SAMPLES) * len(keys) // SAMPLES] if len(keys) else keys
    sizes = torch.tensor([len(taken)])
    of_all = sizes.new_empty(comm.size)
    comm.all_gather(sizes, of_all, [1] * comm.size)
    listed = of_all.tolist()
    samples = sizes.new_empty(sum(listed))
    comm.all_gather(torch.from_numpy(taken), samples, listed)
    # Truth is no part of a splitter: equal scores stay together.
    ordered = np.sort(samples.numpy()) >> 1
    places = np.arange(1, comm.size) * len(ordered) // comm.size
    splitters = ordered[places] if len(ordered) else np.zeros(comm.size - 1, np.int64)
    ends = np.concatenate(([0], np.searchsorted(keys >> 1, splitters), [len(keys)]))
    counts = comm.exchange_counts(np.diff(ends).tolist())
    received = torch.empty(counts.received, dtype=torch.int64)
    comm.alltoallv(torch.from_numpy(keys), received, counts).wait()
    found: Int64 = np.sort(received.numpy())
    return found


def _counted(keys: Int64, columns: int) -> Int64:
    """Positives, negatives, and twice the pairs won inside each column, int64 [3, columns]."""
    groups, of_group = np.unique(keys >> 1, return_inverse=True)
    positive = (keys & 1).astype(np.int64)
    up = np.bincount(of_group, positive, len(groups)).astype(np.int64)
    down = np.bincount(of_group, minlength=len(groups)) - up
    column = groups >> 32
    below = np.cumsum(down) - down
    first = np.searchsorted(column, np.arange(columns))
    before = np.append(below, down.sum())[first]
    found = np.zeros((3, columns), np.int64)
    np.add.at(found[0], column, up)
    np.add.at(found[1], column, down)
    np.add.at(found[2], column, up * (2 * (below - before[column]) + down))
    return found


def mean_reciprocal_rank(
    positive: Tensor, negative: Tensor, total: int, comm: Communicator
) -> float | None:
    """The mean of 1 / rank of each positive among negatives of its own. Collective.

    As OGB's evaluator of ogbl-citation2: the rank is the mean of the best and the worst one that
    ties allow.

    Parameters
    ----------
    positive : Tensor [pairs]
    negative : Tensor [pairs, negatives]
    total : int
        Pairs of all ranks.
    comm : Communicator
    """
    better = (negative > positive[:, None]).sum(dim=1)
    equal = (negative == positive[:, None]).sum(dim=1)
    reciprocal = 1 / (1 + better.double() + equal.double() / 2)
    summed = reciprocal.sum().reshape(1).cpu()
    comm.all_reduce(summed).wait()
    return float(summed) / total if total else None


def hits(
    positive: Tensor, negative: Tensor, ks: Sequence[int], total: int, comm: Communicator
) -> list[float | None]:
    """For each K, the share of positives above the K-th largest of *all* negatives. Collective.

    As OGB's evaluator of ogbl-ppa, ogbl-ddi and ogbl-collab: 1 where there are fewer than K.

    Parameters
    ----------
    positive : Tensor [pairs]
    negative : Tensor [any]
    ks : sequence of int
    total : int
        Positives of all ranks.
    comm : Communicator
    """
    most = max(ks)
    best = torch.full((most,), -torch.inf, dtype=torch.float64)
    mine = negative.double().flatten().topk(min(most, negative.numel())).values.cpu()
    best[: len(mine)] = mine
    every = best.new_empty(comm.size * most)
    comm.all_gather(best, every, [most] * comm.size)
    ordered = every.sort(descending=True).values
    above = torch.stack([(positive.double().cpu() > ordered[k - 1]).sum() for k in ks])
    comm.all_reduce(above).wait()
    return [int(count) / total if total else None for count in above]
