"""R-MAT graphs."""

from __future__ import annotations

import numpy as np

from spgnn.data.edges import csr_from_edges
from spgnn.data.graph import Graph
from spgnn.data.memory import check_memory
from spgnn.errors import InputError

_BYTES_AN_EDGE = 28  # both ends, and what is drawn for one level
GRAPH500 = (0.57, 0.19, 0.19)


def rmat(
    scale: int,
    edge_factor: int = 16,
    *,
    probabilities: tuple[float, float, float] = GRAPH500,
    seed: int = 0,
    name: str | None = None,
) -> Graph:
    """A recursive-matrix graph with 2^scale vertices, undirected and without loops.

    Chakrabarti, Zhan & Faloutsos 2004, with the parameters and the random renumbering of Graph500:
    each edge descends ``scale`` times into one of four quadrants with probabilities a, b, c and
    1 − a − b − c.

    Parameters
    ----------
    scale : int in [0, 31]
    edge_factor : int
        Edges drawn per vertex, before duplicates and loops are dropped.
    probabilities : (a, b, c)
    seed : int

    Raises
    ------
    InputError
        If the scale is out of range, or the graph could never fit into memory.
    """
    if not 0 <= scale <= 31:
        raise InputError(f"the scale of an R-MAT graph must be in [0, 31], got {scale}")
    vertices = 1 << scale
    rng = np.random.default_rng(seed)
    a, b, c = probabilities
    drawn = vertices * edge_factor
    check_memory(f"rmat-{scale}-{edge_factor}", _BYTES_AN_EDGE * drawn + 16 * vertices)
    source, target = np.zeros(drawn, np.int64), np.zeros(drawn, np.int64)
    for _ in range(scale):
        draw = rng.random(drawn, dtype=np.float32)
        down = draw >= a + b
        right = (draw >= a) & ~down | (draw >= a + b + c)
        np.add(source << 1, down, out=source)
        np.add(target << 1, right, out=target)
    renumbered = rng.permutation(vertices)
    adjacency = csr_from_edges(
        renumbered[source], renumbered[target], vertices, symmetric=True, loops=False
    )
    return Graph(name or f"rmat-{scale}-{edge_factor}", adjacency, directed=False)
