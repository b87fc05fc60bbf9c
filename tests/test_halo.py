"""Own rows and those of others: exact for layers that know nothing of ranks."""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, Halo, InputError, Mesh, RowLayout
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm
from spgnn.kernels import spmm
from spgnn.testing import run_ranks
from tests.comm.jobs import on_their_own
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.products import moved

N = 37


def matrix_of(comm: Communicator, weighted: bool, scaled: bool, exchange: str) -> DistMatrix:
    layout = uneven_layout(N, comm.size, seed=5)
    own = slice(*layout.range(comm.rank))
    block = block_row(random_matrix(N, 0.15, 3, weighted=weighted), own.start, own.stop)
    scale = torch.linspace(1, 2, N, dtype=torch.float64)[own].clone() if scaled else None
    kind, _, relays = exchange.partition(", ")
    block, algorithm = block.with_scales(scale, None), Algorithm(exchange=kind, relays=bool(relays))
    mesh = Mesh.grid(comm)
    return DistMatrix.build(block, layout, mesh, algorithm=algorithm, column_scale=scale)


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


@pytest.mark.parametrize("exchange", ["sparsity-aware", "oblivious", "sparsity-aware, relays"])
@pytest.mark.parametrize(("weighted", "scaled"), [(False, True), (True, False)])
def test_local_matrix_times_halo_is_the_product(weighted, scaled, exchange):
    for ranks in (1, 4):
        run_ranks(check_halo, ranks, weighted, scaled, exchange)


def check_refused(rank: int) -> None:
    comm = connect()
    A = random_matrix(8, 0.5, 0, weighted=False)
    layout = RowLayout.even(8, 4)
    block = block_row(A, *layout.range(rank))
    for c, cover, relays in ((2, "column", False), (1, "row", True), (1, "minimum", False)):
        algorithm = Algorithm("1d" if c == 1 else "1.5d", c, cover=cover, relays=relays)
        matrix = DistMatrix.build(block, layout, Mesh.grid(comm, c), algorithm=algorithm)
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


# Halos of edges, without a matrix.

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64)
EXACT_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.bool)


def problem(ranks: int, seed: int) -> tuple[torch.Tensor, list[Any]]:
    """Edges of all ranks, and the owners of sources and targets; ``None`` where they are the same.

    Square and bipartite, labels and layouts, no vertices and fewer than ranks, repeated edges.
    """
    rng = np.random.default_rng(seed)
    sizes = [int(rng.choice((1, max(ranks - 1, 1), 5, 60))) for _ in range(2)]
    if seed % 2:
        sizes[1] = sizes[0]
    edges = int(rng.choice((0, 3, 300))) if min(sizes) else 0
    index = torch.from_numpy(np.stack([rng.integers(n, size=edges) for n in sizes]).reshape(2, -1))
    owners: list[Any] = []
    for n in sizes:
        labels = rng.integers(ranks, size=n)
        owners.append(RowLayout.from_labels(labels, ranks) if seed % 3 else labels)
    return index, [owners[0], None if seed % 2 else owners[1]]


def owned(owner: Any, rank: int) -> torch.Tensor:
    """Ids of a rank, by the definition."""
    if isinstance(owner, RowLayout):
        return torch.arange(*owner.range(rank))
    return torch.from_numpy(np.flatnonzero(owner == rank))


def halo_of(comm: Communicator, seed: int) -> tuple[Halo, torch.Tensor, torch.Tensor, Any]:
    """A halo, the edges of all ranks and this rank's, and the owners."""
    index, (owner, target_owner) = problem(comm.size, seed)
    ends = owner if target_owner is None else target_owner
    mine = index[:, torch.isin(index[1], owned(ends, comm.rank))]
    given = mine.int() if seed % 5 == 0 else mine
    return Halo.build(given, owner, comm, target_owner=target_owner), index, mine, (owner, ends)


def check_edges(comm: Communicator, seed: int) -> None:
    """Ids, every dtype exactly, the transpose, counted bytes and planned ones."""
    halo, _, mine, (owner, ends) = halo_of(comm, seed)
    n = owner.rows if isinstance(owner, RowLayout) else len(owner)
    own, sources, targets = owned(owner, comm.rank), *halo.local_edge_index
    ids = halo.ids
    assert torch.equal(ids[: halo.own], own)
    assert torch.equal(halo.target_ids, owned(ends, comm.rank))
    assert torch.equal(torch.stack((ids[sources], halo.target_ids[targets])), mine)
    remote = np.setdiff1d(mine[0], own)
    owners = np.repeat(np.arange(comm.size), owner.sizes) if isinstance(owner, RowLayout) else owner
    by_owner = remote[np.lexsort((remote, owners[remote]))]
    assert ids[halo.own :].tolist() == by_owner.tolist()
    assert halo.volume.receive == halo.received == len(remote)

    draw = torch.Generator().manual_seed(seed)
    whole = torch.randint(-9, 9, (n, 2, 3), generator=draw)
    for dtype in (*FLOATING, *EXACT_DTYPES):
        for x in (whole.to(dtype), whole[:, 0].to(dtype), whole[:, 0, 0].to(dtype), whole[:, :0]):
            before = comm.ledger.copy()
            rows = halo(x[own])
            nbytes = x.nbytes // n
            bytes_moved = halo.volume.send * nbytes, halo.volume.receive * nbytes
            assert moved(comm.ledger.since(before)) == bytes_moved
            assert rows.dtype == x.dtype
            assert torch.equal(rows, x[ids])
            # Every rank's halo, added up: each row as often as ranks have it.
            count = torch.zeros(n, dtype=torch.int64).index_add_(
                0, ids, torch.ones(len(ids)).long()
            )
            comm.all_reduce(count).wait()
            times = count[own].view(-1, *[1] * (x.dim() - 1))
            expected = x[own] if dtype == torch.bool else (x[own] * times).to(x.dtype)
            assert torch.equal(halo.adjoint(rows), expected)


def energy(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """A sum over edges that is not linear in the rows."""
    factor = (1.5 + ends).view(-1, *[1] * (rows.dim() - 1)) / 10
    return (rows[starts] * factor).square().add(1).log().sum()


def check_derivatives(comm: Communicator, seed: int) -> None:
    """Gradients of two orders are those of one process."""
    halo, index, mine, (owner, _) = halo_of(comm, seed)
    own = owned(owner, comm.rank)
    n = owner.rows if isinstance(owner, RowLayout) else len(owner)
    draw = torch.Generator().manual_seed(seed)
    for shape, dtype in ((n,), torch.float64), ((n, 5), torch.float32), ((n, 2, 3), torch.float64):
        X, V = torch.randn(2, *shape, generator=draw, dtype=dtype)
        X.requires_grad_()
        (dX,) = torch.autograd.grad(energy(X, *index), X, create_graph=True)
        (ddX,) = torch.autograd.grad(dX, X, V)
        x = X.detach()[own].requires_grad_()
        (dx,) = torch.autograd.grad(
            energy(halo(x), halo.local_edge_index[0], mine[1]), x, create_graph=True
        )
        (ddx,) = torch.autograd.grad(dx, x, V[own])
        torch.testing.assert_close(dx, dX[own])
        torch.testing.assert_close(ddx, ddX[own])


def check_problems(rank: int, seeds: range) -> int:
    comm = connect()
    for seed in seeds:
        check_edges(comm, seed)
        check_derivatives(comm, seed)
    return len(seeds)


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [
        (1, 3),
        (2, 4),
        (3, 8),
        *(pytest.param(ranks, 12, marks=pytest.mark.slow) for ranks in range(4, 9)),
    ],
)
def test_halos_of_edges_are_exact(ranks, seeds):
    assert run_ranks(check_problems, ranks, range(seeds)) == [seeds] * ranks


def check_compiled_and_planned_again(rank: int) -> None:
    """No graph for each plan; a backward goes the way of its forward."""
    comm, n = connect(), 40
    owner = torch.arange(n) % comm.size
    own = owned(owner.numpy(), rank)

    def edges(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        draw = torch.Generator().manual_seed(seed)
        index = torch.randint(n, (2, 100 + seed), generator=draw)
        return index, index[:, owner[index[1]] == rank]

    halo = Halo.build(edges(0)[1], owner, comm)
    X = torch.randn(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X.requires_grad_()

    def function(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        return energy(halo(x), halo.local_edge_index[0], ends) + halo.adjoint(halo(x)).sum()

    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for seed in range(6):
        index, mine = edges(seed)
        halo.rebuild(mine)
        grads = []
        for run in (function, compiled):
            x = X.detach()[own].requires_grad_()
            grads.append(torch.autograd.grad(run(x, mine[1]), x)[0])
        torch.testing.assert_close(*grads)
    # One for the first plan, then one for each number that is seen to change: at most two.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3

    x = X.detach()[own].requires_grad_()
    index, mine = edges(1)
    halo.rebuild(mine)
    total = energy(halo(x), halo.local_edge_index[0], mine[1])
    (dX,) = torch.autograd.grad(energy(X, *index), X)
    with pytest.raises(InputError, match="edge 0 starts at -1"):
        halo.rebuild(torch.full((2, 1), -1))  # stays as it was
    twin = copy.deepcopy(halo)
    halo.rebuild(edges(2)[1])
    assert torch.equal(twin.local_edge_index[1], mine[1] // comm.size), "it has a plan of its own"
    torch.testing.assert_close(torch.autograd.grad(total, x)[0], dX[own])
    batch = torch.func.vmap(halo, in_dims=2, out_dims=2)(X.detach()[own, :, None].expand(-1, -1, 3))
    assert torch.equal(batch[..., 2], X.detach()[halo.ids])


def test_halos_are_compiled_once_and_planned_again():
    run_ranks(check_compiled_and_planned_again, 2)


def check_matrices(rank: int) -> None:
    comm = connect()
    for seed in range(4):
        halo, _, mine, _ = halo_of(comm, seed)
        values = torch.rand(mine.shape[1], dtype=torch.float64)
        x = torch.rand(halo.own, 3, dtype=torch.float64)
        expected = torch.zeros(halo.own_targets, 3, dtype=torch.float64)
        starts, ends = halo.local_edge_index
        expected.index_add_(0, ends, values[:, None] * halo(x)[starts])
        for how in ({}, {"cover": "minimum"}, {"cover": "row", "node_size": 2}, {"algo": "2d"}):
            torch.testing.assert_close(halo.matrix(values, **how) @ x, expected)


def test_edges_are_a_matrix_under_any_cover():
    run_ranks(check_matrices, 4)


def test_a_guest_has_halos_on_groups_of_its_own(tmp_path):
    def program() -> None:
        dist, n = torch.distributed, 12
        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("model", "data"))
        threads, halos = threading.active_count(), []
        for group in (dist.group.WORLD, mesh["model"], mesh.get_group("data")):
            handle = group if isinstance(group, dist.ProcessGroup) else group.get_group()
            owner = torch.arange(n) % dist.get_world_size(handle)
            own = owned(owner.numpy(), dist.get_rank(handle))
            halo = Halo.build(torch.stack(((own + 1) % n, own)), owner, group)
            x = own.double().requires_grad_()
            rows = halo(x)
            assert torch.equal(rows.detach(), halo.ids.double())
            rows.sum().backward()
            halos.append((halo, x))
        assert threading.active_count() == threads, "nothing is started"
        dist.barrier()
        dist.destroy_process_group()
        for halo, x in halos:
            with pytest.raises(InputError, match="the process group has ended"):
                halo(x)

    ended = on_their_own(program, tmp_path, 4)
    assert [end.status for end in ended] == [0] * 4, "\n".join(end.err for end in ended)


def check_left(rank: int) -> None:
    comm = connect()
    halo = Halo.build(torch.tensor([[1 - rank], [rank]]), [0, 1], comm)
    comm.close()
    for call in (lambda: halo(torch.zeros(1, 2)), lambda: halo.rebuild(halo.local_edge_index)):
        with pytest.raises(InputError, match="this rank has left the job"):
            call()


def test_a_halo_ends_with_its_job():
    run_ranks(check_left, 2, backend="gloo")


OWNER = np.array([0, 0, 1, 1, 2, 2])


def bad_inputs(rank: int) -> list[str]:
    """What each call is refused with; only rank 1 does something wrong."""
    comm = connect()
    mine = torch.tensor([[0, 5], [2 * rank, 2 * rank + 1]])

    def build(edges: Any = mine, owner: Any = OWNER, **more: Any) -> Halo:
        return Halo.build(edges, owner, comm, **more)

    def odd(usual: Any, other: Any) -> Any:
        return other if rank == 1 else usual

    halo, again = build(), build()
    x = torch.zeros(2, 3)
    calls = [
        lambda: build(odd(mine, mine + 6)),
        lambda: build(odd(mine, mine - 4)),
        lambda: build(odd(mine, mine.flip(0))),
        lambda: build(odd(mine, mine.double())),
        lambda: build(odd(mine, mine[0])),
        lambda: build(odd(mine, None)),
        lambda: halo.rebuild(odd(mine, mine + 2)),
        lambda: build(owner=odd(OWNER, OWNER[::-1].copy())),
        lambda: build(owner=OWNER + 1),
        lambda: build(owner=OWNER - 1),
        lambda: build(owner=OWNER / 2),
        lambda: build(owner=[0, 2, 4, 6]),
        lambda: build(owner=RowLayout.even(6, 2)),
        lambda: build(**odd({}, {"target_owner": OWNER})),
        lambda: build(target_owner=OWNER[:5]),
        lambda: halo(odd(x, x[:1])),
        lambda: halo(odd(x, None)),
        lambda: halo(torch.tensor(1.0)),
        lambda: halo(odd(x, x.to_sparse())),
        lambda: halo(odd(torch.zeros(2, 2, 3), torch.zeros(2, 3, 2))),
        lambda: halo(odd(torch.zeros(2, 6), torch.zeros(2, 3, dtype=torch.complex64))),
        lambda: halo.adjoint(x),
        lambda: halo.adjoint(torch.zeros(4, dtype=torch.uint16)),
        lambda: halo.matrix(odd(None, [1.0, 2.0, 3.0])),
        lambda: halo.matrix(cover="any"),
        lambda: halo.matrix(covers="row"),
        lambda: build(owner=odd(OWNER, [[0], [1, 2]])),
        lambda: connect(device="cuda"),
        lambda: odd(halo, again)(x),
        lambda: halo.adjoint(x.new_zeros(2 + halo.received, 3)) if rank == 1 else halo(x),
    ]
    found = []
    for call in calls:
        with pytest.raises(InputError) as refused:
            call()
        found.append(str(refused.value))
        assert torch.equal(halo(x), x.new_zeros(2 + halo.received, 3))  # and all goes on
    return found


REFUSALS = """
edge 0 starts at 6, outside [0, 6)
edge 0 starts at -4, outside [0, 6)
edge 0 ends at 0, which rank 0 owns, not rank 1: each rank passes the edges that end at its own
edge_index must be int64 or int32 [2, edges], got float64 [2, 2]
edge_index must be int64 or int32 [2, edges], got int64 [2]
edge_index must be int64 or int32 [2, edges], got NoneType
edge 0 ends at 4, which rank 2 owns
ranks do not agree on owner of Halo.build
owner[4] is 3, no rank of 3; the first id of each rank and the end are RowLayout(offsets)
owner[0] is -1, no rank of 3
owner must be integers [vertices], fewer than 2^31, or a RowLayout, got float64 [6]
owner[2] is 4, no rank of 3
owner is a layout of 2 parts for 3 ranks
ranks do not agree on bipartite of Halo.build
ends at 5, outside [0, 5)
the operand has shape [1, 3]
the operand must be a torch
the operand has shape []
the operand must be dense
ranks do not agree on width of the operand of a product: (2, 3) on ranks 0, 2; (3, 2) on rank 1
ranks do not agree on dtype of the operand of a product (and on width): torch.float32 on ranks 0, 2
the operand has shape [2, 3]
rows of torch.uint16 cannot be added up
values must be a tensor [2], one for each edge
choose one of column, row, minimum
halo.matrix(…) covers: choose one of algo, c, exchange, cover
owner must be one rank for each id
device cuda: these ranks are connected with cpu
ranks do not agree on plan of the operand of a product: 'planned in call
ranks do not agree on direction of the operand of a product: 'forward' on ranks 0, 2; 'adjoint'
"""


def test_bad_input_is_one_line_on_every_rank():
    wanted = REFUSALS.strip().splitlines()
    for found in run_ranks(bad_inputs, 3):
        assert len(found) == len(wanted)
        for said, words in zip(found, wanted, strict=True):
            assert words in said
            assert "\n" not in said
