"""Oracle 3: the loss history of a plain dense model in one process, and runs that must equal it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.frontend.from_config import training_graph
from spgnn.kernels.torch_kernels import dropout_mask
from spgnn.nn.layers import EDGES
from spgnn.nn.rowwise import DropoutKeys
from spgnn.progress import Stopwatch
from spgnn.registry import MODELS
from spgnn.train import Trainer
from spgnn.train import report as reporting
from spgnn.train.run import resolved
from spgnn.train.vertices import NodeClassification

EPOCHS = 6
TOLERANCE = 1e-4


def write_dataset(
    path: Path, *, sparse: bool = False, seed: int = 0, **instead: np.ndarray
) -> Path:
    """A small directed graph with everything that is awkward: loops, a hub, missing labels."""
    rng = np.random.default_rng(seed)
    n, features, classes = 61, 23, 4
    pattern = rng.random((n, n)) < 0.06
    pattern[7] = True
    pattern[:, 11] = True
    pattern[13] = pattern[:, 13] = False
    A = sp.csr_array(pattern)
    x = (rng.random((n, features)) < 0.3).astype(np.float32)
    y = rng.integers(-1, classes, n)
    y[0] = classes - 1
    role = rng.integers(0, 3, n)
    arrays = {
        "indptr": A.indptr.astype(np.int64),
        "indices": A.indices.astype(np.int32),
        "shape": np.array(A.shape),
        "directed": np.array(True),
        "y": y,
        "train_mask": role == 0,
        "val_mask": role == 1,
        "test_mask": role == 2,
    }
    if sparse:
        X = sp.csr_array(x)
        arrays |= {"x_indptr": X.indptr.astype(np.int64), "x_indices": X.indices.astype(np.int32)}
        arrays |= {"x_data": X.data, "x_shape": np.array(X.shape)}
    else:
        arrays["x"] = x
    np.savez(path, **arrays | instead)
    return path


def read(path: Path, *, divided: bool = True) -> SimpleNamespace:
    """Dense float64 A of ones and X, whose rows sum to 1 if `divided`; y and masks; n."""
    with np.load(path) as file:
        data = dict(file)
    n, ones = int(data["shape"][0]), np.ones(len(data["indices"]))
    A = sp.csr_array((ones, data["indices"], data["indptr"]), shape=(n, n)).toarray()
    X = data.get("x")
    if "x_data" in data:
        triple = (data["x_data"], data["x_indices"], data["x_indptr"])
        X = sp.csr_array(triple, shape=tuple(data["x_shape"])).toarray()
    X = torch.from_numpy(X).double()
    X = X / X.sum(dim=1, keepdim=True).clamp(min=1) if divided else X
    names = [name for name in data if name == "y" or name.endswith("_mask")]
    return SimpleNamespace(n=n, A=A, X=X, **{name: torch.from_numpy(data[name]) for name in names})


def descend(
    layers: list[list[torch.Tensor]],
    loss_of: Callable[[int], torch.Tensor],
    *more: torch.Tensor,
    epochs: int = EPOCHS,
    lr: float = 0.01,
    decay: float = 5e-4,
) -> list[float]:
    """The losses of epochs of Adam, of which the first layer's parameters decay."""
    others = [p for layer in layers[1:] for p in layer]
    groups = [{"params": layers[0], "weight_decay": decay}]
    groups.append({"params": [*others, *more], "weight_decay": 0.0})
    optimizer, losses = torch.optim.Adam(groups, lr=lr), []
    for epoch in range(epochs):
        loss = loss_of(epoch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


# Shapes of a layer's parameters, in the order in which they are drawn.
SHAPES = {
    "gcn": lambda f_in, f_out: [(f_in, f_out), (f_out,)],
    "sage": lambda f_in, f_out: [(f_out, f_in), (f_out,), (f_out, f_in)],
    "gin": lambda f_in, f_out: [(f_out, f_in), (f_out,), (f_out, f_out), (f_out,)],
    "gat": lambda f_in, f_out: [(f_out,), (1, f_out), (1, f_out), (f_out, f_in)],
    "gatv2": lambda f_in, f_out: [(f_out,), (1, f_out), *[(f_out, f_in), (f_out,)] * 2],
}


def dense_layer(
    model: str,
    A: torch.Tensor,
    H: torch.Tensor,
    *given: torch.Tensor,
    kept: torch.Tensor | float = 1.0,
) -> torch.Tensor:
    """One layer as its paper writes it; attention weights are multiplied by `kept`."""
    if model in ("gat", "gatv2"):
        bias, scores, Z = attention(model, H, given)
        weights = torch.softmax(scores.masked_fill(A == 0, -torch.inf), 1) * kept
        return weights @ Z + bias
    if model == "gcn":
        W, b = given
        return A @ H @ W + b
    if model == "sage":
        W_l, b, W_r = given
        return A @ H @ W_l.T + H @ W_r.T + b
    W_1, b_1, W_2, b_2 = given
    return torch.relu((A @ H + H) @ W_1.T + b_1) @ W_2.T + b_2


def attention(
    model: str, H: torch.Tensor, given: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bias, the scores [n, n] of one head, and what is weighed."""
    if model == "gat":
        bias, a_s, a_d, W = given
        Z = H @ W.T
        return bias, F.leaky_relu(Z @ a_d.T + (Z @ a_s.T).T, 0.2), Z
    bias, a, W_l, b_l, W_r, b_r = given
    Y, X = H @ W_l.T + b_l, H @ W_r.T + b_r
    return bias, (F.leaky_relu(X[:, None] + Y[None], 0.2) * a).sum(-1), Y


def dense_matrix(A: np.ndarray, model: str, normalisation: str) -> torch.Tensor:
    """The adjacency as the model takes it."""
    if MODELS[model].loops:
        np.fill_diagonal(A, 1)
    if normalisation == "auto":
        normalisation = {"gcn": "sym", "sage": "row"}.get(model, "none")
    degree = A.sum(axis=1, keepdims=True)
    degree[degree == 0] = np.inf
    power = {"sym": degree * degree.T, "row": degree**2, "none": degree**0}[normalisation]
    return torch.from_numpy(A / np.sqrt(power))


def initial_parameters(model: str, widths: list[int], seed: int) -> list[list[torch.Tensor]]:
    """Those of each layer, float64: matrices from the seed, biases zero."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for f_in, f_out in pairwise(widths):
        layers.append([])
        for shape in SHAPES[model](f_in, f_out):
            made = torch.zeros(shape)
            if len(shape) == 2:
                # A vector [heads, channels] is drawn as a matrix is.
                bound = (6 / sum(shape)) ** 0.5
                made.uniform_(-bound, bound, generator=generator)
            layers[-1].append(made.double().requires_grad_())
    return layers


def reference_history(
    path: Path, config: TrainConfig, loss_of: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> list[float]:
    """Losses of a model with dense float64 matrices and nothing of the engine but its seeds.

    Of the training vertices' outputs another loss than cross-entropy may be made.
    """
    flags, data = SimpleNamespace(**config.flat()), read(path)
    n, X, y, chosen = data.n, data.X, data.y, data.train_mask
    A_hat = dense_matrix(data.A, flags.model, flags.normalisation)
    if loss_of is None:
        chosen = chosen & (y >= 0)
    outputs = int(y.max()) + 1 if y.dim() == 1 else y.shape[1]
    widths = [X.shape[1], *[flags.hidden] * (flags.layers - 1), outputs]
    layers = initial_parameters(flags.model, widths, flags.seed)

    def loss(epoch: int) -> torch.Tensor:
        H = X
        for number, parameters in enumerate(layers):
            H = torch.relu(H) if number else H
            key = DropoutKeys(torch.arange(n), flags.seed, epoch).key(number)
            kept = dropout_mask(torch.arange(n), H.shape[1], key, flags.dropout)
            if number or flags.input_dropout:
                H = H * kept / (1 - flags.dropout)
            edges = dropout_mask(torch.arange(n), n, key | EDGES, flags.dropout)
            edges = edges / (1 - flags.dropout)
            H = dense_layer(flags.model, A_hat, H, *parameters, kept=edges)
        return F.cross_entropy(H[chosen], y[chosen]) if loss_of is None else loss_of(H[chosen])

    return descend(layers, loss, epochs=flags.epochs, lr=flags.lr, decay=flags.weight_decay)


def run(config: TrainConfig, comm: Communicator) -> tuple[list[float], dict[str, object]]:
    """Train on the ranks of `comm`; the losses and the report. Collective."""
    config = resolved(config, comm)
    task = NodeClassification(config, training_graph(config, comm))
    trainer = Trainer(task, options=config.training)
    trainer.run()
    report = reporting.assemble(config, trainer, 0, Stopwatch())
    return [record["loss"] for record in report["history"]], report


def variants(path: Path, ranks: int, epochs: int = EPOCHS) -> list[TrainConfig]:
    """Runs that must all have the same history (apart from dropout)."""
    base = TrainConfig.of(
        dataset=path, epochs=epochs, eval_every=3, hidden=8, partition="random", seed=3
    )
    # What depends on the storage of features in even places, so that every second has it too.
    found = [
        base,
        base.but(partition="block"),
        base.but(order="paper"),
        base.but(cover="minimum"),
        base.but(dropout=0.5),
        base.but(cover="row"),
        base.but(layers=1),
        base.but(exchange="oblivious"),
        base.but(dropout=0.5, cover="minimum"),
        base.but(recompute_halo=True, prune=False),
        base.but(recompute_halo=True, cover="minimum"),
        base.but(recompute_halo=True, dropout=0.5, input_dropout=False, layers=2),
        base.but(prune=False),
        # Of 61 rows of 8 columns, 19 at a time.
        base.but(schedule="peers", buffer="608 B"),
        base.but(schedule="peers", buffer=608, dropout=0.5, cover="minimum"),
    ]
    for c in (2, 4):
        if ranks % c == 0:
            grid = base.but(algo="1.5d", c=c)
            found += [grid, grid.but(order="paper"), grid.but(cover="minimum")]
            found += [grid.but(dropout=0.5), grid.but(exchange="oblivious")]
            found += [grid.but(recompute_halo=True), grid.but(prune=False)]
            found.append(grid.but(schedule="peers", buffer=400))
        if ranks % c**2 == 0:
            found += replicated(base, c)
    if ranks % 2 == 0:
        feature = base.but(algo="feature", c=2)
        found += [feature, feature.but(order="paper", dropout=0.5), feature.but(cover="minimum")]
        found += [feature.but(c=ranks), base.but(algo="2d", cover="row"), base.but(algo="3d", c=2)]
        found += [base.but(algo="3d", exchange="oblivious"), feature.but(recompute_halo=True)]
    for size in (2, 3, 4):
        if ranks % size == 0 and ranks > size:
            nodes = base.but(hierarchy=size)
            found += [nodes, nodes.but(dropout=0.5, cover="minimum")]
            found += [nodes.but(order="paper", cover="row"), nodes.but(recompute_halo=True)]
            found += [nodes.but(algo="1.5d", c=size, cover="minimum")]
    cut = base.but(algo="vertex-cut")
    found += [
        cut,
        cut.but(dropout=0.5),
        cut.but(cover="minimum", recompute_halo=True),
        cut.but(prune=False),
        cut.but(clones=True),
        cut.but(clones=True, dropout=0.5),
        cut.but(clones=True, prune=False, order="paper"),
    ]
    return found


def replicated(base: TrainConfig, c: int) -> list[TrainConfig]:
    """Runs of Algorithm 2 as the paper has it."""
    grid = base.but(algo="1.5d-replicated", c=c)
    return [
        grid,
        grid.but(exchange="oblivious", order="paper"),
        grid.but(cover="minimum", dropout=0.5),
        grid.but(recompute_halo=True),
        grid.but(prune=False),
        grid.but(schedule="peers", buffer=1600),
    ]


def other_models(path: Path, ranks: int, epochs: int = EPOCHS) -> list[TrainConfig]:
    """Runs of other models and on other matrices than the adjacency's own."""
    sage, gin = (variants(path, ranks, epochs)[0].but(model=model) for model in ("sage", "gin"))
    found = [
        sage,
        gin,
        sage.but(dropout=0.5, cover="minimum", normalisation="sym"),
        gin.but(dropout=0.5, exchange="oblivious", normalisation="row"),
        gin.but(model="gcn", normalisation="row"),
        sage.but(recompute_halo=True),
        sage.but(algo="vertex-cut", clones=True, dropout=0.5),
        gin.but(algo="vertex-cut", clones=True, prune=False),
        gin.but(recompute_halo=True, dropout=0.5, input_dropout=False),
    ]
    if ranks % 2 == 0:
        grid = {"algo": "1.5d", "c": 2}
        found += [sage.but(**grid, dropout=0.5), gin.but(**grid, cover="minimum")]
        found += [gin.but(algo="feature", c=2), sage.but(algo="feature", c=2, recompute_halo=True)]
    return found


def attending(path: Path, ranks: int, epochs: int = EPOCHS) -> list[TrainConfig]:
    """Runs of models that weigh their neighbours, on everything that attention works on."""
    gat, v2 = (variants(path, ranks, epochs)[0].but(model=model) for model in ("gat", "gatv2"))
    found = [
        gat,
        v2.but(dropout=0.5),
        gat.but(dropout=0.5, cover="minimum", layers=2),
        v2.but(cover="minimum", prune=False),
        gat.but(cover="row", partition="block"),
        v2.but(exchange="oblivious", layers=1),
        gat.but(algo="vertex-cut", dropout=0.5),
    ]
    if ranks % 2 == 0:
        grid = {"algo": "1.5d", "c": 2}
        found += [gat.but(**grid, dropout=0.5), v2.but(**grid, cover="minimum")]
        found += [gat.but(**grid, exchange="oblivious"), v2.but(algo="2d", dropout=0.5)]
    return found


def check_history(
    comm: Communicator,
    path: Path,
    chosen: slice = slice(None),
    epochs: int = EPOCHS,
    listed: Callable[[Path, int, int], list[TrainConfig]] = variants,
) -> None:
    """Each of the chosen runs equals the dense reference and moves the bytes it planned."""
    expected: dict[tuple[object, ...], list[float]] = {}
    for config in listed(path, comm.size, epochs)[chosen]:
        kind = (config.model, config.data)
        if kind not in expected:
            expected[kind] = reference_history(path, config)
        losses, report = run(config, comm)
        np.testing.assert_allclose(losses, expected[kind], rtol=TOLERANCE, err_msg=str(config))
        assert report["volume"] == report["planned_volume"], config
        assert report["volume_by_level"] == report["planned_volume_by_level"], config
