"""Communication: one communicator, whatever the launcher and the transport.

Nothing outside this package imports torch.distributed or mpi4py.
"""

from __future__ import annotations

from spgnn.comm.communicator import Communicator, Pending, SoloCommunicator
from spgnn.comm.connect import connect
from spgnn.comm.failure import CommunicationError, guarded, world
from spgnn.comm.launch import launch, run_job
from spgnn.comm.mesh import Mesh
from spgnn.comm.place import BACKENDS
from spgnn.comm.traffic import Ledger, RowCounts

__all__ = [
    "BACKENDS",
    "CommunicationError",
    "Communicator",
    "Ledger",
    "Mesh",
    "Pending",
    "RowCounts",
    "SoloCommunicator",
    "connect",
    "guarded",
    "launch",
    "run_job",
    "world",
]
