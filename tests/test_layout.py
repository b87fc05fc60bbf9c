"""Row layouts and process grids against NumPy."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spgnn import Axes, InputError, RowLayout
from spgnn.layout import grouped_order

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


@given(sizes, st.integers(1, 5), st.data())
def test_slices_of_equal_weight(counts, pieces, data):
    layout = layout_of(counts)
    weights = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=layout.rows, max_size=layout.rows))
    )
    fine = layout.split(pieces, weights)
    assert fine.parts == layout.parts * pieces
    np.testing.assert_array_equal(fine.grouped(pieces).offsets, layout.offsets)
    for part in range(layout.parts):
        whole = weights[slice(*layout.range(part))]
        for piece in range(part * pieces, (part + 1) * pieces):
            share = weights[slice(*fine.range(piece))].sum()
            # Cuts lie between rows: a heavy row at either end may make the difference.
            assert abs(share - whole.sum() / pieces) <= whole.max(initial=0) + 0.1


@given(sizes, st.integers(1, 5))
def test_dealing_is_to_and_fro(counts, hands):
    """Row k of a part comes into hand k, and every second turn runs backwards."""
    layout = layout_of(counts)
    position = layout.dealt(np.arange(layout.rows), hands)
    expected = []
    for part in range(layout.parts):
        first, last = layout.range(part)
        dealt = [[] for _ in range(hands)]
        for number, row in enumerate(range(first, last)):
            turn, card = divmod(number, hands)
            dealt[card if turn % 2 == 0 else hands - 1 - card].append(row)
        expected += [row for hand in dealt for row in hand]
    assert np.argsort(position).tolist() == expected


@given(st.integers(1, 8), st.integers(1, 8))
def test_grids_number_rank_by_row_and_replica(block_rows, c):
    axes = Axes.grid(block_rows * c, c)
    assert axes.ranks == block_rows * c
    assert (axes.size("row"), axes.size("replica")) == (block_rows, c)
    numbers = np.arange(axes.ranks).reshape(block_rows, c)
    for rank in range(axes.ranks):
        i, j = axes.coordinate("row", rank), axes.coordinate("replica", rank)
        assert numbers[i, j] == rank
        assert list(axes.group("replica", rank)) == numbers[i].tolist()
        assert list(axes.group("row", rank)) == numbers[:, j].tolist()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(2, 4))
def test_shares_of_the_columns_are_the_third_axis(block_rows, c, shares):
    axes = Axes.grid(block_rows * c * shares, c, shares)
    assert axes == Axes(("row", "replica", "feature"), (block_rows, c, shares))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_groups_along_any_axis(shape):
    """Peers along an axis differ in that coordinate alone; groups partition the ranks."""
    names = tuple("abcd"[: len(shape)])
    axes = Axes(names, tuple(shape))
    places = np.stack(np.unravel_index(np.arange(axes.ranks), shape), axis=1)
    for number, name in enumerate(names):
        assert sorted(chain(*axes.groups(name))) == list(range(axes.ranks))
        for group in axes.groups(name):
            assert places[group, number].tolist() == list(range(shape[number]))
            others = np.delete(places[group], number, axis=1)
            assert (others == others[0]).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        *((lambda o=o: RowLayout(np.array(o)), "rise from 0") for o in ([], [0], [1, 2], [[0, 1]])),
        (lambda: RowLayout(np.array([0, 3, 2])), "rise from 0"),
        (lambda: RowLayout.even(10, 5).grouped(2), "5 parts cannot be grouped by 2"),
        (lambda: Axes.grid(4, 3), "c = 3 must divide the number of ranks 4"),
        (lambda: Axes.grid(4, 0), "c = 0 must divide the number of ranks 4"),
        (lambda: Axes.grid(4, -2), "c = -2 must divide the number of ranks 4"),
        (lambda: Axes.grid(2, 4), "c = 4 must divide the number of ranks 2"),
        (lambda: Axes.grid(6, 2, 2), "2 shares of the columns must divide 6"),
        (lambda: Axes.grid(4, 1, 3), "3 shares of the columns must divide 4"),
        (lambda: Axes.grid(4, 2, 0), "0 shares of the columns must divide 4"),
        (lambda: Axes(("row", "row"), (2, 2)), "one name for each size"),
        (lambda: Axes(("row",), (0,)), "each is at least 1"),
        (lambda: Axes.grid(4).size("rov"), "axis rov: choose one of row, replica; did you mean"),
    ],
)
def test_layouts_and_axes_that_make_no_sense(make, words):
    with pytest.raises(InputError, match=words):
        make()


@given(st.sampled_from([1, 3, 1 << 16, (1 << 16) + 1]), st.integers(0, 300), st.integers(0))
def test_members_of_a_group_lie_together_as_they_were(groups, members, seed):
    group = np.random.default_rng(seed % 2**32).integers(max(0, groups - 5), groups, members)
    expected = sorted(range(members), key=lambda one: group[one])
    assert grouped_order(group, groups).tolist() == expected
