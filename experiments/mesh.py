"""Learn one step of diffusion on a mesh: encoder, interaction network whose edges learn, decoder.

Losses are the same on any number of ranks:

    torchrun --nproc-per-node 4 experiments/mesh.py
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp
import scipy.spatial
import torch
from torch import Tensor, nn

import spgnn
from spgnn.data import Graph


def mesh(points: int) -> Graph:
    """Random points of a square, triangulated; u at its vertices, and what it changes by.

    An edge has the vector between its ends and its length; closer neighbours exchange more.
    """
    rng = np.random.default_rng(0)
    at = rng.random((points, 2))
    corners = scipy.spatial.Delaunay(at).simplices
    pairs = np.concatenate([corners[:, [a, b]] for a in range(3) for b in range(3) if a != b])
    A = sp.csr_array((np.ones(len(pairs), np.float32), pairs.T), shape=(points, points))
    A.sum_duplicates()
    A.sort_indices()
    target = np.repeat(np.arange(points), np.diff(A.indptr))
    between = at[A.indices] - at[target]
    length = np.linalg.norm(between, axis=1, keepdims=True)
    u = np.sin(6 * at[:, :1]) * np.cos(4 * at[:, 1:])
    flow = (u[A.indices] - u[target]) / (1 + points**0.5 * length)
    change = np.zeros_like(u)
    np.add.at(change, target, flow)
    numbers = np.concatenate((between, length), 1) * points**0.5
    return Graph(
        "mesh",
        spgnn.CSR.from_scipy(A).with_values(None),
        directed=False,
        x=torch.from_numpy(np.float32(u)),
        y=torch.from_numpy(np.float32(change / change.std())),
        edge_attr=torch.from_numpy(np.float32(numbers)),
    )


class MeshGraphNet(nn.Module):
    """Encoder, processor, decoder (Pfaff et al. 2021).

    Parameters
    ----------
    width : int
        Of vertices and edges between encoder and decoder.
    steps : int
        Interaction networks.
    """

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.vertices, self.edges = nn.Linear(1, width), nn.Linear(3, width)
        self.steps = nn.ModuleList(spgnn.nn.InteractionNetwork(width) for _ in range(steps))
        self.decoder = nn.Linear(width, 1)

    def forward(self, x: Tensor, graph: spgnn.DistGraph) -> Tensor:
        """X [own rows, 1] to what it changes by [own rows, 1]. Collective."""
        H, E = self.vertices(x), self.edges(graph.edge_attr)
        for step in self.steps:
            H, E = step(H, graph, E)
        out: Tensor = self.decoder(H)
        return out


def main() -> None:
    """Train, and print the loss of each tenth epoch on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=151)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = MeshGraphNet(options.width, options.steps)
    graph = spgnn.distribute(mesh(options.points), model=model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    y = torch.as_tensor(graph.y)
    nothing = graph.mean(y.square()[:, 0]).item()
    if graph.comm.rank == 0:
        print(f"predicting nothing: loss {nothing:.5f}", flush=True)
    for epoch in range(options.epochs):
        loss = graph.mean((model(graph.x, graph) - y).square()[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if graph.comm.rank == 0 and epoch % 10 == 0:
            print(f"epoch {epoch}: loss {loss.item():.5f}", flush=True)


if __name__ == "__main__":
    main()
