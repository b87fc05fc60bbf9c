"""What is asked of approximate wires, and what they ask for in each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any, Literal, TypeVar, get_args

from spgnn.errors import InputError, check_choice, check_integer, check_number

Number = TypeVar("Number", int, float)
Staged = tuple[tuple[int, Number], ...]
"""Values, each from an epoch on, rising from epoch 0."""

BITS = (32, 16, 8, 4, 2, 1)
# With one bit, what is lost of a row can be as large as the row, and is added to it again.
LEAST_WITH_FEEDBACK = 2
# What is drawn stands for all others: as 1/p of it, which has to be a number of its own type.
LEAST_SAMPLE = 1e-9
Level = Literal["all", "between"]
LEVELS: tuple[str, ...] = get_args(Level)
Limit = Literal["own", "pair", "rank"]
LIMITS: tuple[str, ...] = get_args(Limit)


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
    adaptive : int
        Share out the bits between rows, anew after so many epochs; 0: all rows have the same.
    adaptive_limit : {"own", "pair", "rank"}
        What shared bits must not exceed with equal ones: the bytes that each rank sends; those of
        the largest message between two ranks; those of the rank that sends most.
    delay : int or None
        Epochs from sending a row to using it; ``None``: nothing is ever sent.
    bins : int
        Send one of so many bins of rows in each epoch.
    smoothing : float in [0, 1)
        Of delayed rows: how much of the running mean stays when a row arrives.
    centred : bool
        The mean over the rows of each message travels as it is, and at once: what else is asked for
        is done to what rows are beside it.
    directions : int
        Of centred rows: so many combinations of each message's rows, beside their mean, travel as
        they are and at once, but no more than one of 64 rows.
    exact_last : int
        Epochs at the end in which everything travels as it is, and at once.
    fresh : float
        Send rows only that have moved by more than this share of their norm since they were last
        sent; 0: all.
    sampling : values from an epoch on, in (0, 1]
        Share of rows that are sent, drawn anew each time.
    held : bool
        Rows that a sample leaves out are as they last arrived, and not zeros; those that are drawn
        are as they are, and not 1/p of that.
    components : values from an epoch on, in (0, 1]
        Share of the columns of each row that are sent, drawn anew each time.
    tolerance : float or None
        Of the loss: how far it may be from exact, as a share of it. The values above are then where
        a controller begins.
    level : {"all", "between"}
        Which hops: all, or under a hierarchy those between nodes.
    """

    bits: Staged[int] = ((0, 32),)
    feedback: bool = False
    adaptive: int = 0
    adaptive_limit: Limit = "own"
    delay: int | None = 0
    bins: int = 1
    smoothing: float = 0.0
    centred: bool = False
    directions: int = 0
    exact_last: int = 0
    fresh: float = 0.0
    sampling: Staged[float] = ((0, 1.0),)
    held: bool = False
    components: Staged[float] = ((0, 1.0),)
    tolerance: float | None = None
    level: Level = "all"

    @classmethod
    def of(cls, **asked: Any) -> Approximation:
        """The same of what somebody wrote, all of which is checked.

        Parameters
        ----------
        **asked
            Attributes; a number for `bits`, `sampling` or `components` holds from epoch 0 on.

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
        check_choice("level", self.level, LEVELS)
        check_choice("adaptive_limit", self.adaptive_limit, LIMITS)
        if not all(isinstance(getattr(self, name), tuple) for name in _STAGED):
            raise InputError(
                "bits, sampling and components are pairs of (epoch, number): Approximation.of "
                "takes numbers as well"
            )
        for _, bits in self.bits:
            if bits not in BITS:
                raise InputError(f"bits must be one of {', '.join(map(str, BITS))}, got {bits}")
        for name in ("sampling", "components"):
            for _, share in getattr(self, name):
                if not 0 < share <= 1:
                    never = "; to send nothing, delay it for ever" if not share else ""
                    raise InputError(f"{name} must be in (0, 1], got {share}{never}")
        for _, share in self.sampling:
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
        if self.adaptive < 0:
            raise InputError(f"adaptive must be a number of epochs, 0 or more, got {self.adaptive}")
        if self.directions < 0:
            raise InputError(f"directions must be 0 or more, got {self.directions}")
        parts = {
            "sampling": self.samples,
            "components": self.drops_components,
            "bins": self.bins > 1,
            "fresh": bool(self.fresh),
        }
        refused = {
            "fresh": (self.fresh, ("sampling", "components", "bins"), "keeps what all rows were"),
            "adaptive": (self.adaptive, tuple(parts), "chooses between rows that are always sent"),
            "feedback": (self.feedback, ("components",), "keeps what all columns have lost"),
        }
        for name, (asked, others, why) in refused.items():
            for other in others if asked else ():
                if parts[other]:
                    raise InputError(f"{name} {why}: it cannot be had with {other}")
        if self.quantises and not self.tolerance:
            self._check_bits()

    def _check_needed(self) -> None:
        """Refuse what there is nothing for to act on."""
        lonely = {
            "bins": (self.bins > 1 and not self.delay, "a delay of one epoch or more"),
            "smoothing": (self.smoothing and not self.delay, "a delay of one epoch or more"),
            "feedback": (self.feedback and not self.quantises, "16 bits or fewer"),
            "adaptive": (self.adaptive and not self.quantises, "2, 4 or 8 bits"),
            "adaptive_limit": (self.adaptive_limit != "own" and not self.adaptive, "adaptive"),
            "held": (self.held and not self.samples, "sampling: rows that are left out"),
            "centred": (self.centred and not self._loses, "rows that are late, fewer or shorter"),
            "directions": (self.directions and not self.centred, "centred: beside what they are"),
        }
        for name, (alone, needed) in lonely.items():
            if alone:
                raise InputError(f"{name} needs {needed}")

    def _check_bits(self) -> None:
        """Refuse bits that are too few, or too many, for what is to be done with them."""
        bits = [bits for _, bits in self.bits]
        if self.adaptive and not any(1 < b < 16 for b in bits):
            raise InputError("adaptive needs 2, 4 or 8 bits: others cannot be shared out")
        if self.feedback and min(bits) < LEAST_WITH_FEEDBACK:
            raise InputError("feedback needs 2 bits or more: one loses more than it sends")

    def check_weighed(self) -> None:
        """Refuse what cannot be done to rows that attention weighs where they arrive.

        Raises
        ------
        InputError
            Names the attribute, and why.
        """
        if self.drops_components:
            raise InputError("components: attention scores a row by all of its columns")
        if self.adaptive:
            raise InputError("adaptive weighs rows before they travel, attention where they arrive")
        if self.centred:
            raise InputError("centred: attention weighs rows by scores, which a mean has none of")
        if self.held:
            raise InputError("held: attention leaves out the edges of rows that are not drawn")
        if self.samples and self.delay:
            raise InputError(
                "sampling cannot be had with a delay under attention: edges of rows that are left "
                "out are left out in the same epoch"
            )

    @property
    def exact(self) -> bool:
        """Whether nothing is approximated."""
        return self == Approximation(tolerance=self.tolerance, level=self.level) and not (
            self.tolerance
        )

    @property
    def _loses(self) -> bool:
        """Whether anything is done to rows, now or in other epochs."""
        late = self.delay != 0 or self.fresh > 0
        return late or self.quantises or self.samples or self.drops_components

    @property
    def quantises(self) -> bool:
        """Whether rows may travel in fewer bits."""
        return any(bits < 32 for _, bits in self.bits) or bool(self.tolerance)

    @property
    def samples(self) -> bool:
        """Whether rows may be left out."""
        return any(share < 1 for _, share in self.sampling)

    @property
    def drops_components(self) -> bool:
        """Whether columns of rows may be left out."""
        return any(share < 1 for _, share in self.components)


class Dials:
    """What wires ask for in each epoch; a controller may turn them.

    Parameters
    ----------
    asked : Approximation
    epochs : int
        Of the whole run, or 0 if that is not known: none is the last then.

    Attributes
    ----------
    bits, delay, sampling : optional
        What a controller has set, in place of what was asked for.
    """

    def __init__(self, asked: Approximation, epochs: int = 0) -> None:
        self.asked = asked
        self._exact_from = epochs - asked.exact_last if epochs and asked.exact_last else None
        self.bits: int | None = None
        self.delay: int | None = None
        self.sampling: float | None = None

    def is_exact(self, epoch: int) -> bool:
        """Whether this is one of the last epochs, which are exact."""
        return self._exact_from is not None and epoch >= self._exact_from

    def passes(self, epoch: int) -> bool:
        """Whether rows of this epoch arrive as they are, and at once."""
        if self.is_exact(epoch):
            return True
        if self.asked.delay is None or self.asked.fresh:
            return False
        whole = self.sampling_at(epoch) == self.components_at(epoch) == 1
        return whole and self.bits_at(epoch) == 32 and not self.delay_at(epoch)

    def bits_at(self, epoch: int) -> int:
        """Bits of an element."""
        if self.is_exact(epoch):
            return 32
        return at(self.asked.bits, epoch) if self.bits is None else self.bits

    def delay_at(self, epoch: int) -> int:
        """Epochs from sending to using; asked of delays that end."""
        if self.is_exact(epoch):
            return 0
        asked = self.asked.delay if self.delay is None else self.delay
        assert asked is not None
        return asked

    def bins_at(self, epoch: int) -> int:
        """Bins that take turns; never more than epochs of delay, so that each row is used once."""
        return self.asked.bins if self.delay is None else min(self.asked.bins, max(1, self.delay))

    def sampling_at(self, epoch: int) -> float:
        """Share of rows."""
        if self.is_exact(epoch):
            return 1.0
        return at(self.asked.sampling, epoch) if self.sampling is None else self.sampling

    def components_at(self, epoch: int) -> float:
        """Share of columns."""
        return 1.0 if self.is_exact(epoch) else at(self.asked.components, epoch)


_STAGED = {"bits", "sampling", "components"}
_INTEGERS = {"adaptive": 0, "delay": 0, "bins": 1, "directions": 0, "exact_last": 0}
_SWITCHES = {"feedback", "centred", "held"}
_SHARES = {"smoothing", "fresh", "tolerance"}
_MAY_BE_NONE = {"delay", "tolerance"}


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
