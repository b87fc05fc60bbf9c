"""A graph to be partitioned, and what its parts must be like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, check_choice
from spgnn.layout import Float64Array, Int32Array, Int64Array
from spgnn.partition.adjacency import Adjacency, part_bounds
from spgnn.progress import Progress

Objective = Literal["both", "send", "cover"]
Preset = Literal["fast", "default", "strong"]
PRESETS: tuple[Preset, ...] = get_args(Preset)
BALANCES = ("nnz", "vertices", "train")


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked graph and options; `weights` [vertices, constraints] are to be balanced."""

    adjacency: Adjacency
    parts: int
    weights: Int64Array
    imbalance: float
    seed: int
    preset: Preset
    objective: Objective
    targets: Int64Array
    hops: int
    shares: Float64Array | None
    fixed: Int32Array | None
    initial: Int32Array | None
    threads: int
    progress: Progress | None
    nodes: int | None
    outside: int

    @property
    def node_size(self) -> int:
        """Parts of a node; 1 where all are on one, as where each is on its own."""
        return 1 if self.nodes is None or self.nodes == 1 else self.parts // self.nodes

    @property
    def weight(self) -> Int64Array:
        """The only balanced weight, int64 [vertices]."""
        return self.weights[:, 0]

    @property
    def portions(self) -> Float64Array:
        """One over the share of the work of each part, float64 [parts]: 3 for a third."""
        shares = np.ones(self.parts) if self.shares is None else self.shares
        portions: Float64Array = shares.sum() / shares
        return portions

    def bounds(self, weight: Int64Array) -> list[int]:
        """The most that each part may have of a weight of the vertices."""
        bounds: list[int] = part_bounds(weight.sum(), self.portions, self.imbalance).tolist()
        return bounds


def balanced_weights(
    adjacency: Adjacency, balance: Sequence[str], train_mask: npt.NDArray[np.bool_] | None
) -> Int64Array:
    """Weights of which each part has its share, int64 [vertices, constraints]."""
    names = balance.split(",") if isinstance(balance, str) else balance
    if not isinstance(names, Sequence) or not names:
        raise InputError(f"balance must name one or more of {', '.join(BALANCES)}")
    columns: list[npt.NDArray[Any]] = []
    for name in names:
        check_choice("balance", name, BALANCES)
        if name == "nnz":
            columns.append(adjacency.row_lengths)
        elif name == "vertices":
            columns.append(np.ones(adjacency.vertices, np.int64))
        else:
            columns.append(checked_mask(adjacency, train_mask, "balance train"))
    if len(set(names)) != len(names):
        raise InputError(f"balance names a quantity twice: {', '.join(names)}")
    return np.stack(columns, axis=1).astype(np.int64, copy=False)


def checked_mask(
    adjacency: Adjacency, train_mask: npt.NDArray[np.bool_] | None, what: str
) -> npt.NDArray[np.bool_]:
    """A train mask of the vertices; `what` says who needs it."""
    need = f"{what} needs a train mask, bool [{adjacency.vertices}]; the graph has"
    if train_mask is None:
        raise InputError(f"{need} none")
    mask = np.asarray(train_mask)
    if mask.shape != (adjacency.vertices,) or mask.dtype != np.bool_:
        raise InputError(f"{need} {mask.dtype} {list(mask.shape)}")
    return mask
