"""What the command lines share: one line for a wrong flag, and how a command ends."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any, NoReturn

from spgnn.errors import InputError, meant, shortened, unknown

BAD_INPUT, INTERRUPTED, CLOSED_PIPE = 2, 130, 141  # the last two as shells have them: 128 + signal
LARGEST = 2**31 - 1
_SHOWN = 40


class Parser(argparse.ArgumentParser):
    """A wrong flag is one clear line, not a page of usage, with the one that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises
        ------
        InputError
        """
        _, unrecognized, flags = message.partition("unrecognized arguments: ")
        given = flags.partition(" ")[0].partition("=")[0]
        if unrecognized and given in self._flags():
            raise InputError(f"{message}; {given} is a flag of another command")
        raise InputError(message + (meant(given, self._flags()) if unrecognized else ""))

    def _parse_optional(self, arg_string: str) -> Any:
        """What argparse asks of each word: numbers in a row, as in ``-1,-1``, are no flag."""
        if re.fullmatch(r"-\d+(,-?\d+)+", arg_string, re.ASCII):
            return None
        return super()._parse_optional(arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """What argparse calls for choices, those of subcommands too: an answer to typing errors."""
        if action.choices is not None and value not in action.choices:
            named = "command" if action.dest == argparse.SUPPRESS else action.dest
            flag = "/".join(action.option_strings) or str(action.metavar or named)
            raise unknown(flag, value, map(str, action.choices))

    def _flags(self) -> list[str]:
        """All flags, those of subcommands as well."""
        found = list(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    found += parser._option_string_actions
        return found


class at_least:
    """The type of a flag: an integer in [low, high]."""

    def __init__(self, low: int, high: int = LARGEST) -> None:
        self.low, self.high = low, high

    def __call__(self, text: str) -> int:
        """The integer, or argparse's own error."""
        try:
            value = int(text)
        except ValueError:
            value = self.low - 1
        if not self.low <= value <= self.high:
            wanted = f"≥ {self.low}" if value < self.low else f"≤ {self.high}"
            raise argparse.ArgumentTypeError(
                f"'{shortened(text, _SHOWN)}' must be an integer {wanted}"
            )
        return value


class real:
    """The type of a flag: a finite number in [low, high)."""

    def __init__(self, low: float, high: float = math.inf) -> None:
        self.low, self.high = low, high

    def __call__(self, text: str) -> float:
        """The number, or argparse's own error."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.low <= value < self.high:
            raise argparse.ArgumentTypeError(
                f"'{shortened(text, _SHOWN)}' must be in [{self.low}, {self.high})"
            )
        return value


_BYTES = re.compile(r"(\d{1,18}(?:\.\d{0,18})?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE)


def nbytes(text: str) -> int:
    """The type of a flag: bytes, a number alone or with a unit (``20MB``, ``1.5 GiB``)."""
    found = _BYTES.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"'{shortened(text, _SHOWN)}' must be bytes, as in 4096, 20MB or 2GiB"
        )
    number, unit, binary = found.groups()
    power = " kmgt".index(unit.lower()) if unit else 0
    return int(Fraction(number) * (1024 if binary else 1000) ** power)


def nonempty(given: str) -> str:
    """The type of a flag: a name or a path, which cannot be empty."""
    if not given or "\0" in given:
        raise argparse.ArgumentTypeError("an empty name, or one with a NUL in it")
    return given


def show_as_escapes() -> None:
    """From now on, print as escapes what the terminal's encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none of Python's own
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def run(body: Callable[[], int | None]) -> int:
    """Do what a command does and return its exit status; whatever goes wrong is one line.

    Parameters
    ----------
    body : callable
        Its return value, or 0, is the status.
    """
    show_as_escapes()
    try:
        status = body() or 0
        sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes again at exit, and would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("error: the output was closed before all was written", file=sys.stderr)
        return CLOSED_PIPE
    except MemoryError as error:
        print(f"error: out of memory{f': {error}' if str(error) else ''}", file=sys.stderr)
        return BAD_INPUT
    return status
