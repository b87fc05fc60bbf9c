"""Files that appear whole or not at all: written aside, flushed to the disk, then renamed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import numpy as np

from spgnn.errors import InputError

AnyPath = str | os.PathLike[str]


@contextmanager
def written_aside(path: AnyPath, what: str | None = None) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the block ends well.

    Where `path` is a link, it takes the place of what that leads to.

    Parameters
    ----------
    path : path
    what : str, optional
        What an error calls it (by default the path), say ``"--json report.json"``.

    Raises
    ------
    InputError
        If it cannot be written (no such directory, a full disk); what was there stays.
    """
    target = _followed(path)
    remove_leftovers(target)
    aside = _aside(target)
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        raise _unwritable(what or str(path), error) from None
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def write_pieces(path: AnyPath, pieces: Iterable[bytes], what: str | None = None) -> None:
    """Write bytes as `written_aside` does."""
    with written_aside(path, what) as file:
        file.writelines(pieces)


def write_archive(path: AnyPath, arrays: Mapping[str, np.ndarray], what: str | None = None) -> None:
    """Write an .npz archive as `written_aside` does; an interrupt takes effect once it is whole.

    Inside NumPy's writer it would come out as a complaint about an archive that is still open.
    """
    with _interrupts_wait(), written_aside(path, what) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


@contextmanager
def directory_written_aside(path: AnyPath) -> Iterator[Path]:
    """A directory to fill, which gets the name `path` when the block ends well.

    Raises
    ------
    InputError
        If `path` exists, or cannot be written.
    """
    target = Path(path)
    check_new_directory(target)
    aside = _aside(target)
    try:
        aside.mkdir()
        yield aside
        aside.rename(target)
    except OSError as error:
        raise _unwritable(str(target), error) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def scratch_directory(parent: AnyPath, what: str) -> Path:
    """An empty directory of this process in another one, which is made if it does not exist.

    Whoever makes it removes it; what killed processes of this machine left there is removed now.

    Parameters
    ----------
    parent : path
    what : str
        What an error calls it, say ``"--spill DIR"``.

    Raises
    ------
    InputError
        If it cannot be made.
    """
    target = Path(parent) / "spill"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target)
        aside = _aside(target)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
    except (OSError, ValueError) as error:
        raise _unwritable(what, error) from None
    return aside


def check_writable(path: AnyPath, what: str) -> None:
    """Find out before long work whether a file can be written where it is to go.

    Parameters
    ----------
    path : path
    what : str
        The flag or argument that named it, say ``"--json"``.

    Raises
    ------
    InputError
        If the name is empty, or that of anything but a regular file, or nothing can be written
        beside it.
    """
    target = Path(path)
    if not os.fspath(path):
        raise InputError(f"{what}: an empty name; give the name of a file")
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    if os.path.isdir(target):
        raise InputError(f"{what} {target}: is a directory")
    # /dev/stdout leads to a regular file where the output goes to one; /dev/shm holds files.
    device = re.match(r"/dev/(?!shm/)", os.path.abspath(path)) is not None
    if device or (os.path.exists(target) and not os.path.isfile(target)):
        raise InputError(f"{what} {target}: is a device or a pipe; name a regular file")
    followed = _followed(path)
    if not os.path.isdir(followed.parent):
        raise InputError(f"{what} {target}: its directory does not exist")
    remove_leftovers(followed)
    aside = _aside(followed)
    try:
        aside.touch()
        aside.unlink()
    except (OSError, ValueError) as error:
        raise _unwritable(f"{what} {target}", error) from None


def check_new_directory(path: AnyPath, what: str | None = None) -> None:
    """Find out before long work whether a directory can be made.

    Parameters
    ----------
    path : path
    what : str, optional
        The flag or argument that named it, say ``"--output"``.

    Raises
    ------
    InputError
        If the name is empty or taken, or nothing can be written beside it.
    """
    target = Path(path)
    shown = str(target) if what is None else f"{what} {target}"
    if not os.fspath(path):
        raise InputError(f"{what or 'directory'}: an empty name; give the name of a directory")
    if os.path.lexists(target):
        raise InputError(f"{shown}: exists already; remove it or name another one")
    remove_leftovers(target)
    aside = _aside(target)
    try:
        aside.mkdir()
        aside.rmdir()
    except (OSError, ValueError) as error:
        raise _unwritable(shown, error) from None


def remove_leftovers(target: Path) -> None:
    """Remove what processes of this machine that no longer run had begun to write for `target`."""
    beginning, end = f".{target.name}.{_host()}-", ".partial"
    with suppress(OSError):
        for path in target.absolute().parent.iterdir():
            process = path.name.removeprefix(beginning).removesuffix(end)
            if path.name != f"{beginning}{process}{end}" or not process.isdigit():
                continue
            if _runs(int(process)):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def digest(*arrays: memoryview | bytes) -> str:
    """A fingerprint of some bytes, 32 hexadecimal digits (BLAKE2b)."""
    hasher = hasher_of_digest()
    for array in arrays:
        hasher.update(array)
    return hasher.hexdigest()


def hasher_of_digest() -> hashlib.blake2b:
    """What makes a `digest` of bytes that come piece by piece."""
    return hashlib.blake2b(digest_size=16)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """What Python does on SIGINT and SIGTERM is done when the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Handlers run on the main thread.
        return
    came: list[tuple[int, FrameType | None]] = []
    before = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    for number in before:
        signal.signal(number, lambda *call: came.append(call))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late, frame in came:
            before[signal.Signals(late)](late, frame)


def _followed(path: AnyPath) -> Path:
    """Where links lead, in full."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL; whatever is done with it says so
        return Path(os.path.abspath(path))


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{_host()}-{os.getpid()}.partial")


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())[:32] or "host"


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _unwritable(what: str, error: OSError | ValueError) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{what}: cannot be written: {reason}")
