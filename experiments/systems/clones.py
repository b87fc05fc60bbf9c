"""A vertex cut with clones: every part holds the rows of H that it multiplies, and makes them.

DistGNN (Md et al., SC'21): of the parts that have an edge of a vertex one is its owner, the others
have clones. Owner and clones all compute its rows, each from its own partial sum of this epoch and
the sums of the others, which travel: to the owner, who adds them, and from there to the clones.
Sums alone may be late or missing, and never the rows that a part multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.config import Extension, TrainConfig
from spgnn.exchange import (
    WORTHWHILE,
    Algorithm,
    ByteCounts,
    Codec,
    CodecLayer,
    Gather,
    Handle,
    Hop,
    Layered,
    LayerPlan,
    NamedScheme,
    Plan,
    Route,
    Scheme,
    Stage,
    Step,
    Swap,
    Then,
    deal,
    places,
    rows_from,
    vertex_cut,
)
from spgnn.layout import EVERYONE, Int64Array, RowLayout
from spgnn.options import key
from spgnn.pattern import Selection, index_dtype
from spgnn.sparse import CSR, entries_of, keep_columns

CLONED = "vertex-cut with clones"


@dataclass(frozen=True)
class Clones(Extension):
    """Key of the training command: the vertex cut with clones."""

    section = "algorithm"

    clones: Annotated[
        bool | None,
        key(
            "vertex-cut: parts hold and make rows of all vertices that they multiply; default: "
            "with --delay, where the model sums"
        ),
    ] = None

    def _are(self, config: TrainConfig) -> bool:
        """True if there are clones."""
        how, late = config.algorithm, config.messages.epochs_late != 0
        if how.algo != "vertex-cut" or self.clones is not None:
            return how.algo == "vertex-cut" and bool(self.clones)
        apart = how.recompute_halo or how.cover not in ("auto", "column") or config.changes_features
        return config.model.propagates and late and not apart

    def distribution(self, config: TrainConfig, how: Algorithm) -> Algorithm:
        """The scheme with clones, where there are some."""
        return replace(how, algo=CLONED) if self._are(config) else how

    def codec(self, config: TrainConfig, codec: Codec) -> Codec:
        """The codec of cd-r, whose gradients stay where they are; with exact means they travel."""
        if not codec.delay or codec.sends_means or not self._are(config):
            return codec
        return replace(codec, extra=(*codec.extra, ("local_gradients", True)))

    def refused(self, config: TrainConfig) -> Iterator[str]:
        """Say what clones, which hold the rows, cannot have."""
        how = config.distribution
        if self.clones and how.algo != CLONED:
            yield f"algorithm.clones needs --algo vertex-cut, not {how.algo}"
        if how.algo != CLONED:
            return
        if how.cover != "column" or how.schedule != "overlap":
            yield (
                "algorithm.clones needs --cover column and --schedule overlap: clones hold the "
                "rows, so sums alone travel"
            )
        if how.relays:
            yield "algorithm.clones needs --no-relays: owners hand sums on to clones already"
        if config.algorithm.recompute_halo:
            yield "algorithm.clones needs no --recompute-halo: clones make their rows in all layers"
        if config.changes_features:
            yield f"algorithm.clones needs fixed features: no {config.changes_features}"
        if not config.model.propagates:
            yield f"algorithm.clones needs a model that sums, not --model {config.model.model}"


class LocalGradients(CodecLayer):
    """Gradients pass to a part's own sums, and those of others get none, as in DistGNN's code."""

    keeps_gradients = True

    def _stays(self, step: Step) -> bool:
        return step.adjoint and not self.setting.codec.is_exact(step.epoch)

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Handle:
        if not self._stays(step):
            return self.inner.begin(rows, out, route, comm, step)
        out.zero_()
        return Then(None, lambda: None)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> ByteCounts:
        sent, received = self.inner.bytes(route, width, dtype, step)
        return (0 * sent, 0 * received) if self._stays(step) else (sent, received)


@dataclass(frozen=True, eq=False)
class Part:
    """One rank's part of a vertex cut with clones; vertices are those of the layout.

    Attributes
    ----------
    own : int
        Own vertices.
    vertices : Tensor int64 [columns]
        Own ones, then clones of others', both rising.
    A : CSR [rows, columns]
        Nonzeros off the diagonal: of own rows, then of others', grouped by owner.
    row_of : Tensor int64 [columns]
        The row of A with the nonzeros of each vertex; -1 without any.
    loops, row_scale : Tensor [columns]
        Nonzeros on the diagonal, 0 without, and scales of their rows. Clones have them as well.
    sums_of : Int64Array [sums], with `sum_counts`
        Which own vertex each partial sum of others is of, grouped by rank; counts of sums that this
        rank gets, and makes for others.
    clones_of : Int64Array [clones elsewhere], with `clone_counts`
        Which own vertex the clones of other ranks are of, grouped by rank; counts of clones here,
        by owner, and elsewhere.
    """

    own: int
    vertices: Tensor
    A: CSR
    row_of: Tensor
    loops: Tensor
    row_scale: Tensor | None
    sums_of: Int64Array
    sum_counts: RowCounts
    clones_of: Int64Array
    clone_counts: RowCounts


def cloned(
    block: CSR,
    layout: RowLayout,
    rank: int,
    *,
    layers: int,
    labelled: Tensor | None = None,
    propagated: bool = False,
    column_scale: Tensor | None = None,
    edge_labels: Tensor | None = None,
) -> Scheme[Layered]:
    """The plans of all layers, of which all but the last make rows of clones as well."""
    part = yield from _part(block, layout, rank, column_scale, edge_labels)
    own, plans = part.own, list[LayerPlan | None]([None] * layers)
    mask = torch.zeros(len(part.vertices), dtype=torch.bool)
    mask[torch.arange(own) if labelled is None else labelled] = True
    last, everything = mask[:own].nonzero()[:, 0], None
    for number in reversed(range(int(propagated), layers)):
        if everything is not None:
            plans[number] = everything
            continue
        plan, used = yield from _layer(part, mask)
        (counts,) = yield Gather(EVERYONE, (torch.tensor([[int(used.sum()), len(used)]]),))
        if counts[:, 0].sum() > (1 - WORTHWHILE) * counts[:, 1].sum():
            used = torch.ones_like(used)
        columns = used.nonzero()[:, 0]
        if len(columns) < len(used):
            first, *rest = plan.stages
            assert isinstance(first, Stage)
            plan = Plan((Stage(keep_columns(first.local, columns)), *rest))
        targets = yield from places(mask.nonzero()[:, 0], columns)
        plans[number] = LayerPlan(plan, part.vertices[columns], targets)
        (whole,) = yield Gather(EVERYONE, (mask.all()[None],))
        if whole.all():
            everything = plans[number]
        mask = used
    if layers == int(propagated):
        return Layered(tuple(plans), last, part.vertices[mask], None)
    clones = part.vertices[own:][mask[own:]]
    owners = layout.owner(clones.numpy())
    numbers = clones - torch.from_numpy(layout.offsets[owners])
    response = yield Swap(EVERYONE, (np.bincount(owners, minlength=layout.parts),), ((numbers,),))
    ((theirs,),) = response.arrays
    hop = Hop(EVERYONE, CSR(Selection(theirs, own)), response.counts[0].reversed())
    fetch = Plan((Stage(CSR(Selection(torch.arange(own), own)), None, (hop,)),))
    return Layered(tuple(plans), last, part.vertices[mask], fetch)


def _part(
    block: CSR,
    layout: RowLayout,
    rank: int,
    column_scale: Tensor | None,
    edge_labels: Tensor | None,
) -> Scheme[Part]:
    """Deal the nonzeros out, and give each part the clones whose columns they are in."""
    own, ranks, (begin, end) = int(layout.sizes[rank]), layout.parts, layout.range(rank)
    row = torch.arange(begin, end).repeat_interleave(block.row_lengths)
    diagonal = block.indices == row
    ones = torch.ones(block.nnz) if block.values is None else block.values
    loops = ones.new_zeros(own).index_add_(0, (row - begin)[diagonal], ones[diagonal])
    rest = rows_from(
        torch.bincount((row - begin)[~diagonal], minlength=own),
        block.indices[~diagonal],
        None if block.values is None else block.values[~diagonal],
        block.row_scale,
        block.shape[1],
    )
    labels = None if edge_labels is None else edge_labels[~diagonal]
    A, rows_of, counts = yield from deal(rest, layout, rank, labels)
    numbers = torch.from_numpy(rows_of) + begin
    response = yield Swap("row", (counts.send,), ((numbers,),))
    ((others,),) = response.arrays
    indices = A.indices.long()
    inside = (indices >= begin) & (indices < end)
    clones = indices[~inside].unique()
    columns = torch.where(inside, indices - begin, own + torch.searchsorted(clones, indices))
    width = own + len(clones)
    rows = torch.arange(A.shape[0]).repeat_interleave(A.row_lengths)
    order = (rows * width + columns).argsort()
    A = rows_from(
        A.row_lengths,
        columns[order].to(index_dtype(width)),
        None if A.values is None else A.values[order],
        A.row_scale,
        width,
    )
    # Owners learn where their clones are, and respond with scales and loops.
    owners = layout.owner(clones.numpy())
    request = (clones - torch.from_numpy(layout.offsets[owners]),)
    response = yield Swap("row", (np.bincount(owners, minlength=ranks),), (request,))
    ((clones_of,),) = response.arrays
    scales = block.row_scale, column_scale, loops
    sent = tuple(None if scale is None else scale[clones_of] for scale in scales)
    back = yield Swap("row", (np.asarray(response.counts[0].recv),), (sent,))
    row_scale, column_scale, every_loop = (
        None if scale is None else torch.cat((scale, theirs))
        for scale, theirs in zip(scales, back.arrays[0], strict=True)
    )
    assert every_loop is not None
    # A vertex in a row of another owner is a clone here only if it is in a column as well.
    vertices = torch.cat((torch.arange(begin, end), clones))
    place = torch.full((A.shape[0],), -1)
    place[:own] = torch.arange(own)
    if len(clones):
        at = torch.searchsorted(clones, others).clamp_(max=len(clones) - 1)
        place[own:] = torch.where(clones[at] == others, own + at, -1)
    row_of = torch.full((width,), -1)
    filled = ((place >= 0) & (A.row_lengths > 0)).nonzero()[:, 0]
    row_of[place[filled]] = filled
    return Part(
        own,
        vertices,
        A.with_scales(A.row_scale, column_scale),
        row_of,
        every_loop,
        row_scale,
        rows_of,
        counts.reversed(),
        clones_of.numpy(),
        response.counts[0],
    )


def _layer(part: Part, mask: Tensor) -> Scheme[tuple[Plan, Tensor]]:
    """The plan that makes rows of some of a part's vertices, and the columns that it multiplies."""
    A, own, ranks = part.A, part.own, len(part.sum_counts.send)
    asks = mask[own:].to(torch.uint8)
    response = yield Swap("row", (np.asarray(part.clone_counts.send),), ((asks,),))
    requested = response.arrays[0][0].numpy() > 0
    # As owner: who makes partial sums of a vertex, and who wants it.
    made_by = np.repeat(np.arange(ranks), part.sum_counts.recv)
    clone_at = np.repeat(np.arange(ranks), part.clone_counts.recv)
    mine = part.row_of[:own].numpy() >= 0
    sums = mine + np.bincount(part.sums_of, minlength=own)
    wants = mask[:own].numpy() + np.bincount(part.clones_of[requested], minlength=own)
    making, clones = part.sums_of * ranks + made_by, part.clones_of * ranks + clone_at
    gathered = np.flatnonzero(wants[part.sums_of] > np.isin(making, clones[requested]))
    spread = np.flatnonzero(requested & (sums[part.clones_of] > np.isin(clones, making)))
    begins = [
        np.cumsum(np.append(0, counts.recv)) for counts in (part.sum_counts, part.clone_counts)
    ]
    response = yield Swap(
        "row",
        (
            np.bincount(made_by[gathered], minlength=ranks),
            np.bincount(clone_at[spread], minlength=ranks),
        ),
        (
            (torch.from_numpy(gathered - begins[0][made_by[gathered]]),),
            (torch.from_numpy(spread - begins[1][clone_at[spread]]),),
        ),
    )
    up, down = response.counts[0].reversed(), response.counts[1]
    (sent,), (arriving,) = response.arrays
    # As clone: which sums this rank sends, and for which clones some arrive.
    begins = [
        np.cumsum(np.append(0, counts.send)) for counts in (part.sum_counts, part.clone_counts)
    ]
    sent = sent + torch.from_numpy(begins[0][np.repeat(np.arange(ranks), up.send)]) + own
    arriving = arriving + torch.from_numpy(begins[1][np.repeat(np.arange(ranks), down.recv)]) + own

    # The rows of the first stage: of these vertices, then sums for others that are none of these.
    rows, count = mask.nonzero()[:, 0], int(mask.sum())
    shared = torch.zeros(A.shape[0], dtype=torch.bool)
    shared[sent] = True
    shared[torch.from_numpy(part.clones_of[spread])] = True
    shared &= A.row_lengths > 0
    of_row, looped = part.row_of[rows], part.loops[rows] != 0
    there = of_row >= 0
    whole = there & ~(looped & shared[of_row])
    place = torch.full((A.shape[0],), -1)
    place[of_row[whole]] = whole.nonzero()[:, 0]
    apart = (shared & (place < 0)).nonzero()[:, 0]
    place[apart] = torch.arange(count, count + len(apart))
    added = torch.cat((of_row[whole], apart))
    entries = entries_of(A, added)
    row = torch.cat((place[added].repeat_interleave(A.row_lengths[added]), looped.nonzero()[:, 0]))
    column = torch.cat((A.indices[entries].long(), rows[looped]))
    values = None if A.values is None else torch.cat((A.values[entries], part.loops[rows[looped]]))
    partial, scale = count + len(apart), None
    if part.row_scale is not None and A.row_scale is not None:
        scale = torch.cat((part.row_scale[rows], A.row_scale[apart]))
    order = (row * A.shape[1] + column).argsort()
    used = mask.clone()
    used[column] = True
    L = rows_from(
        torch.bincount(row, minlength=partial),
        column[order].to(index_dtype(A.shape[1])),
        None if values is None else values[order],
        None,
        A.shape[1],
    ).with_scales(scale, A.col_scale)
    if ranks == 1:
        return Plan((Stage(L),)), used

    number = torch.full((own + len(asks),), -1)
    number[rows] = torch.arange(count)
    again = (there & ~whole).nonzero()[:, 0]
    local = CSR(Selection(torch.arange(count), partial))
    if len(again):
        of = torch.cat((torch.arange(count), again))
        local = _matrix(of, torch.cat((torch.arange(count), place[of_row[again]])), count, partial)
    # What an owner sends to a clone: its own sum, and those of all ranks but the clone's.
    to, sender = part.clones_of[spread], made_by[gathered]
    owned = np.flatnonzero(mine[to])
    send = _matrix(torch.from_numpy(owned), place[torch.from_numpy(to[owned])], len(to), partial)
    summed = part.sums_of[gathered]
    by_vertex = np.argsort(summed, kind="stable")
    first, last = (np.searchsorted(summed[by_vertex], to, side) for side in ("left", "right"))
    lengths = last - first
    pair = np.repeat(np.arange(len(to)), lengths)
    at = np.arange(len(pair)) + np.repeat(first - (np.cumsum(lengths) - lengths), lengths)
    theirs = by_vertex[at]
    others = sender[theirs] != clone_at[spread][pair]
    relay = _matrix(
        torch.from_numpy(pair[others]), torch.from_numpy(theirs[others]), len(to), len(summed)
    )
    received = len(summed) + len(arriving)
    goes = torch.cat((number[torch.from_numpy(summed)], number[arriving]))
    remote = _matrix(goes[goes >= 0], (goes >= 0).nonzero()[:, 0], count, received)
    hops = (
        Hop("row", CSR(Selection(place[sent].to(index_dtype(partial)), partial)), up),
        Hop("row", send, down, relay),
    )
    return Plan((Stage(L), Stage(local, remote, hops))), used


def _matrix(row: Tensor, column: Tensor, rows: int, columns: int) -> CSR:
    """The matrix [rows, columns] with a one at each (row, column)."""
    order = (row * columns + column).argsort()
    lengths = torch.bincount(row, minlength=rows)
    return rows_from(lengths, column[order].to(index_dtype(columns)), None, None, columns)


# Between layers, sums alone travel: what multiplies rows of others has clones of them.
SCHEME = NamedScheme(
    build=vertex_cut, can=frozenset({"edge_labels", "learnt_values"}), layers=cloned
)
