"""How products are cut into tiles, and how threads share rows. Needs neither GPU nor compiler."""

import gc

import pytest
import torch

from spgnn.addons.cuda import device
from spgnn.addons.cuda.device import remembered, thread_shape, vector_width
from spgnn.addons.cuda.tiling import TILE_ITEMS, make_tiling, tile_items


def indptr_of(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def test_a_huge_row_is_spread_over_tiles_at_every_level():
    indptr = indptr_of([3, 10_000_000, 0, 2])
    tiling = make_tiling(indptr, 1024)
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
