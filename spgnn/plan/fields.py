"""Records of numbers read from JSON: every field is there, and is what its type says."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, Union, get_args, get_origin, get_type_hints

from spgnn.errors import InputError, shortened, suggestion


def read_record(kind: Any, value: Any, where: str, name: str = "") -> Any:
    """A dataclass from a dictionary of JSON.

    Parameters
    ----------
    kind : a dataclass
        Of texts, integers of at least 1, numbers of at least 0, tuples of numbers above 0, and
        other such dataclasses.
    value : whatever JSON holds
    where : str
        The file, for errors.
    name : str
        Of the record within it, ``levels.inside``.

    Raises
    ------
    InputError
        Names the field.
    """
    if not isinstance(value, dict):
        raise _wrong(where, name or "the file", "an object", value)
    hints = get_type_hints(kind)
    found = {}
    for item in dataclasses.fields(kind):
        full = f"{name}.{item.name}" if name else item.name
        if item.name in value:
            found[item.name] = _read(hints[item.name], value[item.name], where, full)
        elif item.default is dataclasses.MISSING:
            raise InputError(f"{where}: {full} is missing")
    for key in value:
        if key not in hints:
            full = f"{name}.{key}" if name else str(key)
            raise InputError(f"{where}: {full} is not known{suggestion(str(key), hints)}")
    return kind(**found)


def _read(kind: Any, value: Any, where: str, name: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not type(None)]
        return None if value is None else _read(kinds[0], value, where, name)
    if dataclasses.is_dataclass(kind):
        return read_record(kind, value, where, name)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, name, "a list", value)
        return tuple(_positive(one, kind, where, name) for one in value)
    if kind is str:
        if not isinstance(value, str):
            raise _wrong(where, name, "a text", value)
        return value
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise _wrong(where, name, "an integer of at least 1", value)
        return value
    return _number(value, where, name)


def _positive(value: Any, kind: Any, where: str, name: str) -> Any:
    inner = get_args(kind)[0]
    if get_origin(inner) is tuple:
        return _read(inner, value, where, name)
    number = _number(value, where, name)
    if number <= 0:
        raise _wrong(where, name, "a list of numbers above 0", value)
    return number


def _number(value: Any, where: str, name: str) -> float:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or value < 0:
        raise _wrong(where, name, "a number of at least 0", value)
    return float(value)


def _wrong(where: str, name: str, wanted: str, value: Any) -> InputError:
    return InputError(f"{where}: {name} must be {wanted}, got {shortened(repr(value), 40)}")
