"""``--plan``: fill in what the command line leaves open."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch

from spgnn.comm import Communicator
from spgnn.command import say
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.shards import is_graph_directory
from spgnn.data.source import GraphSource
from spgnn.errors import InputError, memory_for
from spgnn.partition import METHODS, read_labels
from spgnn.partition.adjacency import Int32Array
from spgnn.plan import Choice, Machine, Planner, PricedPlan, read_machine
from spgnn.plan.choose import CHOSEN, CLOSE
from spgnn.plan.epoch import edges_of
from spgnn.plan.measure import measure
from spgnn.plan.predict import codec_of
from spgnn.progress import ProgressBar

AUTO = "auto"
# The first two are tried if the second is at most so much slower, for so many epochs.
TRIED_EPOCHS = 5
LARGEST_FILE = 1 << 28
# Seconds an epoch of a configuration, tried on all ranks. Collective.
Try = Callable[[TrainConfig], float]


@dataclass(frozen=True)
class Planned:
    """The plan of a run.

    Attributes
    ----------
    config : TrainConfig
        With everything filled in.
    record : dict
        For the report: the chosen flags, what was predicted, why, and what was tried.
    """

    config: TrainConfig
    record: dict[str, Any]


def fill_in(
    config: TrainConfig, comm: Communicator, given: Iterable[str], attempt: Try
) -> Planned | None:
    """Choose what was not given; ``None`` if nobody asked for a plan. Collective.

    Parameters
    ----------
    config : TrainConfig
    comm : Communicator
        All ranks.
    given : names of flags
        That stay as they are.
    attempt : callable
        Trains a few epochs of a configuration; seconds of one.

    Raises
    ------
    InputError
        If the plan, the machine file or the graph is wrong, or nothing fits; on all ranks.
    """
    asked = config.algorithm.plan
    if asked is None:
        return None
    fixed = {*CHOSEN} & {*given}
    if asked != AUTO:
        entry = comm.from_rank_zero(lambda: _entry(asked, comm.size))
        flags = {name: entry[name] for name in CHOSEN if name not in fixed}
        _say(comm, f"plan of {asked}: {_shown(flags)}")
        return Planned(_with(config, flags, comm.size), {**entry, "source": asked})
    _ = codec_of(config)  # before anything is measured
    machine = _machine(config, comm)
    found = comm.from_rank_zero(lambda: _choose(config, comm.size, machine, fixed))
    best, tried = found[0], []
    if len(found) > 1:
        for one in found:
            one["tried_seconds"] = attempt(_with(config, one["flags"], comm.size))
        tried = [{"flags": one["flags"], "seconds": one["tried_seconds"]} for one in found]
        best = min(found, key=lambda one: float(one["tried_seconds"]))
    _say(comm, f"plan: {_shown(best['flags'])}: {best['why']}")
    return Planned(
        _with(config, best["flags"], comm.size),
        {**best["plan"], "why": best["why"], "source": AUTO, "tried": tried},
    )


def _with(config: TrainConfig, flags: dict[str, Any], ranks: int) -> TrainConfig:
    filled = config.but(**flags)
    filled.check(ranks)
    return filled


def _shown(flags: dict[str, Any]) -> str:
    told = {name: value for name, value in flags.items() if value is not None}
    return "  ".join(f"--{name.replace('_', '-')} {value}" for name, value in told.items())


def _say(comm: Communicator, text: str) -> None:
    if comm.rank == 0:
        say(text)


def _machine(config: TrainConfig, comm: Communicator) -> Machine | None:
    """The machine on rank 0: of the file, or measured by all."""
    path = config.algorithm.machine
    if path is None:
        return measure(comm, edges=edges_of(config))
    return read_machine(path) if comm.rank == 0 else None


def _entry(path: str, ranks: int) -> dict[str, Any]:
    """The first plan of a file that is for so many ranks."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"--plan {path}: neither auto nor a file: {said}") from None
    try:
        plans = json.loads(text)["plans"]
        # A plan from a disk is followed by the command that was printed with it.
        fits = [plan for plan in plans if plan["ranks"] == ranks and not plan.get("storage")]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"--plan {path}: not what spgnn plan --json writes") from None
    if not fits:
        raise InputError(f"--plan {path}: holds no plan for {ranks} ranks; spgnn plan makes one")
    entry: dict[str, Any] = fits[0]
    missing = [name for name in CHOSEN if name not in entry]
    if missing:
        raise InputError(f"--plan {path}: its plan for {ranks} ranks lacks {missing[0]}")
    if entry.get("layer_algos"):  # of earlier versions
        raise InputError(f"--plan {path}: a scheme for each layer is no longer known; plan again")
    return entry


def _choose(
    config: TrainConfig, ranks: int, machine: Machine | None, given: Iterable[str]
) -> list[dict[str, Any]]:
    """The first plan, and the second if it is close; on rank 0 alone."""
    if machine is None:
        raise AssertionError("rank 0 knows the machine")
    planner, choice = ranked(config, ranks, machine, given)
    close = [one for one in choice.plans[:2] if one.seconds <= CLOSE * choice.plans[0].seconds]
    return [
        {"flags": flags_of(planner, one), "why": choice.why(one), "plan": one.record}
        for one in close
    ]


def ranked(
    config: TrainConfig, ranks: int, machine: Machine, given: Iterable[str]
) -> tuple[Planner, Choice]:
    """All plans that fit what a command line says, best first.

    Parameters
    ----------
    config : TrainConfig
    ranks : int
    machine : Machine
    given : names of options
        Those that stay as they are.

    Raises
    ------
    InputError
        If the graph is wrong, or nothing fits.
    """
    data = config.data
    with memory_for(data.dataset), ProgressBar() as progress:
        source = open_source(
            data.dataset, data.data_dir, progress=progress, graph_split=data.graphs_of_splits
        )
        labels = _labels_of(config, source, ranks)
        planner = Planner(
            source, config, machine, given=set(given), labels=labels, progress=progress
        )
        return planner, planner.choose(ranks)


def flags_of(planner: Planner, plan: PricedPlan) -> dict[str, Any]:
    """Flags of a plan; its labels need not be computed again."""
    flags, file = plan.flags, planner.partition_file(plan)
    return flags if file is None else {**flags, "partition": str(file)}


def _labels_of(
    config: TrainConfig, source: GraphSource, ranks: int
) -> tuple[Int32Array, int] | None:
    """The labels that cannot be chosen: of a graph that is cut, or of a file."""
    meta, method = source.meta, config.algorithm.partition
    if is_graph_directory(config.data.dataset) and meta.parts > 1:
        offsets = np.array(meta.offsets)
        cut: Int32Array = np.repeat(np.arange(meta.parts, dtype=np.int32), np.diff(offsets))
        return cut, meta.parts
    if method in METHODS:
        return None
    parts = config.algorithm.distribution.parts(ranks)
    return read_labels(method, meta.vertices, parts), parts


def slowest_median(comm: Communicator, seconds: list[float]) -> float:
    """The median epoch of the slowest rank. Collective."""
    found = torch.tensor([median(seconds)], dtype=torch.float64)
    comm.all_reduce(found, "max").wait()
    return float(found)
