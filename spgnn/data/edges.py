"""From a list of edges to a canonical CSR block."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from spgnn.data.structure import added, from_entries
from spgnn.errors import InputError
from spgnn.sparse import CSR


def csr_from_edges(
    source: npt.NDArray[Any],
    target: npt.NDArray[Any],
    vertices: int,
    weights: npt.NDArray[np.floating] | None = None,
    *,
    symmetric: bool = False,
    loops: bool = True,
) -> CSR:
    """The adjacency of edges source → target: row = target, column = source.

    Parameters
    ----------
    source, target : integer [edges]
    vertices : int
    weights : floating [edges], optional
        Weights of an edge named several times are summed, in their own dtype.
    symmetric : bool
        Store every edge in both directions (a loop once).
    loops : bool
        Whether loops stay.

    Returns
    -------
    CSR [vertices, vertices]

    Raises
    ------
    InputError
        If an end is not in [0, vertices).
    """
    for end in (source, target):
        if len(end) and not 0 <= int(end.min()) <= int(end.max()) < vertices:
            edge = int(np.argmax((end < 0) | (end >= vertices)))
            raise InputError(f"edge {edge}: vertex {end[edge]} is outside [0, {vertices})")
    if not loops:
        keep = source != target
        source, target = source[keep], target[keep]
        weights = None if weights is None else weights[keep]
    data = np.ones(len(source), np.bool_) if weights is None else weights
    shape = (vertices, vertices)
    A = sp.coo_array((data, (target, source)), shape=shape).tocsr()
    if symmetric:
        once = source != target
        if not once.all():
            source, target, data = source[once], target[once], data[once]
        A = added(A, sp.coo_array((data, (source, target)), shape=shape).tocsr())
    return from_entries(A, weighted=weights is not None)
