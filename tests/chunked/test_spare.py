"""What is kept of freed memory, against the bytes that a process may have."""

import pytest

from spgnn.chunked import table as spare
from spgnn.chunked.table import Spare, keep_nothing
from spgnn.direct import PAGE, page_buffer, pages_held


@pytest.mark.parametrize(
    ("resident", "held", "gives"),
    [
        (None, 0, False),
        (1000, 0, False),  # 700 + 200 + 100
        (999, 0, True),
        (999, 1, False),  # a page that is held is among those that are resident
    ],
)
def test_holes_are_given_back_where_the_next_pass_may_not_fit(monkeypatch, resident, held, gives):
    given = []
    monkeypatch.setattr(spare, "resident_bytes", lambda: 700)
    monkeypatch.setattr(spare, "pages_held", lambda: held)
    monkeypatch.setattr(spare, "give_back_holes", lambda: given.append(True))
    Spare(pages=200, piece=100, resident=resident).make_room()
    assert bool(given) == gives


def test_pages_are_kept_up_to_what_there_is_for_them():
    keep_nothing()
    used = pages_held()
    Spare(pages=used + 64 * PAGE, piece=0, resident=None).keep()
    pieces = [page_buffer(16 * PAGE) for _ in range(8)]
    assert pages_held() >= used + 128 * PAGE
    del pieces
    assert pages_held() <= used + 64 * PAGE
    keep_nothing()
    assert pages_held() <= used + 16 * PAGE
