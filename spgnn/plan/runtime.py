"""What libraries take once a rank trains, whatever it trains on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn.comm import Communicator, Mesh
from spgnn.data import Graph
from spgnn.data.distribute import RankShare, scatter
from spgnn.data.normalise import add_self_loops, degree_scales
from spgnn.exchange import Algorithm, build, layered
from spgnn.nn import (
    GCN,
    DropoutKeys,
    accuracies,
    count_labelled,
    masked_cross_entropy,
    propagate_,
)
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix

# The graph of a job that has hardly any data: vertices of each rank, features, classes.
_ROWS, _FEATURES, _CLASSES = 2048, 64, 16  # enough for the kernels that real ones are given


def runtime_bytes(comm: Communicator) -> int:
    """How much this rank's memory grows by a whole job on hardly any data. Collective.

    Most of it are pages of libraries that are touched for the first time: ranks of one host share
    them, and each one's resident memory has them.
    """
    # Ranks compare their flags before a job begins, which is no part of it.
    comm.check_agreement("a job on hardly any data", rows=_ROWS)
    before = _resident_bytes()
    exercise(comm)
    return max(0, _resident_bytes() - before)


def exercise(comm: Communicator) -> None:
    """What every training job does: set-up, an epoch, evaluation. Collective."""
    share = scatter(_graph(comm.size) if comm.rank == 0 else None, None, comm, comm.size)
    A, X = _operands(share, comm)
    device = comm.device
    assert share.data.y is not None
    assert share.data.train_mask is not None
    y, masks = share.data.y.to(device), [share.data.train_mask.to(device)]
    totals = count_labelled(masks, y, comm)
    model = GCN.of([_FEATURES, 16, 16, _CLASSES], dropout=0.5, input_dropout=False).to(device)
    optimiser = torch.optim.Adam(model.parameters())
    keys = DropoutKeys(share.vertex_ids.to(device), 0, 0)
    with _Seen():  # type: ignore[no-untyped-call]
        masked_cross_entropy(model(X, A, keys), y, masks[0], totals[0]).backward()
    flat = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    comm.all_reduce(flat).wait()
    optimiser.step()
    optimiser.zero_grad()
    with torch.no_grad():
        accuracies(model.eval()(X, A), y, masks, totals, comm)


class _Seen(TorchDispatchMode):
    """Operators come through Python, as in the epochs that are clocked."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


def _graph(ranks: int) -> Graph:
    """A ring of all vertices, in which each has some that are on other ranks."""
    n = _ROWS * ranks
    vertices = torch.arange(n)
    away = torch.stack([(vertices + step) % n for step in (1, _ROWS, n - _ROWS, n - 1)], 1)
    indices = away.sort(dim=1).values.reshape(-1)
    A = CSR.of(torch.arange(n + 1) * 4, indices.int(), (n, n))
    every = torch.ones(n, dtype=torch.bool)
    X = torch.ones(n, _FEATURES)
    return Graph("ring", A, False, x=X, y=vertices % _CLASSES, train_mask=every)


def _operands(share: RankShare, comm: Communicator) -> tuple[DistMatrix, Tensor]:
    """The normalised matrix and A·X."""
    assert share.adjacency is not None
    assert isinstance(share.data.x, Tensor)
    block = add_self_loops(share.adjacency, share.layout.range(comm.rank)[0])
    row_scale, own_scale = degree_scales(block, "sym")
    block, layout, algorithm = block.with_scales(row_scale, None), share.layout, Algorithm()
    A = DistMatrix.build(
        block, layout, Mesh.grid(comm), algorithm=algorithm, column_scale=own_scale
    ).to(comm.device)
    some = torch.arange(_ROWS // 2)  # whose plans are made, as of rows that the loss looks at
    scheme = layered(
        algorithm, block, layout, comm.rank, layers=3, wanted=some, column_scale=own_scale
    )
    build(scheme, A.mesh)
    return A, propagate_(A, share.data.x.to(comm.device)).AX_local


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
