"""Models by flags: the losses of one process, at any P, under any scheme."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.registry import MODELS
from spgnn.testing import run_ranks
from spgnn.train import Trainer, train
from spgnn.train.run import task_of
from spgnn.train.task import model_of
from tests.training import run, write_dataset

EPOCHS = 5

CASES = [
    {"norm": "batch", "jk": "cat"},
    {"norm": "layer", "act": "elu"},
    {"norm": "node", "jk": "max"},
    {"model": "sage", "aggregate": "sum", "norm": "batch"},
    {"model": "sage", "aggregate": "max", "act": "tanh"},
    {"model": "gin", "norm": "batch", "jk": "last"},
    {"model": "gat", "heads": 4, "jk": "cat"},
    {"model": "gatv2", "heads": 2, "norm": "batch", "act": "elu"},
]


def base(path: Path, **flags: object) -> TrainConfig:
    return TrainConfig.of(dataset=path, epochs=EPOCHS, hidden=8, partition="random", **flags)


def test_flags_are_options_of_the_models():
    """What models of these options are is in tests/nn."""
    for flags in CASES:
        others = (
            {"norm": "layer", "norm_kwargs": {"mode": "node"}} if "node" in flags.values() else {}
        )
        options = {"aggr" if name == "aggregate" else name: value for name, value in flags.items()}
        kind = options.pop("model", "gcn")
        config = base(Path("none"), **flags)
        assert config.model.options == options | others
        made, same = model_of(config, 5, 3), MODELS[kind].of([5, 8, 8, 3], **options | others)
        assert str(made) == str(same)


# What PyG's models do not have, and dropout, which is a function of the vertex here.
OURS = [
    {"residual": True, "norm": "batch", "dropout": 0.5},
    {"residual": True, "model": "sage", "input_dropout": False, "dropout": 0.3, "jk": "cat"},
    {"model": "gat", "heads": 2, "attention_dropout": 0.6, "message_dropout": 0.3},
    {"model": "gatv2", "dropout": 0.5, "attention_dropout": 0.0, "norm": "node"},
    {"model": "gat-relu-first", "heads": 2, "dropout": 0.2},
]


# Every exchange there is; where it does not fit the number of ranks, or the model, it is refused.
EVERY_SCHEME = [
    *({"cover": cover, "prune": cover != "row"} for cover in ("column", "row", "minimum")),
    {"exchange": "oblivious"},
    *({"algo": algo, "c": 2, "cover": "minimum"} for algo in ("1.5d", "2d", "feature")),
    {"algo": "3d", "c": 2, "prune": False},
    {"algo": "feature", "c": 8},
    {"algo": "feature", "c": 3},
    {"algo": "vertex-cut", "cover": "minimum"},
    {"hierarchy": "2"},
    {"hierarchy": "4", "cover": "minimum", "algo": "1.5d", "c": 2},
    {"schedule": "peers", "buffer": 1 << 12},
    {"recompute_halo": True, "cover": "minimum"},
]


def fitting(config: TrainConfig, ranks: int) -> list[TrainConfig]:
    """The model under every scheme that takes it."""
    found = []
    for scheme in EVERY_SCHEME:
        try:
            one = config.but(**scheme)
            one.check(ranks)
        except InputError:
            continue
        found.append(one)
    return found


@pytest.mark.parametrize(
    ("ranks", "every", "sparse"),
    [
        (4, 11, False),
        *(pytest.param(ranks, 1, ranks == 3, marks=pytest.mark.slow) for ranks in (1, 3, 8)),
    ],
)
def test_losses_do_not_depend_on_ranks_and_schemes(tmp_path, ranks, every, sparse):
    """Each `every`-th of all models and schemes has the losses of one process."""
    path = write_dataset(tmp_path / "graph.npz", sparse=sparse)
    alone, cases = [], []
    for flags in (*CASES, *OURS):
        config = base(path, **flags)
        alone.append(run(config, connect())[0])
        cases += [(len(alone) - 1, one) for one in fitting(config, ranks)]
    assert len(cases) >= 60
    cases = cases[::every]
    found = run_ranks(lambda rank: [run(one, connect()) for _, one in cases], ranks)[0]
    for (number, one), (losses, report) in zip(cases, found, strict=True):
        np.testing.assert_allclose(losses, alone[number], rtol=1e-4, err_msg=str(one))
        assert report["volume"] == report["planned_volume"], one


def test_flags_are_in_the_report_and_the_checkpoint(tmp_path):
    flags = {"model": "gat", "heads": 2, "norm": "batch", "residual": True}
    config = base(write_dataset(tmp_path / "graph.npz"), **flags, attention_dropout=0.25)
    config = config.but(checkpoint=tmp_path / "run")
    told = train(config, connect())["config"]
    assert told == told | flags | {"attention_dropout": 0.25, "jk": "none", "act": "relu"}
    for other, said in (({"heads": 4}, "heads 2, not 4"), ({"act": "elu"}, "act None, not elu")):
        with pytest.raises(InputError, match=f"was made with {said}"):
            train(config.but(resume=True, **other), connect())


def check_normed(rank: int, path: Path, norm: str, model: str) -> tuple[np.ndarray, bool]:
    """Losses of training and validation, and whether a bias that the norm takes off has moved."""
    config, comm = base(path, norm=norm, model=model), connect()
    config = config.but(epochs=12, dtype="float64", eval_every=1)
    task = task_of(config, training_graph(config, comm))
    trainer = Trainer(task, options=config.training)
    trainer.run()
    first = task.layers.convs[0]
    bias = first.bias if model == "gcn" else first.lin_l.bias
    losses = np.array([[record["loss"], record["val_loss"]] for record in trainer.history])
    return losses, bool(bias.any())


@pytest.mark.parametrize(
    ("norm", "model"), [("batch", "gcn"), ("graph", "gcn"), ("graph", "sage"), ("pair", "sage")]
)
def test_a_norm_makes_no_difference_between_ranks(tmp_path, norm, model):
    """Adam makes whole steps of gradients that are rounding alone: these are 0, not nearly 0."""
    path = write_dataset(tmp_path / "graph.npz")
    (alone, moved) = run_ranks(check_normed, 1, path, norm, model)[0]
    # What is left of the mean of a GraphNorm depends on the bias, once its scale is learnt.
    assert moved == (norm == "graph")
    for ranks in (2, 3):
        found, _ = run_ranks(check_normed, ranks, path, norm, model)[0]
        np.testing.assert_allclose(found, alone, rtol=1e-10)
