"""Memory that begins at a page, and files that are read and written in it."""

from __future__ import annotations

import os
import signal

import pytest

from spgnn import InputError, direct
from spgnn.direct import PAGE, DirectFile, Transfers, keep_pages, padded, page_buffer, pages_held
from spgnn.kernels.recycling import Keeper
from spgnn.signals import AskedToEnd


@pytest.fixture
def keeper(monkeypatch):
    """One that nobody has used before."""
    found = Keeper(direct.mapped, direct._FILLED)
    monkeypatch.setattr(direct, "_keeper", found)
    return found


def test_so_much_is_held_until_nobody_says_how_much_may(keeper):
    keep_pages(8 * PAGE)
    many = [page_buffer(padded(2 * PAGE)) for _ in range(6)]
    assert pages_held() == 12 * PAGE  # in use, it may be more
    del many[1:]
    assert pages_held() == 8 * PAGE
    keep_pages(None)
    assert pages_held() == 2 * PAGE
    one = page_buffer(PAGE)
    many.clear()
    del one
    assert pages_held() <= 2 * PAGE  # the largest one since


@pytest.mark.parametrize("nbytes", [0, 1, PAGE, PAGE + 1, 10 * PAGE - 1, (5 << 20) + 3])
def test_begins_at_a_page_whoever_had_it_before(keeper, nbytes):
    for _ in range(2):
        found = page_buffer(nbytes)
        assert found.nbytes == nbytes
        if nbytes:
            assert found.ctypes.data % PAGE == 0
        found[:] = 1
        del found


def test_a_signal_while_a_file_is_closed(tmp_path, monkeypatch):
    """The descriptor's number may be another file's by the time it is closed again."""
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE))
    file, close = DirectFile(path, Transfers()), os.close

    def interrupted(descriptor):
        close(descriptor)
        monkeypatch.undo()
        raise AskedToEnd(signal.SIGTERM)

    monkeypatch.setattr(os, "close", interrupted)
    with pytest.raises(AskedToEnd):
        file.close()
    other = os.open(path, os.O_RDONLY)
    file.close()
    os.fstat(other)
    close(other)


def test_a_link_is_not_written_through(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "link").symlink_to("victim")
    with pytest.raises(InputError, match="link: cannot be opened"):
        DirectFile(tmp_path / "link", Transfers(), create=True)
    assert (tmp_path / "victim").read_bytes() == b"precious"
