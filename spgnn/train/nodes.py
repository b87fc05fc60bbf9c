"""How many ranks are a node: what was asked for, or what the launcher says."""

from __future__ import annotations

from spgnn.comm import Communicator, find_place, from_rank_zero
from spgnn.config import TrainConfig
from spgnn.errors import InputError


def resolved(config: TrainConfig, comm: Communicator) -> TrainConfig:
    """The same configuration with ``--hierarchy auto`` decided; from now on the ledger knows nodes.

    ``auto`` is the number of ranks that the launcher has put on each node, where it has put as many
    neighbouring ranks on all of them, and the algorithm knows nodes; else ``none``. Collective.
    """
    launched, how = ranks_a_node(comm), config.algorithm
    size = how.node_size if how.node_size > 1 else launched
    comm.ledger.node_size = size
    if how.hierarchy != "auto":
        return config
    found = config.but(hierarchy=str(size) if 1 < size < comm.size else "none")
    try:
        found.check(comm.size)
    except InputError:
        return config.but(hierarchy="none")
    return found


def ranks_a_node(comm: Communicator) -> int:
    """So many neighbouring ranks are on each node, according to the launcher. Collective.

    0 if nodes have different numbers of ranks, or ranks that are no neighbours.
    """
    place = find_place()
    here = (0, 1) if place is None else (place.local_rank, place.local_size)
    size = int(from_rank_zero(comm, lambda: here[1]))
    fits = here == (comm.rank % size, size)
    return size if comm.agree(int(not fits)) == 0 else 0
