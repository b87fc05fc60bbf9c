"""The matrices of a distributed graph, and the rows that they are built from."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.data.distribute import RankShare
from spgnn.data.normalise import Normalisation as Scaling
from spgnn.data.normalise import add_self_loops, degree_scales
from spgnn.errors import InputError, check_choice
from spgnn.exchange import Algorithm
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.edges import Edges
from spgnn.graph.protocol import RECIPES, Normalisation
from spgnn.layout import RowLayout
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.spmm import DistMatrix
from spgnn.torch_internals import constant_when_compiled, untraced

_OTHER = "-rows"  # after the name of a matrix whose rows travel whole, where the scheme's do not


@dataclass(frozen=True, eq=False)
class NormalisedRows:
    """Rows [own rows, n] and scalings that a matrix is built from."""

    block: CSR
    column_scale: Tensor | None
    edge_labels: Tensor | None

    def matrix(self, layout: RowLayout, mesh: Mesh, algorithm: Algorithm) -> DistMatrix:
        """The distributed matrix. Collective."""
        scale, labels = self.column_scale, self.edge_labels
        return DistMatrix.build(
            self.block, layout, mesh, algorithm=algorithm, column_scale=scale, edge_labels=labels
        )


def normalised(
    share: RankShare, rank: int, kind: Scaling, *, loops: int, dtype: torch.dtype = torch.float32
) -> NormalisedRows:
    """Own rows of the adjacency, or of A + I, normalised ("sym", "row" or "none").

    `loops` is the weight of the self-loop that a vertex without one gets; 0: none. Operands will be
    of the dtype. A negative degree is refused on this rank alone.
    """
    assert share.adjacency is not None
    block = share.adjacency
    if loops:
        block = add_self_loops(block, share.layout.range(rank)[0], loops)
    edge_labels = _edge_labels(share, block, rank)
    block = block.to(dtype)
    row_scale, own_scale = degree_scales(block, kind, share.vertex_ids, SUM_DTYPE[dtype])
    return NormalisedRows(block.with_scales(row_scale, None), own_scale, edge_labels)


def with_single_loops(block: CSR, edges: Edges, first_row: int) -> CSR:
    """The same rows, where of several self-loops of a vertex the last is left, as in PyG."""
    values = torch.ones(block.nnz) if block.values is None else block.values
    source, target = edges.index.numpy()
    loops = np.flatnonzero(source == target)
    weights = edges.weights
    of_loop = np.ones(block.shape[0])
    if weights is not None:
        of_loop[target[loops] - first_row] = weights.numpy()[loops]  # the last one stays
    own = torch.arange(block.shape[0]).repeat_interleave(block.row_lengths)
    left = torch.from_numpy(of_loop).to(values.dtype)[own]
    return block.with_values(torch.where(block.indices == own + first_row, left, values))


def with_each_edge(
    share: RankShare, edges: Edges, first_row: int, *, loops: bool = False
) -> RankShare:
    """The share with a nonzero for each edge, in place of one for each pair of vertices."""
    pairs = share.adjacency
    assert pairs is not None
    source, target = edges.index.numpy()
    order = np.lexsort((source, target))
    source, target = source[order], target[order]
    new_pair = np.ones(len(order), np.bool_)  # numbers pairs as the adjacency does
    new_pair[1:] = (source[1:] != source[:-1]) | (target[1:] != target[:-1])
    number = np.cumsum(new_pair) - 1
    if loops:
        stays = (source != target) | np.append(new_pair[1:], True)
        order, source, target, number = (a[stays] for a in (order, source, target, number))
    indptr = np.zeros(pairs.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(target - first_row, minlength=pairs.shape[0]), out=indptr[1:])
    weights = None if edges.weights is None else edges.weights[torch.from_numpy(order)]
    each = CSR.of(torch.from_numpy(indptr), torch.from_numpy(source), pairs.shape, weights)
    labels = share.edge_labels
    labels = None if labels is None else labels[torch.from_numpy(number)]
    return replace(share, adjacency=each, edge_labels=labels)


def edges_of_rows(share: RankShare, rank: int) -> Edges:
    """The nonzeros of own rows as edges, in rows of the whole graph."""
    A = share.adjacency
    assert A is not None
    targets = torch.arange(*share.layout.range(rank)).repeat_interleave(A.row_lengths)
    weights = {} if A.values is None else {"edge_weight": A.values}
    return Edges(torch.stack((A.indices.long(), targets)), weights)


def _edge_labels(share: RankShare, block: CSR, rank: int) -> Tensor | None:
    """The rank of each nonzero of a block that may have got self-loops, which stay here."""
    if share.edge_labels is None:
        return None
    assert share.adjacency is not None
    first = share.layout.range(rank)[0]
    marked = share.adjacency.with_values(share.edge_labels.float())
    if block.nnz > marked.nnz:
        marked = add_self_loops(marked, first)
    assert marked.values is not None
    row = torch.arange(first, first + block.shape[0]).repeat_interleave(block.row_lengths)
    return torch.where(block.indices == row, rank, marked.values.int())


class GraphMatrices:
    """Builds each matrix of a graph when it is first asked for, and keeps it."""

    def __init__(
        self,
        share: RankShare,
        comm: Communicator,
        algorithm: Algorithm,
        products: Algorithm | None = None,
        *,
        repeated: Edges | None,
        codecs: GraphCodecs,
    ) -> None:
        self._share, self._comm = share, comm
        self._algorithm, self._products = algorithm, products
        aware = replace(algorithm, exchange="sparsity-aware")
        self._rows = algorithm if "whole_rows" in aware.can else Algorithm()
        self.repeated, self._codecs = repeated, codecs
        self._built: dict[tuple[Normalisation, Algorithm], DistMatrix] = {}
        self._multiplied: dict[Normalisation, DistMatrix] = {}  # by `products`
        self._device, self._dtype = torch.device("cpu"), torch.float32
        self.mesh = Mesh.build(comm, algorithm.axes(comm.size))
        self._meshes = {algorithm.axes(comm.size): self.mesh}

    def __contains__(self, kind: Normalisation) -> bool:
        """True if the matrix of this kind that has a halo is built already."""
        return (kind, self._rows) in self._built

    @constant_when_compiled
    def build_untraced(self, method: str, kind: Normalisation) -> None:
        """Build a matrix now: compilers look at nothing inside."""
        with untraced():
            getattr(self, method)(kind)

    def get(self, kind: Normalisation) -> DistMatrix:
        """The matrix of a kind, to multiply with. Collective when it is built."""
        released = self._share.adjacency is None
        if self._products is None or (released and (kind, self._algorithm) in self._built):
            return self._of(kind, self._algorithm)
        if kind not in self._multiplied:
            A = self._multiplied[kind] = self._build(kind, self._products)
            A.build_with_halo = self._halo_of(kind)
        return self._multiplied[kind]

    def with_halo(self, kind: Normalisation) -> DistMatrix:
        """The same for halos, by 1D where the scheme's rows do not travel whole. Collective."""
        return self._of(kind, self._rows)

    def attended(self, kind: Normalisation) -> DistMatrix:
        """The same for attention, whose partial softmaxes travel as sums do. Collective."""
        attends = "attention" in self._algorithm.can
        A = self._of(kind, self._algorithm if attends else self._rows)
        if A is not self._built.get((kind, self._rows)):
            A.whole_rows = partial(self.with_halo, kind)
        return A

    def coded(self, name: str) -> DistMatrix:
        """The matrix whose codec has this name. Collective when it is built."""
        kind, is_other, _ = name.partition(_OTHER)
        return self._of(kind, self._rows if is_other else self._algorithm)  # type: ignore[arg-type]

    def _of(self, kind: Normalisation, algorithm: Algorithm) -> DistMatrix:
        if (kind, algorithm) not in self._built:
            A = self._built[kind, algorithm] = self._build(kind, algorithm)
            other = algorithm != self._algorithm
            number = list(RECIPES).index(kind) + other * len(RECIPES)
            ids = self._share.vertex_ids.to(self._device)
            self._codecs.put(A, kind + _OTHER * other, number, ids)
        return self._built[kind, algorithm]

    def _build(self, kind: Normalisation, algorithm: Algorithm) -> DistMatrix:
        check_choice("matrix", kind, tuple(RECIPES))
        self._comm.check_agreement("graph.matrix", normalisation=kind, algorithm=repr(algorithm))
        axes = algorithm.axes(self._comm.size)
        if axes not in self._meshes:
            self._meshes[axes] = Mesh.build(self._comm, axes)
        rows = self.rows(kind)
        return rows.matrix(self._share.layout, self._meshes[axes], algorithm).to(self._device)

    def _halo_of(self, kind: Normalisation) -> Callable[[], DistMatrix]:
        """The scheme's, for a matrix that outlives this, or is of a graph before an update."""
        alone = copy(self)
        alone._multiplied = {}  # so that no matrix knows itself
        return partial(alone._of, kind, self._algorithm)

    def rows(self, kind: Normalisation) -> NormalisedRows:
        """Own rows of the adjacency, as the matrix of a kind is built from them. Collective."""
        loops, scaling = RECIPES[kind]
        rank, dtype = self._comm.rank, self._dtype
        return self._comm.on_every_rank(
            lambda: normalised(self._share_for(kind), rank, scaling, loops=loops, dtype=dtype)
        )

    def of(self, share: RankShare) -> GraphMatrices:
        """The same of another share, none of them built; these stay what they are."""
        other = copy(self)
        other._share, other._built, other._multiplied = share, {}, {}
        return other

    def release(self) -> None:
        """Let go of the adjacency; what is built stays, and nothing else can be."""
        if not self._multiplied:
            self._share = replace(self._share, adjacency=None)

    def to(self, target: torch.device | torch.dtype) -> None:
        """Move what is built, and build on this device, for operands of this dtype, from now on."""
        again = target == torch.float64 != self._dtype and self._share.adjacency is not None
        # Scalings were rounded to float32: they are made again where they are asked for.

        def moved(kind: Normalisation) -> bool:
            return not again or RECIPES[kind][1] == "none"

        self._built = {key: A.to(target) for key, A in self._built.items() if moved(key[0])}
        self._multiplied = {k: A.to(target) for k, A in self._multiplied.items() if moved(k)}
        for (kind, algorithm), A in self._built.items():
            self._codecs.replace(kind + _OTHER * (algorithm != self._algorithm), A)
        if isinstance(target, torch.dtype):
            self._dtype = target
        else:
            self._device = target
        for kind, A in self._multiplied.items():
            A.build_with_halo = self._halo_of(kind)

    def _share_for(self, kind: Normalisation) -> RankShare:
        """The share that a matrix of a kind is built from."""
        share, edges = self._share, self.repeated
        if share.adjacency is None:
            raise InputError(f"matrix {kind!r} is not built, and cannot be after graph.release()")
        first, (loops, scaling) = share.layout.range(self._comm.rank)[0], RECIPES[kind]
        if edges is None or not (loops or scaling == "none"):
            return share
        if scaling == "none":
            return with_each_edge(share, edges, first, loops=loops > 0)
        return replace(share, adjacency=with_single_loops(share.adjacency, edges, first))
