"""The executor: run a plan on real rows, forward and adjoint, with the exchange overlapped."""

from __future__ import annotations

from functools import cached_property

from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.exchange.plan import ExchangePlan
from spgnn.exchange.transport import Workspace, transport_of


class Executor:
    """Runs one :class:`ExchangePlan` inside its group.

    Parameters
    ----------
    plan : ExchangePlan
    comm : Communicator
        The group the plan was built in.
    overlap : bool
        Let the local product run while rows travel. Off, it starts after they have arrived;
        only measurements want that.
    """

    def __init__(self, plan: ExchangePlan, comm: Communicator, overlap: bool = True) -> None:
        self.plan = plan
        self.overlap = overlap
        self.workspace = Workspace()
        self._transport = transport_of(plan, comm)

    def forward(self, H_local: Tensor) -> Tensor:
        """``Z = L·H + R·Π·S·H``; H_local [n_own, f] to Z [n_rows, f]. Collective."""
        plan = self.plan
        S_H = self._pack(H_local)
        H_recv = self.workspace.rows("receive", plan.R.shape[1], H_local)
        exchange = self._transport.begin(S_H, H_recv)
        if not self.overlap:
            exchange.wait()
        Z = kernels.spmm(plan.L, H_local)
        exchange.wait()
        if plan.R.nnz:
            kernels.spmm(plan.R, H_recv, out=Z, accumulate=True)
        return Z

    def adjoint(self, G_local: Tensor) -> Tensor:
        """``dH = Lᵀ·G + Sᵀ·Πᵀ·Rᵀ·G``; G_local [n_rows, f] to dH [n_own, f]. Collective."""
        plan = self.plan
        # The roles of the buffers swap with the direction, so the same memory serves both.
        R_G = self.workspace.rows("receive", plan.R.shape[1], G_local)
        kernels.spmm_transposed(plan.R, G_local, out=R_G)
        G_recv = self.workspace.rows("send", plan.S.shape[0], G_local)
        exchange = self._transport.begin_adjoint(R_G, G_recv)
        if not self.overlap:
            exchange.wait()
        dH = kernels.spmm_transposed(plan.L, G_local)
        exchange.wait()
        if plan.S.nnz:
            kernels.spmm_transposed(plan.S, G_recv, out=dH, accumulate=True)
        return dH

    def _pack(self, H_local: Tensor) -> Tensor:
        S_H = self.workspace.rows("send", self.plan.S.shape[0], H_local)
        rows = self.plan.selected_rows
        if rows is None:
            return kernels.spmm(self.plan.S, H_local, out=S_H)
        return kernels.gather_rows(H_local, rows, scale=self._selected_scale, out=S_H)

    @cached_property
    def _selected_scale(self) -> Tensor | None:
        scale, rows = self.plan.S.col_scale, self.plan.selected_rows
        return None if scale is None or rows is None else scale[rows]
