"""SLURM for real: a controller and two nodes, all of them daemons of this machine."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.comm.jobs import ROOT, TRAINING, command, free_port, wait_for

pytestmark = pytest.mark.slow

DAEMONS = [
    shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    for name in ("munged", "slurmctld", "slurmd", "slurmd")
]
# Node names that only SLURM knows, as in clouds.
CONFIGURATION = """
ClusterName=spgnn
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={here}/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
KillWait=3
SlurmctldPidFile={here}/controller.pid
SlurmdPidFile={here}/%n.pid
SlurmdSpoolDir={here}/%n
StateSaveLocation={here}/state
SlurmdParameters=config_overrides
NodeName=here[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""
COUNT = """
import os, sys, time
from pathlib import Path
from spgnn.comm import connect, guarded
from tests.comm.jobs import announce

comm = connect()
with guarded(comm):
    place = os.environ["SLURMD_NODENAME"], os.environ["SLURM_PROCID"], comm.agree(comm.rank, "sum")
    print(*place, flush=True)
    if len(sys.argv) > 1:
        announce(Path(sys.argv[1], str(comm.rank)), str(os.getpid()))
        while True:
            comm.agree(1)
            time.sleep(0.01)
"""


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """Runs until the last test has ended; commands find it through the environment."""
    if None in DAEMONS:
        pytest.skip("needs slurm-wlm and munge")
    here = Path(tempfile.mkdtemp(prefix="slurm"))  # the path of a socket must be short
    here.chmod(0o711)
    (here / "key").write_bytes(secrets.token_bytes(1024))
    (here / "key").chmod(0o600)
    (here / "state").mkdir()
    settings = CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        here=here,
        user=getpass.getuser(),
        controller=free_port(),
        ports=f"{free_port()},{free_port()}",
    )
    (here / "slurm.conf").write_text(settings)
    files = {"socket": "munge", "key-file": "key", "pid-file": "pid", "seed-file": "seed"}
    options = [
        ["--foreground", *(f"--{name}={here / file}" for name, file in files.items())],
        ["-D", "-c"],
        ["-D", "-N", "here1"],
        ["-D", "-N", "here2"],
    ]
    daemons = []
    with pytest.MonkeyPatch.context() as patch, open(here / "log", "w") as log:
        patch.setenv("SLURM_CONF", str(here / "slurm.conf"))
        try:
            for daemon, arguments in zip(DAEMONS, options, strict=True):
                daemons.append(subprocess.Popen([daemon, *arguments], stdout=log, stderr=log))
                if daemon == DAEMONS[0]:
                    wait_for((here / "munge").exists, 20.0)
            idle = ["sinfo", "--noheader", "--Node", "--format=%T"]
            for _ in range(100):
                done = subprocess.run(idle, capture_output=True, text=True, check=False)
                if done.stdout.split() == ["idle"] * 2:
                    break
                time.sleep(0.2)
            else:
                pytest.skip(f"SLURM does not start: {(here / 'log').read_text()[-500:]}")
            yield
        finally:
            for daemon in reversed(daemons):
                daemon.terminate()
                try:
                    daemon.wait(20)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
            shutil.rmtree(here, ignore_errors=True)


def test_srun(tmp_path, check_report):
    report = tmp_path / "report.json"
    program = [sys.executable, *TRAINING, "--json", report]
    done = command("srun", "--nodes=2", "--ntasks-per-node=2", *program)
    assert done.returncode == 0, done.stderr
    check_report(report, 4)


def test_sbatch(tmp_path, check_report):
    """The script that the documentation shows, but for its size."""
    report = tmp_path / "report.json"
    sizes = ["--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--time=5"]
    log = tmp_path / "log"
    script = ["experiments/cluster/train.sbatch", *TRAINING[1:], "--json", report]
    path = f"--export=ALL,PATH={Path(sys.executable).parent}:{os.environ['PATH']}"
    done = command("sbatch", "--wait", *sizes, f"--output={log}", path, *script)
    assert done.returncode == 0, done.stderr + log.read_text()
    check_report(report, 4)


@pytest.mark.parametrize("components", [("here1", "here2"), ("here2", "here1")])
def test_heterogeneous_steps(components):
    """Ranks are numbered by component, nodes by name."""
    first, second = components
    program = [sys.executable, "-c", COUNT]
    parts = [["-w", first, "-n", 1, *program], [":", "-w", second, "-n", 2, *program]]
    done = command("srun", *parts[0], *parts[1])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        [f"{first} 0 3", f"{second} 1 3", f"{second} 2 3"]
    )


def test_tasks_that_the_user_has_placed(tmp_path, monkeypatch):
    (tmp_path / "hosts").write_text("here2\nhere1\nhere1\n")
    monkeypatch.setenv("SLURM_HOSTFILE", str(tmp_path / "hosts"))
    done = command("srun", "--nodes=2", "-n", 3, "-m", "arbitrary", sys.executable, "-c", COUNT)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["here1 1 3", "here1 2 3", "here2 0 3"]


def test_steps_side_by_side():
    """Each has a port of its own on the node of its rank 0."""
    program = [sys.executable, "-c", COUNT]
    step = ["srun", "--overlap", "--nodes=2", "-n", "2", *program]
    script = " & ".join([" ".join(f"'{word}'" for word in step)] * 2) + "; wait $!; S=$?; wait"
    done = command("salloc", "--nodes=2", "-n", 4, "bash", "-c", f"{script}; exit $S")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["here1 0 1"] * 2 + ["here2 1 1"] * 2


@pytest.mark.parametrize(
    ("event", "words"),
    [("kill rank 3", "lost contact with rank 3"), ("scancel", "terminated (SIGTERM)")],
)
def test_a_step_that_is_killed(tmp_path, event, words):
    """A rank dies by itself, or all are asked to end: a line, and no rank is left."""
    program = [sys.executable, "-c", COUNT, tmp_path]
    line = ["srun", "--job-name", "victim", "--nodes=2", "--ntasks-per-node=2", *program]
    pipe = subprocess.PIPE
    job = subprocess.Popen(map(str, line), cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    try:
        ranks = [tmp_path / str(rank) for rank in range(4)]
        wait_for(lambda: all(rank.exists() for rank in ranks))
        if event == "scancel":
            assert command("scancel", "--name", "victim").returncode == 0
        else:
            os.kill(int(ranks[3].read_text()), signal.SIGKILL)
        _, err = job.communicate(timeout=60)
    finally:
        job.kill()
        job.communicate()
    assert job.returncode != 0
    assert words in err
    assert err.count("\nerror: ") + err.startswith("error: ") == 1, err
    wait_for(lambda: not any(Path("/proc", rank.read_text()).exists() for rank in ranks))
