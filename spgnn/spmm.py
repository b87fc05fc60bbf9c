"""DistMatrix: a sparse matrix distributed over a process grid, in 1D (c = 1) and 1.5D."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import Cover, Executor, Strategy, Volume, build_plan
from spgnn.layout import ProcessGrid, RowLayout
from spgnn.sparse import CSR


@dataclass(frozen=True)
class GridComm:
    """A process grid and this rank's communicators in it.

    Attributes
    ----------
    everyone, row_group, column_group : Communicator
        All ranks; the c ranks of this block row; the P/c ranks that exchange rows of H.
    """

    grid: ProcessGrid
    everyone: Communicator
    row_group: Communicator
    column_group: Communicator

    @classmethod
    def build(cls, everyone: Communicator, c: int = 1) -> GridComm:
        """Arrange all ranks as a P/c × c grid. Collective.

        Raises
        ------
        InputError
            If c does not divide the number of ranks.
        """
        grid = ProcessGrid(everyone.size, c)
        rows = [grid.row_group(i * c) for i in range(grid.block_rows)]
        columns = [grid.column_group(j) for j in range(c)]
        return cls(grid, everyone, everyone.subgroup(rows), everyone.subgroup(columns))

    @property
    def coordinates(self) -> tuple[int, int]:
        """(i, j) of this rank."""
        return self.grid.coordinates(self.everyone.rank)


class DistMatrix:
    """A square sparse matrix A over a P/c × c grid; ``A @ H`` is differentiable in H.

    Dense operands are distributed by rows over all P ranks: rank (i, j) holds slice j of block
    row i. In 1.5D the c ranks of a row group share the work of block row i: rank (i, j) takes the
    columns that the ranks (·, j) own, so rows of H travel inside grid columns, and the partial
    sums are added inside grid rows (Mukhopadhyay et al., ICPP'24, Algorithm 2; how and why we
    differ stands in ``docs/architecture.md``).

    Use :meth:`distribute` or, with the block row at hand, :meth:`build`.

    Attributes
    ----------
    layout : RowLayout
        Which of the P ranks owns which rows of H.
    """

    def __init__(self, executor: Executor, layout: RowLayout, grid: GridComm) -> None:
        self.executor = executor
        self.layout = layout
        self.grid = grid
        group = grid.grid.row_group(grid.everyone.rank)
        self._slices = [int(layout.sizes[rank]) for rank in group]

    @classmethod
    def build(
        cls,
        block: CSR,
        layout: RowLayout,
        grid: GridComm,
        *,
        exchange: Strategy = "sparsity-aware",
        cover: Cover = "column",
        column_scale: Tensor | None = None,
        overlap: bool = True,
    ) -> DistMatrix:
        """Inspect this rank's block row. Collective.

        Parameters
        ----------
        block : CSR [rows of block row i, n]
            Global columns; may carry a ``row_scale``. Every rank of a row group passes the same.
        layout : RowLayout
            Rows of H over all P ranks.
        grid : GridComm
        exchange, cover
            See :func:`spgnn.exchange.build_plan`.
        column_scale : Tensor [own rows], optional
            Scaling of the columns this rank owns.
        overlap : bool
            Whether the local product hides the exchange.
        """
        c = grid.grid.c
        if layout.parts != grid.grid.size:
            raise InputError(f"layout has {layout.parts} parts, the grid {grid.grid.size} ranks")
        expected = int(layout.grouped(c).sizes[grid.coordinates[0]])
        if block.shape != (expected, layout.rows):
            raise InputError(
                f"block row has shape {block.shape}, the layout asks for {(expected, layout.rows)}"
            )
        share, columns = _grid_column(block, layout, grid)
        plan = build_plan(
            share,
            columns,
            grid.column_group,
            strategy=exchange,
            cover=cover,
            column_scale=column_scale,
        )
        # Now, while only the matrix is in memory, rather than in the first backward.
        for part in (plan.L, plan.S, plan.R):
            _ = part.T
        return cls(Executor(plan, grid.column_group, overlap), layout, grid)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole matrix."""
        return self.layout.rows, self.layout.rows

    @property
    def own_rows(self) -> int:
        """Rows of a dense operand that this rank holds."""
        return int(self.layout.sizes[self.grid.everyone.rank])

    @property
    def volume(self) -> Volume:
        """Rows this rank sends and receives in one product, partial sums of 1.5D included."""
        block_row = sum(self._slices)
        fold = Volume(block_row - self.own_rows, (self.grid.grid.c - 1) * self.own_rows)
        return self.executor.plan.volume + fold

    def __matmul__(self, H_local: Tensor) -> Tensor:
        """``A @ H``; H_local [own rows, f] to Z_local [own rows, f]. Collective."""
        from spgnn.autograd import distributed_product  # noqa: PLC0415  (needs this class)

        return distributed_product(self, H_local)

    def forward(self, H_local: Tensor) -> Tensor:
        """``A·H`` without autograd. Collective."""
        self._check(H_local)
        Z_partial = self.executor.forward(H_local)
        if self.grid.grid.c == 1:
            return Z_partial
        Z_local = Z_partial.new_empty(self.own_rows, Z_partial.shape[1])
        self.grid.row_group.reduce_scatter(Z_partial, Z_local, self._slices)
        return Z_local

    def adjoint(self, G_local: Tensor) -> Tensor:
        """``Aᵀ·G``: the same plan run backwards; same counts, same bytes. Collective."""
        self._check(G_local)
        if self.grid.grid.c == 1:
            return self.executor.adjoint(G_local.contiguous())
        G_block = G_local.new_empty(sum(self._slices), G_local.shape[1])
        self.grid.row_group.all_gather(G_local.contiguous(), G_block, self._slices)
        return self.executor.adjoint(G_block)

    def to(self, target: torch.device | torch.dtype | str) -> DistMatrix:
        """The same matrix on a device, or with values and scalings of another dtype."""
        executor = Executor(
            self.executor.plan.to(target), self.grid.column_group, self.executor.overlap
        )
        return DistMatrix(executor, self.layout, self.grid)

    def _check(self, dense: Tensor) -> None:
        if dense.dim() != 2 or dense.shape[0] != self.own_rows:
            raise InputError(
                f"rank {self.grid.everyone.rank} holds {self.own_rows} rows, the operand has shape "
                f"{list(dense.shape)}"
            )


def _grid_column(block: CSR, layout: RowLayout, grid: GridComm) -> tuple[CSR, RowLayout]:
    """The columns that this grid column owns, renumbered without gaps, and who owns them."""
    c, j = grid.grid.c, grid.coordinates[1]
    if c == 1:
        return block, layout
    columns = block.indices.numpy()
    owner = layout.owner(columns)
    mine = owner % c == j
    group = RowLayout(np.concatenate(([0], np.cumsum(layout.sizes[j::c]))))
    shift = group.offsets[:-1] - layout.offsets[j:-1:c]
    renumbered = columns[mine] + shift[owner[mine] // c]
    return block.where(mine, renumbered, group.rows), group
