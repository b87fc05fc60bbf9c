"""What is multiplied: checked here, and with the other ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import Step, Steps

# Products of which every one is compared with the other ranks: a program's mistakes show early, and
# later only what has not been seen before is worth a message.
FIRST_COMPARED = 64


class Operands:
    """Checks and counts the products of a distributed matrix.

    Parameters
    ----------
    comm : Communicator
        All ranks that multiply.
    """

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._steps = Steps()
        self._compared = 0
        self._known: set[tuple[object, ...]] = set()

    def begin_epoch(self, epoch: int) -> None:
        """The next product is the first of an epoch."""
        self._steps.begin_epoch(epoch)

    def next(self, dense: object, rows: int, **facts: object) -> Step:
        """Check an operand; the step of the product that is about to begin. Collective.

        Parameters
        ----------
        dense : Tensor [rows, f]
        rows : int
            Rows this rank must hold.
        **facts
            What else all ranks must agree on.

        Raises
        ------
        InputError
            If it is no such tensor; on all ranks, if width, dtype, kind of device or whether a
            gradient is required differ between them.
        """
        self.check(dense, rows, **facts)
        return self._steps.next()

    def check(self, dense: object, rows: int, **facts: object) -> None:
        """The same without counting, for what belongs to a product that has been. Collective."""
        check_operand(dense, rows)
        assert isinstance(dense, Tensor)
        if self._comm.size > 1 and not dense.is_meta:
            self._compare(dense, facts)

    def on_wires(self, step: Step) -> bool:
        """Whether a product is on the wires of its matrix, or exact whatever these are."""
        return True

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
