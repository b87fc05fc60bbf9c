"""Own rows of the adjacency, prepared for products chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from spgnn.addons.outofcore.blocks import Blocks, FileBlocks, MatrixStorage, rows_of
from spgnn.addons.outofcore.matrix import ChunkMatrix
from spgnn.addons.outofcore.sizes import OWN_MATRIX, OWN_ON_DISK
from spgnn.comm import Communicator, Mesh
from spgnn.data import POWERS, Normalisation, first_not_below, row_sums
from spgnn.direct import Transfers
from spgnn.exchange import Algorithm, build
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern, index_dtype
from spgnn.sparse import CSR, check_degrees, take_rows
from spgnn.spmm import DistMatrix


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Own rows of the adjacency, as they are in memory or in files."""

    blocks: Blocks  # global columns, by chunks
    layout: RowLayout  # who owns which rows
    symmetric: bool  # whether the whole adjacency is its own transpose, weights included
    weighted: bool  # or with features of edges as values, which no sum takes


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Results of one pass over the rows of the adjacency."""

    loops: Tensor | None  # 1 for each row that needs a self-loop added; ``None`` if no row does
    row_scale: Tensor | None  # scalings that normalise the matrix
    column_scale: Tensor | None
    needed: Tensor  # rows of other ranks that own rows need, rising


def statistics_of(
    adjacency: Adjacency,
    comm: Communicator,
    kind: Normalisation,
    *,
    loops: bool,
    ids: Tensor | int = 0,
    dtype: torch.dtype = torch.float32,
) -> RowStatistics:
    """Look through all rows once. Collective."""
    first, last = adjacency.layout.range(comm.rank)
    degree = np.zeros(last - first)
    missing = np.zeros(last - first, np.float32)
    seen = np.zeros(adjacency.layout.rows if comm.size > 1 else 0, bool)
    for chunk, block in adjacency.blocks.stream():
        begin, end = adjacency.blocks.bounds[chunk : chunk + 2]
        indptr, indices = block.indptr.numpy(), block.indices.numpy()
        if loops:
            diagonal = np.arange(first + begin, first + end)
            place = first_not_below(indptr, indices, diagonal)
            without = place == indptr[1:]
            without[~without] = indices[place[~without]] != diagonal[~without]
            missing[begin:end] = without
        if kind != "none":
            degree[begin:end] = row_sums(block)
        if len(seen):
            seen[indices] = True
    seen[first:last] = False
    degree += missing
    scale = None
    if kind != "none":
        comm.on_every_rank(lambda: check_degrees(degree, ids))
        powers = np.zeros(last - first)
        np.power(degree, POWERS[kind], out=powers, where=degree > 0)
        scale = torch.from_numpy(powers).to(dtype)
    return RowStatistics(
        torch.from_numpy(missing) if loops and missing.any() else None,
        scale,
        scale if kind == "sym" else None,
        torch.from_numpy(np.flatnonzero(seen)),
    )


def whole_matrix(
    adjacency: Adjacency,
    statistics: RowStatistics,
    mesh: Mesh,
    storage: MatrixStorage,
    *,
    multiplied: bool = True,
) -> ChunkMatrix:
    """All own rows, with columns numbered as own and received ones. Collective."""
    blocks, bounds, layout = adjacency.blocks, adjacency.blocks.bounds, adjacency.layout
    rows, needed, halo = bounds[-1], statistics.needed, None
    columns = rows + len(needed)
    if mesh.everyone.size > 1:
        # The matrix that picks the rows of others.
        indices = needed.to(index_dtype(layout.rows))
        S = CSR.of(torch.arange(len(needed) + 1), indices, (len(needed), layout.rows))
        plan = build(Algorithm("1d").scheme(S, layout, mesh.rank, None), mesh).ready()
        halo = DistMatrix(plan, layout, mesh)
        number = torch.empty(layout.rows, dtype=index_dtype(columns))
        number[slice(*layout.range(mesh.rank))] = torch.arange(rows, dtype=number.dtype)
        number[needed] = torch.arange(rows, columns, dtype=number.dtype)
        renumbered = (_with_columns(block, number, columns) for _, block in blocks.stream())
        blocks = storage.copied("A", columns, renumbered)
    elif isinstance(blocks, FileBlocks) == (storage.directory is None):
        blocks = storage.copied("A", rows, (block for _, block in blocks.stream()))
    matrix = ChunkMatrix(blocks, bounds, statistics.loops, halo=halo)
    symmetric = adjacency.symmetric or not multiplied
    return matrix if symmetric else _with_transpose(matrix, storage, "A")


def _with_columns(block: CSR, number: Tensor | None, columns: int) -> CSR:
    """A block whose columns have other numbers, of so many."""
    indices = block.indices if number is None else number[block.indices.long()]
    pattern = Pattern.trusted(block.indptr, indices, (block.shape[0], columns))
    return CSR(pattern, block.values)


def _transposed(blocks: Blocks, bounds: Sequence[int], storage: MatrixStorage, name: str) -> Blocks:
    """Rows [bounds[0], bounds[-1]) of the transpose, in several passes if it is large."""
    chunks, passes = len(bounds) - 1, 1
    if storage.directory is not None:
        # Row, column, value, and the same once more while they are sorted.
        passes = max(1, min(chunks, -(-6 * blocks.nbytes // max(storage.sort_bytes, 1))))
    cuts = [number * chunks // passes for number in range(passes + 1)]

    def several() -> Iterator[CSR]:
        for a, b in pairwise(cuts):
            low, high = bounds[a], bounds[b]
            rows = _columns_as_rows(blocks, low, high)
            for begin, end in pairwise(bounds[a : b + 1]):
                yield rows_of(rows, begin - low, end - low)

    return storage.copied(name, blocks.bounds[-1], several())


def _columns_as_rows(blocks: Blocks, low: int, high: int) -> CSR:
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
    weights = torch.cat(values).numpy() if values else np.ones(len(at), np.bool_)
    shape = high - low, blocks.bounds[-1]
    starts = np.append(0, np.cumsum(np.bincount(at, minlength=shape[1])))
    # Unlike a COO, this leaves repeated edges as they are.
    matrix = scipy.sparse.csr_array((weights, of, starts), shape=shape[::-1]).tocsc()
    indices = torch.from_numpy(matrix.indices).to(index_dtype(shape[1]))
    indptr = torch.from_numpy(matrix.indptr.astype(np.int64))
    values_of = torch.from_numpy(matrix.data) if values else None
    return CSR(Pattern.trusted(indptr, indices, shape), values_of)


class LayerRows(NamedTuple):
    """Own rows that a layer makes, and that it reads for them: bool [own rows], None for all."""

    mask: Tensor | None = None
    sources: Tensor | None = None
    place: Literal["whole", "memory", "files"] = "whole"  # or a matrix of its own rows, and where


def rows_of_layers(
    whole: ChunkMatrix, mask: Tensor, reads_own: Sequence[bool], comm: Communicator, *, files: bool
) -> list[LayerRows]:
    """Rows of each layer if only some of the last one are wanted, bool [own rows]. Collective.

    A layer with few needed rows gets a matrix of these alone, in memory or in files, and the layer
    before makes the rows that it reads; all others make all rows.
    """
    layers = [LayerRows()] * len(reads_own)
    total = comm.agree(whole.blocks.nonzeros(), "sum")
    for number in range(len(layers) - 1, -1, -1):
        needed = comm.agree(whole.blocks.nonzeros(mask), "sum")
        few = needed <= OWN_MATRIX * total
        if not few and (not files or needed > OWN_ON_DISK * total):
            if not bool(mask.all()):
                layers[number] = LayerRows(mask)
            break
        sources = _sources_of(whole, mask, reads_own[number])
        read, rows = (comm.agree(n, "sum") for n in (int(sources.sum()), len(sources)))
        if not few and read > OWN_ON_DISK * rows:
            sources.fill_(True)  # to pick nearly all rows costs more than to make the others
        layers[number] = LayerRows(mask, sources, "memory" if few else "files")
        mask = sources
    return layers


def receptive_field(
    whole: ChunkMatrix,
    mask: Tensor,
    reads_own: Sequence[bool],
    comm: Communicator,
    storage: MatrixStorage | None = None,
    *,
    multiplied: bool = True,
) -> list[ChunkMatrix]:
    """Matrix of each layer, if only some rows of the last one are wanted. Collective."""
    matrices = [whole] * len(reads_own)
    layers = rows_of_layers(whole, mask, reads_own, comm, files=storage is not None)
    for number, (targets, sources, place) in enumerate(layers):
        if targets is None:
            continue
        if sources is None:
            matrices[number] = replace(whole, targets=targets.nonzero()[:, 0], thinned=True)
            continue
        # The rows of others are found by the numbers of all own ones.
        compact = whole.halo is None and number > 0 and not bool(sources.all())
        columns = sources if compact else None
        there = storage if storage and place == "files" else MatrixStorage(None, Transfers())
        matrix = _of_rows(whole, targets, columns, there, f"A{number}")
        if multiplied:
            matrix = _with_transpose(matrix, there, f"A{number}")
        matrices[number] = matrix
    return matrices


def _rows_in_blocks(whole: ChunkMatrix, mask: Tensor) -> Iterator[CSR]:
    """Rows of each block that are wanted, bool [own rows]."""
    for number, block in whole.blocks.stream():
        chosen = mask[slice(*whole.bounds[number : number + 2])].nonzero()[:, 0]
        yield take_rows(block, chosen)


def _sources_of(whole: ChunkMatrix, mask: Tensor, reads_own: bool) -> Tensor:
    """Own rows that the products of any rank's wanted rows read, bool [own rows]. Collective."""
    rows = whole.bounds[-1]
    seen = torch.zeros(whole.blocks.columns, dtype=torch.bool)
    for block in _rows_in_blocks(whole, mask):
        seen[block.indices.long()] = True
    sources = seen[:rows].clone()
    if reads_own or whole.loops is not None:
        sources |= mask
    if whole.halo is not None:
        sources |= whole.halo.adjoint(seen[rows:, None].float())[:, 0] > 0
    return sources


def _of_rows(
    whole: ChunkMatrix, mask: Tensor, sources: Tensor | None, storage: MatrixStorage, name: str
) -> ChunkMatrix:
    """Matrix of some own rows, with columns for these own rows alone, or for all."""
    number, columns = None, whole.blocks.columns
    if sources is not None:
        number = torch.cumsum(sources, 0, dtype=index_dtype(len(sources) + 1)) - 1
        columns = int(sources.sum())
    some = (_with_columns(block, number, columns) for block in _rows_in_blocks(whole, mask))
    targets = mask.nonzero()[:, 0]
    return replace(
        whole,
        blocks=storage.copied(name, columns, some),
        loops=None if whole.loops is None else whole.loops[targets],
        targets=targets,
        sources=None if sources is None else sources.nonzero()[:, 0],
    )


def _with_transpose(matrix: ChunkMatrix, storage: MatrixStorage, name: str) -> ChunkMatrix:
    """The same with its other side."""
    blocks = matrix.blocks
    own = _transposed(blocks, matrix.column_bounds, storage, f"{name}T")
    to_others = None
    if matrix.halo_rows:
        halo = (blocks.columns - matrix.halo_rows, blocks.columns)
        to_others = _transposed(blocks, halo, storage, f"{name}H")
    return replace(matrix, transposed=own, to_others=to_others)


def even_bounds(starts: Callable[[int], int], rows: int, chunks: int) -> tuple[int, ...]:
    """Bounds [chunks + 1] of chunks with about the same sum of nonzeros and rows each."""
    total = starts(rows) + rows
    bounds = [0]
    for chunk in range(1, chunks):
        target, low, high = total * chunk // chunks, bounds[-1], rows
        while low < high:
            middle = (low + high) // 2
            if starts(middle) + middle < target:
                low = middle + 1
            else:
                high = middle
        bounds.append(low)
    bounds.append(rows)
    return tuple(bounds)
