"""Training with approximate messages: where codecs are put, what they move, what exact ones do."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.graph.training import TrainingGraph
from spgnn.progress import Stopwatch
from spgnn.testing import run_ranks
from spgnn.train import Trainer, train
from spgnn.train import report as reporting
from spgnn.train.run import of_run, resolved, task_of
from tests.training import write_dataset

EPOCHS = 5
LATE = {"delay": 2, "delay_bins": 2, "smoothing": 0.3, "exact_last": 1}
LATE |= {"bits": "2,8@2", "error_feedback": True}


def base(directory: Path) -> TrainConfig:
    path = write_dataset(directory / "graph.npz")
    return TrainConfig.of(
        dataset=path, epochs=EPOCHS, eval_every=3, hidden=8, partition="random", seed=3, lr=0.05
    )


def trained(config: TrainConfig, problem: TrainingGraph | None = None) -> dict:
    """The report of a run on the ranks that there are; several may share their data."""
    comm = connect()
    config = resolved(config, comm)
    config.check(comm.size)
    problem = training_graph(config, comm) if problem is None else problem
    trainer = Trainer(task_of(config, problem), options=config.training)
    trainer.run()
    return reporting.assemble(config, trainer, 0, Stopwatch())


def scores(history: list[dict]) -> list[dict]:
    return [
        {name: value for name, value in record.items() if name != "seconds" and value is not None}
        for record in history
    ]


SCHEMES = [
    {"cover": "minimum", "dropout": 0.5},
    {"algo": "feature", "c": 2},
    {"hierarchy": 2, "recompute_halo": True},
    {"model": "sage", "norm": "batch", "layers": 2, "dtype": "bfloat16"},
    {"layers": 1},
    {"model": "gat", "heads": 2, "cover": "minimum", "dropout": 0.5},
]
MORE = [
    {"model": "sage", "aggregate": "max"},
    {"prune": False},
    {"algo": "1.5d", "c": 2, "cover": "row"},
    {"algo": "vertex-cut"},
    {"algo": "vertex-cut", "clones": True},
    {"algo": "vertex-cut", "clones": True, "model": "sage", "norm": "batch", "dtype": "bfloat16"},
    {"hierarchy": 2},
    {"recompute_halo": True},
    {"order": "paper"},
    {"model": "gin", "jk": "cat"},
    {"label_propagation": 0.5},
    {"inductive": True},
    {"dtype": "float64"},
    {"model": "gat", "algo": "1.5d", "c": 2, "heads": 2, "dtype": "bfloat16"},
    {"model": "gatv2", "algo": "vertex-cut", "heads": 2},
]


def check_schemes(rank: int, schemes: list[TrainConfig]) -> None:
    for config in schemes:
        problem = training_graph(config, connect())
        exact = trained(config, problem)
        # With a codec that is exact, to the last bit; and late.
        passed = trained(config.but(delay=1, exact_last=EPOCHS), problem)
        assert scores(passed["history"]) == scores(exact["history"]), config
        for name in ("volume", "planned_volume", "volume_by_level", "planned_volume_by_level"):
            assert passed[name] == exact[name], config
        late = trained(config.but(**LATE), problem)
        assert late["volume"] == late["planned_volume"], config
        assert late["volume_by_level"] == late["planned_volume_by_level"], config
        moved = [report["volume"]["total_bytes"] for report in (late, exact)]
        if moved[1]:
            assert 0 < moved[0] < moved[1], config
            assert scores(late["history"]) != scores(exact["history"]), config
        else:
            assert scores(late["history"]) == scores(exact["history"]), config


@pytest.mark.parametrize(
    "listed", [SCHEMES, pytest.param(MORE, marks=pytest.mark.slow)], ids=["some", "more"]
)
def test_every_scheme_has_its_codecs(tmp_path, listed):
    run_ranks(check_schemes, 4, [base(tmp_path).but(**flags) for flags in listed])


def check_runs(rank: int, config: TrainConfig) -> None:
    """Each run has codecs of its own, which begin anew; one that stops early leaves nothing."""
    comm = connect()
    both = train(config.but(runs=2), comm)
    problem = training_graph(config, comm)
    for number, run in enumerate(both["runs"]):
        alone = trained(of_run(config.but(runs=2), number).but(runs=1), problem)
        assert scores(alone["history"]) == scores(run["history"])
    assert both["volume"] == both["planned_volume"]
    stopped = trained(config.but(epochs=60, lr=0.5, patience=2, eval_every=1), problem)
    assert len(stopped["history"]) < 60
    assert stopped["volume"] == stopped["planned_volume"]
    # A run that has ended holds no rows.
    ended = task_of(config, problem)
    Trainer(ended, options=config.training).run()
    kept = ended.state()
    assert not [name for name in kept if name.partition(".")[2] not in ("", "place")]
    # Nothing is sent; so no rank has rows of others.
    never = trained(config.but(delay="never", schedule="peers", buffer=2000))
    assert never["volume"]["total_bytes"] == never["planned_volume"]["total_bytes"] == 0
    assert never["history"][-1]["val_acc"] is not None
    exact = config.but(delay=0)
    links = exact.but(task="links")
    late = trained(links.but(delay=1, delay_bins=2))
    assert scores(late["history"]) != scores(trained(links)["history"])


def test_runs_stops_and_links(tmp_path):
    run_ranks(check_runs, 3, base(tmp_path).but(delay=1))


def check_errors(rank: int, config: TrainConfig) -> None:
    """Errors are there by product and direction, the same on all ranks, and of the right size."""
    comm, problem = connect(), training_graph(config, connect())
    found = {}
    for bits in (8, 4):
        report = trained(config.but(bits=bits, prune=False), problem)
        assert report["volume"] == report["planned_volume"]
        told = report["approximation"]
        assert told["codec"] == f"--bits {bits}"
        comm.check_agreement("errors", errors=json.dumps(told))
        errors = found[bits] = told["errors"]
        # Two products move anything: that of X does not.
        named = [(each["product"], each["direction"]) for each in errors]
        assert named == [(p, way) for p in (0, 1) for way in ("forward", "adjoint")]
        assert all(set(each["by"]) == {"rounding"} for each in errors)
        assert all(each["error"] == each["by"]["rounding"] for each in errors)
    # Four bits fewer make the steps between the codes 17 times as large.
    for coarse, fine in zip(found[4], found[8], strict=True):
        assert 0 < fine["error"] < 0.02
        assert 10 < coarse["error"] / fine["error"] < 25
    late = trained(config.but(bits=4, delay=1), problem)["approximation"]["errors"]
    for each in late:
        assert set(each["by"]) == {"rounding", "delay"}
        assert each["error"] == math.hypot(*each["by"].values())
    never = trained(config.but(delay="never"), problem)["approximation"]
    assert never["codec"] == "--delay never"


@pytest.mark.parametrize("ranks", [1, 3])
def test_errors_are_reported(tmp_path, ranks):
    config = base(tmp_path)
    if ranks == 1:  # nothing travels
        found = trained(config.but(bits=4))["approximation"]
        assert found == {"codec": "--bits 4", "errors": []}
        return
    run_ranks(check_errors, ranks, config)
