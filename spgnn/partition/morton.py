"""Partitions of points in space: a curve through all of them, cut into pieces of equal weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError
from spgnn.files import check_regular, reading
from spgnn.layout import Int32Array, RowLayout
from spgnn.partition.labels import check_shares
from spgnn.partition.problem import check_parts, check_weights

_BITS = 16  # of a coordinate: cells along an edge of the box


def morton(
    positions: npt.ArrayLike,
    k: int,
    weights: npt.ArrayLike | None = None,
    shares: npt.ArrayLike | None = None,
) -> Int32Array:
    """Give points to k parts along a space-filling curve (Morton 1966); O(n log n), no graph.

    For meshes and for neighbour lists that change at every step. On a graph of neighbours, method
    gvb moves fewer rows and takes longer.

    Parameters
    ----------
    positions : real numbers [n, 2] or [n, 3]
    weights : real numbers [n], optional
        Not negative; every part gets an equal share, up to one point. By default, of points.
    shares : positive numbers [k], optional
        A part's share, beside those of the others.

    Returns
    -------
    labels : int32 [n]

    Raises
    ------
    InputError
        If there is no such array, or a number is NaN, infinite, or a weight that is negative.
    """
    points = np.asarray(positions)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or points.dtype.kind not in "iuf":
        raise InputError(
            f"positions must be real numbers [n, 2] or [n, 3], got {points.dtype} "
            f"{list(points.shape)}"
        )
    n, dimensions = points.shape
    parts = check_parts(k, n)
    loads = np.ones(n) if weights is None else check_weights(weights, n)[1]
    relative = None if shares is None else check_shares(shares, parts)
    points = points.astype(np.float64)
    if not np.isfinite(points).all():
        row = int(np.argmin(np.isfinite(points).all(axis=1)))
        raise InputError(f"positions must be finite; row {row} is not")
    if not n:
        return np.zeros(0, np.int32)
    corner = points.min(axis=0)
    # One scale for all axes: cells are cubes, whatever the box is.
    scale = max(float((points - corner).max()), np.finfo(np.float64).tiny)
    cells = ((points - corner) / scale * (2**_BITS - 1)).astype(np.int64)
    # The bits of the coordinates take turns.
    apart = np.zeros(2**_BITS, np.int64)
    for bit in range(_BITS):
        apart |= (np.arange(2**_BITS) >> bit & 1) << bit * dimensions
    key = np.zeros(n, np.int64)
    for axis in range(dimensions):
        key |= apart[cells[:, axis]] << axis
    order = np.argsort(key, kind="stable")
    pieces = RowLayout(np.array([0, n])).split(parts, loads[order], relative)
    labels = np.empty(n, np.int32)
    labels[order] = np.repeat(np.arange(parts, dtype=np.int32), pieces.sizes)
    return labels


def read_positions(path: str) -> npt.NDArray[Any]:
    """The array of a .npy file; an `InputError` that names the file if there is none."""
    named = Path(path)
    check_regular(named)
    with reading(named), named.open("rb") as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
