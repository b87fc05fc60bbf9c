"""Layers of several relations (RGCN): one halo, and edges of own rows; 1D with column covers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spgnn import kernels
from spgnn.addons.hetero.layers import as_typed
from spgnn.addons.hetero.typed_graph import HeteroDistGraph
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.graph import Aggregation, AnyGraph, Features, Normalisation, as_graph, dense
from spgnn.kernels import times_transposed
from spgnn.nn import Convolution, DropoutKeys, check_channels, check_options, glorot_
from spgnn.sparse import CSR

RelationalAggregation = Literal["mean", "sum", "add", "max"]


@dataclass(frozen=True, eq=False)
class Relations:
    """The edges of all relations as one matrix: one row for each target of each relation."""

    stacked: CSR
    targets: tuple[Tensor, ...]

    @classmethod
    def of(cls, index: Tensor, types: Tensor, count: int, halo_rows: int) -> Relations:
        """Sort local edges [2, edges] by type [edges], target and source."""
        import scipy.sparse as sp  # half a second, which other layers do not need

        source, target = index.cpu().numpy()
        kind = types.cpu().numpy().astype(np.int64)
        rows = int(target.max()) + 1 if len(target) else 0
        present, row = np.unique(kind * rows + target, return_inverse=True)
        ones = np.ones(len(source), np.float32)
        matrix = sp.csr_array((ones, (row, source)), shape=(len(present), halo_rows))
        matrix.sum_duplicates()
        block = CSR.from_scipy(matrix)
        if len(matrix.data) == len(source):
            block = block.with_values(None)
        cuts = np.searchsorted(present, np.arange(1, count) * rows)
        targets = np.split(present % max(rows, 1), cuts)
        on = index.device
        return cls(block.to(on), tuple(torch.from_numpy(part).to(on) for part in targets))

    def summed(self, H: Tensor, aggr: str) -> Tensor:
        """Each relation's aggregate of the neighbours of each of its targets, [stacked rows, f]."""
        block, H = self.stacked, H.float() if H.dtype == torch.float16 else H
        if aggr == "max":
            largest: Tensor = kernels.spmm(CSR(block.pattern), H, reduce="max")
            return largest
        block = block.to(torch.float64 if H.dtype == torch.float64 else torch.float32)
        if aggr == "mean":
            lengths = block.row_lengths.to(H.dtype if H.dtype == torch.float64 else torch.float32)
            if block.values is not None:
                row = torch.arange(block.shape[0], device=H.device)
                row = row.repeat_interleave(block.row_lengths)
                lengths = torch.zeros_like(lengths).index_add_(0, row, block.values)
            block = block.with_scales(1 / lengths, None)
        return kernels.spmm(block, H)

    def split(self, stacked: Tensor) -> list[Tensor]:
        """Rows of each relation."""
        return list(stacked.split([len(rows) for rows in self.targets]))


_relations: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class RGCNConv(Convolution):
    """``z_i = Σ_r aggr_{j ∈ N_r(i)} h_j W_r + h_i W_root + b``.

    All relations share one halo, that of all edges together, so each row that any of them needs
    arrives once. With a basis decomposition, H moves or H times the bases, whichever is narrower.
    On a graph of several vertex types it takes ``x_dict`` and returns such a dictionary; relations
    have the order of ``graph.edge_types``, and all types rows of the same width.
    Arguments and parameters are those of PyG's layer of that name.

    Parameters
    ----------
    in_channels, out_channels, num_relations : int
    num_bases : int, optional
        ``W_r = Σ_b comp_rb V_b``.
    num_blocks : int, optional
        W_r are block-diagonal.
    aggr : {"mean", "sum", "max"}
    root_weight, bias : bool
    is_sorted, options
        Of PyG's; only their defaults.
    """

    uses_edges = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        aggr: RelationalAggregation = "mean",
        root_weight: bool = True,
        is_sorted: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_channels("RGCNConv", in_channels=in_channels, out_channels=out_channels)
        if in_channels < 0:
            raise InputError("RGCNConv: in_channels must be given, as in PyG")
        check_options(self, options, node_dim=0)
        check_choice("RGCNConv aggr", aggr, ("mean", "sum", "add", "max"))
        self.num_relations = check_integer("RGCNConv num_relations", num_relations, 1)
        if num_bases is not None and num_blocks is not None:
            raise InputError("RGCNConv: give num_bases or num_blocks, not both")
        self.in_channels, self.out_channels, self.aggr = in_channels, out_channels, aggr
        self.num_bases, self.num_blocks = num_bases, num_blocks
        shape: tuple[int, ...] = (num_relations, in_channels, out_channels)
        if num_bases is not None:
            shape = (check_integer("RGCNConv num_bases", num_bases, 1), in_channels, out_channels)
        elif num_blocks is not None:
            blocks = check_integer("RGCNConv num_blocks", num_blocks, 1)
            sizes = f"RGCNConv: num_blocks={blocks}"
            if in_channels % blocks or out_channels % blocks:
                raise InputError(f"{sizes} must divide {in_channels} and {out_channels}")
            shape = (num_relations, blocks, in_channels // blocks, out_channels // blocks)
        self.weight = nn.Parameter(torch.empty(shape))
        self.comp = (
            None if num_bases is None else nn.Parameter(torch.empty(num_relations, num_bases))
        )
        self.root = nn.Parameter(torch.empty(in_channels, out_channels)) if root_weight else None
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.reset()

    def forward(
        self,
        H_local: Features,
        graph: AnyGraph | HeteroDistGraph,
        edge_type: Tensor | None = None,
        keys: DropoutKeys | None = None,
    ) -> Any:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        ``edge_type``, integers [local edges], are in the order of ``graph.edge_index`` (of a
        matrix: its nonzeros, row by row); by default ``graph.edge_type``. ``keys`` have no effect.
        """
        if hasattr(graph, "node_types"):
            return self._of_types(H_local, as_typed("RGCNConv", graph))
        H, on = dense(H_local, "RGCNConv"), as_graph(graph)
        edges = on.local_edges
        types = edges.type if edge_type is None else edge_type
        types = check_edge_rows("RGCNConv", "edge_type", types, edges.index)
        rows, inner = H, False
        if self.num_bases is not None and self.aggr != "max":
            # H V_b for each basis, side by side, or H: the narrower travels.
            bases = self.weight.permute(1, 0, 2).flatten(1).T
            rows, inner = on.operand(Aggregation(H, bases))
        halo = edges.halo(rows)
        relations = self._relations(edges.index, types, len(halo))
        own = on.own(H)
        Z_local = (
            own.new_zeros(len(own), self.out_channels)
            if self.root is None
            else times_transposed(own, self.root.T)
        )
        summed = relations.split(relations.summed(halo, self.aggr))
        for relation, (rows, targets) in enumerate(zip(summed, relations.targets, strict=True)):
            message = self._combined(rows, relation) if inner else self._mapped(rows, relation)
            Z_local = Z_local.index_add(0, targets, message.to(Z_local.dtype))
        return Z_local if self.bias is None else Z_local + self.bias.to(Z_local.dtype)

    def _of_types(self, x_dict: Any, graph: HeteroDistGraph) -> dict[str, Tensor]:
        """The rows of each type, [own rows, f_out], of those of each. Collective."""
        relations, f_in = len(graph.edge_types), self.in_channels
        if relations != self.num_relations:
            count = f"RGCNConv: num_relations is {self.num_relations}"
            raise InputError(f"{count}, the graph has {relations}")
        results: dict[str, Tensor] = {}
        for name in graph.node_types:
            x = x_dict.get(name)
            if not isinstance(x, Tensor) or x.shape[1:] != (f_in,):
                got = "none" if x is None else list(x.shape)
                right = f"rows [own rows, {f_in}]"
                raise InputError(
                    f"RGCNConv: all types have {right}, as one graph has; {name!r}: {got}"
                )
            own = graph.own(name, x)
            results[name] = own.new_zeros(len(own), self.out_channels)
            if self.root is not None:
                results[name] = times_transposed(own, self.root.T)
        normalisation: Normalisation = "row" if self.aggr == "mean" else "none"
        reduce = "max" if self.aggr == "max" else "sum"
        for number, (source, name, target) in enumerate(graph.edge_types):
            on = graph.relation((source, name, target))
            if on.edge_weight is not None:
                raise InputError("RGCNConv: relations with weights are not supported")
            starts = sum(relation[0] == source for relation in graph.edge_types)
            widths = [self.out_channels] * starts if reduce == "sum" else []
            H = graph.rows(source, x_dict[source], widths)
            request = Aggregation(
                H, self._matrix(number).T, normalisation=normalisation, reduce=reduce
            )
            Z = on.between(H, x_dict[target]).aggregate(request)
            results[target] = results[target] + Z
        if self.bias is None:
            return results
        return {name: Z + self.bias.to(Z.dtype) for name, Z in results.items()}

    def _matrix(self, relation: int) -> Tensor:
        """W_r [in_channels, out_channels]."""
        if self.comp is not None:
            return torch.einsum("b,bio->io", self.comp[relation], self.weight)
        W = self.weight[relation]
        return W if self.num_blocks is None else torch.block_diag(*W)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices again (Glorot & Bengio 2010, uniform)."""
        for parameter in (self.weight, self.comp, self.root):
            if parameter is not None:
                glorot_(parameter, generator)

    def _combined(self, part: Tensor, relation: int) -> Tensor:
        """The combination of these that a relation is."""
        assert self.comp is not None
        bases = part.view(len(part), self.weight.shape[0], self.out_channels)
        return torch.einsum("nbf,b->nf", bases, self.comp[relation])

    def _mapped(self, part: Tensor, relation: int) -> Tensor:
        """Rows times W_r."""
        if self.num_blocks is None:
            return times_transposed(part, self._matrix(relation).T)
        W = self.weight[relation]
        blocks = part.view(len(part), self.num_blocks, W.shape[1])
        return torch.einsum("nbi,bio->nbo", blocks, W).flatten(1)

    def _relations(self, index: Tensor, types: Tensor, halo_rows: int) -> Relations:
        """Sorted once for each tensor of types."""
        cached, count = _relations.get(types), self.num_relations
        fits = cached is not None and cached[1] == count
        if not fits or not (cached[0] is index or torch.equal(cached[0], index)):
            low, high = (int(types.min()), int(types.max())) if len(types) else (0, 0)
            if not 0 <= low <= high < count:
                raise InputError(
                    f"RGCNConv: edge_type runs from {low} to {high}, num_relations is {count}"
                )
            cached = index, count, Relations.of(index, types, count, halo_rows)
            _relations[types] = cached
        result: Relations = cached[2]
        return result


def check_edge_rows(layer: str, name: str, rows: object, index: Tensor) -> Tensor:
    """One row for each local edge, which a layer has to be given."""
    if not isinstance(rows, Tensor) or rows.shape[:1] != index.shape[1:]:
        result = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        edges = f"of this rank's {index.shape[1]} edges"
        raise InputError(
            f"{layer}: {name} must be a tensor with one row for each {edges}; got {result}"
        )
    return rows
