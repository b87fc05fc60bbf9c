"""Division of a rank's memory: the number of chunks, and the tables that go to the disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from spgnn.addons.outofcore.sizes import Count, Sizes
from spgnn.addons.outofcore.tables import FreedPages, Placement
from spgnn.comm import Communicator
from spgnn.errors import InputError

Recompute = Literal["auto", "never", "always"]
# What libraries take once they are used: thread pools, buffers, code that is loaded late.
LIBRARIES = 96 << 20
MOST_CHUNKS = 4096
SPILLED_CHUNKS = 8  # where nothing says how many
# What goes to the disk first: what is read and written least often for its size.
ORDER = ("propagated", "gradient", "input", "matrix", "product", "operand")
_CHUNK_SHARE = 0.25  # of the memory, for what one chunk needs during its computation
_UNEVEN = 1.5  # the largest chunk over the average
_COPIES = 12  # of a chunk's rows in the widest layer: forward, backward, on their way to the disk
_FEATURE_COPIES = 4  # of a chunk's features: as they are read, the next ones, and converted
_NORM_COPIES = 4  # more, for each norm over all vertices in a layer
_REDUCED_COPIES = 4  # more, where largest neighbours are looked for: which, how many, shares
_EDGE_COPIES = 6  # of what a layer makes of an edge, and of a source, and their gradients
_ATTENTION_COPIES = 4  # more, for attention: running sums, destination scores, gradients


@dataclass(frozen=True)
class Budget:
    """The number of chunks and the tables on the disk that a memory limit leads to."""

    chunks: int
    placement: Placement  # the tables on the disk, and "matrix" if the matrix is there too
    bytes: int  # memory that training is predicted to need, besides that of the process itself
    recomputed: frozenset[int] = frozenset()  # layers whose input rows are not saved

    def traffic(self, sizes: Sizes) -> tuple[int, int]:
        """Bytes that an epoch reads and writes; exact if the sizes are."""
        training, _ = sizes.dry.events(self.recomputed, sizes.keeps)
        count = Count(training, sizes, self.placement, self.chunks)
        return count.read, count.written

    @property
    def record(self) -> dict[str, Any]:
        """The decision, as reports and plans have it."""
        return {
            "chunks": self.chunks,
            "on_disk": sorted(self.placement.on_disk),
            "panel_bytes": self.placement.panel_bytes,
            "recomputed_layers": sorted(self.recomputed),
        }

    def can_sort(self, memory: int | None) -> bool:
        """True if memory is left for making matrices of own rows in files: they are sorted."""
        return memory is None or memory - self.bytes >= self.sort_bytes

    @property
    def sort_bytes(self) -> int:
        """Memory for sorting a matrix by columns."""
        return self.bytes // 4


Decided = Callable[[Sequence[Sizes], frozenset[int]], list[Budget]]
"""Budgets of ranks with some sizes, for a set of recomputed layers."""


def choose(
    sizes: Sequence[Sizes], recompute: Recompute, decided: Decided, *, learns: bool = True
) -> tuple[Sequence[Sizes], list[Budget]]:
    """The budgets of some ranks, which agree, and their sizes with what is saved for backward.

    What the first layer makes of A·X is saved if that puts nothing more on the disk.
    """
    leaner = [replace(each, keeps=False) for each in sizes]
    budgets = choose_recomputed(leaner, recompute, decided)
    first = budgets[0]
    # Where products are on the disk, to multiply again costs less.
    saves = sizes[0].keeps and learns and recompute != "always"
    if saves and "product" not in first.placement.on_disk:
        try:
            saved = decided(sizes, first.recomputed)
        except InputError:
            return leaner, budgets
        if saved[0].placement == first.placement:
            return sizes, saved
    return leaner, budgets


def choose_recomputed(
    sizes: Sequence[Sizes], recompute: Recompute, decided: Decided
) -> list[Budget]:
    """Budgets, and for which layers the input rows that they read are recomputed, not saved."""
    readers = {number for number, reads in enumerate(sizes[0].dry.reads_own) if number and reads}
    if recompute == "always" or not readers:
        return decided(sizes, frozenset(readers))
    try:
        budgets = decided(sizes, frozenset())
    except InputError:
        if recompute == "never":
            raise
        return decided(sizes, frozenset(readers))
    spilled = budgets[0].placement.on_disk
    # What would go to the disk is recomputed from the product before it, if that is in memory.
    if recompute == "never" or "input" not in spilled or "product" in spilled:
        return budgets
    # The product of the first layer may be A·X, which is on the disk then.
    return decided(sizes, frozenset(readers - {1} if "propagated" in spilled else readers))


def decide(
    sizes: Sizes,
    memory: int | None,
    chunks: int | None,
    *,
    spill: bool,
    itself: int = 0,
    recomputed: frozenset[int] = frozenset(),
) -> Budget:
    """Choose chunks, and tables to put on the disk, so that a rank fits into its memory."""

    def priced(number: int, placement: Placement) -> Budget:
        needed = memory_needed(sizes, number, placement, recomputed)
        return Budget(number, placement, needed, recomputed)

    if memory is None:  # there is no limit; with a directory, as little as possible
        placement = Placement(frozenset(ORDER)) if spill else Placement()
        return priced(chunks or (SPILLED_CHUNKS if spill else 1), placement)
    number = chunks or 1
    if not chunks:  # as few as leave each a share of the memory
        while number < MOST_CHUNKS and _chunk_bytes(sizes, number) > _CHUNK_SHARE * memory:
            number *= 2
        number = min(number, max(sizes.rows, 1))
    # More chunks cost less than what they keep off the disk.
    more = [] if chunks else [number, 2 * number, 4 * number]
    fits = [n for n in more if priced(n, Placement()).bytes <= memory and n <= sizes.rows]
    number = min(fits, default=number)
    for depth in range(len(ORDER) if spill else 1):
        budget = priced(number, Placement(frozenset(ORDER[:depth])))
        if budget.bytes <= memory:
            return budget
    if not spill:
        raise _too_little(memory, budget.bytes, itself, "give --spill DIR, or more")
    # The widest panel of operands that leaves space to the rest, of as few chunks as that takes.
    placement, most = Placement(frozenset(ORDER)), chunks or min(MOST_CHUNKS, max(sizes.rows, 1))
    while True:
        columns = max(layer.operand for layer in sizes.dry.layers)
        while columns:
            tried = priced(number, replace(placement, panel_bytes=columns * sizes.itemsize))
            if tried.bytes <= memory:
                return tried
            columns = columns * 3 // 4
        if number >= most:
            break
        number = min(2 * number, most)
    least = priced(most, replace(placement, panel_bytes=sizes.itemsize)).bytes
    layers = sizes.dry.layers
    what = "one head" if any(layer.heads for layer in layers) else "one column"
    what = "all columns" if any(layer.edgewise for layer in layers) else what
    raise _too_little(memory, least, itself, f"{what} of an operand must fit; give more")


def memory_needed(
    sizes: Sizes, chunks: int, placement: Placement, recomputed: frozenset[int] = frozenset()
) -> int:
    """Bytes at the worst moment of an epoch, and of evaluating after it."""
    matrix = 0 if "matrix" in placement.on_disk else sizes.matrix_bytes
    tables = _table_bytes(sizes, placement, recomputed)
    return sizes.fixed_bytes + matrix + tables + _chunk_bytes(sizes, chunks)


def _table_bytes(sizes: Sizes, placement: Placement, recomputed: frozenset[int]) -> int:
    logs = sizes.dry.events(recomputed, sizes.keeps)
    return max(Count(events, sizes, placement).most for events in logs)


def _chunk_bytes(sizes: Sizes, chunks: int) -> int:
    """Memory that one chunk needs during its computation, with two blocks of the matrix."""
    layers = sizes.dry.layers
    # Of outputs that depend on all layers: what each of them makes, dropped, and its gradient.
    copies = _COPIES + 3 * len(layers) * sizes.dry.jumps
    copies += _NORM_COPIES * max(layer.norms for layer in layers)
    copies += _REDUCED_COPIES * all(layer.reduces for layer in layers)
    copies += _ATTENTION_COPIES * any(layer.heads for layer in layers)
    most = 0
    for number, (layer, size) in enumerate(zip(layers, sizes.layers, strict=True)):
        width = max(layer.f_out, layer.operand)
        # Nothing is learnt of features, so there are fewer copies of them.
        features = _FEATURE_COPIES * layer.f_in + copies * width
        numbers = copies * max(width, layer.f_in) if number else features
        most = max(most, size.rows * numbers)
        if layer.edgewise:  # a chunk's edges, and all of their sources
            edges = sizes.nonzeros + size.rows
            sources = min(edges, chunks * (size.columns + sizes.received))
            most = max(most, width * _EDGE_COPIES * (edges + sources))
    blocks = 2 * _UNEVEN * sizes.matrix_bytes / chunks
    # Of rows in 16 bits some copies are float32.
    computed = max(max(sizes.itemsize, 4) * most, sizes.pair_bytes)
    return int(blocks + _UNEVEN * computed / chunks)


def freed_pages(sizes: Sizes, budget: Budget, memory: int | None, itself: int = 0) -> FreedPages:
    """Half of what is not needed is for tables, the other half for the computation of chunks."""
    placement, chunks = budget.placement, budget.chunks
    left = tables = _table_bytes(sizes, placement, budget.recomputed)
    if memory is not None:
        left = max(0, memory - memory_needed(sizes, chunks, placement, budget.recomputed))
    resident = None if memory is None else memory + itself
    return FreedPages(tables + left // 2, _chunk_bytes(sizes, chunks), resident)


def decide_together(
    sizes: Sequence[Sizes],
    memory: int | None,
    chunks: int | None = None,
    *,
    comm: Communicator | None = None,
    **options: Any,
) -> list[Budget]:
    """The same budget for all ranks, those of a communicator too; options are those of `decide`.

    It has the most chunks and tables on the disk, and the narrowest panels, that any rank needs.
    """

    def each() -> list[Budget]:
        return [decide(one, memory, chunks, **options) for one in sizes]

    budgets = each() if comm is None else comm.on_every_rank(each)
    depth = max(len(one.placement.on_disk) for one in budgets)
    widest = 1 << 40
    panel = min(one.placement.panel_bytes or widest for one in budgets)
    number = max(one.chunks for one in budgets)
    if comm is not None:
        depth, panel, number = comm.agree(depth), -comm.agree(-panel), comm.agree(number)
    placement = Placement(frozenset(ORDER[:depth]), 0 if panel == widest else panel)
    recomputed = budgets[0].recomputed
    return [
        Budget(number, placement, memory_needed(one, number, placement, recomputed), recomputed)
        for one in sizes
    ]


def _too_little(memory: int, least: int, itself: int, advice: str) -> InputError:
    limit, enough, taken = (-(-n // 2**20) for n in (memory + itself, least + itself, itself))
    return InputError(
        f"--memory: {limit} MiB are too few; about {enough} MiB are needed, {taken} of them by the "
        f"process itself: {advice}"
    )
