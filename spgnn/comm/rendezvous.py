"""How the ranks of a job find the store through which they meet."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError

from spgnn.comm.job import SETUP_SECONDS, StartError
from spgnn.comm.launched import Place, seconds
from spgnn.errors import InputError

# From the first rank's start to the last one's.
START_SECONDS = 600.0
AGENT_SECONDS = 60.0
LOCALHOST = "127.0.0.1"
# Below what systems give to outgoing connections.
_FIRST_PORT, _PORTS = 10000, 20000
_STORE_ERRORS = (RuntimeError, DistError)


@dataclass(frozen=True)
class Meeting:
    """Where a job meets.

    Attributes
    ----------
    store : torch.distributed.Store
    host : str
        Where rank 0 runs.
    patience : float
        Seconds until the launcher, if it is one that does, has ended a job that lost a rank.
    """

    store: Any
    host: str
    patience: float


def meet(place: Place) -> Meeting:
    """Connect to the job's store, or on rank 0 make it, and wait until all ranks have come.

    Raises
    ------
    InputError
        If the environment does not say where.
    StartError
        If the store cannot be had, or some rank does not come within ``SPGNN_START_SECONDS``.
    """
    start = seconds("SPGNN_START_SECONDS", START_SECONDS)
    if "MASTER_ADDR" in os.environ or place.launcher == "torch":
        store, host = _meet_at(place, *_master(), start)
    elif place.launcher == "slurm":
        nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
        store, host = _meet_at(place, first_host(nodes), step_port(), start)
    elif importlib.util.find_spec("mpi4py") is not None:
        store, host = _meet_by_mpi(place, start)
    elif place.local_size == place.size:
        # The process that started all of them, and that no other job has.
        store, host = _meet_at(place, LOCALHOST, _FIRST_PORT + os.getppid() % _PORTS, start)
    else:
        raise InputError(
            "ranks on several nodes need mpi4py to find each other, or MASTER_ADDR and MASTER_PORT "
            "in the environment"
        )
    # Attempts after a restart by torchrun must not read what the one before has left.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"spgnn/{attempt}", store)
    _wait_for_all(store, place, start)
    store.set_timeout(timedelta(seconds=SETUP_SECONDS))
    supervised = "TORCHELASTIC_USE_AGENT_STORE" in os.environ or place.launcher == "mpi"
    return Meeting(store, host, patience=3.0 if supervised else 0.5)


def least(store: Any, size: int, name: str) -> Callable[[int], int]:
    """A collective over the ranks at a store: the least of their numbers in {0, 1, 2}."""

    def agree(number: int) -> int:
        for level in range(number + 1, 3):
            store.set(f"{name}/below {level}", "1")
        if store.add(f"{name}/came", 1) == size:
            store.set(f"{name}/all", "1")
        store.wait([f"{name}/all"])
        return sum(not store.check([f"{name}/below {level}"]) for level in (1, 2))

    return agree


def first_host(nodes: str) -> str:
    """The first of SLURM's ``rack[1-2]node[03,07-9],login``: ``rack1node03``.

    Raises
    ------
    InputError
        If there is none.
    """
    found = re.match(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if found is None:
        raise InputError(f"SLURM_STEP_NODELIST={nodes} in the environment: should name the nodes")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", found[0])


def step_port() -> int:
    """A port for this step of this SLURM job; those of two jobs or steps on a node differ."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    step = ".".join(os.environ.get(name, "0") for name in names)
    return _FIRST_PORT + zlib.crc32(step.encode()) % _PORTS


def _master() -> tuple[str, int]:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 2**16:
        raise InputError(
            f"MASTER_ADDR={host or ''} and MASTER_PORT={port} in the environment must say where "
            "rank 0 listens"
        )
    return host, int(port)


def _meet_at(place: Place, host: str, port: int, start: float) -> tuple[Any, str]:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # The launcher's store is there before any rank is, or never again.
        return _store(place, host, port, False, min(start, AGENT_SECONDS)), host
    return _store(place, host, port, place.rank == 0, start), host


def _meet_by_mpi(place: Place, start: float) -> tuple[Any, str]:
    """Rank 0 takes any free port, and tells the others through MPI."""
    from spgnn.comm.mpi import world_of  # noqa: PLC0415  (optional; starts MPI)

    world = world_of(place)
    if place.rank != 0:
        host, port = world.bcast(None)
        return _store(place, host, port, False, start), host
    host = LOCALHOST if place.local_size == place.size else socket.gethostname()
    store = _store(place, host, 0, True, start)
    world.bcast((host, store.port))
    return store, host


def _store(place: Place, host: str, port: int, hosts: bool, start: float) -> Any:
    try:
        return TCPStore(
            host,
            port,
            is_master=hosts,
            wait_for_workers=False,
            timeout=timedelta(seconds=start),
        )
    except _STORE_ERRORS as error:
        if hosts:
            raise StartError(
                f"rank 0 cannot listen on port {port}: is another job there? "
                f"Set MASTER_PORT ({str(error).splitlines()[0]})"
            ) from None
        raise StartError(
            f"rank {place.rank} did not reach rank 0's store at {host}:{port} within {start:g} s"
        ) from None


def _wait_for_all(store: Any, place: Place, start: float) -> None:
    try:
        if store.add("came", 1) == place.size:
            store.set("all came", "1")
        store.wait(["all came"], timedelta(seconds=start))
    except _STORE_ERRORS:
        raise StartError(
            f"rank {place.rank} waited {start:g} s for all {place.size} ranks to start"
        ) from None
