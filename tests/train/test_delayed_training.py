"""Training on late rows, end to end, against a dense simulation that keeps every epoch.

PipeGCN (1D, all rows one epoch late) and DistGNN's 0c, cd-0 and cd-r (a vertex cut by Libra's
rule, where clones hold rows, and partial sums are late by r epochs in r bins).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.partition import cut_vertices
from spgnn.partition.labels import write_edge_labels
from spgnn.testing import run_ranks
from spgnn.train import train
from tests.training import dense_matrix, descend, initial_parameters, read, write_dataset

EPOCHS, RANKS, HIDDEN = 12, 3, 8


@dataclass
class Late:
    """Exchanges of rows by epoch, bins and delay, from the definition.

    Rows are [n, f] matrices of every rank; `lists` name the rows that one rank sends another.
    """

    delay: int | None
    bins: int
    exact_last: int
    means: bool
    sent: dict[tuple, list[torch.Tensor]] = field(default_factory=dict)

    def used(self, epoch: int, place: int) -> int | None:
        if epoch >= EPOCHS - self.exact_last:
            return epoch
        if self.delay is None:
            return None
        if self.delay == 0 or epoch == 0:
            return epoch
        there = [e for e in range(1, epoch - self.delay + 1) if e % self.bins == place % self.bins]
        return max(there, default=0)

    def received(
        self, line: tuple, epoch: int, rows: list[torch.Tensor], lists: dict[tuple, list[int]]
    ) -> list[torch.Tensor]:
        """For each rank, [ranks, n, f]: what every other one's rows are there."""
        history = self.sent.setdefault(line, [])
        assert len(history) == epoch
        history.append(torch.stack(rows).detach().clone())
        found = [torch.zeros_like(history[-1]) for _ in rows]
        for (source, target), vertices in lists.items():
            messages = [rows[source, vertices] for rows in history]
            now, arrived = messages[-1].mean(0), torch.zeros_like(messages[-1])
            for place in range(len(vertices)):
                when = self.used(epoch, place)
                if when is not None:
                    # What a row is beside the mean of its time is late, and not that mean.
                    mean = messages[when].mean(0) if self.means else 0
                    arrived[place] = messages[when][place] - mean
            found[target][source, vertices] = (
                arrived - arrived.mean(0) + now if self.means else arrived
            )
        return found


class Simulated:
    """A·M, where nonzeros are multiplied by the rank of their label, and rows come late.

    Rows travel as those of D^-1/2 M do, of which a message has the mean.
    """

    def __init__(self, A: np.ndarray, owners: np.ndarray, labels: np.ndarray, late: Late) -> None:
        self.late = late
        self.own = [torch.from_numpy(owners == rank)[:, None] for rank in range(RANKS)]
        degrees = torch.from_numpy(np.count_nonzero(A, axis=1).astype(np.float64))
        self.scale = degrees.rsqrt()[:, None]
        A = A / self.scale.numpy().T
        self.parts = [torch.from_numpy(A * (labels == rank)) for rank in range(RANKS)]
        self.expand, self.fold = {}, {}
        for here in range(RANKS):
            columns = np.flatnonzero(self.parts[here].numpy().any(axis=0))
            rows = np.flatnonzero(self.parts[here].numpy().any(axis=1))
            for there in set(range(RANKS)) - {here}:
                self.expand[there, here] = columns[owners[columns] == there].tolist()
                self.fold[here, there] = rows[owners[rows] == there].tolist()

    def spread(self, line: tuple, epoch: int, M: torch.Tensor, lists: dict) -> list[torch.Tensor]:
        """Each rank's view of M: its own rows of now, others' as they arrive."""
        got = self.late.received(line, epoch, [M * own for own in self.own], lists)
        return [M * own + rows.sum(dim=0) for own, rows in zip(self.own, got, strict=True)]

    def gathered(
        self, line: tuple, epoch: int, sums: list[torch.Tensor], lists: dict
    ) -> torch.Tensor:
        """Sums at the owners of their rows: own ones of now, others' as they arrive."""
        got = self.late.received(line, epoch, sums, lists)
        return sum(
            (mine + rows.sum(dim=0)) * own
            for own, mine, rows in zip(self.own, sums, got, strict=True)
        )

    def product(self, layer: int, epoch: int, M: torch.Tensor) -> torch.Tensor:
        simulated = self

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, M):
                M = M * simulated.scale
                views = simulated.spread((layer, "expand"), epoch, M, simulated.expand)
                sums = [A @ view for A, view in zip(simulated.parts, views, strict=True)]
                return simulated.gathered((layer, "fold"), epoch, sums, simulated.fold)

            @staticmethod
            def backward(ctx, G):
                back = {(b, a): rows for (a, b), rows in simulated.fold.items()}
                views = simulated.spread((layer, "unfold"), epoch, G, back)
                sums = [A.T @ view for A, view in zip(simulated.parts, views, strict=True)]
                back = {(b, a): rows for (a, b), rows in simulated.expand.items()}
                found = simulated.gathered((layer, "collect"), epoch, sums, back)
                return found * simulated.scale

        return Product.apply(M)


class Cloned:
    """A·M of every part's own rows M [ranks, n, f], from its sums of now and others' as they come.

    Clones add loops themselves. Sums travel to owners, and from there to clones without their own;
    to owners alone in the last layer.
    """

    def __init__(self, A: np.ndarray, owners: np.ndarray, labels: np.ndarray, late: Late) -> None:
        self.late, self.loops = late, torch.from_numpy(np.diag(A).copy())[:, None]
        A = A - np.diag(np.diag(A))
        self.own = torch.from_numpy(np.stack([owners == rank for rank in range(RANKS)]))[..., None]
        self.parts = torch.from_numpy(np.stack([A * (labels == rank) for rank in range(RANKS)]))
        self.makes = (self.parts != 0).any(dim=2)  # sums of these rows [ranks, n]
        self.holds = (self.parts != 0).any(dim=1) | self.own[..., 0]
        self.up, self.down = {}, {}
        for here in range(RANKS):
            others = torch.cat((self.makes[:here], self.makes[here + 1 :])).any(dim=0)
            for there in set(range(RANKS)) - {here}:
                owned = self.own[there, :, 0]
                self.up[here, there] = (self.makes[here] & owned).nonzero()[:, 0].tolist()
                clones = self.holds[here] & owned & others
                self.down[there, here] = clones.nonzero()[:, 0].tolist()

    def product(self, layer: int, epoch: int, M: torch.Tensor, *, last: bool) -> torch.Tensor:
        cut, received = self, self.late.received
        back = {
            way: {(b, a): v for (a, b), v in lists.items()}
            for way, lists in (("up", self.up), ("down", self.down))
        }
        to = [{pair: v for pair, v in self.down.items() if pair[1] == q} for q in range(RANKS)]

        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, M):
                sums = cut.parts @ M
                arrived = torch.stack(received((layer, "up"), epoch, list(sums), cut.up))
                made = (sums + arrived.sum(dim=1)) * cut.own
                for q in range(0 if last else RANKS):
                    rows = [(sums[o] + arrived[o].sum(0) - arrived[o, q]) for o in range(RANKS)]
                    got = received((layer, "down", q), epoch, rows, to[q])[q]
                    made[q] += (sums[q] + got.sum(dim=0)) * ~cut.own[q] * cut.holds[q][:, None]
                return made + cut.loops * M * (cut.own if last else cut.holds[..., None])

            @staticmethod
            def backward(ctx, G):
                G = G * (cut.own if last else cut.holds[..., None])
                sums = G.clone()  # gradients of every part's sums
                up = (G * cut.own)[:, None].repeat(1, RANKS, 1, 1)  # [owner, of which rank]
                if cut.late.delay and not cut.late.means:  # cd-r: those of other parts' get none
                    return cut.parts.transpose(1, 2) @ sums + cut.loops * G
                if not last:
                    got = received((layer, "undown"), epoch, list(G), back["down"])
                    for o in range(RANKS):
                        sums[o] += got[o].sum(dim=0)
                        up[o] += got[o].sum(dim=0) - got[o]
                for p in range(RANKS):
                    lists = {pair: v for pair, v in back["up"].items() if pair[1] == p}
                    got = received(
                        (layer, "unup", p), epoch, [up[o, p] for o in range(RANKS)], lists
                    )
                    sums[p] += got[p].sum(dim=0)
                return cut.parts.transpose(1, 2) @ sums + cut.loops * G

        return Product.apply(M)


def simulated_losses(path: Path, config: TrainConfig, owners, labels) -> list[float]:
    data, codec = read(path), config.codec
    A_hat = dense_matrix(data.A, "gcn", "sym").numpy()
    late = Late(codec.delay, codec.bins, codec.exact_last, codec.sends_means)
    clones = config.algorithm.algo == "vertex-cut"
    matrix = (Cloned if clones else Simulated)(A_hat, owners, labels, late)
    X, y, chosen = data.X, data.y, data.train_mask & (data.y >= 0)
    layers = initial_parameters("gcn", [X.shape[1], HIDDEN, HIDDEN, 4], config.training.seed)

    def loss(epoch: int) -> torch.Tensor:
        (W, b), *others = layers
        H = torch.from_numpy(A_hat) @ X @ W + b
        if clones:
            H = H.expand(RANKS, *H.shape)
        for number, (W, b) in enumerate(others):
            M, last = torch.relu(H) @ W, number == len(others) - 1
            H = matrix.product(number, epoch, M, **({"last": last} if clones else {})) + b
        if clones:
            H = (H * matrix.own).sum(dim=0)
        return F.cross_entropy(H[chosen], y[chosen])

    how = config.training
    return descend(layers, loss, epochs=EPOCHS, lr=how.lr, decay=how.weight_decay)


def losses_of(rank: int, config: TrainConfig) -> tuple[list[float], int, np.ndarray]:
    comm = connect()
    report = train(config, comm)
    assert report["volume"] == report["planned_volume"]
    ids = training_graph(config, comm).whole.vertex_ids.numpy()
    losses = [record["loss"] for record in report["history"]]
    return losses, report["volume"]["total_bytes"], ids


def found(config: TrainConfig) -> tuple[list[float], int, np.ndarray]:
    """Losses, bytes of an epoch, and the owner of each vertex."""
    ranks = run_ranks(losses_of, RANKS, config)
    owners = np.empty(sum(len(ids) for *_, ids in ranks), np.int64)
    for rank, (_, _, ids) in enumerate(ranks):
        owners[ids] = rank
    return *ranks[0][:2], owners


def base(directory: Path, **flags: object) -> TrainConfig:
    path = write_dataset(directory / "graph.npz")
    how = {"dataset": path, "epochs": EPOCHS, "eval_every": 5, "hidden": HIDDEN, "layers": 3}
    how |= {"partition": "block", "dtype": "float64", "prune": False, "lr": 0.05, "seed": 3}
    return TrainConfig.of(**how | flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"delay": 1, "exact_means": False},
        {"delay": 3, "delay_bins": 2, "exact_means": False},
        {"delay": 1},
        {"delay": 1, "exact_last": 3},
        {"delay": 1, "delay_bins": 3},
        {"delay": "never"},
    ],
    ids=str,
)
def test_pipelined_epochs(tmp_path, flags):
    config = base(tmp_path, **flags)
    losses, _, owners = found(config)
    labels = np.repeat(owners[:, None], len(owners), axis=1)
    expected = simulated_losses(tmp_path / "graph.npz", config, owners, labels)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_distgnn(tmp_path):
    """0c, cd-0 and cd-r on Libra's cut; cd-0 is exact, and bytes fall as they should."""
    path = write_dataset(tmp_path / "graph.npz")
    with np.load(path) as file:
        n = int(file["shape"][0])
        A = sp.csr_array((np.ones(len(file["indices"])), file["indices"], file["indptr"]), (n, n))
    cut = cut_vertices(A, RANKS, imbalance=0.5)
    write_edge_labels(tmp_path / "edges.npy", cut.edges, RANKS)
    np.savetxt(tmp_path / "owners.txt", cut.owners, "%d")
    config = base(
        tmp_path,
        algo="vertex-cut",
        edges=str(tmp_path / "edges.npy"),
        partition=str(tmp_path / "owners.txt"),
    )
    labels = np.zeros((n, n), np.int64)
    labels[np.repeat(np.arange(n), np.diff(A.indptr)), A.indices] = cut.edges
    labels[np.arange(n), np.arange(n)] = cut.owners
    moved = {}
    for name, flags in {
        "0c": {"delay": "never"},
        "cd-0": {"clones": True},
        "cd-4": {"delay": 4, "delay_bins": 4, "exact_means": False},
        "cd-2 with means": {"delay": 2, "delay_bins": 2, "exact_last": 2},
    }.items():
        run = config.but(**flags)
        losses, moved[name], owners = found(run)
        np.testing.assert_array_equal(owners, cut.owners)
        expected = simulated_losses(path, run, owners, labels)
        np.testing.assert_allclose(losses, expected, rtol=1e-6, err_msg=name)
    assert moved["0c"] == 0
    # Half is gradients, which stay. The first of the epochs moves all sums, the others a bin.
    assert moved["cd-4"] < moved["cd-0"] / 2 * (1 / EPOCHS + 1 / 4 + 0.05)
