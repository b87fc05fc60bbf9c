"""Which scheme: the answer to "who computes what", with what it takes to follow it on P ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.exchange.inspect import COVERS, Cover
from spgnn.exchange.plan import Plan
from spgnn.exchange.schemes import STRATEGIES, Scheme, Strategy, grid
from spgnn.layout import Axes, RowLayout
from spgnn.sparse import CSR

Algo = Literal["1d", "1.5d"]
ALGOS: tuple[str, ...] = get_args(Algo)


@dataclass(frozen=True)
class Algorithm:
    """One way to distribute a matrix: numbers and names only, the same on all ranks.

    Attributes
    ----------
    algo : {"1d", "1.5d"}
    c : int
        Replication factor.
    exchange : {"sparsity-aware", "oblivious"}
    cover : {"column", "row", "minimum"}
    """

    algo: Algo = "1d"
    c: int = 1
    exchange: Strategy = "sparsity-aware"
    cover: Cover = "column"

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks.

        Raises
        ------
        InputError
            Names the flag of the training command and what would be right.
        """
        check_choice("algo", self.algo, ALGOS)
        check_choice("exchange", self.exchange, STRATEGIES)
        check_choice("cover", self.cover, COVERS)
        if self.algo == "1d" and self.c != 1:
            raise InputError(f"--c {self.c} needs --algo 1.5d; the 1D algorithm has c = 1")
        if ranks % self.c:
            raise InputError(f"--c {self.c} must divide the number of ranks, which is {ranks}")
        if self.exchange == "oblivious" and self.cover != "column":
            raise InputError(f"--cover {self.cover} needs --exchange sparsity-aware")

    def axes(self, ranks: int) -> Axes:
        """How ranks are arranged."""
        return Axes.grid(ranks, self.c)

    def parts(self, ranks: int) -> int:
        """Parts of the partition; each is cut into ranks / parts slices of neighbouring ranks."""
        return ranks // self.c

    def scheme(
        self,
        block: CSR,
        layout: RowLayout,
        rank: int,
        column_scale: Tensor | None = None,
    ) -> Scheme[Plan]:
        """What one rank does to get its plan.

        Parameters
        ----------
        block : CSR [rows, n]
            The rank's rows of A, or those of them that are wanted, with global columns; may carry
            values and a ``row_scale``. The plan makes these rows.
        layout : RowLayout
            Rows of H over all ranks.
        rank : int
        column_scale : Tensor [own rows], optional
            Scaling of the columns this rank owns.
        """
        return grid(
            block,
            layout,
            self.axes(layout.parts),
            rank,
            strategy=self.exchange,
            cover=self.cover,
            column_scale=column_scale,
        )
