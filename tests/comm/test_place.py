"""Rank, node, GPU and threads, from the variables of each launcher and faked counts of GPUs."""

from __future__ import annotations

import importlib
import os
import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect, place
from spgnn.comm.connect import meet, step_hosts, step_port
from spgnn.comm.place import (
    NO_GPU,
    OWN_GPUS,
    SHARED_GPUS,
    Place,
    choose,
    default_threads,
    find_place,
    mpi_lacks_room,
)
from spgnn.comm.place import seconds as seconds_of
from spgnn.testing import run_ranks
from tests.comm.jobs import Forked


def env(text: str) -> dict[str, str]:
    """Variables of an environment, from ``NAME=value NAME=value``."""
    return dict(word.split("=", 1) for word in text.split())


@pytest.fixture
def given(monkeypatch):
    """Sets variables of the environment, which has none of a launcher's (tests/conftest.py)."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def give(environment: dict[str, str]) -> None:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return give


BATCH = env("SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=6 SLURM_LOCALID=0")
STEP = BATCH | env(
    "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=6 SLURM_STEP_TASKS_PER_NODE=2(x2),1(x2) SLURM_NODEID=1 "
    "SLURM_PROCID=3 SLURM_LOCALID=1"
)
TWO_TASKS = STEP | env(
    "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_PROCID=1 SLURM_LOCALID=0"
)
ELASTIC = env("TORCHELASTIC_RUN_ID=7 GROUP_RANK=1 GROUP_WORLD_SIZE=2")
TORCHRUN = env("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4")
HYDRA = env("PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
OPEN_MPI = env(
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=2"
)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        (TORCHRUN, Place(5, 8, 1, 4, "torch")),
        (env("RANK=3 WORLD_SIZE=8"), Place(3, 8, 3, 8, "torch")),
        (env("RANK=3"), None),
        (HYDRA, Place(3, 4, 1, 2, "mpi")),
        (env("PMI_RANK=1 PMI_SIZE=4"), Place(1, 4, 1, 4, "mpi")),
        (OPEN_MPI, Place(2, 4, 0, 2, "mpi")),
        (STEP, Place(3, 6, 1, 2, "slurm")),
        (STEP | env("SLURM_NODEID=2 SLURM_LOCALID=0"), Place(3, 6, 0, 1, "slurm")),
        (STEP | env("PMIX_RANK=3"), Place(3, 6, 1, 2, "mpi")),
        # The first component of a heterogeneous step is on the second of the sorted nodes.
        (
            STEP
            | env(
                "SLURM_STEP_TASKS_PER_NODE=2,4 SLURM_NODEID=0 SLURM_GTIDS=0,1,2,3 SLURM_LOCALID=3"
            ),
            Place(3, 6, 3, 4, "slurm"),
        ),
        # A batch script that srun has not started, and a shell that salloc has.
        (BATCH, None),
        (BATCH | env("SLURM_STEP_ID=4294967290 SLURM_STEP_NUM_TASKS=1"), None),
        # A shell on a compute node: SLURM describes it, but it is one process.
        (env("SLURM_PROCID=0 SLURM_NTASKS=1"), None),
        # torchrun and mpiexec inside an allocation.
        (STEP | TORCHRUN, Place(5, 8, 1, 4, "torch")),
        (TWO_TASKS | TORCHRUN | ELASTIC, Place(5, 8, 1, 4, "torch")),
        (TWO_TASKS | env("PMI_RANK=1 PMI_SIZE=2"), Place(1, 2, 0, 1, "mpi")),
        # torchrun under mpiexec, or in a job of one process.
        (env("PMI_RANK=1 PMI_SIZE=2") | TORCHRUN | ELASTIC, Place(5, 8, 1, 4, "torch")),
        (env("PMI_RANK=0 PMI_SIZE=1") | TORCHRUN | ELASTIC, Place(5, 8, 1, 4, "torch")),
        # mpiexec starts its own helpers by srun, one on each node.
        (TWO_TASKS | HYDRA, Place(3, 4, 1, 2, "mpi")),
        # Variables that say the same, as scripts set them for torch.
        (HYDRA | env("RANK=3 WORLD_SIZE=4"), Place(3, 4, 1, 2, "torch")),
        (STEP | env("RANK=3 WORLD_SIZE=6"), Place(3, 6, 1, 2, "torch")),
        # What another job has left of its nodes does not matter.
        (HYDRA | env("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"), Place(3, 4, 1, 2, "mpi")),
        (STEP | env("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"), Place(3, 6, 1, 2, "slurm")),
        (STEP | env("MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1"), Place(3, 6, 1, 2, "slurm")),
        (BATCH | HYDRA, Place(3, 4, 1, 2, "mpi")),
    ],
)
def test_place(given, environment, place):
    given(environment)
    assert find_place() == place


ALONE = env("RANK=0 WORLD_SIZE=1")
NONSENSE = [
    (env("RANK=foo WORLD_SIZE=2"), "RANK=foo"),
    (env("RANK=0 WORLD_SIZE="), "WORLD_SIZE= "),
    (env("RANK=2 WORLD_SIZE=2"), r"RANK=2 .* \[0, 1\]"),
    (env("RANK=-1 WORLD_SIZE=2"), "RANK=-1"),
    (env("RANK=0 WORLD_SIZE=0"), "WORLD_SIZE=0"),
    ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE=9"),
    (TORCHRUN | env("LOCAL_RANK=four"), "LOCAL_RANK=four"),
    (TORCHRUN | env("LOCAL_RANK=4"), r"LOCAL_RANK=4 .* \[0, 3\]"),
    (env("PMI_RANK=x PMI_SIZE=2"), "PMI_RANK=x"),
    (STEP | env("SLURM_PROCID=a"), "SLURM_PROCID=a"),
    (STEP | env("SLURM_STEP_NUM_TASKS=many"), "SLURM_STEP_NUM_TASKS=many"),
    (STEP | env("SLURM_STEP_TASKS_PER_NODE=2(x"), r"SLURM_STEP_TASKS_PER_NODE=2\(x .*2\(x3\),1"),
    (STEP | env("SLURM_NODEID=9"), r"SLURM_NODEID=9 .* \[0, 3\]"),
]
CONTRADICTIONS = [
    (HYDRA | ALONE, "RANK=0 WORLD_SIZE=1 and PMI_RANK=3 PMI_SIZE=4 "),
    (HYDRA | ALONE | env("LOCAL_RANK=0 LOCAL_WORLD_SIZE=1"), "WORLD_SIZE=1 and PMI"),
    (HYDRA | env("RANK=2 WORLD_SIZE=4"), "RANK=2 WORLD_SIZE=4 and PMI_RANK=3"),
    (OPEN_MPI | ALONE, "WORLD_SIZE=1 and OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4"),
    (STEP | ALONE, "WORLD_SIZE=1 and SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=6"),
    # One agent of torchrun for each rank of mpiexec, or for each task.
    (HYDRA | ALONE | ELASTIC, "GROUP_WORLD_SIZE=2 and PMI_RANK=3 PMI_SIZE=4"),
    (STEP | TORCHRUN | ELASTIC, "GROUP_WORLD_SIZE=2 and SLURM_PROCID=3"),
    # Two MPIs, of which either may be the one that is left.
    (OPEN_MPI | env("PMI_RANK=0 PMI_SIZE=1"), "PMI_SIZE=1 and OMPI_COMM_WORLD_RANK=2"),
    (STEP | env("PMI_RANK=0 PMI_SIZE=1"), "PMI_SIZE=1 and SLURM_PROCID=3"),
    (STEP | env("PMIX_RANK=0"), "PMIX_RANK=0 and SLURM_PROCID=3"),
]


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        *NONSENSE,
        *((env, f"{words}.* contradict each other: unset") for env, words in CONTRADICTIONS),
    ],
)
def test_nonsense_and_contradictions_are_named(given, environment, words):
    """Or P jobs of one rank would end well."""
    given(environment)
    with pytest.raises(InputError, match=words) as caught:
        find_place()
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("text", ["soon", "", "0", "-1", "nan", "inf", "1e400"])
def test_times_must_be_numbers(given, text):
    given({"SPGNN_TIMEOUT_SECONDS": text})
    with pytest.raises(InputError, match=r"SPGNN_TIMEOUT_SECONDS=.*: must be seconds in"):
        seconds_of("SPGNN_TIMEOUT_SECONDS", 1.0)


@pytest.mark.parametrize(
    "environment",
    [
        env("RANK=foo WORLD_SIZE=2"),
        env("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=x"),
        env("RANK=0 WORLD_SIZE=2"),
        env("SPGNN_SETUP_SECONDS=long"),
    ],
)
def test_the_command_says_so_in_one_line(tmp_path, environment):
    from spgnn.train.run import main

    ended = Forked(lambda: main(["--dataset", "sbm"]), tmp_path, environment).wait()
    name = next(name for name in (*environment, "MASTER_PORT") if name in ended.err)
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert name in ended.err
    assert "in the environment" in ended.err


ZERO, FIVE = (Place(rank, 6, 0, 1, "slurm") for rank in (0, 5))
HOSTS = [
    (FIVE, "login,node[1-3]", {}, ["login"]),
    (FIVE, "rack[1-2]node[03,07-9],login", {}, ["rack1node03"]),
    (FIVE, "a[0-1].cluster.edu,b", env("SLURM_DISTRIBUTION=block"), ["a0.cluster.edu"]),
    # Rank 0 is on any node, and knows on which.
    (
        FIVE,
        "node[098-100,7],r[1-2]c[1,3],x",
        env("SLURM_DISTRIBUTION=arbitrary"),
        ["node098", "node099", "node100", "node7", "r1c1", "r1c3", "r2c1", "r2c3", "x"],
    ),
    (FIVE, "node[1-2]", env("SLURM_HET_SIZE=2"), ["node1", "node2"]),
    (ZERO, "node[1-2]", env("SLURM_PACK_SIZE=2 SLURMD_NODENAME=node2"), ["node2"]),
    (ZERO, "node[1-2]", env("SLURMD_NODENAME=elsewhere"), ["node1"]),
]


@pytest.mark.parametrize(("place", "nodes", "more", "hosts"), HOSTS)
def test_hosts_where_rank_0_may_be(given, place, nodes, more, hosts):
    given({"SLURM_STEP_NODELIST": nodes} | more)
    assert step_hosts(place) == hosts


def test_lists_of_nodes_that_name_none(given):
    for nodes in ("", ",", "[", "]", "node[a-b]"):
        given({"SLURM_STEP_NODELIST": nodes})
        with pytest.raises(InputError, match="should name the nodes"):
            step_hosts(ZERO)


def test_a_node_that_slurm_alone_knows(tmp_path, monkeypatch):
    """Asked once the name leads nowhere; what it says of the node is an address, or nothing."""
    joining = importlib.import_module("spgnn.comm.connect")
    monkeypatch.setattr(joining, "NAME_SECONDS", 0.3)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "scontrol"
    for answer in ("NodeName=$4 NodeAddr=127.0.0.1 Port=1", "NodeName=$4 NodeAddr=$4", "not found"):
        program.write_text(f'#!/bin/sh\necho "{answer}"\n')
        program.chmod(0o755)
        if "127" in answer:
            assert joining._resolvable("here1.invalid", FIVE) == "127.0.0.1"
            continue
        with pytest.raises(InputError, match=r"here1.invalid, where rank 0 .* SLURM_STEP_N"):
            joining._resolvable("here1.invalid", FIVE)


def test_steps_of_a_job_meet_at_different_ports(given):
    ports = set()
    for number in range(4):
        given({"SLURM_JOB_ID": str(number // 2), "SLURM_STEP_ID": str(number % 2)})
        ports.add(step_port())
    assert len(ports) == 4
    assert all(1024 < port < 32768 for port in ports)


def test_several_nodes_without_mpi4py_must_be_told_where(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"need mpi4py .* or MASTER_ADDR and MASTER_PORT"):
        meet(Place(0, 4, 0, 2, "mpi"))


CPU = torch.device("cpu")


def gpu(index: int) -> torch.device:
    return torch.device("cuda", index)


# What is asked for, the least share of all nodes, and what comes of it on rank 1 of 2 with a GPU.
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
def test_choice_follows_the_poorest_node(monkeypatch, backend, device, share, chosen):
    """A rank of a rich node does as those of a poor one must."""
    monkeypatch.setattr(place, "visible_gpus", lambda: 2)
    asked = backend, device, Place(1, 2, 1, 2, "torch"), lambda own: min(own, share)
    if isinstance(chosen, str):
        with pytest.raises(InputError, match=chosen):
            choose(*asked)
    else:
        assert choose(*asked) == chosen
        assert choose(*asked, auto="mpi") == ("mpi" if backend == "auto" else chosen[0], chosen[1])


@pytest.mark.parametrize(
    ("rank", "ranks", "gpus", "own", "backend", "chosen"),
    [
        (0, 1, 1, False, "nccl", 0),
        (3, 4, 4, False, "nccl", 3),
        (3, 4, 1, True, "nccl", 0),  # SLURM shows every rank its own GPU only
        (3, 4, 2, False, "gloo", 1),
        (5, 8, 4, False, "mpi", 1),
        (1, 4, 2, False, "nccl", "here are 2 for 4 ranks.* use --backend gloo"),
        (0, 1, 0, False, "gloo", "no CUDA device is available"),
    ],
)
def test_gpu_of_a_rank(given, monkeypatch, rank, ranks, gpus, own, backend, chosen):
    monkeypatch.setattr(place, "visible_gpus", lambda: gpus)
    given(env("SLURM_GPUS_PER_TASK=1") if own else {})
    asked = backend, "cuda", Place(rank, ranks, rank, ranks, "torch"), lambda own: own
    if isinstance(chosen, int):
        assert choose(*asked)[1] == gpu(chosen)
    else:
        with pytest.raises(InputError, match=chosen):
            choose(*asked)


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
        (env("RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2"), None, 3),
        (env("PMI_RANK=5 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3"), None, 2),
        (env("OMP_NUM_THREADS=5"), 2, 5),
        (env("OMP_NUM_THREADS=1"), 2, 1),
        (env("OMP_NUM_THREADS=4,2"), 2, 3),
        # torchrun sets 1 where nobody has set it.
        (env("OMP_NUM_THREADS=1 TORCHELASTIC_RUN_ID=x"), 2, 3),
        (env("OMP_NUM_THREADS=2 TORCHELASTIC_RUN_ID=x"), 2, 2),
        (env("SLURM_CPUS_PER_TASK=5 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2"), None, 5),
        # In a batch script it is the share of ranks that are still to be started.
        (env("SLURM_CPUS_PER_TASK=5 SLURM_PROCID=0 SLURM_NTASKS=2"), 2, 3),
    ],
)
def test_even_share_of_the_processors(given, monkeypatch, environment, ranks, threads):
    monkeypatch.setattr(place, "processors", lambda: 6)
    given(environment)
    assert default_threads(ranks) == threads


@pytest.mark.parametrize(
    ("total", "free", "words"),
    [
        (1024, 1024, ""),
        (64, 64, "16 ranks on a node take 88 MiB .* it has 64 MiB, 64 of"),
        (1024, 3, "16 ranks on a node take 88 MiB .* it has 1024 MiB, 3 of"),
        (100, 18, ""),  # others of the job have theirs already
    ],
)
def test_room_for_the_memory_that_mpich_shares(given, monkeypatch, total, free, words):
    """It is killed by SIGBUS where there is none."""
    here, blocks = Place(3, 32, 3, 16, "mpi"), 1 << 8  # of a MiB
    shared = SimpleNamespace(f_frsize=4096, f_blocks=total * blocks, f_bavail=free * blocks)
    monkeypatch.setattr(os, "statvfs", lambda path: shared)
    assert mpi_lacks_room(here) == ""  # another MPI than MPICH
    given(env("PMI_RANK=3"))
    assert re.match(words or "$", mpi_lacks_room(here))


def test_a_fork_of_a_process_that_asked_for_gpus_says_so(monkeypatch):
    """CUDA fails in such a rank, with a message that names neither the cause nor the remedy."""
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    for gpus in (0, 2):
        monkeypatch.setattr(torch.cuda, "_device_count_nvml", lambda gpus=gpus: gpus)
        with pytest.raises(InputError, match=r"forked.*torchrun") if gpus else nullcontext():
            assert place.visible_gpus() == 0
