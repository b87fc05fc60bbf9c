"""Norms over all vertices, whose rows come part by part."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn.chunked.budget import ORDER, Budget
from spgnn.chunked.moments import Gathered, Returned
from spgnn.chunked.predict import Forecast
from spgnn.chunked.room import Places
from spgnn.chunked.segments import ChunkRows
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.graph.moments import moments
from spgnn.inference.cli import InferConfig, infer_to_file
from spgnn.nn.norm import BatchNorm, GraphNorm, LayerNorm, PairNorm
from spgnn.testing import run_ranks
from spgnn.train import in_parts
from spgnn.train.in_parts import InParts
from tests.chunked.runs import SMALL, check_bytes, check_equal, reports

# One norm a layer, none in the last; two, one in the last (gin); outputs that look at all layers.
MODELS = (
    {"norm": "batch", "dropout": 0.5},
    {"norm": "graph", "model": "sage", "dropout": 0.3, "input_dropout": False},
    {"norm": "pair", "model": "sage", "random_labels": 0.05},
    {"norm": "layer", "model": "gin", "residual": True},
    {"norm": "batch", "model": "gin", "jk": "cat", "dropout": 0.2},
    {"norm": "batch", "model": "gin", "layers": 1},
    {"norm": "batch", "model": "sage", "jk": "max", "random_labels": 0.1},
)


@pytest.mark.parametrize(
    ("ranks", "models"), [(1, (*MODELS[1::3], *MODELS[2::3])), (2, MODELS[::3])]
)
def test_history_is_that_of_memory(ranks, models, tmp_path):
    """Wide numbers: biases before a norm have no gradient but rounding; Adam makes steps of it."""
    spill, flags = {"spill": str(tmp_path)}, []
    for model in models:
        base = {**SMALL, "hidden": 5, **model, "dtype": "float64", "epochs": 2}
        again = {"chunks": 7, "recompute": "always"}
        flags += [base, {**base, "chunks": 1}, {**base, "chunks": 2}, base | again | spill]
    for every_one in run_ranks(reports, ranks, flags):
        for number, found in enumerate(every_one):
            expected = every_one[number - number % 4]
            check_equal(expected["history"], found["history"])
            if found is not expected:
                check_bytes(found["storage"])
    assert not list(tmp_path.iterdir())


def test_training_losses_in_float32(tmp_path):
    """What is trained on does not depend on those biases."""
    flags = []
    for model in MODELS[::2]:
        base = {**SMALL, "hidden": 5, **model}
        flags += [base, {**base, "chunks": 3, "spill": str(tmp_path)}]
    for found in run_ranks(reports, 1, flags):
        for expected, parted in zip(found[::2], found[1::2], strict=True):
            check_bytes(parted["storage"])
            losses = [[e["loss"] for e in one["history"]] for one in (expected, parted)]
            np.testing.assert_allclose(*losses, rtol=1e-5)


def test_panels_change_nothing(tmp_path, monkeypatch):
    tight = Budget(5, Places(frozenset(ORDER), panel_bytes=24), 10**9)
    monkeypatch.setattr(in_parts, "decide", lambda *args, **options: tight)
    base = {**SMALL, **MODELS[4], "dtype": "float64", "hidden": 7}
    flags = [base, {**base, "memory": "4GB", "spill": str(tmp_path)}]
    expected, found = reports(0, flags)
    check_equal(expected["history"], found["history"])
    check_bytes(found["storage"])


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "norm",
    [BatchNorm(3), GraphNorm(3), LayerNorm(3), PairNorm(2.0), PairNorm(scale_individually=True)],
    ids=lambda norm: type(norm).__name__,
)
def test_gradients_are_those_of_all_rows(norm, dtype, offset):
    """Far from zero, too, where squares minus a square would leave nothing."""
    norm = norm.to(dtype)
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(50, 3, generator=generator, dtype=torch.float64) + offset).to(dtype)
    G = torch.randn(50, 3, generator=generator, dtype=torch.float64).to(dtype)
    whole = x.clone().double().requires_grad_()
    reference = _double(norm)
    expected = reference(whole, connect("gloo"))
    expected.backward(G.double())
    pieces = [slice(0, 1), slice(1, 1), slice(1, 30), slice(30, 50)]
    gathered, returned = Gathered(), Returned()
    for piece in pieces:
        gathered.add(norm, x[piece])
    known = gathered.over_ranks(None)
    reached = moments(x.double(), None, None)
    torch.testing.assert_close(known.mean, reached.centre + reached.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(known.variance, reached.variance, rtol=1e-6, atol=0.0)
    nobody = torch.empty(0, dtype=torch.int64)
    for piece in pieces:
        on = ChunkRows(nobody, [known], 0)
        made = norm(x[piece].requires_grad_(), on)
        torch.testing.assert_close(made.double(), expected[piece], rtol=1e-4, atol=2e-5)
        returned.add(made, G[piece], on.leaves)
    known.gradient = returned.over_ranks(None)
    for piece in pieces:
        rows = x[piece].clone().requires_grad_()
        norm(rows, ChunkRows(nobody, [known])).backward(G[piece])
        found, right = rows.grad.double(), whole.grad[piece]
        torch.testing.assert_close(found, right, rtol=1e-4, atol=2e-5)


def _double(norm):
    twin = type(norm)(3) if type(norm) is not PairNorm else PairNorm(norm.scale)
    if type(norm) is PairNorm:
        twin.scale_individually = norm.scale_individually
    return twin.double()


def test_running_statistics_are_those_of_memory(tmp_path):
    """Each epoch once, whatever the number of parts; a run may go on in memory.

    By plain descent: of the rounding that is the gradient of a bias before a norm, Adam makes steps
    that grow a hundredfold from epoch to epoch, and running means have them.
    """
    kept = tmp_path / "kept"
    base = {**SMALL, "norm": "batch", "model": "gin", "dtype": "float64", "epochs": 4}
    base |= {"optimizer": "sgd", "lr": 0.05}
    (straight,) = reports(0, [base])
    flags = {**base, "checkpoint": str(kept), "checkpoint_every": 1}
    spilled = {**flags, "chunks": 3, "spill": str(tmp_path / "spill")}
    reports(0, [{**spilled, "epochs": 2}])
    (found,) = reports(0, [{**spilled, "epochs": 3, "resume": True}])
    check_equal(straight["history"][:3], found["history"])
    (found,) = reports(0, [{**flags, "resume": True}])
    check_equal(straight["history"], found["history"])


def written(rank, config):
    infer_to_file(config, connect("gloo"))


@pytest.mark.parametrize(
    ("ranks", "model"),
    [
        (1, {"model": "gin", "norm": "graph"}),
        (2, {"model": "gin", "norm": "batch"}),
        (1, {"model": "sage", "aggregate": "max"}),
    ],
)
def test_inference(model, ranks, tmp_path):
    """With running moments, and with those of the vertices it is shown."""
    kept, scores = tmp_path / "kept", tmp_path / "scores.npz"
    flags = {**SMALL, **model, "checkpoint": str(kept), "predictions": str(scores)}
    run_ranks(reports, ranks, [flags])
    with np.load(scores) as file:
        expected = file["scores"]
    base = {"dataset": SMALL["dataset"], "random_features": 11, "weights": str(kept), **model}
    for number, storage in enumerate(({"chunks": 3}, {"chunks": 5, "spill": str(tmp_path / "s")})):
        output = str(tmp_path / f"{number}.npy")
        run_ranks(written, ranks, InferConfig.of(**base, **storage, output=output))
        np.testing.assert_allclose(np.load(output), expected, rtol=1e-4, atol=1e-4)


def test_sizes_foretell_what_the_built_tables_move(tmp_path):
    for model in MODELS:
        flags = {**SMALL, **model, "chunks": 3, "spill": str(tmp_path)}
        task = InParts(TrainConfig.of(**flags), connect("gloo"), 0)
        assert Forecast.of_sizes(task.sizes, task.budget) == task.forecast
        task.close()


def test_progress_inside_an_epoch():
    """A pass for each norm, forward and backward."""
    task = InParts(TrainConfig.of(**SMALL, norm="batch", model="gin", chunks=5), connect("gloo"), 0)
    told: list[tuple[int, int]] = []
    task.progress = lambda what, done, total: told.append((done, total))
    task.loss(0).backward()
    # Two norms in the first two layers, one in the last, whose backward begins at once.
    forward, backward = 5 * (3 + 3 + 2 + 1), 5 * (3 + 3)
    assert told == [
        *((n + 1, forward) for n in range(forward)),
        *((n + 1, backward) for n in range(backward)),
    ]
