"""Epochs of a GCN on one GPU, by spgnn and by PyTorch Geometric, from the same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from gpu_measurements import Calls, Clock, measure, scaled_block
from torch import Tensor, nn

import spgnn
from spgnn import CSR

FEATURES, HIDDEN, LAYERS, CLASSES = 128, 128, 3, 32
COMPARED_EPOCHS = 5
LOSS_TOLERANCE = 1e-3  # relative


def wall_clock(call: Callable[[], Any]) -> float:
    """Seconds until all that a call starts is done."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else int
    wait()
    start = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - start


def epochs(A: CSR, clock: Clock, rounds: int) -> Iterator[dict[str, Any]]:
    """For each way: losses of the first epochs, and times of later ones, in turns.

    Parameters
    ----------
    A : CSR [n, n]
        Symmetric, 0/1, with self-loops.
    """
    n, where = A.shape[0], A.device
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(n, FEATURES, generator=generator)
    y = (X @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)
    train = torch.rand(n, generator=generator) < 0.5
    graph = spgnn.distribute(A.to("cpu").to_scipy(), x=X, y=y, train_mask=train, device=where.type)
    model = spgnn.nn.GCN(FEATURES, HIDDEN, LAYERS, CLASSES).to(where)
    labels, mask = graph.y, graph.train_mask
    start = {name: value.clone() for name, value in model.state_dict().items()}
    calls: dict[str, Callable[[], Tensor]] = {
        "spgnn": epoch(model, partial(model, graph.x, graph), labels[mask], mask)
    }
    trouble: dict[str, str] = {}
    try:
        theirs = pyg_models(A, start)
    except ImportError as error:
        theirs, trouble["PyG"] = {}, str(error)
    X, y, train = X.to(where), y.to(where), train.to(where)
    for name, (other, *inputs) in theirs.items():
        calls[name] = epoch(other, partial(other, X, *inputs), y[train], train)
    losses: dict[str, list[float]] = {}
    for name, call in list(calls.items()):
        try:
            losses[name] = [float(call()) for _ in range(COMPARED_EPOCHS)]
        except (RuntimeError, TypeError, ValueError) as error:  # out of memory, not supported
            trouble[name] = str(error).splitlines()[0]
            del calls[name]
            if name == "spgnn":
                raise
    timed: Calls = dict(calls)
    device, wall = measure(timed, clock, rounds), measure(timed, wall_clock, rounds)
    for name in calls:
        pairs = zip(losses[name], losses["spgnn"], strict=True)
        yield {
            "way": name,
            "losses": losses[name],
            "correct": all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in pairs),
            "device": asdict(device[name]),
            "wall": asdict(wall[name]),
        }
    for name, why in trouble.items():
        yield {"way": name, "trouble": why, "correct": True}


def epoch(
    model: nn.Module, forward: Callable[[], Tensor], y: Tensor, train: Tensor
) -> Callable[[], Tensor]:
    """One step of training on the whole graph; it returns the loss, on the device."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = train.nonzero()[:, 0]  # a mask would make the host wait in every epoch

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(forward()[rows], y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def pyg_models(A: CSR, start: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
    """Models of PyG and what they take beside X, in each way that it documents."""
    from torch_geometric import EdgeIndex
    from torch_geometric.nn import GCN

    n, where = A.shape[0], A.device
    scale = scaled_block(A).row_scale
    assert scale is not None
    rows = torch.arange(n, device=where).repeat_interleave(A.indptr.diff())
    columns = A.indices.long()
    values = scale[rows] * scale[columns]
    csr = torch.sparse_csr_tensor(A.indptr, columns, values, A.shape, check_invariants=False)
    pairs = torch.stack((rows, columns))
    known = EdgeIndex(pairs, sparse_size=(n, n), sort_order="row", is_undirected=True)
    models: dict[str, tuple[Any, ...]] = {}
    for name, options, inputs in (
        ("PyG, edge_index", {"cached": True}, (pairs,)),
        ("PyG, EdgeIndex", {"normalize": False}, (known.fill_cache_(), values)),
        ("PyG, torch.sparse_csr", {"normalize": False}, (csr,)),
    ):
        model = GCN(FEATURES, HIDDEN, LAYERS, CLASSES, **options).to(where)
        model.load_state_dict(start)
        models[name] = model, *inputs
    return models
