"""Arguments that make no sense: each is refused in one line that says what would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn import InputError
from spgnn.partition import cut_vertices, part_sizes, partition, permutation, report, write_labels
from spgnn.partition.gvb import gvb

DENSE = sp.csr_array(np.ones((30, 30)))
EYE = sp.eye_array(3, dtype=bool).tocsr()
NAN = float("nan")
PARTITION = [
    ({"k": 0}, r"k must be an integer in \[1, 65536\], got int 0"),
    ({"k": 2.0}, "k must be an integer in .*, got float 2.0"),
    ({"k": "2"}, "k must be an integer"),
    ({"k": True}, "k must be an integer"),
    ({"k": None}, "k must be an integer"),
    ({"k": 10**5000}, "k must be an integer"),
    ({"threads": 0}, r"threads must be an integer in \[1, 1024\]"),
    ({"threads": 1.5}, "threads must be an integer"),
    ({"threads": 10**9}, "threads must be an integer"),
    ({"method": "magic"}, "method magic: choose one of block, random, metis"),
    ({"method": 7}, "method 7: choose one of"),
    ({"objective": "both"}, "objective both: choose one of column, cover"),
    ({"preset": "defualt"}, "did you mean 'default'"),
    ({"imbalance": -0.1}, r"imbalance must be a number in \[0, 1e\+06\]"),
    ({"imbalance": NAN}, "imbalance must be a number"),
    ({"imbalance": 1e308}, "imbalance must be a number"),
    ({"imbalance": "a"}, "imbalance must be a number in .*, got str 'a'"),
    ({"imbalance": None}, "imbalance must be a number"),
    ({"seed": -1}, "seed must be an integer"),
    ({"seed": 0.5}, "seed must be an integer"),
    ({"seed": 2**31}, "seed must be an integer"),
    ({"objective": "cover", "method": "metis"}, "only method gvb takes objective cover"),
    ({"initial": np.zeros(30, int), "method": "metis"}, "cannot refine labels"),
    ({"initial": np.zeros(3, int)}, "3 labels for 30 vertices"),
    ({"initial": np.zeros(30)}, "labels must be a vector of integers"),
    ({"balance": ("nnz", "edges")}, "balance edges: choose one of"),
    ({"balance": ("nnz", "nnz")}, "names a quantity twice"),
    ({"balance": ()}, "balance must name one or more"),
    ({"balance": 5}, "balance must name one or more"),
    ({"balance": "train"}, "needs a train mask, .* has none"),
    ({"balance": "train", "train_mask": np.ones(30)}, r"bool \[30\]; the graph has float64 \[30\]"),
    ({"balance": ("nnz", "vertices"), "method": "metis"}, "one weight only"),
    ({"k": 4, "nodes": 3}, "nodes 3 must divide the number of parts, which is 4"),
    ({"k": 4, "nodes": 0}, "nodes must be an integer of at least 1"),
    ({"k": 4, "nodes": 2, "method": "metis"}, "nodes needs method gvb"),
    ({"k": 4, "nodes": 2, "initial": np.zeros(30, int)}, "no labels to refine"),
]
CUT = [
    ({"edges": [0, 1]}, "2 edge labels for 3 nonzeros"),
    ({"edges": [0, 1, 2]}, r"edge label 2 of nonzero 2 is outside \[0, 2\)"),
    ({"edges": [0.0, 1.0, 1.0]}, "edge labels must be a vector of integers"),
    ({"labels": [0, 1]}, "2 labels for 3 vertices"),
    ({"imbalance": -1}, "imbalance must be a number"),
    ({"seed": -1}, "seed must be an integer"),
]
REPORT = [
    (([0, 1], 2), "2 labels for 3 vertices"),
    (([0, 1, 2], 2), "label 2 of vertex 2 is outside"),
    (([0, -1, 0], 2), "label -1 of vertex 1"),
    (([0.0, 1.0, 0.0], 2), "vector of integers"),
    (([0, 0, 0], 0), "k must be an integer"),
    (([0, 0, 2**20], None), r"k must be an integer in \[1, 65536\], got int 1048577"),
]
GVB = [
    ({"parts": 0}, r"parts must be an integer in \[1, 10\]"),
    ({"parts": 11}, r"parts must be an integer in \[1, 10\]"),
    ({"indptr": [0], "indices": []}, "no vertices"),
    ({"indptr": np.arange(11)[::-1]}, "indptr must rise"),
    ({"indptr": np.arange(11.0)}, "indptr must be a vector of integers"),
    ({"indices": [10] * 10}, r"column index 10 outside \[0, 10\)"),
    ({"indices": [-1] * 10}, r"column index -1 outside \[0, 10\)"),
    ({"indices": [2**32] * 10}, "column index 4294967296 outside"),
    ({"weights": np.ones(9)}, r"weights must be integers, \[10\] or \[10, m\]"),
    ({"weights": np.ones((10, 0))}, r"weights must be integers, \[10\] or \[10, m\]"),
    ({"weights": ["a"] * 10}, "weights must be integers"),
    ({"weights": np.full(10, 0.5)}, "weights must be integers"),
    ({"weights": np.full(10, np.nan)}, "weights must not be negative"),
    ({"weights": np.full(10, 2**60)}, "less than 2\\^60"),
    ({"weights": -np.ones(10)}, "negative"),
    ({"imbalance": -0.1}, "at least 0"),
    ({"imbalance": "a"}, "imbalance must be a number"),
    ({"imbalance": [0.1, 0.1]}, "one number or 1"),
    ({"preset": "best"}, "preset best: choose one of fast, default, strong"),
    ({"objective": "cut"}, "objective cut: choose one of column, cover"),
    ({"seed": -1}, "seed must be an integer"),
    ({"threads": 0}, "threads must be an integer"),
    ({"initial": np.full(10, 2)}, "label 2 of vertex 0 is outside"),
    ({"initial": np.zeros(9, int)}, "9 labels for 10 vertices"),
]
SMALL = {"indptr": np.arange(11), "indices": np.arange(10), "parts": 2}
SMALL |= {"weights": np.ones(10), "imbalance": 0.1}
CALLS = [
    *((lambda o=o: partition(DENSE, **{"k": 2} | o), words) for o, words in PARTITION),
    *((lambda o=o: cut_vertices(EYE, 2, **o), words) for o, words in CUT),
    *((lambda o=o: report(EYE, *o), words) for o, words in REPORT),
    *((lambda o=o: gvb(**SMALL | o), words) for o, words in GVB),
]


@pytest.mark.parametrize(("call", "words"), CALLS)
def test_arguments(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


@dataclass
class Arrays:
    """As a graph on disk has them."""

    indptr: Any
    indices: Any
    shape: Any = (3, 3)


ZEROS = np.zeros(3, np.int32)
MATRICES = [
    (np.ones((3, 3)), "cannot partition a ndarray"),
    (None, "cannot partition a NoneType"),
    ([[1]], "cannot partition a list"),
    (sp.coo_array([1, 0, 1]), "the matrix is 3; a partition"),
    (sp.csr_array((3, 4)), "the matrix is 3 × 4"),
    (Arrays(np.array([0, 1, 2]), ZEROS[:2]), "indptr must have 4 entries, got 3"),
    (Arrays(np.array([0, 2, 1, 3]), ZEROS), "indptr must rise from 0"),
    (Arrays(np.array([0, 1, 2, 3]), ZEROS[:2]), "indptr must rise from 0"),
    (Arrays(np.array([1, 1, 2, 3]), ZEROS), "indptr must rise from 0"),
    (Arrays(np.array([0.0, 1, 2, 3]), ZEROS), "indptr must be a vector of int"),
    (Arrays(np.array([0, 1, 2, 3]), np.zeros(3)), "indices must be a vector of integers"),
    (Arrays(np.array([0, 1, 2, 3]), np.full(3, 2**32)), "column index 4294967296 outside"),
    (Arrays(None, None, (2**31, 2**31)), "at most 2³¹ − 1 can be partitioned"),
]


@pytest.mark.parametrize(("A", "words"), MATRICES)
def test_matrices(A, words):
    calls = [lambda method=m: partition(A, 2, method) for m in ("gvb", "stream", "block", "metis")]
    for call in (*calls, lambda: report(A, [0, 0, 0]), lambda: cut_vertices(A, 2)):
        with pytest.raises(InputError, match=words):
            call()


def test_columns_of_mapped_files():
    """They are looked at where they are used."""
    A = Arrays(np.array([0, 1, 2]), np.array([0, 7], np.int32), (2, 2))
    for options in ({}, {"labels": [0, 1]}, {"edges": [0, 1]}):
        with pytest.raises(InputError, match=r"row 1 has column index 7, outside \[0, 2\)"):
            cut_vertices(A, 2, **options)
    with pytest.raises(InputError, match=r"row 1 has column index 7, outside \[0, 2\)"):
        report(A, [0, 1])


@pytest.mark.parametrize("labels", [[0.0, 1.0], [[0, 1]], ["0"], [[0], [1, 2]], 3])
def test_labels(tmp_path, labels):
    path = tmp_path / "labels"
    for call in (
        lambda: write_labels(path, labels),
        lambda: permutation(labels),
        lambda: part_sizes(labels, 2),
    ):
        with pytest.raises(InputError, match="labels must be a vector of integers"):
            call()
    with pytest.raises(InputError, match="must fit 32 bits"):
        write_labels(path, [2**31])
    assert not path.exists()
