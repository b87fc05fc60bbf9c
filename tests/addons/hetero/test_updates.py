"""Graphs of several vertex types that change: what an update makes is what the new data makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

import spgnn
from spgnn import InputError
from spgnn.addons.hetero import HeteroConv
from spgnn.nn import SAGEConv
from spgnn.testing import run_ranks

WRITES, CITES, OF = (
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "of", "area"),
)
WIDTHS = {"author": 3, "paper": 5, "area": 2}


class Changing:
    """Vertices and edges by id, and updates drawn for them: what ranks should have."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.x = {name: self.rows(name, n) for name, n in zip(WIDTHS, (12, 20, 4), strict=True)}
        self.edges = {name: self.draw(name, 25) for name in (WRITES, CITES, OF)}

    def rows(self, name: str, count: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal((count, WIDTHS[name])))

    def draw(self, name: tuple[str, str, str], count: int, there: object = ()) -> dict:
        edges = {}
        while len(edges) < count:
            edge = tuple(int(self.rng.integers(len(self.x[end]))) for end in name[::2])
            if edge not in there:
                edges[edge] = self.rng.random(2).tolist()
        return edges

    def data(self) -> HeteroData:
        data = HeteroData()
        for name, x in self.x.items():
            data[name].x = x.clone()
            data[name].train_mask = torch.zeros(len(x), dtype=torch.bool)
        for name, edges in self.edges.items():
            data[name].edge_index = torch.tensor(list(edges)).T
            data[name].edge_attr = torch.tensor(list(edges.values())).double()
        return data

    def step(self, rank: int, ranks: int) -> dict:
        """New vertices of two types, rows, edges that come and go; a rank passes any of it."""
        given: dict = {"add_nodes": {}, "x": {}, "add_edges": {}, "drop_edges": {}, "edge_attr": {}}
        mine = slice(rank, None, ranks)
        for name in ("author", "paper"):
            first = len(self.x[name])
            new, ids = torch.arange(first, first + 2), torch.tensor([1, first, first + 1])
            rows = self.rows(name, 3)
            self.x[name] = torch.cat((self.x[name], rows[1:]))
            self.x[name][1] = rows[0]
            given["add_nodes"][name] = new[mine]
            given["x"][name] = ids[mine], rows[mine]
        for name, edges in self.edges.items():
            drop = [list(edges)[i] for i in self.rng.choice(len(edges), 4, replace=False)]
            add = self.draw(name, 6, edges)
            self.edges[name] = {e: a for e, a in edges.items() if e not in drop} | add
            given["drop_edges"][name] = torch.tensor(drop[mine]).reshape(-1, 2).T
            given["add_edges"][name] = torch.tensor(list(add)[mine]).reshape(-1, 2).T
            given["edge_attr"][name] = (
                torch.tensor(list(add.values())[mine]).reshape(-1, 2).double()
            )
        return given


def shown(graph: object, model: torch.nn.Module, *, halo: bool) -> dict:
    """All that ranks have of a graph, in the order of ids."""
    with torch.no_grad():
        outputs = model(graph.x_dict, graph)
    result = {name: graph[name].gather(rows) for name, rows in outputs.items()}
    result |= {f"x {name}": graph[name].gather(graph[name].x) for name in WIDTHS}
    for name in (WRITES, CITES, OF) if halo else ():
        source, target = graph[name[0]], graph[name[2]]
        index = graph[name].local_edge_index
        ends = source.halo(source.vertex_ids)[index[0]], target.vertex_ids[index[1]]
        rows = torch.cat((torch.stack(ends, 1).double(), graph[name].edge_attr), 1)
        rows = target.all_gather(rows)
        result[name] = rows[np.lexsort(rows[:, :2].T.numpy())]
    return result


@pytest.mark.parametrize("ranks", [1, 3])
def test_updates_of_several_types(ranks):
    """With new vertices, features of edges; halos of all, and a plan of each relation."""
    torch.manual_seed(0)
    layers = {r: SAGEConv((WIDTHS[r[0]], WIDTHS[r[2]]), 4) for r in (WRITES, CITES, OF)}
    model = HeteroConv(layers).double()

    def body(rank: int) -> None:
        for cover in ("column", "minimum"):
            ours = Changing(3)
            graph = spgnn.distribute(ours.data(), partition="random", cover=cover)
            for version in (1, 2):
                assert graph.update(**ours.step(rank, ranks)) == version == graph.version
                new = spgnn.distribute(ours.data(), partition="random", cover=cover)
                assert (graph.num_edges, graph.num_nodes) == (new.num_edges, new.num_nodes)
                mine, theirs = (shown(g, model, halo=cover == "column") for g in (graph, new))
                for name, rows in mine.items():
                    torch.testing.assert_close(rows, theirs[name], msg=f"{cover} {name}")
                marks = graph["paper"].train_mask
                assert len(marks) == graph["paper"].own_rows
                assert not marks.any()

    run_ranks(body, ranks)


BAD = [
    ({"add_edges": {("paper", "cites", "author"): [[0], [1]]}}, "no relation 'paper cites author'"),
    ({"add_edges": {"paper": [[0], [1]]}}, "add_edges is given by relation, got 'paper'"),
    ({"add_nodes": {CITES: [20]}}, "add_nodes is given by vertex type"),
    ({"add_edges": {CITES: [[0], [99]]}, "edge_attr": {CITES: [[0.0, 0.0]]}}, "no vertex 99"),
    ({"add_nodes": {"area": [5]}}, "new vertices of 'area' are called 4 to 4, each once, got 5"),
    ({"add_nodes": {"area": [4]}}, "x of the new vertex 4 of 'area' is missing"),
    ({"add_edges": {OF: [[0], [0]]}}, "edges is missing, [2] each (of 'paper of area')"),
    ({"x": {"area": ([0], torch.zeros(1, 3).double())}}, "x must be float64 [1, 2]"),
    ({"pos": {"area": ([0], torch.zeros(1, 3))}}, "the graph has no pos (of 'area')"),
    ({"x": [1]}, "x is a dictionary by relation or type, got a list"),
]  # fmt: skip


def test_bad_updates_of_types_are_one_line_on_every_rank():
    def body(rank: int) -> list[str]:
        ours = Changing(4)
        graph = spgnn.distribute(ours.data(), partition="random")
        edge = torch.tensor(list(ours.edges[CITES])[:1]).T
        again = {"add_edges": {CITES: edge}, "edge_attr": {CITES: torch.zeros(1, 2).double()}}
        lines = []
        for given, _ in [*BAD, (again, ""), ({"drop_edges": {OF: [[0, 0], [3, 3]]}}, "")]:
            with pytest.raises(InputError) as error:
                graph.update(**given if rank == 1 else {})
            lines.append(str(error.value))
        assert graph.version == 0
        return lines

    for lines in run_ranks(body, 2):
        words = [*(one for _, one in BAD), "is there already", "is given twice"]
        for one, line in zip(words, lines, strict=True):
            assert one in line
            assert "\n" not in line
