"""Files of weights: what wrappers put before names, and what cannot be put into a model."""

from __future__ import annotations

import pytest
import torch

from spgnn import InputError
from spgnn.comm import connect
from spgnn.inference.weights import load_weights
from spgnn.nn import GCN


def model(seed: int = 0) -> GCN:
    return GCN(5, 4, 2, 3, seed=seed)


@pytest.mark.parametrize(
    "wrapper", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
def test_names_of_wrapped_models(tmp_path, wrapper):
    """As DistributedDataParallel and torch.compile have them, in any order."""
    torch.save({f"{wrapper}{k}": t for k, t in model(1).state_dict().items()}, tmp_path / "w.pt")
    found = model()
    load_weights(found, str(tmp_path / "w.pt"), connect())
    for name, t in model(1).state_dict().items():
        assert torch.equal(found.state_dict()[name], t)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.to_sparse(), "is torch.sparse_coo, not dense"),
        (lambda t: t.to("meta"), "has no numbers"),
        (lambda t: torch.full_like(t, 1e39, dtype=torch.float64), "not finite in torch.float32"),
    ],
)
def test_what_are_no_weights(tmp_path, change, said):
    path, state = tmp_path / "w.pt", model().state_dict()
    state["convs.1.bias"] = change(state["convs.1.bias"])
    torch.save(state, path)
    with pytest.raises(InputError, match=f"^{path}: 'convs.1.bias' .*{said}"):
        load_weights(model(), str(path), connect())
