"""Communication: one communicator, whatever the launcher and the transport.

Nothing outside this package imports torch.distributed or mpi4py.
"""

from __future__ import annotations

from spgnn.comm.communicator import Communicator, SoloCommunicator
from spgnn.comm.connect import connect
from spgnn.comm.failure import CommunicationError, guarded
from spgnn.comm.launch import launch
from spgnn.comm.mesh import Mesh
from spgnn.comm.traffic import Ledger

__all__ = [
    "CommunicationError",
    "Communicator",
    "Ledger",
    "Mesh",
    "SoloCommunicator",
    "connect",
    "guarded",
    "launch",
]
