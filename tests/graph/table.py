"""What docs/pyg.md shows of tests and examples; ``python -m tests.graph.table`` writes it."""

from __future__ import annotations

import re
from difflib import unified_diff
from pathlib import Path

from torch_geometric import nn as geometric

from experiments.pyg.examples import examples
from tests.graph.convolutions import convolutions

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "pyg.md"
EXAMPLES = ROOT / "experiments" / "pyg"


def difference() -> str:
    """What makes a script of one process one of many."""
    old, new = ((EXAMPLES / name).read_text() for name in ("one_process.py", "on_ranks.py"))
    # Not what the scripts say of themselves.
    texts = [text.partition("import argparse\n")[2].splitlines() for text in (old, new)]
    lines = list(unified_diff(*texts, n=1, lineterm=""))[2:]
    return "\n".join(["```diff", *(line for line in lines if line[:2] != "@@"), "```", ""])


# What helpers of the programs are made of.
_INNER = {"deep": "GENConv", "pna": "PNAConv", "rgat": "RGATConv", "Dna": "DNAConv"}
_OF_TORCH = {"BatchNorm", "LayerNorm", "Linear", "conv"}


def programs() -> str:
    """A line for each example of PyG that is equal: its layers, and what changes."""
    lines = ["|example|layers|on ranks|", "|---|---|---|"]
    for one in examples():
        words = (_INNER.get(word, word) for word in re.findall(r"\w{3,}", one.layers))
        names = {word: None for word in words if hasattr(geometric, word)}.keys() - _OF_TORCH
        ours = "*" * (True in one.variants)
        lines.append(f"|{one.name}{ours}|{', '.join(sorted(names))}|{one.needs}|")
    return "\n".join(lines) + "\n"


def table() -> str:
    """A line for each way to call convolutions, and for each reason why some do not work."""
    lines: dict[str, list[str]] = {}
    for kind in sorted({one.kind for one in convolutions()}, key=str.lower):
        forms = [one for one in convolutions() if one.kind == kind]
        pair, alone = (_said([getattr(one, way) for one in forms]) for way in ("pair", "alone"))
        if pair == alone != "exact":
            lines.setdefault(f"none: {pair}", []).append(kind)
            continue
        names = [form for one in forms if (form := one.name.partition(" ")[2])]
        remarks = [", ".join(names)] if names else []
        remarks += sorted({one.note for one in forms if one.note})
        said = f"{kind} ({'; '.join(remarks)})" if remarks else kind
        lines.setdefault(f"`(graph.halo(x), x)`: {pair}; `x`: {alone}", []).append(said)
    rows = (f"|{way}|{', '.join(kinds)}|" for way, kinds in sorted(lines.items()))
    return "\n".join(["|call|convolutions (tested forms; remarks)|", "|---|---|", *rows]) + "\n"


def _said(reasons: list[str]) -> str:
    return reasons[0] if all(reasons) else "exact"


def in_document() -> str:
    """The document with both as they should be."""
    text = DOCUMENT.read_text()
    parts = {"difference": difference(), "examples": programs(), "table": table()}
    for name, content in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{content}{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(in_document())
