"""A script of PyG's users on three ranks: how few lines change, and the same losses and scores."""

from __future__ import annotations

import difflib
import random
from typing import Any

import pytest
import torch

from spgnn.testing import run_ranks

pytest.importorskip("torch_geometric")

SCRIPT = """
import torch
from torch_geometric.nn import GCNConv

torch.manual_seed(0)
train_data, val_data, test_data = dataset[0]

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(8, 16)
        self.conv2 = GCNConv(16, 8)

    def encode(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def decode(self, z, edge_label_index):
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)

    def decode_all(self, z):
        return (z @ z.t() > 0).nonzero(as_tuple=False).t()

model = Net()
optimizer = torch.optim.Adam(params=model.parameters(), lr=0.01)
criterion = torch.nn.BCEWithLogitsLoss()

def train():
    model.train()
    optimizer.zero_grad()
    z = model.encode(train_data.x, train_data.edge_index)
    neg_edge_index = negatives(train_data.edge_index, train_data.edge_label_index.size(1))
    edge_label_index = torch.cat([train_data.edge_label_index, neg_edge_index], dim=-1)
    edge_label = torch.cat([
        train_data.edge_label,
        train_data.edge_label.new_zeros(neg_edge_index.size(1)),
    ], dim=0)
    out = model.decode(z, edge_label_index).view(-1)
    loss = criterion(out, edge_label)
    loss.backward()
    optimizer.step()
    return float(loss.detach())

@torch.no_grad()
def test(data):
    model.eval()
    z = model.encode(data.x, data.edge_index)
    out = model.decode(z, data.edge_label_index).view(-1).sigmoid()
    return roc_auc_score(data.edge_label.numpy(), out.numpy())

for epoch in range(1, 4):
    loss = train()
    log(loss, test(val_data), test(test_data))

with torch.no_grad():
    z = model.encode(test_data.x, test_data.edge_index)
    final_edge_index = model.decode_all(z)
"""
CHANGES = {
    "import torch\n": "import spgnn\nimport torch\n",
    "optimizer = torch": (
        "graph, val_data, test_data = [spgnn.distribute(d, model=model) for d in dataset[0]]\n"
        "optimizer = torch"
    ),
    "z = model.encode(train_data.x, train_data.edge_index)": (
        "z = model.encode(graph.x, graph.edge_index)"
    ),
    "    out = model.decode(z, edge_label_index).view(-1)\n": (
        "    edge_label_index, edge_label = graph.pairs(edge_label_index, edge_label)\n"
        "    out = model.decode(z, edge_label_index).view(-1)\n"
    ),
    "roc_auc_score(data.edge_label.numpy(), out.numpy())": (
        "roc_auc_score(data.all_gather(data.edge_label), data.all_gather(out))"
    ),
    "    z = model.encode(test_data.x, test_data.edge_index)\n": (
        "    z = test_data.gather(model.encode(test_data.x, test_data.edge_index))\n"
    ),
    "final_edge_index = model": "final_edge_index = None if z is None else model",
}
N = 60


def names() -> dict[str, Any]:
    """What a script finds: data sets instead of downloads, and draws that all ranks share."""
    from torch_geometric.data import Data
    from torch_geometric.utils import negative_sampling, to_undirected

    draw = torch.Generator().manual_seed(1)
    y = torch.randint(0, 4, (N,), generator=draw)
    ends = torch.randint(0, N, (2, 600), generator=draw)
    keep = (y[ends[0]] == y[ends[1]]) | (torch.rand(600, generator=draw) < 0.2)
    edges = to_undirected(ends[:, keep])
    data = Data(x=torch.randn(N, 8, generator=draw) + y[:, None], edge_index=edges, num_nodes=N)
    parts, pairs = [data.clone() for _ in range(3)], (edges[:, ::2], edges[:, :40], edges)
    for part, links in zip(parts, pairs, strict=True):
        part.edge_label_index, part.edge_label = links, torch.ones(links.shape[1])
        if links is not pairs[0]:
            others = torch.randint(0, N, links.shape, generator=draw)
            part.edge_label_index = torch.cat((links, others), 1)
            part.edge_label = torch.cat((part.edge_label, torch.zeros(links.shape[1])))

    def negatives(index: Any, count: int) -> Any:
        random.seed(0)
        torch.manual_seed(0)
        return negative_sampling(index, N, count, method="sparse")

    def roc_auc_score(labels: Any, scores: Any) -> float:
        labels, scores = torch.as_tensor(labels) > 0, torch.as_tensor(scores)
        above = scores[labels][:, None] - scores[~labels]
        return float(((above > 0).double() + (above == 0) / 2).mean())

    return {"dataset": [parts], "negatives": negatives, "roc_auc_score": roc_auc_score}


def logged(text: str) -> tuple[list[tuple[float, ...]], Any]:
    """What a script logs, and the pairs that it finds at its end."""
    lines: list[tuple[float, ...]] = []
    space = names() | {"log": lambda *numbers: lines.append(numbers)}
    exec(text, space)
    return lines, space["final_edge_index"]


def changed() -> str:
    text = SCRIPT
    for old, new in CHANGES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def check(rank: int) -> None:
    torch.set_num_threads(1)
    expected, every = logged(SCRIPT)
    result, mine = logged(changed())
    torch.testing.assert_close(torch.tensor(result), torch.tensor(expected))
    if rank == 0:
        assert torch.equal(mine, every)


@pytest.mark.filterwarnings("ignore")
def test_a_script_of_pyg_changes_few_lines_and_no_numbers():
    # Lines that are new or different: a replaced one counts once.
    lines = difflib.ndiff(SCRIPT.splitlines(), changed().splitlines())
    assert sum(line.startswith("+ ") for line in lines) <= 8
    run_ranks(check, 3)
