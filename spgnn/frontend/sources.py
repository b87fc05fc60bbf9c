"""Data that can be distributed, and their conversion to each rank's share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor
from torch.utils.data import Dataset

from spgnn.comm import Communicator
from spgnn.config import ObjectiveChoice, objective_for
from spgnn.data import Graph, GraphBlock, from_scipy, open_shards, open_source
from spgnn.data.adapters import (
    EdgeList,
    ForeignGraph,
    read_dgl,
    read_ogb,
    read_pyg,
    rows_of_vertices,
    unchanged,
    with_edge_index,
)
from spgnn.data.distribute import RankShare, from_shards, scatter
from spgnn.data.graph import MASKS, VertexData, classes_of, label_columns
from spgnn.data.normalise import add_self_loops, is_bag_of_words
from spgnn.data.shards import is_graph_directory
from spgnn.data.source import GraphMeta, GraphSource, MemorySource
from spgnn.data.splits import seeded_split
from spgnn.errors import InputError, check_method, memory_for
from spgnn.exchange import Algorithm
from spgnn.graph.vertices import check_sent
from spgnn.layout import Int32Array, RowLayout
from spgnn.partition import METHODS, cut_vertices, partition, read_labels
from spgnn.partition.labels import check_labels, read_edge_labels
from spgnn.progress import ProgressBar
from spgnn.registry import DATA, LIBRA
from spgnn.sparse import CSR

# With a SciPy matrix, its vertices' features, targets and masks come as separate arguments.
APART = ("x", "y", *MASKS)


@dataclass(frozen=True, eq=False)
class Opened:
    """A graph that rank 0 can read.

    `edges` are there where the adjacency does not say all of them. `attributes` [n, …] are what
    else is known of each vertex, and x and y where they have dtypes or shapes of their own;
    `shared` is said of the whole graph; `left_out` names everything else, and says what it is.
    `repeated`: some edges are between the same two vertices; the adjacency counts them, or sums
    their weights. `listed` and `pairs` are those of a `ForeignGraph`.
    """

    source: GraphSource
    edges: EdgeList | None = None
    attributes: dict[str, Tensor] = field(default_factory=dict)
    shared: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    repeated: bool = False
    listed: dict[str, Tensor] = field(default_factory=dict)
    pairs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def features(self) -> int:
        """Width of x, 0 without."""
        x = self.attributes.get("x")
        if x is None:
            return self.source.meta.features
        return 1 if x.dim() == 1 else int(x.shape[-1])

    @property
    def classes(self) -> int:
        """Largest class + 1, where y is one class a vertex."""
        y = self.attributes.get("y")
        return self.source.meta.classes if y is None else classes_of(y)

    @property
    def outputs(self) -> int:
        """Numbers that predict y: one a class, or one for each of its own."""
        y = self.attributes.get("y")
        return self.classes if y is None else self.classes or y[:1].numel()


def kind_of(data: Any) -> str:
    """The kind of some data, in one word; "nothing" for ``None``."""
    signs = {
        "nothing": data is None,
        "name": isinstance(data, str | os.PathLike),
        "graph": isinstance(data, Graph),
        "block": isinstance(data, GraphBlock),
        "source": isinstance(data, GraphSource),
        "scipy": scipy.sparse.issparse(data),
        "ogb": hasattr(data, "get_idx_split"),
        "dgl": hasattr(data, "ndata"),
        "pyg": hasattr(data, "edge_index"),
    }
    result = [kind for kind, there in signs.items() if there]
    result = result or [kind for kind in DATA if DATA[kind][0](data)]
    if isinstance(data, Dataset) and result and result[0] != "ogb":
        result = []  # PyG's take attributes of the graphs they hold
    if result:
        return result[0]
    kind = type(data).__name__
    if isinstance(data, list | tuple | Dataset):
        several = f"a {kind} may hold several graphs"
        raise InputError(f"{several}, and one is distributed: give that, as data[0]")
    raise InputError(
        f"data of type {kind} cannot be distributed: give a PyG Data, a DGLGraph, "
        "an OGB dataset, a SciPy matrix, a spgnn.data.Graph, or the name or path of a data set"
    )


def open_data(data: Any, apart: dict[str, Any], name: str, data_dir: str | None) -> Opened:
    """Open a graph that is given in any form but blocks, on rank 0.

    `apart` are the arguments that `APART` names; `name` is what messages call a graph without a
    name.
    """
    kind = kind_of(data)
    arrays = {key: value for key, value in apart.items() if value is not None}
    if arrays and kind != "scipy":
        other = "this data has its own, or gets it by dataclasses.replace(load_dataset(…), …)"
        raise InputError(f"{next(iter(arrays))}= belongs to a SciPy matrix; {other}")
    match kind:
        case _ if kind in DATA:
            raise InputError(f"this takes graphs of one vertex type, not a {kind}")
        case "nothing":
            raise InputError("data: rank 0 has none; it has to hold the graph")
        case "name":
            with ProgressBar() as progress:
                return Opened(open_source(os.fspath(data), data_dir, progress=progress))
        case "graph":
            return Opened(MemorySource(data))
        case "source":
            return Opened(data)
        case "scipy":
            sparse = {"x": arrays.pop("x")} if scipy.sparse.issparse(arrays.get("x")) else {}
            tensors = rows_of_vertices(arrays, data.shape[0])
            inside, attributes = unchanged(tensors)
            masks = {key: tensors.get(key) for key in MASKS}
            record = from_scipy(data, name=name, **sparse, **inside, **masks)
            opened = Opened(MemorySource(record), attributes=attributes)
        case _:
            foreign, name = _read_foreign(kind, data, name)
            record, attributes = foreign.apart(name)
            edges = foreign.edges
            opened = Opened(
                MemorySource(record),
                edges if edges.says_more else None,
                attributes,
                foreign.shared,
                foreign.left_out,
                record.edges < len(edges.source),
                foreign.listed,
                foreign.pairs,
            )
    of_edges = {} if opened.edges is None else opened.edges.attributes
    shared = {key: t for key, t in opened.shared.items() if isinstance(t, Tensor)}
    others = shared | opened.listed | opened.pairs
    for key, rows in (opened.attributes | of_edges | others).items():
        check_sent(key, rows)
    return opened


def _read_foreign(kind: str, data: Any, name: str) -> tuple[ForeignGraph, str]:
    """A graph of another library, and its name."""
    if kind == "dgl":
        if not getattr(data, "is_homogeneous", True):
            raise InputError(
                "heterogeneous data are not distributed: take dgl.to_homogeneous(graph)"
            )
        return read_dgl(data), name
    if kind == "ogb":  # of either flavour: edges in a dictionary, or in a PyG ``Data``
        dataset, data, name = data, data[0], str(data.name)
        if not hasattr(data, "edge_index"):
            return read_ogb(dataset), name
        data, split = data.clone(), dataset.get_idx_split()
        for key, part in zip(MASKS, ("train", "valid", "test"), strict=True):
            mask = torch.zeros(int(data.num_nodes), dtype=torch.bool)
            mask[split[part]] = True
            data[key] = mask
    return read_pyg(with_edge_index(data)), name


Data = TypeVar("Data", bound=VertexData)


@dataclass(frozen=True, eq=False)
class Placement:
    """Assignment of vertices to ranks.

    `partition` is a method, a file of labels, or on rank 0 the labels [n]; `edges` a file with the
    part of each nonzero, for a vertex cut; `objective` says what the method minimises, "auto" what
    is exchanged under the cover; `balance` what every part gets an equal share of;
    `symmetrise` makes a directed graph undirected before it is partitioned; `split` keeps one
    column of masks; `hops` are layers of the model, for method pagraph; `nodes` are those that
    the parts are on.
    """

    algorithm: Algorithm
    partition: str | npt.ArrayLike = "gvb"
    edges: str | None = None
    objective: ObjectiveChoice = "auto"
    imbalance: float = 0.05
    balance: tuple[str, ...] = ("nnz",)
    seed: int = 0
    symmetrise: bool = False
    split: int | None = 0
    hops: int = 2
    nodes: int | None = None

    def check_ready(self, what: str) -> None:
        """Refuse an objective where `what` says the parts already."""
        if self.objective != "auto":
            raise InputError(f"--objective {self.objective}: {what} says the parts already")


def is_cut(name: str, parts: int) -> bool:
    """True for a directory of parts; an unpartitioned one is like any other data set."""
    return is_graph_directory(name) and (parts == 1 or open_shards(name).meta.parts > 1)


def opened_share(name: str, how: Placement, comm: Communicator) -> RankShare:
    """Open the part of this rank of a graph that is cut already. Collective."""
    if how.symmetrise:
        raise InputError("--symmetrise: shards are ready-made; symmetrise before sharding")
    if how.edges is not None:
        raise InputError("--edges: shards hold vertices by part; give the graph as one file")
    how.check_ready(name)
    parts, (_, shares) = how.algorithm.parts(comm.size), how.algorithm.copies(comm.size)
    shards = comm.on_every_rank(lambda: open_shards(name))
    comm.check_agreement(f"{name}/meta.json", **asdict(shards.meta))
    _check_vertices(shards.meta.vertices, name)
    share = from_shards(shards, comm, parts, shares=shares)
    return replace(share, data=_one_split(share.data, how.split, name))


def scattered_share(
    name: str, open_graph: Callable[[], GraphSource], how: Placement, comm: Communicator
) -> tuple[RankShare, dict[str, Any] | None]:
    """Receive the part of this rank of a graph that rank 0 opens and partitions. Collective.

    Messages call it `name`. With the share comes what the partitioner predicted, on rank 0, where
    it was asked.
    """
    parts, (_, shares) = how.algorithm.parts(comm.size), how.algorithm.copies(comm.size)
    opened = comm.on_rank_zero(lambda: _opened(name, open_graph, how, parts))
    source, labels, edges, report = (None,) * 4 if opened is None else opened
    share = scatter(source, labels, comm, parts, how.split, shares=shares, edge_labels=edges)
    return share, report


def _opened(
    name: str, open_graph: Callable[[], GraphSource], how: Placement, parts: int
) -> tuple[GraphSource, Int32Array, Int32Array | None, dict[str, Any] | None]:
    """The graph, whose features are still to be read, and its partitions, for rank 0."""
    with memory_for(name):
        source = open_graph()
        _check_vertices(source.meta.vertices, name)
        _one_split(source.rows(slice(0, 0)), how.split, name)
        if how.symmetrise:
            source = MemorySource(source.graph().symmetrised())
        structure = source.structure()
        method = how.partition if isinstance(how.partition, str) else None  # not labels
        if method == LIBRA:
            if "edge_labels" not in how.algorithm.can:
                raise InputError("--partition libra cuts vertices: it needs --algo vertex-cut")
            if how.objective != "auto":
                raise InputError(f"--objective {how.objective} needs --partition gvb, not libra")
            with ProgressBar() as progress:
                cut = cut_vertices(
                    structure, parts, imbalance=how.imbalance, seed=how.seed, progress=progress
                )
            return source, cut.owners, cut.edges, cut.report
        edges = None if how.edges is None else read_edge_labels(how.edges, structure.nnz, parts)
        looks = "train" in how.balance or method == "pagraph"
        mask = _training_mask(source, how) if looks else None
        labels, report = _labels(how, structure, parts, mask)
        return source, labels, edges, report


def _training_mask(source: GraphSource, how: Placement) -> npt.NDArray[np.bool_]:
    """Training vertices of the whole graph, those of the seeded split if it names none."""
    masks, labels = [], []
    for _, piece in source.pieces():
        one = _one_split(piece, how.split or 0, source.meta.name)
        masks.append(one.train_mask)
        labels.append(one.y)
    if masks[0] is not None:
        return torch.cat([mask for mask in masks if mask is not None]).numpy()
    ids = source.meta.vertices if source.vertex_ids is None else source.vertex_ids
    y = None if labels[0] is None else torch.cat([part for part in labels if part is not None])
    return seeded_split(ids, y, how.seed)[0].numpy()


def _labels(
    how: Placement, A: CSR, parts: int, mask: npt.NDArray[np.bool_] | None
) -> tuple[Int32Array, dict[str, Any] | None]:
    method = how.partition
    if not isinstance(method, str):
        how.check_ready("partition")
        return check_labels(method, A.shape[0], parts)[0], None
    if method not in METHODS:
        check_method(method, (*METHODS, LIBRA))
        how.check_ready(f"--partition {method}")
        return read_labels(method, A.shape[0], parts), None
    objective = objective_for(how.algorithm.cover, method, how.objective)
    with ProgressBar() as progress:
        labels, report = partition(
            add_self_loops(A),
            parts,
            method=method,
            objective=objective,
            imbalance=how.imbalance,
            balance=how.balance,
            train_mask=mask,
            seed=how.seed,
            nodes=how.nodes,
            hops=how.hops,
            progress=progress,
        )
    return labels, report


def _check_vertices(vertices: int, name: str) -> None:
    if not vertices:
        raise InputError(f"{name}: a graph without vertices")


def _one_split(data: Data, split: int | None, name: str) -> Data:
    """The same with masks that are vectors."""
    if split is None:
        return data
    for mask in (data.train_mask, data.val_mask, data.test_mask):
        if mask is not None and mask.dim() == 2 and not mask.shape[1]:
            raise InputError(f"{name}: masks without columns; there is no split to train on")
    return data.select_split(split)


def share_of_blocks(
    block: GraphBlock, how: Placement, comm: Communicator, name: str, refused: Sequence[str]
) -> RankShare:
    """Take the block that this rank brought for its share; rows stay where they are. Collective."""
    sizes = torch.zeros(comm.size, dtype=torch.int64)
    sizes[comm.rank] = block.rows
    comm.all_reduce(sizes).wait()
    layout = RowLayout(np.append(0, np.cumsum(sizes.numpy())))
    comm.on_every_rank(lambda: _check(block, layout, how, comm.rank, refused))
    block = comm.on_every_rank(
        lambda: block if how.split is None or not block.splits else block.select_split(how.split)
    )
    masks = {key: getattr(block, key) for key in MASKS}
    comm.check_agreement(
        "distribute",
        x=None if block.x is None else (type(block.x).__name__, int(block.x.shape[1])),
        weighted=block.adjacency.values is not None,
        edge_attr=None if block.edge_attr is None else int(block.edge_attr.shape[1]),
        y=None if block.y is None else (block.y.dtype, tuple(block.y.shape[1:])),
        **{key: None if mask is None else tuple(mask.shape[1:]) for key, mask in masks.items()},
    )
    edges, largest = block.adjacency.nnz, label_columns(block.y) - 1
    words = comm.agree(int(not is_bag_of_words([block.x]))) == 0
    meta = GraphMeta(
        name=name,
        vertices=layout.rows,
        edges=comm.agree(edges, "sum"),
        features=block.features,
        classes=max(comm.agree(largest) + 1, 0),
        directed=True,  # nobody has looked
        weighted=block.adjacency.values is not None,
        offsets=tuple(layout.offsets.tolist()),
        sparse_features=isinstance(block.x, CSR),
        bag_of_words=words,
        labelled=block.y is not None,
        splits=block.splits,
    )
    # Features are shared, for they may be mapped files; the rest is small, and its owner may write.
    small = {key: t for key in ("y", *MASKS) if (t := getattr(block, key)) is not None}
    data = VertexData(x=block.x, **{key: t.clone() for key, t in small.items()})
    adjacency = block.adjacency.with_own_numbers()
    ids, attr = block.vertex_ids.clone(), block.edge_attr
    return RankShare(meta, layout, adjacency, ids, data, edge_attr=attr)


def _check(
    block: GraphBlock, layout: RowLayout, how: Placement, rank: int, refused: Sequence[str]
) -> None:
    if refused:
        raise InputError(f"{refused[0]}= belongs to a SciPy matrix; a block has its own")
    if how.symmetrise:
        raise InputError("symmetrise: blocks are ready-made; symmetrise before cutting")
    how.check_ready("a GraphBlock")
    if not layout.rows:
        raise InputError("blocks without vertices")
    first = layout.range(rank)[0]
    if block.first_row != first:
        raise InputError(
            f"the block begins with row {block.first_row}, ranks before hold {first} rows; blocks "
            "follow each other in the order of ranks"
        )
    if block.adjacency.shape[1] != layout.rows:
        raise InputError(
            f"the block has {block.adjacency.shape[1]} columns, all blocks together "
            f"{layout.rows} rows"
        )
