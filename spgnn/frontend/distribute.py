"""From anything that is a graph to one rank's part of it, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, get_args

import numpy.typing as npt
from torch import Tensor, nn

from spgnn.comm import Communicator, connect
from spgnn.command import nbytes
from spgnn.config import ObjectiveChoice, TrainConfig
from spgnn.data.adapters import EdgeList, of_own_rows
from spgnn.data.distribute import RankShare
from spgnn.errors import InputError, check_choice, check_integer, check_number, memory_for
from spgnn.exchange import Algorithm, Codec
from spgnn.frontend.sources import (
    APART,
    Opened,
    Placement,
    is_cut,
    kind_of,
    open_data,
    opened_share,
    scattered_share,
    share_of_blocks,
)
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.codecs import checked as checked_codec
from spgnn.graph.distgraph import DistGraph
from spgnn.graph.edges import scattered_edges
from spgnn.graph.vertices import copied_from_rank_zero, scatter_rows
from spgnn.registry import DATA, LARGEST_IMBALANCE, MODELS, PLANNERS, Cover, CoverChoice, Strategy
from spgnn.torch_internals import on_cpu


@on_cpu
def distribute(
    data: Any = None,
    *,
    partition: str | npt.ArrayLike = "gvb",
    algo: str = "1d",
    c: int = 1,
    exchange: Strategy = "sparsity-aware",
    cover: CoverChoice = "auto",
    objective: ObjectiveChoice = "auto",
    node_size: int = 1,
    groups: tuple[int, ...] = (),
    relays: bool = False,
    imbalance: float = 0.05,
    seed: int = 0,
    split: int | None = 0,
    symmetrise: bool = False,
    plan: str | None = None,
    memory: int | float | str | None = None,
    plan_for: str = "gcn",
    hidden_channels: int = 64,
    num_layers: int = 2,
    halo: bool = True,
    x: Any = None,
    y: Any = None,
    train_mask: Any = None,
    val_mask: Any = None,
    test_mask: Any = None,
    name: str = "graph",
    data_dir: str | None = None,
    device: str | None = None,
    backend: str = "auto",
    comm: Communicator | None = None,
    group: Any = None,
    model: nn.Module | None = None,
    codec: Codec | Mapping[str, Any] | None = None,
) -> DistGraph:
    """Partition a graph and give every rank its part. Collective.

    Joins the job that this process was started in, under torchrun, mpiexec or srun; takes torch's
    default process group if the program has made it; or is alone.

    Parameters
    ----------
    data
        A PyG ``Data`` or ``HeteroData``, a ``DGLGraph``, an OGB dataset of either flavour, a SciPy
        matrix (with `x`, `y` and masks as arguments), a `spgnn.data.Graph`, the name or path of a
        data set, a directory of parts, or one of tables of several vertex types. Rank 0's counts:
        the others may pass the same, or nothing. Or on every rank a `spgnn.data.GraphBlock`: its
        rows, one rank's after another's.
        What is written to its arrays afterwards changes nothing here, but for the features of a
        `GraphBlock`: they may be mapped files, or most of the memory there is, and are shared.
    partition : str or int [n]
        A method of ``spgnn.partition``, a file of labels, or the labels themselves, by vertex type
        where there are several. Rank 0's counts; others name the same, or none.
    algo, c, exchange, cover, node_size, groups, relays
        Who computes what: see :class:`spgnn.exchange.Algorithm`. Under cover ``"auto"``, products
        with A move what minimum covers ask for, and whole rows travel for halos, attention and
        codecs; each has a plan of its own, which is made when it is first needed. Where a scheme
        or cover moves sums alone, the rows of halos travel as under ``"1d"``.
    objective : {"auto", "both", "send", "cover"}
        What the partition minimises, see :func:`spgnn.partition.partition`; ``"auto"`` is
        ``"cover"`` under cover ``"minimum"``, and else ``"both"``.
    imbalance, seed
        Of the partition.
    split : int, optional
        Keep this column of masks with several; ``None`` keeps all.
    symmetrise : bool
        Add the reverse of every edge.
    plan : {"auto"}, optional
        Measure this machine (some seconds), price what `algo`, `c`, `cover` and `node_size` could
        be, and take the best; ``graph.plan`` says what was predicted.
    memory : int, float or str, optional
        With a plan: bytes each rank may use, as in ``"20GiB"``.
    plan_for, hidden_channels, num_layers
        With a plan: the model to be trained, say ``"sage"``, or what is most like it.
    halo : bool
        With a plan: only what has a halo; otherwise whatever `matrix` can multiply with.
    x, y, train_mask, val_mask, test_mask
        With a SciPy matrix: see :func:`spgnn.data.from_scipy`.
    name, data_dir
        What messages call a graph without a name; where named sets are looked for.
    device, backend, group
        See :func:`spgnn.connect`; ranks that are connected already keep their device.
    comm : Communicator, optional
        All ranks, if they are connected already.
    model : Module, optional
        Is replicated, and its gradients averaged: see :meth:`DistGraph.synchronise`.
    codec : Codec or mapping, optional
        What may be lost of rows on their way in training, and when they are used: see
        :class:`spgnn.exchange.Codec`; ``{"bits": 8}`` is one. Call
        :meth:`DistGraph.next_epoch` before each epoch then. A delay in a vertex cut makes partial
        sums late as well as rows, and costs far more accuracy than with ``algo="1d"``.

    Returns
    -------
    DistGraph
        Of several vertex types, a :class:`~spgnn.addons.hetero.typed_graph.HeteroDistGraph`.

    Raises
    ------
    InputError
        On all ranks, if anything is wrong with the data or the options, or ranks do not agree.
    """
    if comm is not None and group is not None:
        raise InputError("comm= and group=: give one of them")
    if not isinstance(comm, Communicator | None):
        raise InputError(f"comm= is what spgnn.connect() returned, not a {type(comm).__name__}")
    comm, name = comm or connect(backend, device or "cpu", group), str(name)
    rows: Cover = "column" if cover == "auto" else cover
    algorithm = Algorithm(algo, c, exchange, rows, node_size, groups=groups, relays=relays)
    sought: dict[str, Any] = {"objective": objective, "imbalance": imbalance, "seed": seed}
    sought |= {"symmetrise": symmetrise, "split": split}
    apart = dict(zip(APART, (x, y, train_mask, val_mask, test_mask), strict=True))

    def checked() -> tuple[Codec, TrainConfig, float | None, str]:
        if device not in (None, "auto", comm.device.type):
            raise InputError(f"device {device}: these ranks are connected with {comm.device.type}")
        algorithm.check(comm.size)
        check_choice("symmetrise", repr(symmetrise), ("True", "False"))
        check_choice("halo", repr(halo), ("True", "False"))
        rows_lost = checked_codec(codec, algorithm, plan is not None)
        if plan is None and memory is not None:
            raise InputError('memory= belongs to plan="auto"')
        if plan is not None:
            check_choice("plan", plan, ["auto"])
            if algorithm != Algorithm():
                raise InputError(f'plan="auto" chooses the algorithm, and {algorithm} was given')
            PLANNERS.need("distribute", 'plan="auto"', "plan")
        planned = _planned_model(plan_for, hidden_channels, num_layers, memory)
        check_integer("seed", seed, 0)
        check_number("imbalance", imbalance, 0, LARGEST_IMBALANCE)
        if split is not None:
            check_integer("split", split, 0)
        check_choice("cover", cover, get_args(CoverChoice))
        check_choice("objective", objective, get_args(ObjectiveChoice))
        return rows_lost, *planned, kind_of(data)

    lossy, config, most_bytes, kind = comm.on_every_rank(checked)
    facts = {**vars(algorithm), **sought, "cover": cover, "codec": repr(lossy), "plan": plan}
    facts |= {"plan_for": plan_for, "halo": halo, "memory": memory, "num_layers": num_layers}
    facts["hidden_channels"] = hidden_channels
    facts["model"] = None if model is None else type(model).__name__
    comm.check_agreement("distribute", **facts)
    nodes = algorithm.nodes(comm.size, comm.ranks_a_node())
    how = Placement(algorithm, partition, nodes=nodes, **sought)
    kind = _kind_of_all(kind, partition, comm)
    if kind == "name":  # rank 0 alone looks what it stands for
        kind = comm.from_rank_zero(lambda: _kind_of_folder(data))
    codecs = GraphCodecs(lossy, comm, seed)
    if kind in DATA:
        if memory is not None:
            raise InputError("memory= is for graphs of one vertex type: see HeteroChunks")
        best = None if plan is None else partial(PLANNERS["types"], config=config, halo=halo)
        others = {"symmetrise": symmetrise or None, **apart}
        special: DistGraph = DATA[kind][1](data, how, codecs, comm, others, best)
        if model is not None:
            special.synchronise(model)
        return special
    cut = False
    if kind == "name":
        path = comm.from_rank_zero(lambda: os.fspath(data))
        cut = comm.from_rank_zero(lambda: is_cut(path, algorithm.parts(comm.size)))
    if plan is not None and (cut or kind == "block"):
        raise InputError('plan="auto" cuts a graph by itself: give it in one piece')
    more = dict[str, Any]()
    if kind == "block":
        share = share_of_blocks(data, how, comm, name, [k for k in apart if apart[k] is not None])
    elif cut:
        share = opened_share(path, how, comm)
    else:

        def open_there() -> Opened:
            with memory_for(name):
                opened = open_data(data, apart, name, data_dir)
            if symmetrise and opened.edges is not None:
                raise InputError(
                    "symmetrise: edges of this graph have attributes or an order, or are repeated; "
                    "make it undirected before, with torch_geometric.utils.to_undirected"
                )
            return opened

        opened, record = comm.on_rank_zero(open_there), None
        if plan is not None:
            place = PLANNERS["distribute"]
            how, record = place(opened, how, comm, config, most_bytes, halo=halo)
        share, more = _scattered(opened, how, comm, name)
        more["plan"] = record
    simple = cover == "auto" and lossy.exact and plan is None and comm.size > 1
    products = algorithm.for_products if simple else None
    more["path"] = os.fspath(data) if kind == "name" and comm.rank == 0 else None
    graph = DistGraph(share, comm, how.algorithm, products=products, codecs=codecs, **more)
    if model is not None:
        graph.synchronise(model)
    return graph


def _planned_model(
    kind: str, hidden_channels: int, num_layers: int, memory: float | str | None
) -> tuple[TrainConfig, float | None]:
    """The model that a plan is for, and the bytes that each rank may use."""
    check_choice("plan_for", kind, MODELS)
    check_integer("hidden_channels", hidden_channels, 1)
    check_integer("num_layers", num_layers, 1)
    if isinstance(memory, str):
        try:
            memory = nbytes(memory)
        except InputError as error:
            raise InputError(f"memory: {error}") from None
    elif memory is not None:
        check_number("memory", memory, 1, 1e18)
    return TrainConfig.of(model=kind, hidden=hidden_channels, layers=num_layers), memory


def _kind_of_folder(path: str | os.PathLike[str]) -> str:
    """The kind of data that a directory holds, by an add-on; else "name"."""
    kinds = DATA if os.path.isdir(path) else ()
    return next((kind for kind in kinds if DATA[kind][0](path)), "name")


_SHOWN = {"nothing": "nothing", "block": "a GraphBlock", "pyg": "a PyG Data"}


def _kind_of_all(mine: str, partition: str | npt.ArrayLike, comm: Communicator) -> str:
    """The kind of rank 0's data; others have the same, or nothing. Collective."""
    method = partition if isinstance(partition, str) else "gvb"
    first, named = comm.from_rank_zero(lambda: (mine, isinstance(partition, str) and partition))

    def check() -> None:
        if named and method not in (named, "gvb"):
            raise InputError(f"partition: rank 0 has {named}, rank {comm.rank} {method}")
        if mine != first and ("block" in (mine, first) or mine != "nothing"):
            raise InputError(
                f"data: rank 0 has {_SHOWN.get(first, f'a {first}')}, rank {comm.rank} "
                f"{_SHOWN.get(mine, f'a {mine}')}: give all the same, only rank 0 the data, or "
                "every rank a GraphBlock"
            )

    comm.on_every_rank(check)
    return str(first)


def _scattered(
    opened: Opened | None, how: Placement, comm: Communicator, name: str
) -> tuple[RankShare, dict[str, Any]]:
    """A share of a graph that rank 0 has opened, and what else a DistGraph takes. Collective."""

    def facts_of(graph: Opened) -> dict[str, Any]:
        return {
            "edges": None if graph.edges is None else len(graph.edges.source),
            "attributes": sorted(graph.attributes),
            "listed": sorted(graph.listed),
            "pairs": sorted(key for key in graph.pairs if key.endswith("_index")),
            **{n: getattr(graph, n) for n in ("left_out", "features", "classes", "repeated")},
        }

    def here() -> Opened:
        assert opened is not None
        return opened

    share, report = scattered_share(name, lambda: here().source, how, comm)
    facts = comm.from_rank_zero(lambda: facts_of(here()))
    meta, edges = share.meta, None
    if facts["edges"] is not None:
        listed = None if opened is None else opened.edges
        edges = scattered_edges(listed, share.vertex_ids, share.layout, comm)
        if facts["repeated"]:
            meta = replace(meta, edges=facts["edges"])

    def own(kind: str) -> dict[str, Tensor]:
        rows = {} if opened is None else getattr(opened, kind)
        names: list[str] = facts[kind]
        ids, layout = share.vertex_ids, share.layout
        return {key: scatter_rows(rows.get(key), ids, layout, comm) for key in names}

    attributes = own("attributes")
    shared = copied_from_rank_zero(None if opened is None else opened.shared, comm)
    pairs = {}
    for key in facts["pairs"]:
        listed = None
        if opened is not None:
            labels = key.removesuffix("_index")
            present = {labels: opened.pairs[labels]} if labels in opened.pairs else {}
            source, target = opened.pairs[key].numpy()
            listed = EdgeList(source, target, present)
        pairs[key] = scattered_edges(listed, share.vertex_ids, share.layout, comm)
    # x and y of other dtypes and shapes than those of a record.
    present = {key: attributes.pop(key) for key in ("x", "y") if key in attributes}
    labelled = meta.labelled or "y" in present
    meta = replace(meta, features=facts["features"], classes=facts["classes"], labelled=labelled)
    share = replace(share, meta=meta, data=replace(share.data, **present))
    return (
        share,
        {
            "report": report,
            "edges": edges,
            "attributes": attributes,
            "shared": {**shared, **of_own_rows(own("listed"))},
            "pairs": pairs,
            "left_out": facts["left_out"],
            "repeated": facts["repeated"],
        },
    )
