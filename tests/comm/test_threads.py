"""A thread that has been joined is none, however long the system lists it."""

from __future__ import annotations

import threading

from tests.comm.threads import names_of_threads


def test_ended_threads_do_not_count(tmp_path):
    # Names may hold anything; flags are the ninth field.
    lines = {"7": "7 (main) S 1 7 7 0 -1 64 9", "8": "8 (a) b) R 1 7 7 0 -1 4194368 9"}
    lines |= {"9": "9 (joined) R 1 7 7 0 -1 4194372 9"}
    for number, line in lines.items():
        (tmp_path / number).mkdir()
        (tmp_path / number / "stat").write_text(line)
    (tmp_path / "10").mkdir()  # listed, and gone when it is looked at
    assert sorted(names_of_threads(tmp_path)) == ["a) b", "main"]


def test_threads_of_this_process_count():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert len(names_of_threads()) >= 2
    stop.set()
    thread.join()
