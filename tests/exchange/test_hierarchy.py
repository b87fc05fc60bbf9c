"""Two levels: plans are A, as little crosses as can, and every rank's bytes are known by level."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import Axes, RowLayout
from spgnn._native import choose_agents
from spgnn.data import load_dataset
from spgnn.exchange import Algorithm, Plan
from spgnn.exchange.needs import COVERS
from spgnn.exchange.plan import Traffic
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import by_level

N = 47
# Ranks, how many of them are a node, and copies.
COPIES = [(8, 4, 2), (8, 4, 4), (12, 6, 2), (16, 4, 2), (4, 4, 2)]
# Ranks, and how many of them are a node.
NODES = [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (12, 3), (12, 4), (16, 4), (4, 4), (9, 3)]


def plans_of(
    A: sp.csr_array, layout: RowLayout, algorithm: Algorithm, *, scaled: bool = False
) -> list[Plan]:
    """The plans of all ranks."""
    blocks = [block_row(A, *layout.range(rank)) for rank in range(layout.parts)]
    if not scaled:
        return algorithm.plans(blocks, layout)
    row_scale, column_scale = torch.linspace(2, 3, N).double(), torch.linspace(1, 2, N).double()
    parts = [row_scale[slice(*layout.range(rank))].clone() for rank in range(layout.parts)]
    scaled_blocks = [b.with_scales(s, None) for b, s in zip(blocks, parts, strict=True)]
    return algorithm.plans(scaled_blocks, layout, column_scale)


@dataclass
class Moves:
    """Rows that go from one rank to another, by level; counted one by one."""

    size: int
    ranks: int
    rows: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = self.ranks, self.ranks
        self.rows = {level: np.zeros(shape, int) for level in ("inside", "between")}

    def add(self, source: int, to: int, rows: int = 1) -> None:
        if source != to:
            level = "inside" if source // self.size == to // self.size else "between"
            self.rows[level][source, to] += rows

    def traffic(self, rank: int, level: str, adjoint: bool) -> tuple[int, int]:
        sent, got = self.rows[level][rank].sum(), self.rows[level][:, rank].sum()
        return (got, sent) if adjoint else (sent, got)


def agents_of(homes: list[int], candidates: list[list[int]], size: int) -> list[int]:
    """The rule of docs/hierarchy.md, said again."""
    share, load = -(-len(homes) // size), [0] * size
    found = []
    for home in homes:
        stays = load[home] < share
        found.append(home if stays else None)
        load[home] += stays
    for thing, home in enumerate(homes):
        if found[thing] is None:
            options = [home, *sorted(candidates[thing])]
            found[thing] = min(options, key=lambda rank: load[rank])
            load[found[thing]] += 1
    return found


def counted(A: np.ndarray, layout: RowLayout, size: int, cover: str) -> Moves:
    """What a column or row cover moves, from the whole matrix, node by node and thing by thing."""
    ranks = layout.parts
    moves, owner = Moves(size, ranks), layout.owner(np.arange(len(A)))
    # A row cover is the column cover of the transpose, and its rows travel the other way.
    A = A if cover == "column" else A.T
    collected = set()
    for d, s in permutations(range(ranks // size), 2):
        block = (A != 0) & (owner // size == d)[:, None] & (owner // size == s)
        things = np.flatnonzero(block.any(axis=0))
        if cover == "row":  # in the order of their receiver's rows
            things = np.sort(things)
        wanting = [sorted({owner[u] % size for u in np.flatnonzero(block[:, v])}) for v in things]
        homes = [owner[v] % size for v in things]
        for v, home, wants, agent in zip(
            things, homes, wanting, agents_of(homes, wanting, size), strict=True
        ):
            path = [(s * size + agent, d * size + agent)]
            if cover == "column" and (v, agent) not in collected:
                collected.add((v, agent))
                path.append((s * size + home, s * size + agent))
            elif cover == "row":
                path.append((s * size + home, s * size + agent))
            path += [(d * size + agent, d * size + want) for want in wants]
            for source, to in path:
                moves.add(*((source, to) if cover == "column" else (to, source)))
    for v in range(len(A)):
        node = owner[v] // size
        for want in {owner[u] for u in np.flatnonzero(A[:, v])}:
            if want // size == node:
                moves.add(*((owner[v], want) if cover == "column" else (want, owner[v])))
    return moves


@pytest.mark.parametrize(("ranks", "size"), NODES)
@pytest.mark.parametrize("cover", ["column", "row"])
def test_bytes_by_level_and_rank(ranks, size, cover):
    A, layout = random_matrix(N, 0.12, size, weighted=False), uneven_layout(N, ranks, ranks)
    algorithm = Algorithm(cover=cover, node_size=size)
    expected = counted(A.toarray(), layout, size, cover)
    for rank, plan in enumerate(plans_of(A, layout, algorithm)):
        for adjoint in (False, True):
            found = by_level(plan, algorithm.axes(ranks), rank, 5, node_size=size, adjoint=adjoint)
            by_axis = plan.traffic(5, adjoint=adjoint)
            for level, axis in (("inside", "local"), ("between", "node")):
                rows = expected.traffic(rank, level, adjoint)
                moved = found[level]
                assert (moved.sent_bytes, moved.received_bytes) == tuple(20 * r for r in rows)
                same_axis = by_axis.get(axis, Traffic())
                assert moved.sent_bytes == same_axis.sent_bytes
                assert moved.messages <= same_axis.messages


def least(block: np.ndarray, cover: str) -> int:
    """How many rows must travel for one block, by the definition of its cover."""
    if cover == "minimum":  # König
        return int((maximum_bipartite_matching(sp.csr_array(block)) >= 0).sum())
    return int(block.any(axis=0 if cover == "column" else 1).sum())


def crossing(plans: list[Plan], axes: Axes, *sizes: int) -> np.ndarray:
    """Rows by level of groups of some sizes, by the plans."""
    how = {"groups": sizes[:-1], "node_size": sizes[-1]}
    moved = [by_level(p, axes, r, 1, torch.uint8, **how) for r, p in enumerate(plans)]
    # One byte a row.
    return np.sum([[one.sent_bytes for one in levels.values()] for levels in moved], axis=0)


@pytest.mark.parametrize(("ranks", "size", "c"), [*((*nodes, 1) for nodes in NODES), *COPIES])
@pytest.mark.parametrize("cover", COVERS)
def test_as_little_crosses_as_the_cover_of_node_blocks_allows(ranks, size, c, cover):
    """Of each replica's columns by themselves; never more than without a hierarchy."""
    algo = "1d" if c == 1 else "1.5d"
    two, flat = (Algorithm(algo, c, cover=cover, node_size=k) for k in (size, 1))
    for seed in range(3 if c == 1 else 1):
        A = random_matrix(N, 0.04 * (seed + 1), seed, weighted=seed == 1)
        layout, crosses = uneven_layout(N, ranks, seed), 0
        owner = layout.owner(np.arange(N))
        for to, source in permutations(range(ranks // size), 2):
            for replica in range(c):
                sent = (owner // size == source) & (owner % c == replica)
                crosses += least(A.toarray()[np.ix_(owner // size == to, sent)] != 0, cover)
        assert crossing(plans_of(A, layout, two, scaled=True), two.axes(ranks), size)[1] == crosses
        assert crosses <= crossing(plans_of(A, layout, flat), flat.axes(ranks), size)[1]


@pytest.mark.parametrize("cover", COVERS)
def test_on_skewed_graphs_a_quarter_less_crosses(cover):
    """Between nodes; and as much less between the sockets of a node, where these are a level."""
    ratios = []
    for name in ("rmat-9-4", "rmat-9-8", "rmat-8-16", "rmat-10-2"):
        A = load_dataset(name).adjacency.to_scipy()
        layout = RowLayout.even(A.shape[0], 16)
        ways = [
            Algorithm(cover=cover, node_size=k, groups=g) for k, g in ((1, ()), (8, ()), (8, (2,)))
        ]
        flat, two, three = (crossing(plans_of(A, layout, how), how.axes(16), 2, 8) for how in ways)
        assert three[2] == two[2]
        ratios.append((two[2] / flat[2], three[1] / two[1]))
    assert np.max(ratios) <= 1
    assert (np.exp(np.log(ratios).mean(axis=0)) <= (0.75, 0.75)).all(), ratios


def test_no_rank_carries_what_its_node_sends():
    """One rank of each node owns all that others need; its fellows carry their share of it."""
    size, hubs = 4, 10
    layout = RowLayout(np.array([0, 40, 44, 48, 52, 92, 96, 100, 104]))
    dense = np.zeros((104, 104), np.bool_)
    dense[:52, 52 : 52 + 4 * hubs] = True
    for cover, matrix in (("column", dense), ("row", dense.T)):
        plans = plans_of(sp.csr_array(matrix), layout, Algorithm(cover=cover, node_size=size))
        moved = [plan.traffic(1, torch.uint8)["node"] for plan in plans]
        first, last = moved[:4], moved[4:]
        senders, receivers = (last, first) if cover == "column" else (first, last)
        assert [each.sent_bytes for each in senders] == [hubs] * 4
        assert [each.received_bytes for each in receivers] == [hubs] * 4


def test_agents():
    rng = np.random.default_rng(0)
    for size in (1, 2, 4, 7):
        blocks, homes, candidates = rng.integers(0, 3, 60), rng.integers(0, size, 60) // 2, []
        for _ in range(60):
            candidates.append(sorted(rng.choice(size, rng.integers(1, size + 1), replace=False)))
        begin = np.cumsum([0, *map(len, candidates)])
        found = choose_agents(
            blocks, homes, begin, np.concatenate(candidates).astype(np.int64), 3, size
        )
        for block in range(3):
            mine = np.flatnonzero(blocks == block)
            expected = agents_of([homes[i] for i in mine], [candidates[i] for i in mine], size)
            assert found[mine].tolist() == expected
