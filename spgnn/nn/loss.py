"""Masked cross-entropy and accuracy over vertices that live on many ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.comm import Communicator

UNKNOWN = -1


def masked_cross_entropy(logits: Tensor, y: Tensor, mask: Tensor, total: int) -> Tensor:
    """One rank's share of the mean cross-entropy; the shares of all ranks add up to the loss.

    Parameters
    ----------
    logits : Tensor [rows, classes]
        The loss is float32 at least.
    y : Tensor int64 [rows]
        −1 where unknown; such vertices do not count.
    mask : Tensor bool [rows]
    total : int
        Vertices that count, over all ranks (:func:`count_labelled`). Dividing by the global
        number makes gradients add up over ranks without any further scaling.
    """
    # Ignored rather than left out: no copy of the chosen rows, forward or backward.
    target = torch.where(mask, y, UNKNOWN)
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    summed = F.cross_entropy(logits, target, ignore_index=UNKNOWN, reduction="sum")
    return summed / max(total, 1)


def count_labelled(masks: list[Tensor], y: Tensor, comm: Communicator) -> list[int]:
    """For each mask, the labelled vertices in it over all ranks. Collective."""
    counts = torch.stack([(mask & (y > UNKNOWN)).sum() for mask in masks]).cpu()
    comm.all_reduce(counts).wait()
    return [int(count) for count in counts]


def accuracies(
    logits: Tensor, y: Tensor, masks: list[Tensor], totals: list[int], comm: Communicator
) -> list[float | None]:
    """Share of correct predictions in each mask over all ranks; ``None`` if it is empty."""
    right = logits.argmax(dim=1) == y
    counts = torch.stack([(right & mask).sum() for mask in masks]).cpu()
    comm.all_reduce(counts).wait()
    return [
        int(count) / total if total else None for count, total in zip(counts, totals, strict=True)
    ]
