"""What a layer works on in a mini-batch: a rectangular matrix from neighbours to targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from spgnn.nn.local import LocalMatrix
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, check_degrees

Kind = Literal["sym", "row", "none", "loops", "plain", "improved"]
# What a nonzero of a product costs beside a multiplication of a dense one.
_GATHERED = 8


@dataclass(frozen=True, eq=False)
class Degrees:
    """What the whole graph knows of the vertices of a block, one number a column.

    Attributes
    ----------
    edges : Tensor int64 [columns]
        In-edges.
    weight : Tensor float32 [columns]
        The sum of their weights; without weights, their number.
    bare : Tensor float32 [columns], optional
        1 where a vertex has no self-loop of its own; ``None`` if none has any.
    """

    edges: Tensor
    weight: Tensor
    bare: Tensor | None = None

    def of(self, columns: Tensor) -> Degrees:
        """Those of some columns."""
        bare = None if self.bare is None else self.bare[columns]
        return Degrees(self.edges[columns], self.weight[columns], bare)


class Block:
    """Sampled in-edges of some vertices, as layers take a graph.

    Its columns are the vertices that a layer is given, the first of which are its rows, those that
    the layer makes. Normalised as the *whole* graph is, so that a product estimates that with the
    whole matrix, and is equal to it where no edge was left out: a row of which k of d edges were
    drawn is multiplied by d / k in a sum, and degrees are those of the graph. Or, without
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

    edge_attr: Tensor | None
    edge_type: Tensor | None

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
        self.pattern, self.vertex_ids = pattern, vertex_ids
        self.rows, self.columns = pattern.shape
        self.edge_weight, self.factors = edge_weight, factors
        found = attributes or {}
        self.edge_attr, self.edge_type = found.get("edge_attr"), found.get("edge_type")
        self._find_degrees = degrees
        self._matrices: dict[str, LocalMatrix] = {}

    def __repr__(self) -> str:
        return f"Block([{self.rows}, {self.columns}], {self.pattern.nnz} edges)"

    def matrix(self, kind: Kind = "none") -> LocalMatrix:
        """The block with or without self-loops and scalings, as a graph's matrices of that name."""
        if kind not in self._matrices:
            self._matrices[kind] = self._made(kind)
        return self._matrices[kind]

    def halo(self, H: Tensor) -> Tensor:
        """All that its rows need: H itself [columns, f]."""
        return H

    def arrived(self, made: Tensor) -> Tensor:
        """What the layer takes [columns, f], of the rows that the layer before it made: the same.

        Where some of its columns come from elsewhere, a subclass adds them.
        """
        return made

    @cached_property
    def local_edge_index(self) -> Tensor:
        """Columns and rows of its edges, int64 [2, edges]."""
        return torch.stack((self.pattern.indices.long(), self._row_of_each))

    def multiplies_first(self, f_in: int, f_out: int, *, gradient: bool) -> bool:
        """Whether A (H W) takes fewer operations than (A H) W, with W [f_in, f_out].

        Nothing travels here, and there are fewer rows than columns.
        """
        edges, dense = self.pattern.nnz * _GATHERED, f_in * f_out
        # Forward; dW, of which the sparse adjoint is a part where it comes last; dH.
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

        def moved(t: Tensor | None) -> Tensor | None:
            return None if t is None else t.to(device)

        def degrees() -> Degrees:
            assert self._find_degrees is not None
            found = self._find_degrees()
            return Degrees(found.edges.to(device), found.weight.to(device), moved(found.bare))

        known = {"edge_attr": self.edge_attr, "edge_type": self.edge_type}
        return Block(
            self.pattern.to(device),
            self.vertex_ids.to(device),
            edge_weight=moved(self.edge_weight),
            factors=moved(self.factors),
            degrees=None if self._find_degrees is None else degrees,
            attributes={name: t.to(device) for name, t in known.items() if t is not None},
        )

    @cached_property
    def degrees(self) -> Degrees | None:
        """Of the whole graph; ``None`` if the block is all there is."""
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
        zeros = values.new_zeros(self.rows)
        return zeros.index_add_(0, self._row_of_each, values)

    @cached_property
    def _row_of_each(self) -> Tensor:
        rows = torch.arange(self.rows, device=self.pattern.device)
        return rows.repeat_interleave(self.pattern.row_lengths, output_size=self.pattern.nnz)

    @cached_property
    def _left_out(self) -> Tensor | None:
        """What a sum over all edges of a row is of one over those that were drawn, [rows]."""
        degrees = self.degrees
        if degrees is None or self.factors is not None:
            return None
        edges = degrees.edges[: self.rows].float()
        return None if torch.equal(edges, self._drawn) else edges / self._drawn.clamp(min=1)

    def _made(self, kind: Kind) -> LocalMatrix:
        block = CSR(self.pattern, self._values)
        if kind == "loops":
            return LocalMatrix(CSR(self._with_loops()))
        if kind == "none":
            return LocalMatrix(block.with_scales(self._left_out, None))
        if kind == "row":
            return LocalMatrix(block.with_scales(self._inverse(self._row_sums), None))
        weight, bare = self._of_columns()
        loops = {"sym": 1.0, "plain": 0.0, "improved": 2.0}[kind]
        degree = weight if bare is None else weight + loops * bare
        scale = self._inverse(degree).sqrt_()
        rows, diagonal = scale[: self.rows], None
        if loops and bare is not None:
            diagonal = loops * bare[: self.rows] * rows.square()
        left_out = self._left_out
        return LocalMatrix(
            block.with_scales(rows if left_out is None else rows * left_out, scale), diagonal
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
        bare[self._row_of_each[self._is_loop]] = 0
        return weight, bare

    @cached_property
    def _is_loop(self) -> Tensor:
        return self.pattern.indices == self._row_of_each

    def _inverse(self, degree: Tensor) -> Tensor:
        """1 / degree, and 0 where that is 0.

        Raises
        ------
        InputError
            If one is negative.
        """
        if self.edge_weight is not None:
            check_degrees(degree.double().cpu().numpy(), self.vertex_ids)
        return torch.where(degree > 0, degree, torch.inf).reciprocal()

    def _with_loops(self) -> Pattern:
        """With one more nonzero in each row that has no loop, after its others."""
        pattern, rows = self.pattern, self.rows
        missing = torch.ones(rows, dtype=torch.int64, device=pattern.device)
        missing[self._row_of_each[self._is_loop]] = 0
        indptr = pattern.indptr.clone()
        indptr[1:] += missing.cumsum(0)
        places = torch.arange(pattern.nnz, device=pattern.device)
        places += (indptr[:-1] - pattern.indptr[:-1])[self._row_of_each]
        indices = pattern.indices.new_empty(int(indptr[-1]))
        indices[places] = pattern.indices
        added = missing.nonzero()[:, 0]
        indices[indptr[1:][added] - 1] = added.to(indices.dtype)
        return Pattern.trusted(indptr, indices, pattern.shape)


def block_pattern(indptr: Tensor, indices: Tensor, columns: int) -> Pattern:
    """A pattern of arrays that a sampler made."""
    kept = indices.to(index_dtype(columns))
    return Pattern.trusted(indptr, kept.contiguous(), (len(indptr) - 1, columns))
