"""Plans as records: what goes into JSON, and how each is run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from spgnn.plan.choose import Choice
from spgnn.plan.hops import LEVELS
from spgnn.plan.search import Outpaced, Planned


def of_choice(choice: Choice, base: Sequence[str]) -> dict[str, Any]:
    """All plans for one number of ranks, and those that do not fit.

    Parameters
    ----------
    choice : Choice
    base : sequence of str
        What of the training command line is not planned.
    """
    return {
        "ranks": choice.ranks,
        "plans": [{**of_plan(one, base), "why": choice.why(one)} for one in choice.plans],
        "dropped": [of_plan(one, base) for one in choice.dropped],
        "outpaced": [of_outpaced(one) for one in choice.outpaced],
    }


def of_outpaced(outpaced: Outpaced) -> dict[str, Any]:
    """A configuration that was not counted, and the least seconds that it would take."""
    one = outpaced.configuration
    return {"ranks": one.ranks, **one.flags, "seconds_at_least": outpaced.seconds}


def of_plan(planned: Planned, base: Sequence[str]) -> dict[str, Any]:
    """One complete configuration, its price, and the command that runs it."""
    one, price = planned.configuration, planned.prediction
    flags, volume, levels = one.flags, price.volume, price.volume_by_level
    return {
        "ranks": one.ranks,
        **{name: flags[name] for name in ("algo", "c", "exchange", "cover")},
        "recompute_halo": flags["recompute_halo"],
        "prune": flags["prune"],
        "order": flags["order"],
        "partition": one.method,
        "objective": one.objective,
        "schedule": flags["schedule"],
        "hierarchy": flags["hierarchy"],
        "bytes": volume["total_bytes"],
        "max_send_bytes": volume["max_send_bytes"],
        "max_recv_bytes": volume["max_recv_bytes"],
        "bytes_by_level": {level: levels[level]["total_bytes"] for level in LEVELS},
        "messages": int(price.messages.sum()),
        "memory_bytes": price.memory_bytes,
        "memory": {name: int(bytes_.max()) for name, bytes_ in price.memory.items()},
        "seconds": planned.seconds,
        "seconds_by_kind": price.seconds,
        "estimated": planned.estimated,
        "storage": one.storage,
        "command": command_of(planned, base),
    }


def command_of(planned: Planned, base: Sequence[str]) -> str:
    """The command line that runs a plan."""
    one = planned.configuration
    words = ["torchrun", "--nproc-per-node", str(one.ranks), "experiments/gcn.py"]
    return shlex.join([*words, *base, *one.written()])
