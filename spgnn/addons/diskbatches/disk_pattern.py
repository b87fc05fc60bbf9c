"""The structure of a graph that lies on a disk, read in blocks behind a cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spgnn import _native
from spgnn.addons.batches import (
    Counts,
    DiskRows,
    Draw,
    GraphSampler,
    Growth,
    NeighborSampler,
    RowEntries,
    Rows,
    Sample,
    Sampler,
    StoredPattern,
    WholeRowGrowth,
    check_ids,
    finish_read,
    hop_counts,
    offsets_of,
    open_reader,
)
from spgnn.addons.diskbatches.cached_rows import CachedRows, PolicyName
from spgnn.direct import PAGE, DirectFile, Transfers, as_bytes, mapped, nameless_file
from spgnn.errors import InputError, check_integer
from spgnn.files import AnyPath
from spgnn.kernels import new_rows
from spgnn.layout import Int64Array
from spgnn.pattern import Pattern, described
from spgnn.sparse import CSR

BLOCK = 512  # bytes; what most disks read at least
ENTRIES = 1 << 22  # of rows that are in memory at once while some are drawn, unless one has more
_NONE = torch.zeros(0, dtype=torch.int64)
_PIECE = 1 << 22  # nonzeros that are worked on at once
_BUILT = 1 << 24  # bytes of rows that are read together into a cache


class DiskPattern(StoredPattern):
    """A pattern whose column numbers are read when they are needed; `indptr` is in memory.

    Column numbers are a table of blocks of the file, and short rows that lie in one block are read
    together. `cached` keeps whole rows or blocks. A last block that is not full is in memory.
    Threads may call it at the same time.

    Parameters
    ----------
    path : path
        Holds the column numbers of one row after another, ``indices.npy`` of a graph directory
        for instance.
    offset : int
        Bytes before the first number.
    indptr : Tensor int64 [rows + 1]
        Places among the numbers at which rows begin.
    cols : int
    dtype : int32 or int64
        Of the column numbers.
    direct : bool
        Read past the page cache where that is possible.
    block_bytes : int, optional
        A multiple of 8; by default 512, or as much as direct reads take at least.
    """

    def __init__(
        self,
        path: AnyPath,
        offset: int,
        indptr: Tensor,
        cols: int,
        *,
        dtype: torch.dtype = torch.int32,
        direct: bool = True,
        block_bytes: int | None = None,
    ) -> None:
        self.path, self._offset = Path(path), check_integer("offset", offset, 0)
        check_integer("cols", cols, 0)
        if dtype not in (torch.int32, torch.int64):
            raise InputError(f"{path}: column numbers must be int32 or int64, not {dtype}")
        if indptr.dtype != torch.int64 or indptr.dim() != 1 or len(indptr) < 1:
            raise InputError(f"{path}: indptr must be int64 [rows + 1]")
        if int(indptr[0]) != 0 or bool((indptr[1:] < indptr[:-1]).any()):
            raise InputError(f"{path}: indptr must rise from 0")
        self.indptr, self.dtype, self.shape = indptr, dtype, (len(indptr) - 1, cols)
        self._reader = open_reader(self.path, direct=direct)
        needed = offset + self.nnz * dtype.itemsize
        if self._reader.size < needed:
            raise InputError(
                f"{path}: {self._reader.size} bytes, but {self.nnz} column numbers from byte "
                f"{offset} on need {needed}; it was cut off"
            )
        size = max(BLOCK, self._reader.alignment) if block_bytes is None else block_bytes
        if check_integer("block_bytes", size, 8) % 8:
            raise InputError(f"block_bytes must be a multiple of 8, got {size}")
        self.block_bytes = size
        whole, rest = divmod(needed, size)
        width = size // torch.int64.itemsize
        self.blocks: Rows = DiskRows(path, 0, whole, width, torch.int64, direct=direct, gap=0)
        self.lists: _Lists | None = None
        self._last_block = torch.zeros(1, width, dtype=torch.int64)
        if rest:
            self._read(whole * size, rest, self._last_block)

    def cached(
        self,
        policy: PolicyName | Literal["ratio"],
        capacity: int,
        row_scores: Tensor | None = None,
        directory: AnyPath | None = None,
    ) -> DiskPattern:
        """The same pattern with a cache of so many bytes.

        ``"ratio"`` keeps whole rows: those with the highest ratio of `row_scores` (`degrees_of`) to
        their length (AliGraph, VLDB'19; Ginex, VLDB'22), which needs fewest reads. It is loaded
        when it is needed first, and after `release`; with a `directory` it is written there, and
        later loads are one long read. The other policies keep blocks, as `CachedRows`; ``"degree"``
        reads fewest bytes. `row_scores` [rows] say how often each row will be asked for.
        """
        check_integer("capacity of a cache, in bytes,", capacity, 0)
        same = copy(self)
        if policy == "ratio":
            if row_scores is None:
                raise InputError("cache policy ratio needs scores, one a row")
            self._check_scores(row_scores)
            same.lists = _Lists(self, capacity, row_scores, directory)
            return same
        scores = None if row_scores is None else self.block_scores(row_scores)
        same.blocks = CachedRows(self.blocks, policy, capacity, scores=scores)
        return same

    def resize(self, capacity: int) -> None:
        """Empty the cache; from now on it has so many bytes."""
        if self.lists is not None:
            self.lists.resize(capacity)
        elif isinstance(self.blocks, CachedRows):
            self.blocks.resize(capacity)

    def release(self) -> None:
        """Give the memory of the cache back, until rows are asked for again."""
        if self.lists is not None:
            self.lists.release()
        elif isinstance(self.blocks, CachedRows):
            self.blocks.release()

    def block_scores(self, row_scores: Tensor) -> Tensor:
        """Sums of the scores of the rows that lie in each full block, float64 [blocks]."""
        self._check_scores(row_scores)
        first, last = self._blocks_of(*self._bytes_of(np.arange(self.shape[0])))
        scores, ends = row_scores.double().numpy() * (last > first), self.blocks.rows + 2
        steps = np.bincount(first, scores, ends) - np.bincount(last, scores, ends)
        return torch.from_numpy(np.cumsum(steps)[: self.blocks.rows])

    @property
    def counts(self) -> Counts:
        """Blocks (of ``"ratio"`` rows) that were asked for, hits of the cache, and those read."""
        if self.lists is None:
            return self.blocks.counts
        read, built = self.blocks.counts, self.lists.built
        return replace(
            self.lists.counts,
            bytes_read=read.bytes_read - built.bytes_read,
            reads=read.reads - built.reads,
        )

    @property
    def indices(self) -> DiskColumns:
        """All column numbers; stretches of them are read when they are sliced."""
        return DiskColumns(self)

    def sampler(self, kind: type[GraphSampler], counts: Sequence[int], **options: Any) -> Sampler:
        """A sampler that makes the samples of a kind's in memory."""
        return DiskSampler(self, kind, counts, **options)

    def rows(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Some rows, int64 [k], in this order: indptr int64 [k + 1], and columns [nnz]."""
        numbers = check_ids(ids, self.shape[0], str(self.path))
        begins, lengths = self._bytes_of(numbers)
        ends = np.cumsum(lengths)
        indptr = np.concatenate((np.zeros(1, np.int64), ends // self.dtype.itemsize))
        columns = torch.empty(int(indptr[-1]), dtype=self.dtype)
        missing: Int64Array | slice = slice(None)
        if self.lists is not None:
            missing = self.lists.copy(numbers, lengths, ends - lengths, columns)
        self._read_rows(begins[missing], lengths[missing], (ends - lengths)[missing], columns)
        self._check(columns)
        return torch.from_numpy(indptr), columns

    def _read_rows(
        self, begins: Int64Array, lengths: Int64Array, to: Int64Array, columns: Tensor
    ) -> None:
        """Stretches of the file, each to a byte of `columns`: all blocks that they lie in."""
        first, last = self._blocks_of(begins, lengths)
        counts = last - first
        before = np.cumsum(counts) - counts
        blocks = np.arange(int(counts.sum())) + np.repeat(first - before, counts)
        distinct = np.unique(blocks)
        gathered = new_rows(len(distinct), self._last_block)
        full = int(np.searchsorted(distinct, self.blocks.rows))
        self.blocks.gather(torch.from_numpy(distinct[:full]), gathered[:full])
        gathered[full:] = self._last_block
        # The blocks of a stretch are neighbours among the distinct ones as well.
        place = np.searchsorted(distinct, first)
        source = place * self.block_bytes + begins - first * self.block_bytes
        _native.copy_stretches(as_bytes(gathered), source, lengths, to, as_bytes(columns))

    def stretch(self, first: int, last: int) -> Tensor:
        """Column numbers [first, last), by one long read past any cache."""
        columns, size = torch.empty(last - first, dtype=self.dtype), self.dtype.itemsize
        if last > first:
            self._read(first * size + self._offset, (last - first) * size, columns)
        self._check(columns)
        return columns

    def _read(self, first: int, length: int, out: Tensor) -> None:
        """So many bytes of the file, from one on."""
        begin, size, place = (np.array([number]) for number in (first, length, 0))
        finish_read(self._reader.read(begin, size, place, as_bytes(out), 0), self.path)

    def _bytes_of(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Bytes of the file at which rows begin, and their lengths."""
        indptr, size = self.indptr.numpy(), self.dtype.itemsize
        begins = indptr[rows]
        return begins * size + self._offset, (indptr[rows + 1] - begins) * size

    def _blocks_of(self, begins: Int64Array, lengths: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Blocks [first, last) that stretches of the file lie in; none of an empty one."""
        first = begins // self.block_bytes
        last = -(-(begins + lengths) // self.block_bytes)
        return first, np.where(lengths > 0, last, first)

    def _check_scores(self, row_scores: Tensor) -> None:
        if row_scores.shape != (self.shape[0],):
            raise InputError(
                f"scores of rows must be [{self.shape[0]}], got {described(row_scores)}"
            )

    def _check(self, columns: Tensor) -> None:
        """Numbers from a file may be anything."""
        if len(columns) == 0:
            return
        low, high = (int(end) for end in torch.aminmax(columns))
        last = self.shape[1] - 1
        if low < 0 or high > last:
            wrong = low if low < 0 else high
            raise InputError(f"{self.path}: damaged: names column {wrong}, of 0 to {last}")


class _Lists:
    """Whole rows of a pattern in memory, those of the highest ratio of score to length."""

    def __init__(
        self, pattern: DiskPattern, capacity: int, scores: Tensor, directory: AnyPath | None
    ) -> None:
        self._pattern, self._directory = pattern, directory
        self._lock, self.counts = threading.Lock(), Counts()
        self.built, self.loaded_bytes = Counts(), 0  # not in `counts`: reads that filled the cache
        lengths = pattern.row_lengths.numpy()
        ratio = scores.double().numpy() / np.maximum(lengths, 1)
        # Rows without neighbours take no place.
        order = np.argsort(-ratio, kind="stable")
        self._order = order[lengths[order] > 0]
        self.resize(capacity)

    def resize(self, capacity: int) -> None:
        """Choose the rows anew for so many bytes."""
        self.release()
        _, lengths = self._pattern._bytes_of(self._order)
        count = np.searchsorted(np.cumsum(lengths), capacity, side="right")
        self._kept = np.sort(self._order[:count])
        self._file: DirectFile | None = None

    def release(self) -> None:
        """Until rows are asked for again."""
        with self._lock:
            self._memory: tuple[Int64Array, Tensor] | None = None

    def copy(
        self, rows: Int64Array, lengths: Int64Array, to: Int64Array, columns: Tensor
    ) -> Int64Array:
        """Copy the rows that are kept, each to a byte of `columns`; places of the others."""
        place, cache = self._loaded()
        begins = place[rows]
        hits = np.flatnonzero(begins >= 0)
        _native.copy_stretches(
            as_bytes(cache), begins[hits], lengths[hits], to[hits], as_bytes(columns)
        )
        missing = np.flatnonzero((begins < 0) & (lengths > 0))
        needed = int((lengths > 0).sum())
        self.counts.add(
            rows_needed=needed,
            rows_read=len(missing),
            bytes_needed=int(lengths.sum()),
            hits=needed - len(missing),
        )
        return missing

    def _loaded(self) -> tuple[Int64Array, Tensor]:
        with self._lock:
            if self._memory is None:
                pattern = self._pattern
                begins, lengths = pattern._bytes_of(self._kept)
                to, nbytes = np.cumsum(lengths) - lengths, int(lengths.sum())
                pages = mapped(nbytes + 2 * PAGE)  # as a read of a file may need
                cache = pages[:nbytes].view(pattern.dtype)
                if self._file is not None:
                    data = self._file.read(0, nbytes, pages.numpy())
                    cache = torch.from_numpy(data).view(pattern.dtype)
                    self.loaded_bytes += nbytes
                else:
                    self._build(begins, lengths, to, cache)
                place = np.full(pattern.shape[0], -1, np.int64)
                place[self._kept] = to
                self._memory = place, cache
            return self._memory

    def _build(
        self, begins: Int64Array, lengths: Int64Array, to: Int64Array, cache: Tensor
    ) -> None:
        """Read the rows where they lie, and write them one after another."""
        before = self._pattern.blocks.counts.record()
        pieces = np.flatnonzero(np.diff(to // _BUILT, prepend=-1))
        for first, last in pairwise([*pieces.tolist(), len(to)]):
            some = slice(first, last)
            self._pattern._read_rows(begins[some], lengths[some], to[some], cache)
        after = self._pattern.blocks.counts.record()
        self.built.add(**{name: after[name] - before[name] for name in ("bytes_read", "reads")})
        if self._directory is not None and len(cache):
            with nameless_file(Path(self._directory), Transfers()) as file:
                file.write(0, cache.numpy())
            self._file = file


class DiskColumns:
    """The column numbers of a pattern on a disk, as far as they are sliced."""

    def __init__(self, pattern: DiskPattern) -> None:
        self._pattern = pattern

    def __len__(self) -> int:
        return self._pattern.nnz

    def __getitem__(self, which: slice) -> Tensor:
        first, last, _ = which.indices(len(self))
        return self._pattern.stretch(first, max(first, last))


class DiskSampler:
    """Samples of a graph whose structure lies on a disk: those of memory, bit for bit."""

    def __init__(
        self,
        pattern: DiskPattern,
        kind: type[GraphSampler],
        counts: Sequence[int],
        *,
        edge_ids: bool = False,
        vertex_ids: Tensor | None = None,
        threads: int | None = None,
        **options: Any,
    ) -> None:
        self._pattern, self._kind, self._edge_ids = pattern, kind, edge_ids
        self._ids, self._threads, self._options = vertex_ids, threads, options
        self._counts: Sequence[int] = list(counts)
        if kind.needs == "rows":
            self._of_rows(torch.zeros(1, dtype=torch.int64), _NONE.to(pattern.dtype), _NONE)
        else:
            hop_counts("num_neighbors", self._counts)

    def sample(self, seeds: Tensor, draw: Draw) -> Sample:
        """The neighbourhood of the seeds, int64 [seeds], each different."""
        n = self._pattern.shape[0]
        if len(seeds) and not 0 <= int(seeds.min()) <= int(seeds.max()) < n:
            raise InputError(f"seeds must be rows of the pattern, in [0, {n})")
        growth, rows_of = Growth(seeds, draw), self._drawn
        if self._kind.needs != "rows":
            growth = WholeRowGrowth(seeds, draw, self._kind, self._counts, self._threads)
            rows_of = self._whole
        for hop in range(len(self._counts)):
            growth.take(rows_of(growth.targets, hop, draw), hop)
        sample, numbers = growth.result()
        named = self._edge_ids and numbers is not None
        hops = [
            replace(hop, edge_ids=numbers[hop.edge_ids] if named else None)  # type: ignore[index]
            for hop in sample.hops
        ]
        return replace(sample, hops=hops)

    def _whole(self, targets: Tensor, hop: int, draw: Draw) -> RowEntries:
        """Whole rows, and the numbers of their entries."""
        indptr, columns = self._pattern.rows(targets)
        ids = columns.long() if self._ids is None else self._ids[columns.long()]
        begins = self._pattern.indptr[targets] - indptr[:-1]
        numbers = torch.arange(len(columns)) + begins.repeat_interleave(indptr.diff())
        return RowEntries(indptr, columns, numbers, ids=ids)

    def _drawn(self, targets: Tensor, hop: int, draw: Draw) -> RowEntries:
        """One hop of neighbour sampling."""
        parts = [self._drawn_piece(piece, hop, draw) for piece in self._pieces(targets)]
        lengths = torch.cat([part.indptr.diff() for part in parts])
        columns = torch.cat([part.columns for part in parts])
        numbers = [part.edges for part in parts if part.edges is not None]
        return RowEntries(offsets_of(lengths), columns, torch.cat(numbers) if numbers else None)

    def _drawn_piece(self, piece: Tensor, hop: int, draw: Draw) -> RowEntries:
        indptr, columns = self._pattern.rows(piece)
        rows = torch.arange(len(piece))
        sampler = self._of_rows(indptr, columns, piece)
        drawn, chosen, edge_ids, _ = sampler.sample_hop(rows, hop, draw)
        if edge_ids is not None:
            row = rows.repeat_interleave(drawn.diff())
            edge_ids = edge_ids + (self._pattern.indptr[piece] - indptr[:-1])[row]
        return RowEntries(drawn, chosen, edge_ids)

    def _pieces(self, targets: Tensor) -> Iterator[Tensor]:
        """The targets in order, so many at a time as have ENTRIES together; at least one piece."""
        indptr = self._pattern.indptr
        before = (indptr[targets + 1] - indptr[targets]).cumsum(0)
        first = 0
        while True:
            limit = (int(before[first - 1]) if first else 0) + ENTRIES
            last = int(torch.searchsorted(before, limit, right=True))
            last = min(max(last, first + 1), len(targets))
            yield targets[first:last]
            first = last
            if first >= len(targets):
                return

    def _of_rows(self, indptr: Tensor, columns: Tensor, rows: Tensor) -> NeighborSampler:
        pattern = Pattern.trusted(indptr, columns, (len(indptr) - 1, self._pattern.shape[1]))
        sampler: NeighborSampler = self._kind.of_matrix(
            pattern,
            None,
            self._counts,
            edge_ids=self._edge_ids,
            vertex_ids=self._ids,
            row_ids=rows if self._ids is None else self._ids[rows],
            threads=self._threads,
            **self._options,
        )
        return sampler


def degrees_of(pattern: Pattern | CSR | StoredPattern) -> Tensor:
    """Out-degrees, the number of rows that name a vertex, int64 [cols]: scores of ``"degree"``."""
    indptr = pattern.indptr.numpy()
    total = torch.zeros(pattern.shape[1], dtype=torch.int64)
    first, n = 0, len(indptr) - 1
    while first < n:
        last = int(np.searchsorted(indptr, indptr[first] + _PIECE, side="right")) - 1
        last = min(max(last, first + 1), n)
        columns = pattern.indices[indptr[first] : indptr[last]]
        total += torch.bincount(columns, minlength=len(total))
        first = last
    return total
