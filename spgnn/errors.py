"""The one exception that means: the input is wrong, and this line says how."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Real

LONGEST_LINE = 300
_LONGEST_NAME = 60


class InputError(ValueError):
    """Bad input from outside: a file, a flag, a matrix, labels.

    The message is one line that names the file, line or argument, says what is wrong and what
    would be right. Command lines print it after ``error:`` and exit with status 2, without a
    traceback. It is raised before any collective starts. A message of more than `LONGEST_LINE`
    characters (a path can have thousands) loses its middle.
    """

    def __init__(self, message: str) -> None:
        super().__init__(shortened(" ".join(message.split()), LONGEST_LINE))


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end around an ellipsis: at most `most` characters."""
    if len(text) <= most:
        return text
    kept = most - 1
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def unknown(what: str, value: object, choices: Iterable[str]) -> InputError:
    """The error for a name that is none of the choices, with the one that was probably meant.

    Parameters
    ----------
    what : str
        The flag or argument, say ``"--cover"``.
    """
    known, given = list(choices), shortened(str(value), _LONGEST_NAME)
    near = get_close_matches(given, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return InputError(f"{what} {given}: choose one of {', '.join(known)}{hint}")


def check_choice(what: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a name that is none of the choices.

    Raises
    ------
    InputError
    """
    known = list(choices)
    if value not in known:
        raise unknown(what, value, known)


def check_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """An argument that must be an integer in [low, high]; NumPy's integers count, floats do not.

    Raises
    ------
    InputError
        Names the argument, and what would be right.
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
        right = not isinstance(value, bool) and low <= number and (high is None or number <= high)
    except TypeError:
        right = False
    if not right:
        wanted = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise InputError(f"{name} must be an integer {wanted}, got {_shown(value)}")
    return number


def check_number(name: str, value: object, low: float, high: float) -> float:
    """An argument that must be a real number in [low, high]; NumPy's numbers count.

    Raises
    ------
    InputError
        Names the argument, and what would be right.
    """
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
    if not low <= number <= high:
        raise InputError(f"{name} must be a number in [{low:g}, {high:g}], got {_shown(value)}")
    return number


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Say for what memory was needed, where it runs out inside the block.

    Raises
    ------
    MemoryError
        Its message is one line: what, and how much as far as that is known.
    """
    try:
        yield
    except MemoryError as error:
        known = str(error)
    except RuntimeError as error:  # torch has no class of its own for it on the CPU
        known = str(error)
        if "can't allocate memory" not in known:
            raise
        known = known[known.index("can't allocate memory") :]
    else:
        return
    detail = "" if known in ("", "std::bad_alloc") else f": {known}"
    raise MemoryError(shortened(" ".join(f"{what}{detail}".split()), LONGEST_LINE))


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = "of thousands of digits"
    return f"{type(value).__name__} {shortened(text, _LONGEST_NAME)}"
