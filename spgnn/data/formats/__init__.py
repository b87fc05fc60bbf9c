"""File formats: one reader for each, chosen by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spgnn.data.formats.edge_file import EdgeFile, read_edges
from spgnn.data.formats.edge_list import EdgeList
from spgnn.data.formats.matrix_market import MatrixMarket
from spgnn.data.formats.metis import MetisGraph
from spgnn.data.formats.npz import read_npz
from spgnn.data.graph import Graph
from spgnn.errors import InputError, meant
from spgnn.progress import Progress

EDGE_FILES: dict[str, Callable[[Path], EdgeFile]] = {
    ".mtx": MatrixMarket,
    ".graph": MetisGraph,
    ".txt": EdgeList,
    ".csv": EdgeList,
    ".tsv": EdgeList,
}
FORMATS = (".npz", *EDGE_FILES)


def read_graph(path: str | os.PathLike[str], progress: Progress | None = None) -> Graph:
    """Read a graph file: .npz, .mtx, .graph (METIS), .txt, .csv or .tsv (edges); text also as .gz.

    Raises
    ------
    InputError
        One line that names the file, the line or array, and what is wrong.
    """
    path = Path(path)
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, not a graph file")
    suffix = suffix_of(path)
    if suffix not in FORMATS or (suffix == ".npz" and path.suffix == ".gz"):
        raise InputError(
            f"{path}: unknown format; known are {', '.join(FORMATS)} (text also with .gz)"
            f"{meant(suffix, FORMATS)}"
        )
    try:
        if suffix == ".npz":
            return read_npz(path)  # one call of a library, which reports no progress
        return read_edges(EDGE_FILES[suffix](path), progress)
    except MemoryError:
        raise InputError(f"{path}: does not fit into the memory of this machine") from None


def suffix_of(path: Path) -> str:
    """The suffix that names the format: ``.mtx`` of ``a.mtx.gz``."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()
