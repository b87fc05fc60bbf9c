"""Graphs of several vertex types from a disk: losses and gradients of memory, within a budget."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData

import spgnn
from spgnn import InputError
from spgnn import nn as ours
from spgnn.addons.hetero import HGT, RGAT, RGCN, HeteroChunks
from spgnn.addons.hetero.typed_models import TypedModel
from spgnn.memory import peak_bytes, resident_bytes
from spgnn.testing import run_ranks
from tests.addons.hetero.schemas import hetero

CLASSES = 4


class Mixed(TypedModel):
    """Attention to features of edges, maxima and means; authors keep their rows."""

    def init_conv(self) -> nn.Module:
        convs: dict[Any, Any] = {}
        for number, relation in enumerate(self.edge_types):
            widths, loops = (self.width, self.width), relation[0] == relation[2]
            if relation[2] == "author":
                continue
            convs[relation] = ours.SAGEConv(widths, self.width, aggr=["max", "mean"][number % 2])
            if number % 3 == 0:
                convs[relation] = ours.GATv2Conv(
                    widths, self.width, edge_dim=3, add_self_loops=loops
                )
        return ours.HeteroConv(convs, "mean")


def model_on(graph: Any, kind: type[TypedModel], hidden: int = 8) -> TypedModel:
    """A model of three layers, with dropout."""
    more = {"heads": 2} if kind.attends else {}
    return kind(graph, hidden, 3, CLASSES, dropout=0.2, **more)


def both_ways(
    rank: int, path: str, kinds: tuple[type[TypedModel], ...]
) -> dict[type[TypedModel], Any]:
    """Histories and what was learnt, in memory and in chunks from a disk. Collective."""
    results: dict[type[TypedModel], Any] = {}
    for kind in kinds:
        results[kind] = []
        for disk in (False, True):
            data = hetero("papers")
            if kind is RGCN:  # whose venues are learnt
                del data["venue"].x
                data["venue"].num_nodes = 7
            graph, chunks = spgnn.distribute(data), None
            model = model_on(graph, kind).double()
            if disk:
                chunks = HeteroChunks(graph, spill=path)
                chunks._budget = lambda model: 100_000  # type: ignore[method-assign]
            trainer = spgnn.Trainer(model, graph, lr=0.01, seed=3, forward=chunks)
            history = [epoch["loss"] for epoch in trainer.fit(2)]
            if chunks is None:
                scores = spgnn.infer(model, graph)
            else:
                with torch.no_grad():
                    scores = chunks(model.eval())
                assert len(chunks._steps[0].bounds["paper"]) > 3
                chunks.close()
            parameters = [p.detach() for p in model.parameters()]
            results[kind].append((history, scores, parameters))
    return results


@pytest.mark.parametrize(("ranks", "kinds"), [(1, (HGT, RGCN)), (2, (RGAT, Mixed))])
def test_chunks_from_a_disk_are_exact(tmp_path, ranks, kinds):
    for results in run_ranks(both_ways, ranks, str(tmp_path), kinds):
        for (expected, right, exact), (losses, scores, learnt) in results.values():
            assert losses == pytest.approx(expected, rel=1e-10)
            torch.testing.assert_close(scores, right, rtol=1e-7, atol=1e-9)
            for mine, theirs in zip(learnt, exact, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [RGAT, RGCN, HGT])
def test_a_vertex_without_neighbours_looks_at_itself(kind):
    """Also where no relation starts at its type."""
    data, writes = hetero("papers"), ("author", "writes", "paper")
    for relation in data.edge_types:
        if relation != writes:
            del data[relation]
    alone = int(torch.bincount(data[writes].edge_index[1]).argmin())
    assert alone not in data[writes].edge_index[1]
    graph = spgnn.distribute(data)
    x_dict = {name: x.requires_grad_() for name, x in graph.x_dict.items()}
    model = kind(graph, 32, 2, CLASSES).double()
    (gradient,) = torch.autograd.grad(model(x_dict, graph)[alone].sum(), x_dict["paper"])
    assert gradient.any(1).nonzero().tolist() == [[alone]]


def igb(papers: int, width: int) -> HeteroData:
    """IGB-HET's four vertex types and its relations with their reverses, at some size."""
    drawn = torch.Generator().manual_seed(0)
    sizes = {"paper": papers, "author": papers, "institute": papers // 100, "fos": papers // 20}
    data = HeteroData()
    for name, size in sizes.items():
        data[name].x = torch.randn(size, width, generator=drawn)
    for source, name, target, edges in (
        ("paper", "cites", "paper", 7 * papers),
        ("paper", "written_by", "author", 4 * papers),
        ("author", "affiliated", "institute", papers),
        ("paper", "topic", "fos", 4 * papers),
    ):
        ends = [torch.rand(edges, generator=drawn) ** power for power in (1, 2)]
        index = [(end * sizes[n]).long() for end, n in zip(ends, (source, target), strict=True)]
        data[source, name, target].edge_index = torch.stack(index)
        data[target, f"rev_{name}", source].edge_index = torch.stack(index[::-1])
    data["paper"].y = torch.randint(CLASSES, (papers,), generator=drawn)
    data["paper"].train_mask = torch.rand(papers, generator=drawn) < 0.6
    return data


def rgat_of_igb(rank: int, path: str, memory: int) -> tuple[list[float], int, int]:
    """Losses of RGAT, the memory that may be used, and the most that was. Collective."""
    data = igb(4000, 64)
    graph, chunks = spgnn.distribute(data), None
    model = model_on(graph, RGAT, 64)
    del data
    if memory:
        memory += resident_bytes()
        chunks = HeteroChunks(graph, spill=path, memory=memory)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    trainer = spgnn.Trainer(model, graph, forward=chunks, eval_every=9)
    losses = [epoch["loss"] for epoch in trainer.fit(1)]
    return losses, memory, peak_bytes()


def test_rgat_of_igb_keeps_to_its_memory(tmp_path):
    ((expected, _, _),) = run_ranks(rgat_of_igb, 1, str(tmp_path), 0)
    ((losses, memory, peak),) = run_ranks(rgat_of_igb, 1, str(tmp_path), 160 << 20)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert peak <= memory


def refusals(rank: int, path: str) -> list[tuple[str, str]]:
    """What is refused, and the words of each refusal. Collective."""
    data = hetero("papers")
    graph, covered = spgnn.distribute(data), spgnn.distribute(hetero("papers"), cover="row")
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    chunks, tight = (HeteroChunks(graph, spill=path, memory=m) for m in (None, "2MiB"))

    def of(layer: nn.Module, by: Any = chunks) -> Any:
        class Model(RGCN):
            def init_conv(self) -> nn.Module:
                return layer

        return lambda: by(Model(graph, 8, 1, CLASSES).double())

    def conv(layer: nn.Module, relation: Any = cites) -> nn.Module:
        return ours.HeteroConv({relation: layer})

    cases = [
        (lambda: HeteroChunks(data, spill=path), "is called with x_dict and a distributed"),
        (lambda: HeteroChunks(covered, spill=path), "needs whole rows as they are"),
        (lambda: chunks(conv(ours.SAGEConv((5, 17), 4))), "takes RGAT, RGCN or HGT, got Hetero"),
        (of(ours.HANConv(8, 8, graph.metadata())), "HANConv looks at more than neighbours"),
        (of(conv(ours.APPNP(2, 0.1))), "HeteroConv looks at more than neighbours"),
        (of(conv(ours.CGConv((8, 8), 3, batch_norm=True), writes)), "more than neighbours"),
        (of(conv(ours.GCNConv(8, 8))), "divide by degrees of sources"),
        (of(conv(ours.SAGEConv(8, 8)), tight), "memory: about [0-9]+ MiB are needed"),
    ]
    results = []
    for call, words in cases:
        try:
            results.append((f"no error, but {call()}", words))
        except InputError as error:
            results.append((str(error), words))
    return results


def test_what_chunks_refuse(tmp_path):
    for results in run_ranks(refusals, 2, str(tmp_path)):
        assert [(one, words) for one, words in results if not re.search(words, one)] == []
