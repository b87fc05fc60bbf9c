"""Neighbourhoods that end at the halo: what others made of it some iterations ago is at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.command import LARGEST
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.minibatch.boundary import Boundary
from spgnn.minibatch.embeddings import EmbeddingCache, Hits
from spgnn.minibatch.exact import DistributedSampler, Drawn
from spgnn.minibatch.push import Made, Push
from spgnn.minibatch.questions import Table, rows_of_ranks, taken
from spgnn.sampling import Draw, Hop, relabel
from spgnn.sparse import CSR

Misses = Literal["drop", "fetch"]
MISSES: tuple[Misses, ...] = ("drop", "fetch")


@dataclass(frozen=True)
class History:
    """How much of others' past a rank keeps, and how it gets there.

    Attributes
    ----------
    size : int
        Rows of each layer's cache.
    life : int
        Iterations after which a row is too old.
    delay : int
        Rows of iteration k are used from iteration k + delay on, at least 1.
    push : int
        Most rows a peer, layer and iteration, those of highest degree first.
    """

    size: int
    life: int
    delay: int
    push: int

    @classmethod
    def parsed(cls, text: str) -> History:
        """From ``SIZE,LIFE,DELAY,PUSH``.

        Raises
        ------
        InputError
        """
        words = text.split(",")
        if len(words) != 4 or not all(word.strip().isdecimal() for word in words):
            raise InputError(
                f"--historical {text}: must be SIZE,LIFE,DELAY,PUSH, as in 100000,8,1,2000"
            )
        made = cls(*map(int, words))
        if made.delay < 1:
            raise InputError(f"--historical {text}: DELAY must be at least 1")
        if max(made.size, made.life, made.delay, made.push) > LARGEST:
            raise InputError(f"--historical {text}: numbers must be at most {LARGEST}")
        return made


@dataclass(frozen=True, eq=False)
class PartialHop:
    """The sampled matrix of one layer; some of its columns are rows that are at hand.

    Attributes
    ----------
    nodes : Tensor int64 [m]
        Vertices of its columns, the first of which are its rows.
    made : int
        So many columns the layer before has to make, or their features are needed.
    slots : Tensor int64 [m − made]
        Where the rows of the others lie in the layer's cache.
    order : Tensor int64 [m], optional
        Which of the rows [made, at hand] each column is; ``None`` if they are in order.
    hop : Hop
        Its rows and columns; edges and weights of the sampler.
    edges : Tensor, optional
        What is known of its edges.
    """

    nodes: Tensor
    made: int
    slots: Tensor
    order: Tensor | None
    hop: Hop
    edges: Tensor | None

    @property
    def makes(self) -> Tensor:
        """Vertices that the layer before has to make."""
        return self.nodes[: self.made] if self.order is None else self.nodes[self.order < self.made]

    def together(self, made: Tensor, past: Tensor) -> Tensor:
        """All columns, of those that were made and those at hand."""
        rows = torch.cat((made, past.to(made.dtype)))
        return rows if self.order is None else rows[self.order]


class Cache(Protocol):
    """Rows of some vertices of the halo.

    Attributes
    ----------
    hits : Hits
    """

    hits: Hits

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Where the rows of vertices of the halo lie, −1 where there is none; counted."""

    def rows(self, slots: Tensor) -> Any:
        """The rows that were found at these slots."""


class HaloFeatures:
    """Features of vertices of the halo, fetched once: they do not age. Made on all ranks together.

    Parameters
    ----------
    x : Tensor, CSR or Rows [own rows, f]
    uses : Tensor int64 [h]
        How many of this rank's edges begin at each vertex of the halo; 0 for one whose features no
        batch will ask for.
    capacity : int
        Rows; those with most uses are kept.
    boundary : Boundary
    layout : RowLayout
    comm : Communicator
        All ranks.

    Attributes
    ----------
    hits : Hits
    table : Tensor or CSR [kept, f]
        The rows that were fetched.
    """

    def __init__(
        self,
        x: Table,
        uses: Tensor,
        capacity: int,
        *,
        boundary: Boundary,
        layout: RowLayout,
        comm: Communicator,
    ) -> None:
        self.hits = Hits()
        most_used = uses.argsort(descending=True, stable=True)
        kept = most_used[: min(capacity, int((uses > 0).sum()))]
        self._slot = torch.full((len(uses),), -1)
        self._slot[kept] = torch.arange(len(kept))
        self.table = rows_of_ranks(x, boundary.halo[kept], layout, comm)

    def find(self, vertices: Tensor, now: int) -> Tensor:
        """Where the rows of vertices lie, −1 where there is none; counted."""
        slots = self._slot[vertices]
        self.hits.asked += len(slots)
        self.hits.found += int((slots >= 0).sum())
        return slots

    def rows(self, slots: Tensor) -> Tensor | CSR:
        """The rows that were found at these slots."""
        return taken(self.table, slots)


@dataclass(eq=False)
class Historical:
    """Batches of one rank of DistGNN-MB (Vasimuddin et al. 2022): samples that stop at the halo.

    Each layer takes rows of halo vertices from its cache. Those that are missing are dropped, as in
    the paper, or made here: their owners are asked for a sample of their neighbours.

    Parameters
    ----------
    sampler : DistributedSampler
        Its own rows are sampled here, and whatever else on the ranks that own it.
    boundary : Boundary
    features : HaloFeatures
        For the first layer.
    caches : list of EmbeddingCache
        For the others.
    push : Push, optional
        To the caches of others, but for features; without, nothing is known of them.
    misses : {"drop", "fetch"}
    """

    sampler: DistributedSampler
    boundary: Boundary
    features: HaloFeatures
    caches: list[EmbeddingCache]
    push: Push | None
    misses: Misses
    _made: list[Made] = field(default_factory=list)

    def begin(self, iteration: int) -> None:
        """Take in what may be used from this iteration on. Collective."""
        if self.push is not None:
            for layer, made, halo, rows in self.push.arrived(iteration):
                self.caches[layer].put(halo, rows, made)
        none = torch.zeros(0, dtype=torch.int64)
        self._made = [(none, cache.rows(none)) for cache in self.caches]

    def completed(self, layer: int, hop: PartialHop, made: Tensor) -> Tensor:
        """What a layer takes: rows that the layer before it made, and historical ones.

        Parameters
        ----------
        layer : int
            At least 1.
        hop : PartialHop
            Of this layer.
        made : Tensor [made, f]

        Returns
        -------
        Tensor [m, f]
            The historical ones are constants.
        """
        own = self.boundary.is_own(hop.makes)
        self._made[layer - 1] = hop.makes[own] - self.boundary.first, made.detach()[own]
        return hop.together(made, self.caches[layer - 1].rows(hop.slots))

    def end(self, iteration: int) -> None:
        """Send what this iteration made. Collective."""
        if self.push is not None:
            self.push.begin(iteration, self._made)

    def sample(self, seeds: Tensor, draw: Draw, iteration: int) -> list[PartialHop]:
        """The layers of one batch, the outermost first. Collective if misses are fetched.

        Parameters
        ----------
        seeds : Tensor int64
            Own rows, numbered as those of the whole matrix; may be empty.
        draw : Draw
        iteration : int
        """
        asking = self.sampler.asking([draw]) if self.misses == "fetch" else None
        found: list[PartialHop] = []
        targets, hops = seeds, self.sampler.hops
        for number in range(hops):
            if asking is None:
                drawn = self.sampler.own(targets - self.boundary.first, number, draw)
            else:
                (drawn,) = asking.rows_of([targets], number)
            layer = hops - 1 - number
            cache = self.caches[layer - 1] if layer else self.features
            found.append(self._hop(targets, drawn, cache, iteration))
            targets = found[-1].makes
        return found[::-1]

    def _hop(self, targets: Tensor, drawn: Drawn, cache: Cache, iteration: int) -> PartialHop:
        """What is left of a sample once it is known whose rows are at hand."""
        nodes, indices = relabel(targets, drawn.indptr, drawn.columns)
        others = (~self.boundary.is_own(nodes)).nonzero()[:, 0]
        halo = self.boundary.number(nodes[others])
        slots = torch.full_like(nodes, -1)
        slots[others[halo >= 0]] = cache.find(halo[halo >= 0], iteration)
        made = slots < 0
        if self.misses == "drop":
            made[others] = False
        kept, count, order = _arranged(made, slots >= 0, len(targets))
        place = torch.full_like(nodes, -1)
        place[kept] = torch.arange(len(kept))
        indices = place[indices.long()]
        stays = indices >= 0
        before = torch.zeros(len(stays) + 1, dtype=torch.int64)
        torch.cumsum(stays, 0, out=before[1:])
        weights = None if drawn.weights is None else drawn.weights[stays]
        hop = Hop(before[drawn.indptr], indices[stays].int(), None, weights, len(kept))
        edges = None if drawn.edges is None else drawn.edges[stays]
        past = slots[kept]
        return PartialHop(nodes[kept], count, past[past >= 0], order, hop, edges)


def _arranged(made: Tensor, at_hand: Tensor, targets: int) -> tuple[Tensor, int, Tensor | None]:
    """In which order vertices are columns: the targets first, then as few moves as possible.

    Returns
    -------
    kept : Tensor int64 [m]
        Vertices that are left.
    count : int
        Of them, those that are made.
    order : Tensor int64 [m], optional
        See `PartialHop`.
    """
    first, second = made.nonzero()[:, 0], at_hand.nonzero()[:, 0]
    kept = torch.cat((first, second))
    if not bool(at_hand[:targets].any()):
        return kept, len(first), None
    order = torch.where(kept < targets, kept, targets + torch.arange(len(kept))).argsort()
    return kept[order], len(first), order
