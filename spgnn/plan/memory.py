"""Bytes that each rank holds, by item, in training and before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spgnn.layout import Int64Array
from spgnn.plan.census import Census, census_of, sum_of
from spgnn.plan.machine import Machine
from spgnn.plan.network import Epoch, Network

_FLOAT, _INDEX, _OFFSET = 4, 4, 8
# Class and original id of each vertex, int64, and whether it is in each of three masks.
_LABELS_A_ROW = 8 + 8 + 3
# Columns of A·X that are made at a time, and how often they are held meanwhile.
_CHUNK, _CHUNK_COPIES = 32, 2
# Of the weights: what Adam keeps; the sum over ranks is taken of a copy of all gradients.
_MOMENTS = {"adam": 2, "sgd": 0}


def memory_of(
    layers: Sequence[Census],
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
    rows = layers[0].columns
    every = np.ones_like(rows)
    weights = _FLOAT * network.weights
    runtime = 0 if machine is None else int(machine.overhead.memory)
    static = {
        "matrix": sum_of([census.matrix for census in layers]),
        "transpose": sum_of([census.transpose for census in layers]),
        "features": _features(network, rows, words),
        "labels": _LABELS_A_ROW * rows,
        "runtime": runtime * every,
    }
    items = {
        **static,
        "buffers": sum_of([_buffers(census, layers, epoch) for census in layers]),
        "activations": _activations(epoch, network, rows, words),
        "weights": weights * every,
        "gradients": 2 * weights * every,
        "optimiser": _MOMENTS[network.optimizer] * weights * every,
    }
    held = sum_of(list(static.values()))
    return items, held + np.maximum(_blocks(layers), _propagation(network, layers[0]))


def _features(network: Network, rows: Int64Array, words: Int64Array | None) -> Int64Array:
    width = network.widths[0]
    if not network.keeps_sparse or words is None:
        return _FLOAT * width * rows
    one_side = _OFFSET * (rows + 1) + (_INDEX + _FLOAT) * words
    other_side = _OFFSET * (width + 1) + (2 * _INDEX + _FLOAT) * words
    return one_side + other_side


def _activations(
    epoch: Epoch, network: Network, rows: Int64Array, words: Int64Array | None
) -> Int64Array:
    found = np.ceil(epoch.activations * rows).astype(np.int64)
    if network.keeps_sparse and network.dropout and words is not None:
        # Masks of what is stored, made with 64-bit draws; its values, and those of the transpose.
        found = found + (3 * _OFFSET + 2 * _FLOAT) * words
    return found


def _buffers(census: Census, layers: Sequence[Census], epoch: Epoch) -> Int64Array:
    """Kept from product to product, as wide as the widest of them."""
    row = [
        product.width * product.dtype.itemsize
        for product in epoch.products
        if census_of(layers, product.layer) is census
    ]
    return census.buffered * np.int64(max(row, default=0))


def _blocks(layers: Sequence[Census]) -> Int64Array:
    """The rank's rows as they came, and with self-loops, from which the plan is made."""
    first = layers[0]
    entries = sum_of(list(first.nonzeros.values()))
    return 2 * (_INDEX * entries + _OFFSET * first.rows)


def _propagation(network: Network, census: Census) -> Int64Array:
    """What making A·X takes, a few columns at a time."""
    if not network.propagated:
        return np.zeros_like(census.columns)
    width = min(_CHUNK, network.widths[0])
    return _FLOAT * width * (_CHUNK_COPIES * census.columns + census.buffered)
