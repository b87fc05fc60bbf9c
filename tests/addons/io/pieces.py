"""Small pieces of text and small buckets, so that little files have many."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from spgnn.addons.io import text, through_disk
from spgnn.data.structure import row_ranges


@contextmanager
def small_pieces(piece: int, limit: int):
    """Text is parsed some bytes at a time, and sorted by way of buckets of a few entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE", piece)
        patch.setattr(through_disk, "row_ranges", lambda lengths, _: row_ranges(lengths, limit))
        yield
