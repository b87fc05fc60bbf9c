"""Flags derived from records: a field is a flag, with its type, its default and its help."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Self,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from spgnn.command import LARGEST, Parser, at_least, nbytes, nonempty, real
from spgnn.errors import InputError, check_choice, meant, shortened, unknown
from spgnn.train.tables import read_table

FILE = "config"  # the flag of a file that holds others


class Flag(NamedTuple):
    """What the type of a field cannot say, ``epochs: Annotated[int, Flag(low=1)] = 100``.

    `low` and `high` are of a number: an integer in [low, high], or a real number in [low, high).
    `choices` are of a text whose type is no ``Literal``. An integer `in_bytes` may have a unit.
    """

    help: str | None = None
    metavar: str | None = None
    low: int = 0
    high: int | None = None
    choices: tuple[str, ...] = ()
    in_bytes: bool = False


@dataclasses.dataclass(frozen=True)
class Record:
    """Base of records whose fields are flags; values are checked as if they had been written."""

    def __post_init__(self) -> None:
        for written, how in _arguments(type(self)):
            name, value = how["dest"], getattr(self, how["dest"])
            if "action" in how:
                if value is not None or how["default"] is not None:
                    check_choice(written, str(value), ("True", "False"))
            elif "choices" in how:
                check_choice(written, value, how["choices"])
            elif value != how["default"]:
                try:
                    object.__setattr__(self, name, how["type"](str(value)))
                except (argparse.ArgumentTypeError, ValueError) as error:
                    raise InputError(f"{written}: {error}") from None


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of configurations: their fields are records, whose flags all have different names."""

    @classmethod
    def of(cls, **flags: Any) -> Self:
        """The defaults with some flags set, say ``of(epochs=5, cover="minimum")``."""
        return cls().but(**flags)

    def but(self, **flags: Any) -> Self:
        """The same with some flags set otherwise.

        Raises
        ------
        InputError
            If there is no such flag, or its value is wrong.
        """
        known = self.flat()
        for name in flags:
            if name not in known:
                raise unknown("flag", name, known)
        parts = {
            part: dataclasses.replace(record, **{k: flags[k] for k in vars(record) if k in flags})
            for part, record in vars(self).items()
        }
        return dataclasses.replace(self, **parts)

    def flat(self) -> dict[str, Any]:
        """All flags by name."""
        return {k: value for record in vars(self).values() for k, value in vars(record).items()}

    @classmethod
    def read(cls, command_line: Sequence[str] | None, **about: Any) -> Self:
        """From a command line, by default that of this process; `about` goes to argparse.

        Flags of the file that it names with ``--config`` count as written before all others.
        """
        cls._parser(about).parse_args(command_line)  # what is wrong, or asks for help
        return cls.of(**cls._given(command_line))

    @classmethod
    def given(cls, command_line: Sequence[str] | None) -> set[str]:
        """Names of the flags that a command line or its file holds, with whatever value."""
        return set(cls._given(command_line))

    @classmethod
    def read_file(cls, path: str) -> dict[str, Any]:
        """The flags that a configuration file holds, by name.

        Keys are names of flags, with dashes or underscores, at the top or in a table of their
        record's name; a report is such a file as well, by its ``config``.

        Raises
        ------
        InputError
            If a key is unknown or there twice, or its value is none of that flag; names the file
            and the key.
        """
        what, table = f"--{FILE} {path}", read_table(path, f"--{FILE}")
        of_report = isinstance(table.get(FILE), dict)
        found: dict[str, Any] = {}
        for key, value, how in cls._entries(what, table[FILE] if of_report else table):
            name = how["dest"]
            if name == FILE and not of_report:
                raise InputError(f"{what}: {key}: a configuration file cannot name another one")
            if name in found:
                raise InputError(f"{what}: {key} is there twice")
            if name != FILE and not (value is None and how["default"] is None):
                found[name] = _typed(f"{what}: {key}", value, how)
        try:
            cls.of(**found)
        except InputError as error:
            raise InputError(f"{what}: {error}") from None
        return found

    @classmethod
    def _entries(
        cls, what: str, table: dict[str, Any]
    ) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Each key of a file, as it is written, its value, and its flag."""
        parts = {
            part: {how["dest"]: how for _, how in _arguments(type(record))}
            for part, record in vars(cls()).items()
        }
        flags = {name: how for part in parts.values() for name, how in part.items()}
        for key, value in table.items():
            if value is None and key in parts and key not in flags:
                continue  # the name of a table in YAML, and only comments below
            inner = isinstance(value, dict) and key in parts
            known = parts[key] if inner else flags
            for written, one in value.items() if inner else [(key, value)]:
                name = str(written).replace("-", "_")
                if name not in known:
                    if key in parts and not inner:
                        raise InputError(f"{what}: {key} must be a table, got {_shown(value)}")
                    where = f" of [{key}]" if inner else ""
                    near = meant(name, known if inner else [*flags, *parts])
                    raise InputError(f"{what}: unknown key '{written}'{where}{near}")
                yield str(written), one, known[name]

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Add all flags to a parser, whose results then hold those that are given."""
        for part, record in vars(cls()).items():
            group = parser.add_argument_group(part)
            for written, how in _arguments(type(record)):
                default = "none" if how["default"] is None else how["default"]
                help_ = how["help"].replace("%(default)s", str(default))
                group.add_argument(written, **{**how, "help": help_, "default": argparse.SUPPRESS})

    @classmethod
    def from_written(cls, written: Mapping[str, Any]) -> Self:
        """From flags that were given, those of the file among them before all others."""
        return cls.of(**cls._merged(written))

    @classmethod
    def _given(cls, command_line: Sequence[str] | None) -> dict[str, Any]:
        parser = cls._parser({}, default=argparse.SUPPRESS)
        return cls._merged(vars(parser.parse_args(command_line)))

    @classmethod
    def _merged(cls, written: Mapping[str, Any]) -> dict[str, Any]:
        return {**(cls.read_file(written[FILE]) if FILE in written else {}), **written}

    @classmethod
    def _parser(cls, about: dict[str, Any], **instead: Any) -> Parser:
        shown = argparse.ArgumentDefaultsHelpFormatter
        parser = Parser(formatter_class=shown, allow_abbrev=False, **about)
        for part, record in vars(cls()).items():
            group = parser.add_argument_group(part)
            for written, how in _arguments(type(record)):
                group.add_argument(written, **how | instead)
        return parser


def _arguments(record: type[Record]) -> Sequence[tuple[str, dict[str, Any]]]:
    """Each field's flag (a switch has ``--no-…`` as well), and what argparse has to know."""
    return _arguments_of(cast(Hashable, record))  # a class is; mypy asks its instances


@cache
def _arguments_of(record: type[Record]) -> Sequence[tuple[str, dict[str, Any]]]:
    types = get_type_hints(record, include_extras=True)
    found = []
    for field in dataclasses.fields(record):
        kind, about = types[field.name], Flag()
        if get_origin(kind) is Annotated:
            kind, about = get_args(kind)
        how: dict[str, Any] = {"dest": field.name, "default": field.default}
        how["help"] = about.help or "default: %(default)s"
        written = "--" + field.name.replace("_", "-")
        choices = get_args(kind) if get_origin(kind) is Literal else about.choices
        if kind in (bool, bool | None):
            how["action"] = argparse.BooleanOptionalAction
        elif choices:
            how["choices"] = choices
        elif about.in_bytes:
            how["type"] = nbytes
        elif kind is int:
            how["type"] = at_least(about.low, LARGEST if about.high is None else about.high)
        elif kind in (float, float | None):
            how["type"] = real(about.low, math.inf if about.high is None else about.high)
        else:
            how["type"] = nonempty
        found.append((written, how | ({"metavar": about.metavar} if about.metavar else {})))
    return found


def _typed(what: str, value: Any, how: dict[str, Any]) -> Any:
    """A value of a file, which has a type already: that of its flag."""
    kind = how.get("type")
    types: tuple[type, ...]
    wanted, types = "a text in quotes", (str,)
    if "action" in how:
        wanted, types = "true or false", (bool,)
    elif isinstance(kind, at_least):
        wanted, types = "an integer", (int,)
    elif isinstance(kind, real):
        wanted, types = "a number", (int, float)
    elif kind is nbytes:
        wanted, types = "bytes, as 4096 or '2GiB'", (int, str)
    # Python's truth values are integers.
    right = isinstance(value, types) and isinstance(value, bool) == (bool in types)
    if not right:
        raise InputError(f"{what} must be {wanted}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value of a file in a message."""
    if isinstance(value, str):
        return f"the text '{shortened(value, 60)}'"
    if isinstance(value, bool | int | float):
        return shortened(str(value).lower(), 60)
    return f"a {type(value).__name__}"
