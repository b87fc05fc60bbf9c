"""An encoder, a processor and a decoder between a grid and a coarser mesh of the sphere.

python experiments/halo/weather.py
torchrun --nproc-per-node 4 experiments/halo/weather.py
mpiexec -n 4 python experiments/halo/weather.py

As weather models have it (Keisler 2022; Lam et al., GraphCast, 2023): fields of the grid are
encoded on the mesh, processed there, and decoded. Grid and mesh are different sets of points, each
with owners of its own; three halos move what crosses between ranks. Losses are the same on any
number of processes.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

import spgnn
from spgnn.comm import Communicator
from spgnn.partition import morton


def sphere(points: int) -> np.ndarray:
    """Even points of the unit sphere, [points, 3]: a Fibonacci lattice."""
    number = np.arange(points) + 0.5
    height, angle = 1 - 2 * number / points, np.pi * (1 + 5**0.5) * number
    radius = np.sqrt(1 - height**2)
    return np.column_stack((radius * np.cos(angle), radius * np.sin(angle), height))


class Points:
    """Points of the whole sphere, and those of this rank."""

    def __init__(self, count: int, comm: Communicator) -> None:
        self.everyone = sphere(count)
        self.owner = morton(self.everyone, comm.size)
        self.ids = np.flatnonzero(self.owner == comm.rank)
        self.own = torch.from_numpy(self.everyone[self.ids])


class Edges:
    """Edges to each own target from its nearest sources, with the way between them."""

    def __init__(self, sources: Points, targets: Points, degree: int, comm: Communicator) -> None:
        near = cKDTree(sources.everyone).query(targets.everyone[targets.ids], degree)[1]
        pairs = np.stack((near.ravel(), np.repeat(targets.ids, degree)))
        self.halo = spgnn.Halo.build(
            torch.from_numpy(pairs), sources.owner, comm, target_owner=targets.owner
        )
        starts, ends = self.halo.local_edge_index
        self.way = self.halo(sources.own)[starts] - targets.own[ends]


class Interaction(nn.Module):
    """Messages along edges, added at targets (Battaglia et al., 2018)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(
            nn.Linear(2 * width + 3, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, x: Tensor, y: Tensor, edges: Edges) -> Tensor:
        """From own sources x and own targets y to own targets."""
        starts, ends = edges.halo.local_edge_index
        messages = self.edge(torch.cat((edges.halo(x)[starts], y[ends], edges.way), dim=1))
        total = torch.zeros_like(y).index_add(0, ends, messages)
        moved: Tensor = y + self.node(torch.cat((y, total), dim=1))
        return moved


class Weather(nn.Module):
    """Fields of the grid, some time later."""

    def __init__(self, fields: int, width: int = 16, rounds: int = 3) -> None:
        super().__init__()
        self.grid, self.mesh = nn.Linear(fields + 3, width), nn.Linear(3, width)
        self.encoder, self.decoder = Interaction(width), Interaction(width)
        self.processor = nn.ModuleList(Interaction(width) for _ in range(rounds))
        self.fields = nn.Linear(width, fields)

    def forward(self, x: Tensor, grid: Points, mesh: Points, ways: tuple[Edges, ...]) -> Tensor:
        """Own rows to own rows, [own grid points, fields]."""
        down, along, up = ways
        on_grid = self.grid(torch.cat((x, grid.own), dim=1))
        on_mesh = self.encoder(on_grid, self.mesh(mesh.own), down)
        for round_ in self.processor:
            on_mesh = round_(on_mesh, on_mesh, along)
        later: Tensor = x + self.fields(self.decoder(on_mesh, on_grid, up))
        return later


def losses(
    comm: Communicator, grid_points: int = 600, mesh_points: int = 150, steps: int = 8
) -> Iterator[float]:
    """Losses of some steps, as they come. Collective."""
    grid, mesh = Points(grid_points, comm), Points(mesh_points, comm)
    ways = Edges(grid, mesh, 8, comm), Edges(mesh, mesh, 6, comm), Edges(mesh, grid, 3, comm)
    # Smooth fields, which the wind turns around the axis.
    waves = np.random.default_rng(0).standard_normal((2, 3, 4))

    def fields(time: float) -> Tensor:
        turn = np.array([[np.cos(time), -np.sin(time)], [np.sin(time), np.cos(time)]])
        places = grid.everyone[grid.ids].copy()
        places[:, :2] = places[:, :2] @ turn
        return torch.from_numpy(np.sin(places @ waves[0] * 2) * np.cos(places @ waves[1]))

    torch.manual_seed(0)
    model = Weather(fields=4).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for step in range(steps):
        guess = model(fields(0.1 * step), grid, mesh, ways)
        loss = (guess - fields(0.1 * step + 0.2)).square().sum() / grid_points
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # losses are shares that add up
            assert parameter.grad is not None
            comm.all_reduce(parameter.grad).wait()
        optimizer.step()
        total = loss.detach().clone()
        comm.all_reduce(total).wait()
        yield float(total)


def main() -> None:
    """Print the losses."""
    comm = spgnn.connect()
    for step, loss in enumerate(losses(comm, 10_000, 1500, 60)):
        if comm.rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss:.5f}", flush=True)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
