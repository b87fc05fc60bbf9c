"""What is known of vertices comes back from bytes as it was, one row alone as well."""

from __future__ import annotations

import pytest
import torch

from spgnn.minibatch.facts import Facts


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_facts_survive_packing(rows):
    named = {
        "ids": torch.arange(rows, dtype=torch.int32),
        "y": torch.arange(rows, dtype=torch.int16) - 1,
        "edges": torch.arange(rows, dtype=torch.int32) + 7,
        "weight": torch.arange(rows) / 3,
    }
    facts = Facts(named)
    packed = facts.packed()
    assert packed.shape == (rows, 14)
    found = facts.unpacked(packed)
    assert torch.equal(found.ids, torch.arange(rows))
    assert torch.equal(found.y, torch.arange(rows) - 1)
    assert torch.equal(found.degrees.weight, named["weight"])
    assert torch.equal(found.degrees.edges, torch.arange(rows) + 7)


def test_labels_of_several_columns_survive():
    facts = Facts({"ids": torch.arange(3), "y": torch.rand(3, 2), "edges": torch.ones(3)})
    assert torch.equal(facts.unpacked(facts.packed()[1:]).y, facts.y[1:])
