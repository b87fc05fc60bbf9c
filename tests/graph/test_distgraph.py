"""A distributed graph does what one process does: matrices, halo, edges, sums, gradients."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data

import spgnn
import spgnn.nn as snn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.data.adapters import from_pyg
from spgnn.graph.distgraph import DistGraph
from spgnn.testing import run_ranks
from tests.graph.pyg_like import N, dense_of, multigraph

WAYS = ({}, {"algo": "1.5d", "c": 2}, {"algo": "vertex-cut"}, {"cover": "minimum"})
KINDS = ("sym", "row", "none", "loops")


def check_matrices(rank: int) -> None:
    for weighted in (False, True):
        data = multigraph(weighted=weighted, repeated=False)
        for way in WAYS:
            graph = spgnn.distribute(data if rank == 0 else None, **way)
            H = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
            ids = graph.vertex_ids
            for kind in KINDS:
                A = graph.matrix(kind)
                assert A is graph.matrix(kind)
                dense = dense_of(data, kind)
                torch.testing.assert_close(A @ H[ids], (dense @ H)[ids], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"matrix rows: choose one of .*did you mean 'row'"):
        graph.matrix("rows")
    with pytest.raises(InputError, match="do not agree on normalisation of graph"):
        spgnn.distribute(data).matrix("sym" if rank else "row")


def test_matrices_are_those_of_one_process():
    run_ranks(check_matrices, 4)


def check_double(rank: int, built: bool) -> None:
    data = multigraph(weighted=True, repeated=False)
    graph = spgnn.distribute(data)
    if built:
        graph.matrix("sym")
    graph.to(torch.float64)
    H = torch.randn(N, 3, generator=seeded(), dtype=torch.float64)
    for kind in KINDS:
        Z = graph.matrix(kind) @ H[graph.vertex_ids]
        expected = (dense_of(data, kind, H.dtype) @ H)[graph.vertex_ids]
        torch.testing.assert_close(Z, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("built", [False, True])
def test_scalings_of_a_float64_graph_are_not_rounded_to_float32(built):
    run_ranks(check_double, 2, built)


def check_repeated(rank: int) -> None:
    """PyG sees repeated edges as often as they are there, and leaves one self-loop of several."""
    for weighted in (False, True):
        data = multigraph(weighted=weighted, repeated=True)
        graph = spgnn.distribute(data if rank == 0 else None)
        assert graph.num_edges == data.edge_index.shape[1]
        H = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
        ids = graph.vertex_ids
        for kind in KINDS:
            expected = (dense_of(data, kind) @ H)[ids]
            torch.testing.assert_close(graph.matrix(kind) @ H[ids], expected, rtol=1e-4, atol=1e-5)
        check_edges(graph, data)
        mask = ids % 3 > 0
        part, kept = graph.subgraph(mask), torch.arange(N) % 3 > 0
        stays = kept[data.edge_index].all(0)
        assert part.num_edges == int(stays.sum())
        data.edge_index = data.edge_index[:, stays]
        data.edge_weight = data.edge_weight[stays] if weighted else None
        data.edge_attr = data.edge_attr[stays]
        for kind in ("row", "none", "loops"):
            expected = (dense_of(data, kind) @ H)[ids[mask]]
            found = part.matrix(kind) @ H[ids[mask]]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="symmetrise: edges of this graph have attributes"):
        spgnn.distribute(data, symmetrise=True)


def check_edges(graph: DistGraph, data) -> None:
    """Local edges are those that end here, in the order of the source for each destination."""
    assert graph.edge_index.dtype == torch.int64
    sources, destinations = graph.edge_index
    ids = graph.vertex_ids
    original = torch.stack((graph.halo(ids)[sources], ids[destinations]))
    assert bool((destinations.diff() >= 0).all())
    for row, vertex in enumerate(ids.tolist()):
        mine, theirs = destinations == row, data.edge_index[1] == vertex
        assert torch.equal(original[0, mine], data.edge_index[0, theirs]), vertex
        for name in ("edge_weight", "edge_attr"):
            expected = getattr(data, name)
            if expected is None:
                assert getattr(graph, name) is None
            else:
                assert torch.equal(getattr(graph, name)[mine], expected[theirs]), name


def test_repeated_edges_count_as_often_as_in_pyg():
    run_ranks(check_repeated, 4)


def check_plain_edges(rank: int) -> None:
    for weighted in (False, True):
        data = multigraph(weighted=weighted, repeated=False)
        check_edges(spgnn.distribute(data), data)
        # Sorted by destination: an LSTM could take the edges in turn.
        data = sorted_by(multigraph(weighted=weighted, repeated=False, attr=False), (1,))
        check_edges(spgnn.distribute(data), data)
        # Not sorted, or a graph of ours: sources rise, as its matrix has them.
        data = multigraph(weighted=weighted, repeated=False, attr=False)
        expected = sorted_by(data, (0, 1))
        check_edges(spgnn.distribute(data), expected)
        check_edges(spgnn.distribute(from_pyg(data)), expected)


def sorted_by(data: Any, rows: tuple[int, ...]) -> Any:
    """The same with edges sorted by destination, or also by source."""
    order = np.lexsort([data.edge_index[row].numpy() for row in rows])
    data = copy.copy(data)
    data.edge_index = data.edge_index[:, order]
    data.edge_weight = None if data.edge_weight is None else data.edge_weight[order]
    return data


@pytest.mark.parametrize("ranks", [1, 4])
def test_edges_are_those_of_own_vertices(ranks):
    run_ranks(check_plain_edges, ranks)


def check_halo(rank: int) -> None:
    data = multigraph(weighted=False, repeated=True)
    # A part without vertices, and one with a single one.
    labels = np.where(np.arange(N) == 5, 2, np.where(np.arange(N) % 3 == 0, 0, 3))
    graph = spgnn.distribute(data, partition=labels)
    assert graph.own_rows == int((labels == rank).sum())
    ids = graph.vertex_ids
    around = graph.halo(ids)
    assert len(around) == graph.halo_rows > graph.own_rows
    received = graph.own_rows + graph.halo_matrix().volume.receive
    for shape in ((), (4,), (2, 3), (0,), (1, 2, 2)):
        for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.uint8):
            whole = (100 * torch.rand(N, *shape, generator=seeded())).to(dtype)
            found = graph.halo(whole[ids])
            assert found.dtype == dtype
            assert torch.equal(found[:received], whole[around[:received]])
            assert not found[received:].any()
    for wrong in (torch.tensor(1.0), "x"):
        with pytest.raises(InputError, match="a halo is of a tensor"):
            graph.halo(wrong)
    with pytest.raises(InputError, match="the rank holds"):
        graph.halo(torch.zeros(graph.own_rows + 1, 2))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_the_halo_of_anything_that_vertices_have():
    run_ranks(check_halo, 4)


def neighbours(edge_index: Tensor, sources: Tensor, own: Tensor) -> Tensor:
    """A function of sources and destinations that is far from linear."""
    row, column = edge_index
    messages = torch.tanh(sources[row] * own[column]) * sources[row]
    return torch.zeros_like(own).index_add(0, column, messages)


def check_second_derivatives(rank: int, tracked: bool) -> None:
    data = multigraph(weighted=False, repeated=True)
    whole = torch.randn(N, 3, generator=seeded(), dtype=torch.float64)
    directions = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def derivatives(x: Tensor, total, edge_index, halo) -> tuple[Tensor, Tensor, Tensor]:
        out = neighbours(edge_index, halo(x), x)
        loss = total(out.pow(3).sum(1))
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss, first, out

    x = whole.clone().requires_grad_()
    loss, first, _ = derivatives(x, lambda t: t.sum(), data.edge_index, lambda t: t)
    (second,) = torch.autograd.grad((first * directions).sum(), x)

    graph = spgnn.distribute(data if rank == 0 else None)
    ids = graph.vertex_ids
    mine = whole[ids].requires_grad_()
    found = derivatives(
        mine,
        lambda t: t.sum(),  # this rank's share: the adjoint adds up what all ranks make of a row
        graph.edge_index,
        (lambda t: t) if tracked else graph.halo,
    )
    torch.testing.assert_close(graph.sum(found[0]), loss)
    torch.testing.assert_close(found[1], first[ids])
    (again,) = torch.autograd.grad((found[1] * directions[ids]).sum(), mine)
    torch.testing.assert_close(again, second[ids])


@pytest.mark.parametrize("tracked", [False, True])
def test_second_derivatives_through_the_halo(tracked):
    run_ranks(check_second_derivatives, 4, tracked)


def check_sums(rank: int) -> None:
    data = multigraph(weighted=False, repeated=False)
    graph = spgnn.distribute(data)
    ids, mask = graph.vertex_ids, data.train_mask
    whole = torch.randn(N, 3, generator=seeded(), dtype=torch.float64)
    t = whole[ids].requires_grad_()
    torch.testing.assert_close(graph.sum(t), whole.sum(0))
    torch.testing.assert_close(graph.sum(t, mask[ids]), whole[mask].sum(0))
    torch.testing.assert_close(graph.mean(t), whole.mean(0))
    torch.testing.assert_close(graph.mean(t[:, 0], mask[ids]), whole[mask, 0].mean())
    assert graph.sum(torch.tensor(rank)) == 6
    assert graph.sum(whole[ids, 0] > 0) == int((whole[:, 0] > 0).sum())
    torch.testing.assert_close(graph.mean(whole[ids, 0] > 0), (whole[:, 0] > 0).float().mean())
    assert graph.mean(t, torch.zeros_like(mask[ids])).isnan().all()
    # The same number on all ranks, of which each asks for its derivative.
    loss = graph.mean(t.square(), mask[ids]).sum()
    (found,) = torch.autograd.grad(loss, t)
    expected = 2 * whole * mask[:, None] / int(mask.sum())
    torch.testing.assert_close(found / graph.comm.size, expected[ids])
    for wrong, words in (
        ((t[:-1],), "vertices, the tensor has"),
        ((graph.halo(t.detach()),), "these are rows of the halo"),
        ((t, mask[ids].float()), "a mask must be bool"),
        ((t, mask[ids][:-1]), "a mask must be bool"),
    ):
        with pytest.raises(InputError, match=words):
            graph.sum(*wrong)
    with pytest.raises(InputError, match="got a scalar"):
        graph.mean(torch.tensor(1.0))


def test_sums_and_means_over_all_vertices():
    run_ranks(check_sums, 4)


def check_rows(rank: int) -> None:
    graph = spgnn.distribute(multigraph(weighted=False, repeated=False))
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        whole = (10 * torch.rand(N, 2, generator=seeded())).to(dtype)
        own = graph.scatter(whole if rank == 0 else None)
        assert torch.equal(own, whole[graph.vertex_ids])
        found = graph.gather(own)
        assert (found is None) == (rank > 0)
        assert found is None or torch.equal(found, whole)
    with pytest.raises(InputError, match=rf"rank 0 must give a tensor \[{N}, …\], got \[3\]"):
        graph.scatter(torch.zeros(3))
    with pytest.raises(InputError, match="do not agree on width of graph"):
        graph.gather(torch.zeros(graph.own_rows, 1 + rank))
    with pytest.raises(InputError, match="do not agree on one_row_a_vertex"):
        graph.gather(torch.zeros(graph.own_rows + (rank == 1), 1))


def test_rows_go_to_their_owners_and_come_back():
    run_ranks(check_rows, 3)


def check_drawn_anew(graph: DistGraph, model: nn.ModuleDict) -> None:
    """By every rank for itself, as dropout of torch leaves generators: said, not averaged over."""
    torch.manual_seed(graph.comm.rank)
    model["b"].reset_parameters()
    model["b"](torch.ones(1, 2)).sum().backward()
    with pytest.raises(InputError, match=r"ranks hold different b\.weight .*call graph\.replicate"):
        graph.average_gradients(model)
    alone = graph.synchronise(nn.Linear(2, 2))
    alone.reset_parameters()
    total = alone(torch.ones(1, 2)).sum()
    with pytest.raises(InputError, match=r"ranks hold different weight .*call graph\.replicate"):
        total.backward()
    graph.replicate(model)
    graph.average_gradients(model)


def check_gradients(rank: int) -> None:
    graph = spgnn.distribute(multigraph(weighted=False, repeated=False))
    torch.manual_seed(rank)
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2), "c": nn.Linear(2, 2)})
    with pytest.raises(InputError, match=r"do not agree on a\.bias .*graph\.replicate\(model\)"):
        graph.average_gradients(model)
    assert graph.replicate(model) is model
    expected = nn.ModuleDict({"a": nn.Linear(2, 2)})
    torch.manual_seed(0)
    expected = nn.Linear(2, 2)
    assert torch.equal(model["a"].weight, expected.weight)
    model["a"](torch.full((1, 2), float(rank))).sum().backward()
    if rank == 1:  # alone
        model["b"](torch.ones(1, 2)).sum().backward()
    model["a"].bias.requires_grad_(False)
    graph.average_gradients(model)
    assert torch.equal(model["a"].weight.grad, torch.ones(2, 2))  # of 0, 1 and 2
    torch.testing.assert_close(model["b"].weight.grad, torch.full((2, 2), 1 / 3))
    assert model["c"].weight.grad is None
    check_drawn_anew(graph, model)
    wrong = nn.Linear(2, 2 + (rank == 2))
    with pytest.raises(InputError, match=r"do not agree on bias of the model \(and on weight\)"):
        graph.average_gradients(wrong)
    with pytest.raises(InputError, match=r"do not agree on 2\.bias of the model"):
        graph.replicate(nn.Sequential(*(nn.Linear(1, 1) for _ in range(2 + (rank == 1)))))
    with pytest.raises(InputError, match="do not agree on weight of the model"):
        graph.replicate(nn.Linear(2, 2, bias=False).requires_grad_(rank > 0))
    with pytest.raises(InputError, match="has no shape yet"):
        graph.replicate(nn.LazyLinear(2))
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module, got list"):
        graph.average_gradients(list(model.parameters()))
    batch = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    for act in (graph.replicate, graph.average_gradients):
        with pytest.raises(InputError, match=r"1 \(BatchNorm1d\) looks at all vertices at once"):
            act(batch)
    graph.replicate(batch.eval())
    graph.average_gradients(batch)
    with pytest.raises(InputError, match=r"1 \(BatchNorm1d\) looks at all vertices at once"):
        graph.average_gradients(batch.train())
    geometric = pytest.importorskip("torch_geometric.nn")
    for norm in (geometric.GraphNorm(2), geometric.BatchNorm(2), geometric.LayerNorm(2)):
        with pytest.raises(InputError, match="looks at all vertices at once"):
            graph.replicate(norm)
    graph.replicate(geometric.LayerNorm(2, mode="node"))


def test_gradients_are_averaged_and_models_compared():
    run_ranks(check_gradients, 3)


def check_open_cover(rank: int) -> None:
    """Products and halos of one graph, each by a plan that is built where it is asked for."""
    data = multigraph(weighted=True, repeated=False)
    labels = np.arange(N) % 4
    graph, by_rows = (
        spgnn.distribute(data, partition=labels, cover=cover) for cover in ("auto", "column")
    )
    ids, comm, H = graph.vertex_ids, graph.comm, torch.randn(N, 3, generator=seeded())
    ends, matrices = H[ids], graph._matrices

    def check(A: Any, dense: Tensor) -> None:
        expected = (dense @ H.to(dense.dtype))[ids]
        mine = ends.to(dense.dtype)
        rows = torch.from_numpy(A.local_matrix().to_scipy().toarray())
        for made in (A @ mine, rows @ A.halo(mine)):
            torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)

    layer, attends = snn.GCNConv(3, 2), snn.GATConv(3, 2)
    for one in (layer, attends):
        graph.replicate(one)
        torch.testing.assert_close(one(ends, graph), one(ends, by_rows), rtol=1e-4, atol=1e-5)
    assert set(matrices._multiplied) == {"sym"}
    assert {kind for kind, _ in matrices._built} == {"loops"}  # of attention
    assert torch.equal(graph.halo(ids), by_rows.halo(ids))
    assert set(matrices._multiplied) == {"sym"}
    A = graph.matrix("sym")
    check(A, dense_of(data, "sym"))
    rows = by_rows.matrix("sym")
    assert A.with_halo is graph.halo_matrix("sym")
    assert A.with_halo.volume.send == rows.volume.send
    assert comm.agree(A.volume.send, "sum") < comm.agree(rows.volume.send, "sum")
    assert graph.halo_rows == by_rows.halo_rows
    assert torch.equal(graph.local_edge_index, by_rows.local_edge_index)
    assert torch.equal(graph.edge_attr, by_rows.edge_attr)
    check(copy.deepcopy(A), dense_of(data, "sym"))
    double = A.to(torch.float64)
    check(double, dense_of(data, "sym").double())
    some = ids % 3 > 0
    sub, subrows = graph.subgraph(some), by_rows.subgraph(some)
    torch.testing.assert_close(sub.A @ ends[some], subrows.A @ ends[some], rtol=1e-4, atol=1e-5)
    assert torch.equal(sub.halo(ends[some]), subrows.halo(ends[some]))
    graph.to(torch.float64)
    graph.release()
    assert torch.equal(graph.A.halo(ends.double()), by_rows.A.halo(ends).double())
    mean = graph.matrix("none").to(torch.float32)
    assert torch.equal(mean.halo(ends), by_rows.halo(ends))
    again = spgnn.distribute(data, partition=labels)
    by_halo = again.halo_matrix("sym") @ ends
    again.release()
    assert torch.equal(again.matrix("sym") @ ends, by_halo)  # the one that is left multiplies


def test_products_and_halos_have_plans_of_their_own():
    run_ranks(check_open_cover, 4)


def check_refusals(rank: int) -> list[str]:
    """Only rank 1 has something to refuse; afterwards all go on."""
    graph = spgnn.distribute(sources_of_edges(), partition=[0, 0, 1, 1])
    edges = graph.edge_index.shape[1]
    x, odd = graph.x, rank == 1
    attr = torch.rand(edges, 3)
    wrong = attr[1:] if odd else attr
    found = []
    for call in (
        lambda: snn.GATConv(2, 2, edge_dim=3)(x, graph, wrong),
        lambda: snn.GINEConv(nn.Linear(2, 2), edge_dim=3)(x, graph, wrong),
        lambda: snn.TransformerConv(2, 2, edge_dim=3)(x, graph, wrong),
        lambda: snn.GCNConv(2, 2)(x.long() if odd else x, graph),
        lambda: graph.mean(x[1:] if odd else x),
        lambda: graph.sum(x, torch.ones(1, dtype=torch.bool) if odd else None),
        lambda: graph.halo(torch.zeros(graph.own_rows, *((2, 3) if odd else (3, 2)))),
        lambda: graph.halo(x.long() if odd else x),
    ):
        with pytest.raises(InputError) as refused:
            call()
        found.append(str(refused.value))
        assert graph.comm.agree(1, "sum") == 2
    return found


def sources_of_edges() -> Data:
    index = torch.tensor([[0, 1, 2, 3, 1, 2], [1, 0, 3, 2, 2, 1]])
    return Data(x=torch.rand(4, 2), edge_index=index, num_nodes=4)


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_what_one_rank_refuses_all_do(backend):
    words = ("edge", "edge", "edge", "floating", "rows", "mask")
    words += ("width of", "dtype of")
    for lines in run_ranks(check_refusals, 2, backend=backend):
        for line, part in zip(lines, words, strict=True):
            assert part in line


def of_default_device(rank: int, device: str) -> list[float]:
    """A short training, by hand and by the trainer, and another matrix."""
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    pairs = torch.randperm(900, generator=draw)[:120]
    data = Data(
        x=torch.rand(30, 5, generator=draw),
        edge_index=torch.stack((pairs // 30, pairs % 30)),
        y=torch.randint(0, 3, (30,), generator=draw),
        train_mask=torch.arange(30) % 2 == 0,
        val_mask=torch.arange(30) % 2 == 1,
    )
    model, more = snn.GraphSAGE(5, 8, num_layers=2, out_channels=3), torch.zeros(2, 1).long()
    torch.set_default_device(device)
    graph, comm = spgnn.distribute(data, algo="1d"), connect()
    graph.replicate(model)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(2):
        loss = graph.mean(F.cross_entropy(model(graph.x, graph), graph.y, reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        graph.average_gradients(model)
        optimizer.step()
        found.append(loss.item())
    trainer = spgnn.Trainer(model, graph, optimizer=torch.optim.Adam, lr=0.01)
    found.append(trainer.fit(epochs=2)[-1]["loss"])
    found.append(float(graph.sum(spgnn.infer(model, graph).sum())))
    source, target = graph.pairs(data.edge_index)
    found.append(float(graph.sum((graph.x[source] * graph.x[target]).sum())))
    found.append(float(graph.all_gather(graph.x).sum()))
    found.append(float(graph.A.aslinearoperator().matvec(np.ones(30)).sum()))
    for how in ({"cover": "minimum"}, {"algo": "vertex-cut"}, {"algo": "2d"}):
        other = spgnn.distribute(data, **how)
        found.append(float(other.sum((other.matrix("sym") @ other.x).sum())))
    rows = graph.gather(graph.scatter(data.x))
    assert rows is None or torch.equal(rows, data.x)
    owner = np.arange(6) % comm.size
    own = np.flatnonzero(owner == rank)
    halo = spgnn.Halo.build(torch.from_numpy(np.stack(((own + 1) % 6, own))), owner, comm)
    ones = more.new_ones(len(own), 2).float()
    assert (halo.matrix(cover="minimum") @ ones).sum() == halo(ones)[halo.local_edge_index[0]].sum()
    assert torch.get_default_device().type == device
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_default_device_of_a_program_is_its_own(ranks):
    on_cpu, on_meta = (run_ranks(of_default_device, ranks, device) for device in ("cpu", "meta"))
    assert on_cpu == on_meta
