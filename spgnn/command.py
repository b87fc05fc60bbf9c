"""The ground of command lines: types of flags, output, and the end of a command."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import IO, TYPE_CHECKING, NoReturn

from spgnn.errors import ERASE, InputError, shortened
from spgnn.signals import TERMINATED, AskedToEnd, raise_on_interrupt, termination_raises

if TYPE_CHECKING:
    from rich.table import Table

BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 2, 130, 141  # the last two as shells have them: 128 + signal
LARGEST = 2**31 - 1
_SHOWN = 40
_WIDEST = 10_000  # of a table where no terminal sets a limit
_USUAL = 100  # columns of text there


_BYTES = re.compile(r"(\d{1,18}(?:\.\d{0,18})?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def nbytes(text: str) -> int:
    """Bytes, a number alone or with a unit (``20MB``, ``1.5 GiB``); InputError if it is neither."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise InputError(f"'{shortened(text, _SHOWN)}' must be bytes, as in 4096, 20MB or 2GiB")
    number, unit, binary = match.groups()
    power = " kmgt".index(unit.lower()) if unit else 0
    return int(Fraction(number) * (1024 if binary else 1000) ** power)


class OutputError(InputError):
    """Standard output is closed, or its disk is full; a command ends with `status`."""

    def __init__(self, error: OSError) -> None:
        is_pipe = isinstance(error, BrokenPipeError)
        self.status = CLOSED_PIPE if is_pipe else BAD_INPUT
        super().__init__(
            "the output was closed before all was written"
            if is_pipe
            else f"the output cannot be written: {error.strerror or error}"
        )


def say(text: str, end: str = "\n") -> None:
    """Print on standard output, and flush it; ``OutputError`` if that fails."""
    try:
        # The system may refuse to write nothing, too.
        if text or end:
            print(text, end=end)
        sys.stdout.flush()
    except OSError as error:
        _drop_output()
        raise OutputError(error) from None


def say_wrapped(text: str) -> None:
    """Print lines at the terminal's width; what does not fit into an indented one hangs below."""
    width = shutil.get_terminal_size((_USUAL, 0)).columns
    for line in text.splitlines():
        indent = " " * 8 if line.startswith(" ") else ""
        pieces = textwrap.wrap(line, width, subsequent_indent=indent, break_on_hyphens=False)
        say("\n".join(pieces))


def say_version() -> None:
    """Print the version."""
    say(f"spgnn {sys.modules['spgnn'].__version__}")  # rooms import nothing of the door


def _drop_output() -> None:
    """Let go of what cannot be written: Python flushes again at exit, and would complain again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def in_lines(words: Sequence[str]) -> str:
    """Words four a line, so that a table fits into 100 columns."""
    return "\n".join("  ".join(words[n : n + 4]) for n in range(0, len(words), 4))


def show_table(table: Table, width: int | None = None) -> None:
    """Print a table, as wide as the terminal at most; elsewhere, as wide as it needs."""
    # Imported here: it takes its time, and most commands have nothing to draw.
    from rich.console import Console

    terminal, raw = sys.stdout.isatty(), io.BytesIO()
    # Its encoding says which characters there are to draw with.
    encoding = sys.stdout.encoding or "utf-8"
    drawn = io.TextIOWrapper(raw, encoding, errors="backslashreplace", write_through=True)
    if width is None and not terminal:
        width = _WIDEST
        table.min_width = len(str(table.title or ""))
    # Drawn aside: rich would end the process where nobody reads.
    Console(file=drawn, force_terminal=terminal or None, width=width).print(table)
    say(raw.getvalue().decode(encoding), end="")


def prepare_streams() -> None:
    """Let standard streams that are closed, or that cannot be written to, do no harm."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
    if sys.stdout is None:
        # Written to, it fails as the closed one would.
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none of Python's own
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    elif sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _Diagnostics(open(2, "wb", closefd=False), sys.stderr.encoding)  # noqa: SIM115


class _Diagnostics(io.TextIOWrapper):
    """Standard error: at once, and lost where it cannot be written."""

    def __init__(self, file: IO[bytes], encoding: str) -> None:
        super().__init__(file, encoding, errors="backslashreplace", write_through=True)
        self._line_begins = True

    def write(self, text: str) -> int:
        with suppress(OSError):
            # The bar of another process of the job may be in this line.
            clear = ERASE if self._line_begins and self.isatty() else ""
            super().write(clear + text)
        self._line_begins = text.endswith("\n")
        self.flush()
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            super().flush()


def plural(count: int, one: str, several: str | None = None) -> str:
    """A number of things: ``1 rank``, ``2 ranks``."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def run(body: Callable[[], int | None]) -> int:
    """Do what a command does and return its exit status; whatever goes wrong is one line."""
    raise_on_interrupt()
    prepare_streams()
    try:
        with termination_raises(_terminated):
            status = body() or 0
        say("", end="")
    except AskedToEnd:
        _terminated()
    except BrokenPipeError as error:
        _drop_output()
        return _refuse(OutputError(error))
    except InputError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except MemoryError as error:
        print(f"error: out of memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return BAD_INPUT
    return status


def _terminated() -> NoReturn:
    print("error: terminated (SIGTERM)", file=sys.stderr, flush=True)
    os._exit(TERMINATED)


def _refuse(error: InputError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return error.status if isinstance(error, OutputError) else BAD_INPUT
