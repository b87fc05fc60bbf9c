"""Every check that needs a GPU, in one command: tests, the kernel table, a training run.

    python benchmarks/gpu_suite.py --output DIR

writes DIR/gpu_suite.json and DIR/gpu_suite.md after every step, so that a run cut short leaves
what it found. Exit status: 0 if all went well, 1 if a check failed, 2 for bad arguments, 3 where
there is no GPU. Speed decides nothing: the report says which bars were met.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpu_measurements as measured
import torch
from gpu_report import Report, failures, markdown, summarise, write

from spgnn.errors import InputError
from spgnn.kernels.cuda import device

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda"
WIDTHS = (16, 64, 128, 300)
STEPS = ("tests", "memory", "table", "rows", "training")
ROUNDS = 15
TEST_SHARE = 0.45  # of the budget
LOSS_TOLERANCE = 1e-3  # between devices, relative, over a few epochs
NO_GPU = 3


class Budget:
    """Seconds left of those the suite may take."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Negative once they are spent."""
        return self._end - time.monotonic()


def describe_run(arguments: Sequence[str]) -> Report:
    """What the figures depend on."""
    properties = torch.cuda.get_device_properties(0)
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    cupy = device.cupy()
    return {
        "command": shlex.join(["python", "benchmarks/gpu_suite.py", *arguments]),
        "commit": git.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
        "versions": {
            "spgnn": version("spgnn"),
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "CuPy": cupy.__version__,
            "Python": platform.python_version(),
        },
        "device": {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "capability": list(torch.cuda.get_device_capability(0)),
        },
    }


def run_command(command: Sequence[str], timeout: float) -> Report:
    """Run a part of the suite in a process of its own; its last lines are kept."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            check=False,
            timeout=timeout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as expired:
        status, output = 124, (expired.stdout or b"") + b"\nstopped: out of time"
    return {
        "command": shlex.join(command),
        "status": status,
        "seconds": time.monotonic() - start,
        "output": output.decode(errors="replace").splitlines()[-40:] or [""],
    }


def training(folder: Path, timeout: float) -> Report:
    """A short training on the GPU and on the CPU: the losses must fall and agree."""
    found: Report = {"status": 0, "losses": {}}
    for where in ("cuda", "cpu"):
        file = folder / f".training_{where}.json"
        command = [sys.executable, "experiments/gcn.py", "--dataset", "sbm", "--epochs", "5"]
        run = run_command([*command, "--device", where, "--json", str(file)], timeout / 2)
        found[where] = run
        if run["status"] != 0:
            return found | {"status": run["status"]}
        found["losses"][where] = [e["loss"] for e in json.loads(file.read_text())["history"]]
        file.unlink()
    return found | {"status": 0 if losses_agree(**found["losses"]) else 1}


def losses_agree(cuda: Sequence[float], cpu: Sequence[float]) -> bool:
    """Whether the loss falls, and is the same on both devices beyond rounding."""
    close = all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in zip(cuda, cpu, strict=True))
    return close and cuda[-1] < cuda[0]


def fill_table(
    report: Report, options: argparse.Namespace, budget: Budget, save: Callable[[], None]
) -> None:
    """All graphs and widths; what does not fit into the budget is listed as left out."""
    clock = measured.DeviceClock()
    for name in options.graphs:
        if budget.left() < 0:
            report["left_out"].append(name)
            continue
        note(f"{name}: reading")
        blocks = measured.make_blocks(measured.load_graph(name), DEVICE)
        for columns in options.widths:
            note(f"{name}: f = {columns}")
            case = measured.spmm_case(blocks, columns, clock, options.rounds)
            report["cases"].append({"graph": name, **case})
        report["summary"] = summarise(report["cases"])
        for columns in sorted({min(options.widths), max(options.widths)}):
            sweep = measured.tile_sweep(blocks.plain, columns, clock, options.rounds)
            report["tiles"].append({"graph": name, **sweep})
        del blocks
        torch.cuda.empty_cache()
        save()


def run_steps(report: Report, options: argparse.Namespace) -> None:
    """One step after the other; the report is on disk after each."""
    budget = Budget(options.budget)
    report |= {"left_out": [], "cases": [], "tiles": []}

    def save() -> None:
        write(report, options.output)

    def tests() -> None:
        # Warnings of the GPU libraries at hand are no failures of spgnn.
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-W", "default"]
        report["tests"] = run_command(command, TEST_SHARE * budget.left())

    def memory() -> None:
        clock = measured.DeviceClock()
        report["bandwidth"] = measured.bandwidth(clock, options.rounds, DEVICE, 2**29)

    def table() -> None:
        fill_table(report, options, budget, save)

    def rows() -> None:
        clock = measured.DeviceClock()
        report["rows"] = measured.row_operations(clock, options.rounds, DEVICE, 2**20)
        report["heavy_row"] = measured.heavy_row(clock, options.rounds, DEVICE, 2**24)
        report["host_microseconds"] = measured.host_microseconds(DEVICE, 300)

    def train() -> None:
        report["training"] = training(options.output, 0.5 * budget.left())

    # The training is short and the table fills whatever time is left.
    steps = {"tests": tests, "memory": memory, "rows": rows, "training": train, "table": table}
    for name, step in steps.items():
        if name not in options.steps:
            continue
        note(name)
        if budget.left() < 0:
            report["left_out"].append(name)
        else:
            step()
        save()


def note(what: str) -> None:
    """Progress, for whoever watches."""
    if sys.stderr.isatty():
        print(what, file=sys.stderr)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        description="Tests, kernel table and training on a GPU; see docs/gpu.md.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    known = list(measured.graph_names())
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--graphs", nargs="+", default=known, metavar="NAME_OR_PATH")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS), metavar="F")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each time")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--budget", type=float, default=500, help="seconds, about")
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        raise InputError(f"--rounds must be at least 2 to have a spread, got {options.rounds}")
    if min(options.widths) < 1:
        raise InputError(f"--widths must be at least 1, got {min(options.widths)}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Exit status, as the module says."""
    try:
        options = parse(arguments)
        if not torch.cuda.is_available():
            print("error: no CUDA device; this suite needs one (docs/gpu.md)", file=sys.stderr)
            return NO_GPU
        options.output.mkdir(parents=True, exist_ok=True)
        report: dict[str, Any] = describe_run(arguments)
        run_steps(report, options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(markdown(report))
    return 1 if failures(report) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
