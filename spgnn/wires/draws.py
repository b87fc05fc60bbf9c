"""Where draws of wires come from."""

from __future__ import annotations

import zlib

from spgnn.exchange import Step

_GOLDEN, _ODD = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03


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
    high, low = zlib.crc32(words.encode()), zlib.crc32(words[::-1].encode(), 0xFFFFFFFF)
    return (seed * _GOLDEN + ((high << 32) | low) * _ODD) % 2**64
