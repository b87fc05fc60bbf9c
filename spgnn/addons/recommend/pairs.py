"""Pairs of a user and an item that a step learns from, their negatives, and losses of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn import kernels
from spgnn.addons.recommend.share import Share
from spgnn.comm import Communicator
from spgnn.hashing import uniform
from spgnn.layout import Int64Array, grouped_order
from spgnn.pattern import Pattern

if TYPE_CHECKING:
    from spgnn.addons.recommend.config import Sampling

PairLoss = Literal["bpr", "softmax", "in-batch"]
Draw = Literal["interactions", "users"]
_ATTEMPTS = 20  # to draw an item that the user has not interacted with
_SCORES = 1 << 22  # that are computed at once
_PIECE = 1 << 20  # pairs that are drawn, or scored, at once


class Pairs(NamedTuple):
    """Pairs of own users: numbers among own users [b], which rise, and places of items."""

    users: Tensor
    positives: Tensor
    negatives: Tensor


class PairSampler:
    """The pairs of each step; a step is the union of all ranks' pairs."""

    def __init__(
        self,
        share: Share,
        comm: Communicator,
        how: Sampling,
        seed: int,
        interactions: int | None = None,
    ) -> None:
        self._share, self._seed, self._draw = share, seed, how.draw
        self._negatives = 0 if how.loss == "in-batch" else how.negatives
        self.interactions = interactions or comm.agree(share.train.nnz, "sum")
        self._batch = min(how.batch_size or self.interactions, self.interactions)
        self.steps = -(-self.interactions // max(self._batch, 1))
        # In each row items rise: what is drawn must not depend on the order of vertices.
        self._indptr = share.train.indptr.numpy()
        own = np.arange(len(share.user_ids))
        self._user_of = own.astype(np.int32).repeat(np.diff(self._indptr))
        items = share.train.indices.long().numpy()
        self._keys = self._user_of.astype(np.int64) * share.items + items
        if (self._keys[1:] < self._keys[:-1]).any():
            self._keys.sort()
            items = self._keys % share.items
        self._items = items.astype(np.int32)
        if how.draw == "users":
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
            order = np.argsort(users, kind="stable")
            users, entries, key = users[order], entries[order], key[order]
        else:
            if epoch != self._epoch:
                self._divide(epoch)
            entries = self._order[self._ends[step] : self._ends[step + 1]]
            users = self._user_of[entries].astype(np.int64)
            key = self._share.user_ids.numpy()[users]
        positives = self._items[entries].astype(np.int64)
        negatives = [
            self._others(epoch, *(a[first : first + _PIECE] for a in (users, positives, key)))
            for first in range(0, max(len(users), 1), _PIECE)
        ]
        others, places = torch.from_numpy(np.concatenate(negatives)), self._share.places
        return Pairs(torch.from_numpy(users), places[torch.from_numpy(positives)], places[others])

    def _divide(self, epoch: int) -> None:
        """Deal own interactions to the steps of an epoch."""
        self._epoch = epoch
        if self.steps == 1:
            self._order, self._ends = np.arange(len(self._items)), np.array([0, len(self._items)])
            return
        steps, ids = np.empty(len(self._items), np.int32), self._share.user_ids.numpy()
        for first in range(0, len(steps), _PIECE):
            here = slice(first, first + _PIECE)
            users, items = ids[self._user_of[here]], self._items[here].astype(np.int64)
            draws = uniform(users, self._seed, f"steps of epoch {epoch}", second=items)
            steps[here] = (draws * self.steps).astype(np.int32)
        self._order = grouped_order(steps, self.steps)
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
        keys = users * self._share.items + items
        at = np.searchsorted(self._keys, keys)
        at[at == len(self._keys)] = 0
        return np.asarray(self._keys[at] == keys)


def pair_loss(
    how: Sampling, users: Tensor, items: Tensor, counts: Tensor, pairs: Pairs, total: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Own share of the mean loss over all pairs of a step, and its gradients."""
    if how.loss == "in-batch":
        often = counts.to(items.dtype).log()
        return _among_all(users, items, often, pairs, total, how.temperature)
    # Pairs are nonzeros of a matrix of users and items: nothing of pairs × d is made.
    loss = torch.zeros((), dtype=torch.float64)
    d_users, d_items = torch.zeros_like(users), torch.zeros_like(items)
    for first in range(0, len(pairs.users), _PIECE):
        user, positive, negative = (t[first : first + _PIECE] for t in pairs)
        here = slice(int(user[0]), int(user[-1]) + 1)
        columns = torch.cat((positive[:, None], negative), 1).int()
        lengths = torch.bincount(user - here.start) * columns.shape[1]
        indptr = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        pattern = Pattern.trusted(indptr, columns.flatten(), (len(lengths), len(items)))
        with torch.enable_grad():
            U, V = users[here].requires_grad_(), items.detach().requires_grad_()
            scores = kernels.sddmm(pattern, U, V).view(columns.shape) / how.temperature
            if how.loss == "bpr":
                part = F.softplus(scores[:, 1:] - scores[:, :1]).mean(1).sum() / total
            else:
                part = (scores.logsumexp(1) - scores[:, 0]).sum() / total
            dU, dV = torch.autograd.grad(part, (U, V))
        loss += part.detach()
        d_users[here] += dU
        d_items += dV
    return loss, d_users, d_items


def _among_all(
    users: Tensor, items: Tensor, often: Tensor, pairs: Pairs, total: int, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``in-batch``, some pairs at a time; `often` is the logarithm of how often items occur."""
    loss = torch.zeros((), dtype=torch.float64)
    d_users, d_items = torch.zeros_like(users), torch.zeros_like(items)
    step = max(1, _SCORES // max(len(items), 1))
    for first in range(0, len(pairs.users), step):
        user, item = (t[first : first + step] for t in pairs[:2])
        with torch.enable_grad():
            U, V = users[user].requires_grad_(), items.detach().requires_grad_()
            scores = U @ V.T / temperature + often
            # The positive itself counts once.
            own = torch.arange(len(user)), item
            scores = scores.index_put(own, -often[item], accumulate=True)
            part = F.cross_entropy(scores, item, reduction="sum") / total
            dU, dV = torch.autograd.grad(part, (U, V))
        loss += part.detach()
        d_users.index_add_(0, user, dU)
        d_items += dV
    return loss, d_users, d_items
