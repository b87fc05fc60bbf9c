"""Tables that learn: a row for each vertex at its owner, its first numbers, and its optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spgnn.hashing import uniform_rows

RowOptimizer = Literal["adam", "row-adam", "row-adagrad"]
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_ROWS = 16384  # at once: what an update reads and writes stays in a cache


def initial_rows(ids: Tensor, width: int, seed: int, std: float = 0.1) -> Tensor:
    """The first numbers of some vertices, float32 [ids, width]: hashes of (seed, id, column)."""
    columns = [(f"embedding{column // 8 * 8}", column % 8) for column in range(width)]
    rows = torch.from_numpy(uniform_rows(ids.numpy(), seed, columns, torch.get_num_threads()))
    return rows.sub_(0.5).mul_(std * 12.0**0.5)


@dataclass(frozen=True)
class RowUpdate:
    """An optimiser of rows: each row's step depends on that row alone."""

    kind: RowOptimizer

    def widths(self, width: int) -> dict[str, int]:
        """Columns of each table of its state, by name, of embeddings of a width."""
        match self.kind:
            case "adam":
                return {"first": width, "second": width}
            case "row-adam":
                return {"first": width, "second": 1}
        return {"second": 1}

    def step_(
        self, rows: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float, step: int
    ) -> None:
        """Take the `step`-th step, from 1, of some rows [n, f], in place."""
        b1, b2 = _BETAS
        names = list(state)
        pieces = zip(*(t.split(_ROWS) for t in (rows, gradient, *state.values())), strict=True)
        for row, slope, *parts in pieces:
            own = dict(zip(names, parts, strict=True))
            second = own["second"]
            if self.kind == "row-adagrad":
                second.add_(slope.square().mean(1, keepdim=True))
                row.addcdiv_(slope, second.sqrt().add_(_EPSILON), value=-lr)
                continue
            own["first"].lerp_(slope, 1 - b1)
            if self.kind == "adam":
                second.mul_(b2).addcmul_(slope, slope, value=1 - b2)
            else:
                second.lerp_(slope.square().mean(1, keepdim=True), 1 - b2)
            scale = second.div(1 - b2**step).sqrt_().add_(_EPSILON)
            row.addcdiv_(own["first"], scale, value=-lr / (1 - b1**step))
