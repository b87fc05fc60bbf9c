"""``plan="auto"`` of distribute and ``--plan`` of training: the scheme is chosen by its price."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, replace
from statistics import median
from typing import Any, get_args

import numpy as np

from spgnn.addons.plan import Choice, Planner, PricedPlan
from spgnn.addons.plan.choose import CHOSEN, CLOSE
from spgnn.addons.plan.epoch import edges_of
from spgnn.addons.plan.measure import measure
from spgnn.addons.plan.predict import codec_of
from spgnn.comm import Communicator
from spgnn.command import say
from spgnn.config import TrainConfig
from spgnn.data import is_graph_directory, open_source
from spgnn.errors import InputError, memory_for
from spgnn.exchange import Algorithm
from spgnn.frontend import Opened, Placement
from spgnn.layout import Int32Array
from spgnn.machine import Machine, read_machine
from spgnn.partition import METHODS, read_labels
from spgnn.progress import ProgressBar
from spgnn.registry import Objective
from spgnn.train import gathered, tried_seconds

LARGEST_FILE = 1 << 28
TRIED = 5  # epochs of each of two plans that are close


def planned_placement(
    opened: Opened | None,
    how: Placement,
    comm: Communicator,
    config: TrainConfig,
    memory: float | None,
    *,
    halo: bool,
) -> tuple[Placement, dict[str, Any]]:
    """The placement that the best plan makes of another, and its record. Collective."""
    machine = measure(comm, edges=edges_of(config))
    method = how.partition

    def best() -> tuple[Int32Array, dict[str, Any], dict[str, Any]]:
        assert opened is not None
        source = opened.source
        if not isinstance(method, str) or method not in METHODS:
            raise InputError('plan="auto" makes partitions by itself: give it a method, as "gvb"')
        settled = config.but(
            split=how.split or 0,
            random_features=opened.features,
            random_classes=opened.outputs,
            seed=how.seed,
            symmetrise=how.symmetrise,
            partition=method,
            objective=how.objective,
            imbalance=how.imbalance,
            prune=False,
            cover="column",
        )
        fixed = ["partition", "prune", "recompute_halo", "order"]
        fixed += ["algo", "cover", "hierarchy"] if halo else []
        options: dict[str, Any] = {"pinned": fixed, "memory": memory}
        with ProgressBar() as progress:
            planner = Planner(source, settled, machine, progress=progress, **options)
            choice = planner.choose(comm.size)
        plan = choice.plans[0]
        record = {**plan.record, "why": choice.why(plan)}
        del record["command"]  # of the training command, which this is not
        return planner.labels(plan), asdict(plan.config.distribution), record

    chosen = comm.on_rank_zero(best)
    algorithm, record = comm.from_rank_zero(lambda: None if chosen is None else chosen[1:])
    labels = method if chosen is None else chosen[0]
    return replace(how, algorithm=Algorithm(**algorithm), partition=labels), record


def fill_in(
    config: TrainConfig, comm: Communicator, pinned: Collection[str]
) -> tuple[TrainConfig, dict[str, Any]]:
    """Choose the options of a configuration with ``--plan`` that were not given. Collective."""
    how = config.algorithm
    path, machine_file = str(how.plan), how.machine
    fixed = {*CHOSEN} & {*pinned}

    def filled(flags: dict[str, Any]) -> TrainConfig:
        result = config.but(**flags)
        result.check(comm.size)
        return result

    def announce(what: str, flags: dict[str, Any], why: str = "") -> None:
        if comm.rank == 0:
            chosen = {name: value for name, value in flags.items() if value not in (None, "auto")}
            shown = (f"--{name.replace('_', '-')} {value}" for name, value in chosen.items())
            say(f"{what}: {'  '.join(shown)}{why}")

    if path != "auto":
        entry = comm.from_rank_zero(lambda: _entry(path, comm.size))
        flags = {name: entry[name] for name in CHOSEN if name not in fixed}
        if "objective" not in pinned and entry.get("objective") in get_args(Objective):
            flags["objective"] = entry["objective"]
        announce(f"plan of {path}", flags)
        return filled(flags), {**entry, "source": path}
    _ = codec_of(config)  # before anything is measured
    machine: Machine | None = None
    if machine_file is None:
        machine = measure(comm, edges=edges_of(config))
    elif comm.rank == 0:
        machine = read_machine(machine_file)

    def choose() -> list[dict[str, Any]]:
        """The first plan, and the second if it is close."""
        assert machine is not None
        planner, choice = ranked_for(config, comm.size, machine, fixed)
        least = choice.plans[0].seconds
        return [
            {"flags": flags_of(planner, one), "why": choice.why(one), "plan": one.record}
            for one in choice.plans[:2]
            if one.seconds <= CLOSE * least
        ]

    plans = comm.from_rank_zero(choose)
    tried = []
    if len(plans) > 1:
        for one in plans:
            seconds = [spent for spent, _ in tried_seconds(filled(one["flags"]), comm, TRIED)]
            one["seconds"] = float(gathered(comm, median(seconds[1:])).max())
        tried = [{"flags": one["flags"], "seconds": one["seconds"]} for one in plans]
        plans.sort(key=lambda one: float(one["seconds"]))
    best = plans[0]
    announce("plan", best["flags"], f": {best['why']}")
    record = {**best["plan"], "why": best["why"], "source": "auto", "tried": tried}
    return filled(best["flags"]), record


def ranked_for(
    config: TrainConfig, ranks: int, machine: Machine, pinned: Collection[str]
) -> tuple[Planner, Choice]:
    """All plans for the data set of a configuration, best first, on rank 0 alone."""
    data, method = config.data, config.algorithm.partition
    labels: tuple[Int32Array, int] | None = None  # that cannot be chosen
    with memory_for(data.dataset), ProgressBar() as progress:
        source = open_source(
            data.dataset, data.data_dir, progress=progress, graph_split=data.graphs_of_splits
        )
        meta, parts = source.meta, config.distribution.parts(ranks)
        if is_graph_directory(data.dataset) and meta.parts > 1:
            sizes = np.diff(np.array(meta.offsets))
            labels = np.repeat(np.arange(meta.parts, dtype=np.int32), sizes), meta.parts
        elif method not in METHODS:
            labels = read_labels(method, meta.vertices, parts), parts
        planner = Planner(source, config, machine, pinned=pinned, labels=labels, progress=progress)
        return planner, planner.choose(ranks)


def flags_of(planner: Planner, plan: PricedPlan) -> dict[str, Any]:
    """Flags of a plan; its labels need not be computed again."""
    flags, file = plan.flags, planner.partition_file(plan)
    return flags if file is None else {**flags, "partition": str(file), "objective": "auto"}


def _entry(path: str, ranks: int) -> dict[str, Any]:
    """The first plan of a file that is for so many ranks."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--plan {path}: neither auto nor a file: {reason}") from None
    try:
        plans = json.loads(text)["plans"]
        # A plan from a disk is followed by the command that was printed with it.
        fits = [plan for plan in plans if plan["ranks"] == ranks and not plan.get("storage")]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"--plan {path}: not what spgnn plan --json writes") from None
    if not fits:
        raise InputError(f"--plan {path}: holds no plan for {ranks} ranks; spgnn plan makes one")
    entry: dict[str, Any] = {"nodes": None, "relays": False, **fits[0]}  # of older files
    missing = [name for name in CHOSEN if name not in entry]
    if missing:
        raise InputError(f"--plan {path}: its plan for {ranks} ranks lacks {missing[0]}")
    return entry
