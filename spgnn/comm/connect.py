"""Find out how this process was started, and join its job."""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

from spgnn.comm.base import Communicator
from spgnn.comm.solo import SoloCommunicator
from spgnn.errors import InputError

BACKENDS = ("auto", "gloo", "nccl", "mpi")

# What mpiexec of MPICH and Open MPI, and srun with PMI, set in the environment of every rank.
_MPI_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK")
_MPI_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")

# By process: a fork of one that has connected is a rank of its own.
_world: dict[int, Communicator] = {}


def launched_rank() -> tuple[int, int] | None:
    """(rank, world size) if a launcher started this process as one of several, else ``None``."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank, size = _first_of(_MPI_RANK), _first_of(_MPI_SIZE)
    if rank is not None and size is not None:
        return rank, size
    if "SLURM_PROCID" in os.environ and int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        return int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    return None


def connect(backend: str = "auto", device: str = "cpu") -> Communicator:
    """Join the job this process was started in and return the communicator of all its ranks.

    Works under torchrun, the local launcher, mpiexec and srun; a process started by none of them
    is a job of one rank. A second call returns the same communicator.

    From then on an exception that nothing catches ends all ranks with this rank's message, and a
    rank that comes to its end leaves the job by itself.

    Parameters
    ----------
    backend : {"auto", "gloo", "nccl", "mpi"}
        ``auto`` takes MPI under mpiexec, else NCCL for CUDA devices, else gloo.
    device : str
        Type of device the tensors live on, ``"cpu"`` or ``"cuda"``.

    Raises
    ------
    InputError
        If the backend is unknown or its package is not installed.
    """
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend}: choose one of {', '.join(BACKENDS)}")
    if os.getpid() not in _world:
        _world[os.getpid()] = comm = _connect(backend, device)
        if comm.size > 1:
            _mind_the_end(comm)
    return _world[os.getpid()]


def world() -> Communicator | None:
    """The communicator :func:`connect` made, or ``None`` before that."""
    return _world.get(os.getpid())


@contextmanager
def guarded(comm: Communicator) -> Iterator[None]:
    """End all ranks, with this rank's message, if anything inside raises.

    Bad input becomes one line; any other exception shows its traceback first.
    """
    try:
        yield
        # Others may still fail while this rank waits for them to finish.
        comm.close()
    except (Exception, KeyboardInterrupt) as error:
        _end_all(comm, error)
    _world.clear()


def _mind_the_end(comm: Communicator) -> None:
    """Do for a program of a user's own what `guarded` does for ours, except to wait at the end.

    A rank that ends early may have left others in a collective; they must not wait for it, nor it
    for them.
    """
    show = sys.excepthook

    def end_all(
        kind: type[BaseException], error: BaseException, where: TracebackType | None
    ) -> None:
        if world() is comm:
            _end_all(comm, error)
        show(kind, error, where)

    def leave() -> None:
        if world() is comm:  # and this is not a fork
            comm.leave()

    sys.excepthook = end_all
    atexit.register(leave)


def _end_all(comm: Communicator, error: BaseException) -> NoReturn:
    match error:
        case InputError():
            comm.fail(str(error), status=2)
        case KeyboardInterrupt():
            comm.fail("interrupted", status=130)
        case MemoryError():
            comm.fail("out of memory; use more ranks, or --c 1 if c was larger")
    if _is_lost_peer(error) and hasattr(comm, "lost_contact"):
        comm.lost_contact(f"lost contact with a peer ({str(error).splitlines()[0]})")
    traceback.print_exception(error)
    comm.fail(f"{type(error).__name__}: {error}")


def _connect(backend: str, device: str) -> Communicator:
    place = launched_rank()
    if place is None or place[1] == 1:
        return SoloCommunicator()
    under_mpi = "RANK" not in os.environ and _first_of(_MPI_RANK) is not None
    if backend == "mpi" or (backend == "auto" and under_mpi):
        if importlib.util.find_spec("mpi4py") is None:
            raise InputError("the MPI backend needs mpi4py: pip install 'spgnn[mpi]'")
        from spgnn.comm.mpi import MPICommunicator  # noqa: PLC0415  (optional)

        return MPICommunicator.connect()
    _describe_job(*place)
    from spgnn.comm.torchdist import TorchCommunicator  # noqa: PLC0415  (starts c10d)

    use_nccl = backend == "nccl" or (backend == "auto" and device == "cuda")
    return TorchCommunicator.connect("nccl" if use_nccl else "gloo")


def _describe_job(rank: int, size: int) -> None:
    """Set what torch.distributed reads, where mpiexec or srun told it in their own words."""
    if "RANK" in os.environ:
        return
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    if nodes:
        command = ["scontrol", "show", "hostnames", nodes]
        first = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[
            0
        ]
        os.environ.setdefault("MASTER_ADDR", first)
        # Ports of two jobs on one node must differ.
        job = int(os.environ.get("SLURM_JOB_ID", "0"))
        os.environ.setdefault("MASTER_PORT", str(20000 + job % 20000))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")


def _is_lost_peer(error: BaseException) -> bool:
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ("connection closed", "connection reset", "broken pipe", "socket")
    )


def _first_of(names: tuple[str, ...]) -> int | None:
    return next((int(os.environ[name]) for name in names if name in os.environ), None)
