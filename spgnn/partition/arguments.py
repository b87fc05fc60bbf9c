"""What may be asked of a partition, checked in one place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, check_integer
from spgnn.memory import processors

LARGEST_SEED = 2**31 - 1
LARGEST_IMBALANCE = 1e6  # no bound at all, for fewer parts than that
MOST_THREADS = 1024
_ALWAYS_ALLOWED = 1 << 16


def check_parts(parts: object, vertices: int, name: str = "k") -> int:
    """The number of parts, at least 1 and no more than a graph can use, or a few times that.

    Every figure per part takes memory, so parts that must stay empty are not worth any number:
    65,536 are allowed for every graph, and four times as many as vertices.

    Raises
    ------
    InputError
    """
    return check_integer(name, parts, 1, min(max(_ALWAYS_ALLOWED, 4 * vertices), 2**31 - 1))


def check_threads(threads: int | None) -> int:
    """The number of threads, by default all processors this process may use.

    Raises
    ------
    InputError
    """
    if threads is None:
        return processors()
    return check_integer("threads", threads, 1, MOST_THREADS)


def check_nodes(nodes: int | None, parts: int, name: str = "nodes") -> int | None:
    """The number of nodes among which parts are divided evenly; ``None`` stays.

    Raises
    ------
    InputError
    """
    if nodes is None:
        return None
    nodes = check_integer(name, nodes, 1)
    if parts % nodes:
        raise InputError(f"{name} {nodes} must divide the number of parts, which is {parts}")
    return nodes


def integers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """A vector of integers of any width; an empty one may have any dtype.

    Raises
    ------
    InputError
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors on a GPU
        raise InputError(f"{name} must be a vector of integers: {error}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(
            f"{name} must be a vector of integers, got {array.dtype} {list(array.shape)}"
        )
    return array
