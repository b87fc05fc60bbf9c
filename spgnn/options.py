"""Options: records whose fields are flags or keys, read from command lines and files by cyclopts.

A field ``epochs: Annotated[int, flag("…", low=1)] = 100`` of a record ``Training`` is the flag
``--epochs``, and the key ``training.epochs`` of ``--set`` and of a configuration file. Fields that
are marked with :func:`key` are no flags; those with :func:`rare` are not shown by ``--help``.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter as Argument
from inspect import Signature
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    TypeVar,
    get_args,
    get_type_hints,
)

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownOptionError,
    UnusedCliTokensError,
)

from spgnn.command import LARGEST, nbytes, say_version, say_wrapped
from spgnn.errors import InputError, check_choice, check_integer, shortened, suggestion, unknown
from spgnn.registry import PROGRAMS, SECTIONS, Registry

# What a report says of its own run: files, and how it began.
_WRITTEN = ("config", "json", "log", "predictions", "top_k", "plot", "checkpoint", "resume")
_LARGEST_FILE = 1 << 28
_WIDEST = 10_000  # of a line of --help before it is wrapped


class Mark(NamedTuple):
    """The help, the bounds and the rank of an option, as :func:`flag` makes them."""

    help: str
    metavar: str | None = None
    low: float = 0
    high: float | None = None
    choices: Collection[str] | Registry | Callable[[], Collection[str]] = ()
    in_bytes: bool = False
    reads: Callable[[str], Any] | None = None
    level: Literal["flag", "rare", "key", "positional"] = "flag"


def flag(help: str, metavar: str | None = None, **bounds: Any) -> Mark:
    """Mark a field as a flag that ``--help`` shows.

    An integer lies in [low, high], a real number in [low, high); `choices` are of a text.
    """
    return Mark(help, metavar, **bounds)


def rare(help: str, metavar: str | None = None, **bounds: Any) -> Mark:
    """Mark a field as a flag that ``--help`` does not show."""
    return Mark(help, metavar, **bounds, level="rare")


def key(help: str, metavar: str | None = None, **bounds: Any) -> Mark:
    """Mark a field as a key of ``--set`` and of configuration files alone."""
    return Mark(help, metavar, **bounds, level="key")


def positional(help: str) -> Mark:
    """Mark a field as an argument without a name."""
    return Mark(help, level="positional")


class Option(NamedTuple):
    """One field of a record."""

    section: str
    name: str
    kind: Any
    default: Any
    mark: Mark

    @property
    def key(self) -> str:
        """Its name in files and for ``--set``."""
        return f"{self.section}.{self.name.replace('_', '-')}"

    @property
    def flag(self) -> str:
        """Its flag, ``--eval-every``."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def written(self) -> str:
        """Its name in messages."""
        if self.mark.level == "positional":
            return self.name.upper()
        return self.key if self.mark.level == "key" else self.flag

    @property
    def is_switch(self) -> bool:
        """True if its flag takes no value."""
        return self.kind in (bool, bool | None)

    @property
    def choices(self) -> tuple[str, ...]:
        """The texts that it may be, if listed; a name with a space is an extension's."""
        listed = self.mark.choices
        names = [n for n in (listed() if callable(listed) else listed) if " " not in n]
        return tuple(names) or tuple(c for c in get_args(self.kind) if isinstance(c, str))

    def checked(self, value: Any) -> Any:
        """The value as a record holds it."""
        mark = self.mark
        if value is None and self.default is None:
            return None
        if self.kind in (str, str | None):
            # Paths and numbers are as good as what a command line holds.
            if isinstance(value, os.PathLike):
                value = os.fspath(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                value = str(value)
        if self.choices:
            check_choice(self.written, value, self.choices)
        elif mark.in_bytes and isinstance(value, str):
            try:
                return nbytes(value)
            except ValueError as error:
                raise InputError(f"{self.written}: {error}") from None
        elif self.kind in (int, int | None):
            high = LARGEST if mark.high is None and not mark.in_bytes else mark.high
            return check_integer(
                self.written, value, int(mark.low), None if high is None else int(high)
            )
        elif self.kind in (float, float | None):
            return self._number(value)
        elif self.kind in (bool, bool | None):
            if not isinstance(value, bool):
                raise InputError(f"{self.written} must be true or false, got {_shown(value)}")
        elif not isinstance(value, str) or not value or "\0" in value:
            raise InputError(f"{self.written}: must be a text that is not empty, without a NUL")
        elif mark.reads is not None:
            mark.reads(value)
        return value

    def _number(self, value: Any) -> float:
        low, high = self.mark.low, math.inf if self.mark.high is None else self.mark.high
        number = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value) if abs(value) < sys.float_info.max else math.inf
        if not low <= number < high:
            raise InputError(f"{self.written} must be in [{low}, {high}), got {_shown(value)}")
        return number


class Record:
    """Base of records: frozen dataclasses whose fields are options, checked when one is made."""

    section: ClassVar[str] = ""  # of its keys; by default, as the record is called

    def __post_init__(self) -> None:
        for option in options_of(type(self)):
            value = option.checked(getattr(self, option.name))
            object.__setattr__(self, option.name, value)

    def check_together(self) -> None:
        """Refuse options that do not go together."""

    @property
    def changed(self) -> list[tuple[Option, Any]]:
        """The options that are not as by default, and their values."""
        values = [(option, getattr(self, option.name)) for option in options_of(type(self))]
        return [(option, value) for option, value in values if value != option.default]


_KNOWN: dict[type[Record], tuple[Option, ...]] = {}


def options_of(record: type[Record]) -> tuple[Option, ...]:
    """The options of a record."""
    if record in _KNOWN:
        return _KNOWN[record]
    types = get_type_hints(record, include_extras=True)
    result = []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        kind, mark = get_args(types[field.name])
        section = record.section or record.__name__.lower()
        result.append(Option(section, field.name, kind, field.default, mark))
    return _KNOWN.setdefault(record, tuple(result))


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Base of configurations: their fields are records, whose options all have different names.

    `extra` are those of ``spgnn.registry.SECTIONS``, in its order.
    """

    extra: tuple[Record, ...] = dataclasses.field(default=(), kw_only=True)

    program: ClassVar[str]
    about: ClassVar[str]
    fixed: ClassVar[tuple[str, ...]] = ()  # options of which this program knows the default only

    def __post_init__(self) -> None:
        if not self.extra:
            added = tuple(record() for name, record in self.sections().items() if "." in name)
            object.__setattr__(self, "extra", added)

    @classmethod
    def sections(cls) -> dict[str, type[Record]]:
        """The records by name."""
        types, bases = get_type_hints(cls), [base.__name__ for base in cls.__mro__]
        names = [each.name for each in dataclasses.fields(cls) if each.name != "extra"]
        others = [name for name in SECTIONS if name.partition(".")[0] in bases]
        return {name: types[name] for name in names} | {name: SECTIONS[name] for name in others}

    @classmethod
    def of(cls, **values: Any) -> Self:
        """The defaults with some options set, say ``of(epochs=5, cover="minimum")``."""
        sections, left = dict[str, Record](), dict(values)
        for name, record in cls.sections().items():
            own = {o.name: left.pop(o.name) for o in options_of(record) if o.name in left}
            sections[name] = record(**own)
        if left:
            names = (o.name for record in cls.sections().values() for o in options_of(record))
            raise unknown("option", next(iter(left)), names)
        extra = tuple(sections.pop(name) for name in list(sections) if "." in name)
        return cls(**sections, extra=extra)

    @property
    def records(self) -> tuple[Record, ...]:
        """All records, registered ones last."""
        own = [value for name, value in vars(self).items() if name != "extra"]
        return (*own, *self.extra)

    @property
    def changed(self) -> list[tuple[Option, Any]]:
        """The options that are not as by default, and their values."""
        return [pair for record in self.records for pair in record.changed]

    def but(self, **values: Any) -> Self:
        """The same with some options set otherwise."""
        return self.of(**{**self.flat(), **values})

    def having(self, record: Record) -> Self:
        """The same with a registered record in the place of that of its class."""
        extra = (record if type(one) is type(record) else one for one in self.extra)
        return dataclasses.replace(self, extra=tuple(extra))

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks; an InputError says what would be right."""
        for option, value in self.changed:
            if option.name in self.fixed:
                raise InputError(
                    f"{option.written} {value}: {self.program} knows {option.default} only"
                )
        for message in self.refused(ranks):
            raise InputError(message)
        for record in self.records:
            record.check_together()

    def refused(self, ranks: int) -> Iterator[str]:
        """Say what cannot be had together."""
        return iter(())

    def flat(self) -> dict[str, Any]:
        """All options by name."""
        return {k: value for record in self.records for k, value in vars(record).items()}

    @classmethod
    def read(cls, words: Sequence[str] | None = None) -> Self:
        """From a command line, by default that of this process."""
        return cls.of(**cls.given(words))

    @classmethod
    def given(cls, words: Sequence[str] | None = None, program: str = "") -> dict[str, Any]:
        """The options that a command line of a program, and the file that it names, set."""
        records, program = list(cls.sections().values()), program or cls.program
        return read_options(records, words, program=program, about=cls.about, unshown=cls.fixed)

    def written(self, *leave_out: str) -> list[str]:
        """The words of a command line for all that is not as it is by default."""
        result = []
        for option, value in self.changed:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if option.name in leave_out:
                continue
            if option.mark.level == "key":
                result += ["--set", f"{option.key}={text}"]
            elif isinstance(value, bool):
                result.append(option.flag if value else option.flag.replace("--", "--no-", 1))
            else:
                result += [option.flag, text]
        return result


def read_options(
    records: Sequence[type[Record]],
    words: Sequence[str] | None,
    *,
    program: str,
    about: str,
    unshown: Collection[str] = (),
) -> dict[str, Any]:
    """Read options of records: flags count more than --set, and that more than --config."""
    options = {option.name: option for record in records for option in options_of(record)}
    line = list(sys.argv[1:] if words is None else words)
    app = _app(options.values(), program, about, unshown)
    if "--help" in line or "-h" in line:
        text = io.StringIO()
        from rich.console import Console  # for help alone

        app.help_print([], console=Console(file=text, width=_WIDEST))
        for title, level in (("More flags", "rare"), ("Keys of --set", "key")):
            others = [o for o in options.values() if o.mark.level == level]
            names = [option.written for option in others if option.name not in unshown]
            text.write(f"\n{title}: {', '.join(names)}\n" if names else "")
        say_wrapped(text.getvalue().rstrip())
        raise SystemExit(0)
    if "--version" in line:
        say_version()
        raise SystemExit(0)
    result = _parsed(app, _last_of_each(line, options.values()), options)
    for name in result:
        if name != "set" and options[name].mark.level == "key":
            raise InputError(
                f"{options[name].flag} is a key, not a flag: --set {options[name].key}=VALUE"
            )
    of_file = dict[str, Any]()
    if result.get("config") is not None:
        path = result["config"]
        what = f"--config {path}"
        pairs = _entries(what, _table(path), options.values())
        of_file = _assigned(what, pairs, options)
    settings = [_setting(text, options.values()) for text in result.pop("set", [])]
    return {**of_file, **_assigned("--set", settings, options), **result}


def show_help(kind: type[Record] | type[Configuration], program: str) -> None:
    """Print the help of a program, and end the process."""
    if issubclass(kind, Configuration):
        kind.given(["--help"], program)
    else:
        read_options([kind], ["--help"], program=program, about=str(kind.__doc__))


Options = TypeVar("Options", bound=Record)


def command_of(
    record: type[Options], body: Callable[[Options], None]
) -> Callable[[Sequence[str]], None]:
    """The function of the words of a subcommand of ``spgnn`` whose options are one record."""

    def with_words(words: Sequence[str]) -> None:
        program = f"spgnn {record.__name__.lower()}"
        about = str(record.__doc__)
        body(record(**read_options([record], words, program=program, about=about)))

    return with_words


def _app(options: Iterable[Option], program: str, about: str, unshown: Collection[str] = ()) -> App:
    """A command whose keyword arguments are all options."""
    options, arguments, keys = list(options), [], False
    sections = dict.fromkeys(option.section for option in options)
    groups = {name: Group(name, sort_key=place) for place, name in enumerate(sections)}
    for option in options:
        mark, default = option.mark, option.default
        keys = keys or mark.level == "key"
        shown = mark.level in ("flag", "positional") and option.name not in unshown
        explained = dict[str, Any](help=mark.help, show=shown)
        explained["show_default"] = default not in (None, dataclasses.MISSING)
        if mark.level != "positional":
            explained |= {"group": groups[option.section], "name": option.flag}
        if mark.metavar:
            explained["help"] = f"{mark.help} ({mark.metavar})"
        kind: Any = option.kind
        if mark.in_bytes:
            explained["converter"] = lambda _, tokens: nbytes(tokens[0].value)
        elif kind in (int, int | None):
            explained["converter"] = lambda _, tokens: _integer(tokens[0].value)
        elif option.choices and mark.choices:
            kind = Literal[option.choices]
        if kind is str and mark.level != "positional":
            explained["allow_leading_hyphen"] = True  # as in --num-neighbors -1,-1
        how = Argument.POSITIONAL_ONLY if mark.level == "positional" else Argument.KEYWORD_ONLY
        empty = Argument.empty if default is dataclasses.MISSING else default
        explained_kind: Any = Annotated[kind, Parameter(**explained)]
        arguments.append(Argument(option.name, how, default=empty, annotation=explained_kind))
    if keys:
        about_set = Parameter(
            name="--set",
            group=groups.get("job"),
            help="SECTION.KEY=VALUE; set any key; may be repeated",
            negative=(),
        )
        annotation = Annotated[list[str] | None, about_set]
        arguments.append(
            Argument("set", Argument.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    arguments.sort(key=lambda argument: argument.kind)

    def command(*values: Any, **named: Any) -> None:
        """Stand for what is done with the options; cyclopts asks for its signature."""

    command.__signature__ = Signature(arguments)  # type: ignore[attr-defined]
    app = App(
        name=program, help=about, help_format="plaintext", help_formatter="plain", version_flags=()
    )
    app.default(command)
    return app


def _integer(text: str) -> int:
    """An integer as Python writes it; zeros may stand before it."""
    digits = text.lower().lstrip("+-")
    try:
        return int(text, 0 if digits.startswith(("0x", "0o", "0b")) else 10)
    except ValueError:
        raise ValueError(f"'{shortened(text, 40)}' is no integer") from None


def _parsed(app: App, words: Sequence[str], options: Mapping[str, Option]) -> dict[str, Any]:
    """The values of some words, by name."""
    try:
        _, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise _refused(error, words, options) from None
    return dict(bound.arguments)


def _flags_of_programs() -> Iterator[tuple[str, set[str]]]:
    """The flags of every command line, without hyphens."""
    for name in PROGRAMS:
        kind = PROGRAMS[name]
        records = kind.sections().values() if issubclass(kind, Configuration) else [kind]
        options = [option for record in records for option in options_of(record)]
        yield name, {o.flag[2:] for o in options if o.mark.level in ("flag", "rare")}


def _refused(
    error: CycloptsError, words: Sequence[str], options: Mapping[str, Option]
) -> InputError:
    """The line for words that cannot be read."""
    from spgnn.slips import left_over, unknown_option  # for those alone

    flags, every = dict[str, str](), list(options.values())
    for one in every:
        written = {"key": f"--set {one.key}", "positional": f"{one.written} without a flag"}
        flags[one.flag[2:]] = written.get(one.mark.level, one.flag)
    unused = error.unused_tokens or []
    if isinstance(error, UnknownOptionError):
        return unknown_option(error.token.keyword or error.token.value, flags, _flags_of_programs)
    if isinstance(error, MissingArgumentError) and unused and unused[0].startswith("-"):
        return unknown_option(unused[0], flags, _flags_of_programs)
    if isinstance(error, UnusedCliTokensError) and unused:
        word, switches = unused[0], {one.flag for one in every if one.is_switch}
        place = len(words) - 1 - words[::-1].index(word)
        return left_over(word, words[:place], flags, switches)
    message = str(error)
    if (
        isinstance(error, CoercionError)
        and error.token is not None
        and "Did you mean" not in message
    ):
        value = error.token.value.lower()
        if any(f" for {o.flag}." in message and value in o.choices for o in every):
            message += f' Did you mean "{value}"?'
    return InputError(message)


def _last_of_each(words: Sequence[str], options: Iterable[Option]) -> list[str]:
    """The words without options that are said again later; refuses those that lack their value."""
    options = list(options)
    switches = {option.flag for option in options if option.is_switch}
    valued = {"--set", *(option.flag for option in options)} - switches
    result, place = dict[str, Sequence[str]](), 0
    while place < len(words):
        name, equals, _ = words[place].partition("=")
        name = name.replace("_", "-")
        if name.startswith("--no-") and name.replace("--no-", "--", 1) in switches:
            name = name.replace("--no-", "--", 1)
        follows = place + 1 < len(words) and not words[place + 1].startswith("--")
        takes = name.startswith("--") and not equals and name not in switches and follows
        if name in valued and not equals and not follows:
            raise InputError(f"Parameter {name} requires an argument.")
        if name == "--set" or not name.startswith("--"):
            name = f"{name} {place}"
        result.pop(name, None)
        result[name] = words[place : place + 1 + takes]
        place += 1 + takes
    return [word for piece in result.values() for word in piece]


def _assigned(
    what: str, pairs: Iterable[tuple[Option, str]], options: Mapping[str, Option]
) -> dict[str, Any]:
    """The values of options that are given as texts elsewhere than by flags."""
    result = dict[str, Any]()
    for option, text in pairs:
        if option.mark.level == "positional":
            raise InputError(f"{what}: {option.written} is an argument")
        # One at a time: a required argument that is missing is another one's error.
        alone = _app([option], "", "")
        try:
            (value,) = _parsed(alone, [f"{option.flag}={text}"], options).values()
            result[option.name] = option.checked(value)
        except InputError as error:
            raise InputError(f"{what}: {error}") from None
    return result


def _setting(text: str, options: Iterable[Option]) -> tuple[Option, str]:
    """The option and the value of ``section.key=value``."""
    name, equals, value = text.partition("=")
    by_key = {option.key: option for option in options}
    option = by_key.get(name.replace("_", "-"))
    if not equals:
        raise InputError(f"--set {text}: must be SECTION.KEY=VALUE, as in training.clip=1")
    if option is None:
        named = [key for key in by_key if key.endswith(f".{name.replace('_', '-')}")]
        near = f"; did you mean '{named[0]}'?" if named else suggestion(name, by_key)
        raise InputError(f"--set {text}: unknown key '{name}'{near}")
    return option, value


def _entries(
    what: str, table: Mapping[str, Any], options: Iterable[Option]
) -> Iterator[tuple[Option, str]]:
    """Each key of a file, at the top or in a table of its section's name, and its value."""
    by_name = {option.name: option for option in options}
    sections = {option.section for option in by_name.values()}
    flat = list[tuple[str, str, Any]]()
    for name, value in table.items():
        is_table = isinstance(value, dict) or (value is None and name not in by_name)
        if name in sections and is_table:
            flat += [(name, inner, one) for inner, one in (value or {}).items()]
        else:
            flat.append(("", name, value))
    seen = set[str]()
    for section, written, value in flat:
        name = str(written).replace("-", "_")
        names = [n for n, option in by_name.items() if section in ("", option.section)]
        if name not in names:
            where = f" of [{section}]" if section else ""
            near = suggestion(name, names if section else [*names, *sections])
            raise InputError(f"{what}: unknown key '{written}'{where}{near}")
        if name in seen:
            raise InputError(f"{what}: {written} is there twice")
        seen.add(name)
        if value is not None:
            if not isinstance(value, str | bool | int | float):
                raise InputError(f"{what}: {written} must be a value, got {_shown(value)}")
            yield by_name[name], str(value).lower() if isinstance(value, bool) else str(value)


def _table(path: str) -> dict[str, Any]:
    """The table in a TOML, JSON or YAML file; of a report, its configuration but what it wrote."""
    what, suffix = f"--config {path}", Path(path).suffix
    if suffix not in _PARSERS:
        raise InputError(f"{what}: its name must end in {', '.join(_PARSERS)}")
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_FILE + 1)
        if len(raw) > _LARGEST_FILE:
            raise ValueError(f"larger than {_LARGEST_FILE >> 20} MiB; no configuration")
        # Editors of Windows begin files with a mark.
        table = _PARSERS[suffix](raw.decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"{what}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{what}: is no text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what}: {error or type(error).__name__}") from None
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table):
        raise InputError(f"{what}: must hold keys and values, as in hidden = 16")
    inner = table.get("config")
    if not isinstance(inner, dict):
        return table
    return {n: v for n, v in inner.items() if str(n).replace("-", "_") not in _WRITTEN}


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError(
            "YAML needs PyYAML: pip install 'spgnn[yaml]'; TOML needs nothing"
        ) from None
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": lambda text: tomllib.loads(f"{text}\n"),
    ".json": json.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
}


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the text '{shortened(value, 60)}'"
    if value is None or isinstance(value, bool | int | float):
        return shortened(str(value).lower() if isinstance(value, bool) else repr(value), 60)
    return f"a {type(value).__name__}"
