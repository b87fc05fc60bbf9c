"""How memory is shared out, and panels of columns."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spgnn.chunked.budget import ORDER, Budget, decide, needed, spare
from spgnn.chunked.room import Places
from spgnn.chunked.sizes import Heads, Sizes
from spgnn.errors import InputError
from spgnn.testing import run_ranks
from spgnn.train import in_parts
from tests.chunked.runs import SMALL, check_bytes, check_equal, reports

SIZES = Sizes(
    rows=10**6,
    received=0,
    matrix_bytes=10**8,
    operands=(0, 16, 16),
    widths=(128, 16, 16, 40),
    features_bytes=512 * 10**6,
    looks=(False, False, False),
    made=(10**6, 10**6, 10**6),
    sources=(10**6, 10**6, 10**6),
    itemsize=4,
    fixed_bytes=10**7,
)


def test_what_is_least_used_goes_to_the_disk_first():
    before: frozenset[str] = frozenset()
    for memory in (10**10, 8 * 10**8, 4 * 10**8, 3 * 10**8, 15 * 10**7):
        found = decide(SIZES, memory, None, spill=True)
        assert found.bytes <= memory
        assert found.bytes == needed(SIZES, found.parts, found.places)
        assert found.places.on_disk >= before
        before = found.places.on_disk
    assert found.places.panel_bytes
    assert decide(SIZES, 10**10, None, spill=True).places == Places()


def test_more_parts_before_the_disk():
    memory = 10**10
    while decide(SIZES, memory, None, spill=True).places == Places():
        memory = memory * 99 // 100
    few, many = (needed(SIZES, parts, Places()) for parts in (16, 1024))
    assert many < memory + memory // 99 < few
    # Asked for so many, there are so many.
    assert decide(SIZES, memory * 101 // 99, 16, spill=True).places != Places()


@pytest.mark.parametrize("memory", [10**9, 3 * 10**8, None])
def test_what_is_kept_leaves_room_for_the_rest(memory):
    found = decide(SIZES, memory, None, spill=True)
    kept = spare(SIZES, found, memory)
    assert kept.piece > 0
    if memory is not None:
        rest = SIZES.fixed_bytes + ("matrix" not in found.places.on_disk) * SIZES.matrix_bytes
        assert rest + kept.pages + kept.piece <= memory


def test_too_little_memory_says_how_much_would_do():
    with pytest.raises(
        InputError,
        match=r"--memory: 196 MiB are .*, 100 of them by the process itself: give --spill DIR",
    ):
        decide(SIZES, 10**8, None, spill=False, itself=100 * 2**20)
    with pytest.raises(InputError, match="one column of an operand must fit"):
        decide(SIZES, 10**6, None, spill=True)


def test_what_would_do_does():
    with pytest.raises(InputError) as refused:
        decide(SIZES, 10**6, None, spill=True)
    enough = int(re.search(r"about (\d+) MiB", str(refused.value))[1])
    assert decide(SIZES, enough * 2**20, None, spill=True).bytes <= enough * 2**20


def test_the_first_layer_learns_too():
    """Its sources are all vertices, of which the next layers need a few, and get gradients."""
    heads = Heads(4, 8, joint=False)
    sizes = replace(
        SIZES,
        operands=(32, 32, 32),
        heads=(heads,) * 3,
        made=(10**4, 10**3, 10**3),
        sources=(10**6, 10**4, 10**3),
    )
    places = Places(frozenset(ORDER), panel_bytes=64)  # two heads
    packed = 10**6 * heads.packed(16, 4)
    assert 2 * packed < needed(sizes, 64, places) < 2.5 * packed
    assert packed < needed(replace(sizes, learns=False), 64, places) < 1.5 * packed


def test_without_a_budget():
    assert decide(SIZES, None, 7, spill=False) == Budget(7, Places(), needed(SIZES, 7, Places()))
    assert decide(SIZES, None, None, spill=False).parts == 1
    assert decide(SIZES, None, 7, spill=True).places.on_disk == set(ORDER)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", [{"dropout": 0.5}, {"model": "sage", "random_labels": 0.1}])
def test_panels_change_nothing(model, ranks, tmp_path, monkeypatch):
    """Operands of which two or three columns are in memory at a time."""
    tight = Budget(5, Places(frozenset(ORDER), panel_bytes=12), 10**9)
    monkeypatch.setattr(in_parts, "decide", lambda *args, **options: tight)
    base = {**SMALL, "layers": 3, "hidden": 7, **model}
    flags = [base, {**base, "memory": "4GB", "spill": str(tmp_path)}]
    for expected, found in run_ranks(reports, ranks, flags):
        check_equal(expected["history"], found["history"])
        check_bytes(found["storage"])
        assert found["storage"]["panel_bytes"] == 12
        assert found["storage"]["amplification"] > 1
    assert not list(tmp_path.iterdir())
