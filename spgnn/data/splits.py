"""Train, validation and test masks where a data set has none."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from spgnn.data.graph import Graph, GraphBlock, vertex_ids_of
from spgnn.data.labels import labelled
from spgnn.hashing import uniform

TRAIN_SHARE, VAL_SHARE = 0.6, 0.2
Record = TypeVar("Record", Graph, GraphBlock)


def seeded_split(
    vertices: int | Tensor, y: Tensor | None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Masks that give about 60 % of the labelled vertices to training, 20 % to validation.

    The mask of a vertex is a pure function of (seed, vertex id), so that any rank can make it for
    its own vertices and no split depends on the number of ranks or the partition.

    Parameters
    ----------
    vertices : int, or Tensor int64 [rows]
        The number of vertices, or the original ids of some.
    y : Tensor [rows] or [rows, columns], optional
        Vertices of which no label is known are in none of the three.
    seed : int

    Returns
    -------
    train_mask, val_mask, test_mask : Tensor bool [rows]
    """
    ids = np.arange(vertices) if isinstance(vertices, int) else vertices.numpy()
    draw = torch.from_numpy(uniform(ids, seed, "split"))
    has_label = torch.ones(len(ids), dtype=torch.bool) if y is None else labelled(y)
    train = draw < TRAIN_SHARE
    val = ~train & (draw < TRAIN_SHARE + VAL_SHARE)
    return train & has_label, val & has_label, ~train & ~val & has_label


def with_split(record: Record, seed: int = 0) -> Record:
    """The record itself if it has a training mask, otherwise with a seeded split.

    The caller says so to its user.
    """
    if record.train_mask is not None:
        return record
    train, val, test = seeded_split(vertex_ids_of(record), record.y, seed)
    return replace(record, train_mask=train, val_mask=val, test_mask=test)
