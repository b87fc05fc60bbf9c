"""Batches of links, with the neighbourhoods of their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.minibatch.loader import NeighborLoader
from spgnn.minibatch.source import Source
from spgnn.sampling import Draw, NegativeSampler


class LinkNeighborLoader(NeighborLoader):
    """Batches of links, and of pairs that are none, as PyG's loader of that name.

    A batch's seeds are the ends of its pairs, each once. ``batch.edge_label_index`` [2, pairs] are
    places of sources and targets among its vertices, links first; ``batch.edge_label`` is 1 for a
    link, or what was given, and 0 for others. ``input_id`` are the links.

    Parameters
    ----------
    data, num_neighbors
        As of `NeighborLoader`.
    edge_label_index : Tensor of integers [2, links], optional
        Sources and targets; by default all edges.
    edge_label : Tensor [links, …], optional
        Positive where negatives are drawn, of which it is 0.
    neg_sampling_ratio : int, optional
        For each link, so many pairs of its target and another source that has no edge to it.
    options
        As of `NeighborLoader`; ``batch_size`` are links.

    Raises
    ------
    InputError
        If an argument is wrong.
    """

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
        for name in ("input_nodes", "input_time", "time_attr", "disjoint"):
            if options.get(name) not in (None, False):
                raise InputError(f"LinkNeighborLoader knows no {name}")
        super().__init__(data, num_neighbors, None, **options)
        source = self.source
        self.links = _checked_links(edge_label_index, source)
        count = self.links.shape[1]
        self.input_nodes = torch.arange(count)
        ratio = 0 if neg_sampling_ratio is None else neg_sampling_ratio
        whole = int(ratio) if isinstance(ratio, float) and ratio.is_integer() else ratio
        self.negatives = check_integer("neg_sampling_ratio", whole, 0)
        self.edge_label = _checked_labels(edge_label, count, positive=self.negatives > 0)
        self._other: NegativeSampler | None = None
        if self.negatives:
            self._other = NegativeSampler(source.structure, vertex_ids=source.vertex_ids)

    def _input_ids(self) -> Tensor:
        return self.input_nodes

    def _inputs(self, places: Tensor, draw: Draw) -> tuple[Tensor, dict[str, Tensor]]:
        source, target = self.links[:, places]
        label = self.edge_label[places]
        if self._other is not None:
            others = self._other.sample(target, self.negatives, draw).flatten()
            source = torch.cat((source, others))
            target = torch.cat((target, target.repeat_interleave(self.negatives)))
            label = torch.cat((label, label.new_zeros(len(others), *label.shape[1:])))
        seeds, pairs = torch.stack((source, target)).unique(return_inverse=True)
        return seeds, {"edge_label_index": pairs, "edge_label": label}


def _checked_labels(labels: Any, links: int, *, positive: bool) -> Tensor:
    """One label a link; with negatives, 0 is theirs."""
    if labels is None:
        return torch.ones(links)
    try:
        found = torch.as_tensor(labels).detach().cpu().clone()
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.layout != torch.strided or found.dim() == 0 or len(found) != links:
        raise InputError(f"edge_label must be a tensor [{links}], one a link")
    if positive and not (found > 0).all():
        raise InputError(
            f"edge_label must be [{links}], positive: 0 stands for the pairs of neg_sampling_ratio"
        )
    return found


def _checked_links(links: Any, graph: Source) -> Tensor:
    """Sources and targets, int64 [2, links]; by default all edges, in the order of the graph."""
    vertices = graph.rows
    if links is None:
        pattern = graph.structure
        rows = torch.arange(vertices).repeat_interleave(pattern.row_lengths)
        edges = torch.stack((pattern.indices.long(), rows))
        if graph.edge_ids is None:
            return edges
        return torch.empty_like(edges).index_copy_(1, graph.edge_ids, edges)
    try:
        found = torch.as_tensor(links).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        got = type(links).__name__
        raise InputError(f"edge_label_index must be integers [2, links], got a {got}") from None
    numbers = not (found.is_floating_point() or found.is_complex() or found.dtype == torch.bool)
    if found.dim() != 2 or found.shape[0] != 2 or not numbers:
        got = f"{found.dtype} {list(found.shape)}"
        raise InputError(f"edge_label_index must be integers [2, links], got {got}")
    found = found.to(torch.int64, copy=True)
    if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < vertices:
        raise InputError(
            f"edge_label_index runs from {int(found.min())} to {int(found.max())}, "
            f"the graph has vertices 0 to {vertices - 1}"
        )
    return found
