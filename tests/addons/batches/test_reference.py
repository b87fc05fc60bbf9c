"""Every combination of a loader's arguments against brute force, on small graphs of every kind."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import spgnn
from spgnn import InputError
from spgnn.addons.batches import Batch, ClusterSampler
from spgnn.addons.batches.sampled_graph import sampled_graph_of

pytest.importorskip("torch_geometric")

FANOUTS = ([5], [1, 5, -1], [2, 0, 3], [-1, -1], [0], [1, 2, 1], [100, 2], [7, 70])
LAYERS = ("ladies", "fastgcn")
SUBGRAPHS = ("node", "edge", "walk", "cluster")
SEEDS = ("mask", "list", "none", "repeated", "empty")


class Case(NamedTuple):
    """Arguments of a loader."""

    sampler: str
    replace: bool
    disjoint: bool
    subgraph_type: str
    time: str | None
    strategy: str
    weighted: bool
    resample: bool

    @property
    def has_trees(self) -> bool:
        return self.disjoint or self.time is not None


def plain(sampler: str) -> Case:
    """A sampler without options."""
    return Case(sampler, False, False, "directional", None, "uniform", False, False)


CASES = [
    *(
        Case("neighbor", *rest)
        for rest in product(
            (False, True),
            (False, True),
            ("directional", "induced"),
            (None, "time", "edge_time"),
            ("uniform", "last"),
            (False, True),
            (False, True),
        )
        if not (rest[4] == "last" and rest[5])  # refused
    ),
    plain("labor"),
    plain("cluster"),
]


def graph(kind: str, number: int) -> Any:
    """A Data: edges in no order, some twice, loops; each edge knows its number."""
    from torch_geometric.data import Data

    rng = np.random.default_rng(number)
    n, edges = {
        "empty": (0, 0),
        "bare": (4, 0),
        "loop": (1, 1),
        "small": (6, 9),
        "many": (20, 80),
        "hub": (9, 150),
    }[kind]
    ends = rng.integers(0, max(n, 1), (2, edges))
    if kind == "hub":
        ends[1, :120] = 3  # a row of more than 64 entries
    return Data(
        num_nodes=n,
        x=torch.arange(n * 3).view(n, 3),
        edge_index=torch.from_numpy(ends),
        edge_attr=torch.arange(edges),
        edge_weight=torch.from_numpy(rng.integers(0, 4, edges)).float(),
        time=torch.from_numpy(rng.integers(0, 9, n)),
        edge_time=torch.from_numpy(rng.integers(0, 9, edges)),
        mask=torch.from_numpy(rng.random(n) < 0.6),
    )


def inputs(data: Any, kind: str, rng: np.random.Generator) -> tuple[Any, list[int]]:
    """What is given as input_nodes, and the vertices that it stands for."""
    n = int(data.num_nodes)
    if kind == "none":
        return None, list(range(n))
    if kind == "mask":
        return data.mask, data.mask.nonzero()[:, 0].tolist()
    nodes = {
        "list": rng.permutation(n)[: (n + 1) // 2],
        "repeated": rng.integers(0, n, 7) if n else np.empty(0, np.int64),
        "empty": np.empty(0, np.int64),
    }[kind]
    return torch.from_numpy(nodes), nodes.tolist()


class Reference:
    """What batches of one case may hold."""

    def __init__(self, data: Any, case: Case, fanouts: list[int]) -> None:
        self.case, self.fanouts = case, fanouts
        self.source, self.target = data.edge_index.tolist()
        self.weight = data.edge_weight.tolist()
        self.time = {
            None: [0] * data.num_edges,
            "time": [int(data.time[v]) for v in self.source],
            "edge_time": data.edge_time.tolist(),
        }[case.time]
        self.rows: list[list[int]] = [[] for _ in range(int(data.num_nodes))]
        for e, v in enumerate(self.target):
            counts = case.weighted or case.sampler in LAYERS
            if self.weight[e] > 0 or not counts:
                self.rows[v].append(e)

    def check(self, batch: Batch, seeds: list[int], limits: list[int]) -> None:
        nodes = batch.n_id.tolist()
        assert nodes[: batch.batch_size] == seeds
        trees = [0] * len(nodes)
        if self.case.has_trees:
            assert batch.batch is not None
            trees = batch.batch.tolist()
            assert trees[: len(seeds)] == list(range(len(seeds)))
            assert all(0 <= tree < len(seeds) for tree in trees)
            found = list(zip(trees, nodes, strict=True))[len(seeds) :]
            assert len(set(found)) == len(found)
        else:
            assert batch.batch is None
            assert len(set(nodes)) == len(nodes)
        earlier: dict[int, list[int]] = {}
        reached = len(seeds)
        for hop, block in enumerate(reversed(batch.layers)):
            assert block.rows == reached
            assert block.columns >= block.rows
            edges = [] if block.local_edges.attr is None else block.local_edges.attr.tolist()
            ends, columns = block.pattern.indptr.tolist(), block.pattern.indices.tolist()
            assert len(ends) == block.rows + 1
            assert ends[-1] == len(columns) == len(edges)
            allowed = []
            for i in range(block.rows):
                limit = limits[trees[i]] if limits else 0
                allowed.append([e for e in self.rows[nodes[i]] if self.time[e] <= limit])
            drawn = [edges[ends[i] : ends[i + 1]] for i in range(block.rows)]
            for i, row in enumerate(drawn):
                assert set(row) <= set(allowed[i])
                for j, e in zip(columns[ends[i] : ends[i + 1]], row, strict=True):
                    assert 0 <= j < block.columns
                    assert (nodes[j], trees[j]) == (self.source[e], trees[i])
            sampler = self.case.sampler
            if self.case.subgraph_type == "induced":
                self._check_induced(drawn, allowed, nodes, trees, block.columns)
            else:
                # New vertices come in the order found.
                new = [j for j in dict.fromkeys(columns) if j >= block.rows]
                assert new == list(range(block.rows, block.columns))
                check = {"neighbor": self._check_drawn, "labor": self._check_labor}
                check.get(sampler, self._check_layer)(drawn, allowed, hop, earlier)
            reached = block.columns
        assert reached == len(nodes)

    def _check_drawn(
        self, drawn: list[Any], allowed: list[Any], hop: int, earlier: dict[int, list[int]]
    ) -> None:
        for i, (row, all_of_them) in enumerate(zip(drawn, allowed, strict=True)):
            k, there = self.fanouts[hop], len(all_of_them)
            latest = self.case.strategy == "last" and self.case.time is not None
            repeats = self.case.replace and not latest and k >= 0
            assert len(row) == (there if k < 0 else k * (there > 0) if repeats else min(k, there))
            assert repeats or len(set(row)) == len(row)
            if not self.case.resample and not self.case.weighted:
                # A vertex has one order of its neighbours, of which each hop takes the first.
                fewer, more = sorted((earlier.get(i, []), row), key=len)
                assert repeats or len(more) == there or set(fewer) <= set(more)
                assert not repeats or more[: len(fewer)] == fewer
                earlier[i] = more
            if latest:
                times = sorted(self.time[e] for e in all_of_them)
                assert sorted(self.time[e] for e in row) == times[there - len(row) :]

    def _check_labor(self, drawn: list[Any], allowed: list[Any], hop: int, _: Any) -> None:
        k = self.fanouts[hop]
        for row, all_of_them in zip(drawn, allowed, strict=True):
            assert len(set(row)) == len(row)
            if k < 0 or len(all_of_them) <= k:
                assert sorted(row) == all_of_them
            if k == 0:
                assert not row

    def _check_layer(self, drawn: list[Any], allowed: list[Any], hop: int, _: Any) -> None:
        """So many vertices for all targets, and all edges between them."""
        k = self.fanouts[hop]
        candidates = {self.source[e] for row in allowed for e in row}
        chosen = {self.source[e] for row in drawn for e in row}
        if self.case.sampler == "ladies":
            assert len(chosen) == (len(candidates) if k < 0 else min(k, len(candidates)))
        else:
            assert k < 0 or len(chosen) <= k
            assert k >= 0 or chosen == candidates
        for row, all_of_them in zip(drawn, allowed, strict=True):
            assert sorted(row) == [e for e in all_of_them if self.source[e] in chosen]

    def _check_induced(
        self, drawn: list[Any], allowed: list[Any], nodes: list[int], trees: list[int], columns: int
    ) -> None:
        there = set(zip(trees[:columns], nodes[:columns], strict=True))
        for i, (row, all_of_them) in enumerate(zip(drawn, allowed, strict=True)):
            assert sorted(row) == [e for e in all_of_them if (trees[i], self.source[e]) in there]
        known = {(trees[i], nodes[i]) for i in range(len(drawn))}
        next_to = {(trees[i], self.source[e]) for i, row in enumerate(allowed) for e in row}
        assert there - known <= next_to


def check_fields(data: Any, batch: Batch) -> None:
    """The square form: all edges, each once, and what is known of vertices and edges."""
    source, target = batch.n_id[batch.edge_index]
    assert torch.equal(torch.stack((source, target)), data.edge_index[:, batch.e_id])
    for name in ("edge_attr", "edge_weight", "edge_time"):
        found = getattr(batch, name)
        assert found.dtype == data[name].dtype
        assert torch.equal(found, data[name][batch.e_id])
    for name in ("x", "time", "mask"):
        found = getattr(batch, name)
        assert found.dtype == data[name].dtype
        assert torch.equal(found, data[name][batch.n_id])
    assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.n_id)
    assert sum(batch.num_sampled_edges) == batch.num_edges == batch.edge_index.shape[1]
    if batch.batch is not None:
        a, b = batch.batch[batch.edge_index]
        assert torch.equal(a, b)


def sampler_of(case: Case, data: Any, fanouts: list[int]) -> Any:
    pattern = sampled_graph_of(data).structure
    options: dict[str, Any] = {"layers": len(fanouts), "edge_ids": True}
    return ClusterSampler(pattern, torch.arange(int(data.num_nodes)) // 3, **options)


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["empty", "bare", "loop", "small", "many", "hub"])
def test_every_combination(kind, turn):
    check_cases(kind, turn, CASES, sampler_of)


def check_cases(kind: str, turn: int, cases: list[Case], make: Any) -> None:
    """`make` makes samplers of subgraphs."""
    tried = 0
    for number, case in enumerate(cases):
        place = 5 * number + 3 * turn + len(kind)
        seeds = SEEDS[place % len(SEEDS)]
        if seeds == "repeated" and not case.has_trees:
            seeds = "list"
        data, rng = graph(kind, place), np.random.default_rng(place)
        fanouts = FANOUTS[(number + 4 * turn) % len(FANOUTS)]
        tried += check_case(data, case, fanouts, seeds, rng, make)
    assert tried == len(cases) or kind in ("empty", "bare")


def check_case(
    data: Any, case: Case, fanouts: list[int], seeds: str, rng: np.random.Generator, make: Any
) -> bool:
    subgraph = case.sampler in SUBGRAPHS
    given, vertices = inputs(data, seeds, rng)
    if case.sampler == "cluster":
        given = vertices = list(range((int(data.num_nodes) + 2) // 3))
    times = torch.from_numpy(rng.integers(0, 9, len(vertices)))
    by_vertex = case.time == "time" and bool(rng.integers(2))
    options: dict[str, Any] = {
        "batch_size": int(rng.integers(1, 5)),
        "shuffle": bool(rng.integers(2)),
        "num_workers": int(rng.integers(4)) // 3,
        "seed": int(rng.integers(9)),
        "replace": case.replace,
        "disjoint": case.disjoint,
        "subgraph_type": case.subgraph_type,
        "time_attr": case.time,
        "input_time": None if case.time is None or by_vertex else times,
        "temporal_strategy": case.strategy,
        "weight_attr": "edge_weight" if case.weighted else None,
        "resample": case.resample,
    }
    try:
        sampler = make(case, data, fanouts) if subgraph else case.sampler
    except InputError:
        assert not data.num_nodes  # there is nothing to draw
        return False
    loader = spgnn.NeighborLoader(data, fanouts, given, sampler=sampler, **options)
    reference, met = Reference(data, case, fanouts), []
    for batch in loader:
        check_fields(data, batch)
        if subgraph:
            check_subgraph(data, batch, case, loader, vertices)
            continue
        places = loader.order(0)[len(met) : len(met) + batch.batch_size].tolist()
        chosen = [vertices[i] for i in places]
        if isinstance(given, Tensor) and given.dtype == torch.bool:
            assert batch.input_id.tolist() == chosen  # as PyG's get_input_nodes
        else:
            assert batch.input_id.tolist() == places
        limits = data.time[chosen].tolist() if by_vertex else times[places].tolist()
        reference.check(batch, chosen, limits)
        met += places
    assert subgraph or sorted(met) == list(range(len(vertices)))
    return True


def check_subgraph(
    data: Any, batch: Batch, case: Case, loader: spgnn.NeighborLoader, vertices: list[int]
) -> None:
    """All edges between its vertices, each once; of clusters, all of theirs."""
    nodes = batch.n_id.tolist()
    assert len(set(nodes)) == len(nodes) == batch.batch_size
    inside = torch.isin(data.edge_index, batch.n_id).all(0)
    assert sorted(batch.e_id.tolist()) == inside.nonzero()[:, 0].tolist()
    for block in batch.layers:
        assert block.local_edges.attr is not None
        assert sorted(block.local_edges.attr.tolist()) == sorted(batch.e_id.tolist())
    if case.sampler == "cluster":
        chosen = batch.input_id.tolist()
        assert nodes == [v for c in chosen for v in range(int(data.num_nodes)) if v // 3 == c]
