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
from spgnn.nn.convolution import Convolution, check_options, multiplies_first
from spgnn.nn.features import Features, Propagated, features_beside
from spgnn.nn.mlp import MLP
from spgnn.nn.norm import applied, check_local, takes_all_rows
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
        if train_eps:
            self.eps = torch.nn.Parameter(torch.full((1,), float(eps)))
        else:
            self.register_buffer("eps", torch.full((1,), float(eps)))

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
        comm = comm_of(graph)
        if comm is not None and comm.size > 1 and self.training:
            check_local(self.nn)
        own = 1 + self.eps
        first, rest = _begun(self.nn)
        if first is not None and (
            isinstance(H_local, CSR)
            or (isinstance(H_local, Tensor) and multiplies_first(H_local, first.out_features))
        ):
            W = first.weight.T
            HW = kernels.spmm(H_local, W) if isinstance(H_local, CSR) else H_local @ W
            # In place, here and below: nobody keeps the product itself.
            Z_local = product(operator_of(graph, "none"), HW).addcmul_(own_rows(graph, HW), own)
            return rest(Z_local if first.bias is None else Z_local.add_(first.bias), graph)
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


class GIN(Stack):
    """Layers of :class:`GINConv` around two linear ones; other parameters are those of `Stack`.

    As in the paper, ε begins at 0. Between the two are the model's activation and norm.
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
