"""Edges in Parquet whose ids are strings, to a graph directory: seconds of each step, and memory.

    python benchmarks/bench_parquet.py --edges 100000000 --memory 8GB --folder /scratch

Writes the file (unless it is there), converts it in a process of its own, and prints one row.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1 << 20


def write(path: Path, edges: int, vertices: int) -> None:
    """Edges between skewed ends; ids are `page/HEX`, in an order that says nothing."""
    rng = np.random.default_rng(0)
    schema = pa.schema([("source", pa.string()), ("target", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for first in range(0, edges, ROWS):
            count = min(ROWS, edges - first)
            ends = (vertices * rng.random((2, count)) ** 2).astype(np.uint64)
            ids = (ends * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(16)
            names = [pa.array(np.char.add("page/", _hexadecimal(end))) for end in ids]
            file.write_table(pa.table(names, schema=schema))


def _hexadecimal(ids: np.ndarray) -> np.ndarray:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    shifts = np.arange(44, -4, -4, dtype=np.uint64)
    table = digits[(ids[:, None] >> shifts) & np.uint64(15)]
    return np.ascontiguousarray(table).view("S12").ravel().astype("U12")


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--vertices", type=int, help="default: a tenth of the edges")
    parser.add_argument("--memory", default="8GB")
    parser.add_argument("--folder", type=Path, default=Path("build"))
    options = parser.parse_args()
    vertices = options.vertices or options.edges // 10
    path = options.folder / f"edges-{options.edges}-{vertices}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write(path, options.edges, vertices)
    output = options.folder / f"graph-{options.edges}-{time.time_ns()}"
    command = [sys.executable, "-m", "spgnn", "shard", str(path), "--parts", "1"]
    started = time.perf_counter()
    subprocess.run(
        [*command, "--memory", options.memory, "--output", str(output)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print("edges        vertices   file GB  seconds  edges/s    peak GiB (mapped files too)")
    print(
        f"{options.edges:<12,} {vertices:<10,} {path.stat().st_size / 1e9:<8.2f} {seconds:<8.1f} "
        f"{options.edges / seconds:<10,.0f} {peak:.2f}"
    )


if __name__ == "__main__":
    main()
