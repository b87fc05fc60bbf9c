"""Options of training from a disk, and what they do not go with."""

from __future__ import annotations

import pytest

from spgnn import InputError
from spgnn.config import TrainConfig
from tests.train.command import check_slip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"spill_dtype": "bfloat16"}, "storage.spill-dtype needs --memory, --spill or --chunks"),
        ({"recompute": "always"}, "storage.recompute needs --memory, --spill or --chunks"),
        ({"chunks": 2, "memory": 99}, "--memory: 99 bytes are less than any process takes"),
        ({"chunks": 2, "cover": "row"}, "--chunks need --algo 1d, --cover column"),
        ({"chunks": 2, "inductive": True}, "--chunks need fixed rows: no aim.inductive"),
        ({"chunks": 2, "dtype": "bfloat16", "model": "gat"}, "need layers that are products"),
        ({"chunks": 2, "device": "cuda"}, "--chunks work on CPUs"),
        ({"chunks": 2, "model": "gat", "message_dropout": 0.5}, "model.message-dropout 0"),
        ({"chunks": 2, "fresh": 0.1}, "messages.fresh 0.1 needs rows in memory: no --memory"),
        ({"chunks": 2, "bits": 8}, "--bits 8 needs rows in memory: no --memory"),
    ],
)
def test_combinations_that_cannot_work(options, words):
    with pytest.raises(InputError, match=words):
        TrainConfig.of(**options).check(1)


def test_options_are_read_and_whole_rows_travel():
    config = TrainConfig.read(["--memory=2GiB"])
    assert config == TrainConfig.of(memory=2**31)
    assert TrainConfig.read(config.written()) == config
    assert (config.distribution.cover, config.objective) == ("column", "both")
    assert "--chunks" in config.whole_rows
    config.check(4)
    check_slip(TrainConfig, "--memory 20 GB", "'GB' is no flag, and --memory takes one word")
