"""``distribute(plan="auto")`` takes the cheapest placement that fits into memory."""

from __future__ import annotations

import numpy as np
import pytest

import spgnn
from spgnn import InputError
from spgnn.addons.plan import planned
from spgnn.exchange import Algorithm
from spgnn.machine import read_machine
from spgnn.testing import run_ranks
from tests.addons.plan.configurations import EXAMPLE
from tests.graph.test_distribute import N, check_same, graph


def check_planned(rank: int) -> None:
    whole = graph()
    found = spgnn.distribute(whole, plan="auto", memory="1 GiB", hidden_channels=8)
    check_same(found, whole)
    assert found.algorithm == Algorithm()
    assert found.halo_rows >= found.own_rows
    assert found.plan["why"].startswith("the least seconds")
    assert 0 < found.plan["memory_bytes"] < 1 << 30
    assert found.plan["ranks"] == 4
    any_way = spgnn.distribute(whole, plan="auto", halo=False, num_layers=3)
    check_same(any_way, whole)
    assert any_way.plan["algo"] == any_way.algorithm.algo
    attending = spgnn.distribute(whole, plan="auto", halo=False, plan_for="gat")
    assert attending.plan["seconds_by_kind"]["attention"] > 0
    with pytest.raises(InputError, match="--memory 10: no plan for 4 ranks fits"):
        spgnn.distribute(whole, plan="auto", memory=10)
    with pytest.raises(InputError, match='plan="auto" makes partitions by itself'):
        spgnn.distribute(whole, plan="auto", partition=np.zeros(N, int))


def test_a_plan_is_chosen(monkeypatch, tmp_path):
    machine = read_machine(EXAMPLE)
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path))
    monkeypatch.setattr(planned, "measure", lambda comm, edges=(): machine)
    run_ranks(check_planned, 4)
