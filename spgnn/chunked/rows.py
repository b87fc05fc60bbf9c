"""Own rows of the adjacency, prepared for products chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn.chunked.blocks import Blocks, Collector, MemoryBlocks, rows_of
from spgnn.chunked.matrix import PartMatrix, Received
from spgnn.chunked.sizes import OWN_MATRIX
from spgnn.chunked.state import Layers
from spgnn.comm import Communicator, Mesh
from spgnn.data.normalise import Normalisation, first_not_below, row_sums
from spgnn.direct import Transfers
from spgnn.exchange import Algorithm, build
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, check_degrees, take_rows
from spgnn.spmm import DistMatrix

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Own rows of the adjacency, as they were found.

    Attributes
    ----------
    blocks : Blocks [own rows, n]
        Global columns, by chunks.
    layout : RowLayout
        Who owns which rows.
    symmetric : bool
        Whether the whole adjacency is its own transpose, weights included.
    weighted : bool
    """

    blocks: Blocks
    layout: RowLayout
    symmetric: bool
    weighted: bool


@dataclass(frozen=True, eq=False)
class Inspected:
    """Results of one pass over the rows of the matrix.

    Attributes
    ----------
    loops : Tensor float32 [own rows], optional
        1 for each row that needs a self-loop added; ``None`` if no row does.
    row_scale, column_scale : Tensor float32 [own rows], optional
        Scalings that normalise the matrix.
    needed : Tensor int64
        Rows of other ranks that own rows need, rising.
    """

    loops: Tensor | None
    row_scale: Tensor | None
    column_scale: Tensor | None
    needed: Tensor


def inspected(
    adjacency: Adjacency,
    comm: Communicator,
    kind: Normalisation,
    *,
    loops: bool,
    ids: Tensor | int = 0,
) -> Inspected:
    """Look through all rows once. Collective.

    Parameters
    ----------
    adjacency : Adjacency
    comm : Communicator
    kind : {"sym", "row", "none"}
    loops : bool
        Whether every vertex is to have a self-loop.
    ids : Tensor int64 [own rows], or int
        Original ids, or that of the first row, for messages.

    Raises
    ------
    InputError
        On all ranks, if a degree is negative.
    """
    first, last = adjacency.layout.range(comm.rank)
    degree = np.zeros(last - first)
    missing = np.zeros(last - first, np.float32)
    wanted = np.zeros(adjacency.layout.rows if comm.size > 1 else 0, bool)
    for part, block in adjacency.blocks.stream():
        begin, end = adjacency.blocks.bounds[part : part + 2]
        indptr, indices = block.indptr.numpy(), block.indices.numpy()
        if loops:
            missing[begin:end] = _without_loop(indptr, indices, first + begin)
        degree[begin:end] = row_sums(block)
        if len(wanted):
            wanted[indices] = True
    wanted[first:last] = False
    degree += missing
    scale = None
    if kind != "none":
        comm.on_every_rank(lambda: check_degrees(degree, ids))
        found = np.zeros(last - first, np.float32)
        power = -0.5 if kind == "sym" else -1.0
        np.power(degree, power, out=found, where=degree > 0, casting="same_kind")
        scale = torch.from_numpy(found)
    return Inspected(
        torch.from_numpy(missing) if loops and missing.any() else None,
        scale,
        scale if kind == "sym" else None,
        torch.from_numpy(np.flatnonzero(wanted)),
    )


def _without_loop(indptr: Array, indices: Array, first: int) -> Array:
    """Mask of the rows of a block without an entry on the diagonal."""
    diagonal = np.arange(first, first + len(indptr) - 1)
    place = first_not_below(indptr, indices, diagonal)
    missing: Array = place == indptr[1:]
    missing[~missing] = indices[place[~missing]] != diagonal[~missing]
    return missing


@dataclass(frozen=True)
class Kept:
    """Storage of matrices.

    Attributes
    ----------
    directory : Path, optional
        The spill directory; ``None`` keeps everything in memory.
    on_disk : bool
        Whether the whole matrix goes to that directory.
    sort_bytes : int
        Memory for building a transpose.
    counts : Transfers
    """

    directory: Path | None
    on_disk: bool
    sort_bytes: int
    counts: Transfers

    def collector(self, name: str, columns: int, *, weighted: bool) -> Collector:
        """Collector of the blocks of a matrix."""
        directory = self.directory if self.on_disk else None
        return Collector(name, columns, weighted=weighted, directory=directory, counts=self.counts)


def whole_matrix(
    adjacency: Adjacency,
    found: Inspected,
    mesh: Mesh,
    keep: Kept,
    *,
    name: str = "A",
    multiplied: bool = True,
) -> PartMatrix:
    """All own rows, with columns numbered as own and received ones. Collective.

    Parameters
    ----------
    adjacency : Adjacency
    found : Inspected
    mesh : Mesh
    keep : Kept
    name : str
        Of its files.
    multiplied : bool
        Whether gradients are multiplied with its transpose.
    """
    comm = mesh.everyone
    own = adjacency.layout.range(comm.rank)
    rows, received = own[1] - own[0], None
    blocks = adjacency.blocks
    in_memory = isinstance(blocks, MemoryBlocks)
    if comm.size > 1:
        received = _received(found.needed, adjacency.layout, mesh)
        blocks = _renumbered(adjacency, found.needed, own, keep, name)
    elif in_memory == keep.on_disk:
        collector = keep.collector(name, rows, weighted=adjacency.weighted)
        for _, block in blocks.stream():
            collector.add(block)
        blocks = collector.finish()
    transposed = to_others = None
    bounds = adjacency.blocks.bounds
    if multiplied and not adjacency.symmetric:
        transposed = _transposed(blocks, bounds, keep, f"{name}T", adjacency.weighted)
        if received is not None and received.rows:
            halo = (rows, rows + received.rows)
            to_others = _transposed(blocks, halo, keep, f"{name}H", adjacency.weighted)
    return PartMatrix(
        blocks,
        bounds,
        found.loops,
        transposed=transposed,
        to_others=to_others,
        received=received,
    )


def _received(needed: Tensor, layout: RowLayout, mesh: Mesh) -> Received:
    """The matrix that picks the rows of others. Collective."""
    rows = len(needed)
    indices = needed.to(index_dtype(layout.rows))
    S = CSR.of(torch.arange(rows + 1), indices, (rows, layout.rows))
    plan = build(Algorithm("1d").scheme(S, layout, mesh.rank, None), mesh).ready()
    return Received(DistMatrix(plan, layout, mesh), rows)


def _renumbered(
    adjacency: Adjacency, needed: Tensor, own: tuple[int, int], keep: Kept, name: str
) -> Blocks:
    """Blocks whose columns are own rows, then received ones."""
    first, last = own
    columns = last - first + len(needed)
    number = torch.empty(adjacency.layout.rows, dtype=index_dtype(columns))
    number[first:last] = torch.arange(last - first, dtype=number.dtype)
    number[needed] = torch.arange(last - first, columns, dtype=number.dtype)
    collector = keep.collector(name, columns, weighted=adjacency.weighted)
    for _, block in adjacency.blocks.stream():
        indices = number[block.indices.long()]
        pattern = Pattern.trusted(block.indptr, indices, (block.shape[0], columns))
        collector.add(CSR(pattern, block.values))
    return collector.finish()


def _transposed(
    blocks: Blocks, bounds: Sequence[int], keep: Kept, name: str, weighted: bool
) -> Blocks:
    """Rows [bounds[0], bounds[-1]) of the transpose, in several passes if it is large."""
    rows = blocks.bounds[-1]
    collector = keep.collector(name, rows, weighted=weighted)
    for group in _groups(blocks, bounds, keep):
        low, high = group[0], group[-1]
        made = _columns_as_rows(blocks, low, high, weighted)
        for begin, end in pairwise(group):
            collector.add(rows_of(made, begin - low, end - low))
    return collector.finish()


def _groups(blocks: Blocks, bounds: Sequence[int], keep: Kept) -> list[list[int]]:
    """Neighbouring chunks whose rows of the transpose fit into the memory there is."""
    parts = len(bounds) - 1
    if not keep.on_disk:
        return [list(bounds)]
    # Row, column, value, and the same once more while they are sorted.
    passes = max(1, min(parts, -(-6 * blocks.nbytes // max(keep.sort_bytes, 1))))
    cuts = [number * parts // passes for number in range(passes + 1)]
    return [list(bounds[a : b + 1]) for a, b in pairwise(cuts)]


def _columns_as_rows(blocks: Blocks, low: int, high: int, weighted: bool) -> CSR:
    """Columns [low, high) of a matrix as the rows of another."""
    rows, columns, values = list[Tensor](), list[Tensor](), list[Tensor]()
    for number, block in blocks.stream():
        chosen = ((block.indices >= low) & (block.indices < high)).nonzero()[:, 0]
        row = torch.arange(*blocks.bounds[number : number + 2], dtype=torch.int32)
        rows.append(row.repeat_interleave(block.row_lengths)[chosen])
        columns.append(block.indices[chosen] - low)
        if block.values is not None:
            values.append(block.values[chosen])
    at, of = torch.cat(rows).numpy(), torch.cat(columns).numpy()
    weights = torch.cat(values).numpy() if weighted else np.ones(len(at), np.bool_)
    shape = high - low, blocks.bounds[-1]
    made = sp.coo_array((weights, (of, at)), shape=shape).tocsr()
    made.sort_indices()
    indices = torch.from_numpy(made.indices).to(index_dtype(shape[1]))
    found = torch.from_numpy(made.data) if weighted else None
    indptr = torch.from_numpy(made.indptr.astype(np.int64))
    return CSR(Pattern.trusted(indptr, indices, shape), found)


def reached(
    whole: PartMatrix, wanted: Tensor, layers: int, looks: Sequence[bool], comm: Communicator
) -> Layers:
    """Matrix of each layer, if only some rows of the last one are wanted. Collective.

    A layer with few needed rows gets a matrix of these alone, with its transpose, in memory; all
    others make all rows.

    Parameters
    ----------
    whole : PartMatrix
    wanted : Tensor bool [own rows]
    layers : int
    looks : sequence of bool
        Whether a layer reads its own rows as well as the product.
    comm : Communicator
    """
    matrices = [whole] * layers
    total = comm.agree(nonzeros_in(whole.blocks, None), "sum")
    for number in range(layers - 1, -1, -1):
        count = comm.agree(nonzeros_in(whole.blocks, wanted), "sum")
        if count > OWN_MATRIX * total:
            if not bool(wanted.all()):
                matrices[number] = replace(whole, targets=wanted.nonzero()[:, 0], thinned=True)
            break
        matrix, sources = _of_rows(whole, wanted, looks[number])
        # The rows of others are found by the numbers of all own ones.
        compact = whole.received is None and number > 0
        matrices[number] = _with_sources(matrix, sources) if compact else matrix
        wanted = sources
    return Layers(matrices, whole.bounds)


def nonzeros_in(blocks: Blocks, wanted: Tensor | None) -> int:
    """Nonzeros in some rows, bool [rows], or in all of them; reads row offsets alone."""
    found = 0
    for number in range(blocks.number):
        lengths = blocks.row_lengths(number)
        if wanted is not None:
            lengths = lengths[wanted[slice(*blocks.bounds[number : number + 2])]]
        found += int(lengths.sum())
    return found


def _of_rows(whole: PartMatrix, wanted: Tensor, looks: bool) -> tuple[PartMatrix, Tensor]:
    """Matrix of some own rows, in memory, and own rows that any rank's read. Collective."""
    blocks = list[CSR]()
    rows, columns = whole.bounds[-1], whole.blocks.columns
    seen = torch.zeros(columns, dtype=torch.bool)
    for number, block in whole.blocks.stream():
        chosen = wanted[slice(*whole.bounds[number : number + 2])].nonzero()[:, 0]
        blocks.append(take_rows(block, chosen))
        seen[blocks[-1].indices.long()] = True
    sources = seen[:rows].clone()
    if looks or whole.loops is not None:
        sources |= wanted
    if whole.received is not None:
        asked = whole.received.halo.adjoint(seen[rows:, None].float())
        sources |= asked[:, 0] > 0
    targets = wanted.nonzero()[:, 0]
    made = replace(
        whole,
        blocks=MemoryBlocks(blocks, columns),
        loops=None if whole.loops is None else whole.loops[targets],
        targets=targets,
    )
    return _with_transpose(made), sources


def _with_transpose(matrix: PartMatrix) -> PartMatrix:
    """The same with its other side in memory."""
    blocks, keep = matrix.blocks, Kept(None, on_disk=False, sort_bytes=0, counts=Transfers())
    weighted = any(block.values is not None for _, block in blocks.stream())
    own = _transposed(blocks, matrix.column_bounds, keep, "", weighted)
    to_others = None
    if matrix.halo_rows:
        halo = (blocks.columns - matrix.halo_rows, blocks.columns)
        to_others = _transposed(blocks, halo, keep, "", weighted)
    return replace(matrix, transposed=own, to_others=to_others)


def _with_sources(matrix: PartMatrix, sources: Tensor) -> PartMatrix:
    """The same with columns for these own rows alone; on one rank."""
    number = torch.cumsum(sources, 0, dtype=index_dtype(len(sources) + 1)) - 1
    kept = sources.nonzero()[:, 0]
    blocks = list[CSR]()
    for _, block in matrix.blocks.stream():
        shape = block.shape[0], len(kept)
        pattern = Pattern.trusted(block.indptr, number[block.indices.long()], shape)
        blocks.append(CSR(pattern, block.values))
    return _with_transpose(replace(matrix, blocks=MemoryBlocks(blocks, len(kept)), sources=kept))


def even_bounds(starts: Callable[[int], int], rows: int, parts: int) -> tuple[int, ...]:
    """Bounds of chunks with about the same sum of nonzeros and rows each.

    Parameters
    ----------
    starts : callable
        Nonzeros before a row, in [0, rows].
    rows, parts : int

    Returns
    -------
    tuple of int [parts + 1]
    """
    total = starts(rows) + rows
    bounds = [0]
    for part in range(1, parts):
        target, low, high = total * part // parts, bounds[-1], rows
        while low < high:
            middle = (low + high) // 2
            if starts(middle) + middle < target:
                low = middle + 1
            else:
                high = middle
        bounds.append(low)
    bounds.append(rows)
    assert all(a <= b for a, b in pairwise(bounds))
    return tuple(bounds)
