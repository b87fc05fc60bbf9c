"""Communication: one protocol, and the backends behind it.

Nothing outside this package imports torch.distributed or mpi4py.
"""

from __future__ import annotations

from spgnn.comm.base import Communicator, Ledger, Pending, RowCounts, Traffic
from spgnn.comm.connect import connect, guarded, launched_rank, world
from spgnn.comm.launch import launch
from spgnn.comm.mesh import Mesh
from spgnn.comm.solo import SoloCommunicator

__all__ = [
    "Communicator",
    "Ledger",
    "Mesh",
    "Pending",
    "RowCounts",
    "SoloCommunicator",
    "Traffic",
    "connect",
    "guarded",
    "launch",
    "launched_rank",
    "world",
]
