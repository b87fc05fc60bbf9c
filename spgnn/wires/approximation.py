"""What is asked of approximate wires, and what they ask for in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, TypeVar

from spgnn.errors import InputError, check_choice, check_integer, check_number

Number = TypeVar("Number", int, float)
Staged = tuple[tuple[int, Number], ...]
"""Values, each from an epoch on, rising from epoch 0."""

BITS = (32, 16, 8, 4, 2, 1)
# With one bit, what is lost of a row can be as large as the row, and is added to it again.
LEAST_WITH_FEEDBACK = 2
# What is drawn stands for all others: as 1/p of it, which has to be a number of its own type.
LEAST_SAMPLE = 1e-9


@dataclass(frozen=True)
class Approximation:
    """What is lost of rows on their way, and when they are used; by default nothing, and at once.

    Attributes
    ----------
    bits : values from an epoch on
        Of each element: 16 are bfloat16, fewer are rounded between a row's least and largest. 32
        stand for rows as they are.
    feedback : bool
        Add what was lost of a row to the one that is sent next in its place.
    delay : int or None
        Epochs from sending a row to using it; ``None``: nothing is ever sent.
    bins : int
        Send one of so many bins of rows in each epoch.
    smoothing : float in [0, 1)
        Of delayed rows: how much of the running mean stays when a row arrives.
    centred : bool, optional
        The mean over the rows of each message travels as it is, and at once: what else is asked for
        is done to what rows are beside it. By default so where rows are late or a sample; never
        under attention.
    exact_last : int
        Epochs at the end in which everything travels as it is, and at once.
    fresh : float
        Send rows only that have moved by more than this share of their norm since they were last
        sent; 0: all.
    sampling : values from an epoch on, in (0, 1]
        Share of rows that are sent, drawn anew each time.
    """

    bits: Staged[int] = ((0, 32),)
    feedback: bool = False
    delay: int | None = 0
    bins: int = 1
    smoothing: float = 0.0
    centred: bool | None = None
    exact_last: int = 0
    fresh: float = 0.0
    sampling: Staged[float] = ((0, 1.0),)

    @classmethod
    def of(cls, **asked: Any) -> Approximation:
        """The same of what somebody wrote, all of which is checked.

        Parameters
        ----------
        **asked
            Attributes; a number for `bits` or `sampling` holds from epoch 0 on.

        Raises
        ------
        InputError
            Names the attribute, and what would be right.
        """
        for name in asked:
            check_choice("wire", name, [field.name for field in fields(cls)])
        given = {name for name in asked if asked[name] is not None or name not in _MAY_BE_NONE}
        for name in _STAGED & given:
            asked[name] = _staged(name, asked[name])
        for name, low in _INTEGERS.items():
            if name in given:
                asked[name] = check_integer(name, asked[name], low)
        for name in _SHARES & given:
            asked[name] = check_number(name, asked[name], 0.0, inf)
        for name in _SWITCHES & given:
            if not isinstance(asked[name], bool):
                raise InputError(f"{name} must be True or False, got {asked[name]!r}")
        found = cls(**asked)
        found._check_needed()
        return found

    def __post_init__(self) -> None:
        if not all(isinstance(getattr(self, name), tuple) for name in _STAGED):
            raise InputError(
                "bits and sampling are pairs of (epoch, number): Approximation.of takes numbers too"
            )
        for _, bits in self.bits:
            if bits not in BITS:
                raise InputError(f"bits must be one of {', '.join(map(str, BITS))}, got {bits}")
        for _, share in self.sampling:
            if not 0 < share <= 1:
                never = "; to send nothing, delay it for ever" if not share else ""
                raise InputError(f"sampling must be in (0, 1], got {share}{never}")
            if share < LEAST_SAMPLE:
                raise InputError(
                    f"sampling must be {LEAST_SAMPLE:g} or more, got {share:g}: rows "
                    "that are drawn are multiplied by its reciprocal"
                )
        self._check_composition()

    def _check_composition(self) -> None:
        """Refuse what cannot be had together: some wires keep rows, and need all of them."""
        if not 0 <= self.fresh < inf:
            raise InputError(f"fresh must be a share of a row's norm, 0 or more, got {self.fresh}")
        if not 0 <= self.smoothing < 1:
            # Of a running mean, something has to be new.
            raise InputError(f"smoothing must be in [0, 1), got {self.smoothing}")
        for other, is_set in {"sampling": self.samples, "bins": self.bins > 1}.items():
            if self.fresh and is_set:
                raise InputError(f"fresh keeps what all rows were: it cannot be had with {other}")
        if self.feedback and min(bits for _, bits in self.bits) < LEAST_WITH_FEEDBACK:
            raise InputError("feedback needs 2 bits or more: one loses more than it sends")

    def _check_needed(self) -> None:
        """Refuse what there is nothing for to act on."""
        lonely = {
            "bins": (self.bins > 1 and not self.delay, "a delay of one epoch or more"),
            "smoothing": (self.smoothing and not self.delay, "a delay of one epoch or more"),
            "feedback": (self.feedback and not self.quantises, "16 bits or fewer"),
            "centred": (self.centred and not self._loses, "rows that are late, fewer or shorter"),
        }
        for name, (alone, needed) in lonely.items():
            if alone:
                raise InputError(f"{name} needs {needed}")

    def check_weighed(self) -> None:
        """Refuse what cannot be done to rows that attention weighs where they arrive.

        Raises
        ------
        InputError
            Names the attribute, and why.
        """
        if self.centred:
            raise InputError("centred: attention weighs rows by scores, which a mean has none of")
        if self.samples and self.delay:
            raise InputError(
                "sampling cannot be had with a delay under attention: edges of rows that are left "
                "out are left out in the same epoch"
            )

    @property
    def exact(self) -> bool:
        """Whether nothing is approximated."""
        return replace(self, centred=None) == Approximation()

    @property
    def sends_means(self) -> bool:
        """Whether the mean of each message travels as it is, where attention does not forbid it."""
        if self.centred is not None:
            return self.centred
        return bool(self.delay) or self.samples

    @property
    def _loses(self) -> bool:
        """Whether anything is done to rows, now or in other epochs."""
        late = self.delay != 0 or self.fresh > 0
        return late or self.quantises or self.samples

    @property
    def quantises(self) -> bool:
        """Whether rows may travel in fewer bits."""
        return any(bits < 32 for _, bits in self.bits)

    @property
    def samples(self) -> bool:
        """Whether rows may be left out."""
        return any(share < 1 for _, share in self.sampling)


class Dials:
    """The bits, delay, bins and sample of each epoch.

    Parameters
    ----------
    asked : Approximation
    epochs : int
        Of the whole run, or 0 if that is not known: none is the last then.
    """

    def __init__(self, asked: Approximation, epochs: int = 0) -> None:
        self.asked = asked
        self._exact_from = epochs - asked.exact_last if epochs and asked.exact_last else None

    def is_exact(self, epoch: int) -> bool:
        """Whether this is one of the last epochs, which are exact."""
        return self._exact_from is not None and epoch >= self._exact_from

    def passes(self, epoch: int) -> bool:
        """Whether rows of this epoch arrive as they are, and at once."""
        if self.is_exact(epoch):
            return True
        if self.asked.delay is None or self.asked.fresh:
            return False
        whole = self.sampling_at(epoch) == 1 and self.bits_at(epoch) == 32
        return whole and not self.delay_at(epoch)

    def bits_at(self, epoch: int) -> int:
        """Bits of an element."""
        return 32 if self.is_exact(epoch) else at(self.asked.bits, epoch)

    def delay_at(self, epoch: int) -> int:
        """Epochs from sending to using; asked of delays that end."""
        if self.is_exact(epoch):
            return 0
        assert self.asked.delay is not None
        return self.asked.delay

    def sampling_at(self, epoch: int) -> float:
        """Share of rows."""
        return 1.0 if self.is_exact(epoch) else at(self.asked.sampling, epoch)


_STAGED = {"bits", "sampling"}
_INTEGERS = {"delay": 0, "bins": 1, "exact_last": 0}
_SWITCHES = {"feedback", "centred"}
_SHARES = {"smoothing", "fresh"}
_MAY_BE_NONE = {"delay", "centred"}


def _staged(name: str, value: object) -> Staged[Any]:
    """A number, or pairs of an epoch and the number that holds from there on."""
    if not isinstance(value, Sequence):
        return ((0, _number(name, value)),)
    found = []
    for pair in value:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise InputError(f"{name} must be a number, or pairs of (epoch, number), got {pair!r}")
        found.append((check_integer(f"the epoch of {name}", pair[0], 0), _number(name, pair[1])))
    epochs = [epoch for epoch, _ in found]
    if not epochs or epochs[0] or epochs != sorted(set(epochs)):
        raise InputError(f"the epochs of {name} must rise from 0, got {epochs}")
    return tuple(found)


def _number(name: str, value: object) -> float:
    if name == "bits":
        return check_integer(name, value, min(BITS), max(BITS))
    return check_number(name, value, 0.0, 1.0)


def at(values: Staged[Number], epoch: int) -> Number:
    """The value of an epoch."""
    return [value for first, value in values if first <= epoch][-1]
