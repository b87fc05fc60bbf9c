"""What comes after the product of a layer, in one pass over its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spgnn import kernels
from spgnn.nn.activation import Rule
from spgnn.nn.dropout import DropoutKeys, dropout
from spgnn.sparse import SUM_DTYPE

After = Callable[[Tensor, Tensor | None], Tensor]
"""What comes after the product of a layer, of its rows [n, f] and its bias [f]; an Update is."""


@dataclass(frozen=True)
class Update:
    """What is made of the rows of a layer: ``dropout(act(Z + b))``, or less.

    Attributes
    ----------
    act : Rule
        Of the activation.
    p : float
        Of the dropout that the next layer begins with.
    keys : DropoutKeys, optional
        Of the vertices of these rows; without, nothing is dropped.
    layer : int
        The next one.
    """

    act: Rule
    p: float = 0.0
    keys: DropoutKeys | None = None
    layer: int = 0

    def __call__(self, Z: Tensor, bias: Tensor | None = None) -> Tensor:
        """Of rows [n, f] that nobody else needs, and a bias [f]; written over them."""
        if Z.dim() != 2 or Z.dtype not in SUM_DTYPE:
            Z = Z if bias is None else Z.add_(bias.to(Z.dtype))
            made = dropout(self.act(Z), self.p, self.keys, self.layer)
            assert isinstance(made, Tensor)
            return made
        bias = None if bias is None else bias.to(SUM_DTYPE[Z.dtype])
        given: dict[str, Any] = {"act": self.act.name, "alpha": self.act.alpha}
        if self.keys is not None and self.p:
            ids, key = self.keys.vertex_ids, self.keys.key(self.layer)
            given |= {"vertex_ids": ids, "key": key, "p": self.p}
        return kernels.update_rows_(Z, bias, **given)


def finished(Z: Tensor, bias: Tensor | None, update: After | None) -> Tensor:
    """The rows of a layer with its bias and what comes after it, written over them."""
    if update is not None:
        return update(Z, bias)
    # In place: nobody keeps the product itself.
    return Z if bias is None else Z.add_(bias.to(Z.dtype))
