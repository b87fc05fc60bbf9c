"""Graphs for the GPU suite, drawn where they are used: no file, no network, seconds in all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from spgnn import CSR

Edges = tuple[Tensor, Tensor]  # both ends, in any order, with duplicates


def symmetric(edges: Edges, vertices: int) -> CSR:
    """The undirected 0/1 adjacency with self-loops."""
    one, other = (end.long() for end in edges)
    diagonal = torch.arange(vertices, device=one.device)
    keys = torch.cat((one * vertices + other, other * vertices + one, diagonal * (vertices + 1)))
    keys = keys.unique()
    rows = keys.div(vertices, rounding_mode="floor")
    indptr = torch.zeros(vertices + 1, dtype=torch.int64, device=keys.device)
    indptr[1:] = rows.bincount(minlength=vertices).cumsum(0)
    return CSR.of(indptr, (keys - rows * vertices).int(), (vertices, vertices))


def rmat(scale: int, degree: int, generator: torch.Generator) -> Edges:
    """R-MAT of 2^scale vertices, with the probabilities of Graph500."""
    count = degree << scale >> 1
    ends = torch.zeros(2, count, dtype=torch.int32, device=generator.device)
    for _ in range(scale):
        draw = torch.rand(count, generator=generator, device=generator.device)
        ends *= 2
        ends[0] += draw >= 0.76
        ends[1] += ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
    return ends[0], ends[1]


def uniform(vertices: int, degree: int, generator: torch.Generator) -> Edges:
    """Both ends of each edge anywhere."""
    size, where = (2, vertices * degree // 2), generator.device
    one, other = torch.randint(vertices, size, generator=generator, device=where)
    return one, other


def communities(vertices: int, degree: int, size: int, generator: torch.Generator) -> Edges:
    """Vertices in groups of neighbours in memory; four of five edges stay in a group.

    One end is drawn with skewed degrees, as 1 over the square root of the place in the group.
    """
    count, where = vertices * degree // 2, generator.device
    draw = partial(torch.rand, count, generator=generator, device=where)
    groups = vertices // size
    own = (draw() * groups).long()
    away = torch.where(draw() < 0.8, own, (draw() * groups).long())
    place = (draw().square() * size).long()
    return own * size + place, away * size + (draw() * size).long()


def mesh(side: int, dimensions: int, reach: int, generator: torch.Generator) -> Edges:
    """A grid; neighbours differ by at most 1 in each of at most `reach` directions."""
    where = generator.device
    at = torch.arange(side**dimensions, device=where)
    coordinates = [at // side**d % side for d in range(dimensions)]
    ends: list[Edges] = []
    for code in range(3**dimensions // 2):  # the other half are these, backwards
        step = [code // 3**d % 3 - 1 for d in range(dimensions)]
        if sum(map(abs, step)) > reach:
            continue
        inside = torch.ones_like(at, dtype=torch.bool)
        for x, s in zip(coordinates, step, strict=True):
            inside &= (x + s >= 0) & (x + s < side)
        here = at[inside]
        ends.append((here, here + sum(s * side**d for d, s in enumerate(step))))
    return torch.cat([one for one, _ in ends]), torch.cat([other for _, other in ends])


# Vertices, and what draws the edges; nonzeros are about those of the comment, in millions.
GRAPHS: dict[str, tuple[int, Callable[[torch.Generator], Edges]]] = {
    "citations": (20_000, partial(uniform, 20_000, 14)),  # 0.3
    "arxiv": (169_984, partial(communities, 169_984, 14, 128)),  # 2.5
    "grid": (2**20, partial(mesh, 2**10, 2, 1)),  # 5, degree 4
    "rmat-17-32": (2**17, partial(rmat, 17, 32)),  # 4, hubs
    "mesh": (100**3, partial(mesh, 100, 3, 3)),  # 26, degree 26
    "rmat-20-32": (2**20, partial(rmat, 20, 32)),  # 32, hubs, many empty rows
    "uniform": (2**19, partial(uniform, 2**19, 32)),  # 17, no locality
    "products": (2**21, partial(communities, 2**21, 26, 512)),  # 55
    "reddit": (2**17, partial(communities, 2**17, 480, 4096)),  # 55, degree 420
}
QUICK = ("citations", "rmat-17-32")


def make(name: str, where: str) -> CSR:
    """One of `GRAPHS`; the same at every call on the same kind of device."""
    vertices, draw = GRAPHS[name]
    return symmetric(draw(torch.Generator(where).manual_seed(1)), vertices)


def shape_of(A: CSR) -> str:
    """Rows, nonzeros and longest row, in words."""
    lengths = A.indptr.diff()
    return f"{A.shape[0]:,} rows, {A.nnz:,} nonzeros, {int(lengths.max()):,} in the longest row"
