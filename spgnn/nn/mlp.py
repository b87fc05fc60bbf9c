"""Linear layers with norms and activations between them, as in PyG's GIN."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from spgnn.nn.activation import Activation, activated
from spgnn.nn.convolution import linear
from spgnn.nn.norm import Norm, Where
from spgnn.nn.norms import applied, norm_of


class MLP(nn.Module):
    """``lins[0]``, norm, activation, ``lins[1]``, …; parameters have the names of PyG's ``MLP``.

    Parameters
    ----------
    widths : sequence of int
        Of its input, of what each linear layer makes.
    act : callable or None
    act_first : bool
        Whether the activation comes before the norm.
    norm, norm_kwargs
        See :func:`spgnn.nn.norm.norm_of`.
    """

    takes_graph = True

    def __init__(
        self,
        widths: Sequence[int],
        *,
        act: Activation | None,
        act_first: bool = False,
        norm: str | nn.Module | type[nn.Module] | None = None,
        norm_kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.act, self.act_first = act, act_first
        self.lins = nn.ModuleList(linear(*pair) for pair in pairwise(widths))
        self.norms = nn.ModuleList(
            norm_of(norm, width, norm_kwargs or {}) for width in widths[1:-1]
        )

    def forward(self, x: Tensor, graph: Where) -> Tensor:
        """X [rows, widths[0]] to [rows, widths[-1]]. Collective if a norm is."""
        return self.rest(self.lins[0](x), graph)

    def rest(self, Z: Tensor, graph: Where) -> Tensor:
        """What comes after the first linear layer, of what that made; Z is overwritten."""
        for norm, lin in zip(self.norms, self.lins[1:], strict=True):
            owned = True
            if self.act_first:
                Z = activated(self.act, Z, owned=True)
            if not isinstance(norm, nn.Identity):
                Z, owned = applied(norm, Z, graph), isinstance(norm, Norm)
            if not self.act_first:
                Z = activated(self.act, Z, owned=owned)
            Z = lin(Z)
        return Z
