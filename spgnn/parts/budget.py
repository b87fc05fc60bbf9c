"""How a rank's memory is shared out: how many parts, and what lies on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spgnn.errors import InputError
from spgnn.parts.room import Places

MOST_PARTS = 4096
# A layer gets a matrix of its own rows if these have at most this share of all nonzeros.
OWN_MATRIX = 0.125
SPILLED_PARTS = 8  # where nothing says how many
# What goes to the disk first: what is read and written least often for its size.
ORDER = ("propagated", "skipped", "taken", "matrix", "product", "operand")
_BLOCK_SHARE = 0.25  # of the memory, for what one part needs while it is worked on
_UNEVEN = 1.5  # the largest part over the average
_COPIES = 8  # of a part's rows, forward and backward, in the widest layer
_NORM_COPIES = 4  # more, for each norm over all vertices in a layer
_EXTREME_COPIES = 4  # more, where largest neighbours are looked for: which, how many, shares


@dataclass(frozen=True)
class Sizes:
    """What a rank's share of the work needs, in numbers.

    Attributes
    ----------
    rows, received : int
        Own rows, and those of others that their product needs.
    matrix_bytes : int
        To go through the adjacency once.
    operands : tuple of int
        Width of what each layer multiplies; 0 for a first layer that takes A·X.
    widths : tuple of int
        Features, and what each layer makes.
    features_bytes : int
        Of A·X, if that is made; else 0.
    looks : tuple of bool
        Whether each layer looks at its input beside the product.
    made : tuple of int
        Own rows that each layer makes, at most.
    sources : tuple of int
        Own rows that each layer's product is made of, at most.
    itemsize : int
        Bytes of a number.
    fixed_bytes : int
        What is in memory whatever is decided.
    sides : int
        How many copies of the adjacency `matrix_bytes` are: 2 with its transpose.
    small : tuple of bool
        Which layers have a matrix of their own, of few rows, in memory.
    source_bytes : int
        To read the features, as they were found, once; 0 in memory.
    learns : bool
        Whether the first layer's operand depends on a weight.
    jumps : bool
        Whether outputs are made of what all layers make.
    norms : tuple of int
        How often each layer asks for moments over all vertices; empty: none does.
    extremes : bool
        Whether layers take the largest neighbours, and no products.
    """

    rows: int
    received: int
    matrix_bytes: int
    operands: tuple[int, ...]
    widths: tuple[int, ...]
    features_bytes: int
    looks: tuple[bool, ...]
    made: tuple[int, ...]
    sources: tuple[int, ...]
    itemsize: int
    fixed_bytes: int
    sides: int = 1
    small: tuple[bool, ...] = ()
    source_bytes: int = 0
    learns: bool = True
    jumps: bool = False
    norms: tuple[int, ...] = ()
    extremes: bool = False


@dataclass(frozen=True)
class Budget:
    """What was decided.

    Attributes
    ----------
    parts : int
    places : Places
        With "matrix" among what lies on the disk, if it does.
    bytes : int
        Memory that this is expected to need, of all but the process itself.
    again : frozenset of int
        Layers for which what they look at is made again, and not kept.
    """

    parts: int
    places: Places
    bytes: int
    again: frozenset[int] = frozenset()


def decide(
    sizes: Sizes,
    memory: int | None,
    parts: int | None,
    *,
    spill: bool,
    itself: int = 0,
    again: frozenset[int] = frozenset(),
) -> Budget:
    """Parts, and what lies on the disk, so that a rank needs at most so much memory.

    Parameters
    ----------
    sizes : Sizes
    memory : int, optional
        Bytes, beside what the process itself takes; ``None``: as much as it takes, or as little as
        can be if there is a directory to write to.
    parts : int, optional
        If it is given, so many.
    spill : bool
        Whether there is a directory to write to.
    itself : int
        Bytes that the process takes by itself, for messages.
    again : frozenset of int
        Layers for which what they look at is made again.

    Raises
    ------
    InputError
        If it cannot be done; says with how much memory it could.
    """

    def priced(number: int, places: Places) -> Budget:
        return Budget(number, places, needed(sizes, number, places, again), again)

    if memory is None:
        places = Places(frozenset(ORDER)) if spill else Places()
        return priced(parts or (SPILLED_PARTS if spill else 1), places)
    number = parts or _parts(sizes, memory)
    on_disk: list[str] = []
    found = priced(number, Places())
    for purpose in ORDER if spill else ():
        if found.bytes <= memory:
            return found
        on_disk.append(purpose)
        places = Places(frozenset(on_disk))
        if purpose == "operand":
            return _by_panels(sizes, memory, found, places, itself)
        found = priced(number, places)
    if found.bytes > memory:
        raise _too_little(memory, found.bytes, itself, "give --spill DIR, or more")
    return found


def needed(sizes: Sizes, parts: int, places: Places, again: frozenset[int] = frozenset()) -> int:
    """Bytes at the worst moment of an epoch, and of evaluating after it."""
    on_disk = places.on_disk
    matrix = 0 if "matrix" in on_disk else sizes.matrix_bytes
    features = 0 if "propagated" in on_disk else sizes.features_bytes
    return (
        sizes.fixed_bytes
        + matrix
        + features
        + _block_bytes(sizes, parts)
        + max(_live(sizes, layer, places, again) for layer in range(len(sizes.operands)))
    )


def _live(sizes: Sizes, layer: int, places: Places, again: frozenset[int]) -> int:
    """Tables while a layer is worked on, forward or backward, or evaluating, whichever are most."""
    item, layers = sizes.itemsize, len(sizes.operands)

    def product(number: int) -> int:
        held = number < layers and "product" not in places.on_disk
        return item * sizes.made[number] * sizes.operands[number] if held else 0

    def looked_at(number: int, purpose: str) -> int:
        held = 0 < number < layers and sizes.looks[number] and purpose not in places.on_disk
        return item * sizes.made[number] * sizes.widths[number] if held else 0

    def taken(number: int) -> int:
        return 0 if number in again else looked_at(number, "taken")

    def skipped(number: int) -> int:
        return looked_at(number, "skipped")

    def in_panels(rows: int, number: int) -> int:
        """What is multiplied; by panels, if it lies on the disk."""
        width = item * (sizes.operands[number] if number < layers else 0)
        if "operand" in places.on_disk and places.panel_bytes:
            width = min(places.panel_bytes, width)
        return (rows + sizes.received) * width

    def operand(number: int) -> int:
        return in_panels(sizes.sources[number], number) if number < layers else 0

    def looked_back(number: int) -> int:
        """The operand that is kept until its largest rows get their gradients."""
        asked = sizes.extremes and (number > 0 or sizes.learns)
        return operand(number) if asked and "operand" not in places.on_disk else 0

    kept = sum(product(n) + taken(n) + looked_back(n) for n in range(layer + 1))
    # An operand on the disk is in memory one at a time.
    following = 0 if "operand" in places.on_disk else operand(layer + 1)
    # The last layer's gradients are made forward.
    last_layer = layer == layers - 1
    held = sizes.jumps and "skipped" not in places.on_disk
    before = range(layers - 1 if last_layer else layer + 1) if held else ()
    jumps = item * sum(sizes.made[n] * sizes.widths[n + 1] for n in before)
    forward = operand(layer) + following + kept + taken(layer + 1)
    # Nothing is made again where no products are kept, as they are for outputs of all layers.
    asked = looked_at(layer, "taken") + looked_at(layer + 1, "taken")
    norms = sizes.norms[layer] if sizes.norms else 0
    # Norms that look at all vertices go through a layer's product again.
    asked += product(layer) if norms else 0
    evaluating = forward if sizes.jumps else operand(layer) + following + asked
    # The gradient of what a layer makes waits for that of their moments.
    waits = norms and (last_layer or not sizes.looks[layer + 1])
    waiting = 0
    if waits and "skipped" not in places.on_disk:
        waiting = item * sizes.made[layer] * sizes.widths[layer + 1]
    # Backward, the gradient of the next product is multiplied, spread over all rows.
    read = in_panels(sizes.rows, layer + 1) if layer + 1 < layers else 0
    if sizes.extremes:
        # The operand, its gradient, and what other ranks send for that.
        read = (2 + (sizes.received > 0)) * operand(layer + 1)
    beside = skipped(layer + 1) + skipped(layer)
    backward = read + kept + product(layer + 1) + taken(layer + 1) + beside + waiting
    forward += skipped(layer) + waiting + jumps if last_layer else 0
    return max(forward, backward + jumps, evaluating)


def at_most(sizes: Sizes, wanted: int, nonzeros: int, total: int) -> Sizes:
    """The same if outputs of few rows are looked at, from how many these are alone.

    Parameters
    ----------
    sizes : Sizes
        With layers that make all rows.
    wanted : int
        Own rows of the last layer that are looked at.
    nonzeros : int
        In these rows.
    total : int
        In all own rows.
    """
    rows, layers = sizes.rows, len(sizes.operands)
    made, sources = [rows] * layers, [rows] * layers
    made[-1] = wanted
    if nonzeros > OWN_MATRIX * total:
        return replace(sizes, made=tuple(made))
    before = min(rows, nonzeros + wanted)
    if layers > 1:
        made[-2] = before
    # On several ranks, its columns are all own rows.
    sources[-1] = rows if sizes.received else before
    own_bytes = 2 * (8 * (nonzeros + wanted) + 8 * sources[-1]) + 8 * before
    return replace(
        sizes,
        made=tuple(made),
        sources=tuple(sources),
        small=(False,) * (layers - 1) + (True,),
        fixed_bytes=sizes.fixed_bytes + own_bytes,
    )


def merged(budgets: Sequence[Budget]) -> list[Budget]:
    """As ranks agree: the most parts, the narrowest panels, all on the disk that any has there."""
    depth = max(len(one.places.on_disk) for one in budgets)
    panels = [one.places.panel_bytes for one in budgets if one.places.panel_bytes]
    places = Places(frozenset(ORDER[:depth]), min(panels, default=0))
    parts = max(one.parts for one in budgets)
    return [replace(one, parts=parts, places=places) for one in budgets]


def _block_bytes(sizes: Sizes, parts: int) -> int:
    """What one part needs while it is worked on, with two blocks of the matrix."""
    number = range(len(sizes.made))
    widths = [max(sizes.widths[n], sizes.widths[n + 1], sizes.operands[n]) for n in number]
    most = max(made * width for made, width in zip(sizes.made, widths, strict=True))
    blocks = 2 * _UNEVEN * sizes.matrix_bytes / parts
    # Of outputs that look at all layers: what each of them makes, dropped, and its gradient.
    copies = _COPIES + 3 * len(sizes.operands) * sizes.jumps
    copies += _NORM_COPIES * max(sizes.norms, default=0) + _EXTREME_COPIES * sizes.extremes
    return int(blocks + copies * sizes.itemsize * _UNEVEN * most / parts)


def _parts(sizes: Sizes, memory: int) -> int:
    """As few as leave each a share of the memory."""
    number = 1
    while number < MOST_PARTS and _block_bytes(sizes, number) > _BLOCK_SHARE * memory:
        number *= 2
    return min(number, max(sizes.rows, 1))


def _by_panels(sizes: Sizes, memory: int, asked: Budget, places: Places, itself: int) -> Budget:
    """The widest panel of operands that leaves the rest its room."""
    columns, parts, again = max(sizes.operands), asked.parts, asked.again
    while columns:
        tried = replace(places, panel_bytes=columns * sizes.itemsize)
        found = Budget(parts, tried, needed(sizes, parts, tried, again), again)
        if found.bytes <= memory:
            return found
        columns = columns * 3 // 4
    least = needed(sizes, MOST_PARTS, replace(places, panel_bytes=sizes.itemsize), again)
    raise _too_little(memory, least, itself, "one column of an operand must fit; give more")


def _too_little(memory: int, least: int, itself: int, advice: str) -> InputError:
    asked, enough, taken = (-(-n // 2**20) for n in (memory + itself, least + itself, itself))
    return InputError(
        f"--memory: {asked} MiB are too few; about {enough} MiB are needed, {taken} of them by the "
        f"process itself: {advice}"
    )
