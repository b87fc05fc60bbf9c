"""Processing rows in chunks changes nothing but where numbers lie."""

from __future__ import annotations

import time
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn.addons.outofcore import budget
from spgnn.addons.outofcore.budget import ORDER, Budget
from spgnn.addons.outofcore.tables import Placement
from spgnn.comm import connect
from spgnn.config import InferConfig
from spgnn.data import Graph
from spgnn.data.load import load_dataset
from spgnn.data.npz import write_npz
from spgnn.data.shards import write_shards
from spgnn.direct import DirectFile
from spgnn.inference.cli import infer_to_file
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from tests.addons.outofcore.runs import SMALL, check_equal, reports, task_of
from tests.train.test_objectives import check_uneven

WIDE = {"dtype": "float64"}  # Adam magnifies the rounding of small gradients, as norms do
MAX = {"model": "sage", "aggregate": "max"}
GAT = {"model": "gat", "heads": 4, "hidden": 8}
WEIGHTED = {"dataset": "weighted", "random_features": 0, "random_classes": 3, "layers": 3}
SPARSE = {**WEIGHTED, "dataset": "sparse", "layers": 2, "feature_norm": "row"}
CASES = {
    "gcn": {},
    "gcn, dropout": {"dropout": 0.5, "layers": 3, "hidden": 5},
    "sage": {"dropout": 0.5, "input_dropout": False, "model": "sage", "prune": False, "layers": 4},
    "gin": {"model": "gin", "norm": "node", "residual": True, "layers": 3, "weight_decay": 0.1},
    "gcn, few labels": {"random_labels": 0.05, "layers": 3, "input_dropout": False, "jk": "last"},
    "sage, few labels": {"random_labels": 0.03, "layers": 3, "model": "sage", "dropout": 0.2},
    "sage, sum": {
        **{"model": "sage", "aggregate": "sum", "dropout": 0.3},
        **{"normalisation": "row", "random_labels": 0.5},
    },
    "jk cat": {"jk": "cat", "hidden": 5, "dropout": 0.4, "random_labels": 0.1},
    "jk max": {"jk": "max", "model": "sage", "layers": 3, "hidden": 5, "norm": "node"},
    "weighted": {**WEIGHTED, "model": "sage", "normalisation": "none", "dropout": 0.2},
    "weighted, few": {**WEIGHTED, **WIDE, "normalisation": "none", "random_labels": 0.4},
    "sparse": {**SPARSE, "hidden": 6},
    # One norm a layer; two, one in the last (gin); outputs that depend on all layers.
    "batch": {"norm": "batch", "dropout": 0.5, **WIDE},
    "graph": {"norm": "graph", "model": "sage", "dropout": 0.3, "input_dropout": False, **WIDE},
    "pair": {"norm": "pair", "model": "sage", "random_labels": 0.05, **WIDE},
    "layer": {"norm": "layer", "model": "gin", "residual": True, "hidden": 5, **WIDE},
    "batch, jk": {
        **{"norm": "batch", "model": "gin", "jk": "cat", "dropout": 0.2, "hidden": 5},
        **WIDE,
    },
    "batch, one layer": {"norm": "batch", "model": "gin", "layers": 1, **WIDE},
    # In float32 scores that are equal but for rounding change what is largest.
    "max": {**MAX, "dropout": 0.5, "hidden": 7, **WIDE},
    "max, few labels": {**MAX, "random_labels": 0.5, "dropout": 0.2, "input_dropout": False},
    "max, batch": {**MAX, "norm": "batch", "residual": True, **WIDE},
    "max, jk": {**MAX, "jk": "cat", "hidden": 5, "act": "tanh"},
    "std": {**MAX, "aggregate": "std", "dropout": 0.2, "hidden": 7, **WIDE},
    "max, sparse": {**SPARSE, **MAX, "feature_norm": "none", "dropout": 0.2},
    "gat": {**GAT, "dropout": 0.5, "attention_dropout": 0.3},
    "gat, relu first": {**GAT, "model": "gat-relu-first", "dropout": 0.2},
    "gat, few labels": {**GAT, "heads": 3, "hidden": 6, "random_labels": 0.05, "dropout": 0.2},
    "gat, batch": {**GAT, "heads": 2, "hidden": 6, "jk": "cat", "norm": "batch", **WIDE},
    "gat, sparse": {**SPARSE, "model": "gat", "heads": 2, "hidden": 4, "dropout": 0.2},
    "gatv2": {**GAT, "model": "gatv2", "dropout": 0.4, "residual": True, "act": "elu"},
    "gatv2, few": {"model": "gatv2", "random_labels": 0.5, "attention_dropout": 0.5, **WIDE},
}
# One or two features each; what combines them is in the slow set.
OFTEN = [
    *("gcn, dropout", "sage", "gcn, few labels", "gin", "jk max", "jk cat", "sparse", "weighted"),
    *("batch", "graph", "pair", "layer", "batch, one layer", "max", "std", "max, batch"),
    *("gat", "gatv2", "sage, sum", "gat, relu first"),
]
NAMES = sorted(CASES, key=lambda name: OFTEN.index(name) if name in OFTEN else len(OFTEN))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Directed graphs with weights and, of some vertices, self-loops."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("graphs")
    A = sp.random_array((90, 90), density=0.06, rng=rng, format="lil", dtype=np.float32)
    A[range(0, 90, 4), range(0, 90, 4)] = 1
    A = CSR.from_scipy(A.tocsr())
    x = torch.from_numpy(rng.normal(size=(90, 5)).astype(np.float32))
    few = sp.random_array((90, 9), density=0.3, rng=rng, format="csr", dtype=np.float32)
    paths = {name: folder / f"{name}.npz" for name in ("weighted", "sparse")}
    write_npz(Graph("weighted", A, True, x=x), paths["weighted"])
    write_npz(Graph("sparse", A, True, x=CSR.from_scipy(few)), paths["sparse"])
    return paths


def flags_of(name: str, datasets) -> dict[str, object]:
    flags = {**SMALL, **CASES[name]}
    return {**flags, "dataset": str(datasets.get(flags["dataset"], flags["dataset"]))}


def epochs(report) -> list[dict[str, float]]:
    return [{name: x for name, x in e.items() if name != "seconds"} for e in report["history"]]


def all_ways(rank, flags, panels) -> list[dict[str, object]]:
    """The report of each run, and of one with panels of a few columns."""
    made = reports(rank, flags)
    tight = Budget(5, Placement(frozenset(ORDER), panel_bytes=40), 10**9)
    with patch.object(budget, "decide", lambda *args, **options: tight):
        return made + reports(rank, [panels])


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param(
            name, ranks, marks=[] if name in OFTEN and number % 2 + 1 == ranks else pytest.mark.slow
        )
        for number, name in enumerate(NAMES)
        for ranks in (1, 2)
    ],
)
def test_history_is_that_of_memory(name, ranks, datasets, tmp_path):
    """From a disk, where what is recomputed changes no bit, and from memory, where all is."""
    base = flags_of(name, datasets)
    three = {**base, "chunks": 3, "recompute": "always"}
    spilled = {**three, "spill": str(tmp_path)}
    flags = [base, three, spilled, {**spilled, "recompute": "never"}]
    panels = {**base, "memory": "4GB", "spill": str(tmp_path)}
    for expected, *others, narrow in run_ranks(all_ways, ranks, flags, panels):
        for other in (*others, narrow):
            check_equal(expected["history"], other["history"])
        assert epochs(others[1]) == epochs(others[2])
        again, saved = (one["storage"] for one in others[1:])
        assert not saved["recomputed_layers"]
        if again["recomputed_layers"]:
            assert again["written_bytes"] < saved["written_bytes"]
        assert narrow["storage"]["panel_bytes"] == 40
    assert not list(tmp_path.iterdir())


def check_losses(one, other, rtol: float) -> None:
    losses = [[epoch["loss"] for epoch in report["history"]] for report in (one, other)]
    np.testing.assert_allclose(*losses, rtol=rtol)


def test_training_losses_in_float32(tmp_path):
    """What is trained on does not depend on biases before norms, whose gradient is rounding."""
    for name in ("batch", "batch, jk", "layer"):
        base = {**SMALL, **CASES[name], "dtype": "float32"}
        check_losses(*reports(0, [base, {**base, "chunks": 3, "spill": str(tmp_path)}]), 1e-5)


def test_running_statistics_are_those_of_memory(tmp_path):
    """Each epoch once, whatever the number of chunks; a run may go on in memory.

    By plain descent: of the rounding that is the gradient of a bias before a norm, Adam makes steps
    that grow a hundredfold from epoch to epoch, and running means have them.
    """
    base = {**SMALL, "norm": "batch", "model": "gin", "dtype": "float64", "epochs": 4}
    base |= {"optimizer": "sgd", "lr": 0.05}
    (straight,) = reports(0, [base])
    flags = {**base, "checkpoint": str(tmp_path / "checkpoint"), "checkpoint_every": 1}
    spilled = {**flags, "chunks": 3, "spill": str(tmp_path / "spill")}
    reports(0, [{**spilled, "epochs": 2}])
    (report,) = reports(0, [{**spilled, "epochs": 3, "resume": True}])
    check_equal(straight["history"][:3], report["history"])
    (report,) = reports(0, [{**flags, "resume": True}])
    check_equal(straight["history"], report["history"])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_directory_and_ranks_without_vertices(ranks, tmp_path):
    """Parts are read in chunks where they lie; of a path of three vertices, one rank has none."""
    write_shards(load_dataset("sbm"), None, ranks, tmp_path / "graph")
    base = {"dataset": str(tmp_path / "graph"), "epochs": 2, "dropout": 0.3}
    if ranks == 4:
        A = sp.csr_array(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], np.float32))
        x, y = torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 1])
        everybody = torch.ones(3, dtype=torch.bool)
        graph = Graph("path", CSR.from_scipy(A), False, x=x, y=y, train_mask=everybody)
        write_npz(graph, tmp_path / "graph.npz")
        base = {"dataset": str(tmp_path / "graph.npz"), "epochs": 3, "partition": "block"}
        base |= {"model": "sage", "layers": 3}
    flags = [base, {**base, "chunks": 4}, {**base, "chunks": 3, "spill": str(tmp_path / "spill")}]
    for expected, *others in run_ranks(reports, ranks, flags):
        for report in others:
            check_equal(expected["history"], report["history"])


def test_bytes_of_a_slow_disk(tmp_path, monkeypatch):
    """What is on its way there when an epoch begins is not of that epoch."""
    real = DirectFile.write_pages

    def slowly(*arguments):
        time.sleep(0.02)
        real(*arguments)

    monkeypatch.setattr(DirectFile, "write_pages", slowly)
    flags = {**SMALL, "model": "sage", "epochs": 1, "chunks": 3, "spill": str(tmp_path)}
    run_ranks(reports, 2, [flags])


def infer(rank, config):
    infer_to_file(config, connect("gloo"))


@pytest.mark.parametrize(
    ("ranks", "model"),
    [
        (1, {}),
        (2, {"model": "gin", "norm": "batch"}),  # with running moments
        (1, {"model": "gin", "norm": "graph"}),  # with those of the vertices it is shown
        (1, MAX),
        (2, {"model": "gatv2", "heads": 2, "hidden": 6}),
    ],
)
def test_inference(model, ranks, tmp_path):
    weights, scores = str(tmp_path / "checkpoint"), tmp_path / "scores.npz"
    flags = {**SMALL, **model, "checkpoint": weights, "predictions": str(scores), "chunks": 3}
    run_ranks(reports, ranks, [{**flags, "spill": str(tmp_path / "spill")}])
    with np.load(scores) as file:
        expected = file["scores"]
    assert np.isfinite(expected).all()
    base = {"dataset": SMALL["dataset"], "random_features": 11, "weights": weights, **model}
    more = {"chunks": 5, "spill": str(tmp_path / "more")}
    for number, storage in enumerate(({}, {"chunks": 3}, more)):
        output = str(tmp_path / f"{number}.npy")
        run_ranks(infer, ranks, InferConfig.of(**base, **storage, output=output))
        np.testing.assert_allclose(np.load(output), expected, rtol=1e-4, atol=1e-4)


def test_inference_saves_nothing_to_recompute(tmp_path):
    flags = {"model": "sage", "chunks": 2, "spill": str(tmp_path), "recompute": "always"}
    task = task_of(**flags, outputs=4)
    assert not task.graph.budget.recomputed
    assert torch.isfinite(task.all_outputs()).all()
    task.close()


HALVES = {
    "gcn": {"layers": 3, "hidden": 5, "dropout": 0.5},
    "sage": {"model": "sage", "layers": 3, "random_labels": 0.1, "input_dropout": False},
    "batch": {"model": "gin", "norm": "batch", "jk": "cat", "hidden": 6, "residual": True},
    "sparse": {**SPARSE, "hidden": 6},
}


@pytest.mark.parametrize("name", HALVES)
def test_half_of_the_bytes(name, datasets, tmp_path):
    """Tables in bfloat16, sums and weights in float32: near float32, the same on the disk."""
    base = {**SMALL, **HALVES[name], "epochs": 3}
    base |= {"dataset": str(datasets.get(base["dataset"], base["dataset"]))}
    spilled, narrow = {**base, "spill": str(tmp_path)}, {**base, "dtype": "bfloat16"}
    half = {**narrow, **spilled}
    runs = [spilled, half, {**half, "chunks": 3}, narrow]
    for wide, *others in run_ranks(reports, 1, runs):
        for report in others:
            check_losses(report, wide, 0.02)
        for way in ("read_bytes", "written_bytes"):
            assert others[0]["storage"][way] < wide["storage"][way]


def test_chunks_without_rows_in_bfloat16(tmp_path):
    """One row has most nonzeros, so that bounds of chunks fall together."""
    n = 40
    star = sp.lil_array((n, n), dtype=np.float32)
    star[0, 1:] = star[1:, 0] = 1
    x, y = torch.arange(3.0 * n).view(n, 3) / n, torch.arange(n) % 2
    everybody = torch.ones(n, dtype=torch.bool)
    A = CSR.from_scipy(sp.csr_array(star))
    write_npz(Graph("star", A, False, x=x, y=y, train_mask=everybody), tmp_path / "star.npz")
    base = {"dataset": str(tmp_path / "star.npz"), "epochs": 2, "layers": 2, "hidden": 4}
    base |= {"dtype": "bfloat16"}
    check_losses(*run_ranks(reports, 1, [base, {**base, "chunks": 16}])[0], 0.02)


def dense(blocks):
    return np.concatenate([block.to_scipy().toarray() for _, block in blocks.stream()])


def test_a_layer_reads_its_own_rows_alone(tmp_path):
    """From files of its own, for training, where the whole matrix lies on the disk."""
    flags = {"random_labels": 0.5, "layers": 2, "chunks": 3}
    task = task_of(**flags, spill=str(tmp_path))
    try:
        own, whole = task._training[1], dense(task.graph.matrix.blocks)
        assert 0 < own.blocks.nbytes < task.graph.matrix.blocks.nbytes
        rows, columns = dense(own.blocks), slice(None) if own.sources is None else own.sources
        np.testing.assert_array_equal(rows, whole[own.targets][:, columns])
        np.testing.assert_array_equal(rows.T, dense(own.transposed))
        assert all(matrix.blocks is task.graph.matrix.blocks for matrix in task._evaluation)
    finally:
        task.close()


def test_ranks_without_vertices_or_labels(tmp_path):
    check_uneven(tmp_path, [("number", {"chunks": 2})])
