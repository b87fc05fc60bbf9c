"""Files: read with one kind of error, and written so that they appear whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from spgnn.errors import InputError

AnyPath = str | os.PathLike[str]
PACKED = (".gz", ".bz2", ".xz")  # suffixes of files that are unpacked while they are read
# Arrays far larger than their file are refused, unless they are small.
_MOST_ARRAY, _SMALL_ARRAY = 250, 1 << 26  # times the size of the file; bytes
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs"}
_LOCAL |= {"xfs", "zfs"}


@contextmanager
def atomic_file(path: AnyPath, what: str | None = None) -> Iterator[BinaryIO]:
    """A file that replaces `path` when the block ends; an InputError calls it `what`."""
    target, shown = Path(path), what or str(path)
    remove_leftovers(target)
    try:
        with ExitStack() as stack:
            try:
                temporary, file = stack.enter_context(_temporary_file(target))
            except ValueError as error:  # a NUL in its name
                raise _unwritable(shown, error) from None
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(target)
    except OSError as error:  # of closing, too: what could not be written is tried again
        raise _unwritable(shown, error) from None


def write_file(path: AnyPath, pieces: Iterable[bytes], what: str | None = None) -> None:
    """Write bytes to an :func:`atomic_file`."""
    with atomic_file(path, what) as file:
        file.writelines(pieces)


@contextmanager
def atomic_directory(path: AnyPath) -> Iterator[Path]:
    """A directory to fill, named `path` when the block ends well; ``InputError`` if that exists."""
    target = Path(path)
    check_new_directory(target)
    try:
        with _temporary_directory(target) as temporary:
            yield temporary
            temporary.rename(target)
    except OSError as error:
        raise _unwritable(str(target), error) from None


@contextmanager
def scratch_directory(parent: AnyPath, what: str) -> Iterator[Path]:
    """An empty directory in `path`, removed when the block ends; an InputError calls it `what`."""
    target = Path(parent) / "spill"
    with ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(target)
            # Nobody else needs to read what lies there.
            scratch = stack.enter_context(_temporary_directory(target, mode=0o700))
        except (OSError, ValueError) as error:
            raise _unwritable(what, error) from None
        yield scratch


def check_writable(path: AnyPath, what: str) -> None:
    """InputError, before long work, if the file that `what` names cannot be written."""
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
    if not os.path.isdir(target.parent):
        raise InputError(f"{what} {target}: its directory does not exist")
    remove_leftovers(target)
    try:
        with _temporary_file(target):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(f"{what} {target}", error) from None


def check_new_directory(path: AnyPath, what: str | None = None) -> None:
    """InputError, before long work, if the directory that `what` names cannot be made."""
    target = Path(path)
    shown = str(target) if what is None else f"{what} {target}"
    if not os.fspath(path):
        raise InputError(f"{what or 'directory'}: an empty name; give the name of a directory")
    if os.path.lexists(target):
        raise InputError(f"{shown}: exists already; remove it or name another one")
    remove_leftovers(target)
    try:
        with _temporary_directory(target):
            pass
    except (OSError, ValueError) as error:
        raise _unwritable(shown, error) from None


def remove_leftovers(target: Path) -> None:
    """Remove this user's temporary files for `target` whose lock nobody can hold any more."""
    name = re.compile(rf"\.{re.escape(target.name)}\.([0-9a-f]{{8}})-[0-9a-f]{{16}}\.partial")
    folder = target.absolute().parent
    with suppress(OSError):
        for path in folder.iterdir():
            match = name.fullmatch(path.name)
            if match and (match[1] == _boot() or _is_local(folder)):
                with suppress(OSError):
                    _remove_unlocked(path)


def digest(*arrays: memoryview | bytes) -> str:
    """A fingerprint of some bytes, 32 hexadecimal digits (BLAKE2b)."""
    hasher = hasher_of_digest()
    for array in arrays:
        hasher.update(array)
    return hasher.hexdigest()


def hasher_of_digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


@contextmanager
def _temporary_file(target: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new, locked file next to `target`, removed at the end if it still has its name."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    path, descriptor = _locked(target, lambda path: os.open(path, flags, 0o666))
    try:
        with open(path, "wb", opener=lambda *_: descriptor) as file:
            yield path, file
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def _temporary_directory(target: Path, mode: int = 0o777) -> Iterator[Path]:
    """A new, locked directory next to `target`, removed at the end if it still has its name."""

    def make(path: Path) -> int | None:
        path.mkdir(mode)
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None  # Somebody took it for a leftover, and has removed it.

    path, descriptor = _locked(target, make)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _locked(target: Path, make: Callable[[Path], int | None]) -> tuple[Path, int]:
    """Create a file or directory under a temporary name next to `target`, and lock it."""
    # The lock is of the open file: forks hold it too, and the system releases it however they end.
    # The machine's boot is in the name: some network file systems show locks on one machine only.
    boot = _boot()
    while True:
        random = secrets.token_hex(8)
        unlocked = target.with_name(f".{target.name}.{random}.partial")
        path = target.with_name(f".{target.name}.{boot}-{random}.partial") if boot else unlocked
        descriptor = make(path)
        if descriptor is None:
            continue
        if not boot:
            return path, descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                return path, descriptor
        except (BlockingIOError, FileNotFoundError):
            pass  # Somebody took it for a leftover before it had its lock, and removes it.
        except OSError:  # no locks on this file system
            path.rename(unlocked)
            return unlocked, descriptor
        os.close(descriptor)


def _remove_unlocked(path: Path) -> None:
    """Remove a file or directory of this user whose lock nobody holds."""
    status = os.lstat(path)
    is_directory = stat.S_ISDIR(status.st_mode)
    if status.st_uid != os.geteuid() or not (is_directory or stat.S_ISREG(status.st_mode)):
        return
    access = os.O_RDONLY | os.O_DIRECTORY if is_directory else os.O_RDWR
    descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_directory:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _boot() -> str:
    """Eight digits of this start of the machine's system; empty where that has no number."""
    try:
        digits = Path("/proc/sys/kernel/random/boot_id").read_text()[:8].lower()
    except OSError:
        return ""
    return digits if re.fullmatch(r"[0-9a-f]{8}", digits) else ""


def _is_local(folder: Path) -> bool:
    """True if no other machine can have mounted this file system."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    kinds = {line.partition(" - ")[2].split()[0] for line in mounts if line.split()[2] == number}
    return bool(kinds) and kinds <= _LOCAL


def _unwritable(what: str, error: OSError | ValueError) -> InputError:
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{what}: cannot be written: {reason}")


# Files of others -------------------------------------------------------------------------------


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuse pipes and devices before they are opened: a pipe has to be waited for."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # who opens it says why it cannot be
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise InputError(
            f"{path}: is a pipe or a device; files are read more than once, so write it to one"
        )


@contextmanager
def reading(path: Path, what: str = "truncated or damaged") -> Iterator[None]:
    """Turn whatever a library raises in the block about the bytes of a file into an InputError."""
    try:
        yield
    except (InputError, MemoryError, Warning):
        raise
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        raise InputError(f"{path}: {what}: {str(error) or type(error).__name__}") from None


@contextmanager
def errors_of(what: object) -> Iterator[None]:
    """Begin an InputError of the block with the file or array that it is about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def check_unpacked(what: object, unpacked: int, stored: int, remedy: str) -> None:
    """Refuse numbers that take far more memory than their file has bytes."""
    if unpacked > max(_MOST_ARRAY * stored, _SMALL_ARRAY):
        raise InputError(
            f"{what}: {unpacked >> 20} MiB from a file of {stored} bytes, more than "
            f"{_MOST_ARRAY} times as much; if that is right, {remedy}"
        )


def name_in(path: Path) -> str:
    """A file's name without its suffixes."""
    return unpacked(path).rsplit(".", 1)[0]


def unpacked(path: Path) -> str:
    """The name of a file without the suffix that says how it is packed."""
    return path.stem if path.suffix.lower() in PACKED else path.name
