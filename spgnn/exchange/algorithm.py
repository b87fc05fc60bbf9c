"""The answer to "who computes what": which scheme, and its mesh, parts and plans on P ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from typing import Literal, get_args

import numpy as np
from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.exchange.hierarchy import hierarchical
from spgnn.exchange.needs import COVERS, Cover, Scheme, build_all
from spgnn.exchange.peers import SCHEDULES, Schedule
from spgnn.exchange.plan import Plan
from spgnn.exchange.relays import relayed
from spgnn.exchange.schemes import (
    STRATEGIES,
    Strategy,
    grid,
    in_rounds,
    replicated,
    stack,
    turned,
    vertex_cut,
)
from spgnn.layout import Axes, RowLayout
from spgnn.sparse import CSR

Algo = Literal["1d", "1.5d", "feature", "2d", "3d", "vertex-cut", "1.5d-replicated"]
ALGOS: tuple[str, ...] = get_args(Algo)


@dataclass(frozen=True)
class Algorithm:
    """One way to distribute a matrix: numbers and names only, the same on all ranks.

    Attributes
    ----------
    algo : {"1d", "1.5d", "feature", "2d", "3d", "vertex-cut", "1.5d-replicated"}
    c : int
        Of how many copies of a block row each rank holds one: whole block rows (feature; 3d), or
        their columns (1.5d, 2d). 1 leaves 2D as square, and 3D as cubic, as the number of ranks
        allows; other algorithms are then 1D.
    exchange : {"sparsity-aware", "oblivious"}
    cover : {"column", "row", "minimum"}
    node_size : int
        Neighbouring ranks that are one node, whose traffic crosses to others together; 1 for none.
    schedule : {"overlap", "peers"}
        All rows at once, or those of a few peers at a time.
    buffer : int
        Bytes of received rows in memory at a time under ``peers``.
    groups : tuple of int
        Sizes of smaller groups of neighbours inside a node (sockets), which rise: what crosses
        between groups of any size crosses once.
    relays : bool
        Ranks that have time hand rows on, and add sums up, where others are busy.
    """

    algo: Algo = "1d"
    c: int = 1
    exchange: Strategy = "sparsity-aware"
    cover: Cover = "column"
    node_size: int = 1
    schedule: Schedule = "overlap"
    buffer: int = 0
    groups: tuple[int, ...] = ()
    relays: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))  # in JSON they are a list

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Ranks of the groups of every size, nodes last; none without a hierarchy."""
        return (*self.groups, self.node_size) if self.node_size > 1 else ()

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks.

        Raises
        ------
        InputError
            Names the flag of the training command and what would be right.
        """
        check_choice("algo", self.algo, ALGOS)
        check_choice("exchange", self.exchange, STRATEGIES)
        check_choice("cover", self.cover, COVERS)
        if self.algo in ("1d", "vertex-cut") and self.c != 1:
            raise InputError(
                f"--c {self.c} needs --algo 1.5d, feature, 2d or 3d; --algo {self.algo} has c = 1"
            )
        if ranks % self.c:
            raise InputError(f"--c {self.c} must divide the number of ranks, which is {ranks}")
        if self.algo == "1.5d-replicated" and ranks % self.c**2:
            raise InputError(
                f"--algo 1.5d-replicated needs --c whose square divides {ranks} ranks, not {self.c}"
            )
        if self.exchange == "oblivious" and self.cover != "column":
            raise InputError(f"--cover {self.cover} needs --exchange sparsity-aware")
        if self.node_size != 1:
            flag = f"--hierarchy {','.join(map(str, (*self.groups, self.node_size)))}"
            if self.algo not in ("1d", "1.5d"):
                raise InputError(f"{flag} needs --algo 1d or 1.5d")
            if self.exchange == "oblivious":
                raise InputError(f"{flag} needs --exchange sparsity-aware")
            if self.node_size < 1 or ranks % self.node_size:
                raise InputError(f"{flag} must divide the number of ranks, which is {ranks}")
            if self.node_size % self.c:
                raise InputError(f"{flag} must be a multiple of --c {self.c}: copies share a node")
            for smaller, larger in pairwise((self.c, *self.group_sizes)):
                if smaller < 1 or larger % smaller:
                    raise InputError(f"{flag}: {larger} must be a multiple of {smaller}")
        elif self.groups:
            raise InputError(f"groups {self.groups} need node_size, of which they are parts")
        if self.algo == "vertex-cut" and self.exchange == "oblivious":
            raise InputError("--algo vertex-cut needs --exchange sparsity-aware")
        if self.relays and self.exchange == "oblivious":
            raise InputError("--relays needs --exchange sparsity-aware: broadcasts have no relays")
        if self.relays and self.schedule == "peers":
            raise InputError("--relays needs --schedule overlap: relays wait for all their peers")
        check_choice("schedule", self.schedule, SCHEDULES)
        if self.schedule == "overlap":
            if self.buffer:
                raise InputError(f"--buffer {self.buffer} needs --schedule peers")
            return
        if self.buffer < 1:
            raise InputError("--schedule peers needs --buffer BYTES, for received rows")
        if self.exchange == "oblivious":
            raise InputError("--schedule peers needs --exchange sparsity-aware")
        if self.node_size > 1:
            raise InputError("--schedule peers needs --hierarchy none: rows are passed on there")
        if self.algo in ("feature", "3d"):
            raise InputError("--schedule peers needs --algo 1d, 1.5d, 2d or vertex-cut")

    @property
    def for_products(self) -> Algorithm:
        """The same where rows are multiplied and added up alone: with minimum covers, if it can.

        Whole block rows have none, and peers in turns have room for rows.
        """
        fixed = self.exchange == "oblivious" or self.schedule == "peers"
        return self if fixed else replace(self, cover="minimum")

    def axes(self, ranks: int) -> Axes:
        """The mesh of the ranks."""
        if self.node_size > 1:
            return Axes.of_nodes(ranks, self.node_size, self.c, self.groups)
        return Axes.grid(ranks, *self.copies(ranks))

    def copies(self, ranks: int) -> tuple[int, int]:
        """Replicas of a block row, and shares of the feature columns; 1D has one of each."""
        match self.algo:
            case "feature":
                return 1, self.c
            case "2d":
                return self.c if self.c > 1 else _root(ranks, 2), 1
            case "3d":
                shares = self.c if self.c > 1 else _root(ranks, 3)
                return _root(ranks // shares, 2), shares
            case _:
                return self.c, 1

    def parts(self, ranks: int) -> int:
        """Parts of the partition; each is cut into ranks / parts slices of neighbouring ranks."""
        replicas, shares = self.copies(ranks)
        return ranks // (replicas * shares)

    def nodes(self, ranks: int, launched: int = 0) -> int | None:
        """Nodes that the parts are on, neighbours on one; ``None`` where all are on one.

        A node has the ranks of the hierarchy's, or as many as were `launched` there.
        """
        size = self.node_size if self.node_size > 1 else launched
        cut = size > 1 and size < ranks and ranks % size == 0
        # Slices of one part share a node.
        return ranks // size if cut and size % (ranks // self.parts(ranks)) == 0 else None

    def scheme(
        self,
        block: CSR,
        layout: RowLayout,
        rank: int,
        column_scale: Tensor | None = None,
        *,
        edge_labels: Tensor | None = None,
    ) -> Scheme[Plan]:
        """The scheme of one rank.

        Parameters
        ----------
        block : CSR [rows, n]
            The rank's rows of A, or those of them that are wanted, with global columns; may carry
            values and a ``row_scale``. The plan makes these rows.
        layout : RowLayout
            Rows of H over all ranks.
        rank : int
        column_scale : Tensor [own rows], optional
            Scaling of the columns this rank owns, applied where a row of H leaves its owner.
        edge_labels : Tensor, integers in [0, ranks), [nnz], optional
            The rank that multiplies each nonzero of the block, in a vertex cut.
        """
        axes, cover, scale = self.axes(layout.parts), self.cover, column_scale
        if self.node_size > 1:
            scheme = hierarchical(block, layout, axes, rank, cover, scale)
        elif self.algo == "vertex-cut":
            scheme = vertex_cut(block, layout, rank, edge_labels, cover, scale)
        elif self.algo == "1.5d-replicated":
            scheme = replicated(block, layout, axes, rank, self.exchange, cover, scale)
        else:
            scheme = grid(block, layout, axes, rank, self.exchange, cover, scale)
        if self.relays:
            return relayed(scheme, axes, rank, whole_rows=cover == "column")
        return scheme if self.schedule == "overlap" else in_rounds(scheme, axes, rank)

    def plans(
        self, blocks: Sequence[CSR], layout: RowLayout, column_scale: Tensor | None = None
    ) -> list[Plan]:
        """The plans of all ranks, made in one process: what each of them would make.

        Of the rows of each rank, and a scaling of all columns; see :meth:`scheme`. Ranks that
        differ in nothing but their share of the columns have their stages in common, so they cost
        what one of them does.
        """
        axes = self.axes(layout.parts)
        replicas, shares = self.copies(layout.parts)
        if shares == 1:
            scales = [
                None if column_scale is None else column_scale[slice(*layout.range(rank))]
                for rank in range(layout.parts)
            ]
            schemes = [
                self.scheme(block, layout, rank, scale)
                for rank, (block, scale) in enumerate(zip(blocks, scales, strict=True))
            ]
            return build_all(schemes, axes)
        groups = axes.groups("feature")
        stacked = [stack([blocks[rank] for rank in group]) for group in groups]
        alone = replace(self, algo="1.5d", c=replicas)
        plans = []
        for group, plan in zip(
            groups, alone.plans(stacked, layout.grouped(shares), column_scale), strict=True
        ):
            made = np.array([blocks[rank].shape[0] for rank in group])
            for me in range(shares):
                plans.append(turned(plan.stages, layout.sizes[group], made, me))
        return plans


def _root(ranks: int, power: int) -> int:
    """The largest divisor whose power is not above a number of ranks."""
    return max(k for k in range(1, isqrt(ranks) + 1) if ranks % k == 0 and k**power <= ranks)
