"""What is kept for backward, and what is made again: whichever is foretold to take less time.

A layer is always made again of its product. What it looks at beside the product, the rows that the
layer before it made, may lie in a table, which is written once and read whenever the layer is
worked on; or be made again of the product of the layer before it, which is kept in any case. The
numbers are the same, to the bit.

Products are kept. To make one again is to go through the matrix once more, with a second operand
in memory beside that of the adjoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, on_every_rank
from spgnn.direct import DirectFile, Transfers
from spgnn.errors import InputError
from spgnn.nn import DropoutKeys
from spgnn.nn.features import Features, Propagated
from spgnn.parts.budget import ORDER, Budget
from spgnn.parts.predict import Forecast
from spgnn.parts.room import Places
from spgnn.parts.segments import Segments
from spgnn.parts.sizes import Sizes

Recompute = Literal["auto", "never", "always"]
TRIED_ROWS = 4096
# What libraries take once they are used: thread pools, buffers, code that is loaded late.
LIBRARIES = 96 << 20
_TRIED_BYTES = 1 << 24
_NEVER = 1 << 62  # nanoseconds: it does not fit


@dataclass(frozen=True)
class Speeds:
    """How fast keeping is, and making again.

    Attributes
    ----------
    disk : float
        Bytes a second, read or written.
    row_seconds : tuple of float
        To make a row of each layer again of its product.
    """

    disk: float
    row_seconds: tuple[float, ...]

    def seconds(self, forecast: Forecast) -> float:
        """Of reading, writing and making again in an epoch; what else is done does not count."""
        return forecast.bytes().bytes / self.disk + self.remaking(forecast)

    def remaking(self, forecast: Forecast) -> float:
        """Of making again what layers look at."""
        layers = forecast.layers
        made = [0.0] * len(layers)
        for number in sorted(forecast.again):
            # Of a row that the layer before makes; of what that takes, in its turn.
            before = layers[number - 1].rows * self.row_seconds[number - 1]
            made[number] = before + made[number - 1]
        return sum(forecast.uses(number) * each for number, each in enumerate(made))


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    budget : Budget
    speeds : Speeds, optional
        ``None`` if nothing was to be chosen.
    """

    budget: Budget
    speeds: Speeds | None


def candidates(looks: Sequence[bool], recompute: Recompute) -> list[frozenset[int]]:
    """Sets of layers for which what they look at may be made again: none, the last ones, or all."""
    looking = [number for number, looks_at in enumerate(looks) if number and looks_at]
    if recompute == "always":
        return [frozenset(looking)]
    if recompute == "never":
        return [frozenset()]
    return [frozenset(looking[first:]) for first in range(len(looking), -1, -1)]


def choose(
    comm: Communicator,
    sizes: Sizes,
    tried: Sequence[frozenset[int]],
    decided: Callable[[frozenset[int]], Budget],
    measured: Callable[[], Speeds],
) -> Choice:
    """What takes the least time on the rank where it takes most. Collective.

    Parameters
    ----------
    comm : Communicator
    sizes : Sizes
    tried : sequence of frozenset of int
        The first one of equally good ones is taken.
    decided : callable
        The budget for one of them.
    measured : callable
        Asked if there is a choice.

    Raises
    ------
    InputError
        If none fits: why the first one does not.
    """
    speeds = on_every_rank(comm, measured) if len(tried) > 1 else None
    found: list[Budget | None] = []
    wrong: list[InputError] = []
    seconds: list[int] = []
    for again in tried:
        mine = _decided(decided, again, wrong)
        found.append(mine)
        spent = 0 if mine is not None else _NEVER
        if mine is not None and speeds is not None:
            spent = int(1e9 * speeds.seconds(Forecast.of_sizes(sizes, mine)))
        seconds.append(comm.agree(spent))
    best = min(range(len(tried)), key=lambda number: seconds[number])
    if seconds[best] == _NEVER:
        best = 0

    def fitting() -> Budget:
        mine = found[best]
        if mine is None:
            raise wrong[0]
        return mine

    return Choice(agreed(comm, on_every_rank(comm, fitting)), speeds)


def _decided(
    decided: Callable[[frozenset[int]], Budget], again: frozenset[int], wrong: list[InputError]
) -> Budget | None:
    try:
        return decided(again)
    except InputError as error:
        wrong.append(error)
        return None


def agreed(comm: Communicator, mine: Budget) -> Budget:
    """The same on all ranks: the most parts, the narrowest panels that any of them asks for."""
    depth = comm.agree(len(mine.places.on_disk))
    widest = 1 << 40
    panel = -comm.agree(-(mine.places.panel_bytes or widest))
    places = Places(frozenset(ORDER[:depth]), 0 if panel == widest else panel)
    return Budget(comm.agree(mine.parts), places, mine.bytes, mine.again)


def disk_speed(directory: Path | None) -> float:
    """Bytes a second of one long transfer there and back; without a directory none is waited for.

    Raises
    ------
    InputError
        If the disk is full, or fails.
    """
    if directory is None:
        return math.inf
    path = directory / "speed"
    values = np.zeros(_TRIED_BYTES, np.uint8)
    begin = perf_counter()
    file = DirectFile(path, Transfers(), create=True)
    file.write(0, values)
    file.read(0, len(values))
    spent = perf_counter() - begin
    file.close()
    path.unlink()
    return 2 * len(values) / max(spent, 1e-9)


def row_seconds(
    segments: Segments,
    widths: Sequence[int],
    operands: Sequence[int],
    *,
    first: Callable[[], Features],
    rows: int,
    dtype: torch.dtype,
) -> tuple[float, ...]:
    """Seconds to make a row of each layer again of its product, tried on a few thousand.

    Parameters
    ----------
    segments : Segments
    widths, operands : sequence of int
        As `Sizes` has them.
    first : callable
        Features of so many rows, made or taken as in training.
    rows : int
    dtype : torch.dtype
    """
    ids, found = torch.arange(rows), []
    keys = DropoutKeys(ids, 0, 0)
    for number, width in enumerate(operands[:-1]):

        def once(number: int = number, width: int = width) -> object:
            H: Features = first()
            if number:
                H = torch.zeros(rows, widths[number], dtype=dtype, requires_grad=True)
            if not width:
                H = Propagated(torch.zeros(rows, widths[0], dtype=dtype), _dense(H))
            Z = torch.zeros(rows, width, dtype=dtype) if width else None
            return segments.layer(number, H, Z, ids, keys)

        found.append(_least_seconds(once) / max(rows, 1))
    return (*found, 0.0)


def _dense(X: Features) -> Tensor | None:
    return X if isinstance(X, Tensor) else None


def _least_seconds(body: Callable[[], object], times: Iterable[int] = range(3)) -> float:
    """The first call may load code."""
    spent = []
    # As in training: which way round a layer multiplies depends on whether autograd records.
    with torch.enable_grad():
        for _ in times:
            begin = perf_counter()
            body()
            spent.append(perf_counter() - begin)
    return min(spent)
