"""Statistics and tables of the GPU suite; nothing here needs a GPU."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spgnn.files import write_file

# Products of the table, and what the geometric mean of their speed over cached cuSPARSE should be.
KINDS = {"0/1": 1.5, "values": 1.0, "scaled": 1.0, "Y +=": 1.0, "bfloat16": 1.5}
# Descriptors, workspace and preprocessing kept; the faster of some algorithms counts.
CACHED, CACHED_BFLOAT16 = "cuSPARSE", "cuSPARSE-bfloat16"
DGL = "DGL"  # where it is installed
UNCACHED = "torch"  # cuSPARSE through torch.sparse.mm

# Steps that compare operations, one line each, and their titles.
OPERATIONS = {
    "rows": "Gather, scatter-add, dropout, against torch",
    "nonzeros": "SDDMM, softmax, heads, against cuSPARSE and torch; attention and its derivatives",
    "attention": "Fused attention against torch, edge by edge; a hub against an even spread",
    "distributed": "A distributed matrix over one rank, against the kernels alone",
}

# Steps in processes of their own.
COMMANDS = {
    "tests": "Tests",
    "placement": "Placement and the operator clock, with pretended GPUs",
    "training": "Training",
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


def baseline(times: dict[str, Spread], library: str) -> Spread | None:
    """The fastest algorithm of a library; ``None`` if it has none."""
    found = [t for name, t in times.items() if name.split()[0] == library]
    return min(found, key=lambda t: t.median, default=None)


def speedups(times: dict[str, Spread]) -> dict[str, float]:
    """Ratios of medians: ours over cached cuSPARSE in float32, and over what else there is."""
    cached, narrow, uncached = (
        baseline(times, library) for library in (CACHED, CACHED_BFLOAT16, UNCACHED)
    )
    assert uncached is not None
    found = {kind: (cached or uncached).median / times[kind].median for kind in KINDS}
    if narrow is not None:
        found["bfloat16, both"] = narrow.median / times["bfloat16"].median
    if DGL in times:
        found["0/1, DGL"] = times[DGL].median / times["0/1"].median
    return found | {"0/1, torch": uncached.median / times["0/1"].median}


def summarise(cases: list[Report]) -> Report:
    """Geometric mean and worst case of each ratio, and in how many cases it was measured."""
    kinds = dict.fromkeys(kind for case in cases for kind in case["speedup"])
    summary = {}
    for kind in kinds:
        found = [case["speedup"][kind] for case in cases if kind in case["speedup"]]
        summary[kind] = {
            "geometric_mean": statistics.geometric_mean(found),
            "worst": min(found),
            "cases": len(found),
        }
    return summary


def failures(report: Report) -> list[str]:
    """What went wrong, one line each; empty if nothing did."""
    found = [
        f"{step} exited with status {report[step]['status']}"
        for step in COMMANDS
        if report.get(step) and report[step]["status"] != 0
    ]
    if report["trouble"]:
        found.append(f"the CUDA kernels cannot run, so torch's were measured: {report['trouble']}")
    found += [f"{step} broke: {why}" for step, why in report.get("broken", {}).items()]
    found += [
        f"{case['graph']}, f = {case['columns']}: wrong result"
        for case in report.get("cases", [])
        if not case["correct"]
    ]
    found += [
        f"epochs of {line['way']} on {line['graph']}: other losses"
        for line in report.get("epochs", [])
        if not line["correct"]
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
        ("tests", _tests_section("tests")),
        ("placement", _tests_section("placement")),
        ("bandwidth", _bandwidth_section),
        ("cases", _case_section),
        ("tiles", _tile_section),
        ("heavy_row", _heavy_section),
        *((step, _operation_section(title)) for step, title in OPERATIONS.items()),
        ("host_microseconds", _host_section),
        ("training", _training_section),
        ("epochs", _epoch_section),
    ):
        if report.get(step):
            parts.append(section(report[step], report))
    return "\n\n".join(parts)


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are right-aligned."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (head, rule, *lines))


def _tests_section(step: str) -> Section:
    def section(run: Report, _: Report) -> str:
        parts = [f"## {COMMANDS[step]}", _ending(run)]
        parts += [f"### {test}\n\n{_quoted(lines)}" for test, lines in run["failed"].items()]
        return "\n\n".join(parts)

    return section


def _ending(run: Report) -> str:
    status, seconds = run["status"], run["seconds"]
    return f"Status {status} in {seconds:.0f} s: {run['output'][-1]} (all of it: {run['log']})"


def _quoted(lines: Sequence[str]) -> str:
    return "\n".join(["```text", *lines, "```"])


def _bandwidth_section(found: Report, _: Report) -> str:
    speeds = ", ".join(f"{name} {speed / 1e9:.0f} GB/s" for name, speed in found.items())
    return f"## Memory\n\nMeasured bandwidth, bytes read plus written: {speeds}."


def _case_section(cases: list[Report], report: Report) -> str:
    summary = summarise(cases)
    peak = max(report["bandwidth"].values()) if report.get("bandwidth") else None
    lines = []
    for case in cases:
        times = {name: Spread(**t) for name, t in case["seconds"].items()}
        shares = ("–",) * len(KINDS)
        if peak is not None:
            needed = case["compulsory_bytes"]
            shares = tuple(f"{needed[kind] / times[kind].median / peak:.0%}" for kind in KINDS)
        ratios = (case["speedup"].get(kind) for kind in summary)
        lines.append(
            (
                case["graph"],
                case["columns"],
                baseline(times, CACHED) or "–",
                times["0/1"],
                *("–" if ratio is None else f"{ratio:.2f}×" for ratio in ratios),
                f"{case['gathered_bytes'] / times['0/1'].median / 1e9:.0f}",
                " ".join(shares),
            )
        )
    head = ("graph", "f", "cuSPARSE", "0/1", *summary, "gathered GB/s", "shares")
    means = [
        (
            kind,
            f"{s['geometric_mean']:.2f}×",
            f"{s['worst']:.2f}×",
            s["cases"],
            _verdict(kind, s["geometric_mean"]),
        )
        for kind, s in summary.items()
    ]
    return (
        "## SpMM against cuSPARSE\n\n"
        "cuSPARSE with descriptors, workspace and preprocessing kept, the faster of its CSR "
        "algorithms 2 and 3, int32, values 1. Times are medians from cold caches, ± the farther "
        "quartile. Ratios are its time in float32 over ours: without values, with values, scaled "
        "rows and columns (the normalised adjacency), added to Y, X in bfloat16; *both*: cuSPARSE "
        "in bfloat16 too; *torch*: `torch.sparse.mm`, which prepares every product anew. Gathered: "
        f"rows of X for every nonzero, without values. Shares of the measured bandwidth that "
        f"compulsory bytes (A, X and Y once) take: {', '.join(KINDS)}.\n\n"
        + table(head, lines)
        + "\n\n"
        + table(("ratio", "geometric mean", "worst", "cases", "bar"), means)
    )


def _verdict(kind: str, ratio: float) -> str:
    if kind not in KINDS:
        return "–"
    return f"{KINDS[kind]}× {'met' if ratio >= KINDS[kind] else 'missed'}"


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
            run["status"],
            f"{run['losses'][0]:.4f} → {run['losses'][-1]:.4f}" if run.get("losses") else "–",
            "right" if run["right"] else "WRONG",
            f"{run['seconds']:.0f}",
        )
        for where, run in found["runs"].items()
    ]
    parts = [
        "## Training",
        "Losses of the same training everywhere; those on the CPU are right.",
        table(("where", "status", "loss", "losses", "seconds"), lines),
    ]
    parts += [
        f"### {where}\n\n{_quoted(run['output'][-12:])}"
        for where, run in found["runs"].items()
        if run["status"] != 0
    ]
    return "\n\n".join(parts)


def _epoch_section(lines: list[Report], _: Report) -> str:
    ours = {line["graph"]: line for line in lines if line["way"] == "spgnn"}
    found = []
    for line in lines:
        if "trouble" in line:
            found.append((line["graph"], line["way"], line["trouble"], "–", "–", "–", "–"))
            continue
        mine, ratios = ours[line["graph"]], []
        for clock in ("device", "wall"):
            ratios.append(f"{line[clock]['median'] / mine[clock]['median']:.2f}×")
        shown = (Spread(**line["device"]), ratios[0], Spread(**line["wall"]), ratios[1])
        losses = f"{line['losses'][0]:.4f} → {line['losses'][-1]:.4f}"
        found.append((line["graph"], line["way"], losses, *shown))
    head = ("graph", "way", "losses", "device", "over spgnn", "wall", "over spgnn")
    return (
        "## Epochs of a GCN\n\n3 layers, 128 features, 128 hidden, from the same weights: "
        "forward, loss, backward, Adam. On the device without gaps of the host, and by the wall "
        "clock.\n\n" + table(head, found)
    )
