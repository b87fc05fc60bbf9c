"""Learning rates by epoch, in history and checkpoints; gradient clipping; AdamW."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import TrainConfig, Training
from spgnn.testing import run_ranks
from spgnn.train.trainer import apply_rates, rate_factor
from tests.training import reference_history, write_dataset
from tests.training import run as train

LOSSES = [3.0, 2.0, 2.0, 2.5, 1.0, 1.5, 1.0, 0.5]


def factors(count: int, **flags: object) -> list[float]:
    """The factors of each epoch of a run that has these validation losses."""
    history = [{"val_loss": LOSSES[epoch % 8]} for epoch in range(count)]
    return [rate_factor(Training(**flags), history[:epoch]) for epoch in range(count)]


def test_factors():
    """As torch's own schedules have them (SequentialLR of a linear one and the named one)."""
    assert factors(4, epochs=4) == [1.0] * 4
    assert factors(5, epochs=9, warmup=3) == [1 / 3, 2 / 3, 1, 1, 1]
    assert factors(6, epochs=6, lr_schedule="linear", warmup=2) == [
        1 / 2,
        1,
        1,
        3 / 4,
        1 / 2,
        1 / 4,
    ]
    assert factors(6, epochs=9, lr_schedule="step", lr_every=2, lr_factor=0.1) == [
        *(1, 1, 0.1, 0.1, 0.1**2, 0.1**2)
    ]
    # Not lower at epochs 2 and 3; at 5 and 6.
    expected = [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert factors(8, epochs=9, lr_schedule="plateau", lr_every=2) == expected
    parameter = torch.nn.Parameter(torch.zeros(()))
    for name, theirs in (
        ("cosine", lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7)),
        ("linear", lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.0, 7)),
    ):
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        schedule, found = theirs(optimizer), []
        for _ in range(7):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        np.testing.assert_allclose(factors(7, epochs=7, lr_schedule=name), found, rtol=1e-12)


def test_groups_keep_their_own_rates():
    made = [torch.nn.Parameter(torch.zeros(())) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": made[:1]}, {"params": made[1:], "lr": 4.0}], lr=0.5)
    options = Training(lr=0.5, epochs=4, lr_schedule="linear")
    for epoch in range(4):
        assert apply_rates(optimizer, options, [{}] * epoch) == 0.5 * (1 - epoch / 4)
        assert [g["lr"] for g in optimizer.param_groups] == [0.5 - epoch / 8, 4.0 - epoch]


def base(tmp_path, **flags):
    path = write_dataset(tmp_path / "graph.npz")
    return TrainConfig.of(dataset=path, hidden=8, partition="random", lr=0.05, **flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"lr_schedule": "cosine", "warmup": 2},
        {"lr_schedule": "plateau", "lr_every": 1, "clip": 0.3, "dropout": 0.5},
        {"lr_schedule": "step", "lr_every": 2, "optimizer": "adamw"},
    ],
    ids=lambda flags: flags["lr_schedule"],
)
def test_a_resumed_run_is_a_straight_one_bit_for_bit(tmp_path, flags):
    config = base(tmp_path, epochs=8, **flags)
    kept = config.but(checkpoint=tmp_path / "run", checkpoint_every=3)

    def stopped_and_resumed(rank: int) -> tuple[list, list]:
        straight = train(config, connect())[1]["history"]
        # Ended after epoch 5.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "spgnn.train.trainer.Trainer._is_done", lambda self: len(self.history) >= 5
            )
            train(kept, connect())
        return straight, train(kept.but(resume=True), connect())[1]["history"]

    for straight, resumed in run_ranks(stopped_and_resumed, 2):
        for one, other in zip(straight, resumed, strict=True):
            assert one | {"seconds": 0} == other | {"seconds": 0}
        assert len({record["lr"] for record in straight}) > 1
        if flags["lr_schedule"] == "cosine":
            assert [r["lr"] for r in straight[:3]] == [0.025, 0.05, 0.05]
            assert straight[-1]["lr"] == 0.05 * (1 + math.cos(math.pi * 5 / 6)) / 2


def test_adamw_decays_apart_from_the_gradient(tmp_path):
    """Equal to Adam without decay; otherwise another history."""
    config = base(tmp_path, epochs=4, weight_decay=0.0)
    adam, adamw = (train(config.but(optimizer=name), connect())[0] for name in ("adam", "adamw"))
    assert adam == adamw
    np.testing.assert_allclose(adam, reference_history(tmp_path / "graph.npz", config), rtol=1e-4)
    decayed = [
        train(config.but(optimizer=name, weight_decay=0.5), connect())[0]
        for name in ("adam", "adamw")
    ]
    assert decayed[0] != decayed[1]


def test_plateau_needs_a_validation_loss():
    options = Training(lr_schedule="plateau")
    with pytest.raises(InputError, match=r"training\.lr-schedule plateau needs a validation loss"):
        rate_factor(options, [{"val_loss": None}])
