"""Exact top-K over all items, whose rows travel around the ranks in blocks; Recall and NDCG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.comm import Communicator, SoloCommunicator
from spgnn.errors import InputError, check_integer
from spgnn.graph import rows_of_all
from spgnn.layout import RowLayout
from spgnn.pattern import described
from spgnn.sparse import CSR, take_rows

_ITEMS, _USERS = 8192, 256  # scores of so many at once; larger blocks are new memory each time
_IDS = (1 << 32) - 1


def top_k(
    users: Tensor | npt.NDArray[Any],
    items: Tensor | npt.NDArray[Any],
    k: int = 20,
    *,
    seen: CSR | sp.sparray | sp.spmatrix | None = None,
    item_ids: Tensor | npt.NDArray[Any] | None = None,
    comm: Communicator | None = None,
) -> tuple[Tensor, Tensor]:
    """The k items with the largest inner products with each user. Collective.

    Exact: products are summed in float64 and rounded to float32; of equal ones the smaller id
    comes first, on any number of ranks. Never users × items at once.

    Parameters
    ----------
    users : Tensor or array [own users, d]
    items : Tensor or array [own items, d]
        Of all ranks together each item once.
    k : int
    seen : CSR or sparse matrix of SciPy [own users, items of all ranks], optional
        Stored entries are items, by their ids, that are left out.
    item_ids : Tensor or array int64 [own items], optional
        From 0 on, each on one rank; by default the items are numbered in the order of ranks.
    comm : Communicator, optional
        All ranks; by default this process alone.

    Returns
    -------
    ids : Tensor int64 [own users, min(k, items)]
        Best first; -1 where no item is left.
    scores : Tensor float32 of the same shape
        -inf where no item is left.

    Raises
    ------
    InputError
        On all ranks, if shapes do not fit, or an embedding is not finite.
    """
    comm = comm or SoloCommunicator()
    users, items, seen, own_ids = comm.on_every_rank(
        lambda: _checked(users, items, k, seen, item_ids)
    )
    comm.check_agreement("top_k", k=k, width=items.shape[1], dtype=items.dtype)
    sizes = rows_of_all(torch.tensor([len(items)]), comm)
    layout = RowLayout(np.append(0, sizes.cumsum(0).numpy()))
    own = torch.arange(*layout.range(comm.rank))
    ids = rows_of_all(own if own_ids is None else own_ids, comm)
    places = torch.full((layout.rows,), -1)

    def check_ids() -> None:
        if len(ids) != layout.rows or not torch.equal(ids.sort().values, torch.arange(len(ids))):
            raise InputError(f"item_ids must be 0 … {layout.rows - 1}, each once")
        if seen is not None and seen.shape != (len(users), layout.rows):
            size = f"[{len(users)}, {layout.rows}]"
            raise InputError(f"seen must be {size}, a row a user, got {list(seen.shape)}")

    comm.on_every_rank(check_ids)
    places[ids] = torch.arange(layout.rows)
    k = min(k, layout.rows)
    best = torch.full((len(users), k), torch.iinfo(torch.int64).min)
    # Entries of each group of users by place, so that those of a block follow each other.
    groups = torch.arange(len(users)).split(_USERS)
    entries = [] if seen is None else [_by_place(take_rows(seen, rows), places) for rows in groups]
    for first, block in _blocks(items, layout, comm):
        columns, block_ids = block.double().T, ids[first : first + len(block)]
        bounds = torch.tensor([first, first + len(block)])
        for number, begin in enumerate(range(0, len(users), _USERS)):
            here = slice(begin, begin + _USERS)
            scores = (users[here].double() @ columns).float()
            if entries:
                place, row = entries[number]
                low, high = torch.searchsorted(place, bounds).tolist()
                scores[row[low:high], place[low:high] - first] = -torch.inf
            value, column = scores.topk(min(k + 1, len(block)))
            keys = _keys(value[:, :k], block_ids[column[:, :k]])
            if len(block) > k:
                # Any of equal ones may be among the k.
                tied = (value[:, k - 1] == value[:, k]) & (value[:, k] > -torch.inf)
                keys[tied] = _keys(scores[tied], block_ids).topk(k).values
            best[here] = torch.cat((best[here], keys), 1).topk(k).values
    # The inverse of `_keys`.
    rising = (best >> 32).int()
    scores = torch.where(rising < 0, rising ^ 0x7FFFFFFF, rising).view(torch.float32)
    missing = best <= (_keys(scores.new_tensor(-torch.inf), best.new_zeros(())))
    ids = (_IDS - (best & _IDS)).masked_fill(missing, -1)
    return ids, scores.masked_fill(missing, -torch.inf)


def _checked(
    users: Any, items: Any, k: int, seen: Any, item_ids: Any
) -> tuple[Tensor, Tensor, CSR | None, Tensor | None]:
    """The arguments, arrays as tensors, checked as far as one rank can."""
    check_integer("k", k, 1)
    users, items = _tensor("users", users), _tensor("items", items)
    for name, rows in (("users", users), ("items", items)):
        if rows.dim() != 2 or rows.shape[1] != items.shape[-1]:
            shapes = f"{list(users.shape)} and {list(items.shape)}"
            raise InputError(f"users and items must be [users, d] and [items, d], got {shapes}")
        if not rows.isfinite().all():
            raise InputError(f"{name} hold numbers that are not finite")
    if seen is not None and not isinstance(seen, CSR):
        if not sp.issparse(seen):
            kind = type(seen).__name__
            raise InputError(f"seen must be a CSR or a sparse array of SciPy, got {kind}")
        seen = CSR.from_scipy(seen)
    if item_ids is None:
        return users, items, seen, None
    ids = _tensor("item_ids", item_ids)
    if ids.numel() and (ids.is_floating_point() or ids.is_complex()):
        raise InputError(f"item_ids must be integers, got {described(ids)}")
    return users, items, seen, ids.long()


def _tensor(name: str, rows: Any) -> Tensor:
    try:
        return torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        kind = type(rows).__name__
        raise InputError(f"{name} must be a tensor or an array of numbers, got {kind}") from None


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Integers that rise with scores and, where these are equal, fall with ids."""
    bits = (scores + 0.0).view(torch.int32)  # there is one zero
    # The bits of floats rise with them; those of negative ones fall.
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (rising.long() << 32) | (_IDS - ids)


def _by_place(seen: CSR, places: Tensor) -> tuple[Tensor, Tensor]:
    row = torch.arange(len(seen.row_lengths)).repeat_interleave(seen.row_lengths)
    place, order = places[seen.indices.long()].sort()
    return place, row[order]


def _blocks(items: Tensor, layout: RowLayout, comm: Communicator) -> Iterator[tuple[int, Tensor]]:
    """Rows of all items in turn, with the place of the first; on every rank. Collective."""
    for owner in range(comm.size):
        begin, end = layout.range(owner)
        for first in range(begin, end, _ITEMS):
            count = min(_ITEMS, end - first)
            if owner == comm.rank:
                block = items[first - begin : first - begin + count].contiguous()
            else:
                block = items.new_empty(count, items.shape[1])
            comm.broadcast(block, owner).wait()
            yield first, block


def recall_and_ndcg(ids: Tensor, test: CSR, k: int) -> Tensor:
    """Sums of Recall@k and NDCG@k over users by their best items, and their number."""
    lengths, items = test.row_lengths, test.shape[1]
    row = torch.arange(len(ids))
    keys = row.repeat_interleave(lengths) * items + test.indices
    mine = row[:, None] * items + ids
    at = torch.searchsorted(keys, mine).clamp(max=max(len(keys) - 1, 0))
    hit = (keys[at] == mine) & (ids >= 0) if len(keys) else mine < 0
    gains = 1 / torch.arange(2, k + 2).double().log2()
    ideal = gains.cumsum(0)[lengths.clamp(max=k) - 1]
    recall = (hit.sum(1).double() / lengths).sum()
    ndcg = ((hit * gains[: hit.shape[1]]).sum(1) / ideal).sum()
    return torch.stack((recall, ndcg, recall.new_tensor(len(ids))))
