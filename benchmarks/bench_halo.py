"""Halos of points in space: seconds to plan again where edges change, and rows that move.

    python benchmarks/bench_halo.py plan [--vertices N] [--degree D] [--ranks P] [--changed SHARE]
    SPGNN_DATA=DIR python benchmarks/bench_halo.py rows [--parts K] [--points N] [--sets NAME,…]

`plan` gives that share of the edges of a neighbour list another source before each plan, and prints
wall seconds of all ranks together and CPU seconds of each, for ids in contiguous pieces and for
labels of a curve through the points. `rows` prints the rows that one exchange moves under gvb,
Morton's curve and contiguous ids, on meshes and clouds of points.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import chain
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from partition_graphs import load
from scipy.spatial import Delaunay, cKDTree

from spgnn import Halo, RowLayout, connect
from spgnn.partition import morton, partition
from spgnn.testing import run_ranks

PLANS = 11
WARM_UP = 3  # plans that take memory from the system


def lattice(vertices: int) -> npt.NDArray[np.int64]:
    """Points of a cube, [vertices, 3]: about so many."""
    side = round(vertices ** (1 / 3))
    return np.stack(np.unravel_index(np.arange(side**3), (side,) * 3), axis=1)


def neighbours(points: npt.NDArray[np.int64], own: torch.Tensor, degree: int) -> torch.Tensor:
    """Edges to own points from the nearest ones of the cube, int64 [2, own · degree]."""
    side = round(len(points) ** (1 / 3))
    reach = np.stack(np.meshgrid(*[np.arange(-3, 4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    nearest = reach[np.argsort((reach**2).sum(1), kind="stable")[1 : degree + 1]]
    places = (points[own.numpy(), None] + nearest) % side
    sources = np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), (side,) * 3)
    return torch.stack((torch.from_numpy(sources.ravel()), own.repeat_interleave(degree)))


def plans(
    rank: int, vertices: int, degree: int, changed: float
) -> list[tuple[str, int, float, float]]:
    """By kind of owners: its name, rows received, wall seconds, CPU seconds of this rank."""
    comm = connect()
    points = lattice(vertices)
    n, side = len(points), round(len(points) ** (1 / 3))
    found = []
    for name in ("contiguous", "morton"):
        if name == "morton":
            owner: RowLayout | torch.Tensor = torch.from_numpy(morton(points, comm.size))
            own = torch.nonzero(owner == rank)[:, 0]
        else:
            owner = RowLayout.even(n, comm.size)
            own = torch.arange(*owner.range(rank))
        edges = neighbours(points, own, degree)
        halo = Halo.build(edges, owner, comm)
        draw = np.random.default_rng(rank)
        count = int(changed * edges.shape[1])
        wall, cpu = [], []
        for _ in range(PLANS + WARM_UP):
            which = torch.from_numpy(draw.integers(edges.shape[1], size=count))
            edges[0, which] = (edges[0, which] + side) % n
            comm.barrier()
            start, used = perf_counter(), process_time()
            halo.rebuild(edges)
            cpu.append(process_time() - used)
            comm.barrier()
            wall.append(perf_counter() - start)
        rows = comm.agree(halo.received, "sum")
        found.append((name, rows, median(wall[WARM_UP:]), median(cpu[WARM_UP:])))
    return found


def print_plans(options: argparse.Namespace) -> None:
    ranks = run_ranks(plans, options.ranks, options.vertices, options.degree, options.changed)
    edges = options.vertices * options.degree
    print(f"{options.vertices:,} vertices, {edges:,} edges, {options.ranks} ranks,")
    print(f"{100 * options.changed:g} % of the edges changed; medians of {PLANS} plans\n")
    print("| owners | rows received | seconds, all ranks | CPU seconds, busiest rank | mean rank |")
    print("|---|---|---|---|---|")
    for kind in zip(*ranks, strict=True):
        name, rows, wall, _ = kind[0]
        cpu = [each[3] for each in kind]
        mean = sum(cpu) / len(cpu)
        print(f"| {name} | {rows:,} | {wall:.3f} | {max(cpu):.3f} | {mean:.3f} |")


def near(points: npt.NDArray[np.float64], degree: int) -> sp.csr_array:
    """The graph of the nearest neighbours."""
    n, found = len(points), cKDTree(points).query(points, degree + 1)[1]
    return graph(n, np.repeat(np.arange(n), degree), found[:, 1:].ravel())


def within(points: npt.NDArray[np.float64], degree: int) -> sp.csr_array:
    """The graph of all neighbours in a radius, of about so many."""
    tree = cKDTree(points)
    # What lies within that radius of a point inside a box of volume 1.
    volume = {2: np.pi, 3: 4 / 3 * np.pi}[points.shape[1]]
    radius = (degree / len(points) / volume) ** (1 / points.shape[1])
    pairs = tree.query_pairs(radius, output_type="ndarray")
    return graph(len(points), *np.concatenate((pairs, pairs[:, ::-1])).T)


def graph(n: int, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> sp.csr_array:
    A = sp.csr_array((np.ones(len(rows), bool), (rows, columns)), shape=(n, n))
    A.sum_duplicates()
    return A


def clouds(n: int) -> Iterator[tuple[str, npt.NDArray[np.float64], sp.csr_array]]:
    """Points in order of their first coordinate, so that contiguous ids are slabs; and graphs."""
    draw = np.random.default_rng(0)
    sphere = draw.standard_normal((n, 3))
    # A molecule in water: a dense lump, thin surroundings.
    lump = np.concatenate((draw.normal(0.5, 0.03, (n // 2, 3)), draw.random((n - n // 2, 3))))
    for name, points in (
        ("box, 30 in a radius", draw.random((n, 3))),
        ("lump, 16 nearest", lump),
        ("sphere, 8 nearest", sphere / np.linalg.norm(sphere, axis=1, keepdims=True)),
        ("plane, 24 in a radius", draw.random((n, 2))),
        ("plane, triangles, finer in a corner", draw.random((n, 2)) ** 2),
    ):
        ordered = points[np.argsort(points[:, 0])]
        if "radius" in name:
            A = within(ordered, int(name.split()[1]))
        elif "nearest" in name:
            A = near(ordered, int(name.split()[1]))
        else:
            triangles = Delaunay(ordered).simplices
            ends = np.concatenate([triangles[:, [i, (i + 1) % 3]] for i in range(3)])
            A = graph(n, *np.concatenate((ends, ends[:, ::-1])).T)
        yield name, ordered, A


def print_rows(options: argparse.Namespace) -> None:
    print(f"Rows of one exchange, {options.parts} parts; gvb as a share of the others\n")
    print("| graph | vertices | edges | contiguous | morton | gvb | of contiguous | of morton |")
    print("|---|---|---|---|---|---|---|---|")
    shares: list[tuple[float, float | None]] = []
    sets = ((name, None, load(name)) for name in options.sets.split(",") if name)
    for name, points, A in chain(sets, clouds(options.points)):

        def moved(method: str, A: Any = A, **more: Any) -> int:
            return int(
                partition(A, options.parts, method, minimum=False, **more)[1]["total_volume"]
            )

        contiguous, gvb = moved("block"), moved("gvb")
        curve = None if points is None else moved("morton", positions=points)
        shares.append((gvb / contiguous, None if curve is None else gvb / curve))
        by_curve = ("–", "–") if curve is None else (f"{curve:,}", f"{gvb / curve:.2f}")
        print(
            f"| {name} | {A.shape[0]:,} | {A.nnz:,} | {contiguous:,} | {by_curve[0]} | {gvb:,} | "
            f"{gvb / contiguous:.2f} | {by_curve[1]} |",
            flush=True,
        )
    by_piece = median(piece for piece, _ in shares)
    by_curves = median(share for _, share in shares if share is not None)
    print(f"| median | | | | | | {by_piece:.2f} | {by_curves:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("plan", "rows"))
    parser.add_argument("--vertices", type=int, default=10**6)
    parser.add_argument("--degree", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--changed", type=float, default=0.05)
    parser.add_argument("--parts", type=int, default=16)
    parser.add_argument("--sets", default="4elt,wave,ribosome-4v5a", help="without positions")
    parser.add_argument("--points", type=int, default=100_000)
    options = parser.parse_args()
    (print_plans if options.what == "plan" else print_rows)(options)


if __name__ == "__main__":
    main()
