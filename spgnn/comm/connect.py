"""Join the job this process was started in, and end it as a whole."""

from __future__ import annotations

import atexit
import importlib.util
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NoReturn

from spgnn.comm.base import Communicator
from spgnn.comm.job import CommunicationError, Job, LostPeerError, StartError
from spgnn.comm.launched import Place, find_place
from spgnn.comm.placement import BACKENDS, DEVICES, Node, choose, mpi_lacks_room
from spgnn.comm.solo import SoloCommunicator
from spgnn.errors import InputError, check_choice
from spgnn.signals import AskedToEnd, die_with_torchrun, termination_raises

# By process: a fork of one that has connected is a rank of its own.
_world: dict[int, Communicator] = {}


def connect(backend: str = "auto", device: str = "cpu") -> Communicator:
    """Join the job this process was started in and return the communicator of all its ranks.

    Works under torchrun, the local launcher, mpiexec and srun; a process started by none of them
    is a job of one rank. A second call returns the same communicator.

    From then on an exception that nothing catches ends all ranks with this rank's message, and a
    rank that comes to its end leaves the job by itself.

    Parameters
    ----------
    backend : {"auto", "shm", "gloo", "nccl", "mpi"}
        ``auto`` takes MPI under mpiexec, else NCCL if every rank has a GPU, else the memory of the
        machine that all ranks share, else gloo.
    device : {"cpu", "cuda", "auto"}
        Where tensors will live; ``communicator.device`` says which GPU is this rank's. ``auto``
        takes GPUs if every rank has its own.

    Raises
    ------
    InputError
        If a name is unknown, a package is not installed, the launcher's environment variables
        make no sense, there are too few GPUs, or the other ranks do not come.
    """
    check_choice("--backend", backend, BACKENDS)
    check_choice("--device", device, DEVICES)
    if os.getpid() not in _world:
        _world[os.getpid()] = comm = _connect(backend, device)
        if comm.size > 1:
            _mind_the_end(comm)
    return _world[os.getpid()]


def world() -> Communicator | None:
    """The communicator :func:`connect` made, or ``None`` before that."""
    return _world.get(os.getpid())


def refuse(error: InputError) -> int:
    """Print why the job cannot start, before ranks can talk; returns the exit status.

    Every rank finds the same mistake, so rank 0 speaks for all, unless it is this rank's alone.
    """
    try:
        place = find_place()
    except InputError:
        place = None
    if place is None or place.rank == 0 or isinstance(error, StartError):
        print(f"error: {error}", file=sys.stderr, flush=True)
    return 2


@contextmanager
def guarded(comm: Communicator) -> Iterator[None]:
    """End all ranks, with this rank's message, if anything inside raises.

    Bad input and SIGTERM become one line; any other exception shows its traceback first.
    """
    with termination_raises(comm.job.terminated) as speaks:
        try:
            try:
                yield
                # Others may still fail while this rank waits for them to finish.
                comm.close()
            except (Exception, KeyboardInterrupt) as error:
                _end_all(comm, error)
        except AskedToEnd:
            if not speaks:
                raise  # The local launcher asked, and says so.
            comm.job.terminated()
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
            comm.job.end()
            # torch frees nothing of a graph of autograd that is left now, and it may refer to this.
            comm.release()
            _world.clear()
            sys.excepthook = show

    sys.excepthook = end_all
    atexit.register(leave)


def _end_all(comm: Communicator, error: BaseException) -> NoReturn:
    match error:
        case InputError():
            comm.fail(str(error), status=2)
        case KeyboardInterrupt():
            comm.fail("interrupted", status=130)
        case MemoryError():
            what = f": {error}" if str(error) else ""
            comm.fail(f"out of memory{what}; use more ranks, or --c 1 if c was larger", status=2)
        case LostPeerError():
            comm.job.lost_contact(str(error))
        case CommunicationError():
            comm.fail(str(error))
    traceback.print_exception(error)
    comm.fail(f"{type(error).__name__}: {error}")


def _connect(backend: str, device: str) -> Communicator:
    place = find_place()
    die_with_torchrun()
    _allow_descriptors()
    if place is None or place.size == 1:
        _, chosen = choose(backend, device, Node.find(place), lambda share: share)
        return SoloCommunicator(Job(device=chosen))
    obstacle = mpi_lacks_room(place) if place.launcher == "mpi" else ""
    if backend == "auto" and obstacle:
        _note(place, f"does without MPI: {obstacle}")
    if backend == "mpi" or (backend == "auto" and not obstacle and _has_mpi(place)):
        if importlib.util.find_spec("mpi4py") is None:
            raise InputError("the MPI backend needs mpi4py: pip install 'spgnn[mpi]'")
        if obstacle:
            raise InputError(f"--backend mpi: {obstacle}; or use --backend gloo")
        from spgnn.comm.mpi import MPICommunicator

        return MPICommunicator.connect(place, backend, device)
    from spgnn.comm.torchdist import TorchCommunicator

    comm = TorchCommunicator.connect(place, backend, device)
    if backend not in ("auto", "shm") or comm.moves_cuda or place.local_size < place.size:
        if backend == "shm":
            raise InputError("--backend shm: the ranks are not all on one machine")
        return comm
    from spgnn.comm.shared import SharedCommunicator

    shared = SharedCommunicator.of(comm)
    if isinstance(shared, SharedCommunicator):
        return shared
    if backend == "shm":
        raise InputError(f"--backend shm: {shared}; use --backend gloo")
    _note(place, f"takes gloo: {shared}")
    return comm


def _note(place: Place, what: str) -> None:
    """Say what ``auto`` does, and why, where one would expect another backend."""
    if place.rank == 0:
        print(f"note: --backend auto {what}", file=sys.stderr, flush=True)


def _has_mpi(place: Place) -> bool:
    """Whether mpi4py is here, and is of the MPI whose launcher has started this rank.

    srun sets variables of MPI whether or not the program uses it.
    """
    if place.launcher != "mpi" or importlib.util.find_spec("mpi4py") is None:
        return False
    from spgnn.comm.mpi import world_of

    with suppress(InputError):
        return world_of(place) is not None
    return False


def _allow_descriptors() -> None:
    """A rank has a connection to each of its peers: as many as the system lets it have."""
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
