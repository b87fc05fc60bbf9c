"""A rank's share of users and items: its rows, its users' interactions, and who is where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.exchange import build, fetch
from spgnn.graph import dealt
from spgnn.layout import Int64Array, RowLayout
from spgnn.pattern import Pattern, Selection
from spgnn.sparse import CSR, take_rows
from spgnn.spmm import DistMatrix


@dataclass(frozen=True, eq=False)
class Share:
    """Own users and items of a rank. Items have *places*: their order by rank, then by row."""

    user_rows: Tensor  # own rows of the graph, int64
    item_rows: Tensor
    user_ids: Tensor  # numbers of own users among all users
    item_ids: Tensor  # of the item at each place, its number among all items
    places: Tensor  # the inverse
    layout: RowLayout  # of the places of each rank
    train: CSR  # [own users, items], by the numbers of items
    test: CSR
    users: int  # of all ranks

    @property
    def items(self) -> int:
        return self.layout.rows

    @classmethod
    def of(
        cls,
        layout: RowLayout,
        own: Tensor,
        users: int,
        tested: Callable[[], sp.csr_array],
        comm: Communicator,
    ) -> tuple[Share, Tensor]:
        """The share of this rank, without anything to train on, and items of rows. Collective."""
        ids = own.new_empty(layout.rows)
        comm.all_gather(own, ids, layout.sizes.tolist())
        is_item = ids >= users
        before = torch.cat((is_item.new_zeros(1).long(), is_item.cumsum(0)))
        item_ids, user_ids = ids[is_item] - users, ids[~is_item]
        places = torch.empty_like(item_ids)
        places[item_ids] = torch.arange(len(item_ids))
        item_layout = RowLayout(before[layout.offsets].numpy())

        own_users = layout.sizes - item_layout.sizes

        def listed() -> tuple[Tensor, Tensor, Int64Array]:
            test = tested()[user_ids.numpy()]
            lengths = torch.from_numpy(np.diff(test.indptr).astype(np.int64))
            entries = np.diff(test.indptr[np.append(0, np.cumsum(own_users))])
            return lengths, torch.from_numpy(test.indices.astype(np.int64)), entries

        sent = comm.on_rank_zero(listed)
        of_users, of_items, entries = sent or (own, own, own_users)  # rank 0's count
        lengths = dealt({"": of_users}, own_users, comm)[""]
        tested_items = dealt({"": of_items}, entries.astype(np.int64), comm)[""]
        user_rows = (own < users).nonzero()[:, 0]
        shape = len(user_rows), len(item_ids)
        test = tested_items.int()
        ends = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        none = Pattern.trusted(torch.zeros_like(ends), test[:0], shape)
        share = cls(
            user_rows,
            (own >= users).nonzero()[:, 0],
            own[user_rows],
            item_ids,
            places,
            item_layout,
            CSR(none),
            CSR(Pattern.trusted(ends, test, shape)),
            users,
        )
        return share, (ids - users).int()

    def of_users(self, first: int, last: int, block: CSR, items: Tensor) -> Share:
        """The same of own users from `first` on, who train on a block [last - first, columns]."""
        trained = items.index_select(0, block.indices)
        pattern = Pattern.trusted(block.indptr, trained, (last - first, self.items))
        return replace(
            self,
            user_rows=self.user_rows[first:last],
            user_ids=self.user_ids[first:last],
            train=CSR(pattern),
            test=take_rows(self.test, torch.arange(first, last)),
        )

    def fetch(self, places: Tensor, mesh: Mesh) -> DistMatrix:
        """The matrix that gives rows of own items to whoever wants these places. Collective."""
        requests = CSR(Selection(places, self.items))
        plan = build(fetch(requests, self.layout, mesh.rank), mesh)
        return DistMatrix(plan.ready(), self.layout, mesh)
