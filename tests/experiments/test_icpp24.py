"""The tables and figures of experiments/icpp24.py, on tiny graphs."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import paper
import pytest
import scipy.sparse as sp
from paper import published
from paper.commands import FIGURES, MEASURED, OF_FIGURE, main
from paper.graphs import DATASETS, PaperGraph, real_graph, stand_in_of
from paper.measured import KINDS, measured
from paper.published import Compared, summary
from paper.slow_link import RepeatedWork
from paper.times import (
    AWARE,
    COVERED,
    GVB,
    METIS,
    OBLIVIOUS,
    OURS,
    OURS_HALO,
    Model,
    Point,
    points,
    predicted,
    scaled,
)
from paper.volumes import objective_of, read_cells, volumes
from papers import RATIOS, recorded, shown

from spgnn import InputError
from spgnn.addons.plan.graphs import Partitions
from spgnn.addons.plan.ranks import VirtualRanks
from spgnn.data import load_dataset
from spgnn.machine import (
    Conditions,
    Gather,
    Gemm,
    Level,
    Levels,
    Link,
    Machine,
    Overhead,
    Spmm,
    Streams,
    write_machine,
)
from spgnn.progress import ProgressBar
from tests.comm.jobs import wait_for

LINK = Link(0.0, 1e-6, 1e10)
MACHINE = Machine(
    "test",
    cores=4,
    ranks_a_node=4,
    memory=0.0,
    conditions=Conditions(4, 1),
    levels=Levels(Level(LINK, LINK), Level(Link(0.0, 1e-5, 1e9), Link(0.0, 1e-5, 1e9))),
    overlap=0.5,
    spmm=Spmm((1e6,), (16.0, 256.0), ((1e-10, 1e-9),), (1e-10, 1e-9)),
    gather=Gather((16.0, 256.0), (1e-10, 1e-9)),
    gemm=Gemm((16.0,), (1e12,)),
    streams=Streams(1e12, 1e12, 1e12),
    overhead=Overhead(1e-6, 1e-6, 1e-5, 0.0),
)
SCALE = 5e-5
MODEL = Model(layers=3, hidden=16)
SCHEMES = (OBLIVIOUS, AWARE, METIS, GVB, COVERED, OURS, OURS_HALO)


@pytest.fixture(scope="module")
def graph() -> PaperGraph:
    return stand_in_of("amazon", SCALE)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def partitions(graph, cache) -> Partitions:
    return Partitions(graph.data, cache)


@pytest.fixture(scope="module")
def machine_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("machine") / "test.json"
    write_machine(MACHINE, path)
    return path


def rows_sent(A: sp.csr_array, labels: np.ndarray, parts: int) -> np.ndarray:
    """Rows that each part sends when columns pay, counted pair by pair."""
    rows, columns = A.nonzero()
    needed = np.zeros((A.shape[0], parts), bool)
    needed[columns, labels[rows]] = True
    needed[np.arange(A.shape[0]), labels] = False
    return np.bincount(labels, weights=needed.sum(axis=1), minlength=parts)


def looped(graph: PaperGraph) -> sp.csr_array:
    A = graph.data.structure
    n = A.shape[0]
    ones = np.ones(A.nnz, np.float32)
    return sp.csr_array((ones, A.indices.numpy(), A.indptr.numpy()), (n, n)) + sp.eye_array(n)


def records(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("dataset", DATASETS)
def test_a_stand_in_is_the_known_one_without_features(dataset):
    mine, known = stand_in_of(dataset, 2e-5), load_dataset(f"{dataset}-like@2e-5")
    assert np.array_equal(mine.data.structure.indptr, known.adjacency.indptr)
    assert np.array_equal(mine.data.structure.indices, known.adjacency.indices)
    assert np.array_equal(mine.data.labelled, known.train_mask)
    assert (mine.data.features, mine.data.classes) == (known.x.shape[1], mine.data.classes)
    assert mine.vertices == round(mine.factor * mine.data.vertices)


def test_volumes_are_those_counted_pair_by_pair(graph, partitions):
    A = looped(graph)
    found = list(volumes(graph, partitions, (3, 8)))
    assert [(row.ranks, row.method) for row in found] == [
        (parts, method) for parts in (3, 8) for method in ("random", "metis", "gvb")
    ]
    for row in found:
        sent = rows_sent(
            A, partitions.labels(row.method, objective_of(row.method), row.ranks), row.ranks
        )
        assert row.total == pytest.approx(graph.factor * sent.sum(), rel=1e-12)
        assert row.maximum == pytest.approx(graph.factor * sent.max(), rel=1e-12)
        assert row.imbalance == pytest.approx(sent.max() / sent.mean() - 1, rel=1e-9)


def test_bytes_of_an_epoch_are_counted_rows_times_widths(graph, partitions):
    """In the paper's order: forward the inputs' widths travel, backward the outputs'."""
    widths = (300, 16, 16, 24)
    moved = sum(a + b for a, b in pairwise(widths))
    A = looped(graph)
    plain = replace(graph, factor=1.0)
    found = points(plain, partitions, (AWARE, GVB), (4,), MACHINE, model=MODEL)
    even = np.repeat(np.arange(4), np.diff(np.arange(5) * A.shape[0] // 4))
    for point, labels in zip(found, (even, partitions.labels("gvb", "send", 4)), strict=True):
        sent = rows_sent(A, labels, 4)
        assert point.total == 4 * moved * sent.sum()


def test_oblivious_ranks_receive_all_rows(graph, partitions):
    n, widths = graph.data.vertices, (300, 16, 16, 24)
    (point,) = points(
        replace(graph, factor=1.0), partitions, (OBLIVIOUS,), (4,), MACHINE, model=MODEL
    )
    assert point.total == 3 * n * 4 * sum(a + b for a, b in pairwise(widths))


@pytest.mark.parametrize("c", [1, 2])
def test_counts_grow_with_the_factor_and_messages_do_not(graph, partitions, c):
    config = AWARE.config(c, 3, 16)
    counted = VirtualRanks(graph.data, None, config, 8, 4).counted(config)
    larger = scaled(counted, 10.0)
    assert scaled(counted, 1) is counted
    assert np.array_equal(larger.rows, 10 * counted.rows)
    for stage, other in zip(counted.whole.stages, larger.whole.stages, strict=True):
        for name in ("rows", "columns", "local", "remote"):
            assert np.array_equal(getattr(other, name), 10 * getattr(stage, name))
        for hop, grown in zip(stage.hops, other.hops, strict=True):
            for name in ("rows", "entries"):
                assert np.array_equal(getattr(grown, name), 10 * getattr(hop, name))
            assert np.array_equal(grown.peers, hop.peers)


def test_our_line_moves_least(graph, partitions):
    found = {
        point.scheme: point
        for point in points(graph, partitions, SCHEMES, (8,), MACHINE, model=MODEL)
    }
    assert len(found) == len(SCHEMES)
    falling = (OURS_HALO, OURS, COVERED, GVB, AWARE, OBLIVIOUS)
    total = [found[scheme.name].total for scheme in falling]
    assert total == sorted(total)
    assert all(point.seconds > 0 for point in found.values())


def test_replicas_that_do_not_fit_are_left_out(graph, partitions):
    found = points(graph, partitions, (AWARE,), (2, 4, 6), MACHINE, replicas=(1, 2, 4), model=MODEL)
    assert [(point.ranks, point.c) for point in found] == [(2, 1), (4, 1), (4, 2), (6, 1)]


def test_table2_writes_what_it_counts(graph, partitions, cache, tmp_path, capsys):
    arguments = ["table2", "--scale", str(SCALE), "--ranks", "4,16", "--cache", str(cache)]
    arguments += ["--output", str(tmp_path / "out"), "--preset", "default"]
    assert main(arguments) == 0
    rows = records(tmp_path / "out" / "table2.csv")
    counted = [row for row in volumes(graph, partitions, (4, 16))]
    assert [row["method"] for row in rows] == 2 * ["random", "metis", "gvb"]
    assert [float(row["total"]) for row in rows] == [row.total for row in counted]
    assert [float(row["maximum"]) for row in rows] == [row.maximum for row in counted]
    assert [row["paper's maximum MB"] for row in rows] == ["", "", "", "", "333.5", ""]
    assert (tmp_path / "out" / "table2.svg").read_bytes().startswith(b"<?xml")
    assert "p = 4: gvb sends" in capsys.readouterr().out
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_tabled(name, cache, machine_file, tmp_path, capsys):
    dataset = FIGURES[name].datasets[-1]
    scale = {"papers": 1e-5, "protein": 5e-5}.get(dataset, SCALE)
    number = {command: number for number, command in OF_FIGURE.items()}.get(name, name)
    arguments = [number, "--datasets", dataset, "--scale", str(scale), "--ranks", "4,8"]
    arguments += ["--machine", str(machine_file), "--cache", str(cache), "--output", str(tmp_path)]
    assert main([*arguments, "--layers", "2"]) == 0
    rows = records(tmp_path / f"{name}.csv")
    lines = {(row["scheme"], row["c"], row["ranks"]) for row in rows}
    assert len(lines) == len(rows)
    assert {row["scheme"] for row in rows} == {scheme.name for scheme in FIGURES[name].schemes}
    for row in rows:
        kinds = [float(value) for key, value in row.items() if key.endswith("_seconds")]
        assert sum(kinds) == pytest.approx(float(row["seconds"]), rel=1e-9)
    assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    assert "seconds predicted for test" in capsys.readouterr().out


def test_measured_epochs_send_what_is_planned(graph, partitions):
    wanted = ((OBLIVIOUS, 1), (GVB, 2))
    runs = measured(
        graph, graph.data.name, partitions, wanted, (4,), MACHINE, MODEL, ProgressBar(False)
    )
    for one, (scheme, c) in zip(runs, wanted, strict=True):
        plain = replace(graph, factor=1.0)
        priced = predicted(plain, partitions, scheme, 4, c, machine=MACHINE, model=MODEL)
        assert one.nbytes == priced.volume["total_bytes"]
        for spent in (one.spent, one.predicted):
            assert (spent["broadcast"] > 0) == (scheme is OBLIVIOUS)
            assert (spent["all-to-all"] > 0) == (scheme is GVB)
            assert spent["local"] > 0
            assert spent["all-reduce"] > 0


@pytest.mark.slow
def test_measured_figures_are_drawn(cache, machine_file, tmp_path, capsys):
    arguments = ["measure", "--scale", str(SCALE), "--ranks", "4", "--cache", str(cache)]
    arguments += ["--machine", str(machine_file), "--output", str(tmp_path), "--layers", "2"]
    assert main(arguments) == 0
    rows = records(tmp_path / "measure.csv")
    assert [(row["scheme"], row["c"]) for row in rows] == [
        (scheme.name, str(c)) for scheme, c in MEASURED if c < 4
    ]
    for row in rows:
        for name in ("", "predicted_"):
            spent = sum(float(row[f"{name}{kind}_seconds"]) for kind in KINDS)
            assert spent == pytest.approx(float(row[f"{name}seconds"]))
    for part in ("1d", "1.5d", "breakdown-1d"):
        assert (tmp_path / f"measure-{part}.svg").stat().st_size > 1000
    assert "measured: amazon, 4 ranks, oblivious over each" in capsys.readouterr().out


def test_steps_count_as_in_the_fastest_epoch(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    work = RepeatedWork([1.0])
    seconds = []
    for took in ((5, 3), (2, 4), (3, 1)):
        work.begin()
        start = work._seconds
        for step in took:
            now[0] += step
            work()
        seconds.append(work._seconds - start)
    assert seconds == [4 + 3, 1 + 3, 1 + 1]


def test_datasets_says_what_stands_for_what(tmp_path):
    arguments = ["datasets", "--datasets", "amazon,papers", "--scale", "1e-5"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    rows = records(tmp_path / "datasets.csv")
    assert [row["nonzeros"] for row in rows] == ["230788269", "3231371744"]


def test_a_real_file_is_counted_as_it_is(cache, machine_file, tmp_path):
    A = sp.random_array((60, 60), density=0.1, rng=np.random.default_rng(0))
    A = sp.csr_array(A + A.T)
    path = tmp_path / "real.npz"
    y = np.arange(60) % 3
    np.savez(
        path,
        indptr=A.indptr.astype(np.int64),
        indices=A.indices.astype(np.int32),
        shape=np.array(A.shape),
        directed=np.array(False),
        y=y,
        train_mask=y == 0,
        x=np.ones((60, 7), np.float32),
    )
    graph = real_graph(str(path))
    assert (graph.factor, graph.data.features, graph.data.classes) == (1.0, 7, 3)
    arguments = ["scaling-1d", "--dataset", str(path), "--ranks", "4", "--output", str(tmp_path)]
    assert main([*arguments, "--machine", str(machine_file), "--cache", str(cache)]) == 0
    assert {row["dataset"] for row in records(tmp_path / "scaling-1d.csv")} == {graph.dataset}


def test_the_logs_are_of_whole_jobs():
    runs = published.authors_runs()
    assert len(runs) == 35
    assert {run.scheme for run in runs} == {OBLIVIOUS.name, AWARE.name, GVB.name}
    for run in runs:
        # Shares are averages over ranks, seconds those of the last one; the rest is dense work.
        assert 0.6 < (run.exchange + run.spmm + run.other) / run.seconds < 1.02, run
    assert len({(r.dataset, r.scheme, r.barriers, r.c, r.ranks) for r in runs}) == len(runs)


def test_fit_sets_every_job_beside_its_prediction(cache, machine_file, tmp_path, capsys):
    arguments = ["fit", "--datasets", "amazon", "--scale", str(SCALE), "--ranks", "16"]
    arguments += ["--machine", str(machine_file), "--cache", str(cache), "--output", str(tmp_path)]
    assert main(arguments) == 0
    rows = records(tmp_path / "fit.csv")
    wanted = [r for r in published.authors_runs() if (r.dataset, r.ranks) == ("amazon", 16)]
    assert [row["log"] for row in rows] == [run.file for run in wanted]
    for row, run in zip(rows, wanted, strict=True):
        assert float(row["ratio"]) == pytest.approx(float(row["predicted s"]) / run.seconds)
    assert "predicted / measured" in capsys.readouterr().out


def test_summary_is_the_geometric_mean():
    run = next(run for run in published.authors_runs() if run.barriers)
    found = [
        Compared(run, Point("", run.scheme, 1, 4, 1.0, 1, 1, 1, 1, {"spmm": k * run.seconds}))
        for k in (0.5, 8.0)
    ]
    (line,) = summary(found)
    assert line["predicted / measured"] == pytest.approx(2.0)
    assert (line["least"], line["largest"]) == (pytest.approx(0.5), pytest.approx(8.0))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tabel2"], "did you mean 'table2'?"),
        (["table2", "--datasets", "amazn"], "did you mean 'amazon'?"),
        (["table2", "--methods", "metsi"], "did you mean 'metis'?"),
        (["table2", "--scale", "2"], "--scale must be in (0, 1]"),
        (["table2", "--ranks", "1"], "must be numbers from 2"),
        (["table2", "--scal", "1"], "Did you mean --scale"),
        (["scaling-1d", "--machine", "nowhere.json"], "nowhere.json: cannot be read"),
        (["table2", "--dataset", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_wrong_arguments_give_one_line(arguments, said, tmp_path, capsys):
    output = ["--output", str(tmp_path / "out")] if arguments[0] in {"table2", "scaling-1d"} else []
    assert main([*arguments, *output]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert lines[0].startswith("error: ")


def test_a_directory_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["datasets", "--output", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_table2_goes_on_where_it_was_killed(tmp_path):
    """Rows that were there are not counted again; those of the two runs are those of one."""
    program = [sys.executable, str(Path(paper.__file__).parents[1] / "icpp24.py"), "table2"]
    arguments = ["--scale", str(SCALE), "--ranks", "4,8", "--cache", str(tmp_path / "cache")]
    arguments += ["--methods", "random,metis"]
    cells = tmp_path / "killed" / "table2-cells.json"
    started = subprocess.Popen([*program, *arguments, "--output", str(tmp_path / "killed")])
    wait_for(cells.exists)
    started.kill()
    started.wait()
    before = json.loads(cells.read_text())
    assert 0 < len(before) < 4
    assert len(list((tmp_path / "cache").glob("amazon-like@5e-05-*.npz"))) == 1
    for name in ("killed", "whole"):
        assert main(["table2", *arguments, "--output", str(tmp_path / name)]) == 0
    after = json.loads(cells.read_text())
    assert len(after) == 4
    assert {key: after[key] for key in before} == before
    known, whole = (records(tmp_path / name / "table2.csv") for name in ("killed", "whole"))
    for row, other in zip(known, whole, strict=True):
        assert float(row["peak GB"]) > 0
        for measured_ in ("partition s", "peak GB"):
            row.pop(measured_), other.pop(measured_)
        assert row == other
    cells.write_text("{")
    with pytest.raises(InputError, match="no rows of an earlier run"):
        read_cells(cells)


def test_the_page_quotes_what_is_recorded():
    page = (Path(paper.__file__).parents[2] / "docs" / "papers.md").read_text()
    assert all(shown(recorded()[ratio.name]) in page for ratio in RATIOS)
