"""Plans by themselves: multiplied out they are A, and made offline they are what ranks agree on."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spgnn import CSR, Axes, Mesh, RowLayout
from spgnn.comm import connect
from spgnn.exchange import COVERS, Algorithm, Plan, Stage, build, build_all, grid
from spgnn.exchange.plan import Turned, Volume
from spgnn.layout import Axes as LayoutAxes
from spgnn.partition import report
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

WAYS = [("oblivious", "column"), *(("sparsity-aware", cover) for cover in COVERS)]
N = 31
GRIDS = [(1, 1), (4, 1), (4, 2), (4, 4), (6, 2), (9, 3)]
# With shares of the columns: ranks, replicas, shares.
SHARED = [(2, 1, 2), (6, 1, 3), (6, 1, 6), (8, 2, 2), (12, 3, 2), (16, 2, 4)]


def schemes(ranks: int, c: int, way: tuple[str, str], weighted: bool, shares: int = 1) -> list:
    """The scheme of every rank."""
    A = random_matrix(N, 0.2, 7, weighted=weighted)
    layout = uneven_layout(N, ranks, seed=3)
    row_scale = torch.linspace(2, 3, N, dtype=torch.float64)
    column_scale = torch.linspace(1, 2, N, dtype=torch.float64)
    found = []
    for rank in range(ranks):
        own = slice(*layout.range(rank))
        block = block_row(A, own.start, own.stop).with_scales(row_scale[own].clone(), None)
        found.append(
            grid(
                block,
                layout,
                Axes.grid(ranks, c, shares),
                rank,
                strategy=way[0],
                cover=way[1],
                column_scale=column_scale[own].clone(),
            )
        )
    return found


def dense(block: CSR) -> np.ndarray:
    return block.to_scipy().toarray().astype(np.float64)


def stage_matrix(stages: dict[int, Stage], axes: Axes) -> np.ndarray:
    """One stage of some ranks as one matrix, from L + R·Π·S; hops may relay what others brought."""
    ends = np.cumsum([0, *(stage.local.shape[1] for stage in stages.values())])
    columns = {rank: slice(*ends[i : i + 2]) for i, rank in enumerate(stages)}

    def in_place(block: CSR, rank: int) -> np.ndarray:
        whole = np.zeros((block.shape[0], ends[-1]))
        whole[:, columns[rank]] = dense(block)
        return whole

    arrived = {rank: np.zeros((0, ends[-1])) for rank in stages}
    for number in range(max(len(stage.hops) for stage in stages.values())):
        hops = {rank: stage.hops[number] for rank, stage in stages.items()}
        sent = {rank: in_place(hop.send, rank) for rank, hop in hops.items()}
        for rank, hop in hops.items():
            if hop.relay is not None:
                sent[rank] += dense(hop.relay) @ arrived[rank]
        for rank, hop in hops.items():
            group = axes.group(hop.axis, rank)
            me, got = group.index(rank), [arrived[rank]]
            for peer, count in zip(group, hop.counts.recv, strict=True):
                theirs = hops[peer]
                assert theirs.counts.send[me] == count
                # A broadcast is one block for everyone; an all-to-allv has one for each.
                first = 0 if theirs.broadcast else int(sum(theirs.counts.send[:me]))
                got.append(sent[peer][first : first + count])
            assert hop.counts.send[me] == hop.counts.recv[me] == 0
            assert hop.counts.largest >= max(hop.counts.send)
            arrived[rank] = np.concatenate(got)
    rows = []
    for rank, stage in stages.items():
        block = in_place(stage.local, rank)
        if stage.remote is not None:
            block += dense(stage.remote) @ arrived[rank]
        rows.append(block)
    return np.concatenate(rows)


def turned_matrix(stages: dict[int, Turned], axes: Axes) -> np.ndarray:
    """The same for turns: every share of the columns is multiplied by the same matrix."""
    for rank, stage in stages.items():
        for turn, rows in ((stage.before, stage.shape[1]), (stage.after, stage.shape[0])):
            group = axes.group(turn.axis, rank)
            assert group[turn.me] == rank
            assert turn.rows[turn.me] == rows
            for width in (0, 1, 5, 17):
                mine = turn.counts(width)
                assert mine.sent == rows * width
                for peer, count in zip(group, mine.send, strict=True):
                    other = stages[peer].before if turn is stage.before else stages[peer].after
                    theirs = other.counts(width)
                    assert theirs.recv[turn.me] == count <= mine.largest == theirs.largest
    found = []
    for share in range(axes.size(stage.before.axis)):
        held = {
            rank: stage.stages
            for rank, stage in stages.items()
            if axes.coordinate(stage.before.axis, rank) == share
        }
        found.append(product_of(held, axes))
    assert all(np.array_equal(found[0], matrix) for matrix in found)
    return found[0]


def product_of(held: dict[int, tuple], axes: Axes) -> np.ndarray:
    """The product of all stages of some ranks."""
    whole = None
    for stages in zip(*held.values(), strict=True):
        matrix_of = turned_matrix if isinstance(stages[0], Turned) else stage_matrix
        factor = matrix_of(dict(zip(held, stages, strict=True)), axes)
        whole = factor if whole is None else factor @ whole
    return whole


def multiplied_out(plans: list[Plan], axes: Axes) -> np.ndarray:
    """The product of all stages of all ranks."""
    return product_of({rank: plan.stages for rank, plan in enumerate(plans)}, axes)


@pytest.mark.parametrize(("ranks", "c"), GRIDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_plans_multiply_out_to_the_matrix(ranks, c, weighted, way):
    plans = build_all(schemes(ranks, c, way, weighted), Axes.grid(ranks, c))
    A = random_matrix(N, 0.2, 7, weighted=weighted).toarray()
    A = np.linspace(2, 3, N)[:, None] * A * np.linspace(1, 2, N)
    np.testing.assert_allclose(multiplied_out(plans, Axes.grid(ranks, c)), A, rtol=1e-12)
    if c == 1:
        layout = uneven_layout(N, ranks, seed=3)
        for rank, plan in enumerate(plans):
            own = slice(*layout.range(rank))
            assert plan.stages[0].local.nnz == np.count_nonzero(A[own, own])


@pytest.mark.parametrize(("ranks", "c", "shares"), SHARED)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_plans_with_shares_of_the_columns_multiply_out(ranks, c, shares, way):
    weighted = ranks % 4 == 0
    axes = Axes.grid(ranks, c, shares)
    plans = build_all(schemes(ranks, c, way, weighted, shares), axes)
    A = random_matrix(N, 0.2, 7, weighted=weighted).toarray()
    A = np.linspace(2, 3, N)[:, None] * A * np.linspace(1, 2, N)
    np.testing.assert_allclose(multiplied_out(plans, axes), A, rtol=1e-12)


@pytest.mark.parametrize("algo", ["1d", "1.5d", "feature", "2d", "3d"])
def test_plans_of_all_ranks_in_one_process(algo):
    """Shared where ranks have the same; each is what its rank would make, of some rows too."""
    ranks, c = 12, 1 if algo == "1d" else 3
    algorithm = Algorithm(algo, c, cover="minimum")
    A, layout = random_matrix(N, 0.2, 7, weighted=True), uneven_layout(N, ranks, seed=3)
    scale = torch.linspace(1, 2, N, dtype=torch.float64)
    own = [slice(*layout.range(rank)) for rank in range(ranks)]
    for step in (1, 2):
        blocks = [
            CSR.from_scipy(A[rows][::step]).with_scales(scale[rows][::step].clone(), None)
            for rows in own
        ]
        found = algorithm.plans(blocks, layout, scale)
        schemes = [
            algorithm.scheme(block, layout, rank, scale[own[rank]])
            for rank, block in enumerate(blocks)
        ]
        assert all(map(same, found, build_all(schemes, algorithm.axes(ranks))))
        # The nonzeros of A, once for each share, and those that select what is sent.
        work = sum(plan.multiplications(7) for plan in found)
        assert work >= 7 * A[np.concatenate([np.arange(N)[rows][::step] for rows in own])].nnz


def same(a: object, b: object) -> bool:
    """Whether two records hold the same numbers."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, np.ndarray | tuple) and not (isinstance(a, tuple) and a and fields_of(a[0])):
        return np.array_equal(a, b)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    names = fields_of(a)
    if names and type(a) is not type(b):
        return False
    return all(same(getattr(a, n), getattr(b, n)) for n in names) if names else a == b


def fields_of(record: object) -> list[str]:
    return [f.name for f in fields(record)] if hasattr(record, "__dataclass_fields__") else []


def live_plans(rank: int, ranks: int, c: int, shares: int, weighted: bool) -> list[bytes]:
    mesh = Mesh.build(connect(), Axes.grid(ranks, c, shares))
    plans = [build(schemes(ranks, c, way, weighted, shares)[rank], mesh) for way in WAYS]
    return [pickle.dumps(plan) for plan in plans]


@pytest.mark.parametrize(
    ("ranks", "c", "shares"),
    [(1, 1, 1), (3, 1, 1), (4, 2, 1), (8, 4, 1), (16, 2, 1), (3, 1, 3), (12, 2, 2)],
)
def test_offline_plans_are_the_live_ones(ranks, c, shares):
    """Every array, and so everything that follows from them: bytes, messages, memory."""
    weighted = ranks % 2 == 0
    by_rank = run_ranks(live_plans, ranks, ranks, c, shares, weighted)
    for number, way in enumerate(WAYS):
        axes = Axes.grid(ranks, c, shares)
        offline = build_all(schemes(ranks, c, way, weighted, shares), axes)
        for rank, plan in enumerate(offline):
            live = pickle.loads(by_rank[rank][number])
            assert same(plan, live), (way, rank)
            assert plan.volume == live.volume
            assert plan.nonzeros == live.nonzeros
            assert plan.traffic(17) == live.traffic(17)
            assert plan.traffic(17, adjoint=True) == live.traffic(17, adjoint=True)
            assert plan.memory(17) == live.memory(17)
        assert not same(offline[0], Plan((Stage(CSR.from_scipy(sp.eye_array(3))),)))


def test_memory_is_what_the_arrays_take():
    (plan, *_) = build_all(schemes(4, 2, WAYS[3], True), Axes.grid(4, 2))
    items = plan.memory(16, torch.float64)
    blocks = [block for stage in plan.stages for block in stage.blocks()]
    assert items["matrix"] == sum(block.nbytes for block in blocks)
    plan.ready()
    sides = {id(a): a.nbytes for block in blocks for a in others_of(block)}
    assert items["transpose"] == sum(sides.values())
    rows = sum(hop.send.shape[0] + hop.volume.receive for hop in plan.hops)
    assert items["buffers"] == rows * 16 * 8


def others_of(block: CSR) -> list[torch.Tensor]:
    """The arrays that a block's transpose added, if it was made."""
    if "_other_side" not in vars(block.pattern):
        return []
    other = block.pattern.T
    arrays = [] if other is block.pattern else [other.indptr, other.indices]
    return arrays if block.values is None else [*arrays, block.pattern.order, block.T.values]


@st.composite
def partitioned(draw):
    """A directed pattern and the part of each vertex; some parts may be empty."""
    n, parts = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    entries = draw(st.lists(st.tuples(*[st.integers(0, n - 1)] * 2), max_size=60))
    labels = np.array(draw(st.lists(st.integers(0, parts - 1), min_size=n, max_size=n)))
    A = np.eye(n, dtype=np.bool_)
    for i, j in entries:
        A[i, j] = True
    return A, labels, parts


@given(partitioned())
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_volume_is_what_the_partition_report_predicts(case):
    """Of every cover, in total; and of the column cover for the busiest rank, both ways."""
    A, labels, parts = case
    predicted = report(sp.csr_array(A), labels, parts=parts)
    layout = RowLayout.from_labels(labels, parts)
    order = np.argsort(labels, kind="stable")
    moved, axes = sp.csr_array(A[order][:, order]), LayoutAxes.grid(parts)
    for cover in COVERS:
        plans = build_all(
            [
                grid(block_row(moved, *layout.range(rank)), layout, axes, rank, cover=cover)
                for rank in range(parts)
            ],
            axes,
        )
        volumes = [plan.volume for plan in plans]
        total = sum(volumes, Volume())
        assert total.send == total.receive == predicted["cover_volume"][cover]
        if cover == "column":
            assert total.send == predicted["total_volume"]
            assert max(volume.send for volume in volumes) == predicted["max_send"]
            assert max(volume.receive for volume in volumes) == predicted["max_recv"]


def test_one_rank_sends_nothing():
    for way in WAYS:
        (plan,) = build_all(schemes(1, 1, way, True), Axes.grid(1))
        assert plan.hops == ()
        assert plan.volume == Volume(0, 0)
        assert plan.traffic(16) == {}
