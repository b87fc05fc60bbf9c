"""Work that goes on by a step at every turn."""

from __future__ import annotations

import torch

from spgnn.minibatch.ahead import in_turns, last
from spgnn.minibatch.exact import Drawn
from spgnn.minibatch.gathered import Growing


def work(number, made):
    for step in range(3):
        made.append((number, step))
        yield
    return number


def test_works_are_under_way_together_and_come_in_order():
    made, dropped = [], []
    turns = in_turns((work(number, made) for number in range(6)), dropped.append)
    assert next(turns) == 0
    # The next one is ready, and of each that follows one step less was made.
    assert [sum(number == n for number, _ in made) for n in range(6)] == [3, 3, 3, 2, 1, 0]
    assert [step for _, step in made[:6]] == [0, 1, 0, 2, 1, 0]
    assert list(turns) == [1, 2, 3, 4, 5]
    assert dropped == []
    turns = in_turns((work(number, []) for number in range(6)), dropped.append)
    next(turns)
    turns.close()
    assert dropped == [1]
    assert list(in_turns(iter(()), dropped.append)) == []
    assert last(work(7, made)) == 7


def test_a_row_of_one_entry_is_known_like_others():
    # Its ids are two halves of an array of three columns.
    edges = torch.tensor([[5, 0, 0]], dtype=torch.int32)
    one = Growing(torch.tensor([3]))
    one.know(Drawn(torch.tensor([0, 1]), torch.tensor([8]), edges, None))
    assert one.ids.tolist() == [5]
    assert one.columns.tolist() == [8]
