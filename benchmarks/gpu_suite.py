"""Every check that needs a GPU, in one command: tests, all operations, training, the kernel table.

    python benchmarks/gpu_suite.py [--quick] --output DIR

writes DIR/gpu_suite.json and DIR/gpu_suite.md after every step, so that a run cut short leaves
what it found; a step that breaks is reported, and the others run all the same. Exit status: 0 if
all went well, 1 if a check failed, 2 for bad arguments, 3 where there is no GPU. Speed decides
nothing: the report says which bars were met.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from xml.etree import ElementTree

import gpu_attention as attention
import gpu_graphs
import gpu_measurements as measured
import gpu_operations as operations
import torch
from gpu_epoch import epochs
from gpu_report import Report, failures, markdown, summarise, write

from spgnn.addons.cuda.kernels import trouble
from spgnn.errors import InputError
from spgnn.memory import processors

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda"
WIDTHS = (16, 32, 64, 128, 256)
ROUNDS = 9
QUICK = {"steps": ["training", "tests", "memory", "rows", "distributed", "table"], "budget": 225.0}
QUICK |= {"graphs": list(gpu_graphs.QUICK), "widths": [64], "rounds": 3}
EPOCH_GRAPHS = "arxiv", "rmat-20-32"
COPIED, ROWS, HEAVY, HUB = 2**29, 2**20, 2**24, 2**22  # elements, rows, and nonzeros of steps
ONE_GRAPH = "rmat-17-32"  # of operations other than the table's
TEST_SHARE = 0.7  # of the budget that is left
RUN_SECONDS, GRACE_SECONDS = 100.0, 15.0  # of one training; of a process that is to end
SHOWN_FAILURES, SHOWN_LINES = 40, 6
PROCESSORS_A_RUN = 4  # training has up to four ranks
EPOCHS = 7
LOSS_TOLERANCE = 1e-3  # between devices, relative, over a few epochs
# Drawn on rank 0 or by counters: the same weights and dropout masks on every device and rank.
TRAINING = ["--dataset", "sbm", "--epochs", str(EPOCHS), "--dropout", "0.5"]
TRAINING += ["--set", "model.input-dropout=false"]
SHARED = ["--device", "cuda", "--backend", "gloo", "--nproc"]  # ranks on one GPU
RUNS = {
    "cpu": ["--device", "cpu"],
    "cuda": ["--device", "cuda"],
    "NCCL, 1 rank": ["--one-rank-world", "--device", "cuda"],
    "cuda, 2 ranks": [*SHARED, "2"],
    "recomputed halo": [*SHARED, "2", "--recompute-halo", "--cover", "minimum"],
    "1.5d": [*SHARED, "4", "--algo", "1.5d", "--c", "2"],
    "feature": [*SHARED, "4", "--algo", "feature", "--c", "2"],
    "3d": [*SHARED, "4", "--algo", "3d", "--c", "2"],
    "vertex cut": [*SHARED, "2", "--algo", "vertex-cut"],
    "hierarchy": [*SHARED, "4", "--hierarchy", "2", "--cover", "minimum"],
    "peers": [*SHARED, "4", "--schedule", "peers", "--buffer", "64KiB"],
}
BAD_INPUT, NO_GPU = 2, 3
FORK = multiprocessing.get_context("fork")


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
    return {
        "command": shlex.join(["python", "benchmarks/gpu_suite.py", *arguments]),
        "commit": commit(),
        "date": datetime.date.today().isoformat(),
        "trouble": trouble(),
        "versions": {
            "spgnn": version_of("spgnn"),
            "torch": torch.__version__,
            "CUDA": torch.version.cuda,
            "CuPy": version_of("cupy-cuda13x", "cupy-cuda12x", "cupy"),
            "Python": platform.python_version(),
        },
        "device": {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "capability": list(torch.cuda.get_device_capability(0)),
        },
    }


def commit() -> str:
    """Of the working tree, where git can be asked."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        return subprocess.check_output(command, cwd=ROOT, text=True, stderr=subprocess.DEVNULL)[:40]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def version_of(*packages: str) -> str:
    """Of the first that is installed."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "unknown"


def run_command(command: Sequence[str], timeout: float, log: Path) -> Report:
    """Run a part of the suite in a process of its own; its output goes to `log`.

    Out of time, it is asked to end, so that it says what it found, and then ended with all that it
    has started.
    """
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = 124
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        "command": shlex.join(command),
        "status": status,
        "seconds": time.monotonic() - start,
        "output": [*lines[-40:], *(["stopped: out of time"] if status == 124 else [])] or [""],
        "log": log.name,
    }


def training(folder: Path, timeout: float) -> Report:
    """The same short training everywhere, several at a time: losses must agree.

    The CPU's and the GPU's come first; the GPU's compiles most of what the others need.
    """
    end = time.monotonic() + timeout

    def run(where: str) -> Report:
        name = "training-" + "".join(c if c.isalnum() else "-" for c in where)
        file = folder / f".{name}.json"
        command = [sys.executable, "benchmarks/gpu_training.py", *TRAINING, *RUNS[where]]
        seconds = max(min(RUN_SECONDS, end - time.monotonic()), 1.0)
        run = run_command([*command, "--json", str(file)], seconds, folder / f"{name}.log")
        if run["status"] == 0:
            history = json.loads(file.read_text(encoding="utf-8"))["history"]
            run["losses"] = [epoch["loss"] for epoch in history]
            (folder / f"{name}.log").unlink()
        file.unlink(missing_ok=True)
        return run

    found: dict[str, Report] = {}
    with ThreadPoolExecutor(max(processors() // PROCESSORS_A_RUN, 1)) as pool:
        for names in (list(RUNS)[:2], list(RUNS)[2:]):
            found |= zip(names, pool.map(run, names), strict=True)
    for run_found in found.values():
        losses = run_found.get("losses", [])
        run_found["right"] = losses_agree(losses, found["cpu"].get("losses", []))
    return {"status": 0 if all(run["right"] for run in found.values()) else 1, "runs": found}


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
        note(f"{name}: drawing")
        A = measured.load_graph(name, DEVICE)
        report["graphs"][name] = gpu_graphs.shape_of(A)
        blocks = measured.make_blocks(A)
        for columns in options.widths:
            if budget.left() < 0:
                report["left_out"].append(f"{name}, f = {columns}")
                continue
            note(f"{name}: f = {columns}")
            case = measured.spmm_case(blocks, columns, clock, options.rounds)
            report["cases"].append({"graph": name, **case})
            report["summary"] = summarise(report["cases"])
            save()
        del A, blocks
        torch.cuda.empty_cache()


def pytest(folder: Path, name: str, timeout: float, *arguments: str) -> Report:
    """Some of the tests, on all processors. Warnings of the GPU libraries are no failures of ours.

    The first lines of each failure are kept.
    """
    file = folder / f".{name}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "--tb=short"]
    command += ["-p", "no:cacheprovider", f"--junitxml={file}", *arguments]
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(processors())]
    run = run_command(command, timeout, folder / f"{name}.log")
    run["failed"] = failed_tests(file) if file.exists() else {}
    file.unlink(missing_ok=True)
    return run


def failed_tests(file: Path) -> dict[str, list[str]]:
    """Names of tests that failed, and the first lines of why."""
    failed: dict[str, list[str]] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        for problem in (*case.iter("failure"), *case.iter("error")):
            said = problem.get("message", "").splitlines()[:SHOWN_LINES]
            place = (problem.text or "").rstrip().splitlines()[-1:]
            lines = [line[:200] for line in (*said, *place)]
            failed[f"{case.get('classname')}.{case.get('name')}"] = lines
    return dict(itertools.islice(failed.items(), SHOWN_FAILURES))


class Steps:
    """What the suite consists of: a method each, in the order in which they run.

    The table comes last; it fills whatever time is left.
    """

    def __init__(self, report: Report, options: argparse.Namespace, budget: Budget) -> None:
        self.report, self.options, self.budget = report, options, budget

    def save(self) -> None:
        """Put on disk what has been found so far."""
        write(self.report, self.options.output)

    def training(self) -> None:
        """Losses of the same training on all devices."""
        self.report["training"] = training(self.options.output, 0.5 * self.budget.left())

    def tests(self) -> None:
        """Tests that need a GPU."""
        seconds = TEST_SHARE * self.budget.left()
        arguments = (
            "-m",
            "gpu",
            "tests/addons/cuda",
            "tests/train/test_pretended_gpu.py",
            "tests/comm/test_communicators.py",
        )
        self.report["tests"] = pytest(self.options.output, "tests", seconds, *arguments)

    def placement(self) -> None:
        """Tests that pretend to have other GPUs than there are."""
        files = "tests/comm/test_place.py", "tests/train/test_measure.py"
        seconds = TEST_SHARE * self.budget.left()
        self.report["placement"] = pytest(self.options.output, "placement", seconds, *files)

    def memory(self) -> None:
        """What the memory can do at most."""
        clock = measured.DeviceClock()
        self.report["bandwidth"] = measured.bandwidth(clock, self.options.rounds, DEVICE, COPIED)

    def rows(self) -> None:
        """Listed rows, one long row, and the host's share."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        self._lines("rows", operations.row_operations(clock, rounds, DEVICE, ROWS))
        self.report["heavy_row"] = operations.heavy_row(clock, rounds, DEVICE, HEAVY)
        self.report["host_microseconds"] = operations.host_microseconds(DEVICE, 300)

    def nonzeros(self) -> None:
        """SDDMM, softmax, heads and derivatives."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        blocks = measured.make_blocks(measured.load_graph(ONE_GRAPH, DEVICE))
        found = operations.nonzero_operations(blocks, self.options.widths, clock, rounds)
        self._lines("nonzeros", found)

    def attention(self) -> None:
        """Fused attention, on a graph and on a row with half of all nonzeros."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        A = measured.load_graph(ONE_GRAPH, DEVICE)
        found = attention.fused_attention(A, clock, rounds)
        hub = attention.hub_attention(clock, rounds, DEVICE, HUB)
        self._lines("attention", itertools.chain(found, hub))

    def distributed(self) -> None:
        """A world of one rank."""
        clock, rounds = measured.DeviceClock(), self.options.rounds
        scaled = measured.scaled_block(measured.load_graph(ONE_GRAPH, DEVICE)).to("cpu")
        self._lines("distributed", operations.distributed(scaled, DEVICE, 64, clock, rounds))

    def tiles(self) -> None:
        """Sizes of tiles, on each graph."""
        clock = measured.DeviceClock()
        for name in self.options.graphs:
            A = measured.load_graph(name, DEVICE)
            for columns in sorted({min(self.options.widths), max(self.options.widths)}):
                sweep = measured.tile_sweep(A, columns, clock, self.options.rounds)
                self.report["tiles"].append({"graph": name, **sweep})

    def epoch(self) -> None:
        """Epochs of a GCN, and PyTorch Geometric's on the same card."""
        found = self.report["epochs"] = []
        for name in EPOCH_GRAPHS:
            A = measured.load_graph(name, DEVICE)
            for line in epochs(A, measured.DeviceClock(), self.options.rounds):
                found.append({"graph": name, **line})
                self.save()

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


def run_steps(options: argparse.Namespace, arguments: Sequence[str]) -> Report:
    """One step after the other, each in a process of its own; the report is on disk after each.

    So neither a lost device nor a kernel that never ends takes the steps that follow with it. This
    process does nothing on the device, or its children could not.
    """
    budget, file = Budget(options.budget), options.output / "gpu_suite.json"
    report: Report = {"left_out": [], "broken": {}, "graphs": {}, "cases": [], "tiles": []}
    report["seconds"] = {}
    for name in ("describe", *(step for step in STEPS if step in options.steps)):
        if budget.left() < 0:
            report["left_out"].append(name)
            continue
        note(name)
        start = time.monotonic()
        child = FORK.Process(target=run_step, args=(name, report, options, budget, arguments))
        child.start()
        child.join(budget.left() + GRACE_SECONDS)
        if child.exitcode is None:
            child.kill()
            child.join()
        if child.exitcode in (NO_GPU, BAD_INPUT):
            sys.exit(child.exitcode)
        report = json.loads(file.read_text(encoding="utf-8"))
        if child.exitcode:
            report["broken"][name] = f"ended with status {child.exitcode}"
        report["seconds"][name] = round(time.monotonic() - start, 1)
        write(report, options.output)
    return report


def run_step(
    name: str, report: Report, options: argparse.Namespace, budget: Budget, arguments: Sequence[str]
) -> None:
    """In a process of its own: what it finds is on disk when it ends."""
    try:
        if name == "describe":
            if not torch.cuda.is_available():
                print("error: no CUDA device; this suite needs one (docs/gpu.md)", file=sys.stderr)
                sys.exit(NO_GPU)
            report |= describe_run(arguments)
        else:
            getattr(Steps(report, options, budget), name)()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except Exception as error:
        report["broken"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
        traceback.print_exc()
    write(report, options.output)


def note(what: str) -> None:
    """Progress, for whoever watches."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(
        description="Tests, measurements and training on a GPU; see docs/gpu.md.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    known = measured.graph_names()
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="training and kernels, in 4 minutes")
    parser.add_argument("--graphs", nargs="+", default=known, metavar="NAME_OR_PATH")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS), metavar="F")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each time")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--budget", type=float, default=470, help="seconds, about")
    if parser.parse_known_args(arguments)[0].quick:
        parser.set_defaults(**QUICK)
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
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    options.output.mkdir(parents=True, exist_ok=True)
    report = run_steps(options, arguments)
    print(markdown(report))
    return 1 if failures(report) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
