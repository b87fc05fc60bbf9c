"""The wires of a plan, put together of what was asked for."""

from __future__ import annotations

from spgnn.errors import InputError
from spgnn.exchange import Exact, Plan, Wire
from spgnn.wires.base import Setting
from spgnn.wires.centred import Centred
from spgnn.wires.delayed import Delayed, Never
from spgnn.wires.fresh import Fresh
from spgnn.wires.quantised import Quantised
from spgnn.wires.sampled import Sampled


def wires_of(plan: Plan, setting: Setting) -> list[Wire]:
    """A wire for each hop of a plan.

    Parameters
    ----------
    plan : Plan
        Whose rows have names (:func:`spgnn.exchange.naming.named`).
    setting : Setting

    Raises
    ------
    InputError
        If whole block rows are broadcast.
    """
    asked = setting.dials.asked
    if any(hop.broadcast for hop in plan.hops):
        raise InputError("approximate wires need --exchange sparsity-aware: rows, not block rows")
    return [_around(Quantised(setting) if asked.quantises else Exact(), setting) for _ in plan.hops]


def _around(wire: Wire, setting: Setting) -> Wire:
    """What comes before rows are written in fewer bits."""
    asked = setting.dials.asked
    if asked.samples:
        wire = Sampled(wire, setting)
    if asked.fresh:
        wire = Fresh(wire, setting)
    if asked.delay is None:
        wire = Never(wire, setting)
    elif asked.delay:
        wire = Delayed(wire, setting)
    return Centred(wire, setting) if asked.sends_means else wire


def weighed_wire(setting: Setting) -> Wire:
    """A wire for rows that are weighed where they arrive, and of which some may be left out.

    Who weighs them draws the sample: what is left out takes its weight along.

    Parameters
    ----------
    setting : Setting
        Checked by :meth:`Approximation.check_weighed`.
    """
    asked = setting.dials.asked
    wire: Wire = Quantised(setting) if asked.quantises else Exact()
    if asked.fresh:
        wire = Fresh(wire, setting)
    return Delayed(wire, setting) if asked.delay else wire


def late_wire(setting: Setting) -> Wire:
    """A wire for what belongs to such rows and is not approximated: late if these are."""
    return Delayed(Exact(), setting) if setting.dials.asked.delay else Exact()
