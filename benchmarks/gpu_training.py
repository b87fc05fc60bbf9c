"""One training of the GPU suite, in a process of its own: prints nothing, and needs no rich.

    python benchmarks/gpu_training.py [--one-rank-world] FLAGS --json FILE

With ``--one-rank-world`` the only rank has a process group all the same: through NCCL on a GPU.
Each collective is tried first, then a product's exchange, then the training.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path

import scipy.sparse as sp
import torch
import torch.distributed as dist

from spgnn import CSR, DistMatrix, Mesh, RowLayout
from spgnn.comm import Communicator
from spgnn.comm.guest import GuestCommunicator, GuestJob
from spgnn.comm.launch import run_job
from spgnn.comm.traffic import RowCounts
from spgnn.config import TrainConfig
from spgnn.train.report import Report
from spgnn.train.run import train

ALONE = "--one-rank-world"


def one_rank_world(device: str) -> Communicator:
    """A process group of this process alone, as a guest has it: nothing else makes one so small."""
    cuda = device == "cuda"
    if cuda:
        torch.cuda.set_device(0)
    backend, store = "cpu:gloo,cuda:nccl" if cuda else "gloo", dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    where = torch.device("cuda", 0) if cuda else torch.device("cpu")
    job = GuestJob(dist.group.WORLD, where, timedelta(seconds=60))
    return GuestCommunicator(job, job.everyone(), None, cuda)


def wrong_collectives(comm: Communicator) -> list[str]:
    """Names of the collectives whose results are wrong; a rank's own rows must come back to it."""
    wrong = []
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.int64):
        X = torch.randint(100, (1000, 33), device=comm.device).to(dtype)
        counts = RowCounts([len(X)], [len(X)], len(X))
        received, gathered, scattered = (torch.zeros_like(X) for _ in range(3))
        comm.alltoallv(X, received, counts).wait()
        comm.all_gather(X, gathered, [len(X)])
        comm.scatter(X, scattered, [len(X)])
        found = {"alltoallv": received, "all_gather": gathered, "scatter": scattered}
        for name in ("broadcast", "reduce"):
            found[name] = X.clone()
            getattr(comm, name)(found[name], 0).wait()
        for op in ("sum", "max"):
            found[f"all_reduce {op}"] = X.clone()
            comm.all_reduce(found[f"all_reduce {op}"], op).wait()
        wrong += [f"{name} {dtype}" for name, Y in found.items() if not torch.equal(X, Y)]
    n, f = 500, 16
    dense = (torch.rand(n, n, dtype=torch.float64) < 0.02).double()
    H = torch.randn(n, f, dtype=torch.float64)
    A = CSR.from_scipy(sp.csr_array(dense.numpy()))
    D = DistMatrix.build(A, RowLayout.even(n, 1), Mesh.grid(comm)).to(comm.device)
    X = H.to(comm.device).requires_grad_()
    Y = D @ X
    Y.square().sum().backward()
    assert X.grad is not None
    if not torch.allclose(Y.detach().cpu(), dense @ H):
        wrong.append("product")
    if not torch.allclose(X.grad.cpu(), 2 * dense.T @ dense @ H):
        wrong.append("gradient of a product")
    return wrong


def main() -> int:
    """Exit status of the job, or 1 if a collective is wrong."""
    flags = [argument for argument in sys.argv[1:] if argument != ALONE]

    def body(config: TrainConfig, comm: Communicator) -> Report:
        if ALONE not in sys.argv:
            return train(config, comm)
        world = one_rank_world(config.job.device)
        wrong = wrong_collectives(world)
        if wrong:
            raise SystemExit(f"wrong: {', '.join(wrong)}")
        return train(config, world)

    def publish(config: TrainConfig, report: Report) -> None:
        if report["failure"]:
            raise SystemExit(report["failure"])
        assert config.job.json is not None
        Path(config.job.json).write_text(json.dumps(report), encoding="utf-8")

    return run_job(lambda: TrainConfig.of(**TrainConfig.given(flags)), body, publish)


if __name__ == "__main__":
    sys.exit(main())
