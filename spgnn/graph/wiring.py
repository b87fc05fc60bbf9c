"""The approximate wires of a distributed graph: which epoch it is, and what they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from spgnn.comm import Communicator, on_every_rank
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Carried
from spgnn.exchange.traffic import Traffic
from spgnn.files import digest
from spgnn.graph.wired import WiredMatrix
from spgnn.spmm import DistMatrix
from spgnn.wires import Approximation, Dials, Errors, Layer, Setting
from spgnn.wires.base import State
from spgnn.wires.relative import relative_errors

_EPOCH, _PLACE = "epoch", "place"


class GraphWires:
    """What all matrices of one graph share.

    Wires approximate where autograd records, unless somebody has asked for exact rows, or each
    model that was given to the graph is in evaluation.

    Parameters
    ----------
    asked : Approximation
    comm : Communicator
        All ranks.
    seed : int
        Of what wires draw.

    Attributes
    ----------
    epoch : int
        −1 before the first one.
    models : set of Module
        Known ones, as long as they live.
    """

    def __init__(self, asked: Approximation, comm: Communicator, seed: int) -> None:
        self.dials = Dials(asked)
        self.epoch = -1
        self.models: WeakSet[nn.Module] = WeakSet()
        self._comm, self._seed = comm, seed
        self._errors: dict[str, Errors] = {}
        self._exact = 0
        self._moved: list[Callable[[], Iterator[Carried]]] = []

    def put(self, A: DistMatrix, kind: str, number: int, ids: Tensor) -> DistMatrix:
        """The same matrix on these wires, unless they are exact. Collective.

        Parameters
        ----------
        A : DistMatrix
        kind : str
        number : int
            Of its kind: matrices draw for themselves.
        ids : Tensor int64 [own rows]
        """
        if self.dials.asked.exact:
            return A
        errors = self._errors[kind] = Errors()
        setting = Setting(self.dials, errors, self._seed, number)
        return WiredMatrix(A, A.approximated(setting, ids), self)

    def is_on(self) -> bool:
        """Whether a model is being trained."""
        if self._exact or not torch.is_grad_enabled():
            return False
        models = list(self.models)
        return not models or any(model.training for model in models)

    def check(self) -> None:
        """Refuse a product before the first epoch has begun."""
        if self.epoch < 0:
            raise InputError(
                "approximate wires have to know which epoch it is: call graph.next_epoch() at the "
                "beginning of each epoch of training"
            )

    def next_epoch(self) -> int:
        """Begin an epoch; returns its number, from 0 on. Collective."""
        self.epoch += 1
        self._moved = []
        self._comm.check_agreement("graph.next_epoch", epoch=self.epoch)
        return self.epoch

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Everything inside is exact, and so are its gradients."""
        self._exact += 1
        try:
            yield
        finally:
            self._exact -= 1

    def note(self, carried: Callable[[], Iterator[Carried]]) -> None:
        """Take down what is about to move, to be asked when it has."""
        self._moved.append(carried)

    def traffic(self) -> Traffic:
        """What the products of this epoch have moved on this rank, as wires say."""
        carried = (each for moved in self._moved for each in moved())
        return sum((each.traffic() for each in carried), Traffic())

    def errors(self) -> dict[str, list[dict[str, Any]]]:
        """Relative errors by matrix, product and direction. Collective."""
        each = sorted(self._errors.items())
        return {kind: relative_errors([made], self._comm) for kind, made in each}

    def state(self, matrices: Mapping[str, DistMatrix]) -> State:
        """All that wires keep, in memory of the CPU. Collective: rows under way land."""
        found = {_EPOCH: torch.tensor(self.epoch)}
        for kind, A in _wired(matrices):
            found[f"{kind}.{_PLACE}"] = self._place(A)
            for name, wire in _numbered(kind, A):
                found |= {f"{name}.{key}": kept.cpu().clone() for key, kept in wire.state().items()}
        return found

    def load(
        self, state: Mapping[str, Tensor], built: Callable[[str], DistMatrix], device: torch.device
    ) -> None:
        """Go on from a state of this rank. Collective.

        Parameters
        ----------
        state : mapping
        built : callable
            A kind of matrix to the matrix. Collective.
        device : torch.device

        Raises
        ------
        InputError
            On all ranks, if it is none, or of another partition, another algorithm, or other wires.
        """
        on_every_rank(self._comm, lambda: _check_state(state))
        kinds = sorted(key.partition(".")[0] for key in state if key.endswith(f".{_PLACE}"))
        epoch = int(state[_EPOCH])
        self._comm.check_agreement("graph.load_wire_state", epoch=epoch, matrices=kinds)
        wired = list(_wired({kind: built(kind) for kind in kinds}))
        places = {kind: self._place(A) for kind, A in wired}
        on_every_rank(self._comm, lambda: _check_places(state, kinds, places))
        self.epoch = epoch
        for kind, A in wired:
            if any(key.startswith(f"{kind}.attention-") for key in state):
                _ = A.attention  # which makes its wires
            for name, wire in _numbered(kind, A):
                own = [key for key in state if key.startswith(f"{name}.")]
                wire.load({k.removeprefix(f"{name}."): state[k].to(device, copy=True) for k in own})

    def _place(self, A: WiredMatrix) -> Tensor:
        """A fingerprint of which rows travel where, and how, uint8 [16]."""
        words = [repr((self.dials.asked, self._seed, self._comm.rank)).encode()]
        for hop in A.wired.plan.hops:
            assert hop.names is not None
            for each in (hop.counts.send, hop.counts.recv, hop.names.sent.cpu().numpy()):
                words.append(np.ascontiguousarray(each, np.int64).tobytes())
        return torch.frombuffer(bytearray(bytes.fromhex(digest(*words))), dtype=torch.uint8)


def checked(
    wire: Approximation | Mapping[str, Any] | None, algorithm: Algorithm, planned: bool
) -> Approximation:
    """What is asked of the wires of a graph.

    Raises
    ------
    InputError
        If there is no such wire, or a graph cannot have it.
    """
    if wire is None:
        return Approximation()
    if isinstance(wire, Mapping):
        wire = Approximation.of(**{str(name): value for name, value in wire.items()})
    elif isinstance(wire, Approximation):
        wire = Approximation.of(**vars(wire))
    if not isinstance(wire, Approximation):
        raise InputError(
            "wire must be a spgnn.wires.Approximation, or a mapping as {'bits': 8}, got "
            f"{type(wire).__name__}"
        )
    if wire.exact_last:
        raise InputError("wire: exact_last needs a last epoch: use `with graph.exact():` for those")
    if not wire.exact and algorithm.exchange != "sparsity-aware":
        raise InputError("wire needs exchange='sparsity-aware': rows, not whole block rows")
    if not wire.exact and planned:
        raise InputError("wire needs its own algo: a plan prices rows as they are")
    return wire


def _wired(matrices: Mapping[str, DistMatrix]) -> Iterator[tuple[str, WiredMatrix]]:
    """Those on wires, in an order that all ranks have."""
    for kind, A in sorted(matrices.items()):
        if isinstance(A, WiredMatrix):
            yield kind, A


def _numbered(kind: str, A: WiredMatrix) -> Iterator[tuple[str, Layer]]:
    """Wires that may keep something, by their matrix and their hop."""
    for name, wire in A.numbered_wires.items():
        yield f"{kind}.{name}", wire


def _check_state(state: object) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get(_EPOCH), Tensor):
        raise InputError("load_wire_state takes what graph.wire_state() gave on this rank")


def _check_places(
    state: Mapping[str, Tensor], kinds: Sequence[str], places: Mapping[str, Tensor]
) -> None:
    for kind in kinds:
        if kind not in places or not torch.equal(state[f"{kind}.{_PLACE}"].cpu(), places[kind]):
            raise InputError(
                f'this state of matrix("{kind}") is of another rank, partition, algorithm, seed or '
                "wire"
            )
