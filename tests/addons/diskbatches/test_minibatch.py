"""The mini-batch command: its histories, on one rank and on parts, its report, its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.addons.diskbatches import MiniBatchConfig, VertexBatches, main, train
from spgnn.addons.diskbatches.minibatch_data import open_dataset
from spgnn.comm import SoloCommunicator, connect
from spgnn.data import load_dataset
from spgnn.frontend.from_config import share_of
from spgnn.testing import run_ranks
from spgnn.train import train as train_whole
from tests.comm.jobs import Forked
from tests.real import each
from tests.train.command import without_torch
from tests.train.test_objectives import check_histories, write_uneven
from tests.training import TOLERANCE, write_dataset

SHORT: dict[str, Any] = {
    "num_neighbors": "3,2",
    "batch_size": 6,
    "hidden": 8,
    "dropout": 0.3,
    "epochs": 3,
    "lr": 0.02,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("set") / "graph.npz")


def numbers(report: dict[str, Any]) -> list[dict[str, Any]]:
    """A history without what is measured."""
    kept = [dict(record) for record in report["history"]]
    for record in kept:
        del record["seconds"]
    return kept


def run(path: Path, **flags: Any) -> dict[str, Any]:
    config = MiniBatchConfig.of(**{"dataset": str(path), **SHORT, **flags})
    return train(config, SoloCommunicator())


WHOLE: list[dict[str, Any]] = [
    *({"model": model} for model in ("gcn", "sage", "gin", "gat", "gatv2")),
    *({"model": model, "jk": "cat"} for model in ("gcn", "gat")),
    {"model": "sage", "residual": True},
    {"model": "gatv2", "residual": True},
]


@pytest.mark.parametrize("flags", WHOLE, ids=lambda flags: " ".join(map(str, flags.values())))
def test_one_batch_of_whole_neighbourhoods_is_full_graph_training(path, flags):
    config = MiniBatchConfig.of(
        **{**SHORT, "num_neighbors": "-1,-1,-1", "batch_size": 1000, **flags},
        dataset=str(path),
        weight_decay=5e-4,
        input_dropout=True,
        full_epochs=3,
        full_lr=SHORT["lr"],
    )
    mine = numbers(train(config, SoloCommunicator()))
    theirs = numbers(train_whole(config.of_whole_graph(), SoloCommunicator()))
    assert len(mine) == len(theirs) == 3
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert value == pytest.approx(other[name], rel=TOLERANCE, abs=TOLERANCE), name


def test_what_else_is_in_the_store_directory_stays(path, tmp_path):
    mine = tmp_path / "features.bin"
    mine.write_bytes(b"mine")
    run(path, epochs=1, store="disk", store_dir=str(tmp_path))
    assert mine.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [mine]


def test_made_up_labels_are_those_of_training_on_parts():
    flags = {"dataset": "rmat-8-4", "random_features": 3, "random_classes": 4}
    config = MiniBatchConfig.of(**SHORT | flags, random_labels=0.2)
    with open_dataset(config) as made:
        y, seeds = made.y, made.seeds
    known = y >= 0
    assert 20 < int(known.sum()) < 90
    assert bool(known[seeds].all())
    ranked = VertexBatches(config.but(distributed="exact", partition="block"), SoloCommunicator())
    assert torch.equal(ranked.share.data.y[ranked.share.vertex_ids.argsort()], y)


def test_the_largest_neighbour_is_taken_of_sparse_features(path, tmp_path):
    sparse = write_dataset(tmp_path / "sparse.npz", sparse=True)
    flags: dict[str, Any] = {"aggregate": "max", "epochs": 1}
    wanted = numbers(run(path, **flags))
    for way in ({}, {"distributed": "exact"}):
        assert numbers(run(sparse, **flags, **way)) == wanted


INVARIANT: dict[str, dict[str, Any]] = {
    "neighbor": {},
    "replace": {"replace": True},
    "resample": {"resample": True, "model": "gcn"},
    "labor": {"sampler": "labor", "model": "gat"},
    "weights": {"class_weights": "balanced", "clip": 0.5},
    "links": {"task": "links", "negatives": 2},
    "exact": {"distributed": "exact", "superbatch": 2, "model": "gcn"},
    "exact labor": {"distributed": "exact", "sampler": "labor", "prefetch": 0},
}


def on_ranks(rank: int, path: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    comm = connect()
    found = {}
    for name, case in cases.items():
        flags = {**SHORT, "epochs": 2, **case, "batch_size": 12 // comm.size}
        report = train(MiniBatchConfig.of(dataset=str(path), **flags), comm)
        found[name] = numbers(report), report["sampler"]["batches"]
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_train_as_one_process_with_all_their_seeds(path, ranks):
    """Draws and dropout are keyed by the step, and a step's loss is the mean over its seeds."""
    check_invariant(path, ranks, INVARIANT)


def check_invariant(path: Path, ranks: int, cases: dict[str, dict[str, Any]]) -> None:
    wanted = run_ranks(on_ranks, 1, path, cases)[0]
    first, *others = run_ranks(on_ranks, ranks, path, cases)
    assert all(other == first for other in others)
    for name, (history, batches) in first.items():
        expected, steps = wanted[name]
        assert steps <= batches <= ranks * steps, name
        for one, same in zip(history, expected, strict=True):
            assert one == pytest.approx(same, rel=TOLERANCE, abs=TOLERANCE), name


def test_resumed_run_is_a_straight_one(path, tmp_path):
    straight = numbers(run(path, epochs=4))
    kept = {"checkpoint": str(tmp_path / "run")}
    run(path, epochs=2, **kept)
    resumed = run(path, epochs=4, resume=True, **kept)
    assert numbers(resumed) == straight
    others: list[dict[str, Any]] = [{"batch_size": 7}, {"sampler": "labor"}, {"replace": True}]
    for other in others:
        with pytest.raises(InputError, match="was made with batches of 6 × 1"):
            run(path, epochs=5, resume=True, **other, **kept)


def test_report_of_a_cache(path, tmp_path):
    flags = {"store": "disk", "store_dir": str(tmp_path), "cache": 20 * 23 * 4}
    told = run(path, superbatch=10_000, epochs=1, **flags)["features"]
    assert told["cache_rows"] == 20
    # All batches are known beforehand.
    assert told["hit_rate"] == told["optimal_hit_rate"] > 0
    assert told["rows_read"] == round(told["rows_needed"] * (1 - told["hit_rate"]))
    assert told["bytes_needed"] == told["rows_needed"] * 23 * 4
    few = run(path, superbatch=2, epochs=2, cache_policy="lru", **flags)["features"]
    assert few["hit_rate"] < few["optimal_hit_rate"]
    none = run(path, superbatch=1, epochs=1, **flags | {"cache": 0})["features"]
    assert none["rows_read"] == none["rows_needed"]
    assert none["hit_rate"] is None
    memory = run(path, epochs=1)
    assert memory["features"]["rows_read"] == 0
    assert memory["features"]["rows_needed"] == none["rows_needed"]
    sparse = run(write_dataset(tmp_path / "sparse.npz", sparse=True), epochs=1)["features"]
    assert (sparse["rows_needed"], sparse["rows_read"]) == (none["rows_needed"], 0)
    assert sparse["bytes_needed"] > 0
    assert memory["sampler"]["edges_per_second"] > 0


def test_command_with_everything_it_writes(path, tmp_path):
    short = [f"--{name.replace('_', '-')}={value}" for name, value in SHORT.items()]
    flags = [
        "--dataset",
        str(path),
        *short,
        "--threads=1",
        "--compare=full",
        "--set=comparison.full-epochs=2",
    ]
    flags += [f"--json={tmp_path}/r.json", f"--plot={tmp_path}/p.png"]
    flags += [f"--predictions={tmp_path}/p.npz", f"--log={tmp_path}/log", "--random-features=3"]
    ended = without_torch(Forked(lambda: main(flags), tmp_path).wait())
    assert ended.status == 0, ended
    assert ended.err == ""
    assert "sampled edges per second" in ended.out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["config"]["num_neighbors"] == "3,2"
    assert len(report["full"]["history"]) == 2
    assert len((tmp_path / "log" / "history.csv").read_text().splitlines()) == 4
    with np.load(tmp_path / "p.npz") as file:
        mask = load_dataset(path).test_mask.numpy()
        y = load_dataset(path).y.numpy()
        mask &= y >= 0
        accuracy = (file["class"][mask] == y[mask]).mean()
    assert report["history"][-1]["test_acc"] == pytest.approx(accuracy)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def trained(path: Path, **flags: Any) -> dict[str, Any]:
    return train(MiniBatchConfig.of(**{"dataset": str(path), **SHORT, **flags}), connect())


def replicated_and_exact(rank: int, path: Path) -> tuple[Any, Any]:
    flags: dict[str, Any] = {"norm": "batch", "batch_size": 8, "model": "gat"}
    exact = trained(path, **flags, distributed="exact", superbatch=2)
    return numbers(trained(path, **flags)), numbers(exact)


def test_parts_train_as_whole_graphs_do(path):
    """Ranks see batches of their own, but evaluate with the running moments of all."""
    for replicated, exact in run_ranks(replicated_and_exact, 2, path):
        for one, other in zip(replicated, exact, strict=True):
            assert one == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE)


WAYS: dict[str, dict[str, Any]] = {
    "historical": {"distributed": "historical", "historical": "50,6,2,9", "past": "bfloat16"},
    "paper": {"distributed": "historical", "historical": "paper"},
    "fetched": {"distributed": "historical", "historical": "50,6,1,9", "misses": "fetch"},
    "local": {"distributed": "local"},
    "single": {  # vertices, and ranks that have none left
        "distributed": "local",
        "norm": "batch",
        "batch_size": 1,
        "num_neighbors": "2,1",
    },
    "clusters": {"distributed": "cluster", "clusters": 3, "boundary": 2, "clusters_a_batch": 2},
    "own": {"distributed": "exact", "seeds": "own", "norm": "batch", "batch_size": 2},
    "balanced": {"distributed": "exact", "balance": "nnz,train", "imbalance": 0.2},
}


# What only some ways spend time on.
FETCHING = ("fetched", "clusters", "layers", "own", "balanced")
PUSHING = ("historical", "paper", "fetched")


def ways(
    rank: int, path: Path, directory: Path, cases: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    found = {}
    for name, flags in cases.items():
        file = directory / f"{name}.npz"
        found[name] = trained(path, predictions=str(file), epochs=6, **flags)
    return found


def check_ways(path: Path, tmp_path: Path, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Each way learns, and its report counts; those of the first rank."""
    first, second, third = run_ranks(ways, 3, path, tmp_path, cases)
    for name in cases:
        history = numbers(first[name])
        assert history == numbers(second[name]) == numbers(third[name]), name
        assert history[-1]["loss"] < history[0]["loss"], name
        assert len(history) == 6
        report = first[name]
        assert report["sampler"]["batches"] > 0
        if name != "paper":  # pushes bring more than a batch needs
            assert report["features"]["rows_needed"] >= report["features"]["rows_read"]
        assert report["features"]["rows_needed"] > 0
        is_alone = report["config"]["distributed"] in ("local", "replicated")
        assert (report["features"]["rows_read"] == 0) == is_alone
        assert (report.get("historical") is None) == (name not in PUSHING)
        if name in PUSHING:  # even where an epoch has one step
            assert report["historical"]["pushed_bytes"] > 0
        parts = {n: part["by_rank"] for n, part in report["batch_seconds"]["parts"].items()}
        for part, seconds in parts.items():
            assert len(seconds) == 3
            assert min(seconds) >= 0, (name, part)
        spent = {part for part, seconds in parts.items() if min(seconds) > 0}
        assert spent >= {"sampling", "forward", "backward", "allreduce", "other"}, name
        assert ("fetch" in spent) == (name in FETCHING), (name, parts)
        assert ("push" in spent) == (name in PUSHING), (name, parts)
        slowest = max(record["seconds"] for record in report["history"])
        assert max(sum(one) for one in zip(*parts.values(), strict=True)) <= slowest
        with np.load(tmp_path / f"{name}.npz") as saved:
            assert set(saved.files) == {"class", "scores"}
            assert len(saved["class"]) == report["graph"]["vertices"]
        assert report.get("historical") == second[name].get("historical")
    return first


def test_every_way_learns_and_reports(path, tmp_path):
    first = check_ways(path, tmp_path, WAYS)
    past = first["historical"]["historical"]
    assert past["hit_rate"][0] == 1.0
    assert 0 < past["hit_rate"][1] <= 1
    assert past["mean_age"][0] == 0  # features are fetched once
    assert past["mean_age"][1] >= 2  # the delay
    assert first["paper"]["historical"]["mean_age"][0] >= 1  # and here pushed
    assert past["pushed_bytes"] > 0


LATE = {"distributed": "historical", "historical": "9,20,7,3,features", "batch_size": 3}


def resume_all(
    rank: int, path: Path, directory: Path, cases: dict[str, dict[str, Any]]
) -> dict[str, tuple[Any, Any]]:
    found = {}
    for name, flags in cases.items():
        options = flags | {"dropout": 0.3}
        straight = trained(path, epochs=3, **options)
        kept = options | {"checkpoint": str(directory / name)}
        trained(path, epochs=2, **kept)
        found[name] = numbers(straight), numbers(trained(path, epochs=3, resume=True, **kept))
    if "historical" not in cases:
        return found
    # Rows and moments of other batches, ranks and partitions are no use.
    kept = WAYS["historical"] | {"checkpoint": str(directory / "historical"), "resume": True}
    with pytest.raises(InputError, match=r"was made with batches of .* stale rows 50,6,2,9, drop"):
        trained(path, epochs=5, **kept | {"historical": "50,6,1,9"})
    with pytest.raises(InputError, match="its stale rows are of another partition"):
        trained(path, epochs=5, **kept | {"dropout": 0.3, "partition": "block"})
    return found


def test_every_way_is_resumed(path, tmp_path):
    """To the last bit: stale rows, those on their way, and each rank's own moments too."""
    check_resumed(path, tmp_path, {**WAYS, "late": LATE})


def check_resumed(path: Path, tmp_path: Path, cases: dict[str, dict[str, Any]]) -> None:
    for found in run_ranks(resume_all, 2, path, tmp_path, cases):
        for name, (straight, resumed) in found.items():
            assert straight == resumed, name


def uneven(rank: int, directory: Path) -> list[dict[str, Any]]:
    comm = connect()
    parts = str(directory / "labels") if comm.size > 1 else "block"
    flags = {"dataset": str(directory / "number.npz"), "epochs": 1, "num_neighbors": "3,3"}
    flags |= {"distributed": "exact", "partition": parts, "batch_size": 16 // comm.size}
    history: list[dict[str, Any]] = train(MiniBatchConfig.of(**flags), comm)["history"]
    return history


def test_ranks_without_vertices_or_labels(tmp_path):
    write_uneven(tmp_path)
    (one,), ranks = run_ranks(uneven, 1, tmp_path), run_ranks(uneven, 4, tmp_path)
    check_histories(one, ranks[0], "exact")


def balanced(rank: int, path: Path) -> list[int]:
    comm = connect()
    config = MiniBatchConfig.of(dataset=str(path), imbalance=0.1).of_whole_graph()
    share, report = share_of(config, comm, ("nnz", "train"))
    assert (report is None) == (rank > 0)
    mask = share.data.train_mask
    counted = torch.zeros(comm.size, dtype=torch.int64)
    counted[rank] = int(mask.sum())
    comm.all_reduce(counted).wait()
    return counted.tolist()


def test_parts_get_equal_shares_of_training_vertices(path):
    counts = run_ranks(balanced, 2, path)[0]
    assert max(counts) <= 1.1 * sum(counts) / 2


REFUSED = [
    (["--num-neighbors", "3,x"], "--num-neighbors 3,x", "as in 15,10,5"),
    (["--num-neighbors", "3,-2"], "--num-neighbors 3,-2"),
    (["--model", "rgat"], "--model rgat is of several vertex types", "batches are of one"),
    (["--layers", "3"], "--layers 3", "got 2"),
    (["--sampler", "neighbour"], "--sampler", "neighbor"),
    (["--cache", "1MB"], "--cache needs --store disk"),
    (["--store", "disk"], "storage.store-dir"),
    (["--set", "storage.store-dir=somewhere"], "storage.store-dir needs --store disk"),
    (["--cache-policy", "lru"], "--cache-policy lru needs --cache"),
    (
        ["--set", "storage.structure-policy=lru"],
        "storage.structure-policy lru needs storage.structure-cache",
    ),
    (["--set", "data.normalisation=row"], "data.normalisation row", "auto only"),
    (["--resume"], "--resume needs --checkpoint"),
    (["--compare", "full", "--store", "disk"], "--compare full needs --store memory"),
    (["--dataset", "corra"], "no data set 'corra'", "did you mean 'cora'"),
    (["--plot", "p.xyz"], "unknown suffix .xyz"),
    (["--metric", "mrr"], "--metric mrr"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join(case[0]))
def test_what_is_wrong_is_said(path, case):
    flags, *words = case
    given = ["--dataset", str(path), "--num-neighbors=3,2", "--epochs=1", *flags]
    with pytest.raises(InputError) as refused:
        train(MiniBatchConfig.read(given), SoloCommunicator())
    for word in words:
        assert word in str(refused.value)


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"distributed": "historical"}, "need each other"),
    ({"historical": "1,2,3,4"}, "1,2,3,4 needs --distributed historical, not none"),
    ({"distributed": "historical", "historical": "1,2,3"}, "SIZE,LIFE,DELAY,PUSH"),
    ({"distributed": "historical", "historical": f"1,{10**20},3,4"}, "at most 2147483647"),
    ({"past": "bfloat16"}, "distribution.past bfloat16 needs --distributed historical, not none"),
    ({"misses": "fetch"}, "distribution.misses fetch needs --distributed historical, not none"),
    ({"heads": 4}, "--heads 4 needs --model gat, gatv2"),
    ({"model": "gat", "heads": 3}, "--hidden 8 must be a multiple of --heads 3"),
    ({"model": "gcn", "aggregate": "max"}, "--aggregate max needs --model sage, not gcn"),
    ({"model": "gine"}, "--model gine: choose one of gcn, sage, gin, gat, gatv2"),
    ({"distributed": "exact", "fixed": True}, "fixed needs --distributed none, not exact"),
    ({"distributed": "local", "seeds": "own"}, "seeds own needs --distributed exact, not local"),
    ({"clusters": 3}, "distribution.clusters 3 needs --distributed cluster"),
    ({"balance": "train"}, "distribution.balance train needs --distributed"),
    ({"distributed": "exact", "balance": "trian"}, "balance trian: .*did you mean 'train'"),
    ({"distributed": "local", "jk": "cat"}, "needs --jk none"),
    ({"distributed": "exact", "store": "disk"}, "needs --store memory"),
    ({"distributed": "exact", "structure": "disk"}, "exact needs storage.structure memory"),
    ({"structure_cache": 5}, "storage.structure-cache needs storage.structure disk"),
    ({"structure": "disk"}, "disk: .* is no graph directory"),
    ({"distributed": "local", "sampler": "labor"}, "needs --sampler neighbor, not labor"),
]


@pytest.mark.parametrize(("flags", "message"), TOGETHER)
def test_flags_that_do_not_go_together(path, flags, message):
    with pytest.raises(InputError, match=message):
        run(path, **flags)


# Historical rows cost no accuracy, and a fraction of the bytes of exact fetching.

RANKS = 4
COMMON: dict[str, Any] = {
    "num_neighbors": "10,5,5",
    "hidden": 64,
    "dropout": 0.2,
    "lr": 0.01,
    "feature_norm": "row",
    "eval_every": 1000,
}
# Epochs, and seeds whose mean is compared.
LENGTHS = {"coauthor-physics": (3, 1), "amazon-computers": (16, 2)}
PAST = {"distributed": "historical", "historical": "1000000,32,1,500", "past": "bfloat16"}


def accuracy_on_ranks(rank: int, flags: dict[str, Any]) -> tuple[float, int]:
    comm = connect()
    before = comm.ledger.copy()
    report = train(MiniBatchConfig.of(**flags), comm)
    return report["history"][-1]["test_acc"], comm.ledger.since(before).of(
        "alltoall"
    ).received_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "epochs", "seeds"), each(LENGTHS))
def test_within_a_point_of_one_process_at_half_the_bytes(graph, epochs, seeds):
    flags = {**COMMON, "dataset": graph, "epochs": epochs, "batch_size": 512}
    alone, together = [], []
    for seed in range(seeds):
        report = train(MiniBatchConfig.of(**flags, seed=seed), SoloCommunicator())
        alone.append(report["history"][-1]["test_acc"])
        parts = {**flags, "batch_size": 512 // RANKS, "seed": seed}
        found = run_ranks(accuracy_on_ranks, RANKS, {**parts, **PAST})
        together.append(found[0][0])
    assert mean(together) > mean(alone) - 0.01
    # Those of setting up and of the evaluation count for both.
    exact = run_ranks(accuracy_on_ranks, RANKS, {**parts, "distributed": "exact", "epochs": 2})
    past = run_ranks(accuracy_on_ranks, RANKS, {**parts, **PAST, "epochs": 2})
    assert sum(nbytes for _, nbytes in past) <= 0.5 * sum(nbytes for _, nbytes in exact)
