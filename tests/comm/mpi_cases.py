"""What the MPI test runs on every rank: ``python -m tests.comm.mpi_cases GRAPH P …``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import torch
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import systems  # noqa: F401  (registers a codec that training tests)

import spgnn
from spgnn import InputError
from spgnn.comm import CommunicationError, Communicator, connect, failure, guarded
from spgnn.comm.mpi import MPIJob
from tests import products, training, unchanged
from tests.comm import misbehaving as quarrels
from tests.comm import protocol
from tests.comm.misbehaving import exchange


def main(path: Path, sizes: list[int]) -> None:
    """All oracles on the first P ranks of the job, for each P in `sizes`."""
    torch.set_num_threads(1)
    world = connect("mpi")
    with guarded(world):
        check_names(world)
        check_progress(world)
        check_quarrels(world)
        check_guests(world)
        for size in sizes:
            part = world.subgroup([range(size), range(size, world.size)][: 1 + (size < world.size)])
            if world.rank < size:
                protocol.check_all(part)
                check_under_debug(part)
                # On gloo every case is checked; here the backend is what is new.
                products.check_all(part, every=12 if size <= 4 else 15)
                unchanged.check_all(part)
                training.check_history(part, path, slice(0, None, 8 if size <= 4 else 6))
            world.barrier()
        for _ in range(1000):  # The root runs ahead, and so does what it tells of its calls.
            world.scatter(torch.zeros(world.size), torch.zeros(1), [1] * world.size)
        if world.rank == 0:
            print(f"checked on {sizes} ranks")


def check_names(world: Communicator) -> None:
    """Memory that MPI shares has none: it would be left behind by a job that is killed."""
    shared = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "mpich_shm_" in line
    ]
    assert shared
    assert all(line.endswith("(deleted)") for line in shared)
    world.barrier()


def check_progress(world: Communicator) -> None:
    """MPI is helped with a long exchange also after somebody has waited for something else."""
    assert isinstance(world.job, MPIJob)
    job = world.job
    late = exchange(world.apart())
    world.barrier()
    assert job.help_needed == "late"
    soon = exchange(world)
    world.barrier()
    assert job.help_needed == "soon"
    soon.wait()
    assert job.help_needed == "late"
    late.wait()
    assert job.help_needed == "none"


def check_guests(world: Communicator) -> None:
    """Communicators of the program's own, and its COMM_WORLD where no launcher is known."""
    halves = MPI.COMM_WORLD.Split(world.rank % 2, -world.rank)
    for theirs in (MPI.COMM_WORLD, halves):
        comm = connect(group=theirs)
        assert (comm.rank, comm.size) == (theirs.Get_rank(), theirs.Get_size())
        assert comm.job.is_guest
        assert comm.apart().agree(1, "sum") == comm.size
        assert comm.subgroup([[0], range(1, comm.size)][: comm.size]).agree(1) == 1
        products.check_all(comm, every=40)
        owner = torch.arange(10) % comm.size
        mine = (owner == comm.rank).nonzero()[:, 0]
        halo = spgnn.Halo.build(torch.stack([(mine + 1) % 10, mine]), owner, theirs)
        x = mine[:, None].double()
        assert halo(x)[halo.local_edge_index[0], 0].sum() == ((mine + 1) % 10).sum()
        torch.manual_seed(0)
        data = SimpleNamespace(x=torch.ones(30, 4), edge_index=torch.randint(30, (2, 99)))
        data.num_nodes, data.y, data.train_mask = 30, torch.arange(30) % 3, torch.arange(30) < 20
        graph = spgnn.distribute(data, partition="random", group=theirs)
        loss = spgnn.Trainer(spgnn.nn.GCN(-1, 4, 2, 3), graph, lr=0.05).fit(3)[-1]["loss"]
        assert abs(loss - world.broadcast_value(loss)) < 1e-5
        comm.leave()
        if comm.size > 1:
            for use in (
                comm.barrier,
                lambda comm=comm: comm.subgroup([range(comm.size)]).barrier(),
            ):
                assert "leave() was called" in refusal(use)
        assert theirs.allreduce(1) == theirs.Get_size()
    halves.Free()
    assert "no member of the communicator" in refusal(lambda: connect(group=halves))
    assert "backend=gloo: the group has its own" in refusal(lambda: connect("gloo", group=theirs))
    launcher, own = dict(os.environ), dict(failure._world)
    failure._world.clear()
    for name in set(os.environ) & {"PMI_RANK", "PMI_SIZE"}:
        del os.environ[name]
    comm = connect()
    assert (connect() is comm, comm.rank, comm.size) == (True, world.rank, world.size)
    os.environ.update(launcher)
    failure._world.update(own)


def refusal(of: Callable[[], object]) -> str:
    try:
        of()
    except InputError as error:
        return str(error)
    return "nothing"


def check_under_debug(comm: Communicator) -> None:
    """Exchanges under way while calls are compared."""
    comm.job.debug = True
    protocol.check_outstanding(comm)
    protocol.check_alltoallv(comm, torch.float32)
    comm.job.debug = False


def check_quarrels(world: Communicator) -> None:
    """Both of two ranks that do not agree say so, also where MPI would take what they send.

    Only calls after which nothing is left in MPI, for it could not be finalised.
    """
    for how in ("sizes", "roots", "dtypes"):
        usual, different, words = quarrels.QUARRELS[how]
        part = world.subgroup([[0, 1], range(2, world.size)], name="pair")
        if world.rank < 2:
            line = objection(part, different if part.rank else usual)
            assert line.startswith("ranks do not agree on call 2 of group"), (how, line)
            assert all(word in line for word in words), (how, line)
        world.barrier()


def objection(pair: Communicator, deed: quarrels.Deed) -> str:
    """What is said of a second call, or of a third because of it."""
    quarrels.all_reduce(pair)
    try:
        deed(pair)
        quarrels.all_reduce(pair)
    except CommunicationError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]])
