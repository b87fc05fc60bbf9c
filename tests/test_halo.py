"""Own rows and those of others: exact for layers that know nothing of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, InputError, Mesh, RowLayout
from spgnn.comm import (
    Communicator,
    connect,
)
from spgnn.exchange import Algorithm
from spgnn.kernels import (
    spmm,
)
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import moved

N = 37


def matrix_of(comm: Communicator, weighted: bool, scaled: bool, exchange: str) -> DistMatrix:
    layout = uneven_layout(N, comm.size, seed=5)
    own = slice(*layout.range(comm.rank))
    block = block_row(random_matrix(N, 0.15, 3, weighted=weighted), own.start, own.stop)
    scale = torch.linspace(1, 2, N, dtype=torch.float64)[own].clone() if scaled else None
    return DistMatrix.build(
        block.with_scales(scale, None),
        layout,
        Mesh.grid(comm),
        exchange=exchange,
        column_scale=scale,
    )


def check_halo(rank: int, weighted: bool, scaled: bool, exchange: str) -> None:
    comm = connect()
    matrix = matrix_of(comm, weighted, scaled, exchange)
    dense = random_matrix(N, 0.15, 3, weighted=weighted).toarray().astype(np.float64)
    if scaled:
        scale = np.linspace(1, 2, N)
        dense = scale[:, None] * dense * scale
    own = slice(*matrix.layout.range(rank))
    rng = np.random.default_rng(0)
    H, G = rng.standard_normal((2, N, 5))
    H_local = torch.from_numpy(H[own].copy()).requires_grad_()

    before = comm.ledger.copy()
    halo = matrix.halo(H_local)
    assert moved(comm.ledger.since(before)) == tuple(
        rows * 5 * 8 for rows in (matrix.volume.send, matrix.volume.receive)
    )
    assert halo.shape == (matrix.own_rows + matrix.volume.receive, 5)
    local = matrix.local_matrix()
    assert local.pattern.shape == matrix.local_pattern.shape == (matrix.own_rows, len(halo))
    assert local.nnz == np.count_nonzero(dense[own])
    Z_local = spmm(local, halo)
    np.testing.assert_allclose(Z_local.detach(), (dense @ H)[own], rtol=1e-12)
    # A function that is not linear, so that second derivatives say something.
    (dH,) = torch.autograd.grad(Z_local.pow(3).sum() / 3, H_local, create_graph=True)
    Z = dense @ H
    np.testing.assert_allclose(dH.detach(), (dense.T @ Z**2)[own], rtol=1e-10)
    (ddH,) = torch.autograd.grad(dH, H_local, torch.from_numpy(G[own].copy()))
    expected = dense.T @ (2 * Z * (dense @ G))
    np.testing.assert_allclose(ddH, expected[own], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("exchange", ["sparsity-aware", "oblivious"])
@pytest.mark.parametrize(("weighted", "scaled"), [(False, True), (True, False)])
def test_local_matrix_times_halo_is_the_product(weighted, scaled, exchange):
    for ranks in (1, 4):
        run_ranks(check_halo, ranks, weighted, scaled, exchange)


def check_refused(rank: int) -> None:
    comm = connect()
    A = random_matrix(8, 0.5, 0, weighted=False)
    layout = RowLayout.even(8, 4)
    block = block_row(A, *layout.range(rank))
    for c, cover in ((2, "column"), (1, "row"), (1, "minimum")):
        matrix = DistMatrix.build(block, layout, Mesh.grid(comm, c), cover=cover)
        with pytest.raises(InputError, match="a halo needs whole rows of H"):
            matrix.halo(torch.zeros(2, 1))
        with pytest.raises(InputError, match="cover='column' and c = 1"):
            _ = matrix.local_pattern
    for algo in ("feature", "2d", "3d"):
        algorithm = Algorithm(algo, 2)
        mesh = Mesh.build(comm, algorithm.axes(4))
        matrix = DistMatrix.build(block, layout, mesh, algorithm=algorithm)
        with pytest.raises(InputError, match=r"a halo needs whole rows of H: .* 1D"):
            matrix.halo(torch.zeros(2, 1))
        with pytest.raises(InputError, match="a halo needs whole rows of H"):
            _ = matrix.local_matrix()


def test_what_receives_no_rows_has_no_halo():
    run_ranks(check_refused, 4)


def attention_losses(rank: int, layer: str) -> tuple[list[float], list[np.ndarray]]:
    """Losses of some epochs with a convolution that knows nothing of ranks, and its gradients."""
    geometric = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    comm = connect()
    matrix = matrix_of(comm, weighted=False, scaled=False, exchange="sparsity-aware")
    pattern = matrix.local_pattern
    destinations = torch.arange(matrix.own_rows).repeat_interleave(pattern.row_lengths)
    edges = torch.stack((pattern.indices.long(), destinations))
    options = {"heads": 2, "add_self_loops": False} if layer.startswith("GAT") else {}
    conv = getattr(geometric, layer)((6, 6), 4, **options).double()
    optimizer = torch.optim.Adam(conv.parameters(), lr=0.01)
    own = slice(*matrix.layout.range(rank))
    X = torch.from_numpy(np.random.default_rng(1).standard_normal((N, 6))[own].copy())
    losses = []
    for _ in range(5):
        loss = conv((matrix.halo(X), X), edges).square().sum()
        optimizer.zero_grad()
        loss.backward()
        flat = torch.cat([p.grad.ravel() for p in conv.parameters()] + [loss.detach().view(1)])
        comm.all_reduce(flat).wait()
        gradients, total = flat[:-1], float(flat[-1])
        for p, g in zip(
            conv.parameters(),
            gradients.split([p.numel() for p in conv.parameters()]),
            strict=True,
        ):
            p.grad.copy_(g.view_as(p))
        optimizer.step()
        losses.append(total)
    return losses, gradients.numpy()


@pytest.mark.parametrize("layer", ["SAGEConv", "GATConv"])
def test_an_unmodified_convolution_is_exact_through_the_halo(layer):
    """The same layer of another library, on one rank and on four."""
    pytest.importorskip("torch_geometric")
    (alone,) = run_ranks(attention_losses, 1, layer)
    for losses, gradients in run_ranks(attention_losses, 4, layer):
        np.testing.assert_allclose(losses, alone[0], rtol=1e-10)
        np.testing.assert_allclose(gradients, alone[1], rtol=1e-8, atol=1e-10)
