"""Operands of products: checked here, and with the other ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Step
from spgnn.exchange.approximation import Policy

# Products of which every one is compared with the other ranks: a program's mistakes show early, and
# later only what has not been seen before is worth a message.
FIRST_COMPARED = 64


class Operands:
    """Checks the products of a distributed matrix, and says of each whether it is exact.

    Parameters
    ----------
    comm : Communicator
        All ranks that multiply.
    policy : Policy, optional
        Of the codec of the matrix; without one, all products are exact.
    """

    def __init__(self, comm: Communicator, policy: Policy | None = None) -> None:
        self._comm, self._policy = comm, policy
        self._begun = self._products = 0
        self._compared = 0
        self._known: set[tuple[object, ...]] = set()

    def restarted(self) -> Operands:
        """The same rules for products that are counted from the first one."""
        return Operands(self._comm, self._policy)

    def next(self, dense: object, rows: int, *, exact: bool = False, **facts: object) -> Step:
        """Check an operand; the step of the product that is about to begin. Collective.

        Parameters
        ----------
        dense : Tensor [rows, f]
        rows : int
            Rows this rank must hold.
        exact : bool
            Whatever the policy says.
        **facts
            What else all ranks must agree on.

        Raises
        ------
        InputError
            If it is no such tensor; on all ranks, if width, dtype, kind of device, whether a
            gradient is required or whether it is approximate differ between them.
        """
        policy = self._policy
        if policy is None:
            self.check(dense, rows, **facts)
            return EXACT
        approximate = not exact and policy.approximates(dense)
        self.check(dense, rows, approximate=approximate, **facts)
        if not approximate:
            return EXACT
        if self._begun != policy.begun:
            self._begun, self._products = policy.begun, 0
        step = Step(policy.epoch, self._products)
        self._products += 1
        return step

    def check(self, dense: object, rows: int, **facts: object) -> None:
        """Check what belongs to a product that has been. Collective."""
        check_operand(dense, rows)
        assert isinstance(dense, Tensor)
        if self._comm.size > 1 and not dense.is_meta:
            self._compare(dense, facts)

    def _compare(self, dense: Tensor, facts: dict[str, object]) -> None:
        needs_gradient = dense.requires_grad and torch.is_grad_enabled()
        kind = dense.shape[1], dense.dtype, dense.device.type, needs_gradient, *facts.values()
        if kind in self._known and self._compared >= FIRST_COMPARED:
            return
        self._compared += 1
        self._comm.check_agreement(
            "the operand of a product",
            **dict(zip(("width", "dtype", "device", "requires_grad", *facts), kind, strict=True)),
        )
        self._known.add(kind)


def check_operand(dense: object, rows: int) -> None:
    """Refuse what cannot be multiplied: an operand is a tensor [rows, f].

    Raises
    ------
    InputError
    """
    if not isinstance(dense, Tensor):
        raise InputError(f"the operand must be a torch tensor, got {type(dense).__name__}")
    check_strided("the operand", dense)
    if dense.dim() != 2 or dense.shape[0] != rows:
        raise InputError(f"the rank holds {rows} rows, the operand has shape {list(dense.shape)}")


def check_strided(name: str, rows: Tensor) -> None:
    """Refuse sparse tensors.

    Raises
    ------
    InputError
    """
    if rows.layout != torch.strided:
        raise InputError(f"{name} must be dense, got layout {rows.layout}: take to_dense()")
