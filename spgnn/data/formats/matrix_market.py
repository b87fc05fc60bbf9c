"""Matrix Market files (.mtx, also gzipped)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io

from spgnn.data.edge_list import graph_name
from spgnn.data.graph import Graph
from spgnn.data.structure import from_entries
from spgnn.data.text import open_bytes
from spgnn.errors import InputError


def read_matrix_market(path: Path) -> Graph:
    """Read a sparse square matrix as it stands: row = destination.

    ``symmetric`` files are undirected graphs, ``general`` ones directed; ``pattern`` files, and
    those whose entries are all 1, have no weights.

    Raises
    ------
    InputError
        Naming file and line.
    """
    with open_bytes(path) as file:
        banner = file.readline().decode("utf-8", "replace").lower().split()
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
        raise InputError(
            f"{path}, line 1: not a Matrix Market file; it begins with "
            "'%%MatrixMarket matrix coordinate FIELD SYMMETRY'"
        )
    _, _, layout, field, symmetry = banner
    if layout != "coordinate":
        raise InputError(f"{path}, line 1: a '{layout}' matrix; a graph is stored as 'coordinate'")
    if field not in ("pattern", "integer", "real", "double"):
        raise InputError(f"{path}, line 1: '{field}' entries; weights are pattern, integer or real")
    if symmetry not in ("general", "symmetric"):
        raise InputError(f"{path}, line 1: '{symmetry}'; a graph is 'general' or 'symmetric'")
    try:
        A = scipy.io.mmread(path)
    except (ValueError, OverflowError, OSError, EOFError) as error:
        raise InputError(f"{path}: {_one_line(error)}") from None
    if A.shape[0] != A.shape[1]:
        raise InputError(
            f"{path}: the matrix is {A.shape[0]} × {A.shape[1]}; "
            "a graph needs as many rows as columns"
        )
    finite = np.isfinite(A.data)
    if not finite.all():
        at = int(np.argmin(finite))
        raise InputError(
            f"{path}: entry ({A.row[at] + 1}, {A.col[at] + 1}) is {A.data[at]}; "
            "it must be a finite number"
        )
    weighted = field != "pattern" and not bool((A.data == 1).all())
    A.data = A.data.astype(np.float32 if weighted else np.bool_)
    return Graph(graph_name(path), from_entries(A, weighted=weighted), symmetry == "general")


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:1].lower() + text[1:] or type(error).__name__
