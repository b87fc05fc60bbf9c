"""Statistics and tables of the GPU suite; nothing here needs a GPU."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spgnn.files import write_file

BAR, AIM = 1.3, 2.0  # geometric mean of the speed over cuSPARSE CSR
BASELINES = ("cuSPARSE int32", "cuSPARSE int64")

# Steps that compare operations, one line each, and their titles.
OPERATIONS = {
    "rows": "Gather, scatter-add, dropout, against torch",
    "nonzeros": "SDDMM, softmax, heads, against cuSPARSE and torch; attention and its derivatives",
    "attention": "Fused attention against torch, edge by edge; a hub against an even spread",
    "distributed": "A distributed matrix over one rank, against the kernels alone",
}

Report = dict[str, Any]
Section = Callable[[Any, Report], str]  # of a part of the report and all of it


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some times, in seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        """Of at least two times."""
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        around = max(self.high - self.median, self.median - self.low) / self.median
        return f"{self.median * 1e3:.3f} ms ±{around:.0%}"


def speedups(times: dict[str, Spread]) -> dict[str, float]:
    """How much faster each of ours is than the faster baseline."""
    baseline = min(times[name].median for name in BASELINES)
    return {n: baseline / t.median for n, t in times.items() if n not in BASELINES}


def summarise(cases: list[Report]) -> Report:
    """Geometric mean and worst case of the speed over cuSPARSE, for each of our variants."""
    kinds = cases[0]["speedup"] if cases else {}
    return {
        kind: {
            "geometric_mean": statistics.geometric_mean([c["speedup"][kind] for c in cases]),
            "worst": min(c["speedup"][kind] for c in cases),
        }
        for kind in kinds
    }


def failures(report: Report) -> list[str]:
    """What went wrong, one line each; empty if nothing did."""
    found = [
        f"{step} exited with status {report[step]['status']}"
        for step in ("tests", "placement", "training")
        if report.get(step) and report[step]["status"] != 0
    ]
    found += [f"{step} broke: {why}" for step, why in report.get("broken", {}).items()]
    found += [
        f"{case['graph']}, f = {case['columns']}: wrong result"
        for case in report.get("cases", [])
        if not case["correct"]
    ]
    found += [
        f"{line['operation']}, {_shape(line)}: wrong result"
        for step in OPERATIONS
        for line in report.get(step, [])
        if not line["correct"]
    ]
    return found + [f"not run: {step}" for step in report.get("left_out", [])]


def write(report: Report, folder: Path) -> None:
    """Both files, each complete or not there at all."""
    for name, text in (
        ("gpu_suite.json", json.dumps(report, indent=1)),
        ("gpu_suite.md", markdown(report)),
    ):
        write_file(folder / name, [f"{text}\n".encode()])


def markdown(report: Report) -> str:
    """The whole report for people."""
    versions = ", ".join(f"{name} {v}" for name, v in report["versions"].items())
    parts = [
        f"# GPU suite: {report['device']['name']}",
        f"`{report['command']}`\n\nCommit {report['commit']}; {versions}; "
        f"{report['device']['multiprocessors']} multiprocessors, "
        f"{report['device']['memory_bytes'] / 2**30:.0f} GiB. {report['date']}.",
    ]
    wrong = failures(report)
    parts.append("**All checks passed.**" if not wrong else "**Failed:** " + "; ".join(wrong))
    for step, section in (
        ("tests", _command_section("Tests")),
        ("placement", _command_section("Placement and the operator clock, with pretended GPUs")),
        ("bandwidth", _bandwidth_section),
        ("cases", _case_section),
        ("tiles", _tile_section),
        ("heavy_row", _heavy_section),
        *((step, _operation_section(title)) for step, title in OPERATIONS.items()),
        ("host_microseconds", _host_section),
        ("training", _training_section),
    ):
        if report.get(step):
            parts.append(section(report[step], report))
    return "\n\n".join(parts)


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are right-aligned."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, rule, *lines))


def _command_section(title: str) -> Section:
    def section(run: Report, _: Report) -> str:
        status, seconds = run["status"], run["seconds"]
        return f"## {title}\n\nStatus {status} in {seconds:.0f} s: {run['output'][-1]}"

    return section


def _bandwidth_section(found: Report, _: Report) -> str:
    speeds = ", ".join(f"{name} {speed / 1e9:.0f} GB/s" for name, speed in found.items())
    return f"## Memory\n\nMeasured bandwidth, bytes read plus written: {speeds}."


def _case_section(cases: list[Report], report: Report) -> str:
    kinds = list(cases[0]["speedup"])
    peak = max(report["bandwidth"].values()) if report.get("bandwidth") else None
    lines = []
    for case in cases:
        times = {name: Spread(**t) for name, t in case["seconds"].items()}
        plain = times["0/1"].median
        share = "–" if peak is None else f"{case['compulsory_bytes'] / plain / peak:.0%}"
        lines.append(
            (
                case["graph"],
                case["columns"],
                min((times[name] for name in BASELINES), key=lambda t: t.median),
                times["0/1"],
                *(f"{case['speedup'][kind]:.2f}×" for kind in kinds),
                f"{case['gathered_bytes'] / plain / 1e9:.0f}",
                share,
            )
        )
    head = ("graph", "f", "cuSPARSE", "0/1", *(f"{kind}" for kind in kinds))
    summary = [
        (kind, f"{s['geometric_mean']:.2f}×", f"{s['worst']:.2f}×", _verdict(s["geometric_mean"]))
        for kind, s in summarise(cases).items()
    ]
    return (
        "## SpMM against cuSPARSE\n\n"
        "cuSPARSE through `torch.sparse.mm`, the faster of int32 and int64 CSR, values 1, float32. "
        "Times are medians from cold caches, ± the farther quartile. Ratios are cuSPARSE's time "
        "over ours: without values, with values, scaled rows and columns (the normalised "
        "adjacency), added to Y, X in bfloat16. Gathered: rows of X for every nonzero, without "
        "values. Share: compulsory bytes (A, X and Y once) over the measured bandwidth.\n\n"
        + table((*head, "gathered GB/s", "share"), lines)
        + "\n\n"
        + table(("variant", "geometric mean", "worst", f"bar {BAR}×, aim {AIM}×"), summary)
    )


def _verdict(ratio: float) -> str:
    return "aim met" if ratio >= AIM else "bar met" if ratio >= BAR else "bar missed"


def _tile_section(sweeps: list[Report], _: Report) -> str:
    sizes = list(sweeps[0]["seconds"])
    lines = [
        (s["graph"], s["columns"], *(f"{s['seconds'][n] * 1e3:.3f}" for n in sizes), s["rule"])
        for s in sweeps
    ]
    return "## Items of a tile\n\nMedian ms.\n\n" + table(
        ("graph", "f", *sizes, "rule takes"), lines
    )


def _heavy_section(found: Report, _: Report) -> str:
    times = {name: Spread(**t) for name, t in found.items()}
    ratio = times["heavy"].median / times["even"].median
    return (
        "## One row with half of all nonzeros\n\n"
        f"{times['heavy']}, against {times['even']} for as many spread evenly: {ratio:.2f}×."
    )


def _operation_section(title: str) -> Section:
    def section(lines: list[Report], _: Report) -> str:
        head = ("operation", "heads × f", "baseline", "spgnn", "speed", "result")
        return f"## {title}\n\n" + table(head, [_operation_line(line) for line in lines])

    return section


def _operation_line(line: Report) -> Sequence[object]:
    compared = "baseline" in line
    return (
        line["operation"],
        _shape(line),
        Spread(**line["baseline"]) if compared else "–",
        Spread(**line["spgnn"]),
        f"{line['speedup']:.2f}×" if compared else "–",
        "right" if line["correct"] else "WRONG",
    )


def _shape(line: Report) -> str:
    return f"{line['heads']} × {line['columns']}"


def _host_section(spent: Report, _: Report) -> str:
    each = ", ".join(f"{name} {us:.0f} µs" for name, us in spent.items())
    return f"## Starting a product\n\nTime of the host per small product: {each}."


def _training_section(found: Report, _: Report) -> str:
    lines = [
        (
            where,
            f"{run['losses'][0]:.4f} → {run['losses'][-1]:.4f}",
            f"{run['epoch_seconds']['median'] * 1e3:.2f}",
            ", ".join(f"{n} {s * 1e3:.2f}" for n, s in run["breakdown_seconds"].items() if s),
        )
        for where, run in found["runs"].items()
        if "losses" in run
    ]
    return (
        f"## Training\n\nStatus {found['status']}. Times in ms; the median is of the epochs "
        "without the operator clock, the parts are of those with it.\n\n"
        + table(("where", "loss", "epoch", "parts of a clocked epoch"), lines)
    )
