"""How often mini-batches will ask for a vertex's row: what the fixed cache rules go by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError, check_choice, check_integer
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.store.neighbors import DiskPattern
from spgnn.store.policy import POLICIES, Policy

Structure = Pattern | CSR | DiskPattern
_PIECE = 1 << 22  # nonzeros that are worked on at once


def uses(pattern: Structure) -> Tensor:
    """How many rows name each vertex (its out-degree), int64 [n]: scores of ``"degree"``.

    Parameters
    ----------
    pattern : Pattern, CSR or DiskPattern [n, n]
        A row lists the vertices that its own vertex aggregates from.
    """
    total = torch.zeros(pattern.shape[1], dtype=torch.int64)
    for _, _, columns in _pieces(pattern):
        total += torch.bincount(columns, minlength=len(total))
    return total


def visit_probability(
    pattern: Structure, num_neighbors: Sequence[int], seeds: Tensor, batch_size: int
) -> Tensor:
    """The probability that a batch of neighbour sampling has a vertex: scores of ``"vip"``.

    The analysis of SALIENT++ (Kaler et al., MLSys'23), hop by hop. A vertex of degree d that has
    been found draws each of its neighbours with probability t = min(1, k/d), in every hop anew, so
    a batch has found u with

        p_0(u) = batch_size / seeds for seeds
        p_h(u) = 1 - (1 - p_{h-1}(u)) prod_v (1 - t_h(v) p_{h-1}(v))

    over the rows v that name u. Exact where what leads to one vertex does not depend on what leads
    to another, on a tree for instance.

    Parameters
    ----------
    pattern : Pattern, CSR or DiskPattern [n, n]
        A row lists the vertices that its own vertex aggregates from.
    num_neighbors : sequence of int
        Fan-out of each hop, the seeds' first; −1 for all neighbours.
    seeds : Tensor int64 [s], or bool [n]
        The vertices that batches begin with, each once an epoch.
    batch_size : int

    Returns
    -------
    Tensor float32 [n]

    Raises
    ------
    InputError
        If a fan-out, the batch size, or a seed is out of range.
    """
    n = pattern.shape[0]
    check_integer("batch_size", batch_size, 1)
    first = _mask(seeds, n)
    lengths = np.diff(pattern.indptr.numpy())
    p = np.where(first, min(1.0, batch_size / max(int(first.sum()), 1)), 0.0)
    for hop, fan_out in enumerate(num_neighbors):
        check_integer(f"num_neighbors[{hop}]", fan_out, -1)
        drawn = np.ones(n) if fan_out < 0 else np.minimum(1, fan_out / np.maximum(lengths, 1))
        p = 1 - (1 - p) * _product_over_rows(pattern, 1 - drawn * p)
    return torch.from_numpy(p.astype(np.float32))


def policy_for(
    name: str,
    pattern: Structure,
    num_neighbors: Sequence[int],
    seeds: Tensor,
    batch_size: int,
) -> Policy:
    """A cache rule with the scores that suit a sampling.

    Parameters
    ----------
    name : str
        As `Policy` has them.
    pattern, num_neighbors, seeds, batch_size
        As `visit_probability` takes them.

    Raises
    ------
    InputError
        As `Policy` and `visit_probability`.
    """
    check_choice("cache policy", name, POLICIES)
    if name == "degree":
        return Policy(name, uses(pattern))
    if name in ("vip", "belady"):
        return Policy(name, visit_probability(pattern, num_neighbors, seeds, batch_size))
    return Policy(name)


def _product_over_rows(
    pattern: Structure, factor: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """For each column the product of the factors of the rows that name it."""
    with np.errstate(divide="ignore"):
        logarithm = np.log(factor)  # −inf where a row is sure to draw all it names
    total = np.zeros(pattern.shape[1])
    for rows, lengths, columns in _pieces(pattern):
        total += np.bincount(columns, np.repeat(logarithm[rows], lengths), pattern.shape[1])
    return np.exp(total)


def _pieces(pattern: Structure) -> Iterator[tuple[slice, npt.NDArray[np.int64], Tensor]]:
    """Neighbouring rows of some nonzeros each: which rows, their lengths, their columns."""
    indptr = pattern.indptr.numpy()
    first, n = 0, len(indptr) - 1
    while first < n:
        last = int(np.searchsorted(indptr, indptr[first] + _PIECE, side="right")) - 1
        last = min(max(last, first + 1), n)
        columns = pattern.indices[indptr[first] : indptr[last]]
        yield slice(first, last), np.diff(indptr[first : last + 1]), columns
        first = last


def _mask(seeds: Tensor, n: int) -> npt.NDArray[np.bool_]:
    if seeds.dtype == torch.bool:
        if seeds.shape != (n,):
            raise InputError(f"a mask of seeds must be bool [{n}], got {list(seeds.shape)}")
        return np.asarray(seeds.numpy(force=True))
    ids = seeds.numpy(force=True)
    if len(ids) and not 0 <= ids.min() <= ids.max() < n:
        raise InputError(f"seeds must be in [0, {n}), got {ids.min()} to {ids.max()}")
    mask = np.zeros(n, np.bool_)
    mask[ids] = True
    return mask
