"""Both ways of reading files."""

from __future__ import annotations

import pytest

from spgnn._native import ring_refusal


@pytest.fixture(params=["threads", "io_uring"])
def way(request, monkeypatch):
    """Files that are opened now are read by threads, or through io_uring."""
    if request.param == "io_uring" and ring_refusal():
        pytest.skip(ring_refusal())
    monkeypatch.setenv("SPGNN_IO_URING", "0" if request.param == "threads" else "1")
    return request.param
