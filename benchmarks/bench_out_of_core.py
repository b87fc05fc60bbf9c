"""Training from a disk against training in memory: seconds, bytes, and memory asked for and taken.

Makes a graph directory, trains on it in memory, then with less and less of it, a process each, and
prints a Markdown table. Data are the adjacency, A·X and what an epoch makes; a budget is a share of
them, beside what the process takes by itself:

    python benchmarks/bench_out_of_core.py DIRECTORY --vertices 1000000 --nonzeros 16000000

The disk's own speed, one long direct read of a file, stands above the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from spgnn.data.generators import generate_block_model
from spgnn.direct import DirectFile, Transfers

GCN = Path(__file__).parents[1] / "experiments" / "gcn.py"
SHARES = [1.5, 0.75, 0.5, 0.35, 0.25]
PIECE = 1 << 26


def run(arguments: list[str], report: Path) -> dict[str, Any]:
    """The report of a training run of its own."""
    command = [sys.executable, str(GCN), *arguments, "--json", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def seconds_of(report: dict[str, Any]) -> float:
    """Median seconds of an epoch, but for the first."""
    return median(record["seconds"] for record in report["history"][1:])


def disk_speed(file: Path) -> float:
    """Bytes a second of one long direct read."""
    opened, size = DirectFile(file, Transfers()), file.stat().st_size
    begin = time.perf_counter()
    for offset in range(0, size, PIECE):
        opened.read(offset, min(PIECE, size - offset))
    return size / (time.perf_counter() - begin)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", help="of the graph and of what does not fit")
    parser.add_argument("--vertices", type=int, default=1_000_000)
    parser.add_argument("--nonzeros", type=int, default=16_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--hidden", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--models", nargs="+", default=["gcn", "sage"])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--labels", type=float, nargs="+", default=[0.5, 0.014])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recompute", default="auto", choices=("auto", "never", "always"))
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    options = parser.parse_args()
    home = Path(options.directory)
    home.mkdir(parents=True, exist_ok=True)
    graph = home / f"graph-{options.vertices}-{options.nonzeros}"
    if not graph.exists():
        generate_block_model(graph, options.vertices, options.nonzeros)
    speed = disk_speed(graph / "part-00000" / "indices.npy")
    print(f"disk: {speed / 1e9:.2f} GB/s\n")
    titles = ["model", "hidden", "labelled", "share", "asked MiB", "peak/asked", "parts"]
    titles += ["on the disk", "made again", "panel", "read GB", "written GB", "foretold"]
    titles += ["amplification", "s", "in memory s", "ratio", "s of disk"]
    print("| " + " | ".join(titles) + " |")
    print("|---" * len(titles) + "|")
    for model in options.models:
        for hidden in options.hidden:
            for labels in options.labels:
                compare(options, graph, (model, hidden, labels), speed)


def compare(
    options: argparse.Namespace, graph: Path, case: tuple[str, int, float], speed: float
) -> None:
    """Rows of one model (its name, width, and the share of labels), a budget each."""
    model, hidden, labels = case
    home, report = Path(options.directory), Path(options.directory) / "report.json"
    flags = {
        "--dataset": graph,
        "--random-features": options.features,
        "--random-classes": 40,
        "--model": model,
        "--layers": options.layers,
        "--hidden": hidden,
        "--epochs": options.epochs,
        "--eval-every": options.epochs,
        "--threads": options.threads,
    }
    base = [str(word) for pair in flags.items() for word in pair]
    base += ["--set", f"data.random-labels={labels}"]
    memory = run(base, report)
    whole = memory["memory"]["max_rank_peak_above_idle_bytes"]
    idle = memory["memory"]["max_rank_peak_bytes"] - whole
    for share in options.shares:
        asked = int(idle + share * whole)
        limits = ["--memory", str(asked), "--spill", str(home / "spill")]
        found = run([*base, *limits, "--set", f"storage.recompute={options.recompute}"], report)
        check(memory, found)
        storage = found["storage"]
        moved = storage["read_bytes"] + storage["written_bytes"]
        foretold = storage["planned_read_bytes"] + storage["planned_written_bytes"]
        cells = [
            model,
            hidden,
            labels,
            share,
            f"{asked / 2**20:.0f}",
            f"{found['memory']['max_rank_peak_bytes'] / asked:.2f}",
            storage["chunks"],
            " ".join(storage["on_disk"]) or "nothing",
            " ".join(map(str, storage["recomputed_layers"])) or "nothing",
            storage["panel_bytes"] or "",
            f"{storage['read_bytes'] / 1e9:.2f}",
            f"{storage['written_bytes'] / 1e9:.2f}",
            "equal" if moved == foretold else f"{foretold - moved:+}",
            f"{storage['amplification'] or 1:.3f}",
            f"{seconds_of(found):.2f}",
            f"{seconds_of(memory):.2f}",
            f"{seconds_of(found) / seconds_of(memory):.2f}",
            f"{storage['transferred_bytes'] / speed:.2f}",
        ]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def check(expected: dict[str, Any], found: dict[str, Any]) -> None:
    """Stop if the losses differ by more than 1e-4."""
    for before, after in zip(expected["history"], found["history"], strict=True):
        if abs(before["loss"] - after["loss"]) > 1e-4 * abs(before["loss"]):
            sys.exit(f"epoch {before['epoch']}: loss {after['loss']}, not {before['loss']}")


if __name__ == "__main__":
    main()
