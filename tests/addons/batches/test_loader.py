"""Loaders: what batches are, that nothing changes them, and how loaders end."""

from __future__ import annotations

import copy
import pickle
import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import CSR, InputError
from spgnn import nn as ours
from spgnn.addons.batches import Batch, DiskRows, Draw, NeighborSampler, Sample
from spgnn.data import Graph
from tests.addons.batches.graphs import CLASSES, F_IN, N, directed

X = torch.randn(N, F_IN, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % CLASSES
MASK = torch.arange(N) % 3 > 0


def graph(*, weighted: bool = False, vertex_ids: Tensor | None = None) -> Graph:
    A = CSR.from_scipy(directed(weighted=weighted))
    return Graph("small", A, True, vertex_ids, x=X, y=Y, train_mask=MASK)


def edge_index() -> Tensor:
    """Of the small graph, as PyG lists it."""
    row, column = directed().nonzero()
    return torch.from_numpy(np.stack((column, row))).long()


def told(batch: Batch) -> list[Tensor]:
    """Everything that a batch is."""
    found = [batch.n_id, batch.input_id, batch.edge_index, batch.x, batch.y, batch.train_mask]
    for block in batch.layers:
        found += [block.pattern.indptr, block.pattern.indices, block.vertex_ids]
    return found


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a, b)


def our_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("spgnn-")]


@pytest.mark.parametrize("resample", [False, True])
def test_nothing_changes_a_batch(resample):
    options: dict[str, Any] = {"batch_size": 7, "shuffle": True, "seed": 5, "resample": resample}
    plain = spgnn.NeighborLoader(graph(), [4, 3, 2], "train_mask", num_workers=0, **options)
    wanted = [[told(batch) for batch in plain] for _ in range(2)]
    assert not torch.equal(wanted[0][0][1], wanted[1][0][1])
    for workers, prefetch, superbatch in ((1, 1, 1), (3, 5, 1), (2, 2, 3), (1, 3, 4), (2, 0, 2)):
        loader = spgnn.NeighborLoader(
            graph(),
            [4, 3, 2],
            MASK,
            num_workers=workers,
            prefetch=prefetch,
            superbatch=superbatch,
            **options,
        )
        for epoch in wanted:
            for one, other in zip(epoch, loader, strict=True):
                assert_same(one, told(other))
        assert_same(wanted[1][2], told(loader.sample(1, 2)))
        loader.epoch = 1
        assert_same(wanted[1][0], told(next(iter(loader))))


def test_modules_of_pyg():
    geometric = pytest.importorskip("torch_geometric.nn")
    utils, data = pytest.importorskip("torch_geometric.utils"), pyg_data(repeated=False)
    loader = spgnn.NeighborLoader(data, [-1, -1], data.train_mask, batch_size=6, shuffle=True)
    model = geometric.GCN(F_IN, 6, 2, CLASSES)
    mine = ours.GCN(F_IN, 6, 2, CLASSES)
    mine.load_state_dict(model.state_dict())
    for batch in loader:
        seeds, inner = (
            batch.n_id[: batch.batch_size],
            batch.n_id[: sum(batch.num_sampled_nodes[:2])],
        )
        nodes, _, _, hop = utils.k_hop_subgraph(seeds, 2, data.edge_index, num_nodes=N)
        assert torch.equal(nodes, batch.n_id.sort().values)
        kept = hop & torch.isin(data.edge_index[1], inner)
        # What PyG's own loader finds: all edges that end at vertices of all hops but the last.
        wanted = model(data.x, data.edge_index[:, kept])[seeds]
        made = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-5)
        theirs = batch.pyg()
        assert torch.equal(model(theirs.x, theirs.edge_index)[: theirs.batch_size], made)
        square = mine(batch.x, batch.graph)[: batch.batch_size]
        torch.testing.assert_close(square, wanted, rtol=1e-5, atol=1e-5)
        trimmed = geometric.GraphSAGE(F_IN, 6, 2, CLASSES)
        layered = ours.GraphSAGE(F_IN, 6, 2, CLASSES)
        layered.load_state_dict(trimmed.state_dict())
        wanted = trimmed(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )[: batch.batch_size]
        torch.testing.assert_close(layered(batch.x, batch.layers), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("normalise", ["graph", "batch"])
@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "GCNConv", "SAGEConv"])
def test_of_repeated_self_loops_one_is_left_as_in_pyg(kind, normalise):
    """Vertex 0 has two, 3 has three, 1 has one; an edge that is repeated counts twice."""
    theirs = pytest.importorskip("torch_geometric.nn")
    ends = [[0, 0, 1, 2, 1, 1, 3, 0, 3, 3, 1], [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 0]]
    generator = torch.Generator().manual_seed(1)
    data = pytest.importorskip("torch_geometric.data").Data(
        x=torch.randn(5, 6, generator=generator), edge_index=torch.tensor(ends)
    )
    reference, layer = getattr(theirs, kind)(6, 3), getattr(spgnn.nn, kind)(6, 3)
    layer.load_state_dict(reference.state_dict(), strict=False)
    expected = reference(data.x, data.edge_index)
    for batch in spgnn.NeighborLoader(data, [-1], batch_size=2, normalise=normalise):
        of_all = expected[batch.n_id[: batch.batch_size]]
        if normalise == "batch" and kind == "GCNConv":  # whose sources have lost their edges
            of_all = reference(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(layer(batch.x, batch.layers[0]), of_all)
    data.edge_weight = torch.rand(len(ends[0]), generator=generator)
    (batch, *_) = spgnn.NeighborLoader(data, [-1], batch_size=5, normalise=normalise)
    if kind == "GCNConv":
        with pytest.raises(InputError, match="several self-loops of a vertex, with weights"):
            layer(batch.x, batch.layers[0])


def pyg_data(*, repeated: bool) -> Any:
    data = pytest.importorskip("torch_geometric.data")
    matrix = directed().tocoo()
    edges = torch.from_numpy(np.stack((matrix.col, matrix.row)).astype(np.int64))
    order = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(2))
    if repeated:
        order = torch.cat((order, order[:9]))
    edges = edges[:, order]
    count = edges.shape[1]
    attr = torch.arange(2.0 * count).view(-1, 2)
    return data.Data(
        x=X, edge_index=edges, edge_attr=attr, y=Y, train_mask=MASK, age=torch.arange(N) * 2
    )


def test_features_on_disk_are_read_once_a_superbatch(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(X.numpy().tobytes())
    store = DiskRows(path, 0, N, F_IN, torch.float32)
    options: dict[str, Any] = {"batch_size": 6, "shuffle": True}
    loader = spgnn.NeighborLoader(graph(), [3, 2], MASK, store=store, superbatch=3, **options)
    needed = []
    for batch in loader:
        assert torch.equal(batch.x, X[batch.n_id])
        needed.append(batch.n_id)
    unions = [torch.cat(needed[i : i + 3]).unique() for i in range(0, len(needed), 3)]
    assert store.counts.rows_read == sum(map(len, unions))
    assert loader.counts.rows_needed == sum(map(len, needed))


def test_leaving_early_ends_all_threads():
    for workers in (1, 3):
        loader = spgnn.NeighborLoader(graph(), [3], batch_size=2, num_workers=workers, prefetch=9)
        batches = iter(loader)
        next(batches)
        assert our_threads()
        batches.close()
        assert not our_threads()
        for _ in loader:
            break
        assert not our_threads()
    assert loader.epoch == 2


class Failing:
    """A sampler that fails at one batch, and says when it has."""

    def __init__(self, sampler: NeighborSampler, at: int) -> None:
        self._sampler, self._at = sampler, at
        self.asked, self.failed = threading.Event(), threading.Event()

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        if draw.step == self._at:
            assert self.asked.wait(60)
            raise RuntimeError(f"batch {draw.step} fails")
        if draw.step > self._at:  # one thread does not begin this before that has ended
            self.failed.set()
        return self._sampler.sample(seeds, draw)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_failure_in_a_thread_comes_out(workers):
    record = graph()
    sampler = Failing(NeighborSampler(record.adjacency, [2]), at=3)
    batches = iter(
        spgnn.NeighborLoader(
            record, [2], batch_size=2, sampler=sampler, num_workers=workers, prefetch=5
        )
    )
    assert next(batches).place.number == 0
    sampler.asked.set()
    if workers == 1:
        assert sampler.failed.wait(60)
        expected = 0  # at once, though batches before it are ready
    else:
        expected = 2
    with pytest.raises(RuntimeError, match="batch 3 fails"):
        list(islice(batches, expected + 1))
    assert not our_threads()


def test_transform_and_last_batch():
    loader = spgnn.NeighborLoader(
        graph(), [2], MASK, batch_size=7, drop_last=True, transform=lambda batch: batch.n_id[:7]
    )
    found = torch.cat(list(loader))
    assert len(loader) == 5
    assert torch.equal(found, MASK.nonzero()[:35, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_neighbors": [-2]}, "num_neighbors must be an integer of at least -1"),
        ({"num_neighbors": []}, "num_neighbors must name one number a hop, got none"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1"),
        ({"sampler": "labour"}, "sampler labour: choose one of"),
        ({"subgraph_type": "bidirectional"}, "subgraph_type bidirectional: choose one of"),
        ({"directed": False}, "directed=False is not supported"),
        (
            {"input_nodes": torch.ones(N, dtype=torch.uint8)},
            r"uint8 \[60\] may be a mask or vertices: give mask.bool\(\), or vertices as int64",
        ),
        ({"input_nodes": "y"}, r"input_nodes y: a mask must be bool \[60\], got int64 \[60\]"),
        ({"sampler": "labor", "replace": True}, "sampler labor knows no replace"),
        ({"weight_attr": "w"}, "weight_attr w: of edges, small knows nothing"),
        ({"time_attr": "t"}, "time_attr t: small knows no such thing"),
        ({"input_time": torch.arange(60)}, "input_time needs time_attr"),
        ({"temporal_strategy": "latest"}, "temporal_strategy latest: choose one of uniform, last"),
        ({"batchsize": 3}, "NeighborLoader has no option batchsize"),
        ({"input_nodes": "train"}, "small has no such mask; it has y, train_mask"),
        ({"input_nodes": [1, 60]}, "input_nodes run from 1 to 60, small has 0 to 59"),
        ({"input_nodes": [1, 1]}, "input_nodes: a vertex is there twice"),
        ({"input_nodes": ("paper", [1])}, r"input_nodes must be integers \[k\] or a mask"),
        ({"input_nodes": torch.zeros(3, dtype=torch.complex64)}, "got torch.complex64"),
        (
            {"sampler": NeighborSampler(graph().adjacency, [2]), "replace": True},
            "is not for a sampler that is made .*Neighbor",
        ),
        ({"sampler": 3}, "sampler must be a name or have a method sample, got int"),
        ({"transform": 3}, "transform must be callable, got int"),
        ({"store": 3}, "store must be Rows, got int"),
        ({"structure": 3}, "structure must be a DiskPattern, got int"),
        ({"num_neighbors": [2**62]}, "num_neighbors must be at most 2147483647"),
        (
            {"input_nodes": torch.ones(3, dtype=torch.bool)},
            r"a mask must be bool \[60\], got \[3\]",
        ),
        ({"normalise": "all"}, "normalise all: choose one of graph, batch"),
        ({"data": 3}, "data of type int cannot be distributed"),
        ({"data": None}, "from nothing"),
    ],
)
def test_what_is_wrong_is_said(options, message):
    given: dict[str, Any] = {"data": graph(), "num_neighbors": [2]} | options
    with pytest.raises(InputError, match=message):
        spgnn.NeighborLoader(**given)


def test_edges_that_batches_cannot_number():
    with pytest.raises(InputError, match="batches need the numbers of edges"):
        list(spgnn.NeighborLoader(graph(weighted=True), [2], edge_ids=False, batch_size=N))


def test_more_edges_than_a_sample_has_are_refused():
    sampler = NeighborSampler(graph().adjacency, [2**31 - 1], replace=True)
    with pytest.raises(InputError, match=r"at most 2\^31 vertices and edges"):
        sampler.sample(torch.arange(2), Draw(0))


def rich_data(**more: Any) -> Any:
    """A Data of 5 vertices and 7 edges in no order, with attributes of many kinds."""
    geometric = pytest.importorskip("torch_geometric.data")
    index = torch.tensor([[3, 0, 1, 4, 2, 0, 3], [2, 1, 0, 2, 4, 1, 1]])
    known: dict[str, Any] = {
        "x": torch.arange(10).view(5, 2) + 2**24 + 1,
        "edge_index": index,
        "y": torch.tensor([[0.0], [1.0], [2.0], [float("nan")], [4.0]]),
        "edge_attr": torch.arange(21.0, dtype=torch.float64).view(7, 3),
        "edge_type": torch.arange(7, dtype=torch.int16),
        "edge_weight": torch.arange(1, 8),
        "edge_mask": torch.arange(7) % 2 == 0,
        "norm": torch.arange(7).half(),
        "edge_path_index": torch.arange(21).view(3, 7),
        "face": torch.arange(15).view(3, 5),
        "pos": torch.rand(5, 2, 2),
        "age": np.arange(5, dtype=np.uint8),
        "classes": 4,
        "mean": torch.rand(3),
        "none": None,
    }
    return geometric.Data(**known | more)


def test_all_that_data_holds_is_in_batches_as_it_is_given():
    utils = pytest.importorskip("torch_geometric.loader.utils")
    data = rich_data()
    loader = spgnn.NeighborLoader(data, [2, -1], batch_size=2, shuffle=True)
    for batch in loader:
        # What PyG's loader does with these vertices and edges.
        wanted = utils.filter_data(data, batch.n_id, *batch.edge_index, batch.e_id)
        made = batch.pyg()
        for name, value in wanted.to_dict().items():
            for found in (getattr(batch, name, None), made[name]):
                if isinstance(value, Tensor | np.ndarray):
                    expected = torch.as_tensor(value)
                    assert found.dtype == expected.dtype, name
                    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
                else:
                    assert found == value
        assert torch.equal(
            batch.layers[-1].local_edges.type, batch.edge_type[: batch.layers[-1].pattern.nnz]
        )


def test_features_of_any_shape():
    for x in (torch.arange(5) * 2**40, torch.rand(5, 2, 3), torch.rand(5, 1).bfloat16()):
        for batch in spgnn.NeighborLoader(rich_data(x=x), [2], batch_size=2):
            assert batch.x.dtype == x.dtype
            assert torch.equal(batch.x, x[batch.n_id])


def test_whoever_changes_a_batch_changes_nothing_else():
    data = rich_data(y=torch.arange(5))
    for batch in spgnn.NeighborLoader(data, [2], batch_size=2, shuffle=True):
        nodes, edges = batch.n_id.clone(), batch.e_id.clone()
        for changed in (batch.n_id, batch.e_id, batch.edge_index, batch.x, batch.input_id):
            changed.fill_(10**9)
        assert torch.equal(batch.y, data.y[nodes])
        assert torch.equal(batch.edge_attr, data.edge_attr[edges])
        assert torch.equal(batch.layers[0].vertex_ids, nodes)
    assert int(data.x.max()) < 10**9
    loader = spgnn.NeighborLoader(data, [2], batch_size=2)
    for batch in loader:
        batch.input_id.fill_(7)
    assert torch.cat([batch.input_id for batch in loader]).tolist() == list(range(5))


def test_names_of_a_sample_that_data_has_already():
    data = rich_data(n_id=torch.arange(5) * 10, e_id=torch.arange(7) * 100)
    for batch in spgnn.NeighborLoader(data, [2], batch_size=2):
        source, target = batch.n_id[batch.edge_index] // 10
        assert torch.equal(torch.stack((source, target)), data.edge_index[:, batch.e_id // 100])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id // 100])


def test_numbers_of_edges_are_there_unless_they_are_not_wanted():
    data = rich_data(edge_attr=None, edge_type=None, edge_weight=None)
    (batch,) = spgnn.NeighborLoader(data, [-1], batch_size=5)
    assert batch.e_id.sort().values.tolist() == list(range(7))
    (batch,) = spgnn.NeighborLoader(data, [-1], batch_size=5, edge_ids=False)
    for name in ("e_id", "norm"):
        with pytest.raises(
            AttributeError, match=f"no {name}: the loader was not asked for edge_id"
        ):
            getattr(batch, name)
    with pytest.raises(AttributeError, match="a batch has no size, and neither has its graph"):
        _ = batch.size


def test_adj_t_alone():
    data = rich_data()
    geometric = pytest.importorskip("torch_geometric.data")
    dense = torch.zeros(5, 5)
    dense[data.edge_index[1], data.edge_index[0]] = 1
    matrix = geometric.Data(x=data.x, adj_t=dense.to_sparse())
    (batch,) = spgnn.NeighborLoader(matrix, [-1], batch_size=5)
    wanted = sorted(set(map(tuple, data.edge_index.T.tolist())))
    assert sorted(map(tuple, batch.n_id[batch.edge_index].T.tolist())) == wanted


def test_names_of_inputs_are_those_of_pyg():
    utils = pytest.importorskip("torch_geometric.loader.utils")
    data, mask = rich_data(), torch.tensor([True, False, False, True, True])
    data.train_mask = mask
    for given in (mask, torch.tensor([4, 0, 3]), [2, 1], None, mask.numpy(), "train_mask"):
        theirs = mask if given is not None and not isinstance(given, list) else given
        theirs = given if isinstance(given, Tensor) else theirs
        _, nodes, input_id = utils.get_input_nodes(data, theirs)
        wanted = torch.arange(len(nodes)) if input_id is None else input_id
        loader = spgnn.NeighborLoader(data, [1], given, batch_size=2)
        batches = list(loader)
        assert torch.equal(torch.cat([batch.input_id for batch in batches]), wanted)
        assert torch.equal(torch.cat([b.n_id[: b.batch_size] for b in batches]), nodes)
        assert all(batch.seed_time is None for batch in batches)
    data.time, times = torch.zeros(5, dtype=torch.int64), torch.tensor([3, 1, 2])
    loader = spgnn.NeighborLoader(data, [1], mask, time_attr="time", input_time=times)
    assert [(b.input_id.item(), b.seed_time.item()) for b in loader] == [(0, 3), (3, 1), (4, 2)]


def test_links_are_numbered_as_edges_are_given():
    data = rich_data()
    labels = data.edge_type
    options: dict[str, Any] = {"edge_label": labels, "batch_size": 3}
    for given in (None, data.edge_index):
        batches = list(spgnn.LinkNeighborLoader(data, [1], given, **options))
        ends = torch.cat([batch.n_id[batch.edge_label_index] for batch in batches], 1)
        assert torch.equal(ends, data.edge_index)
        assert torch.equal(torch.cat([batch.input_id for batch in batches]), torch.arange(7))
        assert torch.equal(torch.cat([batch.edge_label for batch in batches]), labels)


def test_options_of_pyg_that_change_nothing(caplog):
    options: dict[str, Any] = {
        "persistent_workers": True,
        "pin_memory": True,
        "prefetch_factor": 4,
        "is_sorted": True,
        "filter_per_worker": True,
    }
    with caplog.at_level("DEBUG", "spgnn.addons.batches.loader"):
        loader = spgnn.NeighborLoader(graph(), [3, 2], batch_size=20, shuffle=True, **options)
    assert len(caplog.records) == len(options)
    plain = spgnn.NeighborLoader(graph(), [3, 2], batch_size=20, shuffle=True)
    for one, other in zip(loader, plain, strict=True):
        assert_same(told(one), told(other))


@pytest.mark.parametrize("resample", [False, True])
def test_batches_are_pickled_without_their_graph(resample):
    data = pyg_data(repeated=True)
    data.edge_weight = torch.arange(1.0, 1 + data.num_edges)
    data.edge_type = torch.arange(data.num_edges) % 3
    data.big = torch.zeros(N, 10000)
    model = ours.GraphSAGE(F_IN, 6, 2, CLASSES)
    for options in ({}, {"disjoint": True}, {"subgraph_type": "induced"}, {"sampler": "labor"}):
        loader = spgnn.NeighborLoader(
            data, [3, 2], MASK, batch_size=4, shuffle=True, resample=resample, **options
        )
        for batch in loader:
            text = pickle.dumps(batch)
            assert len(text) < 4 * N * 10000
            other = pickle.loads(text)
            assert_same(told(batch), told(other))
            for name in ("e_id", "edge_attr", "edge_weight", "edge_type", "age", "big"):
                assert torch.equal(getattr(batch, name), getattr(other, name)), name
            for one, two in zip(batch.layers, other.layers, strict=True):
                assert torch.equal(one.local_edges.attr, two.local_edges.attr)
            out = model(batch.x, batch.layers, batch.keys)
            assert torch.equal(out, model(other.x, other.layers, other.keys))
            assert other.pyg().to_dict().keys() == batch.pyg().to_dict().keys()
            assert_same(told(batch), told(pickle.loads(pickle.dumps(other))))
    plain = next(iter(spgnn.NeighborLoader(graph(), [2], batch_size=3)))
    assert_same(told(plain), told(copy.deepcopy(plain)))


def test_what_is_changed_afterwards_changes_no_structure():
    """Vertices, edges and draws are the loader's own; values of vertices and edges are shared."""
    geometric = pytest.importorskip("torch_geometric.data")
    index = edge_index()
    owned = {
        "edge_index": index,
        "time": torch.arange(N) % 7,
        "stamp": torch.arange(index.shape[1]) % 7,
        "w": torch.rand(index.shape[1], dtype=torch.float64) + 0.1,
    }
    seeds, times = torch.arange(0, N, 2), torch.arange(N // 2) % 7

    def loaders(take: Any) -> list[spgnn.NeighborLoader]:
        data = geometric.Data(x=X, **{name: take(value) for name, value in owned.items()})
        options: dict[str, Any] = {"batch_size": 7, "shuffle": True}
        return [
            spgnn.NeighborLoader(data, [3, 2], take(seeds), weight_attr="w", **options),
            spgnn.NeighborLoader(data, [3], time_attr="time", **options),
            spgnn.NeighborLoader(
                data, [3], take(seeds), time_attr="stamp", input_time=take(times), **options
            ),
            spgnn.LinkNeighborLoader(
                data, [3], take(index), edge_label=take(times[:1].repeat(index.shape[1])), **options
            ),
        ]

    shared: list[Tensor] = []

    def lent(value: Tensor) -> Tensor:
        shared.append(value.clone())
        return shared[-1]

    mine, wanted = loaders(lent), loaders(torch.clone)
    for value in shared:
        value.fill_(10**9)
    for loader, other in zip(mine, wanted, strict=True):
        for one, two in zip(loader, other, strict=True):
            for name in ("n_id", "input_id", "edge_index", "e_id", "batch", "seed_time", "x"):
                a, b = getattr(one, name), getattr(two, name)
                assert (a is None and b is None) or torch.equal(a, b), name
            if isinstance(loader, spgnn.LinkNeighborLoader):
                assert torch.equal(one.edge_label, two.edge_label)
                assert torch.equal(one.edge_label_index, two.edge_label_index)


WRONG_DATA = [
    ({"edge_attr": torch.rand(6, 1)}, {}, r"edge_attr must be \[7, …\], .* got float32 \[6, 1\]"),
    ({"edge_type": [1, 2]}, {}, r"edge_type must be \[7, …\], a row an edge, got list"),
    ({"edge_weight": torch.tensor(1.0)}, {}, r"edge_weight must be \[7, …\], .* float32 \[\]"),
    ({"edge_weight": torch.rand(7, 2)}, {}, r"edge_weight must be \[7\], a number an edge"),
    ({"x": torch.rand(4, 2), "num_nodes": 5}, {}, r"x must be \[5, …\], a row a vertex"),
    ({"y": torch.arange(7)[:3]}, {}, r"y must be \[5, …\], a row a vertex, got int64 \[3\]"),
    ({"train_mask": torch.ones(3, dtype=torch.bool)}, {}, r"train_mask must be \[5, …\]"),
    ({"x": torch.eye(5).to_sparse()}, {}, r"x is sparse \(torch.sparse_coo\): give x.to_dense"),
    ({"x": torch.eye(5, requires_grad=True)}, {}, r"x requires a gradient.*: give x.detach\(\)"),
    ({"edge_index": torch.ones(2, 7) > 0}, {}, r"edge_index must be integers .* bool"),
    ({"edge_index": torch.ones(2, 7)}, {}, r"edge_index must be integers .* float32 \[2, 7\]"),
    ({"edge_index": None}, {}, "this Data has no edge_index"),
    ({}, {"time_attr": "edge_time"}, "times of edges need input_time, the seeds"),
    ({}, {"time_attr": "norm"}, "times of edges need input_time"),
    ({}, {"time_attr": "time", "input_time": "now"}, r"integers \[5\].* got a str"),
    ({}, {"time_attr": "time", "input_time": torch.rand(5)}, r"got float32 \[5\]"),
    ({}, {"time_attr": "time", "input_time": torch.arange(4)}, r"got int64 \[4\]"),
    ({"time": torch.rand(5)}, {"time_attr": "time"}, r"time must be integers \[5\], got float32"),
    ({}, {"time_attr": "pos"}, r"time_attr pos must be integers \[5\], got float32 \[5, 2, 2\]"),
]


@pytest.mark.parametrize(("more", "options", "message"), WRONG_DATA)
def test_data_that_do_not_fit_are_refused(more, options, message):
    times = {"time": torch.arange(5), "edge_time": torch.arange(7)}
    with pytest.raises(InputError, match=message):
        spgnn.NeighborLoader(rich_data(**times | more), [2], **options)


def test_names_of_a_data_that_batches_have_themselves():
    ends = torch.tensor([[0, 1, 2], [1, 2, 0]])
    geometric = pytest.importorskip("torch_geometric.data")
    one = geometric.Data(x=torch.rand(3, 2), edge_index=ends)
    several = geometric.Batch.from_data_list([one, one, one])
    batch = next(iter(spgnn.NeighborLoader(several, [2], batch_size=4)))
    assert torch.equal(batch.batch, several.batch[batch.n_id])
    assert torch.equal(batch.pyg().batch, batch.batch)
    batch = next(iter(spgnn.NeighborLoader(several, [2], batch_size=4, disjoint=True)))
    assert torch.equal(batch.attributes["batch"], several.batch[batch.n_id])
    assert batch.batch[:4].tolist() == [0, 1, 2, 3]
    ours = ["place", "layers", "graph", "keys", "device", "copied", "vertex_ids", "self"]
    for name in (*ours, "batch_size", "input_id", "num_sampled_nodes"):
        data = one.clone()
        data[name] = torch.arange(3) * 10
        batch = next(iter(spgnn.NeighborLoader(data, [2], batch_size=2)))
        for same in (batch, pickle.loads(pickle.dumps(batch)), batch.to("cpu")):
            assert torch.equal(same.attributes[name], data[name][batch.n_id]), name
            made = same.pyg()
            assert made.batch_size == 2
            assert name not in ours or torch.equal(made[name], data[name][batch.n_id]), name
