"""``python -m spgnn.partition`` and ``spgnn-partition``: the partitioner as a tool of its own."""

from __future__ import annotations

import sys

from spgnn.errors import InputError
from spgnn.partition.cli import run

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status: 0, 2 for bad input, 130 for Ctrl-C."""
    try:
        run(arguments)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
