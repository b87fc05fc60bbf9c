"""The page of what works where, from what cells say; and what cells should say, from the page."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.features import FEATURES
from tests.support.modes import GROUPS
from tests.support.reasons import REASONS
from tests.support.sweep import Cells, all_cells

DOCUMENT = Path(__file__).parents[2] / "docs" / "support.md"
HEAD = """\
# What works where

Each ✓ is a test: two layers on a small graph over four ranks give what one process of PyG's layers
(or a dense loop) gives, in float64 to 1e-10, mini-batches to 1e-6; rounded and sampled rows are as
near as they say. Compared are outputs, losses and all gradients; of `infer` and `since` outputs, of
`resume` and the training command losses of three epochs, training and validation. Each number is a
refusal, in one line and on every rank: they are below the tables. `python -m tests.support` runs
all cells and writes this page; `tests/support` has the features and the modes.

Not in these tables: `torch.compile`, `--plan`, stale embeddings, and what the command refuses of
schemes, because it multiplies with one matrix; several vertex types ([there](hetero.md)), links
([there](tasks.md)) and recommenders ([there](recommend.md)), which have sweeps of their own.

"""


def page(cells: Cells) -> str:
    """The document."""
    lines = list(dict.fromkeys(said for said in cells.values() if said != "yes"))
    lines.sort(key=lambda line: next(n for n, said in enumerate(cells.values()) if said == line))
    share = sum(said != "yes" for said in cells.values()) / len(cells)
    parts = [HEAD, f"{len(cells)} cells, of which {100 * share:.1f} % are refusals.\n"]
    for group, modes in GROUPS.items():
        features = [one.name for one in FEATURES if (one.name, group, modes[0].name) in cells]
        parts += [f"\n## {group}\n\n", "| |", "".join(f" {mode.name} |" for mode in modes)]
        parts += ["\n|---|", "---|" * len(modes), "\n"]
        for name in features:
            said = [cells[name, group, mode.name] for mode in modes]
            marks = ("✓" if one == "yes" else str(lines.index(one) + 1) for one in said)
            parts.append(f"| {name} | {' | '.join(marks)} |\n")
        parts.append("\n" + "; ".join(f"*{m.name}*: {m.about}" for m in modes) + ".\n")
    parts.append("\n## Refusals\n\n")
    for number, one in enumerate(lines, 1):
        parts.append(f"{number}. {one.removeprefix('no: ')}\n   *{reason(one)}*\n")
    return "".join(parts)


def reason(line: str) -> str:
    """Why something is refused."""
    return next((why for words, why in REASONS.items() if words in line), "not yet")


def in_document() -> Cells:
    """What each cell of the document says."""
    text = DOCUMENT.read_text()
    refusals = text.partition("## Refusals\n\n")[2]
    lines = dict(re.findall(r"^(\d+)\. (.*)\n   \*", refusals, re.MULTILINE))
    marks: dict[tuple[str, str], list[str]] = {}
    for section in text.split("\n## ")[1:-1]:
        group, _, body = section.partition("\n")
        for name, row in re.findall(r"^\| (.+?) \| (.*) \|$", body, re.MULTILINE):
            marks[name, group] = row.split(" | ")
    result = Cells()
    for cell, _, mode in all_cells():
        name, group, _ = cell
        mark = marks[name, group][GROUPS[group].index(mode)]
        result[cell] = "yes" if mark == "✓" else f"no: {lines[mark]}"
    return result
