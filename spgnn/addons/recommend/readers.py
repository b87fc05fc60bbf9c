"""Interactions as files list them: lines of pairs, of lists, and tables."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from spgnn.addons.io import (
    SUFFIXES,
    Grammar,
    NoNumbers,
    column_for,
    is_row_number,
    is_tabular,
    open_bytes,
    read_numbers,
    read_pairs,
    refuse_first,
    words_around,
)
from spgnn.errors import InputError, shortened
from spgnn.files import check_regular, reading, unpacked

Array = npt.NDArray[Any]
Form = Literal["auto", "pairs", "lists"]
_LOGGER = logging.getLogger(__name__)
PAIR = "an interaction is 'user item [rating [time]]'"
_ID = "the number of a user or an item, an integer of at least 0"
_ROLES = ("user", "item", "rating", "time")
_LOOKED_AT = 1000  # lines that tell what a file lists, and how
_LONGEST_NAME = 1000  # characters
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_TYPED = re.compile(r"(.*):(token|float)(_seq)?")  # as RecBole names columns


class Side(NamedTuple):
    """Users, or items, of listed interactions: numbers [n], of names if these are not the names."""

    numbers: Array
    names: Array | None = None


class Listed(NamedTuple):
    """Interactions as a file lists them, with ratings and times where it has any."""

    users: Side
    items: Side
    ratings: npt.NDArray[np.float64] | None = None
    times: Array | None = None


def read_listed(
    path: Path, form: Form, least_rating: float | None, *, numbered: bool = True
) -> Listed:
    """The interactions of a file, without those that are rated lower."""
    if is_tabular(path):
        pairs = read_pairs(path)
        sides = ((pairs.first, pairs.first_ids), (pairs.second, pairs.second_ids))
        users, items = (Side(numbers, _of_table(path, ids)) for numbers, ids in sides)
        listed = Listed(users, items, pairs.weights, pairs.times)
    else:
        check_regular(path)
        if Path(unpacked(path)).suffix.lower() in SUFFIXES:
            raise InputError(f"{path}: unpack it first; of packed files only texts are read")
        lines = _look(path, form, numbered)
        listed = _pairs(path, lines) if lines.fields else _lists(path, lines)
    if least_rating is None:
        return listed
    if listed.ratings is None:
        raise InputError(f"{path}: has no ratings for data.least-rating {least_rating:g}")
    good = listed.ratings >= least_rating
    users, items = (Side(side.numbers[good], side.names) for side in (listed.users, listed.items))
    return Listed(users, items, times=None if listed.times is None else listed.times[good])


def _of_table(path: Path, ids: Any) -> Array:
    names: Array = ids.to_numpy(zero_copy_only=False)
    if names.dtype.kind not in "iu":
        _check_length(str(path), max(map(len, names), default=0))
        names = names.astype(str)
    return names


def _check_length(where: str, length: int) -> None:
    """Arrays of texts have room for the longest one in each place."""
    if length > _LONGEST_NAME:
        raise InputError(f"{where}: an id of {length} characters; at most {_LONGEST_NAME} are read")


# How a text lists interactions --------------------------------------------------------------------


class _Lines(NamedTuple):
    """The form of the lines of a text file; no `fields`: lists."""

    separator: str  # of fields; a blank stands for blanks and tabs
    skip: int  # lines before the first interaction
    fields: int
    places: dict[str, int]  # of users, items, ratings and times among the fields
    names: Sequence[str] = ()  # of columns


def _look(path: Path, form: Form, numbered: bool) -> _Lines:
    """Look at a file's beginning: comments, names of columns, some interactions."""
    comments, texts = deque[tuple[int, str]](maxlen=_LOOKED_AT), _texts(path)
    for line, text in texts:
        if text[0] not in "#%":
            sample = [(line, text), *islice(texts, _LOOKED_AT)]
            break
        comments.append((line, text))
    else:
        return _Lines(" ", comments[-1][0] if comments else 0, 2, {"user": 0, "item": 1})
    separator = _separator_of(path, [text for _, text in sample])
    rows = [(line, _split(text, separator)) for line, text in sample]
    ended = all(words[-1:] == [""] for _, words in rows)  # each line by a separator
    width = len(rows[0][1]) - ended
    rows = [(at, words[:-1] if _is_ended(words, width) or ended else words) for at, words in rows]
    first, names, skip = rows[0], _names_of(path, rows), rows[0][0] - 1
    if names:
        rows, skip = rows[1:], first[0]
    counts = Counter(len(words) for _, words in rows) or Counter([len(first[1])])
    ((fields, lines),) = counts.most_common(1)
    for line, text in comments:
        words = _split(text.lstrip("#% "), separator)
        words = words[:-1] if _is_ended(words, fields) else words
        if not names and len(words) == fields and _are_names(words):
            names = words
        elif not names and len(words) == fields > 1 and text[1:2].strip():
            raise _unclear(path, line, text, "comment", "begin comments with '# '")
    if names:
        places = _places(f"{path}, line {first[0]}", names)
        return _Lines(separator, skip, len(names), places, names)
    regular = lines >= 0.9 * counts.total()  # lines that differ from pairs are refused
    if form == "auto" and not regular and max(counts) <= 4:
        raise InputError(
            f"{path}: lines of {min(counts)} to {max(counts)} fields may be pairs or lists; say "
            "which by data.form"
        )
    listing = form == "lists" or (form == "auto" and not (regular and 2 <= fields <= 4))
    numbers = [words[0] for _, words in rows if words]
    table = not listing or (form == "auto" and regular and separator != " ")
    if table and numbered and fields > 2 < len(rows) and numbers == [*map(str, range(len(rows)))]:
        raise InputError(
            f"{path}: its first column, 0, 1, 2, …, may number the rows: leave it out, or begin "
            "the file with names of columns (user,item,…), or say data.form=lists"
        )
    if listing and separator == "::":
        raise InputError(f"{path}: lists are separated by blanks or commas, not by '::'")
    if listing:
        return _Lines(separator, skip, 0, {})
    if not 2 <= fields <= 4:
        raise InputError(f"{path}: {fields} columns; {PAIR}")
    return _Lines(separator, skip, fields, dict(zip(_ROLES, range(fields), strict=False)))


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    with open_bytes(path) as (file, _), reading(path):
        for line, raw in enumerate(file, start=1):
            text = raw.decode("utf-8", "surrogateescape").strip(" \r\n")
            if "\0" in text:
                raise InputError(f"{path}, line {line}: is no text")
            if "\r" in text:
                raise InputError(f"{path}, line {line}: lines end with CR alone; write LF or CRLF")
            if text.strip():
                yield line, text


def _split(text: str, separator: str, where: str = "") -> list[str]:
    """The fields of a line, which may be quoted; `where` it is, if faults are to be refused."""
    if separator == " ":
        text = text.strip()
        text = text if '"' in text else text.replace("\t", " ")
    elif separator == "::":  # as MovieLens has it
        text, separator = text.replace("::", "\t"), "\t"
    if where and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{where}: is not UTF-8; save the file as UTF-8") from None
    try:
        strict = bool(where)
        lines = csv.reader([text], delimiter=separator, skipinitialspace=True, strict=strict)
        return [word.strip() for word in next(lines)]
    except (csv.Error, StopIteration) as error:
        if not where:
            return []
        raise InputError(f"{where}: {error}") from None


def _is_ended(words: Sequence[str], fields: int) -> bool:
    """True if a line has that many fields, and a separator after the last one."""
    return len(words) == fields + 1 and not words[-1]


def _separator_of(path: Path, texts: Sequence[str]) -> str:
    """A tab, semicolon or comma that divides nearly all lines, into equally many fields if any."""
    most = 0.9 * len(texts)
    divided: dict[str, tuple[bool, int]] = {}
    for separator in "\t;,":
        inside = [text for text in texts if separator in text.strip()]
        counts = Counter(len(_split(text, separator)) for text in inside)
        if counts.total() >= most:
            ((fields, lines),) = counts.most_common(1)
            divided[separator] = (lines >= most, fields)
    best = [separator for separator, how in divided.items() if how == max(divided.values())]
    if len(best) > 1:
        shown = " or ".join(map(repr, best))
        raise InputError(f"{path}: fields may be separated by {shown}; quote those that hold one")
    doubled = all("::" in text and len(text.split()) == 1 for text in texts)
    return best[0] if best else "::" if doubled else " "


def _is_word(text: str) -> bool:
    return text != "" and not any(map(str.isdigit, text))


def _are_names(words: Sequence[str]) -> bool:
    """True for names of columns: a user or an item, and another role; or types as RecBole's."""
    if not all(_is_word(word) or is_row_number(word) for word in words):
        return False
    sides, any_role = (
        [word for word in words if any(words_around(role, word) is not None for role in roles)]
        for roles in (_ROLES[:2], _ROLES)
    )
    typed = all(map(_TYPED.fullmatch, words))
    return len(words) > 1 and (typed or (len(any_role) > 1 and bool(sides)))


def _names_of(path: Path, rows: Sequence[tuple[int, list[str]]]) -> Sequence[str]:
    """The names of columns, if the first line has any: roles, or words before numbers."""
    (line, first), rest = rows[0], [words for _, words in rows[1:] if len(words) == len(rows[0][1])]
    if _are_names(first):
        return first
    words = all(_is_word(word) or (not at and is_row_number(word)) for at, word in enumerate(first))
    if not words or not rest or len(first) < 2:
        return ()
    columns = list(zip(*rest, strict=True))
    if any(all(map(_NUMBER.fullmatch, column)) for column in columns):
        return first
    if first[0] in columns[0] or first[1] in columns[1]:
        return ()
    raise _unclear(path, line, ", ".join(first), "header", "begin the file with 'user,item'")


def _unclear(path: Path, line: int, text: str, what: str, remedy: str) -> InputError:
    shown = shortened(text, 40)
    return InputError(f"{path}, line {line}: '{shown}' may be a {what} or an interaction; {remedy}")


def _places(where: str, names: Sequence[str]) -> dict[str, int]:
    """The fields for users, items, ratings and times: by name; else the first two, or four."""
    names = [match[1] if (match := _TYPED.fullmatch(name)) else name for name in names]
    columns = [name for name in names if not is_row_number(name)]
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(f"{where}: two columns are called '{name}'")
    places: dict[str, str | None] = {}
    others = columns
    for role in _ROLES:
        places[role] = column_for(role, others, where, "rename all but ")
        others = [name for name in others if name != places[role]]
    sides = [role for role in _ROLES[:2] if places[role]]
    if len(sides) == 1 and len(others) > 1:
        missing = "item" if sides == ["user"] else "user"
        message = f"columns '{others[0]}' and '{others[1]}' may both be the {missing}"
        raise InputError(f"{where}: {message}; call the right one '{missing}'")
    for role in _ROLES[:2] if sides else _ROLES:
        places[role] = places[role] or (others.pop(0) if others else None)
    if not (places["user"] and places["item"]):
        raise InputError(f"{where}: the columns are '{', '.join(names)}'; {PAIR}")
    if others:
        _LOGGER.info("%s: not read: columns %s", where, ", ".join(others))
    return {role: names.index(name) for role, name in places.items() if name}


# What it lists ------------------------------------------------------------------------------------


def _grammar(lines: _Lines, head: str, cycle: str, row: str) -> Grammar:
    separators = {" ": " \t", "\t": "\t"}.get(lines.separator, f" {lines.separator}")
    return Grammar(head, cycle, row=row, separators=f'{separators}\r"', comments="")


def _lists(path: Path, lines: _Lines) -> Listed:
    users, items = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    grammar = _grammar(lines, "d", "d", "a line is 'user item item …'")
    for numbers in read_numbers(path, grammar, lines.skip):
        ends = np.cumsum(numbers.counts)
        first = np.zeros(len(numbers.integers), np.bool_)
        first[ends - numbers.counts] = True
        where = np.repeat(numbers.lines, numbers.counts)
        refuse_first(path, numbers.integers >= 0, where, numbers.integers, _ID)
        users.append(np.repeat(numbers.integers[first], numbers.counts - 1))
        items.append(numbers.integers[~first])
    return Listed(Side(np.concatenate(users)), Side(np.concatenate(items)))


def _pairs(path: Path, lines: _Lines) -> Listed:
    """Pairs of integers, or else of texts."""
    if lines.separator == "::":
        return _texts_of(path, lines)
    ids = sorted((lines.places["user"], lines.places["item"]))
    kinds = "".join("d" if at in ids else "f" for at in range(lines.fields))
    grammar = _grammar(lines, kinds, "", f"the first has {lines.fields} ({PAIR})")
    ends, others = [np.empty((0, 2), np.int64)], [np.empty((0, lines.fields - 2))]
    try:
        for numbers in read_numbers(path, grammar, lines.skip):
            pairs = numbers.integers.reshape(-1, 2)
            worst = pairs.min(axis=1)
            refuse_first(path, worst >= 0, numbers.lines, worst, _ID)
            ends.append(pairs)
            others.append(numbers.reals.reshape(len(pairs), lines.fields - 2))
            for role in lines.places.keys() - _ROLES[:2]:
                values = others[-1][:, _column(lines, role)]
                refuse_first(path, np.isfinite(values), numbers.lines, values, f"a {role}")
    except NoNumbers:
        return _texts_of(path, lines)
    pairs, reals = np.concatenate(ends), np.concatenate(others)
    users, items = (Side(pairs[:, ids.index(lines.places[side])]) for side in _ROLES[:2])
    ratings, times = (
        np.ascontiguousarray(reals[:, _column(lines, role)]) if role in lines.places else None
        for role in _ROLES[2:]
    )
    return Listed(users, items, ratings, times)


def _column(lines: _Lines, role: str) -> int:
    """The column of a role among those that are no ids."""
    place = lines.places[role]
    return place - sum(lines.places[side] < place for side in _ROLES[:2])


def _texts_of(path: Path, lines: _Lines) -> Listed:
    """Pairs whose names are texts, of one side or both."""
    names: tuple[dict[str, int], dict[str, int]] = ({}, {})
    numbers: tuple[list[int], list[int]] = ([], [])
    ratings, times, numeric = list[float](), list[float](), True
    valued = [(role, lines.places[role]) for role in _ROLES[2:] if role in lines.places]
    for line, text in _texts(path):
        if line <= lines.skip:
            continue
        where = f"{path}, line {line}"
        words = _split(text, lines.separator, where)
        if _is_ended(words, lines.fields):
            words.pop()
        if text[0] in "#%" and not text[1:2].strip():
            raise InputError(f"{where}: a comment between interactions; put it at the beginning")
        if len(words) != lines.fields:
            raise InputError(
                f"{where}: {len(words)} columns; the first has {lines.fields} ({PAIR})"
            )
        if words == list(lines.names):
            raise InputError(f"{where}: the names of columns again; a file has them once")
        for side, numbered, several in zip(_ROLES[:2], names, numbers, strict=True):
            name = words[lines.places[side]]
            if not name:
                raise InputError(f"{where}: a name is missing; {PAIR}")
            _check_length(where, len(name))
            several.append(numbered.setdefault(name, len(numbered)))
        for role, place in valued:
            if not words[place]:
                raise InputError(f"{where}: the {role} is missing; {PAIR}")
        if "rating" in lines.places:
            ratings.append(_number(where, words[lines.places["rating"]]))
        if "time" in lines.places:
            time = words[lines.places["time"]]
            numeric = _NUMBER.fullmatch(time) is not None if not times else numeric
            times.append(_number(where, time) if numeric else _microseconds(where, time))
    users, items = (
        Side(np.array(several, np.int64), _of_names(list(numbered)))
        for several, numbered in zip(numbers, names, strict=True)
    )
    return Listed(
        users,
        items,
        np.array(ratings) if "rating" in lines.places else None,
        np.array(times) if "time" in lines.places else None,
    )


def _of_names(names: list[str]) -> Array:
    """Integers, if all names are such as they are printed: 007 is none."""
    if all(map(_INTEGER.fullmatch, names)):
        return np.array(list(map(int, names)), np.int64)
    return np.array(names)


def _number(where: str, text: str) -> float:
    number = float(text) if _NUMBER.fullmatch(text) else np.nan
    if not np.isfinite(number):
        raise InputError(f"{where}: '{shortened(text, 40)}' is not a rating or a time, a number")
    return number


def _microseconds(where: str, text: str) -> float:
    """Microseconds since 1970 of a time in ISO 8601."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{where}: '{shortened(text, 40)}' is not a time") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1e6
