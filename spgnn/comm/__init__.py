"""Communication: one protocol, and the backends behind it.

Nothing outside this package imports torch.distributed or mpi4py.
"""

from __future__ import annotations

from spgnn.comm.base import Communicator, Pending
from spgnn.comm.connect import connect, guarded, refuse, world
from spgnn.comm.counts import RowCounts
from spgnn.comm.job import CommunicationError
from spgnn.comm.launch import launch
from spgnn.comm.launched import find_place, ranks_here
from spgnn.comm.ledger import Ledger, Traffic
from spgnn.comm.mesh import Mesh
from spgnn.comm.placement import BACKENDS, DEVICES, default_threads
from spgnn.comm.rank_zero import broadcast_value, from_rank_zero, on_every_rank, on_rank_zero
from spgnn.comm.solo import SoloCommunicator

__all__ = [
    "BACKENDS",
    "DEVICES",
    "CommunicationError",
    "Communicator",
    "Ledger",
    "Mesh",
    "Pending",
    "RowCounts",
    "SoloCommunicator",
    "Traffic",
    "broadcast_value",
    "connect",
    "default_threads",
    "find_place",
    "from_rank_zero",
    "guarded",
    "launch",
    "on_every_rank",
    "on_rank_zero",
    "ranks_here",
    "refuse",
    "world",
]
