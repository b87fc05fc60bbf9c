"""The controller of ``--tolerance``: what it turns when, and training under it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from spgnn import InputError
from spgnn.comm import SoloCommunicator, connect
from spgnn.exchange import Step
from spgnn.testing import run_ranks
from spgnn.train import TrainConfig, Trainer, prepare, task_of
from spgnn.train.shown import show
from spgnn.train.tolerance import FAR_BELOW, PATIENCE, Controller
from spgnn.wires import Approximation, Dials, Errors
from tests.train.test_wiring import base, scores, trained

WITHIN, BEYOND, FAR_WITHIN = 1.05, 1.2, 1.0001  # losses where the exact one is 1 and EPS is 0.1


def controller_of(**asked: object) -> tuple[Controller, Dials, Errors]:
    dials, errors = Dials(Approximation(tolerance=0.1, **asked), 1000), Errors()
    return Controller(dials, [errors], SoloCommunicator()), dials, errors


def look(controller: Controller, errors: Errors, epoch: int, loss: float, **made: float) -> None:
    """One epoch that is looked at, with relative errors by kind."""
    controller.begin()
    for kind, error in made.items():
        errors.account(kind, Step(epoch), torch.device("cpu")).add_(
            torch.tensor([error**2, 1.0], dtype=torch.float64)
        )
    controller.end(epoch, loss, 1.0)


def chosen(dials: Dials, epoch: int = 500) -> tuple[int, int, float]:
    return dials.bits_at(epoch), dials.delay_at(epoch), dials.sampling_at(epoch)


def test_the_largest_error_is_made_less():
    asked = {"bits": ((0, 2),), "delay": 5, "sampling": ((0, 0.3),)}
    controller, dials, errors = controller_of(**asked)
    assert chosen(dials) == (2, 5, 0.3)
    look(controller, errors, 0, BEYOND, rounding=0.5, delay=0.1, sampling=0.2)
    assert chosen(dials) == (4, 5, 0.3)
    assert controller.looks(777)  # restless
    # What epochs before had lost does not count.
    look(controller, errors, 777, BEYOND, rounding=0.15, delay=0.1, sampling=0.2)
    assert chosen(dials) == (4, 5, 0.6)
    look(controller, errors, 778, BEYOND, delay=0.1)
    assert chosen(dials) == (4, 2, 0.6)
    # Nothing was measured: as when something was.
    for expected in ((4, 1, 0.6), (4, 0, 0.6), (8, 0, 0.6), (16, 0, 0.6), (32, 0, 0.6)):
        look(controller, errors, 779, BEYOND)
        assert chosen(dials) == expected
    look(controller, errors, 780, BEYOND)
    assert chosen(dials) == (32, 0, 1.0)
    look(controller, errors, 781, BEYOND)  # there is nothing left to turn
    assert chosen(dials) == (32, 0, 1.0)
    look(controller, errors, 782, WITHIN)
    assert not controller.looks(783)
    assert controller.looks(790)
    assert [told["bits"] for told in controller.record["log"][:3]] == [2, 4, 4]
    totals = {kind: sums.tolist() for (_, _, kind), sums in errors.sums().items()}
    assert totals["rounding"] == pytest.approx([0.5**2 + 0.15**2, 2.0])


def test_far_below_for_long_is_cheaper():
    controller, dials, errors = controller_of(bits=((0, 4),))
    look(controller, errors, 0, BEYOND, rounding=0.5)
    for epoch in range(1, 2 * PATIENCE):  # epochs in a row are not long
        look(controller, errors, epoch, FAR_WITHIN, rounding=0.1)
    looks = [WITHIN] + [FAR_WITHIN] * (PATIENCE - 1) + [WITHIN] + [FAR_WITHIN] * (PATIENCE - 1)
    for loss in looks:
        look(controller, errors, 10, loss, rounding=0.1)
        assert chosen(dials)[0] == 8
    look(controller, errors, 10, FAR_WITHIN, rounding=0.1)
    assert chosen(dials)[0] == 4
    # That was wrong, and is tried again after twice as many.
    look(controller, errors, 10, BEYOND, rounding=0.5)
    assert chosen(dials)[0] == 8
    for _ in range(2 * PATIENCE - 1):
        look(controller, errors, 10, 1.0, rounding=0.1)
        assert chosen(dials)[0] == 8
    look(controller, errors, 10, 1.0, rounding=0.1)
    assert chosen(dials)[0] == 4
    # Cheaper than what was asked for, down to one bit.
    for bits in (2, 1, 1):
        for _ in range(2 * PATIENCE):
            look(controller, errors, 10, 1.0)
        assert chosen(dials)[0] == bits


def test_bits_that_were_not_asked_for_are_not_dropped():
    controller, dials, errors = controller_of(delay=2)
    for _ in range(3 * PATIENCE):
        look(controller, errors, 10, 1.0)
    assert chosen(dials) == (32, 2, 1.0)


@pytest.mark.parametrize(
    ("loss", "exact", "perturbation"),
    [(0.0, 0.0, 0.0), (1.0, 0.0, None), (float("nan"), 1.0, None), (-1.5, -1.0, 0.5)],
)
def test_odd_losses(loss, exact, perturbation):
    controller, _, _ = controller_of(bits=((0, 8),))
    controller.begin()
    controller.end(3, loss, exact)
    (told,) = json.loads(json.dumps(controller.record["log"], allow_nan=False))
    assert told == {"epoch": 3, "perturbation": perturbation, "bits": 8, "delay": 0, "sampling": 1}
    assert controller.progress.restless == (perturbation != 0.0)


def test_states_come_back():
    asked = {"bits": ((0, 2),), "delay": 5}
    one, _, errors = controller_of(**asked)
    for loss in (BEYOND, FAR_WITHIN, BEYOND):
        look(one, errors, 0, loss, rounding=0.5, delay=0.6)
    other, dials, _ = controller_of(**asked)
    other.load(json.loads(json.dumps(one.state())))
    assert other.progress == one.progress
    assert chosen(dials) == (2, 1, 1.0)
    for damaged in ({}, {"bits": 3, "delay": 0, "sampling": 1}, {"bits": 2}, {"more": 1}):
        with pytest.raises(InputError, match="a damaged checkpoint"):
            other.load(damaged)


def check_tolerance(rank: int, config: TrainConfig, directory: Path) -> dict:
    straight = trained(config)
    told = straight["approximation"]["tolerance"]
    connect().check_agreement("tolerance", told=json.dumps(told))
    # Looking is counted, and planned.
    for name in ("volume", "volume_by_level"):
        assert straight[name] == straight[f"planned_{name}"]
    chosen = [(each["bits"], each["delay"], each["sampling"]) for each in told["log"]]
    for before, after, each in zip(chosen, chosen[1:], told["log"], strict=False):
        far = each["perturbation"] / told["tolerance"]
        assert before != after if far > 1 else far < FAR_BELOW or before == after
        assert before != (32, 0, 1.0) or each["perturbation"] == 0
    kept = config.but(checkpoint=directory / "run", checkpoint_every=3)
    trained(kept.but(epochs=5))
    resumed = trained(kept.but(resume=True))
    assert scores(resumed["history"]) == scores(straight["history"])
    assert resumed["approximation"]["tolerance"] == told
    return straight


@pytest.mark.parametrize(
    "flags",
    [
        {"tolerance": 1e-3, "bits": 2, "delay": 3, "boundary_sampling": 0.5, "norm": "batch"},
        pytest.param(
            {"tolerance": 1e-3, "bits": 1, "error_feedback": True, "dropout": 0.5},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"tolerance": 1e-2, "hierarchy": 2, "approximate": "between", "ghosts": 1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=str,
)
def test_training_under_a_tolerance(tmp_path, capsys, flags):
    config = base(tmp_path).but(eval_every=1, epochs=12, **flags)
    found = run_ranks(check_tolerance, 4, config, tmp_path)
    show(found[0])
    shown = capsys.readouterr().out
    last = found[0]["approximation"]["tolerance"]["log"][-1]
    for words in ("error of wires, adjoint", f"tolerance {flags['tolerance']:g}", "loss off by"):
        assert words in shown
    assert f"{last['bits']} bits" in shown


def check_looking(rank: int, config: TrainConfig) -> None:
    """It changes nothing: neither what is drawn nor means that a norm keeps."""
    comm, looked = connect(), config.but(tolerance=1e9)
    problem = prepare(config, comm)
    task = task_of(looked, problem, comm)
    task.wiring.dials.bits = task.wiring.controller.progress.bits = 32
    trainer = Trainer(task, looked.training, comm)
    trainer.run()
    assert len(task.wiring.controller.record["log"]) == len(trainer.history)
    exact = trained(config.but(tolerance=0.0), problem)
    assert exact["approximation"] is None
    assert scores(trainer.history) == scores(exact["history"])


def test_looking_changes_nothing(tmp_path):
    config = base(tmp_path).but(norm="batch", dropout=0.5, layers=2)
    run_ranks(check_looking, 3, config)
