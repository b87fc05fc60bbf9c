"""``plan="auto"`` of graphs of several vertex types: covers and partitions, by bytes counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol, get_args

import numpy as np
import torch
from torch import Tensor

from spgnn.config import TrainConfig, objective_for
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.frontend import Placement
from spgnn.layout import Int64Array, RowLayout, grouped_order, inverse_permutation
from spgnn.partition import METHODS, OURS
from spgnn.registry import Objective
from spgnn.sparse import CSR

_ALGORITHMS = Algorithm(), Algorithm(cover="minimum"), Algorithm(cover="row")  # whole rows first
Labels = dict[str, Int64Array]
Relation = tuple[str, str, str]


class TypedArrays(Protocol):
    """Vertices of each type, edges of each relation [2, edges], and their partition."""

    sizes: dict[str, int]
    edges: dict[Relation, Tensor]

    def labels(
        self, how: Placement, parts: int, objective: Objective
    ) -> tuple[Labels, dict[str, Any] | None]:
        """The part of each vertex of each type, and a report."""


def plan_types(
    arrays: TypedArrays, how: Placement, ranks: int, *, config: TrainConfig, halo: bool
) -> tuple[Placement, Labels, dict[str, Any] | None, dict[str, Any]]:
    """The cover and objective whose busiest rank moves least, on rank 0.

    Bytes are those of an epoch of the registered models of several types: each layer moves rows of
    ``hidden`` columns there and back, once a source type where whole rows travel, else as the plan
    of each relation says. With `halo` whole rows travel.
    """
    if not isinstance(how.partition, str) or how.partition not in METHODS:
        raise InputError('plan="auto" makes partitions by itself: give it a method, as "gvb"')
    width, layers = config.model.hidden, config.model.layers
    objectives: list[Objective] = [objective_for("column", how.partition, how.objective)]
    if how.objective == "auto" and how.partition in OURS:
        objectives = [one for one in get_args(Objective) if one in OURS[how.partition]]
    tried = []
    for objective in objectives:
        labels, report = arrays.labels(how, ranks, objective)
        for algorithm in _ALGORITHMS[: 1 if halo else None]:
            moved = layers * moved_bytes(arrays, labels, algorithm, ranks, width)
            record = {
                "cover": algorithm.cover,
                "partition": how.partition,
                "objective": objective if how.partition in OURS else None,
                "bytes": int(moved[0].sum()),
                "max_send_bytes": int(moved[0].max()),
                "max_recv_bytes": int(moved[1].max()),
            }
            best = replace(how, algorithm=algorithm, objective=objective)
            tried.append((int(moved.max()), record, best, labels, report))
    tried.sort(key=lambda one: (one[0], one[1]["bytes"]))
    _, record, best, labels, report = tried[0]
    return best, labels, report, {**record, "tried": [one[1] for one in tried]}


def moved_bytes(
    arrays: TypedArrays,
    labels: Mapping[str, Int64Array],
    algorithm: Algorithm,
    ranks: int,
    width: int,
) -> Int64Array:
    """Bytes sent and received by each rank in one layer, forward and backward, int64 [2, ranks]."""
    layouts = {name: RowLayout.from_labels(one, ranks) for name, one in labels.items()}
    place = {n: inverse_permutation(grouped_order(one, ranks)) for n, one in labels.items()}
    matrices: list[tuple[str, list[CSR]]] = []
    starts: dict[str, list[list[Int64Array]]] = {}
    for (source, _, target), ends in arrays.edges.items():
        columns, rows = place[source][ends[0].numpy()], place[target][ends[1].numpy()]
        order = np.lexsort((columns, rows))
        columns, rows = columns[order], rows[order]
        cuts = np.searchsorted(rows, layouts[target].offsets)
        indptr = np.searchsorted(rows, np.arange(layouts[target].rows + 1))
        blocks = []
        for rank, (begin, end) in enumerate(pairwise(cuts)):
            first, last = layouts[target].range(rank)
            here = torch.from_numpy(indptr[first : last + 1] - begin)
            shape = last - first, layouts[source].rows
            blocks.append(CSR.of(here, torch.from_numpy(columns[begin:end]), shape))
            of_rank = starts.setdefault(source, [[] for _ in range(ranks)])
            of_rank[rank].append(columns[begin:end])
        matrices.append((source, blocks))
    if algorithm == Algorithm():
        # One halo of each source type, whatever the number of relations.
        matrices = []
        for source, of_ranks in starts.items():
            every = [torch.from_numpy(np.unique(np.concatenate(one))) for one in of_ranks]
            rows_of = [
                CSR.of(torch.tensor([0, len(one)]), one, (1, layouts[source].rows)) for one in every
            ]
            matrices.append((source, rows_of))
    moved = np.zeros((2, ranks), np.int64)
    for source, blocks in matrices:
        for rank, plan in enumerate(algorithm.plans(blocks, layouts[source])):
            for back in (False, True):
                for each in plan.carried(width, torch.float32, adjoint=back):
                    moved[:, rank] += int(each.sent.sum()), int(each.received.sum())
    return moved
