"""Where draws of wires come from."""

from __future__ import annotations

import zlib
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from spgnn.exchange import Route, Step
from spgnn.exchange.route import Names
from spgnn.layout import Int64Array

_GOLDEN, _ODD = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
# Of the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def key_of(seed: int, matrix: int, step: Step, purpose: str) -> int:
    """64 bits for the draws of one step, the same on all ranks.

    Parameters
    ----------
    seed : int
    matrix : int
        Number among those of a model.
    step : Step
        Groups of its peers draw alike: their rows have different names.
    purpose : str
        Draws for different purposes are independent.
    """
    words = f"{purpose} {matrix} {step.product} {step.hop} {step.adjoint:d} {step.epoch}"
    words += f" {step.use}" if step.use else ""
    high, low = zlib.crc32(words.encode()), zlib.crc32(words[::-1].encode(), 0xFFFFFFFF)
    return (seed * _GOLDEN + ((high << 32) | low) * _ODD) % 2**64


class Pairs:
    """Names of rows, each with its receiver in the product: what goes to several has several.

    A product and its adjoint have the same ones. Made once for each route.
    """

    def __init__(self) -> None:
        self._known: tuple[WeakKeyDictionary[Route, Tensor], ...] = (
            WeakKeyDictionary(),
            WeakKeyDictionary(),
        )

    def of(self, route: Route, step: Step) -> Tensor:
        """Of the rows that are sent, and then of those received, int64."""
        known = self._known[step.adjoint]
        if route not in known:
            known[route] = _pairs(route, adjoint=step.adjoint)
        return known[route]


def _pairs(route: Route, *, adjoint: bool) -> Tensor:
    names, counts = route.names, route.counts
    assert names is not None
    if adjoint:
        both = names.sent + _of_rank(names.me), names.received + _by_peer(counts.recv, names)
    else:
        both = names.sent + _by_peer(counts.send, names), names.received + _of_rank(names.me)
    return torch.cat(both)


def drawn(names: Tensor, key: int) -> Tensor:
    """A number for each name: uniform over all of int64, the same wherever it is drawn.

    Parameters
    ----------
    names : Tensor int64 [rows]
    key : int
        64 bits.
    """
    z = names ^ _signed(key)
    z += _signed(_GOLDEN)
    for shift, factor in _MIXING:
        z ^= _shifted(z, shift)
        z *= _signed(factor)
    z ^= _shifted(z, 31)
    return z


def chosen(names: Tensor, key: int, share: float) -> Tensor:
    """Which of them are drawn, each with the same probability, below 1; bool [rows]."""
    return drawn(names, key) < int(share * 2**64) - 2**63


def _by_peer(counts: Int64Array, names: Names) -> Tensor:
    ranks = torch.tensor([_of_rank(rank) for rank in range(len(counts))])
    return ranks.repeat_interleave(torch.tensor(counts)).to(names.sent.device)


def _of_rank(rank: int) -> int:
    return _signed(rank * _ODD % 2**64)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """To the right, as if there was no sign."""
    return (z >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """64 bits as int64 has them."""
    return word - 2**64 if word >= 2**63 else word
