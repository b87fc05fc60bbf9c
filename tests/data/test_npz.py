from __future__ import annotations

import re
import struct
import tracemalloc
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn import CSR, InputError, memory
from spgnn.data import load_dataset, open_source, write_shards
from spgnn.data.generators import block_model
from spgnn.data.npz import NpzSource, read_npz, write_npz
from spgnn.data.shards import ShardDirectory
from spgnn.data.source import MemorySource
from tests.data.graphs import (
    assert_same_csr,
    assert_same_vertices,
    check_pieces,
    check_source,
    graphs,
)


@settings(max_examples=40)
@given(graphs())
def test_round_trip(tmp_path_factory, graph):
    path = tmp_path_factory.mktemp("npz") / "drawn.npz"
    for compressed in (True, False):
        write_npz(graph, path, compressed=compressed)
        again = read_npz(path)
        assert_same_vertices(again, graph)
        assert again.name == graph.name
        assert again.directed == graph.directed
        values = graph.adjacency.values
        if values is not None and not bool((values == 1).all()):
            assert_same_csr(again.adjacency, graph.adjacency)
        else:
            assert again.adjacency.values is None
            assert torch.equal(again.adjacency.indices, graph.adjacency.indices)


LARGE = 2**24 + 1  # the first integer that float32 rounds
GOOD = {
    "indptr": np.array([0, 2, 3, 4], np.int64),
    "indices": np.array([1, 2, 0, 0], np.int32),
    "shape": np.array([3, 3], np.int64),
    "directed": np.array(False),
    "x": np.ones((3, 2), np.float32),
    "y": np.array([0, 1, -1], np.int64),
    "train_mask": np.array([True, False, False]),
}
SPARSE = {
    "x_indptr": np.array([0, 1, 1, 2], np.int64),
    "x_indices": np.array([0, 3], np.int32),
    "x_data": np.ones(2, np.float32),
    "x_shape": np.array([3, 4], np.int64),
}


def written(tmp_path, save=np.savez, **changes):
    arrays = {**GOOD, **changes}
    save(tmp_path / "g.npz", **{k: v for k, v in arrays.items() if v is not None})
    return tmp_path / "g.npz"


def with_nan(shape, at):
    x = np.ones(shape, np.float32)
    x[at] = np.nan
    return x


MASK3 = np.array([0, 1, 2], np.uint8).view(bool)
COO = {"format": np.array(b"coo"), "data": np.ones(1)}
CSC = {"format": np.array(b"csc")}
DIA = {"format": np.array(b"dia"), "data": np.ones((1, 3))}
NO_X = {"x": None, **SPARSE}
TURNED = {"indices": np.array([2, 1, 0, 0]), "edge_attr": np.ones((4, 1))}
TWICE = {"indices": np.array([1, 1, 0, 0]), "data": np.array([3e38, 3e38, 1, 1])}
BAD = [
    ({"indptr": None}, "not a graph: no array 'indptr'"),
    ({"shape": None}, "no array 'shape'"),
    ({"indices": None}, "no array 'indices'"),
    ({"shape": np.array([3, 4])}, "shape is 3 × 4; a graph needs as many rows as columns"),
    ({"shape": np.array([4, 4])}, "array 'indptr' must have length 5, got 4"),
    ({"shape": np.array([3.0, 3.0])}, "'shape' must be a vector of integers"),
    ({"shape": np.array([-3, -3])}, "must not be negative"),
    ({"indptr": np.array([1, 2, 3, 4])}, "'indptr' must start with 0"),
    ({"indptr": np.array([0, 3, 2, 4])}, r"indptr\[2\] is 2; it must not be less"),
    ({"indptr": np.array([0, 2, 3, 5])}, "ends with 5, but 'indices' has 4"),
    ({"indices": np.array([1, 2, 7, 0])}, r"indices\[2\] is 7; it must be in \[0, 3\)"),
    ({"indices": np.array([1.0, 2, 0, 0])}, "'indices' must be a vector of integers"),
    ({"data": np.array([1, np.inf, 2, 3])}, r"data\[1\] is inf; it must be a finite number"),
    ({"data": np.ones(3)}, r"'data' must be float32 \[4\]"),
    ({"data": np.array([1, 2, 3, LARGE])}, r"data\[3\] is 16777217; it must be a whole"),
    ({"data": np.array([1, 1, 1e300, 1])}, r"data\[2\] is 1e\+300; it must be a weight that"),
    ({"data": np.array([1, 1, 1e-300, 1])}, r"data\[2\] is 1e-300; it must be a weight that"),
    (TWICE, r"entry \(0, 1\) is 6e\+38; it must be a weight"),
    (TURNED, "array 'edge_attr' needs a CSR whose columns rise in each row"),
    ({"edge_attr": np.ones((3, 1))}, r"'edge_attr' must be float32 \[4, any\], got float64 \[3, 1"),
    ({"edge_attr": np.ones((4, 1, 1))}, r"'edge_attr' must be float32 \[4, any\]"),
    ({"edge_attr": np.array(["a"] * 4)}, "'edge_attr' holds '<U1', not numbers"),
    ({"edge_attr": with_nan(4, 1)}, r"edge_attr\[1\] is nan"),
    ({"edge_weight": np.ones(4)}, "'edge_weight' is not read: weights are the array 'data'"),
    ({"directed": np.array(2)}, "'directed' must be one bool"),
    ({"x": with_nan((3, 2), (1, 0))}, r"x\[1, 0\] is nan; it must be a finite number"),
    ({"x": np.array([[1.0], [2], [1e300]])}, r"x\[2, 0\] is 1e\+300; it must be"),
    ({"x": np.array([[1, LARGE]] * 3)}, r"x\[0, 1\] is 16777217; it must be a whole number"),
    ({"x": np.ones((2, 2))}, r"'x' must be float32 \[3, any\], got float64 \[2, 2\]"),
    (NO_X | {"x_shape": np.array([2, 4])}, "2 rows, but the graph has 3"),
    (NO_X | {"x_data": None}, "no array 'x_data'"),
    (NO_X | {"x_data": with_nan(2, 1)}, r"x_data\[1\] is nan"),
    (NO_X | {"x_data": np.ones(3)}, r"'x_data' must be float32 \[2\]"),
    (NO_X | {"x_indices": np.array([0, 4])}, r"x_indices\[1\] is 4; it must be in \[0, 4\)"),
    (NO_X | {"x_indices": np.array([0.0, 1])}, "'x_indices' must be a vector of integers"),
    (NO_X | {"x_indptr": np.array([0, 1, 1, 3])}, "ends with 3, but 'x_indices' has 2"),
    (NO_X | {"x_format": np.array(b"csc")}, "arrays of format 'csc' do not fit"),
    ({"y": np.zeros(3, [("a", "i4")])}, "'y' holds records, not numbers"),
    ({"y": np.array([0, 99, 0])}, r"y\[1\] is 99; .* with 2 labels in use .* below 12"),
    ({"y": np.array([0, 2, 0]), "classes": np.array(2)}, r"y\[1\] is 2.*\[0, 2\)"),
    ({"y": np.array([0, -2, 0])}, r"y\[1\] is -2"),
    ({"y": np.array([0, 1])}, "'y' must have length 3, got 2"),
    ({"y": np.array([0.0, np.inf, 0])}, r"y\[1\] is inf; it must be a finite number, or NaN"),
    ({"y": np.array([[0, 1], [0, 3], [1, 1]])}, r"y\[1, 1\] is 3; it must be 0 or 1, or -1"),
    ({"y": np.zeros((3, 1, 1))}, "'y' must be a vector of integers, a table of 0 and 1, or"),
    ({"y": np.array([True, False, True])}, "'y' must be a vector of integers"),
    ({"y": np.array([[0], [2], [1]])}, r"'y' is int64 \[3, 1\]: give classes as a vector \[3\]"),
    ({"y": np.array([0, 1, 2**64 - 1], np.uint64)}, r"y\[2\] is 18446744073709551615"),
    ({"classes": np.array(2.5)}, "array 'classes' must be one integer"),
    ({"train_mask": np.array([1, 0, 0])}, "'train_mask' must be bool"),
    ({"train_mask": np.array([True, False])}, r"train_mask must be bool \[3\]"),
    ({"train_mask": MASK3}, r"train_mask\[2\] is 2; it must be a bool"),
    ({"val_masks": np.ones((2, 3), bool)}, "val_mask is"),
    ({"format": np.array(b"lil")}, "array 'format' is 'lil'; known are csr, csc, bsr, coo, dia"),
    ({"format": np.array(["a", "b"])}, "array 'format' is damaged or truncated: it is no word"),
    ({"format": np.array(b"coo")}, "no array 'data'"),
    (CSC | {"data": np.ones(3)}, "arrays of format 'csc' do not fit"),
    (CSC | {"data": np.array([1, np.nan, 1, 1])}, r"data\[1\] is nan"),
    (CSC | {"data": np.array([1, LARGE, 1, 1])}, "values hold 16777217"),
    (CSC | {"data": np.ones(4), "indices": np.array([1, 2, 0, 7])}, "format 'csc' do not fit"),
    ({"format": np.array(b"bsr"), "data": np.ones(4)}, "'data' must have 3 dimensions, got"),
    ({"format": np.array(b"bsr"), "data": np.ones((4, 0, 1))}, "'data' must have 3 dimensions"),
    (COO | {"row": np.array([3]), "col": [0]}, "arrays of format 'coo' do not fit together"),
    (DIA | {"offsets": np.array([0.5])}, "'offsets' must be a vector of integers"),
    (DIA | {"offsets": np.array([2**63 - 1])}, r"offsets\[0\] is 9223372036854775807; it must be"),
]


@pytest.mark.parametrize(("changes", "words"), BAD)
def test_bad_arrays_are_named_by_every_reader(tmp_path, monkeypatch, changes, words):
    monkeypatch.setattr(NpzSource, "piece_rows", 1)
    for save in (np.savez, np.savez_compressed):
        path = written(tmp_path, save=save, **changes)
        for read in (read_npz, NpzSource):
            with pytest.raises(InputError, match=words) as caught:
                read(path)
            assert str(caught.value).startswith(str(path))
            assert "\n" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path):
    """Cut off, changed inside an array, or no archive at all."""
    path = tmp_path / "g.npz"
    with pytest.raises(InputError, match="no such file"):
        read_npz(path)
    write_npz(block_model(50, 200, features=3, seed=1), path)
    whole = path.read_bytes()
    for length in [0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="truncated"):
            read_npz(path)
    damaged = bytearray(whole)
    at = damaged.index(b"x.npy") + 200
    damaged[at : at + 8] = bytes(b ^ 0xFF for b in damaged[at : at + 8])
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"array 'x' is damaged"):
        read_npz(path)
    path.write_text("hello")
    with pytest.raises(InputError, match=r"not an \.npz file"):
        read_npz(path)


def test_pickled_arrays_are_never_loaded(tmp_path):
    class Mark:
        def __reduce__(self):
            return (open, (str(tmp_path / "opened"), "w"))

    array = np.empty(3, dtype=object)
    array[0] = Mark()
    path = written(tmp_path, x=array)
    with pytest.raises(InputError, match=r"array 'x' holds '.O', not numbers"):
        read_npz(path)
    assert not (tmp_path / "opened").exists()


def test_masks_of_several_splits(tmp_path):
    rows = np.array([[True, False, False], [False, True, True]])
    for changes in ({"train_masks": rows}, {"train_mask": rows.T}):
        graph = read_npz(written(tmp_path, **changes))
        assert graph.splits == 2
        assert graph.train_mask.tolist() == rows.T.tolist()


HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }"


def with_header(tmp_path, header, version=1, data=bytes(24)):
    """A graph whose x is made of these very bytes, in an archive that is whole."""
    path = written(tmp_path, x=None)
    text = header.encode() + b"\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    raw = b"\x93NUMPY" + bytes((version, 0)) + length + text + data
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("x.npy", raw)
    return path


@pytest.mark.parametrize("version", [1, 2, 3])
def test_headers_as_they_are_written(tmp_path, version):
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    of_python_2 = HEADER.replace("3, 2", "3L, 2L") if version < 3 else HEADER
    for header in (HEADER, of_python_2):
        graph = read_npz(with_header(tmp_path, header, version, data.tobytes()))
        np.testing.assert_array_equal(graph.x.numpy(), data)


BAD_HEADERS = [
    *("", "{", "[" * 3000, "\\x" * 50, "-" * 9000 + "1", "'" * 3, "version"),
    *(HEADER + tail for tail in ("\0" * 100, " " * 20_000)),
    *(
        HEADER.replace("3, 2", shape)
        for shape in ("3, 1000000000000000", "3, -2", "9" * 5000, "1" * 390, "1, " * 80, "3, 2.0")
    ),
    *(HEADER.replace("False", other) for other in ("None", "'<f4'")),
    *(HEADER.replace("'<f4'", other) for other in ("False", "__import__('os').system('true')")),
    *(HEADER.replace("<f4", descr) for descr in ("<f3", "<i9", "f4x", "^f4", "")),
]


@pytest.mark.parametrize("header", BAD_HEADERS, ids=lambda header: header[:60].strip())
def test_damaged_headers_are_refused(tmp_path, header):
    """Python's own reader ends in half a dozen kinds of errors for these."""
    version, header = (4, HEADER) if header == "version" else (1, header)
    with pytest.raises(InputError, match="array 'x' is damaged or truncated: ") as caught:
        read_npz(with_header(tmp_path, header, version))
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("dtype", ["|S5", "<U1", "|O", "<c8", "<M8[s]", "|V8", "<f16"])
def test_arrays_of_no_numbers_are_refused(tmp_path, dtype):
    path = with_header(tmp_path, HEADER.replace("<f4", dtype))
    with pytest.raises(InputError, match=re.escape(f"array 'x' holds '{dtype}', not numbers")):
        read_npz(path)


def change_entry(path, offset, code, value, name=b"x.npy"):
    """Write over a field of an array's entry in the archive's directory."""
    raw = bytearray(path.read_bytes())
    entry = raw.rindex(b"PK\x01\x02", 0, raw.rindex(name))
    struct.pack_into(code, raw, entry + offset, value)
    path.write_bytes(raw)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    ("offset", "code", "value", "message"),
    [
        (8, "<H", 1, "array 'x' is damaged or truncated: File"),  # encrypted
        (10, "<H", 12, "array 'x' is compressed by method 12; save it with np.savez"),
        (10, "<H", 99, "array 'x' is damaged or truncated: That compression method is not"),
        (10, "<H", 8, "array 'x' is damaged or truncated: "),
        (16, "<I", 7, "array 'x' is damaged or truncated: Bad CRC-32"),
        (24, "<I", 2**31, "array 'x' is damaged or truncated: its header promises 24 bytes"),
        (42, "<I", 5, "array 'x' is damaged or truncated: Bad magic number"),
        (42, "<I", 2**31, "array 'x' is damaged or truncated: Truncated file header"),
        (28, "<H", 60_000, "not an .npz file, or a truncated one: its directory lists "),
        (46, "<B", ord("z"), "array 'z' is damaged or truncated: File name in directory 'z"),
        (6, "<H", 99, "not an .npz file, or a truncated one: zip file version"),
    ],
)
def test_damaged_directories_are_refused(tmp_path, save, offset, code, value, message):
    if save is np.savez_compressed and (offset, value) == (10, 8):
        return  # it is deflated
    path = written(tmp_path, save)
    change_entry(path, offset, code, value)
    with pytest.raises(InputError, match=re.escape(message)):
        read_npz(path)


def test_features_too_small_for_float32_are_zero(tmp_path):
    x = np.array([[1e-300, 1.0], [0, 2], [0, 3]])
    assert read_npz(written(tmp_path, x=x)).x.tolist() == [[0, 1], [0, 2], [0, 3]]


@pytest.mark.parametrize("splits", [0, 1, 3])
def test_graphs_of_nothing_are_records(tmp_path, splits):
    """No vertex, no split, no label: whoever needs some asks."""
    empty = {"indptr": np.zeros(1, int), "indices": np.zeros(0, int), "shape": np.zeros(2, int)}
    empty |= {"x": np.zeros((0, 2)), "y": np.zeros(0, int)}
    graph = read_npz(written(tmp_path, **empty, train_mask=np.zeros((0, splits), bool)))
    assert (graph.vertices, graph.classes, graph.splits) == (0, 0, splits)
    some = {"train_mask": np.zeros((3, splits), bool), "y": np.full(3, -1)}
    graph = read_npz(written(tmp_path, **some))
    assert (graph.vertices, graph.classes, graph.splits) == (3, 0, splits)
    if not splits:
        with pytest.raises(InputError, match="split 0 does not exist: the masks have no columns"):
            graph.select_split(0)


@pytest.mark.parametrize("text", [np.array(b"csc"), np.array("csc"), np.array([b"csc"])])
def test_formats_as_they_are_written(tmp_path, text):
    """SciPy before 1.0 wrote them in four bytes a letter."""
    arrays = {"indptr": np.array([0, 0, 1]), "indices": np.array([0]), "data": np.array([5.0])}
    np.savez(tmp_path / "g.npz", **arrays, shape=np.array([2, 2]), format=text)
    assert read_npz(tmp_path / "g.npz").adjacency.to_scipy().toarray().tolist() == [[0, 5], [0, 0]]


def two_of_one_name(path, raw):
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as file:
        file.writestr("indices.npy", raw)


def test_members_are_named_once_and_never_unpacked(tmp_path):
    (tmp_path / "d").mkdir()
    path = written(tmp_path / "d")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("../outside.npy", b"no")
        file.writestr("/outside.npy", b"no")
    assert read_npz(path).edges == 4
    assert NpzSource(path).decided["not read"] == "../outside, /outside"
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]
    with zipfile.ZipFile(path) as file:
        raw = file.read("indices.npy")
    two_of_one_name(path, raw)
    with pytest.raises(InputError, match="holds two arrays 'indices'"):
        read_npz(path)


def test_archives_that_unpack_to_more_than_there_is(tmp_path, monkeypatch):
    """64 MiB of zeros in 64 KiB, for each array."""
    monkeypatch.setattr(memory, "memory_limit", lambda: 1 << 24)
    large, save = np.zeros(1 << 23), np.savez_compressed
    for name, array in (("data", large), ("indices", large.astype(int)), ("train_mask", large)):
        path = written(tmp_path, save, **{name: array})
        for read in (read_npz, NpzSource):
            with pytest.raises(InputError, match=f"array '{name}': needs 0.0625 GiB of memory"):
                read(path)
    with pytest.raises(InputError, match=r"array 'x': needs 0\.0625 GiB of memory"):
        read_npz(written(tmp_path, save, x=large.reshape(2, -1)))
    # What is not read costs nothing.
    assert read_npz(written(tmp_path, save, note=large)).edges == 4
    sparse = {"y_indptr": [0] * 4, "y_indices": np.zeros(0, int), "y_data": np.zeros(0, np.int8)}
    sparse["y_shape"] = [3, 1 << 26]
    with pytest.raises(InputError, match=r"labels \[3, 67108864\]: needs 0.188 GiB"):
        read_npz(written(tmp_path, y=None, **sparse))


# Rows that are handed out: always those of the graph, and never all of them at once.


@settings(max_examples=25)
@given(st.data(), st.booleans(), st.integers(1, 4))
def test_a_source_hands_out_the_graph(tmp_path_factory, data, compressed, rows):
    graph = data.draw(graphs())
    path = tmp_path_factory.mktemp("npz") / "drawn.npz"
    write_npz(graph, path, compressed=compressed)
    with pytest.MonkeyPatch.context() as patch:
        # Pieces of a few rows, so that what is wanted lies in several.
        patch.setattr(NpzSource, "piece_rows", rows)
        source, whole = NpzSource(path), read_npz(path)  # drops weights that are all 1
        assert source.meta == MemorySource(whole).meta
        check_source(source, whole, data)
        check_source(MemorySource(whole), whole, data)
    if isinstance(graph.x, torch.Tensor) and graph.x.numel():
        assert source.random_access == (not compressed)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_sparse_rows_are_made_canonical(tmp_path, save):
    rows = {"x_indptr": [0, 3, 3, 5], "x_indices": np.array([2, 0, 2, 1, 0], ">i8")}
    data = np.array([1, 2, 4, 8, 16], np.int64)
    path = written(tmp_path, save, x=None, **rows, x_data=data, x_shape=[3, 4])
    source, graph = NpzSource(path), read_npz(path)
    assert graph.x.to_scipy().toarray().tolist() == [[2, 0, 5, 0], [0] * 4, [16, 8, 0, 0]]
    assert_same_csr(source.rows(slice(0, 3)).x, graph.x)
    check_pieces(source, graph, 2)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
def test_features_are_never_in_memory_as_a_whole(tmp_path, compressed, sparse):
    graph = block_model(20_000, 20_000, features=64, seed=0)
    features = graph.x.nbytes
    if sparse:
        graph = replace(graph, x=CSR.from_scipy(sp.csr_array(graph.x.numpy())))
        features *= 2
    write_npz(graph, tmp_path / "g.npz", compressed=compressed)
    del graph
    tracemalloc.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NpzSource, "piece_rows", 400)
        source = NpzSource(tmp_path / "g.npz")
        for _, data in source.pieces():
            assert data.x.shape == (400, 64)
        source.rows(torch.arange(0, 20_000, 100))
        first = source.structure()
        # Who asks for all of it can free it; it is read again for the next.
        assert source._adjacency is None
        assert_same_csr(source.structure(), first)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < features / 2


def test_the_door_opens_what_it_can_in_pieces(tmp_path, monkeypatch):
    graph = block_model(50, 200, features=2, seed=0)
    write_npz(graph, tmp_path / "g.npz")
    write_shards(graph, None, 2, tmp_path / "d")
    monkeypatch.setenv("SPGNN_DATA", str(tmp_path))
    kinds = {
        "g": NpzSource,
        str(tmp_path / "g.npz"): NpzSource,
        str(tmp_path / "d"): ShardDirectory,
        "rmat-4-2": MemorySource,
    }
    for name, kind in kinds.items():
        source, whole = open_source(name), load_dataset(name)
        assert type(source) is kind
        assert_same_csr(source.structure(), whole.adjacency)
        assert_same_vertices(source.graph(), whole)
