"""Communication: one communicator, whatever the launcher and the transport.

Nothing outside this package imports torch.distributed or mpi4py.
"""

from __future__ import annotations

from spgnn.comm.communicator import Communicator, Mesh, Pending, SoloCommunicator
from spgnn.comm.connect import connect, refuse
from spgnn.comm.failure import CommunicationError, guarded, world
from spgnn.comm.launch import launch
from spgnn.comm.place import BACKENDS, default_threads, find_place, ranks_here
from spgnn.comm.traffic import Ledger, RowCounts, Traffic

__all__ = [
    "BACKENDS",
    "CommunicationError",
    "Communicator",
    "Ledger",
    "Mesh",
    "Pending",
    "RowCounts",
    "SoloCommunicator",
    "Traffic",
    "connect",
    "default_threads",
    "find_place",
    "guarded",
    "launch",
    "ranks_here",
    "refuse",
    "world",
]
