"""Graph isomorphism networks (Xu et al. 2019) on a distributed matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter

from spgnn import kernels
from spgnn.autograd import product
from spgnn.errors import InputError
from spgnn.nn.convolution import (
    Convolution,
    Linear,
    begin_anew,
    check_options,
    glorot_,
    linear,
    multiplies_first,
)
from spgnn.nn.edges import check_edge_rows, local_edges
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.mlp import MLP
from spgnn.nn.norms import applied, check_local, takes_all_rows
from spgnn.nn.products import operator_of
from spgnn.nn.propagation import LayerGraph, comm_of, own_rows
from spgnn.nn.stack import Stack
from spgnn.sparse import CSR


class GINConv(Convolution):
    """One layer ``Z = nn(A H + (1 + ε) H)``, with A the adjacency as it is.

    Parameters are those of PyG's layer of that name, and so are their names: ``nn`` and ``eps``.

    Parameters
    ----------
    nn : Module
        Anything that takes rows one by one. Norms of spgnn.nn in a Sequential look at all ranks.
    eps : float
    train_eps : bool
        Whether ε is learned.
    options
        Of PyG's message passing; none but their defaults.
    """

    eps: Tensor
    looks_at_itself = True

    def __init__(
        self, nn: torch.nn.Module, eps: float = 0.0, train_eps: bool = False, **options: Any
    ) -> None:
        super().__init__()
        check_options(self, options, aggr="add")
        if not isinstance(nn, torch.nn.Module):
            raise InputError(f"GINConv: nn must be a torch.nn.Module, got {type(nn).__name__}")
        self.nn = nn
        self.takes_all_rows = takes_all_rows(nn)
        self.initial_eps = float(eps)
        if train_eps:
            self.eps = torch.nn.Parameter(torch.full((1,), float(eps)))
        else:
            self.register_buffer("eps", torch.full((1,), float(eps)))

    def reset_parameters(self) -> None:
        """Begin anew: ε, and the modules in `nn`, those of torch by their own rules."""
        _begin_anew(self)

    def restore(self) -> None:
        """As it began: ε."""
        torch.nn.init.constant_(self.eps, self.initial_eps)

    def forward(self, H_local: Features, graph: LayerGraph) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        The sum over the neighbours is linear, so where `nn` begins with a linear layer it may come
        after that: the narrower of H and H W_1 travels.

        Raises
        ------
        InputError
            If there is no matrix, and H is not propagated; if it is, without H beside it. If H is
            sparse and `nn` begins with something else. If a norm in it looks at one rank of many.
        """
        check_one_rank(self, graph)
        own = 1 + self.eps
        first, rest = _begun(self.nn)
        if first is not None and (
            isinstance(H_local, CSR)
            or (
                isinstance(H_local, Tensor) and multiplies_first(H_local, first.out_features, graph)
            )
        ):
            W = first.weight.T
            HW = (
                kernels.spmm(H_local, W)
                if isinstance(H_local, CSR)
                else kernels.times_transposed(H_local, first.weight)
            )
            # In place, here and below: nobody keeps the product itself.
            Z_local = product(operator_of(graph, "none"), HW).addcmul_(own_rows(graph, HW), own)
            if first.bias is not None:
                Z_local = Z_local.add_(first.bias.to(Z_local.dtype))
            return rest(Z_local, graph)
        if isinstance(H_local, CSR):
            raise InputError(
                "GINConv needs dense features where nn does not begin with a linear layer; make "
                "them so, once: nn.densified(X)"
            )
        if isinstance(H_local, Propagated):
            summed = torch.addcmul(H_local.AX_local, features_beside(H_local), own)
        else:
            summed = product(operator_of(graph, "none"), H_local).addcmul_(
                own_rows(graph, H_local), own
            )
        if first is not None:
            return rest(first(summed), graph)
        return applied(self.nn, summed, graph)


def _begin_anew(layer: Convolution) -> None:
    begin_anew(layer)
    for part in layer.modules():
        if isinstance(part, Linear):
            glorot_(part.weight)


def check_one_rank(layer: torch.nn.Module, graph: LayerGraph) -> None:
    """Refuse norms of others in training on several ranks.

    Raises
    ------
    InputError
    """
    comm = comm_of(graph)
    if comm is not None and comm.size > 1 and layer.training:
        check_local(layer)


def _begun(
    module: torch.nn.Module,
) -> tuple[torch.nn.Linear | None, Callable[[Tensor, LayerGraph], Tensor]]:
    """The linear layer that a module begins with, if it does, and what comes after it."""
    first, others = module, []
    if isinstance(module, MLP):
        first = module.lins[0]
    elif isinstance(module, torch.nn.Sequential) and len(module):
        first, *others = module

    def rest(Z: Tensor, graph: LayerGraph) -> Tensor:
        if isinstance(module, MLP):
            return module.rest(Z, graph)
        return applied(torch.nn.Sequential(*others), Z, graph)

    if isinstance(first, torch.nn.Linear) and not isinstance(first.weight, UninitializedParameter):
        return first, rest
    return None, rest


class GINEConv(Convolution):
    """``z_i = nn((1 + ε) h_i + Σ_j relu(h_j + e_ji W))`` (Hu et al. 2020), with features of edges.

    Parameters are those of PyG's layer of that name, and so are their names: ``nn``, ``eps`` and
    ``lin`` (of the edges).

    Parameters
    ----------
    nn : Module
        As GINConv's.
    eps : float
    train_eps : bool
    edge_dim : int, optional
        Width of the edges' features; without it they are as wide as H, and there is no W.
    options
        Of PyG's message passing; none but their defaults.
    """

    eps: Tensor
    propagates = False

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        inner = GINConv(nn, eps, train_eps, **options)
        self.nn, self.takes_all_rows = inner.nn, inner.takes_all_rows
        self.initial_eps = inner.initial_eps
        self.lin = None
        if edge_dim is not None:
            first = _begun(nn)[0]
            if first is None:
                raise InputError("GINEConv: edge_dim needs an nn that begins with a linear layer")
            self.lin = linear(edge_dim, first.in_features)
        if train_eps:
            self.eps = torch.nn.Parameter(inner.eps.detach())
        else:
            self.register_buffer("eps", inner.eps)

    def reset_parameters(self) -> None:
        """As GINConv's, and the matrix of the edges."""
        _begin_anew(self)

    def restore(self) -> None:
        """As it began: ε."""
        torch.nn.init.constant_(self.eps, self.initial_eps)

    def forward(
        self, H_local: Features, graph: LayerGraph, edge_attr: Tensor | None = None
    ) -> Tensor:
        """H_local [columns, f_in] to Z_local [rows, f_out]. Collective.

        Parameters
        ----------
        H_local : Tensor [columns, f_in]
        graph : LayerGraph
            1D with column covers.
        edge_attr : Tensor [local edges, edge_dim], optional
            In the order of ``graph.edge_index``; by default ``graph.edge_attr``.

        Raises
        ------
        InputError
            If H is sparse or propagated; if there are no features of edges, or of another width.
        """
        if isinstance(H_local, CSR | Propagated):
            raise InputError("GINEConv needs dense X; make sparse ones so, once: nn.densified(X)")
        check_one_rank(self, graph)
        edges = local_edges(graph)
        given = getattr(graph, "edge_attr", None) if edge_attr is None else edge_attr
        attr = check_edge_rows("GINEConv", "edge_attr", given, edges.index)
        attr = attr if self.lin is None else self.lin(attr)
        if attr.shape[1:] != H_local.shape[1:]:
            raise InputError(
                f"GINEConv: edges have {list(attr.shape[1:])} features, vertices "
                f"{list(H_local.shape[1:])}; edge_dim adds a linear layer"
            )
        source, target = edges.index
        messages = torch.relu(edges.halo(H_local)[source] + attr)
        own = own_rows(graph, H_local)
        return applied(self.nn, ((1 + self.eps) * own).index_add(0, target, messages), graph)


class GIN(Stack):
    """Layers of :class:`GINConv` around two linear ones; other parameters are those of `Stack`.

    As in the paper, ε begins at 0. Between the two are the model's activation, and its
    norm if that is given by name.
    """

    convolution = GINConv

    def init_conv(self, f_in: int, f_out: int, *, last: bool, **options: Any) -> GINConv:
        """A layer around a perceptron of two layers."""
        inner = MLP(
            [f_in, f_out, f_out],
            act=self.act,
            act_first=self.act_first,
            norm=self._norm,
            norm_kwargs=self._norm_kwargs,
        )
        return GINConv(inner, **options)
