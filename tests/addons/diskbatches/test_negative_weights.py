"""Negative degrees are refused wherever rows are normalised; isolated vertices and 0 are not."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import spgnn
from spgnn import InputError, NeighborLoader
from spgnn.__main__ import main as spgnn_main
from spgnn.addons.diskbatches import MiniBatchConfig, VertexBatches, open_dataset
from spgnn.addons.diskbatches import main as minibatch
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.frontend.from_config import training_graph
from spgnn.nn import GCNConv, SGConv
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from tests.comm.jobs import Forked
from tests.train.command import check_refused, without_torch
from tests.training import write_dataset

N, NEGATIVE = 12, 7
WORDS = f"vertex {NEGATIVE} has degree -"


def weights(negative: bool = True) -> sp.csr_array:
    """A ring with weights of both signs: one negative degree, or one that loops make 0."""
    A = np.roll(np.eye(N, dtype=np.float32), 1, axis=1)
    A[0, 5] = -0.25
    A[5] = 0
    A[NEGATIVE, 2] = -9 if negative else -2
    return sp.csr_array(A)


def dataset(folder: Path) -> Path:
    """A file of the same graph."""
    A, rng = weights(), np.random.default_rng(0)
    mask = np.ones(N, bool)
    arrays = {"indptr": A.indptr, "indices": A.indices, "data": A.data, "shape": np.array(A.shape)}
    arrays |= {"x": rng.random((N, 4)).astype(np.float32), "y": np.arange(N) % 2}
    masks = {f"{name}_mask": mask for name in ("train", "val", "test")}
    return write_dataset(folder / "signed.npz", **arrays, **masks)


def refusals(rank: int, path: Path) -> None:
    """Every way to normalise names the vertex, on each rank of several. Collective."""
    comm, x = connect(), torch.rand(N, 4)
    graph = spgnn.distribute(weights(), x=x, partition="random", comm=comm)
    layers = GCNConv(4, 2), GCNConv(4, 2, improved=True), SGConv(4, 2, add_self_loops=False)
    ways = [partial(graph.matrix, kind) for kind in ("sym", "row")]
    ways += [partial(layer, graph.x, graph) for layer in layers]
    for model in ("gcn", "sage"):
        config = TrainConfig.of(dataset=str(path), model=model, partition="random")
        ways.append(partial(training_graph, config, comm))
        sampled = MiniBatchConfig.of(dataset=str(path), model=model, distributed="exact").settled()
        ways += [partial(VertexBatches, sampled, comm), open_dataset(sampled).__enter__]
    for way in ways:
        with pytest.raises(InputError, match=WORDS):
            way()
    graph.matrix("none")
    graph.matrix("loops")


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_rank_names_the_vertex(tmp_path, ranks):
    run_ranks(refusals, ranks, dataset(tmp_path))


@pytest.mark.slow
def test_planners_and_mini_batches_name_it_before_they_begin(tmp_path):
    path = str(dataset(tmp_path))
    commands = [(spgnn_main, ["plan", path, "--ranks", "2", "--partition", "random"])]
    for how, model, ranks in (("none", "gcn", 2), ("exact", "sage", 1)):
        flags = ["--dataset", path, "--num-neighbors", "2,2", "--distributed", how, "--threads=1"]
        commands.append((minibatch, [*flags, f"--nproc={ranks}", f"--model={model}"]))
    for command, flags in commands:
        ended = Forked(lambda command=command, flags=flags: command(flags), tmp_path).wait()
        check_refused(without_torch(ended), WORDS)


def test_a_batch_names_it():
    A = weights()
    given = Graph("signed", CSR.from_scipy(A), directed=True, x=torch.rand(N, 4))
    for normalise in ("graph", "batch"):
        loader = NeighborLoader(
            given, [-1], torch.tensor([NEGATIVE]), batch_size=1, normalise=normalise
        )
        for kind in ("sym", "plain", "improved", "row"):
            block = next(iter(loader)).layers[0]
            with pytest.raises(InputError, match=WORDS):
                block.matrix(kind)
            block.matrix("none")


def check_zero(rank: int) -> None:
    geometric = pytest.importorskip("torch_geometric.nn")
    comm, A = connect(), weights(negative=False).tocoo()
    torch.manual_seed(0)
    x, theirs = torch.rand(N, 4), geometric.GCNConv(4, 2)
    layer = GCNConv(4, 2)
    layer.load_state_dict(theirs.state_dict())
    graph = spgnn.distribute(sp.csr_array(A), x=x, partition="random", comm=comm)
    index = torch.from_numpy(np.stack((A.col, A.row)).astype(np.int64))
    expected = theirs(x, index, torch.from_numpy(A.data))
    assert float(graph.matrix("sym").plan.stages[0].local.row_scale.min()) >= 0
    torch.testing.assert_close(layer(graph.x, graph), expected[graph.vertex_ids])


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_degree_of_zero_is_as_in_pyg(ranks):
    run_ranks(check_zero, ranks)
