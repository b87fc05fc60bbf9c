"""The approximate codecs of a training run: their matrices, state and errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

from spgnn.config import Messages
from spgnn.exchange import Carried, CodecSetting, carried_by_level
from spgnn.exchange.approximation import Errors, Policy
from spgnn.exchange.compression import CodecLayer
from spgnn.graph.protocol import matrices_of
from spgnn.layout import Int64Array
from spgnn.spmm import DistMatrix
from spgnn.train.checkpoint import TaskState, fingerprint
from spgnn.train.rows import TrainingRows


class Moving(Protocol):
    """Something of an epoch that moves rows between the ranks of a matrix."""

    @property
    def A(self) -> DistMatrix:
        """Whose ranks these are."""

    def carried(self, epoch: int = 0) -> Iterable[Carried]:
        """Its messages, exchange by exchange."""


class Planned(NamedTuple):
    """Bytes that one epoch moves on this rank, according to plans and codecs.

    Attributes
    ----------
    sent, received : int
    between : int
        Sent bytes that go to other nodes, where nodes are known.
    """

    sent: int
    received: int
    between: int

    @classmethod
    def of(cls, products: Iterable[Moving], epoch: int, node_size: int = 0) -> Planned:
        """Of some products in an epoch; `node_size` neighbouring ranks are a node, if any."""
        sent, received, between = 0, 0, 0
        for product in products:
            mesh, moved = product.A.mesh, list(product.carried(epoch))
            sent += sum(int(each.sent.sum()) for each in moved)
            received += sum(int(each.received.sum()) for each in moved)
            if node_size:
                levels = carried_by_level(moved, mesh.axes, mesh.rank, node_size=node_size)
                between += levels["between"].sent_bytes
        return cls(sent, received, between)


class Wiring:
    """Gives the matrices of training a codec, which evaluation does not use. Collective.

    Parameters
    ----------
    messages : Messages
        The flags.
    training : TrainingRows
    seed : int
    epochs : int
        Of the whole run.

    Attributes
    ----------
    described : str
        The flags that approximate, and whether means are sent.
    policy : Policy
        What all steps ask.
    matrices : list of DistMatrix
    errors : list of Errors, one a matrix
        In the order of the layers.
    """

    def __init__(
        self, messages: Messages, training: TrainingRows, *, seed: int, epochs: int, weighed: bool
    ) -> None:
        self._codec = codec = replace(messages.codec, epochs=epochs)
        self.policy = Policy()
        self._device = training.vertex_ids.device
        self.described = messages.described(weighed=weighed)
        self.matrices, graph = matrices_of(training.graph), training.graph
        ids = [training.vertex_ids]
        if isinstance(graph, Sequence):
            known = {id(g.A): g.vertex_ids for g in graph if g.vertex_ids is not None}
            ids = [known[id(A)] for A in self.matrices]
        self.errors = [Errors() for _ in self.matrices]
        for number, (A, own) in enumerate(zip(self.matrices, ids, strict=True)):
            setting = CodecSetting(codec, self.errors[number], seed, number, self.policy)
            A.set_codec(setting, own)

    def finish(self) -> None:
        """Wait for all rows that are under way, and keep none of them. Collective."""
        for _, wire in self._numbered:
            wire.land()
            wire.forget()

    def state(self) -> TaskState:
        """State of the codecs by matrix and hop. Collective: rows under way arrive."""
        if not self._codec.remembers:
            return TaskState(None)
        own = {
            f"{which}.{name}": tensor
            for which, wire in self._numbered
            for name, tensor in wire.state().items()
        }
        return TaskState(own, self._place)

    def load(self, state: TaskState) -> None:
        """Restore the state of the codecs."""
        own = state.own
        if own is None:
            return
        for matrix, A in enumerate(self.matrices):
            if any(name.startswith(f"{matrix}.attention-") for name in own):
                _ = A.attention  # which makes its codecs
        for which, wire in self._numbered:
            names = [name for name in own if name.startswith(f"{which}.")]
            wire.load({n.removeprefix(f"{which}."): own[n].to(self._device) for n in names})

    @property
    def _numbered(self) -> list[tuple[str, CodecLayer]]:
        return [
            (f"{matrix}.{name}", wire)
            for matrix, A in enumerate(self.matrices)
            for name, wire in A.named_codecs.items()
        ]

    @cached_property
    def _place(self) -> str:
        """Fingerprint of the rows that travel: another partition or scheme has others."""
        numbers = list[Int64Array]()
        for A in self.matrices:
            for hop in A.plan.hops:
                assert hop.names is not None
                numbers += [hop.counts.send, hop.counts.recv, hop.names.sent.cpu().numpy()]
        return fingerprint(numbers)
