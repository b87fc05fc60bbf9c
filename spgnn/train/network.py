"""The model that a configuration describes."""

from __future__ import annotations

from typing import Any

from spgnn.config import TrainConfig
from spgnn.memory import check_memory
from spgnn.nn import MODELS, Stack

_COPIES = 4  # of the weights: themselves, their gradient, and two moments of Adam


def widths_of(config: TrainConfig, features: int, classes: int) -> list[int]:
    """Features, widths of the hidden layers, classes."""
    return [features, *[config.model.hidden] * (config.model.layers - 1), classes]


def model_of(config: TrainConfig, features: int, classes: int) -> Stack:
    """The model on so many features and classes, its weights drawn from the seed.

    Raises
    ------
    InputError
        If the weights could never fit into memory.
    """
    kind, widths = MODELS[config.model.model], widths_of(config, features, classes)
    shown = "→".join(map(str, widths))
    options: dict[str, Any] = dict(config.model.options)
    check_memory(f"the weights of layers {shown}", _COPIES * 4 * kind.size(widths, **options))
    if config.model.model == "gcn":  # the others know one order only
        options["order"] = config.algorithm.order
    return kind.of(
        widths,
        dropout=config.model.dropout,
        input_dropout=config.model.input_dropout,
        seed=config.training.seed,
        **options,
    )
