"""The one exception that means: the input is wrong, and this line says how."""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real

LONGEST_LINE = 300
ERASE = "\r\x1b[K"  # the line that a terminal is in
_LONGEST_NAME = 60
# What torch says when it gets no memory (it has a class of its own for GPUs only), and how much.
_NO_MEMORY = re.compile(r"can't allocate memory|out of memory|bad_alloc")
_SIZE = re.compile(r"(?:allocate|memory: you tried to allocate) ([\d.]+ (?:bytes|[KMGTPE]iB))")


class InputError(ValueError):
    """Bad input from outside: a file, a flag, a matrix, labels.

    The message is one line that names the file, line or argument, says what is wrong and what
    would be right. Command lines print it after ``error:`` and exit with status 2, without a
    traceback. It is raised before any collective starts. Bytes of a file that it shows are
    printable; a message of more than `LONGEST_LINE` characters (a path can have thousands) loses
    its middle.

    Attributes
    ----------
    everywhere : bool
        All ranks raise it, so that nobody needs to be told.
    """

    everywhere = False

    def __init__(self, message: str) -> None:
        super().__init__(shortened(printable(" ".join(message.split())), LONGEST_LINE))


def printable(text: str) -> str:
    """The text with what no terminal should be sent (control characters, …) written as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end around an ellipsis: at most `most` characters."""
    if len(text) <= most:
        return text
    room = most - 1
    return f"{text[: room - room // 2]}…{text[len(text) - room // 2 :]}"


def unknown(what: str, value: object, choices: Iterable[str]) -> InputError:
    """The error for a name of a flag or argument `what` that is none of the choices."""
    names, shown = list(choices), shortened(str(value), _LONGEST_NAME)
    return InputError(f"{what} {shown}: choose one of {', '.join(names)}{suggestion(shown, names)}")


def check_method(method: str, choices: Iterable[str]) -> None:
    """``InputError`` for a partition that is neither a method nor a file."""
    if method not in (names := list(choices)) and not os.path.exists(method):
        shown = shortened(method, _LONGEST_NAME)
        choose = f"{', '.join(names)}{suggestion(shown, names)}"
        raise InputError(f"--partition {shown}: neither a file nor one of {choose}")


def suggestion(name: str, choices: Iterable[str]) -> str:
    """``; did you mean 'NAME'?`` if one of the choices is near the name, or nothing."""
    near = get_close_matches(shortened(name, _LONGEST_NAME), list(choices), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """``InputError`` for a name that is none of the choices."""
    names = list(choices)
    if value not in names:
        raise unknown(what, value, names)


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """An argument that must be an integer in [low, high]; NumPy's integers count, floats do not."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
        right = not isinstance(value, bool) and low <= number and (high is None or number <= high)
    except TypeError:
        right = False
    if not right:
        bounds = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise InputError(f"{name} must be an integer {bounds}, got {_shown(value)}")
    return number


def check_number(name: str, value: object, low: float, high: float) -> float:
    """An argument that must be a real number in [low, high]; NumPy's numbers count."""
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not low <= number <= high:
        raise InputError(f"{name} must be a number in [{low:g}, {high:g}], got {_shown(value)}")
    return number


def check_rate(name: str, value: object) -> float:
    """A dropout rate, a real number in [0, 1)."""
    rate = check_number(name, value, 0, 1)
    if rate == 1:
        raise InputError(f"{name} of 1 leaves nothing")
    return rate


class OutOfMemory(MemoryError):
    """Memory ran out; the message is one line that says for what."""


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """If memory runs out inside the block, say for `what`, and how much was requested."""
    try:
        yield
    except OutOfMemory:
        raise
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        if not isinstance(error, MemoryError) and not _NO_MEMORY.search(text):
            raise
        size = _SIZE.search(text)
        tried = f" ({size[1]} more)" if size else ""
        raise OutOfMemory(shortened(f"{what}{tried}", LONGEST_LINE)) from None


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = "of thousands of digits"
    return f"{type(value).__name__} {shortened(text, _LONGEST_NAME)}"
