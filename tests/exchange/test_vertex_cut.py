"""Vertex cuts: plans multiply out to A, are the live ones offline, and move what the cut says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import CSR, Axes, InputError, RowLayout
from spgnn.comm import Communicator, connect
from spgnn.config import TrainConfig
from spgnn.data.load import load_dataset
from spgnn.exchange import Algorithm, build_all
from spgnn.exchange.plan import Volume
from spgnn.frontend.from_config import training_graph
from spgnn.partition import cut_vertices, write_labels
from spgnn.partition.labels import write_edge_labels
from spgnn.partition.vertex_cut import VertexCut
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.training import reference_history, run, write_dataset

N = 37
CUT = Algorithm("vertex-cut")


def schemes(ranks: int, kind: str) -> tuple[list, np.ndarray, RowLayout, np.ndarray | None]:
    """The scheme of every rank; A, its layout, and where its nonzeros are multiplied if known."""
    sparse, layout = random_matrix(N, 0.2, 7, weighted=True), uneven_layout(N, ranks, seed=3)
    A = sparse.toarray()
    labels = None
    if kind != "none":
        low = ranks - 1 if kind == "last" else 0  # all at one rank that may own nothing
        labels = np.random.default_rng(ranks).integers(low, ranks, sparse.nnz)
    begins, found = sparse.indptr, []
    for rank in range(ranks):
        first, last = layout.range(rank)
        mine = None
        if labels is not None:
            mine = torch.from_numpy(labels[begins[first] : begins[last]])
        found.append(CUT.scheme(block_row(sparse, first, last), layout, rank, edge_labels=mine))
    return found, A, layout, labels


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
    parts, A, layout, labels = schemes(ranks, kind)
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


def of_lists(columns: torch.Tensor, rows: int, n: int) -> CSR:
    return CSR.of(torch.arange(rows + 1) * 4, columns, (rows, n))


def test_offline_plans_of_thousands_of_ranks_take_memory_by_nonzeros():
    """No array of any rank is as long as rows × ranks."""
    ranks, n = 4096, 9000
    layout, rng = RowLayout.even(n, ranks), np.random.default_rng(0)
    columns = torch.from_numpy(np.sort(rng.integers(0, n, (n, 4)), axis=1).ravel())
    for rank in range(2):
        first, last = layout.range(rank)
        block = of_lists(columns[4 * first : 4 * last], last - first, n)
        labels = torch.from_numpy(rng.integers(0, ranks, block.nnz))
        (lengths, _), (dealt, _) = next(CUT.scheme(block, layout, rank, edge_labels=labels)).arrays
        assert lengths.shape[0] <= dealt.shape[0] <= 4 * 3


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
    libra = training_graph(config.but(partition="libra", edges=None), comm)
    A = training_graph(config, comm).A
    assert libra.A.volume == A.volume
    assert libra.whole.vertex_ids.equal(training_graph(config, comm).whole.vertex_ids)
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
        ({"algo": "1d"}, "edges needs --algo vertex-cut"),
        ({"partition": "libra"}, "libra needs --algo vertex-cut, and neither algorithm.edges"),
        ({"partition": "libra", "edges": None, "algo": "1d"}, "libra needs --algo vertex-cut"),
        ({"edges": "nowhere.npy"}, "nowhere.npy: no such file"),
        ({"partition": "block"}, "61 edge labels for"),
    ],
)
def test_edge_labels_that_do_not_fit_a_run_are_refused(tmp_path, options, message):
    path = write_dataset(tmp_path / "graph.npz")
    write_edge_labels(tmp_path / "edges.npy", np.zeros(61, int), 1)
    given = {"dataset": path, "algo": "vertex-cut", "edges": str(tmp_path / "edges.npy")}
    with pytest.raises(InputError, match=message):  # noqa: PT012  (either may say it)
        config = TrainConfig.of(**given | options)
        config.check(1)
        training_graph(config, connect())


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
    block = of_lists(torch.tensor([0, 1, 2, 3]), 1, 4)
    with pytest.raises(InputError, match=message):
        next(CUT.scheme(block, RowLayout(np.array([0, 1, 4])), 0, edge_labels=labels))
