"""Random configurations of the training command, and what is predicted for them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from spgnn.__main__ import main
from spgnn.addons.plan import Prediction, predict
from spgnn.addons.plan.graphs import Dataset
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.errors import InputError
from spgnn.exchange.needs import COVERS
from spgnn.exchange.schemes import STRATEGIES
from spgnn.partition import partition
from spgnn.registry import SCHEMES

EXAMPLE = Path(__file__).parents[3] / "experiments" / "machines" / "perlmutter_a100.json"


def write_graphs(directory: Path) -> list[Path]:
    """Directed and undirected, weighted or not, hubs, features dense and sparse."""
    paths = []
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
        paths.append(directory / f"graph{seed}.npz")
        np.savez(paths[-1], **arrays)
    return paths


# Values that an option may have; those that stand there twice are drawn twice as often.
CHOICES: dict[str, tuple[object, ...]] = {
    "algo": [name for name in SCHEMES if " " not in name],
    "exchange": (*STRATEGIES, "sparsity-aware"),
    "cover": COVERS,
    "partition": ("random", "block", "gvb", "stream"),
    "order": ("auto", "auto", "paper"),
    "dropout": (0.0, 0.5),
    "input_dropout": (True, False),
    "recompute_halo": (False, True),
    "prune": (True, True, False),
    "hierarchy": ("none", "none", "2"),
    "relays": (False, True),
    "layers": (1, 2, 3),
    "hidden": (2, 7, 16),
    "normalisation": ("auto", "sym", "row", "none"),
    "model": ("gcn", "gcn", "sage", "gin"),
    "norm": ("none", "none", "batch", "layer", "node", "graph", "pair"),
    "residual": (False, False, True),
    "jk": ("none", "none", "last", "cat", "max"),
    "imbalance": (0.3,),
    "epochs": (1,),
}


def random_configurations(
    graphs: list[Path], ranks: int, count: int, seed: int, **more: tuple[object, ...]
) -> list[TrainConfig]:
    """So many that the command takes on that many ranks, with one of the choices each time."""
    rng = np.random.default_rng(seed)
    choices = {**CHOICES, "dataset": tuple(map(str, graphs)), "c": (1, 1, 2, 3, ranks), **more}
    configs: list[TrainConfig] = []
    while len(configs) < count:
        values = {name: all_[int(rng.integers(len(all_)))] for name, all_ in choices.items()}
        try:
            config = TrainConfig.of(**values, seed=int(rng.integers(100)))
            config.check(ranks)
        except InputError:
            continue
        if config.model.attends and config.distribution.copies(ranks)[1] > 1:
            continue  # not planned
        configs.append(config)
    return configs


def predicted(config: TrainConfig, ranks: int) -> Prediction:
    """What planning says of a run, with the partition that the run will make."""
    how, algorithm = config.algorithm, config.distribution
    dataset = Dataset.of(open_source(config.data.dataset), config)
    labels, _ = partition(
        dataset.looped,
        algorithm.parts(ranks),
        how.partition,
        objective=config.objective,
        imbalance=how.imbalance,
        seed=config.training.seed,
        nodes=config.nodes(ranks),
    )
    return predict(dataset, labels, config, ranks)


def planned(directory: Path, graph: object, ranks: object, *words: object) -> dict:
    """What the command writes."""
    out = directory / "plans.json"
    flags = ["--machine", EXAMPLE, "--cache", directory / "cache", "--partition", "block"]
    words = "plan", graph, "--ranks", ranks, *flags, "--json", out, *words
    assert main([*map(str, words)]) == 0
    return json.loads(out.read_text())
