"""Approximate messages: which codec is asked for, when it is used, and the error that it makes."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.errors import InputError, check_choice, check_integer, check_number
from spgnn.exchange.plan import Carried, Traffic
from spgnn.exchange.transport import GOLDEN, ODD, Step
from spgnn.registry import BITS, CODECS, LEAST_SAMPLE

Number = TypeVar("Number", int, float)
ByEpoch = tuple[tuple[int, Number], ...]
"""Values, each from an epoch on, rising from epoch 0."""

# With one bit, the loss of a row can be as large as the row, and is added to it again.
LEAST_WITH_FEEDBACK = 2
MEASURED_EVERY = 10


@dataclass(frozen=True)
class Codec:
    """A way to compress or delay messages; by default they are exact.

    Attributes
    ----------
    bits : values from an epoch on
        Of each element: 16 are bfloat16, fewer are rounded between a row's least and largest; 32
        are rows as they are.
    feedback : bool
        Add the rounding error of a row to the row that is sent next in its place.
    delay : int or None
        Epochs from sending a row to using it; ``None``: nothing is ever sent.
    bins : int
        Send one of so many bins of rows in each epoch.
    smoothing : float in [0, 1)
        Of delayed rows: how much of the running mean stays when a row arrives.
    exact_means : bool, optional
        Send the mean over the rows of each message exactly and at once, and apply the rest to the
        differences from it. By default with delays and samples; never under attention.
    exact_last : int
        Epochs at the end whose messages are exact.
    sampling : values from an epoch on, in (0, 1]
        Share of rows that are sent, drawn anew each time.
    epochs : int
        Of the whole run, or 0 if that is not known: none is the last then.
    extra : pairs of (name, argument)
        Registered codecs (``spgnn.registry.CODECS``): ``Codec.of(NAME=ARGUMENT)``.
    """

    bits: ByEpoch[int] = ((0, 32),)
    feedback: bool = False
    delay: int | None = 0
    bins: int = 1
    smoothing: float = 0.0
    exact_means: bool | None = None
    exact_last: int = 0
    sampling: ByEpoch[float] = ((0, 1.0),)
    epochs: int = 0
    extra: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, **options: Any) -> Codec:
        """A codec from a user's options; a number for `bits` or `sampling` holds from epoch 0."""
        extra = [name for name in options if name in CODECS]
        added = tuple((name, options.pop(name)) for name in extra)
        options["extra"] = (*options.get("extra", ()), *added)
        for name, value in options.items():
            check_choice("codec", name, [*(each.name for each in fields(cls)), *CODECS])
            match name:
                case "bits" | "sampling":
                    options[name] = _schedule(name, value)
                case "delay" | "exact_means" if value is None:
                    pass
                case "delay" | "bins" | "exact_last" | "epochs":
                    options[name] = check_integer(name, value, int(name == "bins"))
                case "extra":
                    pass
                case "smoothing":
                    options[name] = check_number(name, value, 0.0, math.inf)
                case _ if not isinstance(value, bool):
                    raise InputError(f"{name} must be True or False, got {value!r}")
        codec = cls(**options)
        approximates = codec.delay != 0 or codec.extra or codec.quantises or codec.samples
        for name, alone, needed in (
            ("bins", codec.bins > 1 and not codec.delay, "a delay of one epoch or more"),
            ("smoothing", codec.smoothing and not codec.delay, "a delay of one epoch or more"),
            ("feedback", codec.feedback and not codec.quantises, "16 bits or fewer"),
            (
                "exact_means",
                codec.exact_means and not approximates,
                "rows that are late, fewer or shorter",
            ),
        ):
            if alone:
                raise InputError(f"{name} needs {needed}")
        return codec

    def __post_init__(self) -> None:
        if not isinstance(self.bits, tuple) or not isinstance(self.sampling, tuple):
            raise InputError(
                "bits and sampling are pairs of (epoch, number): Codec.of takes numbers too"
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
        if not 0 <= self.smoothing < 1:
            raise InputError(f"smoothing must be in [0, 1), got {self.smoothing}")
        for name, argument in self.extra:
            CODECS[name].check(argument, self)
        if self.feedback and min(bits for _, bits in self.bits) < LEAST_WITH_FEEDBACK:
            raise InputError("feedback needs 2 bits or more: one loses more than it sends")

    def check_attention(self) -> None:
        """Refuse codecs that attention, which weighs rows where they arrive, cannot have."""
        if self.exact_means:
            raise InputError(
                "exact_means: attention weighs rows by scores, which a mean has none of"
            )
        if self.samples and self.delay:
            raise InputError(
                "sampling cannot be had with a delay under attention: edges of rows that are left "
                "out are left out in the same epoch"
            )

    @property
    def exact(self) -> bool:
        """True if nothing is approximated."""
        return replace(self, exact_means=None, epochs=0) == Codec()

    @property
    def sends_means(self) -> bool:
        """True if the mean of each message travels exactly, where attention does not forbid it."""
        if self.exact_means is not None:
            return self.exact_means
        return bool(self.delay) or self.samples

    @property
    def quantises(self) -> bool:
        """True if rows may travel in fewer bits."""
        return any(bits < 32 for _, bits in self.bits)

    @property
    def samples(self) -> bool:
        """True if rows may be left out."""
        return any(share < 1 for _, share in self.sampling)

    @property
    def remembers(self) -> bool:
        """True if anything of one epoch is kept for another."""
        others = any(CODECS[name].remembers for name, _ in self.extra)
        return bool(self.delay or self.feedback or others)

    def is_exact(self, epoch: int) -> bool:
        """True if this is one of the last epochs, which are exact."""
        return bool(self.epochs and self.exact_last) and epoch >= self.epochs - self.exact_last

    def passes(self, epoch: int) -> bool:
        """True if rows of this epoch arrive as they are, and at once."""
        if self.is_exact(epoch):
            return True
        if self.delay is None or self.extra:
            return False
        whole = self.sampling_at(epoch) == 1 and self.bits_at(epoch) == 32
        return whole and not self.delay_at(epoch)

    def bits_at(self, epoch: int) -> int:
        """Bits of an element."""
        return 32 if self.is_exact(epoch) else value_at(self.bits, epoch)

    def delay_at(self, epoch: int) -> int:
        """Epochs from sending to using; of delays that end."""
        if self.is_exact(epoch):
            return 0
        assert self.delay is not None
        return self.delay

    def sampling_at(self, epoch: int) -> float:
        """Share of rows."""
        return 1.0 if self.is_exact(epoch) else value_at(self.sampling, epoch)


def value_at(schedule: ByEpoch[Number], epoch: int) -> Number:
    """The value of an epoch."""
    return [value for first, value in schedule if first <= epoch][-1]


def _schedule(name: str, value: object) -> ByEpoch[Any]:
    """A number, or pairs of an epoch and the number that holds from there on."""

    def number(value: object) -> float:
        if name == "bits":
            return check_integer(name, value, min(BITS), max(BITS))
        return check_number(name, value, 0.0, 1.0)

    if isinstance(value, str):
        raise InputError(f"{name} must be a number, or pairs of (epoch, number), got {value!r}")
    if not isinstance(value, Sequence):
        return ((0, number(value)),)
    schedule = []
    for pair in value:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise InputError(f"{name} must be a number, or pairs of (epoch, number), got {pair!r}")
        schedule.append((check_integer(f"the epoch of {name}", pair[0], 0), number(pair[1])))
    epochs = [epoch for epoch, _ in schedule]
    if not epochs or epochs[0] or epochs != sorted(set(epochs)):
        raise InputError(f"the epochs of {name} must rise from 0, got {epochs}")
    return tuple(schedule)


class Policy:
    """Rule of when codecs are used: products are approximate while autograd records."""

    def __init__(self, least_width: int = 1) -> None:
        self.epoch, self.epochs_begun = -1, 0  # products are numbered from the last beginning on
        # The trained ones, as far as they are known, as long as they live.
        self.models: WeakSet[nn.Module] = WeakSet()
        self._least_width = least_width
        self._exact = 0
        self._moved: list[Callable[[], Iterator[Carried]]] = []

    def approximates(self, rows: object) -> bool:
        """True if a product of these rows, which is about to begin, is approximate."""
        if self._exact or not torch.is_grad_enabled():
            return False
        if not isinstance(rows, Tensor) or rows.dim() != 2 or not rows.is_floating_point():
            return False
        models = list(self.models)
        if rows.shape[1] < self._least_width or (models and not any(m.training for m in models)):
            return False
        if self.epoch < 0 and not rows.is_meta:
            raise InputError(
                "approximate messages have to know which epoch it is: call graph.next_epoch() at "
                "the beginning of each epoch of training"
            )
        return True

    def begin_epoch(self, epoch: int) -> None:
        """Say that an epoch of training begins."""
        self.epoch, self._moved = epoch, []
        self.epochs_begun += 1

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Everything inside is exact, and so are its gradients."""
        self._exact += 1
        try:
            yield
        finally:
            self._exact -= 1

    def note(self, carried: Callable[[], Iterator[Carried]]) -> None:
        """Note an exchange that begins, to ask for its bytes when it has ended."""
        self._moved.append(carried)

    def traffic(self) -> Traffic:
        """Bytes that the approximate products of this epoch have moved on this rank."""
        return sum((each.traffic() for moved in self._moved for each in moved()), Traffic())


class Errors:
    """Squared errors of the products of one matrix, on this rank, by what caused them."""

    def __init__(self) -> None:
        # By (product, adjoint, cause): squared error and squared norm, float64 [2].
        self.sums: dict[tuple[int, bool, str], Tensor] = {}

    @staticmethod
    def measured(epoch: int) -> bool:
        """True if errors are looked at: in the first epochs, then now and then."""
        return epoch < MEASURED_EVERY or epoch % MEASURED_EVERY == 0

    def account(self, cause: str, step: Step, device: torch.device) -> Tensor:
        """Sums to add to: squared error and squared norm, float64 [2]."""
        key = step.product, step.adjoint, cause
        if key not in self.sums:
            self.sums[key] = torch.zeros(2, dtype=torch.float64, device=device)
        return self.sums[key]

    def add(self, cause: str, step: Step, error: Tensor, exact: Tensor) -> None:
        """Add an error, and the rows that it is an error of, both [rows, f]."""
        norms = torch.stack((squared_norm(error), squared_norm(exact)))
        self.account(cause, step, error.device).add_(norms)


@dataclass(frozen=True, eq=False)
class CodecSetting:
    """The codec of one matrix, as its products, halos and attention share it."""

    codec: Codec
    errors: Errors = field(default_factory=Errors)  # where errors are added up
    seed: int = 0
    matrix: int = 0  # its number among those of a model: layers draw for themselves
    policy: Policy = field(default_factory=Policy)  # when it is used

    def key(self, step: Step, purpose: str) -> int:
        """64 bits for the draws of one step, the same on all ranks; each purpose has its own."""
        words = f"{purpose} {self.matrix} {step.product} {step.hop} {step.adjoint:d} {step.epoch}"
        words += f" {step.use}" if step.use else ""
        high, low = zlib.crc32(words.encode()), zlib.crc32(words[::-1].encode(), 0xFFFFFFFF)
        return (self.seed * GOLDEN + ((high << 32) | low) * ODD) % 2**64

    def shared_key(self, step: Step, purpose: str) -> int:
        """64 bits for draws that a product and its adjoint share."""
        return self.key(replace(step, adjoint=False, use=0), purpose)


def squared_norm(rows: Tensor) -> Tensor:
    """The sum of squares, a float64 scalar."""
    norm: Tensor = torch.linalg.vector_norm(rows, dtype=torch.float64)
    return norm.square()


DIRECTIONS = ("forward", "adjoint")


def relative_errors(errors: Iterable[Errors], comm: Communicator) -> list[dict[str, Any]]:
    """Relative errors of each product of an epoch and its adjoint, by their causes. Collective."""
    own = {
        (matrix, *key): sums.cpu()
        for matrix, each in enumerate(errors)
        for key, sums in each.sums.items()
    }
    # Not every codec has something to report on all ranks.
    text = json.dumps(sorted(own)).encode()
    longest = comm.agree(len(text))
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    texts = torch.empty(comm.size, longest, dtype=torch.uint8, device="cpu")
    comm.all_gather(padded[None], texts, [1] * comm.size)
    accounts = sorted({tuple(one) for row in texts for one in json.loads(row.numpy().tobytes())})
    nothing = torch.zeros(2, dtype=torch.float64, device="cpu")
    sums = torch.stack([nothing, *(own.get(account, nothing) for account in accounts)])
    comm.all_reduce(sums).wait()
    ratios = {}
    for account, (error, norm) in zip(accounts, sums[1:].tolist(), strict=True):
        # Nothing lost of nothing is no error.
        ratios[account] = math.sqrt(error / norm) if norm > 0 else 0.0 if not error else math.inf
    products = sorted({account[:2] for account in accounts})
    report = []
    for (matrix, product, adjoint), causes in groupby(accounts, key=lambda account: account[:3]):
        by = {account[3]: ratios[account] for account in causes}
        total = math.hypot(*by.values())  # independent errors
        finite = {cause: ratio if math.isfinite(ratio) else None for cause, ratio in by.items()}
        report.append(
            {
                "product": products.index((matrix, product)),
                "direction": DIRECTIONS[adjoint],
                "error": total if math.isfinite(total) else None,
                "by": finite,
            }
        )
    return report
