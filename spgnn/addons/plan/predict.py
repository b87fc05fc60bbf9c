"""Predicted traffic, memory and seconds of one training epoch, on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.addons.plan.counts import LEVELS, MatrixCounts, Moved, Product, codec_at, total_of
from spgnn.addons.plan.epoch import Epoch, trace
from spgnn.addons.plan.graphs import Dataset
from spgnn.addons.plan.ranks import ModelCounts, VirtualRanks
from spgnn.addons.plan.seconds import cut_and_bound, epoch_seconds
from spgnn.comm import bytes_of_ranks
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.exchange import Codec
from spgnn.layout import Int64Array
from spgnn.machine import Machine
from spgnn.nn import dtype_of
from spgnn.registry import CODECS

# Far less than what is left over where the bytes of a run are shared out between its epochs.
_HAIR = 1e-6
_FLOAT, _INDEX, _OFFSET = 4, 4, 8
# Class and original id of each vertex, int64, and whether it is in each of three masks.
_LABELS_A_ROW = 8 + 8 + 3
# Columns of A·X that are made at a time, and how often they are in memory meanwhile.
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


@dataclass(frozen=True, eq=False)
class Prediction:
    """One training epoch of one configuration, for each rank.

    Attributes
    ----------
    sent, received, messages : int64 [2, P]
        Bytes of rows and messages in one epoch, inside a node and between nodes.
    nonzeros : dict of int64 [P]
        Of L and of R, in a product of the last layer.
    memory : dict of int64 [P]
        Bytes in training, by item.
    setup : int64 [P]
        Bytes at the most before training; rank 0's reader is not among them.
    seconds : dict of float, or ``None`` without a machine
        Of an epoch, by kind of work, on the slowest rank of each step.
    largest_message : int, or ``None`` where it was not counted
        Rows: cut_P(G) of the ICPP'24 paper.
    bound_seconds : float, or ``None`` without a machine or such a formula
        The paper's T_comm of an epoch, if every message were as large.
    """

    sent: Int64Array
    received: Int64Array
    messages: Int64Array
    nonzeros: dict[str, Int64Array]
    memory: dict[str, Int64Array]
    setup: Int64Array
    seconds: dict[str, float] | None
    largest_message: int | None = None
    bound_seconds: float | None = None

    @property
    def volume(self) -> dict[str, int | float]:
        """Bytes an epoch, as the training report has them."""
        return bytes_of_ranks(self.sent.sum(axis=0), self.received.sum(axis=0))

    @property
    def volume_by_level(self) -> dict[str, dict[str, int]]:
        """The same inside nodes and between them."""
        return {
            level: {"total_bytes": int(sent.sum()), "max_send_bytes": int(sent.max())}
            for level, sent in zip(LEVELS, self.sent, strict=True)
        }

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rank that needs most, in training or before it."""
        training = total_of(list(self.memory.values()))
        return int(np.maximum(training, self.setup).max())

    @property
    def epoch_seconds(self) -> float | None:
        """Seconds of one training epoch."""
        return None if self.seconds is None else sum(self.seconds.values())


def predict(
    dataset: Dataset,
    labels: npt.ArrayLike | None,
    config: TrainConfig,
    ranks: int,
    *,
    machine: Machine | None = None,
    ranks_a_node: int | None = None,
) -> Prediction:
    """Price one configuration of training without running it.

    Bytes are those that the training command counts at its transport, exactly; with codecs those of
    a mean epoch.

    Parameters
    ----------
    dataset : Dataset
    labels : int [n] in [0, parts), optional
        ``None`` for even blocks.
    config : TrainConfig
    ranks : int
    machine : Machine, optional
        Without one nothing is said of seconds.
    ranks_a_node : int, optional
        By default the machine's; without a machine all ranks are on one node.

    Raises
    ------
    InputError
        If the configuration cannot work on so many ranks, what travels depends on values, or the
        labels do not fit.
    """
    config.check(ranks)
    if ranks_a_node is None:
        ranks_a_node = ranks if machine is None else machine.ranks_a_node
    counted = VirtualRanks(dataset, labels, config, ranks, ranks_a_node).counted(config)
    epoch = trace(config, dataset.features, dataset.classes, sparse=dataset.sparse)
    return price(counted, epoch, codec_of(config), machine)


def codec_of(config: TrainConfig) -> Codec | None:
    """The codec of a run's messages; ``None`` if these are exact."""
    codec = config.codec
    for name, argument in codec.extra:
        if not CODECS[name].reads_values:
            continue
        raise InputError(
            f"messages.{name} {argument}: what travels depends on values, so no plan can "
            "be priced; name an --algo, or take what a plan without it chooses"
        )
    if codec.exact:
        return None
    means = False if config.model.attends else codec.exact_means
    return replace(codec, epochs=config.training.epochs, exact_means=means)


def price(
    counted: ModelCounts, epoch: Epoch, codec: Codec | None, machine: Machine | None
) -> Prediction:
    """Price what has been counted; a codec is that of `codec_of`."""
    moved = np.zeros((3, len(LEVELS), len(counted.halo)))
    for step in epoch.products:
        own = codec_at(step, codec, epoch.layers)
        moved += counted.of(step.layer).moved(step, own)
        if step.layer == epoch.layers and not step.adjoint and counted.pairs is not None:
            moved += counted.pairs.requests
    # Means of a run are rounded as the report does: all together, and those between nodes. What is
    # a whole number may have lost its last bits.
    total, between = np.floor(moved.sum(axis=1) + _HAIR), np.floor(moved[:, 1] + _HAIR)
    sent, received, messages = np.stack((total - between, between), axis=1).astype(np.int64)
    items, setup = memory_of(counted, epoch, codec, machine)
    seconds = None if machine is None else epoch_seconds(counted, epoch, codec, machine)
    nonzeros = counted.of(epoch.layers - 1).nonzeros
    figures = cut_and_bound(counted, epoch, machine)
    return Prediction(sent, received, messages, nonzeros, items, setup, seconds, *figures)


def memory_of(
    counted: ModelCounts, epoch: Epoch, codec: Codec | None, machine: Machine | None
) -> tuple[dict[str, Int64Array], Int64Array]:
    """Bytes in training, by item, and the most before it: int64 [P] each."""
    config, whole = epoch.config, counted.whole
    own, halo = whole.columns, counted.halo
    every = np.ones_like(own)
    runtime = 0 if machine is None else int(machine.overhead.memory)
    feature_bytes = epoch.feature_copies * epoch.itemsize * epoch.widths[0]
    static = {
        "matrix": total_of([matrix.matrix for matrix in counted.matrices]),
        "transpose": total_of([matrix.transpose for matrix in counted.matrices]),
        "features": _features(counted, epoch),
        "halo": feature_bytes * halo,
        "labels": _LABELS_A_ROW * own,
        "edges": _edges(counted, epoch),
        "runtime": runtime * every,
    }
    activations, buffers = _activations(counted, epoch), _buffers(counted, epoch)
    largest = _FLOAT * max(epoch.widths[1:]) * counted.rows.max(axis=0)
    for step in epoch.products:
        if step.heads or step.largest:
            rows = counted.extra_rows(step.layer).max(axis=0)
            largest = np.maximum(largest, step.dtype.itemsize * step.width * rows)
    items = {
        **static,
        "buffers": buffers,
        "activations": activations,
        "weights": epoch.weight_bytes * every,
        "gradients": 2 * epoch.weight_bytes * every,
        "optimiser": _MOMENTS[config.training.optimizer] * epoch.weight_bytes * every,
        "kept": np.where(largest < _KEPT_BELOW, activations + buffers, 0),
        "posted": _posted(counted, epoch),
        "codecs": _codecs(counted, epoch, codec),
    }
    # Before training: the rank's rows as they came, and with self-loops, from which the plan is
    # made; or A·X, a few columns at a time; or rows of A·X once more, where a halo follows them.
    blocks = 2 * (_INDEX * total_of(list(whole.nonzeros.values())) + _OFFSET * whole.rows)
    width = min(_CHUNK, epoch.widths[0])
    propagation = epoch.itemsize * (width * _CHUNK_COPIES * own + whole.buffers(width))
    joined = epoch.feature_copies * _FLOAT * epoch.widths[0] * own * (halo > 0)
    needs = [blocks, propagation * epoch.propagated, joined]
    before = total_of(list(static.values())) - int((1 - _AT_SETUP) * runtime)
    return items, before + np.max(needs, axis=0) + _posted_before(counted, epoch)


def _features(counted: ModelCounts, epoch: Epoch) -> Int64Array:
    """Bytes of all own rows, for evaluation; and of training's first rows, if these differ."""
    own, width, nonzeros = counted.whole.columns, epoch.widths[0], counted.feature_nonzeros
    begun = counted.rows[int(epoch.propagated)] - counted.halo
    # With a halo behind them, own rows are looked at in place.
    copied = np.where(begun == own, 0, begun)
    if not epoch.sparse or nonzeros is None:
        return epoch.feature_copies * epoch.itemsize * width * (own + copied)
    one_side = _OFFSET * (own + 1) + (_INDEX + _FLOAT) * nonzeros
    other_side = _OFFSET * (width + 1) + (2 * _INDEX + _FLOAT) * nonzeros
    share = (own + copied) / np.maximum(own, 1)
    # The other side is made of what training begins with, alone.
    mine = one_side * share + other_side * np.where(copied > 0, share - 1, 1)
    return np.asarray(mine, np.int64)


def _edges(counted: ModelCounts, epoch: Epoch) -> Int64Array:
    """Ends and features of edges, where layers look at these."""
    model, edges = epoch.config.model, total_of([*counted.whole.nonzeros.values()])
    each = 2 * _OFFSET + epoch.itemsize * model.edge_dim
    return np.asarray(model.uses_edges * each * edges, np.int64)


def _activations(counted: ModelCounts, epoch: Epoch) -> Int64Array:
    nbytes, nonzeros = np.ceil(epoch.activations(counted.all_rows)), counted.feature_nonzeros
    if counted.pairs is not None:
        # Of links that are scored against many negative pairs: embeddings of sources and targets,
        # their products, and what a network makes of these.
        aim = epoch.config.aim
        pairs = 2 + (2 + 2 * (aim.decoder == "mlp")) * aim.eval_negatives
        rows = counted.whole.columns + pairs * counted.pairs.scored_links.max(axis=0)
        nbytes = np.maximum(nbytes, epoch.itemsize * epoch.widths[-1] * rows)
    if epoch.sparse and epoch.config.model.drops_features and nonzeros is not None:
        # Masks of what is stored, made with 64-bit draws; its values, and those of the transpose.
        nbytes = nbytes + (3 * _OFFSET + 2 * _FLOAT) * nonzeros
    return np.asarray(nbytes, np.int64)


def _matrices_of(counted: ModelCounts, step: Product) -> list[MatrixCounts]:
    """Matrices that take a step: in training; and forward, in evaluation."""
    training = counted.of(step.layer)
    trained_alone = step.adjoint or step.layer == len(counted.layers)
    return [training] if trained_alone else [training, counted.whole]


def _buffers(counted: ModelCounts, epoch: Epoch) -> Int64Array:
    """Kept from product to product and shared by all matrices, as wide as the widest product."""
    nothing, pairs = np.zeros_like(counted.halo), counted.pairs
    buffers: dict[int, Any] = {}
    for step in epoch.products:
        for matrix in _matrices_of(counted, step):
            if step.heads:
                assert matrix.attention is not None
                elements = step.width * matrix.attention.buffered
            elif step.largest:  # rows that are received lie behind own ones
                elements = step.width * total_of([nothing, *(h.sent_rows for h in matrix.hops)])
            else:
                elements = matrix.buffers(step.width)
            # Halos share nothing with those of other matrices, nor does what fetches sources.
            alone = step.largest or step.layer == epoch.layers
            key = id(matrix) if alone else 0
            nbytes = step.dtype.itemsize * elements
            buffers[key] = np.maximum(buffers.get(key, nothing), nbytes)
    scored = () if pairs is None else pairs.scored
    others = [epoch.itemsize * matrix.buffers(epoch.widths[-1]) for matrix in scored]
    return np.asarray(total_of([nothing, *buffers.values(), *others]), np.int64)


def _codecs(counted: ModelCounts, epoch: Epoch, codec: Codec | None) -> Int64Array:
    """Memory of codecs: names of all rows, and rows kept from epoch to epoch."""
    state, named = np.zeros(len(counted.halo)), set[int]()
    if codec is None:
        return state.astype(np.int64)
    late = codec.delay or 0
    for step in epoch.products:
        if step.layer == epoch.layers:
            continue
        matrix, width = counted.of(step.layer), step.width
        # Columns on each hop; the width of a share is that of the rank that has most.
        hops = [(hop, int(np.max(matrix.share(width)))) for hop in matrix.hops]
        if step.heads:
            assert matrix.attention is not None
            hops = [(way, width * (1 + step.joint)) for way in matrix.attention.ways]
            hops += [(fetch, width) for fetch in matrix.attention.fetch]
        for hop, columns in hops:
            leaving, arriving = hop.sent_rows, hop.received_rows
            if id(hop) not in named:
                named.add(id(hop))
                state += _NAME * (leaving + arriving)
            if step.adjoint:
                leaving, arriving = arriving, leaving
            saved = (late > 0) * arriving + codec.feedback * leaving
            saved = saved + late / codec.bins * (leaving + arriving)
            state += step.dtype.itemsize * columns * saved
    return np.ceil(state).astype(np.int64)


def _posted(counted: ModelCounts, epoch: Epoch) -> Int64Array:
    """Most bytes that ranks of one node have posted for each other, and that a rank has read."""
    if not counted.one_node:
        return np.zeros_like(counted.halo)
    pages, nbytes, ranks = list[Int64Array](), epoch.weight_bytes, len(counted.halo)
    for step in epoch.products:
        pages += _pages(counted.of(step.layer).exchanges(step))
    # The sum of gradients: everyone sends parts of all, and then a part of the sum.
    every, others = np.ones(ranks, np.int64), ranks - 1
    received = 2 * others * nbytes // ranks * every
    pages.append(_touched(nbytes * every * (others > 0), received, 2 * others * every))
    for step in epoch.products:  # evaluation
        pages += [] if step.adjoint else _pages(_matrices_of(counted, step)[-1].exchanges(step))
    return _two_at_a_time(pages)


def _posted_before(counted: ModelCounts, epoch: Epoch) -> Int64Array:
    """The same of set-up, which waits for each: of those that make A·X, and fetch its halo."""
    if not counted.one_node or not epoch.propagated:
        return np.zeros_like(counted.halo)
    step = Product(0, min(_CHUNK, epoch.widths[0]), dtype_of(epoch.config.training.dtype))
    pages = _pages(counted.whole.exchanges(step))
    fetched = step.width * step.dtype.itemsize * counted.halo
    return np.maximum(_two_at_a_time(pages), fetched) if pages else np.asarray(fetched, np.int64)


def _pages(exchanges: Sequence[Sequence[Moved]]) -> list[Int64Array]:
    """Pages of each of some exchanges, int64 [P] each."""
    return [_touched(*np.sum(together, axis=(0, 2))) for together in exchanges]


def _touched(sent: Int64Array, received: Int64Array, messages: Int64Array) -> Int64Array:
    """Bytes posted, and bytes read with their surroundings, which are no more than were posted."""
    read = np.minimum(received + _AROUND * messages, sent.sum())
    return np.asarray(sent + read, np.int64)


def _two_at_a_time(moved: Sequence[Int64Array]) -> Int64Array:
    """The most bytes of two exchanges that follow each other."""
    both = [first + second for first, second in pairwise(moved)]
    most: Int64Array = np.max(np.stack([*moved, *both]), axis=0)
    return most
