"""Linear layers with norms and activations between them, as in PyG's GIN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from spgnn.graph.protocol import as_graph
from spgnn.nn.convolution import Linear, linear
from spgnn.nn.norm import Norm, NormGraph, Product, Stage, norm_of, run_stages
from spgnn.nn.rowwise import Activation, Update, activated, rule_of
from spgnn.torch_internals import has_hooks


class MLP(nn.Module):
    """``lins[0]``, norm, activation, ``lins[1]``, …; parameters have the names of PyG's ``MLP``."""

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

    def forward(self, x: Tensor, graph: NormGraph) -> Tensor:
        """X [rows, widths[0]] to [rows, widths[-1]]. Collective if a norm is."""
        return run_stages([_product(self.lins[0]), *self.stages()], x, as_graph(graph))

    def stages(self) -> list[Stage]:
        """All that comes after the first linear layer; the result of that is overwritten."""
        found: list[Stage] = []
        for norm, lin in zip(self.norms, self.lins[1:], strict=True):
            bare = isinstance(norm, nn.Identity)
            ours = bare or isinstance(norm, Norm)
            rule, product = rule_of(self.act), _product(lin)
            act: list[Stage] = [partial(activated, self.act, owned=self.act_first or ours)]
            if rule is not None and (bare or (ours and not self.act_first)):
                act = [Update(rule, hidden=isinstance(product, Product))]
            middle = [] if bare else [norm]
            found += [*act, *middle] if self.act_first else [*middle, *act]
            found.append(product)
        return found


def _product(lin: nn.Module) -> Stage:
    """A linear layer whose bias the next stage adds, unless somebody looks at the layer."""
    if not isinstance(lin, Linear) or type(lin).forward is not Linear.forward or has_hooks(lin):
        return lin
    return Product(lin.weight, lin.bias)
