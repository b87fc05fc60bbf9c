"""Rows of other ranks' vertices as they were some iterations ago."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from spgnn.errors import check_integer


@dataclass
class Hits:
    """What a cache was asked for.

    Attributes
    ----------
    asked, found : int
        Rows.
    ages : int
        Iterations since they were made, of all found rows together.
    """

    asked: int = 0
    found: int = 0
    ages: int = 0

    @property
    def rate(self) -> float | None:
        """Share of the rows that were found; ``None`` if none was asked for."""
        return self.found / self.asked if self.asked else None

    @property
    def mean_age(self) -> float | None:
        """Of the rows that were found, in iterations."""
        return self.ages / self.found if self.found else None


class EmbeddingCache:
    """Historical rows of some vertices; where there is no room, the oldest give way.

    The historical embedding cache of one layer of DistGNN-MB (Vasimuddin et al. 2022). The vertices
    are those of a halo, which are known and have numbers, so a table takes the place of hashing.

    Parameters
    ----------
    vertices : int
        They are numbered 0 … vertices − 1.
    width : int
    capacity : int
        Rows that it may hold.
    life : int
        A row that was made more than so many iterations ago is not found.
    dtype : torch.dtype

    Attributes
    ----------
    hits : Hits
    """

    def __init__(
        self,
        vertices: int,
        width: int,
        capacity: int,
        life: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_integer("capacity", capacity, 0)
        check_integer("life", life, 0)
        self.capacity, self.life = min(capacity, vertices), life
        self.hits = Hits()
        self._slot = torch.full((vertices,), -1)
        self._vertex = torch.full((self.capacity,), -1)
        self._made = torch.zeros(self.capacity, dtype=torch.int64)
        self._turn = torch.zeros(self.capacity, dtype=torch.int64)
        self._rows = torch.zeros(self.capacity, width, dtype=dtype)
        # Slots by the turn in which they were written, oldest first; those written since are void.
        self._turns: deque[tuple[int, Tensor]] = deque()
        self._turns_begun = self._used = self._listed = 0

    def __len__(self) -> int:
        """Rows that it holds."""
        return self._used

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = (self._slot, self._vertex, self._made, self._turn, self._rows)
        return sum(array.nbytes for array in arrays)

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Where the rows of vertices lie, −1 where there is none or it is too old; counted.

        Parameters
        ----------
        vertices : Tensor int64 [k]
        now : int
            The iteration.

        Returns
        -------
        Tensor int64 [k]
            For :meth:`rows`, until the next :meth:`put`.
        """
        slots = self._slot[vertices]
        known = slots >= 0
        ages = now - self._made[slots[known]]
        fresh = ages <= self.life
        found = torch.full_like(slots, -1)
        found[known] = torch.where(fresh, slots[known], -1)
        self.hits.asked += len(vertices)
        self.hits.found += int(fresh.sum())
        self.hits.ages += int(ages[fresh].sum())
        return found

    def rows(self, slots: Tensor) -> Tensor:
        """The rows [k, width] that were found at these slots; a copy."""
        return self._rows[slots]

    def put(self, vertices: Tensor, rows: Tensor, made: int) -> None:
        """Take rows in, which replace older ones of the same vertices.

        Parameters
        ----------
        vertices : Tensor int64 [k]
            Each once. If they do not all fit, the first do.
        rows : Tensor [k, width]
        made : int
            The iteration in which they were made; not less than in the call before.
        """
        vertices, rows = vertices[: self.capacity], rows[: self.capacity]
        if not len(vertices):
            return
        self._turns_begun += 1
        slots = self._slot[vertices]
        self._turn[slots[slots >= 0]] = self._turns_begun
        new = slots < 0
        slots[new] = self._freed(int(new.sum()))
        self._slot[vertices] = slots
        self._vertex[slots] = vertices
        self._turn[slots] = self._turns_begun
        self._made[slots] = made
        self._rows[slots] = rows.to(self._rows.dtype)
        self._turns.append((self._turns_begun, slots))
        self._listed += len(slots)
        if self._listed > 4 * self.capacity:
            self._forget_void()

    def _freed(self, count: int) -> Tensor:
        """So many slots: those that were never used, then those written longest ago."""
        unused = torch.arange(self._used, min(self._used + count, self.capacity))
        self._used += len(unused)
        found, missing = [unused], count - len(unused)
        while missing:
            turn, slots = self._turns.popleft()
            self._listed -= len(slots)
            slots = slots[self._turn[slots] == turn]
            if len(slots) > missing:
                self._turns.appendleft((turn, slots[missing:]))
                self._listed += len(slots) - missing
            self._slot[self._vertex[slots[:missing]]] = -1
            found.append(slots[:missing])
            missing -= len(found[-1])
        return torch.cat(found)

    def _forget_void(self) -> None:
        """Leave each slot in the list once."""
        left = [(turn, slots[self._turn[slots] == turn]) for turn, slots in self._turns]
        self._turns = deque((turn, slots) for turn, slots in left if len(slots))
        self._listed = sum(len(slots) for _, slots in self._turns)
