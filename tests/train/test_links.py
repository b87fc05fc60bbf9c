"""Link prediction: histories and scores of one dense process, whatever the ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from spgnn import CSR, RowLayout
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.data.distribute import scatter
from spgnn.data.splits import Directory, held_out
from spgnn.errors import InputError
from spgnn.frontend.from_config import training_graph
from spgnn.hashing import uniform
from spgnn.nn.convolution import glorot_
from spgnn.progress import Stopwatch
from spgnn.testing import run_ranks
from spgnn.train import Trainer
from spgnn.train.links import LinkPrediction
from spgnn.train.report import assemble
from tests.training import (
    EPOCHS,
    TOLERANCE,
    dense_layer,
    dense_matrix,
    descend,
    initial_parameters,
    read,
)

N, SEED = 61, 3
SHARES = (0.2, 0.25)


def write(path: Path, *, directed: bool = False) -> Path:
    rng = np.random.default_rng(1)
    pattern = rng.random((N, N)) < 0.05
    pattern[7] = True
    pattern[5, 5] = True
    pattern[13] = pattern[:, 13] = False
    A = sp.csr_array(pattern if directed else pattern | pattern.T)
    x = rng.standard_normal((N, 6)).astype(np.float32)
    arrays = {"indptr": A.indptr.astype(np.int64), "indices": A.indices.astype(np.int32)}
    np.savez(path, shape=np.array(A.shape), directed=np.array(directed), x=x, **arrays)
    return path


def split(A: np.ndarray, *, directed: bool) -> tuple[np.ndarray, list[np.ndarray]]:
    """What is left of a matrix, and the pairs (target, source) of each split, sorted."""
    left, pairs = A.copy(), [[], [], []]
    for v, u in zip(*A.nonzero(), strict=True):
        if u == v:
            continue
        low, high = (np.array([end]) for end in sorted((u, v)))
        draw = uniform(low, SEED, "link", second=high)[0]
        kind = 1 if draw < SHARES[0] else 2 if draw < sum(SHARES) else 0
        if kind:
            left[v, u] = 0
        upwards = uniform(low, SEED, "direction", second=high)[0] < 0.5
        if directed or (v > u) == upwards:
            pairs[kind].append((v, u))
    return left, [np.array(found).reshape(-1, 2) for found in pairs]


def drawn(pairs: np.ndarray, count: int, purpose: str) -> np.ndarray:
    """Sources of made-up pairs [pairs, count]."""
    target, source = pairs.T
    found = (uniform(target, SEED, purpose, count, second=source) * (N - 1)).astype(int)
    return found + (found >= target[:, None])


def decode(Z: torch.Tensor, source: np.ndarray, target: np.ndarray, mlp: list) -> torch.Tensor:
    both = Z[source] * Z[target]
    if not mlp:
        return both.sum(dim=-1)
    W_1, b_1, W_2, b_2 = mlp
    return (torch.relu(both @ W_1.T + b_1) @ W_2.T + b_2)[..., 0]


def initial_mlp(f: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    found = []
    for rows in (f, 1):
        W = torch.empty(rows, f)
        glorot_(W, generator)
        found += [W.double().requires_grad_(), torch.zeros(rows).double().requires_grad_()]
    return found


def reference(path: Path, flags: dict) -> tuple[list[float], dict[str, float]]:
    """Losses, and the scores after the last epoch."""
    directed, k = flags["directed"], flags["negatives"]
    data = read(path, divided=False)
    left, pairs = split(data.A, directed=directed)
    A_hat, X = dense_matrix(left, "gcn", "auto"), data.X
    layers = initial_parameters("gcn", [6, 8, 8], SEED)
    mlp = initial_mlp(8) if flags["decoder"] == "mlp" else []

    def embeddings() -> torch.Tensor:
        H = torch.relu(dense_layer("gcn", A_hat, X, *layers[0]))
        return dense_layer("gcn", A_hat, H, *layers[1])

    def scored(Z, kind, count, purpose):
        target, source = pairs[kind].T
        links = decode(Z, source, target, mlp)
        return links, decode(Z, drawn(pairs[kind], count, purpose), target[:, None], mlp)

    def loss(links, others):
        logits = torch.cat((links, others.flatten()))
        truth = torch.cat((torch.ones_like(links), torch.zeros_like(others.flatten())))
        return F.binary_cross_entropy_with_logits(logits, truth)

    def of_epoch(epoch):
        return loss(*scored(embeddings(), 0, k, f"negatives of epoch {epoch}"))

    losses = descend(layers, of_epoch, *mlp)
    found = {}
    with torch.no_grad():
        for kind, name in ((1, "val"), (2, "test")):
            links, others = scored(embeddings(), kind, 30, f"{name} negatives")
            if kind == 1:
                found["val_loss"] = float(loss(links, others[:, :k]))
            better = (others > links[:, None]).sum(1) + (others >= links[:, None]).sum(1)
            found[f"{name}_mrr"] = float((1 / (1 + better / 2)).mean())
            kth = others.flatten().sort(descending=True).values[49]
            found[f"{name}_hits@50"] = float((links > kth).double().mean())
            ahead = (links[:, None] > others.flatten()).double()
            ahead += 0.5 * (links[:, None] == others.flatten())
            found[f"{name}_roc_auc"] = float(ahead.mean())
    return losses, found


CASES = [
    {"directed": False, "negatives": 1, "decoder": "dot"},
    {"directed": True, "negatives": 3, "decoder": "mlp"},
]


def trained(config: TrainConfig) -> tuple[list[float], dict, dict]:
    comm = connect()
    task = LinkPrediction(config, training_graph(config, comm))
    trainer = Trainer(task, options=config.training)
    trainer.run()
    with torch.no_grad():
        found = task.predictions()
    assert torch.equal(found.vertex_ids, task.data.whole.vertex_ids)
    assert found.arrays["embedding"].shape == (len(found.vertex_ids), config.model.hidden)
    report = assemble(config, trainer, 0, Stopwatch())
    return [r["loss"] for r in report["history"]], report["history"][-1], report


def runs(rank: int, path: Path, flags: dict) -> list[tuple[list[float], dict, dict]]:
    ranks = connect().size
    base = TrainConfig.of(
        dataset=path,
        task="links",
        layers=2,
        hidden=8,
        epochs=EPOCHS,
        eval_every=EPOCHS,
        eval_negatives=30,
        val_links=SHARES[0],
        test_links=SHARES[1],
        seed=SEED,
        partition="random",
        feature_norm="none",
        negatives=flags["negatives"],
        decoder=flags["decoder"],
    )
    configs = [
        base,
        base.but(recompute_halo=True, cover="minimum"),
        base.but(order="paper", prune=False),
    ]
    if ranks == 4:
        configs = [base, base.but(algo="1.5d", c=2), base.but(algo="feature", c=2)]
        configs += [base.but(algo="vertex-cut")]
    return [trained(config) for config in configs]


@pytest.mark.parametrize(("ranks", "case"), [(1, 0), (3, 1), (4, 0)])
def test_history_is_that_of_a_dense_model(tmp_path, ranks, case):
    flags = CASES[case]
    path = write(tmp_path / "graph.npz", directed=flags["directed"])
    expected, scores = reference(path, flags)
    for losses, last, report in run_ranks(runs, ranks, path, flags)[0]:
        np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
        for name, score in scores.items():
            # Hits are counts: where scores are nearly equal, rounding may turn one pair.
            loose = 0.03 if "hits" in name or "mrr" in name else 1e-3
            assert last[name] == pytest.approx(score, abs=loose), name
        assert report["best"]["epoch"] == EPOCHS - 1
        assert report["volume"] == report["planned_volume"]


def shares(rank: int, path: Path, *, directed: bool):
    """What is left on a rank, and its pairs, by original ids."""
    comm = connect()
    with np.load(path) as file:
        block = sp.csr_array((np.ones(len(file["indices"])), file["indices"], file["indptr"]))
    graph = Graph("g", CSR.from_scipy(block.astype(bool)), directed)
    labels = np.random.default_rng(4).integers(0, comm.size, N)
    share = scatter(graph if comm.rank == 0 else None, labels, comm, comm.size)
    left, pairs = held_out(share, SHARES, SEED, comm)
    rows = left.adjacency.to_scipy().toarray()
    for some in pairs:
        assert torch.equal(some.target_ids, share.vertex_ids[some.targets])
    named = [(p.target_ids.tolist(), p.source_ids.tolist()) for p in pairs]
    return share.vertex_ids.numpy(), rows, named, left.meta.edges


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("ranks", [1, 3])
def test_held_out_links_are_in_no_direction_left(tmp_path, ranks, directed):
    path = write(tmp_path / "graph.npz", directed=directed)
    A = read(path).A
    left, pairs = split(A, directed=directed)
    assert len(pairs[1]) > 0
    found = run_ranks(lambda rank: shares(rank, path, directed=directed), ranks)
    ids = np.concatenate([share[0] for share in found])
    rows = np.concatenate([share[1] for share in found])
    np.testing.assert_array_equal(rows, left[np.ix_(ids, ids)])
    assert all(share[3] == left.sum() for share in found)
    for kind in range(3):
        named = [pair for share in found for pair in zip(*share[2][kind], strict=True)]
        assert sorted(named) == sorted(map(tuple, pairs[kind].tolist()))
    for v, u in np.concatenate(pairs[1:]):
        assert not left[v, u]
        assert not left[u, v]
    if not directed:
        # Every link once.
        assert 2 * sum(map(len, pairs)) == A.sum() - A.trace()


def test_ids_that_are_no_permutation_are_refused():
    def refused(rank: int) -> None:
        comm = connect()
        layout = RowLayout.even(6, comm.size)
        for ids in ([0, 1, 2], [0, 6, 1]):
            with pytest.raises(InputError, match=r"vertex_ids must be a permutation of \[0, 6\)"):
                Directory(torch.tensor(ids), layout, comm)

    run_ranks(refused, 2)


def test_a_graph_without_links_is_refused(tmp_path):
    path = tmp_path / "graph.npz"
    empty = np.zeros(4, np.int64)
    np.savez(path, indptr=empty, indices=empty[:0], shape=np.array([3, 3]), x=np.ones((3, 2)))
    comm, config = connect(), TrainConfig.of(dataset=path, task="links", partition="block")
    with pytest.raises(InputError, match="no link is left to train on"):
        LinkPrediction(config, training_graph(config, comm))
