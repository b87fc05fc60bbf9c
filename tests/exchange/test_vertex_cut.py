"""Vertex cuts: plans multiply out to A, are the live ones offline, and move what the cut says."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import Axes, DistMatrix, InputError, Mesh, RowLayout
from spgnn.comm import Communicator, connect
from spgnn.data.load import load_dataset
from spgnn.exchange import COVERS, Algorithm, Plan, build, build_all
from spgnn.exchange.plan import Volume
from spgnn.exchange.schemes import vertex_cut
from spgnn.partition import cut_vertices, write_labels
from spgnn.partition.labels import write_edge_labels
from spgnn.partition.vertex_cut import VertexCut
from spgnn.sparse import take_rows
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, prepare
from tests.exchange.test_plan import multiplied_out, same
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import TOLERANCE, WIDTHS, Case, moved, problem
from tests.training import reference_history, run, write_dataset

N = 37


def edge_labels(A: np.ndarray, ranks: int, kind: str) -> np.ndarray | None:
    """Labels of all nonzeros, row after row; None where the scheme has to find them."""
    nnz = np.count_nonzero(A)
    if kind == "none":
        return None
    if kind == "last":  # all nonzeros at one rank that may own nothing
        return np.full(nnz, ranks - 1, np.int16)
    return np.random.default_rng(ranks).integers(0, ranks, nnz).astype(np.int16)


def schemes(
    ranks: int, weighted: bool, kind: str, cover: str = "column", wanted: np.ndarray | None = None
) -> tuple[list, np.ndarray, RowLayout, np.ndarray | None]:
    """The scheme of every rank; the rows of A that they make; layout and labels."""
    sparse = random_matrix(N, 0.2, 7, weighted=weighted)
    A = sparse.toarray().astype(np.float64)
    layout = uneven_layout(N, ranks, seed=3)
    labels = edge_labels(A, ranks, kind)
    r, c = (torch.linspace(low, low + 1, N, dtype=torch.float64) for low in (2, 1))
    begins = np.concatenate(([0], np.cumsum((A != 0).sum(axis=1))))
    made = np.ones(N, bool) if wanted is None else wanted
    found = []
    for rank in range(ranks):
        first, last = layout.range(rank)
        block = block_row(sparse, first, last).with_scales(r[first:last].clone(), None)
        rows = np.flatnonzero(made[first:last])
        block = take_rows(block, torch.from_numpy(rows))
        mine = None
        if labels is not None:
            places = [np.arange(begins[first + i], begins[first + i + 1]) for i in rows]
            mine = torch.from_numpy(labels[np.concatenate([*places, np.zeros(0, int)])])
        scale = c[first:last].clone()
        found.append(vertex_cut(block, layout, rank, labels=mine, cover=cover, column_scale=scale))
    return found, (r.numpy()[:, None] * A * c.numpy())[made], layout, labels


@pytest.mark.parametrize("ranks", [1, 4, 16])
@pytest.mark.parametrize("kind", ["none", "random", "last"])
@pytest.mark.parametrize("weighted", [False, True])
def test_plans_multiply_out_to_the_matrix(ranks, kind, weighted):
    for cover in COVERS:
        parts, A, _, _ = schemes(ranks, weighted, kind, cover)
        plans = build_all(parts, Axes.grid(ranks))
        np.testing.assert_allclose(multiplied_out(plans, Axes.grid(ranks)), A, rtol=1e-12)


@pytest.mark.parametrize("kind", ["none", "random"])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_some_rows_of_the_matrix_are_made_alone(kind, share):
    wanted = np.random.default_rng(1).random(N) < share
    parts, A, layout, _ = schemes(5, True, kind, wanted=wanted)
    plans = build_all(parts, Axes.grid(5))
    np.testing.assert_allclose(multiplied_out(plans, Axes.grid(5)), A, rtol=1e-12)
    for rank, plan in enumerate(plans):
        own = slice(*layout.range(rank))
        assert plan.shape == (wanted[own].sum(), layout.sizes[rank])


def expected_volumes(
    A: np.ndarray, goes: np.ndarray, layout: RowLayout
) -> tuple[list[Volume], np.ndarray]:
    """Rows sent and received by each rank, and nonzeros multiplied, from their definition."""
    ranks = layout.parts
    owner = layout.owner(np.arange(len(A)))
    rows, columns = np.nonzero(A)
    send, receive = np.zeros(ranks, int), np.zeros(ranks, int)
    for p, v in {(p, j) for p, j in zip(goes, columns, strict=True) if owner[j] != p}:
        send[owner[v]] += 1
        receive[p] += 1
    for p, v in {(p, i) for p, i in zip(goes, rows, strict=True) if owner[i] != p}:
        send[p] += 1
        receive[owner[v]] += 1
    volumes = [Volume(int(s), int(r)) for s, r in zip(send, receive, strict=True)]
    return volumes, np.bincount(goes, minlength=ranks)


@pytest.mark.parametrize("kind", ["none", "random", "last"])
@pytest.mark.parametrize("ranks", [1, 4, 9])
def test_what_a_plan_moves_is_what_the_cut_says(kind, ranks):
    parts, A, layout, labels = schemes(ranks, True, kind)
    if labels is None:
        degrees = [(A != 0).sum(axis=axis) for axis in (1, 0)]
        owner = layout.owner(np.arange(N))
        rows, columns = np.nonzero(A)
        at_column = degrees[1][columns] < degrees[0][rows]
        labels = np.where(at_column, owner[columns], owner[rows])
    volumes, nonzeros = expected_volumes(A, labels, layout)
    for rank, plan in enumerate(build_all(parts, Axes.grid(ranks))):
        assert plan.volume == volumes[rank]
        stage = plan.stages[0]
        blocks = [stage.local] if stage.remote is None else [stage.local, stage.remote]
        assert sum(block.nnz for block in blocks) == nonzeros[rank]


def live_plans(rank: int, ranks: int, weighted: bool) -> list[bytes]:
    mesh = Mesh.grid(connect())
    kinds = [(kind, cover) for kind in ("none", "random") for cover in ("column", "minimum")]
    plans = [build(schemes(ranks, weighted, *kind)[0][rank], mesh) for kind in kinds]
    return [pickle.dumps(plan) for plan in plans]


@pytest.mark.parametrize(("ranks", "weighted"), [(1, True), (3, False), (8, True)])
def test_offline_plans_are_the_live_ones(ranks, weighted):
    by_rank = run_ranks(live_plans, ranks, ranks, weighted)
    kinds = [(kind, cover) for kind in ("none", "random") for cover in ("column", "minimum")]
    for number, kind in enumerate(kinds):
        offline = build_all(schemes(ranks, weighted, *kind)[0], Axes.grid(ranks))
        for rank, plan in enumerate(offline):
            live: Plan = pickle.loads(by_rank[rank][number])
            assert same(plan, live), (kind, rank)
            assert plan.traffic(17) == live.traffic(17)
            assert plan.traffic(17, adjoint=True) == live.traffic(17, adjoint=True)
            assert plan.memory(17) == live.memory(17)


def test_offline_plans_of_thousands_of_ranks_take_memory_by_nonzeros():
    """No array of any rank is as long as rows × ranks."""
    ranks, n = 4096, 9000
    layout = RowLayout.even(n, ranks)
    rng = np.random.default_rng(0)
    columns = torch.from_numpy(np.sort(rng.integers(0, n, (n, 4)), axis=1).ravel())
    dealt = []
    for rank in range(2):
        first, last = layout.range(rank)
        block = block_of_lists(columns[4 * first : 4 * last], last - first, n)
        labels = torch.from_numpy(rng.integers(0, ranks, block.nnz))
        dealt.append(next(vertex_cut(block, layout, rank, labels=labels)))
    for part in dealt:
        (lengths, _), (columns, _) = part.arrays
        assert lengths.shape[0] <= columns.shape[0] <= 4 * 3


def block_of_lists(columns: torch.Tensor, rows: int, n: int):
    from spgnn import CSR

    return CSR.of(torch.arange(rows + 1) * 4, columns, (rows, n))


def check_products(comm: Communicator, seeds: range) -> int:
    """Products, adjoints and second derivatives against the dense matrix; bytes as planned."""
    mesh = Mesh.grid(comm)
    dtypes = list(TOLERANCE)
    for seed in seeds:
        n = (1, 3, comm.size, 19, 60)[seed % 5]
        layout = uneven_layout(n, comm.size, seed) if seed % 2 else RowLayout.even(n, comm.size)
        cover = COVERS[seed % len(COVERS)]
        case = Case(
            n, seed % 3 == 0, seed % 4 < 2, layout, "sparsity-aware", cover, WIDTHS[seed % 6],
            dtypes[seed % 3], (0.02, 0.15, 0.6)[seed // 2 % 3],
        )  # fmt: skip
        check_product(case, mesh, seed)
    return len(seeds)


def check_product(case: Case, mesh: Mesh, seed: int) -> None:
    comm, given = mesh.everyone, problem(case, mesh.rank)
    rng = np.random.default_rng(seed)
    if seed % 3:
        matrix = DistMatrix.build(
            given.block,
            case.layout,
            mesh,
            algorithm=Algorithm("vertex-cut", cover=case.cover),
            column_scale=given.column_scale,
        )
    else:
        labels = torch.from_numpy(rng.integers(0, comm.size, given.block.nnz))
        scheme = vertex_cut(
            given.block,
            case.layout,
            mesh.rank,
            labels=labels,
            cover=case.cover,
            column_scale=given.column_scale,
        )
        matrix = DistMatrix(build(scheme, mesh).ready(), case.layout, mesh)
    rng = np.random.default_rng(seed)
    H, G, V = np.round(rng.standard_normal((3, case.n, case.width)) * 8) / 8

    def local(whole: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(whole[given.own].copy()).to(case.dtype)

    H_local, G_local = local(H).requires_grad_(), local(G).requires_grad_()
    before = comm.ledger.copy()
    Z_local = matrix @ H_local
    forward = comm.ledger.since(before)
    before = comm.ledger.copy()
    (dH_local,) = torch.autograd.grad(Z_local, H_local, G_local, create_graph=True)
    backward = comm.ledger.since(before)
    (ddG_local,) = torch.autograd.grad(dH_local, G_local, local(V))
    for found, dense, operand in (
        (Z_local, given.dense, H),
        (dH_local, given.dense.T, G),
        (ddG_local, given.dense, V),
    ):
        error = np.abs(found.detach().double().numpy() - (dense @ operand)[given.own])
        scale = (np.abs(dense) @ np.abs(operand))[given.own]
        # Partial sums travel in the dtype of the operand: each is rounded once more.
        assert (error <= 2 * TOLERANCE[case.dtype] * scale).all(), case
    for ledger, adjoint in ((forward, False), (backward, True)):
        traffic = matrix.plan.traffic(case.width, case.dtype, adjoint=adjoint).values()
        planned = sum(t.sent_bytes for t in traffic), sum(t.received_bytes for t in traffic)
        assert moved(ledger) == planned, case


@pytest.mark.parametrize(("ranks", "cases"), [(1, 6), (4, 18), (16, 3)])
def test_products_adjoints_and_bytes(ranks, cases):
    assert set(run_ranks(lambda rank: check_products(connect(), range(cases)), ranks)) == {cases}


def check_training(comm: Communicator, path: Path, cut: VertexCut) -> None:
    """On labels from files: the history of one dense process, and the volume of the report."""
    config = TrainConfig.of(
        dataset=path,
        epochs=4,
        hidden=8,
        algo="vertex-cut",
        partition=str(path.with_name("labels")),
        edges=str(path.with_name("edges.npy")),
    )
    for variant in (config, config.but(prune=False, dropout=0.5), config.but(cover="minimum")):
        losses, report = run(variant, comm)
        np.testing.assert_allclose(losses, reference_history(path, variant), rtol=1e-4)
        assert report["volume"] == report["planned_volume"]
    A = prepare(config, comm).A
    assert A.volume.send == cut.report["together"]["send"][comm.rank]
    assert A.volume.receive == cut.report["together"]["recv"][comm.rank]


def test_training_on_labels_from_files(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    cut = cut_vertices(load_dataset(str(path)).adjacency, 4)
    write_edge_labels(tmp_path / "edges.npy", cut.edges, 4)
    write_labels(tmp_path / "labels", cut.owners)
    run_ranks(lambda rank: check_training(connect(), path, cut), 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algo": "1d"}, "--edges needs --algo vertex-cut"),
        ({"edges": "nowhere.npy"}, "nowhere.npy: no such file"),
        ({"partition": "block"}, "61 edge labels for"),
    ],
)
def test_edge_labels_that_do_not_fit_a_run_are_refused(tmp_path, options, message):
    path = write_dataset(tmp_path / "graph.npz")
    write_edge_labels(tmp_path / "edges.npy", np.zeros(61, int), 1)
    given = {"dataset": path, "algo": "vertex-cut", "edges": str(tmp_path / "edges.npy")}
    with pytest.raises(InputError, match=message):
        start(TrainConfig.of(**given | options))


def start(config: TrainConfig) -> None:
    config.check(1)
    prepare(config, connect())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 5, 8, 16])
def test_many_products(ranks):
    run_ranks(lambda rank: check_products(connect(), range(180)), ranks)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"integers \[4\], one for each nonzero"),
        (torch.zeros(4), r"integers \[4\]"),
        (torch.tensor([0, 1, 2, 0]), r"edge label 2 is outside \[0, 2\)"),
        (torch.tensor([0, 1, -1, 0]), r"edge label -1 is outside"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, message):
    block = block_of_lists(torch.tensor([0, 1, 2, 3]), 1, 4)
    with pytest.raises(InputError, match=message):
        next(vertex_cut(block, RowLayout(np.array([0, 1, 4])), 0, labels=labels))


def test_what_a_vertex_cut_cannot_do_is_refused():
    with pytest.raises(InputError, match="--algo vertex-cut needs --exchange sparsity-aware"):
        Algorithm("vertex-cut", exchange="oblivious").check(4)
    with pytest.raises(InputError, match=r"--c 2 needs --algo 1\.5d"):
        Algorithm("vertex-cut", 2).check(4)
