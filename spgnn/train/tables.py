"""Tables of keys and values as files: TOML, JSON, and YAML where PyYAML is installed."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from spgnn.errors import InputError
from spgnn.files import check_writable, written_aside

SUFFIXES = (".toml", ".json", ".yaml", ".yml")
LARGEST_FILE = 1 << 28


def read_table(path: str, what: str) -> dict[str, Any]:
    """The table in a file; it may hold others.

    Parameters
    ----------
    path : str
        Its suffix says how it is written.
    what : str
        The flag that named it, say ``"--config"``.

    Raises
    ------
    InputError
        If it cannot be read, holds no table with texts as keys, or a key twice.
    """
    parse = _parser(path, what)
    try:
        with open(path, "rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InputError(f"{what} {path}: cannot be read: {said}") from None
    if len(raw) > LARGEST_FILE:
        raise InputError(f"{what} {path}: larger than {LARGEST_FILE >> 20} MiB; no configuration")
    try:
        table = parse(raw.decode("utf-8-sig"))  # editors of Windows begin files with a mark
    except UnicodeDecodeError:
        raise InputError(f"{what} {path}: is no text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} {path}: {error or type(error).__name__}") from None
    if not isinstance(table, dict) or not all(isinstance(key, str) for key in table):
        raise InputError(f"{what} {path}: must hold keys and values, as in hidden = 16")
    return table


def check_table(path: str, what: str) -> None:
    """Find out before long work whether a table can be written there.

    Raises
    ------
    InputError
    """
    _parser(path, what)
    check_writable(path, what)


def write_table(table: Mapping[str, Mapping[str, Any]], path: str, what: str) -> None:
    """Write a table of tables of numbers, texts and truth values; what is ``None`` is left out.

    Raises
    ------
    InputError
        If it cannot be written.
    """
    kept = {
        name: {key: value for key, value in inner.items() if value is not None}
        for name, inner in table.items()
    }
    # TOML alone has a syntax of its own; JSON is YAML.
    text = _toml(kept) if Path(path).suffix == ".toml" else json.dumps(kept, indent=1) + "\n"
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} {path}: a file name that is no text cannot be written") from None
    with written_aside(path, f"{what} {path}") as file:
        file.write(raw)


def _toml(table: Mapping[str, Mapping[str, Any]]) -> str:
    lines: list[str] = []
    for name, inner in table.items():
        lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in inner.items()), ""]
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _parser(path: str, what: str) -> Callable[[str], Any]:
    match Path(path).suffix:
        case ".toml":
            # A line that is not ended has no number in messages.
            return lambda text: tomllib.loads(f"{text}\n")
        case ".json":
            return partial(json.loads, object_pairs_hook=_each_once)
        case ".yaml" | ".yml":
            return _yaml(path, what)
    raise InputError(f"{what} {path}: its name must end in {', '.join(SUFFIXES)}")


def _yaml(path: str, what: str) -> Callable[[str], Any]:
    try:
        import yaml
    except ImportError:
        raise InputError(
            f"{what} {path}: YAML needs PyYAML: pip install 'spgnn[yaml]'; TOML needs nothing"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Each key once, and 1e-3 is a number, as in YAML 1.2."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen: set[str] = set()
            scalars = (key for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for key in scalars:
                if key.value in seen:
                    raise ValueError(f"{key.value} is there twice, line {key.start_mark.line + 1}")
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"+-0123456789"]
    )

    def parse(text: str) -> Any:
        try:
            found = yaml.load(text, Loader)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from None
        return {} if found is None else found  # nothing but comments, as TOML may be

    return parse


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON, whose reader keeps the last of equal keys."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key} is there twice")
        found[key] = value
    return found
