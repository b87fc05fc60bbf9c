"""Bytes that each rank holds, by item, in training and before it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from spgnn.layout import Int64Array
from spgnn.nn import dtype_of, weights_of
from spgnn.plan.census import Census, sum_of
from spgnn.plan.counted import Counted
from spgnn.plan.hops import Moved
from spgnn.plan.machine import Machine
from spgnn.plan.network import Epoch, Extreme, Network, Product, Weighing

_FLOAT, _INDEX, _OFFSET = 4, 4, 8
# Class and original id of each vertex, int64, and whether it is in each of three masks.
_LABELS_A_ROW = 8 + 8 + 3
# Columns of A·X that are made at a time, and how often they are held meanwhile.
_CHUNK, _CHUNK_COPIES = 32, 2
# Whoever reads a page of others has those around it mapped as well (Linux: fault_around_bytes).
_AROUND = 1 << 16
# The original id of a row.
_NAME = 8
# This part of what libraries take is there before the first epoch: pages that set-up touches.
_AT_SETUP = 0.55
# What is freed of smaller blocks is kept. Before its version 2.38, glibc takes an aligned block for
# another one of that size only where there is room to align it anew: about twice the memory.
_KEPT_BELOW = 1 << 20
# Of the weights: what Adam keeps; the sum over ranks is taken of a copy of all gradients.
_MOMENTS = {"adam": 2, "adamw": 2, "sgd": 0}


def memory_of(
    counted: Counted,
    epoch: Epoch,
    network: Network,
    words: Int64Array | None,
    machine: Machine | None,
) -> tuple[dict[str, Int64Array], Int64Array]:
    """Bytes in training, by item, and the most before it; parameters as those of `price`.

    Returns
    -------
    items : dict of int64 [P]
    setup : int64 [P]
    """
    own = counted.whole.columns
    every = np.ones_like(own)
    weights = weights_of(network.dtype).itemsize * network.weights
    runtime = 0 if machine is None else int(machine.overhead.memory)
    static = {
        "matrix": sum_of([census.matrix for census in counted.all]),
        "transpose": sum_of([census.transpose for census in counted.all]),
        "features": _features(counted, network, words),
        "ghosts": (1 + network.keeps_both) * network.itemsize * network.widths[0] * counted.ghosts,
        "labels": _LABELS_A_ROW * own,
        "runtime": runtime * every,
    }
    items = {
        **static,
        "buffers": _buffers(counted, epoch, network),
        "activations": _activations(counted, epoch, network, words),
        "weights": weights * every,
        "gradients": 2 * weights * every,
        "optimiser": _MOMENTS[network.optimizer] * weights * every,
    }
    items["kept"] = _kept(items, counted, network, epoch)
    items["posted"] = _posted(counted, epoch, network)
    items["wires"] = _wires(counted, epoch)
    held = sum_of(list(static.values())) - int((1 - _AT_SETUP) * runtime)
    beside = [
        _blocks(counted.whole),
        _propagation(network, counted.whole),
        _joined(counted, network),
    ]
    return items, held + np.max(np.stack(beside), axis=0) + _posted_before(counted, network)


def _features(counted: Counted, network: Network, words: Int64Array | None) -> Int64Array:
    """Of all own rows, for evaluation; and of those that training begins with, if these differ."""
    own, width = counted.whole.columns, network.widths[0]
    begun = counted.rows[int(network.propagated)] - counted.ghosts
    # With ghosts behind them, own rows are looked at in place.
    copied = np.where(begun == own, 0, begun)
    if not network.keeps_sparse or words is None:
        return (1 + network.keeps_both) * network.itemsize * width * (own + copied)
    one_side = _OFFSET * (own + 1) + (_INDEX + _FLOAT) * words
    other_side = _OFFSET * (width + 1) + (2 * _INDEX + _FLOAT) * words
    share = (own + copied) / np.maximum(own, 1)
    # The other side is made of what training begins with, alone.
    mine = one_side * share + other_side * np.where(copied > 0, share - 1, 1)
    return np.asarray(mine, np.int64)


def _activations(
    counted: Counted, epoch: Epoch, network: Network, words: Int64Array | None
) -> Int64Array:
    found = np.ceil(epoch.activations(counted.every_row)).astype(np.int64)
    found = np.maximum(found, _judging(counted, network))
    if network.keeps_sparse and network.drops_features and words is not None:
        # Masks of what is stored, made with 64-bit draws; its values, and those of the transpose.
        found = found + (3 * _OFFSET + 2 * _FLOAT) * words
    return found


def _judging(counted: Counted, network: Network) -> Int64Array:
    """Memory for scoring the held-out links, each against many negative pairs."""
    pairs, links = counted.pairs, network.links
    if pairs is None or links is None:
        return np.zeros_like(counted.ghosts)
    # Embeddings of sources and targets, their products, and what a network makes of these.
    many, passes = links.eval_negatives, 2 if links.decoder == "mlp" else 0
    most = np.max(np.stack(pairs.judged_pairs), axis=0) * (2 + (2 + passes) * many)
    row = network.itemsize * network.widths[-1]
    return np.asarray(row * (counted.whole.columns + most), np.int64)


def _buffers(counted: Counted, epoch: Epoch, network: Network) -> Int64Array:
    """Kept from product to product and shared by all matrices, as wide as the widest product.

    Evaluation makes the same products, forward, with the whole matrix.
    """
    nothing = np.zeros_like(counted.ghosts)
    found: dict[int, Int64Array] = {}
    for product in epoch.products:
        both = counted.of(product.layer), counted.evaluated(product.layer)
        for census in both[: 1 if product.adjoint else 2]:
            # Halos share nothing with those of other matrices, nor does what fetches sources.
            apart = isinstance(product, Extreme) or census is counted.pairs
            key = id(census) if apart else 0
            found[key] = np.maximum(found.get(key, nothing), product.buffer_bytes(census))
    width, judged = network.widths[-1], () if counted.pairs is None else counted.pairs.judged
    others = [network.itemsize * census.buffers(width) for census in judged]
    return sum_of([nothing, *found.values(), *others])


def _kept(
    items: dict[str, Int64Array], counted: Counted, network: Network, epoch: Epoch
) -> Int64Array:
    """Overhead of the small blocks that are allocated and freed in an epoch."""
    largest = _FLOAT * max(network.widths[1:]) * counted.rows.max(axis=0)
    for step in epoch.products:
        if isinstance(step, Weighing | Extreme):
            rows = counted.beside(step.layer).max(axis=0)
            largest = np.maximum(largest, step.dtype.itemsize * step.width * rows)
    found = items["activations"] + items["buffers"]
    return np.where(largest < _KEPT_BELOW, found, 0)


def _posted(counted: Counted, epoch: Epoch, network: Network) -> Int64Array:
    """Most bytes that ranks of one node have posted for each other, and that a rank has read.

    Both are pages of memory that they share. A rank begins its next exchange while others still
    read the one before, so two exchanges are there at a time; pages that were touched once stay.
    """
    if not counted.together:
        return np.zeros_like(counted.ghosts)
    found = list[Int64Array]()
    for product in epoch.products:
        found += _pages(product.exchanges(counted.of(product.layer)))
    found.append(_summed(network, len(counted.ghosts)))
    # Evaluation, with the whole matrix.
    for product in epoch.products:
        if not product.adjoint:
            found += _pages(product.exchanges(counted.evaluated(product.layer)))
    return _two_at_a_time(found)


def _wires(counted: Counted, epoch: Epoch) -> Int64Array:
    """Memory of approximate codecs: names of all rows, and rows kept from epoch to epoch."""
    found, named = np.zeros(len(counted.ghosts)), set[int]()
    for product in epoch.products:
        for hop, width in product.hops(counted.of(product.layer)):
            if hop.wire is None:
                continue
            both = hop.sent.sum(axis=0), hop.received.sum(axis=0)
            if id(hop) not in named:
                found += _NAME * (both[0] + both[1])
                named.add(id(hop))
            leaving, arriving = both[::-1] if product.adjoint else both
            late, lost, under_way = hop.wire.held
            kept = late * arriving + lost * leaving + under_way * (leaving + arriving)
            found += product.dtype.itemsize * width * kept
    return np.ceil(found).astype(np.int64)


def _posted_before(counted: Counted, network: Network) -> Int64Array:
    """The same of set-up, which waits for each: of those that make A·X, and fetch its ghosts."""
    if not counted.together or not network.propagated:
        return np.zeros_like(counted.ghosts)
    width, dtype = min(_CHUNK, network.widths[0]), dtype_of(network.dtype)
    made = _pages(Product(0, width, dtype, adjoint=False).exchanges(counted.whole))
    fetched = width * dtype.itemsize * counted.ghosts
    return np.maximum(_two_at_a_time(made), fetched) if made else np.asarray(fetched, np.int64)


def _pages(exchanges: Sequence[Sequence[Moved]]) -> list[Int64Array]:
    """Pages of each of some exchanges, int64 [P] each."""
    return [
        _touched(*np.sum([np.stack(moved) for moved in together], axis=(0, 2)))
        for together in exchanges
    ]


def _touched(sent: Int64Array, received: Int64Array, messages: Int64Array) -> Int64Array:
    """Bytes posted, and bytes read with their surroundings, which are no more than were posted."""
    read = np.minimum(received + _AROUND * messages, sent.sum())
    return np.asarray(sent + read, np.int64)


def _summed(network: Network, ranks: int) -> Int64Array:
    """The same of the sum of gradients: everyone sends parts of all, and then a part of the sum."""
    nbytes, others = weights_of(network.dtype).itemsize * network.weights, ranks - 1
    if not others:
        return np.zeros(1, np.int64)
    every = np.ones(ranks, np.int64)
    return _touched(nbytes * every, 2 * others * nbytes // ranks * every, 2 * others * every)


def _two_at_a_time(moved: Sequence[Int64Array]) -> Int64Array:
    """The most bytes of two exchanges that follow each other."""
    both = [first + second for first, second in pairwise(moved)]
    most: Int64Array = np.max(np.stack([*moved, *both]), axis=0)
    return most


def _blocks(whole: Census) -> Int64Array:
    """The rank's rows as they came, and with self-loops, from which the plan is made."""
    entries = sum_of(list(whole.nonzeros.values()))
    return 2 * (_INDEX * entries + _OFFSET * whole.rows)


def _joined(counted: Counted, network: Network) -> Int64Array:
    """Rows of A·X once more: they are copied to where the ghosts' follow them."""
    copies = 1 + network.keeps_both
    own = _FLOAT * network.widths[0] * counted.whole.columns
    return np.asarray(copies * own * (counted.ghosts > 0), np.int64)


def _propagation(network: Network, whole: Census) -> Int64Array:
    """Memory for computing A·X, a few columns at a time."""
    if not network.propagated:
        return np.zeros_like(whole.columns)
    width = min(_CHUNK, network.widths[0])
    word = network.itemsize * width * _CHUNK_COPIES
    return word * whole.columns + network.itemsize * whole.buffers(width)
