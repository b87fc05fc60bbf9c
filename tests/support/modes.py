"""Modes: how the program of a feature is run on ranks, and what must come out."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import spgnn
from spgnn.addons.batches import DiskRows
from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data import Graph
from spgnn.data.npz import write_npz
from spgnn.machine import read_machine
from spgnn.nn import takes_graph
from spgnn.registry import MODELS
from spgnn.sparse import CSR
from spgnn.train import train
from tests.addons.plan.configurations import EXAMPLE
from tests.pretended_gpu import GPU, late_group, pretended_gpu
from tests.support.features import CLASSES, EDGE_DIM, HIDDEN, WIDTH, Feature, N, record

EPOCHS, RATE, DEEP = 3, 0.1, 9
Result = list[Tensor]
Run = Callable[[Feature, Communicator], tuple[Result, Result]]


# One step of a program of a user's own.


def loss_of(out: Tensor, y: Tensor) -> Tensor:
    """Of each vertex."""
    if y.dim() == 1:
        return functional.cross_entropy(out, y, reduction="none")
    return functional.binary_cross_entropy_with_logits(out, y.to(out.dtype), reduction="none").mean(
        1
    )


def arguments(data: Any, feature: Feature) -> list[Tensor]:
    """Of a model of PyG's besides x."""
    index = data.edge_index
    names = [feature.takes] if feature.takes else ["edge_weight"] * (feature.graph == "weighted")
    values = [data[name] for name in names]
    return [index, *(v.double() if v.is_floating_point() else v for v in values)]


def dense_step(feature: Feature, data: Any) -> Result:
    """The loss, outputs and all gradients of one process; rows in the order of the source."""
    model, x = feature.reference(), data.x.double().requires_grad_()
    out = model(x, *arguments(data, feature))
    loss = loss_of(out, data.y)[data.train_mask].mean()
    return [loss.detach(), out.detach(), *gradients(loss, x, model)]


def gradients(loss: Tensor, x: Tensor, model: nn.Module) -> Result:
    """Of x and of all parameters by name; zeros where there are none."""
    ends = [x, *(p for _, p in sorted(model.named_parameters()))]
    found = torch.autograd.grad(loss, ends, allow_unused=True)
    return [torch.zeros_like(end) if g is None else g for end, g in zip(ends, found, strict=True)]


def called(model: nn.Module, x: Any, graph: Any, feature: Feature) -> Tensor:
    """A model of ours, or of PyG's."""
    if takes_graph(model):
        return model(x, graph)
    return model(x, *arguments(graph, feature))


def whole(own: Tensor, graph: Any) -> Tensor:
    """All rows, of each rank's own ones. Collective."""
    rows = own.new_zeros(graph.num_nodes, *own.shape[1:])
    rows[graph.vertex_ids] = own.detach()
    return total(rows, graph.comm)


def total(own: Tensor, comm: Communicator) -> Tensor:
    result = own.detach().clone(memory_format=torch.contiguous_format)
    comm.all_reduce(result).wait()
    return result


def step(feature: Feature, graph: Any) -> Result:
    """The same on ranks."""
    model = graph.replicate(feature.model()) if feature.foreign else feature.model()
    model.to(graph.device)
    x = graph.x.detach().clone().requires_grad_()
    mask = graph.train_mask
    count = int(total(mask.sum(), graph.comm))
    for _ in range(3 if feature.codec else 1):  # rows that are late are those of this step
        if feature.codec:
            graph.next_epoch()
        out = called(model, x, graph, feature)
        share = loss_of(torch.Tensor.as_subclass(out, Tensor), graph.y)[mask].sum() / count
        of_x, *others = gradients(share, x, model)
    replicated = [total(one, graph.comm) for one in (share, *others)]
    return [replicated[0], whole(out, graph), whole(of_x, graph), *replicated[1:]]


def distributed(feature: Feature, comm: Communicator, **options: Any) -> Any:
    """A graph of its own; in float64."""
    if feature.codec:
        name, value = feature.codec.split("=")
        options["codec"] = {name: float(value) if "." in value else int(value)}
    graph = spgnn.distribute(copy.copy(record(feature.graph)), imbalance=0.3, comm=comm, **options)
    return graph.to(torch.float64)


_graphs: dict[Any, Any] = {}


def shared(feature: Feature, comm: Communicator, **options: Any) -> Any:
    """One that features have in common."""
    key = feature.graph, feature.codec, *sorted(options.items())
    if key not in _graphs:
        _graphs.clear() if len(_graphs) > 12 else None
        _graphs[key] = distributed(feature, comm, **options)
    return _graphs[key]


def library(**options: Any) -> Run:
    """One step on the graph that `distribute` makes with these options."""

    def run(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
        found = step(feature, shared(feature, comm, **options))
        return found, dense_step(feature, record(feature.graph))

    return run


def planned(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    machine = read_machine(EXAMPLE)
    with patch("spgnn.addons.plan.planned.measure", lambda comm, edges=(): machine):
        return library(plan="auto", halo=False)(feature, comm)


@cache
def own_group(ranks: int) -> Any:
    """A group as a program makes it."""
    return dist.new_group(list(range(ranks)))


def as_guest(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    graph = spgnn.distribute(copy.copy(record(feature.graph)), group=own_group(comm.size))
    found = step(feature, graph.to(torch.float64))
    return found, dense_step(feature, record(feature.graph))


def on_gpu(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    host = comm.job.device
    try:
        with pretended_gpu(), late_group():
            comm.job.device = GPU
            found = [t.cpu() for t in step(feature, distributed(feature, comm))]
    finally:
        comm.job.device = host
    return found, dense_step(feature, record(feature.graph))


# A graph that changes, and inference.


def changed(feature: Feature) -> tuple[Any, dict[str, Any]]:
    """The record after an update, and the update."""
    data = copy.copy(record(feature.graph))
    draw = torch.Generator().manual_seed(9)
    there = set(map(tuple, data.edge_index.T.tolist()))
    add = torch.tensor(
        [
            (s, t)
            for s, t in ((1, 2), (N - 1, 3), (5, N - 1), (8, 30), (31, 9), (2, 17))
            if (s, t) not in there
        ]
    ).T
    drop = data.edge_index[:, [3, 40, 77]]
    rows = torch.tensor([4, N - 1]), torch.randn(2, WIDTH, generator=draw)
    stays = torch.ones(data.edge_index.shape[1], dtype=torch.bool)
    stays[[3, 40, 77]] = False
    change: dict[str, Any] = {
        "add_edges": add,
        "drop_edges": drop,
        "x": (rows[0], rows[1].double()),
    }
    data.x = data.x.index_copy(0, *rows)
    data.edge_index = torch.cat((data.edge_index[:, stays], add), 1)
    for name in ("edge_attr", "edge_weight", "edge_type"):
        if name in data:
            old = data[name]
            new = torch.rand(add.shape[1], *old.shape[1:], generator=draw) + 0.5
            new = new if old.is_floating_point() else (2 * new).to(old.dtype)
            change[name], data[name] = new, torch.cat((old[stays], new))
    return data, change


def updated(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    graph = distributed(feature, comm)
    step(feature, graph)
    data, change = changed(feature)
    graph.update(**(change if comm.rank == comm.size - 1 else {}))
    return step(feature, graph), dense_step(feature, data)


def dense_rows(feature: Feature, data: Any) -> Result:
    with torch.no_grad():
        return [feature.reference().eval()(data.x.double(), *arguments(data, feature))]


def inferred(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    graph = shared(feature, comm)
    rows = spgnn.infer(feature.model(), graph)
    return [whole(rows, graph)], dense_rows(feature, record(feature.graph))


def inferred_since(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    graph, model = distributed(feature, comm), feature.model()
    served = spgnn.Embeddings(model, graph)
    data, change = changed(feature)
    graph.update(**(change if comm.rank == 0 else {}))
    return [whole(spgnn.infer(model, graph, since=served), graph)], dense_rows(feature, data)


# A trainer, and its checkpoints.


def dense_losses(model: nn.Module, feature: Feature, data: Any) -> Result:
    """Losses of some epochs, and of validation after each."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=RATE), []
    x, others = data.x.double(), arguments(data, feature)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = loss_of(model.train()(x, *others), data.y)[data.train_mask].mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            scored = loss_of(model.eval()(x, *others), data.y)[data.val_mask].mean()
        losses += [loss.detach(), scored]
    return [torch.stack(losses)]


def losses_in(history: list[dict[str, Any]]) -> Result:
    return [
        torch.tensor([e[k] for e in history for k in ("loss", "val_loss")], dtype=torch.float64)
    ]


def resumed(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
    graph = shared(feature, comm)
    options = {
        "optimizer": "sgd",
        "lr": RATE,
        "checkpoint": str(directory(comm) / feature.name),
        "dtype": "float64",
    }
    spgnn.Trainer(feature.model(), graph, **options).fit(epochs=2)
    again = spgnn.Trainer(feature.model(), graph, resume=True, **options)
    found = losses_in(again.fit(epochs=EPOCHS))
    return found, dense_losses(feature.reference(), feature, record(feature.graph))


@cache
def directory(comm: Communicator) -> Path:
    return Path(comm.from_rank_zero(tempfile.mkdtemp))


# The training command.


def file_of(feature: Feature, comm: Communicator) -> Path:
    data, path = record(feature.graph), directory(comm) / f"{feature.graph}.npz"

    def write() -> None:
        if path.exists():
            return
        order = torch.argsort(data.edge_index[1] * N + data.edge_index[0])
        source, target = data.edge_index[:, order]
        indptr = torch.zeros(N + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(target, minlength=N), 0, out=indptr[1:])
        weights = data.edge_weight[order] if "edge_weight" in data else None
        A = CSR.of(indptr, source.to(torch.int32), (N, N), weights)
        more = {"edge_attr": data.edge_attr[order]} if "edge_attr" in data else {}
        masks = {f"{name}_mask": data[f"{name}_mask"] for name in ("train", "val", "test")}
        write_npz(Graph(feature.graph, A, True, x=data.x, y=data.y, **masks, **more), path)

    comm.on_rank_zero(write)
    return path


def command(**flags: Any) -> Run:
    """The history of the training command with a model that is registered."""

    def run(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
        stack, data = feature.stack(), record(feature.graph)
        name = feature.model_name
        if name not in MODELS:
            MODELS.add(name, stack)
        more = {"spill": str(directory(comm))} if flags.get("spill") else {}
        more |= {"aggregate": feature.aggregate} if feature.aggregate != "mean" else {}
        more |= {"norm": feature.norm} if feature.norm else {}
        more |= {"edge_dim": EDGE_DIM} if feature.graph == "edges" else {}
        config = TrainConfig.of(
            **{
                **dict(dataset=str(file_of(feature, comm)), model=name, epochs=EPOCHS, layers=2),
                **dict(hidden=HIDDEN, act="tanh", optimizer="sgd", lr=RATE, weight_decay=0.0),
                **dict(dtype="float64", feature_norm="none", imbalance=0.3),
                **flags,
                **more,
            }
        )
        reference = feature.reference()
        torch.manual_seed(0)  # what a layer draws by itself
        reference.load_state_dict(config.network(WIDTH, CLASSES).state_dict())
        torch.manual_seed(0)
        report = train(config, comm)
        return losses_in(report["history"]), dense_losses(reference.double(), feature, data)

    return run


# Mini-batches of all neighbours: steps of an epoch together are one of the whole graph.


def batches(make: Callable[..., Any], **options: Any) -> Run:
    def run(feature: Feature, comm: Communicator) -> tuple[Result, Result]:
        data, hops = record(feature.graph), 2 if feature.once and not feature.of_batch else DEEP
        loader = make(feature, comm, [-1] * hops, batch_size=4, **options)
        model = feature.model()
        reference = feature.reference()
        outputs = torch.zeros(N, CLASSES, dtype=torch.float64)
        expected = outputs.clone()
        sums: list[Result] = [[torch.zeros(())], [torch.zeros(())]]
        for batch in loader:
            if batch is None:
                continue
            x, seeds = batch.x.double(), batch.vertex_ids[: batch.batch_size]
            if feature.foreign:
                out = model(x, *arguments(batch, feature))[: batch.batch_size]
            elif hops == 2:
                out = model(x, batch.layers, batch.keys)
            else:
                out = model(x, batch.graph, batch.keys)[: batch.batch_size]
            outputs[seeds] = out.detach()
            mine = [(out, model)]
            if feature.of_batch:
                there = reference(x, *arguments(batch, feature))[: batch.batch_size]
                expected[seeds] = there.detach()
                mine.append((there, reference))
            mask = data.train_mask[seeds]
            for number, (rows, net) in enumerate(mine):
                loss = loss_of(rows, data.y[seeds])[mask].sum() / data.train_mask.sum()
                named = [p for _, p in sorted(net.named_parameters())]
                found = torch.autograd.grad(loss, named, allow_unused=True)
                found = [
                    torch.zeros_like(p) if g is None else g
                    for p, g in zip(named, found, strict=True)
                ]
                before = sums[number]
                sums[number] = [
                    a + b
                    for a, b in zip(
                        before if len(before) > 1 else [torch.zeros(())] * (len(found) + 1),
                        (loss.detach(), *found),
                        strict=True,
                    )
                ]
        results = [
            [total(t, comm) for t in (*each, rows)]
            for each, rows in zip(sums, (outputs, expected), strict=True)
        ]
        if not feature.of_batch:
            loss, out, _, *grads = dense_step(feature, data)
            results[1] = [loss, *grads, out]
        return results[0], results[1]

    return run


def loader_of_whole(feature: Feature, comm: Communicator, hops: list[int], **options: Any) -> Any:
    data = record(feature.graph)
    return spgnn.NeighborLoader(data, hops, rank=comm.rank, ranks=comm.size, **options)


def loader_of_shares(feature: Feature, comm: Communicator, hops: list[int], **options: Any) -> Any:
    graph = spgnn.distribute(copy.copy(record(feature.graph)), imbalance=0.3, comm=comm)
    return spgnn.NeighborLoader(graph, hops, **options)


def loader_of_disk(feature: Feature, comm: Communicator, hops: list[int], **options: Any) -> Any:
    path, x = directory(comm) / "x", record("plain").x
    comm.on_rank_zero(lambda: path.write_bytes(x.numpy().tobytes()))
    store = DiskRows(path, 0, N, WIDTH, torch.float32)
    return loader_of_whole(feature, comm, hops, store=store, superbatch=2, **options)


@dataclass(frozen=True)
class Mode:
    """How the program of a feature is run; `about` says how a user asks for it."""

    name: str
    about: str
    run: Run
    tolerance: float = 1e-10


def has_cell(feature: Feature, group: str) -> bool:
    """Codecs are of graphs; the command trains registered models on files of one edge a pair."""
    if feature.codec:
        return group == "Schemes"
    return group != COMMAND or not (feature.foreign or feature.graph in ("repeated", "types"))


M = Mode
COMMAND = "The training command"
GROUPS: dict[str, list[Mode]] = {
    "Schemes": [
        M("1D", "`distribute(data)`", library()),
        M("column", '`cover="column"`', library(cover="column")),
        M("row", '`cover="row"`', library(cover="row")),
        M("minimum", '`cover="minimum"`', library(cover="minimum")),
        M("oblivious", '`exchange="oblivious"`', library(exchange="oblivious")),
        M("hierarchy", "`node_size=2`", library(node_size=2)),
        M("relays", "`relays=True`", library(relays=True)),
        M("1.5D", '`algo="1.5d", c=2`', library(algo="1.5d", c=2)),
        M("replicated", '`algo="1.5d-replicated", c=2`', library(algo="1.5d-replicated", c=2)),
        M("2D", '`algo="2d"`', library(algo="2d")),
        M("3D", '`algo="3d", c=2`', library(algo="3d", c=2)),
        M("feature", '`algo="feature", c=2`', library(algo="feature", c=2)),
        M("vertex cut", '`algo="vertex-cut"`', library(algo="vertex-cut")),
        M("planned", '`plan="auto", halo=False`', planned),
    ],
    "Programs": [
        M("update", "`graph.update`, then a step", updated),
        M("infer", "`spgnn.infer(model, graph)`", inferred),
        M("since", "`graph.update`, `spgnn.infer(…, since=embeddings)`", inferred_since),
        M("resume", "`Trainer(…, checkpoint=DIR)`, then `resume=True`", resumed),
        M("guest", "`distribute(data, group=group)`", as_guest),
        M("GPU", "a device that is pretended, with the kernels of the CPU", on_gpu),
    ],
    "Mini-batches of all neighbours": [
        M(
            "whole",
            "`NeighborLoader(data, …)`, each rank has the graph",
            batches(loader_of_whole),
            1e-6,
        ),
        M("exact", "`NeighborLoader(graph, …)`", batches(loader_of_shares, mode="exact"), 1e-6),
        M("own", '`mode="own"`', batches(loader_of_shares, mode="own"), 1e-6),
        M("disk", "`store=DiskRows(…)`", batches(loader_of_disk), 1e-6),
    ],
    COMMAND: [
        M("pruned", "as by default", command()),
        M("recomputed", "`--recompute-halo`", command(recompute_halo=True)),
        M("peers", "`--schedule peers`", command(schedule="peers", buffer=500, prune=False)),
        M("chunks", "`--chunks 3`", command(chunks=3)),
        M("disk", "`--spill DIR --chunks 2`", command(chunks=2, spill=True)),
    ],
}
