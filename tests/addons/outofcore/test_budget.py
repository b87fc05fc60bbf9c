"""Division of memory: chunks, tables on the disk, panels, and what is recomputed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spgnn import nn
from spgnn.addons.outofcore.budget import (
    ORDER,
    Budget,
    choose,
    choose_recomputed,
    decide,
    freed_pages,
    memory_needed,
)
from spgnn.addons.outofcore.chunked_model import ChunkedModel
from spgnn.addons.outofcore.sizes import DryPass, LayerSizes, Sizes
from spgnn.addons.outofcore.tables import Placement
from spgnn.errors import InputError
from tests.addons.outofcore.runs import task_of

ROWS = 10**6


def sizes(model: nn.Stack, propagates: bool = True) -> Sizes:
    dry = DryPass(ChunkedModel(model), sparse=False, propagates=propagates, symmetric=True)
    how = {"received": 0, "nonzeros": 23 * ROWS, "values": 0, "fixed_bytes": 10**7}
    return dry.sizes(rows=ROWS, itemsize=4, in_files=True, **how)


KEEPING = sizes(nn.GCN(128, 16, 3, 40))
GCN, SAGE = replace(KEEPING, keeps=False), sizes(nn.GraphSAGE(128, 64, 4, 40))
SPILLED = Placement(frozenset(("propagated", "gradient", "input", "product")))


def test_what_is_least_used_goes_to_the_disk_first():
    before: frozenset[str] = frozenset()
    for memory in (10**10, 8 * 10**8, 4 * 10**8, 3 * 10**8, 15 * 10**7):
        budget = decide(GCN, memory, None, spill=True)
        assert memory_needed(GCN, budget.chunks, budget.placement) == budget.bytes <= memory
        assert budget.placement.on_disk >= before
        before = budget.placement.on_disk
        # Freed pages leave space to the rest.
        freed = freed_pages(GCN, budget, memory)
        rest = GCN.fixed_bytes + ("matrix" not in before) * GCN.matrix_bytes
        assert rest + freed.pages + freed.chunk <= memory
    assert budget.placement.panel_bytes
    assert decide(GCN, 10**10, None, spill=True).placement == Placement()
    assert freed_pages(GCN, decide(GCN, None, None, spill=True), None).chunk > 0


def test_more_chunks_before_the_disk():
    memory = 10**10
    while decide(GCN, memory, None, spill=True).placement == Placement():
        memory = memory * 99 // 100
    few, many = (memory_needed(GCN, chunks, Placement()) for chunks in (16, 1024))
    assert many < memory + memory // 99 < few
    # If 16 are required, there are 16.
    assert decide(GCN, memory * 101 // 99, 16, spill=True).placement != Placement()


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
    gat = sizes(nn.GAT(16, 32, 3, 40, heads=4), propagates=False)
    rows = (10**4, ROWS), (10**3, 10**4), (10**3, 10**3)
    gat = replace(gat, layers=tuple(LayerSizes(*each) for each in rows))
    placement = Placement(frozenset(ORDER), panel_bytes=64)  # two heads
    packed = ROWS * gat.dry.layers[0].heads.packed(16, 4)
    assert 2 * packed < memory_needed(gat, 64, placement) < 2.5 * packed


def test_without_a_budget():
    plain = Budget(7, Placement(), memory_needed(GCN, 7, Placement()))
    assert decide(GCN, None, 7, spill=False) == plain
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
        (budget,) = choose_recomputed([SAGE], how, lambda _, n: [Budget(4, placement, 0, n)])
        assert budget.recomputed == frozenset(layers)


def test_bytes_of_recomputing():
    """What is saved is written once and read twice, by the last layer once."""
    row = ROWS * 4 * 64
    saved = Budget(4, SPILLED, 0).traffic(SAGE)
    again = Budget(4, SPILLED, 0, frozenset((2, 3))).traffic(SAGE)
    # For layer 2, layer 1's product and input are read twice; for layer 3, once, and the product of
    # layer 2.
    assert saved[1] - again[1] == 2 * row
    assert again[0] - saved[0] == (2 * 2 + 3) * row - (2 + 1) * row


def test_first_product_is_kept_where_nothing_more_goes_to_the_disk():
    needs = [memory_needed(each, 1024, Placement()) for each in (GCN, KEEPING)]
    assert needs[1] - needs[0] == 4 * 16 * ROWS
    for memory, keeps in ((needs[1], True), (needs[1] - 1, False), (10**8, False)):

        def decided(each, recomputed, memory=memory):
            return [decide(one, memory, 1024, spill=True, recomputed=recomputed) for one in each]

        (chosen,), budgets = choose([KEEPING], "auto", decided)
        assert chosen == (KEEPING if keeps else GCN)
        assert budgets == decided([chosen], frozenset())
        # Bytes of the disk are the same: backward reads A·X for the gradient of the weights.
        assert not keeps or budgets[0].traffic(GCN) == budgets[0].traffic(KEEPING)

    def too_little(each, recomputed) -> list[Budget]:
        return [decide(each[0], needs[0], 1024, spill=False)]

    assert choose([KEEPING], "auto", too_little)[0] == [GCN]


def test_memory_decides_where_there_is_no_disk():
    """What does not fit when it is saved is recomputed."""

    def within(memory: int | None, recomputed: frozenset[int]) -> list[Budget]:
        return [decide(SAGE, memory, 4, spill=False, recomputed=recomputed)]

    saved, again = (within(None, layers)[0].bytes for layers in (frozenset(), frozenset((1, 2, 3))))
    assert again < saved
    (budget,) = choose_recomputed([SAGE], "auto", lambda _, layers: within(again, layers))
    assert budget.recomputed
    assert budget.bytes <= again
    with pytest.raises(InputError, match="are too few"):
        choose_recomputed([SAGE], "never", lambda _, layers: within(again, layers))
