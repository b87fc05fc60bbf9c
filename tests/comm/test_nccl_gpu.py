"""What we ask of NCCL through torch, by one rank on a GPU: that it is there, and ends in order."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from spgnn.comm.communicator import Blocked
from spgnn.comm.failure import Job
from spgnn.comm.torchdist import TorchCommunicator, TorchJob
from spgnn.comm.traffic import RowCounts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_every_operation(tmp_path):
    """Each on a group of one rank, whose result is what was given; calls end on the stream."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        job = TorchJob.__new__(TorchJob)  # a job of one rank has no connections to others
        Job.__init__(job, 0, 1, torch.device("cuda", torch.cuda.current_device()))
        job.members, job.under_way = [], 0
        comm = TorchCommunicator(job, job.everyone(), dist.group.WORLD)
        assert comm.moves_cuda
        comm.greeted()
        given = torch.randn(1000, 33, device=job.device)
        rows, counts = given.view(torch.uint8), RowCounts([1000], [1000], 1000)
        with Blocked(comm, comm._next_call("each")):
            for begin in (
                lambda out: comm._alltoallv(rows, out, counts),
                lambda out: comm._all_gather(rows, out, [1000]),
                lambda out: comm._waiter(dist.group.WORLD.allgather([[out]], [rows]), out),
                lambda out: comm._broadcast(out.copy_(rows), 0),
                lambda out: comm._reduce(out.copy_(rows).view(torch.float32), 0),
                lambda out: comm._all_reduce(out.copy_(rows).view(torch.float32), "sum"),
                lambda out: comm._all_reduce(out.copy_(rows).view(torch.float32), "max"),
            ):
                out = torch.zeros_like(rows)
                begin(out)()
                assert torch.equal(out.view(torch.float32), given)
        torch.cuda.synchronize()
        assert job.unfinished() == []
        assert job.on_stream[-1].call.what == "each"
        comm.settled()
    finally:
        dist.destroy_process_group()
