"""PyG's convolutions on ranks give what they give on one process: losses and all gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch_geometric import nn as g
from torch_geometric.nn import conv as every_convolution

import spgnn
from spgnn import InputError
from spgnn.testing import run_ranks
from tests.graph.convolutions import IN, OUT, convolutions, data
from tests.graph.table import DOCUMENT, in_document
from tests.graph.train_convolutions import TOLERANCE, Course, all_on_ranks, by_pyg, difference

# Some classes of PyG warn of what they will be called.
pytestmark = pytest.mark.filterwarnings("ignore")

TRIED = [one for one in convolutions() if one.make is not None]
CASES = [
    pytest.param(one, way, id=f"{one.name}-{name}")
    for one in TRIED
    for way, (name, why) in enumerate((("halo", one.pair), ("edges", one.alone)))
    if not why
]


def courses(ranks: int, epochs: int) -> tuple[dict[str, Course], list]:
    """All of them at once: one start of ranks, which share what PyG generates here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {one.name: by_pyg(one, epochs) for one in TRIED}
        return expected, run_ranks(all_on_ranks, ranks, epochs)


@pytest.fixture(scope="module")
def two_epochs():
    return courses(ranks=3, epochs=2)


@pytest.fixture(scope="module")
def twenty_epochs():
    return courses(ranks=4, epochs=20)


def check(one, way: int, courses: tuple[dict[str, Course], list]) -> None:
    expected, found = courses
    for course in (results[one.name][way] for results in found):
        assert not course.error
        assert len(course.losses) == len(expected[one.name].losses)
        assert difference(course, expected[one.name]) <= TOLERANCE


@pytest.mark.parametrize(("one", "way"), CASES)
def test_a_convolution_on_ranks_is_that_of_one_process(one, way, two_epochs):
    check(one, way, two_epochs)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "way"), CASES)
def test_twenty_epochs_on_four_ranks(one, way, twenty_epochs):
    check(one, way, twenty_epochs)


def test_every_convolution_of_pyg_was_tried():
    kinds = {one.kind for one in convolutions()}
    assert kinds == set(every_convolution.__all__) - {"MessagePassing"}
    for way in ("pair", "alone"):
        working = {one.kind for one in TRIED if not getattr(one, way)}
        assert len(working) >= 25, way


def test_the_table_is_current():
    """``python -m tests.graph.table`` writes it."""
    assert Path(DOCUMENT).read_text() == in_document()


def refusals() -> Iterator[tuple[torch.nn.Module, object, str]]:
    """Modules that would be wrong on ranks, how they are called, and what is said."""
    relation = "v", "to", "v"
    other = "v", "from", "v"

    def typed(conv, graph):
        return conv({"v": graph.x}, {relation: graph.edge_index, other: graph.edge_index})["v"]

    def plain(conv, graph):
        return conv(graph.x, graph.edge_index)

    yield (
        g.HGTConv(IN, OUT, (["v"], [relation, other]), heads=2),
        typed,
        r"HGTConv.*, which numbers all types anew: take spgnn\.nn\.HGTConv",
    )
    yield torch.nn.Identity(), degrees_of_the_halo, "scatter_add of the sources of a distributed"
    yield g.WLConv(), lambda conv, graph: conv(graph.attributes["kind"], graph.edge_index), "of the"
    yield g.SuperGATConv(IN, OUT), plain, "mul of the sources of a distributed graph"
    yield g.GraphConv(IN, OUT, aggr="max", flow="target_to_source"), plain, "scatter_reduce_ of the"
    yield g.GPSConv(IN, g.GCNConv(IN, IN), norm=None), None, "GPSConv.* looks at all vertices"
    yield g.HANConv(IN, OUT, (["v"], [relation, other])), None, "HANConv.* looks at all vertices"
    yield g.GENConv(IN, OUT), None, "BatchNorm1d.* looks at all vertices at once"
    for module in (
        g.GraphSizeNorm(),
        g.HeteroBatchNorm(IN, 2),
        g.SAGEConv(IN, OUT, aggr=g.EquilibriumAggregation(IN, IN, [4], 1)),
        g.TopKPooling(IN),
        g.attention.PolynormerAttention(IN, 2),
        g.SGFormer(IN, 8, OUT),
        g.DeepGraphInfomax(OUT, g.GCNConv(IN, OUT), None, None),
        g.CorrectAndSmooth(2, 0.5, 2, 0.5),
        type("XConv", (torch.nn.Module,), {"__module__": g.XConv.__module__})(),
    ):
        yield module, None, "looks at all vertices at once"
    for module in (g.ChebConv(IN, OUT, 2, normalization=None), g.LCMAggregation(IN, IN)):
        yield module, None, r"call graph\.replicate\(model\) before the first epoch"

    def replicated(conv, graph):
        return graph.replicate(conv)(graph.x, graph.edge_index)

    yield g.ChebConv(IN, OUT, 2, normalization=None), replicated, "give lambda_max, the same on all"


def degrees_of_the_halo(module, graph):
    """Of which every rank would see a part."""
    ones = torch.ones(graph.edge_index.shape[1])
    return torch.zeros(graph.halo_rows).scatter_add(0, graph.edge_index[0], ones)


def check_refused(rank: int) -> int:
    graph = spgnn.distribute(data() if rank == 0 else None, imbalance=0.3)
    checked = 0
    for module, call, words in refusals():
        act = graph.average_gradients if call is None else partial(call, graph=graph)
        with pytest.raises(InputError, match=words):
            act(module)
        checked += 1
        graph.comm.barrier()
    return checked


def test_what_would_be_wrong_is_refused():
    assert run_ranks(check_refused, 3) == [20] * 3


def check_misused(rank: int) -> None:
    """The halo's rows taken for own rows, or own rows where plain numbers are of the halo."""
    graph = spgnn.distribute(data(), imbalance=0.3)
    assert graph.halo_rows > graph.own_rows
    conv = g.GCNConv(IN, OUT)
    with pytest.raises(InputError, match=r"scatter_add_ of the sources|the tensor has"):
        graph.mean(conv(graph.halo(graph.x), graph.edge_index), graph.train_mask)
    out = conv(graph.halo(graph.x), graph.local_edge_index)
    with pytest.raises(InputError, match=r"vertices, the tensor has \d+ rows; these are rows of"):
        graph.mean(out, graph.train_mask)
    with pytest.raises(IndexError, match=r"larger than|out of bounds"):
        conv(graph.x, graph.local_edge_index)
    with pytest.raises(InputError, match=r"rows at the sources of edges are taken of a tensor"):
        graph.x[:-1][graph.edge_index[0]]


def test_rows_of_the_halo_are_not_taken_for_own_rows():
    run_ranks(check_misused, 3)


HALVES = [
    lambda: g.GCNConv(IN, OUT),
    lambda: g.SAGEConv(IN, OUT, aggr="max"),
    lambda: g.GATConv(IN, OUT),
    lambda: g.TransformerConv(IN, OUT),
    lambda: g.GINConv(torch.nn.Linear(IN, OUT)),
]
OF_OURS = [
    lambda: spgnn.nn.GCNConv(IN, OUT),
    lambda: spgnn.nn.SAGEConv(IN, OUT),
    lambda: spgnn.nn.SAGEConv(IN, OUT, aggr="max"),
    lambda: spgnn.nn.TAGConv(IN, OUT),
    lambda: spgnn.nn.GCN2Conv(IN, 0.1, 0.5, 1),
    lambda: spgnn.nn.GINConv(torch.nn.Linear(IN, OUT)),
]


def check_halves(rank: int) -> None:
    """Gradients under autocast are near those of one process in float32. Collective."""
    whole = data()
    graph = spgnn.distribute(whole, partition="random", comm=spgnn.connect())

    def gradients(layer: torch.nn.Module, out: torch.Tensor) -> dict[str, torch.Tensor]:
        layer.zero_grad()
        graph.mean(out.float().square().sum(1)).backward()
        graph.average_gradients(layer)
        # Of `lin_key.bias` there is none: it adds the same to all scores of a vertex.
        kept = {n: p for n, p in layer.named_parameters() if n != "lin_key.bias"}
        return {name: p.grad.clone() for name, p in kept.items()}

    for dtype, near in ((torch.float16, 4e-3), (torch.bfloat16, 6e-2)):
        for make in (*HALVES, *OF_OURS):
            layer = graph.replicate(make())
            takes = graph if make in OF_OURS else graph.edge_index
            inputs = (graph.x, graph.x) if isinstance(layer, spgnn.nn.GCN2Conv) else (graph.x,)
            expected = gradients(layer, layer(*inputs, takes))
            with torch.autocast("cpu", dtype):
                out = layer(*inputs, takes)
            for name, found in gradients(layer, out).items():
                apart = (found - expected[name]).abs().max() / expected[name].abs().max()
                assert apart < near, (type(layer), dtype, name, float(apart))


@pytest.mark.parametrize("ranks", [1, 3])
def test_layers_under_autocast(ranks):
    run_ranks(check_halves, ranks)
