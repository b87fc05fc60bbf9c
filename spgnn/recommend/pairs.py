"""Pairs of a user and an item that a step learns from, their negatives, and losses of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.hashing import uniform
from spgnn.layout import Int64Array
from spgnn.recommend.share import Share

PairLoss = Literal["bpr", "softmax", "in-batch"]
Draw = Literal["interactions", "users"]
_ATTEMPTS = 20  # to draw an item that the user has not interacted with
_SCORES = 1 << 22  # that are computed at once


class Pairs(NamedTuple):
    """Pairs of own users: numbers among own users [b], places of items [b] and [b, negatives]."""

    users: Tensor
    positives: Tensor
    negatives: Tensor


class PairSampler:
    """The pairs of each step; a step is the union of all ranks' pairs.

    Draws are hashes of (seed, epoch, user, item, number). ``interactions``: in each epoch every
    training interaction is in one step, a random one. ``users``: as LightGCN's authors do, each
    pair is a random user and a random one of its items.

    Parameters
    ----------
    share : Share
    comm : Communicator
        All ranks.
    batch_size : int
        Pairs of a step of all ranks together, on average; 0: all.
    negatives : int
        Of each pair, none of which the user has interacted with, unless it has with almost all.
    seed : int
    draw : {"interactions", "users"}
    interactions : int, optional
        Of training, if the share has not all of this rank's users.

    Attributes
    ----------
    steps : int
        Of an epoch.
    """

    def __init__(
        self,
        share: Share,
        comm: Communicator,
        *,
        batch_size: int,
        negatives: int,
        seed: int,
        draw: Draw = "interactions",
        interactions: int | None = None,
    ) -> None:
        self._share, self._negatives, self._seed, self._draw = share, negatives, seed, draw
        self.interactions = interactions or comm.agree(share.train.nnz, "sum")
        self._batch = min(batch_size or self.interactions, self.interactions)
        self.steps = -(-self.interactions // max(self._batch, 1))
        # Own interactions with items by their own numbers, which rise in each row: what is drawn
        # must not depend on places.
        self._indptr = share.train.indptr.numpy()
        own = np.arange(len(share.user_ids))
        self._user_of = own.repeat(np.diff(self._indptr))
        if torch.equal(share.item_ids, torch.arange(share.items)):
            self._items = share.train.indices.numpy()
        else:
            items = share.item_ids[share.train.indices.long()].numpy()
            keys = np.sort(self._user_of * share.items + items)
            self._items = (keys % share.items).astype(np.int32)
        if draw == "users":
            self._number = np.full(share.users, -1, np.int64)
            self._number[share.user_ids.numpy()] = own
        self._epoch, self._order, self._ends = -1, np.empty(0, np.int64), np.empty(0, np.int64)

    def pairs(self, epoch: int, step: int) -> Pairs:
        """Own pairs of a step."""
        if self._draw == "users":
            slots = np.arange(step * self._batch, min((step + 1) * self._batch, self.interactions))
            purpose = f"users of epoch {epoch}"
            chosen = uniform(slots, self._seed, purpose, 2)
            users = self._number[(chosen[:, 0] * self._share.users).astype(np.int64)]
            own = users >= 0
            users, which = users[own], chosen[own, 1]
            lengths = np.diff(self._indptr)[users]
            entries = self._indptr[users] + (which * lengths).astype(np.int64)
            some = lengths > 0
            users, entries, key = users[some], entries[some], slots[own][some]
        else:
            if epoch != self._epoch:
                self._divide(epoch)
            entries = self._order[self._ends[step] : self._ends[step + 1]]
            users = self._user_of[entries]
            key = self._share.user_ids.numpy()[users]
        positives = self._items[entries].astype(np.int64)
        items = np.column_stack((positives, self._others(epoch, users, positives, key)))
        places = self._share.places[torch.from_numpy(items)]
        return Pairs(torch.from_numpy(users), places[:, 0], places[:, 1:])

    def _divide(self, epoch: int) -> None:
        """Deal own interactions to the steps of an epoch."""
        self._epoch = epoch
        if self.steps == 1:
            self._order, self._ends = np.arange(len(self._items)), np.array([0, len(self._items)])
            return
        users = self._share.user_ids.numpy()[self._user_of]
        draws = uniform(
            users, self._seed, f"steps of epoch {epoch}", second=self._items.astype(np.int64)
        )
        steps = (draws * self.steps).astype(np.int64)
        self._order = np.argsort(steps, kind="stable")
        self._ends = np.append(0, np.cumsum(np.bincount(steps, minlength=self.steps)))

    def _others(
        self, epoch: int, users: Int64Array, positives: Int64Array, key: Int64Array
    ) -> Int64Array:
        """Items that users have not interacted with, int64 [b, negatives]."""
        items, count = self._share.items, self._negatives
        result = np.empty((len(users), count), np.int64)
        left = np.arange(len(users) * count)
        for attempt in range(_ATTEMPTS if count else 0):
            # At first all columns at once, and then those numbers that have to be drawn again.
            rows = left // count
            purpose = f"negatives of epoch {epoch}, {attempt}"
            draws = uniform(
                key if not attempt else key[rows],
                self._seed,
                purpose,
                count,
                second=positives if not attempt else positives[rows],
            )
            flat = draws.reshape(-1) if not attempt else draws[np.arange(len(rows)), left % count]
            drawn = (flat * items).astype(np.int64)
            result.reshape(-1)[left] = drawn
            left = left[self._known(users[rows], drawn)]
            if not len(left):
                break
        return result

    def _known(self, users: Int64Array, items: Int64Array) -> npt.NDArray[np.bool_]:
        """True where a user has interacted with an item."""
        low, high = self._indptr[users], self._indptr[users + 1]
        while (searched := np.flatnonzero(low < high)).size:
            middle = (low[searched] + high[searched]) // 2
            below = self._items[middle] < items[searched]
            low[searched[below]] = middle[below] + 1
            high[searched[~below]] = middle[~below]
        known = low < self._indptr[users + 1]
        known[known] = self._items[low[known]] == items[known]
        return known


def pair_loss(
    kind: PairLoss,
    users: Tensor,
    items: Tensor,
    counts: Tensor,
    pairs: Pairs,
    total: int,
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Own share of the mean loss over all pairs of a step, and its gradients.

    ``bpr``: −log σ(s⁺ − s⁻), mean over negatives (Rendle et al. 2009). ``softmax``: cross-entropy
    of the positive among it and its negatives. ``in-batch``: among the items of all pairs of the
    step, each as often as it occurs, other occurrences of the positive left out.

    Parameters
    ----------
    kind : {"bpr", "softmax", "in-batch"}
    users : Tensor [u, d]
        Embeddings that `pairs.users` number.
    items : Tensor [m, d]
        Embeddings that positives and negatives number.
    counts : Tensor [m]
        Pairs of the step, on all ranks, whose item each is.
    pairs : Pairs
    total : int
        Pairs of all ranks.
    temperature : float
        Scores are divided by it.

    Returns
    -------
    loss : Tensor float64, a scalar
    d_users, d_items : Tensor [u, d], [m, d]
    """
    loss = torch.zeros((), dtype=torch.float64)
    d_users, d_items = torch.zeros_like(users), torch.zeros_like(items)
    columns = len(items) if kind == "in-batch" else (1 + pairs.negatives.shape[1]) * items.shape[1]
    for part in _split(pairs, max(1, _SCORES // max(columns, 1))):
        with torch.enable_grad():
            u = users[part.users].requires_grad_()
            if kind == "in-batch":
                every, often = items.detach().requires_grad_(), counts.to(u.dtype).log()
                own = torch.arange(len(u)), part.positives
                # The positive itself counts once.
                scores = u @ every.T / temperature + often
                scores = scores.index_put(own, -often[part.positives], accumulate=True)
                summed = F.cross_entropy(scores, part.positives, reduction="sum")
            else:
                numbers = torch.cat((part.positives[:, None], part.negatives), 1)
                every = items[numbers].requires_grad_()
                scores = (u[:, None] * every).sum(-1) / temperature
                if kind == "bpr":
                    apart = scores[:, :1] - scores[:, 1:]
                    summed = F.softplus(-apart).mean(1).sum()
                else:
                    summed = F.cross_entropy(
                        scores, torch.zeros(len(u), dtype=torch.int64), reduction="sum"
                    )
            du, di = torch.autograd.grad(summed / total, (u, every))
        loss += summed.detach().double() / total
        d_users.index_add_(0, part.users, du)
        if kind == "in-batch":
            d_items += di
        else:
            d_items.index_add_(0, numbers.flatten(), di.flatten(0, 1))
    return loss, d_users, d_items


def _split(pairs: Pairs, rows: int) -> Iterator[Pairs]:
    if len(pairs.users):
        yield from map(Pairs._make, zip(*(t.split(rows) for t in pairs), strict=True))
