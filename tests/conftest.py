"""What holds for every test."""

from __future__ import annotations

import importlib
import math
import os
import random
import signal
import sys
from pathlib import Path

# Threads that wait must not take a processor from those that work: here are more than processors.
# Read when torch is imported, hence before it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# Papers' systems are programs' own, who find them beside themselves.
sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import systems  # noqa: F401  (registers what they bring)

from spgnn import progress

# What a batch system, a launcher or a shell has told this process of a job is none of the tests';
# neither is how patient that job was, or how wide and colourful its terminal.
OF_A_JOB = (
    *("RANK", "WORLD_SIZE", "GROUP_", "ROLE_", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_"),
    *("SLURM", "PMI", "OMPI", "MPI_", "TORCHELASTIC", "SPGNN_CACHE", "SPGNN_DEBUG"),
    *("SPGNN_SETUP", "SPGNN_START", "SPGNN_TIMEOUT", "COLUMNS", "LINES", "FORCE_COLOR"),
)
for name in [name for name in os.environ if name.startswith(OF_A_JOB)]:
    del os.environ[name]

# A shell lets what it starts in the background ignore Ctrl-C, and all that this starts as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where other programs compute as well, anything may take long; tests compare what is on stderr.
progress.LONG_SECONDS = math.inf
importlib.import_module("spgnn.comm.connect").NOTE_SECONDS = math.inf

# No test is timed, and none draws other examples today than it did yesterday.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")
# Among what it draws are constants of whatever modules of ours are imported by then: those depend
# on which tests this process has run before. There is no setting for it.
providers.is_local_module_file = lambda file: False  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def compiler() -> None:
    """What torch imports to compile for the first time, before ranks are forked that do."""
    torch.compile(torch.relu, backend="aot_eager")(torch.ones(1, requires_grad=True))


# Tables and help are as wide, and as plain, whatever terminal tests are started from.
TERMINAL = {"COLUMNS": "80", "LINES": "25", "TERM": "dumb"}
COLOURS = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test meets what it would meet alone: no draws of others, no terminal of somebody's."""
    os.environ.update(TERMINAL)
    for name in COLOURS:
        os.environ.pop(name, None)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (libraries draw from it)
    torch.default_generator.manual_seed(0)
