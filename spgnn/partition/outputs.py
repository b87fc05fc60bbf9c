"""The files that the command writes: tried before the work, written after it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spgnn.data.load import data_directory
from spgnn.errors import InputError
from spgnn.files import check_writable, write_pieces
from spgnn.partition.adjacency import Int32Array
from spgnn.partition.edge_files import write_edges
from spgnn.partition.labels import part_sizes, permutation, write_labels
from spgnn.partition.plot import check_plot, plot_volumes
from spgnn.partition.volume import Report, Volumes

# The flags that name a file to write, and what it will hold.
OUTPUTS = {
    "--output": "write the labels, one a line (METIS's format)",
    "--edges": "write the part of each nonzero (.npy)",
    "--sizes": "write the number of vertices of each part",
    "--permutation": "write the original vertex ids in order of their part",
    "--json": "write the report",
    "--plot": "draw send and receive volumes and the block heat map",
}


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse what would fail, or overwrite what is read, only after the long work.

    Raises
    ------
    InputError
        Names the flag.
    """
    taken = _sources(options)
    for flag in OUTPUTS:
        path = getattr(options, flag.removeprefix("--"))
        if path is None:
            continue
        check_writable(path, flag)
        for other, known in taken:
            if _is_part_of(path, known):
                raise InputError(f"{flag} {path}: would overwrite {other}; name another file")
        taken.append((flag, path))
    if options.plot is not None:
        check_plot(options.plot)


def write_outputs(
    options: argparse.Namespace,
    labels: Int32Array,
    reports: list[Report],
    volumes: Volumes | None,
    edges: Int32Array | None,
) -> None:
    """Write all that was asked for; what cannot be written does not keep the rest from it.

    Raises
    ------
    InputError
        Says what could not be written, after the rest was.
    """
    title = f"{Path(options.graph).name}, {reports[0]['method']}"
    writers: dict[str, Callable[[str], None]] = {
        "output": lambda path: write_labels(path, labels, f"--output {path}"),
        "edges": lambda path: _edges(edges, options.parts, path),
        "sizes": lambda path: write_labels(
            path, part_sizes(labels, options.parts), f"--sizes {path}"
        ),
        "permutation": lambda path: write_labels(
            path, permutation(labels), f"--permutation {path}"
        ),
        "json": lambda path: write_pieces(path, [_record(options, reports)], f"--json {path}"),
        "plot": lambda path: _plot(volumes, path, title),
    }
    failures = []
    for name, write in writers.items():
        path = getattr(options, name)
        if path is None:
            continue
        try:
            write(path)
        except InputError as error:
            failures.append(str(error))
        else:
            print(f"wrote {path}", file=sys.stderr)
    if failures:
        raise InputError("; ".join(failures))


def _sources(options: argparse.Namespace) -> list[tuple[str, str]]:
    """What is read, and from which file or directory."""
    named = data_directory() / f"{options.graph}.npz"
    files = {
        "--labels": options.labels,
        "--edge-labels": options.edge_labels,
        "--refine-from": options.refine_from,
    }
    found = [("the graph", options.graph), ("the graph", str(named)), *files.items()]
    return [(what, path) for what, path in found if path is not None and os.path.exists(path)]


def _is_part_of(path: str, known: str) -> bool:
    """Whether two names are one file, or the first is a file below the directory of the second."""
    if os.path.exists(path) and os.path.exists(known):
        if os.path.samefile(path, known):
            return True
        return Path(path).resolve().is_relative_to(Path(known).resolve())
    return os.path.realpath(path) == os.path.realpath(known)


def _edges(edges: Int32Array | None, parts: int, path: str) -> None:
    if edges is not None:
        write_edges(path, edges, parts, f"--edges {path}")


def _plot(volumes: Volumes | None, path: str, title: str) -> None:
    if volumes is not None:
        plot_volumes(volumes, path, title)


def _record(options: argparse.Namespace, reports: list[Report]) -> bytes:
    record: dict[str, Any] = dict(reports[0])
    record["graph"] = options.graph
    if options.features is not None:
        record["bytes"] = _bytes(reports[0], options.features)
    if len(reports) > 1:
        record["compared"] = reports[1:]
    return json.dumps(record, indent=2, allow_nan=False).encode() + b"\n"


def _bytes(result: Report, features: int) -> dict[str, int]:
    """Volumes in bytes, for rows of float32."""
    row = 4 * features
    return {
        "features": features,
        "total": result["total_volume"] * row,
        "max_send": result["max_send"] * row,
        "max_recv": result["max_recv"] * row,
    }
