"""The training command on directories of tables: any number of ranks, checkpoints, inference."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from spgnn import InputError
from spgnn.comm import connect
from spgnn.config import InferConfig, TrainConfig
from spgnn.inference.cli import infer_to_file
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.addons.hetero.test_tables import change, content, tables

MODELS: dict[str, dict[str, Any]] = {"rgcn": {}, "rgat": {"heads": 2}, "hgt": {"heads": 2}}
COMMON: dict[str, Any] = {
    "hidden": 8,
    "layers": 2,
    "dropout": 0.3,
    "dtype": "float64",
    "partition": "random",
    "seed": 3,
}


def on_ranks(rank: int, folder: str) -> dict[str, list[dict[str, Any]]]:
    """Histories: straight, and in two halves; predictions; and what `spgnn infer` writes."""
    comm, result = connect(), {}
    for name, options in MODELS.items():
        out = f"{folder}/{name}-{comm.size}"
        how = {"dataset": f"{folder}/tables", "model": name, **COMMON, **options}
        straight = TrainConfig.of(**how, epochs=4, predictions=f"{out}.parquet")
        result[name] = copy.deepcopy(train(straight, comm)["history"])
        if comm.size == 1:
            continue
        saved = {**how, "checkpoint": f"{out}.checkpoint"}
        train(TrainConfig.of(**saved, epochs=2), comm)
        whole = train(TrainConfig.of(**saved, epochs=4, resume=True), comm)
        result[f"{name} resumed"] = whole["history"]
        spilled = {**how, "spill": f"{folder}/scratch", "memory": "4GB"}
        result[f"{name} spilled"] = train(TrainConfig.of(**spilled, epochs=4), comm)["history"]
        weights = {"weights": saved["checkpoint"], "output": f"{out}.infer.parquet"}
        infer_to_file(InferConfig.of(**spilled, **weights), comm)
    return result


def test_each_model_learns_the_same_on_any_number_of_ranks(tmp_path):
    """Losses with dropout, of a resumed run and from a disk; scores by the file's ids."""
    tables(tmp_path / "tables")
    change("edges/paper__cites__paper", weight=None)(tmp_path / "tables")
    one, three = (run_ranks(on_ranks, P, str(tmp_path))[0] for P in (1, 3))
    for name in MODELS:
        losses = [record["loss"] for record in one[name]]
        assert losses[-1] < losses[0]
        for other in (three[name + suffix] for suffix in ("", " resumed", " spilled")):
            assert [record["loss"] for record in other] == pytest.approx(losses, rel=1e-10)
            assert other[-1]["val_loss"] == pytest.approx(one[name][-1]["val_loss"], rel=1e-10)
        columns = [pq.read_table(tmp_path / f"{name}-{P}.parquet") for P in (1, 3)]
        inferred = pq.read_table(tmp_path / f"{name}-3.infer.parquet")
        for table in (*columns, inferred):
            assert table["id"].to_pylist() == content()["papers"].tolist()
        scores = [np.array(table["scores"].to_pylist()) for table in columns]
        scores.append(np.array(inferred["output"].to_pylist()))
        for other in scores[1:]:
            np.testing.assert_allclose(other, scores[0], rtol=1e-5, atol=1e-6)


def refusals(rank: int, folder: str, cases: list[dict[str, Any]]) -> list[str]:
    """The line of each configuration that cannot work."""
    lines = []
    for options in cases:
        with pytest.raises(InputError) as raised:
            train(TrainConfig.of(**{"dataset": f"{folder}/tables", **COMMON, **options}), connect())
        lines.append(str(raised.value))
    return lines


def test_what_several_types_do_not_know_is_refused_on_every_rank(tmp_path):
    tables(tmp_path / "tables")
    labels = {"y": [0, 1, 1, 0, 1], "split": ["train"] * 5}
    change("nodes/venue", **labels)(tmp_path / "tables")
    bare = tmp_path / "bare"  # without weights
    tables(bare)
    change("edges/paper__cites__paper", weight=None)(bare)
    cases = {
        "vertex types with labels y are paper, venue: target= names one": {"model": "rgat"},
        "no vertex type 'papers' in the graph": {"model": "rgat", "target": "papers"},
        "--target author: its vertices have no labels y; types that have them: paper, venue": {
            "model": "rgat",
            "target": "author",
        },
        "has weights: leave them out": {"model": "rgcn", "target": "paper"},
        "--target paper needs a model of several vertex types, not --model gcn": {
            "target": "paper"
        },
        "tables of several vertex types: spgnn.distribute": {"model": "gcn", "dtype": "float32"},
        "sbm: no such file or directory; --model hgt needs a directory of nodes/TYPE": {
            "model": "hgt",
            "dataset": "sbm",
        },
        "conftest.py: --model hgt needs a directory of nodes/TYPE": {
            "model": "hgt",
            "dataset": str(Path(__file__).with_name("conftest.py")),
        },
        "--model rgcn knows no --heads 2": {"model": "rgcn", "heads": 2},
        "--model hgt knows no --norm batch": {"model": "hgt", "norm": "batch"},
        "--model hgt knows --spill, alone or with --memory: no --chunks 2": {
            "model": "hgt",
            "chunks": 2,
        },
        "--model rgat knows no --recompute-halo": {"model": "rgat", "recompute_halo": True},
        "--model rgat is of several vertex types, and plans (spgnn plan, --plan) are of one": {
            "model": "rgat",
            "plan": "auto",
        },
        "MiB are needed, for one vertex": {
            "model": "hgt",
            "dataset": str(bare),
            "target": "paper",
            "spill": str(tmp_path),
            "memory": "2MiB",
        },
        "--model rgcn learns labels": {"model": "rgcn", "task": "links"},
    }
    for lines in run_ranks(refusals, 2, str(tmp_path), [*cases.values()]):
        for message, line in zip(cases, lines, strict=True):
            assert message in line
            assert "\n" not in line
