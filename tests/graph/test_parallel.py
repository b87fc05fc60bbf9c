"""Whole scripts and models on ranks: gradients averaged by us or by DDP, and the example."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import runpy
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import spgnn
from spgnn import InputError
from spgnn.testing import run_ranks
from tests.comm.jobs import MPIEXEC, ROOT
from tests.graph.pyg_like import N, multigraph
from tests.graph.table import EXAMPLES

geometric = pytest.importorskip("torch_geometric.nn")
EPOCHS = 4


def problem() -> tuple[Any, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    data = multigraph(weighted=False, repeated=True)
    return data, torch.randn(N, 6, generator=draw), torch.randint(0, 3, (N,), generator=draw)


def model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return geometric.Sequential(
        "x, edges",
        [
            (geometric.SAGEConv(6, 8, aggr="lstm", project=True), "x, edges -> x"),
            nn.LayerNorm(8),
            nn.ReLU(),
            (geometric.GCNConv(8, 8), "x, edges -> x"),
            nn.ReLU(),
            (geometric.GATConv(8, 3, heads=2, concat=False), "x, edges -> x"),
        ],
    )


def trained(network: nn.Module, x: Tensor, edge_index: Tensor, loss_of, average) -> list[Tensor]:
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss_of(network(x, edge_index)).backward()
        average(network)
        optimizer.step()
    return [p.grad.clone() for p in network.parameters()]


def check_gradients(rank: int, way: str) -> None:
    data, x, y = problem()
    mask = data.train_mask
    # LSTMs want edges sorted by destination.
    order = data.edge_index[1].argsort(stable=True)
    data.edge_index, data.edge_attr = data.edge_index[:, order], None
    data.x, data.y = x, y
    expected = trained(
        model(0),
        x,
        data.edge_index,
        lambda out: F.cross_entropy(out[mask], y[mask]),
        lambda network: None,
    )
    network = model(rank)  # rank 0's counts
    graph = spgnn.distribute(data, model=network if way == "synchronise" else None)
    if way != "synchronise":
        graph.replicate(network)
    average = graph.average_gradients if way == "average" else lambda network: None
    if way == "ddp":
        network = DistributedDataParallel(network)
    gradients = trained(
        network,
        graph.x,
        graph.edge_index,
        lambda out: graph.mean(F.cross_entropy(out, graph.y, reduction="none"), graph.train_mask),
        average,
    )
    for found, right in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-6)
    if way == "synchronise":
        # Gradients that are accumulated are averaged as well; copies and pickles are on their own.
        for loss in (graph.mean(network(graph.x, graph.edge_index)).sum() for _ in range(2)):
            loss.backward()
        twin = copy.deepcopy(network)
        pickle.loads(pickle.dumps(twin.state_dict()))
        before = graph.comm.ledger.copy()
        sum(p.sum() for p in twin.parameters()).backward()
        assert not graph.comm.ledger.since(before).operations


@pytest.mark.parametrize("way", ["synchronise", "average", "ddp"])
def test_gradients_are_those_of_one_process(way):
    run_ranks(check_gradients, 3, way)


def check_unpadded(rank: int) -> None:
    data, _, _ = problem()
    graph = spgnn.distribute(data)
    with pytest.raises(InputError, match=r"LSTMAggregation\) pads neighbours .*graph\.replicate"):
        graph.average_gradients(model(0))


def test_an_lstm_has_to_know_the_largest_number_of_neighbours():
    run_ranks(check_unpadded, 2)


def printed(name: str) -> str:
    """What an example prints, run in this process."""
    argv, out = sys.argv, io.StringIO()
    sys.argv = [name]
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = argv
    return out.getvalue()


def test_the_example_prints_the_same_on_ranks():
    expected = printed("one_process.py")
    assert len(expected.splitlines()) == 5
    assert printed("on_ranks.py") == expected
    first, *others = run_ranks(example_on_rank, 3)
    assert first == expected
    assert others == ["", ""]


def example_on_rank(rank: int) -> str:
    return printed("on_ranks.py")


LAUNCHERS = {
    "torchrun": [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2"),
    ],
    "mpiexec": [str(MPIEXEC), "-n", "2", sys.executable],
    "alone": [sys.executable],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("mpiexec", marks=pytest.mark.mpi), "alone"]
)
def test_the_example_under_a_launcher(launcher):
    if launcher == "mpiexec" and not MPIEXEC.exists():
        pytest.skip("needs the extra 'mpi'")
    command = [*LAUNCHERS[launcher], str(EXAMPLES / "on_ranks.py")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == printed("one_process.py")
