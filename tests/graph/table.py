"""The table of convolutions in docs/pyg.md; ``python -m tests.graph.table`` writes it."""

from __future__ import annotations

from pathlib import Path

from tests.graph.convolutions import convolutions

DOCUMENT = Path(__file__).parents[2] / "docs" / "pyg.md"
BEGIN, END = "<!-- table of convolutions -->\n", "<!-- end of table -->\n"


def rows() -> str:
    """A line for each class, in the order of the alphabet; its forms are those that are tested."""
    lines = [
        "| convolution | `conv((graph.halo(x), x), graph.edge_index)` | "
        "`conv(x, graph.edge_index)` | tested forms, remarks |",
        "|---|---|---|---|",
    ]
    for kind in sorted({one.kind for one in convolutions()}, key=str.lower):
        forms = [one for one in convolutions() if one.kind == kind]
        ways = [_said([getattr(one, way) for one in forms]) for way in ("pair", "alone")]
        if ways[0] == ways[1] != "exact":
            ways = ["–", "–"]
        names = [form for one in forms if (form := one.name.partition(" ")[2])]
        remarks = [", ".join(names)] if names else []
        remarks += sorted({one.note for one in forms if one.note})
        if ways == ["–", "–"]:
            remarks = [forms[0].pair]
        lines.append(f"| {kind} | {ways[0]} | {ways[1]} | {'; '.join(remarks)} |")
    return "\n".join(lines) + "\n"


def _said(reasons: list[str]) -> str:
    return reasons[0] if all(reasons) else "exact"


def in_document() -> str:
    """The document with the table as it should be."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{rows()}{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(in_document())
