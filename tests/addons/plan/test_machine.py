"""Machine files: read as they are written, refused in one line, measured alike on all ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spgnn import InputError
from spgnn.addons.plan.measure import groups_by_node, measure
from spgnn.comm import Communicator, connect
from spgnn.machine import EdgeRates, Machine, Spmm, between, read_machine, write_machine
from spgnn.testing import run_ranks
from tests.addons.plan.configurations import EXAMPLE
from tests.comm.test_guest import check_nothing_is_left


def changed(tmp_path: Path, *keys: object, value: object = None, drop: bool = False) -> Path:
    """The example with one entry changed or left out."""
    inner = record = json.loads(EXAMPLE.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    if drop:
        del inner[keys[-1]]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(record))
    return path


def test_a_machine_is_read_as_it_was_written(tmp_path):
    machine = read_machine(EXAMPLE)
    assert machine.ranks_a_node == 4
    assert machine.levels.between is not None
    write_machine(machine, tmp_path / "copy.json")
    assert read_machine(tmp_path / "copy.json") == machine
    path = changed(tmp_path, "levels", "between")
    assert read_machine(path).levels.between is None
    assert read_machine(changed(tmp_path, "source", drop=True)).source == ""


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (["format"], "other", ["no machine file", "spgnn machine --json"]),
        (["version"], 1, ["version 1", "reads version 2 and 3"]),
        (["edges", "gat"], 3, ["edges.gat must be an object"]),
        (["edges", "gat", "forward", "widths"], [4, 4, 64, 256], ["edges.gat.forward.sec", "rise"]),
        (["edges", "gin"], None, ["edges.gin is not known"]),
        (["cores"], 0, ["cores", "integer of at least 1", "0"]),
        (["overlap"], 1.5, ["overlap must be in [0, 1]"]),
        (["overlap"], "much", ["overlap must be a number"]),
        (["spmm", "widths"], [4, 4, 64, 256], ["spmm.seconds_per_row", "rise"]),
        (["spmm", "seconds_per_nonzero"], [[1e-9]] * 3, ["spmm.seconds_per_nonzero"]),
        (["gather", "seconds_per_row"], [0, 1, 1, 1], ["gather.seconds_per_row", "above 0"]),
        (["levels", "inside", "alltoallv", "call"], -1, ["levels.inside.alltoallv.call"]),
        (["levels", "inside", "alltoallv", "latency"], -1, ["levels.inside.alltoallv.latency"]),
        (["levels", "inside", "alltoallv", "bandwidth"], 0, ["alltoallv.bandwidth", "above 0"]),
        (["levels", "inside"], None, ["levels.inside must be an object"]),
        (["colour"], 3, ["colour is not known"]),
        (["overhead", "epochs"], 3, ["overhead.epochs is not known; did you mean 'epoch'?"]),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, keys, value, words):
    path = changed(tmp_path, *keys, value=value)
    with pytest.raises(InputError) as caught:
        read_machine(path)
    for word in (str(path), *words):
        assert word in str(caught.value)


def test_files_of_the_version_before_say_nothing_of_edges(tmp_path):
    record = json.loads(changed(tmp_path, "version", value=2).read_text())
    del record["edges"]
    (tmp_path / "machine.json").write_text(json.dumps(record))
    machine = read_machine(tmp_path / "machine.json")
    assert replace(machine, edges=read_machine(EXAMPLE).edges) == read_machine(EXAMPLE)
    with pytest.raises(InputError, match=r"says nothing of edges\.gatv2"):
        machine.edges_of("gatv2")


def test_what_is_no_json_is_no_machine_file(tmp_path):
    with pytest.raises(InputError, match="gemm is missing"):
        read_machine(changed(tmp_path, "gemm", drop=True))
    path = tmp_path / "machine.json"
    for text in ("", "[1]", '{"format": ', "[" * 100_000):
        path.write_text(text)
        with pytest.raises(InputError, match="no machine file"):
            read_machine(path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_machine(tmp_path / "none.json")


def test_interpolation():
    assert between((4, 16), (1.0, 3.0), 10) == 2.0
    assert between((4, 16), (1.0, 3.0), 2) == 1.0
    assert between((4, 16), (1.0, 3.0), 28) == 5.0
    spmm = read_machine(EXAMPLE).spmm
    for i, size in enumerate(spmm.operand_bytes):
        for j, width in enumerate(spmm.widths):
            each, row = spmm.seconds_per_nonzero[i][j], spmm.seconds_per_row[j]
            assert spmm.seconds(7, 3, width, size) == pytest.approx(7 * each + 3 * row)
    sizes = np.array([1e3, 1e12])
    seconds = spmm.seconds(np.array([1, 1]), np.array([0, 0]), 4, sizes)
    np.testing.assert_allclose(seconds, [spmm.seconds_per_nonzero[i][0] for i in (0, -1)])


def test_ranks_share_the_cores_of_a_node():
    machine = read_machine(EXAMPLE)
    assert [machine.slowdown(p) for p in (1, 2, 4, 8)] == [0.25, 0.5, 1.0, 1.0]
    assert [machine.nodes(p) for p in (1, 4, 5, 64)] == [1, 1, 2, 16]


def test_ranks_are_grouped_by_node():
    inside, across = groups_by_node([7, 7, 3, 3, 3, 9])
    assert inside == [[0, 1], [2, 3, 4], [5]]
    assert across == [[0, 2, 5], [1, 3], [4]]


def measured(rank: int) -> Machine:
    return measure(connect(), "here", seconds=0.0, edges=("gat",))


def test_all_ranks_measure_the_same_machine(tmp_path):
    first, second = run_ranks(measured, 2)
    assert first == second
    assert (first.name, first.ranks_a_node, first.conditions.ranks_here) == ("here", 2, 2)
    assert first.levels.between is None
    assert first.edges.gat is not None
    assert first.edges.gatv2 is first.edges.largest is None
    assert 0 <= first.overlap <= 1
    write_machine(first, tmp_path / "machine.json")
    assert read_machine(tmp_path / "machine.json") == first


def test_heads_and_dropout_cost_beside_the_first_head():
    """Of rows and of nonzeros; files that do not name them are as before."""
    table = Spmm((1.0, 2.0), (1.0, 2.0), ((1.0, 1.0), (1.0, 1.0)), (10.0, 10.0))
    plain = EdgeRates(table, table)
    assert plain.seconds(3, 2, 1, 1, 5, False) == plain.seconds(3, 2, 1, 1, 1, True) == 23
    more = replace(plain, forward_head=1.0, forward_row_head=2.0, backward_drop=4.0)
    assert more.seconds(3, 2, 1, 1, 5, False, True) == 23 + 4 * (3 * 1 + 2 * 2)
    assert more.seconds(3, 2, 1, 1, 5, True, True) == 23 + 5 * 3 * 4


@pytest.mark.slow
def test_nothing_is_left_of_a_measurement_of_guests(tmp_path, monkeypatch):
    def measures(comm: Communicator) -> bool:
        return measure(comm, seconds=1e-4).ranks_a_node == 4

    check_nothing_is_left(tmp_path, monkeypatch, measures)
