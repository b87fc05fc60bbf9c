"""Damaged files: mutations that a number reproduces, and forked readers that may not fail.

``mutant(kind, number, directory)`` writes the mutation of that number again, byte for byte, at any
time: archives keep no time of day.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import scipy.io
import torch

from spgnn.data import Graph, open_shards, read_graph, write_shards
from spgnn.data.generators import block_model
from spgnn.data.graph import MASKS
from spgnn.data.npz import write_npz
from spgnn.errors import LONGEST_LINE, InputError
from spgnn.sparse import CSR
from tests.data.graphs import restate, rewrite

MEMORY = 1 << 30  # bytes beyond what a reader's process has at its beginning
PATIENCE = 60  # seconds for one file; a reader that takes longer hangs
BATCH = 250

Random = random.Random
Mutation = Callable[[bytearray, Random], None]
NUMBERS = (
    *b"0 -1 -0 +5 00 1e5 1e300 -1e300 1e-300 1e400 0x10 1.5 1.5Q 1. .5 nan inf -inf 1_0 x".split(),
    *b"2147483647 2147483648 4294967295 9223372036854775807 9223372036854775808".split(),
    *b"1000000000000000 18446744073709551616 123456789012345678901234567890".split(),
    b"9" * 5000,
    "٣".encode(),
    b"",
)
WORDS = (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 10**15, 2**62, 2**63 - 1, 2**64 - 1)


# Mutations of bytes.


def flip(raw: bytearray, draw: Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)


def cut(raw: bytearray, draw: Random) -> None:
    del raw[draw.randrange(len(raw)) :]


def remove(raw: bytearray, draw: Random) -> None:
    first, last = stretch(raw, draw)
    del raw[first:last]


def double(raw: bytearray, draw: Random) -> None:
    first, last = stretch(raw, draw)
    at = draw.randrange(len(raw) + 1)
    raw[at:at] = raw[first:last]


def splice(raw: bytearray, draw: Random) -> None:
    first, last = stretch(raw, draw)
    at = draw.randrange(len(raw))
    raw[at : at + last - first] = raw[first:last]


def insert(raw: bytearray, draw: Random) -> None:
    at = draw.randrange(len(raw) + 1)
    raw[at:at] = draw.choice((b"\0", b"\n", b"\r", b" ", b"%", b"#", b"\xff\xfe", b"Q", b"\x1a"))


def number(raw: bytearray, draw: Random) -> None:
    """Another number in place of one that is written in digits."""
    found = list(re.finditer(rb"[0-9][0-9.]*", raw))
    if found:
        first, last = draw.choice(found).span()
        raw[first:last] = draw.choice(NUMBERS)


def word(raw: bytearray, draw: Random) -> None:
    """Another number in place of one that is written in bytes."""
    size = draw.choice((1, 2, 4, 8))
    at = draw.randrange(max(len(raw) - size, 0) + 1)
    value = draw.choice(WORDS) % 256**size
    raw[at : at + size] = struct.pack("<Q", value)[:size]


def head(raw: bytearray, draw: Random) -> None:
    """Something in the first line or the first 128 bytes."""
    end = raw.find(b"\n") + 1 if draw.random() < 0.5 else 128
    part = bytearray(raw[: max(end, 1)])
    draw.choice((flip, number, word, remove, insert))(part, draw)
    raw[: max(end, 1)] = part


def tail(raw: bytearray, draw: Random) -> None:
    """Something in the last 400 bytes, where a zip archive has its directory."""
    begin = max(len(raw) - 400, 0)
    part = bytearray(raw[begin:])
    draw.choice((flip, word, cut, remove, splice))(part, draw)
    raw[begin:] = part


def stretch(raw: bytearray, draw: Random) -> tuple[int, int]:
    first = draw.randrange(len(raw))
    return first, min(len(raw), first + draw.choice((1, 2, 8, 64, 1024)))


MUTATIONS = (flip, cut, remove, double, splice, insert, number, word, head, tail)


def mutated(raw: bytes, draw: Random, mutation: Mutation | None = None) -> bytes:
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if changed:
            (mutation or draw.choice(MUTATIONS))(changed, draw)
    return bytes(changed)


# Files to damage, and where.


def graph(*, sparse: bool = False, weighted: bool = True) -> Graph:
    made = block_model(30, 120, classes=3, features=5, seed=1)
    A, x = made.adjacency, made.x
    values = torch.arange(1, A.nnz + 1) / 8 if weighted else None
    if sparse:
        x = CSR.from_scipy(scipy.sparse.csr_array(np.where(x > 0, x, 0)))
    masks = {name: torch.stack([getattr(made, name)] * 2, dim=1) for name in MASKS}
    block = CSR(A.pattern, values)
    return Graph("g", block, True, x=x, y=made.y, **masks)


def entries(made: Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    coo = made.adjacency.to_scipy().tocoo()
    return coo.row, coo.col, coo.data


def npz(compressed: bool, sparse: bool) -> Callable[[Path], None]:
    return lambda path: write_npz(graph(sparse=sparse), path, compressed=compressed)


def mtx(path: Path) -> None:
    A = graph().adjacency.to_scipy().tocoo()
    text = io.BytesIO()
    scipy.io.mmwrite(text, A, comment="made by a test", field="real", symmetry="general")
    write_packed(path, text.getvalue())


def symmetric_mtx(path: Path) -> None:
    row, col, _ = entries(graph(weighted=False))
    lines = [f"{i + 1} {j + 1}" for i, j in zip(row, col, strict=True) if j <= i]
    banner = "%%MatrixMarket matrix coordinate pattern symmetric"
    write_packed(path, "\n".join([banner, f"30 30 {len(lines)}", *lines, ""]).encode())


def edge_list(path: Path) -> None:
    row, col, weight = entries(graph())
    separator = "," if ".csv" in path.name else "\t"
    first = ["source,target,weight"] if ".csv" in path.name else ["# Nodes: 31 Edges: 100"]
    triples = zip(col, row, weight, strict=True)
    lines = [separator.join(map(str, triple)) for triple in triples]
    write_packed(path, "\n".join([*first, *lines, ""]).encode())


def metis(path: Path) -> None:
    A = graph(weighted=False).adjacency
    lines = [f"% made by a test\n{A.shape[0]} {A.nnz // 2} 011"]
    for i in range(A.shape[0]):
        neighbours = A.indices[A.indptr[i] : A.indptr[i + 1]].tolist()
        lines.append(" ".join(f"{v}" for j in neighbours for v in (j + 1, (i + 1) * (j + 1) / 4)))
        lines[-1] = f"7 {lines[-1]}"
    write_packed(path, "\n".join([*lines, ""]).encode())


def write_packed(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def damage_file(path: Path, draw: Random) -> None:
    raw = path.read_bytes()
    inside = draw.random() < 0.6
    if path.suffix == ".gz" and inside:
        raw = gzip.compress(mutated(gzip.decompress(raw), draw), 1, mtime=0)
    elif path.suffix == ".npz" and inside:
        raw = with_mutated_member(raw, draw)
    else:
        raw = mutated(raw, draw)
    path.write_bytes(raw)


def with_mutated_member(raw: bytes, draw: Random) -> bytes:
    """The archive with one array changed, and a directory and checksums that agree."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(packed, "w") as new:
        chosen = draw.choice(old.namelist())
        for info in old.infolist():
            content = old.read(info)
            if info.filename == chosen:
                content = mutated(content, draw, head if draw.random() < 0.6 else None)
            # Of a name alone, the archive would keep the time of day.
            new.writestr(zipfile.ZipInfo(info.filename), content, info.compress_type)
    return packed.getvalue()


def directory(path: Path) -> None:
    made = graph(sparse=True)
    write_shards(made, np.arange(30) % 2, 2, path)


def damage_directory(path: Path, draw: Random) -> None:
    """A file of the directory, with digests that agree or not."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = draw.choice(files)
    honest = draw.random() < 0.5
    # What is written is finite; opening does not read all features to see that again.
    if honest and file.suffix == ".npy" and file.stem not in ("values", "x_values"):
        raw = bytearray(file.read_bytes())
        array = np.load(file)
        changed = bytearray(array.tobytes())
        draw.choice((flip, word, splice))(changed, draw)
        part = int(file.parent.name.removeprefix("part-"))
        if len(changed) == len(raw) - 128:
            array = np.frombuffer(changed, array.dtype).reshape(array.shape)
            rewrite(path, part, file.stem, array)
    elif honest and file.name == "meta.json":
        with suppress(ValueError, RecursionError):
            loaded = json.loads(mutated(file.read_bytes(), draw))
            if isinstance(loaded, dict):
                restate(path, loaded)
    else:
        file.write_bytes(mutated(file.read_bytes(), draw))


KINDS: dict[str, Callable[[Path], None]] = {
    "stored.npz": npz(False, False),
    "stored-sparse.npz": npz(False, True),
    "packed.npz": npz(True, False),
    "packed-sparse.npz": npz(True, True),
    "general.mtx": mtx,
    "symmetric.mtx": symmetric_mtx,
    "general.mtx.gz": mtx,
    "edges.txt": edge_list,
    "edges.csv": edge_list,
    "edges.txt.gz": edge_list,
    "metis.graph": metis,
    "metis.graph.gz": metis,
    "directory": directory,
}


def mutant(kind: str, number: int, home: Path) -> Path:
    """Write the mutation of that number, from a whole file of that kind in `home`."""
    whole, path = home / f"whole-{kind}", home / kind
    draw = Random(f"{kind} {number}")
    if kind == "directory":
        if not whole.exists():
            KINDS[kind](whole)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        damage_directory(path, draw)
    else:
        if not whole.exists():
            KINDS[kind](home / kind)
            os.replace(home / kind, whole)
        shutil.copyfile(whole, path)
        damage_file(path, draw)
    return path


# Readers that may not fail.


def faults(kind: str, numbers: range, home: Path) -> Iterator[str]:
    """What went wrong with the mutations of these numbers: nothing, if all is well."""
    mutant(kind, numbers.start, home)  # makes the whole file
    for first in range(numbers.start, numbers.stop, BATCH):
        todo = range(first, min(first + BATCH, numbers.stop))
        while todo:
            said, status, last = _in_fork(kind, todo, home)
            yield from said
            if status:
                yield f"{kind} {last}: the process ended with status {status}"
            todo = range(last + 1, todo.stop)


def _in_fork(kind: str, numbers: range, home: Path) -> tuple[list[str], int, int]:
    """(faults, exit status of the process, the last number it tried)."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads; those are idle
        pid = os.fork()
    if not pid:
        os.close(reading)
        _read_all(kind, numbers, home, writing)
    os.close(writing)
    with open(reading, "rb") as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    _, status = os.waitpid(pid, 0)
    tried = [int(line) for line in lines if line.isdecimal()]
    said = [f"{kind} {line}" for line in lines if not line.isdecimal()]
    return said, os.waitstatus_to_exitcode(status), tried[-1] if tried else numbers.start


def _read_all(kind: str, numbers: range, home: Path, writing: int) -> None:
    """Read all mutations; the numbers tried and the faults found go into the pipe."""
    status = 1
    try:
        torch.set_num_threads(1)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for current in numbers:
            os.write(writing, f"{current}\n".encode())
            path = mutant(kind, current, home)
            signal.alarm(PATIENCE)
            fault = fault_of(path)
            signal.alarm(0)
            if fault:
                os.write(writing, f"{current}: {fault}\n".encode("utf-8", "replace"))
        status = 0
    except BaseException:
        os.write(writing, " | ".join(traceback.format_exc().splitlines()).encode())
    finally:
        os._exit(status)


def fault_of(path: Path) -> str | None:
    """What is wrong with how a file is read: nothing for a whole graph, or one clear line."""
    try:
        if path.is_dir():
            shards = open_shards(path)
            found = [shards.graph()]
            for part in range(min(shards.meta.parts, 100)):
                shards.block(part)
        else:
            found = [read_graph(path)]
        for graph in found:
            # What is written is canonical; opening does not sort all columns to see that again.
            check(graph, canonical=not path.is_dir())
    except InputError as error:
        line = str(error)
        if len(line) > LONGEST_LINE or len(line.splitlines()) != 1 or not line.isprintable():
            return f"an error of {len(line)} characters: {line!r}"
    except BaseException:
        return " | ".join(traceback.format_exc().splitlines())[-3000:]
    return None


def check(graph: Graph, *, canonical: bool) -> None:
    """The record is what a Graph promises."""
    A = graph.adjacency
    assert A.indices.dtype == torch.int32
    rows = torch.arange(graph.vertices).repeat_interleave(A.row_lengths)
    places = rows * graph.vertices + A.indices.long()
    assert not canonical or bool((places.diff() > 0).all()), "not canonical"
    for block in (A, graph.x):
        values = block.values if isinstance(block, CSR) else block
        if values is not None:
            assert values.dtype == torch.float32
            assert bool(values.isfinite().all())
    if graph.y is not None:
        assert bool((graph.y >= -1).all())
    for name in MASKS:
        mask = getattr(graph, name)
        if mask is not None:
            assert bool((mask.view(torch.uint8) <= 1).all())
