"""What readers and adapters make of numbers: exactly those that are stored, or one line.

Readers × {dtype, shape, order, entries that occur twice, zeros that are stored, weights that are
all 1} of weights, features, labels and masks. The truth is Python's arithmetic and NumPy.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError
from spgnn.data import (
    from_dgl,
    from_ogb,
    from_pyg,
    from_scipy,
    open_shards,
    open_source,
    write_shards,
)
from spgnn.data.load import read_graph
from tests.data.graphs import assert_canonical
from tests.data.graphs import pattern as pattern_of

LARGE = 2**24 + 1  # the first integer that float32 rounds
WHOLE = {
    **{kind: [1, 0, 3] for kind in ("int8", "uint8", "int16")},
    **{kind: [1, 0, 3, LARGE - 1, LARGE] for kind in ("int32", "uint32", "int64", "uint64")},
}
VALUES = {
    "bool": [True, False],
    **WHOLE,
    "float32": [1.0, 0.0, 0.375, -2.0],
    "float64": [1.0, 0.0, 0.375, -2.0, 0.1],
}
MATRICES = ["csr", "csc", "coo", "bsr", "dia"]


@st.composite
def stored(draw, kinds=tuple(VALUES), loops=True, symmetric=False):
    """(n, rows, columns, values): entries in any order, some of them twice."""
    n = draw(st.integers(1, 5))
    kind = draw(st.sampled_from(kinds))
    choices = draw(st.sampled_from([[VALUES[kind][0]], VALUES[kind]]))
    ends = st.integers(0, n - 1)
    entries = draw(st.lists(st.tuples(ends, ends, st.sampled_from(choices)), max_size=12))
    entries = [(i, j, v) for i, j, v in entries if loops or i != j]
    if symmetric:
        entries = [(max(i, j), min(i, j), v) for i, j, v in entries]
    row, column = (np.array([e[axis] for e in entries], np.int64) for axis in (0, 1))
    return n, row, column, np.array([e[2] for e in entries], kind)


def meant(n, row, column, values):
    """(pattern, weights as float32 or None), or ``None`` if float32 holds them not."""
    sums = defaultdict(list)
    for i, j, v in zip(row.tolist(), column.tolist(), values.tolist(), strict=True):
        sums[i, j].append(v)
    pattern, weights = np.zeros((n, n), np.bool_), np.zeros((n, n), np.float32)
    if values.dtype == np.bool_:
        for place, several in sums.items():
            pattern[place] = any(several)
        return pattern, None
    for place, several in sums.items():
        pattern[place], weights[place] = True, sum(several)
        whole = values.dtype.kind in "iu"
        if whole and any(int(np.float32(v)) != v for v in (*several, sum(several))):
            return None
    return pattern, None if (weights[pattern] == 1).all() else weights


def check(read, wanted):
    """What was read is what is meant, or refused where that is `None`."""
    if wanted is None:
        with pytest.raises(InputError, match=r"float32 holds|must be a whole number") as caught:
            read()
        assert len(str(caught.value).splitlines()) == 1
        return None
    graph, (pattern, weights) = read(), wanted
    A = graph.adjacency
    assert_canonical(A)
    np.testing.assert_array_equal(pattern_of(A), pattern)
    assert (A.values is None) == (weights is None)
    if weights is not None:
        assert A.values.dtype == torch.float32
        np.testing.assert_array_equal(A.to_scipy().toarray(), weights)
    assert graph.directed or np.array_equal(pattern, pattern.T)
    return graph


def readers(path):
    """From a file in memory, and as a source."""
    return lambda: read_graph(path), lambda: open_source(path).graph()


def check_file(path, wanted, more=()):
    """The same by every reader, and cut into shards."""
    for read in (*readers(path), *more):
        graph = check(read, wanted)
    if graph is not None and graph.vertices:
        cut = path.parent / "cut"
        write_shards(graph, np.arange(graph.vertices) % 2, min(2, graph.vertices), cut)
        pattern, weights = wanted
        take = np.ix_(*[open_shards(cut).vertex_ids] * 2)
        moved = pattern[take], None if weights is None else weights[take]
        check(open_shards(cut).graph, moved)


def as_matrix(n, row, column, values, form):
    """In a format of SciPy's; duplicates stay where it can hold them."""
    A = sp.coo_array((values, (row, column)), shape=(n, n))
    if form in ("csr", "csc"):
        major, minor = (row, column) if form == "csr" else (column, row)
        order = np.argsort(major, kind="stable")
        ends = np.concatenate(([0], np.cumsum(np.bincount(major, minlength=n))))
        make = sp.csr_array if form == "csr" else sp.csc_array
        return make((values[order], minor[order], ends), shape=(n, n))
    return A if form == "coo" else A.asformat(form)


def meant_by(A, entries):
    """Of a matrix that is converted, what SciPy made of it; its zeros need not be entries."""
    if A.format in ("csr", "csc", "coo"):
        return meant(*entries)
    B = A.tocsr()
    B.eliminate_zeros()
    found = B.tocoo()
    return meant(A.shape[0], *found.coords, found.data)


@settings(max_examples=25)
@given(stored(), st.sampled_from([*MATRICES, "lil", "dok"]))
def test_scipy(entries, form):
    if form in ("lil", "dok"):
        n, row, column, values = entries
        keep = values != 0  # these formats forget zeros, or not, as they please
        entries = n, row[keep], column[keep], values[keep]
    A = as_matrix(*entries, form)
    graph = check(lambda: from_scipy(A), meant_by(A, entries))
    if graph is not None:
        dense = [m.toarray() for m in (A.tocsr().astype(np.float32), A.tocsr() != 0)]
        same = all(np.array_equal(m, m.T) for m in dense)
        assert graph.directed != same or not bool((A.tocoo().data != 0).all())


@settings(max_examples=25)
@given(stored(), st.sampled_from(MATRICES), st.booleans(), st.booleans())
def test_npz_of_scipy(tmp_path_factory, entries, form, matrix, compressed):
    directory = tmp_path_factory.mktemp("npz")
    A = as_matrix(*entries, form)
    A = getattr(sp, f"{form}_matrix")(A) if matrix else A
    sp.save_npz(directory / "g.npz", A, compressed=compressed)
    check_file(directory / "g.npz", meant_by(A, entries))


@settings(max_examples=25)
@given(stored(), st.sampled_from(["int32", "int64", "uint8", "uint64"]))
def test_npz(tmp_path_factory, entries, index):
    directory = tmp_path_factory.mktemp("npz")
    A = as_matrix(*entries, "csr")
    arrays = {"indptr": A.indptr.astype(index), "indices": A.indices.astype(index)}
    np.savez(directory / "g.npz", **arrays, data=A.data, shape=np.array(A.shape))
    check_file(directory / "g.npz", meant(*entries))


@settings(max_examples=25)
@given(stored())
def test_pyg_dgl_and_ogb(entries):
    """Edges without weights are counted; weights that are all 1 are weights."""
    n, row, column, values = entries
    ends = torch.from_numpy(np.stack((column, row)))
    plain = SimpleNamespace(edge_index=ends, num_nodes=n)
    edata = {}
    dgl = SimpleNamespace(edges=lambda: ends, num_nodes=lambda: n, ndata={}, edata=edata)
    split = dict.fromkeys(("train", "valid", "test"), np.array([], np.int64))
    whole = {"edge_index": ends.numpy(), "num_nodes": n}

    class Ogb:
        name = "g"

        def get_idx_split(self):
            return split

        def __getitem__(self, _):
            return dict(whole), np.zeros((n, 1), np.int64)

    for read in (lambda: from_pyg(plain), lambda: from_dgl(dgl), lambda: from_ogb(Ogb())):
        check(read, meant(n, row, column, np.ones(len(row), np.int64)))
    if values.dtype.kind in "u" and values.dtype.itemsize > 1:
        return
    plain.edge_weight = edata["w"] = torch.from_numpy(values)
    counted = values.astype(np.int64) if values.dtype == np.bool_ else values
    wanted = meant(n, row, column, counted)
    if wanted is not None and wanted[1] is None:
        wanted = wanted[0], wanted[0].astype(np.float32)
    for read in (lambda: from_pyg(plain), lambda: from_dgl(dgl, weight="w")):
        check(read, wanted)


# What is known of vertices.


@st.composite
def tables(draw):
    """A table of any dtype, in any order of memory."""
    n, width = draw(st.integers(1, 5)), draw(st.integers(0, 3))
    kind = draw(st.sampled_from([*VALUES, "float16"]))
    choices = st.sampled_from(VALUES.get(kind, [1.0, 0.0, 0.375]))
    numbers = draw(st.lists(choices, min_size=n * width, max_size=n * width))
    table = np.array(numbers, kind).reshape(n, width)
    order = draw(st.sampled_from(["C", "F", "reversed", "swapped"]))
    if order == "reversed":
        return np.ascontiguousarray(table[::-1])[::-1]
    if order == "swapped":
        return table.astype(table.dtype.newbyteorder())
    return np.array(table, order=order)


def check_table(read, table):
    """Features, or labels of several columns, as they are; or one line."""
    single = table.astype(np.float32)
    pairs = zip(single.flat, table.flat, strict=True)
    if table.dtype.kind in "iu" and any(int(a) != b for a, b in pairs):
        with pytest.raises(InputError, match=r"float32 holds|whole number"):
            read()
        return
    x = read().x
    if table.shape[1] or x is not None:
        dense = x.to_scipy().toarray() if isinstance(x, CSR) else x.numpy()
        assert dense.dtype == np.float32
        np.testing.assert_array_equal(dense, single)


def archive(home, n, prefix="", matrix=None, save=np.savez, **arrays):
    """An .npz file of n vertices, all neighbours, with a sparse matrix as SciPy stores it."""
    home = home.mktemp("npz")
    if matrix is not None:
        sp.save_npz(home / "matrix.npz", matrix)
        with np.load(home / "matrix.npz") as file:
            arrays |= {f"{prefix}_{name}": file[name] for name in file.files}
    A = sp.csr_array(np.ones((n, n), np.bool_))
    save(home / "g.npz", indptr=A.indptr, indices=A.indices, shape=np.array(A.shape), **arrays)
    return home / "g.npz"


@settings(max_examples=50)
@given(tables(), st.sampled_from(["dense", *MATRICES]), st.booleans())
def test_features(tmp_path_factory, table, form, compressed):
    n, save = len(table), np.savez_compressed if compressed else np.savez
    native = np.array(table, table.dtype.newbyteorder("="))
    if form == "dense":
        path = archive(tmp_path_factory, n, save=save, x=table)
        given = [table, torch.from_numpy(native)]
    elif native.dtype == np.float16 or not native.size:
        return  # SciPy knows no halves
    else:
        given = [sp.coo_array(native).asformat(form)]
        path = archive(tmp_path_factory, n, "x", given[0], save)
    A = sp.csr_array(np.ones((n, n), np.bool_))
    for read in (
        *(lambda x=x: from_scipy(A, x=x) for x in given),
        lambda: open_source(path).rows(torch.arange(n)),
        *readers(path),
    ):
        check_table(read, native)


@settings(max_examples=40)
@given(
    st.integers(1, 4),
    st.sampled_from([(), (1,), (2,), (2, 2), (0,)]),
    st.sampled_from([*VALUES, "float16"]),
    st.data(),
)
def test_labels_and_masks_of_files(tmp_path_factory, n, columns, kind, data):
    """Of an .npz file, its source, and shards of it: the same numbers in the same places."""
    size = n * int(np.prod(columns))
    choices = {"b": [True, False], "f": [0.0, 1.0, 0.5, np.nan]}.get(np.dtype(kind).kind, [0, 1, 3])
    choices += {"i": [-1]}.get(np.dtype(kind).kind, []) + [2**64 - 1] * (kind == "uint64")
    numbers = data.draw(st.lists(st.sampled_from(choices), min_size=size, max_size=size))
    y = np.array(numbers, kind).reshape(n, *columns)
    path = archive(tmp_path_factory, n, train_mask=y)
    if y.dtype == np.bool_ and y.ndim < 3:
        np.testing.assert_array_equal(read_graph(path).train_mask.numpy(), y)
    else:
        with pytest.raises(InputError, match="train_mask"):
            read_graph(path)
    path = archive(tmp_path_factory, n, y=y)
    if labels_are_wrong(y):
        for read in (read_graph, open_source):
            with pytest.raises(InputError, match=r"array 'y'|y\["):
                read(path)
        return
    graph = read_graph(path)
    write_shards(graph, None, 1, path.parent / "d")
    for found in (graph, open_source(path).graph(), open_shards(path.parent / "d").graph()):
        labels = found.y.numpy()
        np.testing.assert_array_equal(labels.reshape(y.shape), y.astype(labels.dtype))


def labels_are_wrong(y):
    """Not a vector of classes, a table of 0 and 1 (and -1), or floating numbers in one."""
    if y.ndim > 2 or y.dtype.kind == "f":
        return y.ndim > 2
    if y.ndim == 1:
        return y.dtype == np.bool_ or (y > 100).any()
    if y.shape[1] == 1 and y.dtype.kind in "iu" and y.dtype != np.int8:
        return True
    return bool(((y != 0) & (y != 1) & (y.astype(np.float64) != -1)).any())


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from(MATRICES), st.data())
def test_sparse_labels(tmp_path_factory, n, columns, form, data):
    numbers = data.draw(st.lists(st.integers(0, 1), min_size=n * columns, max_size=n * columns))
    y = np.array(numbers).reshape(n, columns)
    graph = read_graph(archive(tmp_path_factory, n, "y", sp.coo_array(y).asformat(form)))
    assert graph.y.dtype == torch.int8
    np.testing.assert_array_equal(graph.y.numpy(), y)
