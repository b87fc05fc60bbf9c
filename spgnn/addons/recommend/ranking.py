"""Exact top-K over all items, whose rows travel around the ranks in blocks; Recall and NDCG."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spgnn.addons.recommend.share import Share
from spgnn.comm import Communicator
from spgnn.sparse import CSR, take_rows

_ITEMS, _USERS = 8192, 512  # scores of so many at once
_IDS = (1 << 32) - 1


def top_items(
    users: Tensor, items: Tensor, seen: CSR, share: Share, k: int, comm: Communicator
) -> tuple[Tensor, Tensor]:
    """Places and scores [u, min(k, items)] of the items with the largest u · i. Collective."""
    k = min(k, share.items)
    best = torch.full((len(users), k), torch.iinfo(torch.int64).min)
    # Entries of each group of users by place, so that those of a block follow each other.
    entries = [_by_place(seen, rows) for rows in torch.arange(len(users)).split(_USERS)]
    for first, block in _blocks(items, share, comm):
        columns, ids = block.double().T, share.item_ids[first : first + len(block)]
        for number, begin in enumerate(range(0, len(users), _USERS)):
            here = slice(begin, begin + _USERS)
            scores = (users[here].double() @ columns).float()
            place, row = entries[number]
            low, high = torch.searchsorted(
                place, torch.tensor([first, first + len(block)])
            ).tolist()
            scores[row[low:high], place[low:high] - first] = -torch.inf
            value, column = scores.topk(min(k + 1, len(block)))
            keys = _keys(value[:, :k], ids[column[:, :k]])
            if len(block) > k:
                # Any of equal ones may be among the k.
                tied = (value[:, k - 1] == value[:, k]) & (value[:, k] > -torch.inf)
                keys[tied] = _keys(scores[tied], ids).topk(k).values
            best[here] = torch.cat((best[here], keys), 1).topk(k).values
    # The inverse of `_keys`.
    rising = (best >> 32).int()
    scores = torch.where(rising < 0, rising ^ 0x7FFFFFFF, rising).view(torch.float32)
    places = share.places[(_IDS - (best & _IDS)).clamp(max=max(share.items - 1, 0))]
    missing = best <= (_keys(scores.new_tensor(-torch.inf), best.new_zeros(())))
    return places.masked_fill(missing, -1), scores.masked_fill(missing, -torch.inf)


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Integers that rise with scores and, where these are equal, fall with ids."""
    bits = (scores + 0.0).view(torch.int32)  # there is one zero
    # The bits of floats rise with them; those of negative ones fall.
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (rising.long() << 32) | (_IDS - ids)


def _by_place(seen: CSR, rows: Tensor) -> tuple[Tensor, Tensor]:
    part = take_rows(seen, rows)
    row = torch.arange(len(rows)).repeat_interleave(part.row_lengths)
    place, order = part.indices.long().sort()
    return place, row[order]


def _blocks(items: Tensor, share: Share, comm: Communicator) -> Iterator[tuple[int, Tensor]]:
    """Rows of all items in turn, with the place of the first; on every rank. Collective."""
    for owner in range(comm.size):
        begin, end = share.layout.range(owner)
        for first in range(begin, end, _ITEMS):
            count = min(_ITEMS, end - first)
            if owner == comm.rank:
                block = items[first - begin : first - begin + count].contiguous()
            else:
                block = items.new_empty(count, items.shape[1])
            comm.broadcast(block, owner).wait()
            yield first, block


def recall_and_ndcg(
    users: Tensor, items: Tensor, share: Share, k: int, comm: Communicator
) -> Tensor:
    """Sums of Recall@k and NDCG@k over own users with test items, and their number. Collective."""
    lengths = share.test.row_lengths
    tested = (lengths > 0).nonzero()[:, 0]
    seen, test = take_rows(share.train, tested), take_rows(share.test, tested)
    places, _ = top_items(users[tested], items, seen, share, k, comm)
    row = torch.arange(len(tested))
    keys = row.repeat_interleave(test.row_lengths) * share.items + test.indices
    mine = row[:, None] * share.items + places
    at = torch.searchsorted(keys, mine).clamp(max=max(len(keys) - 1, 0))
    hit = (keys[at] == mine) & (places >= 0) if len(keys) else mine < 0
    gains = 1 / torch.arange(2, k + 2).double().log2()
    counts = lengths[tested]
    ideal = gains.cumsum(0)[counts.clamp(max=k) - 1]
    recall = (hit.sum(1).double() / counts).sum()
    ndcg = ((hit * gains[: hit.shape[1]]).sum(1) / ideal).sum()
    return torch.stack((recall, ndcg, recall.new_tensor(len(tested))))
