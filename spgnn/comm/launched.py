"""How this process was started, as its launcher's environment variables tell it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from spgnn.errors import InputError

LARGEST = 2**31 - 1

# What mpiexec of MPICH and Open MPI, and srun with PMI, set in the environment of every rank.
_MPI_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_MPI_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


@dataclass(frozen=True)
class Place:
    """One rank's place in its job.

    Attributes
    ----------
    rank, size : int
        Among all ranks of the job.
    local_rank, local_size : int
        Among the ranks on this node. Where no variable says, all ranks are taken to be here.
    launcher : {"torch", "mpi", "slurm"}
        In whose words the environment describes the job: torch's (torchrun, the local launcher,
        or a user), those of mpiexec, or srun's.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: Literal["torch", "mpi", "slurm"]


def find_place() -> Place | None:
    """The place of this process if a launcher started it as a rank of a job, else ``None``.

    A batch script, and a shell on a compute node, are described by SLURM like rank 0 of their
    job, but only ``srun`` says how many tasks its step has.

    Raises
    ------
    InputError
        If a variable that should be a number is none, or is out of range.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return _place("RANK", "WORLD_SIZE", "torch")
    rank, size = _first_set(_MPI_RANK), _first_set(_MPI_SIZE)
    if rank and size:
        return _place(rank, size, "mpi")
    if "SLURM_PROCID" in os.environ and _number("SLURM_STEP_NUM_TASKS", 1, default=1) > 1:
        return _place("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "mpi" if rank else "slurm")
    return None


def launched_rank() -> tuple[int, int] | None:
    """(rank, world size) if a launcher started this process as one of several, else ``None``.

    Raises
    ------
    InputError
    """
    place = find_place()
    return None if place is None else (place.rank, place.size)


def local_rank() -> int:
    """The number of this rank among those on its node; 0 if no launcher started it.

    Raises
    ------
    InputError
    """
    place = find_place()
    return 0 if place is None else place.local_rank


def ranks_here() -> int:
    """How many ranks of the job are on this node; 1 if no launcher started this one.

    Raises
    ------
    InputError
    """
    place = find_place()
    return 1 if place is None else place.local_size


def seconds(name: str, default: float) -> float:
    """A time that the environment may set.

    Raises
    ------
    InputError
    """
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


def _place(rank_name: str, size_name: str, launcher: Literal["torch", "mpi", "slurm"]) -> Place:
    size = _number(size_name, 1)
    rank = _number(rank_name, 0, size - 1)
    local, local_size = _local(rank, size)
    return Place(rank, size, local, local_size, launcher)


def _local(rank: int, size: int) -> tuple[int, int]:
    for rank_name, size_name in _LOCAL:
        if rank_name in os.environ:
            here = _number(size_name, 1, default=size)
            return _number(rank_name, 0, here - 1), here
    if "SLURM_LOCALID" in os.environ and "SLURM_STEP_TASKS_PER_NODE" in os.environ:
        nodes = _tasks_per_node(os.environ["SLURM_STEP_TASKS_PER_NODE"])
        here = nodes[_number("SLURM_NODEID", 0, len(nodes) - 1, default=0)]
        return _number("SLURM_LOCALID", 0, here - 1), here
    return rank, size


def _tasks_per_node(text: str) -> list[int]:
    """Read SLURM's ``2(x3),1``: two tasks on each of three nodes, and one on a fourth."""
    nodes: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,6})\))?", part)
        if found is None or int(found[1]) == 0:
            raise InputError(
                f"SLURM_STEP_TASKS_PER_NODE={text} in the environment: should read like 2(x3),1"
            )
        nodes += [int(found[1])] * int(found[2] or 1)
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


def _first_set(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in os.environ), None)
