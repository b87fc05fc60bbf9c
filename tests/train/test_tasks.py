"""Every task through the command: reports, and runs that are resumed on other ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.train.command import check_refused, run
from tests.training import write_dataset

N = 61
SEVERAL = np.random.default_rng(5).integers(-1, 2, (N, 3)).astype(np.int8)
KINDS: dict[str, tuple[dict, dict]] = {
    "links": ({}, {"task": "links", "decoder": "mlp", "eval_negatives": 5}),
    "shown": ({}, {"label_propagation": 0.5}),
    "several": ({"y": SEVERAL}, {"metric": "roc-auc", "inductive": True}),
    "numbers": ({"y": SEVERAL.astype(np.float32)}, {"metric": "r2"}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_a_straight_one(tmp_path, kind):
    instead, flags = KINDS[kind]
    path = write_dataset(tmp_path / "graph.npz", **instead)
    base = TrainConfig.of(dataset=path, layers=2, hidden=8, epochs=5, partition="random", **flags)
    kept = base.but(checkpoint=str(tmp_path / "kept"), epochs=3)

    def histories(config: TrainConfig, ranks: int) -> list[dict]:
        return run_ranks(lambda rank: train(config, connect()), ranks)[0]["history"]

    straight = histories(base, 1)
    histories(kept, 2)
    resumed = histories(kept.but(resume=True, epochs=5), 3)
    for one, other in zip(straight, resumed, strict=True):
        assert one.keys() == other.keys()
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)


def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", path, "--checkpoint", tmp_path / "kept", "--layers", 1]
    assert run(tmp_path, *flags).status == 0
    ended = run(tmp_path, *flags, "--set", "aim.label-propagation=0.5", "--resume")
    check_refused(ended, "was made with task None, not label propagation")


def test_the_command_trains_on_several_graphs(tmp_path):
    """Two to train on, one to validate."""
    paths = []
    for number in range(3):
        write_dataset(tmp_path / f"{number}.npz", seed=number)
        paths.append(str(tmp_path / f"{number}.npz"))
    report = tmp_path / "report.json"
    flags = ["--dataset", "+".join(paths), "--set", "data.graph-split=2,1,0", "--layers", 2]
    ended = run(tmp_path, *flags, "--metric", "f1-macro", "--json", report, "--nproc", 2)
    assert ended.status == 0, ended
    assert "val f1 macro" in ended.out
    found = json.loads(report.read_text())
    assert found["graph"]["vertices"] == 3 * N
    assert found["config"]["graph_split"] == "2,1,0"
    assert found["best"]["by"] == "val_f1_macro"
    last = found["history"][-1]
    assert last["test_acc"] is None
    assert None not in (last["train_acc"], last["val_f1_macro"], last["val_loss"])
    ended = run(tmp_path, "--dataset", paths[0], "--set", "data.graph-split=2,1,0")
    check_refused(ended, "data.graph-split 2,1,0: must be three numbers of graphs that add up to 1")


def test_the_command_predicts_links(tmp_path):
    path, report = write_dataset(tmp_path / "graph.npz"), tmp_path / "report.json"
    flags = ["--dataset", path, "--task", "links", "--nproc", 2, "--metric", "mrr"]
    ended = run(tmp_path, *flags, "--json", report)
    assert ended.status == 0, ended
    assert "test hits@50" in ended.out
    found = json.loads(report.read_text())
    assert found["best"]["by"] == "val_mrr"
    assert found["volume"] == found["planned_volume"]
    assert found["volume"]["total_bytes"] > 0
    assert found["graph"]["classes"] == 0
