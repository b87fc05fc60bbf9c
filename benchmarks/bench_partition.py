"""gvb against METIS and others: what the busiest rank waits for, time, and each bar.

    SPGNN_DATA=DIR python benchmarks/bench_partition.py [--graphs NAME,…|DIR] [--held-out]
        [--parts 16,64,512] [--methods METHOD,…] [--seed 1] [--timeout 300] [--cache DIR]
        [--cached] [--output FILE.md]

Graphs are those that gvb's constants were chosen on, or with --held-out generated ones of many
kinds and two real ones, or all .npz files of a directory. They are symmetrised and get self-loops;
weights are nonzeros per row, imbalance 3 %. A method is a partitioner and, after hyphens, gvb's
objective (send, cover), its preset (fast, strong) and nodes: for machines of nodes of four ranks;
graph-vb is the method of Acer et al. (`experiments/systems/graph_vb.py`).

"busiest" is the maximum over ranks of the larger of rows sent and rows received. Rows that leave a
node of four ranks count once for each rank that receives them; METIS's parts stay in its order.
Each graph has a process of its own, methods alternate; times are seconds of the method alone, by
the clock and of all CPUs. gvb uses all cores, METIS one. A method that fails, or with which a graph
is past the timeout, is left out. With --cache, labels of other tools are kept until the directory
goes, ours and all counts until the code changes: times to be compared need a new directory.
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
import scipy.sparse as sp
from partition_graphs import HELD_OUT, TUNED, load

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

import systems  # noqa: F401

from spgnn import RowLayout
from spgnn.data.structure import slice_rows
from spgnn.exchange import Algorithm
from spgnn.layout import Int32Array
from spgnn.partition import methods as partitioners
from spgnn.partition import partition
from spgnn.partition.problem import PRESETS, Adjacency, Problem
from spgnn.partition.volume import CoverVolume, count_volumes, excess_of_maximum, part_weights
from spgnn.registry import Cover
from spgnn.sparse import CSR

METHODS = "metis,gvb,gvb-send,gvb-cover,gvb-fast,gvb-nodes"
OURS = ("gvb", "stream")
IMBALANCE, RANKS_A_NODE = 0.03, 4
# Of what relays are counted, where there are some parts.
RELAYED: dict[str, Cover] = {"gvb": "column", "gvb-cover": "minimum"}
RELAYS_FROM = 64
LEAST_VERTICES = 16  # a part; larger numbers of parts are left out
Row = dict[str, Any]
Task = tuple[str, int, str]  # graph, parts, method


def measure(A: sp.csr_array, task: Task, seed: int, labels_file: Path) -> Row:
    """One partition, or its labels of an earlier run: volumes, balance and seconds."""
    name, parts, method = task
    base, options = options_of(method, parts)
    adjacency = Adjacency.of(A)
    if not labels_file.exists():
        function, values = partitioners.METHODS[base], partitioners.METHODS._values
        result: dict[str, Any] = {}

        def timed(problem: Problem) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            result["labels"] = function(problem)
            result["seconds"] = time.process_time() - cpu
            result["wall"] = time.perf_counter() - wall
            return result["labels"]

        values[base] = timed
        try:
            labels, report = partition(
                adjacency, parts, base, imbalance=IMBALANCE, seed=seed, minimum=False, **options
            )
        finally:
            values[base] = function
        if base in OURS:  # other tools' parts keep the numbers that they come with
            result |= {"labels": labels, "wall": report["seconds"]}
        np.savez(labels_file, **result)
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
    if parts >= RELAYS_FROM and method in RELAYED:
        row |= relayed(A, labels, parts, RELAYED[method])
    return row


def options_of(method: str, parts: int) -> tuple[str, dict[str, Any]]:
    """The partitioner and its options."""
    if method in partitioners.METHODS:
        return method, {}
    base, *words = method.split("-")
    options: dict[str, Any] = {}
    objective = "both"
    for word in words:
        if word in PRESETS:
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


def relayed(A: sp.csr_array, labels: Int32Array, parts: int, cover: Cover) -> Row:
    """Rows of the busiest rank where relays take part, on the plans of all ranks.

    In all hops together, and as the sum of each hop's busiest rank: that of hops in turn.
    """
    order = np.argsort(labels, kind="stable")
    layout = RowLayout(np.searchsorted(labels[order], np.arange(parts + 1)))
    rows = CSR.from_scipy(A[order][:, order])
    blocks = [slice_rows(rows, slice(*layout.range(rank))) for rank in range(parts)]
    started = time.process_time()
    plans = Algorithm(cover=cover, relays=True).plans(blocks, layout)
    seconds = time.process_time() - started
    moved = np.array([[(h.volume.send, h.volume.receive) for h in p.hops] for p in plans])
    of_cover = "" if cover == "column" else "cover_"
    return {
        f"{of_cover}relayed": int(moved.sum(axis=1).max()),
        f"{of_cover}relayed_in_turn": int(moved.max(axis=(0, 2)).sum()),
        "relay_seconds": seconds,
    }


def collect(name: str, tasks: list[Task], options: argparse.Namespace) -> Iterator[Row]:
    """The rows of a graph, from a child process; what the cache holds is not repeated."""
    code = hashlib.sha256()
    for file in (Path(__file__), *sorted(Path(partitioners.__file__).parent.rglob("*"))):
        if file.suffix in (".py", ".hpp", ".cpp"):
            code.update(file.read_bytes())
    files = {}
    for task in tasks:
        stem = ".".join(map(str, (Path(name).stem, *task[1:], options.seed)))
        ours = stem + f".{code.hexdigest()[:12]}"
        labels = ours if task[2].split("-")[0] in OURS else stem
        files[task] = options.cache / f"{labels}.npz", options.cache / f"{ours}.json"
    missing = [task for task in tasks if not (options.cached or files[task][1].exists())]
    while missing:
        arguments = [(task, *map(str, files[task])) for task in missing]
        command = [sys.executable, __file__, "--one", json.dumps((name, options.seed, arguments))]
        try:
            subprocess.run(command, timeout=options.timeout * len(missing), check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            first = next(task for task in missing if not files[task][1].exists())
            print(f"{first}: left out ({type(error).__name__})", file=sys.stderr)
            missing = missing[missing.index(first) + 1 :]
        else:
            break
    for _, row in files.values():
        if row.exists():
            yield json.loads(row.read_text())


def measure_all(name: str, seed: int, tasks: list[tuple[list[Any], str, str]]) -> None:
    """Measure, in a process of its own, and write each row as soon as it is there."""
    A = load(name)
    for (_, parts, method), labels, file in tasks:
        row = measure(A, (name, parts, method), seed, Path(labels))
        Path(file).write_text(json.dumps(row))


@dataclass(frozen=True)
class Bar:
    """METIS's figure over ours for some numbers of parts: at least `bar`, none below `worst`.

    Of seconds, ours over METIS's: at most `bar`, none above `worst`. A figure may have no bar.
    """

    what: str
    parts: tuple[int, ...]
    method: str
    metis: str
    ours: str
    bar: float | None = None
    worst: float | None = None
    aim: float | None = None

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
        limit = "" if self.bar is None else f"{sign} {self.bar:.3g}"
        if self.worst is not None:
            limit += f", none {'above' if self.seconds else 'below'} {self.worst:g}"
        start = f"| {self.what} | {limit} | {'' if self.aim is None else f'{self.aim:g}'} |"
        if not ratios:
            return f"{start} | | |"
        mean = geometric_mean(ratios.values())
        place = (max if self.seconds else min)(ratios, key=lambda key: ratios[key])
        pairs = [(mean, self.bar), (ratios[place], self.worst)]
        met = all(
            end is None or (value <= end if self.seconds else value >= end) for value, end in pairs
        )
        verdict = "" if self.bar is None else "yes" if met else "**no**"
        return f"{start} {mean:.2f} | {ratios[place]:.2f} ({place}) | {verdict} |"


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
    *(
        Bar(
            f"minimum covers and relays, over METIS with {cover}, k = {parts}",
            *((parts,), "gvb-cover", metis, "cover_relayed"),
        )
        for parts in (64, 512)
        for cover, metis in (("columns", "busiest"), ("minimum covers", "cover_busiest"))
    ),
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
    Bar("max send, objective send", (16, 64), "gvb-send", "send", "send", 1 / 0.62),
    Bar("wall s over METIS's, columns", (16, 64), "gvb", "wall", "wall", 4.5, 8, 3),
    Bar("wall s over METIS's, covers", (16, 64), "gvb-cover", "wall", "wall", 8, 15, 5),
    Bar("wall s over METIS's, fast", (16, 64), "gvb-fast", "wall", "wall", 1.2, None, 0.8),
)
# METIS's figure over a method's, in the table of means, and single figures of each graph.
MEANS = (
    *("busiest", "cover_busiest", "relayed", "relayed_in_turn", "cover_relayed"),
    *("cover_relayed_in_turn", "send", "total"),
    *("rank_leaving", "node_leaving"),
)
FIGURES = (
    *(("metis", "busiest"), ("gvb", "busiest"), ("gvb", "relayed"), ("metis", "cover_busiest")),
    *(("gvb-cover", "cover_busiest"), ("gvb-cover", "cover_relayed")),
    *(("metis", "send"), ("gvb-send", "send"), ("metis", "rank_leaving")),
    *(("gvb-nodes", "rank_leaving"), ("metis", "node_leaving"), ("gvb-nodes", "node_leaving")),
    *(("metis", "total"), ("gvb", "total"), ("metis", "wall"), ("gvb", "wall")),
    *(("gvb-cover", "wall"), ("gvb-fast", "wall")),
    *(
        (method, key)
        for key in ("send", "busiest", "total", "seconds")
        for method in ("gvb-send", "graph-vb")
        if (method, key) != ("gvb-send", "send")
    ),
)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
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
                base = f"{key.partition('relayed')[0]}busiest" if "relayed" in key else key
                bar = Bar("", (parts,), method, base, key)
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


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        measure_all(*json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--graphs", metavar="NAME,…|DIR")
    parser.add_argument("--held-out", action="store_true", help="graphs no constant was chosen on")
    parser.add_argument("--parts", default="16,64,512", metavar="K,…")
    parser.add_argument("--methods", default=METHODS, metavar="METHOD,…")
    parser.add_argument("--seed", type=int, default=1, help="of every method")
    parser.add_argument("--timeout", type=float, default=300, help="seconds of a row, on average")
    parser.add_argument("--cache", type=Path, default=Path("build/bench_partition"))
    parser.add_argument("--cached", action="store_true", help="tables of what the cache has")
    parser.add_argument("--output", type=Path, metavar="FILE.md")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    graphs = (options.graphs or (HELD_OUT if options.held_out else TUNED)).split(",")
    if Path(graphs[0]).is_dir():
        graphs = sorted(map(str, Path(graphs[0]).glob("*.npz")))
    rows: list[Row] = []
    for name in graphs:
        most = load(name).shape[0] // LEAST_VERTICES
        parts = [k for k in map(int, options.parts.split(",")) if k <= most]
        methods = options.methods.split(",")
        rows += collect(name, [(name, k, method) for k in parts for method in methods], options)
        print(f"{name}: {len(rows)} rows", file=sys.stderr, flush=True)
    text = markdown(rows, sys.argv[1:])
    if options.output:
        options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
