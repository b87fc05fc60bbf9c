"""Programs of others compute with spgnn on ranks what they compute on one process."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.comm.jobs import ROOT

pytestmark = pytest.mark.slow
GUESTS = ROOT / "experiments" / "guests"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def ended(*words: object) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONWARNINGS"}
    command, environment = [sys.executable, *map(str, words)], {"PYTHONPATH": str(ROOT)} | clean
    how = {"capture_output": True, "text": True, "timeout": 600}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False, **how)


def printed(*words: object) -> list[str]:
    done = ended(*words)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^(?:epoch \d+: loss|accuracy of|\d+ workers from).*", done.stdout, re.M)


def needs(*modules: str) -> None:
    if not all(map(importlib.util.find_spec, modules)):
        pytest.skip(f"needs {', '.join(modules)}")


@pytest.fixture(scope="module")
def losses() -> list[str]:
    needs("torch_geometric")
    lines = printed(*TORCHRUN, 2, ROOT / "experiments" / "pyg" / "on_ranks.py")
    assert len(lines) == 5
    return lines


@pytest.mark.parametrize("processes", [2, 4])
def test_lightning(losses, processes):
    needs("lightning")
    assert printed(GUESTS / "in_lightning.py", processes) == losses


@pytest.mark.parametrize(("ranks", "members"), [(2, 1), (4, 1), (4, 2)])
def test_a_mesh_and_fsdp2(losses, ranks, members):
    """Each row of the mesh trains as all ranks would; the first one draws what others draw."""
    *lines, last = printed(*TORCHRUN, ranks, GUESTS / "on_a_mesh.py", members)
    assert lines == losses
    assert last.startswith(f"accuracy of {members} together")


@pytest.mark.parametrize("workers", [2, 4])
def test_ray_train(losses, tmp_path, workers):
    needs("ray")
    lines = printed(GUESTS / "in_ray.py", "--workers", workers, "--directory", tmp_path)
    assert lines == [*losses, f"{workers} workers from epoch 1"]


def test_a_killed_worker_of_ray(losses, tmp_path):
    """Ray goes on from the checkpoint with as many workers; started again, with one fewer."""
    needs("ray")
    killed = (GUESTS / "in_ray.py", "--kill-at", 25, "--directory")
    *same, last = printed(*killed, tmp_path / "a")
    assert same == losses
    # The one that was killed may not have said yet that the second checkpoint is complete.
    assert last in ("2 workers from epoch 11", "2 workers from epoch 21")
    gone = ended(*killed, tmp_path / "b", "--retries", 0)
    assert gone.returncode != 0
    assert "lost contact with a peer in " in gone.stderr + gone.stdout
    *same, last = printed(GUESTS / "in_ray.py", "--workers", 1, "--directory", tmp_path / "b")
    assert same == losses
    assert last in ("1 workers from epoch 11", "1 workers from epoch 21")


COMPARED = sorted(path for path in GUESTS.glob("*.py") if "import compare" in path.read_text())


@pytest.mark.parametrize("script", COMPARED, ids=lambda script: script.stem)
def test_a_program_compares_itself_with_one_process(script):
    program = script.stem.split("_")[1]
    needs(program, *["torch_scatter"] * (program == "physicsnemo"))
    done = ended(*TORCHRUN, 3, script)
    assert done.returncode == 0, done.stderr
    assert " from one process, " in done.stdout
