"""The training report: its keys, its bytes, and that every launcher gives the same history."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from spgnn.__main__ import main as spgnn_command
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import load_dataset, write_shards
from spgnn.data.normalise import add_self_loops
from spgnn.partition import partition, read_labels, report, write_labels
from spgnn.testing import run_ranks
from spgnn.train import run as command
from spgnn.train.measure import CATEGORIES
from tests.comm.jobs import MPIEXEC, NEEDS_MPI, PATIENCE, ROOT
from tests.data.graphs import rewrite
from tests.train.command import HIDDEN, check_refused, losses_of, report_of, run
from tests.training import TOLERANCE, write_dataset
from tests.training import run as train

FLOAT32_BYTES = 4
CLASSES = 4


def test_the_last_rank_imports_the_compiler_and_a_rank_alone_none(tmp_path):
    flags = ["--dataset", write_dataset(tmp_path / "graph.npz"), "--epochs", "2"]
    script = (
        "import os, sys; from types import SimpleNamespace as S; from spgnn.train.run import main; "
        "see = lambda name, *_: print('import', name, os.environ.get('RANK')) if name in "
        "('torch._dynamo', 'sympy') else None; sys.meta_path.insert(0, S(find_spec=see)); "
        "sys.exit(sum(main([*sys.argv[1:], '--model', *more.split()]) "
        "for more in ('gin --nproc 3', 'gcn', 'gat')) + ('scipy.sparse' in sys.modules))"
    )
    printed = subprocess.check_output([sys.executable, "-c", script, *flags], text=True)
    imports = [line for line in printed.splitlines() if line.startswith("import ")]
    assert set(imports) == {"import torch._dynamo 2", "import sympy 2"}


@pytest.mark.parametrize("ranks", [1, 4])
def test_keys_and_types(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", path, "--nproc", ranks, "--eval-every", 2, "--epochs", 3]
    found = report_of(tmp_path, *flags)
    contract = "config world_size graph history best seconds seconds_to epoch_seconds volume "
    contract += "breakdown_seconds planned_volume volume_by_level planned_volume_by_level work "
    contract += (
        "recomputed_halo memory partition failure plan runs mean std approximation whole_rows"
    )
    assert set(found) == set(contract.split())
    assert found["world_size"] == ranks
    assert found["failure"] is found["approximation"] is None
    parts = ["start", "reading", "plan", "features", "model", "training", "evaluation", "rest"]
    assert list(found["seconds"]) == parts
    assert min(found["seconds"].values()) >= 0
    # Of the slowest rank; an epoch's slowest may be another one each time.
    of_epochs = sum(record["seconds"] for record in found["history"])
    assert 0 < found["seconds"]["training"] <= of_epochs * (1 + 1e-9)
    assert set(found["config"]) == set(TrainConfig().flat())
    assert found["config"]["dataset"] == str(path)
    sizes = {"vertices": 61, "edges": load_dataset(path).edges, "features": 23, "classes": CLASSES}
    assert found["graph"] == {"name": "graph", **sizes}
    names = ("train_acc", "val_acc", "test_acc")
    for epoch, record in enumerate(found["history"]):
        assert set(record) == {"epoch", "loss", "lr", *names, "seconds", "val_loss"}
        assert record["epoch"] == epoch
        assert isinstance(record["loss"], float)
        assert record["seconds"] > 0
        scores = [record[name] for name in names]
        assert all(0 <= score <= 1 for score in scores) if epoch else scores == [None] * 3
    # Whole percents of the test score, from 0 on, and the seconds after which each was reached.
    best = max(found["history"][epoch]["test_acc"] for epoch in (1, 2))
    reached = [f"{percent / 100:.2f}" for percent in range(int(best * 100 + 1e-9) + 1)]
    assert list(found["seconds_to"]) == reached
    assert list(found["seconds_to"].values()) == sorted(found["seconds_to"].values())
    # Neither the first epoch, which faults pages in, counts, nor the second, which is clocked.
    last = found["history"][2]["seconds"]
    assert found["epoch_seconds"] == dict.fromkeys(("median", "min", "max"), last)
    spent = found["breakdown_seconds"]
    assert tuple(spent) == CATEGORIES
    assert all(isinstance(v, float) and v >= 0 for v in spent.values())
    assert min(spent["spmm"], spent["gemm"]) > 0
    volume = found["volume"]
    kinds = {"total": int, "max_send": int, "max_recv": int, "avg_send": float, "busiest": int}
    assert {name: type(value) for name, value in volume.items()} == {
        **{f"{name}_bytes": kind for name, kind in kinds.items()},
        "busiest_rank": int,
    }
    assert volume["avg_send_bytes"] == pytest.approx(volume["total_bytes"] / ranks)
    assert (volume["total_bytes"] > 0) == (ranks > 1)
    assert volume == found["planned_volume"]
    total, most = (volume[name] for name in ("total_bytes", "max_send_bytes"))
    for name in ("volume_by_level", "planned_volume_by_level"):  # all ranks are on one node
        assert found[name] == {
            "inside": {"total_bytes": total, "max_send_bytes": most},
            "between": {"total_bytes": 0, "max_send_bytes": 0},
        }
    memory = found["memory"]
    for name in ("peak_bytes", "peak_above_idle_bytes"):
        most, median, first = (
            memory.pop(f"{which}_{name}") for which in ("max_rank", "median_rank", "rank_0")
        )
        # A process that has been larger before may have room for the whole training.
        assert (name == "peak_bytes") <= min(median, first) <= max(median, first) <= most
    assert not memory


WAYS = [("sparsity-aware", cover) for cover in ("column", "row", "minimum")]


def test_bytes_are_those_of_the_partition_report(tmp_path):
    """Every way to exchange, in both orders: planned, counted and predicted offline."""
    path, labels_file = write_dataset(tmp_path / "graph.npz"), tmp_path / "labels"
    A = add_self_loops(load_dataset(path).adjacency)
    labels, _ = partition(A, 3, method="random", seed=5)
    write_labels(labels_file, labels)
    predicted = report(A, read_labels(labels_file, 61, 3), parts=3)
    base = TrainConfig.of(dataset=path, partition=labels_file, hidden=HIDDEN, epochs=2, prune=False)
    # A X is kept; a hidden layer moves its narrower side twice.
    widths = {"auto": [2 * HIDDEN, 2 * CLASSES]}
    widths["paper"] = [23 + HIDDEN, HIDDEN + HIDDEN, HIDDEN + CLASSES]
    cases = [
        (base.but(order=order, exchange=exchange, cover=cover), exchange, cover, order)
        for order in widths
        for exchange, cover in [*WAYS, ("oblivious", "column")]
    ]
    found = run_ranks(lambda rank: [train(case[0], connect())[1] for case in cases], 3)[0]
    for made, (_, exchange, cover, order) in zip(found, cases, strict=True):
        rows = 2 * 61 if exchange == "oblivious" else predicted["cover_volume"][cover]
        expected = rows * sum(widths[order]) * FLOAT32_BYTES
        assert made["planned_volume"]["total_bytes"] == expected
        assert made["volume"] == made["planned_volume"]
        assert made["partition"] is None


def test_minimum_covers_are_trained_on_a_partition_for_them(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    cases = [("minimum", "gvb", "cover"), ("column", "gvb", "both")]
    cases += [("row", "gvb", "both"), ("minimum", "random", None)]
    base = TrainConfig.of(dataset=path, epochs=1, seed=2)
    configs = [base.but(cover=cover, partition=method) for cover, method, _ in cases]
    found = run_ranks(lambda rank: [train(config, connect())[1] for config in configs], 4)[0]
    A = add_self_loops(load_dataset(path).adjacency)
    for made, (_, method, objective) in zip(found, cases, strict=True):
        _, expected = partition(A, 4, method=method, objective=objective or "both", seed=2)
        assert made["partition"]["objective"] == objective
        for name in ("total_volume", "max_send", "cover_volume"):
            assert made["partition"][name] == expected[name]


def test_an_open_cover_changes_bytes_and_no_losses(tmp_path):
    """Planned bytes are counted for each kind of model, and those of products are fewer."""
    path = write_dataset(tmp_path / "graph.npz")
    base = TrainConfig.of(dataset=path, epochs=3, hidden=HIDDEN, seed=2)
    kinds = [{}, {"model": "sage", "algo": "1.5d", "c": 2}, {"model": "gin", "hierarchy": 2}]
    kinds += [{"algo": "vertex-cut"}, {"model": "gat", "heads": 2}, {"bits": 4}, {"delay": 1}]
    kinds += [{"model": "sage", "aggregate": "max"}, {"recompute_halo": True}]
    configs = [base.but(**kind, cover=cover) for kind in kinds for cover in ("auto", "column")]
    found = run_ranks(lambda rank: [command.train(one, connect()) for one in configs], 4)[0]
    for number, (made, by_rows) in enumerate(zip(found[::2], found[1::2], strict=True)):
        losses, expected = ([e["loss"] for e in one["history"]] for one in (made, by_rows))
        assert losses == pytest.approx(expected, rel=TOLERANCE)
        assert made["volume"] == made["planned_volume"]
        assert by_rows["whole_rows"] is None
        sums = number < 4
        assert (made["whole_rows"] is None) == sums
        assert made["config"]["cover"] == ("minimum" if sums else "column")
        objective = "cover" if sums else "both"
        assert made["config"]["objective"] == made["partition"]["objective"] == objective
        if sums:
            assert made["volume"]["total_bytes"] < by_rows["volume"]["total_bytes"]
        else:
            assert made["volume"] == by_rows["volume"]


def test_the_seed_does_not_change_the_graph():
    """Weights and splits change, and what is made up; edges do not."""
    config = TrainConfig.of(
        dataset="rmat-6-4", random_features=5, random_classes=3, epochs=1, partition="block"
    ).but(prune=False)  # what the loss reaches depends on the split

    def trained(rank: int) -> list[tuple[list[float], dict]]:
        return [train(config.but(seed=seed), connect()) for seed in (0, 1)]

    (first, one), (second, two) = run_ranks(trained, 3)[0]
    assert one["graph"] == two["graph"]
    for name in ("covers", "total_volume", "edge_cut"):
        assert one["partition"][name] == two["partition"][name]
    assert one["volume"] == two["volume"]
    assert first != second


def test_busiest_ranks_are_those_of_the_partition_report(tmp_path):
    """One layer whose input needs no gradient has one product, so nothing mixes both directions."""
    path = write_dataset(tmp_path / "graph.npz")
    with np.load(path) as file:
        arrays = dict(file) | {"y": np.arange(61) % 13}
    np.savez(path, **arrays)
    flags = ["--dataset", path, "--nproc", 4, "--layers", 1, "--dropout", 0.1, "--seed", 3]
    flags += ["--no-prune", "--cover", "column"]
    found = report_of(tmp_path, *flags)
    A = add_self_loops(load_dataset(path).adjacency)
    _, predicted = partition(A, 4, method="random", seed=3)
    assert predicted["max_send"] != predicted["max_recv"]
    row = 23 * FLOAT32_BYTES
    assert found["volume"]["total_bytes"] == predicted["total_volume"] * row
    assert found["volume"]["max_send_bytes"] == predicted["max_send"] * row
    assert found["volume"]["max_recv_bytes"] == predicted["max_recv"] * row
    assert found["volume"]["busiest_bytes"] == predicted["busiest"] * row
    assert found["volume"]["busiest_rank"] == predicted["busiest_part"]
    assert found["partition"]["total_volume"] == predicted["total_volume"]


@pytest.mark.parametrize(("ranks", "algo", "c"), [(3, "1.5d", 1), (4, "feature", 2)])
def test_shards_give_the_same_history(tmp_path, ranks, algo, c):
    path, shards = write_dataset(tmp_path / "graph.npz"), tmp_path / "shards"
    alone = report_of(tmp_path, "--dataset", path, "--epochs", 5)
    parts = ["--parts", str(ranks // c), "--partition", "random"]
    assert spgnn_command(["shard", str(path), *parts, "--output", str(shards)]) in (0, None)
    flags = ["--nproc", ranks, "--algo", algo, "--c", c, "--epochs", 5]
    sharded = report_of(tmp_path, "--dataset", shards, *flags)
    np.testing.assert_allclose(losses_of(sharded), losses_of(alone), rtol=TOLERANCE)
    assert sharded["volume"] == sharded["planned_volume"]
    wrong = run(tmp_path, "--dataset", shards, "--nproc", ranks // c + 1)
    assert wrong.status == 2
    assert f"--parts {ranks // c + 1}" in wrong.err


def test_damaged_shards_are_refused(tmp_path):
    path, shards = write_dataset(tmp_path / "graph.npz"), tmp_path / "shards"
    spgnn_command(["shard", str(path), "--parts", "2", "--output", str(shards)])
    labels = shards / "part-00001" / "y.npy"
    y = np.load(labels)
    y[5] = CLASSES
    rewrite(shards, 1, "y", y)
    ended = run(tmp_path, "--dataset", shards, "--nproc", 2)
    check_refused(ended, "error: rank 1", "part-00001", "y[5] is 4", "[0, 4)", status=2)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_directory_with_one_part_is_a_graph_that_is_not_cut_yet(tmp_path, ranks):
    path = write_dataset(tmp_path / "graph.npz")
    write_shards(load_dataset(path), None, 1, tmp_path / "whole")
    one, other = (
        losses_of(report_of(tmp_path, "--dataset", dataset, "--nproc", ranks))
        for dataset in (path, tmp_path / "whole")
    )
    assert one == other


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(TORCHRUN, id="torchrun"),
        # tests/comm/mpi_cases.py trains under mpiexec, too.
        pytest.param(
            [MPIEXEC, "-n", "2", sys.executable], id="mpiexec", marks=[*NEEDS_MPI, pytest.mark.slow]
        ),
    ],
)
def test_every_launcher_gives_the_same_history(tmp_path, start):
    path, written = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    alone = report_of(tmp_path, "--dataset", path, "--dropout", 0.5)
    flags = ["--dataset", path, "--hidden", HIDDEN, "--dropout", 0.5, "--json", written]
    flags += ["--epochs", 2, "--partition", "random", "--threads", 1]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    command = [str(word) for word in (*start, ROOT / "experiments/gcn.py", *flags)]
    how = {"env": env, "capture_output": True, "text": True, "timeout": PATIENCE}
    done = subprocess.run(command, cwd=tmp_path, check=False, **how)
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    assert found["world_size"] == 2
    np.testing.assert_allclose(losses_of(found), losses_of(alone), rtol=TOLERANCE)
    assert found["volume"] == found["planned_volume"]
    # The closing table is printed once, by rank 0.
    assert done.stdout.count("seconds per epoch") == 1
