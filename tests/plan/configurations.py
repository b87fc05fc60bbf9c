"""Random configurations of the training command, and what is predicted for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from spgnn.data import open_source
from spgnn.data.normalise import OWN_NORMALISATION, add_self_loops
from spgnn.errors import InputError
from spgnn.exchange import ALGOS, COVERS, STRATEGIES
from spgnn.partition import partition
from spgnn.plan import Network, Prediction, Subject, predict
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
    graphs: list[Path], ranks: int, count: int, seed: int
) -> list[TrainConfig]:
    """So many that the command takes on that many ranks."""
    rng = np.random.default_rng(seed)

    def one_of(*choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    def mixed(layers: object) -> str:
        named = ("1d", "1.5d:2", "feature:2", f"feature:{ranks}", "2d", "3d", "vertex-cut")
        return ",".join(str(one_of(*named)) for _ in range(int(str(layers))))

    found: list[TrainConfig] = []
    while len(found) < count:
        config = TrainConfig.of(
            dataset=str(one_of(*graphs)),
            algo=one_of(*ALGOS),
            c=one_of(1, 1, 2, 3, ranks),
            exchange=one_of(*STRATEGIES, "sparsity-aware"),
            cover=one_of(*COVERS),
            partition=one_of("random", "block", "gvb", "stream"),
            order=one_of("auto", "auto", "paper"),
            dropout=one_of(0.0, 0.5),
            input_dropout=one_of(True, False),
            ghosts=one_of(0, 1),
            reach=one_of(True, True, False),
            hierarchy=one_of("none", "none", "2"),
            layers=(layers := one_of(1, 2, 3)),
            layer_algos=one_of(None, None, mixed(layers)),
            hidden=one_of(2, 7, 16),
            normalisation=one_of("auto", "sym", "row", "none"),
            model=one_of("gcn", "gcn", "sage", "gin"),
            norm=one_of("none", "none", "batch", "layer", "node", "graph", "pair"),
            residual=one_of(False, False, True),
            jk=one_of("none", "none", "last", "cat", "max"),
            seed=int(rng.integers(100)),
            epochs=1,
            imbalance=0.3,
        )
        try:
            config.check(ranks)
        except InputError:
            continue
        found.append(config)
    return found


def predicted(config: TrainConfig, ranks: int, wired: Wired | None = None) -> Prediction:
    """What planning says of a run, with the partition that the run will make."""
    how, source = config.algorithm, open_source(config.data.dataset)
    asked, kind = config.data.normalisation, config.model.model
    subject = Subject.of(
        source,
        seed=config.training.seed,
        normalisation=OWN_NORMALISATION[kind] if asked == "auto" else asked,
        loops=kind == "gcn",
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
    hidden = [config.model.hidden] * (config.model.layers - 1)
    network = Network(
        (subject.features, *hidden, subject.classes),
        kind,
        order=how.order,
        dropout=config.model.dropout,
        input_dropout=config.model.input_dropout,
        sparse=subject.word_counts is not None,
        ghosts=bool(how.ghosts),
        norm=config.model.norm,
        residual=config.model.residual,
        jk=config.model.jk,
    )
    own = config.distributions
    options = {"reach": how.reach, "by_layer": own, "wired": wired}
    return predict(subject, labels, algorithm, ranks, network, **options)
