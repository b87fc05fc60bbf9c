"""Models of several vertex types by their names, as the training command builds them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn

from spgnn.addons.hetero.layers import HeteroConv, HGTConv, as_typed, check_graph, key_of
from spgnn.addons.hetero.relational import RGCNConv
from spgnn.addons.hetero.typed_graph import HeteroDistGraph
from spgnn.errors import InputError, check_integer, check_number
from spgnn.nn import DropoutKeys, GATConv, GraphModule, Linear, Network, dropout, keys_on


class TypedModel(Network, GraphModule):
    """A linear map of each type, layers of all relations, and a linear map of one type's rows.

    Called with ``(graph.x_dict, graph)`` or with keys of dropout. A type without features has rows
    that are learnt. The same seed gives the same weights on every rank and at any P.

    Parameters
    ----------
    graph : HeteroDistGraph
        Of these types, widths and relations.
    hidden_channels, num_layers, out_channels : int
    target : str, optional
        The type whose rows are returned; by default the only one with labels y.
    dropout : float
        Probability, on what each layer is given.
    heads : int
        Of attention; side by side they are ``hidden_channels`` wide.
    seed : int
        Of the weights.
    """

    normalisation: ClassVar[Literal["none"]] = "none"
    typed = True
    options: ClassVar[tuple[str, ...]] = ("heads",)
    act: Any = staticmethod(torch.relu)

    def __init__(
        self,
        graph: HeteroDistGraph,
        hidden_channels: int,
        num_layers: int,
        out_channels: int,
        *,
        target: str | None = None,
        dropout: float = 0.0,
        heads: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        owner = type(self).__name__
        check_graph(owner, graph)
        width = check_integer("hidden_channels", hidden_channels, 1)
        check_integer("num_layers", num_layers, 1)
        if width % check_integer("heads", heads, 1):
            raise InputError(f"{owner}: {heads} heads must divide hidden_channels={width}")
        for relation in () if self.attends else graph.edge_types:
            if "edge_weight" in graph.relation(relation):
                raise InputError(
                    f"{owner}: relation {' '.join(relation)} has weights: leave them out"
                )
        self.target = graph.labelled_vertices(target).data_name
        self.dropout, self.heads, self.width = check_number("dropout", dropout, 0, 1), heads, width
        self.node_types, self.edge_types = graph.metadata()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.entries = nn.ModuleDict()
            for name in self.node_types:
                store = graph[name]
                features = store.num_features
                rows = nn.Embedding(store.num_nodes, width)
                self.entries[key_of(name)] = Linear(features, width) if features else rows
            self.convs = nn.ModuleList(self.init_conv() for _ in range(num_layers))
            self.lin = Linear(width, out_channels)

    @abstractmethod
    def init_conv(self) -> nn.Module:
        """A layer of all relations."""

    def forward(
        self, x_dict: Mapping[str, Tensor], graph: HeteroDistGraph, keys: DropoutKeys | None = None
    ) -> Tensor:
        """Rows of the target type, [own rows, out_channels]. Collective."""
        graph = as_typed(type(self).__name__, graph)
        keys = self.keys_of_call(keys, graph[self.target]) if self.dropout else None
        rows = dict(x_dict)
        for number in range(len(self.convs)):
            rows = self.step(number, rows, graph, keys)
        return rows[self.target]

    def step(
        self,
        number: int,
        rows: Mapping[str, Tensor],
        graph: HeteroDistGraph,
        keys: DropoutKeys | None,
    ) -> dict[str, Tensor]:
        """Rows after a layer: the first is given features, the last makes the target's outputs."""
        before: dict[str, Tensor] = {}
        for place, name in enumerate(self.node_types):
            entry, ids = self.entries[key_of(name)], graph[name].vertex_ids
            if number:
                H = rows[name]
            else:
                H = entry(ids) if isinstance(entry, nn.Embedding) else entry(rows[name]).relu()
            layer = number * len(self.node_types) + place
            before[name] = dropout(H, self.dropout, keys_on(keys, ids), layer)  # type: ignore[assignment]
        results = self.convs[number](before, graph)
        after = before | {name: self.act(H) for name, H in results.items()}
        last = number == len(self.convs) - 1
        return {self.target: self.lin(after[self.target])} if last else after

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Parameters of the linear maps of features, and of all else."""
        first = [*self.entries.parameters()]
        return [first, [p for part in (self.convs, self.lin) for p in part.parameters()]]

    @classmethod
    def takes(cls) -> set[str]:
        """The options of the command that the layers take."""
        return {"dropout", *cls.options}

    @classmethod
    def of(cls, widths: Sequence[int], **options: Any) -> NoReturn:
        """Refuse what builds models by their widths alone."""
        raise InputError(f"{cls.__name__} is of several vertex types: training and inference alone")

    size = of


class RGCN(TypedModel):
    """Layers of :class:`RGCNConv` (Schlichtkrull et al. 2018)."""

    options = ()

    def init_conv(self) -> nn.Module:
        """A layer of all relations."""
        return RGCNConv(self.width, self.width, len(self.edge_types))


class RGAT(TypedModel):
    """Layers of :class:`GATConv` by relation (Busbridge et al. 2019), and a map of own rows."""

    attends = True

    def init_conv(self) -> nn.Module:
        """A layer of all relations."""
        ends = self.width, self.width
        options: dict[str, Any] = {"heads": self.heads, "add_self_loops": False}
        # Results of relations are added up, so one of each target type adds its own rows.
        adding = {relation[2]: relation for relation in self.edge_types}.values()
        convs = {
            relation: GATConv(ends, ends[1] // self.heads, residual=relation in adding, **options)
            for relation in self.edge_types
        }
        return HeteroConv(convs)


class HGT(TypedModel):
    """Layers of :class:`HGTConv` (Hu et al. 2020)."""

    attends = True
    act = staticmethod(lambda rows: rows)  # layers have one inside

    def init_conv(self) -> nn.Module:
        """A layer of all relations."""
        return HGTConv(self.width, self.width, (self.node_types, self.edge_types), self.heads)
