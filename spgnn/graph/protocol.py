"""Protocol between layers and graphs: aggregation over neighbours, own rows, moments.

A layer describes an aggregation, ``Z = reduce_A(H) Wᵀ + s · H_own Wᵀ + H_own Rᵀ``, and a graph
carries it out, whether it is distributed, a sampled block, worked through in chunks, or only asked
what would move. Which of (A H) W and A (H W) is computed is the graph's choice: it knows what
travels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention import Attention, EdgeDropout, attend
from spgnn.attention.scores import head_scores
from spgnn.autograd import Linear, Operands, all_reduced, autocast, product, product_beside_itself
from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.data.normalise import Normalisation as Scaling
from spgnn.errors import InputError
from spgnn.graph.features import Features, Propagated, times
from spgnn.graph.moments import Moments, moments
from spgnn.kernels.attention import AttentionDropout, Rules
from spgnn.kernels.edge_spmm import EdgeOp
from spgnn.kernels.gemm import add_times_transposed_, has_gemm, sum_of_products
from spgnn.kernels.torch_kernels import dropout_factors, dropout_keeps
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import transformed

# D^-1/2 (A + I) D^-1/2; D^-1 A, the mean; A as it is; A + I; D^-1/2 A D^-1/2; the first of A + 2 I;
# D^-1 (A + I).
Normalisation = Literal["sym", "row", "none", "loops", "plain", "improved", "mean"]
# The weight of a self-loop that a vertex without one gets, and how rows and columns are scaled.
RECIPES: dict[Normalisation, tuple[int, Scaling]] = {
    "sym": (1, "sym"),
    "row": (0, "row"),
    "none": (0, "none"),
    "loops": (1, "none"),
    "plain": (0, "sym"),
    "improved": (2, "sym"),
    "mean": (1, "row"),
}
# "sum", "attention", or one of `spgnn.kernels.reductions` over whole rows of neighbours.
Reduction = str


@dataclass(frozen=True, eq=False)
class AttentionScores:
    """Scores of neighbours, ``α_i = softmax_j(score_ij)``.

    Attributes
    ----------
    vector : Tensor [heads, channels]
    destinations : Tensor [rows, heads], or [rows, heads · channels] if joint
        Contribution of row i to its scores.
    slope : float
        Of LeakyReLU below 0.
    joint : bool
        ``<a, LeakyReLU(x_i + y_j + t_ij)>`` (GATv2), else ``LeakyReLU(d_i + <a, z_j> + t_ij)``.
    edges : Tensor [edges, heads] or [edges, heads · channels], optional
        t_ij, in the order of the matrix's ``local_pattern``.
    """

    vector: Tensor
    destinations: Tensor
    slope: float
    joint: bool = False
    edges: Tensor | None = None


@dataclass(frozen=True, eq=False)
class EdgeOperand:
    """Numbers of edges that neighbours are combined with, before they are reduced."""

    op: EdgeOp
    values: Tensor


@dataclass(eq=False)
class Aggregation:
    """One aggregation, ``Z = reduce_A(H) Wᵀ + s · H_own Wᵀ + H_own Rᵀ``.

    Attributes
    ----------
    operand : Tensor [columns, f], CSR, or Propagated
        H.
    weight : Tensor [f_out, f], optional
        W; a sparse H needs one.
    root : Tensor [f_out, f], optional
        R, the weight of the vertex itself.
    self_loop : Tensor [1], optional
        s, which is added to the diagonal of A.
    normalisation : {"sym", "row", "none", "loops", "plain", "improved", "mean"}
        Of A.
    reduce : {"sum", "attention", "max", "min", "std"}, or with `edge` also "mean"
        Values of A count in sums alone; a row without neighbours is 0.
    scores : AttentionScores, optional
        With attention.
    dropped : EdgeDropout, optional
        Of nonzeros, in training. Ids of a graph that knows its vertices come before these.
    edge : EdgeOperand, optional
        Values and scalings of A play no part then; with "copy" H says the number of rows alone.
    """

    operand: Features
    weight: Tensor | None = None
    root: Tensor | None = None
    self_loop: Tensor | None = None
    normalisation: Normalisation = "none"
    reduce: Reduction = "sum"
    scores: AttentionScores | None = None
    dropped: EdgeDropout | None = None
    edge: EdgeOperand | None = None

    @property
    def dense(self) -> Tensor:
        """The operand, which has to be a dense tensor.

        Raises
        ------
        InputError
            If it is sparse, or multiplied by A already.
        """
        what = "attention" if self.reduce == "attention" else f"this layer ({self.reduce})"
        what = what if self.edge is None else "a layer with features of edges"
        return dense(self.operand, what)


def dense(H: Features, layer: str) -> Tensor:
    """Features that have to be a dense tensor, H itself.

    Raises
    ------
    InputError
        If H is sparse or propagated.
    """
    if isinstance(H, CSR):
        raise InputError(
            f"{layer} needs dense features; make sparse ones dense once: nn.densified(X)"
        )
    if isinstance(H, Propagated):
        raise InputError(f"{layer} needs X, and not A·X, which adds its rows up already")
    return H


class Matrix(Linear, Protocol):
    """A matrix that aggregations run on.

    Attributes
    ----------
    operands : Operands
    """

    operands: Operands

    @property
    def attention(self) -> Attention:
        """Attention over its nonzeros."""

    @property
    def local_pattern(self) -> Pattern:
        """Its nonzeros [rows, columns of the halo]."""

    def local_matrix(self) -> CSR:
        """The same with values and scalings. Collective."""

    def halo(self, H_local: Tensor, *, exact: bool = False) -> Tensor:
        """H_local [columns, f] to the rows that `local_pattern` refers to. Collective."""


class LocalEdges:
    """A rank's edges one by one, and what is known of them.

    Parameters
    ----------
    matrix : callable
        The matrix whose rows travel whole. Collective when it is built.
    index : callable, optional
        Sources, which number rows of the halo, and targets, rows that a layer makes, int64
        [2, edges]; sorted by these. By default they are the nonzeros of the matrix.
    attributes : dict of Tensor [edges, …], optional
        ``edge_attr``, ``edge_type``, ``edge_weight``.
    halo : callable, optional
        H_local [columns, f] to [columns + received, f]; by default that of the matrix. Collective.
    """

    def __init__(
        self,
        matrix: Callable[[], Matrix],
        index: Callable[[], Tensor] | None = None,
        attributes: Mapping[str, Tensor | None] = MappingProxyType({}),
        halo: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._matrix, self._index, self._halo = matrix, index, halo
        self.attr, self.type = attributes.get("edge_attr"), attributes.get("edge_type")
        self.weight = attributes.get("edge_weight")

    def halo(self, H_local: Tensor) -> Tensor:
        """H_local [columns, f] to [columns + received, f]. Collective."""
        return (self._halo or self._matrix().halo)(H_local)

    @cached_property
    def order(self) -> Tensor | None:
        """The index, where they are not the nonzeros."""
        return None if self._index is None else self._index()

    @cached_property
    def index(self) -> Tensor:
        """Sources and targets, int64 [2, edges]."""
        if self.order is not None:
            return self.order
        pattern = self._matrix().local_pattern
        rows = torch.arange(pattern.shape[0], device=pattern.device)
        return torch.stack((pattern.indices.long(), rows.repeat_interleave(pattern.row_lengths)))

    @cached_property
    def pattern(self) -> Pattern:
        """The same as [rows, rows of the halo], in their order."""
        pattern, index = self._matrix().local_pattern, self.order
        if index is None:
            return pattern
        indptr = index.new_zeros(pattern.shape[0] + 1)
        torch.cumsum(torch.bincount(index[1], minlength=pattern.shape[0]), 0, out=indptr[1:])
        return Pattern.trusted(indptr, index[0].to(index_dtype(pattern.shape[1])), pattern.shape)


class Graph(ABC):
    """A graph that one or several layers work on.

    Attributes
    ----------
    comm : Communicator or None
        All ranks; ``None`` if there is one only.
    vertex_ids : Tensor int64 [columns] or None
        Original ids of the rows that a layer is given. Dropout is a function of them.
    complete : callable or None
        From the rows that the layer before made to those that a layer is given, if it is given
        others than these.
    """

    comm: Communicator | None = None
    vertex_ids: Tensor | None = None
    complete: Callable[[Tensor], Tensor] | None = None
    whole_rows = True  # are what a layer is given; False where each rank has columns of them

    @property
    def bipartite(self) -> bool:
        """True if targets are of another type than sources: `own` are then rows of their own."""
        return False

    @abstractmethod
    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """A, normalised. Collective when it is asked for first."""

    def halo_matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """A whose rows travel whole, for halos and edges one by one. Collective."""
        return self.matrix(normalisation)

    def attention_matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """A for attention without numbers of edges: partial softmaxes may travel. Collective."""
        return self.halo_matrix(normalisation)

    @property
    def local_edges(self) -> LocalEdges:
        """Its edges one by one. Collective when first used.

        Raises
        ------
        InputError
            If rows do not travel whole: a graph must be 1D with column covers.
        """
        return LocalEdges(self.halo_matrix)

    def aggregate(self, request: Aggregation) -> Tensor:
        """Carry an aggregation out: Z [rows, f_out], a tensor of its own. Collective.

        Differentiable; at every order where the request is linear.

        Raises
        ------
        InputError
            If features are sparse or propagated where that cannot be; if rows do not travel whole
            and the request needs it.
        """
        H, W, R = request.operand, request.weight, request.root
        if isinstance(H, Propagated) and request.reduce == "sum" and request.edge is None:
            Z = H.AX_local
            if request.self_loop is not None:
                Z = torch.addcmul(Z, H.own, request.self_loop)
            if W is not None and R is not None and has_gemm(Z, W, H.own, R):
                return sum_of_products(Z, W, H.own, R)
            return self._add_root(Z if W is None else times(Z, W), H, R)
        linear = request.reduce == "sum" and request.dropped is None and request.edge is None
        if linear and W is not None and R is not None and isinstance(H, Tensor):
            fused = self._fused(request, H, W, R)
            if fused is not None:
                return fused
        operand, first = self.operand(request)
        if linear:
            Z = product(self.matrix(request.normalisation), operand)
        else:
            Z = self._reduced(request, operand)
        return self._combine(request, Z, operand, first=first)

    def operand(self, request: Aggregation) -> tuple[Tensor, bool]:
        """The rows that are reduced, H or H Wᵀ, and whether it is the latter."""
        H, W = request.operand, request.weight
        linear = request.reduce == "sum" and request.edge is None
        if linear and W is not None and not isinstance(H, Propagated):
            f_out, f_in = W.shape
            if isinstance(H, CSR) or self._multiplies_first(f_in, f_out, gradient=H.requires_grad):
                return times(H, W), True
        return request.dense, False

    def own(self, H: Tensor | Propagated) -> Tensor:
        """The rows that a layer makes [rows, …], of those that it is given [columns, …]."""
        return H.own if isinstance(H, Propagated) else H

    def own_scores(self, rows: Tensor, vector: Tensor) -> Tensor:
        """`head_scores` of the vertices whose rows a layer makes, [rows, heads]."""
        return head_scores(self.own(rows), vector)

    def moments(self, x: Tensor) -> Moments:
        """Mean and variance of each column over the rows of all ranks. Collective."""
        return moments(x, None, self.comm)

    def total(self, own: Tensor) -> Tensor:
        """The sum over all ranks of a rank's own sum. Collective; differentiable at every order."""
        return own if self.comm is None else all_reduced(own, self.comm)

    def ring(self, rows: int) -> list[RowCounts]:
        """Rows in each step of a way around the ranks, of each one's so many. Collective.

        A rank sends to the next what it got from the one before, and first its own rows, which
        the last step brings home. One rank alone has no steps.
        """
        comm = self.comm
        if comm is None or comm.size == 1:
            return []
        sizes = torch.zeros(comm.size, dtype=torch.int64)
        sizes[comm.rank] = rows
        comm.all_reduce(sizes).wait()
        ring, largest = [], int(sizes.max())
        for step in range(comm.size):
            send, receive = np.zeros((2, comm.size), np.int64)
            send[(comm.rank + 1) % comm.size] = sizes[comm.rank - step]
            receive[comm.rank - 1] = sizes[comm.rank - step - 1]
            ring.append(RowCounts(send, receive, largest))
        return ring

    def _combine(self, request: Aggregation, Z: Tensor, operand: Tensor, *, first: bool) -> Tensor:
        """Add what follows the reduction: self-loop, weight and root. Z is overwritten."""
        if request.self_loop is not None:
            Z = Z.addcmul_(self.own(operand), request.self_loop)
        if request.weight is not None and not first:
            Z = times(Z, request.weight)
        return Z if request.root is None else self._add_root(Z, request.operand, request.root)

    def _add_root(self, Z: Tensor, H: Features, R: Tensor | None) -> Tensor:
        """``Z + H_own Rᵀ``, for the vertices whose rows Z has; Z is overwritten."""
        if R is None:
            return Z
        if Z.dtype == torch.float16:
            Z = Z.float()  # as all operands under torch.autocast
        if isinstance(H, CSR):
            return Z.add_(self.own(times(H, R)))
        return add_times_transposed_(Z, autocast(self.own(H)), autocast(R))

    def _multiplies_first(self, f_in: int, f_out: int, *, gradient: bool) -> bool:
        """True if A (H W) moves fewer bytes than (A H) W, with W [f_in, f_out].

        Each costs the width that travels, forward and backward; but where the input needs no
        gradient, (A X) W has no product in backward.
        """
        if not torch.is_grad_enabled():
            return f_out <= f_in
        return 2 * f_out <= f_in * (2 if gradient else 1)

    def _edge_dropout(self, dropped: EdgeDropout) -> EdgeDropout:
        """The same with the ids of this graph's rows, where it knows them."""
        return dropped if self.vertex_ids is None else replace(dropped, vertex_ids=self.vertex_ids)

    def _reduced(self, request: Aggregation, operand: Tensor) -> Tensor:
        """The rows of a reduction that is no plain product."""
        if request.edge is not None:
            return self._of_edges(request.edge, request.reduce, operand)
        dropout = None if request.dropped is None else self._edge_dropout(request.dropped)
        if request.reduce == "sum" and dropout is not None:
            return product_with_dropout(self.halo_matrix(request.normalisation), operand, dropout)
        if request.reduce != "attention":
            # Of equal elements the first among `local_pattern`'s columns gets the gradient.
            A, how = self.halo_matrix(), request.reduce
            return kernels.spmm(CSR(A.local_pattern), A.halo(operand), reduce=how)
        scores = request.scores
        assert scores is not None
        matrix = self.attention_matrix if scores.edges is None else self.halo_matrix
        A = matrix(request.normalisation)
        return attend(
            A,
            operand,
            scores.vector,
            scores.destinations,
            joint=scores.joint,
            slope=scores.slope,
            edges=scores.edges,
            dropout=dropout,
        )

    def _of_edges(self, edge: EdgeOperand, reduce: Reduction, operand: Tensor) -> Tensor:
        """Neighbours combined with numbers of edges, and reduced. Collective, but for "copy"."""
        pattern, values = self.local_edges.pattern, edge.values
        if values.shape[:1] != (pattern.nnz,):
            raise InputError(
                f"edges: this rank has {pattern.nnz}, there are rows of {list(values.shape)} "
                "numbers for them; give one row for each, as edge_index orders them"
            )
        rows = None
        if edge.op != "copy":
            rows = self.halo_matrix().halo(autocast(operand))
            values = values.to(rows.dtype)
            if edge.op == "outer" or values.shape[1:] == rows.shape[1:]:
                pass
            elif values.dim() == 2 and values.shape[1] > 1:
                if rows.shape[1] % values.shape[1]:
                    raise InputError(
                        f"edges: {values.shape[1]} heads do not divide {rows.shape[1]} columns"
                    )
                rows = rows.unflatten(1, (values.shape[1], -1))
            else:
                values = values.flatten()
        how: Any = reduce  # checked there
        reduced: Tensor = kernels.edge_spmm(pattern, rows, values, edge.op, how)
        return reduced.flatten(1) if reduced.dim() > 1 else reduced[:, None]

    def _fused(self, request: Aggregation, H: Tensor, W: Tensor, R: Tensor) -> Tensor | None:
        """Both products added into one result, forward and backward, where that can be."""
        if transformed():
            return None
        first = self._multiplies_first(W.shape[1], W.shape[0], gradient=H.requires_grad)
        A = self.matrix(request.normalisation)
        return product_beside_itself(A, H, W, R, first=first)


def fetch_ids(graph: Graph, dropped: EdgeDropout, normalisation: Normalisation) -> None:
    """Fetch ids of other ranks that dropout of attention asks for, before it does. Collective."""
    ids = graph._edge_dropout(dropped)
    graph.attention_matrix(normalisation).attention.ids(ids.vertex_ids, ids.row_columns)


def edge_dropout_factors(graph: Graph, dropped: EdgeDropout, weights: Tensor) -> Tensor:
    """Factors of dropout for weights [edges, heads] in the order of local edges. Collective."""
    dropped = graph._edge_dropout(dropped)
    ids, rows = dropped.vertex_ids, dropped.row_columns
    sources = _ids_of_halo(graph.halo_matrix(), ids)
    rule = AttentionDropout(dropped.key, dropped.p, ids if rows is None else ids[rows], sources)
    factors = dropout_factors(graph.local_edges.pattern, Rules(dropout=rule), weights)
    return torch.ones_like(weights) if factors is None else factors


def product_with_dropout(A: Matrix, H_local: Tensor, dropped: EdgeDropout) -> Tensor:
    """``A·H`` with each nonzero of A dropped with probability p, the rest scaled. Collective."""
    ids, B, p = _ids_of_halo(A, dropped.vertex_ids), A.local_matrix(), dropped.p
    rows = torch.arange(B.shape[0], device=ids.device).repeat_interleave(B.row_lengths)
    stays = dropout_keeps(ids[rows], ids[B.indices.long()], dropped.key, p)
    values = stays.to(H_local.dtype) / (1 - p)
    values = values if B.values is None else values * B.values
    return kernels.spmm(B.with_values(values), A.halo(H_local))


def _ids_of_halo(A: Matrix, vertex_ids: Tensor) -> Tensor:
    return A.halo(vertex_ids[:, None].double(), exact=True)[:, 0].long()


class LayerGraph(Graph):
    """The rows of one layer: it may make fewer than the rank owns, or those of a recomputed halo.

    Parameters
    ----------
    A : DistMatrix, optional
        Rows [rows] that the layer makes of the rows [columns] that the layer before it made; it
        stands for whatever normalisation is asked for. Without a matrix, features have to be
        propagated.
    vertex_ids : Tensor int64 [columns], optional
        Original ids: own vertices, then those of a recomputed halo. Without a matrix, ids of the
        rows that the layer makes.
    row_columns : Tensor int64 [rows], optional
        Which column each row is; ``None`` if row i is column i.
    own_rows : int, optional
        How many of its rows are own ones, if the last ones are of a recomputed halo: norms count
        own rows alone.
    comm : Communicator, optional
        All ranks, where there is no matrix to ask.
    edges : (Tensor int64 [2, edges], Tensor [edges, k]), optional
        Sources in the halo and destinations, sorted by these, and features of edges.
    """

    def __init__(
        self,
        A: DistMatrix | None,
        vertex_ids: Tensor | None = None,
        row_columns: Tensor | None = None,
        own_rows: int | None = None,
        comm: Communicator | None = None,
        edges: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        self.A, self.vertex_ids, self.row_columns = A, vertex_ids, row_columns
        self.own_rows, self.edge_rows = own_rows, edges
        self.comm = comm if A is None else A.mesh.everyone

    @cached_property
    def local_edges(self) -> LocalEdges:
        """The edges that it has features of, or the nonzeros."""
        matrix = partial(_matrix_of, self.A)  # which does not know this graph
        if self.edge_rows is None:
            return LocalEdges(matrix)
        index, attr = self.edge_rows
        return LocalEdges(matrix, lambda: index, {"edge_attr": attr})

    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """The only one.

        Raises
        ------
        InputError
            If there is none.
        """
        return _matrix_of(self.A)

    def moments(self, x: Tensor) -> Moments:
        """Mean and variance over the own rows of all ranks. Collective."""
        return moments(x, self.own_rows, self.comm)

    def _edge_dropout(self, dropped: EdgeDropout) -> EdgeDropout:
        return replace(super()._edge_dropout(dropped), row_columns=self.row_columns)

    def own(self, H: Tensor | Propagated) -> Tensor:
        """The rows that the layer makes, of those that it is given."""
        if isinstance(H, Propagated) or self.A is None:
            return super().own(H)
        if self.row_columns is None:
            return H[: self.A.rows]
        return kernels.gather_rows(H, self.row_columns) if H.dim() == 2 else H[self.row_columns]

    def own_scores(self, rows: Tensor, vector: Tensor) -> Tensor:
        """As any graph; rows are picked when they are narrow."""
        if self.row_columns is None:
            return super().own_scores(rows, vector)
        return kernels.gather_rows(head_scores(rows, vector), self.row_columns)

    def _fused(self, request: Aggregation, H: Tensor, W: Tensor, R: Tensor) -> Tensor | None:
        return super()._fused(request, H, W, R) if self.row_columns is None else None


def _matrix_of(A: DistMatrix | None) -> DistMatrix:
    if A is None:
        raise InputError("a layer without a matrix needs features that are propagated already")
    return A


AnyGraph = Graph | DistMatrix | Sequence[Graph]
Matrices = DistMatrix | Sequence[LayerGraph]


def as_graph(graph: object) -> Graph:
    """A graph as layers take it; a matrix of the caller's own stands for any normalisation.

    Raises
    ------
    InputError
        If it is none, as the edge_index that layers of PyG take.
    """
    if isinstance(graph, Graph):
        return graph
    if isinstance(graph, DistMatrix):
        return LayerGraph(graph)
    if isinstance(graph, Communicator):
        return LayerGraph(None, comm=graph)
    raise InputError(
        "layers of spgnn.nn are called with x and the graph that spgnn.distribute returns, got "
        f"a {type(graph).__name__} for the graph: edge_index is what layers of PyG take"
    )


def graphs_for(graph: object, layers: int) -> Sequence[Graph]:
    """The graph of each of so many layers, from one graph or a sequence of one for each."""
    if not isinstance(graph, Sequence):
        return [as_graph(graph)] * layers
    if len(graph) != layers:
        raise InputError(f"a model of {layers} layers needs as many graphs, got {len(graph)}")
    return [as_graph(one) for one in graph]


def matrices_of(graph: Matrices) -> list[DistMatrix]:
    """The matrices of all layers, each once."""
    if isinstance(graph, DistMatrix):
        return [graph]
    return list({id(layer.A): layer.A for layer in graph if layer.A is not None}.values())
