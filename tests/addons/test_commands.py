"""Commands of add-ons keep the rules of training's: short help, slips that are answered."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

import spgnn
from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.addons.plan.options import PlanConfig
from spgnn.addons.recommend.config import RecommendConfig
from spgnn.config import TrainConfig
from spgnn.registry import COMMANDS
from tests.train.command import check_help, check_slip


@pytest.mark.parametrize("kind", [MiniBatchConfig, PlanConfig, RecommendConfig])
def test_help_is_short_and_names_are_unique(kind, capsys):
    check_help(kind, capsys)


@pytest.mark.parametrize(
    ("kind", "words", "meant"),
    [
        (MiniBatchConfig, "--algo 1d", "it is a flag of gcn.py"),
        (TrainConfig, "--batch-size 9", "it is a flag of minibatch.py"),
        (TrainConfig, "--fanouts 9", "--num-neighbors is a flag of minibatch.py"),
        (TrainConfig, "--recipe none", "it is a flag of lightgcn.py"),
        (MiniBatchConfig, "--ranks 4", "did you mean '--nproc'?"),
        (RecommendConfig, "--disk-speed 3", "it is a flag of spgnn plan"),
        (RecommendConfig, "--preset fast", "it is a flag of spgnn-partition"),
        (RecommendConfig, "--hidden 3", "did you mean '--dim'?"),
        (PlanConfig, "sbm --np 4", "did you mean '--ranks'?"),
        (PlanConfig, "sbm --ranks 4 --graph sbm", "did you mean 'GRAPH without a flag'?"),
    ],
)
def test_slips_are_answered_with_what_was_meant(kind, words, meant):
    check_slip(kind, words, meant)


def test_addons_are_imported_as_rooms_are():
    """One module by both names, its modules too; what there is not says so."""
    short, long = (import_module(f"spgnn.{name}recommend") for name in ("", "addons."))
    assert short is long is spgnn.recommend
    inner, same = (import_module(f"spgnn.{name}recommend.readers") for name in ("", "addons."))
    assert inner is same
    assert (long.__spec__.name, inner.__spec__.name) == (long.__name__, inner.__name__)
    for name in ("spgnn.nonsense", "spgnn.recommend.nonsense", "spgnn.addons.nonsense"):
        with pytest.raises(ModuleNotFoundError, match=r"No module named 'spgnn.*nonsense'"):
            import_module(name)


# A process of its own: this one has imported everything. `spgnn-partition` ends as `spgnn` does.
HELP = """
import sys
from contextlib import suppress
from spgnn.__main__ import main
from spgnn.partition.__main__ import main as partition
from spgnn.registry import COMMANDS
for name in COMMANDS:
    with suppress(SystemExit):
        main([name, "--help"])
with suppress(SystemExit):
    partition(["--help"])
assert sys.modules.keys().isdisjoint(("torch", "numpy", "scipy", "spgnn._native"))
"""


def test_help_of_every_command_waits_for_neither_torch_nor_numpy():
    shown = subprocess.check_output([sys.executable, "-c", HELP], text=True)
    programs = {*(f"spgnn {name}" for name in COMMANDS), "spgnn-partition"}
    assert set(re.findall(r"^Usage: ([\w -]+?) [-\[A-Z]", shown, re.M)) == programs
