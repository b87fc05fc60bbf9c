"""Random graphs: in memory, by name, and of any size on a disk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn import _native
from spgnn.data.graph import Graph
from spgnn.data.shards import ShardDirectory, directory_writer, open_shards
from spgnn.data.source import GraphMeta, shown_name
from spgnn.data.splits import with_split
from spgnn.data.structure import csr_from_edges, row_ranges
from spgnn.errors import InputError, shortened
from spgnn.files import AnyPath
from spgnn.memory import check_memory, processors
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress, stage

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
    """A graph of Karrer & Newman (2011), with about `edges` entries; degrees' tail is `skew`."""
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
    theta = propensities(rng, vertices, edges, skew)
    order = np.argsort(y, kind="stable")
    running = np.concatenate(([0.0], np.cumsum(theta[order])))
    begins = running[np.searchsorted(y[order], np.arange(classes + 1))]  # each class

    def ends(count: int, attempt: int) -> tuple[Integers, Integers]:
        source = order[drawn_from(running, rng.random(count) * running[-1])]
        inside = rng.random(count) < (homophily if attempt < ROUNDS // 2 else 0.0)
        low = np.where(inside, begins[y[source]], 0.0)
        high = np.where(inside, begins[y[source] + 1], running[-1])
        return source, order[drawn_from(running, low + rng.random(count) * (high - low))]

    return drawn_graph(name, edges, ends, y, rng, classes, features, signal, seed)


def drawn_graph(
    name: str,
    edges: int,
    ends: Callable[[int, int], tuple[Integers, Integers]],
    y: npt.NDArray[np.int64],
    rng: np.random.Generator,
    classes: int,
    features: int,
    signal: float,
    seed: int,
) -> Graph:
    """An undirected graph of drawn edges, whose loops and duplicates are drawn again.

    ``ends(count, attempt)`` draws the vertices at both ends of so many edges. There are `edges`
    stored entries, two an edge. Features are ``signal`` times a unit vector of each class y, plus
    noise of the `rng`; `seed` is the split's.
    """
    index_type, vertices = numpy_index_dtype(len(y)), len(y)
    sources, targets = [np.empty(0, index_type)], [np.empty(0, index_type)]
    missing = edges // 2
    for attempt in range(ROUNDS):
        for first in range(0, missing, PIECE):
            source, target = ends(min(PIECE, missing - first), attempt)
            sources.append(source.astype(index_type, copy=False))
            targets.append(target.astype(index_type, copy=False))
        sources, targets = [np.concatenate(sources)], [np.concatenate(targets)]
        adjacency = csr_from_edges(sources[0], targets[0], vertices, symmetric=True, loops=False)
        missing = (edges - adjacency.nnz) // 2
        if 100 * missing <= edges // 2:
            break
    x = None
    if features:
        means = rng.standard_normal((classes, features))
        means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
        noisy = rng.standard_normal((len(y), features), dtype=np.float32)
        for label, mean in enumerate(means.astype(np.float32)):
            noisy[y == label] += mean
        x = torch.from_numpy(noisy)
    graph = Graph(name, adjacency, directed=False, x=x, y=torch.from_numpy(y))
    return with_split(graph, seed)


def drawn_from(running: Float64, mass: Float64) -> Integers:
    """The elements whose stretches of a running sum some draws lie in."""
    # Rounding may lift a draw to the very end.
    return np.minimum(np.searchsorted(running, mass, side="right") - 1, len(running) - 2)


def propensities(rng: np.random.Generator, vertices: int, edges: int, skew: float) -> Float64:
    """θ of each vertex, Pareto-distributed, cut where a hub would neighbour too many."""
    theta = rng.pareto(skew - 1, vertices) + 1
    largest = HUB_SHARE * vertices * vertices / max(edges, 1)
    cut: Float64 = np.minimum(theta, max(largest, 2.0) * theta.mean())
    return cut


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
    """A recursive-matrix graph with 2^scale vertices, undirected and without loops."""
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


_RMAT = re.compile(r"rmat-([0-9]{1,9})-([0-9]{1,9})")
_SEED = re.compile(r"seed=([0-9]{1,10})")
_LARGEST_SEED = 2**31 - 1


def generate(
    text: str, data_dir: AnyPath | None, seed: int, progress: Progress | None
) -> Graph | None:
    """``sbm`` or ``rmat-SCALE-FACTOR``, either with a seed, ``sbm@seed=3``; else ``None``."""
    sizes = _RMAT.fullmatch(text.partition("@")[0])
    if sizes is None and not text.startswith("sbm"):
        return None
    name, options, stated = split_seed(text, "{name}@seed=3")
    if options:
        raise InputError(f"'{shortened(text, 60)}': what follows @ must be as in {name}@seed=3")
    seed = seed if stated is None else stated
    if sizes is None:
        # Sized for seconds an epoch on a laptop; a three-layer GCN reaches about 90 %.
        graph = block_model(20_000, 300_000, homophily=0.6, signal=0.75, seed=seed)
    else:
        graph = rmat(int(sizes[1]), int(sizes[2]), seed=seed)
    return graph if stated is None else replace(graph, name=f"{graph.name}@seed={stated}")


def split_seed(text: str, example: str) -> tuple[str, list[str], int | None]:
    """A name, what follows its ``@`` besides a seed, and the seed, if there is one.

    Raises
    ------
    InputError
        If there are two seeds, or one is too large; with an `example` of ``{name}``.
    """
    name, at, rest = text.partition("@")
    options, stated = list[str](), None
    for option in rest.split(",") if at else ():
        match = _SEED.fullmatch(option)
        if match is None:
            options.append(option)
        elif stated is None and int(match[1]) <= _LARGEST_SEED:
            stated = int(match[1])
        else:
            example = example.format(name=name)
            raise InputError(f"'{shortened(text, 60)}': what follows @ must be as in {example}")
    return name, options, stated


def generate_block_model(
    path: AnyPath,
    vertices: int,
    nonzeros: int,
    *,
    community: int = 2000,
    district: int = 64,
    inside: float = 0.6,
    near: float = 0.25,
    exponent: float = 0.75,
    hub: float = 1e-4,
    seed: int = 0,
    buffer_bytes: int = 2 << 30,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ShardDirectory:
    """Write a block model in O(n) memory; x is as dense in a community as (x + hub)^-exponent."""
    if not 2 <= vertices < 2**31:
        raise InputError(f"vertices must be in [2, 2³¹), got {vertices}")
    if nonzeros < 0:
        raise InputError(f"nonzeros must not be negative, got {nonzeros}")
    if not (inside >= 0 and near >= 0 and inside + near <= 1):
        raise InputError(f"inside {inside} and near {near} must be shares that sum to at most 1")
    if not (0 < exponent < 1 and hub > 0 and community >= 1 and district >= 1):
        raise InputError("exponent must be in (0, 1); hub, community and district positive")
    # Sizes of communities are log-uniform over a factor of 100. Rounding may leave one empty, which
    # no edge may be drawn from.
    count = max(1, vertices // min(community, vertices))
    sizes = 10 ** np.random.default_rng(seed).uniform(0, 2, count)
    ends = np.concatenate(([0], np.cumsum(sizes))) * (vertices / sizes.sum())
    starts = np.unique(np.round(ends).astype(np.int64))
    model = _native.BlockModel(
        starts, min(vertices, community * district), inside, near, exponent, hub, seed
    )
    threads, edges = threads or processors(), nonzeros // 2
    degrees = model.count_degrees(vertices, edges, threads, stage(progress, "counting degrees"))
    bounds = row_ranges(degrees, max(1, buffer_bytes // 4))
    written = 0
    with directory_writer(path) as writer:
        for i, (first, last) in enumerate(pairwise(bounds)):
            tick = stage(progress, f"drawing rows, pass {i + 1} of {len(bounds) - 1}")
            lengths, columns = model.draw_rows(first, degrees[first:last], edges, threads, tick)
            writer.append_lengths(lengths)
            writer.append("indices", columns)
            written += len(columns)
        writer.end_part()
        name = shown_name(os.path.basename(os.fspath(path)) or "block model")
        counts: dict[str, Any] = {"vertices": vertices, "edges": written}
        origin = {"generator": "block model", "seed": seed, "communities": len(starts) - 1}
        offsets = (0, vertices)
        meta = GraphMeta(name=name, directed=False, weighted=False, offsets=offsets, **counts)
        writer.finish(meta, origin)
    return open_shards(path)
