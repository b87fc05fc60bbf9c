"""Systems of the survey on one graph, each by a command line: bytes, memory, seconds, accuracy.

    python experiments/survey.py [--dataset G] [--ranks P] [--only p3,dgcl] [--output DIR]

A row is a run of ``experiments/gcn.py``, ``minibatch.py`` or ``saint.py`` with the options below.
Its command is printed, so every row can be run alone: ``DIR`` is any directory. Bytes are those of
all ranks in an epoch, memory is what the largest rank took on top of an idle one, seconds are an
epoch's median.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

from paper.output import Output, can_draw, finished, show

from spgnn.command import run
from spgnn.errors import check_choice
from spgnn.options import Record, flag, read_options

HERE = Path(__file__).parent
# Program, and its options; {P} are the ranks, DIR is a directory.
DISK = "--store disk --set storage.store-dir=DIR"
# Where most rows are others' and wide, memory is that of received rows.
SAR = "--nproc {P} --partition random --model gat --heads 4 --hidden 256 --epochs 10 "
SYSTEMS = {
    "neugraph": ("gcn", "--nproc {P} --chunks 2"),
    "roc": ("gcn", "--nproc {P} --cover column --set algorithm.rebalance=3"),
    "cagnet": ("gcn", "--nproc {P} --algo 2d --exchange oblivious"),
    "dgcl": ("gcn", "--nproc {P} --cover column --hierarchy 2,{P}"),
    "flexgraph": ("gcn", "--nproc {P} --cover row --set algorithm.rebalance=3"),
    "dorylus": ("gcn", "--nproc {P} --delay 1"),
    "distgnn": ("gcn", "--nproc {P} --algo vertex-cut --partition libra --delay 5 --delay-bins 5"),
    "bns-gcn": (
        "gcn",
        "--nproc {P} --cover column --boundary-sampling 0.1 --set messages.exact-means=false",
    ),
    "sancus": ("gcn", "--nproc {P} --set messages.fresh=0.1"),
    "sar": ("gcn", SAR + "--schedule peers --buffer 1MB"),
    "sar-at-once": ("gcn", SAR),
    "mg-gcn": ("gcn", "--nproc {P} --cover column"),
    "salient": ("minibatch", "--set sampling.workers=2"),
    "agl": ("minibatch", "--sampler agl"),
    "pagraph": ("minibatch", "--nproc {P} --distributed replicated --partition pagraph"),
    "2pgraph": (
        "minibatch",
        DISK + " --cache 30MB --set sampling.superbatch=2 --set sampling.seed-clusters=128",
    ),
    "distdgl": ("minibatch", "--nproc {P} --distributed exact --set distribution.seeds=own"),
    "aligraph": ("minibatch", "--nproc {P} --distributed aligraph"),
    "bytegnn": (
        "minibatch",
        "--nproc {P} --distributed exact --set distribution.seeds=own "
        "--set sampling.superbatch=2 --set sampling.prefetch=4",
    ),
    "llcg": ("minibatch", "--nproc {P} --distributed local --set distribution.correct-every=4"),
    "graphtheta": ("minibatch", "--nproc {P} --distributed cluster"),
    "p3": ("minibatch", "--nproc {P} --distributed columns"),
    "graphsaint": ("saint", ""),
}
EPOCHS = {
    "gcn": "--epochs 150 --layers 2 --hidden 32 --lr 0.01 --eval-every 10",
    "minibatch": "--epochs 12 --hidden 32 --lr 0.003",
    "saint": "--epochs 12 --hidden 32",
}
# As the set has them: rows that sum to one learn too slowly for so few epochs.
DATA = "--set data.feature-norm=none"
BATCHES = "--model sage --num-neighbors 5,5 --batch-size 512"
COLUMNS = (
    "system",
    "ranks",
    "MB an epoch",
    "MiB on a rank",
    "seconds an epoch",
    "test accuracy %",
    "failure",
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Options(Record):
    """Options of the table."""

    output: Annotated[str, flag("where it goes", "DIR")] = "survey"
    dataset: Annotated[str, flag("a file or a set's name")] = "amazon-computers"
    ranks: Annotated[int, flag("of systems with several", low=1)] = 4
    only: Annotated[str | None, flag("systems, by name", "NAME,…")] = None


def measure(name: str, options: Options, directory: Path) -> Row:
    """One system's row, or why there is none."""
    program, flags = SYSTEMS[name]
    words = ["--dataset", options.dataset, *(DATA.split() if program != "saint" else [])]
    own, common = flags.format(P=options.ranks).split(), EPOCHS[program].split()
    for option, value in zip(common[::2], common[1::2], strict=True):
        words += [] if option in own else [option, value]
    words += BATCHES.split() if program == "minibatch" else []
    words += own
    print(f"{name}: experiments/{program}.py {' '.join(words)}", flush=True)
    report = directory / f"{name}.json"
    command = [word.replace("DIR", str(directory)) for word in words]
    done = subprocess.run(
        [sys.executable, str(HERE / f"{program}.py"), *command, "--json", str(report)],
        check=False,
        capture_output=True,
        text=True,
    )
    row: Row = dict.fromkeys(COLUMNS) | {"system": name}
    if done.returncode:
        row["failure"] = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        print(f"  failed: {row['failure']}", flush=True)
        return row
    found = json.loads(report.read_text())
    score = (found["best"] or {}).get("test_acc")
    row |= {
        "ranks": found["world_size"],
        "MB an epoch": found["volume"]["total_bytes"] / 1e6,
        "MiB on a rank": found["memory"]["max_rank_peak_above_idle_bytes"] / 2**20,
        "seconds an epoch": found["epoch_seconds"]["median"],
        "test accuracy %": None if score is None else 100 * score,
    }
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the table; returns the exit status, 1 if a system failed."""
    rows: list[Row] = []

    def body() -> None:
        about = "Systems of the survey on one graph, each by a command."
        options = Options(**read_options([Options], arguments, program="survey.py", about=about))
        names = options.only.split(",") if options.only else [*SYSTEMS]
        for name in names:
            check_choice("--only", name, SYSTEMS)
        out = Output(Path(options.output), "survey")
        with TemporaryDirectory() as folder:
            for name in names:
                rows.append(measure(name, options, Path(folder)))
                out.write_csv(rows)
        show(options.dataset, rows)
        if can_draw():
            panels = {
                title: {row["system"]: {title: row[title] or 0.0} for row in rows}
                for title in COLUMNS[2:-1]
            }
            out.draw_stacks(panels, "", options.dataset)
        finished(out)

    return run(body) or int(any(row["failure"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
