"""One reader for every file format, chosen by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spgnn.data.download import Progress
from spgnn.data.edge_list import read_edge_list
from spgnn.data.graph import Graph
from spgnn.data.matrix_market import read_matrix_market
from spgnn.data.metis import read_metis
from spgnn.data.npz import read_npz
from spgnn.errors import InputError

# The first two are read by one call of a library, which reports no progress.
READERS: dict[str, Callable[[Path, Progress | None], Graph]] = {
    ".npz": lambda path, _: read_npz(path),
    ".mtx": lambda path, _: read_matrix_market(path),
    ".graph": read_metis,
    ".txt": read_edge_list,
    ".csv": read_edge_list,
    ".tsv": read_edge_list,
}


def read_graph(path: str | os.PathLike[str], progress: Progress | None = None) -> Graph:
    """Read a graph file: .npz, .mtx, .graph (METIS), .txt, .csv or .tsv (edges); text also as .gz.

    Raises
    ------
    InputError
        One line that names the file, the line or array, and what is wrong.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file")
    if path.is_dir():
        raise InputError(f"{path}: is a directory, not a graph file")
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix not in READERS or (suffix == ".npz" and path.suffix == ".gz"):
        known = ", ".join(READERS)
        raise InputError(f"{path}: unknown format; known are {known} (text also with .gz)")
    try:
        return READERS[suffix](path, progress)
    except MemoryError:
        raise InputError(f"{path}: does not fit into the memory of this machine") from None
