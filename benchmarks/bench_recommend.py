"""LightGCN: quality beside plain PyTorch, seconds and memory of a step, and epochs from a disk.

    python benchmarks/bench_recommend.py quality [--dataset gowalla/] [--users N] [--items N]
        [--interactions N] [--epochs N] [--batch-size B] [--lr RATE] [--ranks 1,2,4]
    python benchmarks/bench_recommend.py step [--users N] [--items N] [--interactions N]
        [--optimizer NAME] [--batch-size B] [--steps N]
    python benchmarks/bench_recommend.py spill --interactions N [--chunks K] [--directory DIR]

`quality` takes a data set, or makes interactions up with tastes, by default as many as Gowalla has;
the reference is torch.sparse, autograd and torch's Adam on one process, which begins with the same
embeddings and takes the same pairs. `spill` gives each
user 100 items, and ten users to an item; the graph is a formula, so that it need not be in memory.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.addons.outofcore.adjacency import Adjacency
from spgnn.addons.outofcore.blocks import Blocks, MatrixStorage
from spgnn.addons.recommend import Interactions, RecommendConfig
from spgnn.addons.recommend.interactions import make_up, open_interactions
from spgnn.addons.recommend.recommendation import PairTask, Recommendation
from spgnn.addons.recommend.share import Share
from spgnn.addons.recommend.spilled import SpilledRecommendation
from spgnn.comm import connect
from spgnn.direct import Transfers
from spgnn.layout import RowLayout
from spgnn.memory import FreedMemory, peak_bytes
from spgnn.pattern import Pattern
from spgnn.sparse import CSR
from spgnn.testing import run_ranks
from spgnn.train import Trainer

K, LAYERS, WIDTH, DECAY = 20, 3, 64, 1e-4


def config_of(options: argparse.Namespace, **more: Any) -> RecommendConfig:
    """Of the flags."""
    return RecommendConfig.of(
        batch_size=options.batch_size,
        lr=options.lr,
        epochs=options.epochs,
        eval_every=max(options.epochs, 1),
        dim=WIDTH,
        layers=LAYERS,
        weight_decay=DECAY,
        k=K,
        **more,
    )


class Plain:
    """LightGCN in plain PyTorch: torch.sparse, autograd and torch's Adam, on one process."""

    def __init__(self, data: Interactions, config: RecommendConfig) -> None:
        self.data, self.ours = data, Recommendation(config, connect(), data)
        self.users, self.items = data.shape
        R = data.train.astype(np.float32)
        A = sp.block_array([[None, R], [R.T, None]]).tocsr()
        degree = np.maximum(A.sum(1), 1).astype(np.float32)
        scale = sp.diags_array(degree**-0.5)
        A = (scale @ A @ scale).tocsr()
        with warnings.catch_warnings():  # torch's own, of sparse matrices in general
            warnings.simplefilter("ignore")
            self.A = torch.sparse_csr_tensor(A.indptr, A.indices, A.data, A.shape)
        self.E = self.ours.rows.clone().requires_grad_()
        self.adam = torch.optim.Adam([self.E], lr=config.training.lr)

    def outputs(self) -> Tensor:
        power, total = self.E, self.E
        for _ in range(LAYERS):
            power = self.A @ power
            total = total + power
        return total / (LAYERS + 1)

    def epoch(self, number: int) -> float:
        losses = []
        for step in range(self.ours.steps):
            u, *items = self.ours.sampler.pairs(number, step)
            i, j = (places.flatten() + self.users for places in items)
            Z = self.outputs()
            apart = (Z[u] * Z[j]).sum(1) - (Z[u] * Z[i]).sum(1)
            square = sum(self.E[e].square().sum() for e in (u, i, j))
            loss = F.softplus(apart).mean() + DECAY / 2 / len(u) * square
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses))

    @torch.no_grad()
    def scores(self) -> tuple[float, float]:
        Z, train, test = self.outputs(), self.data.train, self.data.test
        recall, ndcg, users = 0.0, 0.0, 0
        gains = 1 / np.log2(np.arange(2, K + 2))
        for first in range(0, self.users, 1000):
            last = min(first + 1000, self.users)
            scores = Z[first:last] @ Z[self.users :].T
            known = train[first:last].tocoo()
            scores[known.row, known.col] = -torch.inf
            best = scores.topk(K).indices.numpy()
            truth = test[first:last]
            hit = np.asarray(truth.todense())[np.arange(last - first)[:, None], best]
            count = np.diff(truth.indptr)
            some = count > 0
            ideal = np.cumsum(gains)[np.minimum(count[some], K) - 1]
            recall += float((hit[some].sum(1) / count[some]).sum())
            ndcg += float(((hit[some] * gains).sum(1) / ideal).sum())
            users += int(some.sum())
        return recall / users, ndcg / users


def ours(rank: int, data: Interactions, options: argparse.Namespace) -> list[dict[str, float]]:
    """The history of some ranks."""
    config = config_of(options)
    return Trainer(Recommendation(config, connect(), data), options=config.training).fit()


def quality(options: argparse.Namespace) -> None:
    made_up = f"interactions-{options.users}-{options.items}-{options.interactions}"
    data = open_interactions(options.dataset or made_up, seed=options.seed)
    print(f"{data.name}: {options.epochs} epochs, batches of {options.batch_size}, lr {options.lr}")
    print("| | loss | Recall@20 | NDCG@20 | seconds an epoch |\n|---|---:|---:|---:|---:|")
    results = []
    for ranks in map(int, options.ranks.split(",")):
        history = run_ranks(ours, ranks, data, options, threads=max(1, options.threads // ranks))[0]
        last, seconds = history[-1], median(record["seconds"] for record in history)
        results.append((last["test_recall@20"], last["test_ndcg@20"]))
        row = (last["loss"], *results[-1], seconds)
        print(
            f"| P = {ranks} | {row[0]:.6f} | {row[1]:.4f} | {row[2]:.4f} | {row[3]:.2f} |",
            flush=True,
        )
    plain, seconds = Plain(data, config_of(options)), list[float]()
    for epoch in range(options.epochs):
        start = time.perf_counter()
        loss = plain.epoch(epoch)
        seconds.append(time.perf_counter() - start)
    recall, ndcg = plain.scores()
    print(f"| PyTorch | {loss:.6f} | {recall:.4f} | {ndcg:.4f} | {median(seconds):.2f} |")
    apart = max(abs(a - b) for one in results for a, b in zip(one, (recall, ndcg), strict=True))
    print(f"\nlargest difference of a score: {apart:.4f}")


def step(options: argparse.Namespace) -> None:
    train = make_up(options.users, options.items, options.interactions, seed=options.seed)
    none = sp.csr_array(train.shape, dtype=np.bool_)
    config = config_of(options, optimizer=options.optimizer)
    task = Recommendation(config, connect(), Interactions("made up", train, none))
    freed, seconds, processor = FreedMemory(1, 1), list[float](), list[float]()
    freed.begin()
    task.sampler.pairs(0, 0)  # deals an epoch's interactions to its steps, once
    for number in range(options.steps):
        start, before = time.perf_counter(), time.process_time()
        _, gradient = task.gradient(task.sampler.pairs(0, number % task.steps))
        task.update.step_(task.rows, gradient, task.moments, options.lr, number + 1)
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - before)
        freed.after_epoch()
        del gradient
    print(
        f"{options.interactions} interactions, {options.users} users, {options.items} items, "
        f"{options.optimizer}, {options.batch_size} pairs: {median(seconds[1:]):.2f} s a step "
        f"({median(processor[1:]):.2f} of processors), peak {peak_bytes() / 2**30:.2f} GiB"
    )


class FromFormula(SpilledRecommendation):
    """Of a graph whose blocks are on the disk already."""

    def __init__(self, config: RecommendConfig, users: int, blocks: Blocks, folder: Path) -> None:
        PairTask.__init__(self, config, comm := connect())
        self.name, self.directory, self._scratch = "formula", folder, ExitStack()
        layout = RowLayout.even(blocks.columns, 1)
        self.vertex_ids = torch.arange(layout.rows)
        none = sp.csr_array((users, layout.rows - users), dtype=np.bool_)
        self.share, places = Share.of(layout, self.vertex_ids, users, lambda: none, comm)
        self.begin(Adjacency(blocks, layout, symmetric=True, weighted=False), places)


def spill(options: argparse.Namespace) -> None:
    degree, fans = 100, 10
    users = max(fans, options.interactions // degree // fans * fans)
    items, chunks = users // fans, options.chunks
    rng = np.random.default_rng(0)
    factors = [int(m) for m in rng.integers(1, items, 20 * degree) if np.gcd(m, items) == 1]
    factors = factors[:degree]
    shifts = rng.integers(0, items, len(factors))
    inverses = [pow(m, -1, items) for m in factors]
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        start = time.perf_counter()

        def rows_of_all() -> Iterator[CSR]:
            for first, last in _stretches(0, users, chunks):
                u = np.arange(first, last, dtype=np.int64)[:, None]
                rows = (u * np.array(factors) + shifts) % items + users
                yield _block(np.sort(rows, 1), users + items)
            copies = np.arange(fans, dtype=np.int64) * items
            for first, last in _stretches(0, items, chunks):
                i = np.arange(first, last, dtype=np.int64)[:, None]
                bases = (i - shifts) % items * np.array(inverses) % items
                rows = (bases[:, :, None] + copies).reshape(last - first, -1)
                yield _block(np.sort(rows, 1), users + items)

        blocks = MatrixStorage(Path(folder), Transfers()).copied("A", users + items, rows_of_all())
        print(f"graph written in {time.perf_counter() - start:.0f} s", flush=True)
        config = config_of(options, optimizer=options.optimizer, spill=folder)
        task = FromFormula(config, users, blocks, Path(folder))
        task.lr = options.lr
        print(f"tables written in {time.perf_counter() - start:.0f} s", flush=True)
        for epoch in range(options.steps):
            before, start = task.counts.copy(), time.perf_counter()
            loss = float(task.loss(epoch))
            moved = task.counts.since(before)
            print(
                f"{len(factors) * users} interactions, {users} users, {items} items, "
                f"{options.optimizer}: {time.perf_counter() - start:.1f} s an epoch of "
                f"{task.steps} steps, loss {loss:.4f}, {moved.read / 2**30:.1f} GiB read and "
                f"{moved.written / 2**30:.1f} written of tables, peak "
                f"{peak_bytes() / 2**30:.2f} GiB",
                flush=True,
            )
        task.close()


def _stretches(first: int, last: int, pieces: int) -> list[tuple[int, int]]:
    cuts = np.linspace(first, last, pieces + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(cuts) if b > a]


def _block(rows: np.ndarray, columns: int) -> CSR:
    indptr = torch.arange(len(rows) + 1) * rows.shape[1]
    indices = torch.from_numpy(rows.reshape(-1).astype(np.int32))
    return CSR(Pattern.trusted(indptr, indices, (len(rows), columns)))


MODES = {"quality": quality, "step": step, "spill": spill}
DEFAULTS: dict[str, dict[str, Any]] = {
    "quality": {"users": 29_858, "items": 40_981, "interactions": 1_027_370, "batch_size": 65536},
    "step": {"users": 1_400_000, "items": 100_000, "interactions": 13_000_000, "batch_size": 2048},
    "spill": {"users": 0, "items": 0, "interactions": 10_000_000, "batch_size": 0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("mode", choices=MODES)
    for name in ("users", "items", "interactions", "batch-size"):
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--dataset", metavar="PATH", help="of quality")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--ranks", default="1,2,4", metavar="P,…")
    parser.add_argument("--steps", type=int, default=3, help="or epochs, of spill")
    parser.add_argument("--optimizer", default="row-adam")
    parser.add_argument("--chunks", type=int, default=32)
    parser.add_argument("--directory", metavar="DIR")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, value in DEFAULTS[options.mode].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    torch.set_num_threads(options.threads)
    MODES[options.mode](options)


if __name__ == "__main__":
    main()
