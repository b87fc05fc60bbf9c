"""Which GPU a rank takes and how many threads, with faked counts of both."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect, default_threads, place
from spgnn.comm.place import (
    NO_GPU,
    OWN_GPUS,
    SHARED_GPUS,
    Node,
    Place,
    choose,
    mpi_lacks_room,
)
from spgnn.testing import run_ranks

CPU = torch.device("cpu")


def gpu(index: int) -> torch.device:
    return torch.device("cuda", index)


@pytest.mark.parametrize(
    ("node", "backend", "index"),
    [
        (Node(0, 1, 1), "nccl", 0),
        (Node(3, 4, 4), "nccl", 3),
        (Node(1, 2, 8), "nccl", 1),
        # SLURM shows every rank its own GPU only.
        (Node(3, 4, 1, own=True), "nccl", 0),
        (Node(3, 4, 2), "gloo", 1),
        (Node(5, 8, 4), "mpi", 1),
    ],
)
def test_gpu_of_a_rank(node, backend, index):
    assert node.gpu(backend) == index


def test_more_ranks_than_gpus_with_nccl():
    with pytest.raises(InputError, match=r"here are 2 for 4 ranks.* use --backend gloo"):
        Node(1, 4, 2).gpu("nccl")


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_no_gpu(backend):
    with pytest.raises(InputError, match="no CUDA device is available"):
        Node(0, 1, 0).gpu(backend)


# What is asked for, the least share of all nodes, and what comes of it on local rank 1 of 2.
CHOICES = [
    ("auto", "auto", OWN_GPUS, ("nccl", gpu(1))),
    ("auto", "auto", SHARED_GPUS, ("gloo", CPU)),
    ("auto", "auto", NO_GPU, ("gloo", CPU)),
    ("auto", "cpu", OWN_GPUS, ("gloo", CPU)),
    ("auto", "cuda", OWN_GPUS, ("nccl", gpu(1))),
    ("auto", "cuda", SHARED_GPUS, ("gloo", gpu(1))),
    ("auto", "cuda", NO_GPU, "no CUDA device"),
    ("gloo", "auto", OWN_GPUS, ("gloo", gpu(1))),
    ("gloo", "auto", SHARED_GPUS, ("gloo", CPU)),
    ("gloo", "cuda", SHARED_GPUS, ("gloo", gpu(1))),
    ("nccl", "auto", OWN_GPUS, ("nccl", gpu(1))),
    ("nccl", "auto", SHARED_GPUS, "--backend nccl needs a GPU for every rank"),
    ("nccl", "cuda", SHARED_GPUS, "--backend nccl needs a GPU for every rank"),
    ("nccl", "cuda", NO_GPU, "--backend nccl needs a GPU for every rank"),
    ("nccl", "cpu", OWN_GPUS, "--device cuda"),
    ("mpi", "auto", OWN_GPUS, ("mpi", gpu(1))),
    ("mpi", "cuda", NO_GPU, "no CUDA device"),
]


@pytest.mark.parametrize(("backend", "device", "share", "chosen"), CHOICES)
def test_choice_follows_the_poorest_node(backend, device, share, chosen):
    """A rank of a rich node does as those of a poor one must."""
    rich = Node(1, 2, 2)
    if isinstance(chosen, str):
        with pytest.raises(InputError, match=chosen):
            choose(backend, device, rich, lambda own: min(own, share))
    else:
        assert choose(backend, device, rich, lambda own: min(own, share)) == chosen


def test_under_mpiexec_auto_means_mpi():
    poor, rich = Node(1, 2, 1), Node(1, 2, 2)
    assert choose("auto", "auto", poor, lambda own: own, auto="mpi") == ("mpi", CPU)
    assert choose("auto", "auto", rich, lambda own: own, auto="mpi") == ("mpi", gpu(1))


def test_job_on_nodes_of_different_wealth(monkeypatch):
    """All ranks take the CPU if one of them has no GPU of its own."""
    counts = {0: 4, 1: 4, 2: 2}
    monkeypatch.setattr(place, "visible_gpus", lambda: counts[int(os.environ["RANK"])])

    def chosen(rank: int) -> tuple[str, bool]:
        comm = connect()
        return str(comm.device), comm.moves_cuda

    assert run_ranks(chosen, 3, device="auto") == [("cpu", False)] * 3


@pytest.mark.parametrize(
    ("environment", "ranks", "threads"),
    [
        ({}, 1, 6),
        ({}, 2, 3),
        ({}, 4, 1),
        ({}, 100, 1),
        ({}, None, 6),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, None, 3),
        (
            {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"},
            None,
            2,
        ),
        ({"OMP_NUM_THREADS": "5"}, 2, 5),
        ({"OMP_NUM_THREADS": "1"}, 2, 1),
        ({"OMP_NUM_THREADS": "4,2"}, 2, 3),
        # torchrun sets 1 where nobody has set it.
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 2, 3),
        ({"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, 2, 2),
        ({"SLURM_CPUS_PER_TASK": "5", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, None, 5),
        # In a batch script it is the share of ranks that are still to be started.
        ({"SLURM_CPUS_PER_TASK": "5", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, 2, 3),
    ],
)
def test_even_share_of_the_processors(clean_environment, monkeypatch, environment, ranks, threads):
    monkeypatch.setattr(place, "processors", lambda: 6)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert default_threads(ranks) == threads


@pytest.mark.parametrize(
    ("total", "free", "said"),
    [
        (1024, 1024, ""),
        (
            64,
            64,
            "16 ranks on a node take 88 MiB of /dev/shm under MPICH, but it has 64 MiB, 64 of",
        ),
        (
            1024,
            3,
            "16 ranks on a node take 88 MiB of /dev/shm under MPICH, but it has 1024 MiB, 3 o",
        ),
        # Others of the job have theirs already.
        (100, 18, ""),
    ],
)
def test_room_for_the_memory_that_mpich_shares(monkeypatch, total, free, said):
    """It is killed by SIGBUS where there is none."""
    place, blocks = Place(3, 32, 3, 16, "mpi"), 1 << 8  # of a MiB
    shared = SimpleNamespace(f_frsize=4096, f_blocks=total * blocks, f_bavail=free * blocks)
    monkeypatch.setattr(os, "statvfs", lambda path: shared)
    assert mpi_lacks_room(place) == ""  # another MPI than MPICH
    monkeypatch.setenv("PMI_RANK", "3")
    assert mpi_lacks_room(place).startswith(said)
    assert (mpi_lacks_room(place) == "") == (said == "")
