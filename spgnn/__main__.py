"""The command ``spgnn``: one of the registered commands, which alone is imported."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence

from spgnn.command import run, say, say_version, say_wrapped
from spgnn.errors import InputError, unknown
from spgnn.registry import COMMANDS, imported


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; bad input is one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)

    def body() -> int | None:
        if not words:
            raise InputError(f"COMMAND: choose one of {', '.join(COMMANDS)}")
        name, *rest = words
        if name in ("-h", "--help"):
            say("Usage: spgnn COMMAND …; spgnn COMMAND --help says more.\n")
            say_wrapped("\n".join(f"  {one:10}{COMMANDS[one][0]}" for one in COMMANDS))
            say("\nspgnn-partition GRAPH … writes a partition alone.")
            return None
        if name == "--version":
            say_version()
            return None
        if name not in COMMANDS:
            raise unknown("COMMAND", name, [*COMMANDS, "spgnn-partition"])
        _, command, *options = COMMANDS[name]
        if options and not {"-h", "--help"}.isdisjoint(rest):
            from spgnn.options import show_help

            show_help(imported(*options), f"spgnn {name}")
        body: Callable[[Sequence[str]], int | None] = imported(command)
        gc.freeze()  # it lasts as long as the process, and is not taken apart at its end
        return body(rest)

    return run(body)


if __name__ == "__main__":
    sys.exit(main())
