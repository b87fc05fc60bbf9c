"""Checkpoints: weights, optimiser, epoch and history in one file, written aside and renamed."""

from __future__ import annotations

import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from spgnn.errors import InputError

FILE = "checkpoint.npz"


@dataclass(frozen=True)
class Progress:
    """How far a run is. The random state is (seed, epoch): every draw is a function of them."""

    epoch: int
    seed: int
    widths: list[int]
    optimizer: str
    history: list[dict[str, Any]]


def save(
    directory: str, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write the checkpoint; called on rank 0, since weights are replicated.

    Raises
    ------
    InputError
        If it cannot be written (a full disk); the previous checkpoint stays.
    """
    arrays = {
        f"weight/{name}": value.numpy(force=True) for name, value in model.state_dict().items()
    }
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if value is not None:
                arrays[f"optimizer/{index}/{name}"] = torch.as_tensor(value).numpy(force=True)
    arrays["progress"] = np.array(json.dumps(vars(progress)))
    path = Path(directory)
    aside = path / f".{FILE}.{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        try:
            with aside.open("wb") as file:
                np.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path / FILE)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"--checkpoint {directory}: cannot be written: {error.strerror}") from None


def load(
    directory: str, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int, widths: list[int]
) -> Progress:
    """Read the checkpoint into model and optimiser.

    Raises
    ------
    InputError
        If there is none, it is damaged, or it belongs to another model or seed.
    """
    path = Path(directory) / FILE
    try:
        # Opened here, because np.load leaves a file that it cannot read open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        progress = Progress(**json.loads(str(arrays.pop("progress"))))
    except FileNotFoundError:
        raise InputError(f"--resume: there is no checkpoint {path}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a checkpoint, or a damaged one ({error})") from None
    if progress.widths != widths:
        raise InputError(
            f"{path}: its layers are {_arrows(progress.widths)}, this run's {_arrows(widths)}; "
            "use the same --dataset, --layers and --hidden"
        )
    if progress.seed != seed:
        raise InputError(f"{path}: was made with --seed {progress.seed}, not {seed}")
    kind = type(optimizer).__name__.lower()
    if progress.optimizer != kind:
        raise InputError(f"{path}: was made with --optimizer {progress.optimizer}, not {kind}")
    weights = {
        name.removeprefix("weight/"): torch.from_numpy(value)
        for name, value in arrays.items()
        if name.startswith("weight/")
    }
    if {name: w.shape for name, w in weights.items()} != {
        name: w.shape for name, w in model.state_dict().items()
    }:
        raise InputError(f"{path}: a damaged checkpoint: its weights are not those of its layers")
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in arrays.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/")
            state.setdefault(int(index), {})[key] = torch.from_numpy(value)
    _check_state(path, state, optimizer)
    model.load_state_dict(weights)
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return progress


def _check_state(
    path: Path, state: dict[int, dict[str, torch.Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    """Adam without its moments would start anew, and with others' would fail in the next step."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = {"step", "exp_avg", "exp_avg_sq"} if isinstance(optimizer, torch.optim.Adam) else set()
    found = {index: {k: v.shape for k, v in entry.items()} for index, entry in state.items()}
    wanted = {
        index: {key: torch.Size() if key == "step" else p.shape for key in keys}
        for index, p in enumerate(parameters)
        if keys
    }
    if found != wanted:
        raise InputError(f"{path}: a damaged checkpoint: its optimiser state is not of its weights")


def _arrows(widths: list[int]) -> str:
    return "→".join(map(str, widths))
