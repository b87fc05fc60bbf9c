"""What this process may ever hold, asked before something huge is made."""

from __future__ import annotations

from spgnn.errors import InputError
from spgnn.memory import memory_limit

_BYTES_A_VERTEX = 16  # its row offset while a matrix is built, and once more in the matrix


def check_memory(what: str, nbytes: int) -> None:
    """Refuse what could never fit, before the machine finds out.

    Parameters
    ----------
    what : str
        What needs the memory, and who asked for it.
    nbytes : int
        At least as many bytes are needed.

    Raises
    ------
    InputError
    """
    limit = memory_limit()
    if nbytes > limit:
        raise InputError(
            f"{what}: needs {nbytes / 2**30:.3g} GiB of memory at least; this process may use "
            f"{limit / 2**30:.3g}"
        )


def check_vertices(what: str, vertices: int) -> None:
    """Refuse a number of vertices that somebody states and this machine could never hold.

    Raises
    ------
    InputError
    """
    check_memory(f"{what}: {vertices} vertices", _BYTES_A_VERTEX * vertices)
