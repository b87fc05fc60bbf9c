"""Plans of every scheme: multiplied out they are A; made offline they are what ranks agree on."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from math import ceil

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.sparse.csgraph import maximum_bipartite_matching

from spgnn import CSR, Axes, DistMatrix, InputError, Mesh, RowLayout
from spgnn._native import minimum_vertex_cover
from spgnn.comm import connect
from spgnn.exchange import Algorithm, Plan, Stage, build, build_all, needs_of
from spgnn.exchange.needs import COVERS
from spgnn.exchange.plan import Turned, Volume
from spgnn.partition import report
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

N = 37


def ways(*algorithms: Algorithm) -> list[Algorithm]:
    """The same under every cover, and with all rows sent to everyone where that exists."""
    found = []
    for one in algorithms:
        how = vars(one)
        found += [Algorithm(**{**how, "cover": cover}) for cover in COVERS]
        if one.node_size == 1 and one.algo != "vertex-cut" and one.schedule == "overlap":
            found.append(Algorithm(**{**how, "exchange": "oblivious"}))
        if one.schedule == "overlap":
            found += [Algorithm(**{**how, "cover": cover, "relays": True}) for cover in COVERS]
    return found


# Ranks, and who computes what on them.
SCHEMES = [
    (1, ways(Algorithm(), Algorithm("vertex-cut"))),
    (4, ways(Algorithm(), Algorithm("1.5d", 4), Algorithm(node_size=2), Algorithm(node_size=4))),
    (4, ways(Algorithm("1.5d-replicated", 2))),
    (5, ways(Algorithm("vertex-cut"))),
    (6, ways(Algorithm("feature", 6), Algorithm("1.5d", 2), Algorithm(node_size=3))),
    (8, ways(Algorithm("3d"), *(Algorithm("1.5d", c, node_size=4) for c in (2, 4)))),
    (8, ways(Algorithm(node_size=4, groups=(2,)), Algorithm("1.5d", 2, node_size=8, groups=(4,)))),
    (9, ways(Algorithm("2d"), Algorithm("1.5d", 3), Algorithm(node_size=3))),
    (12, ways(Algorithm("3d"), Algorithm("feature", 3), Algorithm(node_size=4))),
    (12, ways(Algorithm(node_size=6, groups=(3,)), Algorithm("1.5d", 2, node_size=6, groups=(2,)))),
    (16, ways(Algorithm("1.5d-replicated", 4), Algorithm(node_size=8, groups=(2, 4)))),
    (16, ways(Algorithm("3d", 4), Algorithm("vertex-cut"), Algorithm("1.5d", 2, node_size=4))),
]  # fmt: skip
CASES = [(ranks, algorithm) for ranks, algorithms in SCHEMES for algorithm in algorithms]


def schemes(
    algorithm: Algorithm, ranks: int, *, weighted: bool = True, some: bool = False, labels: str = ""
) -> tuple[list, np.ndarray, list[np.ndarray]]:
    """The scheme of every rank, the scaled matrix, and which of its rows each makes."""
    A, layout = random_matrix(N, 0.2, 7, weighted=weighted), uneven_layout(N, ranks, seed=3)
    r, s = (torch.linspace(low, low + 1, N, dtype=torch.float64) for low in (2, 1))
    # Some rows only: every third one, and on one rank none.
    rows = [np.arange(*layout.range(rank)) for rank in range(ranks)]
    if some:
        rows = [each[:0] if rank == 2 else each[rank % 3 :: 3] for rank, each in enumerate(rows)]
    found = []
    for rank, made in enumerate(rows):
        own = slice(*layout.range(rank))
        block = CSR.from_scipy(A[made]).with_scales(r[made].clone(), None)
        options = {}
        if labels:
            rng = np.random.default_rng(rank)
            low = ranks - 1 if labels == "last" else 0
            options["edge_labels"] = torch.from_numpy(rng.integers(low, ranks, block.nnz))
        found.append(algorithm.scheme(block, layout, rank, s[own].clone(), **options))
    return found, r.numpy()[:, None] * A.toarray() * s.numpy(), rows


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


@pytest.mark.parametrize(("ranks", "algorithm"), CASES, ids=str)
def test_plans_multiply_out_to_the_matrix(ranks, algorithm):
    """Of all rows, with values and without; of some rows, as layers need them."""
    axes = algorithm.axes(ranks)
    for how in ({"weighted": True}, {"weighted": False}, {"some": True}):
        made, A, rows = schemes(algorithm, ranks, **how)
        plans = build_all(made, axes)
        found = multiplied_out(plans, axes)
        np.testing.assert_allclose(found, A[np.concatenate(rows)], rtol=1e-12, atol=1e-14)
        if algorithm.algo == "1d" and algorithm.node_size == 1 and "some" not in how:
            for own, plan in zip(rows, plans, strict=True):
                assert plan.stages[0].local.nnz == np.count_nonzero(A[np.ix_(own, own)])


@pytest.mark.parametrize("ranks", [1, 4, 16])
@pytest.mark.parametrize("labels", ["random", "last"])
def test_nonzeros_are_multiplied_where_labels_say(ranks, labels):
    for cover in COVERS:
        made, A, _ = schemes(Algorithm("vertex-cut", cover=cover), ranks, labels=labels)
        found = multiplied_out(build_all(made, Axes.grid(ranks)), Axes.grid(ranks))
        np.testing.assert_allclose(found, A, rtol=1e-12)


SLOW, PEERS = pytest.mark.slow, Algorithm(schedule="peers", buffer=96)
LIVE = [
    (1, ways(Algorithm())),
    (3, ways(Algorithm("feature", 3), Algorithm("vertex-cut"), PEERS)),
    (4, ways(Algorithm("1.5d", 2), Algorithm(node_size=2), Algorithm("2d"))),
    pytest.param(
        8,
        ways(Algorithm("3d"), Algorithm("vertex-cut"), Algorithm("1.5d", 2, node_size=4)),
        marks=SLOW,
    ),
    pytest.param(16, ways(Algorithm("2d")), marks=SLOW),
]


def live_plans(rank: int, algorithms: list[Algorithm]) -> list[bytes]:
    comm = connect()
    return [
        pickle.dumps(build(schemes(one, comm.size)[0][rank], Mesh.build(comm, one.axes(comm.size))))
        for one in algorithms
    ]


@pytest.mark.parametrize(("ranks", "algorithms"), LIVE, ids=lambda case: str(case)[:2])
def test_offline_plans_are_the_live_ones(ranks, algorithms):
    """Every array, and so everything that follows from them: bytes, messages, memory."""
    by_rank = run_ranks(live_plans, ranks, algorithms)
    for number, algorithm in enumerate(algorithms):
        offline = build_all(schemes(algorithm, ranks)[0], algorithm.axes(ranks))
        for rank, plan in enumerate(offline):
            live = pickle.loads(by_rank[rank][number])
            assert same(plan, live), (algorithm, rank)
            for adjoint in (False, True):
                assert plan.traffic(17, adjoint=adjoint) == live.traffic(17, adjoint=adjoint)
            assert plan.memory(17) == live.memory(17)
        if algorithm.schedule == "peers":
            assert len({plan.hops[0].rounds.most for plan in offline if plan.hops}) == 1
        assert not same(offline[0], Plan((Stage(CSR.from_scipy(sp.eye_array(3))),)))


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
        made = [
            algorithm.scheme(block, layout, rank, scale[own[rank]])
            for rank, block in enumerate(blocks)
        ]
        assert all(map(same, found, build_all(made, algorithm.axes(ranks))))
        # The nonzeros of A, once for each share, and those that select what is sent.
        wanted = np.concatenate([np.arange(N)[rows][::step] for rows in own])
        assert sum(plan.nonzeros for plan in found) >= algorithm.copies(ranks)[1] * A[wanted].nnz


def test_memory_is_what_the_arrays_take():
    algorithm = Algorithm("1.5d", 2, cover="minimum")
    (plan, *_) = build_all(schemes(algorithm, 4)[0], Axes.grid(4, 2))
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
    moved = sp.csr_array(A[order][:, order])
    for cover in COVERS:
        blocks = [block_row(moved, *layout.range(rank)) for rank in range(parts)]
        volumes = [plan.volume for plan in Algorithm(cover=cover).plans(blocks, layout)]
        total = sum(volumes, Volume())
        assert total.send == total.receive == predicted["cover_volume"][cover]
        if cover == "column":
            assert total.send == predicted["total_volume"]
            assert max(volume.send for volume in volumes) == predicted["max_send"]
            assert max(volume.receive for volume in volumes) == predicted["max_recv"]
        if parts == 1:
            assert total == Volume(0, 0)


# algo, c, ranks: block rows × replicas × shares of the columns.
SHAPES = [
    ("1d", 1, 6, (6, 1, 1)),
    ("1.5d", 3, 6, (2, 3, 1)),
    ("feature", 1, 6, (6, 1, 1)),
    ("feature", 3, 6, (2, 1, 3)),
    ("feature", 6, 6, (1, 1, 6)),
    ("2d", 1, 16, (4, 4, 1)),
    ("2d", 1, 12, (4, 3, 1)),
    ("2d", 1, 7, (7, 1, 1)),
    ("2d", 6, 12, (2, 6, 1)),
    ("3d", 1, 8, (2, 2, 2)),
    ("3d", 1, 12, (3, 2, 2)),
    ("3d", 1, 4096, (16, 16, 16)),
    ("3d", 1, 7, (7, 1, 1)),
    ("3d", 4, 16, (2, 2, 4)),
    ("3d", 2, 2, (1, 1, 2)),
]


@pytest.mark.parametrize(("algo", "c", "ranks", "shape"), SHAPES)
def test_how_ranks_are_arranged(algo, c, ranks, shape):
    algorithm = Algorithm(algo, c)
    algorithm.check(ranks)
    named = dict.fromkeys(("row", "replica", "feature"), 1)
    axes = algorithm.axes(ranks)
    named |= dict(zip(axes.names, axes.sizes, strict=True))
    assert tuple(named.values()) == shape
    assert algorithm.parts(ranks) == shape[0]


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        *((Algorithm(algo, 4), "^--c 4 must divide the number of ranks, which is 6$")
          for algo in ("1.5d", "feature", "2d", "3d")),
        (Algorithm("vertex-cut", exchange="oblivious"), "--exchange oblivious needs --algo 1d"),
        (Algorithm("vertex-cut", 2), r"--c 2 needs --algo 1\.5d"),
        (Algorithm(node_size=4), "--hierarchy 4 must divide the number of ranks, which is 6"),
        (Algorithm("1.5d-replicated", 2), "--c whose square divides 6 ranks, not 2"),
        (Algorithm("feature", 2, node_size=2), "--hierarchy 2 needs --algo 1d or 1.5d"),
        (Algorithm("1.5d", 3, node_size=2), "--hierarchy 2 must be a multiple of --c 3"),
        (Algorithm(exchange="oblivious", node_size=2), "--hierarchy 2 needs --exchange"),
        (Algorithm(node_size=0), "--hierarchy must be an integer of at least 1"),
        (Algorithm(node_size=6, groups=(4,)), "--hierarchy 4,6: 6 must be a multiple of 4"),
        (Algorithm("1.5d", 2, node_size=6, groups=(3,)), "--hierarchy 3,6: 3 must be a multiple"),
        (Algorithm(groups=(2,)), "need node_size"),
        (Algorithm(schedule="peers"), "--schedule peers needs --buffer BYTES"),
        (Algorithm(buffer=7), "--buffer 7 needs --schedule peers"),
        (Algorithm(schedule="pears", buffer=7), "schedule pears: choose one of overlap, peers"),
        (Algorithm(exchange="oblivious", schedule="peers", buffer=7), "peers needs --exchange"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_refused(algorithm, message):
    with pytest.raises(InputError, match=message):
        algorithm.check(6)


def test_axes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="4 ranks a node must divide the number of ranks 6"):
        Axes.of_nodes(6, 4)
    with pytest.raises(InputError, match="c = 3 must divide the 2 ranks of a node"):
        Axes.of_nodes(6, 2, 3)

    def refused(rank: int) -> str:
        comm = connect()
        block = block_row(random_matrix(4, 0.5, 0, weighted=False), 2 * rank, 2 * rank + 2)
        layout = uneven_layout(4, 1, 0).split(2)
        with pytest.raises(InputError) as error:
            DistMatrix.build(block, layout, Mesh.grid(comm), algorithm=Algorithm("feature", 2))
        return str(error.value)

    for said in run_ranks(refused, 2):
        assert "needs a mesh of" in said
        assert str(Axes.grid(2, 1, 2)) in said


# Relays bring the busiest rank down to the mean where they can, and touch nothing else.


def with_and_without(A: sp.csr_array, ranks: int, **how) -> tuple[list[Plan], list[Plan]]:
    """The plans of all ranks, without relays and with them."""
    layout = RowLayout.even(A.shape[0], ranks)
    blocks = [CSR.from_scipy(A[slice(*layout.range(rank))]) for rank in range(ranks)]
    algorithm = Algorithm(**how)
    return tuple(replace(algorithm, relays=on).plans(blocks, layout) for on in (False, True))


def rows_of(plans: list[Plan], hop: int | None = None) -> np.ndarray:
    """Rows that each rank sends and receives, [ranks, 2]; in one hop, or in all."""
    chosen = slice(None) if hop is None else slice(hop, hop + 1)
    volumes = [[each.volume for each in plan.hops[chosen]] for plan in plans]
    return np.array([[sum(v.send for v in e), sum(v.receive for v in e)] for e in volumes])


def busy(ranks: int, size: int, *, sends: bool) -> sp.csr_array:
    """Some rows of rank 0 are needed by all, or need all; others have a few neighbours."""
    n, rng = ranks * size, np.random.default_rng(ranks)
    A = rng.random((n, n)) < 4 / n
    hubs = A[:, : size // 4]
    hubs |= rng.random(hubs.shape) < 0.2
    np.fill_diagonal(A, True)
    return sp.csr_array(A if sends else A.T)


@pytest.mark.parametrize(("sends", "cover"), [(True, "column"), (False, "row"), (False, "minimum")])
def test_the_busiest_rank_comes_down(sends, cover):
    """Owners of hubs send less, ranks that make hubs receive less; the total stays."""
    plain, ours = with_and_without(busy(16, 40, sends=sends), 16, cover=cover)
    before, after, first, second = rows_of(plain), rows_of(ours), rows_of(ours, 0), rows_of(ours, 1)
    mean = before[:, 0].mean()
    assert after.sum(0).tolist() == before.sum(0).tolist()
    assert before.max() > 1.75 * mean
    side = int(not sends)
    assert first[:, side].max() <= max(ceil(1.05 * mean), before[:, 1 - side].max())
    # Few rows more than what is above, spread over all.
    above = np.maximum(before[:, side] - 1.05 * mean, 0).sum()
    assert second[:, side].sum() <= 1.2 * above + len(plain)
    assert first.max() + second.max() <= 1.1 * max(1.05 * mean, before[:, 1 - side].max())


def test_nobody_hands_rows_on_where_that_helps_nobody():
    """The plan is the same: no second hop, no message more."""
    ring = sp.csr_array(sp.diags_array([1.0, 1.0], offsets=[1, -1], shape=(60, 60)))
    for cover in ("column", "minimum"):
        plain, ours = with_and_without(ring, 6, cover=cover)
        assert all(map(same, plain, ours))
    # What a rank receives under column covers no relay takes from it, so sent rows stay as well.
    plain, ours = with_and_without(busy(8, 20, sends=False), 8)
    assert all(map(same, plain, ours))


def test_relays_need_the_rows_that_they_hand_on():
    """Under column covers each rank receives the rows that it received without relays, once."""
    plain, ours = with_and_without(busy(8, 40, sends=True), 8)
    for mine, theirs in zip(ours, plain, strict=True):
        assert len(mine.hops) == 2
        assert mine.hops[1].passed_rows is not None
        assert mine.volume.receive == theirs.volume.receive
        assert mine.stages[0].remote.nnz == theirs.stages[0].remote.nnz


# The minimum cover is a cover, and as small as a maximum matching (König).

patterns = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda shape: arrays(np.bool_, shape, elements=st.booleans())
)


@given(patterns)
def test_cover_is_minimum(pattern):
    A = sp.csr_array(pattern)
    rows, columns = minimum_vertex_cover(
        A.indptr.astype(np.int64), A.indices.astype(np.int64), A.shape[1]
    )
    covered = rows.astype(bool)[:, None] | columns.astype(bool)[None, :]
    assert covered[pattern].all()
    matching = (maximum_bipartite_matching(A) >= 0).sum()
    assert rows.sum() + columns.sum() == matching


@given(patterns, st.integers(2, 4), st.integers(0, 2**32))
def test_blocks_are_covered_independently(pattern, parts, seed):
    """What each owner is asked for is as little as its block allows."""
    columns = pattern.shape[1]
    cuts = np.sort(np.random.default_rng(seed).integers(0, columns + 1, parts - 2))
    # The rank that asks owns nothing, so that all is remote.
    layout = RowLayout(np.concatenate(([0, 0], cuts, [columns])))
    block = CSR.from_scipy(sp.csr_array(pattern))
    for cover in COVERS:
        L, R, asked = needs_of(block, layout, range(parts), 0, cover)
        assert L.nnz == 0
        assert asked.rows.sum() == R.shape[1]
        for part in range(parts):
            owned = pattern[:, slice(*layout.range(part))]
            least = (maximum_bipartite_matching(sp.csr_array(owned)) >= 0).sum()
            expected = {"column": owned.any(axis=0).sum(), "row": owned.any(axis=1).sum()}
            assert asked.rows[part] == expected.get(cover, least)


def test_a_long_augmenting_path_does_not_exhaust_the_stack():
    # A path r0-c0-r1-c1-… whose greedy matching must be flipped end to end.
    n = 200_000
    rows = np.concatenate((np.arange(n), np.arange(1, n)))
    columns = np.concatenate((np.arange(n), np.arange(n - 1)))
    A = sp.csr_array((np.ones(2 * n - 1), (rows, columns)), shape=(n, n))
    row_cover, column_cover = minimum_vertex_cover(
        A.indptr.astype(np.int64), A.indices.astype(np.int64), n
    )
    assert int(row_cover.sum()) + int(column_cover.sum()) == n
