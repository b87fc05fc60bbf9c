"""Edge lists: one edge a line, as SNAP publishes them (.txt, .csv, .tsv, also gzipped)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.data.edges import csr_from_edges
from spgnn.data.formats.reading import graph_of
from spgnn.data.formats.text import Grammar, Head, count, read_head, read_numbers, refuse_first
from spgnn.data.graph import Graph
from spgnn.data.memory import check_vertices
from spgnn.data.narrow import WEIGHT, fits_float32
from spgnn.errors import InputError
from spgnn.pattern import numpy_index_dtype
from spgnn.progress import Progress

# Ids that leave more than this share of [0, largest] unused are names, not positions.
SPARSE_IDS = 16
HEADING = re.compile(r"[A-Za-z_][\w.:-]*")
WANTED = "an edge is 'source target [weight]'"
PLAIN = Grammar("ii", row=f"the first edge has 2 ({WANTED})")
WEIGHTED = Grammar("iif", row=f"the first edge has 3 ({WANTED})")


def read_edge_list(
    path: Path, progress: Progress | None = None, *, directed: bool | None = None
) -> Graph:
    """Read lines ``source target [weight]``: row = target, column = source.

    Comment lines begin with # or %; blanks, tabs, commas and semicolons separate. A first line
    of words is a header. Ids are vertex numbers and stay what they are; only if fewer
    than one in 16 of [0, largest id] occurs, and no comment states as many, are they renumbered in
    rising order, and ``vertex_ids`` keeps the names. A comment ``Nodes: N`` (SNAP's word) is
    believed: vertices that no edge names come last. Weights of an edge that occurs twice are
    summed.

    Parameters
    ----------
    path : Path
    progress : called with (what, bytes read, bytes of the file), optional
    directed : bool, optional
        Otherwise undirected if a leading comment says ``Undirected graph`` (SNAP's words). The
        edges of an undirected graph are stored in both directions.

    Raises
    ------
    InputError
        Naming file and line.
    """
    head = read_head(path, PLAIN)
    if not head.line:
        raise InputError(f"{path}: holds no edges; one line 'source target [weight]' each")
    header = all(HEADING.fullmatch(field) for field in head.fields)
    columns = len(head.fields)
    if columns not in (2, 3):
        raise InputError(f"{path}, line {head.line}: {columns} columns; {WANTED}")
    grammar = PLAIN if columns == 2 else WEIGHTED
    source, target, weights = _edges(path, grammar, head.line if header else 0, progress)
    edges, nodes = _stated(path, head, "Edges"), _stated(path, head, "Nodes")
    if edges is not None and len(source) < edges:
        raise InputError(
            f"{path}: truncated: its header says {edges} edges, but it holds {len(source)}"
        )
    vertices, names = _vertices(path, nodes or 0, source, target)
    check_vertices(str(path), vertices)
    if names is not None:
        source, target = np.searchsorted(names, source), np.searchsorted(names, target)
    if directed is None:
        directed = not re.search(r"\bundirected\b", head.comments, re.IGNORECASE)
    adjacency = csr_from_edges(source, target, vertices, weights, symmetric=not directed)
    ids = None if names is None else torch.from_numpy(names)
    return graph_of(path, adjacency, directed, vertex_ids=ids)


def _edges(
    path: Path, grammar: Grammar, skip: int, progress: Progress | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float64] | None]:
    sources: list[npt.NDArray[Any]] = []
    targets: list[npt.NDArray[Any]] = []
    weights: list[npt.NDArray[np.float64]] = []
    for numbers in read_numbers(path, grammar, skip, progress):
        ends, lines = numbers.integers.reshape(-1, 2), numbers.lines
        worst = ends.min(axis=1)
        refuse_first(path, worst >= 0, lines, worst, "a vertex id, an integer of at least 0")
        if len(grammar.head) == 3:
            values = numbers.reals
            refuse_first(path, np.isfinite(values), lines, values, "a finite weight")
            refuse_first(path, fits_float32(values), lines, values, WEIGHT)
            weights.append(values)
        index_type = numpy_index_dtype(int(ends.max(initial=0)) + 1)
        sources.append(ends[:, 0].astype(index_type))
        targets.append(ends[:, 1].astype(index_type))
    if not sum(map(len, sources)):
        raise InputError(f"{path}: holds no edges; one line 'source target [weight]' each")
    merged = np.concatenate(weights) if weights else None
    if merged is not None and (merged == 1).all():
        merged = None
    return np.concatenate(sources), np.concatenate(targets), merged


def _stated(path: Path, head: Head, what: str) -> int | None:
    """How many edges or nodes the leading comments say there are."""
    found = re.search(rf"\b{what}:\s*([0-9]+)", head.comments)
    return None if found is None else count(path, head.line, found[1], what.lower())


def _vertices(
    path: Path, stated: int, source: npt.NDArray[Any], target: npt.NDArray[Any]
) -> tuple[int, npt.NDArray[np.int64] | None]:
    """Number of vertices, and their names in rising order if ids are names."""
    largest = int(max(source.max(), target.max()))
    if largest < stated:
        return stated, None
    if largest < 2 * len(source) * SPARSE_IDS:
        return largest + 1, None
    names = np.union1d(source, target).astype(np.int64)
    logging.getLogger(__name__).warning(
        "%s: ids reach %d but only %d occur; vertices are numbered in rising order of id",
        path,
        largest,
        len(names),
    )
    if stated > len(names):
        check_vertices(str(path), stated)
        unnamed = largest + 1 + np.arange(stated - len(names))
        names = np.concatenate((names, unnamed))
    return len(names), names
