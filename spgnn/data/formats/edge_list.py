"""Edge lists: one edge a line, as SNAP publishes them (.txt, .csv, .tsv, also gzipped)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from spgnn.data.download import Progress
from spgnn.data.edges import csr_from_edges
from spgnn.data.graph import Graph
from spgnn.data.text import Head, Numbers, read_head, read_numbers
from spgnn.errors import InputError
from spgnn.pattern import INT32_LIMIT

# Ids that leave more than this share of [0, largest] unused are names, not positions.
SPARSE_IDS = 16
HEADING = re.compile(r"[A-Za-z_][\w.:-]*")


def read_edge_list(
    path: Path, progress: Progress | None = None, *, directed: bool | None = None
) -> Graph:
    """Read lines ``source target [weight]``: row = target, column = source.

    Comment lines begin with # or %; blanks, tabs, commas and semicolons separate. A first line
    of words is a header. Ids are vertex numbers and stay what they are; only if fewer
    than one in 16 of [0, largest id] occurs are they renumbered in rising order, and
    ``vertex_ids`` keeps the names. Weights of an edge that occurs twice are summed.

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
    head = read_head(path)
    if not head.line:
        raise InputError(f"{path}: holds no edges; one line 'source target [weight]' each")
    header = all(HEADING.fullmatch(field) for field in head.fields)
    columns = len(head.fields)
    if columns not in (2, 3):
        raise InputError(
            f"{path}, line {head.line}: {columns} columns; an edge is 'source target [weight]'"
        )
    source, target, weights = _edges(path, columns, head.line if header else 0, progress)
    _check_complete(path, head, len(source))
    vertices, names = _vertices(path, head, source, target)
    if names is not None:
        source, target = np.searchsorted(names, source), np.searchsorted(names, target)
    if directed is None:
        directed = not re.search(r"\bundirected\b", head.comments, re.IGNORECASE)
    adjacency = csr_from_edges(source, target, vertices, weights, symmetric=not directed)
    ids = None if names is None else torch.from_numpy(names)
    return Graph(graph_name(path), adjacency, directed, vertex_ids=ids)


def graph_name(path: Path) -> str:
    """The file's name without its suffixes."""
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def _edges(
    path: Path, columns: int, skip: int, progress: Progress | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.float32] | None]:
    sources: list[npt.NDArray[Any]] = []
    targets: list[npt.NDArray[Any]] = []
    weights: list[npt.NDArray[np.float32]] = []
    largest = 2**63 - 1 if columns == 2 else 2**53
    dtype = np.int64 if columns == 2 else np.float64
    for numbers in read_numbers(path, dtype, skip, progress):
        ragged = (numbers.counts != columns) & (numbers.counts != 0)
        if ragged.any():
            at = int(np.argmax(ragged))
            raise InputError(
                f"{path}, line {numbers.lines[at]}: {numbers.counts[at]} columns, "
                f"but the first edge has {columns}"
            )
        table = numbers.values.reshape(-1, columns)
        ids = table[:, :2]
        good = np.asarray((ids >= 0) & (ids < largest))
        if columns == 3:
            good &= ids == np.floor(ids)
            _refuse(
                path, numbers, np.asarray(np.isfinite(table[:, 2])), table[:, 2], "a finite weight"
            )
            weights.append(table[:, 2].astype(np.float32))
        worst = np.where(good[:, 0], ids[:, 1], ids[:, 0])
        _refuse(
            path, numbers, good.all(axis=1), worst, f"a vertex id, an integer in [0, {largest})"
        )
        index_type = np.int32 if not ids.size or ids.max() < INT32_LIMIT else np.int64
        sources.append(ids[:, 0].astype(index_type))
        targets.append(ids[:, 1].astype(index_type))
    if not sources:
        raise InputError(f"{path}: holds no edges; one line 'source target [weight]' each")
    merged = np.concatenate(weights) if weights else None
    if merged is not None and (merged == 1).all():
        merged = None
    return np.concatenate(sources), np.concatenate(targets), merged


def _refuse(path: Path, numbers: Numbers, good: Any, values: npt.NDArray[Any], what: str) -> None:
    if not good.all():
        at = int(np.argmin(good))
        line = numbers.lines[numbers.counts > 0][at]
        raise InputError(f"{path}, line {line}: {values[at]:g} is not {what}")


def _check_complete(path: Path, head: Head, edges: int) -> None:
    stated = re.search(r"\bEdges:\s*(\d+)", head.comments)
    if stated and edges < int(stated[1]):
        raise InputError(
            f"{path}: truncated: its header says {stated[1]} edges, but it holds {edges}"
        )


def _vertices(
    path: Path, head: Head, source: npt.NDArray[Any], target: npt.NDArray[Any]
) -> tuple[int, npt.NDArray[np.int64] | None]:
    """Number of vertices, and their names in rising order if ids are names."""
    if not len(source):
        return 0, None
    largest = int(max(source.max(), target.max()))
    stated = re.search(r"\bNodes:\s*(\d+)", head.comments)
    vertices = max(largest + 1, int(stated[1]) if stated else 0)
    if vertices <= 2 * len(source) * SPARSE_IDS:
        return vertices, None
    names = np.union1d(source, target).astype(np.int64)
    logging.getLogger(__name__).warning(
        "%s: ids reach %d but only %d occur; vertices are numbered in rising order of id",
        path,
        largest,
        len(names),
    )
    return len(names), names
