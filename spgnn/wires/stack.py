"""The wires of a plan, put together of what was asked for."""

from __future__ import annotations

from spgnn.errors import InputError
from spgnn.exchange import Exact, Hop, Plan, Wire
from spgnn.exchange.wire import wire_of
from spgnn.layout import NODE
from spgnn.wires.base import Setting
from spgnn.wires.components import Components
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
    between = setting.dials.asked.level == "between"
    return [
        wire_of(hop) if between and hop.axis != NODE else _wire(hop, setting) for hop in plan.hops
    ]


def _wire(hop: Hop, setting: Setting) -> Wire:
    if hop.broadcast:
        raise InputError("approximate wires need --exchange sparsity-aware: rows, not block rows")
    asked = setting.dials.asked
    wire: Wire = Quantised(setting) if asked.quantises else Exact()
    if asked.drops_components:
        wire = Components(wire, setting)
    if asked.samples:
        wire = Sampled(wire, setting)
    if asked.fresh:
        wire = Fresh(wire, setting)
    if asked.delay is None:
        return Never(wire, setting)
    if asked.delay:
        wire = Delayed(wire, setting)
    return wire
