"""Part numbers are places: parts that exchange much are neighbours, and neighbours are a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn import _native
from spgnn.errors import InputError
from spgnn.files import AnyPath
from spgnn.layout import Float64Array, Int32Array
from spgnn.machine import Machine, read_machine
from spgnn.partition.labels import check_fixed, check_labels, check_shares
from spgnn.partition.problem import Adjacency, check_nodes
from spgnn.partition.volume import count_volumes

# What a row to another node counts beside one inside, where no machine file says: about what links
# of GPUs in one node are faster than those between nodes.
OUTSIDE = 8
_MOST_OUTSIDE = 64


def place(
    A: Any,
    labels: npt.ArrayLike,
    k: int | None = None,
    *,
    nodes: int | None = None,
    shares: npt.ArrayLike | None = None,
    fixed: npt.ArrayLike | None = None,
) -> Int32Array:
    """Number parts by place: those that exchange many rows become neighbours in number.

    With `nodes` every node gets k / nodes of them, so that few rows leave the busiest part's node
    and the busiest node. Only parts of equal `shares` change numbers, and none with `fixed`
    vertices; both are as of `partition`. Labels may come from anywhere.

    Returns
    -------
    int32 [n]
        The same parts under other numbers.

    Raises
    ------
    InputError
        If an argument is wrong, or a label differs from the part that its vertex is fixed to.
    """
    adjacency = Adjacency.of(A)
    checked, parts = check_labels(labels, adjacency.vertices, k)
    relative = None if shares is None else check_shares(shares, parts)
    stay = None if fixed is None else check_fixed(fixed, adjacency.vertices, parts)
    if stay is not None and ((stay >= 0) & (stay != checked)).any():
        v = int(np.argmax((stay >= 0) & (stay != checked)))
        raise InputError(f"vertex {v} is fixed to part {stay[v]}, and its label is {checked[v]}")
    nodes = check_nodes(nodes, parts)
    return in_places(adjacency, checked, parts, nodes, kinds=kinds_of(parts, relative, stay))


def levels_of(
    machine: Machine | AnyPath | None, parts: int, nodes: int | None = None
) -> tuple[int | None, int]:
    """The number of nodes, and what a row to another counts; InputError if unfit."""
    nodes = check_nodes(nodes, parts)
    if machine is None:
        return nodes, OUTSIDE
    if not isinstance(machine, Machine):
        machine = read_machine(machine)
    size, links = machine.ranks_a_node, machine.levels
    if links.between is None:
        if nodes is not None and nodes > 1:
            raise InputError(f"machine {machine.name}: knows no links between nodes; leave it out")
        return nodes, OUTSIDE
    if nodes is None:
        if parts > size and parts % size:
            raise InputError(
                f"machine {machine.name}: its {size} ranks a node do not divide the number of "
                f"parts, which is {parts}; give nodes"
            )
        nodes = max(1, parts // size)
    ratio = links.inside.alltoallv.bandwidth / links.between.alltoallv.bandwidth
    return nodes, int(np.clip(round(ratio), 1, _MOST_OUTSIDE))


def kinds_of(
    parts: int, shares: Float64Array | None, fixed: Int32Array | None = None
) -> Int32Array:
    """Parts of one kind may change numbers: of equal shares, with no vertex fixed."""
    kinds = np.zeros(parts, np.int32)
    if shares is not None:
        kinds[:] = np.unique(shares, return_inverse=True)[1]
    if fixed is not None:
        kinds[np.unique(fixed[fixed >= 0])] = parts + np.arange(len(np.unique(fixed[fixed >= 0])))
    return kinds


def in_places(
    adjacency: Adjacency,
    labels: Int32Array,
    parts: int,
    nodes: int | None,
    threads: int | None = None,
    *,
    kinds: Int32Array,
) -> Int32Array:
    """The same parts by place; as they are where a graph on disk has more than 1024."""
    size = 1 if nodes is None else parts // nodes
    if adjacency.on_disk:
        blocks = count_volumes(adjacency, labels, parts, threads=threads).column.blocks
        if blocks is None:
            return labels
        places = _native.place_blocks(blocks.ravel(), size, kinds)
    else:
        places = _native.place_parts(adjacency.indptr, adjacency.indices, labels, size, kinds)
    return np.asarray(places[labels], np.int32)
