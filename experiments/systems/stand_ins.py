"""Graphs like those of papers: of the same sizes with nested communities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from spgnn.data import Graph, drawn_from, drawn_graph, propensities, split_seed
from spgnn.errors import InputError, check_choice, shortened
from spgnn.files import AnyPath
from spgnn.hashing import uniform
from spgnn.memory import check_memory
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress


def nested_model(
    vertices: int,
    edges: int,
    *,
    classes: int = 8,
    features: int = 64,
    leaving: float = 0.0036,
    growth: float = 1.25,
    spread: float = 0.78,
    fade: float = 0.65,
    skew: float = 2.3,
    signal: float = 1.0,
    seed: int = 0,
    name: str = "nested",
) -> Graph:
    """An undirected graph of communities in halves of communities, some of which are more open.

    Communities are halved until a vertex neighbours a quarter of its own. `leaving` is the share of
    edges between classes; each level has `growth` times the edges of the one above, at any scale.
    """
    check_memory(
        f"{name}: {vertices} vertices, {edges} edges, {features} features",
        4 * (vertices * (features + 16) + edges),
    )
    from scipy.special import ndtri  # half a second, which most graphs do not need

    rng = np.random.default_rng(seed)
    smallest = max(4 * edges // max(vertices, 1), 2)
    levels = max(vertices // smallest, 1).bit_length() - 1
    running = np.concatenate(([0.0], np.cumsum(propensities(rng, vertices, edges, skew))))
    between = np.maximum(1 - 2.0 ** np.arange(levels) / classes, 0)  # other classes at each level
    likely = growth ** np.arange(levels)
    share = leaving / max(float(likely @ between), 1.0) * float(likely.sum())
    leaves = np.arange(vertices)
    leaves_block = np.full(vertices, np.log(max(share, 1e-300)))
    for level in range(1, levels + 1):
        deviation = spread * fade**level
        quantiles = ndtri((np.arange(1 << level) + 0.5) / (1 << level))
        factor = rng.permutation(quantiles) * deviation - deviation**2 / 2
        leaves_block += factor[(leaves << level) // vertices]
    number = rng.permutation(vertices).astype(numpy_index_dtype(vertices))

    def ends(count: int, attempt: int) -> tuple[Any, Any]:
        source = drawn_from(running, rng.random(count) * running[-1])
        depth = np.full(count, max(levels - attempt // 2, 0))  # full communities: the one around
        if levels:
            away = np.flatnonzero(rng.random(count) < np.exp(leaves_block[source]))
            depth[away] = rng.choice(levels, size=len(away), p=likely / likely.sum())
        block = (source << depth) // vertices
        low, high = (running[-(-b * vertices >> depth)] for b in (block, block + 1))
        target = drawn_from(running, low + rng.random(count) * (high - low))
        return np.take(number, source), np.take(number, target)

    y = np.empty(vertices, np.int64)
    y[number] = leaves * classes // max(vertices, 1)
    return drawn_graph(name, edges, ends, y, rng, classes, features, signal, seed)


@dataclass(frozen=True)
class Shape:
    """Sizes, degrees and communities of a data set: docs/icpp24.md says what they stand for."""

    vertices: int
    edges: int
    features: int
    classes: int
    skew: float
    leaving: float
    spread: float = 0.78
    train: float | None = None  # share of the vertices; others are for testing


STAND_INS = {
    "reddit-like": Shape(232_965, 114_848_857, 602, 41, 2.2, leaving=0.4, spread=2.4),
    "amazon-like": Shape(14_249_639, 230_788_269, 300, 24, skew=2.3, leaving=0.0036),
    "protein-like": Shape(8_745_542, 2_116_240_124, 300, 24, skew=3.5, leaving=3e-6),
    "papers-like": Shape(111_059_956, 3_231_371_744, 128, 172, skew=2.6, leaving=0.3),
    "products-like": Shape(2_449_029, 123_718_280, 100, 47, 2.3, leaving=0.104, train=0.0803),
}


def stand_in(name: str, scale: float = 1.0, *, features: int | None = None, seed: int = 0) -> Graph:
    """The stand-in of that name with ``scale`` times the vertices and edges of the original."""
    check_choice("stand-in", name, STAND_INS)
    if not 0 < scale <= 1:
        raise InputError(f"the scale of {name} must be in (0, 1], got {scale}")
    shape = STAND_INS[name]
    graph = nested_model(
        max(round(shape.vertices * scale), 1),
        round(shape.edges * scale),
        classes=shape.classes,
        features=shape.features if features is None else features,
        leaving=shape.leaving,
        spread=shape.spread,
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


def load_stand_in(
    text: str, data_dir: AnyPath | None, seed: int, progress: Progress | None
) -> Graph:
    """``reddit-like``, ``reddit-like@0.01`` or ``reddit-like@0.01,seed=3``."""
    example = "{name}@0.01 or {name}@0.01,seed=3"
    name, options, stated = split_seed(text, example)
    try:
        (scale,) = map(float, options or ["1"])
    except ValueError:
        example = example.format(name=name)
        message = f"'{shortened(text, 60)}': what follows @ must be as in {example}"
        raise InputError(message) from None
    graph = stand_in(name, scale, seed=seed if stated is None else stated)
    return graph if stated is None else replace(graph, name=f"{graph.name},seed={stated}")
