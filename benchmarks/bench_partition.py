"""gvb against METIS and others: what the busiest rank waits for, time, and each bar.

    SPGNN_DATA=DIR python benchmarks/bench_partition.py [--graphs NAME,…|DIR] [--held-out]
        [--parts 16,64,512] [--methods METHOD,…] [--seed 1] [--timeout 300] [--cache DIR]
        [--output FILE.md]

Graphs are those that gvb's constants were chosen on, or with --held-out generated ones of many
kinds and two real ones, or all .npz files of a directory. They are symmetrised and get self-loops;
weights are nonzeros per row, imbalance 3 %. A method is a partitioner and, after hyphens, gvb's
objective (send, cover), its preset (fast, strong) and nodes: for machines of nodes of four ranks.

"busiest" is the maximum over ranks of the larger of rows sent and rows received. Rows that leave a
node of four ranks count once for each rank that receives them; METIS's parts stay in its order.
Each partition is made in a process of its own, methods alternating per graph; times are seconds of
the method alone, by the clock and of all CPUs. gvb uses all cores, METIS one. A method past the
timeout is left out. With --cache, labels of other tools are kept until the directory goes, ours and
all counts until the code changes: times to be compared need a new directory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from partition_graphs import HELD_OUT, TUNED, load

from spgnn import _native
from spgnn.partition import methods as partitioners
from spgnn.partition import partition
from spgnn.partition.adjacency import Adjacency
from spgnn.partition.volume import CoverVolume, count_volumes, excess_of_maximum, part_weights

METHODS = "metis,gvb,gvb-send,gvb-cover,gvb-fast,gvb-nodes"
IMBALANCE, RANKS_A_NODE = 0.03, 4
LEAST_VERTICES = 16  # a part; larger numbers of parts are left out
Row = dict[str, Any]
Task = tuple[str, int, str]  # graph, parts, method


def measure(task: Task, seed: int, labels_file: Path) -> Row:
    """One partition, or its labels of an earlier run: volumes, balance and seconds."""
    name, parts, method = task
    base, options = options_of(method, parts)
    adjacency = Adjacency.of(load(name))
    if not labels_file.exists():
        function = partitioners.METHODS[base]
        clock = {"seconds": 0.0}

        def timed(problem: partitioners.Problem) -> Any:
            started = time.process_time()
            labels = function(problem)
            clock["seconds"] += time.process_time() - started
            return labels

        if "nodes" not in options:
            partitioners.METHODS[base] = timed
        started = time.process_time()
        labels, report = partition(
            adjacency, parts, base, imbalance=IMBALANCE, seed=seed, minimum=False, **options
        )
        if "nodes" in options:
            clock["seconds"] = time.process_time() - started
        np.savez(labels_file, labels=labels, wall=report["seconds"], **clock)
    with np.load(labels_file) as file:
        labels, wall, seconds = (file[key] for key in ("labels", "wall", "seconds"))
    row: Row = {"graph": Path(name).stem, "parts": parts, "method": method}
    row |= {"wall": float(wall), "seconds": float(seconds)}
    weights = adjacency.row_lengths
    loads = part_weights(weights, labels, parts)
    least = max(IMBALANCE, weights.max() * parts / weights.sum() - 1)
    row["imbalance"] = excess_of_maximum(loads)
    row["unbalanced"] = bool(row["imbalance"] > least + 1e-9)
    with_covers = base == "metis" or "cover" in method
    volumes = count_volumes(adjacency, labels, parts, minimum=with_covers)
    row |= figures(volumes.column)
    if volumes.minimum is not None:
        row |= {f"cover_{key}": value for key, value in figures(volumes.minimum).items()}
    return row


def options_of(method: str, parts: int) -> tuple[str, dict[str, Any]]:
    """The partitioner and its options."""
    if method in partitioners.METHODS:
        return method, {}
    base, *words = method.split("-")
    options: dict[str, Any] = {}
    objective = "both"
    for word in words:
        if word in partitioners.PRESETS:
            options["preset"] = word
        elif word == "nodes":
            options["nodes"] = parts // RANKS_A_NODE
        else:
            objective = word
    if objective != "both":
        options["objective"] = objective
    return base, options


def figures(volume: CoverVolume) -> Row:
    """Rows that a cover moves: all, the most of a rank, and what leaves nodes."""
    result = {
        "total": volume.total,
        "send": int(volume.send.max()),
        "receive": int(volume.receive.max()),
    }
    result["busiest"] = max(result["send"], result["receive"])
    if volume.blocks is not None:
        node = np.arange(len(volume.send)) // RANKS_A_NODE
        leaving = np.where(node != node[:, None], volume.blocks, 0)
        ranks = leaving.sum(axis=1), leaving.sum(axis=0)
        nodes = (np.bincount(node, weights=each).max() for each in ranks)
        result |= {
            "rank_leaving": int(max(each.max() for each in ranks)),
            "node_leaving": int(max(nodes)),
        }
    return result


def collect(tasks: Iterable[Task], options: argparse.Namespace) -> Iterator[Row]:
    """All rows, each from a child process; what the cache holds is not repeated."""
    code = hashlib.sha256()
    for file in (__file__, _native.__file__, *sorted(Path(partitioners.__file__).parent.iterdir())):
        if Path(file).suffix in (".py", ".so"):
            code.update(Path(file).read_bytes())
    version = code.hexdigest()[:12]
    for name, parts, method in tasks:
        stem = f"{Path(name).stem}.{parts}.{method}.{options.seed}"
        ours = method.split("-")[0] in ("gvb", "stream")
        labels = options.cache / (f"{stem}.{version}.npz" if ours else f"{stem}.npz")
        row = options.cache / f"{stem}.{version}.json"
        if not row.exists():
            arguments = [name, str(parts), method, str(options.seed), str(labels), str(row)]
            command = [sys.executable, __file__, "--one", *arguments]
            try:
                subprocess.run(command, timeout=options.timeout, check=True)
            except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                print(f"{name} k={parts} {method}: left out ({error})", file=sys.stderr)
                continue
        yield json.loads(row.read_text())


@dataclass(frozen=True)
class Bar:
    """METIS's figure over ours for some numbers of parts: at least `bar`, none below `worst`.

    Of seconds, ours over METIS's: at most `bar`, none above `worst`.
    """

    what: str
    parts: tuple[int, ...]
    method: str
    metis: str
    ours: str
    bar: float
    worst: float | None
    aim: float | None

    def ratios(self, rows: dict[Task, Row]) -> dict[str, float]:
        """By graph and number of parts."""
        ratios = {}
        for (graph, parts, method), row in rows.items():
            metis = rows.get((graph, parts, "metis"), {})
            if (method, parts) not in ((self.method, k) for k in self.parts):
                continue
            if self.metis in metis and self.ours in row:
                ratio = max(metis[self.metis], 1e-9) / max(row[self.ours], 1e-9)
                ratios[f"{graph}, {parts}"] = 1 / ratio if self.seconds else ratio
        return ratios

    @property
    def seconds(self) -> bool:
        """Whether less is better."""
        return self.ours in ("wall", "seconds")

    def line(self, rows: dict[Task, Row]) -> str:
        """One line of the table of bars."""
        ratios, sign = self.ratios(rows), "≤" if self.seconds else "≥"
        limit = f"{sign} {self.bar:g}"
        if self.worst is not None:
            limit += f", none {'above' if self.seconds else 'below'} {self.worst:g}"
        start = f"| {self.what} | {limit} | {'' if self.aim is None else f'{self.aim:g}'} |"
        if not ratios:
            return f"{start} | | |"
        mean = geometric_mean(ratios.values())
        place = (max if self.seconds else min)(ratios, key=lambda key: ratios[key])
        sides = [(mean, self.bar)] + [(ratios[place], self.worst)] * (self.worst is not None)
        met = all(value <= end if self.seconds else value >= end for value, end in sides)
        shown = f"{ratios[place]:.2f} ({place})"
        return f"{start} {mean:.2f} | {shown} | {'yes' if met else '**no**'} |"


BARS = (
    Bar("busiest rank, k = 64", (64,), "gvb", "busiest", "busiest", 1.35, 0.95, 1.5),
    Bar("busiest rank, k = 512", (512,), "gvb", "busiest", "busiest", 1.5, None, 1.8),
    Bar(
        "training's minimum covers, over METIS with columns, k = 64",
        *((64,), "gvb-cover", "busiest", "cover_busiest", 2.8, 1.6, 3.5),
    ),
    Bar(
        "the same over METIS with minimum covers, k = 64",
        *((64,), "gvb-cover", "cover_busiest", "cover_busiest", 1.45, None, 1.7),
    ),
    Bar("columns and relays, k = 64", (64,), "gvb", "busiest", "relayed", 1.9, 1.4, 2.2),
    Bar("columns and relays, k = 512", (512,), "gvb", "busiest", "relayed", 2.6, None, 3.2),
    Bar(
        "minimum covers and relays, over METIS with columns, k = 4,096",
        *((4096,), "gvb-cover", "busiest", "cover_relayed", 3.6, None, 7),
    ),
    Bar(
        "rows that leave a node, busiest rank, k = 64, nodes",
        *((64,), "gvb-nodes", "rank_leaving", "rank_leaving", 1.35, None, 1.6),
    ),
    Bar(
        "rows that leave a node, busiest node, k = 64, nodes",
        *((64,), "gvb-nodes", "node_leaving", "node_leaving", 1.2, 0.95, 1.4),
    ),
    Bar("total, k = 64", (64,), "gvb", "total", "total", 1.08, None, 1.12),
    Bar("max send, objective send", (16, 64), "gvb-send", "send", "send", 1 / 0.62, None, None),
    Bar("wall s over METIS's, columns", (16, 64), "gvb", "wall", "wall", 4.5, 8, 3),
    Bar("wall s over METIS's, covers", (16, 64), "gvb-cover", "wall", "wall", 8, 15, 5),
    Bar("wall s over METIS's, fast", (16, 64), "gvb-fast", "wall", "wall", 1.2, None, 0.8),
)
# METIS's figure over a method's, in the table of means, and single figures of each graph.
MEANS = (
    *("busiest", "cover_busiest", "relayed", "cover_relayed", "send", "total"),
    *("rank_leaving", "node_leaving"),
)
FIGURES = (
    *(("metis", "busiest"), ("gvb", "busiest"), ("gvb", "relayed"), ("metis", "cover_busiest")),
    *(("gvb-cover", "cover_busiest"), ("gvb-cover", "cover_relayed")),
    *(("metis", "send"), ("gvb-send", "send"), ("metis", "rank_leaving")),
    *(("gvb-nodes", "rank_leaving"), ("metis", "node_leaving"), ("gvb-nodes", "node_leaving")),
    *(("metis", "total"), ("gvb", "total"), ("metis", "wall"), ("gvb", "wall")),
    *(("gvb-cover", "wall"), ("gvb-fast", "wall")),
)


def geometric_mean(values: Iterable[float]) -> float:
    """Of numbers above 0."""
    return float(np.exp(np.mean(np.log(list(values)))))


def markdown(measured: list[Row], arguments: list[str]) -> str:
    """The bars, means of each method, and figures of each graph."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rows = {(row["graph"], row["parts"], row["method"]): row for row in measured}
    graphs, numbers, methods = (
        list(dict.fromkeys(key[place] for key in rows)) for place in range(3)
    )
    unbalanced = [key for key, row in rows.items() if row["unbalanced"] and "gvb" in key[2]]
    lines = [
        f"`python benchmarks/bench_partition.py {' '.join(arguments)}`, commit {commit}, "
        f"{date.today()}, {platform.machine()}, Python {platform.python_version()}, numpy "
        f"{version('numpy')}, pymetis {version('pymetis')}; {os.cpu_count()} threads, METIS one.",
        f"Graphs: {', '.join(graphs)}. gvb's partitions above the asked imbalance where no single "
        f"row is: {len(unbalanced)}{': ' if unbalanced else ''}"
        f"{'; '.join(f'{g}, {k}, {m}' for g, k, m in unbalanced)}.",
        "",
        "| METIS's figure over gvb's | bar | aim | geometric mean | worst | met |",
        "|---|---|---:|---:|---|---|",
        *(bar.line(rows) for bar in BARS),
        "",
        f"| k | METIS over | {' | '.join(name.replace('_', ' ') for name in MEANS)} | its wall s "
        "over METIS's | its CPU s |",
        f"|---:|---|{'---:|' * (len(MEANS) + 2)}",
    ]
    for parts in numbers:
        for method in methods:
            if method == "metis":
                continue
            cells = []
            for key in (*MEANS, "wall", "seconds"):
                base = key.removesuffix("relayed") + "busiest" if "relayed" in key else key
                bar = Bar("", (parts,), method, base, key, 0, None, None)
                ratios = bar.ratios(rows)
                cells.append(f"{geometric_mean(ratios.values()):.2f}" if ratios else "")
            if any(cells):
                lines.append(f"| {parts} | {method} | {' | '.join(cells)} |")
    for parts in numbers:
        here = [
            (method, key)
            for method, key in FIGURES
            if any(key in rows.get((graph, parts, method), {}) for graph in graphs)
        ]
        names = " | ".join(f"{method}: {key.replace('_', ' ')}" for method, key in here)
        lines += ["", f"| k = {parts} | {names} |", f"|---|{'---:|' * len(here)}"]
        for graph in graphs:
            values = [rows.get((graph, parts, method), {}).get(key, "") for method, key in here]
            if any(values):
                cells = [f"{v:.2f}" if isinstance(v, float) else f"{v}" for v in values]
                lines.append(f"| {graph} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tasks_of(options: argparse.Namespace) -> Iterator[Task]:
    """Graph by graph; without parts of few vertices."""
    graphs = (options.graphs or (HELD_OUT if options.held_out else TUNED)).split(",")
    if Path(graphs[0]).is_dir():
        graphs = sorted(map(str, Path(graphs[0]).glob("*.npz")))
    for name in graphs:
        vertices = load(name).shape[0]
        for parts in map(int, options.parts.split(",")):
            if vertices >= LEAST_VERTICES * parts:
                for method in options.methods.split(","):
                    yield name, parts, method


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        name, k, method, seed, labels, path = sys.argv[2:]
        row = measure((name, int(k), method), int(seed), Path(labels))
        Path(path).write_text(json.dumps(row))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", metavar="NAME,…|DIR")
    parser.add_argument("--held-out", action="store_true", help="graphs no constant was chosen on")
    parser.add_argument("--parts", default="16,64,512", metavar="K,…")
    parser.add_argument("--methods", default=METHODS, metavar="METHOD,…")
    parser.add_argument("--seed", type=int, default=1, help="of every method")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--cache", type=Path, default=Path("build/bench_partition"))
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in collect(tasks_of(options), options):
        rows.append(row)
        print(
            f"{row['graph']} k={row['parts']} {row['method']}: busiest {row['busiest']}, total "
            f"{row['total']}, {row['wall']:.2f} s",
            file=sys.stderr,
            flush=True,
        )
    text = markdown(rows, sys.argv[1:])
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
