"""Examples of PyG give on ranks what they give on one process: outputs and all gradients."""

from __future__ import annotations

import pytest
import torch

from spgnn.testing import run_ranks

programs = pytest.importorskip("experiments.pyg.examples")

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = [one.name for one in programs.examples()]
EVERY_TIME = ["gcn", "glnn", "hetero/hetero_conv_dblp", "link_pred", "rev_gnn", "unimp_arxiv"]


def on_ranks(rank: int, names: list[str]) -> dict[str, list[float]]:
    torch.set_default_dtype(torch.float64)
    return dict(programs.differences(names))


def test_programs_of_each_kind():
    differences = run_ranks(on_ranks, 2, EVERY_TIME)[0]
    assert list(differences) == EVERY_TIME
    assert max(map(max, differences.values())) < 1e-10


@pytest.fixture(scope="module", params=[1, 2])
def of_all(request):
    return run_ranks(on_ranks, request.param, NAMES)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_example(name, of_all):
    assert max(of_all[name]) < 1e-10
