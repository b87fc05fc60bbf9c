"""What goes wrong with data or a disk is said in one line, and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from spgnn import nn
from spgnn.addons.outofcore import chunked_task as chunked_data
from spgnn.addons.outofcore.blocks import FileBlocks, FileExtent, MatrixStorage
from spgnn.addons.outofcore.chunked_model import ChunkedModel, MomentGradients
from spgnn.addons.outofcore.chunked_task import ChunkedTask
from spgnn.addons.outofcore.passes import ChunkedPass
from spgnn.comm import connect
from spgnn.config import InferConfig, TrainConfig
from spgnn.data.load import load_dataset
from spgnn.data.shards import write_shards
from spgnn.direct import DirectFile, Transfers, pages_held
from spgnn.errors import InputError
from spgnn.files import scratch_directory
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train.run import train
from tests.addons.diskbatches.test_negative_weights import WORDS, dataset
from tests.addons.outofcore.runs import SMALL, check_equal, reports, task_of
from tests.comm.jobs import Forked
from tests.training import write_dataset

ATTENTION = (
    {"model": "gat", "heads": 2, "hidden": 6, "attention_dropout": 0.3, "dropout": 0.5},
    {"model": "gatv2", "heads": 2, "hidden": 6, "residual": True},
)


def alone(**flags):
    return train(TrainConfig.of(**{**SMALL, "epochs": 3, **flags}), connect("gloo"))


def failing(monkeypatch, name, number, after):
    """A call of the system that fails from some call on."""
    real, calls = getattr(os, name), []

    def call(*args):
        calls.append(args)
        if len(calls) > after:
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize(
    ("call", "model"),
    [
        ("pwritev", {}),
        ("preadv", ATTENTION[0]),
        *(pytest.param("pwritev", model, marks=pytest.mark.slow) for model in ATTENTION),
        *(pytest.param("preadv", model, marks=pytest.mark.slow) for model in ({}, ATTENTION[1])),
    ],
)
def test_a_disk_that_fails_in_the_middle(call, model, tmp_path, monkeypatch):
    spill, kept = tmp_path / "spill", tmp_path / "kept"
    flags = {**model, "checkpoint": str(kept), "checkpoint_every": 1}
    straight = alone(**model)
    flags |= {"spill": str(spill), "chunks": 3}
    assert len(alone(**flags, epochs=2)["history"]) == 2
    wrong = {"pwritev": (errno.ENOSPC, "No space left"), "preadv": (errno.EIO, "Input/output")}
    number, words = wrong[call]
    with monkeypatch.context() as patched:
        failing(patched, call, number, after=20)
        with pytest.raises(InputError, match=rf"{re.escape(str(spill))}/.*: cannot be .*{words}"):
            alone(**flags, resume=True)
    assert not list(spill.iterdir())
    check_equal(straight["history"], alone(**flags, resume=True)["history"])


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_fails_while_norms_get_their_gradients(call, tmp_path, monkeypatch):
    """A layer's output and the next one's input then have their gradients in one table."""
    real, passes = ChunkedPass._through_norms, []

    def failing_there(self, number):
        passes.append(number)
        if len(passes) == 3:  # of the first layer
            failing(monkeypatch, call, errno.EIO, after=0)
        return real(self, number)

    monkeypatch.setattr(ChunkedPass, "_through_norms", failing_there)
    with pytest.raises(InputError, match=r"cannot be .*Input/output"):
        alone(model="sage", norm="batch", layers=3, chunks=4, spill=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_an_epoch_after_one_that_was_broken_off(monkeypatch):
    task, real, calls = task_of(norm="batch", chunks=4, dtype="float64"), MomentGradients.add, []

    def broken_off(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments)
        return real(*arguments)

    task.loss(0).backward()
    expected = [p.grad for p in task.model.parameters()]
    task.model.zero_grad()
    with monkeypatch.context() as patched:
        patched.setattr(MomentGradients, "add", broken_off)
        with pytest.raises(KeyboardInterrupt):
            task.loss(0).backward()
    task.loss(0).backward()
    assert all(map(torch.equal, expected, (p.grad for p in task.model.parameters())))


def test_nothing_of_tables_stays_in_memory():
    """What a run takes is measured beside what earlier ones in its process left."""
    before = pages_held()
    alone(chunks=3)
    assert pages_held() <= before


def test_what_a_killed_run_left_is_removed(tmp_path):
    other = tmp_path / "of-somebody-else"
    other.mkdir()

    def killed():
        with scratch_directory(tmp_path, "--spill") as mine:
            (mine / "inside").mkdir()
            os.kill(os.getpid(), signal.SIGKILL)

    assert Forked(killed, other).wait().status == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with scratch_directory(tmp_path, "--spill") as mine:
        assert sorted(tmp_path.iterdir()) == sorted([mine, other])
        assert not list(mine.iterdir())
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("name", ["x", "indices", "indptr"])
def test_a_truncated_file(name, tmp_path):
    path = tmp_path / "graph"
    write_shards(load_dataset("sbm"), None, 1, path)
    file = path / "part-00000" / f"{name}.npy"
    with file.open("rb+") as opened:
        opened.truncate(file.stat().st_size - 50)
    with pytest.raises(InputError, match=rf"{name}\.npy: truncated"):
        alone(dataset=str(path), spill=str(tmp_path / "spill"), random_features=0)


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    file = tmp_path / "rows"
    file.write_bytes(bytes(10_000))
    opened = DirectFile(file, Transfers())
    os.truncate(file, 9000)
    assert opened.read(100, 8900).tolist() == [0] * 8900
    for size, where in ((9000, (101, 8900)), (100, (8500, 501))):
        os.truncate(file, size)
        with pytest.raises(InputError, match=rf"rows: ends after {size} bytes; needs 9001"):
            opened.read(*where)


def test_columns_that_do_not_exist(tmp_path):
    A = CSR.of(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32), (2, 2))
    MatrixStorage(tmp_path, Transfers()).copied("A", 2, [A])
    (tmp_path / "A.indices").write_bytes(np.array([0, 1, 2], np.int32).tobytes())
    where = {name: FileExtent(tmp_path / f"A.{name}") for name in ("indptr", "indices")}
    blocks = FileBlocks((0, 1, 2), 2, **where, values=None, counts=Transfers())
    with pytest.raises(InputError, match=r"A\.indices: columns must be in \[0, 2\)"):
        list(blocks.stream())


INFER = {"weights": "kept", "output": "scores.npy"}


def test_what_chunks_do_not_infer():
    for flags, words in (({"cover": "minimum"}, "--cover column"), ({"layer": 1}, "scores are")):
        with pytest.raises(InputError, match=words):
            InferConfig.of(**INFER, chunks=3, **flags).check(1)
    for storage in ({"chunks": 3}, {"spill": "somewhere"}, {"memory": "1GB"}):
        InferConfig.of(**INFER, **storage).check(2)


def test_no_more_chunks_than_rows(tmp_path):
    graph = write_dataset(tmp_path / "graph.npz")
    report = alone(dataset=str(graph), chunks=10**6, epochs=1)
    assert report["storage"]["chunks"] == report["graph"]["vertices"]


# Files of edges that do not fit into memory become a graph directory before training.
EDGES = {"model": "sage", "random_features": 5, "random_classes": 3, "epochs": 2, "dropout": 0.3}
MEMORY = 3 * 2**30


def edge_file(path, vertices=80, edges=500) -> str:
    drawn = np.random.default_rng(0).integers(0, vertices, (edges, 2))
    # Names that are no numbers of rows.
    path.write_text("".join(f"{7 * u} {7 * v}\n" for u, v in drawn))
    return str(path)


@pytest.mark.parametrize("symmetrise", [True, False])
def test_a_large_file_of_edges(tmp_path, monkeypatch, symmetrise):
    base = {**EDGES, "dataset": edge_file(tmp_path / "g.txt"), "symmetrise": symmetrise}
    spill, seen, sort = tmp_path / "spill", [], chunked_data._sorted_into
    chunked = {**base, "spill": str(spill), "memory": MEMORY, "chunks": 3}

    def sorted_into(scratch, config):
        seen.append(scratch)
        return sort(scratch, config)

    monkeypatch.setattr(chunked_data, "_sorted_into", sorted_into)
    for large in (False, True):
        if large:
            monkeypatch.setattr(chunked_data, "_READ_IN_MEMORY", MEMORY)
        seen.clear()
        ((both, scratches),) = run_ranks(lambda rank: (reports(rank, [base, chunked]), seen), 1)
        check_equal(both[0]["history"], both[1]["history"])
        assert len(scratches) == large
    ((two,), _) = run_ranks(reports, 2, [chunked])  # reads it as ever
    check_equal(both[0]["history"], two["history"])
    assert not list(spill.iterdir())


def test_what_is_wrong_in_a_file_leaves_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(chunked_data, "_READ_IN_MEMORY", MEMORY)
    path, spill = tmp_path / "g.txt", tmp_path / "spill"
    path.write_text("0 1\n1 x\n")
    flags = {**EDGES, "dataset": str(path), "spill": str(spill), "memory": MEMORY}
    with pytest.raises(RuntimeError, match="status 2"):
        run_ranks(reports, 1, [flags])
    assert "g.txt, line 2: 'x' is not an integer" in capfd.readouterr().err
    assert not list(spill.iterdir())


@pytest.mark.slow
def test_memory_that_was_asked_for_is_enough(tmp_path):
    """12 million edges between 7 million vertices, either way."""
    path = edge_file(tmp_path / "g.txt", 1_000_000, 12_000_000)
    report = tmp_path / "report.json"
    command = [sys.executable, "experiments/gcn.py", "--dataset", path, "--symmetrise"]
    command += ["--memory", "900MiB", "--spill", str(tmp_path / "spill"), "--epochs", "1"]
    command += ["--random-features", "8", "--random-classes", "4", "--json", str(report)]
    subprocess.run(command, check=True, timeout=900)
    memory = json.loads(report.read_text())["memory"]
    assert memory["max_rank_peak_bytes"] <= 1.05 * 900 * 2**20


def test_layers_that_no_chunk_makes_alone():
    """Without features of edges that they need; with a norm inside; with products of their own."""
    for layer, words in (
        (nn.GINEConv(torch.nn.Linear(3, 4), edge_dim=3), "GIN.*chunks: GINEConv needs edge_attr"),
        (nn.CGConv(3, batch_norm=True), "chunks: a norm over all vertices inside a layer"),
        (nn.SGConv(3, 4, 2), "chunks: a layer that multiplies with the matrix itself"),
    ):
        stack = nn.GIN(3, 4, 2, 2)
        stack.convs[0] = layer
        with pytest.raises(InputError, match=words):
            ChunkedModel(stack)


@pytest.mark.parametrize("ranks", [1, 3])
def test_negative_degrees_are_refused_on_every_rank(tmp_path, ranks):
    path = dataset(tmp_path)

    def refused(rank: int) -> bool:
        comm = connect()
        for model in ("gcn", "sage"):
            config = TrainConfig.of(dataset=str(path), model=model, partition="random")
            with pytest.raises(InputError, match=WORDS):
                ChunkedTask(config, comm, 0)
        return True

    assert all(run_ranks(refused, ranks))
