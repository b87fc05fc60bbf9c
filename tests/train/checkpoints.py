"""Checkpoints of a small model, and ways to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spgnn.comm import SoloCommunicator
from spgnn.nn import GCN
from spgnn.train import checkpoint

WIDTHS = [4, 3, 2]
SIGNATURE = {"layers": "4→3→2", "seed": 3, "optimizer": "adam"}
HISTORY = [{"epoch": 0, "loss": 1.5, "val_loss": 1.0, "val_acc": None, "seconds": 0.25}]


def make(kind: type[torch.optim.Optimizer] = torch.optim.Adam) -> tuple[GCN, Any]:
    """A model whose optimiser has a state."""
    model = GCN.of(WIDTHS)
    optimizer = kind(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def save(directory: Path) -> tuple[GCN, torch.optim.Optimizer]:
    """A checkpoint after one epoch."""
    model, optimizer = make()
    checkpoint.save(str(directory), model, optimizer, SIGNATURE, HISTORY)
    return model, optimizer


def load(
    directory: Path,
    model: GCN,
    optimizer: torch.optim.Optimizer,
    signature: dict[str, object] = SIGNATURE,
) -> list[dict[str, Any]]:
    """The history of a checkpoint that is read into model and optimiser."""
    return checkpoint.load(str(directory), model, optimizer, signature, SoloCommunicator())[0]


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Replace arrays (``None``: leave out), the history, keys of the progress, or its bytes."""
    with np.load(path) as loaded:
        arrays = dict(loaded)
    progress = json.loads(arrays["progress"].tobytes())
    for name, value in change.items():
        match value:
            case None:
                del arrays[name]
            case np.ndarray():
                arrays[name] = value
            case bytes():
                arrays[name] = np.frombuffer(value, np.uint8)
            case list() | dict():
                changed = value if isinstance(value, dict) else {"history": value}
                text = json.dumps(progress | changed)
                arrays[name] = np.frombuffer(text.encode(), np.uint8)
    np.savez(path, **arrays)
