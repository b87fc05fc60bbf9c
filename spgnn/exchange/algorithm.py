"""The answer to "who computes what": which scheme, and its mesh, parts and plans on P ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
from torch import Tensor

from spgnn.errors import InputError, check_choice, check_integer
from spgnn.exchange.hierarchy import hierarchical
from spgnn.exchange.needs import COVERS, Scheme, build_all
from spgnn.exchange.peers import SCHEDULES, in_rounds
from spgnn.exchange.plan import Plan
from spgnn.exchange.relays import relayed
from spgnn.exchange.schemes import STRATEGIES, grid, stack, turned, vertex_cut
from spgnn.layout import Axes, RowLayout
from spgnn.registry import SCHEMES, Cover, Schedule, Strategy
from spgnn.sparse import CSR


@dataclass(frozen=True, kw_only=True)
class NamedScheme:
    """A scheme as it is registered in ``spgnn.registry.SCHEMES``, and what it can do.

    Attributes
    ----------
    build : callable
        ``build(algorithm, block, layout, axes, rank, column_scale, edge_labels)`` is the generator
        that makes the plan of one rank; see :meth:`Algorithm.scheme`.
    can : frozenset of str
        ``"replicas"``: c > 1. ``"oblivious"``: whole block rows, broadcast. ``"partial_sums"``:
        covers by rows. ``"hierarchy"``; ``"relays"``; ``"peers"``: rows in turns. ``"attention"``:
        rows arrive as they are. ``"relayed_rows"``: with relays, too. ``"whole_rows"``: a
        rank has all nonzeros of its rows. ``"learnt_values"``: gradients of A. ``"edge_labels"``:
        a part for each nonzero. ``"comparison"``: never better than another,
        so that no plan chooses it.
    copies : callable, optional
        ``copies(c, ranks)``: replicas of a block row, and shares of the feature columns.
    check : callable, optional
        ``check(algorithm, ranks)`` raises an InputError if that cannot work.
    layers : callable, optional
        A generator of the plans of all layers of a model, as :func:`spgnn.exchange.layered` has
        them; by default each layer's is a plan of `build`.
    """

    build: Callable[..., Scheme[Plan]]
    can: frozenset[str]
    copies: Callable[[int, int], tuple[int, int]] = lambda c, ranks: (c, 1)
    check: Callable[[Algorithm, int], None] = lambda algorithm, ranks: None
    layers: Callable[..., Scheme[Any]] | None = None


@dataclass(frozen=True)
class Algorithm:
    """One way to distribute a matrix: numbers and names only, the same on all ranks.

    Attributes
    ----------
    algo : str
        A name in ``spgnn.registry.SCHEMES``: 1d, 1.5d, feature, 2d, 3d, vertex-cut, or another.
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

    algo: str = "1d"
    c: int = 1
    exchange: Strategy = "sparsity-aware"
    cover: Cover = "column"
    node_size: int = 1
    schedule: Schedule = "overlap"
    buffer: int = 0
    groups: tuple[int, ...] = ()
    relays: bool = False

    def __post_init__(self) -> None:
        groups = self.groups if hasattr(self.groups, "__iter__") else (self.groups,)
        object.__setattr__(self, "groups", tuple(groups))  # in JSON they are a list

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Ranks of the groups of every size, nodes last; none without a hierarchy."""
        return (*self.groups, self.node_size) if self.node_size > 1 else ()

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks, by the flag of the training command."""
        check_choice("exchange", self.exchange, STRATEGIES)
        check_choice("cover", self.cover, COVERS)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_integer("--c", self.c, 1)
        check_integer("--buffer", self.buffer, 0)
        check_choice("relays", repr(self.relays), ("True", "False"))
        for size in (self.node_size, *self.groups):
            check_integer("--hierarchy", size, 1)
        levels = f"--hierarchy {','.join(map(str, (*self.groups, self.node_size)))}"
        peers, aware = self.schedule == "peers", self.exchange == "sparsity-aware"
        by_peers = "--schedule peers"
        for named, is_asked, ability in (
            (f"--c {self.c}", self.c != 1, "replicas"),
            ("--exchange oblivious", not aware, "oblivious"),
            (f"--cover {self.cover}", self.cover != "column", "partial_sums"),
            (levels, self.node_size != 1, "hierarchy"),
            ("--relays", self.relays, "relays"),
            (by_peers, peers, "peers"),
        ):
            if is_asked and ability not in self.named.can:
                raise InputError(f"{named} needs --algo {_with(ability)}, not {self.algo}")
        by_rows = "--exchange sparsity-aware"
        for named, is_asked, needed, is_met in (
            (f"--cover {self.cover}", self.cover != "column", by_rows, aware),
            (levels, self.node_size != 1, by_rows, aware),
            ("--relays", self.relays, f"{by_rows}: broadcasts have no relays", aware),
            ("--relays", self.relays, "--schedule overlap: relays wait for all peers", not peers),
            (f"--buffer {self.buffer}", self.buffer > 0, "--schedule peers", peers),
            (by_peers, peers, "--buffer BYTES, for received rows", self.buffer > 0),
            (by_peers, peers, by_rows, aware),
            (by_peers, peers, "--hierarchy none: rows are passed on there", self.node_size == 1),
        ):
            if is_asked and not is_met:
                raise InputError(f"{named} needs {needed}")
        if ranks % self.c:
            raise InputError(f"--c {self.c} must divide the number of ranks, which is {ranks}")
        if self.node_size != 1:
            if ranks % self.node_size:
                raise InputError(f"{levels} must divide the number of ranks, which is {ranks}")
            if self.node_size % self.c:
                raise InputError(f"{levels} must be a multiple of --c {self.c}: copies share nodes")
            for smaller, larger in pairwise((self.c, *self.group_sizes)):
                if larger % smaller:
                    raise InputError(f"{levels}: {larger} must be a multiple of {smaller}")
        elif self.groups:
            raise InputError(f"groups {self.groups} need node_size, of which they are parts")
        self.named.check(self, ranks)

    @property
    def named(self) -> NamedScheme:
        """The registered scheme."""
        result: NamedScheme = SCHEMES[str(self.algo)]
        return result

    @property
    def can(self) -> frozenset[str]:
        """The scheme's abilities, without those that options take away."""
        can, plain = self.named.can, self.node_size == 1 and self.schedule == "overlap"
        if not plain:
            can -= {"learnt_values"}
        if not plain or self.exchange == "oblivious" or self.cover != "column":
            can -= {"whole_rows"}
        if self.schedule == "peers":
            # Rows that arrive in turns are weighed in turns; partial softmaxes come all at once.
            in_turns = "whole_rows" in self.named.can and self.cover == "column"
            can -= set() if in_turns else {"attention"}
        elif not plain or (self.relays and (self.cover != "column" or "relayed_rows" not in can)):
            can -= {"attention"}
        return can

    @property
    def for_products(self) -> Algorithm:
        """The same where rows are multiplied and added up alone: with minimum covers, if it can.

        Whole block rows have none, and peers in turns have room for rows.
        """
        fixed = self.exchange == "oblivious" or self.schedule == "peers"
        sums = "partial_sums" in self.named.can
        return replace(self, cover="minimum") if sums and not fixed else self

    def axes(self, ranks: int) -> Axes:
        """The mesh of the ranks."""
        if self.node_size > 1:
            return Axes.of_nodes(ranks, self.node_size, self.c, self.groups)
        return Axes.grid(ranks, *self.copies(ranks))

    def copies(self, ranks: int) -> tuple[int, int]:
        """Replicas of a block row, and shares of the feature columns; 1D has one of each."""
        return self.named.copies(self.c, ranks)

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
        else:
            scheme = self.named.build(self, block, layout, axes, rank, scale, edge_labels)
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
            rows = np.array([blocks[rank].shape[0] for rank in group])
            owned = layout.sizes[group]
            plans += [turned(plan.stages, owned, rows, me) for me in range(shares)]
        return plans


def _cubic(c: int, ranks: int) -> tuple[int, int]:
    shares = c if c > 1 else _root(ranks, 3)
    return _root(ranks // shares, 2), shares


def _with(ability: str) -> str:
    """The schemes that have an ability, in words."""
    named = [name for name in SCHEMES if " " not in name]  # what `--algo` takes
    *names, last = [name for name in named if ability in SCHEMES[name].can]
    return f"{', '.join(names)} or {last}" if names else last


def _root(ranks: int, power: int) -> int:
    """The largest divisor whose power is not above a number of ranks."""
    return max(k for k in range(1, isqrt(ranks) + 1) if ranks % k == 0 and k**power <= ranks)


_ALWAYS = frozenset({"partial_sums", "relays"})
_MESH = _ALWAYS | {"oblivious", "replicas"}
_ROWS = frozenset({"attention", "relayed_rows", "peers", "learnt_values"})
ONE_D = NamedScheme(build=grid, can=(_MESH | _ROWS | {"hierarchy", "whole_rows"}) - {"replicas"})
ONE_AND_A_HALF_D = NamedScheme(build=grid, can=_MESH | _ROWS | {"hierarchy"})
FEATURE = NamedScheme(build=grid, can=_MESH | {"attention"}, copies=lambda c, ranks: (1, c))
TWO_D = NamedScheme(
    build=grid, can=_MESH | _ROWS, copies=lambda c, ranks: (c if c > 1 else _root(ranks, 2), 1)
)
THREE_D = NamedScheme(build=grid, can=_MESH | {"attention"}, copies=_cubic)
VERTEX_CUT = NamedScheme(build=vertex_cut, can=_ALWAYS | _ROWS - {"relayed_rows"} | {"edge_labels"})
