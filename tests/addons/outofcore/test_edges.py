"""Layers that look at edges one by one, from a disk: losses and scores are those of memory."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import nn
from spgnn.data import Graph
from spgnn.data.npz import write_npz
from spgnn.data.shards import write_shards
from spgnn.errors import InputError
from spgnn.registry import MODELS
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from tests.addons.outofcore.runs import check_equal, reports, task_of

BASE = {"random_classes": 3, "layers": 2, "hidden": 6, "dtype": "float64", "epochs": 2}
EDGES = {**BASE, "edge_dim": 2}
CASES = [
    {**EDGES, "model": "gine", "dropout": 0.3, "norm": "batch", "residual": True},
    {**EDGES, "model": "gine", "layers": 1, "input_dropout": False},
    {**EDGES, "model": "gat", "heads": 2, "dropout": 0.4, "jk": "cat"},
    {**EDGES, "model": "gatv2", "layers": 3, "heads": 3, "attention_dropout": 0.2},
    {**EDGES, "model": "transformer", "attention_dropout": 0.3, "dropout": 0.2},
    {**EDGES, "model": "crystals", "hidden": 5},
    {**BASE, "model": "unlooped", "random_labels": 0.2, "dropout": 0.2},
    {**BASE, "model": "simplified", "norm": "batch", "residual": True},
    {**BASE, "model": "propagated", "hidden": 5, "dropout": 0.2, "prune": False},
]


class Transformer(nn.Stack):
    """Attention with a skip and without self-loops, by a `forward` of its own."""

    attends, normalisation = True, "none"
    convolution = nn.TransformerConv

    def init_conv(self, f_in, f_out, *, last, attention_dropout=0.0, edge_dim=None):
        return nn.TransformerConv(f_in, f_out, edge_dim=edge_dim, dropout=attention_dropout)


class Crystals(Transformer):
    """Gates of both ends and of the edge; only widths of features fit."""

    def init_conv(self, f_in, f_out, *, last, edge_dim=None, batch_norm=False):
        if last:
            return nn.GATConv(f_in, f_out, edge_dim=edge_dim, add_self_loops=False)
        return nn.CGConv(f_in, edge_dim, batch_norm=batch_norm)


class Unlooped(Transformer):
    """Attention without self-loops, with a skip of its own."""

    def init_conv(self, f_in, f_out, *, last):
        return nn.GATConv(f_in, f_out, add_self_loops=False, residual=True)


class Simplified(nn.Stack):
    """Two products a layer, with nothing between them."""

    normalisation, loops, convolution = "sym", True, nn.SGConv

    def init_conv(self, f_in, f_out, *, last):
        return nn.SGConv(f_in, f_out, K=2)


class Propagated(Simplified):
    """Several products a layer, and rows that go around them; then each with weights of its own."""

    loops = False

    def init_conv(self, f_in, f_out, *, last):
        if last:
            return nn.TAGConv(f_in, f_out, K=2)
        return nn.APPNP(K=3, alpha=0.2, add_self_loops=False)


for model in (Transformer, Crystals, Unlooped, Simplified, Propagated):
    MODELS.add(model.__name__.lower(), model)


@pytest.fixture(scope="module")
def graph():
    """Directed, with self-loops of some vertices, features of edges, and weights."""
    rng = np.random.default_rng(3)
    A = sp.random_array((90, 90), density=0.06, rng=rng, format="lil", dtype=np.float32)
    A[range(0, 90, 4), range(0, 90, 4)] = 1
    A = CSR.from_scipy(A.tocsr())
    x = torch.from_numpy(rng.normal(size=(90, 5)).astype(np.float32))
    attr = torch.from_numpy(rng.normal(size=(A.nnz, 2)).astype(np.float32))
    return Graph("edges", A, True, x=x, edge_attr=attr)


@pytest.fixture(scope="module")
def expected(graph, tmp_path_factory):
    """The file of the graph, and reports of one process that has all rows in memory."""
    path = tmp_path_factory.mktemp("graph") / "edges.npz"
    write_npz(graph, path)
    flags = [{**case, "dataset": str(path)} for case in CASES]
    return path, run_ranks(reports, 1, flags)[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_history_is_that_of_memory(ranks, expected, tmp_path):
    """On one rank in memory, on two from files; bytes read and written are those planned."""
    path, memory = expected
    where = {"chunks": 3} if ranks == 1 else {"chunks": 4, "spill": str(tmp_path)}
    # Where rows are is the same for every model.
    flags = [{**case, **where, "dataset": str(path)} for case in CASES[:: 4 if ranks == 1 else 1]]
    for disk in run_ranks(reports, ranks, flags):
        for one, other in zip(memory[:: 4 if ranks == 1 else 1], disk, strict=True):
            check_equal(one["history"], other["history"])
            assert ("operand" in other["storage"]["on_disk"]) == (ranks > 1)


def test_features_of_edges_in_a_directory(graph, expected, tmp_path):
    """They are read with their rows, chunk by chunk; what does not fit says so."""
    write_shards(graph, np.arange(90) % 2, 2, tmp_path / "graph")
    base = {**CASES[0], "dataset": str(tmp_path / "graph")}
    for (disk,) in run_ranks(reports, 2, [{**base, "chunks": 3, "spill": str(tmp_path / "s")}]):
        check_equal(expected[1][0]["history"], disk["history"])
    flags = {**CASES[0], "dataset": str(expected[0]), "edge_dim": 3, "chunks": 2}
    with pytest.raises(InputError, match=r"edges have 2 features.*model.edge-dim=2"):
        task_of(**flags)


def test_repeated_edges_are_those_of_memory(tmp_path):
    """In sums, their adjoints, and attention; self-loops too."""
    rng = np.random.default_rng(1)
    targets, sources = rng.integers(0, 40, (2, 300))
    order = np.lexsort((sources, targets))
    starts = np.append(0, np.cumsum(np.bincount(targets, minlength=40)))
    arrays = torch.from_numpy(starts), torch.from_numpy(sources[order])
    x, attr = (torch.from_numpy(rng.normal(size=s).astype(np.float32)) for s in ((40, 5), (300, 2)))
    graph = Graph("repeated", CSR.of(*arrays, (40, 40)), True, x=x, edge_attr=attr)
    write_shards(graph, None, 2, tmp_path / "graph")
    base = {**BASE, "dataset": str(tmp_path / "graph"), "epochs": 3}
    cases = [{**base, "model": "gcn"}, {**base, "model": "gat", "edge_dim": 2, "heads": 2}]
    disk = {"chunks": 3, "spill": str(tmp_path / "s")}
    for made in run_ranks(reports, 2, [*cases, *({**case, **disk} for case in cases)]):
        for memory, chunked in zip(made[:2], made[2:], strict=True):
            check_equal(memory["history"], chunked["history"])
