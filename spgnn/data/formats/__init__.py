"""File formats: one reader for each, chosen by the file's suffix."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from spgnn.data.formats.edge_list import read_edge_list
from spgnn.data.formats.matrix_market import read_matrix_market
from spgnn.data.formats.metis import read_metis
from spgnn.data.formats.npz import read_npz
from spgnn.data.graph import Graph
from spgnn.errors import InputError, meant
from spgnn.progress import Progress

# An .npz is read by one call of a library, which reports no progress.
READERS: dict[str, Callable[[Path, Progress | None], Graph]] = {
    ".npz": lambda path, _: read_npz(path),
    ".mtx": read_matrix_market,
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
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, not a graph file")
    suffix = suffix_of(path)
    if suffix not in READERS or (suffix == ".npz" and path.suffix == ".gz"):
        known = ", ".join(READERS)
        raise InputError(
            f"{path}: unknown format; known are {known} (text also with .gz)"
            f"{meant(suffix, READERS)}"
        )
    try:
        return READERS[suffix](path, progress)
    except MemoryError:
        raise InputError(f"{path}: does not fit into the memory of this machine") from None


def suffix_of(path: Path) -> str:
    """The suffix that names the format: ``.mtx`` of ``a.mtx.gz``."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()
