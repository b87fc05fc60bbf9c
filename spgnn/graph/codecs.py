"""The codecs of a graph or a model: when they are used, their state, and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.exchange import Algorithm, Codec
from spgnn.exchange.codec import CodecSetting, Errors, Policy, relative_errors
from spgnn.exchange.compression import CodecLayer, State
from spgnn.files import digest
from spgnn.spmm import DistMatrix

_EPOCH, _PLACE = "epoch", "place"


class GraphCodecs:
    """The codec, policy and errors of all matrices of one graph, or of the layers of a model.

    Parameters
    ----------
    comm : Communicator
        All ranks.
    seed : int
        Of what codecs draw.
    least_width : int
        Rows of fewer columns are always exact.

    Attributes
    ----------
    policy : Policy
        Which products are exact.
    errors : dict of Errors
        By the name of the matrix, in the order in which they got their codec.
    """

    def __init__(self, codec: Codec, comm: Communicator, seed: int, least_width: int = 2) -> None:
        self.codec, self.policy = codec, Policy(least_width)
        self.errors: dict[str, Errors] = {}
        self._comm, self._seed = comm, seed
        self._matrices: dict[str, DistMatrix] = {}

    def put(self, A: DistMatrix, name: str, number: int, ids: Tensor) -> None:
        """Give a matrix its codec, if one is asked for. Collective.

        `name` is that of its state, without a dot; by `number`, matrices draw for themselves.
        `ids` int64 [columns] are the original ones of the vertices whose rows it takes.
        """
        if not self.codec.exact:
            errors = self.errors[name] = Errors()
            A.set_codec(CodecSetting(self.codec, errors, self._seed, number, self.policy), ids)
            self._matrices[name] = A

    def replace(self, name: str, A: DistMatrix) -> None:
        """Take the place of a matrix by a copy of it that has its codec already."""
        if name in self._matrices:
            self._matrices[name] = A

    def next_epoch(self) -> int:
        """Begin an epoch; returns its number, from 0 on. Collective."""
        epoch = self.policy.epoch + 1
        self.policy.begin_epoch(epoch)
        self._comm.check_agreement("graph.next_epoch", epoch=epoch)
        return epoch

    def relative_errors(self) -> dict[str, list[dict[str, Any]]]:
        """Relative errors by matrix, product and direction. Collective."""
        each = sorted(self.errors.items())
        return {name: relative_errors([errors], self._comm) for name, errors in each}

    def finish(self) -> None:
        """Wait for all rows that are under way, and keep none of them. Collective."""
        for _, codec in self._codecs():
            codec.land()
            codec.forget()

    def state(self) -> State:
        """All that codecs keep, in memory of the CPU. Collective: rows under way land."""
        result = {_EPOCH: torch.tensor(self.policy.epoch)}
        result |= {f"{name}.{_PLACE}": self._place(A) for name, A in self._matrices.items()}
        for name, codec in self._codecs():
            result |= {
                f"{name}.{key}": tensor.cpu().clone() for key, tensor in codec.state().items()
            }
        return result

    def load(
        self,
        state: Mapping[str, Tensor],
        device: torch.device,
        build: Callable[[str], object] | None = None,
    ) -> None:
        """Go on from a state of this rank. Collective.

        `build` makes the matrix of a name, which gets its codec then.

        Raises
        ------
        InputError
            On all ranks, if it is none, or of another partition, algorithm or codec.
        """
        self._comm.on_every_rank(lambda: _check_state(state))
        names = sorted(key.partition(".")[0] for key in state if key.endswith(f".{_PLACE}"))
        epoch = int(state[_EPOCH])
        self._comm.check_agreement("graph.load_codec_state", epoch=epoch, matrices=names)
        if build is not None:
            for name in names:
                build(name)
        self._comm.on_every_rank(lambda: self._check_places(state, names))
        self.policy.begin_epoch(epoch)
        for name in names:
            if any(key.startswith(f"{name}.attention-") for key in state):
                _ = self._matrices[name].attention  # which makes its codecs
        for name, codec in self._codecs(names):
            own = [key for key in state if key.startswith(f"{name}.")]
            codec.load({k.removeprefix(f"{name}."): state[k].to(device, copy=True) for k in own})

    def _codecs(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, CodecLayer]]:
        """By matrix and hop, in an order that all ranks have."""
        for name in sorted(self._matrices if names is None else names):
            A = self._matrices[name]
            assert A.codecs is not None
            yield from ((f"{name}.{hop}", codec) for hop, codec in A.codecs.named.items())

    def _place(self, A: DistMatrix) -> Tensor:
        """A fingerprint of the rows that travel, and of their codec, uint8 [16]."""
        words = [repr((replace(self.codec, epochs=0), self._seed, self._comm.rank)).encode()]
        for hop in A.plan.hops:
            assert hop.names is not None
            for each in (hop.counts.send, hop.counts.recv, hop.names.sent.cpu().numpy()):
                words.append(np.ascontiguousarray(each, np.int64).tobytes())
        return torch.frombuffer(bytearray(bytes.fromhex(digest(*words))), dtype=torch.uint8)

    def _check_places(self, state: Mapping[str, Tensor], names: list[str]) -> None:
        for name in names:
            A, place = self._matrices.get(name), state[f"{name}.{_PLACE}"]
            if A is None or not torch.equal(place.cpu(), self._place(A)):
                raise InputError(
                    f'this state of matrix("{name}") is of another rank, partition, algorithm, '
                    "seed or codec"
                )


def checked(codec: Codec | Mapping[str, Any] | None, algorithm: Algorithm, planned: bool) -> Codec:
    """The codec that is asked of a graph."""
    if codec is None:
        return Codec()
    options = vars(codec) if isinstance(codec, Codec) else codec
    if not isinstance(options, Mapping):
        raise InputError(
            "codec must be a spgnn.exchange.Codec, or a mapping as {'bits': 8}, got "
            f"{type(codec).__name__}"
        )
    codec = Codec.of(**{str(name): value for name, value in options.items()})
    if codec.exact_last:
        raise InputError(
            "codec: exact_last needs a last epoch: use `with graph.exact():` for those"
        )
    if not codec.exact and algorithm.exchange != "sparsity-aware":
        raise InputError("codec needs exchange='sparsity-aware': rows, not whole block rows")
    if not codec.exact and planned:
        raise InputError("codec needs its own algo: a plan prices rows as they are")
    return codec


def _check_state(state: object) -> None:
    if not isinstance(state, Mapping) or not isinstance(state.get(_EPOCH), Tensor):
        raise InputError("load_codec_state takes what graph.codec_state() gave on this rank")
