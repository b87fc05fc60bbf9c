"""Batches of links, with the neighbourhoods of their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spgnn.errors import InputError, check_integer
from spgnn.minibatch.loader import NeighborLoader
from spgnn.pattern import Pattern
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
    edge_label : Tensor [links], optional
    neg_sampling_ratio : int
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
        neg_sampling_ratio: int = 0,
        **options: Any,
    ) -> None:
        for name in ("input_nodes", "input_time", "time_attr", "disjoint"):
            if options.get(name) not in (None, False):
                raise InputError(f"LinkNeighborLoader knows no {name}")
        super().__init__(data, num_neighbors, None, **options)
        source = self.source
        self.links = _checked_links(edge_label_index, source.structure)
        count = self.links.shape[1]
        self.input_nodes = torch.arange(count)
        self.negatives = check_integer("neg_sampling_ratio", neg_sampling_ratio, 0)
        if edge_label is not None and (len(edge_label) != count or not (edge_label > 0).all()):
            raise InputError(f"edge_label must be [{count}], positive: 0 stands for no link")
        self.edge_label = torch.ones(count) if edge_label is None else edge_label
        self._other = NegativeSampler(source.structure, vertex_ids=source.vertex_ids)

    def _input_ids(self) -> Tensor:
        return self.input_nodes

    def _inputs(self, places: Tensor, draw: Draw) -> tuple[Tensor, dict[str, Tensor]]:
        source, target = self.links[:, places]
        label = self.edge_label[places]
        if self.negatives:
            others = self._other.sample(target, self.negatives, draw).flatten()
            source = torch.cat((source, others))
            target = torch.cat((target, target.repeat_interleave(self.negatives)))
            label = torch.cat((label, label.new_zeros(len(others))))
        seeds, pairs = torch.stack((source, target)).unique(return_inverse=True)
        return seeds, {"edge_label_index": pairs, "edge_label": label}


def _checked_links(links: Any, pattern: Pattern) -> Tensor:
    """Sources and targets, int64 [2, links]."""
    vertices = pattern.shape[0]
    if links is None:
        rows = torch.arange(vertices).repeat_interleave(pattern.row_lengths)
        return torch.stack((pattern.indices.long(), rows))
    found = torch.as_tensor(links)
    if found.dim() != 2 or found.shape[0] != 2 or found.is_floating_point():
        raise InputError(f"edge_label_index must be integers [2, links], got {list(found.shape)}")
    found = found.long()
    if found.numel() and not 0 <= int(found.min()) <= int(found.max()) < vertices:
        raise InputError(
            f"edge_label_index runs from {int(found.min())} to {int(found.max())}, "
            f"the graph has vertices 0 to {vertices - 1}"
        )
    return found
