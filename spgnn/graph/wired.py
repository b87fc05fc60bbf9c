"""A matrix, and its halo, that are on approximate wires in training and exact otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from spgnn.attention import Attention
from spgnn.attention.records import Forward, Gradients
from spgnn.attention.scores import Scores
from spgnn.comm import Communicator, Mesh
from spgnn.exchange import Carried, Executor, Plan, Step, Steps, Uses, Workspace
from spgnn.halo import Halo
from spgnn.operands import Operands
from spgnn.spmm import DistMatrix
from spgnn.wires import Layer, Setting


@dataclass(frozen=True)
class OnWires(Step):
    """A step on approximate wires; all others are exact."""


class Switch(Protocol):
    """Who knows whether wires approximate now.

    Attributes
    ----------
    epoch : int
    """

    epoch: int

    def is_on(self) -> bool:
        """Whether a model is being trained."""

    def check(self) -> None:
        """Refuse a product before the first epoch has begun."""

    def note(self, carried: Callable[[], Iterator[Carried]]) -> None:
        """Take down what is about to move, to be asked when it has."""


class WiredOperands(Operands):
    """Says of each product whether it is on wires. Its adjoint is where it was.

    Parameters
    ----------
    comm : Communicator
        All ranks that multiply.
    switch : Switch
    """

    def __init__(self, comm: Communicator, switch: Switch) -> None:
        super().__init__(comm)
        self._switch = switch
        self._epoch, self._wired = -1, Steps()

    def next(self, dense: object, rows: int, **facts: object) -> Step:
        """As of the base; ranks must also agree on whether it is on wires. Collective.

        Rows of a single number are exact: these are ids, degrees and what is made of them.
        """
        wired = _may_be_approximate(dense) and self._switch.is_on()
        if wired:
            self._switch.check()
        step = super().next(dense, rows, approximate=wired, **facts)
        if not wired:
            return step
        if self._epoch != self._switch.epoch:
            self._epoch = self._switch.epoch
            self._wired.begin_epoch(self._epoch)
        step = self._wired.next()
        return OnWires(step.epoch, step.product)

    def on_wires(self, step: Step) -> bool:
        """Whether a product is approximate."""
        return isinstance(step, OnWires)

    def exact(self, dense: object, rows: int) -> Step:
        """The same for a product that is exact in any case. Collective."""
        return super().next(dense, rows, approximate=False)


class WiredMatrix(DistMatrix):
    """A matrix whose products and halos are on approximate wires while somebody says so.

    Copies that are pickled are exact.

    Parameters
    ----------
    exact : DistMatrix
    wired : DistMatrix
        The same on approximate wires.
    switch : Switch
    """

    def __init__(self, exact: DistMatrix, wired: DistMatrix, switch: Switch) -> None:
        super().__init__(
            exact.plan,
            exact.layout,
            exact.mesh,
            overlap=exact.executor.overlap,
            schedule=exact.schedule,
            buffer=exact.buffer,
            workspace=exact.executor.workspace,
        )
        self.wired, self._switch = wired, switch
        self._wired_uses = Uses(wired.executor.wires)
        self.operands: Operands
        self.operands = self._counted = WiredOperands(self.mesh.everyone, switch)

    def forward(self, H_local: Tensor, step: Step | None = None) -> Tensor:
        """``A·H``; without a step, exact. Collective."""
        if isinstance(step, OnWires):
            step = self._wired_uses.of(step)
            _note(self._switch, self.wired.executor, H_local, step)
            return self.wired.forward(H_local, step)
        step = self._counted.exact(H_local, self.columns) if step is None else step
        return super().forward(H_local, step)

    def adjoint(self, G_local: Tensor, step: Step | None = None) -> Tensor:
        """``Aᵀ·G``; without a step, exact. Collective."""
        if isinstance(step, OnWires):
            step = self._wired_uses.of(step)
            _note(self._switch, self.wired.executor, G_local, step)
            return self.wired.adjoint(G_local, step)
        step = self._counted.exact(G_local, self.rows).reversed() if step is None else step
        return super().adjoint(G_local, step)

    @cached_property
    def attention(self) -> Attention:
        """What runs attention over the nonzeros, on wires or exactly, as each step says."""
        setting = self.wired.wires[0].setting if self.wired.wires else None
        workspace = self.executor.workspace
        return WiredAttention(self._switch, self.wired.plan, self.mesh, workspace, setting)

    @property
    def numbered_wires(self) -> dict[str, Layer]:
        """Those of its approximate products and of attention, by a name each."""
        return self.wired.numbered_wires | super().numbered_wires

    @cached_property
    def _halo(self) -> Halo:
        return WiredHalo(self, self._switch)

    def to(self, target: torch.device | torch.dtype | str) -> WiredMatrix:
        """The same on a device; wires begin anew."""
        for wire in self.wired.wires:
            wire.land()
        return WiredMatrix(super().to(target), self.wired.to(target), self._switch)


class WiredHalo(Halo):
    """A halo, exact or on the wires of its matrix, as each step says.

    Parameters
    ----------
    A : WiredMatrix
    switch : Switch
    """

    def __init__(self, A: WiredMatrix, switch: Switch) -> None:
        super().__init__(A.plan, A.mesh, A.operands)  # exact
        self._wired = Halo(A.wired.plan, A.mesh, A.operands, A.wired.executor.wires)
        self._wired_uses, self._switch = Uses(A.wired.executor.wires), switch

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """H_local [own, f] to [own + received, f]. Collective."""
        return self._run(H_local, step, super().forward, self._wired.forward)

    def adjoint(self, G_halo: Tensor, step: Step) -> Tensor:
        """Add up what belongs to each own row: [own + received, f] to [own, f]. Collective."""
        return self._run(G_halo, step, super().adjoint, self._wired.adjoint)

    def _run(self, rows: Tensor, step: Step, exact: Run, wired: Run) -> Tensor:
        if not isinstance(step, OnWires):
            return exact(rows, step)
        step = self._wired_uses.of(step)
        _note(self._switch, self._wired.executor, rows, step)
        return wired(rows, step)


class WiredAttention(Attention):
    """Attention that says what it moves where it is on wires.

    Parameters
    ----------
    switch : Switch
    plan, mesh, workspace, setting
        As of the base.
    """

    def __init__(
        self,
        switch: Switch,
        plan: Plan,
        mesh: Mesh,
        workspace: Workspace | None,
        setting: Setting | None,
    ) -> None:
        super().__init__(plan, mesh, workspace, setting)
        self._switch = switch

    def forward(
        self, Z: Tensor, ends: Tensor, scores: Scores, step: Step | None, **how: Any
    ) -> Forward:
        """Weighted sums of rows of Z. Collective."""
        if step is not None:
            step = self._uses.of(step)
            self._note(Z, scores, step)
        return super().forward(Z, ends, scores, step, **how)

    def backward(
        self, G: Tensor, Z: Tensor, ends: Tensor, scores: Scores, made: Forward, **how: Any
    ) -> Gradients:
        """Gradients in all operands. Collective."""
        step: Step | None = how["step"]
        if step is not None:
            step = self._uses.of(step.reversed())
            self._note(Z, scores, step)
            how["step"] = step.reversed()
        return super().backward(G, Z, ends, scores, made, **how)

    def _note(self, Z: Tensor, scores: Scores, step: Step) -> None:
        facts = Z.shape[1], scores.heads, Z.dtype, step
        self._switch.note(lambda: self.carried(*facts, whole_rows=scores.whole_rows))


def _note(switch: Switch, executor: Executor, rows: Tensor, step: Step) -> None:
    width, dtype = rows.shape[1], rows.dtype
    switch.note(lambda: executor.carried(width, dtype, step))


def _may_be_approximate(dense: object) -> bool:
    if not isinstance(dense, Tensor) or dense.is_meta:
        return False
    return dense.is_floating_point() and dense.dim() == 2 and dense.shape[1] > 1


Run = Callable[[Tensor, Step], Tensor]
