"""Whatever is a graph becomes the same graph on ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch.utils.data import Dataset

import spgnn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.data import Graph, from_scipy, write_shards
from spgnn.data.npz import write_npz
from spgnn.graph.distgraph import DistGraph
from spgnn.layout import RowLayout
from spgnn.testing import run_ranks
from tests.matrices import random_matrix

N = 41


def adjacency(weighted: bool) -> sp.csr_array:
    A = random_matrix(N, 0.1, 3, weighted=weighted)
    return A.astype(np.float32) if weighted else A


def graph(weighted: bool = False) -> Graph:
    draw = torch.Generator().manual_seed(1)
    mask = torch.rand(N, generator=draw)
    return from_scipy(
        adjacency(weighted),
        x=torch.randn(N, 5, generator=draw),
        y=torch.randint(0, 3, (N,), generator=draw),
        train_mask=mask < 0.4,
        val_mask=(mask >= 0.4) & (mask < 0.7),
        test_mask=mask >= 0.7,
        name="small",
    )


def as_pyg(whole: Graph) -> Any:
    rows = torch.arange(N).repeat_interleave(whole.adjacency.row_lengths)
    edge_index = torch.stack((whole.adjacency.indices.long(), rows))
    names = ("x", "y", "train_mask", "val_mask", "test_mask")
    return SimpleNamespace(
        edge_index=edge_index,
        edge_weight=whole.adjacency.values,
        num_nodes=N,
        **{name: getattr(whole, name) for name in names},
    )


def check_same(found: DistGraph, whole: Graph) -> None:
    """Every row is that of its vertex, and the matrix is the adjacency."""
    ids = found.vertex_ids
    assert found.num_nodes == N
    assert found.num_edges == whole.edges
    assert found.num_features == 5
    assert found.num_classes == 3
    for name in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(found, name), getattr(whole, name)[ids]), name
    everyone = found.gather(ids)
    assert everyone is None or torch.equal(everyone, torch.arange(N))
    dense = torch.from_numpy(whole.adjacency.to_scipy().toarray())
    H = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found.A @ H[ids], (dense @ H)[ids])


def check_sources(rank: int, directory: str) -> None:
    comm = connect()
    for weighted in (False, True):
        whole, given = graph(weighted), dict(vars(graph(weighted)))
        beside = {name: given[name] for name in ("x", "y", "train_mask", "val_mask", "test_mask")}
        path = f"{directory}/{weighted}"
        first = rank == 0
        layout = RowLayout.even(N, comm.size)
        own = layout.range(rank)
        sources = {
            "graph": dict(data=whole if first else None),
            "everyone": dict(data=whole),
            "pyg": dict(data=as_pyg(whole) if first else None),
            "scipy": dict(data=adjacency(weighted), **beside),
            "npz": dict(data=f"{path}.npz"),
            "directory": dict(data=Path(path)),
            "parts": dict(data=f"{path}-{comm.size}"),
            "blocks": dict(data=whole.block(*own)),
            "labels": dict(data=whole, partition=np.arange(N) % comm.size),
            "two levels": dict(data=whole, partition="block", node_size=2 if comm.size == 4 else 1),
        }
        for name, arguments in sources.items():
            found = spgnn.distribute(**arguments)
            check_same(found, whole)
            if name == "labels":
                assert set((found.vertex_ids % comm.size).tolist()) == {rank}


@pytest.mark.parametrize("ranks", [1, 4])
def test_every_source_becomes_the_same_graph(tmp_path, ranks):
    for weighted in (False, True):
        whole = graph(weighted)
        write_npz(whole, tmp_path / f"{weighted}.npz")
        write_shards(whole, None, 1, tmp_path / f"{weighted}")
        labels = np.random.default_rng(0).integers(0, ranks, N)
        write_shards(whole, labels, ranks, tmp_path / f"{weighted}-{ranks}")
    run_ranks(check_sources, ranks, str(tmp_path))


class OgbDataset:
    """The few methods that an OGB dataset of either flavour has."""

    name = "ogbn-fake"

    def __init__(self, whole: Graph, pyg: bool) -> None:
        self._whole, self._pyg = whole, pyg

    def __getitem__(self, index: int) -> Any:
        data = as_pyg(self._whole)
        if not self._pyg:
            number = np.arange(data.edge_index.shape[1])[:, None]
            record = {
                "edge_index": data.edge_index.numpy(),
                "node_feat": data.x.numpy(),
                "node_year": np.arange(N)[:, None],
                "edge_feat": number.astype(np.float64),
                "edge_species": number % 3,
                "num_nodes": N,
            }
            return record, data.y.numpy()[:, None]
        geometric = pytest.importorskip("torch_geometric.data")
        return geometric.Data(x=data.x, y=data.y[:, None], edge_index=data.edge_index, num_nodes=N)

    def get_idx_split(self) -> dict[str, Any]:
        masks = zip(("train", "valid", "test"), ("train", "val", "test"), strict=True)
        return {
            theirs: getattr(self._whole, f"{ours}_mask").nonzero()[:, 0] for theirs, ours in masks
        }


def check_ogb(rank: int, pyg: bool) -> None:
    whole = graph()
    found = spgnn.distribute(OgbDataset(whole, pyg) if rank == 0 else None)
    assert found.y.shape == (found.own_rows, 1)  # as every script of theirs expects it
    found.y = found.y.squeeze(1)
    check_same(found, whole)
    if not pyg:
        assert torch.equal(found.node_year[:, 0], found.vertex_ids)
        assert torch.equal(found.edge_species, found.edge_attr.long() % 3)
        assert found.edge_attr.dtype == torch.float64


@pytest.mark.parametrize("pyg", [False, True])
def test_an_ogb_dataset_of_either_flavour(pyg):
    pytest.importorskip("torch_geometric")
    run_ranks(check_ogb, 3, pyg)


def check_more(rank: int) -> None:
    """Sparse features, several splits, labels that are no classes, and what else vertices have."""
    whole = graph()
    words = sp.random_array((N, 30), density=0.1, rng=np.random.default_rng(0), dtype=np.float32)
    masks = torch.rand(N, 4, generator=torch.Generator().manual_seed(2)) < 0.5
    found = spgnn.distribute(adjacency(False), x=words, train_mask=masks, split=2)
    ids = found.vertex_ids
    np.testing.assert_array_equal(found.x.to_scipy().toarray(), words.toarray()[ids])
    assert torch.equal(found.train_mask, masks[ids, 2])
    found = spgnn.distribute(adjacency(False), train_mask=masks, split=None)
    assert torch.equal(found.train_mask, masks[found.vertex_ids])
    geometric = pytest.importorskip("torch_geometric.data")
    data = geometric.Data(
        edge_index=as_pyg(whole).edge_index,
        y=torch.rand(N, 3),
        pos=torch.arange(3.0 * N).reshape(N, 3),
        kind=torch.arange(N),
        name="not of vertices",
        num_nodes=N,
    )
    data.y = torch.arange(2.0 * N).reshape(N, 2) / 7
    found = spgnn.distribute(data if rank == 0 else None)
    assert sorted(found.attributes) == ["kind", "pos"]
    assert torch.equal(found.attributes["pos"], data.pos[found.vertex_ids])
    assert torch.equal(found.attributes["kind"], found.vertex_ids)
    assert torch.equal(found.y, data.y[found.vertex_ids])
    assert found.num_classes == 0


def test_sparse_features_splits_targets_and_attributes():
    pytest.importorskip("torch_geometric")
    run_ranks(check_more, 3)


class SeveralGraphs(Dataset):
    """As PyG's, which have the attributes of what they hold."""

    edge_index = torch.zeros(2, 0)


def check_refused(rank: int) -> None:
    whole, comm = graph(), connect()
    last = rank == comm.size - 1
    block = whole.block(*RowLayout.even(N, comm.size).range(rank))
    wrong = [
        (dict(data=None), "rank 0 has none; it has to hold the graph"),
        (dict(data=None if rank == 0 else whole), r"rank 0 has nothing, rank \d a graph"),
        (dict(data=block if last else whole), r"rank 0 has a graph, rank \d a GraphBlock"),
        (dict(data=whole.block(0, 3)), "the block (begins with row 0|has 41 columns)"),
        (dict(data=3 if last else whole), "data of type int cannot be distributed"),
        (dict(data="no such set"), "no data set 'no such set'"),
        (dict(data=whole, x=whole.x), "x= belongs to a SciPy matrix"),
        (dict(data=block, y=whole.y), "y= belongs to a SciPy matrix"),
        (dict(data=whole, partition="gbv"), "did you mean 'gvb'"),
        (dict(data=whole, partition=np.zeros(3, int)), "3 labels for 41 vertices"),
        (dict(data=whole, seed=rank), "ranks do not agree on seed of distribute: 0 on rank 0"),
        (dict(data=whole, split=1 if last else 0), "ranks do not agree on split"),
        (dict(data=whole, split=3), "split 3 does not exist"),
        ({"data": whole, "cover": "row" if last else "column"}, "do not agree on cover"),
        ({"data": whole, "algo": "1.5d", "c": 2}, "c 2 must divide the number of ranks"),
        *(({"data": whole, "algo": "1.5d", "c": c}, "c must be an integer") for c in (0, "2", 1.5)),
        (dict(data=whole, relays="no"), "relays 'no': choose one of True"),
        (dict(data=whole, groups=3), r"groups \(3,\) need node_size"),
        (dict(data=whole, device="cuda"), "device cuda: these ranks are connected with cpu"),
        (dict(data=whole, model=torch.nn.Linear(2, 2) if last else None), "not agree on model"),
        (dict(data=whole, partition="random" if last else "block"), "rank 0 has block, rank 2 ran"),
        ({"data": whole, "plan": "best"}, "plan best: choose one of auto"),
        ({"data": whole, "memory": "3 GiB"}, 'memory= belongs to plan="auto"'),
        (dict(data=whole, cover="columns"), "cover columns: choose one of column"),
        (dict(data=whole, seed=-1), "seed must be an integer of at least 0"),
        (dict(data=block, symmetrise=True), "symmetrise: blocks are ready-made"),
        (dict(data=SimpleNamespace(edge_index=torch.zeros(3, 2), num_nodes=2)), "edge_index must"),
        (
            dict(data=[whole]),
            r"a list may hold several graphs, and one is distributed: .* data\[0\]",
        ),
        (dict(data=(whole, whole)), "a tuple may hold several graphs"),
        (dict(data=SeveralGraphs()), "a SeveralGraphs may hold several graphs"),
    ]
    for arguments, words in wrong:
        with pytest.raises(InputError, match=words) as caught:
            spgnn.distribute(**arguments)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) <= 300
        comm.barrier()  # nobody is left in a collective


def test_what_is_wrong_is_said_on_all_ranks():
    run_ranks(check_refused, 3)
