"""Run cells, and say of each what came out."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator

import torch

from spgnn import InputError
from spgnn.comm import connect
from tests.support.features import FEATURES, Feature
from tests.support.modes import GROUPS, Mode, has_cell

RANKS = 4
Cell = tuple[str, str, str]  # a feature, a group of modes, a mode
Cells = dict[Cell, str]


def all_cells() -> Iterator[tuple[Cell, Feature, Mode]]:
    """Mode by mode: graphs are shared by the features of one."""
    for group, modes in GROUPS.items():
        for mode in modes:
            for feature in (one for one in FEATURES if has_cell(one, group)):
                yield (feature.name, group, mode.name), feature, mode


def apart(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of two lists of tensors, relative to the largest number of each."""
    assert len(actual) == len(expected) > 0
    worst = 0.0
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        size = float(other.abs().max().clamp(min=1))
        difference = (one.double() - other.double()).abs().nan_to_num(float("inf"))
        worst = max(worst, float(difference.max()) / size)
    return worst


def swept(rank: int, chosen: list[Cell], shown: bool = False) -> Cells:
    """What each cell says on this rank: "yes", the refusal's line, or what went wrong."""
    warnings.simplefilter("ignore")
    comm, cells = connect(), Cells()
    for cell, feature, mode in all_cells():
        if cell not in chosen:
            continue
        try:
            error = apart(*mode.run(feature, comm))
            cells[cell] = (
                "yes" if error <= max(mode.tolerance, feature.near) else f"wrong by {error:.2g}"
            )
        except InputError as refusal:
            cells[cell] = line_of(str(refusal), feature)
        except Exception as error:
            cells[cell] = f"{type(error).__name__}: {error}"
        if shown and rank == 0:
            print(cell, cells[cell], file=sys.stderr, flush=True)
        comm.barrier()
    return cells


def line_of(refusal: str, feature: Feature) -> str:
    """A refusal without ranks, sizes of parts and names of models."""
    line = re.sub(r"^on rank \d+: ", "", refusal).replace(feature.model_name, "NAME")
    return "no: " + re.sub(r"this rank's \d+ edges", "this rank's edges", line)
