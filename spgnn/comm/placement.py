"""What of its node a rank takes: which GPU, or none, and how many threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from spgnn.comm.launched import Place, find_place
from spgnn.errors import InputError
from spgnn.memory import processors

BACKENDS = ("auto", "shm", "gloo", "nccl", "mpi")
DEVICES = ("auto", "cpu", "cuda")

_SHARED_MEMORY = "/dev/shm"
# What a rank takes there; measured with MPICH 5.0.2 are 5.14 MiB, for 2 to 16 ranks alike.
_MPICH_BYTES = 11 << 19

# How well a node's GPUs go round among its ranks. The job has the least of all its nodes.
NO_GPU, SHARED_GPUS, OWN_GPUS = 0, 1, 2


@dataclass(frozen=True)
class Node:
    """The ranks and GPUs of one node, as one of its ranks sees them.

    Attributes
    ----------
    local_rank, ranks, gpus : int
    own : bool
        The launcher shows each rank its own GPUs and no others.
    """

    local_rank: int
    ranks: int
    gpus: int
    own: bool = False

    @classmethod
    def find(cls, place: Place | None) -> Node:
        """The node of this rank, as far as it can see it."""
        rank, ranks = (0, 1) if place is None else (place.local_rank, place.local_size)
        return cls(rank, ranks, visible_gpus(), own="SLURM_GPUS_PER_TASK" in os.environ)

    @property
    def share(self) -> int:
        """`NO_GPU`, `SHARED_GPUS` or `OWN_GPUS`."""
        if self.gpus == 0:
            return NO_GPU
        return OWN_GPUS if self.own or self.ranks <= self.gpus else SHARED_GPUS

    def gpu(self, backend: str) -> int:
        """The index of the GPU that this rank takes.

        Parameters
        ----------
        backend : {"gloo", "nccl", "mpi"}
            NCCL knows no two ranks on one GPU; with the others they go round.

        Raises
        ------
        InputError
            If there is none for this rank.
        """
        self.check(backend, self.share)
        return 0 if self.own else self.local_rank % self.gpus

    def check(self, backend: str, share: int) -> None:
        """Refuse GPUs that do not go round; `share` is the least of all nodes."""
        if backend == "nccl" and share < OWN_GPUS:
            raise InputError(
                f"--backend nccl needs a GPU for every rank: here are {self.gpus} for {self.ranks} "
                "ranks, or another node has too few; start fewer ranks, or use --backend gloo"
            )
        if share == NO_GPU:
            raise InputError(
                "--device cuda: no CUDA device is available, here or on another node; "
                "use --device cpu"
            )


def visible_gpus() -> int:
    """CUDA devices that this process sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose(
    backend: str, device: str, node: Node, least: Callable[[int], int], auto: str = "gloo"
) -> tuple[str, torch.device]:
    """The backend and this rank's device, the same kind on all ranks.

    With neither given, GPUs are used only if every rank has its own, through NCCL.

    Parameters
    ----------
    backend : one of `BACKENDS`
    device : one of `DEVICES`
    node : Node
    least : callable
        Collective: the least of the numbers that all ranks pass. Called only if `device` is not
        ``"cpu"``.
    auto : {"gloo", "mpi"}
        What ``"auto"`` means without GPUs of one's own.

    Raises
    ------
    InputError
        On all ranks, if that backend cannot have that device.
    """
    if device == "cpu":
        if backend == "nccl":
            raise InputError("--backend nccl moves what lies on GPUs; use --device cuda")
        return auto if backend == "auto" else backend, torch.device("cpu")
    share = least(node.share)
    if device == "cuda" or backend == "nccl":
        node.check(backend, share)
    elif share < OWN_GPUS:
        return auto if backend == "auto" else backend, torch.device("cpu")
    if backend == "auto":
        backend = "nccl" if auto == "gloo" and share == OWN_GPUS else auto
    return backend, torch.device("cuda", node.gpu(backend))


def mpi_lacks_room(place: Place) -> str:
    """Why MPICH would die of SIGBUS or SIGSEGV while it starts; empty if it would not.

    Its ranks on a node take shared memory by the name of /dev/shm, without a look at the limit.
    """
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
    """Threads for each rank: an even share of this node's processors.

    ``OMP_NUM_THREADS`` says otherwise, and so does ``SLURM_CPUS_PER_TASK`` under srun. torchrun
    sets ``OMP_NUM_THREADS=1`` where nobody has set it, so there a 1 says nothing.

    Parameters
    ----------
    ranks_here : int, optional
        Ranks on this node; without it, as many as the launcher has started.

    Raises
    ------
    InputError
        If the launcher's variables make no sense.
    """
    place = find_place()
    asked = _positive("OMP_NUM_THREADS")
    if asked > 1 or (asked == 1 and "TORCHELASTIC_RUN_ID" not in os.environ):
        return asked
    if place is not None and place.launcher != "torch" and _positive("SLURM_CPUS_PER_TASK"):
        return _positive("SLURM_CPUS_PER_TASK")
    if ranks_here is None:
        ranks_here = 1 if place is None else place.local_size
    return max(1, processors() // ranks_here)


def _positive(name: str) -> int:
    """What a variable says if it is a number (OMP_NUM_THREADS may be a list), else 0."""
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
