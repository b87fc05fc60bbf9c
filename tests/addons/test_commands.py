"""Commands of add-ons keep the rules of training's: short help, slips that are answered."""

from __future__ import annotations

import pytest

from spgnn.addons.diskbatches.minibatch_config import MiniBatchConfig
from spgnn.addons.plan.cli import PlanConfig
from spgnn.addons.recommend.config import RecommendConfig
from spgnn.config import TrainConfig
from spgnn.inference.cli import InferConfig
from spgnn.options import options_of
from spgnn.partition.__main__ import Options as PartitionOptions
from spgnn.slips import FLAGS_OF
from tests.train.command import check_help, check_slip


@pytest.mark.parametrize("kind", [MiniBatchConfig, PlanConfig, RecommendConfig])
def test_help_is_short_and_names_are_unique(kind, capsys):
    check_help(kind, capsys)


@pytest.mark.parametrize(
    ("kind", "words", "meant"),
    [
        (MiniBatchConfig, "--algo 1d", "it is a flag of gcn.py"),
        (RecommendConfig, "--hidden 3", "did you mean '--dim'?"),
        (PlanConfig, "sbm --np 4", "did you mean '--ranks'?"),
        (PlanConfig, "sbm --ranks 4 --graph sbm", "did you mean 'GRAPH without a flag'?"),
    ],
)
def test_slips_are_answered_with_what_was_meant(kind, words, meant):
    check_slip(kind, words, meant)


def test_flags_of_other_commands_are_theirs():
    flags = {
        kind.program: {o.flag for record in kind.sections().values() for o in options_of(record)}
        for kind in (TrainConfig, MiniBatchConfig, RecommendConfig, PlanConfig, InferConfig)
    }
    flags["spgnn-partition"] = {option.flag for option in options_of(PartitionOptions)}
    for command, names in FLAGS_OF.items():
        assert {f"--{name}" for name in names.split()} <= flags[command]
