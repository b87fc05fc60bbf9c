"""Relational graph convolutions (Schlichtkrull et al. 2018): one exchange for all relations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from spgnn import kernels
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.nn.aggregation import pattern_extremes
from spgnn.nn.convolution import (
    Convolution,
    check_channels,
    check_options,
    glorot_,
    multiplies_first,
)
from spgnn.nn.edges import check_edge_rows, local_edges
from spgnn.nn.features import Features, Propagated
from spgnn.nn.propagation import LayerGraph, own_rows
from spgnn.sparse import CSR

RelationalAggregation = Literal["mean", "sum", "add", "max"]


@dataclass(frozen=True, eq=False)
class Relations:
    """The edges of all relations as one matrix: one row for each target of each relation.

    Attributes
    ----------
    stacked : CSR [targets of the first relation, of the next, …; rows of the halo]
        With a number for each edge only where some are repeated.
    targets : tuple of Tensor int64
        Of each relation, the rows that it adds to.
    """

    stacked: CSR
    targets: tuple[Tensor, ...]

    @classmethod
    def of(cls, index: Tensor, types: Tensor, count: int, halo_rows: int) -> Relations:
        """Sort local edges [2, edges] by type [edges], target and source."""
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
        """What each relation makes of its neighbours of each target: [stacked rows, f]."""
        block, H = self.stacked, H.float() if H.dtype == torch.float16 else H
        if aggr == "max":
            return pattern_extremes(block.pattern, H, "max")
        block = block.to(torch.float64 if H.dtype == torch.float64 else torch.float32)
        if aggr == "mean":
            lengths = block.row_lengths.to(H.dtype if H.dtype == torch.float64 else torch.float32)
            if block.values is not None:
                row = torch.arange(block.shape[0], device=H.device)
                row = row.repeat_interleave(block.row_lengths)
                lengths = torch.zeros_like(lengths).index_add_(0, row, block.values)
            block = block.with_scales(1 / lengths, None)
        return kernels.spmm(block, H)

    def parts(self, stacked: Tensor) -> list[Tensor]:
        """Rows of each relation."""
        return list(stacked.split([len(rows) for rows in self.targets]))


_relations: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class RGCNConv(Convolution):
    """``z_i = Σ_r aggr_{j ∈ N_r(i)} h_j W_r + h_i W_root + b``.

    All relations share one halo, that of all edges together, so each row that any of them needs
    arrives once. With a basis decomposition, H moves or H times the bases, whichever is narrower.
    Parameters are those of PyG's layer of that name, and so are their names: ``weight``, ``comp``,
    ``root`` and ``bias``.

    Parameters
    ----------
    in_channels, out_channels : int
    num_relations : int
    num_bases : int, optional
        ``W_r = Σ_b comp_rb V_b``.
    num_blocks : int, optional
        W_r are block-diagonal.
    aggr : {"mean", "sum", "max"}
    root_weight : bool
    is_sorted : bool
        Has no effect.
    bias : bool
    options
        Of PyG's message passing; none but their defaults.
    """

    propagates = False

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
            if in_channels % blocks or out_channels % blocks:
                raise InputError(
                    f"RGCNConv: num_blocks={blocks} must divide {in_channels} and {out_channels}"
                )
            shape = (num_relations, blocks, in_channels // blocks, out_channels // blocks)
        self.weight = nn.Parameter(torch.empty(shape))
        self.comp = (
            None if num_bases is None else nn.Parameter(torch.empty(num_relations, num_bases))
        )
        self.root = nn.Parameter(torch.empty(in_channels, out_channels)) if root_weight else None
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        self.reset()

    def forward(
        self, H_local: Features, graph: LayerGraph, edge_type: Tensor | None = None
    ) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        Parameters
        ----------
        H_local : Tensor [columns, f_in]
        graph : LayerGraph
            1D with column covers.
        edge_type : Tensor of integers [local edges], optional
            In the order of ``graph.edge_index`` (of a matrix: its nonzeros, row by row); by default
            ``graph.edge_type``.

        Raises
        ------
        InputError
            If H is sparse or propagated; if there are no types, or some are out of range.
        """
        if isinstance(H_local, CSR | Propagated):
            raise InputError("RGCNConv needs dense X; make sparse ones so, once: nn.densified(X)")
        edges = local_edges(graph)
        given = getattr(graph, "edge_type", None) if edge_type is None else edge_type
        types = check_edge_rows("RGCNConv", "edge_type", given, edges.index)
        inner = self.num_bases is not None and self.aggr != "max"
        inner = inner and multiplies_first(H_local, self.weight.shape[0] * self.out_channels, graph)
        halo = edges.halo(self._times_bases(H_local) if inner else H_local)
        relations = self._relations(edges.index, types, len(halo))
        own = own_rows(graph, H_local)
        Z_local = (
            own.new_zeros(len(own), self.out_channels)
            if self.root is None
            else kernels.times_transposed(own, self.root.T)
        )
        made = relations.parts(relations.summed(halo, self.aggr))
        for relation, (part, targets) in enumerate(zip(made, relations.targets, strict=True)):
            message = self._combined(part, relation) if inner else self._mapped(part, relation)
            Z_local = Z_local.index_add(0, targets, message.to(Z_local.dtype))
        return Z_local if self.bias is None else Z_local + self.bias.to(Z_local.dtype)

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices anew (Glorot & Bengio 2010, uniform)."""
        for parameter in (self.weight, self.comp, self.root):
            if parameter is not None:
                glorot_(parameter, generator)

    def _times_bases(self, H_local: Tensor) -> Tensor:
        """H V_b for each basis, side by side."""
        return kernels.times_transposed(H_local, self.weight.permute(1, 0, 2).flatten(1).T)

    def _combined(self, part: Tensor, relation: int) -> Tensor:
        """Of these, the combination that a relation is."""
        assert self.comp is not None
        bases = part.view(len(part), self.weight.shape[0], self.out_channels)
        return torch.einsum("nbf,b->nf", bases, self.comp[relation])

    def _mapped(self, part: Tensor, relation: int) -> Tensor:
        """Rows times W_r."""
        if self.comp is not None:
            return part @ torch.einsum("b,bio->io", self.comp[relation], self.weight)
        W = self.weight[relation]
        if self.num_blocks is None:
            return kernels.times_transposed(part, W.T)
        blocks = part.view(len(part), self.num_blocks, W.shape[1])
        return torch.einsum("nbi,bio->nbo", blocks, W).flatten(1)

    def _relations(self, index: Tensor, types: Tensor, halo_rows: int) -> Relations:
        """Sorted once for each tensor of types."""
        known = _relations.get(types)
        fits = known is not None and known[1] == self.num_relations
        if not fits or not (known[0] is index or torch.equal(known[0], index)):
            if len(types) and not 0 <= int(types.min()) <= int(types.max()) < self.num_relations:
                raise InputError(
                    f"RGCNConv: edge_type runs from {int(types.min())} to {int(types.max())}, "
                    f"num_relations is {self.num_relations}"
                )
            made = Relations.of(index, types, self.num_relations, halo_rows)
            known = index, self.num_relations, made
            _relations[types] = known
        found: Relations = known[2]
        return found
