"""The halo: own rows followed by the rows of others that this rank's rows of A need."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from spgnn.autograd import Operands, named
from spgnn.errors import InputError
from spgnn.exchange import Executor, Stage, Step
from spgnn.exchange.executor import Exchange
from spgnn.exchange.stacks import Codecs
from spgnn.pattern import Selection
from spgnn.sparse import CSR


class Halo:
    """H to [own rows of H, received rows of H]; linear, its adjoint adds what comes back.

    Parameters
    ----------
    executor : Executor
        Of a matrix whose only stage receives rows of H, as under the column cover in 1D.
    operands : Operands
        Those of the matrix, whose products and halos are counted together.
    codecs : Codecs, optional
        Those of the matrix.

    Raises
    ------
    InputError
        If the plan receives anything else.
    """

    def __init__(
        self, executor: Executor, operands: Operands, codecs: Codecs | None = None
    ) -> None:
        plan = executor.plan
        stage = plan.stages[0]
        if (
            len(plan.stages) > 1
            or not isinstance(stage, Stage)
            or any(hop.selected_rows is None for hop in stage.hops)
        ):
            raise InputError(
                "a halo needs whole rows of H: build a 1D matrix, with cover='column' and c = 1"
            )
        self.stage = stage
        own, device = stage.local.shape[1], stage.local.device
        identity = CSR(Selection(torch.arange(own, device=device), own))
        hops = (replace(hop, send=hop.send.with_scales(None, None)) for hop in stage.hops)
        fetched = Stage(identity, None, tuple(hops))
        self._codecs = codecs
        self.executor, self._exchange = executor, Exchange(fetched, 0, executor)
        self.columns, self.rows = own, own + stage.received[-1]
        self.handle = named(self)
        self.operands = operands

    def next_step(self, H_local: Tensor) -> Step:
        """Check and count a halo that is about to be fetched. Collective."""
        return self.operands.next(H_local, self.columns)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """H_local [own, f] to [own + received, f]. Collective."""
        halo = H_local.new_empty(self.rows, H_local.shape[1])
        step = self._begun(H_local, step)
        arriving = self._exchange.begin(H_local.contiguous(), step, halo[self.columns :])
        try:
            halo[: self.columns] = H_local
        finally:
            arriving.wait()
        return halo

    def adjoint(self, G_halo: Tensor, step: Step) -> Tensor:
        """Add up what belongs to each own row: [own + received, f] to [own, f]. Collective."""
        G_halo = G_halo.contiguous()
        step = self._begun(G_halo, step)
        flight = self._exchange.begin_adjoint(G_halo[self.columns :], step)
        try:
            dH_local = G_halo[: self.columns].clone()
        finally:
            flight.wait()
        flight.add_to(dH_local)
        return dH_local

    def _begun(self, rows: Tensor, step: Step) -> Step:
        if step.exact or self._codecs is None:
            return step
        width, dtype = rows.shape[1], rows.dtype
        return self._codecs.begin(step, lambda at: self.executor.carried(width, dtype, at))

    @cached_property
    def T(self) -> HaloSum:
        """Its adjoint."""
        return HaloSum(self)


class HaloSum:
    """[own rows, received rows] to own rows: the adjoint of a halo, whose adjoint is the halo."""

    def __init__(self, halo: Halo) -> None:
        self._halo = halo
        self.columns, self.rows = halo.rows, halo.columns
        self.handle = named(self)

    def next_step(self, G_halo: Tensor) -> Step:
        """Check and count a sum that is about to begin. Collective."""
        return self._halo.operands.next(G_halo, self.columns)

    def forward(self, G_halo: Tensor, step: Step) -> Tensor:
        """[own + received, f] to [own, f]. Collective."""
        return self._halo.adjoint(G_halo, step.reversed())

    def adjoint(self, H_local: Tensor, step: Step) -> Tensor:
        """[own, f] to [own + received, f]. Collective."""
        return self._halo.forward(H_local, step.reversed())
