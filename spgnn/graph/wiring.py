"""The approximate wires of a distributed graph: which epoch it is, and what they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, on_every_rank
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.files import digest
from spgnn.spmm import DistMatrix
from spgnn.wires import Approximation, Dials, Errors, Layer, Policy, Setting
from spgnn.wires.base import State
from spgnn.wires.relative import relative_errors

_EPOCH, _PLACE = "epoch", "place"


class GraphWires:
    """What the codecs of all matrices of one graph share.

    Parameters
    ----------
    asked : Approximation
    comm : Communicator
        All ranks.
    seed : int
        Of what codecs draw.

    Attributes
    ----------
    policy : Policy
        Which products are exact: also all of rows of a single number.
    """

    def __init__(self, asked: Approximation, comm: Communicator, seed: int) -> None:
        self.dials, self.policy = Dials(asked), Policy(least_width=2)
        self._comm, self._seed = comm, seed
        self._errors: dict[str, Errors] = {}

    def put(self, A: DistMatrix, kind: str, number: int, ids: Tensor) -> None:
        """Give a matrix its codec, if one is asked for. Collective.

        Parameters
        ----------
        A : DistMatrix
        kind : str
        number : int
            Of its kind: matrices draw for themselves.
        ids : Tensor int64 [own rows]
        """
        if not self.dials.asked.exact:
            errors = self._errors[kind] = Errors()
            A.set_codec(Setting(self.dials, errors, self._seed, number, self.policy), ids)

    def next_epoch(self) -> int:
        """Begin an epoch; returns its number, from 0 on. Collective."""
        epoch = self.policy.epoch + 1
        self.policy.begin_epoch(epoch)
        self._comm.check_agreement("graph.next_epoch", epoch=epoch)
        return epoch

    def errors(self) -> dict[str, list[dict[str, Any]]]:
        """Relative errors by matrix, product and direction. Collective."""
        each = sorted(self._errors.items())
        return {kind: relative_errors([made], self._comm) for kind, made in each}

    def state(self, matrices: Mapping[str, DistMatrix]) -> State:
        """All that wires keep, in memory of the CPU. Collective: rows under way land."""
        found = {_EPOCH: torch.tensor(self.policy.epoch)}
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
        self.policy.begin_epoch(epoch)
        for kind, A in wired:
            if any(key.startswith(f"{kind}.attention-") for key in state):
                _ = A.attention  # which makes its wires
            for name, wire in _numbered(kind, A):
                own = [key for key in state if key.startswith(f"{name}.")]
                wire.load({k.removeprefix(f"{name}."): state[k].to(device, copy=True) for k in own})

    def _place(self, A: DistMatrix) -> Tensor:
        """A fingerprint of which rows travel where, and how, uint8 [16]."""
        words = [repr((self.dials.asked, self._seed, self._comm.rank)).encode()]
        for hop in A.plan.hops:
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


def _wired(matrices: Mapping[str, DistMatrix]) -> Iterator[tuple[str, DistMatrix]]:
    """Those with a codec, in an order that all ranks have."""
    for kind, A in sorted(matrices.items()):
        if A.codecs is not None:
            yield kind, A


def _numbered(kind: str, A: DistMatrix) -> Iterator[tuple[str, Layer]]:
    """Wires that may keep something, by their matrix and their hop."""
    for name, wire in A.named_codecs.items():
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
