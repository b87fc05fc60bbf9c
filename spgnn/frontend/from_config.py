"""The graph that a configuration describes, and what an epoch of training on it works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.command import plural
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.data.distribute import RankShare
from spgnn.data.graph import MASKS, VertexData, labelled
from spgnn.data.normalise import Normalisation, check_weights, row_normalise_features
from spgnn.data.normalise import normalisation_of as own_normalisation
from spgnn.data.source import GraphMeta, GraphSource
from spgnn.data.splits import Pairs, held_out, seeded_split
from spgnn.errors import InputError, memory_for
from spgnn.frontend.sources import Placement, is_cut, opened_share, scattered_share
from spgnn.graph import densified, propagate_
from spgnn.graph.distgraph import DistGraph
from spgnn.graph.features import Features, Propagated
from spgnn.graph.protocol import RECIPES, LayerGraph
from spgnn.graph.protocol import Normalisation as Kind
from spgnn.graph.training import TrainingGraph, layer_plans, training_on
from spgnn.hashing import uniform, uniform_rows
from spgnn.layout import Int64Array
from spgnn.memory import check_memory, collapse_pages
from spgnn.nn.loss import UNKNOWN
from spgnn.nn.rowwise import stored_in, weights_of
from spgnn.progress import ProgressBar, Stopwatch, working
from spgnn.registry import MODELS
from spgnn.sparse import CSR, take_rows
from spgnn.spmm import DistMatrix

# The matrix of a weight of self-loops, or 0 without, and a scaling.
_KINDS: dict[tuple[int, str], Kind] = {recipe: kind for kind, recipe in RECIPES.items()}


def training_graph(
    config: TrainConfig,
    comm: Communicator,
    shared: tuple[RankShare, dict[str, Any] | None] | None = None,
    watch: Stopwatch | None = None,
) -> TrainingGraph:
    """Load, partition, distribute and normalise a data set for training. Collective."""
    config.check(comm.size)
    model, aim, seed = config.model, config.aim, config.training.seed
    watch = watch or Stopwatch()
    share, report = share_of(config, comm) if shared is None else shared
    watch.lap("reading")
    vertices, links = share.data, list[Pairs]()
    if aim.task == "links":
        share, links = held_out(share, (aim.val_links, aim.test_links), seed, comm)
        y, classes = torch.full((len(share.vertex_ids),), UNKNOWN), 0
        masks = [y > UNKNOWN] * 3
        targets = y == UNKNOWN  # any vertex may be an end of a pair
    else:
        y, classes = labels_of(config, share)
        masks = masks_of(vertices, share.vertex_ids, y, seed)
        targets = masks[0] & labelled(y)
    meta = replace(
        share.meta, classes=classes, features=share.meta.features or config.data.random_features
    )
    share = replace(share, meta=meta, data=VertexData(y=y, **dict(zip(MASKS, masks, strict=True))))
    how = config.algorithm
    graph = DistGraph(share, comm, config.distribution, report=report, links=links)
    graph.to(weights_of(config.training.dtype))
    kind, sub = matrix_of(config), None
    # A norm over all vertices needs all of them.
    prune = how.prune and not model.makes_all_rows

    def plans_of(trained: DistGraph, looked_at: Tensor) -> Any:
        return layer_plans(
            trained,
            kind,
            layers=model.layers,
            labelled=looked_at if prune else None,
            recompute_halo=how.recompute_halo,
            propagated=config.propagates_once(sparse=isinstance(vertices.x, CSR)),
        )

    building = working("building what ranks exchange", shown=comm.rank == 0)
    with memory_for(f"the adjacency of {meta.name}"), building:
        A = graph.matrix(kind)
        if aim.inductive:
            sub = graph.subgraph(masks[0])
            sub.to(weights_of(config.training.dtype))
            sub_A, plans = sub.matrix(kind), plans_of(sub, targets[masks[0]])
            sub.release()
        else:
            plans = plans_of(graph, targets)
    edges = _edges_of(config, graph) if model.uses_edges else None
    watch.lap("plan")
    # The adjacency has become L, S and R; it must not be in memory next to the features.
    share = replace(share, adjacency=None)
    graph.release()
    with memory_for(f"the features of {meta.name}"):
        share = replace(share, data=vertices)
        X = comm.on_every_rank(lambda: features_of(config, share))
        if sub is not None:  # before A·X is written over X
            rows = masks[0].nonzero()[:, 0]
            sub_X = take_rows(X, rows) if isinstance(X, CSR) else X[rows]
        features = _as_first_layer_takes(config, A, X)
    with memory_for(f"what an epoch on {meta.name} works on"):
        if sub is None:
            training = training_on(graph, A, features, plans)
        else:
            training = training_on(sub, sub_A, _as_first_layer_takes(config, sub_A, sub_X), plans)
            training = replace(training, whole=graph, A=A, features=features)
        if edges is not None:
            each = LayerGraph(A, graph.vertex_ids, edges=edges)
            layers = [each] * model.layers
            training = replace(training, layers=layers, with_edges=layers)
        if isinstance(training.X, CSR):
            _ = training.X.T  # its order serves every epoch, whatever is dropped
    watch.lap("features")
    return training


def _edges_of(config: TrainConfig, graph: DistGraph) -> tuple[Tensor, Tensor]:
    """Ends and features of a rank's edges, as wide as the model wants them. Collective."""
    there = graph.share.edge_attr
    check_edge_features(config, graph.meta, 0 if there is None else there.shape[1])
    edges = graph.local_edge_index, graph.edge_attr
    assert edges[1] is not None
    return edges[0], edges[1].to(weights_of(config.training.dtype))


def check_edge_features(config: TrainConfig, meta: GraphMeta, there: int) -> None:
    """Refuse edges whose features are not as many as the model wants."""
    width = config.model.edge_dim
    named = f"--model {config.model.model} with model.edge-dim {width}"
    if not there:
        raise InputError(f"{meta.name} has no features of edges (edge_attr), {named} needs some")
    if there != width:
        raise InputError(
            f"{meta.name}: edges have {there} features, {named} does not fit: "
            f"--set model.edge-dim={there}"
        )


def share_of(
    config: TrainConfig,
    comm: Communicator,
    balance: Sequence[str] = ("nnz",),
    labels: Int64Array | None = None,
) -> tuple[RankShare, dict[str, Any] | None]:
    """A rank's part of the graph; rank 0 alone looks what the name stands for. Collective.

    `balance` is what parts that are made here get equal shares of; `labels` [n], on rank 0, is the
    part of each vertex in place of what the configuration says.
    """
    data, how = config.data, config.algorithm
    placement = Placement(
        config.distribution,
        how.partition if labels is None else labels,
        edges=how.edges,
        objective=how.objective if labels is None else "auto",
        imbalance=how.imbalance,
        balance=tuple(balance),
        seed=config.training.seed,
        symmetrise=data.symmetrise,
        split=data.split,
        hops=config.model.layers,
        nodes=config.nodes(comm.size),
    )
    parts = config.distribution.parts(comm.size)
    if comm.from_rank_zero(lambda: is_cut(data.dataset, parts)):
        if data.graph_split is not None:
            raise InputError("data.graph-split: shards are one graph, whose masks are made before")
        if labels is not None:
            raise InputError(f"{data.dataset}: shards are parts already; give it as one file")
        return opened_share(data.dataset, placement, comm), None

    def opened() -> GraphSource:
        with ProgressBar() as progress, working(f"reading {data.dataset}"):
            return open_source(
                data.dataset, data.data_dir, progress=progress, graph_split=data.graphs_of_splits
            )

    what = f"partitioning {data.dataset} into {plural(parts, 'part')}"
    with working(what, shown=comm.rank == 0):
        return scattered_share(data.dataset, opened, placement, comm)


def check_weights_of(config: TrainConfig, share: RankShare, comm: Communicator) -> None:
    """Refuse weights that the model cannot normalise, before training. Collective."""
    first, loops = share.layout.range(comm.rank)[0], MODELS[config.model.model].loops
    kind, block = normalisation_of(config), share.adjacency
    assert block is not None
    comm.on_every_rank(
        lambda: check_weights(block, kind, loops=loops, first_row=first, ids=share.vertex_ids)
    )


def normalisation_of(config: TrainConfig) -> Normalisation:
    """The normalisation of the options, or the one that the model is defined on."""
    model = config.model
    return own_normalisation(model.model, model.aggregate, config.data.normalisation)[0]


def matrix_of(config: TrainConfig) -> Kind:
    """The matrix of a graph that the model multiplies with."""
    return _KINDS[MODELS[config.model.model].loops, normalisation_of(config)]


def features_of(config: TrainConfig, share: RankShare) -> Tensor | CSR:
    """Features of this rank's vertices, normalised as the flags say; may overwrite the share's."""
    X, norm = share.data.x, config.data.feature_norm
    if X is None:
        width = config.data.random_features
        if not width:
            raise InputError(
                f"{share.meta.name} has no features; --random-features F makes some up"
            )
        check_memory(f"--random-features {width}", 4 * len(share.vertex_ids) * width)
        return random_features(share.vertex_ids, 0, width, config.training.seed)
    if norm == "row" or (norm == "auto" and share.meta.bag_of_words):
        return row_normalise_features(X, in_place=True)
    return X


def random_features(vertex_ids: Tensor, first: int, last: int, seed: int) -> Tensor:
    """Columns [first, last) of features that are made up."""
    columns = [(f"x{column // 8 * 8}", column % 8) for column in range(first, last)]
    threads = torch.get_num_threads()
    return torch.from_numpy(uniform_rows(vertex_ids.numpy(), seed, columns, threads))


def dense_for_reduction(config: TrainConfig, X: Tensor | CSR) -> Tensor | CSR:
    """Features as a reduction of whole rows or attention to all takes them, if there is one."""
    model = config.model
    if not isinstance(X, CSR) or not (model.reduces_rows or model.attends_globally):
        return X
    why = f"--aggregate {model.aggregate}" if model.reduces_rows else f"--model {model.model}"
    return _dense(why, X)


def _dense(why: str, X: CSR) -> Tensor:
    rows, width = X.shape
    check_memory(f"{why} with dense features, {rows} × {width}", 4 * rows * width)
    return densified(X)


def _as_first_layer_takes(config: TrainConfig, A: DistMatrix, X: Tensor | CSR) -> Features:
    how, device = config.algorithm, A.mesh.everyone.device
    propagates = config.propagates_once(sparse=isinstance(X, CSR))
    needs = {
        "--order paper": how.order == "paper",
        f"--aggregate {config.model.aggregate}": config.model.reduces_rows,
        f"--model {config.model.model}": config.model.attends_globally,
        config.changes_features or "": config.changes_features,
        "--recompute-halo": propagates,
    }
    why = next((flag for flag, needed in needs.items() if needed), None)
    if isinstance(X, CSR) and why is not None:
        X = _dense(why, X.to(device))
    stored: Features = stored_in(X.to(device), config.training.dtype)
    if propagates and isinstance(stored, Tensor):
        stored = propagate_(A, stored, keep=config.model.keeps_features)
    read = (stored.AX_local, stored.X_local) if isinstance(stored, Propagated) else (stored,)
    for matrix in read:
        if isinstance(matrix, Tensor) and matrix.is_cpu and matrix.is_contiguous():
            collapse_pages(matrix.data_ptr(), matrix.nbytes)
    return stored


def labels_of(config: TrainConfig, share: RankShare) -> tuple[Tensor, int]:
    """Labels of this rank's vertices, and how many classes or columns there are."""
    if share.data.y is not None:
        return share.data.y, share.meta.classes
    classes = config.data.random_classes
    if not classes:
        raise InputError(f"{share.meta.name} has no labels; --random-classes C makes some up")
    return made_up_labels(config, share.vertex_ids), classes


def made_up_labels(config: TrainConfig, vertex_ids: Tensor) -> Tensor:
    """Labels of some vertices of a data set that has none."""
    data, seed = config.data, config.training.seed
    draws = uniform(vertex_ids.numpy(), seed, "y")
    y = torch.from_numpy((draws * data.random_classes).astype(np.int64))
    if data.random_labels:
        has_label = uniform(vertex_ids.numpy(), seed, "labelled") < data.random_labels
        y[~torch.from_numpy(has_label)] = UNKNOWN
    return y


def masks_of(data: VertexData, vertex_ids: Tensor, y: Tensor, seed: int) -> list[Tensor]:
    """Masks of training, validation and testing; a seeded split where there are none."""
    masks = [data.train_mask, data.val_mask, data.test_mask]
    if masks[0] is None:
        split = seeded_split(vertex_ids.cpu(), y.cpu(), seed)
        return [mask.to(y.device) for mask in split]
    return [torch.zeros_like(masks[0]) if mask is None else mask for mask in masks]
