"""Files of labels, permutations, part sizes."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from spgnn import InputError
from spgnn.data.arrays import header_bytes
from spgnn.partition import labels as label_files
from spgnn.partition import permutation, read_labels, write_labels
from spgnn.partition.labels import part_sizes, read_edge_labels, write_edge_labels


def test_labels_survive_a_file_that_is_written_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(label_files, "_PIECE", 300)
    labels = np.random.default_rng(0).integers(0, 1000, 5000).astype(np.int32)
    for some in (labels, labels[:0]):
        write_labels(tmp_path / "labels", some)
        np.testing.assert_array_equal(read_labels(tmp_path / "labels", len(some), 1000), some)
        lines = (tmp_path / "labels").read_text().splitlines()
        assert lines == [str(label) for label in some]
        assert os.listdir(tmp_path) == ["labels"]


@pytest.mark.parametrize("text", ["1\n0\n2\n", "1\n0\n2", " 1 \r\n0\t\r\n2\r\n\n\n"])
def test_white_space_does_not_matter(tmp_path, text):
    (tmp_path / "labels").write_bytes(text.encode())
    assert read_labels(tmp_path / "labels", 3, 3).tolist() == [1, 0, 2]


NO_TEXT = b"\x1f\x8b\x08\0\x7f" + "³ ".encode() + b"\x85" * 50  # a file of another kind
QUOTED = re.escape(r"line 1: '\x1f\x8b\x08\x00\x7f\xc2\xb3 " + r"\x85" * 32 + "' is not a label")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\n1\n", "line 3: the file ends after 2 labels; the graph has 3 vertices"),
        ("0\n1\n0\n1\n", "line 4: one label too many; the graph has 3 vertices"),
        ("0\n2\n0\n", r"line 2: label 2 is outside \[0, 2\)"),
        ("0\n-1\n0\n", r"line 2: label -1 is outside \[0, 2\)"),
        ("0\n1\nx\n", "line 3: 'x' is not a label"),
        ("0\n\n1\n", "line 2: '' is not a label"),
        ("0\n1.0\n1\n", "line 2: '1.0' is not a label"),
        ("0\n99999999999999999999\n1\n", "line 2: '99999999999999999999' is not a label"),
        (NO_TEXT, QUOTED),
        (None, "no such file"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path, text, message):
    path = tmp_path / "labels"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {message}"):
        read_labels(path, 3, 2)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="labels: cannot be written: No space left"):
        write_labels(tmp_path / "labels", [0, 1])
    assert os.listdir(tmp_path) == []


def test_permutation_sorts_by_part_and_keeps_the_order_inside():
    labels = np.array([2, 0, 2, 1, 0])
    assert permutation(labels).tolist() == [1, 4, 3, 0, 2]
    assert part_sizes(labels, 4).tolist() == [2, 1, 2, 0]


@pytest.mark.parametrize(
    ("parts", "dtype"), [(1, "|u1"), (256, "|u1"), (257, "<i2"), (32768, "<i2"), (32769, "<i4")]
)
def test_files_hold_any_part_in_few_bytes(tmp_path, parts, dtype):
    labels = np.random.default_rng(0).integers(0, parts, 1000)
    labels[0] = parts - 1
    path = tmp_path / "edges.npy"
    write_edge_labels(path, labels, parts)
    assert np.load(path).dtype == np.dtype(dtype)
    found = read_edge_labels(path, 1000, parts)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, labels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"0\n1\n", "truncated or damaged: no .npy array"),
        (
            header_bytes(np.dtype("<i2"), (4,))[:20],
            "truncated or damaged: EOF: reading array header",
        ),
        (header_bytes(np.dtype("<f4"), (4,)) + bytes(16), "holds <f4"),
        (header_bytes(np.dtype(">i2"), (4,)) + bytes(8), "holds >i2"),
        (header_bytes(np.dtype("<i2"), (2, 2)) + bytes(8), r"holds <i2 \[2, 2\]"),
        (header_bytes(np.dtype("<i2"), (3,)) + bytes(6), "3 edge labels for 4 nonzeros"),
        (header_bytes(np.dtype("<i2"), (4,)) + bytes(6), "truncated or damaged: not as long as"),
        (header_bytes(np.dtype("|u1"), (4,)) + b"\0\1\5\0", "edge label 5 of nonzero 2"),
    ],
)
def test_wrong_files_of_edge_labels_are_refused(tmp_path, content, message):
    path = tmp_path / "edges.npy"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {message}"):
        read_edge_labels(path, 4, 5)
