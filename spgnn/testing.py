"""Ranks of this machine that run a function."""

from __future__ import annotations

import pickle
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spgnn.comm import connect, guarded, launch
from spgnn.signals import AskedToEnd


def run_ranks(
    fn: Callable[..., Any],
    size: int,
    *args: Any,
    backend: str = "auto",
    device: str = "cpu",
    threads: int = 1,
) -> list[Any]:
    """Call ``fn(rank, *args)`` on `size` forked ranks of this machine.

    Inside, :func:`spgnn.comm.connect` returns the communicator of these ranks.

    Returns
    -------
    list
        What each rank returned, in rank order.

    Raises
    ------
    RuntimeError
        If a rank failed; what it printed is on stderr.
    """
    import torch._dynamo  # noqa: F401  # optimisers ask for it: seconds and 100 MB for each rank

    try:
        with tempfile.TemporaryDirectory() as directory:

            def body() -> None:
                comm = connect(backend, device)
                with guarded(comm):
                    # Our own results, written and read by this function alone.
                    result = pickle.dumps(fn(comm.rank, *args))
                    Path(directory, str(comm.rank)).write_bytes(result)

            status = launch(body, size, threads)
            if status:
                raise RuntimeError(f"a rank failed with status {status}")
            return [pickle.loads(Path(directory, str(rank)).read_bytes()) for rank in range(size)]
    except AskedToEnd as end:
        # To whoever handles it here: the program ends as it would without ranks.
        signal.raise_signal(end.number)
        raise
