"""Recommenders: histories, gradients and rankings of one dense process, whatever the ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.addons.recommend import Interactions, RecommendConfig, open_interactions
from spgnn.addons.recommend.pairs import PairSampler
from spgnn.addons.recommend.ranking import top_k
from spgnn.addons.recommend.recommendation import Recommendation
from spgnn.addons.recommend.share import Share
from spgnn.addons.recommend.spilled import SpilledRecommendation
from spgnn.addons.recommend.tables import RowUpdate, initial_rows
from spgnn.comm import connect
from spgnn.errors import InputError
from spgnn.layout import RowLayout
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.task import Predictions

USERS, ITEMS, WIDTH, EPOCHS = 23, 17, 5, 2


def interactions() -> Interactions:
    rng = np.random.default_rng(3)
    dense = rng.random((USERS, ITEMS)) < 0.25
    dense[4] = dense[:, 6] = False  # a user and an item without any
    dense[5, :-1] = True  # a user who has almost all
    test = dense & (rng.random(dense.shape) < 0.3)
    return Interactions("small", sp.csr_array(dense & ~test), sp.csr_array(test))


def config(**options: object) -> RecommendConfig:
    small = {"dim": WIDTH, "epochs": EPOCHS, "batch_size": 20, "lr": 0.05, "weight_decay": 0.1}
    small |= {"eval_every": 1, "k": 4, "partition": "random", "negatives": 2}
    return RecommendConfig.of(**{**small, **options})


def train(
    rank: int, options: dict[str, object], data: Interactions
) -> tuple[list[dict[str, float]], np.ndarray]:
    comm, how = connect(), config(**options)
    task = Recommendation(how, comm, data)
    own = len(task.vertex_ids)
    assert task.rows.shape == (own, how.model.dim)
    assert all(len(table) == own for table in task.moments.values())
    history = Trainer(task, options=how.training).fit()
    rows = torch.zeros(sum(data.shape), how.model.dim)
    rows[task.vertex_ids] = task.rows
    comm.all_reduce(rows).wait()
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history], rows.numpy()


def share_of_one(data: Interactions) -> Share:
    """What one rank has of it, without a graph."""
    users, items = map(torch.arange, data.shape)
    train, test = CSR.from_scipy(data.train), CSR.from_scipy(data.test)
    layout = RowLayout(np.array([0, len(items)]))
    return Share(users, items + len(users), users, items, items, layout, train, test, len(users))


def normalised(data: Interactions) -> Tensor:
    R = data.train.astype(np.float64)
    A = sp.block_array([[None, R], [R.T, None]]).tocoo()
    degree = np.bincount(A.row, minlength=A.shape[0])
    values = torch.from_numpy((degree[A.row] * degree[A.col]) ** -0.5)
    ends = torch.from_numpy(np.stack((A.row, A.col))).long()
    return torch.sparse_coo_tensor(ends, values, A.shape, check_invariants=True).coalesce()


def propagated(A: Tensor, E: Tensor, weights: tuple[float, ...]) -> Tensor:
    power, out = E, weights[0] * E
    for weight in weights[1:]:
        power = torch.sparse.mm(A, power)
        out = out + weight * power
    return out


def dense_scores(data: Interactions, Z: Tensor, how: RecommendConfig) -> tuple[float, float]:
    (users, _), k = data.shape, how.sampling.k
    scores = (Z[:users] @ Z[users:].T).numpy()
    scores[data.train.toarray()] = -np.inf
    recalls, gains = [], []
    for user, truth in enumerate(data.test.toarray()):
        if truth.any():
            best = [i for i in np.argsort(-scores[user])[:k] if scores[user, i] > -np.inf]
            hits = [i for i, item in enumerate(best) if truth[item]]
            recalls.append(len(hits) / truth.sum())
            best_gain = sum(1 / np.log2(i + 2) for i in range(min(k, truth.sum())))
            gains.append(sum(1 / np.log2(i + 2) for i in hits) / best_gain)
    return float(np.mean(recalls)), float(np.mean(gains))


def dense_history(
    options: dict[str, object], data: Interactions
) -> tuple[list[tuple[float, float, float]], Tensor]:
    """The same by autograd and torch's Adam on whole float64 arrays, with the pairs of one rank."""
    how, A, (n_users, n_items) = config(**options), normalised(data), data.shape
    kind, temperature = how.sampling.loss, how.sampling.temperature
    sampler = PairSampler(share_of_one(data), connect(), how.sampling, how.training.seed)
    E = initial_rows(torch.arange(n_users + n_items), how.model.dim, how.training.seed).double()
    E.requires_grad_()
    update, history, step = RowUpdate(how.training.optimizer), [], 0
    adam = torch.optim.Adam([E], lr=how.training.lr)
    first, second = torch.zeros_like(E), torch.zeros(len(E), 1, dtype=torch.float64)
    for epoch in range(how.training.epochs):
        losses = []
        for number in range(sampler.steps):
            users, positives, negatives = sampler.pairs(epoch, number)
            Z = propagated(A, E, how.model.of_layers)
            u, i, total = Z[users], Z[n_users + positives], len(users)
            others = Z[n_users + negatives]
            if kind == "bpr":
                apart = (u * i).sum(1, keepdim=True) - (u[:, None] * others).sum(-1)
                loss = F.softplus(-apart).mean(1).sum() / total
            elif kind == "softmax":
                every = torch.cat((i[:, None], others), 1)
                scores = (u[:, None] * every).sum(-1) / temperature
                loss = (scores.logsumexp(1) - scores[:, 0]).sum() / total
            else:
                scores = u @ i.T / temperature
                same = positives[:, None] == positives
                same.fill_diagonal_(False)  # what is left: other pairs of the same item
                scores = scores.masked_fill(same, -torch.inf)
                loss = (scores.logsumexp(1) - scores.diag()).sum() / total
            touched = torch.cat((users, n_users + positives, n_users + negatives.flatten()))
            loss = loss + how.training.weight_decay / 2 / total * E[touched].square().sum()
            adam.zero_grad()
            loss.backward()
            losses.append(float(loss.detach()))
            step += 1
            G = E.grad
            if update.kind == "adam":
                adam.step()
                continue
            with torch.no_grad():
                mean = G.square().mean(1, keepdim=True)
                if update.kind == "row-adagrad":
                    second += mean
                    E -= how.training.lr * G / (second.sqrt() + 1e-8)
                else:
                    first, second = 0.9 * first + 0.1 * G, 0.999 * second + 0.001 * mean
                    corrected = (second / (1 - 0.999**step)).sqrt() + 1e-8
                    E -= how.training.lr * first / (1 - 0.9**step) / corrected
        Z = propagated(A, E.detach(), how.model.of_layers)
        history.append((float(np.mean(losses)), *dense_scores(data, Z, how)))
    return history, E.detach()


CASES = [
    ({}, 1),
    ({}, 2),
    ({"optimizer": "row-adam", "loss": "softmax", "temperature": 0.5}, 3),
    ({"optimizer": "row-adagrad", "loss": "in-batch", "negatives": 1, "temperature": 0.5}, 2),
    ({"draw": "users", "batch_size": 0, "weights": "ppr:0.2", "cover": "minimum"}, 2),
    ({"layers": 1, "algo": "1.5d", "c": 2, "weights": "0.3,0.7"}, 2),
    ({"layers": 2, "weights": "0.5,0,2", "weight_decay": 0.0}, 4),
    ({"layers": 0}, 2),
]


@pytest.mark.parametrize(("options", "ranks"), CASES)
def test_history_is_that_of_one_dense_process(
    options: dict[str, object], ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth, rows = dense_history(options, interactions())
    for name, size in (("pairs._PIECE", 7), ("pairs._SCORES", 40), ("tables._ROWS", 5)):
        monkeypatch.setattr(f"spgnn.addons.recommend.{name}", size)
    monkeypatch.setattr("spgnn.addons.recommend.ranking._ITEMS", 3)
    monkeypatch.setattr("spgnn.addons.recommend.ranking._USERS", 4)
    for history, mine in run_ranks(train, ranks, options, interactions()):
        np.testing.assert_allclose(mine, rows.numpy(), atol=2e-4)
        for record, (loss, recall, ndcg) in zip(history, truth, strict=True):
            assert record["loss"] == pytest.approx(loss, abs=1e-5)
            assert record["test_recall@4"] == pytest.approx(recall, abs=1e-9)
            assert record["test_ndcg@4"] == pytest.approx(ndcg, abs=1e-9)


@pytest.mark.slow
def test_many_interactions_are_learnt_as_by_plain_pytorch_on_any_number_of_ranks(
    tmp_path: Path,
) -> None:
    data = open_interactions("interactions-4000-2500-100000")
    options = {"dim": 64, "batch_size": 4096, "lr": 0.01, "weight_decay": 1e-4, "negatives": 1}
    options |= {"k": 20, "epochs": 4, "partition": "gvb"}
    truth, _ = dense_history(options, data)
    assert truth[-1][1] > 0.2  # of items drawn at random, 0.008
    histories = [
        history for ranks in (1, 2, 4) for history, _ in run_ranks(train, ranks, options, data)
    ]
    options |= {"spill": str(tmp_path), "chunks": 4}
    histories += [history for history, _ in run_ranks(spilled, 2, options, data)]
    for history in histories:
        for record, (loss, recall, ndcg) in zip(history, truth, strict=True):
            assert record["loss"] == pytest.approx(loss, abs=1e-5)
            assert record["test_recall@20"] == pytest.approx(recall, abs=1e-3)
            assert record["test_ndcg@20"] == pytest.approx(ndcg, abs=1e-3)


def ranked(rank: int, options: dict[str, object], data: Interactions) -> tuple[list, np.ndarray]:
    """The history, and the best items of own users by the users' ids."""
    comm, how = connect(), config(**options)
    task = Recommendation(how, comm, data)
    history = Trainer(task, options=how.training).fit()
    share = task.share
    best = torch.zeros(share.users, 5, dtype=torch.int64)
    best[share.user_ids] = task.best(torch.arange(len(share.user_ids)))[0] + 1
    comm.all_reduce(best).wait()
    keys = [key for key in history[-1] if key.startswith("test")]
    return [[record[key] for key in keys] for record in history], best.numpy() - 1


def best_of(rank: int, users: Tensor, items: Tensor, seen: sp.csr_array, owner: Tensor) -> tuple:
    """`top_k` of own rows, of users and items that some ranks have more of than others."""
    comm = connect()
    ids = (owner[: len(items)] == rank).nonzero()[:, 0].flip(0)
    own = (owner[-len(users) :] == rank).nonzero()[:, 0]
    mine = seen[own.numpy()]
    best, scores = top_k(users[own], items[ids], 6, seen=mine, item_ids=ids, comm=comm)
    arrays = users[own].numpy(), items[ids].numpy(), 6
    same = top_k(*arrays, seen=mine.tocoo(), item_ids=ids.numpy(), comm=comm)
    assert all(map(torch.equal, same, (best, scores)))
    with pytest.raises(InputError, match="users must be a tensor or an array of numbers, got list"):
        top_k([["a"]], *arrays[1:], comm=comm)
    with pytest.raises(InputError, match="seen must be a CSR or a sparse array of SciPy, got dict"):
        top_k(*arrays, seen={}, item_ids=ids, comm=comm)
    with pytest.raises(InputError, match=r"item_ids must be integers, got float32"):
        top_k(*arrays, item_ids=ids.float(), comm=comm)
    with pytest.raises(InputError, match="each once"):
        top_k(users[own], items[ids], 6, item_ids=torch.zeros_like(ids), comm=comm)
    with pytest.raises(InputError, match="a row a user"):
        top_k(users[own], items[ids], 6, seen=seen[:, :3], item_ids=ids, comm=comm)
    bad = items[ids] / (rank != 0)
    with pytest.raises(InputError, match="items hold numbers that are not finite"):
        top_k(users[own], bad, 6, item_ids=ids, comm=comm)
    return own, best, scores


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_best_items_are_those_of_brute_force(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, (users, items) = torch.Generator().manual_seed(0), (19, 23)
    # Few different numbers, hence many equal scores, of either sign.
    U, V = (torch.randint(-2, 3, (n, 3), generator=rng).float() for n in (users, items))
    seen = torch.rand(users, items, generator=rng) < 0.4
    seen[3], seen[4, 2:] = True, True  # no new item, and two
    owner = torch.randint(0, ranks, (users + items,), generator=rng) % max(ranks - 1, 1)
    monkeypatch.setattr("spgnn.addons.recommend.ranking._ITEMS", 5)
    monkeypatch.setattr("spgnn.addons.recommend.ranking._USERS", 4)
    scores = (U.double() @ V.double().T).float().masked_fill(seen, -torch.inf)
    order = torch.from_numpy(np.lexsort((np.tile(np.arange(items), (users, 1)), -scores.numpy())))
    truth, values = order[:, :6], scores.gather(1, order[:, :6])
    results = run_ranks(best_of, ranks, U, V, sp.csr_array(seen.numpy()), owner)
    assert sum(len(own) for own, _, _ in results) == users
    for own, best, found in results:
        assert torch.equal(best, truth[own].masked_fill(values[own] == -torch.inf, -1))
        assert torch.equal(found, values[own])


def test_items_of_equal_scores_are_ranked_by_their_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items of the same users have equal embeddings, on whichever ranks they are."""
    rng = np.random.default_rng(0)
    groups, users = 6, 21
    likes = rng.random((users, groups)) < 0.4
    likes[0], likes[:, 0] = True, True
    of_item = rng.permutation(np.arange(groups).repeat(8))
    train_of = sp.csr_array(likes[:, of_item] & (np.arange(users) % 3 > 0)[:, None])
    held_out = sp.csr_array(rng.random(train_of.shape) < 0.1) - train_of
    test = sp.csr_array(held_out > 0)
    data = Interactions("twins", train_of, test)
    monkeypatch.setattr("spgnn.addons.recommend.ranking._ITEMS", 7)
    options: dict[str, object] = {"layers": 2, "weights": "last", "dim": 8, "k": 5}
    (one,) = run_ranks(ranked, 1, options, data)
    for ranks in (2, 3):
        for history, best in run_ranks(ranked, ranks, options, data):
            np.testing.assert_allclose(history, one[0], rtol=1e-12)
            np.testing.assert_array_equal(best, one[1])
    # Within a group of equal items, ids rise, and none is left out for a larger one.
    known = train_of.toarray()
    for user, best in enumerate(one[1]):
        for group in np.unique(of_item[best[best >= 0]]):
            mine = best[(best >= 0) & (of_item[best] == group)]
            others = np.flatnonzero((of_item == group) & ~known[user])
            np.testing.assert_array_equal(mine, others[: len(mine)])


def pairs(rank: int, draw: str) -> list[np.ndarray]:
    comm = connect()
    task = Recommendation(config(draw=draw), comm, interactions())
    share, result = task.share, []
    for step in range(task.sampler.steps):
        users, positives, negatives = task.sampler.pairs(1, step)
        items = [share.item_ids[places] for places in (positives[:, None], negatives)]
        result.append(torch.cat((share.user_ids[users, None], *items), 1).numpy())
    return result


@pytest.mark.parametrize("draw", ["interactions", "users"])
def test_draws_do_not_depend_on_ranks_and_negatives_are_new(draw: str) -> None:
    (one,), many = run_ranks(pairs, 1, draw), run_ranks(pairs, 3, draw)
    known = interactions().train.toarray()
    for step, rows in enumerate(one):
        union = np.concatenate([of_rank[step] for of_rank in many])
        assert sorted(map(tuple, rows)) == sorted(map(tuple, union))
        assert known[rows[:, 0], rows[:, 1]].all()
        assert not known[rows[:, :1], rows[:, 2:]].any()
    if draw == "interactions":  # each once
        every = np.concatenate(one)[:, :2]
        assert sorted(map(tuple, every)) == sorted(zip(*known.nonzero(), strict=True))


def check_spilled_best(
    task: SpilledRecommendation, predictions: Predictions, data: Interactions
) -> None:
    """The best items of own users are those by the embeddings of all ranks."""
    share, k = task.share, task.config.sampling.k
    Z = torch.zeros(share.users + share.items, task.config.model.dim)
    Z[predictions.vertex_ids] = predictions.arrays["embedding"]
    task.comm.all_reduce(Z).wait()
    own, seen = share.user_ids, data.train
    truth = top_k(Z[own], Z[share.users :], k, seen=seen[own.numpy()])
    for mine, right in zip(task.best(torch.arange(len(own))), truth, strict=True):
        assert torch.equal(mine, right)


def spilled(
    rank: int, options: dict[str, object], data: Interactions
) -> tuple[list[dict[str, float]], Predictions]:
    how = config(**options)
    task = SpilledRecommendation(how, connect(), data)
    history, predictions = Trainer(task, options=how.training).fit(), task.predictions()
    assert predictions is not None
    check_spilled_best(task, predictions, data)
    task.close()
    return history, predictions


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"partition": "gvb"},
        {"optimizer": "row-adagrad", "loss": "softmax", "batch_size": 0, "draw": "users"},
    ],
)
def test_a_run_on_a_disk_is_that_in_memory(
    tmp_path: Path, options: dict[str, object], ranks: int
) -> None:
    truth, rows = dense_history(options, interactions())
    Z = propagated(normalised(interactions()), rows, config(**options).model.of_layers)
    options = {**options, "spill": str(tmp_path), "chunks": 3}
    for history, predictions in run_ranks(spilled, ranks, options, interactions()):
        embedding = predictions.arrays["embedding"]
        np.testing.assert_allclose(embedding, Z[predictions.vertex_ids], atol=2e-4)
        for record, (loss, recall, ndcg) in zip(history, truth, strict=True):
            assert record["loss"] == pytest.approx(loss, abs=1e-5)
            assert record["test_recall@4"] == pytest.approx(recall, abs=1e-9)
            assert record["test_ndcg@4"] == pytest.approx(ndcg, abs=1e-9)
    assert not list(tmp_path.iterdir())


def resumed(rank: int, directory: str, epochs: int, resume: bool) -> list[dict[str, float]]:
    how = config(checkpoint=directory, epochs=epochs, resume=resume, optimizer="row-adam")
    history = Trainer(Recommendation(how, connect(), interactions()), options=how.training).fit()
    return [{k: v for k, v in record.items() if k != "seconds"} for record in history]


def test_a_resumed_run_goes_on_as_a_straight_one(tmp_path: Path) -> None:
    straight = run_ranks(resumed, 2, str(tmp_path / "a"), 4, False)
    run_ranks(resumed, 2, str(tmp_path / "b"), 2, False)
    assert run_ranks(resumed, 2, str(tmp_path / "b"), 4, True) == straight
