"""Table 2: what one product moves under partitions of METIS and of our own partitioner."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paper.graphs import PaperGraph
from spgnn.addons.plan.graphs import Partitions
from spgnn.errors import InputError
from spgnn.files import write_file
from spgnn.memory import peak_bytes
from spgnn.partition import count_volumes
from spgnn.progress import Progress
from spgnn.registry import Objective
from spgnn.testing import run_ranks

# random is what the paper's sparsity-aware algorithm has without a partitioner.
METHODS = ("random", "metis", "gvb")
_FLOAT = 4


def objective_of(method: str) -> Objective:
    """The paper's partitioner minimises what is sent; only gvb takes an objective."""
    return "send" if method == "gvb" else "both"


@dataclass(frozen=True)
class Row:
    """Rows of H that one product sends, in a graph of the original's size.

    Attributes
    ----------
    ranks : int
    method : str
    total : float
    average, maximum : float
        Of a rank.
    receive : float
        The most that a rank receives.
    seconds : float
        That the partition took, or what it took to read it from the cache.
    peak : int
        Bytes of the process that partitioned and counted, the graph included.
    """

    ranks: int
    method: str
    total: float
    average: float
    maximum: float
    receive: float
    seconds: float
    peak: int = 0

    @property
    def imbalance(self) -> float:
        """Maximum over average, less 1."""
        return self.maximum / self.average - 1 if self.average else 0.0

    def megabytes(self, rows: float, width: int) -> float:
        """Of so many float32 rows."""
        return rows * width * _FLOAT / 1e6


def volumes(
    graph: PaperGraph,
    partitions: Partitions,
    ranks: Sequence[int],
    methods: Sequence[str] = METHODS,
    progress: Progress | None = None,
    cells: Path | None = None,
) -> Iterator[Row]:
    """One row for each number of ranks and method, as soon as it is counted.

    Each is counted in a process of its own, whose memory is its own as well.

    Parameters
    ----------
    graph, partitions, ranks, methods, progress
    cells : Path, optional
        A file that has each row as soon as it is there, and from which it is taken the next time.

    Raises
    ------
    InputError
        If a method cannot do what is asked, or its package is missing, or the file is no such one.
    """
    known = {} if cells is None else read_cells(cells)

    def row(rank: int, parts: int, method: str) -> Row | str:
        begin = time.perf_counter()
        try:
            labels = partitions.labels(method, objective_of(method), parts)
        except InputError as error:
            return str(error)
        seconds = time.perf_counter() - begin
        column = count_volumes(
            graph.data.looped, labels, parts, minimum=False, progress=progress
        ).column
        return Row(
            parts,
            method,
            graph.factor * column.total,
            graph.factor * column.total / parts,
            graph.factor * int(column.send.max()),
            graph.factor * int(column.receive.max()),
            seconds,
            peak_bytes(),
        )

    for parts in ranks:
        for method in methods:
            key = partitions.key(method, objective_of(method), parts)
            if key not in known:
                counted = run_ranks(row, 1, parts, method, threads=0)[0]
                if isinstance(counted, str):
                    raise InputError(counted)
                known[key] = counted
                if cells is not None:
                    text = json.dumps({name: asdict(one) for name, one in known.items()}, indent=1)
                    write_file(cells, [text.encode()], f"--output {cells}")
            yield known[key]


def read_cells(path: Path) -> dict[str, Row]:
    """Rows of an earlier run, by what they were counted of."""
    try:
        return {name: Row(**one) for name, one in json.loads(path.read_text()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: no rows of an earlier run ({error}); remove it") from None
