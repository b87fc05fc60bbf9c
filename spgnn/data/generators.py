"""Random graphs: in memory, by name, and of any size on a disk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn import _native
from spgnn.data.graph import MASKS, Graph
from spgnn.data.shards import ShardDirectory, directory_writer, open_shards
from spgnn.data.source import GraphMeta, shown_name
from spgnn.data.splits import with_split
from spgnn.data.structure import csr_from_edges, row_ranges
from spgnn.errors import InputError, check_choice, shortened
from spgnn.files import AnyPath
from spgnn.hashing import uniform
from spgnn.memory import check_memory, processors
from spgnn.pattern import index_dtype, numpy_index_dtype
from spgnn.progress import Progress, stage
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
    """An undirected graph with communities, skewed degrees, noisy features and a seeded split.

    Karrer & Newman 2011: vertex v has a propensity θ_v, here Pareto-distributed and cut. Each edge
    draws one end from all vertices in proportion to θ, the other from the class of the first with
    probability ``homophily``, from all vertices otherwise. Loops and duplicates are dropped and
    drawn again; where a class is full, edges go anywhere. Feature vectors are ``signal`` times a
    random unit vector of the class plus standard normal noise.

    Parameters
    ----------
    edges : int
        Stored entries: an undirected edge counts twice. Met within about 1 % where the graph has
        room for them.
    skew : float > 1
        Exponent of the degree distribution's tail; larger is flatter.

    Raises
    ------
    InputError
        If a number makes no sense, or the graph could never fit into memory.
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
    theta = _propensities(rng, vertices, edges, skew)
    order = np.argsort(y, kind="stable")
    running = np.concatenate(([0.0], np.cumsum(theta[order])))
    begins = running[np.searchsorted(y[order], np.arange(classes + 1))]  # each class

    def ends(count: int, attempt: int) -> tuple[Integers, Integers]:
        source = order[_at(running, rng.random(count) * running[-1])]
        inside = rng.random(count) < (homophily if attempt < ROUNDS // 2 else 0.0)
        low = np.where(inside, begins[y[source]], 0.0)
        high = np.where(inside, begins[y[source] + 1], running[-1])
        return source, order[_at(running, low + rng.random(count) * (high - low))]

    adjacency = _joined(vertices, edges, ends)
    return _with_features(name, adjacency, y, classes, features, signal, rng, seed)


def _joined(
    vertices: int, edges: int, ends: Callable[[int, int], tuple[Integers, Integers]]
) -> CSR:
    """An undirected graph of drawn edges, whose loops and duplicates are drawn again.

    `ends` draws a number of edges in a round.
    """
    index_type = numpy_index_dtype(vertices)
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
    return adjacency


def _at(running: Float64, mass: Float64) -> Integers:
    """Whose stretches of a running sum these lie in; rounding may lift a draw to its very end."""
    return np.minimum(np.searchsorted(running, mass, side="right") - 1, len(running) - 2)


def _with_features(
    name: str,
    adjacency: CSR,
    y: npt.NDArray[np.int64],
    classes: int,
    features: int,
    signal: float,
    rng: np.random.Generator,
    seed: int,
) -> Graph:
    """A graph whose features are ``signal`` times a unit vector of each class, plus noise."""
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


def _propensities(rng: np.random.Generator, vertices: int, edges: int, skew: float) -> Float64:
    """θ of each vertex, Pareto-distributed, cut where a hub would neighbour too many."""
    theta = rng.pareto(skew - 1, vertices) + 1
    largest = HUB_SHARE * vertices * vertices / max(edges, 1)
    cut: Float64 = np.minimum(theta, max(largest, 2.0) * theta.mean())
    return cut


def nested_model(
    vertices: int,
    edges: int,
    *,
    classes: int = 8,
    features: int = 64,
    reach: float = 0.036,
    decay: float = 0.8,
    spread: float = 0.78,
    fade: float = 0.65,
    skew: float = 2.3,
    signal: float = 1.0,
    seed: int = 0,
    name: str = "nested",
) -> Graph:
    """An undirected graph of communities within communities, some of which are far more open.

    Vertices are the leaves of a binary tree. An edge begins at a vertex in proportion to θ, as in
    `block_model`. It ends inside the smallest community of that vertex, of at least eight average
    degrees, or with probability ``reach`` inside a larger one, each ``decay`` times as likely as
    its halves. Each community multiplies the reach of its vertices by a lognormal number. So where
    a partition has few edges between parts, some parts have several times the boundary of others,
    which block models do not show.

    Parameters
    ----------
    edges : int
        Stored entries: an undirected edge counts twice. Met within a few per cent.
    reach : float
        Average probability that an edge leaves its smallest community.
    decay : float
        Of the probability of an edge from one level of the tree to the next larger one.
    spread : float
        Standard deviation of the logarithm of the factors, of communities that are the whole.
    fade : float
        Of smaller ones it is so many times that of those twice as large.
    skew : float > 1
        As of `block_model`; so are classes, features and signal. A class is a stretch of the tree.
    """
    check_memory(
        f"{name}: {vertices} vertices, {edges} edges, {features} features",
        4 * (vertices * (features + 16) + edges),
    )
    from scipy.special import ndtri  # half a second, which most graphs do not need

    rng = np.random.default_rng(seed)
    smallest = max(8 * edges // max(vertices, 1), 2)
    levels = max(vertices // smallest, 1).bit_length() - 1
    running = np.concatenate(([0.0], np.cumsum(_propensities(rng, vertices, edges, skew))))
    leaves = np.arange(vertices)
    leaving = np.full(vertices, np.log(reach))
    for level in range(1, levels + 1):
        deviation = spread * fade**level
        quantiles = ndtri((np.arange(1 << level) + 0.5) / (1 << level))
        factor = rng.permutation(quantiles) * deviation - deviation**2 / 2
        leaving += factor[(leaves << level) // vertices]
    leaving = np.minimum(np.exp(leaving), 1)
    likely = decay ** np.arange(levels, -1.0, -1.0)
    likely /= likely.sum()
    number = rng.permutation(vertices).astype(numpy_index_dtype(vertices))

    def ends(count: int, attempt: int) -> tuple[Integers, Integers]:
        source = _at(running, rng.random(count) * running[-1])
        depth = rng.choice(levels + 1, size=count, p=likely)
        depth[rng.random(count) >= leaving[source]] = levels
        block = (source << depth) // vertices
        low, high = (running[-(-b * vertices >> depth)] for b in (block, block + 1))
        target = _at(running, low + rng.random(count) * (high - low))
        return np.take(number, source), np.take(number, target)

    adjacency = _joined(vertices, edges, ends)
    y = np.empty(vertices, np.int64)
    y[number] = leaves * classes // max(vertices, 1)
    return _with_features(name, adjacency, y, classes, features, signal, rng, seed)


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
    each of 2^scale · edge_factor edges, of which duplicates and loops are dropped, descends
    ``scale`` times into one of four quadrants with probabilities a, b, c and 1 − a − b − c.

    Raises
    ------
    InputError
        If the scale is not in [0, 31], or the graph could never fit into memory.
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


def expanded(graph: Graph, copies: int, *, train: float = 0.1, seed: int = 0) -> Graph:
    """A graph `copies` times as large, of the same kind: the Kronecker product of a star with it.

    Belletti et al. 2019, from whom Ginex (VLDB'22) takes its data sets: the adjacency of a few
    vertices ⊗ the graph's, so that degrees multiply, and communities stay within communities. Here
    the few are a hub and its leaves, each with a loop, where they reduce the graph itself: n
    vertices of degree d become n of degree copies · d and n · (copies − 1) of 2 · d, and edges are
    3 · copies − 2 times as many (10 for 4, where Ginex has 8.6 to 8.8). A connected graph stays so.

    Vertex v of copy c is number c · n + v; labels are those of v, and weights are copied. Features
    are left out, for their width is to be chosen; so are splits: a share `train` of the vertices is
    for training, drawn at random, and a tenth of that for validation and for testing each.

    Raises
    ------
    InputError
        If there are fewer than two copies, edges have features, or the graph could never fit into
        memory.
    """
    if copies < 2:
        raise InputError(f"an expanded graph has at least 2 copies, got {copies}")
    if graph.edge_attr is not None:
        raise InputError(f"{graph.name} has features of edges, which cannot be expanded")
    A, n = graph.adjacency, graph.vertices
    vertices, edges = copies * n, (3 * copies - 2) * A.nnz
    name = f"expanded-{copies}-{graph.name}"
    check_memory(name, 9 * vertices + (8 if A.values is not None else 4) * edges)
    lengths = A.indptr.diff()
    each = torch.cat((copies * lengths, (2 * lengths).repeat(copies - 1)))
    indptr = torch.zeros(vertices + 1, dtype=torch.int64)
    torch.cumsum(each, 0, out=indptr[1:])
    indices = torch.empty(edges, dtype=index_dtype(vertices))
    values = None if A.values is None else A.values.new_empty(edges)
    within = torch.arange(A.nnz) - A.indptr[:-1].repeat_interleave(lengths)
    for copy in range(copies):
        begins = indptr[copy * n : (copy + 1) * n]
        for turn, other in enumerate(range(copies) if copy == 0 else (0, copy)):
            place = (begins + turn * lengths).repeat_interleave(lengths) + within
            indices[place] = A.indices.to(indices.dtype) + other * n
            if values is not None and A.values is not None:
                values[place] = A.values
    order = torch.from_numpy(np.random.default_rng(seed).permutation(vertices))
    ends = [round(share * vertices) for share in (train, 1.1 * train, 1.2 * train)]
    masks = {}
    for mask, first, last in zip(MASKS, [0, *ends], ends, strict=False):
        masks[mask] = torch.zeros(vertices, dtype=torch.bool)
        masks[mask][order[first:last]] = True
    y = graph.y
    if y is not None:
        y = y.repeat(copies, *[1] * (y.dim() - 1))
    adjacency = CSR.of(indptr, indices, (vertices, vertices), values)
    return Graph(name, adjacency, directed=graph.directed, y=y, **masks)


@dataclass(frozen=True)
class Shape:
    """Sizes of a data set, and how its degrees and communities are spread.

    With a `reach`, communities are nested; else they are classes, with a homophily.
    """

    vertices: int
    edges: int
    features: int
    classes: int
    skew: float
    homophily: float = 0.0
    reach: float = 0.0
    train: float | None = None  # share of the vertices; others are for testing


# METIS leaves parts of Amazon's stand-in about the volumes and imbalance of the ICPP'24 paper's
# Table 2; Protein's cut nearly vanishes.
STAND_INS = {
    "reddit-like": Shape(232_965, 114_848_857, 602, 41, skew=2.2, homophily=0.75),
    "amazon-like": Shape(14_249_639, 230_788_269, 300, 24, skew=2.3, reach=0.036),
    "protein-like": Shape(8_745_542, 2_116_240_124, 300, 24, skew=3.5, reach=0.001),
    "papers-like": Shape(111_059_956, 3_231_371_744, 128, 172, skew=2.6, homophily=0.7),
    "products-like": Shape(2_449_029, 123_718_280, 100, 47, skew=2.3, reach=0.15, train=0.0803),
}


def stand_in(name: str, scale: float = 1.0, *, features: int | None = None, seed: int = 0) -> Graph:
    """The stand-in of that name with ``scale`` times the vertices and edges of the original.

    `features`, by default as many as the original's, change no edge.
    """
    check_choice("stand-in", name, STAND_INS)
    if not 0 < scale <= 1:
        raise InputError(f"the scale of {name} must be in (0, 1], got {scale}")
    shape = STAND_INS[name]
    model: Callable[..., Graph] = (
        partial(nested_model, reach=shape.reach)
        if shape.reach
        else partial(block_model, homophily=shape.homophily)
    )
    graph = model(
        max(round(shape.vertices * scale), 1),
        round(shape.edges * scale),
        classes=shape.classes,
        features=shape.features if features is None else features,
        skew=shape.skew,
        seed=seed,
        name=f"{name}@{scale:g}",
    )
    if shape.train is None:
        return graph
    drawn = (
        torch.from_numpy(uniform(np.arange(graph.adjacency.shape[0]), seed, "products"))
        < shape.train
    )
    return replace(graph, train_mask=drawn, val_mask=drawn & False, test_mask=~drawn)


NAMES = ("sbm", "rmat-SCALE-FACTOR", "expanded-COPIES-NAME", *STAND_INS)
EXPANDED = re.compile(r"expanded-([0-9]{1,9})-(.+)")
_RMAT = re.compile(r"rmat-([0-9]{1,9})-([0-9]{1,9})")
_SEED = re.compile(r"seed=([0-9]{1,10})")
_LARGEST_SEED = 2**31 - 1


def generate(text: str, seed: int = 0) -> Graph | None:
    """The generated set of a name, or ``None`` if no generator has it."""
    name, at, options = text.partition("@")
    sizes, scales = _RMAT.fullmatch(name), name in STAND_INS
    if name != "sbm" and not scales and sizes is None:
        return None
    scale: float | None = None
    stated: int | None = None
    for option in options.split(",") if at else ():  # the scale and the seed
        match = _SEED.fullmatch(option)
        try:
            if match and stated is None and int(match[1]) <= _LARGEST_SEED:
                stated = int(match[1])
            elif match or not scales or scale is not None:
                raise ValueError
            else:
                scale = float(option)
        except ValueError:
            example = f"{name}@0.01 or {name}@0.01,seed=3" if scales else f"{name}@seed=3"
            said = f"'{shortened(text, 60)}': what follows @ must be as in {example}"
            raise InputError(said) from None
    seed = seed if stated is None else stated
    if name == "sbm":
        # Sized for seconds an epoch on a laptop; a three-layer GCN reaches about 90 %.
        graph = block_model(20_000, 300_000, homophily=0.6, signal=0.75, seed=seed)
    elif sizes is not None:
        graph = rmat(int(sizes[1]), int(sizes[2]), seed=seed)
    else:
        graph = stand_in(name, 1.0 if scale is None else scale, seed=seed)
    if stated is None:
        return graph
    between = "@" if scale is None and not scales else ","
    return replace(graph, name=f"{graph.name}{between}seed={stated}")


# The paper's largest graphs: vertices and nonzeros (twice the edges).
SHAPES = {"amazon": (14_249_639, 231_594_310), "papers": (111_059_956, 3_231_371_744)}


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
    """Write a degree-corrected block model with two levels of communities, in O(n) memory.

    After Karrer & Newman (2011). A share `inside` of the edges stays in its community, a share
    `near` in its district, the rest goes anywhere. Sizes of communities, `community` vertices on
    average, and degrees inside each follow a power law: the density at relative position x is
    (x + hub)^-exponent. Vertices are shuffled, so their order says nothing. The graph is undirected
    without self-loops, and the same for a seed whatever the threads and buffers.

    Parameters
    ----------
    path : path
        A directory that does not exist yet.
    nonzeros : int
        Entries to draw (twice the edges); duplicates make the graph a little smaller.
    district : int
        Average communities of a district.
    buffer_bytes : int
        Rows are drawn in ranges that fit this; each costs a pass over all edges.

    Raises
    ------
    InputError
        If a number makes no sense, `path` exists, or the disk is full.
    """
    _check_size(vertices, nonzeros)
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
    made = {"generator": "block model", "seed": seed, "communities": len(starts) - 1}
    return _write(path, model, vertices, nonzeros, made, buffer_bytes, threads, progress)


def generate_rmat(
    path: AnyPath,
    vertices: int,
    nonzeros: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    seed: int = 0,
    buffer_bytes: int = 2 << 30,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ShardDirectory:
    """Write an undirected R-MAT graph (Chakrabarti et al. 2004) in O(n) memory.

    Any number of vertices; they are shuffled. Parameters as `generate_block_model`.
    """
    _check_size(vertices, nonzeros)
    if min(a, b, c) < 0 or a + b + c > 1:
        raise InputError(f"a, b, c = {a}, {b}, {c} must be probabilities that sum to at most 1")
    model = _native.Rmat(vertices, a, b, c, seed)
    made = {"generator": "rmat", "seed": seed}
    return _write(path, model, vertices, nonzeros, made, buffer_bytes, threads, progress)


def _check_size(vertices: int, nonzeros: int) -> None:
    if not 2 <= vertices < 2**31:
        raise InputError(f"vertices must be in [2, 2³¹), got {vertices}")
    if nonzeros < 0:
        raise InputError(f"nonzeros must not be negative, got {nonzeros}")


def _write(
    path: AnyPath,
    model: _native.Rmat | _native.BlockModel,
    vertices: int,
    nonzeros: int,
    made: dict[str, Any],
    buffer_bytes: int,
    threads: int | None,
    progress: Progress | None,
) -> ShardDirectory:
    threads, edges = threads or processors(), nonzeros // 2
    degrees = model.count_degrees(vertices, edges, threads, stage(progress, "counting degrees"))
    bounds = row_ranges(degrees, max(1, buffer_bytes // 4))
    written = 0
    with directory_writer(path) as writer:
        for i, (first, last) in enumerate(pairwise(bounds)):
            tick = stage(progress, f"drawing rows, pass {i + 1} of {len(bounds) - 1}")
            some = degrees[first:last]
            lengths, columns = model.draw_rows(first, some, edges, threads, tick)
            writer.append_lengths(lengths)
            writer.append("indices", columns)
            written += len(columns)
        writer.end_part()
        name = os.path.basename(os.fspath(path)) or str(made["generator"])
        sizes: dict[str, Any] = {"vertices": vertices, "edges": written, "offsets": (0, vertices)}
        meta = GraphMeta(name=shown_name(name), directed=False, weighted=False, **sizes)
        writer.finish(meta, made)
    return open_shards(path)
