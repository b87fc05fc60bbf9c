"""Options of training on several vertex types, and what that does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from spgnn.addons.outofcore import Storage
from spgnn.config import Extension, TrainConfig
from spgnn.options import rare

_TAKEN = {"model", "layers", "hidden", "dropout", "dataset", "data_dir", "split", "random_classes"}


@dataclass(frozen=True)
class Types(Extension):
    """Graphs of several vertex types."""

    section = "aim"

    target: Annotated[
        str | None, rare("of several vertex types: the one whose labels are learnt", "TYPE")
    ] = None

    def opener(self, config: TrainConfig) -> Any:
        """The task that opens its data itself."""
        if not config.model.registered.typed:
            return None
        from spgnn.addons.hetero.typed_task import TypedTask  # which needs all of training

        return TypedTask

    def refused(self, config: TrainConfig) -> Iterator[str]:
        """Say what training on several vertex types does not know."""
        how, aim, model = config.algorithm, config.aim, config.model
        named = f"--model {model.model}"
        if not model.registered.typed:
            if self.target is not None:
                yield f"--target {self.target} needs a model of several vertex types, not {named}"
            return
        if how.plan:
            yield f"{named} is of several vertex types, and plans (spgnn plan, --plan) are of one"
        for option, _ in how.changed:
            if option.name in ("order", "recompute_halo", "edges"):
                yield f"{named} knows no {option.written}"
        if aim.task != "vertices" or aim.inductive:
            yield f"{named} learns labels of vertices on the whole graph: no links"
        if config.training.dtype == "bfloat16":
            yield f"{named} needs --dtype float32 or float64"
        storage = config.extension(Storage)
        if config.changes_features:
            yield f"{named} takes features as they are: no {config.changes_features}"
        for option, value in storage.changed:
            if option.name not in ("spill", "memory") or storage.spill is None:
                yield f"{named} knows --spill, alone or with --memory: no {option.written} {value}"
        for changed, value in (*model.changed, *config.data.changed):
            if changed.name not in _TAKEN | model.registered.takes():
                yield f"{named} knows no {changed.written} {value}"
