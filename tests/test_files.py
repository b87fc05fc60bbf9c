"""Files appear whole or not at all, and what a killed process left behind is removed."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

from spgnn import InputError
from spgnn.files import (
    check_new_directory,
    check_writable,
    digest,
    directory_written_aside,
    hasher_of_digest,
    remove_leftovers,
    write_archive,
    write_pieces,
    written_aside,
)
from tests.comm.jobs import Forked, wait_for


def test_a_file_takes_the_place_of_another_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    write_pieces(path, [b"old"])
    with written_aside(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one(tmp_path):
    """What it leads to is written, also where that is not there yet."""
    (tmp_path / "far").mkdir()
    for name in ("there", "new"):
        (tmp_path / name).symlink_to(tmp_path / "far" / name)
    (tmp_path / "far" / "there").write_bytes(b"old")
    for name in ("there", "new"):
        check_writable(tmp_path / name, "--json")
        write_pieces(tmp_path / name, [b"new"])
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "far" / name).read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "astray").symlink_to(tmp_path / "none" / "file")
    with pytest.raises(InputError, match=r"--json .*astray: its directory does not exist"):
        check_writable(tmp_path / "astray", "--json")


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_pieces(path, [b"old"])

    def pieces():
        yield b"half"
        raise LookupError

    with pytest.raises(LookupError):
        write_pieces(path, pieces())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match=r"--json .*missing/file: cannot be written: No such file"):
        write_pieces(tmp_path / "missing" / "file", [], "--json missing/file")


def test_an_archive_is_whole_before_an_interrupt_takes_effect(tmp_path, monkeypatch):
    """As when Ctrl-C is pressed in the middle of a checkpoint."""
    write = np.lib.format.write_array

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        write(*arguments, **options)

    monkeypatch.setattr(np.lib.format, "write_array", interrupted)
    path = tmp_path / "archive.npz"
    with pytest.raises(KeyboardInterrupt):
        write_archive(path, {"one": np.arange(3), "two": np.arange(4)})
    with np.load(path) as archive:
        assert archive["two"].tolist() == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "directory"

    def half() -> None:
        with directory_written_aside(path) as aside:
            (aside / "part").write_text("x")
            raise LookupError

    with pytest.raises(LookupError):
        half()
    assert not list(tmp_path.iterdir())
    with directory_written_aside(path) as aside:
        (aside / "part").write_text("x")
    assert [p.name for p in path.iterdir()] == ["part"]
    with pytest.raises(InputError, match="exists already"), directory_written_aside(path):
        pass


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_leftovers_of_killed_processes_are_removed(tmp_path, kind):
    folder, target = tmp_path / "there", tmp_path / "there" / "target"
    folder.mkdir()

    def write():
        context = written_aside if kind == "file" else directory_written_aside
        with context(target):
            time.sleep(100)

    process = Forked(write, tmp_path)
    wait_for(lambda: any(folder.iterdir()))
    remove_leftovers(target)
    assert list(folder.iterdir())  # its writer still runs
    process.signal(signal.SIGKILL)
    process.wait()
    remove_leftovers(target)
    assert not list(folder.iterdir())


def test_only_leftovers_of_that_name_are_removed(tmp_path):
    others = [".other.host-1.partial", ".target", ".target.elsewhere-999999999.partial", "target"]
    for name in others:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path / "target")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(others)


def test_targets_are_tried_before_long_work(tmp_path):
    check_writable(tmp_path / "new.json", "--json")
    assert not list(tmp_path.iterdir())
    for path, said in (
        ("", "--json: an empty name"),
        (tmp_path, "is a directory"),
        (tmp_path / "no" / "x.json", "--json .*x.json: its directory does not exist"),
        ("/proc/x.json", "--json /proc/x.json: cannot be written"),
        ("/dev/null", "--json /dev/null: is a device or a pipe; name a regular file"),
        # Here it leads to the file in which pytest captures what is printed.
        ("/dev/stdout", "--json /dev/stdout: is a device or a pipe; name a regular file"),
        ("x" * 5000, "--json xxx.*: cannot be written: File name too long"),
        (tmp_path / "a\0b", "cannot be written: embedded null byte"),
    ):
        with pytest.raises(InputError, match=said):
            check_writable(path, "--json")


def test_new_directories_are_tried_before_long_work(tmp_path):
    check_new_directory(tmp_path / "new", "--output")
    assert not list(tmp_path.iterdir())
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path, said in (
        ("", "--output: an empty name"),
        (tmp_path, "--output .*: exists already"),
        (tmp_path / "link", "link: exists already"),
        (tmp_path / "no" / "x", "--output .*x: cannot be written: No such file"),
        ("x" * 5000, "--output xxx.*: cannot be written: File name too long"),
        (tmp_path / "a\0b", "cannot be written: embedded null byte"),
    ):
        with pytest.raises(InputError, match=said):
            check_new_directory(path, "--output")


def test_digests_tell_bytes_apart():
    assert digest(b"ab", b"c") == digest(b"abc") != digest(b"abd")
    assert len(digest(b"")) == 32
    hasher = hasher_of_digest()
    hasher.update(b"ab")
    hasher.update(b"c")
    assert hasher.hexdigest() == digest(b"abc")
    assert digest(memoryview(os.urandom(8))) != digest(b"")
