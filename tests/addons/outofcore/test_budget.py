"""Division of memory: chunks, tables on the disk, panels, and what is recomputed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spgnn.addons.outofcore.budget import (
    ORDER,
    Budget,
    choose_recomputed,
    decide,
    freed_pages,
    keep_first,
    memory_needed,
)
from spgnn.addons.outofcore.matrix import Heads
from spgnn.addons.outofcore.sizes import LayerSizes, Sizes
from spgnn.addons.outofcore.tables import Placement
from spgnn.errors import InputError
from tests.addons.outofcore.runs import task_of

ROWS = 10**6


def sizes(*widths: int, operands, reads_own=False, **instead) -> Sizes:
    layers = tuple(
        LayerSizes(operand, given, made, ROWS, ROWS, reads_own)
        for operand, given, made in zip(operands, widths, widths[1:], strict=False)
    )
    propagated = 4 * widths[0] * ROWS
    return Sizes(layers, ROWS, 0, 10**8, 4, 10**7, propagated_bytes=propagated, **instead)


GCN = sizes(128, 16, 16, 40, operands=(0, 16, 16))
SAGE = sizes(128, 64, 64, 64, 40, operands=(0, 64, 64, 40), reads_own=True, source_bytes=512 * ROWS)
SPILLED = Placement(frozenset(("propagated", "gradient", "input", "product")))


def test_what_is_least_used_goes_to_the_disk_first():
    before: frozenset[str] = frozenset()
    for memory in (10**10, 8 * 10**8, 4 * 10**8, 3 * 10**8, 15 * 10**7):
        found = decide(GCN, memory, None, spill=True)
        assert found.bytes <= memory
        assert found.bytes == memory_needed(GCN, found.chunks, found.placement)
        assert found.placement.on_disk >= before
        before = found.placement.on_disk
    assert found.placement.panel_bytes
    assert decide(GCN, 10**10, None, spill=True).placement == Placement()


def test_more_chunks_before_the_disk():
    memory = 10**10
    while decide(GCN, memory, None, spill=True).placement == Placement():
        memory = memory * 99 // 100
    few, many = (memory_needed(GCN, chunks, Placement()) for chunks in (16, 1024))
    assert many < memory + memory // 99 < few
    # Asked for so many, there are so many.
    assert decide(GCN, memory * 101 // 99, 16, spill=True).placement != Placement()


@pytest.mark.parametrize("memory", [10**9, 3 * 10**8, None])
def test_freed_pages_leave_space_to_the_rest(memory):
    found = decide(GCN, memory, None, spill=True)
    freed = freed_pages(GCN, found, memory)
    assert freed.chunk > 0
    if memory is not None:
        rest = GCN.fixed_bytes + ("matrix" not in found.placement.on_disk) * GCN.matrix_bytes
        assert rest + freed.pages + freed.chunk <= memory


def test_too_little_memory_says_how_much_would_do(tmp_path):
    with pytest.raises(
        InputError,
        match=r"--memory: 196 MiB are .*, 100 of them by the process itself: give --spill DIR",
    ):
        decide(GCN, 10**8, None, spill=False, itself=100 * 2**20)
    with pytest.raises(InputError, match="one column of an operand must fit") as refused:
        decide(GCN, 10**6, None, spill=True)
    enough = int(re.search(r"about (\d+) MiB", str(refused.value))[1])
    assert decide(GCN, enough * 2**20, None, spill=True).bytes <= enough * 2**20
    with pytest.raises(InputError, match="one head of an operand must fit"):
        task_of(model="gat", heads=2, hidden=8, memory="1MB", spill=str(tmp_path))


def test_the_first_layer_learns_too():
    """Its sources are all vertices, of which the next layers need a few, and get gradients."""
    heads = Heads(4, 8, joint=False)
    layers = tuple(
        replace(layer, operand=32, heads=heads, rows=rows, columns=columns)
        for layer, rows, columns in zip(
            GCN.layers, (10**4, 10**3, 10**3), (10**6, 10**4, 10**3), strict=True
        )
    )
    placement = Placement(frozenset(ORDER), panel_bytes=64)  # two heads
    packed = 10**6 * heads.packed(16, 4)
    for learns, least in ((True, 2), (False, 1)):
        some = replace(GCN, layers=layers, learns=learns)
        assert least * packed < memory_needed(some, 64, placement) < (least + 0.5) * packed


def test_without_a_budget():
    assert decide(GCN, None, 7, spill=False) == Budget(
        7, Placement(), memory_needed(GCN, 7, Placement())
    )
    assert decide(GCN, None, None, spill=False).chunks == 1
    assert decide(GCN, None, 7, spill=True).placement.on_disk == set(ORDER)


def test_panels_have_whole_heads():
    placement = Placement(frozenset(ORDER), panel_bytes=100)
    assert [placement.panel(60, 4, heads) for heads in (0, 12, 6, 4, 1)] == [25, 20, 20, 15, 60]


@pytest.mark.parametrize(
    ("on_disk", "expected"),
    [
        ((), ()),
        (("propagated", "gradient"), ()),
        (("gradient", "input"), (1, 2, 3)),
        # The first layer's A·X would be read again.
        (("propagated", "gradient", "input"), (2, 3)),
        # Of a product on the disk and its layer's input, two would be read instead of one.
        (("propagated", "gradient", "input", "product"), ()),
    ],
)
def test_inputs_are_recomputed_where_they_would_be_spilled(on_disk, expected):
    placement = Placement(frozenset(on_disk))
    for how, layers in (("auto", expected), ("never", ()), ("always", (1, 2, 3))):
        (found,) = choose_recomputed(SAGE.reads_own, how, lambda n: [Budget(4, placement, 0, n)])
        assert found.recomputed == frozenset(layers)


def test_bytes_of_recomputing():
    """What is saved is written once and read twice, by the last layer once."""
    row = ROWS * 4 * 64
    saved = Budget(4, SPILLED, 0).traffic(SAGE)
    again = Budget(4, SPILLED, 0, frozenset((2, 3))).traffic(SAGE)
    # For layer 2, layer 1's product and input are read twice; for layer 3, once, and the product of
    # layer 2.
    assert saved.written - again.written == 2 * row
    assert again.read - saved.read == (2 * 2 + 3) * row - (2 + 1) * row


def test_first_product_is_kept_where_nothing_more_goes_to_the_disk():
    keeping = replace(GCN, layers=(replace(GCN.layers[0], kept=16), *GCN.layers[1:]))
    assert keeping.keeping_nothing == GCN
    needs = [memory_needed(each, 1024, Placement()) for each in (GCN, keeping)]
    assert needs[1] - needs[0] == 4 * 16 * ROWS
    for memory, kept in ((needs[1], True), (needs[1] - 1, False), (10**8, False)):
        ways = [decide(each, memory, 1024, spill=True) for each in (GCN, keeping)]
        found = keep_first(ways[:1], lambda ways=ways: ways[1:])
        assert found == (ways[1:] if kept else None)
        # Bytes of the disk are the same: backward reads A·X for the gradient of the weights.
        assert ways[0].traffic(GCN) == ways[0].traffic(keeping)

    def too_little() -> list[Budget]:
        raise InputError("are too few")

    assert keep_first([Budget(4, Placement(), 0)], too_little) is None


def test_memory_decides_where_there_is_no_disk():
    """What does not fit when it is saved is recomputed."""

    def within(memory: int | None, recomputed: frozenset[int]) -> list[Budget]:
        return [decide(SAGE, memory, 4, spill=False, recomputed=recomputed)]

    saved, again = (within(None, layers)[0].bytes for layers in (frozenset(), frozenset((1, 2, 3))))
    assert again < saved
    (found,) = choose_recomputed(SAGE.reads_own, "auto", lambda layers: within(again, layers))
    assert found.recomputed
    assert found.bytes <= again
    with pytest.raises(InputError, match="are too few"):
        choose_recomputed(SAGE.reads_own, "never", lambda layers: within(again, layers))
