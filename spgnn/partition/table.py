"""The table of reports that the command shows."""

from __future__ import annotations

from collections.abc import Callable

from spgnn.command import counted, say
from spgnn.partition.volume import Report

_UNEVEN = 0.5  # from here on, an imbalance of vertices has a remark


def print_reports(reports: list[Report], features: int | None) -> None:
    """One column of figures per report, on stdout."""
    rows = [("", [result["method"] for result in reports])]
    rows += [(name, [show(result) for result in reports]) for name, show in _FIGURES]
    for key, lines in (("levels", _LEVELS), ("vertex_cut", _CUT)):
        if any(key in result for result in reports):
            rows += [
                (name, [given(result) if key in result else "–" for result in reports])
                for name, given in lines
            ]
    if features is not None:
        row = 4 * features
        rows += [
            ("total bytes", [_size(result["total_volume"] * row) for result in reports]),
            ("max send bytes", [_size(result["max_send"] * row) for result in reports]),
            ("max receive bytes", [_size(result["max_recv"] * row) for result in reports]),
        ]
    first = reports[0]
    say(f"{first['vertices']:,} vertices, {first['edges']:,} nonzeros, {first['parts']} parts")
    name_width = max(len(name) for name, _ in rows)
    widths = [max(len(cells[i]) for _, cells in rows) for i in range(len(reports))]
    for name, cells in rows:
        figures = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        say(f"{name.ljust(name_width)}  {figures}")
    for result in reports:
        for remark in _remarks(result):
            say(f"{result['method']}: {remark}")


def _remarks(result: Report) -> list[str]:
    remarks = []
    if not result.get("imbalance_met", True):
        asked = _percent(result["imbalance_asked"])
        remarks.append(f"the asked imbalance of {asked} is not met")
    if result["empty_parts"]:
        remarks.append(counted(result["empty_parts"], "empty part"))
    if result["vertex_imbalance"] > _UNEVEN and result["nnz_imbalance"] < _UNEVEN:
        largest = 1 + result["vertex_imbalance"]
        remarks.append(
            f"parts are even in nonzeros; the largest one has {largest:.1f} times the average "
            "number of vertices (--balance nnz,vertices evens both)"
        )
    return remarks


def _rows(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


_FIGURES: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("total volume (rows)", lambda r: _rows(r["total_volume"])),
    ("max send", lambda r: _rows(r["max_send"])),
    ("average send", lambda r: f"{r['avg_send']:,.1f}"),
    ("max receive", lambda r: _rows(r["max_recv"])),
    ("send imbalance", lambda r: _percent(r["send_imbalance"])),
    ("receive imbalance", lambda r: _percent(r["recv_imbalance"])),
    ("cover row", lambda r: _rows(r["cover_volume"]["row"])),
    ("cover minimum", lambda r: _rows(r["cover_volume"]["minimum"])),
    (
        "  its max send",
        lambda r: _rows(r["covers"]["minimum"]["max_send"] if "minimum" in r["covers"] else None),
    ),
    ("edge cut (nonzeros)", lambda r: _rows(r["edge_cut"])),
    ("nnz imbalance", lambda r: _percent(r["nnz_imbalance"])),
    ("vertex imbalance", lambda r: _percent(r["vertex_imbalance"])),
    ("seconds", lambda r: f"{r['seconds']:.2f}"),
    ("peak memory", lambda r: _size(r["peak_rss_bytes"])),
)

_LEVELS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("between nodes (rows)", lambda r: _rows(r["levels"]["between"]["total"])),
    ("  max send", lambda r: _rows(r["levels"]["between"]["max_send"])),
    ("  once a part", lambda r: _rows(r["levels"]["between_flat"]["total"])),
    ("inside nodes", lambda r: _rows(r["levels"]["inside"]["total"])),
    ("  max send", lambda r: _rows(r["levels"]["inside"]["max_send"])),
)

_CUT: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("vertex cut: parts a vertex", lambda r: f"{r['vertex_cut']['replication']:.2f}"),
    ("  expand (rows)", lambda r: _rows(r["vertex_cut"]["expand"]["total"])),
    ("  fold", lambda r: _rows(r["vertex_cut"]["fold"]["total"])),
    ("  max send, together", lambda r: _rows(r["vertex_cut"]["together"]["max_send"])),
    ("  send imbalance", lambda r: _percent(r["vertex_cut"]["together"]["send_imbalance"])),
    ("  nnz imbalance", lambda r: _percent(r["vertex_cut"]["nnz_imbalance"])),
    ("  vertex imbalance", lambda r: _percent(r["vertex_cut"]["vertex_imbalance"])),
)
