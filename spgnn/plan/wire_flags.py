"""Flags of ``spgnn plan`` for wires: those of the training command that can be priced."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, TypeVar

from spgnn.errors import InputError
from spgnn.exchange import Codec
from spgnn.exchange.approximation import ByEpoch
from spgnn.plan.wired import Wired

Number = TypeVar("Number", int, float)
NEVER = "never"


def staged(kind: type[Number]) -> Callable[[str], ByEpoch[Number]]:
    """The type of a flag: a number, or a schedule as in ``2,8@50``."""

    def read(text: str) -> ByEpoch[Number]:
        found = []
        for place, word in enumerate(text.split(",")):
            value, at, epoch = word.partition("@")
            if bool(at) != bool(place) or len(word) > 40:
                raise argparse.ArgumentTypeError(f"'{text[:40]}' must be a number, or as in 2,8@50")
            found.append((int(epoch) if at else 0, kind(value)))
        return tuple(found)

    read.__name__ = "number or schedule"
    return read


def delay(text: str) -> int | None:
    """The type of a flag: epochs, or ``never``."""
    if text == NEVER:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' must be a number of epochs, or never")
    return int(text)


def wired_of(options: argparse.Namespace) -> Wired | None:
    """What was asked for; ``None`` where rows travel as they are.

    Raises
    ------
    InputError
        If it cannot be had, or not together.
    """
    epochs = options.epochs
    for name in ("delay", "exact_last"):
        if (getattr(options, name) or 0) > epochs - (name == "delay"):
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{flag} {getattr(options, name)} is too long for --epochs {epochs}")
    try:
        asked = Codec.of(
            bits=options.bits,
            feedback=options.error_feedback,
            delay=options.delay,
            bins=options.delay_bins,
            exact_means=options.centred,
            exact_last=options.exact_last if _approximates(options) else 0,
            sampling=options.boundary_sampling,
        )
    except InputError as error:
        raise InputError(f"--bits, --delay, --boundary-sampling: {error}") from None
    return Wired.of(asked, epochs)


def written_wires(options: argparse.Namespace) -> list[str]:
    """The same as the training command takes them, without what is as it is by default."""
    found = ["--error-feedback"] if options.error_feedback else []
    if options.centred is not None:
        found.append("--centred" if options.centred else "--no-centred")
    if options.delay != 0:
        found += ["--delay", NEVER if options.delay is None else str(options.delay)]
    defaults: dict[str, Any] = {"delay_bins": 1, "exact_last": 0, "epochs": 100}
    for name, default in defaults.items():
        if getattr(options, name) != default:
            found += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    for name, unset in (("bits", 32), ("boundary_sampling", 1.0)):
        value = getattr(options, name)
        if value != ((0, unset),):
            words = [f"{v}@{epoch}" if epoch else str(v) for epoch, v in value]
            found += ["--" + name.replace("_", "-"), ",".join(words)]
    return found


def _approximates(options: argparse.Namespace) -> bool:
    """Whether there is anything that the last epochs could do without."""
    sampled = any(share < 1 for _, share in options.boundary_sampling)
    return sampled or any(bits < 32 for _, bits in options.bits) or options.delay != 0
