"""A rank's share of users and items: its rows, its users' interactions, and who is where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.data.distribute import RankShare
from spgnn.graph.vertices import dealt
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import Pattern
from spgnn.recommend.interactions import Interactions
from spgnn.sparse import CSR, take_rows


@dataclass(frozen=True, eq=False)
class Share:
    """Own users and items of a rank. Items have *places*: their order by rank, then by row.

    Attributes
    ----------
    user_rows, item_rows : Tensor int64
        Own rows of the graph that are users, and items.
    user_ids : Tensor int64 [own users]
        Their numbers among all users.
    item_ids : Tensor int64 [items]
        Of the item at each place, its number among all items.
    places : Tensor int64 [items]
        The inverse.
    layout : RowLayout
        Places of each rank.
    train, test : CSR [own users, items]
        Columns are places, which rise.
    users : int
        Of all ranks.
    """

    user_rows: Tensor
    item_rows: Tensor
    user_ids: Tensor
    item_ids: Tensor
    places: Tensor
    layout: RowLayout
    train: CSR
    test: CSR
    users: int

    @property
    def items(self) -> int:
        """Items of all ranks."""
        return self.layout.rows

    @classmethod
    def of(
        cls, share: RankShare, users: int, given: Callable[[], Interactions], comm: Communicator
    ) -> Share:
        """The share of this rank; rank 0 alone has the interactions. Collective.

        Vertices below `users` are users, the others items.
        """
        assert share.adjacency is not None
        layout, own = share.layout, share.vertex_ids
        ids = own.new_empty(layout.rows)
        comm.all_gather(own, ids, layout.sizes.tolist())
        is_item = ids >= users
        before = torch.cat((is_item.new_zeros(1).long(), is_item.cumsum(0)))
        item_ids, user_ids = ids[is_item] - users, ids[~is_item]
        places = torch.empty_like(item_ids)
        places[item_ids] = torch.arange(len(item_ids))
        item_layout = RowLayout(before[layout.offsets].numpy())

        own_users = layout.sizes - item_layout.sizes

        def tested() -> tuple[Tensor, Tensor, Int64Array]:
            test = given().test[user_ids.numpy()]
            lengths = torch.from_numpy(np.diff(test.indptr).astype(np.int64))
            entries = np.diff(test.indptr[np.append(0, np.cumsum(own_users))])
            return lengths, torch.from_numpy(test.indices.astype(np.int64)), entries

        sent = comm.on_rank_zero(tested)
        of_users, of_items, entries = sent or (own, own, own_users)  # rank 0's count
        lengths = dealt({"": of_users}, own_users, comm)[""]
        tested_items = dealt({"": of_items}, entries.astype(np.int64), comm)[""]
        user_rows = (own < users).nonzero()[:, 0]
        block, shape = take_rows(share.adjacency, user_rows), (len(user_rows), len(item_ids))
        trained = before[block.indices.long()].int()
        row = torch.arange(shape[0]).repeat_interleave(lengths)
        test = places[tested_items]
        test = test[(row * max(shape[1], 1) + test).argsort()].int()
        ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        return cls(
            user_rows,
            (own >= users).nonzero()[:, 0],
            own[user_rows],
            item_ids,
            places,
            item_layout,
            CSR(Pattern.trusted(block.indptr, trained, shape)),
            CSR(Pattern.trusted(ends, test, shape)),
            users,
        )
