"""Induced subgraphs: all edges between some vertices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.pattern import Pattern
from spgnn.sampling.arguments import int64_list, thread_count
from spgnn.sampling.rows import SampledRows, sampled_rows, to_samples
from spgnn.sampling.sample import Draw, Sample
from spgnn.sparse import CSR


def induced(
    pattern: Pattern | CSR,
    vertices: Tensor,
    *,
    layers: int = 1,
    edge_ids: bool = False,
    threads: int | None = None,
) -> Sample:
    """The subgraph of some vertices.

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
    vertices : Tensor, int64 [m]
        Each different.
    layers : int
        So many hops, all of them the same square matrix.
    edge_ids : bool
        Whether it says which nonzeros of the pattern it holds.
    threads : int, optional

    Returns
    -------
    Sample
        All of its nodes are seeds.

    Raises
    ------
    InputError
        If a vertex does not exist or is given twice, or the pattern is not square.
    """
    count = thread_count(threads)
    rows = sampled_rows(pattern, threads=count)
    return induced_sample(rows, vertices, layers=layers, edge_ids=edge_ids, threads=count)


def induced_sample(
    rows: SampledRows, vertices: Tensor, *, layers: int, edge_ids: bool, threads: int
) -> Sample:
    """The same of rows that have been read."""
    rows.check_square()
    check_integer("layers", layers, 1)
    listed = int64_list("vertices", vertices)
    try:
        sample = to_samples(rows.graph.induced([listed], edge_ids, threads))[0]
    except ValueError as error:
        raise InputError(f"vertices: {error}") from None
    return replace(sample, hops=sample.hops * layers)


class ClusterSampler:
    """Cluster batches: the subgraph of some clusters (Cluster-GCN; Chiang et al., KDD 2019).

    Parameters
    ----------
    pattern : Pattern or CSR [n, n]
    labels : Tensor, int64 [n]
        The cluster of each vertex, 0, 1, …: a partition into many parts.
    layers : int
        So many hops, all of them the same square matrix.
    edge_ids : bool
    threads : int, optional

    Raises
    ------
    InputError
        If the labels do not fit.
    """

    def __init__(
        self,
        pattern: Pattern | CSR,
        labels: Tensor,
        *,
        layers: int = 1,
        edge_ids: bool = False,
        threads: int | None = None,
    ) -> None:
        self.threads = thread_count(threads)
        self._rows = sampled_rows(pattern, threads=self.threads)
        self._rows.check_square()
        self.pattern = self._rows.pattern
        cluster = int64_list("labels", labels, self.pattern.shape[0])
        if len(cluster) and cluster.min() < 0:
            raise InputError(f"labels must not be negative, got {cluster.min()}")
        self._order = np.argsort(cluster, kind="stable")
        self._ends = np.cumsum(np.bincount(cluster))
        self._layers, self._edge_ids = layers, edge_ids

    @property
    def clusters(self) -> int:
        """How many there are."""
        return len(self._ends)

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The subgraph of some clusters, int64 [clusters]; nothing is drawn."""
        listed = int64_list("seeds", seeds)
        wrong = listed[(listed < 0) | (listed >= self.clusters)]
        if len(wrong):
            raise InputError(f"seeds: cluster {wrong[0]} outside [0, {self.clusters})")
        begins = np.concatenate(([0], self._ends[:-1]))
        parts = [self._order[begins[c] : self._ends[c]] for c in listed]
        vertices = np.concatenate([*parts, np.empty(0, np.int64)])
        return induced_sample(
            self._rows,
            torch.from_numpy(vertices),
            layers=self._layers,
            edge_ids=self._edge_ids,
            threads=self.threads,
        )
