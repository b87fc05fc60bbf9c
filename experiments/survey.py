"""Systems of the survey on one graph, each by a command line: bytes, memory, seconds, accuracy.

    python experiments/survey.py [--dataset G] [--nproc P] [--only p3,dgcl] [--plot FILE]

A row is a run of ``experiments/gcn.py`` or ``minibatch.py`` with the options below, so every row
can be run alone: the command is printed. Bytes are those of all ranks in an epoch, memory is what
the largest rank took on top of an idle one, seconds are an epoch's median.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Program, and its options; {P} are the ranks, {dir} an empty directory, {shards} the graph in one
# part on a disk.
DISK = "--store disk --set storage.store-dir={dir}"
SYSTEMS = {
    "neugraph": ("gcn", "--nproc {P} --chunks 2"),
    "roc": ("gcn", "--nproc {P} --set algorithm.rebalance=3"),
    "cagnet": ("gcn", "--nproc {P} --algo 2d --exchange oblivious"),
    "dgcl": ("gcn", "--nproc {P} --hierarchy 2,{P}"),
    "flexgraph": ("gcn", "--nproc {P} --cover row"),
    "dorylus": ("gcn", "--nproc {P} --delay 1"),
    "distgnn": ("gcn", "--nproc {P} --algo vertex-cut --partition libra --delay 5 --delay-bins 5"),
    "sar": ("gcn", "--nproc {P} --schedule peers --buffer 1MB"),
    "mg-gcn": ("gcn", "--nproc {P}"),
    "salient": ("minibatch", "--set sampling.workers=2"),
    "agl": ("minibatch", DISK + " --set storage.pack=1GB --set sampling.fixed=true"),
    "pagraph": ("minibatch", "--nproc {P} --distributed replicated --partition pagraph"),
    "2pgraph": (
        "minibatch",
        DISK + " --cache 4MB --cache-policy lru --set sampling.seed-clusters=128",
    ),
    "distdgl": ("minibatch", "--nproc {P} --distributed exact"),
    "aligraph": (
        "minibatch",
        DISK + " --cache 4MB --dataset {shards} --set storage.structure=disk "
        "--set storage.structure-policy=ratio",
    ),
    "llcg": ("minibatch", "--nproc {P} --distributed local --set distribution.correct-every=4"),
    "graphtheta": ("minibatch", "--nproc {P} --distributed cluster"),
    "p3": ("minibatch", "--nproc {P} --distributed columns"),
}
EPOCHS = {
    "gcn": "--epochs 100 --layers 2 --hidden 32 --lr 0.1 --eval-every 10",
    "minibatch": "--epochs 4 --hidden 32",
}
BATCHES = "--model sage --num-neighbors 5,5 --batch-size 512"
Row = dict[str, Any]


def run(name: str, options: argparse.Namespace, shards: Path, scratch: Path) -> Row:
    """One system's row, or why there is none."""
    program, flags = SYSTEMS[name]
    store = scratch / name
    store.mkdir()
    flags = flags.format(P=options.nproc, dir=store, shards=shards)
    command = [str(HERE / f"{program}.py"), "--dataset", options.dataset]
    command += f"{EPOCHS[program]} {BATCHES if program == 'minibatch' else ''} {flags}".split()
    print(f"\n{name}: {' '.join(command)}", flush=True)
    report = store / "report.json"
    done = subprocess.run(
        [sys.executable, *command, "--json", str(report)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        print(f"  failed: {said}", flush=True)
        return {"system": name, "failure": said}
    found = json.loads(report.read_text())
    best = found["best"] or {}
    row = {
        "system": name,
        "ranks": found["world_size"],
        "bytes": found["volume"]["total_bytes"],
        "memory": found["memory"]["max_rank_peak_above_idle_bytes"],
        "seconds": found["epoch_seconds"]["median"],
        "accuracy": best.get("test_acc"),
    }
    print(f"  {shown(row)}", flush=True)
    return row


def shown(row: Row) -> str:
    """A row of the table."""
    if "failure" in row:
        return f"| {row['system']} | {row['failure']} | | | | |"
    accuracy = "–" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
    return (
        f"| {row['system']} | {row['ranks']} | {row['bytes'] / 1e6:,.2f} | "
        f"{row['memory'] / 2**20:,.0f} | {row['seconds']:.3f} | {accuracy} |"
    )


def draw(rows: list[Row], path: Path) -> None:
    """Bars of each column, system by system."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if "failure" not in row]
    names = [row["system"] for row in rows]
    figure = Figure(figsize=(14, 0.3 * len(rows) + 2), layout="constrained")
    columns = {"bytes": "MB an epoch", "memory": "MiB", "seconds": "seconds", "accuracy": "test"}
    for axis, (key, title) in zip(figure.subplots(1, 4, sharey=True), columns.items(), strict=True):
        unit = {"bytes": 1e6, "memory": 2**20}.get(key, 1)
        axis.barh(names, [(row[key] or 0) / unit for row in rows])
        axis.set(title=title)
    axis.invert_yaxis()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dataset", default="amazon-computers")
    parser.add_argument("--nproc", type=int, default=4)
    parser.add_argument("--only", help="systems, by name")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [*SYSTEMS]
    if unknown := sorted({*names} - {*SYSTEMS}):
        parser.error(f"--only {','.join(unknown)}: choose from {', '.join(SYSTEMS)}")
    with tempfile.TemporaryDirectory() as folder:
        scratch, shards = Path(folder), Path(folder) / "shards"
        if "aligraph" in names:
            shard = [sys.executable, "-m", "spgnn", "shard", options.dataset, "--parts", "1"]
            subprocess.run([*shard, "--output", str(shards)], check=True, capture_output=True)
        rows = [run(name, options, shards, scratch) for name in names]
    print("\n| system | ranks | MB an epoch | MiB on a rank | seconds an epoch | test accuracy |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(shown(row))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    if options.plot:
        draw(rows, options.plot)
    return int(any("failure" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main())
