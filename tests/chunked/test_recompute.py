"""What layers look at is kept or made again; neither changes a number."""

from __future__ import annotations

import pytest
import torch

from spgnn.chunked.budget import Budget, decide, recomputed
from spgnn.chunked.predict import Forecast
from spgnn.chunked.room import Places
from spgnn.chunked.sizes import Sizes
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.testing import run_ranks
from spgnn.train.in_parts import InParts
from tests.chunked.runs import SMALL, check_bytes, reports

SAGE = Sizes(
    rows=10**6,
    received=0,
    matrix_bytes=10**8,
    operands=(0, 64, 64, 40),
    widths=(128, 64, 64, 64, 40),
    features_bytes=512 * 10**6,
    looks=(True, True, True, True),
    made=(10**6,) * 4,
    sources=(10**6,) * 4,
    itemsize=4,
    fixed_bytes=10**7,
    source_bytes=512 * 10**6,
)
SPILLED = Places(frozenset(("propagated", "skipped", "taken", "product")))
MODELS = (
    {"model": "sage", "layers": 4, "dropout": 0.3},
    {"model": "gin", "residual": True, "layers": 3, "norm": "node", "jk": "cat", "prune": False},
    {"model": "sage", "layers": 3, "dropout": 0.4, "random_labels": 0.05, "prune": True},
)


@pytest.mark.parametrize(("model", "ranks"), list(zip(MODELS, (1, 2, 2), strict=True)))
def test_making_again_changes_no_bit(model, ranks, tmp_path):
    base = {**SMALL, **model, "hidden": 7}
    spilled = {**base, "chunks": 3, "spill": str(tmp_path)}
    flags = [
        {**spilled, "recompute": "never"},
        {**spilled, "recompute": "always"},
        {**base, "chunks": 3, "recompute": "always"},
    ]
    for kept, *others in run_ranks(reports, ranks, flags):
        check_bytes(kept["storage"])
        assert not kept["storage"]["recomputed_layers"]
        for found in others:
            check_bytes(found["storage"])
            for before, after in zip(kept["history"], found["history"], strict=True):
                assert {**before, "seconds": 0} == {**after, "seconds": 0}
        again = others[0]["storage"]
        assert again["recomputed_layers"] == list(range(1, model["layers"]))
        assert again["written_bytes"] < kept["storage"]["written_bytes"]


def test_sizes_foretell_what_the_built_tables_move(tmp_path):
    """The forecast that choices are made of is that of what is then built."""
    for model in MODELS[:2]:
        for recompute in ("never", "always"):
            spilled = {**SMALL, **model, "chunks": 3, "spill": str(tmp_path), "prune": False}
            task = InParts(TrainConfig.of(**spilled, recompute=recompute), connect("gloo"), 0)
            assert Forecast.of_sizes(task.sizes, task.budget) == task.forecast
            task.close()


@pytest.mark.parametrize(
    ("on_disk", "expected"),
    [
        ((), ()),
        (("propagated", "skipped"), ()),
        (("skipped", "taken"), (1, 2, 3)),
        # The first layer's A·X would be read again.
        (("propagated", "skipped", "taken"), (2, 3)),
        # Of a product on the disk and its layer's input, two would be read instead of one.
        (("propagated", "skipped", "taken", "product"), ()),
    ],
)
def test_inputs_are_recomputed_where_they_would_be_spilled(on_disk, expected):
    places = Places(frozenset(on_disk))
    found = recomputed(SAGE.looks, "auto", lambda again: Budget(4, places, 0, again))
    assert found.again == frozenset(expected)
    for how, layers in (("never", ()), ("always", (1, 2, 3))):
        found = recomputed(SAGE.looks, how, lambda again: Budget(4, places, 0, again))
        assert found.again == frozenset(layers)


def test_bytes_of_making_again():
    """What is kept is written once and read twice, by the last layer once."""
    row = 10**6 * 4 * 64
    kept = Forecast.of_sizes(SAGE, Budget(4, SPILLED, 0)).bytes()
    again = Forecast.of_sizes(SAGE, Budget(4, SPILLED, 0, frozenset((2, 3)))).bytes()
    # For layer 2, layer 1's product and input are read twice; for layer 3, once, and the product of
    # layer 2.
    assert kept.written - again.written == 2 * row
    assert again.read - kept.read == (2 * 2 + 3) * row - (2 + 1) * row


def test_memory_decides_where_there_is_no_disk():
    """What does not fit when it is kept is computed again."""

    def within(memory: int | None, again: frozenset[int]) -> Budget:
        return decide(SAGE, memory, 4, spill=False, again=again)

    kept, again = (within(None, layers).bytes for layers in (frozenset(), frozenset((1, 2, 3))))
    assert again < kept
    found = recomputed(SAGE.looks, "auto", lambda layers: within(again, layers))
    assert found.again
    assert found.bytes <= again
    with pytest.raises(InputError, match="are too few"):
        recomputed(SAGE.looks, "never", lambda layers: within(again, layers))


def test_inference_keeps_nothing_to_make_again(tmp_path):
    flags = {**SMALL, "model": "sage", "chunks": 2, "spill": str(tmp_path), "recompute": "always"}
    task = InParts(TrainConfig.of(**flags), connect("gloo"), 0, outputs=4)
    assert not task.budget.again
    assert torch.isfinite(task.all_outputs()).all()
    task.close()
