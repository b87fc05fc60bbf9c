"""Several graphs as one: the oracle is SciPy's block diagonal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data import Graph, load_dataset, open_source
from spgnn.data.generators import block_model
from spgnn.data.graph import MASKS
from spgnn.data.load import disjoint_union
from spgnn.data.npz import write_npz
from tests.data.graphs import assert_canonical, assert_same_vertices, graphs


@given(st.lists(graphs(), min_size=1, max_size=4))
def test_a_union_is_block_diagonal(drawn):
    drawn = [replace(graph, x=None, y=None, **dict.fromkeys(MASKS)) for graph in drawn]
    union = disjoint_union(drawn)
    expected = sp.block_diag([graph.adjacency.to_scipy() for graph in drawn]).toarray()
    np.testing.assert_array_equal(union.adjacency.to_scipy().toarray(), expected)
    assert_canonical(union.adjacency)
    assert union.directed == any(graph.directed for graph in drawn)


def pieces() -> list[Graph]:
    return [block_model(n, 4 * n, features=3, classes=2, seed=n) for n in (7, 12, 5, 1)]


def test_rows_follow_each_other():
    found = pieces()
    union = disjoint_union(found)
    for name in ("x", "y", *MASKS):
        parts = [getattr(graph, name) for graph in found]
        whole = getattr(union, name)
        assert whole is None if parts[0] is None else torch.equal(whole, torch.cat(parts))
    found[1] = replace(found[1], **dict.fromkeys(MASKS))
    found[2] = replace(found[2], train_mask=torch.ones(5, dtype=torch.bool), val_mask=None)
    found[2] = replace(found[2], test_mask=None)
    masked = disjoint_union(found)
    assert not masked.train_mask[7:19].any()
    assert masked.train_mask[19:24].all()


def test_a_split_goes_by_graph():
    union = disjoint_union(pieces(), (2, 1, 1))
    assert union.train_mask.tolist() == [True] * 19 + [False] * 6
    assert union.val_mask.tolist() == [False] * 19 + [True] * 5 + [False]
    assert union.test_mask.tolist() == [False] * 24 + [True]
    for split in ((2, 1), (2, 1, 2), (5, -1, 0)):
        with pytest.raises(InputError, match=r"data.graph-split .*must be three .* add up to 4"):
            disjoint_union(pieces(), split)


def test_graphs_that_do_not_fit_are_named():
    first, *_, last = pieces()
    sparse = CSR.from_scipy(sp.csr_array(np.ones((1, 3), np.float32)))
    for other, said in (
        (
            replace(last, x=last.x[:, :2]),
            "has x torch.float32 of width 2, but .* torch.float32 of width 3",
        ),
        (replace(last, x=sparse), "has x sparse of width 3"),
        (replace(last, x=None), "has x of no kind"),
        (replace(last, y=torch.zeros(1, 2)), "has y torch.float32 of width 2"),
        (replace(last, y=None), "has y of no kind"),
    ):
        with pytest.raises(InputError, match=said):
            disjoint_union([first, other])


def test_names_are_joined(tmp_path):
    paths = []
    for number, graph in enumerate(pieces()):
        paths.append(str(tmp_path / f"{number}.npz"))
        write_npz(graph, paths[-1])
    name, expected = "+".join(paths), disjoint_union(pieces(), (2, 1, 1))
    assert_same_vertices(open_source(name, graph_split=(2, 1, 1)).graph(), expected)
    whole = load_dataset(name)
    assert torch.equal(whole.adjacency.indices, expected.adjacency.indices)
    assert whole.name == "0+3 others"
    with pytest.raises(InputError, match="no data set ''"):
        load_dataset(f"{paths[0]}+")
    # A file of that name is one graph.
    write_npz(pieces()[1], tmp_path / "a+b.npz")
    assert load_dataset(tmp_path / "a+b.npz").vertices == 12
