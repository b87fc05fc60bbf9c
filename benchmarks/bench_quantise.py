"""Packing and unpacking rows in few bits against a copy of the same rows.

    python benchmarks/bench_quantise.py [--rounds N] [--threads 1,2] [--json FILE] [--markdown FILE]

The copy is torch's, float32 rows to float32 rows on the same threads, and takes turns with packing,
packing with what was lost added up, packing listed rows, and unpacking: whatever else the machine
does meets all alike. A turn repeats a call until it has moved `TURN_BYTES`. Speeds are those of the
copy's time over the other's, round by round: 1 is as fast as the copy.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from spgnn import _native
from spgnn.kernels import dequantise_rows, quantise_rows
from spgnn.kernels.quantise import packed_bytes

BAR, AIM = 0.6, 0.8
TURN_BYTES = 2**24
SIZES = {"2 MiB": 2**21, "16 MiB": 2**24, "256 MiB": 2**28}  # of the float32 rows
COLUMNS = (16, 64, 128, 256)
BITS = (16, 8, 4, 2, 1)

Calls = dict[str, Callable[[], Any]]


def contestants(X: Tensor, bits: int) -> Calls:
    """What is timed, each a call that allocates nothing."""
    rows, columns = X.shape
    ids, generator = torch.arange(rows), torch.Generator().manual_seed(1)
    listed = torch.randperm(rows, generator=generator, dtype=torch.int32)
    Y, lost = torch.empty_like(X), torch.zeros(2, dtype=torch.float64)
    packed = torch.empty(rows, packed_bytes(columns, bits), dtype=torch.uint8)
    pack = partial(quantise_rows, X, bits, ids, 1, out=packed)
    return {
        "copy": partial(Y.copy_, X),
        "pack": pack,
        "pack, lost": partial(pack, lost=lost),
        "pack, listed": partial(pack, rows=listed),
        "unpack": partial(dequantise_rows, packed, bits, columns, torch.float32, out=Y),
    }


def measure(calls: Calls, rounds: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of a call in every round, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = perf_counter()
            for _ in range(repeats):
                call()
            if turn:
                seconds[name].append((perf_counter() - start) / repeats)
    return seconds


def case(size: str, columns: int, bits: int, threads: int, rounds: int) -> dict[str, Any]:
    """One line: the copy in GB/s (bytes read), the others over it: median and quartiles."""
    torch.set_num_threads(threads)
    rows = SIZES[size] // (4 * columns)
    X = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    seconds = measure(contestants(X, bits), rounds, max(1, TURN_BYTES // X.nbytes))
    copy = seconds.pop("copy")
    line: dict[str, Any] = {"size": size, "columns": columns, "bits": bits, "threads": threads}
    line["copy GB/s"] = X.nbytes / median(copy) / 1e9
    for name, other in seconds.items():
        ratios = [a / b for a, b in zip(copy, other, strict=True)]
        line[name] = [median(ratios), *quantiles(ratios, n=4)[::2]]
        line[f"{name} GB/s"] = X.nbytes / median(other) / 1e9
    return line


def markdown(lines: list[dict[str, Any]], rounds: int) -> str:
    """The table."""
    names = ("pack", "unpack", "pack, lost", "pack, listed")
    met = {n: sum(line[n][0] >= BAR for line in lines) for n in names}
    aimed = {n: sum(line[n][0] >= AIM for line in lines) for n in names}
    text = [
        "# Rows in few bits, against a copy",
        "",
        f"`python benchmarks/bench_quantise.py --rounds {rounds}`, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {_native.instruction_set()}. Copy: GB/s of float32 "
        f"rows read. Others: the copy's time over theirs, median of {rounds} alternating rounds "
        f"(quartiles); bar {BAR}, aim {AIM}.",
        "",
        *(f"- {n}: {met[n]} of {len(lines)} at the bar, {aimed[n]} at the aim" for n in names),
        "",
        f"| rows | columns | bits | threads | copy GB/s | {' | '.join(names)} |",
        "|---|---:|---:|---:|---:|" + "---:|" * len(names),
    ]
    for line in lines:
        speeds = (f"{m:.2f} ({low:.2f} to {high:.2f})" for m, low, high in map(line.get, names))
        first = (line["size"], line["columns"], line["bits"], line["threads"])
        text.append(f"| {' | '.join(map(str, first))} | {line['copy GB/s']:.1f} | ")
        text[-1] += f"{' | '.join(speeds)} |"
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", default="1,2", metavar="N,…")
    parser.add_argument("--sizes", nargs="+", default=[*SIZES], choices=[*SIZES])
    parser.add_argument("--columns", nargs="+", type=int, default=[*COLUMNS])
    parser.add_argument("--bits", nargs="+", type=int, default=[*BITS], choices=BITS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    options = parser.parse_args()
    lines = []
    threads = [int(word) for word in options.threads.split(",")]
    for where in product(options.sizes, options.columns, options.bits, threads):
        lines.append(case(*where, options.rounds))
        print(json.dumps(lines[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(lines, options.rounds))


if __name__ == "__main__":
    main()
