"""Checkpoints of a small model, and ways to damage them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

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


def save(directory: Path, history: list[dict] = HISTORY) -> tuple[GCN, torch.optim.Optimizer]:
    """A checkpoint, by default after one epoch."""
    model, optimizer = make()
    checkpoint.save(str(directory), model, optimizer, SIGNATURE, history, SoloCommunicator())
    return model, optimizer


def load(
    directory: Path,
    model: GCN,
    optimizer: torch.optim.Optimizer,
    signature: dict[str, object] = SIGNATURE,
) -> list[dict[str, Any]]:
    """The history of a checkpoint that is read into model and optimiser."""
    return checkpoint.load(str(directory), model, optimizer, signature, SoloCommunicator())[0]


def contents(path: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of a file, and its text."""
    return checkpoint._read(path, "damaged")


def rewrite(path: Path, tensors: dict[str, Tensor | None], told: object = None) -> None:
    """Replace tensors (``None``: leave out), and the text or keys of it; with the right digest."""
    known, text = contents(path)
    known = {n: t for n, t in (known | tensors).items() if t is not None}
    if isinstance(told, dict):
        text = json.dumps(json.loads(text) | told)
    elif told is not None:
        text = str(told)
    metadata = {"told": text, "digest": checkpoint._digest(known, text)}
    path.write_bytes(safetensors.torch.save(known, metadata))
