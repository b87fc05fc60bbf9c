"""Layers on graphs of several vertex types: convolutions by relation, HGT, and HAN.

They are called with the rows of each type and the graph, ``layer(graph.x_dict, graph)``, and return
the rows of each type that some relation ends at. Of each source type one halo is fetched for all
its relations. Parameters are those of PyG's layers, and so are their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spgnn import kernels
from spgnn.addons.hetero.blocks import HeteroBlock
from spgnn.addons.hetero.typed_graph import EdgeType, HeteroDistGraph
from spgnn.autograd import all_reduced
from spgnn.errors import InputError, check_choice, check_integer, check_number
from spgnn.nn import (
    AttentionConv,
    Convolution,
    GraphModule,
    Linear,
    check_width,
    copy_from_rank_zero,
    glorot_,
    lazy_parts,
)
from spgnn.sparse import CSR

Metadata = tuple[Sequence[str], Sequence[EdgeType]]
Grouping = Literal["sum", "mean", "min", "max", "cat"]


def key_of(name: str | EdgeType) -> str:
    """A type or relation as the name of a module, as PyG writes it."""
    key = name if isinstance(name, str) else f"<{'___'.join(name)}>"
    return (f"<{key}>" if hasattr(nn.ModuleDict, key) else key).replace(".", "#")


class HeteroConv(GraphModule):
    """A layer of its own for each relation; what ends at one type is added up.

    Parameters
    ----------
    convs : dict of Convolution
        By relation. Between two types: SAGEConv, GraphConv, GATConv or GATv2Conv (with
        ``add_self_loops=False``), TransformerConv, NNConv or CGConv, and a pair of widths where
        these differ. Features of edges are those of the relation.
    aggr : {"sum", "mean", "min", "max", "cat"}, optional
        How results of several relations are reduced; ``None``: side by side, [rows, relations, f].
    """

    def __init__(
        self, convs: Mapping[EdgeType, Convolution], aggr: Grouping | None = "sum"
    ) -> None:
        super().__init__()
        if not convs:
            raise InputError("HeteroConv: give a convolution for at least one relation")
        if aggr is not None:
            check_choice("HeteroConv aggr", aggr, ("sum", "mean", "min", "max", "cat"))
        for relation, conv in convs.items():
            _check_conv(relation, conv)
        self.aggr, self.edge_types = aggr, list(convs)
        self.convs = nn.ModuleDict({key_of(name): conv for name, conv in convs.items()})

    def reset_parameters(self) -> None:
        """Draw the parameters of all layers again."""
        for conv in self.convs.values():
            conv.reset_parameters()  # type: ignore[operator]

    def forward(self, x_dict: Mapping[str, Tensor], graph: HeteroDistGraph) -> dict[str, Tensor]:
        """The rows of each type that a relation ends at, [own rows, f]. Collective."""
        graph = as_typed("HeteroConv", graph)
        results: dict[str, list[Tensor]] = {}
        widths: dict[str, list[int]] = {}
        every = zip(self.edge_types, self.convs.values(), strict=True)
        convs = [(name, conv) for name, conv in every if graph.only in (None, name[2])]
        for name, conv in convs:
            x = _rows_of(x_dict, name[0])
            _check_widths(name, conv, x_dict)
            widths.setdefault(name[0], []).append(_width_of_product(conv, x, graph.relation(name)))
        for name, conv in convs:
            first = widths[name[0]] if all(widths[name[0]]) else ()
            H = graph.rows(name[0], x_dict[name[0]], first)
            on = graph.relation(name).between(H, _rows_of(x_dict, name[2]))
            results.setdefault(name[2], []).append(conv(H, on))
        return {name: self._grouped(name, rows) for name, rows in results.items()}

    def _grouped(self, name: str, rows: list[Tensor]) -> Tensor:
        if self.aggr != "cat" and len(columns := {row.shape[1] for row in rows}) > 1:
            raise InputError(
                f"HeteroConv: layers that end at {name!r} make {sorted(columns)} columns: give "
                'them one width, or aggr="cat"'
            )
        if self.aggr is None:
            return torch.stack(rows, 1)
        if len(rows) == 1:
            return rows[0]
        if self.aggr == "cat":
            return torch.cat(rows, -1)
        if self.aggr in ("min", "max"):
            stacked = torch.stack(rows)
            return stacked.amin(0) if self.aggr == "min" else stacked.amax(0)
        total = rows[0] + rows[1]
        for more in rows[2:]:
            total += more
        return total / len(rows) if self.aggr == "mean" else total

    def extra_repr(self) -> str:
        """Number of relations."""
        return f"num_relations={len(self.edge_types)}"


def _width_of_product(conv: Any, x: Tensor, graph: Any) -> int:
    """The width of rows that a layer can multiply before they travel; 0 if it cannot."""
    if not (conv.accepts_propagated and conv.aggregates_once) or any(lazy_parts(conv)):
        return 0
    weight = conv.aggregation(x, graph, None, None).weight
    return 0 if weight is None else int(weight.shape[0])


def _check_widths(relation: EdgeType, conv: Any, x_dict: Mapping[str, Tensor]) -> None:
    targets = [part for part in conv.modules() if getattr(part, "of_targets", False)]
    of_targets = targets[0].in_features if targets else -1
    for end, width in ((relation[0], conv.takes), (relation[2], of_targets)):
        columns = _rows_of(x_dict, end).shape[1] if width > 0 else 0
        check_width(f"HeteroConv {' '.join(relation)}", width, repr(end), columns)


def _check_conv(relation: EdgeType, conv: Any) -> None:
    if not isinstance(relation, tuple) or len(relation) != 3:
        raise InputError(f"HeteroConv: {relation!r} is no (source type, relation, target type)")
    shown = f"HeteroConv {' '.join(relation)}"
    if not isinstance(conv, Convolution):
        raise InputError(f"{shown}: layers are those of spgnn.nn, got {type(conv).__name__}")
    loops = isinstance(conv, AttentionConv) and conv.add_self_loops
    if loops and relation[0] != relation[2]:
        raise InputError(f"{shown}: {type(conv).__name__} needs add_self_loops=False between types")
    if getattr(conv, "dropout", 0) or getattr(conv, "message_dropout", 0):
        raise InputError(f"{shown}: dropout of edges or messages is not supported; drop features")


def check_graph(layer: str, graph: object) -> None:
    """Refuse anything but a graph of several types."""
    kind = type(graph).__name__
    if not isinstance(graph, HeteroDistGraph):
        raise InputError(f"{layer} is called with x_dict and a distributed HeteroData, not {kind}")


def as_typed(layer: str, graph: Any) -> HeteroDistGraph:
    """A graph of several types; a ``HeteroData`` on one process, such as a batch, becomes one."""
    if not isinstance(graph, HeteroDistGraph) and hasattr(graph, "edge_types"):
        return HeteroBlock.of(graph)
    check_graph(layer, graph)
    return graph  # type: ignore[no-any-return]


def _rows_of(x_dict: Mapping[str, Tensor], name: str) -> Tensor:
    rows = x_dict.get(name)
    if not isinstance(rows, Tensor) or rows.dim() != 2:
        got = "none" if rows is None else f"{list(getattr(rows, 'shape', []))}"
        raise InputError(f"x_dict must have rows [own rows, f] of vertex type {name!r}, got {got}")
    return rows


class TypedLinear(nn.Module):
    """A linear layer for each vertex type, as PyG's ``HeteroDictLinear``."""

    def __init__(self, in_channels: Mapping[str, int], out_channels: int) -> None:
        super().__init__()
        self.lins = nn.ModuleDict(
            {key_of(name): Linear(width, out_channels) for name, width in in_channels.items()}
        )

    def of(self, name: str) -> Linear:
        """The layer of a type."""
        layer = self.lins[key_of(name)]
        assert isinstance(layer, Linear)
        return layer


class _Attention(GraphModule):
    """Base of HGT and HAN: widths by type, and their draws."""

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: Metadata,
        heads: int,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        check_integer(f"{name} out_channels", out_channels, 1)
        check_integer(f"{name} heads", heads, 1)
        if out_channels % heads:
            raise InputError(f"{name}: {heads} heads must divide out_channels={out_channels}")
        self.node_types, relations = list(metadata[0]), [tuple(r) for r in metadata[1]]
        self.edge_types: list[Any] = relations
        if not isinstance(in_channels, Mapping):
            in_channels = dict.fromkeys(self.node_types, in_channels)
        missing = [one for one in self.node_types if one not in in_channels]
        if missing:
            raise InputError(f"{name}: in_channels has no width of vertex type {missing[0]!r}")
        self.in_channels = dict(in_channels)
        self.out_channels, self.heads = out_channels, heads

    def _find_widths(
        self, layers: nn.ModuleDict, x_dict: Mapping[str, Tensor], graph: HeteroDistGraph
    ) -> None:
        owner = type(self).__name__
        for name in self.node_types:
            rows, layer = _rows_of(x_dict, name), layers[key_of(name)]
            assert isinstance(layer, Linear)
            if layer.is_lazy:
                layer.materialise(rows.shape[1])
                glorot_(layer.weight)
                copy_from_rank_zero(layer, graph.comm)
            if (width := rows.shape[1]) != layer.in_features:
                raise InputError(
                    f"{owner}: rows of {name!r} have {width} columns, not {layer.in_features}"
                )


class HGTConv(_Attention):
    """Heterogeneous graph transformer (Hu et al. 2020): one softmax over all relations of a vertex.

    ``α_ij ∝ exp(q_i · (k_j W_r) p_r / √d)`` and ``z_i = Σ_j α_ij v_j V_r``, by head; then a linear
    layer of ``gelu(z)`` and a gated skip. W_r and V_r are applied to targets, so that keys and
    values of a source type are the same for all its relations; x travels, or keys and values,
    whichever is narrower. Parameters are those of PyG's layer: widths by type, or −1, found in the
    first call; `metadata` is ``graph.metadata()``.
    """

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: Metadata,
        heads: int = 1,
    ) -> None:
        super().__init__(in_channels, out_channels, metadata, heads)
        self.kqv_lin = TypedLinear(self.in_channels, 3 * out_channels)
        self.out_lin = TypedLinear(dict.fromkeys(self.node_types, out_channels), out_channels)
        depth, count = out_channels // heads, heads * len(self.edge_types)
        self.k_rel, self.v_rel = nn.Module(), nn.Module()
        for part in (self.k_rel, self.v_rel):
            part.weight = nn.Parameter(torch.empty(count, depth, depth))
        self.skip = nn.ParameterDict(
            {key_of(name): nn.Parameter(torch.ones(1)) for name in self.node_types}
        )
        self.p_rel = nn.ParameterDict(
            {"__".join(r): nn.Parameter(torch.ones(1, heads)) for r in self.edge_types}
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all matrices again (Glorot & Bengio 2010, uniform)."""
        _reset(*self.kqv_lin.lins.values(), *self.out_lin.lins.values())
        for part in (self.k_rel, self.v_rel):
            assert isinstance(part.weight, Tensor)
            glorot_(part.weight)
        for parameter in (*self.skip.values(), *self.p_rel.values()):
            nn.init.ones_(parameter)

    def forward(self, x_dict: Mapping[str, Tensor], graph: HeteroDistGraph) -> dict[str, Tensor]:
        """The rows of each type that a relation ends at, [own rows, out_channels]. Collective."""
        graph = as_typed("HGTConv", graph)
        self._find_widths(self.kqv_lin.lins, x_dict, graph)
        width, heads, relations = self.out_channels, self.heads, len(self.edge_types)
        keys: dict[str, tuple[Tensor, Tensor]] = {}
        queries, results = {}, {}
        for name in self.node_types:
            x, layer = x_dict[name], self.kqv_lin.of(name)
            W, b = layer.weight, layer.bias
            of_queries = W[width : 2 * width], b[width : 2 * width]
            queries[name] = F.linear(graph.own(name, x), *of_queries)
            if not any(relation[0] == name for relation in self.edge_types):
                continue
            of_keys = torch.cat((W[:width], W[2 * width :])), torch.cat((b[:width], b[2 * width :]))
            if x.shape[1] <= 2 * width:
                both = F.linear(graph.rows(name, x), *of_keys)
            else:
                both = graph.rows(name, F.linear(x, *of_keys))
            k, v = both.split(width, 1)
            keys[name] = _by_head(k, heads), _by_head(v, heads)
        W_k, W_v = (self._by_relation(part) for part in (self.k_rel, self.v_rel))
        for target in dict.fromkeys(relation[2] for relation in self.edge_types):
            logits, patterns, values = [], [], []
            q = _by_head(queries[target], heads)
            numbers = [r for r in range(relations) if self.edge_types[r][2] == target]
            for r in numbers:
                name = self.edge_types[r]
                k, v = keys[name[0]]
                pattern = graph.relation(name).pattern
                scale = self.p_rel["__".join(name)].view(heads, 1, 1) / sqrt(q.shape[2])
                turned = torch.einsum("nhd,hed->nhe", q, W_k[r] * scale)
                logits.append(kernels.sddmm(pattern, turned.contiguous(), k))
                patterns.append(pattern)
                values.append(v)
            weights = self._softmax([self.edge_types[r] for r in numbers], logits, graph)
            z = torch.zeros_like(q)
            for r, pattern, alpha, v in zip(numbers, patterns, weights, values, strict=True):
                summed = kernels.spmm(CSR(pattern, alpha), v)
                z = z + torch.einsum("nhd,hde->nhe", summed, W_v[r])
            out = self.out_lin.of(target)(F.gelu(z.flatten(1)))
            x = graph.own(target, x_dict[target])
            if out.shape[1] == x.shape[1]:
                gate = self.skip[key_of(target)].sigmoid()
                out = gate * out + (1 - gate) * x
            results[target] = out
        return {name: results[name] for name in self.node_types if name in results}

    def _softmax(
        self, names: list[EdgeType], scores: list[Tensor], graph: HeteroDistGraph
    ) -> list[Tensor]:
        """Over the edges of a target in all relations together; scores [edges, heads] of each."""
        if len(names) == 1:
            return [kernels.edge_softmax(graph.relation(names[0]).pattern, scores[0])]
        joint, order, place = graph.joint(tuple(names))
        weights = kernels.edge_softmax(joint, torch.cat(scores).index_select(0, order))
        return list(weights.index_select(0, place).split([len(one) for one in scores]))

    def _by_relation(self, part: nn.Module) -> Tensor:
        """[relations, heads, d, d] of PyG's order, which is by head first."""
        W = part.weight
        assert isinstance(W, Tensor)
        return W.view(self.heads, len(self.edge_types), *W.shape[1:]).transpose(0, 1)

    def extra_repr(self) -> str:
        """Width and heads."""
        return f"{self.out_channels}, heads={self.heads}"


def _reset(*layers: nn.Module) -> None:
    """Draw linear layers again, but for those that do not know their widths."""
    for layer in layers:
        assert isinstance(layer, nn.Linear)
        if not (isinstance(layer, Linear) and layer.is_lazy):
            glorot_(layer.weight)
            nn.init.zeros_(layer.bias)


def _by_head(rows: Tensor, heads: int) -> Tensor:
    return rows.reshape(len(rows), heads, rows.shape[1] // heads)


class HANConv(_Attention):
    """Heterogeneous graph attention (Wang et al. 2019): GAT by relation, then weights of relations.

    Those are a softmax of the mean of ``q · tanh(z W + b)`` over the vertices of all ranks.
    Parameters are those of `HGTConv`, and the slope of LeakyReLU.
    """

    def __init__(
        self,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        metadata: Metadata,
        heads: int = 1,
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__(in_channels, out_channels, metadata, heads)
        self.negative_slope = check_number("HANConv negative_slope", negative_slope, 0, 1e6)
        self.proj = TypedLinear(self.in_channels, out_channels).lins
        shape, names = (1, heads, out_channels // heads), ["__".join(r) for r in self.edge_types]
        self.lin_src = nn.ParameterDict({r: nn.Parameter(torch.empty(shape)) for r in names})
        self.lin_dst = nn.ParameterDict({r: nn.Parameter(torch.empty(shape)) for r in names})
        self.k_lin = nn.Linear(out_channels, out_channels)
        self.q = nn.Parameter(torch.empty(1, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all matrices again (Glorot & Bengio 2010, uniform)."""
        _reset(*self.proj.values(), self.k_lin)
        for parameter in (*self.lin_src.values(), *self.lin_dst.values(), self.q):
            glorot_(parameter)

    def forward(self, x_dict: Mapping[str, Tensor], graph: HeteroDistGraph) -> dict[str, Tensor]:
        """As :meth:`HGTConv.forward`."""
        graph = as_typed("HANConv", graph)
        self._find_widths(self.proj, x_dict, graph)
        own = {name: self.proj[key_of(name)](x_dict[name]) for name in self.node_types}
        rows = {}
        for name in dict.fromkeys(relation[0] for relation in self.edge_types):
            x = x_dict[name]
            if x.shape[1] <= self.out_channels:
                rows[name] = self.proj[key_of(name)](graph.rows(name, x))
            else:
                rows[name] = graph.rows(name, own[name])
        results: dict[str, list[Tensor]] = {}
        for relation in self.edge_types:
            source, _, target = relation
            key, Z = "__".join(relation), rows[source]
            s = (_by_head(Z, self.heads) * self.lin_src[key]).sum(-1)
            d = (_by_head(graph.own(target, own[target]), self.heads) * self.lin_dst[key]).sum(-1)
            pattern = graph.relation(relation).pattern
            z = kernels.attention(pattern, d, s, Z, slope=self.negative_slope)
            results.setdefault(target, []).append(torch.relu(z))
        return {name: self._weighed(z, graph[name].num_nodes, graph) for name, z in results.items()}

    def _weighed(self, rows: list[Tensor], count: int, graph: HeteroDistGraph) -> Tensor:
        """Rows of several relations, weighed by the mean of their scores over all vertices."""
        stacked = torch.stack(rows)
        sums = all_reduced(torch.tanh(self.k_lin(stacked)).sum(1), graph.comm)
        weights = (self.q * sums / max(count, 1)).sum(-1).softmax(0)
        return (weights[:, None, None] * stacked).sum(0)
