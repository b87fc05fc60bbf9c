"""What caches keep: each rule against a plain model, Belady's against all choices there are."""

from collections import OrderedDict

import numpy as np
import pytest
import torch

from spgnn.errors import InputError
from spgnn.store import POLICIES, Optimum, Policy, hits, optimal_hits


def random_trace(rng, rows, batches, largest):
    sizes = rng.integers(0, largest + 1, batches)
    return [rng.permutation(rows)[:size].astype(np.int64) for size in sizes]


def skewed_trace(seed, rows=200, batches=60, size=30):
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, rows + 1)
    return [rng.choice(rows, size, replace=False, p=weight / weight.sum()) for _ in range(batches)]


class EveryChoice:
    """The fewest reads, over all ways to choose what is kept after each batch."""

    def __init__(self, rows, slots):
        kept = np.array([s for s in range(1 << rows) if s.bit_count() <= slots])
        self.kept = kept
        self.count = np.array([s.bit_count() for s in range(1 << rows)])

    def most_hits(self, trace):
        reads = np.where(self.kept == 0, 0, 10**6)  # the cache is empty at first
        for batch in trace:
            needed = int(sum(1 << int(row) for row in batch))
            served = reads + self.count[needed & ~self.kept]
            # From what was kept to what is: any of the old and of the batch's rows.
            possible = (self.kept[None, :] & ~(self.kept[:, None] | needed)) == 0
            reads = np.where(possible, served[:, None], 10**6).min(axis=0)
        return sum(map(len, trace)) - int(reads.min())


def test_belady_is_the_best_of_all_choices_on_1000_traces():
    rng = np.random.default_rng(3)
    oracles = {
        (rows, slots): EveryChoice(rows, slots) for rows in range(1, 8) for slots in range(5)
    }
    some = 0
    for _ in range(1000):
        rows, slots = int(rng.integers(1, 8)), int(rng.integers(0, 5))
        trace = random_trace(rng, rows, int(rng.integers(1, 10)), min(rows, 5))
        best = oracles[rows, slots].most_hits(trace)
        assert optimal_hits(trace, slots) == best
        some += best
    assert some > 3000


def plain_lru(trace, slots):
    kept, found = OrderedDict(), []
    for batch in trace:
        hit = [row for row in batch if row in kept]
        for row in hit:
            kept.move_to_end(row)
        for row in batch:
            if row not in hit:
                kept[row] = True
                if len(kept) > slots:
                    kept.popitem(last=False)
        found.append(len(hit))
    return found


def plain_clock(trace, slots):
    ring, hand, found = [], 0, []
    for batch in trace:
        hit = set(batch) & {row for row, _ in ring}
        ring = [[row, mark or row in hit] for row, mark in ring]
        for row in batch:
            if row in hit:
                continue
            if len(ring) < slots:
                ring.append([row, False])
                continue
            while ring[hand][1]:
                ring[hand][1] = False
                hand = (hand + 1) % slots
            ring[hand] = [row, False]
            hand = (hand + 1) % slots
        found.append(len(hit))
    return found


def plain_sieve(trace, slots):
    queue, marked, hand, found = [], set(), None, []  # newest last; the hand is a row
    for batch in trace:
        hit = set(batch) & set(queue)
        marked |= hit
        for row in batch:
            if row in hit:
                continue
            if len(queue) == slots:
                place = 0 if hand is None else queue.index(hand)
                while queue[place] in marked:
                    marked.remove(queue[place])
                    place = (place + 1) % slots
                hand = queue[place + 1] if place + 1 < slots else None
                queue.pop(place)
            queue.append(row)
        found.append(len(hit))
    return found


@pytest.mark.parametrize(
    ("name", "plain"), [("lru", plain_lru), ("clock", plain_clock), ("sieve", plain_sieve)]
)
@pytest.mark.parametrize("slots", [1, 7, 40, 300])
def test_online_rules_are_those_of_a_plain_model(name, plain, slots):
    for seed in range(3):
        trace = skewed_trace(seed)
        found = hits(Policy(name), trace, slots)
        assert found == plain(trace, slots)
        assert slots == 1 or sum(found) > 0


@pytest.mark.parametrize("name", ["degree", "vip"])
def test_fixed_rules_keep_the_highest_scores_once_read(name):
    trace = skewed_trace(1)
    scores = torch.rand(200, generator=torch.Generator().manual_seed(0))
    kept = set(scores.topk(50).indices.tolist())
    read, expected = set(), []
    for batch in trace:
        expected.append(len(kept & read & set(batch.tolist())))
        read |= set(batch.tolist())
    assert hits(Policy(name, scores), trace, 50) == expected


def plain_belady(steps, slots, scores):
    """Hits of (batch, what is known to follow); what nothing known needs goes by its score."""
    kept, found = set(), []
    for batch, known in steps:
        found.append(len(kept & set(batch)))

        def value(row, known=known):
            uses = [t for t, coming in enumerate(known) if row in coming]
            return (-min(uses), 0.0) if uses else (-np.inf, float(scores[row]))

        kept = set(sorted(kept | set(batch), key=value, reverse=True)[:slots])
    return found


@pytest.mark.parametrize("ahead", [1, 4, 60])
@pytest.mark.parametrize("slots", [1, 20, 100])
def test_belady_knows_what_was_announced_and_no_more(slots, ahead):
    scores = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    for seed in range(2):
        trace = skewed_trace(seed)
        # Scores make the choice unique but for rows that are needed in the same batch, whose
        # exchange changes no hits.
        found = hits(Policy("belady", scores), trace, slots, ahead)
        plain = [batch.tolist() for batch in trace]
        steps = [
            (batch, plain[now + 1 : (now // ahead + 1) * ahead]) for now, batch in enumerate(plain)
        ]
        assert found == plain_belady(steps, slots, scores)
        assert sum(found) <= optimal_hits(trace, slots)
    if ahead == 60:
        assert sum(hits(Policy("belady"), trace, slots)) == optimal_hits(trace, slots)


@pytest.mark.parametrize("slots", [0, 10, 50, 200])
def test_no_rule_beats_the_bound(slots):
    trace = skewed_trace(5)
    degrees = torch.from_numpy(np.bincount(np.concatenate(trace), minlength=200))
    best = optimal_hits(trace, slots)
    for name in POLICIES:
        found = sum(hits(Policy(name, degrees), trace, slots, ahead=10))
        assert found <= best
        assert (found == 0) == (slots == 0 or name == "none")


def test_the_bound_is_known_after_every_batch():
    rng = np.random.default_rng(8)
    traces = [(random_trace(rng, 12, 14, 8), int(rng.integers(0, 9))) for _ in range(150)]
    traces += [(skewed_trace(seed, batches=100), slots) for seed, slots in enumerate((1, 30, 120))]
    for trace, slots in traces:
        optimum = Optimum(200, slots)
        for now, batch in enumerate(trace):
            optimum.add(batch)
            if now % 9 == 4 or now == len(trace) - 1:
                assert optimum.hits == optimal_hits(trace[: now + 1], slots)


def test_announced_batches_can_be_called_off():
    scores = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    table = Policy("belady", scores).table(200, 3)
    for batch in ([0, 1, 2, 3, 4], [3], [1, 7], [0, 9]):
        table.announce(np.array(batch))
    table.plan()  # keeps 0, 1 and 3
    assert table.announced == 3
    table.forget()
    assert table.announced == 0
    # From now on nothing is known, and all go by their scores.
    trace = [[0, 1, 2, 3, 4], *(batch.tolist() for batch in skewed_trace(2))]
    found = []
    for batch in trace:
        table.announce(np.array(batch))
        found.append((table.plan()[0] >= 0).sum())
    assert found[0] == 3
    assert found == plain_belady([(batch, []) for batch in [[0, 1, 3], *trace]], 3, scores)[1:]
    again = Policy("lru").table(200, 20)
    again.announce(np.arange(3))
    again.forget()
    assert again.announced == 0


def test_what_is_not_a_policy():
    with pytest.raises(InputError, match="cache policy lfu: choose one of belady, degree"):
        Policy("lfu")
    with pytest.raises(InputError, match="cache policy vip needs scores, one a row"):
        Policy("vip")
    with pytest.raises(
        InputError, match=r"cache policy degree: scores \[3\] for a table of 4 rows"
    ):
        Policy("degree", torch.ones(3)).table(4, 2)
    with pytest.raises(InputError, match="slots must be an integer of at least 0"):
        hits(Policy("lru"), [], -1)
    assert hits(Policy("lru"), [], 3) == []
