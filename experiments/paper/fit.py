"""How far predictions are from what the authors' jobs took."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from paper.graphs import PaperGraph
from paper.published import Run
from paper.schemes import BY_NAME
from paper.times import Model, Point, predicted
from spgnn.plan import Machine
from spgnn.plan.graphs import Partitions

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
