"""Which threads this process has; needs nothing but Python."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

EXITING = 4  # PF_EXITING of the kernel's <linux/sched.h>


def names_of_threads(tasks: Path = Path("/proc/self/task")) -> list[str]:
    """The names of the threads that run or wait.

    The system lists a thread for a while longer after whoever joined it has gone on.
    """
    names = []
    for task in tasks.iterdir():
        # Its files too may be gone by now.
        with suppress(FileNotFoundError, ProcessLookupError):
            before, _, after = (task / "stat").read_text().rpartition(")")
            if not int(after.split()[6]) & EXITING:
                names.append(before.partition("(")[2])
    return names
