"""``--tolerance EPS``: wires as cheap as the loss allows.

In some epochs the loss is computed twice, with the same weights and the same draws: on exact wires
without gradients, and on those of training. How far they are apart is what the wires' error does to
what matters, whatever its kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.wires import BITS, Dials, Errors
from spgnn.wires.errors import MEASURED_EVERY

# What an error is less with; the dial that is turned is that of the largest one.
DIALS = {"rounding": "bits", "delay": "delay", "sampling": "sampling"}
# A perturbation of less than this share of the tolerance is far below it; so many times in a row,
# ten epochs apart, and wires are tried that are one turn cheaper. Each time that was wrong, it
# takes twice as many. The first epochs say little: all classes are alike then, whatever arrives.
FAR_BELOW, PATIENCE = 1 / 8, 5


@dataclass
class Progress:
    """All that a controller knows, as a checkpoint keeps it.

    Attributes
    ----------
    bits, delay, sampling
        Of now.
    turned : list of [dial, value before]
        Turns towards exact that can be taken back.
    calm : int
        Times in a row, ten epochs apart, that the perturbation was far below the tolerance.
    patience : int
    tried : bool
        Whether the last turn was back.
    restless : bool
        Whether the loss was too far from exact when it was last looked at.
    by_dial : dict
        Squared relative errors by the dial that makes them less, when they were last measured.
    log : list of dict
        What was measured, and with which wires: epoch, perturbation, bits, delay, sampling.
    """

    bits: int
    delay: int
    sampling: float
    turned: list[list[Any]] = field(default_factory=list)
    calm: int = 0
    patience: int = PATIENCE
    tried: bool = False
    restless: bool = False
    by_dial: dict[str, float] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)


class Controller:
    """Turns the dials of a run's wires, on all ranks alike.

    Parameters
    ----------
    dials : Dials
        Of which a tolerance is asked; what else is asked is where this begins.
    errors : sequence of Errors
        Of the same wires.
    comm : Communicator
        All ranks.
    """

    def __init__(self, dials: Dials, errors: Sequence[Errors], comm: Communicator) -> None:
        asked = dials.asked
        assert asked.tolerance is not None
        assert asked.delay is not None
        self.tolerance: float = asked.tolerance
        self._dials, self._errors, self._comm = dials, errors, comm
        self._rounds = asked.bits[0][1] < 32
        self._before: list[tuple[Tensor, Tensor]] = []
        self.progress = Progress(asked.bits[0][1], asked.delay, asked.sampling[0][1])
        self._set()

    def looks(self, epoch: int) -> bool:
        """Whether the loss of an epoch is compared with that on exact wires."""
        return not self._dials.is_exact(epoch) and (
            Errors.measured(epoch) or self.progress.restless
        )

    def begin(self) -> None:
        """Begin an epoch that is looked at: errors are those of this epoch alone."""
        self._before = [
            (sums, sums.clone()) for each in self._errors for sums in each.sums().values()
        ]
        for sums, _ in self._before:
            sums.zero_()

    def end(self, epoch: int, loss: float, exact: float) -> None:
        """Turn a dial if the loss was too far from exact, or very near for long. Collective.

        Parameters
        ----------
        epoch : int
        loss : float
            Of all ranks, on the wires of training.
        exact : float
            On exact ones.
        """
        now, perturbation = self.progress, perturbed(loss, exact)
        by_dial = self._measured()
        if any(by_dial.values()):
            now.by_dial = by_dial
        told = {"epoch": epoch, "perturbation": perturbation if perturbation < math.inf else None}
        now.log.append({**told, **self.chosen})
        now.restless = perturbation > self.tolerance
        if perturbation >= FAR_BELOW * self.tolerance:
            now.calm = 0
        elif epoch % MEASURED_EVERY == 0:
            now.calm += 1
        if now.restless:
            self._turn()
        elif now.calm >= now.patience:
            self._turn_back()
        self._set()

    @property
    def chosen(self) -> dict[str, Any]:
        """Bits, delay and sampling of now."""
        now = self.progress
        return {"bits": now.bits, "delay": now.delay, "sampling": now.sampling}

    @property
    def record(self) -> dict[str, Any]:
        """For the report: what was asked for, what is chosen now, and what was measured when."""
        return {"tolerance": self.tolerance, **self.chosen, "log": self.progress.log}

    def state(self) -> dict[str, Any]:
        """All of it, as JSON can carry it."""
        return asdict(self.progress)

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises
        ------
        InputError
            If it is none.
        """
        try:
            found = Progress(**state)
            right = found.bits in BITS and found.delay >= 0 and 0 < found.sampling <= 1
        except TypeError:
            right = False
        if not right:
            raise InputError("--resume: a damaged checkpoint: it says nothing of --tolerance")
        self.progress = found
        self._set()

    def _turn(self) -> None:
        """One turn towards exact, of the dial with the largest error that is not there yet."""
        now = self.progress
        turns = {
            "bits": next((b for b in reversed(BITS) if b > now.bits), None),
            "delay": now.delay // 2 if now.delay else None,
            "sampling": min(1.0, 2 * now.sampling) if now.sampling < 1 else None,
        }
        possible = [dial for dial, value in turns.items() if value is not None]
        if not possible:
            return
        dial = max(possible, key=lambda name: now.by_dial.get(name, 0.0))
        now.turned.append([dial, getattr(now, dial)])
        setattr(now, dial, turns[dial])
        if now.tried:
            now.patience *= 2
        now.tried = False

    def _turn_back(self) -> None:
        """One turn back; without any, fewer bits than were asked for."""
        now = self.progress
        now.calm = 0
        if now.turned:
            dial, value = now.turned.pop()
            setattr(now, dial, value)
        elif self._rounds and now.bits > 1:
            now.bits = next(b for b in BITS if b < now.bits)
        else:
            return
        now.tried = True

    def _set(self) -> None:
        for dial, value in self.chosen.items():
            setattr(self._dials, dial, value)

    def _measured(self) -> dict[str, float]:
        """Squared relative errors of this epoch on all ranks, by dial. Collective."""
        names = list(DIALS)
        sums = torch.zeros(len(names), 2, dtype=torch.float64)
        for each in self._errors:
            for (_, _, kind), made in each.sums().items():
                if kind in DIALS:
                    sums[names.index(kind)] += made.cpu()
        for made, before in self._before:
            made.add_(before)
        self._before = []
        self._comm.all_reduce(sums).wait()
        found = {}
        for kind, (error, norm) in zip(names, sums.tolist(), strict=True):
            found[DIALS[kind]] = error / norm if norm > 0 and math.isfinite(error / norm) else 0.0
        return found


def perturbed(loss: float, exact: float) -> float:
    """How far a loss is from exact, as a share of it."""
    apart = abs(loss - exact)
    if apart == 0:
        return 0.0
    return apart / abs(exact) if exact and math.isfinite(apart) else math.inf
