"""Graphs of several vertex types for tests: three schemas, with odd types and relations."""

from __future__ import annotations

import torch
from torch_geometric.data import HeteroData

# Vertices and widths of each type; edges of each relation.
SCHEMAS = {
    "papers": (
        {"paper": (60, 17), "author": (41, 5), "venue": (7, 3)},
        {
            ("paper", "cites", "paper"): 150,
            ("author", "writes", "paper"): 120,
            ("paper", "rev_writes", "author"): 120,
            ("paper", "in", "venue"): 60,
            ("venue", "rev_in", "paper"): 60,
        },
    ),
    "fraud": (
        {"user": (50, 24), "device": (30, 4), "card": (33, 6), "shop": (4, 2), "order": (70, 9)},
        {
            ("user", "places", "order"): 70,
            ("order", "rev_places", "user"): 70,
            ("device", "used_for", "order"): 90,
            ("order", "rev_used_for", "device"): 90,
            ("card", "pays", "order"): 70,
            ("order", "rev_pays", "card"): 70,
            ("order", "at", "shop"): 70,
            ("shop", "rev_at", "order"): 70,
            ("user", "knows", "user"): 80,
            ("shop", "never", "card"): 0,
        },
    ),
    "chain": (
        {f"t{i}": (3 + 9 * (i % 4), 2 + 5 * (i % 3)) for i in range(8)},
        {(f"t{i}", "next", f"t{(i + 1) % 8}"): 40 for i in range(8)}
        | {("t3", "self", "t3"): 25, ("t0", "skips", "t4"): 12},
    ),
}


def hetero(name: str, seed: int = 0, width: int | None = None) -> HeteroData:
    """A graph of a schema; vertices without edges and repeated edges are among them."""
    types, relations = SCHEMAS[name]
    drawn = torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind, (size, own) in types.items():
        data[kind].x = torch.randn(size, width or own, generator=drawn).double()
    for relation, edges in relations.items():
        ends = [types[relation[0]][0], types[relation[2]][0]]
        index = torch.stack([torch.randint(n, (edges,), generator=drawn) for n in ends])
        data[relation].edge_index = index
        data[relation].edge_attr = torch.randn(edges, 3, generator=drawn).double()
    aim = next(iter(types))
    data[aim].y = torch.randint(4, (types[aim][0],), generator=drawn)
    data[aim].train_mask = torch.rand(types[aim][0], generator=drawn) < 0.5
    data[aim].train_mask[0] = True
    return data
