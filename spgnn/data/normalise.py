"""Self-loops, degrees and feature normalisation, each on a block of rows alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.registry import MODELS
from spgnn.sparse import CSR, check_degrees

Normalisation = Literal["sym", "row", "none"]
# The power of degrees that rows are scaled by, and with "sym" columns as well.
POWERS: dict[Normalisation, float] = {"sym": -0.5, "row": -1.0, "none": 0.0}
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
X = TypeVar("X", bound=Tensor | CSR)


def normalisation_of(
    model: str, aggregate: str, choice: str = "auto"
) -> tuple[Normalisation, bool]:
    """Normalisation of the adjacency that a model uses, and whether it has self-loops.

    Parameters
    ----------
    model : str
    aggregate : str
        Of sage.
    choice : {"auto", "sym", "row", "none"}
    """
    own: Normalisation = MODELS[model].normalisation if aggregate == "mean" else "none"
    by_name: dict[str, Normalisation] = {"sym": "sym", "row": "row", "none": "none"}
    return by_name.get(choice, own), MODELS[model].loops


def add_self_loops(block: CSR, first_row: int = 0, weight: float = 1) -> CSR:
    """B + I on rows [first_row, first_row + rows): every diagonal entry exists exactly once.

    The block is canonical, with global columns, and so is the result. In a weighted block a missing
    loop gets `weight` and an existing one keeps its own. Time is linear in rows + nnz; besides the
    result only arrays of length rows and one byte an entry are allocated.
    """
    diagonal = np.arange(first_row, first_row + block.shape[0])
    indptr, indices = block.indptr.numpy(), block.indices.numpy()
    place = first_not_below(indptr, indices, diagonal)
    missing = place == indptr[1:]
    missing[~missing] = indices[place[~missing]] != diagonal[~missing]
    grown = indptr.copy()
    grown[1:] += np.cumsum(missing)
    at = place[missing]
    values = block.values
    if values is None and weight != 1:
        values = torch.ones(block.nnz)
    if values is not None:
        values = torch.from_numpy(np.insert(values.numpy(), at, weight))
    indices = np.insert(indices, at, diagonal[missing].astype(indices.dtype))
    return CSR.of(torch.from_numpy(grown), torch.from_numpy(indices), block.shape, values)


def first_not_below(indptr: Int64, indices: npt.NDArray[Any], columns: Int64) -> Int64:
    """In each row, the position of the first column ≥ wanted, by bisection of all rows at once."""
    low, high = indptr[:-1].copy(), indptr[1:].copy()
    while (open_rows := np.flatnonzero(low < high)).size:
        middle = (low[open_rows] + high[open_rows]) // 2
        below = indices[middle] < columns[open_rows]
        low[open_rows[below]] = middle[below] + 1
        high[open_rows[~below]] = middle[~below]
    return low


def degree_scales(
    block: CSR, kind: Normalisation, ids: Tensor | int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor | None, Tensor | None]:
    """Scalings that normalise a block: Â = diag(row_scale) · B · diag(col_scale).

    The degree of a row is the sum of its weights (its number of entries, if it has none). Rows
    whose degree is 0 get 0. ``col_scale`` of a column is ``own_scale`` of its vertex, at its owner.

    Parameters
    ----------
    block : CSR [rows, n]
        Self-loops included, where they are wanted.
    kind : {"sym", "row", "none"}
        ``sym``: D^-1/2 B D^-1/2 (Kipf & Welling 2017, eq. 2); ``row``: D^-1 B (mean of the
        neighbours); ``none``: B.
    ids : Tensor int64 [rows], or int
        Original ids of the vertices, for messages; or that of row 0, where they follow it.

    Returns
    -------
    row_scale, own_scale : Tensor [rows] or None

    Raises
    ------
    InputError
        If a degree is negative.
    """
    if kind == "none":
        return None, None
    if kind not in ("sym", "row"):
        raise InputError(f"unknown normalisation '{kind}': choose sym, row or none")
    degree = row_sums(block)
    check_degrees(degree, ids)
    scale = np.zeros_like(degree)
    np.power(degree, POWERS[kind], out=scale, where=degree > 0)
    row_scale = torch.from_numpy(scale).to(dtype)
    return row_scale, row_scale if kind == "sym" else None


def check_weights(
    block: CSR, kind: Normalisation, *, loops: bool, first_row: int = 0, ids: Tensor | int = 0
) -> None:
    """Refuse what :func:`degree_scales` refuses, before the rows are used.

    The block has no self-loops of the model yet; `loops` says whether every vertex gets one.
    """
    if kind != "none" and block.values is not None and bool((block.values < 0).any()):
        check_degrees(row_sums(add_self_loops(block, first_row) if loops else block), ids)


def row_sums(block: CSR) -> Float64:
    """Sum of each row, float64 [rows]; the number of entries, if the block has no values."""
    lengths = block.row_lengths.numpy()
    if block.values is None:
        return lengths.astype(np.float64)
    sums = np.zeros(block.shape[0])
    filled = lengths > 0
    # reduceat runs from each start to the next one: empty rows must not appear among them.
    starts = block.indptr.numpy()[:-1][filled]
    if starts.size:
        sums[filled] = np.add.reduceat(block.values.numpy(), starts, dtype=np.float64)
    return sums


def row_normalise_features(x: X, *, in_place: bool = False) -> X:
    """Divide each row by the sum of its absolute values; rows of zeros stay.

    In place where a second feature matrix may not fit next to the first.
    """
    if isinstance(x, CSR):
        assert x.values is not None
        norms = row_sums(replace(x, values=x.values.abs()))
        divisor = torch.from_numpy(np.where(norms > 0, norms, 1).astype(np.float32))
        per_entry = divisor.repeat_interleave(x.row_lengths)
        if in_place:
            x.values.div_(per_entry)
            return x
        return cast(X, replace(x, values=x.values / per_entry))
    norms = torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True)
    norms[norms == 0] = 1
    return cast(X, x.div_(norms) if in_place else x / norms)


def is_bag_of_words(pieces: Iterable[Tensor | CSR | None]) -> bool:
    """The rule of ``data.feature-norm=auto``: no feature is negative and at most half are nonzero.

    Word counts and TF-IDF are like that; embeddings and measured attributes are dense or have
    negative entries. Rows are normalised for such sets, as Kipf & Welling did. Features come in
    pieces of some rows.
    """
    cells = nonzeros = 0
    negative = False
    for x in pieces:
        if x is not None:
            values = x.values if isinstance(x, CSR) else x
            assert values is not None
            cells += x.shape[0] * x.shape[1]
            nonzeros += int(values.count_nonzero())
            negative = negative or bool((values < 0).any())
    return cells > 0 and not negative and 2 * nonzeros <= cells
