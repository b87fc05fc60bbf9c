"""The degree-corrected stochastic block model, with features that follow the classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from spgnn.data.edges import csr_from_edges
from spgnn.data.graph import Graph
from spgnn.data.memory import check_memory
from spgnn.data.splits import with_split
from spgnn.errors import InputError
from spgnn.pattern import numpy_index_dtype
from spgnn.sparse import CSR

Float64 = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]

PIECE = 1 << 22  # edges drawn at once: their temporaries must not outgrow the graph
HUB_SHARE = 0.1  # no vertex is expected to neighbour more than this share of all others
ROUNDS = 8


def block_model(
    vertices: int,
    edges: int,
    *,
    classes: int = 8,
    features: int = 64,
    homophily: float = 0.7,
    skew: float = 2.5,
    signal: float = 1.0,
    seed: int = 0,
    name: str = "sbm",
) -> Graph:
    """An undirected graph with communities, skewed degrees and noisy features.

    Karrer & Newman 2011: vertex v has a propensity θ_v, here Pareto-distributed and cut. Each edge
    draws one end from all vertices in proportion to θ, the other from the class of the first with
    probability ``homophily``, from all vertices otherwise. Loops and duplicates are dropped and
    drawn again; where a class is full, edges go anywhere. Feature vectors are ``signal`` times a
    random unit vector of the class plus standard normal noise.

    Parameters
    ----------
    vertices : int
    edges : int
        Stored entries: an undirected edge counts twice. Met within about 1 % where the graph has
        room for them.
    classes, features : int
    homophily : float in [0, 1]
    skew : float > 1
        Exponent of the degree distribution's tail; larger is flatter.
    signal : float
        Length of the class means.
    seed : int

    Returns
    -------
    Graph
        With ``x`` float32 [vertices, features], ``y``, and a seeded split.

    Raises
    ------
    InputError
        If there is no vertex or no class, ``skew`` or ``homophily`` is out of range, or the graph
        could never fit into memory.
    """
    if vertices < 1 or classes < 1 or edges < 0:
        raise InputError("a block model needs at least one vertex and one class, and edges ≥ 0")
    if skew <= 1 or not 0 <= homophily <= 1:
        raise InputError(f"skew must be above 1 and homophily in [0, 1], got {skew}, {homophily}")
    check_memory(
        f"{name}: {vertices} vertices, {edges} edges, {features} features",
        4 * (vertices * (features + 8) + edges),
    )
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=vertices)
    sampler = _EndSampler(y, _propensities(rng, vertices, edges, skew), classes)
    adjacency = _draw_graph(rng, sampler, vertices, edges, homophily)
    x = _class_features(rng, y, classes, features, signal) if features else None
    graph = Graph(name, adjacency, directed=False, x=x, y=torch.from_numpy(y))
    return with_split(graph, seed)


def _propensities(rng: np.random.Generator, vertices: int, edges: int, skew: float) -> Float64:
    theta = rng.pareto(skew - 1, vertices) + 1
    largest = HUB_SHARE * vertices * vertices / max(edges, 1)
    bound: Float64 = np.minimum(theta, max(largest, 2.0) * theta.mean())
    return bound


def _draw_graph(
    rng: np.random.Generator, sampler: _EndSampler, vertices: int, edges: int, homophily: float
) -> CSR:
    index_type = numpy_index_dtype(vertices)
    sources: list[Integers] = []
    targets: list[Integers] = []
    missing = edges // 2
    for attempt in range(ROUNDS):
        inside = homophily if attempt < ROUNDS // 2 else 0.0
        for first in range(0, missing, PIECE):
            source, target = sampler.edges(rng, min(PIECE, missing - first), inside)
            sources.append(source.astype(index_type))
            targets.append(target.astype(index_type))
        none = [np.empty(0, index_type)]
        source, target = np.concatenate(sources or none), np.concatenate(targets or none)
        sources, targets = [source], [target]
        adjacency = csr_from_edges(source, target, vertices, symmetric=True, loops=False)
        missing = (edges - adjacency.nnz) // 2
        if 100 * missing <= edges // 2:
            break
    return adjacency


def _class_features(
    rng: np.random.Generator, y: npt.NDArray[np.int64], classes: int, features: int, signal: float
) -> torch.Tensor:
    means = rng.standard_normal((classes, features))
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    x = rng.standard_normal((len(y), features), dtype=np.float32)
    for label, mean in enumerate(means.astype(np.float32)):
        x[y == label] += mean
    return torch.from_numpy(x)


class _EndSampler:
    """Draws vertices in proportion to θ, from all or from one class: a search in a running sum."""

    def __init__(self, y: npt.NDArray[np.int64], theta: Float64, classes: int) -> None:
        self.y = y
        self.order = np.argsort(y, kind="stable")
        self.sum = np.concatenate(([0.0], np.cumsum(theta[self.order])))
        # Where each class begins, in the order and in the sum.
        self.mass = self.sum[np.searchsorted(y[self.order], np.arange(classes + 1))]

    def edges(
        self, rng: np.random.Generator, count: int, homophily: float
    ) -> tuple[Integers, Integers]:
        """Both ends of some edges."""
        source = self._at(rng.random(count) * self.sum[-1])
        inside = rng.random(count) < homophily
        low = np.where(inside, self.mass[self.y[source]], 0.0)
        high = np.where(inside, self.mass[self.y[source] + 1], self.sum[-1])
        return source, self._at(low + rng.random(count) * (high - low))

    def _at(self, mass: Float64) -> Integers:
        place = np.searchsorted(self.sum, mass, side="right") - 1
        # Rounding may lift a draw to the very end of the sum.
        return self.order[np.minimum(place, len(self.order) - 1)]
