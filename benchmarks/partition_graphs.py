"""The graphs of the partition benchmark, symmetrised and with self-loops, as SciPy patterns.

`TUNED` are those that gvb's constants were chosen on; `HELD_OUT` were never used for that.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from scipy.spatial import Delaunay, cKDTree

from spgnn.data.generators import block_model
from spgnn.data.generators import rmat as renumbered_rmat

TUNED = (
    "4elt,luxembourg-osm,finan512,amazon-computers,coauthor-physics,nell,crates,tolokers,wave,"
    "soc-slashdot0902,uk-2007-05-100k,cnr-2000-llp,rmat16,reddit-sayit,ribosome-4v5a"
)
QUICK = "4elt,amazon-computers,coauthor-physics,nell"

Ends = npt.NDArray[np.int64]  # one edge per row


def load(name: str, *, directed: bool = False) -> sp.csr_array:
    """The pattern of a graph and, unless `directed`, its transpose, with self-loops.

    Names that end in .npz are files; others are generated, or files of the directory $SPGNN_DATA.
    """
    if name == "rmat16":
        A = rmat(16, 16)
    elif name in GENERATED:
        A = GENERATED[name](np.random.default_rng(zlib.crc32(name.encode())))
    else:
        directory = os.environ.get("SPGNN_DATA", ".")
        path = Path(name) if name.endswith(".npz") else Path(directory, f"{name}.npz")
        with np.load(path, allow_pickle=False) as file:
            arrays = (np.ones(len(file["indices"]), np.bool_), file["indices"], file["indptr"])
            A = sp.csr_array(arrays, shape=tuple(file["shape"]))
    if A.shape[0] != A.shape[1]:  # a hypergraph: nets and cells become one kind of vertex
        A = sp.block_array([[None, A], [sp.csr_array(A.shape[::-1], dtype=np.bool_), None]])
    if not directed:
        A = A + A.T
    A = sp.csr_array(A + sp.eye_array(A.shape[0], dtype=np.bool_), dtype=np.bool_)
    A.sort_indices()
    return A


def rmat(scale: int, degree: int) -> sp.csr_array:
    """Recursive matrix graph with the Graph500 probabilities (.57, .19, .19, .05)."""
    rng = np.random.default_rng(1)
    rows, columns = np.zeros((2, degree << scale), np.int64)
    for _ in range(scale):
        u = rng.random(len(rows))
        rows = 2 * rows + (u >= 0.76)
        columns = 2 * columns + (((u >= 0.57) & (u < 0.76)) | (u >= 0.95))
    return of_edges(1 << scale, np.column_stack([rows, columns]))


def of_edges(vertices: int, edges: Ends) -> sp.csr_array:
    """One nonzero per edge, not yet symmetric."""
    ones = np.ones(len(edges), np.bool_)
    return sp.csr_array((ones, (edges[:, 0], edges[:, 1])), shape=(vertices, vertices))


def grid(side: int, dimensions: int) -> sp.csr_array:
    """Points of a cube, each joined to the next one along every axis."""
    number = np.arange(side**dimensions).reshape((side,) * dimensions)
    steps = []
    for axis in range(dimensions):
        along = np.moveaxis(number, axis, 0)
        steps.append(np.column_stack([along[:-1].ravel(), along[1:].ravel()]))
    return of_edges(number.size, np.concatenate(steps))


def geometric(rng: np.random.Generator, n: int, degree: float, dimensions: int) -> sp.csr_array:
    """Random points of a unit cube, joined where close enough for an average of `degree`."""
    ball = {2: np.pi, 3: 4 * np.pi / 3}[dimensions]
    radius = (degree / n / ball) ** (1 / dimensions)
    return of_edges(
        n, cKDTree(rng.random((n, dimensions))).query_pairs(radius, output_type="ndarray")
    )


def triangulation(rng: np.random.Generator, n: int) -> sp.csr_array:
    """Delaunay's triangulation of random points in a square."""
    corners = Delaunay(rng.random((n, 2))).simplices.astype(np.int64)
    return of_edges(n, np.concatenate([corners[:, pair] for pair in ([0, 1], [1, 2], [0, 2])]))


def neighbours(rng: np.random.Generator, n: int, k: int, dimensions: int) -> sp.csr_array:
    """The `k` nearest neighbours of normally distributed points."""
    points = rng.standard_normal((n, dimensions))
    nearest = cKDTree(points).query(points, k + 1)[1][:, 1:]
    return of_edges(n, np.column_stack([np.repeat(np.arange(n), k), nearest.ravel()]))


def uniform(rng: np.random.Generator, n: int, degree: int) -> sp.csr_array:
    """Edges between uniformly random ends (Erdős & Rényi 1959)."""
    return of_edges(n, rng.integers(0, n, (n * degree // 2, 2)))


def small_world(rng: np.random.Generator, n: int, degree: int, moved: float) -> sp.csr_array:
    """A ring of near neighbours, a share of whose ends is random (Watts & Strogatz 1998)."""
    start = np.repeat(np.arange(n), degree // 2)
    end = (start + np.tile(np.arange(1, degree // 2 + 1), n)) % n
    end = np.where(rng.random(len(end)) < moved, rng.integers(0, n, len(end)), end)
    return of_edges(n, np.column_stack([start, end]))


def preferential(rng: np.random.Generator, n: int, each: int) -> sp.csr_array:
    """Each vertex joins `each` ends of earlier edges (Barabási & Albert 1999)."""
    ends = np.repeat(np.arange(n), 2 * each)
    copied = rng.integers(0, np.arange(1, 2 * n * each, 2))
    for place, source in enumerate(copied.tolist()):
        ends[2 * place + 1] = ends[source]
    return of_edges(n, ends.reshape(-1, 2))


def blocks(n: int, degree: int, classes: int, homophily: float) -> sp.csr_array:
    """A degree-corrected block model."""
    graph = block_model(n, n * degree, classes=classes, features=0, homophily=homophily, seed=1)
    return graph.adjacency.to_scipy().astype(np.bool_)


def skewed(scale: int, degree: int, probabilities: tuple[float, float, float]) -> sp.csr_array:
    """Recursive matrix graph with other probabilities than `rmat16`, renumbered at random."""
    graph = renumbered_rmat(scale, degree, probabilities=probabilities, seed=1)
    return graph.adjacency.to_scipy().astype(np.bool_)


GENERATED: dict[str, Callable[[np.random.Generator], sp.csr_array]] = {
    "grid-2d": lambda _: grid(250, 2),
    "grid-3d": lambda _: grid(36, 3),
    "geometric-2d": lambda rng: geometric(rng, 40_000, 18, 2),
    "geometric-3d": lambda rng: geometric(rng, 30_000, 15, 3),
    "delaunay": lambda rng: triangulation(rng, 60_000),
    "neighbours-8d": lambda rng: neighbours(rng, 30_000, 10, 8),
    "uniform": lambda rng: uniform(rng, 30_000, 13),
    "small-world": lambda rng: small_world(rng, 40_000, 10, 0.1),
    "preferential": lambda rng: preferential(rng, 40_000, 6),
    "blocks-50": lambda _: blocks(40_000, 16, 50, 0.8),
    "blocks-1000": lambda _: blocks(60_000, 20, 1000, 0.9),
    "skewed-14": lambda _: skewed(14, 16, (0.57, 0.19, 0.19)),
    "skewed-15": lambda _: skewed(15, 8, (0.45, 0.22, 0.22)),
}
HELD_OUT = ",".join(("flickr-small", "hg-ibm14", *GENERATED))
