"""Neighbour sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replaced

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.pattern import Pattern, described
from spgnn.sampling.arguments import (
    LAST,
    UNIFORM,
    WEIGHTED,
    Int64Array,
    draw_keys,
    hop_counts,
    int64_list,
    positive_list,
    thread_count,
    vertex_lists,
)
from spgnn.sampling.rows import sampled_rows, to_samples
from spgnn.sampling.sample import Draw, Hop, Sample
from spgnn.sparse import CSR

TEMPORAL_STRATEGIES = ("uniform", "last")


class NeighborSampler:
    """So many neighbours of each vertex, hop by hop (GraphSAGE; Hamilton et al., NeurIPS 2017).

    Parameters
    ----------
    pattern : Pattern or CSR [rows, cols]
        Row i lists whom vertex i aggregates from.
    num_neighbors : sequence of int
        How many neighbours of each vertex, the seeds' hop first; −1: all.
    replace : bool
        Whether a neighbour may be drawn more than once.
    weights : Tensor, floating [nnz], optional
        Neighbours are drawn in proportion to these; those of weight 0 are no neighbours. Hops then
        say what each edge counts in a sum (`Hop.weights`).
    disjoint : bool
        Whether each seed has a tree of its own, which draws by itself. Seeds may then repeat.
    edge_ids : bool
        Whether hops say which nonzeros of the pattern they hold.
    directed : bool
        If not, a hop holds all edges from its sources to its targets, also those not drawn.
    resample : bool
        Whether each hop draws for everything found so far. If not, a vertex draws once, where it
        is found, and keeps what it drew: all hops are beginnings of one matrix, as PyG has them.
    edge_times, node_times : Tensor, int64 [nnz], [cols], optional
        Only edges and neighbours that are not later than the seed are drawn. Samples are disjoint.
    temporal_strategy : {"uniform", "last"}
        Any of these neighbours, or the latest, each once.
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
        weights: Tensor | None = None,
        disjoint: bool = False,
        edge_ids: bool = False,
        directed: bool = True,
        resample: bool = True,
        edge_times: Tensor | None = None,
        node_times: Tensor | None = None,
        temporal_strategy: str = "uniform",
        vertex_ids: Tensor | None = None,
        row_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        check_choice("temporal_strategy", temporal_strategy, TEMPORAL_STRATEGIES)
        self.num_neighbors = tuple(hop_counts("num_neighbors", num_neighbors).tolist())
        self.threads = thread_count(threads)
        times = _entry_times(pattern, edge_times, node_times)
        if weights is not None and temporal_strategy == "last":
            raise InputError("temporal_strategy last takes no weights: nothing is drawn")
        nnz = pattern.nnz if isinstance(pattern, Pattern | CSR) else 0
        self._rows = sampled_rows(
            pattern,
            vertex_ids,
            row_ids,
            weights=None if weights is None else positive_list("weights", weights, nnz),
            times=times,
            threads=self.threads,
        )
        self.pattern = self._rows.pattern
        self._temporal = times is not None
        self._node_times = None if node_times is None else node_times.clone()
        self._strategy = UNIFORM if weights is None else WEIGHTED
        if self._temporal and temporal_strategy == "last":
            self._strategy = LAST
        if not (directed or resample):
            raise InputError("directed=False holds all edges: there is nothing to draw once")
        self._replace, self._edge_ids = replace, edge_ids
        self._directed, self._resample = directed, resample
        self.disjoint = disjoint or self._temporal

    def sample(self, seeds: Tensor, draw: Draw, times: Tensor | None = None) -> Sample:
        """The neighbourhood of some vertices.

        Parameters
        ----------
        seeds : Tensor, int64 [seeds]
            Each different, unless samples are disjoint.
        draw : Draw
        times : Tensor, int64 [seeds], optional
            Nothing later is drawn; the seeds' ``node_times`` if not given.

        Returns
        -------
        Sample

        Raises
        ------
        InputError
            If a seed is no vertex or is given twice, times do not fit, or the pattern is not
            square.
        """
        return self.sample_many([seeds], [draw], None if times is None else [times])[0]

    def sample_many(
        self,
        seeds: Sequence[Tensor],
        draws: Sequence[Draw],
        times: Sequence[Tensor] | None = None,
    ) -> list[Sample]:
        """Several samples at once, each on a thread of its own: what `sample` says of each.

        Parameters
        ----------
        seeds : sequence of Tensor, int64
        draws : sequence of Draw
        times : sequence of Tensor, int64, optional

        Returns
        -------
        list of Sample
        """
        self._rows.check_square()
        batches = vertex_lists("seeds", seeds, draws)
        limits = [
            self._limits(batch, None if times is None else times[b])
            for b, batch in enumerate(batches)
        ]
        if self.disjoint and any(len(b) * self.pattern.shape[1] >= 2**63 for b in batches):
            raise InputError("seeds: so many disjoint trees of so large a graph cannot be numbered")
        try:
            raw = self._rows.graph.neighbors(
                batches,
                limits if self._temporal else [],
                np.array(self.num_neighbors, dtype=np.int64),
                draw_keys(draws),
                self._strategy,
                self._replace,
                self.disjoint,
                self._directed,
                self._resample,
                self._edge_ids,
                self.threads,
            )
        except ValueError as error:
            raise InputError(f"seeds: {error}") from None
        samples = to_samples(raw, batches)
        return samples if self._resample else [_as_one_matrix(sample) for sample in samples]

    def sample_hop(
        self,
        targets: Tensor,
        hop: int,
        draw: Draw,
        *,
        roots: Tensor | None = None,
        times: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """One hop alone, for some rows of the pattern.

        Parameters
        ----------
        targets : Tensor, int64 [targets]
            Rows; may repeat.
        hop : int
            Which one: 0 is the seeds'.
        draw : Draw
        roots : Tensor, int64 [targets], optional
            The seed each belongs to (its place in the batch), where samples are disjoint.
        times : Tensor, int64 [targets], optional
            That of its seed, where there are times.

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
            If a target is no row, an array is missing, or there is no such hop.
        """
        hop = check_integer("hop", hop, 0, len(self.num_neighbors) - 1)
        rows = int64_list("targets", targets)
        trees = _needed("roots", roots, len(rows), there=self.disjoint)
        limits = _needed("times", times, len(rows), there=self._temporal)
        try:
            indptr, columns, *rest = self._rows.graph.hop(
                rows,
                trees,
                limits,
                self.num_neighbors[hop],
                hop,
                draw_keys([draw]),
                self._strategy,
                self._replace,
                self._edge_ids,
                self.threads,
            )
        except ValueError as error:
            raise InputError(f"targets: {error}") from None
        edge_ids, weights = (None if array is None else torch.from_numpy(array) for array in rest)
        return torch.from_numpy(indptr), torch.from_numpy(columns), edge_ids, weights

    def _limits(self, seeds: Int64Array, times: Tensor | None) -> Int64Array:
        if not self._temporal:
            if times is not None:
                raise InputError("times must not be given: neither edges nor nodes have any")
            return np.empty(0, np.int64)
        if times is not None:
            return int64_list("times", times, len(seeds))
        if self._node_times is None:
            raise InputError("times of the seeds must be given where only edges have times")
        if len(seeds) and not 0 <= seeds.min() <= seeds.max() < len(self._node_times):
            raise InputError(f"seeds must be in [0, {len(self._node_times)})")
        limits: Int64Array = self._node_times.numpy()[seeds]
        return limits


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
    try:
        nodes, indices = _native.relabel(
            listed, columns.contiguous().numpy(), thread_count(threads)
        )
    except ValueError as error:
        raise InputError(f"targets: {error}") from None
    return torch.from_numpy(nodes), torch.from_numpy(indices)


def _needed(name: str, given: Tensor | None, length: int, *, there: bool) -> Int64Array | None:
    """An argument of some samplers only."""
    if there != (given is not None):
        raise InputError(f"{name} must {'' if there else 'not '}be given for this sampler")
    return None if given is None else int64_list(name, given, length)


def _as_one_matrix(sample: Sample) -> Sample:
    """Hops that hold the rows of what the hop before found, one under the other."""
    if not sample.hops:
        return sample
    ends, edges = [torch.zeros(1, dtype=torch.int64)], 0
    for hop in sample.hops:
        ends.append(hop.indptr[1:] + edges)
        edges += hop.edges
    indptr, indices = torch.cat(ends), torch.cat([hop.indices for hop in sample.hops])
    edge_ids = _joined([hop.edge_ids for hop in sample.hops])
    weights = _joined([hop.weights for hop in sample.hops])
    hops, rows, end = [], 0, 0
    for hop in sample.hops:
        rows, end = rows + hop.targets, end + hop.edges
        ids = None if edge_ids is None else edge_ids[:end]
        factors = None if weights is None else weights[:end]
        hops.append(Hop(indptr[: rows + 1], indices[:end], ids, factors, hop.sources))
    return replaced(sample, hops=hops)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def _entry_times(
    pattern: Pattern | CSR, edge_times: Tensor | None, node_times: Tensor | None
) -> Int64Array | None:
    """The earliest time at which each entry may be drawn."""
    if edge_times is None and node_times is None:
        return None
    if edge_times is None:
        nodes = int64_list("node_times", node_times, pattern.shape[1])  # type: ignore[arg-type]
        earliest: Int64Array = nodes[pattern.indices.numpy()]
        return earliest
    edges = int64_list("edge_times", edge_times, pattern.nnz)
    if node_times is None:
        return edges.copy()
    nodes = int64_list("node_times", node_times, pattern.shape[1])
    later: Int64Array = np.maximum(edges, nodes[pattern.indices.numpy()])
    return later
