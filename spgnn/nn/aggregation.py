"""What a layer makes of a vertex's neighbours: their sum, mean, largest or smallest."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.autograd import autocast, product, product_beside_itself
from spgnn.errors import InputError
from spgnn.kernels.library import transformed
from spgnn.nn.block import Block
from spgnn.nn.convolution import multiplies_first
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.products import Kind, operator_of
from spgnn.nn.propagation import LayerGraph, adds_up, matrix_of, own_rows
from spgnn.nn.update import After, finished
from spgnn.pattern import Pattern
from spgnn.sparse import CSR

Extreme = Literal["max", "min"]
Aggregation = Literal["mean", "sum", "add", "max", "min"]
AGGREGATIONS = ("mean", "sum", "add", "max", "min")
# The matrix of those that are products.
LINEAR: dict[str, Kind] = {"mean": "row", "sum": "none", "add": "none"}


def aggregated(
    aggr: Aggregation, H_local: Features, W: Tensor, graph: LayerGraph, layer: str
) -> Tensor:
    """``aggr(H) W`` [rows, f_out]; a tensor of its own. Collective.

    Where the aggregation is linear, the narrower of H and H W travels.

    Parameters
    ----------
    aggr : str
        One of `AGGREGATIONS`.
    H_local : Tensor or CSR [columns, f_in], or Propagated
    W : Tensor [f_in, f_out]
    graph : LayerGraph
    layer : str
        What messages call it.

    Raises
    ------
    InputError
        If H is sparse or propagated and the aggregation is not linear; if there is no matrix.
    """
    if aggr not in LINEAR:
        if isinstance(H_local, CSR):
            raise InputError(
                f"{layer}: aggr {aggr} needs dense features; make them so, once: nn.densified(X)"
            )
        if isinstance(H_local, Propagated):
            raise InputError(f"{layer}: aggr {aggr} needs X, not A·X")
        largest = neighbour_extremes(graph, H_local, "max" if aggr == "max" else "min")
        return kernels.times_transposed(largest, W.T)
    if isinstance(H_local, Propagated):
        return kernels.times_transposed(H_local.AX_local, W.T)
    A = operator_of(graph, LINEAR[aggr])
    if isinstance(H_local, CSR):
        return product(A, kernels.spmm(H_local, W))
    if multiplies_first(H_local, W.shape[1], graph):
        return product(A, kernels.times_transposed(H_local, W.T))
    return kernels.times_transposed(product(A, H_local), W.T)


class Weights(NamedTuple):
    """Of a layer that looks at the neighbours of a vertex and, apart from them, at itself.

    Attributes
    ----------
    neighbours, itself : Tensor [f_out, f_in]
    bias : Tensor [f_out], optional
    """

    neighbours: Tensor
    itself: Tensor
    bias: Tensor | None


def with_itself(
    aggr: Aggregation,
    H_local: Features,
    weights: Weights,
    graph: LayerGraph,
    layer: str,
    update: After | None = None,
) -> Tensor:
    """``aggr(H) W_l + H W_r + b`` [rows, f_out], updated; a tensor of its own. Collective.

    Parameters
    ----------
    aggr, H_local, graph, layer
        As of `aggregated`.
    weights : Weights
    update : callable, optional
    """
    W, itself, bias = weights
    if (
        isinstance(graph, Block)
        and isinstance(H_local, Tensor)
        and aggr in LINEAR
        and not multiplies_first(H_local, W.shape[0], graph)
    ):
        both = product(graph.matrix(LINEAR[aggr]).beside_own(H_local.shape[1]), H_local)
        rest = W.new_zeros(len(W), both.shape[1] - 2 * W.shape[1])
        if bias is not None:
            rest = torch.cat((bias[:, None], rest[:, 1:]), 1)
        made = kernels.times_transposed(both, torch.cat((W, itself, rest), 1))
        return finished(made, None, update)
    if aggr in LINEAR and isinstance(H_local, Tensor) and adds_up(graph) and not transformed():
        A, first = operator_of(graph, LINEAR[aggr]), multiplies_first(H_local, len(W), graph)
        return finished(product_beside_itself(A, H_local, W, itself, first=first), bias, update)
    Z_local = aggregated(aggr, H_local, W.T, graph, layer)
    Z_local = add_itself_(Z_local, H_local, itself.T, graph)
    return finished(Z_local, bias, update)


def add_itself_(Z_local: Tensor, H_local: Features, W: Tensor, graph: LayerGraph) -> Tensor:
    """Add H W of the vertices whose rows Z has, in place: nobody keeps what it was before."""
    if Z_local.dtype == torch.float16:
        Z_local = Z_local.float()  # as all operands under torch.autocast
    if isinstance(H_local, CSR):
        return Z_local.add_(own_rows(graph, kernels.spmm(H_local, W)))
    own = features_beside(H_local) if isinstance(H_local, Propagated) else own_rows(graph, H_local)
    return kernels.add_times_transposed_(Z_local, autocast(own), autocast(W.T))


def neighbour_extremes(graph: LayerGraph, H_local: Tensor, reduce: Extreme) -> Tensor:
    """``z_i = max_j h_j`` over the neighbours j of i, 0 without any. Collective.

    Weights do not count. Whole rows of H have to arrive, so the matrix must be 1D with column
    covers. Of equal elements the first one among `local_pattern`'s columns gets the gradient.

    Parameters
    ----------
    graph : LayerGraph
    H_local : Tensor [columns, f]
    reduce : {"max", "min"}

    Returns
    -------
    Tensor [rows, f]

    Raises
    ------
    InputError
        If the matrix has another cover.
    """
    A = matrix_of(graph, "none")
    if H_local.is_meta or getattr(graph, "made_elsewhere", False):
        return product(A, H_local)  # moves the same rows
    return pattern_extremes(A.local_pattern, A.halo(H_local), reduce)


def pattern_extremes(pattern: Pattern, H: Tensor, reduce: Extreme) -> Tensor:
    """The same of a pattern [rows, cols] and H [cols, f] on one process."""
    found: Tensor = kernels.spmm(CSR(pattern), H, reduce=reduce)
    return found
