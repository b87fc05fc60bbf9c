"""Models that attend to all vertices, by the training command: on ranks, from a disk, planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.addons.outofcore.chunked_task import ChunkedTask
from spgnn.addons.plan import predict
from spgnn.addons.plan.graphs import Dataset
from spgnn.comm import connect
from spgnn.config import InferConfig, TrainConfig
from spgnn.data import open_source
from spgnn.frontend.from_config import training_graph
from spgnn.inference.cli import infer_to_file
from spgnn.testing import run_ranks
from spgnn.train.run import task_of
from tests.addons.outofcore.runs import reports

LINEAR = ("sgformer", "polynormer", "gps-performer")
SMALL = {"dataset": "rmat-6-4", "random_features": 5, "random_classes": 3, "layers": 3}
# Of two steps from one rounding another, Adam makes one step.
EXACT = {**SMALL, "hidden": 6, "heads": 2, "epochs": 2, "dtype": "float64", "optimizer": "sgd"}
CHUNKS = {"chunks": 3}


def options(model: str, **others: object) -> dict[str, Any]:
    return {**EXACT, "model": model, "dropout": 0.3, **others}


def gradients(task: Any) -> list[torch.Tensor]:
    """The loss of a rank's own rows, and its gradients."""
    loss = task.loss(0)
    loss.backward()
    parameters = task.model.parameters()
    return [loss.detach(), *(one.grad for one in parameters if one.grad is not None)]


def both(rank: int) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """The same in memory and in chunks, of rows that ranks have at their places."""
    comm, pairs = connect(), []
    for model in LINEAR:
        config = TrainConfig.of(**options(model, partition="block"))
        whole = task_of(config, training_graph(config, comm))
        whole.model.double()
        chunked = ChunkedTask(config.but(**CHUNKS), comm, 0)
        pairs.append((gradients(whole), gradients(chunked)))
        chunked.close()
    return pairs


def work(rank: int, spill: str) -> Any:
    ways = {}, {**CHUNKS, "spill": spill}
    flags = [options(model, **each) for model in LINEAR for each in ways]
    schemes = {"algo": "1.5d", "c": 2, "bits": 8}
    flags += [{**SMALL, "model": model, "epochs": 1, **schemes} for model in LINEAR]
    return reports(rank, flags[: None if connect().size == 2 else -3]), both(rank)


@pytest.mark.parametrize("ranks", [1, 2])
def test_losses_and_gradients_in_chunks_are_those_in_memory(ranks, tmp_path):
    results = run_ranks(work, ranks, str(tmp_path)) if ranks > 1 else [work(0, str(tmp_path))]
    for result, pairs in results:
        for number, (model, (whole, chunked)) in enumerate(zip(LINEAR, pairs, strict=True)):
            torch.testing.assert_close(chunked, whole, rtol=1e-10, atol=1e-12, msg=model)
            histories = (one["history"] for one in result[2 * number : 2 * number + 2])
            for before, after in zip(*histories, strict=True):
                for name in ("loss", "val_loss"):
                    assert after[name] == pytest.approx(before[name], rel=1e-9), model
        assert result[1]["storage"]["read_bytes"]
        for model, report in zip(LINEAR, result[6:], strict=False):
            config = TrainConfig.of(**SMALL, model=model, algo="1.5d", c=2, bits=8, epochs=1)
            price = predict(Dataset.of(open_source("rmat-6-4"), config), None, config, ranks)
            assert price.volume == report["volume"] == report["planned_volume"]


@pytest.mark.parametrize("model", [*LINEAR, "gps"])
def test_the_command_learns_and_infers(model, tmp_path):
    graph = {**SMALL, "model": model, "hidden": 8}
    weights, scores = tmp_path / "weights.safetensors", tmp_path / "scores.npz"
    more = {"epochs": 9, "checkpoint": str(weights), "predictions": str(scores)}
    (report,) = reports(0, [graph | more])
    losses = [epoch["loss"] for epoch in report["history"]]
    assert losses[-1] < losses[0]
    ways: tuple[dict[str, int], ...] = ({}, CHUNKS) if model in LINEAR else ({},)
    for number, chunks in enumerate(ways):
        path = tmp_path / f"{number}.npy"
        config = InferConfig.of(**graph, **chunks, weights=str(weights), output=str(path))
        infer_to_file(config, connect())
        rows = np.load(path)
        assert not np.allclose(np.exp(rows).sum(1), 1)  # logits
        with np.load(scores) as file:
            np.testing.assert_allclose(rows, file["scores"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"model": "gps", "memory": 1 << 30}, "weighs all vertices by a softmax"),
        ({"model": "sgformer", "recompute_halo": True}, "no --recompute-halo"),
        ({"model": "sgformer", "dtype": "bfloat16"}, "needs --dtype float32"),
        ({"model": "polynormer", "norm": "batch"}, "--norm batch needs --model gcn"),
        ({"model": "polynormer", "heads": 3, "hidden": 8}, "multiple of --heads"),
    ],
)
def test_what_they_cannot_do_is_refused_in_one_line(flags, line):
    with pytest.raises(InputError) as error:
        reports(0, [SMALL | flags])
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_plans_refuse_work_that_grows_with_the_square_of_vertices():
    config = TrainConfig.of(**SMALL, model="gps")
    dataset = Dataset.of(open_source("rmat-6-4"), config)
    with pytest.raises(InputError, match="not planned"):
        predict(dataset, None, config, 2)
