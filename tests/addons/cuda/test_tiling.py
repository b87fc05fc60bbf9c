"""How products are cut into tiles, and how threads share rows. Needs neither GPU nor compiler."""

import gc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spgnn.addons.cuda import device
from spgnn.addons.cuda.device import (
    ACCUMULATORS,
    MOST_PACKS,
    remembered,
    thread_shape,
    vector_width,
)
from spgnn.addons.cuda.tiling import TILE_ITEMS, Tiling, make_segments, make_tiling, tile_items

LENGTHS = st.lists(
    st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 40), st.integers(0, 3000)),
    min_size=1,
    max_size=60,
)


def indptr_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def check_tiling(indptr: torch.Tensor, tiling: Tiling) -> None:
    """Every row is finished once, every nonzero is added once, carried sums find their rows."""
    row, nonzero, slot = tiling.tiles.T
    assert (row[0], nonzero[0], slot[0]) == (0, 0, 0)
    assert (row[-1], nonzero[-1]) == (len(indptr) - 1, indptr[-1])
    sizes = row.diff() + nonzero.diff()
    assert bool((sizes > 0).all())
    assert bool((sizes <= tiling.items).all())
    # A tile starts in the row it says, at or before that row's end.
    assert bool((nonzero >= indptr[row]).all())
    inner = row[:-1]
    assert bool((nonzero[:-1] <= indptr[inner + 1]).all())

    pieces = [[] for _ in range(len(indptr) - 1)]  # slots of each row, in order
    open_at = nonzero > indptr[row]
    for t in range(len(row) - 1):
        next_slot = int(slot[t])
        if open_at[t] and row[t + 1] > row[t]:
            pieces[row[t]].append(next_slot)
            next_slot += 1
        if open_at[t + 1]:
            pieces[row[t + 1]].append(next_slot)
            next_slot += 1
        assert next_slot == slot[t + 1]
    crossing = [r for r, slots in enumerate(pieces) if slots]
    if tiling.carried is None:
        assert crossing == []
        return
    carried = tiling.carried
    assert carried.rows.tolist() == crossing
    for s, r in enumerate(crossing):
        first, last = carried.indptr[s : s + 2].tolist()
        assert carried.indices[first:last].tolist() == pieces[r]
        assert int(indptr[r + 1] - indptr[r]) > tiling.items // 4
    check_tiling(carried.indptr, carried.tiling)


@settings(deadline=None)
@given(LENGTHS, st.sampled_from([4, 8, 16, 256, 1024]))
def test_tiling_covers_every_item_once(lengths, items):
    indptr = indptr_of(lengths)
    check_tiling(indptr, make_tiling(indptr, items))


def test_a_huge_row_is_spread_over_tiles_at_every_level():
    indptr = indptr_of([3, 10_000_000, 0, 2])
    tiling = make_tiling(indptr, 1024)
    check_tiling(indptr, tiling)
    assert len(tiling.tiles) - 1 >= 10_000_000 // 1024
    assert tiling.carried is not None
    assert len(tiling.carried.tiling.tiles) - 1 >= 10_000_000 // 1024 // 256


def test_rows_of_a_mesh_never_cross_tiles():
    assert make_tiling(indptr_of([44] * 5000), 1024).carried is None


def test_tiles_fill_the_device_before_they_grow():
    assert tile_items(10_000, 132) == TILE_ITEMS[-1]
    assert tile_items(50_000_000, 132) == TILE_ITEMS[0]
    sizes = [tile_items(items, 132) for items in range(0, 4_000_000, 10_000)]
    assert sizes == sorted(sizes)
    assert set(sizes) == set(TILE_ITEMS)


@settings(deadline=None)
@given(st.integers(1, 5000), st.sampled_from([1, 2, 4, 8]))
def test_thread_shape_covers_all_columns_within_its_limits(columns, vector):
    columns *= vector
    shape = thread_shape(columns, vector)
    sweeps = -(-columns // shape.columns)
    assert shape.lanes in (1, 2, 4, 8, 16, 32)
    assert 1 <= shape.packs <= MOST_PACKS
    assert shape.packs * vector <= max(ACCUMULATORS, vector)
    assert sweeps == -(-columns // (32 * vector * min(MOST_PACKS, max(1, ACCUMULATORS // vector))))
    # No smaller shape would do with as many sweeps.
    if shape.packs > 1:
        assert shape.lanes * vector * (shape.packs - 1) * sweeps < columns
    elif shape.lanes > 1:
        assert shape.columns // 2 * sweeps < columns


@pytest.mark.parametrize(
    ("columns", "vector", "expected"),
    [
        (16, 4, (4, 4, 1)),
        (128, 4, (4, 32, 1)),
        (160, 4, (4, 16, 3)),
        (256, 4, (4, 32, 2)),
        (300, 4, (4, 32, 3)),
        (3, 1, (1, 4, 1)),
        (41, 1, (1, 16, 3)),
        (47, 1, (1, 16, 3)),
        (64, 1, (1, 32, 2)),
        (129, 1, (1, 32, 5)),
    ],
)
def test_few_threads_are_idle(columns, vector, expected):
    assert thread_shape(columns, vector) == expected


@pytest.mark.parametrize(
    ("dtype", "columns", "padding", "offset", "expected"),
    [
        (torch.float32, 64, 0, 0, 4),
        (torch.float32, 64, 4, 0, 4),
        (torch.float32, 64, 1, 0, 1),
        (torch.float32, 64, 2, 0, 2),
        (torch.float32, 17, 0, 0, 1),
        (torch.float32, 64, 4, 1, 1),
        (torch.float32, 64, 4, 2, 2),
        (torch.float64, 64, 0, 0, 2),
        (torch.bfloat16, 64, 0, 0, 8),
        (torch.bfloat16, 300, 0, 0, 4),
    ],
)
def test_vector_width_respects_alignment(dtype, columns, padding, offset, expected):
    storage = torch.zeros(10 * (columns + padding) + 16, dtype=dtype)
    matrix = storage[offset:].as_strided((10, columns), (columns + padding, 1))
    assert storage.data_ptr() % 16 == 0
    assert vector_width(matrix) == expected
    assert vector_width(matrix, torch.zeros(10, columns, dtype=torch.float64)) <= 2


def test_heads_lie_where_packs_can_be_read():
    heads = torch.zeros(10, 3, 8)
    assert vector_width(heads) == 4
    assert vector_width(heads[:, :, :6]) == 2
    assert vector_width(torch.zeros(10, 3, 6)[:, :, :4]) == 2


def test_segments_keep_the_order_of_the_list():
    rows = torch.tensor([5, 2, 5, 5, 0, 2])
    segments = make_segments(rows)
    assert segments.rows.tolist() == [0, 2, 5]
    assert segments.indptr.tolist() == [0, 1, 3, 6]
    assert segments.order.tolist() == [4, 1, 5, 0, 2, 3]


def test_answers_are_remembered_until_the_tensor_is_written_to_or_dies():
    asked, before = [], len(device._remembered)

    def make():
        asked.append(1)
        return len(asked)

    tensor = torch.arange(3)
    assert [remembered(tensor, "a", make), remembered(tensor, "a", make)] == [1, 1]
    assert remembered(tensor, "b", make) == 2
    assert remembered(tensor.clone(), "a", make) == 3
    tensor[0] = 7
    assert remembered(tensor, "a", make) == 4
    del tensor
    gc.collect()
    assert len(device._remembered) <= before


def test_answers_about_inference_tensors():
    with torch.inference_mode():
        tensor = torch.arange(3)
        assert remembered(tensor, "a", lambda: 1) == remembered(tensor, "a", lambda: 2) == 1


def test_answers_are_complete_before_anyone_finds_them(monkeypatch):
    """Another stream that finds an answer does not wait: what makes it must have finished."""
    tensor, events = torch.arange(3), []

    def finish(where):
        events.append(("finished", where, dict(device._remembered[tensor][1])))

    monkeypatch.setattr(device, "finish", finish)
    assert remembered(tensor, "a", lambda: events.append("made") or 1) == 1
    assert remembered(tensor, "a", lambda: 2) == 1
    assert events == ["made", ("finished", tensor.device, {})]


def test_finishing_waits_for_the_stream_that_makes(monkeypatch):
    waited = []

    class Stream:
        def synchronize(self):
            waited.append(self)

    current = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: current)
    device.finish(torch.device("cuda", 0))
    device.finish(torch.device("cpu"))
    assert waited == [current]
