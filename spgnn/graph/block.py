"""One hop of a mini-batch: a rectangular matrix from sampled neighbours to targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention import Attention
from spgnn.autograd import Operands, product
from spgnn.comm import SoloCommunicator
from spgnn.errors import InputError, check_choice
from spgnn.exchange import Plan, Stage, Step
from spgnn.graph.features import Propagated
from spgnn.graph.protocol import RECIPES, Aggregation, Graph, LocalEdges, Normalisation
from spgnn.kernels.gemm import times_transposed
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, check_degrees
from spgnn.torch_internals import named

# A nonzero of a product costs so many multiplications of a dense one.
_GATHERED = 8


_ALONE = SoloCommunicator()


@dataclass(frozen=True, eq=False)
class Degrees:
    """Degrees in the whole graph of the vertices of a block, one number a column.

    Attributes
    ----------
    edges : Tensor int64 [columns]
        In-edges.
    weight : Tensor float32 [columns]
        The sum of their weights; without weights, their number.
    bare : Tensor float32 [columns], optional
        1 minus the self-loops that a vertex has of its own; ``None`` if none has any.
    """

    edges: Tensor
    weight: Tensor
    bare: Tensor | None = None

    def of(self, columns: Tensor) -> Degrees:
        """Degrees of some columns."""
        bare = None if self.bare is None else self.bare[columns]
        return Degrees(self.edges[columns], self.weight[columns], bare)


class Block(Graph):
    """Sampled in-edges of some vertices, as layers take a graph.

    Its columns are the vertices that a layer is given; the first of them are its rows, those that
    the layer makes. Normalised as the *whole* graph is, so that a product estimates that with the
    whole matrix, and is equal to it where no edge was left out: a row with k of its d edges
    sampled is multiplied by d / k in a sum, and degrees are those of the graph. Or, without
    `degrees`, as if the block were all there is, which is what PyG's layers do.

    Parameters
    ----------
    pattern : Pattern [rows, columns]
        With rows ≤ columns; an edge that was drawn twice is there twice.
    vertex_ids : Tensor int64 [columns]
        Original ids, which dropout asks for.
    edge_weight : Tensor float32 [edges], optional
        Weights of the graph.
    factors : Tensor float32 [edges], optional
        Of the sampler: they make the weighted sum of a row unbiased.
    degrees : callable, optional
        Finds the degrees of all columns; called where a layer asks for them.
    attributes : dict of Tensor [edges, …], optional
        What else is known of each edge: ``edge_attr``, ``edge_type``.
    """

    def __init__(
        self,
        pattern: Pattern,
        vertex_ids: Tensor,
        *,
        edge_weight: Tensor | None = None,
        factors: Tensor | None = None,
        degrees: Callable[[], Degrees] | None = None,
        attributes: dict[str, Tensor] | None = None,
    ) -> None:
        self.pattern = pattern
        self.vertex_ids: Tensor = vertex_ids
        self.edge_weight, self.factors = edge_weight, factors
        self._attributes = attributes or {}
        self._find_degrees = degrees
        self._matrices: dict[str, LocalMatrix] = {}

    def __repr__(self) -> str:
        return f"Block([{self.rows}, {self.columns}], {self.pattern.nnz} edges)"

    @property
    def rows(self) -> int:
        """Vertices whose rows the layer makes."""
        return self.pattern.shape[0]

    @property
    def columns(self) -> int:
        """Vertices whose rows the layer is given."""
        return self.pattern.shape[1]

    def matrix(self, normalisation: Normalisation = "none") -> LocalMatrix:
        """The block with or without self-loops and scalings."""
        if normalisation not in self._matrices:
            self._matrices[normalisation] = self._made(normalisation)
        return self._matrices[normalisation]

    def own(self, H: Tensor | Propagated) -> Tensor:
        """Rows of the first columns."""
        return H.own if isinstance(H, Propagated) else H[: self.rows]

    def halo(self, H: Tensor) -> Tensor:
        """All that its rows need: H itself [columns, f]."""
        return H

    @property
    def local_edges(self) -> LocalEdges:
        """Its edges; all their rows are at hand."""
        values = {**self._attributes, "edge_weight": self.edge_weight}
        edges = LocalEdges(self.matrix, lambda: self.local_edge_index, values, self.halo)
        edges.pattern = self.pattern
        return edges

    def _fused(self, request: Aggregation, H: Tensor, W: Tensor, R: Tensor) -> Tensor | None:
        f_out, f_in = W.shape
        if self._multiplies_first(f_in, f_out, gradient=H.requires_grad):
            return super()._fused(request, H, W, R)
        both = product(self.matrix(request.normalisation).beside_own(f_in), H)
        zeros = W.new_zeros(f_out, both.shape[1] - 2 * f_in)
        return times_transposed(both, torch.cat((W, R, zeros), 1))

    @cached_property
    def local_edge_index(self) -> Tensor:
        """Columns and rows of its edges, int64 [2, edges]."""
        return torch.stack((self.pattern.indices.long(), self._row_of_each))

    def _multiplies_first(self, f_in: int, f_out: int, *, gradient: bool) -> bool:
        """True if A (H W) takes fewer operations than (A H) W, with W [f_in, f_out].

        Nothing travels here, and there are fewer rows than columns.
        """
        edges, dense = self.pattern.nnz * _GATHERED, f_in * f_out
        # Forward; dW, which includes the sparse adjoint where that comes last; dH.
        training = torch.is_grad_enabled()
        gemms, inner, outer = 1 + training + (training and gradient), 1 + training, 1
        outer += training and gradient
        first = self.columns * dense * gemms + edges * f_out * inner
        last = self.rows * dense * gemms + edges * f_in * outer
        return first < last

    def to(self, device: torch.device | str) -> Block:
        """The same on a device."""
        device = torch.device(device)
        if device == self.pattern.device:
            return self

        def moved(t: Any) -> Any:
            return None if t is None else t.to(device)

        find = self._find_degrees
        return Block(
            self.pattern.to(device),
            self.vertex_ids.to(device),
            edge_weight=moved(self.edge_weight),
            factors=moved(self.factors),
            degrees=None if find is None else lambda: Degrees(*map(moved, vars(find()).values())),
            attributes={name: moved(t) for name, t in self._attributes.items() if t is not None},
        )

    @cached_property
    def degrees(self) -> Degrees | None:
        """Degrees in the whole graph; ``None`` if the block is all there is."""
        return None if self._find_degrees is None else self._find_degrees()

    @cached_property
    def _values(self) -> Tensor | None:
        if self.factors is None or self.edge_weight is None:
            return self.edge_weight if self.factors is None else self.factors
        return self.edge_weight * self.factors

    @cached_property
    def _drawn(self) -> Tensor:
        """Edges of each row, float32 [rows]."""
        return self.pattern.row_lengths.float()

    @cached_property
    def _row_sums(self) -> Tensor:
        values = self._values
        if values is None:
            return self._drawn
        return values.new_zeros(self.rows).index_add_(0, self._row_of_each, values)

    @cached_property
    def _row_of_each(self) -> Tensor:
        rows = torch.arange(self.rows, device=self.pattern.device)
        return rows.repeat_interleave(self.pattern.row_lengths, output_size=self.pattern.nnz)

    @cached_property
    def _left_out(self) -> Tensor | None:
        """Edges of each row over its sampled edges, [rows]; ``None`` without such a correction."""
        degrees = self.degrees
        if degrees is None or self.factors is not None:
            return None
        edges = degrees.edges[: self.rows].float()
        return None if torch.equal(edges, self._drawn) else edges / self._drawn.clamp(min=1)

    def _made(self, kind: Normalisation) -> LocalMatrix:
        check_choice("matrix", kind, tuple(RECIPES))
        block, (loops, scaling) = CSR(self.pattern, self._values), RECIPES[kind]
        if kind == "loops":
            return LocalMatrix(self._with_loops())
        if kind == "none":
            return LocalMatrix(block.with_scales(self._left_out, None))
        if kind == "row":
            return LocalMatrix(block.with_scales(self._inverse(self._row_sums), None))
        weight, bare = self._of_columns()
        if loops and bare is not None:
            # As in PyG, of several self-loops of a vertex one is left.
            unknown = self.factors is not None and self.degrees is None
            if bool((bare < 0).any()) and (self.edge_weight is not None or unknown):
                raise InputError(
                    "there are several self-loops of a vertex, with weights: coalesce the graph's "
                    "edges, or draw none twice"
                )
            bare = torch.where(bare > 0, loops * bare, bare)
        degree = weight if not loops or bare is None else weight + bare
        scale = self._inverse(degree)
        scale, of_columns = (scale.sqrt_(), scale) if scaling == "sym" else (scale, None)
        rows, diagonal = scale[: self.rows], None
        if loops and bare is not None:
            diagonal = bare[: self.rows] * (rows if of_columns is None else rows.square())
        left_out = self._left_out
        return LocalMatrix(
            block.with_scales(rows if left_out is None else rows * left_out, of_columns), diagonal
        )

    def _of_columns(self) -> tuple[Tensor, Tensor | None]:
        """Weights of the edges of each column, and where loops are missing, float32 [columns]."""
        degrees = self.degrees
        if degrees is not None:
            ones = torch.ones_like(degrees.weight) if degrees.bare is None else degrees.bare
            return degrees.weight, ones
        weight = self._row_sums.new_zeros(self.columns)
        weight[: self.rows] = self._row_sums
        bare = torch.ones_like(weight)
        loops = self._row_of_each[self._is_loop]
        return weight, bare.index_add_(0, loops, -torch.ones_like(bare[loops]))

    @cached_property
    def _is_loop(self) -> Tensor:
        return self.pattern.indices == self._row_of_each

    def _inverse(self, degree: Tensor) -> Tensor:
        """1 / degree, and 0 where that is 0."""
        if self.edge_weight is not None:
            check_degrees(degree.double().cpu().numpy(), self.vertex_ids)
        return torch.where(degree > 0, degree, torch.inf).reciprocal()

    def _of_single_loops(self) -> CSR:
        """The edges; of several self-loops of a vertex the last alone, as in PyG."""
        pattern, values = self.pattern, self._values
        (at,) = self._is_loop.nonzero(as_tuple=True)
        rows = self._row_of_each[at]
        again = at[:-1][rows[1:] == rows[:-1]]
        if not len(again):
            return CSR(pattern, values)
        keep = torch.ones(pattern.nnz, dtype=torch.bool, device=pattern.device)
        keep[again] = False
        before = torch.cat((keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)))
        pattern = Pattern.trusted(before[pattern.indptr], pattern.indices[keep], pattern.shape)
        return CSR(pattern, None if values is None else values[keep])

    def _with_loops(self) -> CSR:
        """With one loop in each row: one more nonzero, after its others, where it has none."""
        single, rows = self._of_single_loops(), self.rows
        pattern, values = single.pattern, single.values
        row_of_each = torch.arange(rows, device=pattern.device).repeat_interleave(
            pattern.row_lengths, output_size=pattern.nnz
        )
        missing = torch.ones(rows, dtype=torch.int64, device=pattern.device)
        missing[row_of_each[pattern.indices == row_of_each]] = 0
        indptr = pattern.indptr.clone()
        indptr[1:] += missing.cumsum(0)
        places = torch.arange(pattern.nnz, device=pattern.device)
        places += (indptr[:-1] - pattern.indptr[:-1])[row_of_each]
        indices = pattern.indices.new_empty(int(indptr[-1]))
        indices[places] = pattern.indices
        added = missing.nonzero()[:, 0]
        indices[indptr[1:][added] - 1] = added.to(indices.dtype)
        if values is not None:
            values = values.new_ones(len(indices)).index_copy_(0, places, values)
        return CSR(Pattern.trusted(indptr, indices, pattern.shape), values)


def block_pattern(indptr: Tensor, indices: Tensor, columns: int) -> Pattern:
    """A pattern of arrays that a sampler made."""
    narrow = indices.to(index_dtype(columns))
    return Pattern.trusted(indptr, narrow.contiguous(), (len(indptr) - 1, columns))


class LocalMatrix:
    """``B + diag(d)`` on one process, B [rows, columns] with rows ≤ columns.

    Row i and column i are the same vertex, so the diagonal needs no place in the pattern.

    Parameters
    ----------
    block : CSR [rows, columns]
    diagonal : Tensor float32 [rows], optional
    """

    def __init__(self, block: CSR, diagonal: Tensor | None = None) -> None:
        self.block, self.diagonal = block, diagonal
        self.rows, self.columns = block.shape
        self.operands = Operands(_ALONE)
        self.handle = named(self)
        self._as: dict[torch.dtype, tuple[CSR, Tensor | None]] = {}
        self._beside: dict[int, BesideOwn] = {}

    def next_step(self, H_local: Tensor) -> Step:
        """Refuse an operand that has not one row for each column."""
        return _checked(H_local, self.block)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """``B·H + d·H``, without autograd."""
        block, diagonal = self._in(H_local)
        Z = kernels.spmm(block, H_local)
        return Z if diagonal is None else Z.addcmul_(H_local[: self.rows], diagonal)

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """``Bᵀ·G + d·G``, without autograd."""
        block, diagonal = self._in(G_local)
        dH = kernels.spmm(block.T, G_local)
        if diagonal is not None:
            dH[: self.rows].addcmul_(G_local, diagonal)
        return dH

    def halo(self, H_local: Tensor, *, exact: bool = True) -> Tensor:
        """All that its rows need: H itself, which is exact in any case."""
        _ = self.next_step(H_local)
        return H_local

    @property
    def local_pattern(self) -> Pattern:
        """Its nonzeros, those of the diagonal apart."""
        return self.block.pattern

    def local_matrix(self) -> CSR:
        """The matrix as one block; refused where it has a diagonal apart."""
        if self.diagonal is not None:
            raise InputError("the edges of a batch cannot be dropped where self-loops are added")
        return self.block

    @cached_property
    def attention(self) -> Attention:
        """The attention over its nonzeros."""
        return Attention(Plan((Stage(self.block, None, ()),)), {"everyone": _ALONE})

    def beside_own(self, width: int) -> BesideOwn:
        """The product whose result has own rows next to aggregated ones, for H of this width."""
        if width not in self._beside:
            assert self.diagonal is None
            self._beside[width] = BesideOwn(self.block, width)
        return self._beside[width]

    def _in(self, like: Tensor) -> tuple[CSR, Tensor | None]:
        """The block and its diagonal for operands of a dtype."""
        result = self._as.get(like.dtype)
        if result is None:
            block = self.block.to(like.dtype)
            column = None if self.diagonal is None else self.diagonal[:, None].to(like.dtype)
            result = self._as[like.dtype] = block, column
        return result


class BesideOwn:
    """H to ``[A·H, own rows of H]``, side by side."""

    def __init__(self, block: CSR, width: int) -> None:
        self.block = block
        self.rows, self.columns = block.shape
        self.width, self.wide = width, -(-2 * width // 16) * 16
        self.handle = named(self)

    def next_step(self, H_local: Tensor) -> Step:
        """Check an operand."""
        return _checked(H_local, self.block)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """H [columns, f] to [rows, 2 f and a few], without autograd."""
        f = self.width
        both = new_rows(self.rows, H_local.new_empty(0, self.wide))
        kernels.spmm(self.block.to(H_local.dtype), H_local, out=both[:, :f])
        both[:, f : 2 * f] = H_local[: self.rows]
        both[:, 2 * f :] = 0
        return both

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """The gradient in H of one in all columns, without autograd."""
        f = self.width
        dH = kernels.spmm(self.block.T.to(G_local.dtype), G_local[:, :f])
        dH[: self.rows] += G_local[:, f : 2 * f]
        return dH


def _checked(H_local: Tensor, block: CSR) -> Step:
    """Refuse what a block does not multiply."""
    if H_local.dim() != 2 or H_local.shape[0] != block.shape[1]:
        shape, got = list(block.shape), list(H_local.shape)
        hops = "; layers of several hops take a batch's own graph" if len(got) == 2 else ""
        raise InputError(f"a block {shape} multiplies {shape[1]} rows, got {got}{hops}")
    return Step()
