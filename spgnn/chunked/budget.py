"""Division of a rank's memory: the number of chunks, and the tables that go to the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from spgnn.chunked.room import Places
from spgnn.chunked.sizes import Sizes, Tables
from spgnn.chunked.table import Spare
from spgnn.comm import Communicator
from spgnn.errors import InputError

Recompute = Literal["auto", "never", "always"]
# What libraries take once they are used: thread pools, buffers, code that is loaded late.
LIBRARIES = 96 << 20
MOST_PARTS = 4096
SPILLED_PARTS = 8  # where nothing says how many
# What goes to the disk first: what is read and written least often for its size.
ORDER = ("propagated", "skipped", "taken", "matrix", "product", "operand")
_BLOCK_SHARE = 0.25  # of the memory, for what one chunk needs while it is worked on
_UNEVEN = 1.5  # the largest chunk over the average
_COPIES = 12  # of a chunk's rows in the widest layer: forward, backward, on their way to the disk
_GIVEN = 4  # of a chunk's features: as they are read, the next ones, and converted
_NORM_COPIES = 4  # more, for each norm over all vertices in a layer
_EXTREME_COPIES = 4  # more, where largest neighbours are looked for: which, how many, shares
_ATTENTION_COPIES = 4  # more, where neighbours are weighed: running sums, what rows say, gradients


@dataclass(frozen=True)
class Budget:
    """The number of chunks and the tables on the disk that a memory limit leads to.

    Attributes
    ----------
    parts : int
    places : Places
        The tables on the disk, and "matrix" if the matrix is there too.
    bytes : int
        Memory that training is predicted to need, besides that of the process itself.
    again : frozenset of int
        Layers whose input rows are recomputed in backward, and not kept.
    """

    parts: int
    places: Places
    bytes: int
    again: frozenset[int] = frozenset()


def recomputed(
    looks: Sequence[bool], recompute: Recompute, decided: Callable[[frozenset[int]], Budget]
) -> Budget:
    """The budget, and for which layers the rows they look at are computed again, not kept.

    ``auto`` keeps them in memory. Where they would go to the disk, it computes them again of the
    products before them, if these are in memory; and where nothing can be kept, too. The numbers
    are the same, to the bit.

    Parameters
    ----------
    looks : sequence of bool
        Whether each layer looks at its own rows again.
    recompute : {"auto", "never", "always"}
    decided : callable
        The budget for a set of layers, the same on all ranks. Collective.

    Raises
    ------
    InputError
        If the memory is too small.
    """
    looking = [number for number, looks_at in enumerate(looks) if number and looks_at]
    if recompute == "always" or not looking:
        return decided(frozenset(looking))
    try:
        budget = decided(frozenset())
    except InputError:
        if recompute == "never":
            raise
        return decided(frozenset(looking))
    spilled = budget.places.on_disk
    if recompute == "never" or "taken" not in spilled or "product" in spilled:
        return budget
    # The product of the first layer may be A·X, which is on the disk then.
    return decided(frozenset(n for n in looking if n > 1 or "propagated" not in spilled))


def agreed(comm: Communicator, mine: Budget) -> Budget:
    """The same on all ranks: the most chunks, the narrowest panels that any of them asks for."""
    depth = comm.agree(len(mine.places.on_disk))
    widest = 1 << 40
    panel = -comm.agree(-(mine.places.panel_bytes or widest))
    places = Places(frozenset(ORDER[:depth]), 0 if panel == widest else panel)
    return Budget(comm.agree(mine.parts), places, mine.bytes, mine.again)


def decide(
    sizes: Sizes,
    memory: int | None,
    parts: int | None,
    *,
    spill: bool,
    itself: int = 0,
    again: frozenset[int] = frozenset(),
) -> Budget:
    """Choose chunks, and tables to put on the disk, so that a rank fits into its memory.

    Parameters
    ----------
    sizes : Sizes
    memory : int, optional
        Bytes, besides those of the process itself; ``None``: no limit, or as little as possible
        if there is a directory to write to.
    parts : int, optional
        The number of chunks, if it is fixed.
    spill : bool
        Whether there is a directory to write to.
    itself : int
        Bytes that the process takes by itself, for messages.
    again : frozenset of int
        Layers whose input rows are recomputed.

    Raises
    ------
    InputError
        If the memory is too small; the message says how much would do.
    """

    def priced(number: int, places: Places) -> Budget:
        return Budget(number, places, needed(sizes, number, places, again), again)

    if memory is None:
        places = Places(frozenset(ORDER)) if spill else Places()
        return priced(parts or (SPILLED_PARTS if spill else 1), places)
    number = parts or _parts(sizes, memory)
    # More chunks cost less than what they keep off the disk.
    more = [] if parts else [number, 2 * number, 4 * number]
    fits = [n for n in more if priced(n, Places()).bytes <= memory and n <= sizes.rows]
    number = min(fits, default=number)
    on_disk: list[str] = []
    found = priced(number, Places())
    for purpose in ORDER if spill else ():
        if found.bytes <= memory:
            return found
        on_disk.append(purpose)
        places = Places(frozenset(on_disk))
        if purpose == "operand":
            most = parts or min(MOST_PARTS, max(sizes.rows, 1))
            return _by_panels(sizes, memory, replace(found, places=places), most, itself)
        found = priced(number, places)
    if found.bytes > memory:
        raise _too_little(memory, found.bytes, itself, "give --spill DIR, or more")
    return found


def needed(sizes: Sizes, parts: int, places: Places, again: frozenset[int] = frozenset()) -> int:
    """Bytes at the worst moment of an epoch, and of evaluating after it."""
    matrix = 0 if "matrix" in places.on_disk else sizes.matrix_bytes
    tables, piece = _table_bytes(sizes, places, again), _block_bytes(sizes, parts)
    return sizes.fixed_bytes + matrix + tables + piece


def spare(sizes: Sizes, budget: Budget, memory: int | None, itself: int = 0) -> Spare:
    """Half of what is not needed is for tables, the other half for the pieces of chunks.

    Parameters
    ----------
    sizes : Sizes
    budget : Budget
        What was decided for these sizes.
    memory, itself : int, optional
        As they were given to `decide`; without `memory`: as much again as tables need.
    """
    places, parts = budget.places, budget.parts
    tables, piece = _table_bytes(sizes, places, budget.again), _block_bytes(sizes, parts)
    left = tables
    if memory is not None:
        left = max(0, memory - needed(sizes, parts, places, budget.again))
    resident = None if memory is None else memory + itself
    return Spare(tables + left // 2, piece, resident)


def _table_bytes(sizes: Sizes, places: Places, again: frozenset[int]) -> int:
    features = 0 if "propagated" in places.on_disk else sizes.features_bytes
    return features + Tables(sizes, places, again).most


def merged(budgets: Sequence[Budget]) -> list[Budget]:
    """As ranks agree: the most chunks, the narrowest panels, all on the disk that any has there."""
    depth = max(len(one.places.on_disk) for one in budgets)
    panels = [one.places.panel_bytes for one in budgets if one.places.panel_bytes]
    places = Places(frozenset(ORDER[:depth]), min(panels, default=0))
    parts = max(one.parts for one in budgets)
    return [replace(one, parts=parts, places=places) for one in budgets]


def _block_bytes(sizes: Sizes, parts: int) -> int:
    """Memory that one chunk needs during its computation, with two blocks of the matrix."""
    blocks = 2 * _UNEVEN * sizes.matrix_bytes / parts
    # Of outputs that look at all layers: what each of them makes, dropped, and its gradient.
    copies = _COPIES + 3 * len(sizes.operands) * sizes.jumps
    copies += _NORM_COPIES * max(sizes.norms, default=0) + _EXTREME_COPIES * sizes.extremes
    copies += _ATTENTION_COPIES * any(sizes.heads)
    most = 0
    for number, made in enumerate(sizes.made):
        taken, width = sizes.widths[number], max(sizes.widths[number + 1], sizes.operands[number])
        # Nothing is learnt of features, so there are fewer copies of them.
        of_row = copies * max(width, taken) if number else _GIVEN * taken + copies * width
        most = max(most, made * of_row)
    return int(blocks + sizes.itemsize * _UNEVEN * most / parts)


def _parts(sizes: Sizes, memory: int) -> int:
    """As few as leave each a share of the memory."""
    number = 1
    while number < MOST_PARTS and _block_bytes(sizes, number) > _BLOCK_SHARE * memory:
        number *= 2
    return min(number, max(sizes.rows, 1))


def _by_panels(sizes: Sizes, memory: int, asked: Budget, most: int, itself: int) -> Budget:
    """The widest panel of operands that leaves the rest its room, of at most so many chunks."""
    parts, places, again = asked.parts, asked.places, asked.again
    while True:
        columns = max(sizes.operands)
        while columns:
            tried = replace(places, panel_bytes=columns * sizes.itemsize)
            found = Budget(parts, tried, needed(sizes, parts, tried, again), again)
            if found.bytes <= memory:
                return found
            columns = columns * 3 // 4
        if parts >= most:
            break
        parts = min(2 * parts, most)
    least = needed(sizes, most, replace(places, panel_bytes=sizes.itemsize), again)
    what = "head" if any(sizes.heads) else "column"
    raise _too_little(memory, least, itself, f"one {what} of an operand must fit; give more")


def _too_little(memory: int, least: int, itself: int, advice: str) -> InputError:
    asked, enough, taken = (-(-n // 2**20) for n in (memory + itself, least + itself, itself))
    return InputError(
        f"--memory: {asked} MiB are too few; about {enough} MiB are needed, {taken} of them by the "
        f"process itself: {advice}"
    )
