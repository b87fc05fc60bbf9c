"""AliGraph's cache: batches are those of owners' draws, and fewer bytes are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from systems import aligraph

from spgnn import InputError
from spgnn.testing import run_ranks
from tests.addons.batches.test_ranks import FANOUTS, assert_same, distributed, loader_of


def check(rank: int) -> None:
    given = distributed(rank, 3)
    for share, options in ((0.3, {"resample": True}), (1.0, {"superbatch": 2})):
        aligraph.SHARE = share
        moved, batches = [], []
        for mode in ("own", "aligraph"):
            every: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 11} | options
            loader = loader_of(given, FANOUTS, "train_mask", mode=mode, **every)
            before = given.comm.ledger.copy()
            batches.append(list(loader))
            moved.append(given.comm.ledger.since(before).of("alltoall").sent_bytes)
        for batch, other in zip(*batches, strict=True):
            assert (batch is None) == (other is None)
            if batch is not None:
                assert_same(batch, other)
        own, cached = (given.comm.agree(nbytes, "sum") for nbytes in moved)
        assert cached < own
    cache = loader.strategy.sampler._growth.keywords["cache"]
    assert cache.rows.tolist() == loader.strategy.ranks.boundary.halo.tolist()
    with pytest.raises(InputError, match="aligraph caches neighbours, without"):
        loader_of(distributed(rank, 3, weighted=True), FANOUTS, "train_mask", mode="aligraph")


def test_batches_are_those_without_a_cache():
    run_ranks(check, 3)
