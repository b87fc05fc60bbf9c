"""Files appear whole or not at all, and what a killed process left behind is removed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time

import pytest

from spgnn import InputError, files
from spgnn.files import (
    atomic_directory,
    atomic_file,
    check_new_directory,
    check_writable,
    digest,
    hasher_of_digest,
    remove_leftovers,
    scratch_directory,
    write_file,
)
from tests.comm.jobs import Forked, wait_for


def test_a_file_takes_the_place_of_another_when_it_is_whole(tmp_path):
    path = tmp_path / "file"
    write_file(path, [b"old"])

    def pieces():
        yield b"half"
        raise LookupError

    with pytest.raises(LookupError):
        write_file(path, pieces())
    with atomic_file(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match=r"--json .*missing/file: cannot be written: No such file"):
        write_file(tmp_path / "missing" / "file", [], "--json missing/file")


def test_a_link_is_replaced(tmp_path):
    """What it leads to, somebody else's file perhaps, stays; directories may be links."""
    far = tmp_path / "far"
    far.mkdir()
    (far / "there").write_bytes(b"precious")
    (tmp_path / "folder").symlink_to(far)
    os.link(far / "there", tmp_path / "hard")
    for name, target in (("there", far / "there"), ("new", far / "new"), ("astray", "none/file")):
        (tmp_path / name).symlink_to(target)
    for name in ("there", "new", "astray", "hard", "folder/inside"):
        path = tmp_path / name
        check_writable(path, "--json")
        write_file(path, [b"new"])
        assert not path.is_symlink()
        assert path.read_bytes() == b"new"
    assert (tmp_path / "folder").is_symlink()
    assert sorted(p.name for p in far.iterdir()) == ["inside", "there"]
    assert (far / "there").read_bytes() == b"precious"
    for name in ("", "a\0b", ".."):
        with pytest.raises(InputError, match="cannot be written"):
            write_file(name, [b"x"], "--json")


def test_a_directory_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "directory"

    def half() -> None:
        with atomic_directory(path) as aside:
            (aside / "part").write_text("x")
            raise LookupError

    with pytest.raises(LookupError):
        half()
    assert not list(tmp_path.iterdir())
    with atomic_directory(path) as aside:
        (aside / "part").write_text("x")
    assert [p.name for p in path.iterdir()] == ["part"]
    with pytest.raises(InputError, match="exists already"), atomic_directory(path):
        pass


def held_by(folder, kind):
    """A process that writes something beside `folder / "target"` until it is killed."""
    context = atomic_file if kind == "file" else atomic_directory
    number = len(list(folder.parent.iterdir()))
    begun = folder.parent / f"begun-{number}"

    def write():
        with context(folder / "target"):
            begun.touch()
            time.sleep(100)

    process = Forked(write, folder.parent, name=f"job-{number}")
    wait_for(begun.exists)
    return process


def kill(process):
    process.signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_leftovers_of_killed_processes_are_removed(tmp_path, kind):
    folder, target = tmp_path / "there", tmp_path / "there" / "target"
    folder.mkdir()
    processes = [held_by(folder, kind), held_by(folder, kind)]
    remove_leftovers(target)
    assert len(list(folder.iterdir())) == 2  # their writers still run
    for left, process in zip((1, 0), processes, strict=True):
        kill(process)
        remove_leftovers(target)
        assert len(list(folder.iterdir())) == left


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_without_locks_nothing_is_removed(tmp_path, kind, monkeypatch):
    folder, target = tmp_path / "there", tmp_path / "there" / "target"
    folder.mkdir()

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", refuse)
        process = held_by(folder, kind)
        kill(process)
        remove_leftovers(target)
        assert len(list(folder.iterdir())) == 1
        write_file(target, [b"whole"])
        check_writable(target, "--json")
        check_new_directory(folder / "new")
    remove_leftovers(target)
    assert target.read_bytes() == b"whole"
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("local", [True, False])
def test_leftovers_of_another_machine(tmp_path, local, monkeypatch):
    """On a network file system its locks may not be seen here."""
    (tmp_path / "there").mkdir()
    kill(held_by(tmp_path / "there", "directory"))
    monkeypatch.setattr(files, "_boot", lambda: "0123abcd")
    monkeypatch.setattr(files, "_is_local", lambda folder: local)
    remove_leftovers(tmp_path / "there" / "target")
    assert len(list((tmp_path / "there").iterdir())) == (0 if local else 1)


def test_forked_processes_hold_a_directory(tmp_path):
    """It is in use until the last of them has ended, however the others did."""
    parent, note = tmp_path / "spill", tmp_path / "note"

    def body():
        with scratch_directory(parent, "--spill"):
            pid = os.fork()
            if pid == 0:
                time.sleep(100)
                os._exit(0)
            note.with_suffix(".new").write_text(str(pid))
            note.with_suffix(".new").rename(note)
            time.sleep(100)

    process = Forked(body, tmp_path)
    wait_for(note.exists)
    kill(process)
    remove_leftovers(parent / "spill")
    assert len(list(parent.iterdir())) == 1
    os.kill(int(note.read_text()), signal.SIGKILL)
    wait_for(lambda: (remove_leftovers(parent / "spill"), not list(parent.iterdir()))[1])


def test_only_leftovers_of_that_name_are_removed(tmp_path):
    boot = files._boot()
    others = [
        ".target",
        "target",
        ".target.host-999999999.partial",
        f".other.{boot}-0123456789abcdef.partial",
        f".target.{boot}-0123456789abcdef",
        f".target.{boot}-0123456789.partial",
    ]
    for name in others:
        (tmp_path / name).touch()
    (tmp_path / f".target.{boot}-0123456789abcdef.partial").touch()
    remove_leftovers(tmp_path / "target")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(others)


def test_what_others_put_there_is_not_followed(tmp_path):
    """Links, pipes and files of other users with the name of a leftover stay as they are."""
    boot, far = files._boot(), tmp_path / "far"
    far.mkdir()
    (far / "file").write_bytes(b"precious")
    names = [tmp_path / f".target.{boot}-{digit * 16}.partial" for digit in "abcdef"]
    names[0].symlink_to(far)
    names[1].symlink_to(far / "file")
    names[2].symlink_to(tmp_path / "nowhere")
    os.mkfifo(names[3])
    made = names[:4]
    if os.geteuid() == 0:
        names[4].touch()
        names[5].mkdir()
        for path in names[4:]:
            os.chown(path, 12345, 12345)
        made = names
    write_file(tmp_path / "target", [b"new"])
    assert (tmp_path / "target").read_bytes() == b"new"
    assert (far / "file").read_bytes() == b"precious"
    assert sorted(tmp_path.iterdir()) == sorted([*made, far, tmp_path / "target"])
    assert not (tmp_path / "nowhere").exists()


def test_temporary_names_are_new(tmp_path, monkeypatch):
    """A name that somebody took, by a link to elsewhere, is refused, and what it leads to kept."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "0" * 2 * count)
    target, victim = tmp_path / "target", tmp_path / "victim"
    victim.write_bytes(b"precious")
    planted = tmp_path / f".target.{files._boot()}-{'0' * 16}.partial"
    planted.symlink_to(victim)
    for write in (
        lambda: write_file(target, [b"new"]),
        lambda: check_writable(target, "--json"),
        lambda: check_new_directory(target, "--output"),
    ):
        with pytest.raises(InputError, match="cannot be written: File exists"):
            write()
    assert victim.read_bytes() == b"precious"
    assert planted.is_symlink()


def test_modes_are_those_of_any_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "file", [b"x"])
        with atomic_directory(tmp_path / "directory"):
            pass
        with scratch_directory(tmp_path, "--spill") as scratch:
            modes = [
                path.stat().st_mode & 0o777 for path in (*sorted(tmp_path.glob("[df]*")), scratch)
            ]
    finally:
        os.umask(before)
    assert [oct(mode) for mode in modes] == ["0o750", "0o640", "0o700"]


# Here /dev/stdout leads to the file in which pytest captures what is printed.
@pytest.mark.parametrize(
    ("check", "name", "words"),
    [
        (check_writable, "", "--json: an empty name"),
        (check_writable, ".", "is a directory"),
        (check_writable, "no/x.json", "--json .*x.json: its directory does not exist"),
        (check_writable, "/proc/x.json", "--json /proc/x.json: cannot be written"),
        (check_writable, "/dev/null", "--json /dev/null: is a device or a pipe; name a regular"),
        (check_writable, "/dev/stdout", "--json /dev/stdout: is a device or a pipe; name"),
        (check_writable, "x" * 5000, "--json .*xxx.*: cannot be written: File name too long"),
        (check_writable, "a\0b", "cannot be written: embedded null byte"),
        (check_new_directory, "", "--json: an empty name"),
        (check_new_directory, ".", "--json .*: exists already"),
        (check_new_directory, "link", "link: exists already"),
        (check_new_directory, "no/x", "--json .*x: cannot be written: No such file"),
        (check_new_directory, "x" * 5000, "--json .*xxx.*: cannot be written: File name too long"),
        (check_new_directory, "a\0b", "cannot be written: embedded null byte"),
    ],
)
def test_targets_are_tried_before_long_work(tmp_path, monkeypatch, check, name, words):
    monkeypatch.chdir(tmp_path)
    check("new", "--json")
    assert not list(tmp_path.iterdir())
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=words):
        check(name, "--json")


def test_digests_tell_bytes_apart():
    assert digest(b"ab", b"c") == digest(b"abc") != digest(b"abd")
    assert len(digest(b"")) == 32
    hasher = hasher_of_digest()
    hasher.update(b"ab")
    hasher.update(b"c")
    assert hasher.hexdigest() == digest(b"abc")
    assert digest(memoryview(os.urandom(8))) != digest(b"")
