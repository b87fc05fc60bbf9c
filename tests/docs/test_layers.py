"""The examples of docs/layers.md run as they are printed, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import spgnn
from spgnn.registry import LAYERS

DOCS = Path(__file__).parents[2] / "docs" / "layers.md"


def test_examples():
    pytest.importorskip("torch_geometric")
    text = DOCS.read_text(encoding="utf-8")
    scope: dict[str, object] = {}
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(example, str(DOCS), "exec"), scope)
    for name in ("logits", "z"):
        made = scope[name]
        assert isinstance(made, torch.Tensor)
        assert made.isfinite().all()


def test_every_layer_is_listed():
    text = DOCS.read_text(encoding="utf-8")
    listed = [
        name
        for name in (*spgnn.nn.__all__, *LAYERS)
        if name.endswith(("Conv", "Norm")) or name == "APPNP"
    ]
    assert len(listed) >= 12
    assert [name for name in listed if f"`{name}" not in text] == []
