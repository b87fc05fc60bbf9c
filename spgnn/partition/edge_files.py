"""Edge labels in files: a .npy vector with the part of each nonzero, in the order of the matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.data.arrays import header_bytes, read_header
from spgnn.data.reading import check_regular, reading
from spgnn.errors import InputError
from spgnn.files import AnyPath, write_pieces
from spgnn.partition.adjacency import Int32Array
from spgnn.partition.arguments import integers

DTYPES = tuple(map(np.dtype, ("|u1", "<i2", "<i4")))
_PIECE = 1 << 22


def read_edges(path: AnyPath, edges: int, parts: int) -> Int32Array:
    """Read the part of each nonzero.

    Parameters
    ----------
    path : path
        A .npy vector, uint8, int16 or int32, little endian.
    edges : int
        Nonzeros of the matrix.
    parts : int

    Returns
    -------
    int32 [edges]

    Raises
    ------
    InputError
        Naming the file: no such array, not one label for each nonzero, or one outside [0, parts).
    """
    named = Path(path)
    check_regular(named)
    with reading(named), named.open("rb") as file:
        header = read_header(file)
        if header.dtype not in DTYPES or len(header.shape) != 1:
            raise InputError(
                f"{path}: holds {header.dtype.str} {list(header.shape)}; edge labels are a vector "
                "of uint8, int16 or int32, little endian"
            )
        if header.shape[0] != edges:
            raise InputError(
                f"{path}: {header.shape[0]} edge labels for {edges} nonzeros; there must be one "
                "for each"
            )
        if named.stat().st_size != header.size + header.nbytes:
            raise InputError(f"{path}: truncated or damaged: not as long as its header says")
        found = np.fromfile(file, header.dtype, edges)
    if edges and not 0 <= int(found.min()) <= int(found.max()) < parts:
        bad = int(np.flatnonzero((found < 0) | (found >= parts))[0])
        raise InputError(
            f"{path}: label {found[bad]} of nonzero {bad} (from 0) is outside [0, {parts})"
        )
    return found.astype(np.int32)


def write_edges(path: AnyPath, edges: npt.ArrayLike, parts: int, what: str | None = None) -> None:
    """Write the part of each nonzero, in the narrowest dtype that holds any part.

    Parameters
    ----------
    path : path
    edges : integers in [0, parts), [nnz]
    parts : int
    what : str, optional
        What an error calls the file (by default its path).

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    array = integers(edges, "edge labels")
    dtype = next(dtype for dtype in DTYPES if parts - 1 <= np.iinfo(dtype).max)
    write_pieces(path, _pieces(array, dtype), what)


def _pieces(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> Any:
    yield header_bytes(dtype, array.shape)
    for first in range(0, len(array), _PIECE):
        yield array[first : first + _PIECE].astype(dtype).tobytes()
