"""Algorithms of their own for each layer of a model, on the rows of one.

Any algorithm works on any row layout: what it needs of the others follows from who owns which rows.
So one algorithm says how rows lie (which partition, how its parts are cut), and each layer may take
another one. What that costs is in its bytes: parts that were not cut for it touch more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from spgnn.errors import InputError, meant
from spgnn.exchange.algorithm import ALGOS, Algorithm


def algorithms_of(text: str, base: Algorithm, layers: int) -> tuple[Algorithm, ...]:
    """The algorithm of each layer.

    Parameters
    ----------
    text : str
        ``ALGO`` or ``ALGO:C`` for each layer, the first layer first, as in ``feature:4,1d``.
    base : Algorithm
        Whose rows they are; all else of it, as its cover, holds for every layer.
    layers : int

    Raises
    ------
    InputError
        If it is not that, or of another number of layers.
    """
    found = []
    for word in text.split(","):
        algo, colon, number = word.partition(":")
        digits = number.isascii() and number.isdigit() and 0 < len(number) < 10
        if algo not in ALGOS or (colon and not (digits and int(number))):
            hint = meant(algo, ALGOS)
            raise InputError(
                f"--layer-algos {text}: must be an --algo for each layer, with its c as in "
                f"feature:4,1d{hint}"
            )
        found.append(replace(base, algo=algo, c=int(number) if colon else 1))  # type: ignore[arg-type]
    if len(found) != layers:
        raise InputError(
            f"--layer-algos {text}: names {len(found)} layers, and the model has {layers}"
        )
    return tuple(found)


def written(algorithms: Sequence[Algorithm]) -> str:
    """The text that :func:`algorithms_of` reads."""
    return ",".join(one.algo if one.c == 1 else f"{one.algo}:{one.c}" for one in algorithms)


def check_algorithms(algorithms: Sequence[Algorithm], ranks: int) -> None:
    """Refuse algorithms that cannot work on that many ranks, or not beside each other.

    Raises
    ------
    InputError
        Names the flag of the training command.
    """
    for one in algorithms:
        try:
            one.check(ranks)
        except InputError as error:
            raise InputError(f"--layer-algos {written(algorithms)}: {error}") from None
        if one.node_size > 1 or one.schedule != "overlap":
            raise InputError("--layer-algos needs --hierarchy none and --schedule overlap")
