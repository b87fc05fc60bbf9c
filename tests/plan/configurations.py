"""Random configurations of the training command, and what is predicted for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from spgnn.data import open_source
from spgnn.data.normalise import add_self_loops
from spgnn.errors import InputError
from spgnn.exchange import COVERS
from spgnn.exchange.algorithm import ALGOS
from spgnn.exchange.schemes import STRATEGIES
from spgnn.partition import partition
from spgnn.plan import Prediction, Subject, predict
from spgnn.plan.cli import links_of, network_of
from spgnn.plan.network import normalisation_of
from spgnn.plan.wired import Wired
from spgnn.train import TrainConfig


def write_graphs(directory: Path) -> list[Path]:
    """Directed and undirected, weighted or not, hubs, features dense and sparse."""
    found = []
    for seed, (n, density) in enumerate([(47, 0.1), (90, 0.03), (61, 0.3), (5, 0.4)]):
        rng = np.random.default_rng(seed)
        pattern = rng.random((n, n)) < density
        pattern[n // 3] = True
        directed = seed % 2 == 0
        if not directed:
            pattern |= pattern.T
        A = sp.csr_array(pattern)
        y = rng.integers(0, 3, n)
        y[:3] = [0, 1, 2]
        arrays = {
            "indptr": A.indptr.astype(np.int64),
            "indices": A.indices.astype(np.int32),
            "shape": np.array(A.shape),
            "directed": np.array(directed),
            "y": y,
            "train_mask": np.arange(n) % (10 if seed % 2 else 3) == 0,
        }
        if seed == 2:
            arrays["data"] = rng.random(A.nnz, dtype=np.float32) + 0.5
        x = (rng.random((n, 11)) < 0.4).astype(np.float32)
        if seed in (1, 2):
            X = sp.csr_array(x)
            arrays |= {"x_indptr": X.indptr.astype(np.int64), "x_data": X.data}
            arrays |= {"x_indices": X.indices.astype(np.int32), "x_shape": np.array(X.shape)}
        else:
            arrays["x"] = x
        found.append(directory / f"graph{seed}.npz")
        np.savez(found[-1], **arrays)
    return found


def random_configurations(
    graphs: list[Path], ranks: int, count: int, seed: int, **given: object
) -> list[TrainConfig]:
    """So many that the command takes on that many ranks; of what is given, one each time."""
    rng = np.random.default_rng(seed)

    def one_of(*choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    found: list[TrainConfig] = []
    while len(found) < count:
        config = TrainConfig.of(
            dataset=str(one_of(*graphs)),
            algo=one_of(*given.get("algo", ALGOS)),
            c=one_of(1, 1, 2, 3, ranks),
            exchange=one_of(*given.get("exchange", (*STRATEGIES, "sparsity-aware"))),
            cover=one_of(*given.get("cover", COVERS)),
            partition=one_of("random", "block", "gvb", "stream"),
            order=one_of(*given.get("order", ("auto", "auto", "paper"))),
            dropout=one_of(0.0, 0.5),
            input_dropout=one_of(True, False),
            recompute_halo=one_of(*given.get("recompute_halo", (False, True))),
            prune=one_of(True, True, False),
            hierarchy=one_of(*given.get("hierarchy", ("none", "none", "2"))),
            layers=one_of(1, 2, 3),
            hidden=one_of(2, 7, 16) if "heads" not in given else one_of(4, 16),
            normalisation=one_of(*given.get("normalisation", ("auto", "sym", "row", "none"))),
            model=one_of(*given.get("model", ("gcn", "gcn", "sage", "gin"))),
            heads=one_of(*given.get("heads", (1,))),
            message_dropout=one_of(*given.get("message_dropout", (0.0,))),
            aggregate=one_of(*given.get("aggregate", ("mean",))),
            norm=one_of("none", "none", "batch", "layer", "node", "graph", "pair"),
            residual=one_of(False, False, True),
            jk=one_of("none", "none", "last", "cat", "max"),
            seed=int(rng.integers(100)),
            epochs=one_of(*given.get("epochs", (1,))),
            imbalance=0.3,
            task=one_of(*given.get("task", ("vertices",))),
            decoder=one_of(*given.get("decoder", ("dot",))),
            negatives=one_of(*given.get("negatives", (1,))),
        )
        try:
            config.check(ranks)
        except InputError:
            continue
        model = config.model
        if model.heads > 1 and model.layers == 1 and model.jk != "none":
            continue  # the one layer is as wide as there are classes
        found.append(config)
    return found


def predicted(config: TrainConfig, ranks: int, wired: Wired | None = None) -> Prediction:
    """What planning says of a run, with the partition that the run will make."""
    how, source = config.algorithm, open_source(config.data.dataset)
    model = config.model
    normalisation, loops = normalisation_of(model.model, model.aggregate, config.data.normalisation)
    subject = Subject.of(
        source,
        seed=config.training.seed,
        normalisation=normalisation,
        loops=loops,
        links=links_of(config),
    )
    algorithm = how.distribution
    labels, _ = partition(
        add_self_loops(source.structure()),
        algorithm.parts(ranks),
        how.partition,
        objective="cover" if how.cover == "minimum" and how.partition == "gvb" else "column",
        imbalance=how.imbalance,
        seed=config.training.seed,
        nodes=algorithm.nodes(algorithm.parts(ranks)) if how.partition == "gvb" else None,
    )
    network = network_of(config, subject)
    network = replace(network, order=how.order, ghosts=how.recompute_halo)
    return predict(subject, labels, algorithm, ranks, network, reach=how.prune, wired=wired)
