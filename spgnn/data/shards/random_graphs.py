"""Random graphs of any size, written as a graph directory with one part in O(n) memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.data import _data
from spgnn.data.meta import describe_bare
from spgnn.data.shards.directory import ShardDirectory, open_shards
from spgnn.data.shards.sorting import row_ranges
from spgnn.data.shards.write import directory_writer
from spgnn.errors import InputError
from spgnn.files import AnyPath
from spgnn.memory import processors
from spgnn.progress import Progress, stage

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

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
    `near` in its district, the rest goes anywhere. Community sizes follow a power law; degrees do
    inside each community. Vertices are shuffled, so their order says nothing. The graph is
    undirected without self-loops, and the same for a seed whatever the threads and buffers.

    Parameters
    ----------
    path : path
        A directory that does not exist yet.
    vertices, nonzeros : int
        n, and how many entries to draw (twice the edges); duplicates make the graph a little
        smaller.
    community : int
        Average vertices of a community; they range over a factor of 100.
    district : int
        Average communities of a district.
    exponent, hub : float
        Density (x + hub)^-exponent at relative position x of a community.
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
    starts = _community_starts(vertices, min(community, vertices), seed)
    model = _data.BlockModel(
        starts, min(vertices, community * district), inside, near, exponent, hub, seed
    )
    made = {"generator": "block model", "seed": seed, "communities": len(starts) - 1}
    return _generate(
        path,
        model,
        vertices=vertices,
        nonzeros=nonzeros,
        made=made,
        buffer_bytes=buffer_bytes,
        threads=threads,
        progress=progress,
    )


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
    model = _data.Rmat(vertices, a, b, c, seed)
    made = {"generator": "rmat", "seed": seed}
    return _generate(
        path,
        model,
        vertices=vertices,
        nonzeros=nonzeros,
        made=made,
        buffer_bytes=buffer_bytes,
        threads=threads,
        progress=progress,
    )


def _check_size(vertices: int, nonzeros: int) -> None:
    if not 2 <= vertices < 2**31:
        raise InputError(f"vertices must be in [2, 2³¹), got {vertices}")
    if nonzeros < 0:
        raise InputError(f"nonzeros must not be negative, got {nonzeros}")


def _community_starts(vertices: int, average: int, seed: int) -> Int64Array:
    """Where communities begin, int64 [communities + 1]; sizes log-uniform over a factor of 100."""
    count = max(1, vertices // average)
    sizes = 10 ** np.random.default_rng(seed).uniform(0, 2, count)
    starts = np.concatenate(([0], np.cumsum(sizes))) * (vertices / sizes.sum())
    # Rounding may leave a community empty, which no edge may be drawn from.
    return np.unique(np.round(starts).astype(np.int64))


def _generate(
    path: AnyPath,
    model: _data.Rmat | _data.BlockModel,
    *,
    vertices: int,
    nonzeros: int,
    made: dict[str, Any],
    buffer_bytes: int,
    threads: int | None,
    progress: Progress | None,
) -> ShardDirectory:
    threads = threads or processors()
    edges = nonzeros // 2

    def rows() -> Iterator[tuple[Int32Array, Int32Array]]:
        degrees = model.count_degrees(vertices, edges, threads, stage(progress, "counting degrees"))
        bounds = row_ranges(degrees, max(1, buffer_bytes // 4))
        for i, (first, last) in enumerate(pairwise(bounds)):
            name = f"drawing rows, pass {i + 1} of {len(bounds) - 1}"
            tick = stage(progress, name)
            yield model.draw_rows(first, degrees[first:last], edges, threads, tick)

    written = 0
    with directory_writer(path) as writer:
        with writer.part() as part:
            for lengths, columns in rows():
                part.append_lengths(lengths)
                part.append("indices", columns)
                written += len(columns)
        name = os.path.basename(os.fspath(path)) or str(made["generator"])
        meta = describe_bare(name, vertices, written, directed=False, weighted=False)
        writer.finish(meta, made)
    return open_shards(path)
