"""Plans for each layer of a model: receptive field and recomputed halo.

Both are exact (``docs/architecture.md``). *Receptive field*: a training epoch needs the last
layer's rows of labelled vertices only, of the layer before it the rows that these need, and so on.
*Recomputed halo*: A·X never changes, so a rank that holds the rows of A·X of the vertices whose H¹
its second layer needs computes these H¹ itself, and the second product receives nothing (GraNNDis,
Song et al. 2024, keeps whole layers of such vertices; we keep one row each).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.exchange.algorithm import Algorithm
from spgnn.exchange.needs import Gather, Scheme, Swap, gather_number, needs_of
from spgnn.exchange.plan import Hop, Plan, Stage, Turned
from spgnn.layout import EVERYONE, RowLayout
from spgnn.pattern import Selection
from spgnn.sparse import CSR, entries_of, keep_columns, side_by_side, take_rows

# A layer gets a plan of its own where it does without this share of the work, or more: a plan takes
# as much memory as the part of A that it makes.
WORTHWHILE = 0.1


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The plan of one layer."""

    plan: Plan
    # int64 [columns]: the vertices of its columns, as the layout numbers them: own ones, rising,
    # then those of the recomputed halo
    columns: Tensor
    # int64 [rows]: the column of each of its rows; ``None`` if row i is column i
    row_columns: Tensor | None


@dataclass(frozen=True, eq=False)
class Layered:
    """The plans of all layers of a model on one rank."""

    # `None` where a layer works on the whole matrix, and for a first layer on propagated
    # features, which multiplies nothing
    layers: tuple[LayerPlan | None, ...]
    rows: Tensor  # int64: own rows that the last layer makes, rising
    # int64: the vertices of the first layer's input, as the layout numbers them; if features are
    # propagated, those whose A·X it is given
    first: Tensor
    # sends own rows to the recomputed halos that have them: makes [own rows, recomputed halo]
    halo: Plan | None


def layered(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    rank: int,
    *,
    layers: int,
    labelled: Tensor | None = None,
    recompute_halo: bool = False,
    propagated: bool = False,
    column_scale: Tensor | None = None,
    edge_labels: Tensor | None = None,
) -> Scheme[Layered]:
    """The plans of all layers of a model, from the last to the first.

    Parameters
    ----------
    algorithm : Algorithm
        Of every layer that exchanges anything.
    block, layout, rank, column_scale, edge_labels
        As for :meth:`Algorithm.scheme`.
    layers : int
    labelled : Tensor int64, optional
        Own rows of the last layer that the loss looks at, rising; ``None`` for all.
    recompute_halo : bool
        Recompute the halo of the second layer. Needs two layers, and propagated features.
    propagated : bool
        The first layer is given A·X, and multiplies nothing.
    """
    if algorithm.named.layers is not None:
        of_all: dict[str, Any] = {"layers": layers, "labelled": labelled, "propagated": propagated}
        of_all |= {"column_scale": column_scale, "edge_labels": edge_labels}
        result: Layered = yield from algorithm.named.layers(block, layout, rank, **of_all)
        return result
    own, begin = int(layout.sizes[rank]), layout.range(rank)[0]
    lowest, plans = int(propagated), list[LayerPlan | None]([None] * layers)
    rows, whole = torch.arange(own) if labelled is None else labelled, False
    if layers > lowest:
        whole = yield from _nearly_all(block, rows)
    if whole or (layers == lowest and len(rows) > (1 - WORTHWHILE) * own):
        rows = torch.arange(own)
    last = rows
    for number in reversed(range(lowest, layers)):
        part = block if len(rows) == own else take_rows(block, rows)
        if recompute_halo and number == 1 and layout.parts > 1:
            layer, fetch = yield from _recomputed_halo(part, rows, layout, rank, column_scale)
            plans[1] = layer
            return Layered(tuple(plans), last, layer.columns, fetch)
        if whole:
            continue
        labels = None if edge_labels is None else edge_labels[entries_of(block, rows)]
        plan = yield from algorithm.scheme(part, layout, rank, column_scale, edge_labels=labels)
        # The lowest layer's columns are features: to leave out a few is not worth a copy.
        most = 1 - WORTHWHILE if number == lowest else 1.0
        narrower, columns = yield from narrow(plan, rows, most)
        if number > lowest:
            whole = yield from _nearly_all(block, columns)
            if whole:  # a layer below that makes all rows asks for one above that takes them
                narrower, columns = plan, torch.arange(own)
        targets = yield from places(rows, columns)
        plans[number] = LayerPlan(narrower, columns + begin, targets)
        rows = columns
    return Layered(tuple(plans), last, rows + begin, None)


def _nearly_all(block: CSR, rows: Tensor) -> Scheme[bool]:
    """True if some rows of all ranks together are not worth a plan of their own."""
    total = yield from gather_number(EVERYONE, block.nnz)
    used = yield from gather_number(EVERYONE, int(block.row_lengths[rows].sum()))
    return bool(used.sum() > (1 - WORTHWHILE) * total.sum())


def _recomputed_halo(
    part: CSR, rows: Tensor, layout: RowLayout, rank: int, column_scale: Tensor | None
) -> Scheme[tuple[LayerPlan, Plan]]:
    """Some rows of A over own vertices and recomputed halo, and the plan that fetches these."""
    own, begin = int(layout.sizes[rank]), layout.range(rank)[0]
    L, R, needs = needs_of(part, layout, range(layout.parts), rank, "column")
    send, counts = yield from needs.exchange(EVERYONE, own)
    owners = np.repeat(np.arange(layout.parts), needs.rows)
    halo = torch.from_numpy(layout.offsets[owners]) + needs.columns
    used = torch.zeros(own, dtype=torch.bool)
    used[rows] = True
    used[L.indices.long()] = True
    columns = used.nonzero()[:, 0]
    if len(columns) > (1 - WORTHWHILE) * own:
        columns = torch.arange(own)
    scale = None
    if column_scale is not None:
        swap = Swap(EVERYONE, (counts.send,), ((column_scale[send.indices],),))
        ((theirs,),) = (yield swap).arrays
        scale = torch.cat((column_scale[columns], theirs))
    local = side_by_side(keep_columns(L, columns), R).with_scales(part.row_scale, scale)
    everything = CSR(Selection(torch.arange(own), own))
    fetch = Plan((Stage(everything, None, (Hop(EVERYONE, send, counts),)),))
    vertices = torch.cat((columns + begin, halo))
    targets = yield from places(rows, columns)
    return LayerPlan(Plan((Stage(local),)), vertices, targets), fetch


def narrow(plan: Plan, rows: Tensor, most: float = 1.0) -> Scheme[tuple[Plan, Tensor]]:
    """The same plan without the columns that it neither multiplies nor sends."""
    first, *rest = plan.stages
    used = torch.zeros(plan.shape[1], dtype=torch.bool)
    used[rows] = True
    if isinstance(first, Turned):
        # Ranks that share the columns of H hold the same matrices, and come to the same rows.
        turn, inner = first.before, first.stages[0]
        (used,) = yield Gather(turn.axis, (used,))
        begins = np.concatenate(([0], np.cumsum(turn.rows)))
        begin, end = int(begins[turn.me]), int(begins[turn.me + 1])
    else:
        inner, begin, end = first, 0, len(used)
    if not isinstance(inner, Stage):
        raise TypeError(f"a plan that begins with a {type(inner).__name__} cannot be narrowed")
    for block in (inner.local, *(hop.send for hop in inner.hops)):
        used[block.indices.long()] = True
    columns = used.nonzero()[:, 0]
    if len(columns) == len(used) or len(columns) > most * len(used):
        return plan, torch.arange(end - begin)
    hops = tuple(replace(hop, send=keep_columns(hop.send, columns)) for hop in inner.hops)
    inner = replace(inner, local=keep_columns(inner.local, columns), hops=hops, fold=None)
    if not isinstance(first, Turned):
        return Plan((inner, *rest)), columns
    left = np.add.reduceat(np.append(used.numpy(), False), begins[:-1], dtype=np.int64)
    left[turn.rows == 0] = 0
    first = replace(first, before=replace(turn, rows=left), stages=(inner, *first.stages[1:]))
    return Plan((first, *rest)), used[begin:end].nonzero()[:, 0]


def places(rows: Tensor, columns: Tensor) -> Scheme[Tensor | None]:
    """Positions of rows among columns, both sorted; ``None`` where row i is column i on every rank.

    Ranks decide together: where a layer's two products are made in one pass, other rows travel.
    """
    fewer = yield from gather_number(EVERYONE, int(len(rows) < len(columns)))
    return torch.searchsorted(columns, rows) if fewer.any() else None
