"""Flags of approximate wires, and what they can be combined with."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from spgnn.errors import InputError, meant
from spgnn.exchange import Codec
from spgnn.exchange.approximation import BITS, ByEpoch
from spgnn.train.flags import Flag, Record

if TYPE_CHECKING:
    from spgnn.train.config import TrainConfig

Number = TypeVar("Number", int, float)
NEVER = "never"
_LONGEST = 20  # characters of a number


@dataclass(frozen=True)
class Wires(Record):
    """What may be lost of rows on their way, and when they are used."""

    bits: Annotated[
        str,
        Flag("of an element that is sent: 32, 16, 8, 4, 2 or 1; 2,8@50: 8 from epoch 50 on", "B"),
    ] = "32"
    error_feedback: Annotated[
        bool, Flag("add what rounding lost of a row to the one that is sent next in its place")
    ] = False
    delay: Annotated[
        str,
        Flag(
            "rows are used R epochs after they were sent (with --algo vertex-cut partial sums too: "
            "far less accurate); never: nothing is sent",
            "R|never",
        ),
    ] = "0"
    delay_bins: Annotated[int, Flag("send one of B bins of rows an epoch", "B", low=1)] = 1
    smoothing: Annotated[
        float, Flag("of delayed rows: share of the running mean that stays", "GAMMA", high=1)
    ] = 0.0
    centred: Annotated[
        bool | None,
        Flag(
            "each message's mean is exact and of now, the rest is done to what is beside; by "
            "default with --delay R and --boundary-sampling, not under attention"
        ),
    ] = None
    exact_last: Annotated[int, Flag("exact wires in the last epochs", "K")] = 0
    fresh: Annotated[
        float, Flag("send rows only that moved by more than this share of their norm", "BOUND")
    ] = 0.0
    boundary_sampling: Annotated[
        str, Flag("share of rows that is sent, drawn each epoch; 0.1,0.5@100: a schedule", "P")
    ] = "1"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.approximation

    @property
    def approximation(self) -> Codec:
        """What all this asks of wires; the exact one where nothing is lost and nothing is late."""
        bits = _staged("--bits", self.bits, _bits)
        sampling = _staged("--boundary-sampling", self.boundary_sampling, _share)
        delay = self._delay
        left = (
            *(value < 32 for _, value in bits),
            *(share < 1 for _, share in sampling),
            delay != 0,
            self.fresh > 0,
        )
        if not any(left):
            return Codec()
        try:
            return Codec(
                bits=bits,
                feedback=self.error_feedback,
                delay=delay,
                bins=self.delay_bins,
                smoothing=self.smoothing,
                exact_means=self.centred,
                exact_last=self.exact_last,
                fresh=self.fresh,
                sampling=sampling,
            )
        except InputError as error:
            raise InputError(_ASKED.sub(lambda found: _FLAGS[found[0]], str(error))) from None

    def described(self, *, weighed: bool) -> str:
        """The flags that are not as they are by default, and whether means are sent.

        Parameters
        ----------
        weighed : bool
            Under attention, which has no means.
        """
        unset = Wires()
        means = (self.approximation.sends_means and not weighed) or None
        own = vars(self) | {"centred": means}
        given = {name: v for name, v in own.items() if v != getattr(unset, name)}
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in given.items())

    def warning(self, config: TrainConfig) -> str | None:
        """What costs accuracy, though it is no error."""
        if not self._delay or config.algorithm.algo != "vertex-cut":
            return None
        return (
            f"--delay {self.delay} with --algo vertex-cut delays partial sums as well as rows, and "
            "may train to half the accuracy of exact messages; --algo 1d delays rows alone "
            "(docs/codecs.md)"
        )

    def check(self, config: TrainConfig) -> None:
        """Refuse what makes no sense, alone or with the other flags.

        Raises
        ------
        InputError
            Names the flag and what would be right.
        """
        epochs, asked = config.training.epochs, self.approximation
        if self._delay is not None and self._delay >= epochs:
            raise InputError(f"--delay {self.delay} must be less than --epochs {epochs}")
        if self.exact_last > epochs:
            raise InputError(f"--exact-last {self.exact_last} exceeds --epochs {epochs}")
        self._check_needed(asked)
        if not asked.exact:
            _check_composed(self._named, asked, config)

    def _check_needed(self, asked: Codec) -> None:
        """Refuse what there is nothing for to act on."""
        if not self._delay:
            for flag, value, unset in (
                ("--delay-bins", self.delay_bins, 1),
                ("--smoothing", self.smoothing, 0),
            ):
                if value != unset:
                    raise InputError(f"{flag} {value} needs --delay R of one epoch or more")
        if self.error_feedback and not asked.quantises:
            raise InputError("--error-feedback needs --bits 16 or fewer")
        if self.centred and asked.exact:
            raise InputError(
                "--centred needs --bits, --delay, --fresh or --boundary-sampling: it says what "
                "they are done to"
            )

    @property
    def _delay(self) -> int | None:
        text = self.delay
        if text == NEVER:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            hint = meant(text, (NEVER,))
            raise InputError(f"--delay {text}: must be a number of epochs from 0, or never{hint}")
        return int(text)

    @property
    def _named(self) -> str:
        """The first flag that makes wires approximate."""
        unset = Wires()
        names = ("bits", "delay", "boundary_sampling", "fresh", "error_feedback")
        name = next(name for name in names if getattr(self, name) != getattr(unset, name))
        return f"--{name.replace('_', '-')} {getattr(self, name)}"


def _check_composed(named: str, asked: Codec, config: TrainConfig) -> None:
    """What approximate wires cannot be combined with."""
    how, model = config.algorithm, config.model
    if config.storage.asked:
        raise InputError(f"{named} needs rows in memory: no --memory, --spill or --parts")
    if how.exchange != "sparsity-aware":
        raise InputError(f"{named} needs --exchange sparsity-aware: rows, not whole block rows")
    if model.attends:
        _check_attention(asked, model.model)
    if model.aggregate == "max" and _leaves_out(asked):
        raise InputError(
            f"{named} needs --aggregate mean or sum: rows that are left out are zeros, and may "
            "be the largest"
        )
    remembered = {
        f"--delay {asked.delay}": asked.delay,
        "--error-feedback": asked.feedback,
        f"--fresh {asked.fresh}": asked.fresh,
    }
    kept = next((flag for flag, value in remembered.items() if value), None)
    if how.schedule == "peers" and kept is not None:
        raise InputError(
            f"{kept} needs --schedule overlap: it keeps rows that peers has no room for"
        )


def _check_attention(asked: Codec, model: str) -> None:
    try:
        asked.check_attention()
    except InputError as error:
        told = _ASKED.sub(lambda found: _FLAGS[found[0]], str(error))
        raise InputError(f"--model {model}: {told}") from None


def _leaves_out(asked: Codec) -> bool:
    """Whether zeros take the place of rows."""
    return asked.samples or asked.delay is None


def _staged(flag: str, text: str, kind: Callable[[str], Number | None]) -> ByEpoch[Number]:
    """Values, each from an epoch on, as in ``2,8@50,32@90``."""
    found: list[tuple[int, Number]] = []
    for number, word in enumerate(text.split(",")):
        value, at, epoch = word.strip().partition("@")
        known = kind(value) if len(value) <= _LONGEST else None
        first = int(epoch) if epoch.isascii() and epoch.isdigit() and len(epoch) < 10 else 0
        if known is None or bool(at) != bool(number) or (found and first <= found[-1][0]):
            raise InputError(f"{flag} {text}: {_WANTED[flag]}")
        found.append((first, known))
    return tuple(found)


def _bits(text: str) -> int | None:
    return next((bits for bits in BITS if str(bits) == text), None)


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if 0 < share <= 1 else None


# What wires call what cannot be had together.
_FLAGS = {
    "feedback": "--error-feedback",
    "bins": "--delay-bins",
    "exact_means": "--centred",
    "fresh": "--fresh",
    "sampling": "--boundary-sampling",
}
_ASKED = re.compile(rf"\b({'|'.join(_FLAGS)})\b")
_SHARES = "a share in (0, 1], or a schedule as in 0.1,0.5@100"
_WANTED = {
    "--bits": "must be 32, 16, 8, 4, 2 or 1, or a schedule as in 2,8@50,32@90: 8 from epoch 50 on",
    "--boundary-sampling": f"must be {_SHARES}; --delay never sends nothing",
}
