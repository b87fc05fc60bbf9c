"""One of each kind is registered from outside the package, as the page shows it, and used."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.partition.__main__ import main as partition_main
from spgnn.registry import MODELS, SCHEMES, SECTIONS, Registry
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "extending.md"


def extended(rank: int, folder: str) -> list[str]:
    """The names of each registry after the page's programs; commands take them."""
    scope = {"__name__": "__main__"}
    for source in blocks(PAGE, "python"):
        exec(compile(source, str(PAGE), "exec", dont_inherit=True), scope)
    if rank == 0:
        A = sp.random_array((40, 40), density=0.1, format="csr", rng=np.random.default_rng(0))
        sp.save_npz(f"{folder}/graph.npz", A)
        words = f"{folder}/graph.npz --parts 4 --method dealt --output {folder}/labels"
        assert partition_main(words.split()) == 0
        labels = np.loadtxt(f"{folder}/labels", dtype=int)
        # The same parts, under the numbers of their places.
        assert len({*zip(labels.tolist(), (np.arange(40) % 4).tolist(), strict=True)}) == 4
    with pytest.raises(InputError, match=r"--relays needs --algo 1d, .*not by-columns"):
        Algorithm("by-columns", relays=True).check(2)
    with pytest.raises(InputError, match="--cover row needs --algo"):
        Algorithm("by-columns", cover="row").check(2)
    with pytest.raises(InputError, match=r"algo by-colums: .*did you mean 'by-columns'"):
        Algorithm("by-colums").check(2)
    common = "--dataset rmat-6-4 --random-features 4 --random-classes 3 --epochs 2"
    for words in ("--algo by-columns", "--partition dealt", "--model deep --algo by-columns"):
        config = TrainConfig.read(f"{common} {words}".split())
        assert len(train(config, connect())["history"]) == 2
    return [name for registry in (SCHEMES, MODELS, SECTIONS) for name in registry]


def test_the_page_s_programs_register_one_of_each(tmp_path):
    for names in run_ranks(extended, 2, str(tmp_path)):
        assert {"by-columns", "deep", "TrainConfig.notes"} <= set(names)
    assert "by-columns" not in SCHEMES


def test_the_page_has_a_program_of_each():
    page = PAGE.read_text(encoding="utf-8")
    imports = re.findall(r"from spgnn\.registry import (.+)", page)
    shown = {name for line in imports for name in line.split(", ")}
    expected = {"SCHEMES", "CODECS", "METHODS", "MODELS", "READERS", "DATASETS", "SECTIONS"}
    assert expected | {"SAMPLERS", "LAYERS", "REDUCTIONS"} == shown


def test_a_name_stands_for_one_thing():
    registry = Registry("thing", {"one": "math:pi"})
    registry.add("one", "math:pi")
    with pytest.raises(InputError, match="thing one: is registered already"):
        registry.add("one", "math:e")
    assert registry["one"] == np.pi
    registry.add("one", "math:pi")  # the same text, after it was imported
    with pytest.raises(InputError, match=r"thing on: .*did you mean 'one'"):
        _ = registry["on"]
