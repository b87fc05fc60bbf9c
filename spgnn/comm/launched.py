"""How this process was started, as its launcher's environment variables tell it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spgnn.errors import InputError

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
# What makes a process a rank of mpiexec or srun; not of processes that such a rank forks.
OUTER_NAMES = (*(name for pair in _MPI for name in pair), _PMIX_RANK, _STEP[1])


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
        If a variable that should be a number is none, or is out of range, or if variables of two
        launchers contradict each other: those of an earlier job may have been left.
    """
    stated = [pair for pair in _MPI if _are_set(pair)]
    steps = _number(_STEP[1], 1, default=1) if _STEP[0] in os.environ else 1
    if len(stated) == 2:
        _check_equal(*stated)
    if stated and steps > 1 and _number(stated[0][1], 1) < steps:
        # Not fewer: mpiexec itself may use srun, with one task for each node.
        _check_equal(stated[0], _STEP)
    outer = stated[0] if stated else _STEP if steps > 1 else None
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


def _check_nested(outer: _Pair) -> None:
    """Check variables of torch inside a job of mpiexec or srun.

    They agree, or each process of that job has started ranks of its own, as torchrun does.
    """
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
    said = [" ".join(f"{name}={os.environ[name]}" for name in names) for names in (one, other)]
    return InputError(
        f"{said[0]} and {said[1]} in the environment contradict each other: unset what another "
        "launcher or an earlier job has left"
    )


def _place(names: _Pair, launcher: Literal["torch", "mpi", "slurm"]) -> Place:
    size = _number(names[1], 1)
    rank = _number(names[0], 0, size - 1)
    local, local_size = _local(rank, size, launcher)
    return Place(rank, size, local, local_size, launcher)


def _local(rank: int, size: int, launcher: str) -> tuple[int, int]:
    """Rank and size on this node, in the launcher's own words if it has any."""
    known = {"torch": _local_of_torch, "mpi": _local_of_mpi, "slurm": _local_of_slurm}
    for said in (known[launcher], _local_of_mpi, _local_of_slurm, _local_of_torch):
        place = said(size)
        if place is not None:
            return place
    return rank, size


def _local_of_torch(size: int) -> tuple[int, int] | None:
    return _local_of(_TORCH_LOCAL, size)


def _local_of_mpi(size: int) -> tuple[int, int] | None:
    return next((place for names in _MPI_LOCAL if (place := _local_of(names, size))), None)


def _local_of(names: _Pair, size: int) -> tuple[int, int] | None:
    if names[0] not in os.environ:
        return None
    here = _number(names[1], 1, default=size)
    return _number(names[0], 0, here - 1), here


def _local_of_slurm(size: int) -> tuple[int, int] | None:
    if "SLURM_LOCALID" not in os.environ or "SLURM_STEP_TASKS_PER_NODE" not in os.environ:
        return None
    nodes = _tasks_per_node(os.environ["SLURM_STEP_TASKS_PER_NODE"])
    here = nodes[_number("SLURM_NODEID", 0, len(nodes) - 1, default=0)]
    return _number("SLURM_LOCALID", 0, here - 1), here


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


def _are_set(names: _Pair) -> bool:
    return all(name in os.environ for name in names)
