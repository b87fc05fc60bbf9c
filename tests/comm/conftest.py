"""A process that no launcher has started."""

from __future__ import annotations

import os

import pytest

WORDS = ("SLURM", "PMI", "OMPI", "MPI_", "TORCHELASTIC", "LOCAL_", "MASTER_", "OMP_NUM", "SPGNN_")
NAMES = ("RANK", "WORLD_SIZE")


@pytest.fixture
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name in NAMES or (name.startswith(WORDS) and name != "SPGNN_DATA"):
            monkeypatch.delenv(name)
