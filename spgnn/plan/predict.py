"""Predicted traffic, memory and seconds of one training epoch, on any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.layout import Int64Array
from spgnn.plan.counted import Counted
from spgnn.plan.hops import LEVELS
from spgnn.plan.machine import Float64Array, Machine
from spgnn.plan.memory import memory_of
from spgnn.plan.network import Epoch, Network
from spgnn.plan.seconds import epoch_seconds
from spgnn.plan.subject import Subject, set_up
from spgnn.plan.tracing import trace
from spgnn.plan.wired import Wired

# Far less than what is left over where the bytes of a run are shared out between its epochs.
_HAIR = 1e-6


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
    """

    sent: Int64Array
    received: Int64Array
    messages: Int64Array
    nonzeros: dict[str, Int64Array]
    memory: dict[str, Int64Array]
    setup: Int64Array
    seconds: dict[str, float] | None

    @property
    def volume(self) -> dict[str, int | float]:
        """Bytes an epoch, as the training report has them."""
        sent, received = self.sent.sum(axis=0), self.received.sum(axis=0)
        return {
            "total_bytes": int(sent.sum()),
            "max_send_bytes": int(sent.max()),
            "max_recv_bytes": int(received.max()),
            "avg_send_bytes": float(sent.mean()),
        }

    @property
    def volume_by_level(self) -> dict[str, dict[str, int]]:
        """The same inside nodes and between them."""
        return {
            level: {
                "total_bytes": int(self.sent[number].sum()),
                "max_send_bytes": int(self.sent[number].max()),
            }
            for number, level in enumerate(LEVELS)
        }

    @property
    def memory_bytes(self) -> int:
        """Of the rank that needs most, in training or before it."""
        held = np.sum(list(self.memory.values()), axis=0)
        return int(np.maximum(held, self.setup).max())

    @property
    def epoch_seconds(self) -> float | None:
        """Of one training epoch."""
        return None if self.seconds is None else sum(self.seconds.values())


def predict(
    subject: Subject,
    labels: npt.ArrayLike | None,
    algorithm: Algorithm,
    ranks: int,
    network: Network,
    *,
    reach: bool = True,
    machine: Machine | None = None,
    ranks_a_node: int | None = None,
    wired: Wired | None = None,
) -> Prediction:
    """Price one configuration without running it.

    Bytes are those that the training command counts at its transport, exactly.

    Parameters
    ----------
    subject : Subject
    labels : int [n] in [0, ``algorithm.parts(ranks)``), optional
        ``None`` for even blocks.
    algorithm : Algorithm
    ranks : int
    network : Network
    reach : bool
        Whether training leaves out what no labelled vertex needs.
    machine : Machine, optional
        Without one nothing is said of seconds.
    ranks_a_node : int, optional
        By default the machine's; without a machine all ranks are on one node.
    wired : Wired, optional
        Codecs of the messages, if any compresses or delays them; bytes are then those of a mean
        epoch.

    Raises
    ------
    InputError
        If the algorithm cannot work on so many ranks, or the labels do not fit.
    """
    algorithm.check(ranks)
    if not network.works_with(algorithm):
        raise InputError(f"{network.kind} {network.aggregate} cannot be had under {algorithm}")
    if ranks_a_node is None:
        ranks_a_node = ranks if machine is None else machine.ranks_a_node
    setting = set_up(subject, labels, algorithm, ranks, ranks_a_node)
    setting = replace(setting, wired=wired, weighs=network.attends)
    counted = setting.counted(
        network.layers,
        reach=reach and not network.takes_all_rows,
        ghosts=network.ghosts,
        propagated=network.propagated,
    )
    return price(counted, trace(network), network, setting.words, machine)


def price(
    counted: Counted,
    epoch: Epoch,
    network: Network,
    words: Int64Array | None,
    machine: Machine | None,
) -> Prediction:
    """Price what has been counted.

    Parameters
    ----------
    counted : Counted
    epoch : Epoch
        Of the network.
    network : Network
    words : int64 [P], optional
        Nonzeros of each rank's features, if those are sparse.
    machine : Machine, optional
    """
    totals = np.zeros((3, len(LEVELS), len(counted.ghosts)))
    for product in epoch.products:
        totals += np.stack(product.traffic(counted.of(product.layer)))
    sent, received, messages = map(_whole, totals)
    items, setup = memory_of(counted, epoch, network, words, machine)
    seconds = None if machine is None else epoch_seconds(counted, epoch, network, words, machine)
    nonzeros = counted.of(network.layers - 1).nonzeros
    return Prediction(sent, received, messages, nonzeros, items, setup, seconds)


def _whole(levels: Float64Array) -> Int64Array:
    """Means of a run [levels, P] as the report rounds them: all together, and those between."""
    inside, between = levels
    # What is a whole number may have lost its last bits.
    total, outside = np.floor(inside + between + _HAIR), np.floor(between + _HAIR)
    return np.stack((total - outside, outside)).astype(np.int64)
