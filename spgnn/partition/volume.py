"""The report: what a partition moves, exactly as the exchange will move it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn import _native
from spgnn.errors import memory_for
from spgnn.layout import Float64Array, Int32Array, Int64Array
from spgnn.memory import peak_bytes
from spgnn.partition.labels import check_labels, check_shares, part_sizes
from spgnn.partition.problem import Adjacency, check_nodes, check_threads
from spgnn.progress import Progress, stage

# Figures by name, as docs/partition.md lists them; every volume in rows.
Report = dict[str, Any]
# Sets of parts per vertex; counting takes more passes over the matrix where they do not fit.
_TABLE_BYTES = 4 << 30


@dataclass(frozen=True)
class CoverVolume:
    """Rows that cross ranks in one SpMM under a cover; `blocks` None beyond 1024 parts."""

    send: Int64Array
    receive: Int64Array
    blocks: Int64Array | None

    @property
    def total(self) -> int:
        return int(self.send.sum())

    def summary(self) -> Report:
        """The figures of one cover, as in the report; `send` and `recv` per part."""
        by_part = len(self.receive) == len(self.send)
        moved = np.maximum(self.send, self.receive) if by_part else self.send
        return {
            "total": self.total,
            "max_send": int(self.send.max()),
            "avg_send": self.total / len(self.send),
            "max_recv": int(self.receive.max()),
            "max_receive": int(self.receive.max()),
            "busiest": int(moved.max()),
            "busiest_part": int(moved.argmax()),
            "max_pair": None if self.blocks is None else int(self.blocks.max(initial=0)),
            "send_imbalance": excess_of_maximum(self.send),
            "recv_imbalance": excess_of_maximum(self.receive),
            "send": self.send.tolist(),
            "recv": self.receive.tolist(),
        }


@dataclass(frozen=True)
class Volumes:
    """Volumes of all covers of one partition; `minimum` is None where it was not asked for."""

    column: CoverVolume
    row: CoverVolume
    minimum: CoverVolume | None
    edge_cut: int


def count_volumes(
    A: Any,
    labels: npt.ArrayLike,
    parts: int | None = None,
    *,
    minimum: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Volumes:
    """Count the rows that a partition moves, per part and per block, under each cover.

    A and labels are as of `report`. Column: part p sends row v of H to each other part with a row
    that has a nonzero in column v. Row: part q sends one partial sum for each row elsewhere with a
    nonzero in q's columns. Minimum: the size of a minimum vertex cover of each block, which is
    exact (König); counted by default where A is in memory.
    """
    adjacency = Adjacency.of(A)
    checked, parts = check_labels(labels, adjacency.vertices, parts)
    return _counted(adjacency, checked, parts, 1, minimum, check_threads(threads), progress)[0]


def _counted(
    adjacency: Adjacency,
    labels: Int32Array,
    parts: int,
    nodes: int,
    minimum: bool | None,
    threads: int,
    progress: Progress | None,
) -> tuple[Volumes, CoverVolume | None]:
    """The volumes, and of minimum covers, if they are counted, what moves between nodes."""
    arrays = adjacency.indptr, adjacency.indices, labels, parts
    of_all = of_nodes = None
    with memory_for(f"counting the volumes of {adjacency.describe(parts)}"):
        column, row, edge_cut = _native.count_volumes(
            *arrays, threads, _TABLE_BYTES, stage(progress, "counting volumes")
        )
        if minimum or (minimum is None and not adjacency.on_disk):
            each = _native.count_minimum_covers(
                *arrays, parts // nodes, threads, stage(progress, "minimum covers")
            )
            of_all, of_nodes = (_volume(counts, parts) for counts in each)
    return Volumes(_volume(column, parts), _volume(row, parts), of_all, edge_cut), of_nodes


def _volume(counts: tuple[Int64Array, Int64Array, Int64Array], parts: int) -> CoverVolume:
    send, receive, blocks = counts
    return CoverVolume(send, receive, blocks.reshape(parts, parts) if len(blocks) else None)


def report(
    A: Any,
    labels: npt.ArrayLike,
    parts: int | None = None,
    *,
    shares: npt.ArrayLike | None = None,
    nodes: int | None = None,
    minimum: bool | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """The figures of a partition, for labels from anywhere.

    Other parameters are those of `spgnn.partition.volume.count_volumes`. With `nodes` also what
    moves between as many nodes of neighbouring parts, and inside them. With `shares` [parts], a
    part's share of the work, imbalances are those of the largest part beside its share.

    Returns
    -------
    dict
        It goes into JSON as it is. ``total_volume``, ``max_send``, … are those of the column cover;
        ``covers`` holds the same for each cover, per part as well. ``edge_cut`` counts nonzeros off
        the block diagonal (an undirected edge twice), out of ``edges``. ``seconds`` and ``method``
        are those of `partition`, here 0 and "labels"; so is ``objective``, what gvb or stream
        minimised.
    """
    adjacency = Adjacency.of(A)
    checked, parts = check_labels(labels, adjacency.vertices, parts)
    relative = None if shares is None else check_shares(shares, parts)
    nodes, count = check_nodes(nodes, parts), check_threads(threads)
    volumes, between = _counted(adjacency, checked, parts, nodes or 1, minimum, count, progress)
    covers = {"column": volumes.column.summary(), "row": volumes.row.summary()}
    if volumes.minimum is not None:
        covers["minimum"] = volumes.minimum.summary()
    column, sizes = covers["column"], part_sizes(checked, parts)
    by_part = ("total", "send", "recv")
    result: Report = {
        "method": "labels",
        "objective": None,
        "parts": parts,
        "seconds": 0.0,
        "peak_rss_bytes": peak_bytes(),
        "vertices": adjacency.vertices,
        "edges": adjacency.edges,
        "total": column["total"],
        "total_volume": column["total"],
        **{name: figure for name, figure in column.items() if name not in by_part},
        "edge_cut": volumes.edge_cut,
        "nnz_imbalance": excess_of_maximum(
            part_weights(adjacency.row_lengths, checked, parts), relative
        ),
        "vertex_imbalance": excess_of_maximum(sizes, relative),
        "empty_parts": int((sizes == 0).sum()),
        "cover_volume": {
            name: covers[name]["total"] if name in covers else None
            for name in ("column", "row", "minimum")
        },
        "covers": covers,
    }
    if nodes is not None:
        levels = _by_level(adjacency, checked, parts, nodes, count)
        if volumes.minimum is not None and between is not None:
            every = volumes.minimum
            inside = every.send - between.send, every.receive - between.receive
            levels["minimum"] = {
                "between_flat": _between_nodes(between, nodes),
                "inside": CoverVolume(*inside, None).summary(),
            }
        result["levels"] = levels
    return result


def _by_level(
    adjacency: Adjacency, labels: Int32Array, parts: int, nodes: int, threads: int
) -> Report:
    """Rows that move between nodes, and inside them, where columns pay."""
    with memory_for(f"counting rows between {nodes:,} nodes"):
        figures = _native.count_levels(
            adjacency.indptr, adjacency.indices, labels, parts, parts // nodes, threads
        )
    flat, once, inside = (CoverVolume(figures[i], figures[i + 1], None) for i in (0, 2, 4))
    return {
        "nodes": nodes,
        "between": _between_nodes(once, nodes),
        "between_flat": _between_nodes(flat, nodes),
        "inside": inside.summary(),
    }


def _between_nodes(rows: CoverVolume, nodes: int) -> Report:
    by_node = (each.reshape(nodes, -1).sum(axis=1) for each in (rows.send, rows.receive))
    return {**rows.summary(), "busiest_node": int(max(each.max() for each in by_node))}


def part_weights(weights: npt.ArrayLike, labels: npt.ArrayLike, parts: int) -> npt.NDArray[Any]:
    """Weight of each part, [parts], of the dtype of the weights; integers are exact below 2⁵³."""
    array = np.asarray(weights)
    return np.bincount(labels, weights=array, minlength=parts).astype(array.dtype)


def excess_of_maximum(values: npt.NDArray[Any], shares: Float64Array | None = None) -> float:
    """Maximum / average − 1, or largest value / its share − 1 with `shares`; 0 where all are 0."""
    total = values.sum().item()
    if not total:
        return 0.0
    if shares is None:
        return float(values.max().item() * len(values) / total - 1)
    return float((values / (total * (shares / shares.sum()))).max()) - 1
