"""A pattern as the samplers read it: in an order that depends on the graph alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError
from spgnn.pattern import Pattern, numpy_index_dtype
from spgnn.sampling.arguments import Int64Array, int64_list
from spgnn.sampling.sample import Hop, Sample
from spgnn.sparse import CSR

IndexArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SampledRows:
    """The rows of a pattern, each in the order of its columns' original ids.

    Parameters
    ----------
    pattern : Pattern
        As the caller has it.
    graph : Graph32 or Graph64
        What C++ samples from.
    """

    pattern: Pattern
    graph: _native._Graph

    def check_square(self) -> None:
        """Several hops are asked for."""
        rows, cols = self.pattern.shape
        if rows != cols:
            raise InputError(
                f"several hops need a square pattern, this one is [{rows}, {cols}]; "
                "take hops one by one (sample_hop)"
            )


def sampled_rows(
    source: Pattern | CSR,
    vertex_ids: Tensor | None = None,
    row_ids: Tensor | None = None,
    *,
    weights: Float64Array | None = None,
    times: Int64Array | None = None,
    threads: int,
) -> SampledRows:
    """Read a pattern; its arrays are shared unless a row lists its columns in another order.

    Parameters
    ----------
    weights : float64 [nnz], optional
        Entries of weight 0 are left out.
    times : int64 [nnz], optional
        They come first in the order of a row.
    """
    pattern = source.pattern if isinstance(source, CSR) else source
    if not isinstance(pattern, Pattern):
        raise InputError(f"a Pattern or a CSR is sampled from, got {type(source).__name__}")
    rows, cols = pattern.shape
    columns = None if vertex_ids is None else int64_list("vertex_ids", vertex_ids, cols)
    if row_ids is None and columns is not None and rows > cols:
        raise InputError(f"row_ids must be given for a pattern of {rows} rows and {cols} columns")
    ids = None if columns is None else columns[:rows]
    if row_ids is not None:
        ids = int64_list("row_ids", row_ids, rows)
    indptr, indices = pattern.indptr.cpu().numpy(), pattern.indices.cpu().numpy()
    places: Int64Array | None = None
    if weights is not None and not weights.all():
        places = kept = np.flatnonzero(weights)
        indptr = np.searchsorted(kept, indptr).astype(np.int64, copy=False)
        indices, weights = indices[kept], weights[kept]
        times = None if times is None else times[kept]
    order = _native.row_order(indptr, indices, columns, times, threads)
    if order is not None:
        indices = indices[order]
        weights = None if weights is None else weights[order]
        times = None if times is None else times[order]
        places = order if places is None else places[order]
    kind = _native.Graph32 if indices.dtype == np.int32 else _native.Graph64
    first_entries = times is not None
    graph = kind(
        indptr, indices, cols, ids, columns, places, times, weights, first_entries, threads
    )
    return SampledRows(pattern, graph)


def vertices_in_proportion(masses: Float64Array, vertex_ids: Tensor | None) -> _native._Graph:
    """All vertices as one row, in the order of their original ids; those of mass 0 are left out."""
    vertices = np.arange(len(masses)) if vertex_ids is None else np.argsort(vertex_ids.numpy())
    vertices = vertices[masses[vertices] > 0].astype(numpy_index_dtype(len(masses)))
    kind = _native.Graph32 if vertices.dtype == np.int32 else _native.Graph64
    indptr = np.array([0, len(vertices)], dtype=np.int64)
    weights = masses[vertices]
    return kind(indptr, vertices, len(masses), None, None, None, None, weights, True, 1)


def to_samples(
    raw: Sequence[_native._Sample], seeds: Sequence[Int64Array] | None = None
) -> list[Sample]:
    """What C++ returns, as tensors; without seeds, all nodes of a sample are seeds."""
    return [
        Sample(
            torch.from_numpy(nodes),
            len(nodes if seeds is None else seeds[i]),
            [
                Hop(
                    torch.from_numpy(indptr),
                    torch.from_numpy(indices),
                    _tensor(edge_ids),
                    _tensor(weights),
                    sources,
                )
                for indptr, indices, edge_ids, weights, sources in hops
            ],
            _tensor(roots),
        )
        for i, (nodes, hops, roots) in enumerate(raw)
    ]


def _tensor(array: npt.NDArray[np.generic] | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)
