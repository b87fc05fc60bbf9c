"""``python -m spgnn.partition`` and ``spgnn-partition``: the partitioner as a tool of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from spgnn.command import run
from spgnn.partition.cli import command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status (`spgnn.command.run`)."""
    return run(lambda: command(arguments))


if __name__ == "__main__":
    sys.exit(main())
