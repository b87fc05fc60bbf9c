"""What one layer of a model works on: a matrix, and which vertices its columns and rows are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spgnn.spmm import DistMatrix


@dataclass(frozen=True, eq=False)
class Propagation:
    """The matrix of one layer, which may make fewer rows than the rank owns, or take ghosts.

    Attributes
    ----------
    A : DistMatrix
        Rows [rows] that the layer makes of the rows [columns] that the layer before it made.
    sources : Tensor int64 [columns]
        Original ids of the vertices of its columns: own ones, then ghosts. Dropout asks for them.
    targets : Tensor int64 [rows], optional
        Which column each row is; ``None`` if row i is column i.
    """

    A: DistMatrix
    sources: Tensor
    targets: Tensor | None = None
