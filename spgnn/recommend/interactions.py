"""Interactions of users with items: from files or made up, and the graph that they are."""

from __future__ import annotations

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from spgnn.data import Graph
from spgnn.data.parquet import is_tabular, read_pairs
from spgnn.data.reading import (
    Grammar,
    check_regular,
    name_in,
    open_bytes,
    read_head,
    read_numbers,
    reading,
    refuse_first,
    unpacked,
)
from spgnn.errors import InputError, shortened
from spgnn.hashing import uniform
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR

Array = npt.NDArray[Any]
Form = Literal["auto", "pairs", "lists"]
_LOGGER = logging.getLogger(__name__)
_PAIR = "an interaction is 'user item [rating [time]]'"
_LIST = Grammar("i", "i", row="a line is 'user item item …'", separators=' \t\r,;"', comments="#%")
_MADE_UP = re.compile(r"interactions-([0-9]{1,9})-([0-9]{1,9})-([0-9]{1,10})")
_SUFFIXES = (".txt", ".csv", ".tsv", ".dat", ".parquet", ".arrow")


@dataclass(frozen=True, eq=False)
class Interactions:
    """Users and the items that each has interacted with, for training and for testing.

    Attributes
    ----------
    name : str
    train, test : bool csr_array [users, items]
        Columns rise in each row, and no interaction is in both.
    users, items : Array [users], [items], optional
        Ids as the file has them, integers or texts, where they are not the numbers of rows.
    """

    name: str
    train: sp.csr_array
    test: sp.csr_array
    users: Array | None = None
    items: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Users and items."""
        return int(self.train.shape[0]), int(self.train.shape[1])

    def names(self) -> dict[str, Array]:
        """The side and the id of each vertex of the graph, users first; texts if any id is one."""
        given, shape = (self.users, self.items), self.shape
        ids = [np.arange(n) if own is None else own for n, own in zip(shape, given, strict=True)]
        return {"side": np.repeat(["user", "item"], shape), "id": np.concatenate(ids)}

    def graph(self) -> Graph:
        """The training interactions as an undirected graph: users first, then items."""
        users, items = self.shape
        n, back = users + items, self.train.T.tocsr()
        indptr = np.concatenate((self.train.indptr, self.train.nnz + back.indptr[1:].astype("i8")))
        indices = torch.empty(2 * self.train.nnz, dtype=index_dtype(n))
        indices[: self.train.nnz] = torch.from_numpy(self.train.indices)
        indices[: self.train.nnz] += users
        indices[self.train.nnz :] = torch.from_numpy(back.indices)
        pattern = Pattern.trusted(torch.from_numpy(indptr.astype(np.int64)), indices, (n, n))
        return Graph(self.name, CSR(pattern), directed=False)


class Side(NamedTuple):
    """Users, or items, of listed interactions: numbers [n], of names if these are not the names."""

    numbers: Array
    names: Array | None = None


class Listed(NamedTuple):
    """Interactions as a file lists them, with ratings where it has any."""

    users: Side
    items: Side
    ratings: npt.NDArray[np.float64] | None = None


def open_interactions(
    dataset: str,
    *,
    test_share: float = 0.2,
    seed: int = 0,
    form: Form = "auto",
    least_rating: float | None = None,
) -> Interactions:
    """The interactions of a file, of a directory with train and test files, or made-up ones.

    Lines are ``user item [rating [time]]`` or, as LightGCN's authors write them,
    ``user item item …``; a Parquet file has columns of these names, or its first ones count.

    Parameters
    ----------
    dataset : str
        A file; a directory with ``train.txt`` and ``test.txt`` (or another suffix);
        ``interactions-USERS-ITEMS-COUNT`` makes some up.
    test_share : float
        Of a single file, drawn by a hash of (seed, user, item).
    seed : int
    form : {"auto", "pairs", "lists"}
        Of lines; ``auto``: pairs if all lines have two, three or four fields.
    least_rating : float, optional
        Interactions with a lower rating do not count.

    Raises
    ------
    InputError
        Names the file and, of a text, the line.
    """
    path, made_up = Path(dataset), _MADE_UP.fullmatch(dataset)
    if made_up is not None and not path.exists():
        users, items, count = map(int, made_up.groups())
        return _divided(dataset, make_up(users, items, count, seed=seed), test_share, seed)
    if not path.exists() and not is_tabular(dataset):
        known = "a file, a directory with train.txt and test.txt, or interactions-1000-500-20000"
        raise InputError(f"{dataset}: there is no such file; interactions are {known}")
    paths = [path]
    if path.is_dir() and not (is_tabular(dataset) and not list(path.glob("test.*"))):
        paths = [_file_of(path, "train"), _file_of(path, "test")]
    files = [_read(each, form, least_rating) for each in paths]
    if not len(files[0].users.numbers):
        raise InputError(f"{paths[0]}: holds no interactions; {_PAIR}")
    user_names, rows = _numbered([listed.users for listed in files])
    item_names, columns = _numbered([listed.items for listed in files])
    shape = _size(user_names, rows), _size(item_names, columns)
    matrices = [
        _matrix(row, column, shape, each)
        for row, column, each in zip(rows, columns, paths, strict=True)
    ]
    name = path.name if path.is_dir() else name_in(path)
    if len(matrices) == 1:
        divided = _divided(name, matrices[0], test_share, seed)
        return Interactions(name, divided.train, divided.test, user_names, item_names)
    both = matrices[0].multiply(matrices[1]).tocoo()
    if both.nnz:
        ends = [
            number if names is None else names[number]
            for number, names in ((both.row[0], user_names), (both.col[0], item_names))
        ]
        raise InputError(
            f"{paths[1]}: user {ends[0]} and item {ends[1]} are in {paths[0].name} as well; what "
            "is trained on cannot be tested"
        )
    return Interactions(name, matrices[0], matrices[1], user_names, item_names)


def make_up(
    users: int,
    items: int,
    count: int,
    *,
    groups: int = 0,
    inside: float = 0.8,
    seed: int = 0,
) -> sp.csr_array:
    """Interactions with tastes: most are with items of the user's own group, popular ones first.

    Popularity of items, and the number of interactions of users, follow power laws. There are
    exactly `count` different interactions, a share `inside` the user's group; `groups` of 0: one
    for about 200 items.
    """
    if not users or not items or not 0 < count <= users * items // 2:
        raise InputError(
            f"interactions-{users}-{items}-{count}: at most half of all pairs can be interactions"
        )
    rng, groups = np.random.default_rng(seed), groups or max(1, items // 200)
    low, high = 10.0**0.4, (users + 10.0) ** 0.4  # activity falls as (rank + 10)^-0.6
    shuffled = rng.permutation(users)
    # Item i is in group i mod groups, where its popularity has rank i // groups.
    keys = np.empty(0, np.int64)
    while len(keys) < count:
        # Pairs repeat, and more of them the more there are.
        draws = max(int(1.5 * (count - len(keys))), count // 5, 1000)
        active = (low + rng.random(draws) * (high - low)) ** 2.5 - 10.0
        user = shuffled[np.clip(active.astype(np.int64), 0, users - 1)]
        own = rng.random(draws) < inside
        group = np.where(own, user % groups, rng.integers(0, groups, draws))
        places = -(-(items - group) // groups)
        rank = (2.0 * ((places / 2.0 + 1.0) ** rng.random(draws) - 1.0)).astype(np.int64)
        item = np.minimum(rank, places - 1) * groups + group
        flat = rng.random(draws) < 0.05  # so that every pair can be drawn
        user[flat] = rng.integers(0, users, int(flat.sum()))
        item[flat] = rng.integers(0, items, int(flat.sum()))
        keys = np.sort(np.concatenate((keys, user * items + item)))
        keys = keys[np.append(True, keys[1:] != keys[:-1])]
    # Not those with the smallest numbers: that would be the first users'.
    left_out = rng.permutation(len(keys))[: len(keys) - count]
    keys = np.delete(keys, left_out)
    indptr = np.searchsorted(keys, np.arange(users + 1, dtype=np.int64) * items)
    indices = (keys % items).astype(np.int32)
    return sp.csr_array((np.ones(count, np.bool_), indices, indptr), shape=(users, items))


def _divided(name: str, every: sp.csr_array, share: float, seed: int) -> Interactions:
    """A share for testing, by a hash of both ends."""
    users = np.repeat(np.arange(every.shape[0]), np.diff(every.indptr))
    test = uniform(users, seed, "test interactions", second=every.indices.astype(np.int64)) < share
    if test.all():
        raise InputError(f"{name}: no interaction is left to train on")
    parts = []
    for chosen in (~test, test):
        indptr = np.concatenate(([0], np.cumsum(chosen)))[every.indptr]
        ones = np.ones(int(chosen.sum()), np.bool_)
        parts.append(sp.csr_array((ones, every.indices[chosen], indptr), shape=every.shape))
    return Interactions(name, parts[0], parts[1])


def _matrix(users: Array, items: Array, shape: tuple[int, int], path: Path) -> sp.csr_array:
    matrix = sp.coo_array((np.ones(len(users), np.bool_), (users, items)), shape=shape).tocsr()
    matrix.sort_indices()
    repeated = len(users) - matrix.nnz
    if repeated:
        _LOGGER.warning("%s: %d interactions are repeated, and count once", path, repeated)
    return matrix


def _numbered(sides: Sequence[Side]) -> tuple[Array | None, list[Array]]:
    """Names that occur, rising, and their numbers; integers from 0 with few gaps stay."""
    if all(side.names is None or side.names.dtype.kind in "iu" for side in sides):
        every = [s.numbers if s.names is None else s.names[s.numbers] for s in sides]
        largest = max(int(numbers.max(initial=-1)) for numbers in every)
        if largest < 2 * sum(map(len, every)) + 1000:
            return None, every
        sides = [Side(*np.unique(numbers, return_inverse=True)[::-1]) for numbers in every]
    known = [side.names for side in sides if side.names is not None]
    if len({names.dtype.kind for names in known}) > 1 or len(known) < len(sides):
        raise InputError("names are integers in one file and texts in the other")
    names = np.unique(np.concatenate(known))
    places = [np.searchsorted(names, own) for own in known]
    return names, [place[side.numbers] for place, side in zip(places, sides, strict=True)]


def _size(names: Array | None, columns: Sequence[Array]) -> int:
    if names is not None:
        return len(names)
    return 1 + max(int(column.max(initial=-1)) for column in columns)


def _file_of(directory: Path, stem: str) -> Path:
    files = [p for p in sorted(directory.glob(f"{stem}.*")) if unpacked(p).endswith(_SUFFIXES)]
    if len(files) != 1:
        given = "none" if not files else " and ".join(path.name for path in files)
        raise InputError(f"{directory}: needs one file {stem}.txt, .csv or .parquet, has {given}")
    return files[0]


def _read(path: Path, form: Form, least_rating: float | None) -> Listed:
    if is_tabular(path):
        pairs = read_pairs(path)
        names = (_names(pairs.first_ids), _names(pairs.second_ids))
        listed = Listed(Side(pairs.first, names[0]), Side(pairs.second, names[1]), pairs.weights)
    else:
        check_regular(path)
        fields = _fields(path, form)
        listed = _lists(path) if not fields else _pairs(path, fields)
    if least_rating is None:
        return listed
    if listed.ratings is None:
        raise InputError(f"{path}: has no ratings for data.least-rating {least_rating:g}")
    good = listed.ratings >= least_rating
    users, items = (Side(s.numbers[good], s.names) for s in (listed.users, listed.items))
    return Listed(users, items)


def _names(ids: Any) -> Array:
    names: Array = ids.to_numpy(zero_copy_only=False)
    return names if names.dtype.kind in "iu" else names.astype(str)


_LOOKED_AT = 1000  # lines that tell pairs from lists
_HEADINGS = ("user", "users", "userid", "usertoken", "uid", "reviewer", "reviewerid", "customerid")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The fields of each line that has any, with its number; texts may have blanks, and quotes."""
    text = read_head(path, _LIST).text
    separator = next((c for c in ",;\t" if c in text), " ")
    with open_bytes(path) as (file, _), reading(path):
        for line, raw in enumerate(file, start=1):
            if _LIST.is_comment(raw) or not raw.strip():
                continue
            text = raw.decode("utf-8", "replace").strip()
            words = text.split()
            if separator != " ":
                (words,) = csv.reader([text], delimiter=separator, skipinitialspace=True)
            yield line, [word.strip() for word in words]


def _fields(path: Path, form: Form) -> int:
    """Fields of each line of pairs; 0 of lists."""
    if form == "lists":
        return 0
    counts = Counter(len(words) for _, words in islice(_lines(path), _LOOKED_AT))
    ((fields, lines),) = counts.most_common(1) or ((2, 0),)
    if form == "pairs" or lines >= 0.9 * counts.total():  # of lines that differ, pairs are refused
        return fields if form == "pairs" or 2 <= fields <= 4 else 0
    if max(counts) <= 4:
        raise InputError(
            f"{path}: lines of {min(counts)} to {max(counts)} fields may be pairs or lists; say "
            "which by data.form"
        )
    return 0


def _lists(path: Path) -> Listed:
    users, items = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for numbers in read_numbers(path, _LIST):
        ends = np.cumsum(numbers.counts)
        first = np.zeros(len(numbers.integers), np.bool_)
        first[ends - numbers.counts] = True
        lines = np.repeat(numbers.lines, numbers.counts)
        refuse_first(path, numbers.integers >= 0, lines, numbers.integers, _ID)
        users.append(np.repeat(numbers.integers[first], numbers.counts - 1))
        items.append(numbers.integers[~first])
    return Listed(Side(np.concatenate(users)), Side(np.concatenate(items)))


_ID = "the number of a user or an item, an integer of at least 0"


def _pairs(path: Path, fields: int) -> Listed:
    if not 2 <= fields <= 4:
        raise InputError(f"{path}: {fields} columns; {_PAIR}")
    grammar = Grammar(
        "iiff"[:fields],
        row=f"the first has {fields} ({_PAIR})",
        separators=_LIST.separators,
        comments=_LIST.comments,
    )
    head, skip = read_head(path, grammar), 0
    numbers = [word.lstrip("-").isdecimal() for word in head.fields[:2]]
    if not all(numbers):
        following = read_head(path, grammar, head.line).fields[:2]
        if any(numbers) or not all(word.lstrip("-").isdecimal() for word in following):
            return _texts(path, fields)
        skip = head.line  # names of columns
    users, items = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    ratings = [np.empty(0)]
    for read in read_numbers(path, grammar, skip):
        ends = read.integers.reshape(-1, 2)
        worst = ends.min(axis=1)
        refuse_first(path, worst >= 0, read.lines, worst, _ID)
        if fields > 2:
            given = read.reals.reshape(-1, fields - 2)[:, 0]
            refuse_first(path, np.isfinite(given), read.lines, given, "a rating")
            ratings.append(given)
        users.append(ends[:, 0])
        items.append(ends[:, 1])
    every = np.concatenate(ratings) if fields > 2 else None
    return Listed(Side(np.concatenate(users)), Side(np.concatenate(items)), every)


def _texts(path: Path, fields: int) -> Listed:
    """Pairs whose names are texts."""
    names: tuple[dict[str, int], dict[str, int]] = ({}, {})
    users, items, ratings = list[int](), list[int](), list[float]()
    for line, words in _lines(path):
        if len(words) != fields:
            raise InputError(
                f"{path}, line {line}: {len(words)} columns; the first has {fields} ({_PAIR})"
            )
        if not users and re.sub(r"[\W_]", "", words[0].lower()) in _HEADINGS:
            continue
        if "" in words[:2]:
            raise InputError(f"{path}, line {line}: a name is missing; {_PAIR}")
        if fields > 2:
            try:
                ratings.append(float(words[2]))
            except ValueError:
                shown = shortened(words[2], 40)
                raise InputError(f"{path}, line {line}: '{shown}' is not a number") from None
        users.append(names[0].setdefault(words[0], len(names[0])))
        items.append(names[1].setdefault(words[1], len(names[1])))
    ends = (np.array(numbers, np.int64) for numbers in (users, items))
    first, second = map(Side, ends, (np.array(list(known)) for known in names))
    return Listed(first, second, np.array(ratings) if fields > 2 else None)
