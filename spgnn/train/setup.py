"""From a data set's name to what a rank trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.comm import Communicator, Mesh
from spgnn.command import plural
from spgnn.config import TrainConfig
from spgnn.data import (
    GraphSource,
    open_source,
)
from spgnn.data.distribute import RankShare, induced
from spgnn.data.graph import VertexData, labelled
from spgnn.data.normalise import (
    WITH_LOOPS,
    Normalisation,
    check_weights,
    row_normalise_features,
)
from spgnn.data.source import GraphMeta
from spgnn.data.splits import Pairs, held_out, seeded_split
from spgnn.errors import InputError, memory_for
from spgnn.exchange import Layered
from spgnn.frontend.sources import Placement, is_cut, opened_share, scattered_share
from spgnn.graph.matrices import normalised
from spgnn.hashing import uniform, uniform_rows
from spgnn.memory import check_memory
from spgnn.nn import Features, Propagated, densified, propagate_, stored_in, weights_of
from spgnn.nn.loss import UNKNOWN
from spgnn.plan.network import normalisation_of as own_normalisation
from spgnn.progress import ProgressBar, working
from spgnn.sparse import CSR, take_rows
from spgnn.spmm import DistMatrix
from spgnn.train.rows import TrainingRows, layer_plans, training_rows


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything one rank trains on.

    Attributes
    ----------
    A : DistMatrix
        The normalised adjacency.
    X : Tensor or CSR [own rows, features], or Propagated
    training : TrainingRows
        What of all this a training epoch works on.
    y : Tensor int64 [own rows], or int8 or float32 [own rows, classes]
    masks : train, validation and test, bool [own rows] each
    vertex_ids : Tensor int64 [own rows]
    meta : GraphMeta
    features, classes : int
    partition_report : dict or None
        What the partitioner predicted, where this run made the partition (rank 0).
    links : list of Pairs, optional
        For training, validation and testing, where links are what is learnt.
    """

    A: DistMatrix
    X: Features
    training: TrainingRows
    y: Tensor
    masks: list[Tensor]
    vertex_ids: Tensor
    meta: GraphMeta
    features: int
    classes: int
    partition_report: dict[str, Any] | None
    links: list[Pairs] | None = None


def prepare(config: TrainConfig, comm: Communicator) -> Problem:
    """Load, partition, distribute and normalise the data set, and build the matrix. Collective.

    Raises
    ------
    InputError
        If flags do not go together, or anything about the data set or the partition is wrong.
    """
    config.check(comm.size)
    mesh, device = Mesh.build(comm, config.algorithm.distribution.axes(comm.size)), comm.device
    share, report = share_of(config, comm)
    share, sought = _sought(config, share, comm)
    y, masks, wanted = sought.y, sought.masks, sought.wanted
    seen = None
    building = working("building what ranks exchange", shown=comm.rank == 0)
    with memory_for(f"the adjacency of {share.meta.name}"), building:
        A, plans = _matrices(config, share, mesh, None if config.aim.inductive else wanted)
        A = A.to(device)
        if config.aim.inductive:
            subgraph = induced(share, masks[0], comm)
            seen, plans = _matrices(config, subgraph, mesh, wanted[masks[0]])
            seen = seen.to(device)
    # The block row has become L, S and R; it must not be in memory next to the features.
    share = replace(share, adjacency=None)
    with memory_for(f"the features of {share.meta.name}"):
        given = comm.on_every_rank(lambda: features_of(config, share))
        # Before A·X is written over X.
        X_seen = None if seen is None else _chosen_rows(given, masks[0])
        X = _ready(config, A, given, device)
    y, masks = y.to(device), [mask.to(device) for mask in masks]
    vertex_ids = share.vertex_ids.to(device)
    with memory_for(f"what an epoch on {share.meta.name} works on"):
        if seen is None or X_seen is None:
            training, X = training_rows(plans, A, X, vertex_ids=vertex_ids, y=y, mask=masks[0])
        else:
            own = masks[0]
            ready, ids = _ready(config, seen, X_seen, device), vertex_ids[own]
            training, _ = training_rows(plans, seen, ready, vertex_ids=ids, y=y[own], mask=own[own])
        if isinstance(training.X, CSR):
            _ = training.X.T  # its order serves every epoch, whatever is dropped
    return Problem(
        A,
        X,
        training,
        y,
        masks,
        vertex_ids,
        share.meta,
        int((X.AX_local if isinstance(X, Propagated) else X).shape[1]),
        sought.classes,
        report,
        sought.links,
    )


class Prepared:
    """The problem that was prepared last, for trainings after one another that share it."""

    def __init__(self) -> None:
        self._parts: tuple[object, ...] = ()
        self._problem: Problem | None = None

    def of(self, config: TrainConfig, comm: Communicator) -> Problem:
        """The problem of :func:`prepare`, prepared anew only if its options changed. Collective.

        Codecs, optimisers and outputs do not belong to these, nor does how long it trains.

        Raises
        ------
        InputError
            As :func:`prepare`.
        """
        training = config.training.seed, config.training.dtype
        parts = (config.data, config.algorithm, config.model, config.aim, *training)
        if self._problem is None or parts != self._parts:
            self._problem = None  # not two at a time
            self._problem = prepare(config, comm)
            self._parts = parts
        return self._problem


@dataclass(frozen=True, eq=False)
class _Sought:
    """Targets, as of :class:`Problem`, and own vertices that the loss looks at."""

    y: Tensor
    classes: int
    masks: list[Tensor]
    wanted: Tensor
    links: list[Pairs] | None = None


def _sought(config: TrainConfig, share: RankShare, comm: Communicator) -> tuple[RankShare, _Sought]:
    """The targets, and the graph without links that are held out. Collective."""
    if config.aim.task == "vertices":
        y, classes = labels_of(config, share)
        masks = masks_of(share.data, share.vertex_ids, y, config.training.seed)
        return share, _Sought(y, classes, masks, masks[0] & labelled(y))
    held = config.aim.val_links, config.aim.test_links
    share, links = held_out(share, held, config.training.seed, comm)
    unknown = torch.full((len(share.vertex_ids),), UNKNOWN)
    # Any vertex may be an end of a pair.
    nobody, everybody = unknown > UNKNOWN, unknown == UNKNOWN
    return share, _Sought(unknown, 0, [nobody] * 3, everybody, links)


def share_of(
    config: TrainConfig, comm: Communicator, balance: Sequence[str] = ("nnz",)
) -> tuple[RankShare, dict[str, Any] | None]:
    """A rank's part of the graph; rank 0 alone looks what the name stands for.

    Parameters
    ----------
    config, comm
    balance : sequence of str
        What parts that are made here get equal shares of; see :func:`spgnn.partition.partition`.
    """
    data, how = config.data, config.algorithm
    placement = Placement(
        how.distribution,
        how.partition,
        edges=how.edges,
        imbalance=how.imbalance,
        balance=tuple(balance),
        seed=config.training.seed,
        symmetrise=data.symmetrise,
        split=data.split,
    )
    parts = how.distribution.parts(comm.size)
    if comm.from_rank_zero(lambda: is_cut(data.dataset, parts)):
        if data.graph_split is not None:
            raise InputError("data.graph-split: shards are one graph, whose masks are made before")
        return opened_share(data.dataset, placement, comm), None

    def opened() -> GraphSource:
        with ProgressBar() as progress, working(f"reading {data.dataset}"):
            return open_source(
                data.dataset,
                data.data_dir,
                progress=progress,
                graph_split=data.graphs_of_splits,
            )

    what = f"partitioning {data.dataset} into {plural(parts, 'part')}"
    with working(what, shown=comm.rank == 0):
        return scattered_share(data.dataset, opened, placement, comm)


def _matrices(
    config: TrainConfig, share: RankShare, mesh: Mesh, wanted: Tensor | None
) -> tuple[DistMatrix, Layered | None]:
    """The whole matrix, and plans for layers that do with less if some rows are wanted. Collective.

    Parameters
    ----------
    config, share, mesh
    wanted : Tensor bool [own rows], optional
        Vertices that the loss looks at.
    """
    loops = config.model.model in WITH_LOOPS
    kind = normalisation_of(config)
    rows = mesh.everyone.on_every_rank(lambda: normalised(share, mesh.rank, kind, loops=loops))
    rows = rows.to(weights_of(config.training.dtype))
    A = rows.matrix(share.layout, mesh, config.algorithm.distribution)
    if wanted is None:
        return A, None
    return A, layer_plans(
        config,
        rows.block,
        A,
        column_scale=rows.column_scale,
        edge_labels=rows.edge_labels,
        wanted=wanted.nonzero()[:, 0],
        propagated=_propagates(config, isinstance(share.data.x, CSR)),
    )


def check_weights_of(config: TrainConfig, share: RankShare, comm: Communicator) -> None:
    """Refuse weights that the model cannot normalise, before training. Collective.

    Raises
    ------
    InputError
        On all ranks; names a vertex.
    """
    first, loops = share.layout.range(comm.rank)[0], config.model.model in WITH_LOOPS
    kind, block = normalisation_of(config), share.adjacency
    assert block is not None
    comm.on_every_rank(
        lambda: check_weights(block, kind, loops=loops, first_row=first, ids=share.vertex_ids),
    )


def normalisation_of(config: TrainConfig) -> Normalisation:
    """The normalisation of the options, or the one that the model is defined on."""
    model = config.model
    return own_normalisation(model.model, model.aggregate, config.data.normalisation)[0]


def _chosen_rows(X: Tensor | CSR, chosen: Tensor) -> Tensor | CSR:
    """A copy of some rows of features."""
    return take_rows(X, chosen.nonzero()[:, 0]) if isinstance(X, CSR) else X[chosen]


def features_of(config: TrainConfig, share: RankShare) -> Tensor | CSR:
    """Features of this rank's vertices, normalised as the flags say; may overwrite the share's."""
    X, norm = share.data.x, config.data.feature_norm
    if X is None:
        width = config.data.random_features
        if not width:
            raise InputError(
                f"{share.meta.name} has no features; --random-features F makes some up"
            )
        return _random_features(share.vertex_ids, width, config.training.seed)
    if norm == "row" or (norm == "auto" and share.meta.bag_of_words):
        return row_normalise_features(X, in_place=True)
    return X


def _random_features(vertex_ids: Tensor, features: int, seed: int) -> Tensor:
    check_memory(f"--random-features {features}", 4 * len(vertex_ids) * features)
    return random_features(vertex_ids, 0, features, seed)


def random_features(vertex_ids: Tensor, first: int, last: int, seed: int) -> Tensor:
    """Columns [first, last) of features that are made up."""
    columns = [(f"x{column // 8 * 8}", column % 8) for column in range(first, last)]
    threads = torch.get_num_threads()
    return torch.from_numpy(uniform_rows(vertex_ids.numpy(), seed, columns, threads))


def _propagates(config: TrainConfig, sparse: bool) -> bool:
    """True if A·X is computed once; of sparse X, which fills in, only for a recomputed halo."""
    how = config.algorithm
    if how.order != "auto" or config.model.drops_features or not config.model.propagates:
        return False
    if config.aim.label_propagation:  # labels are added to X, other ones in each epoch
        return False
    return how.recompute_halo or not sparse


def dense_for_max(config: TrainConfig, X: Tensor | CSR) -> Tensor | CSR:
    """Features as the largest neighbour can be taken of, if the model does."""
    if not isinstance(X, CSR) or config.model.aggregate != "max":
        return X
    rows, width = X.shape
    check_memory(f"--aggregate max with dense features, {rows} × {width}", 4 * rows * width)
    return densified(X)


def _ready(
    config: TrainConfig, A: DistMatrix, X: Tensor | CSR, device: torch.device
) -> Tensor | CSR | Propagated:
    """Features as the first layer takes them."""
    how = config.algorithm
    propagates = _propagates(config, isinstance(X, CSR))
    needs = {
        "--order paper": how.order == "paper",
        "--aggregate max": config.model.aggregate == "max",
        "aim.label-propagation": config.aim.label_propagation > 0,
        "--recompute-halo": propagates,
    }
    why = next((flag for flag, asked in needs.items() if asked), None)
    if isinstance(X, CSR) and why is not None:
        rows, width = X.shape
        check_memory(f"{why} with dense features, {rows} × {width}", 4 * rows * width)
        X = densified(X.to(device))
    stored = stored_in(X.to(device), config.training.dtype)
    if not propagates or not isinstance(stored, Tensor):
        return stored
    return propagate_(A, stored, keep=config.model.keeps_features)


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
        known = uniform(vertex_ids.numpy(), seed, "labelled") < data.random_labels
        y[~torch.from_numpy(known)] = UNKNOWN
    return y


def masks_of(data: VertexData, vertex_ids: Tensor, y: Tensor, seed: int) -> list[Tensor]:
    """Of training, validation and testing; a seeded split where there are none."""
    masks = [data.train_mask, data.val_mask, data.test_mask]
    if masks[0] is None:
        return list(seeded_split(vertex_ids, y, seed))
    return [torch.zeros_like(masks[0]) if mask is None else mask for mask in masks]
