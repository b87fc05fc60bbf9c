"""``--runs N``: the same training from several seeds, with the mean and the spread of its scores.

The graph, its partition, its split and made-up features belong to ``--seed`` and are made once; run
i draws its weights and its dropout from ``--seed`` + i.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from spgnn.comm import Communicator, from_rank_zero
from spgnn.config import TrainConfig
from spgnn.train.checkpoint import FILE
from spgnn.train.loop import Trainer
from spgnn.train.objective import LOWER_IS_BETTER

AT_BEST = "_at_best_val"
Scores = dict[str, float]


def of_run(config: TrainConfig, number: int) -> TrainConfig:
    """The configuration of one run of several: its seed, and its names of what it writes."""
    if config.training.runs == 1:
        return config
    name, job, training = f"run-{number}", config.job, config.training
    predictions = job.predictions and str(Path(job.predictions).with_suffix(f".{name}.npz"))
    return config.but(
        seed=training.seed + number,
        checkpoint=training.checkpoint and os.path.join(training.checkpoint, name),
        log=job.log and os.path.join(job.log, name),
        predictions=predictions,
    )


def resumable(config: TrainConfig, comm: Communicator) -> TrainConfig:
    """Of several runs, those that had not begun do so now. Collective."""
    training = config.training
    if training.runs == 1 or not training.resume or training.checkpoint is None:
        return config
    path = os.path.join(training.checkpoint, FILE)
    return config.but(resume=from_rank_zero(comm, lambda: os.path.exists(path)))


def summary(trainer: Trainer, seed: int) -> dict[str, Any]:
    """What the report says of one run."""
    return {
        "seed": seed,
        "epochs": len(trainer.history),
        "scores": final_scores(trainer.history),
        "failure": trainer.failure,
        "history": trainer.history,
    }


def final_scores(history: Sequence[Mapping[str, Any]]) -> Scores:
    """The last value of each score, and the test score where that of validation was best."""
    found: Scores = {}
    for record in history:
        known = {name: value for name, value in record.items() if value is not None}
        found.update({n: v for n, v in known.items() if n not in ("epoch", "seconds", "lr")})
    for name in [n for n in found if n.startswith("val_") and n != "val_loss"]:
        test = name.replace("val_", "test_", 1)
        both = [r for r in history if None not in (r.get(name), r.get(test))]
        if both:
            best = min if name.removeprefix("val_") in LOWER_IS_BETTER else max
            found[f"{test}{AT_BEST}"] = best(both, key=lambda record: record[name])[test]
    return found


def statistics(runs: Sequence[Mapping[str, Any]]) -> tuple[Scores, Scores]:
    """Mean and standard deviation (of a sample: over N − 1) of the scores that all runs have."""
    scores = [run["scores"] for run in runs]
    names = [name for name in scores[0] if all(name in others for others in scores)]
    mean = {name: fmean(of[name] for of in scores) for name in names}
    spread = {name: stdev(of[name] for of in scores) if len(scores) > 1 else 0.0 for name in names}
    return mean, spread
