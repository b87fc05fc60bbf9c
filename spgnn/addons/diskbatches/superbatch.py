"""Superbatches whose samples lie on a disk, and are streamed back when their turn comes."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches import Draw, Hop, Sample, Superbatch, in_background
from spgnn.direct import DirectFile, Transfers, as_bytes, nameless_file, padded, page_buffer
from spgnn.errors import InputError
from spgnn.files import AnyPath
from spgnn.layout import Int32Array, Int64Array

_LINE = 64  # bytes at whose multiples arrays begin
_HOP = ("indptr", "indices", "edge_ids", "weights")
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class SampleFile(Sequence[Sample]):
    """The samples of a superbatch, in a file without a name, which the system removes."""

    def __init__(self, directory: AnyPath, count: int) -> None:
        self.transfers = Transfers()
        with nameless_file(Path(directory), self.transfers) as file:
            self._file: DirectFile = file
        # Of each sample: where it begins, its vertices, bytes of its header, its bytes; and where
        # the next uses begin, and how many there are.
        self._index = np.zeros((count, 6), np.int64)
        self._end, self._lock = 0, threading.Lock()
        self.nodes = NodesOnDisk(self)

    @property
    def nbytes(self) -> int:
        """Bytes of the file so far."""
        return self._end

    def __len__(self) -> int:
        return len(self._index)

    def put(self, number: int, sample: Sample) -> None:
        """Write a sample: its vertices, a header that says what follows, and its other arrays."""
        arrays = {"inputs": sample.inputs, "batch": sample.batch}
        for h, hop in enumerate(sample.hops):
            arrays |= {f"{h} {name}": getattr(hop, name) for name in _HOP}
        arrays |= {f"+{name}": tensor for name, tensor in sample.extra.items()}
        tensors = {name: t.contiguous() for name, t in arrays.items() if t is not None}
        header = json.dumps(
            {
                "arrays": [[name, str(t.dtype), list(t.shape)] for name, t in tensors.items()],
                "seeds": sample.seeds,
                "sources": [hop.sources for hop in sample.hops],
                "draw": list(vars(sample.draw).values()),
            }
        ).encode()
        parts = [as_bytes(sample.nodes), np.frombuffer(header, np.uint8)]
        offset, nbytes = self._append([*parts, *map(as_bytes, tensors.values())])
        self._index[number, :4] = offset, len(sample.nodes), len(header), nbytes

    def __getitem__(self, number: int) -> Sample:  # type: ignore[override]
        offset, vertices, length, nbytes = map(int, self._index[number, :4])
        data = self._file.read(offset, nbytes)
        nodes = torch.from_numpy(data[: 8 * vertices].view(np.int64))
        at = _aligned(8 * vertices)
        header = json.loads(data[at : at + length].tobytes())
        at += _aligned(length)
        arrays: dict[str, Tensor] = {}
        for name, kind, shape in header["arrays"]:
            dtype = _DTYPES[kind]
            size = prod(shape) * dtype.itemsize
            flat = torch.from_numpy(data[at : at + size]).view(dtype)
            arrays[name], at = flat.reshape(shape), at + _aligned(size)
        hops = [
            Hop(**{name: arrays.get(f"{h} {name}") for name in _HOP}, sources=sources)  # type: ignore[arg-type]
            for h, sources in enumerate(header["sources"])
        ]
        extra = {name[1:]: tensor for name, tensor in arrays.items() if name.startswith("+")}
        more = arrays.get("batch"), arrays["inputs"], Draw(*header["draw"]), extra
        return Sample(nodes, header["seeds"], hops, *more)

    def read_nodes(self, number: int) -> Int64Array:
        """The vertices of one sample."""
        offset, vertices = map(int, self._index[number, :2])
        return self._file.read(offset, 8 * vertices).view(np.int64)

    def put_uses(self, number: int, uses: Int32Array) -> None:
        """Write a list beside a sample."""
        offset, _ = self._append([uses.view(np.uint8)])
        self._index[number, 4:] = offset, len(uses)

    def read_uses(self, number: int) -> Int32Array:
        """That list."""
        offset, count = map(int, self._index[number, 4:])
        return self._file.read(offset, 4 * count).view(np.int32)

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()

    def _append(self, parts: Sequence[np.ndarray[Any, Any]]) -> tuple[int, int]:
        """Write some bytes, each part at a multiple of a line: where, and how many."""
        nbytes = sum(_aligned(len(part)) for part in parts)
        pages, at = page_buffer(padded(max(nbytes, 1))), 0
        for part in parts:
            pages[at : at + len(part)] = part
            at += _aligned(len(part))
        with self._lock:
            offset, self._end = self._end, self._end + padded(nbytes)
        self._file.write_pages(offset, pages, nbytes)
        return offset, nbytes


class NodesOnDisk(Sequence[Tensor]):
    """The vertices of each sample of a file; no more than one list of them is in memory."""

    def __init__(self, file: SampleFile) -> None:
        self.file = file

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, number: int) -> Tensor:  # type: ignore[override]
        return torch.from_numpy(self.file.read_nodes(number))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


@dataclass(frozen=True)
class DiskSuperbatch(Superbatch):
    """A superbatch whose samples are written to a file, without a name, and read one by one.

    So memory does not depend on their number (Ginex, VLDB'22). Rows that several batches need are
    fetched once only if the loader's `store` is a cache. Batches that all epochs have (``fixed``)
    are sampled once and stay there, whatever the size (as AGL; Zhang et al., VLDB 2020).

    Parameters
    ----------
    size : int
        Batches; 1: samples are in memory, unless all epochs have them.
    directory : path
        On a disk with room.
    overlap : bool
        Sample the next superbatch while rows of this one are fetched. If not, cached rows of the
        store and cached neighbours of the structure take turns in memory.
    """

    directory: AnyPath = "."
    overlap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not os.path.isdir(self.directory):
            raise InputError(f"superbatch: {os.fspath(self.directory)}: no such directory")

    def store(self, sample: Callable[[int], Sample], count: int) -> SampleFile:
        """Samples of all epochs, written once."""
        samples = SampleFile(self.directory, count)
        for number in range(count):
            samples.put(number, sample(number))
        return samples

    def run(
        self,
        sample: Callable[[int], Sample],
        finish: Callable[[Sequence[Sample]], Generator[Any, None, None]],
        count: int,
        *,
        threads: int,
        ahead: int,
        stage: Callable[[str], None],
    ) -> Generator[Any, None, None]:
        """Superbatch after superbatch, the results in order.

        Threads write the samples of one to a disk; then one more finishes them. Without threads,
        the caller does everything. Closing the iterator ends all threads, and removes the files.
        """
        if self.size == 1:
            yield from super().run(sample, finish, count, threads=threads, ahead=ahead, stage=stage)
            return
        stop = threading.Event()
        makers = ThreadPoolExecutor(threads, "spgnn-sample") if threads else None
        groups = [
            range(first, min(first + self.size, count)) for first in range(0, count, self.size)
        ]
        files: deque[tuple[SampleFile, list[Future[None]]]] = deque()

        def write(file: SampleFile, group: range, numbers: Iterator[int]) -> None:
            try:
                for number in numbers:
                    if stop.is_set():
                        return
                    file.put(number - group[0], sample(number))
            except BaseException:
                stop.set()
                raise

        def begin(group: range) -> None:
            file, numbers = SampleFile(self.directory, len(group)), iter(group)
            files.append((file, []))
            if makers is None:
                write(file, group, numbers)
            else:
                files[-1][1].extend(
                    makers.submit(write, file, group, numbers) for _ in range(threads)
                )

        try:
            for number, group in enumerate(groups):
                if not files:
                    if not self.overlap:
                        stage("sample")
                    begin(group)
                file, futures = files[0]
                for future in futures:
                    future.result()
                if self.overlap and number + 1 < len(groups):
                    begin(groups[number + 1])
                elif not self.overlap:
                    stage("gather")
                work = finish(file)
                with closing(in_background(work, ahead) if makers else work) as results:
                    yield from results
                file.close()
                files.popleft()
        finally:
            stop.set()
            if makers is not None:
                makers.shutdown(wait=True, cancel_futures=True)
            for file, _ in files:
                file.close()
