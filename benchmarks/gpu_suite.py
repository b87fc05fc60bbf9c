"""Every check that needs a GPU, in one command: tests, all operations, training, the kernel table.

    python benchmarks/gpu_suite.py --output DIR

writes DIR/gpu_suite.json and DIR/gpu_suite.md after every step, so that a run cut short leaves
what it found; a step that breaks is reported, and the others run all the same. Exit status: 0 if
all went well, 1 if a check failed, 2 for bad arguments, 3 where there is no GPU. Speed decides
nothing: the report says which bars were met.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import platform
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gpu_attention as attention
import gpu_measurements as measured
import gpu_operations as operations
import torch
from gpu_report import Report, failures, markdown, summarise, write

from spgnn.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda"
WIDTHS = (16, 64, 128, 300)
ROUNDS = 15
TEST_SHARE = 0.45  # of the budget
EPOCHS = 13  # the operator clock runs in two of them
LOSS_TOLERANCE = 1e-3  # between devices, relative, over a few epochs
# Drawn on rank 0 or by counters: the same weights and dropout masks on every device and rank.
TRAINING = ["--dataset", "sbm", "--epochs", str(EPOCHS), "--dropout", "0.5"]
TRAINING += ["--set", "model.input-dropout=false"]
SHARED = ["--device", "cuda", "--backend", "gloo", "--nproc"]  # ranks on one GPU
RUNS = {
    "cpu": ["--device", "cpu"],
    "cuda": ["--device", "cuda"],
    "cuda, 2 ranks": [*SHARED, "2"],
    "ghosts": [*SHARED, "2", "--recompute-halo", "--cover", "minimum"],
    "1.5d": [*SHARED, "4", "--algo", "1.5d", "--c", "2"],
    "feature": [*SHARED, "4", "--algo", "feature", "--c", "2"],
    "3d": [*SHARED, "4", "--algo", "3d", "--c", "2"],
    "vertex cut": [*SHARED, "2", "--algo", "vertex-cut"],
    "hierarchy": [*SHARED, "4", "--hierarchy", "2", "--cover", "minimum"],
    "peers": [*SHARED, "4", "--schedule", "peers", "--buffer", "64KiB"],
}
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
    return {
        "command": shlex.join(["python", "benchmarks/gpu_suite.py", *arguments]),
        "commit": git.stdout.strip() or "unknown",
        "date": datetime.date.today().isoformat(),
        "versions": {
            "spgnn": version("spgnn"),
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "CuPy": import_module("cupy").__version__,
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
    """A short training on the CPU, the GPU, and ranks that share it: losses must agree."""
    found: Report = {"status": 0, "runs": {}}
    for where, flags in RUNS.items():
        file = folder / ".training.json"
        command = [sys.executable, "experiments/gcn.py", *TRAINING, *flags, "--json", str(file)]
        run = run_command(command, timeout / len(RUNS))
        found["runs"][where] = run
        if run["status"] != 0:
            found["status"] = run["status"]
            continue
        trained = json.loads(file.read_text(encoding="utf-8"))
        file.unlink()
        run["losses"] = [epoch["loss"] for epoch in trained["history"]]
        run |= {key: trained[key] for key in ("epoch_seconds", "breakdown_seconds")}
    losses = [run.get("losses", []) for run in found["runs"].values()]
    if found["status"] == 0 and not all(losses_agree(each, losses[0]) for each in losses):
        found["status"] = 1
    return found


def losses_agree(losses: Sequence[float], expected: Sequence[float]) -> bool:
    """Whether the loss falls, and is the expected one in every epoch, beyond rounding."""
    if len(losses) != len(expected) or not losses:
        return False
    pairs = zip(losses, expected, strict=True)
    return losses[-1] < losses[0] and all(abs(a - b) <= LOSS_TOLERANCE * abs(b) for a, b in pairs)


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


def pytest(timeout: float, *arguments: str) -> Report:
    """Some of the tests. Warnings of the GPU libraries at hand are no failures of spgnn."""
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", *arguments]
    return run_command(command, timeout)


class Steps:
    """What the suite consists of: a method each, in the order in which they run.

    The table comes last; it fills whatever time is left.
    """

    def __init__(self, report: Report, options: argparse.Namespace, budget: Budget) -> None:
        self.report, self.options, self.budget = report, options, budget

    def save(self) -> None:
        """Put on disk what has been found so far."""
        write(self.report, self.options.output)

    def tests(self) -> None:
        """Tests that need a GPU."""
        self.report["tests"] = pytest(TEST_SHARE * self.budget.left(), "-m", "gpu")

    def placement(self) -> None:
        """Tests that pretend to have other GPUs than there are."""
        files = "tests/comm/test_placement.py", "tests/train/test_measure.py"
        self.report["placement"] = pytest(TEST_SHARE * self.budget.left(), *files)

    def memory(self) -> None:
        """What the memory can do at most."""
        clock = measured.DeviceClock()
        self.report["bandwidth"] = measured.bandwidth(clock, self.options.rounds, DEVICE, 2**29)

    def rows(self) -> None:
        """Listed rows, one long row, and the host's share."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        self._lines("rows", operations.row_operations(clock, rounds, DEVICE, 2**20))
        self.report["heavy_row"] = operations.heavy_row(clock, rounds, DEVICE, 2**24)
        self.report["host_microseconds"] = operations.host_microseconds(DEVICE, 300)

    def nonzeros(self) -> None:
        """SDDMM, softmax, heads and derivatives, on the first graph."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        blocks = measured.make_blocks(measured.load_graph(self.options.graphs[0]), DEVICE)
        found = operations.nonzero_operations(blocks, self.options.widths, clock, rounds)
        self._lines("nonzeros", found)

    def attention(self) -> None:
        """Fused attention, on the first graph and on one with a hub."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        A = measured.load_graph(self.options.graphs[0]).to(DEVICE)
        found = attention.fused_attention(A, clock, rounds)
        hub = attention.hub_attention(clock, rounds, DEVICE, 2**22)
        self._lines("attention", itertools.chain(found, hub))

    def distributed(self) -> None:
        """A world of one rank, on the first graph."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        scaled = measured.scaled_block(measured.load_graph(self.options.graphs[0]))
        self._lines("distributed", operations.distributed(scaled, DEVICE, 64, clock, rounds))

    def training(self) -> None:
        """Losses of the same training on all devices."""
        self.report["training"] = training(self.options.output, 0.5 * self.budget.left())

    def table(self) -> None:
        """Products against cuSPARSE."""
        fill_table(self.report, self.options, self.budget, self.save)

    def _lines(self, name: str, lines: Iterable[operations.Line]) -> None:
        found = self.report[name] = []
        for line in lines:
            note(f"{name}: {line['operation']}, f = {line['columns']}")
            found.append(line)
            self.save()
            if self.budget.left() < 0:
                self.report["left_out"].append(f"the rest of {name}")
                return


STEPS = [name for name in vars(Steps) if not name.startswith("_") and name != "save"]


def run_steps(report: Report, options: argparse.Namespace) -> None:
    """One step after the other; the report is on disk after each."""
    budget = Budget(options.budget)
    report |= {"left_out": [], "broken": {}, "cases": [], "tiles": []}
    steps = Steps(report, options, budget)
    for name in STEPS:
        if name not in options.steps:
            continue
        note(name)
        if budget.left() < 0:
            report["left_out"].append(name)
        else:
            try:
                getattr(steps, name)()
            except InputError:
                raise
            except Exception as error:  # out of memory, say: the other steps may do all the same
                report["broken"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
                traceback.print_exc()
        steps.save()


def note(what: str) -> None:
    """Progress, for whoever watches."""
    if sys.stderr.isatty():
        print(what, file=sys.stderr)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        description="Tests, measurements and training on a GPU; see docs/gpu.md.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    known = measured.graph_names()
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--graphs", nargs="+", default=known, metavar="NAME_OR_PATH")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS), metavar="F")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each time")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
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
