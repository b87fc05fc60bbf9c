"""Whatever happens to a file: a graph, or one clear line. No traceback, crash, hang, flood.

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
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch

from spgnn.data import Graph, open_shards, write_shards
from spgnn.data.generators import block_model
from spgnn.data.graph import MASKS
from spgnn.data.load import read_graph
from spgnn.data.npz import write_npz
from spgnn.errors import LONGEST_LINE, InputError
from spgnn.sparse import CSR
from tests.comm.jobs import Forked
from tests.data.graphs import restate, rewrite

MEMORY = 1 << 30  # bytes beyond what a reader's process has at its beginning
PATIENCE = 60  # seconds for one file; a reader that takes longer hangs
BATCH = 250
FEW, MANY = 150, 10_000

Random = random.Random
NUMBERS = (
    *b"0 -1 -0 +5 00 1e5 1e300 -1e300 1e-300 1e400 0x10 1.5 1.5Q 1. .5 nan inf -inf 1_0 x".split(),
    *b"2147483647 2147483648 4294967295 9223372036854775807 9223372036854775808".split(),
    *b"1000000000000000 18446744073709551616 123456789012345678901234567890".split(),
    b"9" * 5000,
    "٣".encode(),
    b"",
)
WORDS = (0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 10**15, 2**62, 2**63 - 1, 2**64 - 1)
INSERTS = (b"\0", b"\n", b"\r", b" ", b"%", b"#", b"\xff\xfe", b"Q", b"\x1a")
EVERYWHERE = ("flip", "cut", "remove", "double", "splice", "insert", "number", "word")


def mutate(raw: bytearray, draw: Random, kinds: tuple[str, ...] = EVERYWHERE) -> None:
    """One mutation of some bytes, in place."""
    if not raw:
        return
    first, at = draw.randrange(len(raw)), draw.randrange(len(raw))
    stretch = raw[first : first + draw.choice((1, 2, 8, 64, 1024))]
    kind = draw.choice(kinds)
    if kind == "flip":
        for _ in range(draw.choice((1, 1, 2, 8))):
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del raw[at:]
    elif kind == "remove":
        del raw[first : first + len(stretch)]
    elif kind == "double":
        raw[at:at] = stretch
    elif kind == "splice":
        raw[at : at + len(stretch)] = stretch
    elif kind == "insert":
        raw[at:at] = draw.choice(INSERTS)
    elif kind == "number":  # another one in place of one that is written in digits
        if found := list(re.finditer(rb"[0-9][0-9.]*", raw)):
            begin, end = draw.choice(found).span()
            raw[begin:end] = draw.choice(NUMBERS)
    else:  # another one in place of one that is written in bytes
        size = draw.choice((1, 2, 4, 8))
        at = draw.randrange(max(len(raw) - size, 0) + 1)
        raw[at : at + size] = struct.pack("<Q", draw.choice(WORDS) % 256**size)[:size]


def mutated(raw: bytes, draw: Random, *, head: bool = False) -> bytes:
    """One to three mutations: anywhere, or where a header or an archive's directory is."""
    changed = bytearray(raw)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        heads = [slice(max(changed.find(b"\n") + 1, 1)), slice(128)]
        where = draw.choice(heads if head else [*heads, slice(-400, None), *[slice(None)] * 9])
        part = changed[where]
        mutate(part, draw)
        changed[where] = part
    return bytes(changed)


# Files to damage.


def graph(*, sparse: bool = False, weighted: bool = True) -> Graph:
    made = block_model(30, 120, classes=3, features=5, seed=1)
    A, x = made.adjacency, made.x
    values = torch.arange(1, A.nnz + 1) / 8 if weighted else None
    if sparse:
        x = CSR.from_scipy(scipy.sparse.csr_array(np.where(x > 0, x, 0)))
    masks = {name: torch.stack([getattr(made, name)] * 2, dim=1) for name in MASKS}
    return Graph("g", CSR(A.pattern, values), True, x=x, y=made.y, **masks)


KINDS = ("stored.npz", "stored-sparse.npz", "packed.npz", "packed-sparse.npz", "directory")
WRITERS: dict[str, Callable[[Path], None]] = {}  # of whole files of other kinds


def write_whole(kind: str, path: Path) -> None:
    if kind == "directory":
        write_shards(graph(sparse=True), np.arange(30) % 2, 2, path)
    elif kind.endswith(".npz"):
        write_npz(graph(sparse="sparse" in kind), path, compressed="packed" in kind)
    else:
        WRITERS[kind](path)


def damage_file(path: Path, draw: Random) -> None:
    raw = path.read_bytes()
    inside = draw.random() < 0.6
    if path.suffix == ".gz" and inside:
        raw = gzip.compress(mutated(gzip.decompress(raw), draw), 1, mtime=0)
    elif path.suffix == ".npz" and inside:
        # One array changes, and directory and checksums agree.
        packed = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(packed, "w") as new:
            chosen = draw.choice(old.namelist())
            for info in old.infolist():
                content = old.read(info)
                if info.filename == chosen:
                    content = mutated(content, draw, head=draw.random() < 0.6)
                # Of a name alone, the archive would keep the time of day.
                new.writestr(zipfile.ZipInfo(info.filename), content, info.compress_type)
        raw = packed.getvalue()
    else:
        raw = mutated(raw, draw)
    path.write_bytes(raw)


def damage_directory(path: Path, draw: Random) -> None:
    """A file of the directory, with digests that agree or not."""
    file = draw.choice(sorted(file for file in path.rglob("*") if file.is_file()))
    honest = draw.random() < 0.5
    # What is written is finite; opening does not read all features to see that again.
    if honest and file.suffix == ".npy" and file.stem not in ("values", "x_values"):
        array = np.load(file)
        changed = bytearray(array.tobytes())
        mutate(changed, draw, ("flip", "word", "splice"))
        if len(changed) == array.nbytes:
            array = np.frombuffer(changed, array.dtype).reshape(array.shape)
            rewrite(path, int(file.parent.name.removeprefix("part-")), file.stem, array)
    elif honest and file.name == "meta.json":
        with suppress(ValueError, RecursionError):
            loaded = json.loads(mutated(file.read_bytes(), draw))
            if isinstance(loaded, dict):
                restate(path, loaded)
    else:
        file.write_bytes(mutated(file.read_bytes(), draw))


def mutant(kind: str, number: int, home: Path) -> Path:
    """Write the mutation of that number, from a whole file of that kind in `home`."""
    whole, path = home / f"whole-{kind}", home / kind
    if not whole.exists():
        write_whole(kind, path)
        os.replace(path, whole)
    draw = Random(f"{kind} {number}")
    if kind == "directory":
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        damage_directory(path, draw)
    else:
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
            ended = Forked(partial(_read_all, kind, todo, home), home).wait(BATCH * PATIENCE)
            lines = ended.out.splitlines()
            last = max((int(line) for line in lines if line.isdecimal()), default=todo.start)
            yield from (f"{kind} {line}" for line in lines if not line.isdecimal())
            if ended.status:
                yield f"{kind} {last}: the process ended with status {ended.status} {ended.err}"
            todo = range(last + 1, todo.stop)


def _read_all(kind: str, numbers: range, home: Path) -> None:
    """Read all mutations; print the numbers tried and the faults found."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for current in numbers:
        print(current, flush=True)
        path = mutant(kind, current, home)
        signal.alarm(PATIENCE)
        fault = fault_of(path)
        signal.alarm(0)
        if fault:
            print(f"{current}: {fault}", flush=True)


def fault_of(path: Path) -> str | None:
    """What is wrong with how a file is read: nothing for a whole graph, or one clear line."""
    try:
        if path.is_dir():
            shards = open_shards(path)
            # What is written is canonical; opening does not sort all columns to see that again.
            check(shards.graph(), canonical=False)
            for part in range(min(shards.meta.parts, 100)):
                shards.block(part)
        else:
            check(read_graph(path), canonical=True)
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
        assert values is None or values.dtype == torch.float32
        assert values is None or bool(values.isfinite().all())
    assert graph.y is None or bool((graph.y >= -1).all())
    for name in MASKS:
        mask = getattr(graph, name)
        assert mask is None or bool((mask.view(torch.uint8) <= 1).all())


SOME = [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", SOME)
def test_damaged_files(tmp_path, kind, numbers):
    assert list(faults(kind, numbers, tmp_path)) == []


def fail(how):
    if how == "loud":
        raise ValueError
    if how == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)


@pytest.mark.parametrize(
    ("how", "fault"), [("loud", "Traceback"), ("deadly", "the process"), ("slow", "the process")]
)
def test_readers_that_fail_are_seen(tmp_path, monkeypatch, how, fault):
    monkeypatch.setitem(globals(), "read_graph", lambda path: fail(how))
    monkeypatch.setitem(globals(), "PATIENCE", 1)
    for line, number in zip(faults("stored.npz", range(7, 9), tmp_path), (7, 8), strict=True):
        assert line.startswith(f"stored.npz {number}: {fault}")
