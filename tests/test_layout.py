"""Row layouts and process grids against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spgnn import InputError, ProcessGrid, RowLayout

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def layout_of(counts: list[int]) -> RowLayout:
    return RowLayout(np.concatenate(([0], np.cumsum(counts))))


@given(sizes)
def test_sizes_ranges_and_owners(counts):
    layout = layout_of(counts)
    assert (layout.parts, layout.rows) == (len(counts), sum(counts))
    assert layout.sizes.tolist() == counts
    owners = np.repeat(np.arange(len(counts)), counts)
    np.testing.assert_array_equal(layout.owner(np.arange(layout.rows)), owners)
    for part in range(layout.parts):
        first, last = layout.range(part)
        np.testing.assert_array_equal(np.flatnonzero(owners == part), np.arange(first, last))


@given(st.integers(0, 10**12), st.integers(1, 300))
def test_even_blocks_differ_by_one_at_most(rows, parts):
    layout = RowLayout.even(rows, parts)
    assert (layout.parts, layout.rows) == (parts, rows)
    assert layout.sizes.max() - layout.sizes.min() <= 1


@given(st.lists(st.integers(0, 6), max_size=40))
def test_layout_of_labels_counts_them(labels):
    layout = RowLayout.from_labels(np.array(labels, dtype=np.int32), 7)
    assert layout.sizes.tolist() == [labels.count(part) for part in range(7)]


@given(sizes, st.integers(1, 5))
def test_grouped_undoes_split(counts, pieces):
    layout = layout_of(counts)
    fine = layout.split(pieces)
    assert fine.parts == layout.parts * pieces
    np.testing.assert_array_equal(fine.grouped(pieces).offsets, layout.offsets)
    slices = fine.sizes.reshape(-1, pieces)
    assert (slices.max(axis=1) - slices.min(axis=1) <= 1).all()


def test_groups_must_be_whole():
    with pytest.raises(InputError, match="5 parts cannot be grouped by 2"):
        RowLayout.even(10, 5).grouped(2)


@pytest.mark.parametrize("offsets", [[], [0], [1, 2], [0, 3, 2], [[0, 1]]], ids=str)
def test_offsets_must_rise_from_zero(offsets):
    with pytest.raises(InputError, match="rise from 0"):
        RowLayout(np.array(offsets))


@given(st.integers(1, 8), st.integers(1, 8))
def test_grid_groups_partition_the_ranks(block_rows, c):
    grid = ProcessGrid(block_rows * c, c)
    assert grid.block_rows == block_rows
    numbers = np.arange(grid.size).reshape(block_rows, c)
    for rank in range(grid.size):
        i, j = grid.coordinates(rank)
        assert numbers[i, j] == rank
        assert grid.row_group(rank) == numbers[i].tolist()
        assert grid.column_group(rank) == numbers[:, j].tolist()


@pytest.mark.parametrize(("size", "c"), [(4, 3), (4, 0), (4, -2), (2, 4)])
def test_replication_must_divide_the_ranks(size, c):
    with pytest.raises(InputError, match=f"c = {c} must divide the number of ranks {size}"):
        ProcessGrid(size, c)
