"""Plans of their own for each layer of a model: what the loss reaches, and ghosts.

Both are exact (``docs/architecture.md``). *Reach*: a training epoch needs the last layer's rows of
labelled vertices only, of the layer before it the rows that these need, and so on. *Ghosts*: A·X
never changes, so a rank that holds the rows of A·X of the vertices whose H¹ its second layer needs
makes these H¹ itself, and the second product receives nothing (GraNNDis, Song et al. 2024, keeps
whole layers of such vertices; we keep one row each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, RowCounts
from spgnn.exchange.algorithm import Algorithm
from spgnn.exchange.inspect import Ask, by_receiver, demand, swapped
from spgnn.exchange.plan import Hop, Plan, Stage
from spgnn.exchange.reach import narrowed
from spgnn.exchange.schemes import Gathered, Scheme
from spgnn.layout import EVERYONE, RowLayout
from spgnn.pattern import Selection
from spgnn.sparse import CSR, entries_of, keep_columns, side_by_side, take_rows

# A layer gets a plan of its own where it does without this share of the work, or more: a plan takes
# as much memory as the part of A that it makes.
WORTHWHILE = 0.1


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """The plan of one layer.

    Attributes
    ----------
    plan : Plan
    columns : Tensor int64 [columns]
        The vertices of its columns, as the layout numbers them: own ones, rising, then ghosts.
    targets : Tensor int64 [rows], optional
        Which column each of its rows is; ``None`` if row i is column i.
    """

    plan: Plan
    columns: Tensor
    targets: Tensor | None


@dataclass(frozen=True, eq=False)
class Layered:
    """The plans of all layers of a model on one rank.

    Attributes
    ----------
    layers : tuple of LayerPlan or None
        ``None`` where a layer works on the whole matrix, and for a first layer on propagated
        features, which multiplies nothing.
    rows : Tensor int64
        Own rows that the last layer makes, rising.
    first : Tensor int64
        The vertices of the first layer's input, as the layout numbers them; if features are
        propagated, those whose A·X it is given.
    ghosts : Plan or None
        Sends own rows to where they are ghosts: makes [own rows, ghosts].
    """

    layers: tuple[LayerPlan | None, ...]
    rows: Tensor
    first: Tensor
    ghosts: Plan | None


@dataclass(frozen=True, eq=False)
class Passed:
    """What a scheme yields to have numbers of own rows passed to peers; the answer: theirs."""

    axis: str
    numbers: Tensor
    counts: RowCounts

    def settle(self, comm: Communicator) -> Tensor:
        """The numbers that all peers pass to this rank."""
        return swapped(comm, self.numbers, self.counts)

    @staticmethod
    def settle_all(parts: Sequence[Passed]) -> list[Tensor]:
        """The same for a whole group in one process."""
        counts = np.array([part.counts.send for part in parts])
        found = by_receiver([part.numbers for part in parts], counts)
        return [numbers for numbers in found if numbers is not None]


def layered(
    algorithm: Algorithm,
    block: CSR,
    layout: RowLayout,
    rank: int,
    *,
    layers: int,
    wanted: Tensor | None = None,
    ghosts: bool = False,
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
    wanted : Tensor int64, optional
        Own rows of the last layer that the loss looks at, rising; ``None`` for all.
    ghosts : bool
        Recompute what the second layer needs. Asks for two layers, and propagated features.
    propagated : bool
        The first layer is given A·X, and multiplies nothing.
    """
    own, begin = int(layout.sizes[rank]), layout.range(rank)[0]
    lowest, found = int(propagated), list[LayerPlan | None]([None] * layers)
    rows, whole = yield from _last_rows(block, wanted, multiplies=layers > lowest)
    last = rows
    for number in reversed(range(lowest, layers)):
        part = block if len(rows) == own else take_rows(block, rows)
        if ghosts and number == 1 and layout.parts > 1:
            layer, fetch = yield from _ghosted(part, rows, layout, rank, column_scale)
            found[1] = layer
            return Layered(tuple(found), last, layer.columns, fetch)
        if whole:
            continue
        labels = None if edge_labels is None else edge_labels[entries_of(block, rows)]
        plan = yield from algorithm.scheme(part, layout, rank, column_scale, edge_labels=labels)
        # The lowest layer's columns are features, of which to leave out a few is not worth a copy.
        most = 1 - WORTHWHILE if number == lowest else 1.0
        narrow, columns = yield from narrowed(plan, rows, most)
        if number > lowest:
            whole = yield from _nearly_all(block, columns)
            if whole:  # a layer below that makes all rows asks for one above that takes them
                narrow, columns = plan, torch.arange(own)
        found[number] = LayerPlan(narrow, columns + begin, _places(rows, columns))
        rows = columns
    return Layered(tuple(found), last, rows + begin, None)


def _last_rows(
    block: CSR, wanted: Tensor | None, *, multiplies: bool
) -> Scheme[tuple[Tensor, bool]]:
    """Own rows that the last layer makes, and whether it works on the whole matrix.

    Parameters
    ----------
    block : CSR [own rows, n]
    wanted : Tensor int64, optional
        As of `layered`.
    multiplies : bool
        Whether any layer multiplies.
    """
    own = block.shape[0]
    everything = torch.arange(own)
    rows = everything if wanted is None else wanted
    if not multiplies:
        few = len(rows) <= (1 - WORTHWHILE) * own
        return (rows if few else everything), False
    whole = yield from _nearly_all(block, rows)
    return (everything if whole else rows), whole


def _nearly_all(block: CSR, rows: Tensor) -> Scheme[bool]:
    """Whether some rows of all ranks together are not worth a plan of their own."""
    total = yield Gathered(EVERYONE, block.nnz)
    kept = yield Gathered(EVERYONE, int(block.row_lengths[rows].sum()))
    return bool(kept.sum() > (1 - WORTHWHILE) * total.sum())


def _ghosted(
    part: CSR, rows: Tensor, layout: RowLayout, rank: int, column_scale: Tensor | None
) -> Scheme[tuple[LayerPlan, Plan]]:
    """Some rows of A as a matrix over own vertices and ghosts, and how ghosts are fetched."""
    own, begin = int(layout.sizes[rank]), layout.range(rank)[0]
    L, R, asked = demand(part, layout, range(layout.parts), rank, "column")
    send, counts = yield Ask(EVERYONE, asked, own)
    owners = np.repeat(np.arange(layout.parts), asked.rows)
    ghosts = torch.from_numpy(layout.offsets[owners]) + asked.columns
    used = torch.zeros(own, dtype=torch.bool)
    used[rows] = True
    used[L.indices.long()] = True
    columns = used.nonzero()[:, 0]
    if len(columns) > (1 - WORTHWHILE) * own:
        columns = torch.arange(own)
    scale = None
    if column_scale is not None:
        theirs = yield Passed(EVERYONE, column_scale[send.indices], counts)
        scale = torch.cat((column_scale[columns], theirs))
    local = side_by_side(keep_columns(L, columns), R).with_scales(part.row_scale, scale)
    everything = CSR(Selection(torch.arange(own), own))
    fetch = Plan((Stage(everything, None, (Hop(EVERYONE, send, counts),)),))
    vertices = torch.cat((columns + begin, ghosts))
    return LayerPlan(Plan((Stage(local),)), vertices, _places(rows, columns)), fetch


def _places(rows: Tensor, columns: Tensor) -> Tensor | None:
    """Where rows lie among columns, all of which rise; ``None`` where row i is column i."""
    return None if len(rows) == len(columns) else torch.searchsorted(columns, rows)
