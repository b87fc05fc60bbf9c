"""Flags of approximate wires: what they stand for, and what is refused."""

from __future__ import annotations

import pytest

from spgnn import InputError
from spgnn.exchange import Codec
from spgnn.train import TrainConfig
from tests.train.command import run
from tests.training import write_dataset


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        ({}, Codec()),
        ({"bits": 8}, Codec(bits=((0, 8),))),
        (
            {"bits": "2, 8@50,32@90", "error_feedback": True},
            Codec(bits=((0, 2), (50, 8), (90, 32)), feedback=True),
        ),
        ({"delay": "never"}, Codec(delay=None)),
        (
            {"delay": 5, "delay_bins": 3, "smoothing": 0.5, "exact_last": 2},
            Codec(delay=5, bins=3, smoothing=0.5, exact_last=2),
        ),
        ({"fresh": 0.01}, Codec(fresh=0.01)),
        ({"delay": 2, "centred": False}, Codec(delay=2, exact_means=False)),
        ({"boundary_sampling": "0.1,1@9"}, Codec(sampling=((0, 0.1), (9, 1.0)))),
        (
            {"boundary_sampling": "1e-1", "centred": True},
            Codec(sampling=((0, 0.1),), exact_means=True),
        ),
        # Nothing is lost and nothing late.
        ({"bits": "32,32@4", "boundary_sampling": "1.0", "exact_last": 5}, Codec()),
    ],
    ids=str,
)
def test_flags_stand_for_approximations(flags, asked):
    config = TrainConfig.of(**flags)
    config.check(4)
    assert config.wires.approximation == asked
    assert asked.exact == (asked == Codec())


@pytest.mark.parametrize(
    ("flags", "means", "described"),
    [
        ({"delay": 1}, True, "--delay 1 --centred True"),
        ({"boundary_sampling": "1,0.5@3"}, True, "--centred True --boundary-sampling 1,0.5@3"),
        ({"delay": 1, "centred": False}, False, "--delay 1"),
        ({"bits": 4}, False, "--bits 4"),
        ({"fresh": 0.5}, False, "--fresh 0.5"),
        ({"delay": "never"}, False, "--delay never"),
        ({"bits": 4, "centred": True}, True, "--bits 4 --centred True"),
        ({"delay": "never", "centred": True}, True, "--delay never --centred True"),
        ({"centred": False}, False, ""),
    ],
    ids=str,
)
def test_late_and_sampled_messages_send_their_means(flags, means, described):
    config = TrainConfig.of(**flags)
    config.check(4)
    assert config.wires.approximation.sends_means == means
    assert config.wires.described(weighed=False) == described
    assert "centred" not in config.wires.described(weighed=True)
    config.but(model="gat", centred=None).check(4)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"bits": 3}, "--bits 3: must be 32, 16, 8, 4, 2 or 1, or a schedule"),
        ({"bits": "8,4"}, "--bits 8,4: must be"),
        ({"bits": "8@3"}, "--bits 8@3: must be"),
        ({"bits": "8,4@9,2@9"}, "--bits 8,4@9,2@9: must be"),
        ({"bits": "8,4@-1"}, "--bits 8,4@-1: must be"),
        ({"bits": ""}, "--bits: an empty name"),
        ({"boundary_sampling": 0}, "--boundary-sampling 0: must be .*--delay never sends nothing"),
        ({"boundary_sampling": "nan"}, "--boundary-sampling nan: must be a share in"),
        (
            {"boundary_sampling": "1,1e-40@2"},
            "--boundary-sampling must be 1e-09 or more",
        ),
        ({"boundary_sampling": 1.5}, "--boundary-sampling 1.5: must be a share in"),
        ({"boundary_sampling": "0.5,0@7"}, "--boundary-sampling 0.5,0@7: must be .*--delay never"),
        ({"delay": -1}, "--delay -1: must be a number of epochs from 0, or never"),
        ({"delay": "nevr"}, "--delay nevr: must be .*did you mean 'never'"),
        ({"delay_bins": 0}, "--delay-bins: '0' must be an integer ≥ 1"),
        (
            {"fresh": 0.1, "delay": 2, "delay_bins": 2},
            "--fresh compares .* be had with --delay-bins",
        ),
        ({"bits": "8,1@5", "error_feedback": True}, "--error-feedback needs 2 bits or more"),
        ({"smoothing": 1}, r"--smoothing: '1' must be in \[0, 1\)"),
    ],
)
def test_wrong_values(flags, said):
    with pytest.raises(InputError, match=said):
        TrainConfig.of(**flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"delay": 10, "epochs": 10}, "--delay 10 must be less than --epochs 10"),
        ({"delay_bins": 3}, "--delay-bins 3 needs --delay R"),
        ({"delay_bins": 3, "delay": "never"}, "--delay-bins 3 needs --delay R"),
        ({"smoothing": 0.5}, "--smoothing 0.5 needs --delay R"),
        ({"exact_last": 11, "epochs": 10}, "--exact-last 11 exceeds --epochs 10"),
        ({"error_feedback": True}, "--error-feedback needs --bits 16 or fewer"),
        ({"centred": True}, "--centred needs --bits, --delay, --fresh"),
        ({"centred": True, "delay": 1, "model": "gat"}, "--model gat: --centred: attention weighs"),
        ({"bits": 8, "exchange": "oblivious"}, "--bits 8 needs --exchange sparsity-aware"),
        (
            {"delay": 1, "boundary_sampling": 0.5, "model": "gat"},
            "--model gat: --boundary-sampling cannot be had with a delay",
        ),
        *(
            (
                {**left_out, "model": "sage", "aggregate": "max"},
                "needs --aggregate mean or sum: rows",
            )
            for left_out in ({"delay": "never"}, {"boundary_sampling": 0.5})
        ),
        ({"fresh": 0.1, "parts": 2}, "--fresh 0.1 needs rows in memory: no --memory"),
        (
            {"bits": 4, "error_feedback": True, "schedule": "peers", "buffer": 9},
            "--error-feedback needs --schedule overlap",
        ),
        ({"delay": 3, "schedule": "peers", "buffer": 9}, "--delay 3 needs --schedule overlap"),
    ],
)
def test_combinations_that_cannot_work(flags, said):
    with pytest.raises(InputError, match=said):
        TrainConfig.of(**flags).check(4)


@pytest.mark.parametrize(
    "flags",
    [
        {"bits": 4, "schedule": "peers", "buffer": 9},
        {"delay": "never", "schedule": "peers", "buffer": 9},
        {"bits": 32, "delay": 0, "exchange": "oblivious"},
        {"hierarchy": "auto", "bits": 2},
        {"delay": 9, "epochs": 10, "exact_last": 10, "ghosts": 1, "dtype": "float64"},
        {"bits": 8, "task": "links"},
        {"delay": 2, "bits": 2, "error_feedback": True, "model": "gat"},
        {"boundary_sampling": 0.1, "bits": 8, "model": "gatv2", "algo": "1.5d", "c": 2},
        {"delay": "never", "model": "gat"},
        {"bits": 8, "inductive": True, "label_propagation": 0.5},
        {"bits": 4, "error_feedback": True, "delay": 1, "centred": True},
    ],
    ids=str,
)
def test_combinations_that_work(flags):
    TrainConfig.of(**flags).check(4)


def test_late_partial_sums_are_warned_of(tmp_path):
    dataset = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", dataset, "--epochs", 3, "--nproc", 2, "--delay", 1]
    for algo, lines in (("vertex-cut", 1), ("1d", 0)):
        ended = run(tmp_path, *flags, "--algo", algo)
        assert ended.status == 0, ended
        warnings = [line for line in ended.err.splitlines() if line.startswith("warning: ")]
        assert len(warnings) == lines
        assert all("--delay 1 with --algo vertex-cut" in line for line in warnings)
