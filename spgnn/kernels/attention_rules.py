"""What attention is told beside its operands: LeakyReLU's slope, edges, dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_is
from spgnn.pattern import Pattern, described


@dataclass(frozen=True, eq=False)
class AttentionDropout:
    """Dropout of attention weights, a function of the edge's original ends.

    The weight of head h on edge i ← j is kept where dropout keeps element
    (``row_ids[i]``, ``col_ids[j] · heads + h``) of a matrix; see docs/kernels.md.

    Parameters
    ----------
    key : int
        64 bits made from seed, epoch and layer.
    p : float
        Probability of being dropped, in [0, 1).
    row_ids, col_ids : Tensor, int64 [rows] and [cols]
        Global numbers of the destinations and of the sources.
    """

    key: int
    p: float
    row_ids: Tensor
    col_ids: Tensor

    def __post_init__(self) -> None:
        for name in ("row_ids", "col_ids"):
            check_is(name, getattr(self, name), Tensor)
            object.__setattr__(self, name, getattr(self, name).contiguous())


class Rules(NamedTuple):
    """How scores and weights are made.

    Attributes
    ----------
    slope : float
        Of LeakyReLU below 0.
    edges : Tensor [nnz, …], optional
        Scores of edges, or features in GATv2, in the order of the pattern's nonzeros.
    dropout : AttentionDropout, optional
        Of weights, after the softmax.
    """

    slope: float
    edges: Tensor | None = None
    dropout: AttentionDropout | None = None

    @property
    def drops(self) -> AttentionDropout | None:
        """The dropout, if it drops anything."""
        return self.dropout if self.dropout is not None and self.dropout.p else None

    def check(self, pattern: Pattern) -> None:
        """Refuse a rule of dropout that does not fit, and a slope that is not monotone."""
        if not self.slope >= 0:
            raise InputError(f"slope must be at least 0, got {self.slope}")
        if self.dropout is None:
            return
        if not 0.0 <= self.dropout.p < 1.0:
            raise InputError(f"p must be in [0, 1), got {self.dropout.p}")
        ids = self.dropout.row_ids, self.dropout.col_ids
        for name, array, length in zip(("row_ids", "col_ids"), ids, pattern.shape, strict=True):
            check_is(name, array, Tensor)
            if array.shape != (length,) or array.dtype != torch.int64:
                raise InputError(f"{name} must be int64 [{length}], got {described(array)}")
            if array.device != pattern.device:
                raise InputError(f"the pattern is on {pattern.device}, {name} on {array.device}")
