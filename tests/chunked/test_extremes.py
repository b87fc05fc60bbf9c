"""The largest of all neighbours, whose rows come part by part."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spgnn import kernels
from spgnn.chunked import matrix as extremes
from spgnn.chunked.blocks import MemoryBlocks
from spgnn.chunked.budget import ORDER, Budget
from spgnn.chunked.matrix import PartMatrix
from spgnn.chunked.predict import Forecast
from spgnn.chunked.room import Places
from spgnn.chunked.segments import Segments
from spgnn.chunked.table import MemoryTable
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.data.npz import write_npz
from spgnn.errors import InputError
from spgnn.kernels.extremes import add_to_extremes_
from spgnn.nn import GraphSAGE
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train import in_parts
from spgnn.train.in_parts import InParts
from tests.chunked.runs import SMALL, check_bytes, check_equal, reports

MAX = {"model": "sage", "aggregate": "max"}
# In float32 scores that are equal but for rounding change what is right.
MODELS = (
    {"dropout": 0.5, "hidden": 7, "dtype": "float64"},
    {"random_labels": 0.03, "dropout": 0.2, "input_dropout": False},
    {"norm": "batch", "residual": True, "dtype": "float64"},
    {"jk": "cat", "hidden": 5, "act": "tanh"},
)


@pytest.mark.parametrize(("ranks", "models"), [(1, MODELS[1::2]), (2, MODELS[::2])])
def test_history_is_that_of_memory(ranks, models, tmp_path):
    spill, flags = {"spill": str(tmp_path)}, []
    for model in models:
        base = {**SMALL, **MAX, **model}
        again = {"chunks": 7, "recompute": "always"}
        flags += [base, {**base, "chunks": 1}, {**base, "chunks": 2}, base | again | spill]
    for every_one in run_ranks(reports, ranks, flags):
        for number, found in enumerate(every_one):
            expected = every_one[number - number % 4]
            check_equal(expected["history"], found["history"])
            if found is not expected:
                check_bytes(found["storage"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", [1, 3])
def test_directed_weighted_and_sparse_features(ranks, tmp_path):
    """No transpose is made; weights do not count; features are made dense."""
    path, rng = tmp_path / "graph.npz", np.random.default_rng(3)
    A = sp.random_array((90, 90), density=0.06, rng=rng, format="csr", dtype=np.float32)
    x = CSR.from_scipy(
        sp.random_array((90, 9), density=0.3, rng=rng, format="csr", dtype=np.float32)
    )
    write_npz(Graph("weighted", CSR.from_scipy(A), True, x=x), path)
    base = {"dataset": str(path), "random_classes": 3, "epochs": 3, **MAX, "dropout": 0.2}
    flags = [base, {**base, "chunks": 4, "spill": str(tmp_path / "spill")}]
    for expected, found in run_ranks(reports, ranks, flags):
        check_equal(expected["history"], found["history"])
        check_bytes(found["storage"])


@pytest.mark.parametrize("ranks", [1, 2])
def test_panels_change_nothing(ranks, tmp_path, monkeypatch):
    tight = Budget(5, Places(frozenset(ORDER), panel_bytes=12), 10**9)
    monkeypatch.setattr(in_parts, "decide", lambda *args, **options: tight)
    base = {**SMALL, **MAX, "layers": 3, "hidden": 7, "dropout": 0.3, "dtype": "float64"}
    flags = [base, {**base, "memory": "4GB", "spill": str(tmp_path)}]
    for expected, found in run_ranks(reports, ranks, flags):
        check_equal(expected["history"], found["history"])
        check_bytes(found["storage"])
        assert found["storage"]["amplification"] > 1


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradients_are_those_of_memory(reduce):
    """With many equal neighbours, rows without any, and a few columns at a time."""
    rng = np.random.default_rng(5)
    A = CSR.from_scipy(sp.random_array((40, 40), density=0.1, rng=rng, format="csr"))
    A = CSR(A.pattern)
    bounds = (0, 0, 13, 40)
    H = torch.from_numpy(rng.integers(-2, 3, (40, 5)).astype(np.float64)).requires_grad_()
    G = torch.from_numpy(rng.normal(size=(40, 5)))
    expected = kernels.spmm(CSR(A.pattern), H, reduce=reduce)
    expected.backward(G)
    matrix = PartMatrix(MemoryBlocks.of(A, bounds), bounds)

    def table(bounds, width, dtype, extra=0):
        return MemoryTable(bounds, width, dtype, extra)

    tables = [table(bounds, 5, torch.float64), table(bounds, 5, torch.float64)]
    for whole, values in zip(tables, (H.detach(), G), strict=True):
        whole.panel(0, 5).copy_(values)
    operand, dZ = tables
    for panel in (2, 5):
        asked = {"panel": panel, "new": table, "largest": reduce == "max"}
        found = [Z.clone() for _, Z in extremes.extreme_products(matrix, operand, **asked)]
        assert torch.equal(torch.cat(found), expected)
        found = [dO.clone() for _, dO in extremes.extreme_adjoints(matrix, operand, dZ, **asked)]
        torch.testing.assert_close(torch.cat(found), H.grad)


def test_the_smallest():
    """Of which the command knows nothing."""
    assert Segments(GraphSAGE(3, 4, 2, aggr="min")).reduction(1) == "min"
    assert not Segments(GraphSAGE(3, 4, 2, aggr="min")).multiplies


def test_sizes_foretell_what_the_built_tables_move(tmp_path):
    for model in MODELS:
        flags = {**SMALL, **MAX, **model, "chunks": 3, "spill": str(tmp_path), "prune": False}
        task = InParts(TrainConfig.of(**flags), connect("gloo"), 0)
        assert Forecast.of_sizes(task.sizes, task.budget) == task.forecast
        task.close()


def test_where_gradients_may_not_be_added():
    G, arg = torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int32)
    for wrong in (torch.zeros(4, 2), torch.zeros(4, 6)[:, :3], torch.zeros(4, 3).double()):
        with pytest.raises(InputError, match=r"dX must be torch.float32 \[cols, 3\]"):
            add_to_extremes_(wrong, G, arg)
