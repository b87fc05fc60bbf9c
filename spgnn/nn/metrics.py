"""Scores over vertices and links of all ranks, the same as one process would find."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange import swap_rows
from spgnn.graph.vertices import rows_of_all
from spgnn.nn.loss import UNKNOWN, over_ranks

Int64 = npt.NDArray[np.int64]
SAMPLES = 64  # of each rank, that splitters are chosen of


def areas(
    scores: Tensor, truth: Tensor, chosen: Tensor, comm: Communicator, *, rounded: bool = False
) -> list[float]:
    """The area under the ROC curve of each column."""
    columns, values = scores.shape[1], scores.detach().float().cpu()
    truth, chosen, near = truth.cpu(), chosen.cpu(), torch.zeros_like(values)
    if rounded:
        sizes = torch.where(chosen & values.isfinite(), values.abs(), 0).double().sum(0)
        means = over_ranks((sizes, chosen.sum(0)), comm)
        near = _near(values, means[0] / means[1].clamp(min=1)).float()
    keys = _redistributed(_sorted_keys(values, truth, chosen, near), comm)
    counts = _counted(keys, columns)
    mine = torch.from_numpy(counts.reshape(1, -1))
    every = mine.new_empty(comm.size, mine.shape[1])
    comm.all_gather(mine, every, [1] * comm.size)
    bounds, negatives, won = every.numpy().reshape(comm.size, 3, columns).transpose(1, 0, 2)
    # A positive also beats all negatives of the ranks before its own.
    below = np.cumsum(negatives, axis=0) - negatives
    twice = (won + bounds * below).sum(axis=0)
    pairs = bounds.sum(axis=0).astype(np.float64) * negatives.sum(axis=0)  # each positive has two
    return [float(t / p) if p else float("nan") for t, p in zip(twice, pairs, strict=True)]


def _sorted_keys(values: Tensor, truth: Tensor, chosen: Tensor, near: Tensor) -> Int64:
    """Chosen predictions as sorted integers: by column, then score, then kind."""
    yes, no = ((chosen & which).nonzero(as_tuple=True) for which in (truth, ~truth))
    keys: Int64 = np.concatenate(
        [
            _keys(values[yes] - near[yes], yes[1], 0),
            _keys(values[no], no[1], 1),
            _keys(values[yes] + near[yes], yes[1], 2),
        ]
    )
    keys.sort()
    return keys


def _keys(values: Tensor, column: Tensor, kind: int) -> Int64:
    bits = (values.numpy() + np.float32(0)).view(np.int32).astype(np.int64)  # there is one zero
    # The bits of floats rise with them; those of negative ones fall.
    rising = np.where(bits < 0, -1 - (bits & 0x7FFFFFFF), bits) + 2**31
    keys: Int64 = (column.numpy() << 34) | (rising << 2) | kind
    return keys


def _redistributed(keys: Int64, comm: Communicator) -> Int64:
    """Sorted keys of all ranks, each rank those between two splitters, sorted. Collective."""
    if comm.size == 1:
        return keys
    taken = keys[np.arange(SAMPLES) * len(keys) // SAMPLES] if len(keys) else keys
    samples = rows_of_all(torch.from_numpy(taken), comm)
    ordered = np.sort(samples.numpy())
    places = np.arange(1, comm.size) * len(ordered) // comm.size
    splitters = ordered[places] if len(ordered) else np.zeros(comm.size - 1, np.int64)
    ends = np.concatenate(([0], np.searchsorted(keys, splitters), [len(keys)]))
    counts = comm.exchange_counts(np.diff(ends).tolist())
    merged: Int64 = np.sort(swap_rows(comm, torch.from_numpy(keys), counts).numpy())
    return merged


def _counted(keys: Int64, columns: int) -> Int64:
    """Keys of positives, negatives, and negatives before these keys, int64 [3, columns]."""
    negative, column = (keys & 3) == 1, keys >> 34
    before = np.append(0, np.cumsum(negative))
    first = before[np.searchsorted(column, np.arange(columns))]
    below = before[:-1] - first[column]
    counts = np.zeros((3, columns), np.int64)
    np.add.at(counts[0], column[~negative], 1)
    np.add.at(counts[1], column[negative], 1)
    np.add.at(counts[2], column[~negative], below[~negative])
    return counts


def _near(scores: Tensor, means: Tensor) -> Tensor:
    """The largest distance of two scores that rounding alone may make."""
    eps = min(torch.finfo(dtype).eps for dtype in (scores.dtype, torch.float32))
    return (8 * eps * (scores.abs() + means)).nan_to_num(0.0, 0.0)


def mean_reciprocal_rank(
    positive: Tensor, negative: Tensor, total: int, comm: Communicator
) -> float | None:
    """The mean of 1 / rank of each positive among negatives of its own. Collective."""
    positive = positive[:, None]
    near = _near(positive, negative.abs().mean(1, keepdim=True))
    equal = ((negative - positive).abs() <= near) | (negative == positive)
    better = ((negative > positive) & ~equal).sum(dim=1)
    reciprocal = 1 / (1 + better.double() + equal.sum(dim=1).double() / 2)
    summed = over_ranks([reciprocal.sum()], comm)
    return float(summed) / total if total else None


def hits(
    positive: Tensor, negative: Tensor, ks: Sequence[int], total: int, comm: Communicator
) -> list[float | None]:
    """For each K, the share of positives above the K-th largest of *all* negatives. Collective."""
    most = max(ks)
    best = torch.full((most,), -torch.inf, dtype=torch.float64)
    mine = negative.double().flatten().topk(min(most, negative.numel())).values.cpu()
    best[: len(mine)] = mine
    every = best.new_empty(comm.size * most)
    comm.all_gather(best, every, [most] * comm.size)
    ordered, positive = every.sort(descending=True).values, positive.cpu()
    above = [
        (positive.double() - ordered[k - 1] > _near(positive, ordered[k - 1].abs())).sum()
        for k in ks
    ]
    return [int(count) / total if total else None for count in over_ranks(above, comm)]


Score = float | None
Float64 = npt.NDArray[np.float64]


def accuracies(
    logits: Tensor, y: Tensor, masks: Sequence[Tensor], totals: Sequence[int], comm: Communicator
) -> list[Score]:
    """Share of correct predictions in each mask, of these totals over all ranks; None of none."""
    right = logits.argmax(dim=1) == y
    counts = over_ranks([(right & mask).sum() for mask in masks], comm)
    pairs = zip(counts, totals, strict=True)
    return [int(count) / total if total else None for count, total in pairs]


def confusion(
    logits: Tensor, y: Tensor, masks: Sequence[Tensor], comm: Communicator
) -> npt.NDArray[np.int64]:
    """True positives, false positives and false negatives, int64 [masks, 3, columns]."""
    columns = logits.shape[1]
    if y.dim() == 1:
        has_label = y > UNKNOWN
        truth = F.one_hot(y.clamp(min=0), columns).bool()
        guess = F.one_hot(logits.argmax(dim=1), columns).bool()
        has_label = has_label[:, None].expand(-1, columns)
    else:
        has_label, truth, guess = y > UNKNOWN, y == 1, logits > 0
    counted = []
    for mask in masks:
        here = has_label & mask[:, None]
        kinds = (guess & truth & here, guess & ~truth & here, ~guess & truth & here)
        counted.append(torch.stack([kind.sum(dim=0) for kind in kinds]))
    return over_ranks(counted, comm).numpy()


def f1_scores(
    logits: Tensor, y: Tensor, masks: Sequence[Tensor], comm: Communicator
) -> tuple[list[Score], list[Score]]:
    """Micro-F1 and macro-F1 of each mask."""
    micro: list[Score] = []
    macro: list[Score] = []
    for right, wrong, missed in confusion(logits, y, masks, comm):
        size = 2 * right + wrong + missed
        total = int(size.sum())
        counted = size > 0 if y.dim() == 1 else np.ones(len(size), np.bool_)
        micro.append(2 * int(right.sum()) / total if total else None)
        of_columns = 2 * right[counted] / np.maximum(size[counted], 1)
        macro.append(float(of_columns.mean()) if total else None)
    return micro, macro


def roc_aucs(logits: Tensor, y: Tensor, masks: Sequence[Tensor], comm: Communicator) -> list[Score]:
    """The area under the ROC curve in each mask: the mean over columns that have both kinds."""
    if y.dim() == 1:
        classes = logits.shape[1]
        has_label = y > UNKNOWN
        if classes == 2:
            scores, truth = (logits[:, 1] - logits[:, 0])[:, None], (y == 1)[:, None]
        else:
            scores = torch.log_softmax(logits, dim=1)
            truth = F.one_hot(y.clamp(min=0), classes).bool()
        has_label = has_label[:, None].expand(-1, scores.shape[1])
    else:
        scores, has_label, truth = logits, y > UNKNOWN, y == 1
    chosen = torch.cat([has_label & mask[:, None] for mask in masks], dim=1)
    several = len(masks)
    of_columns = areas(scores.repeat(1, several), truth.repeat(1, several), chosen, comm)
    of_masks = np.array(of_columns).reshape(several, -1)
    return [None if np.isnan(row).all() else float(np.nanmean(row)) for row in of_masks]


def regression_scores(
    outputs: Tensor, y: Tensor, masks: Sequence[Tensor], comm: Communicator
) -> dict[str, list[Score]]:
    """Errors ``mae`` and ``rmse``, and ``r2``, of each mask."""
    has_number = ~y.isnan()
    target = torch.where(has_number, y, 0).double()
    error = torch.where(has_number, outputs.double() - target, 0)
    chosen = [has_number & mask[:, None] for mask in masks]
    # In two passes: E[y²] − E[y]² has no digits left where numbers are large and alike.
    first = _summed(
        [(here, target * here, error.abs() * here, error.square() * here) for here in chosen], comm
    )
    count, total, absolute, squared = first.transpose(1, 0, 2)
    mean = total / np.maximum(count, 1)
    centre = torch.from_numpy(mean).to(target)
    spread = _summed(
        [((target - centre[i]).square() * here,) for i, here in enumerate(chosen)], comm
    )[:, 0]
    scores: dict[str, list[Score]] = {"mae": [], "rmse": [], "r2": []}
    for n, off, square, width in zip(count, absolute, squared, spread, strict=True):
        known_all = n.sum()
        scores["mae"].append(float(off.sum() / known_all) if known_all else None)
        scores["rmse"].append(float(square.sum() / known_all) ** 0.5 if known_all else None)
        scores["r2"].append(_r2(n, square, width))
    return scores


def _r2(count: Float64, squared: Float64, spread: Float64) -> Score:
    """The mean over columns with at least two known numbers."""
    enough = count > 1
    if not enough.any():
        return None
    squared, spread = squared[enough], spread[enough]
    flat = spread == 0
    of_columns = np.where(flat, squared == 0, 1 - squared / np.where(flat, 1, spread))
    return float(of_columns.mean())


def _summed(kinds: Sequence[Sequence[Tensor]], comm: Communicator) -> Float64:
    """Sums over all rows of all ranks, float64 [masks, kinds, columns]. Collective."""
    sums = [torch.stack([t.double().sum(dim=0) for t in some]) for some in kinds]
    return over_ranks(sums, comm).numpy()
