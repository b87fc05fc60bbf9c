"""The kernel benchmark's JSON as Markdown: a summary against the bars, then every case."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Case = dict[str, dict[str, float]]


def write(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text + "\n")
    os.replace(beside, path)


def median(case: Case, *names: str) -> float:
    """The fastest median among the contestants that took part; NaN if none did."""
    return min((case[name]["median"] for name in names if name in case), default=np.nan)


def ratio(case: Case, of: tuple[str, ...], over: str = "spgnn") -> float:
    return median(case, *of) / median(case, over)


def gain(case: Case, of: str) -> float:
    """Time on one thread over that on all."""
    return ratio(case, (f"{of} again, 1 thread",), f"{of} again")


def on_threads(count: int) -> str:
    """What a contestant's name ends with if it runs on one thread."""
    return ", 1 thread" if count == 1 else ""


def over_others(case: Case, values: str, state: str) -> float:
    """Time of the faster of torch.sparse and MKL over that of spgnn."""
    others = (f"torch.sparse{values} {state}", f"mkl{values} {state}")
    return ratio(case, others, f"spgnn{values} {state}")


def over_mkl(case: Case, values: str, state: str) -> float:
    return ratio(case, (f"mkl{values} {state}",), f"spgnn{values} {state}")


TORCH = ("torch.sparse int32", "torch.sparse int64")
COLUMNS: dict[str, Callable[[Case], float]] = {
    "spgnn ms": lambda c: 1e3 * median(c, "spgnn"),
    "spread": lambda c: (c["spgnn"]["max"] - c["spgnn"]["min"]) / c["spgnn"]["median"],
    "/torch": lambda c: ratio(c, TORCH, "spgnn allocating"),
    "/scipy": lambda c: ratio(c, ("scipy",), "spgnn allocating"),
    "/dgl copy_u": lambda c: ratio(c, ("dgl copy_u_sum",), "spgnn allocating"),
    "/dgl u_mul_e": lambda c: ratio(c, ("dgl u_mul_e_sum",), "spgnn values allocating"),
    "/best warm, 1 thread": lambda c: over_others(c, "", "warm, 1 thread"),
    "/best values warm, 1 thread": lambda c: over_others(c, " values", "warm, 1 thread"),
    "normalised": lambda c: ratio(c, ("spgnn normalised",)),
    "accumulate": lambda c: ratio(c, ("spgnn accumulate",)),
    "bfloat16": lambda c: median(c, "spgnn") / median(c, "spgnn bfloat16"),
    "2 threads": lambda c: gain(c, "spgnn"),
}


def markdown(report: dict[str, Any]) -> str:
    """Summary, then a row for each graph and width."""
    cases = [
        (graph, int(width), case)
        for graph, entry in report["graphs"].items()
        for width, case in entry["widths"].items()
    ]
    machine = report["machine"]
    lines = [
        f"{machine['cpu']}, {machine['threads']} of {machine['cores']} cores, "
        f"{machine['instruction_set']}; triad {machine['triad_bytes_per_second'] / 1e9:.1f} GB/s; "
        f"commit {machine['commit']}, torch {machine['torch']}, SciPy {machine['scipy']}, "
        f"Python {machine['python']}.",
        "",
        *_summary(cases),
        "",
        "| graph | f | " + " | ".join(COLUMNS) + " |",
        "|---|---:|" + "---:|" * len(COLUMNS),
    ]
    for graph, width, case in cases:
        shown = (_number(column(case)) for column in COLUMNS.values())
        lines.append(f"| {graph} | {width} | " + " | ".join(shown) + " |")
    lines += ["", "| graph | vertices | nonzeros |", "|---|---:|---:|"]
    for graph, entry in report["graphs"].items():
        lines.append(f"| {graph} | {entry['vertices']} | {entry['nonzeros']} |")
    return "\n".join(lines)


def _summary(cases: list[tuple[str, int, Case]]) -> list[str]:
    bars: list[tuple[str, str, str, Callable[[int], bool]]] = [
        ("over the faster torch.sparse.mm", "/torch", "≥ 4, none < 1.5", lambda f: True),
        ("over DGL copy_u_sum", "/dgl copy_u", "≥ 1.7, none < 1.1", lambda f: True),
        ("over DGL u_mul_e_sum (both with values)", "/dgl u_mul_e", "", lambda f: True),
        ("bfloat16 over float32, f ≥ 128", "bfloat16", "≥ 1.5", lambda f: f >= 128),
        ("Y += AX over Y = AX", "accumulate", "≤ 1.1", lambda f: True),
        ("normalised over plain", "normalised", "", lambda f: True),
        ("2 threads over 1", "2 threads", "≥ 1.8 where not bound", lambda f: True),
    ]
    lines = [
        "| what | bar | geometric mean | median | min | max |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for what, column, bar, wanted in bars:
        found = [
            COLUMNS[column](case)
            for graph, f, case in cases
            if wanted(f) and not graph.startswith("half-row")
        ]
        lines += _line(what, bar, found)
    for state in ("warm", "cold"):
        for on in ("", on_threads(1)):
            for values in ("", " values"):
                known = [case for graph, _, case in cases if not graph.startswith("half-row")]
                what = f"{values or ' ones'}, {state}{on}".lstrip()
                best = [over_others(case, values, state + on) for case in known]
                lines += _line(f"over torch.sparse and MKL: {what}", "≥ 2, none < 1", best)
                alone = [over_mkl(case, values, state + on) for case in known]
                lines += _line(f"over MKL: {what}", "", alone)
    for graph, what, bar in (
        ("half-row", "half of all nonzeros in one row, X in cache", "≥ 1.7"),
        ("half-row-million", "a million of two million nonzeros in one row", ""),
    ):
        half = [case for name, _, case in cases if name == graph]
        lines += _line(f"{what}: 2 threads over 1", bar, [gain(c, "spgnn") for c in half])
    return lines


def _line(what: str, bar: str, figures: list[float]) -> list[str]:
    known = np.array([x for x in figures if not np.isnan(x)])
    if not len(known):
        return []
    shown = (np.exp(np.log(known).mean()), np.median(known), known.min(), known.max())
    return [f"| {what} | {bar} | " + " | ".join(map(_number, shown)) + " |"]


def _number(x: float) -> str:
    return "–" if np.isnan(x) else f"{x:.2f}"
