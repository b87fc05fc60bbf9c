"""Interactions of users with items: from files or made up, and the graph that they are."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch

from spgnn.addons.io import is_tabular
from spgnn.addons.recommend.readers import PAIR, Array, Form, Side, read_listed
from spgnn.data import Graph
from spgnn.errors import InputError
from spgnn.files import name_in, unpacked
from spgnn.hashing import uniform
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR

Split = Literal["auto", "random", "temporal"]
_LOGGER = logging.getLogger(__name__)
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
    split : str
        How the test interactions were chosen: ``"temporal"``, ``"random"`` or by ``"files"``.
    """

    name: str
    train: sp.csr_array
    test: sp.csr_array
    users: Array | None = None
    items: Array | None = None
    split: str = "files"

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.train.shape[0]), int(self.train.shape[1])

    def sides(self) -> dict[str, Array]:
        """The ids of users and of items."""
        named = zip(("user", "item"), self.shape, (self.users, self.items), strict=True)
        return {side: np.arange(n) if own is None else own for side, n, own in named}

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


def open_interactions(
    dataset: str,
    *,
    test_share: float = 0.2,
    seed: int = 0,
    split: Split = "auto",
    form: Form = "auto",
    least_rating: float | None = None,
) -> Interactions:
    """The interactions of a file, of a directory with train and test files, or made-up ones.

    Lines are ``user item [rating [time]]`` or, as LightGCN's authors write them,
    ``user item item …``; columns that have names are known by them.

    Parameters
    ----------
    dataset : str
        A file; a directory with ``train.txt`` and ``test.txt`` (or another suffix);
        ``interactions-USERS-ITEMS-COUNT`` makes some up.
    test_share : float
        Of a single file.
    split : {"auto", "random", "temporal"}
        Of a single file, ``temporal`` holds out the latest interactions, and ``random`` those that
        a hash of (seed, user, item) draws; ``auto``: the latest, if there are times.
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
        if split == "temporal":
            raise InputError(f"{dataset}: has no times for --split temporal")
        return _divided(dataset, make_up(users, items, count, seed=seed), test_share, seed)
    if not path.exists() and not is_tabular(dataset):
        choices = "a file, a directory with train.txt and test.txt, or interactions-1000-500-20000"
        raise InputError(f"{dataset}: there is no such file; interactions are {choices}")
    paths = [path]
    if path.is_dir() and not (is_tabular(dataset) and not list(path.glob("test.*"))):
        paths = [_file_of(path, "train"), _file_of(path, "test")]
        if split != "auto":
            raise InputError(f"{path}: --split {split}: it has {paths[1].name} to test with")
    # A test file may well have one row for each user.
    files = [read_listed(each, form, least_rating, numbered=each == paths[0]) for each in paths]
    if not len(files[0].users.numbers):
        raise InputError(f"{paths[0]}: holds no interactions; {PAIR}")
    user_names, rows = _numbered([listed.users for listed in files])
    item_names, columns = _numbered([listed.items for listed in files])
    shape = _size(user_names, rows), _size(item_names, columns)
    matrices = [
        _matrix(row, column, shape, each)
        for row, column, each in zip(rows, columns, paths, strict=True)
    ]
    name = path.name if path.is_dir() else name_in(path)
    if len(matrices) == 1:
        times = None if split == "random" else files[0].times
        if split == "temporal" and times is None:
            raise InputError(f"{path}: has no times for --split temporal")
        if times is not None:
            # In the order of the matrix, of an interaction that is repeated the first one.
            order = np.lexsort((times, columns[0], rows[0]))
            places = np.stack((rows[0], columns[0]))[:, order]
            new = np.append(True, (places[:, 1:] != places[:, :-1]).any(axis=0))
            times = times[order][new]
        divided = _divided(name, matrices[0], test_share, seed, times)
        return replace(divided, users=user_names, items=item_names)
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
    users: int, items: int, count: int, *, groups: int = 0, inside: float = 0.8, seed: int = 0
) -> sp.csr_array:
    """Interactions with tastes: most are with items of the user's own group, popular ones first."""
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


def _divided(
    name: str, every: sp.csr_array, share: float, seed: int, times: Array | None = None
) -> Interactions:
    """A share for testing: the latest, of those at one time and without times by a hash."""
    users = np.repeat(np.arange(every.shape[0]), np.diff(every.indptr))
    draws = uniform(users, seed, "test interactions", second=every.indices.astype(np.int64))
    test = draws < share
    if times is not None:
        test[:] = False
        test[np.lexsort((-draws, times))[len(test) - round(share * len(test)) :]] = True
    if test.all():
        raise InputError(f"{name}: no interaction is left to train on")
    parts = []
    for chosen in (~test, test):
        indptr = np.concatenate(([0], np.cumsum(chosen)))[every.indptr]
        ones = np.ones(int(chosen.sum()), np.bool_)
        parts.append(sp.csr_array((ones, every.indices[chosen], indptr), shape=every.shape))
    return Interactions(name, parts[0], parts[1], split="random" if times is None else "temporal")


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
    vocabularies, numbers = [], []
    for side in sides:
        used, inverse = np.unique(side.numbers, return_inverse=True)
        vocabularies.append(used if side.names is None else side.names)
        numbers.append(inverse if side.names is None else side.numbers)
    if any(names.dtype.kind not in "iu" for names in vocabularies):
        vocabularies = [
            names.astype(str) for names in vocabularies
        ]  # of integers, as files have them
    names = np.unique(np.concatenate(vocabularies))
    places = [np.searchsorted(names, own) for own in vocabularies]
    return names, [place[own] for place, own in zip(places, numbers, strict=True)]


def _size(names: Array | None, columns: Sequence[Array]) -> int:
    if names is not None:
        return len(names)
    return 1 + max(int(column.max(initial=-1)) for column in columns)


def _file_of(directory: Path, stem: str) -> Path:
    files = [p for p in sorted(directory.glob(f"{stem}.*")) if unpacked(p).endswith(_SUFFIXES)]
    if len(files) != 1:
        listed = "none" if not files else " and ".join(path.name for path in files)
        raise InputError(f"{directory}: needs one file {stem}.txt, .csv or .parquet, has {listed}")
    return files[0]
