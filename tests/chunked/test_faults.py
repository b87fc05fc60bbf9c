"""What goes wrong with a disk is said in one line, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn.chunked.blocks import BlockWriter, FileBlocks, Stretch
from spgnn.chunked.moments import Returned
from spgnn.chunked.network import Network
from spgnn.chunked.table import MappedRows
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data.load import load_dataset
from spgnn.data.shards import write_shards
from spgnn.direct import DirectFile, Transfers, pages_held
from spgnn.errors import InputError
from spgnn.files import scratch_directory
from spgnn.inference.cli import InferConfig, infer_to_file
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train.in_parts import InParts
from spgnn.train.run import train
from tests.chunked.runs import SMALL, check_equal, reports
from tests.comm.jobs import Forked
from tests.training import write_dataset

ATTENTION = (
    {"model": "gat", "heads": 2, "hidden": 6, "attention_dropout": 0.3, "dropout": 0.5},
    {"model": "gatv2", "heads": 2, "hidden": 6, "residual": True},
)


def solo():
    return connect("gloo")


def alone(**flags):
    return train(TrainConfig.of(**{**SMALL, **flags}), solo())


def failing(monkeypatch, name, number, after):
    """A call of the system that fails from some call on."""
    real, calls = getattr(os, name), []

    def call(*args):
        calls.append(args)
        if len(calls) > after:
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("model", [{}, *ATTENTION], ids=lambda model: model.get("model", "gcn"))
@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_fails_in_the_middle(call, model, tmp_path, monkeypatch):
    spill, kept = tmp_path / "spill", tmp_path / "kept"
    flags = {**model, "checkpoint": str(kept), "checkpoint_every": 1}
    straight = alone(**flags)
    for path in kept.iterdir():
        path.unlink()
    kept.rmdir()
    whole = alone(**flags, spill=str(spill), chunks=3, epochs=2)
    assert len(whole["history"]) == 2
    wrong = {"pwritev": (errno.ENOSPC, "No space left"), "preadv": (errno.EIO, "Input/output")}
    number, said = wrong[call]
    with monkeypatch.context() as patched:
        failing(patched, call, number, after=20)
        with pytest.raises(InputError, match=rf"{re.escape(str(spill))}/.*: cannot be .*{said}"):
            alone(**flags, spill=str(spill), chunks=3, resume=True)
    assert not list(spill.iterdir())
    resumed = alone(**flags, spill=str(spill), chunks=3, resume=True)
    check_equal(straight["history"], resumed["history"])


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_a_disk_that_fails_while_norms_get_their_gradients(call, tmp_path, monkeypatch):
    """What a layer makes and what the next one looks at then have their gradients in one table."""
    real, passes = Network._through_norms, []

    def failing_there(self, *given):
        passes.append(given)
        if len(passes) == 3:  # of the first layer
            failing(monkeypatch, call, errno.EIO, after=0)
        return real(self, *given)

    monkeypatch.setattr(Network, "_through_norms", failing_there)
    with pytest.raises(InputError, match=r"cannot be .*Input/output"):
        alone(model="sage", norm="batch", layers=3, chunks=4, spill=str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_an_epoch_after_one_that_was_broken_off(monkeypatch):
    task = InParts(TrainConfig.of(**SMALL, norm="batch", chunks=4, dtype="float64"), solo(), 0)
    gradients = []
    for breaks in (False, True):
        task.model.zero_grad()
        if breaks:
            with monkeypatch.context() as patched:
                patched.setattr(Returned, "add", broken_off_after(Returned.add, 2))
                with pytest.raises(KeyboardInterrupt):
                    task.loss(0).backward()
        task.loss(0).backward()
        gradients.append([p.grad for p in task.model.parameters()])
    for expected, found in zip(*gradients, strict=True):
        assert torch.equal(expected, found)


def broken_off_after(real, number):
    calls = []

    def call(*given):
        if len(calls) == number:
            raise KeyboardInterrupt
        calls.append(given)
        return real(*given)

    return call


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


def sharded(path, parts):
    write_shards(load_dataset("sbm"), None, parts, path)
    return path


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_directory_is_read_part_by_part(ranks, tmp_path):
    base = {"dataset": str(sharded(tmp_path / "graph", ranks)), "epochs": 3, "dropout": 0.3}
    flags = [base, {**base, "chunks": 4}, {**base, "chunks": 3, "spill": str(tmp_path / "spill")}]
    for expected, *others in run_ranks(reports, ranks, flags):
        for found in others:
            check_equal(expected["history"], found["history"])


@pytest.mark.parametrize("name", ["x", "indices", "indptr"])
def test_a_truncated_file(name, tmp_path):
    path = sharded(tmp_path / "graph", 1)
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
    with pytest.raises(InputError, match=r"rows: ends after 9000 bytes; needs 9001"):
        opened.read(101, 8900)

    os.truncate(file, 100)
    with pytest.raises(InputError, match=r"rows: ends after 100 bytes; needs 9001"):
        opened.read(8500, 501)


def in_files():
    """Bytes of files, of the disk or of memory, that this process has mapped and touched."""
    told = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(1024 * int(told[name].split()[0]) for name in ("RssFile", "RssShmem"))


def test_outputs_in_a_file_take_no_memory(tmp_path, monkeypatch):
    before = in_files()
    held = MappedRows(tmp_path / "outputs", (1 << 16, 128), torch.float32)
    wanted = torch.rand(1 << 16, 128)
    held.rows[:] = wanted
    assert in_files() - before > wanted.nbytes // 2
    held.give_back()
    assert in_files() - before < wanted.nbytes // 4
    assert torch.equal(held.rows, wanted)
    # What finds no room when it is touched would end the process by a signal.
    monkeypatch.setattr(os, "posix_fallocate", failing_room)
    with pytest.raises(InputError, match=r"more: cannot be written: No space left"):
        MappedRows(tmp_path / "more", (3, 4), torch.float32)


def failing_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_columns_that_do_not_exist(tmp_path):
    A = CSR.of(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1], dtype=torch.int32), (2, 2))
    writer = BlockWriter(tmp_path, "A", 2, weighted=False, counts=Transfers())
    writer.add(A)
    writer.finish()
    (tmp_path / "A.indices").write_bytes(np.array([0, 1, 2], np.int32).tobytes())
    where = {name: Stretch(tmp_path / f"A.{name}") for name in ("indptr", "indices")}
    blocks = FileBlocks((0, 1, 2), 2, **where, values=None, counts=Transfers())
    with pytest.raises(InputError, match=r"A\.indices: columns must be in \[0, 2\)"):
        list(blocks.stream())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"algo": "1.5d", "c": 1, "cover": "minimum"}, "--cover column"),
        ({"task": "links"}, "labels of vertices"),
        ({"dtype": "bfloat16"}, "--dtype float32 or float64"),
        ({"memory": "5"}, "5 bytes are less than any process takes by itself.*with a unit"),
    ],
)
def test_what_parts_do_not_know(flags, said):
    with pytest.raises(InputError, match=said):
        TrainConfig.of(**{"chunks": 3, **flags}).check(1)


def test_no_more_parts_than_rows(tmp_path):
    graph = write_dataset(tmp_path / "graph.npz")
    found = alone(dataset=str(graph), chunks=10**6, epochs=1)
    assert found["storage"]["chunks"] == found["graph"]["vertices"]


def written(rank, config):
    infer_to_file(config, connect("gloo"))


def test_flags_of_inference_in_parts():
    given = {"weights": "kept", "output": "scores.npy"}
    for storage in ({"chunks": 3}, {"spill": "somewhere"}, {"memory": "1GB"}):
        InferConfig.of(**given, **storage).check(2)
        with pytest.raises(InputError, match="--cover column"):
            InferConfig.of(**given, **storage, cover="minimum").check(2)
    with pytest.raises(InputError, match="scores are written"):
        InferConfig.of(**given, chunks=3, layer=1).check(1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_inference_in_parts(ranks, tmp_path):
    kept, scores = tmp_path / "kept", tmp_path / "scores.npz"
    flags = {**SMALL, "checkpoint": str(kept), "predictions": str(scores), "chunks": 3}
    run_ranks(reports, ranks, [{**flags, "spill": str(tmp_path / "spill")}])
    with np.load(scores) as file:
        expected = file["scores"]
    base = {"dataset": SMALL["dataset"], "random_features": 11, "weights": str(kept)}
    for number, storage in enumerate(({}, {"chunks": 5, "spill": str(tmp_path / "more")})):
        output = str(tmp_path / f"{number}.npy")
        run_ranks(written, ranks, InferConfig.of(**base, **storage, output=output))
        np.testing.assert_allclose(np.load(output), expected, rtol=1e-5, atol=1e-6)
    assert torch.isfinite(torch.from_numpy(expected)).all()
