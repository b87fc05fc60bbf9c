"""Files of weights: what wrappers put before names, and what cannot be put into a model."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from spgnn import InputError
from spgnn.__main__ import main
from spgnn.comm import connect
from spgnn.inference.weights import load_weights, read_state, save_weights
from spgnn.nn import GCN


def model(seed: int = 0) -> GCN:
    return GCN(5, 4, 2, 3, seed=seed)


def averaged(kind: str, updates: int = 3) -> dict[str, torch.Tensor]:
    """What torch's own averages hold after so many updates by the weights of `model(1)`."""
    multi = {"ema": get_ema_multi_avg_fn(0.0), "swa": None}[kind]
    average = AveragedModel(model(1), multi_avg_fn=multi)
    for _ in range(updates):
        average.update_parameters(model(1))
    return average.state_dict()


def named(before: str, state=None) -> dict[str, torch.Tensor]:
    return {f"{before}{name}": t for name, t in (state or model(1).state_dict()).items()}


FILES = {
    "a model": named(""),
    "DDP": named("module."),
    "compiled": named("_orig_mod."),
    "DDP of a compiled one": named("module._orig_mod."),
    "a compiled one of DDP": named("_orig_mod.module."),
    "compiled layers": {
        name.replace("convs.0.", "convs.0._orig_mod."): t for name, t in named("").items()
    },
    "SWA": averaged("swa"),
    "EMA": averaged("ema"),
    "SWA of DDP": named("module.", averaged("swa")),
    "Lightning": {
        "epoch": 3,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": named("model."),
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}],
        "callbacks": {"EarlyStopping": {"best_score": torch.tensor(0.5)}},
    },
    "Lightning, another name, compiled": {"state_dict": named("net._orig_mod.")},
    "Lightning with SWA": {"state_dict": named("model.", averaged("swa"))},
    "beside other things": {
        "model_state_dict": named(""),
        "metrics": {"loss": torch.ones(2)},
        "optimizer_state_dict": {"state": {}, "param_groups": [{"lr": 0.1}]},
    },
    "tables in tables": {"trainer": {"model": {"state_dict": named("module.")}}},
}


@pytest.mark.parametrize("kind", FILES)
def test_files_of_weights(tmp_path, kind):
    """What training scripts of others write; with and without the model at hand."""
    path, plain = str(tmp_path / "w.pt"), str(tmp_path / "w.safetensors")
    torch.save(FILES[kind], path)
    found = model()
    load_weights(found, path, connect())
    assert main(["weights", path, "--output", plain]) == 0
    again = model()
    load_weights(again, plain, connect())
    state, _ = read_state(path)
    assert list(state) == list(model().state_dict())
    for name, t in model(1).state_dict().items():
        assert torch.equal(found.state_dict()[name], t)
        assert torch.equal(again.state_dict()[name], t)
        assert torch.equal(state[name], t)


def test_safetensors_of_others(tmp_path, capsys):
    """With wrappers' names; what shares memory; what is damaged, of another model or of none."""
    path = str(tmp_path / "w.safetensors")
    wrapped = torch.nn.Sequential(model(1))
    safetensors.torch.save_file({**named("module._orig_mod.")}, path, {"format": "pt"})
    found = model()
    load_weights(found, path, connect())
    save_weights(found, path, connect())
    assert all(map(torch.equal, read_state(path)[0].values(), wrapped[0].state_dict().values()))
    tied = torch.ones(3)
    save_weights(torch.nn.ParameterList([tied, tied[:2]]), path, connect())
    assert [len(t) for t in safetensors.torch.load_file(path).values()] == [3, 2]
    with pytest.raises(InputError, match="these are the weights of another model"):
        load_weights(found, path, connect())
    (tmp_path / "w.safetensors").write_bytes(b"\x08" + bytes(20))
    with pytest.raises(InputError, match="not a checkpoint, or a damaged one"):
        load_weights(found, path, connect())
    assert main(["weights", path, "--output", str(tmp_path / "w.pt")]) == 2
    assert "must end in .safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"model": named(""), "ema": named("")}, "under 'model' and under 'ema'; torch.save one"),
        ({"state_dict": {**named("model."), **named("ema.")}}, "under 'ema.convs.* and under 'mod"),
        ({**named("model."), "loss.weight": torch.ones(3)}, "'loss.weight' lies beside .*'model.'"),
        (averaged("swa", 0), "n_averaged is 0: no weights were averaged"),
        ({**named(""), **named("_orig_mod.")}, "'convs.0.bias' twice"),
        ({**named(""), **named("ema.")}, "'ema.convs.0.bias' .* has no place"),
        ({**named(""), "n_averaged": torch.tensor(3)}, "'n_averaged' .* has no place"),
        ({"state_dict": {**named("model."), "convs.note": "text"}}, "'convs.note' is a str"),
        ({"decay": 0.9, "shadow_params": [torch.ones(3)]}, "not a state_dict: 'decay' is a float"),
        ({"hyper_parameters": object(), "state_dict": named("")}, "no tensors alone"),
    ],
)
def test_files_of_several_models_or_of_none(tmp_path, held, said):
    path = str(tmp_path / "w.pt")
    torch.save(held, path)
    with pytest.raises(InputError, match=said):
        load_weights(model(), path, connect())


def test_modules_inside_of_others(tmp_path):
    """Names are those of the model that is at hand, whatever parts of it are called so too."""

    class Net(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.lin = torch.nn.Linear(2, 2)
            self.encoder = torch.nn.ModuleDict({"lin": torch.nn.Linear(2, 2), "convs": model(seed)})

    for before in ("", "module.", "model."):
        torch.save(named(before, Net(1).state_dict()), tmp_path / "w.pt")
        found = Net(0)
        load_weights(found, str(tmp_path / "w.pt"), connect())
        for name, t in Net(1).state_dict().items():
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
