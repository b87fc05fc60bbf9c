"""Sampled batches of several vertex types: PyG's by brute force, and the same on any ranks."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import HeteroData

import spgnn
from spgnn import InputError, NeighborLoader
from spgnn.testing import run_ranks
from tests.addons.hetero.schemas import hetero
from tests.addons.hetero.test_hetero import MODELS, WIDTH, data_for, pair

# PyG warns of types that no relation ends at.
pytestmark = pytest.mark.filterwarnings("ignore:There exist node types:UserWarning")


def random_data(seed: int) -> HeteroData:
    """Some types and relations, with repeated edges, loops, and types and relations of nothing."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    names = [f"t{i}" for i in range(rng.randint(1, 5))]
    sizes = {name: rng.choice([0, 1, 4, 15, 30]) for name in names}
    sizes["t0"] = rng.randint(1, 25)
    data = HeteroData()
    for name, size in sizes.items():
        data[name].x = torch.randn(size, rng.randint(0, 3), generator=generator)
        data[name].time = torch.randint(5, (size,), generator=generator)
    for number in range(rng.randint(1, 8)):
        source, target = rng.choice(names), rng.choice(names)
        edges = rng.choice([0, 1, 40, 120]) if sizes[source] and sizes[target] else 0
        index = torch.stack(
            [
                torch.randint(max(sizes[n], 1), (edges,), generator=generator)
                for n in (source, target)
            ]
        )
        data[source, f"r{number}", target].edge_index = index
        data[source, f"r{number}", target].edge_attr = torch.randn(edges, 2, generator=generator)
        data[source, f"r{number}", target].since = torch.randint(5, (edges,), generator=generator)
    return data


def by_hops(data: Any, aim: str, seeds: list[int], hops: int, allowed: Any) -> list[Any]:
    """Edges of each relation by hop, of vertices that are new in the hop before: PyG's rule."""
    seen = {name: set[int]() for name in data.node_types}
    new = {name: set[int]() for name in data.node_types}
    seen[aim], new[aim] = set(seeds), set(seeds)
    result = []
    for _ in range(hops):
        edges, later = {}, {name: set[int]() for name in data.node_types}
        for relation in data.edge_types:
            source, target = data[relation].edge_index.tolist()
            edges[relation] = [
                e
                for e, end in enumerate(target)
                if end in new[relation[2]] and allowed(relation, e, source[e])
            ]
            later[relation[0]] |= {source[e] for e in edges[relation]} - seen[relation[0]]
        for name in data.node_types:
            seen[name] |= later[name]
        result.append((edges, {name: set(found) for name, found in later.items()}))
        new = later
    return result


def check_batch(data: HeteroData, batch: HeteroData) -> None:
    """Whatever a batch says of vertices and edges is what the graph says of them."""
    for name in data.node_types:
        ids = batch[name].n_id
        assert sum(batch[name].num_sampled_nodes) == len(ids) == batch[name].num_nodes
        assert torch.equal(batch[name].x, data[name].x[ids])
        assert torch.equal(batch[name].time, data[name].time[ids])
    for relation in data.edge_types:
        store, ids = batch[relation], batch[relation].e_id
        ends = zip(store.edge_index, (relation[0], relation[2]), strict=True)
        theirs = torch.stack([batch[name].n_id[end] for end, name in ends])
        assert torch.equal(theirs, data[relation].edge_index[:, ids])
        assert torch.equal(store.edge_attr, data[relation].edge_attr[ids])
        assert sum(store.num_sampled_edges) == len(ids)


def steps_of(values: Tensor, sizes: list[int]) -> list[list[int]]:
    return [part.tolist() for part in values.split(sizes)]


@pytest.mark.parametrize("seed", range(100))
def test_all_neighbours_are_those_of_pyg(seed):
    data, hops = random_data(seed), 1 + seed % 3
    loader = NeighborLoader(data, [-1] * hops, "t0", batch_size=1 + seed % 7, shuffle=True)
    for batch in loader:
        check_batch(data, batch)
        seeds = batch["t0"].n_id[: batch["t0"].batch_size].tolist()
        assert batch["t0"].input_id.tolist() == seeds
        right = by_hops(data, "t0", seeds, hops, lambda *_: True)
        for name in data.node_types:
            parts = steps_of(batch[name].n_id, batch[name].num_sampled_nodes)
            assert parts[0] == (seeds if name == "t0" else [])
            assert [set(part) for part in parts[1:]] == [later[name] for _, later in right]
            assert [len(part) for part in parts[1:]] == [len(later[name]) for _, later in right]
        for relation in data.edge_types:
            parts = steps_of(batch[relation].e_id, batch[relation].num_sampled_edges)
            assert [sorted(part) for part in parts] == [edges[relation] for edges, _ in right]


@pytest.mark.parametrize("seed", range(100))
def test_some_neighbours(seed):
    data, rng = random_data(seed), random.Random(seed)
    counts = {relation: [rng.randint(0, 4), rng.randint(-1, 4)] for relation in data.edge_types}
    for replace in (False, True):
        loader = NeighborLoader(
            data, counts, ("t0", torch.arange(data["t0"].num_nodes)), batch_size=9, replace=replace
        )
        for batch in loader:
            check_batch(data, batch)
            for relation in data.edge_types:
                e_id = batch[relation].e_id.tolist()
                assert replace or len(set(e_id)) == len(e_id)
                degree = Counter(data[relation].edge_index[1].tolist())
                targets = batch[relation[2]]
                drawn = Counter(targets.n_id[batch[relation].edge_index[1]].tolist())
                expected: Counter[int] = Counter()
                parts = steps_of(targets.n_id, targets.num_sampled_nodes)
                for new, count in zip(parts, counts[relation], strict=False):
                    for v in new:
                        fits = degree[v] if count < 0 else min(count, degree[v])
                        expected[v] = count if replace and count >= 0 and degree[v] else fits
                assert drawn == +expected


@pytest.mark.parametrize("seed", range(40))
def test_nothing_later_than_the_seed(seed):
    data, rng = random_data(seed), random.Random(seed)
    n, attribute = data["t0"].num_nodes, ("time", "since")[seed % 2]
    times = torch.randint(5, (n,), generator=torch.Generator().manual_seed(seed))
    given = {} if attribute == "time" and seed % 4 else {"input_time": times}
    latest = times if given else data["t0"].time
    options: dict[str, Any] = {"batch_size": 3, "time_attr": attribute, **given}

    def allowed(limit: int) -> Any:
        def is_early(relation: Any, edge: int, source: int) -> bool:
            of_vertices = attribute == "time"
            own = data[relation[0]].time[source] if of_vertices else data[relation].since[edge]
            return int(own) <= limit

        return is_early

    for batch in NeighborLoader(data, [-1, -1], "t0", **options):
        check_batch(data, batch)
        seeds = batch["t0"].n_id[: batch["t0"].batch_size].tolist()
        for root, v in enumerate(seeds):
            right = by_hops(data, "t0", [v], 2, allowed(int(latest[v])))
            for name in data.node_types:
                mine = batch[name].n_id[batch[name].batch == root].tolist()
                expected = {v} if name == "t0" else set()
                assert Counter(mine) == Counter(expected.union(*(new[name] for _, new in right)))
            for relation in data.edge_types:
                at = batch[relation[2]].batch[batch[relation].edge_index[1]] == root
                edges = [e for found, _ in right for e in found[relation]]
                assert sorted(batch[relation].e_id[at].tolist()) == sorted(edges)
    k = rng.randint(1, 3)
    for batch in NeighborLoader(data, [k], "t0", temporal_strategy="last", **options):
        seeds = batch["t0"].n_id[: batch["t0"].batch_size].tolist()
        for relation in data.edge_types:
            source, target = data[relation].edge_index.tolist()
            of_vertices = attribute == "time"
            for root, v in enumerate(seeds):
                if relation[2] != "t0":
                    continue
                is_early = allowed(int(latest[v]))
                whens = [
                    int(data[relation[0]].time[s] if of_vertices else data[relation].since[e])
                    for e, (s, t) in enumerate(zip(source, target, strict=True))
                    if t == v and is_early(relation, e, s)
                ]
                e_id = batch[relation].e_id[batch[relation].edge_index[1] == root]
                own = data[relation[0]].time[data[relation].edge_index[0, e_id]]
                drawn = own if of_vertices else data[relation].since[e_id]
                assert sorted(drawn.tolist()) == sorted(whens)[len(whens) - min(k, len(whens)) :]


def test_weights_disjoint_trees_and_induced_edges():
    data = hetero("papers")
    cites = data["paper", "cites", "paper"]
    cites.chance = (torch.arange(150) % 3 > 0).float()
    loader = NeighborLoader(data, [4, 4], "paper", batch_size=60, weight_attr="chance")
    (batch,) = loader
    assert len(batch["paper", "cites", "paper"].e_id) > 20
    assert (cites.chance[batch["paper", "cites", "paper"].e_id] > 0).all()
    seeds = torch.tensor([3, 5, 3])
    (trees,) = NeighborLoader(data, [-1, -1], ("paper", seeds), batch_size=3, disjoint=True)
    for root, v in enumerate(seeds.tolist()):
        (alone,) = NeighborLoader(data, [-1, -1], ("paper", [v]), batch_size=1)
        for name in data.node_types:
            mine = trees[name].n_id[trees[name].batch == root]
            assert torch.equal(mine, alone[name].n_id), name
    how: dict[str, Any] = {"batch_size": 4, "subgraph_type": "induced"}
    batch = next(iter(NeighborLoader(data, [2, 2], "paper", **how)))
    for relation in data.edge_types:
        known = [batch[name].n_id for name in (relation[0], relation[2])]
        source, target = data[relation].edge_index
        first = sum(batch[relation[2]].num_sampled_nodes[:2])
        inside = torch.isin(source, known[0]) & torch.isin(target, known[1][:first])
        drawn = batch[relation].e_id
        # Of the seeds' hop, only those between it and the seeds.
        assert torch.isin(drawn, inside.nonzero()[:, 0]).all()
        assert len(drawn.unique()) == len(drawn)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_pyg_and_ours(name):
    data = data_for("fraud", name)
    theirs, mine = pair(data, name)
    aim = data.node_types[0]
    (batch,) = NeighborLoader(data, [3, 3], (aim, [0, 4, 8, 9]), batch_size=4)
    if mine is None:
        assert torch.isfinite(theirs(batch.x_dict, batch.edge_index_dict)).all()
        return
    out = mine(batch.x_dict, batch)
    if name == "rgcn":
        del batch.layers
        whole = batch.to_homogeneous(node_attrs=["x"], edge_attrs=[])
        edges = whole.edge_index, whole.edge_type
        H = theirs.second(F.elu(theirs.first(whole.x, *edges)), *edges)
        right = theirs.out(H[: len(out)])
    else:
        right = theirs(batch.x_dict, batch.edge_index_dict)
    assert torch.allclose(out, right, rtol=0, atol=1e-12)


def by_layers(model: Any, batch: HeteroData) -> Tensor:
    """The seeds' rows, each layer on a hop of its own."""
    first, second = batch.layers
    H = {name: F.elu(rows) for name, rows in model.first(batch.x_dict, first).items()}
    # Types that no relation ends at have no rows of a layer.
    own = {name: first.own(name, rows) for name, rows in batch.x_dict.items()}
    return model.out(model.second({**own, **H}, second)[model.aim])


@pytest.mark.parametrize("name", ["sage", "graph", "gat", "gatv2", "hgt", "rgcn"])
def test_layers_of_all_neighbours_are_those_of_the_whole_graph(name):
    data = data_for("fraud", name)
    _, mine = pair(data, name)
    aim = data.node_types[0]
    right = mine(data.x_dict, spgnn.distribute(data))
    for batch in NeighborLoader(data, [-1, -1], aim, batch_size=20):
        out = by_layers(mine, batch)
        assert torch.allclose(out, right[batch[aim].input_id], rtol=0, atol=1e-12)


def losses_of(data: Any, ranks: int, name: str, counts: list[int]) -> list[float]:
    """Losses of some epochs of one model, on hops or on whole batches; with all seeds' content."""
    whole = data_for("papers", name)
    theirs, mine = pair(whole, name)
    model = mine if counts[0] != counts[1] else theirs
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = NeighborLoader(
        data, counts, ("paper", data["paper"].train_mask), batch_size=16 // ranks, shuffle=True
    )
    losses = []
    for batch in loader:
        total = torch.zeros(2, dtype=torch.float64)
        loss = sum(p.sum() for p in model.parameters()) * 0.0
        if batch is not None:
            size = batch["paper"].batch_size
            if model is mine:
                out = by_layers(model, batch)
            else:
                out = model(batch.x_dict, batch.edge_index_dict)[:size]
            loss = loss + F.cross_entropy(out, batch["paper"].y[:size], reduction="sum")
            total += torch.tensor([loss.item(), size], dtype=torch.float64)
        optimizer.zero_grad()
        loss.backward()
        if ranks > 1:
            comm = data.comm
            comm.all_reduce(total).wait()
            for p in model.parameters():
                comm.all_reduce(p.grad).wait()
        for p in model.parameters():
            p.grad /= total[1]
        optimizer.step()
        losses.append(float(total[0] / total[1]))
    return losses


NUMBERS = "over ranks seeds are a mask of own vertices, or the name of one: a mask must be bool ["
SAID = ("time_attr", "mode", "of type 'paper' have no such mask", NUMBERS, NUMBERS, NUMBERS)


def refused(rank: int) -> list[str]:
    """What is said on each rank. Collective."""
    messages = []
    graph = spgnn.distribute(hetero("papers"))
    cases: list[dict[str, Any]] = [{"time_attr": "x"}, {"mode": "cluster"}]
    seeds: list[Any] = ["valid", torch.ones(1 + rank), torch.arange(5), [1, 2]]
    for options in (*cases, *({"input_nodes": ("paper", each)} for each in seeds)):
        arguments: dict[str, Any] = {"input_nodes": "paper"} | options
        with pytest.raises(InputError) as error:
            NeighborLoader(graph, [2], **arguments)
        messages.append(str(error.value))
    return messages


CASES = [("sage", [3, 2]), ("hgt", [4, 2]), ("gat", [3, 3])]


def contents(batch: HeteroData, data: HeteroData) -> dict[Any, Any]:
    """Vertices and edges of a batch by their ids and attributes, in its order."""
    found: dict[Any, Any] = {}
    for name in data.node_types:
        assert torch.equal(batch[name].x, data[name].x[batch[name].n_id])
        found[name] = batch[name].n_id.tolist(), batch[name].num_sampled_nodes
    for relation in data.edge_types:
        store = batch[relation]
        found[relation] = store.edge_index.tolist(), store.edge_attr.tolist()
        found[relation, "hops"] = store.num_sampled_edges
    return found


def over_ranks(rank: int, ranks: int) -> Any:
    """Losses, and the batches of each mode. Collective."""
    data = hetero("papers")
    graph = spgnn.distribute(data)
    losses = [losses_of(spgnn.distribute(data_for("papers", n)), ranks, n, c) for n, c in CASES]
    modes = {}
    covered = spgnn.distribute(data, cover="minimum")
    for mode, replace in (("exact", False), ("exact", True), ("own", False), ("local", False)):
        loader = NeighborLoader(
            covered if replace else graph,
            [3, 2],
            ("paper", "train_mask"),
            batch_size=6,
            mode=mode,
            replace=replace,
        )
        batches = [None if batch is None else contents(batch, data) for batch in loader]
        assert len(batches) == len(loader)
        modes[mode, replace] = batches
    return losses, modes, graph["paper"].vertex_ids.tolist(), refused(rank)


def test_batches_of_ranks_are_those_of_one_process():
    data = hetero("papers")
    right = [losses_of(data_for("papers", n), 1, n, c) for n, c in CASES]
    ranks = 4
    results = run_ranks(over_ranks, ranks, ranks)
    for losses, *_, messages in results:
        for message, part in zip(messages, SAID, strict=True):
            assert part in message
            assert "\n" not in message
        for mine, theirs in zip(losses, right, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-9)
    for replace in (False, True):
        loader = NeighborLoader(
            data, [3, 2], ("paper", "train_mask"), batch_size=6, replace=replace, ranks=ranks
        )
        for number in range(loader.batches):
            step, rank = divmod(number, ranks)
            one = contents(loader.sample(0, number), data)
            assert results[rank][1]["exact", replace][step] == one
    seeds: list[int] = []
    for _, modes, own, _ in results:
        for mode in ("own", "local"):
            for batch in filter(None, modes[mode, False]):
                drawn, sizes = batch["paper"]
                assert set(drawn[: sizes[0]]) <= set(own)
                if mode == "local":
                    assert set(drawn) <= set(own)
                else:
                    seeds += drawn[: sizes[0]]
    assert sorted(seeds) == data["paper"].train_mask.nonzero()[:, 0].tolist()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input_nodes": None}, "give \\(type, vertices or a mask\\)"),
    ({"input_nodes": ("papers", None)}, "papers"),
    ({"input_nodes": ("paper", [60])}, "vertex type 'paper' has 0 to 59"),
    ({"num_neighbors": {("paper", "cites", "paper"): [2]}}, "Missing number of neighbors"),
    ({"num_neighbors": 3}, "num_neighbors must be a list"),
    ({"sampler": "labor"}, "sampler is not for a graph of several vertex types"),
    ({"time_attr": "when"}, "nothing has it"),
    ({"time_attr": "edge_attr"}, "must be an integer each"),
    ({"weight_attr": "y"}, "of vertices"),
]


@pytest.mark.parametrize(("wrong", "message"), REFUSED)
def test_refusals(wrong, message):
    arguments: dict[str, Any] = {"num_neighbors": [2], "input_nodes": "paper"} | wrong
    with pytest.raises(InputError, match=message):
        NeighborLoader(hetero("papers"), **arguments)


def test_edges_as_sparse_matrices_and_a_graph_on_one_process():
    data = hetero("papers")
    sparse = hetero("papers")
    for relation in data.edge_types:
        index = data[relation].edge_index
        shape = data[relation[2]].num_nodes, data[relation[0]].num_nodes
        ones = torch.ones(index.shape[1])
        del sparse[relation].edge_index, sparse[relation].edge_attr
        sparse[relation].adj_t = torch.sparse_coo_tensor(
            index.flip(0), ones, shape, check_invariants=True
        )
    for other in (sparse, spgnn.distribute(data), spgnn.distribute(data, cover="minimum")):
        for one, batch in zip(
            NeighborLoader(data, [-1], "paper", batch_size=13),
            NeighborLoader(other, [-1], "paper", batch_size=13),
            strict=True,
        ):
            for name in data.node_types:
                assert set(batch[name].n_id.tolist()) == set(one[name].n_id.tolist())
                assert torch.equal(batch[name].x, data[name].x[batch[name].n_id])


def test_a_batch_moves_with_its_layers():
    data = hetero("papers")
    (batch,) = NeighborLoader(data, [2, 2], ("paper", [1, 2]), batch_size=2)
    moved = batch.to("cpu")
    layer = spgnn.nn.HeteroConv(
        {relation: spgnn.nn.SAGEConv((-1, -1), WIDTH) for relation in data.edge_types}
    ).double()
    right = layer(batch.x_dict, batch.layers[0])
    for name, rows in layer(moved.x_dict, moved.layers[0].to("cpu")).items():
        assert torch.equal(rows, right[name])
