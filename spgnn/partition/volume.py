"""The report: what a partition moves, exactly as the exchange will move it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn import _native
from spgnn.errors import memory_for
from spgnn.layout import Float64Array, Int64Array
from spgnn.memory import peak_bytes
from spgnn.partition.adjacency import Adjacency, check_nodes, check_threads
from spgnn.partition.labels import check_labels, check_shares, part_sizes
from spgnn.progress import Progress, stage

# Figures by name, as docs/partition.md lists them; every volume in rows.
Report = dict[str, Any]
# Sets of parts per vertex; counting takes more passes over the matrix where they do not fit.
_TABLE_BYTES = 4 << 30


@dataclass(frozen=True)
class CoverVolume:
    """Rows that cross ranks in one SpMM under one cover.

    Attributes
    ----------
    send, receive : int64 [parts]
    blocks : int64 [parts, parts] or None
        Rows that part p sends to part q. None beyond 1024 parts.
    """

    send: Int64Array
    receive: Int64Array
    blocks: Int64Array | None

    @property
    def total(self) -> int:
        """Rows sent in all."""
        return int(self.send.sum())

    def summary(self) -> Report:
        """The figures of one cover, as in the report; `send` and `recv` per part."""
        return {
            "total": self.total,
            "max_send": int(self.send.max()),
            "avg_send": self.total / len(self.send),
            "max_recv": int(self.receive.max()),
            "max_receive": int(self.receive.max()),
            "busiest": max(int(self.send.max()), int(self.receive.max())),
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

    Column: part p sends row v of H to each other part with a row that has a nonzero in column v.
    Row: part q sends one partial sum for each row elsewhere with a nonzero in q's columns.
    Minimum: the size of a minimum vertex cover of each block, which is exact (König).

    Parameters
    ----------
    A : SciPy sparse matrix, CSR block or graph on disk, [n, n]
    labels : integers in [0, parts), [n]
    parts : int, optional
        By default 1 + the largest label.
    minimum : bool, optional
        Whether to count minimum covers. By default only where A is in memory: they need rows in
        the order of their part.
    threads, progress
        As of `spgnn.partition.partition`.

    Raises
    ------
    InputError
        If the matrix is not square or the labels do not fit it.
    """
    adjacency = Adjacency.of(A)
    checked, parts = check_labels(labels, adjacency.vertices, parts)
    arrays = (adjacency.indptr, adjacency.indices, checked, parts, check_threads(threads))
    with memory_for(f"counting the volumes of {adjacency.describe(parts)}"):
        column, row, edge_cut = _native.count_volumes(
            *arrays, _TABLE_BYTES, stage(progress, "counting volumes")
        )
        cover = None
        if minimum or (minimum is None and not adjacency.on_disk):
            cover = _native.count_minimum_covers(*arrays, stage(progress, "minimum covers"))
    return Volumes(
        _volume(column, parts), _volume(row, parts), cover and _volume(cover, parts), edge_cut
    )


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
        are those of `partition`, here 0 and "labels".
    """
    adjacency = Adjacency.of(A)
    checked, parts = check_labels(labels, adjacency.vertices, parts)
    relative = None if shares is None else check_shares(shares, parts)
    volumes = count_volumes(
        adjacency, checked, parts, minimum=minimum, threads=threads, progress=progress
    )
    nodes = check_nodes(nodes, parts)
    covers = {"column": volumes.column.summary(), "row": volumes.row.summary()}
    totals: dict[str, int | None] = {name: cover["total"] for name, cover in covers.items()}
    totals["minimum"] = None
    if volumes.minimum is not None:
        covers["minimum"] = volumes.minimum.summary()
        totals["minimum"] = volumes.minimum.total
    column, sizes = covers["column"], part_sizes(checked, parts)
    of_column = (
        *("max_send", "avg_send", "max_recv", "max_receive", "busiest", "max_pair"),
        *("send_imbalance", "recv_imbalance"),
    )
    result: Report = {
        "method": "labels",
        "parts": parts,
        "seconds": 0.0,
        "peak_rss_bytes": peak_bytes(),
        "vertices": adjacency.vertices,
        "edges": adjacency.edges,
        "total": column["total"],
        "total_volume": column["total"],
        **{name: column[name] for name in of_column},
        "edge_cut": volumes.edge_cut,
        "nnz_imbalance": excess_of_maximum(
            part_weights(adjacency.row_lengths, checked, parts), relative
        ),
        "vertex_imbalance": excess_of_maximum(sizes, relative),
        "empty_parts": int((sizes == 0).sum()),
        "cover_volume": totals,
        "covers": covers,
    }
    if nodes is not None:
        count, arrays = check_threads(threads), (adjacency.indptr, adjacency.indices, checked)
        with memory_for(f"counting rows between {nodes:,} nodes"):
            figures = _native.count_levels(*arrays, parts, parts // nodes, count)
        flat, once, inside = (
            CoverVolume(figures[i], figures[i + 1], None).summary() for i in (0, 2, 4)
        )
        for cover, sent, received in ((flat, *figures[:2]), (once, *figures[2:4])):
            by_node = (rows.reshape(nodes, -1).sum(axis=1) for rows in (sent, received))
            cover["busiest_node"] = int(max(rows.max() for rows in by_node))
        once["busiest"] = once["max_send"]  # what enters a node once is no one part's
        levels = {"nodes": nodes, "between": once, "between_flat": flat, "inside": inside}
        result["levels"] = levels
    return result


def part_weights(weights: Int64Array, labels: npt.ArrayLike, parts: int) -> Int64Array:
    """Weight of each part, int64 [parts]; exact below 2⁵³."""
    return np.bincount(labels, weights=weights, minlength=parts).astype(np.int64)


def excess_of_maximum(values: Int64Array, shares: Float64Array | None = None) -> float:
    """Maximum / average − 1, or with `shares` of each the largest value / its share − 1.

    0 where all are 0.
    """
    total = int(values.sum())
    if not total:
        return 0.0
    if shares is None:
        return int(values.max()) * len(values) / total - 1
    return float((values / (total * (shares / shares.sum()))).max()) - 1
