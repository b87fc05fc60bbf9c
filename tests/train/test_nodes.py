"""--hierarchy: what auto means under a launcher, and the report by level."""

from __future__ import annotations

import os

import numpy as np
import pytest

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.testing import run_ranks
from spgnn.train.run import resolved
from tests.train.command import losses_of, report_of
from tests.training import run as train
from tests.training import write_dataset

# Ranks on the node of each rank, and what auto makes of it.
LAUNCHED = [
    ([2, 2, 2, 2], "2"),
    ([4, 4, 4, 4], "none"),  # one node
    ([1, 1, 1, 1], "none"),  # one rank a node
    ([3, 3, 3, 1], "none"),  # nodes of different sizes
]


def launched_as(rank: int, sizes: list[int]) -> list[tuple[str, int]]:
    comm = connect()
    first = sum(1 for r in range(rank) if sizes[r] == sizes[rank]) % sizes[rank]
    os.environ |= {"LOCAL_RANK": str(first), "LOCAL_WORLD_SIZE": str(sizes[rank])}
    asked = [{"hierarchy": "auto"}, {"hierarchy": "auto", "exchange": "oblivious"}]
    asked += [{"hierarchy": "auto", "algo": "1.5d", "c": 2}, {}, {"hierarchy": 4}]
    found = []
    for flags in asked:
        config = resolved(TrainConfig.of(**flags), comm)
        config.check(comm.size)
        found.append((config.algorithm.hierarchy, comm.ledger.node_size))
        assert config.nodes(4) == (2 if comm.ledger.node_size == 2 else None)
    return found


@pytest.mark.parametrize(("sizes", "auto"), LAUNCHED)
def test_auto_is_what_the_launcher_says(sizes, auto):
    known = sizes[0] if len(set(sizes)) == 1 else 0
    expected = [(auto, known), ("none", known), (auto, known), ("none", known), ("4", 4)]
    assert run_ranks(launched_as, 4, sizes) == [expected] * 4


def round_robin(rank: int) -> str:
    os.environ |= {"LOCAL_RANK": str(rank // 2), "LOCAL_WORLD_SIZE": "2"}
    return resolved(TrainConfig.of(hierarchy="auto"), connect()).algorithm.hierarchy


def test_ranks_dealt_to_nodes_in_turn_are_no_hierarchy():
    assert run_ranks(round_robin, 4) == ["none"] * 4


def test_a_hierarchy_sends_less_between_nodes(tmp_path):
    """The same losses; fewer bytes than flat 1D, whose bytes are known by level too."""
    base = TrainConfig.of(
        dataset="rmat-6-8", random_features=5, random_classes=3, epochs=2, partition="block"
    )
    ways = [base.but(cover=cover) for cover in ("column", "row", "minimum")]

    def trained(rank: int) -> list:
        comm = connect()
        os.environ |= {"LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2"}
        return [
            [train(config.but(hierarchy=hierarchy), comm) for hierarchy in ("none", "auto")]
            for config in ways
        ]

    for (losses, flat), (others, two) in run_ranks(trained, 4)[0]:
        np.testing.assert_allclose(others, losses, rtol=1e-4)
        assert two["config"]["hierarchy"] == "2"
        between = []
        for report in (flat, two):
            levels = report["volume_by_level"]
            assert levels == report["planned_volume_by_level"]
            total = sum(level["total_bytes"] for level in levels.values())
            assert total == report["volume"]["total_bytes"]
            between.append(levels["between"]["total_bytes"])
        assert 0 < between[1] < between[0]


def test_sockets_inside_nodes():
    """Three levels: the same losses, each level's bytes as planned, fewer between sockets."""
    base = TrainConfig.of(
        dataset="rmat-6-8", random_features=5, random_classes=3, epochs=2, partition="block"
    )

    def trained(rank: int) -> list:
        comm, found = connect(), []
        for cover, bits in (("minimum", "32"), ("column", "8")):
            for hierarchy in ("none", "4", "2,4"):
                config = base.but(hierarchy=hierarchy, cover=cover, bits=bits)
                losses, report = train(config, comm)
                found.append((losses, report["volume_by_level"]))
                assert report["volume_by_level"] == report["planned_volume_by_level"]
        return found

    results = run_ranks(trained, 8)[0]
    for (exact, _), (two, _), (three, levels) in (results[:3], results[3:]):
        np.testing.assert_allclose(two, exact, rtol=1e-4 if exact is results[0][0] else 0.05)
        np.testing.assert_allclose(three, two, rtol=1e-4 if exact is results[0][0] else 0.05)
        assert [*levels] == ["inside", "between groups of 2", "between"]
        assert min(level["total_bytes"] for level in levels.values()) > 0


def test_the_command(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    flags = ["--dataset", path, "--nproc", 4, "--cover", "minimum", "--partition", "gvb"]
    flat, two = (report_of(tmp_path, *flags, "--hierarchy", how) for how in ("none", 2))
    np.testing.assert_allclose(losses_of(two), losses_of(flat), rtol=1e-4)
    assert two["volume_by_level"]["between"]["total_bytes"] > 0
    for name in ("volume", "volume_by_level"):
        assert two[name] == two[f"planned_{name}"]
    # The partition knows the nodes as well, and says what moves on each level.
    levels = two["partition"]["levels"]
    assert levels["nodes"] == 2
    assert 0 < levels["between"]["total"] <= levels["between_flat"]["total"]
    assert flat["partition"].get("levels") is None
    placed = report_of(tmp_path, *flags, "--nodes", 2)
    np.testing.assert_allclose(losses_of(placed), losses_of(flat), rtol=1e-4)
    assert placed["partition"]["levels"]["nodes"] == placed["config"]["nodes"] == 2
    flatly, by_level = placed["partition"]["levels"], placed["volume_by_level"]
    assert flatly["between_flat"]["total"] == levels["between_flat"]["total"]
    assert by_level["between"]["total_bytes"] > two["volume_by_level"]["between"]["total_bytes"]
    assert by_level == placed["planned_volume_by_level"]
