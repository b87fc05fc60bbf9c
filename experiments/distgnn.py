"""Epochs of late messages against ranks, on slow links: 0c, cd-0 and cd-r of DistGNN, and Dorylus.

    python experiments/distgnn.py [--ranks 2,4,8] [--gigabits 1] [--dataset G] [--output DIR]

Ranks are processes of this machine. Each has a clock that counts the processor's seconds of its own
work, on one thread, and what its link needs (`paper/slow_link.py`): many ranks on a few cores
take the time that they would take on a core each. Local aggregation is the products of 0c, which
moves nothing: ways of one cut share them. Remote aggregation is what an epoch takes longer in all
that has to do with rows of others: adding their sums up, packing them, and waiting for the link.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import systems  # noqa: F401
from paper.output import Output, finished, show
from paper.slow_link import throttled

from spgnn.comm import connect
from spgnn.command import run
from spgnn.config import TrainConfig
from spgnn.options import Record, flag, read_options
from spgnn.testing import run_ranks
from spgnn.train import train

CUT = {"algo": "vertex-cut", "partition": "libra"}
LATE = CUT | {"delay": 5, "delay_bins": 5}
# By the cut that they share; of each the first moves nothing.
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "Libra's cut, clones": {
        "0c": CUT | {"delay": "never"},
        "cd-0": CUT | {"clones": True},
        "cd-5": LATE | {"exact_means": False},
        "cd-5 with means": LATE,
    },
    "1D, gvb": {
        "nothing sent": {"cover": "column", "delay": "never"},
        "synchronous": {"cover": "column"},
        "Dorylus": {"cover": "column", "delay": 1, "exact_means": False},
        "Dorylus with means": {"cover": "column", "delay": 1},
    },
}
REMOTE = "pack", "alltoall"


@dataclass(frozen=True)
class Options(Record):
    """Options of the table."""

    output: Annotated[str, flag("where it goes", "DIR")] = "distgnn"
    dataset: Annotated[str, flag("a file or a set's name")] = "amazon-computers"
    ranks: Annotated[str, flag("numbers of ranks", "P,…")] = "2,4,8"
    gigabits: Annotated[float, flag("a second, of each rank's link")] = 1.0
    latency: Annotated[float, flag("seconds of a message")] = 20e-6
    hidden: Annotated[int, flag("width of the layers between", low=1)] = 32
    epochs: Annotated[int, flag("of each run", low=12)] = 32


def on_rank(rank: int, flags: dict[str, Any], gigabits: float, latency: float) -> dict[str, Any]:
    """Train on links of that kind; the report."""
    comm = throttled(connect(), gigabits, latency, clock="processor")
    return train(TrainConfig.of(**flags), comm)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write a table; returns the exit status."""

    def body() -> None:
        about = "0c, cd-0, cd-r and Dorylus against ranks, on slow links."
        options = Options(**read_options([Options], arguments, program="distgnn.py", about=about))
        out, records = Output(Path(options.output), "distgnn"), list[dict[str, Any]]()
        common = {"dataset": options.dataset, "hidden": options.hidden, "epochs": options.epochs}
        common |= {"eval_every": options.epochs, "feature_norm": "none", "threads": 1}
        for cut, ways in WAYS.items():
            for ranks in map(int, options.ranks.split(",")):
                local = 0.0
                for way, flags in ways.items():
                    print(f"{cut}, {ranks} ranks: {way}", flush=True)
                    links = options.gigabits, options.latency
                    report = run_ranks(on_rank, ranks, common | flags, *links)[0]
                    parts = report["breakdown_seconds"]
                    local = local or parts["spmm"]
                    remote = parts["spmm"] - local + sum(parts[name] for name in REMOTE)
                    records.append(
                        {
                            "cut": cut,
                            "ranks": ranks,
                            "way": way,
                            "MB an epoch": report["volume"]["total_bytes"] / 1e6,
                            "ms an epoch": 1e3 * report["epoch_seconds"]["median"],
                            "local aggregation ms": 1e3 * local,
                            "remote aggregation ms": 1e3 * remote,
                            "of which link ms": 1e3 * parts["alltoall"],
                        }
                    )
                    out.write_csv(records)
        show(f"{options.dataset}, links of {options.gigabits:g} Gb/s, a core a rank", records)
        finished(out)

    return run(body)


if __name__ == "__main__":
    sys.exit(main())
