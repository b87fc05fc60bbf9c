"""Which rows a cache keeps: one interface for all rules, and the best that any could do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn._native import CacheTable, cache_table, fixed_cache_table
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Int64Array

STATIC = ("degree", "vip")
POLICIES = ("belady", "degree", "vip", "lru", "clock", "sieve", "none")


@dataclass(frozen=True, eq=False)
class Policy:
    """A rule by which a cache keeps rows.

    All work on whole batches of distinct rows: those that are kept when a batch begins are hits,
    the others are read, and a row that was read need not be kept.

    Parameters
    ----------
    name : str
        ``"belady"``: what is needed soonest among the batches that were announced (Belady 1966; on
        superbatches, Ginex, VLDB'22). ``"degree"`` (PaGraph, SoCC'20) and ``"vip"`` (by the
        probability of a visit, SALIENT++, MLSys'23): the rows of the highest scores, for ever.
        ``"lru"``: what was used last. ``"clock"`` (second chance), ``"sieve"`` (NSDI'24): what has
        been used again. ``"none"``: nothing.
    scores : Tensor [rows], optional
        Degrees (how many rows of the graph name a vertex) for ``"degree"``, the probabilities of
        `visit_probability` for ``"vip"``. With ``"belady"`` they decide among rows that no
        announced batch needs; otherwise these go in the order of their last use.

    Raises
    ------
    InputError
        If there is no such rule, or it needs scores and has none.
    """

    name: str
    scores: Tensor | None = None

    def __post_init__(self) -> None:
        check_choice("cache policy", self.name, POLICIES)
        if self.name in STATIC and self.scores is None:
            raise InputError(f"cache policy {self.name} needs scores, one a row")

    @property
    def looks_ahead(self) -> bool:
        """Whether knowing what comes changes what is kept."""
        return self.name == "belady"

    def table(self, rows: int, slots: int) -> CacheTable:
        """The bookkeeping of an empty cache.

        Parameters
        ----------
        rows : int
            Of the table that is cached.
        slots : int
            Rows that the cache holds.

        Raises
        ------
        InputError
            If there are scores, and not one a row.
        """
        scores = torch.zeros(0) if self.scores is None else self.scores.detach().cpu()
        if self.scores is not None and scores.shape != (rows,):
            raise InputError(
                f"cache policy {self.name}: scores {list(scores.shape)} for a table of {rows} rows"
            )
        slots = min(slots, rows)
        if self.name == "none" or slots == 0:
            return fixed_cache_table(rows, np.empty(0, np.int64))
        if self.name in STATIC:
            kept = torch.topk(scores.double(), slots).indices
            return fixed_cache_table(rows, np.ascontiguousarray(kept.numpy()))
        return cache_table(self.name, rows, slots, scores.float().contiguous().numpy())


def optimal_hits(trace: Iterable[Tensor | Int64Array], slots: int) -> int:
    """The most hits that any rule can have: an empty cache at first, and all batches known.

    Parameters
    ----------
    trace : iterable of int64 [k]
        The distinct rows of one batch after another.
    slots : int
        Rows that the cache holds.
    """
    return sum(hits(Policy("belady"), trace, slots))


def hits(
    policy: Policy, trace: Iterable[Tensor | Int64Array], slots: int, ahead: int | None = None
) -> list[int]:
    """Hits of each batch of a trace, without any rows; the cache is empty at first.

    Parameters
    ----------
    policy : Policy
    trace : iterable of int64 [k]
        The distinct rows of one batch after another.
    slots : int
        Rows that the cache holds.
    ahead : int, optional
        So many batches are announced at a time (a superbatch); by default all.
    """
    check_integer("slots", slots, 0)
    batches = [np.ascontiguousarray(batch, np.int64) for batch in trace]
    rows = 1 + max((int(batch.max(initial=-1)) for batch in batches), default=-1)
    if policy.scores is not None:
        rows = len(policy.scores)
    table = policy.table(rows, slots)
    size = max(1, len(batches) if ahead is None else ahead)
    found = []
    for first in range(0, len(batches), size):
        found += _hits_of(table, batches[first : first + size])
    return found


def _hits_of(table: CacheTable, superbatch: Sequence[Int64Array]) -> list[int]:
    for batch in superbatch:
        table.announce(batch)
    return [int((table.plan()[0] >= 0).sum()) for _ in superbatch]
