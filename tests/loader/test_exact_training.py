"""Training where each rank holds its part: the same history, whole reports, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.frontend.from_config import share_of
from spgnn.loader.config import MiniBatchConfig
from spgnn.loader.run import train
from spgnn.testing import run_ranks
from tests.loader.test_train import SHORT, numbers
from tests.training import TOLERANCE, write_dataset


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("set") / "graph.npz")


def trained(path: Path, **flags: Any) -> dict[str, Any]:
    return train(MiniBatchConfig.of(**{"dataset": str(path), **SHORT, **flags}), connect())


def histories(rank: int, path: Path, models: list[dict[str, Any]]) -> list[Any]:
    found = []
    for model in models:
        replicated = trained(path, **model)
        exact = trained(path, **model, distributed="exact", superbatch=2)
        found.append((numbers(replicated), numbers(exact), exact["features"]))
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_train_as_whole_graphs_do(path, ranks):
    models: list[dict[str, Any]] = [{"model": "sage"}]
    if ranks == 2:
        # Ranks see batches of their own, but evaluate with the running moments of all.
        models += [{"model": "gcn"}, {"model": "gat"}, {"norm": "batch", "batch_size": 8}]
    for found in run_ranks(histories, ranks, path, models):
        for replicated, exact, features in found:
            for one, other in zip(replicated, exact, strict=True):
                assert one == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE)
            assert features["rows_needed"] >= features["rows_read"]
            assert (features["rows_read"] > 0) == (ranks > 1)


WAYS: dict[str, dict[str, Any]] = {
    "historical": {"distributed": "historical", "historical": "50,6,2,9", "past": "bfloat16"},
    "fetched": {"distributed": "historical", "historical": "50,6,1,9", "misses": "fetch"},
    "local": {"distributed": "local"},
    "single": {  # vertices, and ranks that have none left
        "distributed": "local",
        "norm": "batch",
        "batch_size": 1,
        "num_neighbors": "2,1",
    },
    "corrected": {"distributed": "local", "correct_every": 2},
    "averaged": {"distributed": "local", "correct_every": 3, "correct_steps": 0},
    "clusters": {"distributed": "cluster", "clusters": 3, "boundary": 2, "clusters_a_batch": 2},
    "layers": {"distributed": "exact", "sampler": "ladies", "num_neighbors": "20,10"},
    "balanced": {"distributed": "exact", "balance": "nnz,train", "imbalance": 0.2},
}


def ways(rank: int, path: Path, directory: Path) -> dict[str, Any]:
    found = {}
    for name, flags in WAYS.items():
        file = directory / f"{name}.npz"
        found[name] = trained(path, predictions=str(file), epochs=6, **flags)
    return found


def test_every_way_learns_and_reports(path, tmp_path):
    first, second, third = run_ranks(ways, 3, path, tmp_path)
    for name in WAYS:
        history = numbers(first[name])
        assert history == numbers(second[name]) == numbers(third[name]), name
        assert history[-1]["loss"] < history[0]["loss"], name
        assert len(history) == 6
        report = first[name]
        assert report["sampler"]["batches"] > 0
        assert report["features"]["rows_needed"] >= report["features"]["rows_read"]
        assert report["features"]["rows_needed"] > 0
        assert (report["features"]["rows_read"] > 0) == (report["config"]["distributed"] != "local")
        assert (report["historical"] is None) == (name not in ("historical", "fetched"))
        with np.load(tmp_path / f"{name}.npz") as saved:
            assert set(saved.files) == {"class", "scores"}
            assert len(saved["class"]) == report["graph"]["vertices"]
    past = first["historical"]["historical"]
    assert past == second["historical"]["historical"]
    assert past["hit_rate"][0] == 1.0
    assert 0 < past["hit_rate"][1] <= 1
    assert past["mean_age"][0] >= 2  # the delay
    assert past["pushed_bytes"] > 0


def check_resumed(rank: int, path: Path, directory: Path) -> tuple[Any, Any]:
    straight = trained(path, distributed="exact", epochs=4)
    kept = {"checkpoint": str(directory / "run"), "distributed": "exact"}
    trained(path, epochs=2, **kept)
    return numbers(straight), numbers(trained(path, epochs=4, resume=True, **kept))


def test_resumed_run_is_a_straight_one(path, tmp_path):
    for straight, resumed in run_ranks(check_resumed, 2, path, tmp_path):
        assert straight == resumed


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"distributed": "historical"}, "need each other"),
        ({"historical": "1,2,3,4"}, "need each other"),
        ({"distributed": "historical", "historical": "1,2,3"}, "SIZE,LIFE,DELAY,PUSH"),
        ({"distributed": "historical", "historical": f"1,{10**20},3,4"}, "at most 2147483647"),
        (
            {"past": "bfloat16"},
            "distribution.past bfloat16 needs --distributed historical, not none",
        ),
        ({"misses": "fetch"}, "distribution.misses fetch needs --distributed historical, not none"),
        ({"distributed": "exact", "correct_every": 3}, "needs --distributed local, not exact"),
        ({"clusters": 3}, "distribution.clusters 3 needs --distributed cluster"),
        ({"balance": "train"}, "distribution.balance train needs --distributed"),
        ({"distributed": "exact", "balance": "trian"}, "balance trian: .*did you mean 'train'"),
        ({"distributed": "local", "jk": "cat"}, "needs --jk none"),
        ({"distributed": "exact", "store": "disk"}, "needs --store memory"),
        ({"distributed": "local", "sampler": "fastgcn"}, "--sampler neighbor, not fastgcn"),
        ({"distributed": "local", "sampler": "labor"}, "needs --sampler neighbor, not labor"),
        (
            {"distributed": "local", "correct_every": 2, "checkpoint": "x", "resume": True},
            "moments of their own",
        ),
    ],
)
def test_flags_that_do_not_go_together(path, flags, message):
    with pytest.raises(InputError, match=message):
        trained(path, **flags)


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
