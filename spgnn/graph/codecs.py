"""The codecs of a distributed graph: when they are used, their state, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Codec, CodecSetting
from spgnn.exchange.approximation import Errors, Policy, relative_errors
from spgnn.exchange.compression import CodecLayer, State
from spgnn.files import digest
from spgnn.spmm import DistMatrix

_EPOCH, _PLACE = "epoch", "place"


class GraphCodecs:
    """The codec, policy and errors of all matrices of one graph, or of the layers of a training.

    Parameters
    ----------
    codec : Codec
    comm : Communicator
        All ranks.
    seed : int
        Of what codecs draw.
    least_width : int
        Products of narrower rows are exact; those of a single number may be of ids or degrees.

    Attributes
    ----------
    policy : Policy
        Which products are exact.
    """

    def __init__(self, codec: Codec, comm: Communicator, seed: int, least_width: int = 2) -> None:
        self.codec, self.policy = codec, Policy(least_width)
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
        if not self.codec.exact:
            errors = self._errors[kind] = Errors()
            A.set_codec(CodecSetting(self.codec, errors, self._seed, number, self.policy), ids)

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

    def errors_of_layers(self) -> list[dict[str, Any]]:
        """Relative errors of the products of all matrices together, in their order. Collective."""
        return relative_errors(list(self._errors.values()), self._comm)

    def finish(self, matrices: Mapping[str, DistMatrix]) -> None:
        """Wait for all rows that are under way, and keep none of them. Collective."""
        for kind, A in _with_codecs(matrices):
            for _, codec in _numbered(kind, A):
                codec.land()
                codec.forget()

    def state(self, matrices: Mapping[str, DistMatrix]) -> State:
        """All that codecs keep, in memory of the CPU. Collective: rows under way land."""
        found = {_EPOCH: torch.tensor(self.policy.epoch)}
        for kind, A in _with_codecs(matrices):
            found[f"{kind}.{_PLACE}"] = self._place(A)
            for name, codec in _numbered(kind, A):
                found |= {
                    f"{name}.{key}": kept.cpu().clone() for key, kept in codec.state().items()
                }
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
            On all ranks, if it is none, or of another partition, algorithm or codec.
        """
        self._comm.on_every_rank(lambda: _check_state(state))
        kinds = sorted(key.partition(".")[0] for key in state if key.endswith(f".{_PLACE}"))
        epoch = int(state[_EPOCH])
        self._comm.check_agreement("graph.load_codec_state", epoch=epoch, matrices=kinds)
        coded = list(_with_codecs({kind: built(kind) for kind in kinds}))
        places = {kind: self._place(A) for kind, A in coded}
        self._comm.on_every_rank(lambda: _check_places(state, kinds, places))
        self.policy.begin_epoch(epoch)
        for kind, A in coded:
            if any(key.startswith(f"{kind}.attention-") for key in state):
                _ = A.attention  # which makes its codecs
            for name, codec in _numbered(kind, A):
                own = [key for key in state if key.startswith(f"{name}.")]
                codec.load(
                    {k.removeprefix(f"{name}."): state[k].to(device, copy=True) for k in own}
                )

    def _place(self, A: DistMatrix) -> Tensor:
        """A fingerprint of the rows that travel, and of their codec, uint8 [16]."""
        words = [repr((replace(self.codec, epochs=0), self._seed, self._comm.rank)).encode()]
        for hop in A.plan.hops:
            assert hop.names is not None
            for each in (hop.counts.send, hop.counts.recv, hop.names.sent.cpu().numpy()):
                words.append(np.ascontiguousarray(each, np.int64).tobytes())
        return torch.frombuffer(bytearray(bytes.fromhex(digest(*words))), dtype=torch.uint8)


def checked(codec: Codec | Mapping[str, Any] | None, algorithm: Algorithm, planned: bool) -> Codec:
    """The codec that is asked of a graph.

    Raises
    ------
    InputError
        If there is no such codec, or a graph cannot have it.
    """
    if codec is None:
        return Codec()
    if isinstance(codec, Mapping):
        codec = Codec.of(**{str(name): value for name, value in codec.items()})
    elif isinstance(codec, Codec):
        codec = Codec.of(**vars(codec))
    if not isinstance(codec, Codec):
        raise InputError(
            "codec must be a spgnn.exchange.Codec, or a mapping as {'bits': 8}, got "
            f"{type(codec).__name__}"
        )
    if codec.exact_last:
        raise InputError(
            "codec: exact_last needs a last epoch: use `with graph.exact():` for those"
        )
    if not codec.exact and algorithm.exchange != "sparsity-aware":
        raise InputError("codec needs exchange='sparsity-aware': rows, not whole block rows")
    if not codec.exact and planned:
        raise InputError("codec needs its own algo: a plan prices rows as they are")
    return codec


def _with_codecs(matrices: Mapping[str, DistMatrix]) -> Iterator[tuple[str, DistMatrix]]:
    """Those with a codec, in an order that all ranks have."""
    for kind, A in sorted(matrices.items()):
        if A.codecs is not None:
            yield kind, A


def _numbered(kind: str, A: DistMatrix) -> Iterator[tuple[str, CodecLayer]]:
    """Codecs that may keep something, by their matrix and their hop."""
    for name, codec in A.named_codecs.items():
        yield f"{kind}.{name}", codec


def _check_state(state: object) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get(_EPOCH), Tensor):
        raise InputError("load_codec_state takes what graph.codec_state() gave on this rank")


def _check_places(
    state: Mapping[str, Tensor], kinds: Sequence[str], places: Mapping[str, Tensor]
) -> None:
    for kind in kinds:
        if kind not in places or not torch.equal(state[f"{kind}.{_PLACE}"].cpu(), places[kind]):
            raise InputError(
                f'this state of matrix("{kind}") is of another rank, partition, algorithm, seed or '
                "codec"
            )
