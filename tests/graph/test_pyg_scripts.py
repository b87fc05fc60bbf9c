"""Scripts of PyG's users on three ranks: how few lines change, and the same losses and scores."""

from __future__ import annotations

import difflib
import random
from typing import Any

import pytest
import torch

from spgnn.testing import run_ranks

pytest.importorskip("torch_geometric")

VERTICES = """
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(8, 8)
        self.conv2 = GCNConv(8, classes)

    def forward(self, x, edge_index):
        return self.conv2(F.elu(self.conv1(x, edge_index)), edge_index)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)

def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss.detach())

@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    accs = []
    for _, mask in data("train_mask", "val_mask", "test_mask"):
        accs.append(int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()))
    return accs

for epoch in range(1, 4):
    loss = train()
    log(loss, *test())
"""
VERTICES_CHANGES = {
    "import torch\n": "import spgnn\nimport torch\n",
    "optimizer = ": "data = spgnn.distribute(data, model=model)\noptimizer = ",
    "int((pred[mask] == data.y[mask]).sum()) / int(mask.sum())": (
        "float(data.mean(pred == data.y, mask))"
    ),
}
LINKS = """
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
LINKS_CHANGES = {
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
# The script, what changes, and how many lines that may be.
SCRIPTS = {"gcn": (VERTICES, VERTICES_CHANGES, 3), "links": (LINKS, LINKS_CHANGES, 8)}
N, CLASSES = 60, 4


def names(kind: str) -> dict[str, Any]:
    """What a script finds: data sets instead of downloads, and draws that all ranks share."""
    from torch_geometric.data import Data
    from torch_geometric.utils import negative_sampling, to_undirected

    draw = torch.Generator().manual_seed(1)
    y = torch.randint(0, CLASSES, (N,), generator=draw)
    ends = torch.randint(0, N, (2, 600), generator=draw)
    keep = (y[ends[0]] == y[ends[1]]) | (torch.rand(600, generator=draw) < 0.2)
    edges = to_undirected(ends[:, keep])
    data = Data(x=torch.randn(N, 8, generator=draw) + y[:, None], edge_index=edges, num_nodes=N)
    split = torch.rand(N, generator=draw)
    found: dict[str, Any] = {"classes": CLASSES, "data": data}
    if kind == "links":
        found["dataset"] = [[data.clone(), data.clone(), data.clone()]]
        pairs = edges[:, ::2], edges[:, :40], edges
        for part, links in zip(found["dataset"][0], pairs, strict=True):
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

        found |= {"negatives": negatives, "roc_auc_score": roc_auc_score}
    else:
        data.y, data.train_mask, data.test_mask = y, split < 0.4, split > 0.6
        data.val_mask = ~(data.train_mask | data.test_mask)
    return found


def logged(kind: str, text: str) -> tuple[list[tuple[float, ...]], Any]:
    """What a script logs, and the pairs that it finds at its end."""
    lines: list[tuple[float, ...]] = []
    space = names(kind) | {"log": lambda *numbers: lines.append(numbers)}
    exec(text, space)
    return lines, space.get("final_edge_index")


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def changed_lines(text: str, other: str) -> int:
    """Lines that are new or different: a replaced one counts once."""
    lines = [line[:2] for line in difflib.ndiff(text.splitlines(), other.splitlines())]
    return lines.count("+ ")


def check(rank: int) -> None:
    torch.set_num_threads(1)
    for kind, (text, changes, _) in SCRIPTS.items():
        expected, every = logged(kind, text)
        result, mine = logged(kind, changed(text, changes))
        torch.testing.assert_close(torch.tensor(result), torch.tensor(expected), msg=kind)
        if rank == 0 and every is not None:
            assert torch.equal(mine, every)


@pytest.mark.filterwarnings("ignore")
def test_scripts_of_pyg_change_few_lines_and_no_numbers():
    for text, changes, most in SCRIPTS.values():
        assert changed_lines(text, changed(text, changes)) <= most
    run_ranks(check, 3)
