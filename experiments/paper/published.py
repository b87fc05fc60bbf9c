"""Measurements of others, only those whose source can be opened, and predictions beside them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from paper.graphs import PaperGraph
from paper.times import (
    AWARE,
    BY_NAME,
    COVERED,
    GVB,
    METIS,
    OBLIVIOUS,
    OURS,
    Model,
    Point,
    Scheme,
    predicted,
)
from spgnn.addons.plan.graphs import Partitions
from spgnn.machine import Machine


@dataclass(frozen=True)
class Claim:
    """An epoch of one scheme takes ``times`` as long as one of a faster scheme, says a section."""

    dataset: str
    ranks: tuple[int, ...]
    slow: Scheme
    fast: Scheme
    times: float
    section: str


CLAIMS = (
    Claim("protein", (256,), AWARE, GVB, 14, "7.1.1, and the abstract's 14"),
    Claim("reddit", (4, 16, 32, 64), AWARE, GVB, 2, "7.1.1"),
    Claim("amazon", (16, 32, 64, 128, 256), AWARE, GVB, 2, "7.1.1"),
    *(
        Claim("amazon", (16, 64), METIS, fast, 2, "Figure 6, p = 64")
        for fast in (GVB, COVERED, OURS)
    ),
    Claim("papers", (16,), OBLIVIOUS, GVB, 2.3, "7.1, Figure 5"),
)
# Section 7.2: with so many replicas, the p at which Amazon's epochs with GVB are fastest.
FASTEST = {2: 32, 4: 64}

# Table 2, METIS on Amazon, one product with f = 300, by p: MB that a rank sends, on average and at
# most, and the excess of the maximum in per cent.
TABLE2 = {
    16: (199.6, 333.5, 67.1),
    32: (132.9, 241.6, 81.8),
    64: (83.9, 164.0, 95.4),
    128: (52.5, 117.3, 123.3),
    256: (32.6, 86.4, 164.9),
}

LOGS = Path(__file__).with_name("authors_logs.csv")
LOGS_SOURCE = (
    "job logs of March 2023 in the history of github.com/PASSIONLab/CAGNET, commit ede56cbe "
    "(Perlmutter, A100, NCCL, 99 epochs of 300-16-24 or 602-16-41); runs on whole graphs only"
)


@dataclass(frozen=True)
class Run:
    """A run of the authors: seconds of an epoch, and its shares, averaged over ranks.

    Attributes
    ----------
    dataset, scheme, algo, c, ranks
        What ran, in the words of `paper.times`.
    barriers : bool
        Whether ranks met after every step, for the clock's sake.
    ranks_a_node : int
    seconds, exchange, spmm, other : float
    file : str
    """

    dataset: str
    scheme: str
    algo: str
    c: int
    ranks: int
    barriers: bool
    ranks_a_node: int
    seconds: float
    exchange: float
    spmm: float
    other: float
    file: str


def authors_runs() -> list[Run]:
    """All runs of the logs."""
    found = []
    with LOGS.open(newline="") as file:
        for row in csv.DictReader(file):
            scheme, _, without = row["scheme"].partition(", without ")
            measured = {name: float(row[name]) for name in ("seconds", "exchange", "spmm", "other")}
            found.append(
                Run(
                    row["dataset"],
                    scheme,
                    row["algo"],
                    int(row["c"]),
                    int(row["ranks"]),
                    without != "barriers",
                    int(row["ranks_a_node"]),
                    **measured,
                    file=row["file"],
                )
            )
    return found


# The logged jobs have two layers: features, 16, classes.
LOGGED = Model(layers=2, hidden=16)


@dataclass(frozen=True)
class Compared:
    """A run and what is predicted for it.

    Attributes
    ----------
    run : Run
    point : Point
    """

    run: Run
    point: Point

    @property
    def ratio(self) -> float:
        """Seconds predicted over seconds measured."""
        return self.point.seconds / self.run.seconds

    @property
    def record(self) -> dict[str, object]:
        """One line of the table."""
        run, point = self.run, self.point
        return {
            "dataset": run.dataset,
            "scheme": run.scheme,
            "c": run.c,
            "ranks": run.ranks,
            "ranks a node": run.ranks_a_node,
            "barriers": "yes" if run.barriers else "no",
            "measured s": run.seconds,
            "exchange": run.exchange,
            "spmm": run.spmm,
            "other": run.other,
            "predicted s": point.seconds,
            "its exchange": point.exchange,
            "its spmm": point.spent["spmm"],
            "ratio": self.ratio,
            # What the network would have had to do for the measured time.
            "implied GB/s": point.average / run.exchange / 1e9,
            "log": run.file,
        }


def compared(
    graph: PaperGraph, partitions: Partitions, runs: Sequence[Run], machines: dict[int, Machine]
) -> Iterator[Compared]:
    """Each run of a graph beside its prediction.

    Parameters
    ----------
    graph : PaperGraph
    partitions : Partitions
    runs : sequence of Run
    machines : dict
        By ranks a node.
    """
    for run in runs:
        scheme, machine = BY_NAME[run.scheme], machines[run.ranks_a_node]
        priced = predicted(
            graph, partitions, scheme, run.ranks, run.c, machine=machine, model=LOGGED
        )
        yield Compared(run, Point.of(graph, scheme, run.c, priced))


def summary(found: Sequence[Compared]) -> list[dict[str, object]]:
    """Geometric mean of the ratios, and the factor that most of them lie within, by scheme."""
    groups: dict[tuple[str, str], list[float]] = {}
    for one in found:
        key = one.run.scheme, "with" if one.run.barriers else "without"
        groups.setdefault(key, []).append(math.log(one.ratio))
    return [
        {
            "scheme": scheme,
            "barriers": barriers,
            "runs": len(logs),
            "predicted / measured": math.exp(fmean(logs)),
            "least": math.exp(min(logs)),
            "largest": math.exp(max(logs)),
        }
        for (scheme, barriers), logs in groups.items()
    ]
