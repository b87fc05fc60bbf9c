"""Batches of links, and pairs that are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches.loader import NeighborLoader
from spgnn.addons.batches.sampled_graph import SampledGraph, is_integer, tensor_of
from spgnn.addons.batches.samplers import GraphSampler
from spgnn.addons.batches.sampling import (
    Draw,
    as_int64,
    column_sums,
    draw_keys,
    vertices_in_proportion,
)
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.pattern import Pattern, described
from spgnn.sparse import CSR
from spgnn.torch_internals import on_cpu

METHODS = ("uniform", "degree")


class NegativeSampler(GraphSampler):
    """Draws vertices that are not in a vertex's row, with replacement."""

    def __init__(
        self,
        pattern: Pattern | CSR,
        *,
        method: str = "uniform",
        exclude_edges: bool = True,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        check_choice("method", method, METHODS)
        super().__init__(pattern, vertex_ids=vertex_ids, threads=threads)
        self._check_square()
        self._by_degree, self._exclude_edges = method == "degree", exclude_edges
        ones = np.ones(self.pattern.nnz if self._by_degree else self.pattern.shape[0])
        masses = column_sums(self.pattern, ones) if self._by_degree else ones
        if not masses.any():
            raise InputError("pattern: there is no vertex to draw")
        self._vertices = vertices_in_proportion(masses, vertex_ids)

    def negatives(self, vertices: Tensor, count: int, draw: Draw) -> Tensor:
        """So many other ends for each of some vertices, which may repeat: int64 [m, count]."""
        count = check_integer("count", count, 0)
        listed = as_int64("vertices", vertices)
        wrong = listed[(listed < 0) | (listed >= self.pattern.shape[0])]
        if len(wrong):
            raise InputError(f"vertices: {wrong[0]} outside [0, {self.pattern.shape[0]})")
        options = self._by_degree, self._exclude_edges, draw_keys([draw]), self.threads
        try:
            drawn = self._graph.negatives(listed, count, self._vertices, *options)
        except ValueError as error:
            raise InputError(f"vertices: {error}") from None
        return torch.from_numpy(drawn).reshape(len(listed), count)


class LinkNeighborLoader(NeighborLoader):
    """Batches of links, and of pairs that are none, as PyG's loader of that name.

    A batch's seeds are the ends of its pairs, each once. ``batch.edge_label_index`` [2, pairs] are
    places of sources and targets among its vertices, links first; ``batch.edge_label`` is 1 for a
    link, or what was given, and 0 for others. ``input_id`` are the links.

    Parameters
    ----------
    data, num_neighbors, options
        As of `NeighborLoader`, on one process; ``batch_size`` are links.
    edge_label_index : Tensor of integers [2, links], optional
        Sources and targets; by default all edges.
    edge_label : Tensor [links, …], optional
        Positive where negatives are drawn: theirs is 0.
    neg_sampling_ratio : int, optional
        For each link, so many pairs of its target and another source that has no edge to it.
    """

    @on_cpu
    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        edge_label_index: Any = None,
        *,
        edge_label: Tensor | None = None,
        neg_sampling_ratio: float | None = 0,
        **options: Any,
    ) -> None:
        if hasattr(data, "node_types"):
            raise InputError("LinkNeighborLoader takes graphs of one vertex type")
        for name in ("input_nodes", "input_time", "time_attr", "disjoint"):
            if options.get(name) not in (None, False):
                raise InputError(f"LinkNeighborLoader knows no {name}")
        super().__init__(data, num_neighbors, None, **options)
        if self.strategy is not None:
            raise InputError("LinkNeighborLoader draws from a graph on one process")
        self.links = _checked_links(edge_label_index, self.graph)
        count = self.links.shape[1]
        self.input_nodes = torch.arange(count)
        ratio = 0 if neg_sampling_ratio is None else neg_sampling_ratio
        whole = int(ratio) if isinstance(ratio, float) and ratio.is_integer() else ratio
        self.negatives = check_integer("neg_sampling_ratio", whole, 0)
        self.edge_label = _checked_labels(edge_label, count, positive=self.negatives > 0)
        self._other: NegativeSampler | None = None
        if self.negatives:
            self._other = NegativeSampler(self.graph.structure, vertex_ids=self.graph.vertex_ids)

    def _input_ids(self) -> Tensor:
        return self.input_nodes

    def _inputs(
        self, order: Tensor, number: int, draw: Draw
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        places, *_ = super()._inputs(order, number, draw)
        source, target = self.links[:, places]
        label = self.edge_label[places]
        if self._other is not None:
            # A pair is a function of its place in the step, whichever rank has it.
            first = number // self.ranks * self.ranks * self.batch_size
            before = number * self.batch_size - first
            ends = self.links[1, order[first : first + before + len(places)]]
            others = self._other.negatives(ends, self.negatives, draw)[before:].flatten()
            source = torch.cat((source, others))
            target = torch.cat((target, target.repeat_interleave(self.negatives)))
            label = torch.cat((label, label.new_zeros(len(others), *label.shape[1:])))
        seeds, pairs = torch.stack((source, target)).unique(return_inverse=True)
        return places, seeds, {"edge_label_index": pairs, "edge_label": label}


def _checked_labels(labels: Any, links: int, *, positive: bool) -> Tensor:
    """One label a link; with negatives, 0 is theirs."""
    if labels is None:
        return torch.ones(links)
    right = f"edge_label must be a tensor [{links}], one a link"
    checked = tensor_of(labels, right).clone()
    if checked.layout != torch.strided or checked.dim() == 0 or len(checked) != links:
        raise InputError(f"{right}, got {described(checked)}")
    if positive and not (checked > 0).all():
        raise InputError("edge_label must be positive: 0 stands for the pairs that are none")
    return checked


def _checked_links(links: Any, graph: SampledGraph) -> Tensor:
    """Sources and targets, int64 [2, links]; by default all edges, in the order of the graph."""
    vertices = graph.rows
    if links is None:
        pattern = graph.structure
        rows = torch.arange(vertices).repeat_interleave(pattern.row_lengths)
        edges = torch.stack((pattern.indices.long(), rows))
        if graph.edge_ids is None:
            return edges
        return torch.empty_like(edges).index_copy_(1, graph.edge_ids, edges)
    right = "edge_label_index must be integers [2, links]"
    checked = tensor_of(links, right)
    if checked.dim() != 2 or checked.shape[0] != 2 or not is_integer(checked):
        raise InputError(f"{right}, got {checked.dtype} {list(checked.shape)}")
    checked = checked.to(torch.int64, copy=True)
    low, high = (int(checked.min()), int(checked.max())) if checked.numel() else (0, -1)
    if not 0 <= low <= high + 1 <= vertices:
        raise InputError(f"edge_label_index runs from {low} to {high}, of {vertices} vertices")
    return checked
