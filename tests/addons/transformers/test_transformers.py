"""Models that attend to all vertices, on ranks, against PyG's on one process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.addons.transformers import attention as global_attention
from spgnn.addons.transformers.attention import (
    PerformerAttention,
    PolynormerAttention,
    SGFormerAttention,
    SoftmaxAttention,
)
from spgnn.comm import Communicator, connect
from spgnn.graph import LayerGraph
from spgnn.testing import run_ranks
from tests.pretended_gpu import GPU, pretended_gpu

pyg = pytest.importorskip("torch_geometric.nn")
attention = pytest.importorskip("torch_geometric.nn.attention")
Data = pytest.importorskip("torch_geometric.data").Data

N, WIDTH, CLASSES, HEADS, EPOCHS = 43, 6, 3, 2, 4
RANKS = (1, 2, 4)
MODELS = ("sg", "sg cat", "poly", "poly gat", "poly shared", "gps multihead", "gps performer")
LAYERS = ("sg", "poly", "performer", "softmax")
DROPPED = ("sg", "poly gat", "gps performer")
TRAINED = ("sg", "poly", "gps multihead")


class Net(nn.Module):
    """One GPSConv, and a layer that makes scores."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, graph: Any, *batch: Any) -> Tensor:
        return F.log_softmax(self.last(self.layer(x, graph, *batch)), -1)


def model(name: str, room: Any, dropout: float = 0.0) -> Any:
    """A model of a room, whose parameters are not those it begins with."""
    kind, _, option = name.partition(" ")
    if kind == "sg":
        sizes = (WIDTH, 8, CLASSES, 2, HEADS, dropout, 2, dropout)
        result = room.SGFormer(*sizes, aggregate="cat" if option else "add")
    elif kind == "poly":
        rates = dict.fromkeys(("in_dropout", "dropout", "global_dropout"), dropout)
        shared = option == "shared"
        more = {"local_attn": bool(option), "qk_shared": shared, "pre_ln": shared}
        result = room.Polynormer(WIDTH, 8, CLASSES, 2, 2, **rates, **more)
        result._global = True
    else:
        more = {"attn_kwargs": {"head_channels": 4}} if option == "performer" else {}
        conv = room.GCNConv(WIDTH, WIDTH)
        layer = room.GPSConv(WIDTH, conv, HEADS, dropout, act="prelu", attn_type=option, **more)
        result = Net(layer)
    return stirred(result)


def stirred(module: Any) -> Any:
    """The same in float64, with parameters and random features that no seed gives."""
    generator = torch.Generator().manual_seed(3)
    module.double()
    features = [(k, b) for k, b in module.named_buffers() if k.endswith("projection_matrix")]
    with torch.no_grad():
        for _, tensor in sorted([*module.named_parameters(), *features], key=lambda one: one[0]):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) / 2)
    return module


@contextmanager
def in_double() -> Iterator[None]:
    """PyG's attentions look at torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def layer(name: str, room: Any = None) -> Any:
    """An attention to all vertices, of ours or of PyG's."""
    kinds = {
        "sg": SGFormerAttention,
        "poly": PolynormerAttention,
        "performer": PerformerAttention,
        "softmax": SoftmaxAttention,
    }
    if name == "softmax":
        more = {"batch_first": True} if room else {}
        return stirred((room or kinds[name])(WIDTH, HEADS, **more))
    result = kinds[name] if room is None else getattr(room, kinds[name].__name__)
    return stirred(result(WIDTH, HEADS, 4))


def record(rows: int = N) -> Any:
    """A graph with isolated vertices, numbers as features, and masks."""
    generator = torch.Generator().manual_seed(7)
    edges = torch.randint(0, rows - 2, (2, 4 * rows), generator=generator)
    edges = torch.unique(torch.cat((edges, edges.flip(0)), 1), dim=1)
    x = torch.randn(rows, WIDTH, dtype=torch.float64, generator=generator)
    y = torch.randint(0, CLASSES, (rows,), generator=generator)
    turn = torch.arange(rows) % 3
    masks = {f"{name}_mask": turn == n for n, name in enumerate(("train", "val", "test"))}
    return Data(x=x, edge_index=edges[:, edges[0] != edges[1]], y=y, **masks)


def distributed(data: Any) -> Any:
    graph = spgnn.distribute(data)
    graph.to(torch.float64)
    return graph


def whole(own: Tensor, graph: Any) -> Tensor:
    """All rows, of each rank's own ones. Collective."""
    rows = own.new_zeros(graph.num_nodes, *own.shape[1:])
    rows[graph.vertex_ids] = own.detach()
    graph.comm.all_reduce(rows).wait()
    return rows


def total(own: Tensor | None, comm: Communicator) -> Tensor | None:
    """The sum over ranks; of nothing, nothing."""
    if own is None:
        return None
    result = own.detach().clone()
    comm.all_reduce(result).wait()
    return result


def step(net: Any, graph: Any) -> list[Tensor | None]:
    """The loss, outputs and all gradients of one step, whole, on every rank."""
    x = graph.x.clone().requires_grad_()
    outputs = net.train()(x, graph)
    share = F.nll_loss(outputs, graph.y, reduction="sum") / graph.num_nodes
    of_x, *others = torch.autograd.grad(share, [x, *net.parameters()], allow_unused=True)
    replicated = [total(one, graph.comm) for one in (share, *others)]
    return [*replicated, whole(outputs, graph), whole(of_x, graph)]


def reference_step(name: str, data: Any) -> list[Tensor | None]:
    """The same of PyG's model."""
    net, x = model(name, pyg), data.x.clone().requires_grad_()
    with in_double():
        outputs = net.train()(x, data.edge_index, torch.zeros(len(x), dtype=torch.int64))
    loss = F.nll_loss(outputs, data.y)
    of_x, *others = torch.autograd.grad(loss, [x, *net.parameters()], allow_unused=True)
    return [loss, *others, outputs, of_x]


def second_derivatives(call: Any, layer: nn.Module, x: Tensor, ids: Tensor) -> list[Any]:
    """A gradient of x, and those of its weighted squares: shares of a rank."""
    x = x.clone().requires_grad_()
    rows = call(x)
    scale = torch.arange(1, rows.shape[1] + 1).to(x) * (1 + ids[:, None].double() / N)
    (first,) = torch.autograd.grad((rows.square() * scale).sum(), x, create_graph=True)
    ends = [x, *layer.parameters()]
    return [first, *torch.autograd.grad((first.square() * (2 + ids[:, None])).sum(), ends)]


def reference_derivatives(name: str, data: Any) -> list[Any]:
    theirs = layer(name, nn.MultiheadAttention if name == "softmax" else attention)
    ids = torch.arange(len(data.x))

    def call(x: Tensor) -> Any:
        one = x[None]
        if name == "softmax":
            return theirs(one, one, one, need_weights=False)[0][0]
        return theirs(one, torch.ones(1, len(x), dtype=torch.bool))[0]

    with in_double(), sdpa_kernel(SDPBackend.MATH):
        return second_derivatives(call, theirs, data.x, ids)


def sent(comm: Communicator, call: Any) -> tuple[Any, list[int]]:
    """A result, and the bytes that a rank sends for it: of sums, and of rows."""
    before = comm.ledger.copy()
    result = call()
    moved = comm.ledger.since(before)
    assert set(moved.operations) <= {"all_reduce", "alltoall"}
    return result, [moved.of(each).sent_bytes for each in ("all_reduce", "alltoall")]


def derivatives(name: str, graph: Any) -> list[Any]:
    """First and second derivatives of an attention, whole, and bytes of its two ways."""
    mine, comm = layer(name).to(graph.device), graph.comm
    rows, forward = sent(comm, lambda: mine(graph.x.clone().requires_grad_(), graph))
    _, backward = sent(comm, lambda: rows.sum().backward())
    first, of_x, *others = second_derivatives(
        lambda x: mine(x, graph), mine, graph.x, graph.vertex_ids
    )
    values = [whole(first, graph), whole(of_x, graph), *(total(one, comm) for one in others)]
    return [(graph.own_rows, forward, backward), *values]


def dropped(graph: Any) -> list[Tensor]:
    """Outputs in training with dropout: of the first call and of the second."""
    rows = []
    for name in DROPPED:
        net = model(name, ours, 0.4).train()
        rows += [whole(net(graph.x, graph), graph) for _ in range(2)]
    return rows


def trained(graph: Any) -> list[Any]:
    """Losses of a Trainer, and what `infer` returns then; the last model drops."""
    histories = []
    for name, dropout in (*((name, 0.0) for name in TRAINED), ("sg", 0.4)):
        net = model(name, ours, dropout)
        trainer = spgnn.Trainer(net, graph, optimizer="sgd", lr=0.1, dtype="float64")
        losses = [epoch["loss"] for epoch in trainer.fit(epochs=EPOCHS)]
        histories.append((losses, whole(spgnn.infer(net, graph), graph)))
    return histories


def refused(graph: Any) -> list[str]:
    """The lines of refusals, one at a time, the same on every rank."""
    A, lines = graph.A, []
    half = LayerGraph(A, row_columns=torch.arange(graph.own_rows // 2))
    calls = [
        lambda: layer("sg")(graph.x, half),
        lambda: layer("softmax")(
            graph.x, LayerGraph(A, own_rows=graph.own_rows - (graph.comm.rank == 0))
        ),
        lambda: model("sg", ours)(graph.x, [graph, graph]),
        lambda: model("sg", ours)(graph.x, graph, torch.zeros(graph.own_rows)),
        lambda: model("sg", ours)(spgnn.CSR.from_scipy(csr_matrix(graph.x.numpy())), graph),
    ]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        lines.append(str(error.value))
    return lines


def work(rank: int) -> dict[str, Any]:
    graph = distributed(record())
    return {
        "steps": [step(model(name, ours), graph) for name in MODELS],
        "derivatives": [derivatives(name, graph) for name in LAYERS],
        "dropped": dropped(graph),
        "trained": trained(graph),
        "refused": refused(graph),
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """One process."""
    return work(0)


@pytest.fixture(scope="module", params=RANKS)
def results(request: pytest.FixtureRequest, alone: dict[str, Any]) -> list[dict[str, Any]]:
    """All that each rank computes, of each number of ranks."""
    return [alone] if request.param == 1 else run_ranks(work, request.param)


def check(actual: Any, expected: Any) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            size = float(other.detach().abs().max())  # of which zeros are differences
            torch.testing.assert_close(one, other.detach(), rtol=1e-10, atol=1e-12 * max(1, size))


def test_losses_outputs_and_gradients_are_those_of_pyg(results):
    for number, name in enumerate(MODELS):
        expected = reference_step(name, record())
        for result in results:
            check(result["steps"][number], expected)


def test_so_are_those_of_eight_ranks_that_may_have_no_vertex():
    def steps(rank: int) -> list[list[Any]]:
        graphs = [distributed(record(rows)) for rows in (N, 5)]
        models = [step(model(name, ours), graph) for graph in graphs for name in MODELS]
        return [*models, derivatives("softmax", graphs[1])[1:]]

    expected = [reference_step(name, record(rows)) for rows in (N, 5) for name in MODELS]
    expected.append(reference_derivatives("softmax", record(5)))
    for result in run_ranks(steps, 8):
        for actual, one in zip(result, expected, strict=True):
            check(actual, one)


@pytest.mark.parametrize("number", range(len(LAYERS)), ids=LAYERS)
def test_both_derivatives_of_attention_are_those_of_autograd_on_one_process(results, number):
    expected = reference_derivatives(LAYERS[number], record())
    for result in results:
        check(result["derivatives"][number][1:], expected)


def test_linear_attention_moves_as_many_numbers_as_its_sums_have(results):
    ranks, d = len(results), 4
    ring = 8 * 2 * (ranks - 1) / ranks  # bytes that a rank sends of each number
    for result in results:
        for name, ((_, *ways), *_) in zip(LAYERS[:-1], result["derivatives"][:-1], strict=True):
            features = int(d * math.log(d)) if name == "performer" else d
            numbers = HEADS * features * (d + 1)
            for of_sums, of_rows in ways:
                assert (of_sums, of_rows) == (pytest.approx(ring * numbers, abs=16), 0)


def test_softmax_attention_passes_the_rows_of_all_other_ranks_on(results):
    ways, ranks = [result["derivatives"][-1][0] for result in results], len(results)
    row, sizes = 8 * 2 * WIDTH, [rows for rows, *_ in ways]
    assert sum(sizes) == N
    for rank, (_, (_, forward), (of_sums, backward)) in enumerate(ways):
        next_one = sizes[(rank + 1) % ranks]
        assert forward == row * (N - next_one)
        # Rows again, and gradients of those of others.
        assert backward == forward + row * (N - sizes[rank]) * (ranks > 1)
        assert of_sums == 0


def test_tiles_and_a_device_make_the_same_rows_and_derivatives(alone, monkeypatch):
    monkeypatch.setattr(global_attention, "_TILE", 7 * 7 * HEADS)
    monkeypatch.setattr(connect().job, "device", GPU)
    with pretended_gpu():
        graph = distributed(record())
        for name, (_, *expected) in zip(LAYERS, alone["derivatives"], strict=True):
            check([one.cpu() for one in derivatives(name, graph)[1:]], expected)


def test_softmax_attention_takes_half_precision_and_a_compiler():
    graph, mine = distributed(record()), layer("softmax")
    whole = mine(graph.x, graph)
    torch.testing.assert_close(torch.compile(mine, backend="eager")(graph.x, graph), whole)
    rows = mine.bfloat16()(graph.x.bfloat16(), graph)
    assert rows.dtype == torch.bfloat16
    torch.testing.assert_close(rows.double(), whole, rtol=0.05, atol=0.05)


def test_dropout_is_the_same_on_any_number_of_ranks(results, alone):
    plain = [step(model(name, ours), distributed(record()))[-2] for name in DROPPED]
    losses, _ = alone["trained"][-1]
    assert losses != alone["trained"][0][0]
    for result in results:
        check(result["dropped"], alone["dropped"])
        assert result["trained"][-1][0] == pytest.approx(losses, rel=1e-10)
    for number, name in enumerate(DROPPED):
        first, second = alone["dropped"][2 * number : 2 * number + 2]
        assert not torch.allclose(first, second), name
        assert not torch.allclose(first, plain[number]), name


@pytest.mark.parametrize("branch", ["trans_conv", "graph_conv"])
def test_each_branch_of_sgformer_drops(branch):
    net, graph = model("sg", ours).train(), distributed(record())
    plain = net(graph.x, graph)
    getattr(net, branch).dropout = 0.5
    assert not torch.allclose(net(graph.x, graph), plain)
    torch.testing.assert_close(net.eval()(graph.x, graph), net(graph.x, graph))


def test_trainer_and_infer_are_those_of_pyg(results):
    data, batch = record(), torch.zeros(N, dtype=torch.int64)
    for number, name in enumerate(TRAINED):
        net, losses = model(name, pyg), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            with in_double():
                outputs = net.train()(data.x, data.edge_index, batch)
            loss = F.cross_entropy(outputs[data.train_mask], data.y[data.train_mask])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad(), in_double():
            outputs = net.eval()(data.x, data.edge_index, batch)
        for result in results:
            history, inferred = result["trained"][number]
            assert history == pytest.approx(losses, rel=1e-10)
            torch.testing.assert_close(inferred, outputs, rtol=1e-10, atol=1e-12)


def test_what_leaves_vertices_out_is_refused_in_one_line(results):
    parts = ("leaves some out", "leaves some out", "got a list", "side by side", "dense features")
    for result in results:
        for line, part in zip(result["refused"], parts, strict=True):
            assert part in line
            assert "\n" not in line


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_is_as_pyg_computes_it(name):
    loader = spgnn.NeighborLoader(record(), [3, 2], batch_size=7, shuffle=True)
    theirs, mine = model(name, pyg).train(), model(name, ours).train()
    for batch in loader:
        zeros = torch.zeros(batch.num_nodes, dtype=torch.int64)
        with in_double():
            expected = theirs(batch.x.double(), batch.edge_index, zeros)
        torch.testing.assert_close(mine(batch.x.double(), batch.graph), expected)
        with pytest.raises(InputError, match="leaves some out"):
            layer("sg")(batch.x.double(), batch.layers[-1])


@pytest.mark.parametrize("name", MODELS)
def test_weights_go_both_ways(name):
    theirs, mine = model(name, pyg), model(name, ours)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict({key: 2 * value for key, value in mine.state_dict().items()})
    mine.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(mine.state_dict(), theirs.state_dict())


def test_weights_are_of_the_seed_and_begin_anew():
    one, same, other = (ours.SGFormer(4, 8, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.fc.weight, same.fc.weight)
    assert not torch.equal(one.fc.weight, other.fc.weight)
    kinds = "multihead", "performer"
    layers = (ours.GPSConv(4, ours.GCNConv(4, 4), 2, attn_type=kind) for kind in kinds)
    for module in (one, ours.Polynormer(4, 8, 2), *layers):
        weights = [p for p in module.parameters() if p.dim() > 1]
        values = [p.clone() for p in weights]
        module.reset_parameters()
        assert not any(torch.equal(a, b) for a, b in zip(weights, values, strict=True))


def test_options_that_there_are_not_are_refused():
    with pytest.raises(InputError, match="attn_type"):
        ours.GPSConv(4, None, attn_type="bigbird")
    with pytest.raises(InputError, match=r"attn_kwargs: .*dropout"):
        ours.GPSConv(4, None, attn_kwargs={"dropout": 0.5})
    with pytest.raises(InputError, match="3 do not divide 4"):
        ours.GPSConv(4, None, heads=3)
    with pytest.raises(InputError, match="aggregate"):
        ours.SGFormer(4, 8, 2, aggregate="mean")
