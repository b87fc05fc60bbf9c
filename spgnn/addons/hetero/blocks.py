"""Sampled edges of several relations, as layers take a graph of several vertex types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spgnn.addons.hetero.typed_graph import EdgeType, HeteroDistGraph, Relation
from spgnn.comm import Communicator, SoloCommunicator
from spgnn.graph import Block, Graph, block_pattern
from spgnn.pattern import Pattern

_ALONE = SoloCommunicator()
EDGE_ATTRIBUTES = ("edge_attr", "edge_weight", "edge_type")


@dataclass(frozen=True)
class BlockVertices:
    """Vertices of one type in a batch: those whose rows a layer makes come first."""

    own_rows: int
    vertex_ids: Tensor  # of all
    comm: Communicator = _ALONE

    @property
    def num_nodes(self) -> int:
        """Vertices whose rows a layer makes."""
        return self.own_rows


class BlockRelation(Relation):
    """Sampled edges of one relation, with all their rows at hand."""

    def __init__(
        self,
        name: EdgeType,
        vertices: BlockVertices,
        pattern: Pattern,
        attributes: dict[str, Tensor],
        factors: Tensor | None = None,
    ) -> None:
        self.edge_type_name, self.sources = name, vertices  # type: ignore[assignment]
        self.comm, self.attributes = vertices.comm, attributes
        options: dict[str, Any] = {"factors": factors, "attributes": attributes}
        options["edge_weight"] = attributes.get("edge_weight")
        Block.__init__(self, pattern, vertices.vertex_ids, **options)

    def between(self, H: Tensor, targets: Tensor) -> Graph:
        """The graph of a layer that is given these rows, of targets the first ones."""
        return super().between(H, targets[: self.rows])

    @property
    def _single(self) -> Relation:
        return self  # as any block


Make = Callable[[EdgeType], tuple[Pattern, dict[str, Tensor], Tensor | None]]
"""The pattern of a relation, attributes of its edges, and factors of the sampler."""


class HeteroBlock(HeteroDistGraph):
    """One hop of a batch of several vertex types, on one process.

    Layers are given rows of all vertices and make those of the first ones of each type.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        ids: Mapping[str, Tensor],
        names: list[EdgeType],
        make: Make,
        device: torch.device | str = "cpu",
    ) -> None:
        self.comm, self.device, self._make = _ALONE, torch.device(device), make
        vertices: Any = {
            name: BlockVertices(rows[name], own.to(self.device)) for name, own in ids.items()
        }
        self.vertices = vertices
        self.relations = dict.fromkeys(names)
        self.attributes, self._absent, self._joint = {}, {}, {}
        self.covered = True  # no rows are fetched

    @classmethod
    def of(cls, data: Any) -> HeteroBlock:
        """All edges of a ``HeteroData`` on one process, such as a batch."""
        sizes = {name: int(data[name].num_nodes) for name in data.node_types}

        def make(name: EdgeType) -> tuple[Pattern, dict[str, Tensor], None]:
            store, attributes = data[name], {}
            source, target = store.edge_index
            order = target.argsort(stable=True)
            for key in EDGE_ATTRIBUTES:
                if isinstance(store.get(key), Tensor):
                    attributes[key] = store[key][order]
            lengths = torch.bincount(target, minlength=sizes[name[2]])
            indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
            return block_pattern(indptr, source[order], sizes[name[0]]), attributes, None

        device = next((data[name].edge_index.device for name in data.edge_types), "cpu")
        ids = {name: data[name].get("n_id", torch.arange(size)) for name, size in sizes.items()}
        return cls(sizes, ids, list(data.edge_types), make, device)

    def relation(self, name: EdgeType) -> Any:
        """A relation by its three names; an InputError if there is none."""
        if self.relations.get(name, self) is None:
            pattern, attributes, factors = self._make(name)
            sources: Any = self.vertices[name[0]]
            on = self.device
            self.relations[name] = BlockRelation(
                name,
                sources,
                pattern.to(on),
                {key: rows.to(on) for key, rows in attributes.items()},
                None if factors is None else factors.to(on),
            )
        return super().relation(name)

    def own(self, name: str, rows: Tensor) -> Tensor:
        """Rows of a type that a layer makes, of those that it is given."""
        return rows[: self.vertices[name].own_rows]

    def to(self, device: torch.device | str, **_: Any) -> HeteroBlock:
        """The same on a device."""
        rows = {name: one.own_rows for name, one in self.vertices.items()}
        ids = {name: one.vertex_ids for name, one in self.vertices.items()}
        return HeteroBlock(rows, ids, self.edge_types, self._make, device)
