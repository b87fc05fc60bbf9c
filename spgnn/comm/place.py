"""A rank's place: its number, its node, the GPU and the threads that it takes.

Launchers describe it in environment variables; ``docs/launch.md`` has the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from spgnn.errors import InputError
from spgnn.memory import processors
from spgnn.torch_internals import forked_from_cuda

DEVICES = ("auto", "cpu", "cuda")
LARGEST = 2**31 - 1

_Pair = tuple[str, str]
# Rank and size in the words of mpiexec of MPICH (and of srun with PMI) and of Open MPI.
_MPI = (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
_PMIX_RANK = "PMIX_RANK"
_TORCH = ("RANK", "WORLD_SIZE")
_STEP = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_TORCH_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_MPI_LOCAL = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)
# Variables that make a process a rank of mpiexec or srun; not of processes that such a rank forks.
OUTER_NAMES = (*(name for pair in _MPI for name in pair), _PMIX_RANK, _STEP[1])

_SHARED_MEMORY = "/dev/shm"
# MPICH takes this much of it for each rank: 5.14 MiB with MPICH 5.0.2, for 2 to 16 ranks alike.
_MPICH_BYTES = 11 << 19

# How a node's GPUs go round among its ranks. The job has the least of all its nodes.
NO_GPU, SHARED_GPUS, OWN_GPUS = 0, 1, 2


@dataclass(frozen=True)
class Place:
    """One rank's place in its job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: Literal["torch", "mpi", "slurm"]


def find_place() -> Place | None:
    """The place of this process if a launcher started it as a rank of a job, else ``None``."""
    launched = [pair for pair in _MPI if _are_set(pair)]
    steps = _number(_STEP[1], 1, default=1) if _STEP[0] in os.environ else 1
    if len(launched) == 2:
        _check_equal(*launched)
    if launched and steps > 1 and _number(launched[0][1], 1) < steps:
        # Not fewer: mpiexec itself may use srun, with one task for each node.
        _check_equal(launched[0], _STEP)
    outer = launched[0] if launched else _STEP if steps > 1 else None
    if _are_set(_TORCH):
        if outer is not None:
            _check_nested(outer)
        return _place(_TORCH, "torch")
    if outer is None:
        return None
    if outer is _STEP and _PMIX_RANK in os.environ:
        _number(_PMIX_RANK, 0, steps - 1)
        if os.environ[_PMIX_RANK] != os.environ[_STEP[0]]:
            raise _contradiction((_PMIX_RANK,), _STEP)
        return _place(outer, "mpi")
    return _place(outer, "slurm" if outer is _STEP else "mpi")


def seconds(name: str, default: float) -> float:
    """Read a time that the environment may set; ``InputError`` if it is none."""
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST:
        raise InputError(f"{name}={text} in the environment: must be seconds in (0, {LARGEST}]")
    return value


def _check_nested(outer: _Pair) -> None:
    """Check variables of torch inside a job of mpiexec or srun."""
    tasks = _number(outer[1], 1)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        if tasks > 1 and tasks != _number("GROUP_WORLD_SIZE", 1, default=tasks):
            raise _contradiction(("GROUP_WORLD_SIZE",), outer)
    elif "LOCAL_RANK" not in os.environ or _number("WORLD_SIZE", 1) <= tasks:
        _check_equal(_TORCH, outer)


def _check_equal(one: _Pair, other: _Pair) -> None:
    (rank, size), (other_rank, other_size) = one, other
    numbers = _number(rank, 0), _number(size, 1)
    if numbers != (_number(other_rank, 0), _number(other_size, 1)):
        raise _contradiction(one, other)


def _contradiction(one: Sequence[str], other: Sequence[str]) -> InputError:
    pairs = [" ".join(f"{name}={os.environ[name]}" for name in names) for names in (one, other)]
    return InputError(
        f"{pairs[0]} and {pairs[1]} in the environment contradict each other: unset what another "
        "launcher or an earlier job has left"
    )


def _place(names: _Pair, launcher: Literal["torch", "mpi", "slurm"]) -> Place:
    size = _number(names[1], 1)
    rank = _number(names[0], 0, size - 1)
    return Place(rank, size, *_local(rank, size, launcher), launcher)


def _local(rank: int, size: int, launcher: str) -> tuple[int, int]:
    """Rank and size on this node, in the launcher's own words if it has any."""
    for source in (launcher, "mpi", "slurm", "torch"):
        if source == "slurm":
            if _are_set(("SLURM_LOCALID", "SLURM_GTIDS")):
                # In a heterogeneous step the list below is not in the order of node numbers.
                here = len(os.environ["SLURM_GTIDS"].split(","))
                return _number("SLURM_LOCALID", 0, here - 1), here
            if _are_set(("SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE")):
                nodes = _tasks_per_node(os.environ["SLURM_STEP_TASKS_PER_NODE"])
                here = nodes[_number("SLURM_NODEID", 0, len(nodes) - 1, default=0)]
                return _number("SLURM_LOCALID", 0, here - 1), here
            continue
        for names in (_TORCH_LOCAL,) if source == "torch" else _MPI_LOCAL:
            if names[0] in os.environ:
                here = _number(names[1], 1, default=size)
                return _number(names[0], 0, here - 1), here
    return rank, size


def _tasks_per_node(text: str) -> list[int]:
    """Read SLURM's ``2(x3),1``: two tasks on each of three nodes, and one on a fourth."""
    nodes: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
        if match is None or int(match[1]) == 0:
            raise InputError(
                f"SLURM_STEP_TASKS_PER_NODE={text} in the environment: should read like 2(x3),1"
            )
        nodes += [int(match[1])] * int(match[2] or 1)
    return nodes


def _number(name: str, low: int, high: int = LARGEST, default: int | None = None) -> int:
    """An integer variable in [low, high]; where it is not set, the default."""
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    try:
        value = int(text or "")
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise InputError(f"{name}={text} in the environment: must be an integer in [{low}, {high}]")
    return value


def _are_set(names: _Pair) -> bool:
    return all(name in os.environ for name in names)


def visible_gpus() -> int:
    """CUDA devices that this process sees."""
    if forked_from_cuda():
        raise InputError(
            "a process that has asked for GPUs forked this one, which cannot use them: set "
            "PYTORCH_NVML_BASED_CUDA_CHECK=1 before torch.cuda.is_available(), or use torchrun"
        )
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose(
    backend: str, device: str, place: Place | None, least: Callable[[int], int], auto: str = "gloo"
) -> tuple[str, torch.device]:
    """Choose the backend and this rank's device, of the same kind on all ranks."""
    otherwise = auto if backend == "auto" else backend
    if device == "cpu":
        if backend == "nccl":
            raise InputError("--backend nccl moves what lies on GPUs; use --device cuda")
        return otherwise, torch.device("cpu")
    rank, ranks = (0, 1) if place is None else (place.local_rank, place.local_size)
    gpus = visible_gpus()
    own = "SLURM_GPUS_PER_TASK" in os.environ  # and SLURM shows no rank those of another
    here = NO_GPU if gpus == 0 else OWN_GPUS if own or ranks <= gpus else SHARED_GPUS
    share = least(here)
    if backend == "nccl" and share < OWN_GPUS:
        raise InputError(
            f"--backend nccl needs a GPU for every rank: here are {gpus} for {ranks} ranks, or "
            "another node has too few; start fewer ranks, or use --backend gloo"
        )
    if device == "cuda" and share == NO_GPU:
        raise InputError(
            "--device cuda: no CUDA device is available, here or on another node; use --device cpu"
        )
    if device == "auto" and share < OWN_GPUS:
        return otherwise, torch.device("cpu")
    if backend == "auto" and auto == "gloo" and share == OWN_GPUS:
        otherwise = "nccl"
    return otherwise, torch.device("cuda", 0 if own else rank % gpus)


def mpi_lacks_room(place: Place) -> str:
    """The reason why MPICH would die while it starts (SIGBUS, SIGSEGV); empty if it would not."""
    if "PMI_RANK" not in os.environ:
        return ""
    try:
        shared = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return ""
    total, free = (blocks * shared.f_frsize for blocks in (shared.f_blocks, shared.f_bavail))
    needed = place.local_size * _MPICH_BYTES
    # Others of this job may have theirs already, so one share must be free, and all must fit.
    if total >= needed and free >= _MPICH_BYTES:
        return ""
    return (
        f"{place.local_size} ranks on a node take {needed >> 20} MiB of {_SHARED_MEMORY} under "
        f"MPICH, but it has {total >> 20} MiB, {free >> 20} of them free (docker: --shm-size=1g)"
    )


def default_threads(ranks_here: int | None = None) -> int:
    """Threads for each rank: an even share of this node's processors."""
    place = find_place()
    threads = _positive("OMP_NUM_THREADS")
    if threads > 1 or (threads == 1 and "TORCHELASTIC_RUN_ID" not in os.environ):
        return threads
    if place is not None and place.launcher != "torch" and _positive("SLURM_CPUS_PER_TASK"):
        return _positive("SLURM_CPUS_PER_TASK")
    if ranks_here is None:
        ranks_here = 1 if place is None else place.local_size
    return max(1, processors() // ranks_here)


def _positive(name: str) -> int:
    """The value of a variable if it is a number (OMP_NUM_THREADS may be a list), else 0."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
