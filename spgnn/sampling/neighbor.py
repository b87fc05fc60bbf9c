"""Neighbour sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.pattern import Pattern, described
from spgnn.sampling import _sampling
from spgnn.sampling.rows import int64_list, sampled_rows
from spgnn.sampling.sample import Draw, Hop, Sample
from spgnn.sparse import CSR


class NeighborSampler:
    """So many neighbours of each vertex, hop by hop (GraphSAGE; Hamilton et al., NeurIPS 2017).

    Each hop draws neighbours of *everything* found so far, the seeds included.

    Parameters
    ----------
    pattern : Pattern or CSR [rows, cols]
        Row i lists whom vertex i aggregates from.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    replace : bool
        Whether a neighbour may be drawn more than once.
    edge_ids : bool
        Whether hops say which nonzeros of the pattern they hold.
    vertex_ids : Tensor, int64 [cols], optional
        Original ids: draws are functions of these, so that no partition changes them.
    row_ids : Tensor, int64 [rows], optional
        Original ids of the rows where they are not ``vertex_ids[:rows]``.
    threads : int, optional
        Threads inside one call; those of torch if not given. Results do not depend on them.

    Raises
    ------
    InputError
        If an argument is none of these.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        num_neighbors: Sequence[int],
        *,
        replace: bool = False,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        row_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        self.num_neighbors = _fanouts(num_neighbors)
        self.replace, self.edge_ids = replace, edge_ids
        self.threads = _threads(threads)
        rows = sampled_rows(pattern, vertex_ids, row_ids)
        self.pattern = rows.pattern
        self._neighbors = rows.neighbors()

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of some vertices.

        Parameters
        ----------
        seeds : Tensor, int64 [seeds]
            Each different.
        draw : Draw

        Returns
        -------
        Sample

        Raises
        ------
        InputError
            If a seed is no vertex or is given twice, or the pattern is not square.
        """
        if self.pattern.shape[0] != self.pattern.shape[1]:
            raise InputError(
                f"several hops need a square pattern, this one is {list(self.pattern.shape)}; "
                "take hops one by one (sample_hop)"
            )
        fanouts = np.array(self.num_neighbors, dtype=np.int64)
        try:
            nodes, hops = self._neighbors.sample(
                int64_list("seeds", seeds), fanouts, *_key(draw), *self._how()
            )
        except ValueError as error:
            raise InputError(f"seeds: {error}") from None
        return Sample(
            torch.from_numpy(nodes),
            int(seeds.shape[0]),
            [
                Hop(
                    torch.from_numpy(indptr),
                    torch.from_numpy(indices),
                    None if edge_ids is None else torch.from_numpy(edge_ids),
                    None,
                    sources,
                )
                for indptr, indices, edge_ids, sources in hops
            ],
        )

    def sample_hop(
        self, targets: Tensor, hop: int, draw: Draw
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """One hop alone, for some rows of the pattern.

        Parameters
        ----------
        targets : Tensor, int64 [targets]
            Rows; may repeat.
        hop : int
            Which one: 0 is the seeds'.
        draw : Draw

        Returns
        -------
        indptr : Tensor, int64 [targets + 1]
        columns : Tensor, dtype of the pattern's indices [edges]
            Columns of the pattern.
        edge_ids : Tensor, int64 [edges], or None
        weights : Tensor, float32 [edges], or None

        Raises
        ------
        InputError
            If a target is no row, or there is no such hop.
        """
        hop = check_integer("hop", hop, 0, len(self.num_neighbors) - 1)
        try:
            indptr, columns, edge_ids = self._neighbors.sample_hop(
                int64_list("targets", targets),
                self.num_neighbors[hop],
                hop,
                *_key(draw),
                *self._how(),
            )
        except ValueError as error:
            raise InputError(f"targets: {error}") from None
        return (
            torch.from_numpy(indptr),
            torch.from_numpy(columns),
            None if edge_ids is None else torch.from_numpy(edge_ids),
            None,
        )

    def _how(self) -> tuple[bool, bool, int]:
        return self.replace, self.edge_ids, self.threads


def relabel(
    targets: Tensor, indptr: Tensor, columns: Tensor, *, threads: int | None = None
) -> tuple[Tensor, Tensor]:
    """The union of targets and the columns that were drawn for them, and the columns' places in it.

    Parameters
    ----------
    targets : Tensor, int64 [targets]
        Each different; numbered as the columns are.
    indptr : Tensor, int64 [targets + 1]
    columns : Tensor, int32 or int64 [edges]
    threads : int, optional

    Returns
    -------
    nodes : Tensor, int64 [m]
        The targets, then other columns in the order found, each once.
    indices : Tensor, int32 [edges]
        ``nodes[indices]`` are the columns.

    Raises
    ------
    InputError
        If a target is given twice, or the arrays do not fit.
    """
    listed = int64_list("targets", targets)
    if indptr.shape != (len(listed) + 1,) or int(indptr[-1]) != columns.shape[0]:
        raise InputError(
            f"indptr must be int64 [{len(listed) + 1}] and end at {columns.shape[0]}, "
            f"got {described(indptr)}"
        )
    keys: npt.NDArray[np.int32] | npt.NDArray[np.int64] = columns.contiguous().numpy()
    try:
        nodes, indices = _sampling.relabel(listed, keys, _threads(threads))
    except ValueError as error:
        raise InputError(f"targets: {error}") from None
    return torch.from_numpy(nodes), torch.from_numpy(indices)


def _fanouts(num_neighbors: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(num_neighbors, list | tuple):
        raise InputError(
            f"num_neighbors must be a list of integers, got {type(num_neighbors).__name__}"
        )
    return tuple(check_integer("num_neighbors", count, -1) for count in num_neighbors)


def _threads(threads: int | None) -> int:
    return torch.get_num_threads() if threads is None else check_integer("threads", threads, 1)


def _key(draw: Draw) -> tuple[int, int, int]:
    return draw.seed % 2**64, draw.epoch % 2**64, draw.batch % 2**64
