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
from spgnn.data.formats.reading import PACKED, check_regular, unpacked
from spgnn.data.graph import Graph
from spgnn.errors import InputError, meant
from spgnn.progress import Progress

EDGE_FILES: dict[str, Callable[[Path], EdgeFile]] = {
    ".mtx": MatrixMarket,
    ".graph": MetisGraph,
    ".txt": EdgeList,
    ".csv": EdgeList,
    ".tsv": EdgeList,
    ".edges": EdgeList,
    ".edgelist": EdgeList,
    ".el": EdgeList,
    ".wel": EdgeList,
}
FORMATS = (".npz", *EDGE_FILES)
_NOT_UNPACKED = (".zst", ".zip", ".7z", ".lz4", ".z", ".tar", ".tgz", ".tbz", ".txz")


def read_graph(path: str | os.PathLike[str], progress: Progress | None = None) -> Graph:
    """Read a graph file: .npz, .mtx, .graph (METIS), or edges in one of the other `FORMATS`.

    Text may be packed, as .gz, .bz2 or .xz.

    Raises
    ------
    InputError
        One line that names the file, the line or array, and what is wrong.
    """
    path = Path(path)
    return read_in_memory(path, edge_file(path), progress)


def read_in_memory(path: Path, file: EdgeFile | None, progress: Progress | None) -> Graph:
    """The graph of a file that `edge_file` has opened."""
    try:
        # NumPy's format is read by one call of a library, which reports no progress.
        return read_npz(path) if file is None else read_edges(file, progress)
    except MemoryError:
        raise InputError(f"{path}: does not fit into the memory of this machine") from None


def edge_file(path: Path) -> EdgeFile | None:
    """A file of edges, opened by the reader that its suffix names; ``None`` for an .npz file.

    Raises
    ------
    InputError
        If there is no such file, or none of a known format.
    """
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, not a graph file")
    check_regular(path)
    suffix = suffix_of(path)
    if path.suffix.lower() in _NOT_UNPACKED:
        raise InputError(
            f"{path}: unpack it first; of packed files only {', '.join(PACKED)} are read"
        )
    if suffix not in FORMATS or (suffix == ".npz" and path.suffix.lower() in PACKED):
        raise InputError(
            f"{path}: unknown format; known are {', '.join(FORMATS)} (text also with "
            f"{', '.join(PACKED)}){meant(suffix, FORMATS)}"
        )
    return None if suffix == ".npz" else EDGE_FILES[suffix](path)


def suffix_of(path: Path) -> str:
    """The suffix that names the format: ``.mtx`` of ``a.mtx.gz``, and of ``A.MTX``."""
    return Path(unpacked(path)).suffix.lower()
