"""Two hosts: network namespaces with addresses, names and ``/etc/hosts`` of their own.

As Debian sets hosts up, each one's name leads to 127.0.1.1 there, where gloo would tell others to
come. The second has another interface with an address that the first cannot reach.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from spgnn.comm import connect
from tests.comm.jobs import (
    MPIEXEC,
    PATIENCE,
    ROOT,
    TRAINING,
    Forked,
    free_port,
    needs_mpi,
    wait_for,
)

HOSTS = [f"spgnn-{os.getpid()}-{letter}" for letter in "ab"]
NETWORK = """
set -e
ip netns add {0}; ip netns add {1}
ip -n {0} link add eth7 type veth peer name eth8 netns {1}
ip -n {1} link add eth0 type veth peer name eth1
ip -n {0} addr add 10.77.0.1/24 dev eth7; ip -n {1} addr add 10.77.0.2/24 dev eth8
ip -n {0} addr add fd77::1/64 dev eth7 nodad; ip -n {1} addr add fd77::2/64 dev eth8 nodad
ip -n {1} addr add 10.99.0.2/24 dev eth0
ip -n {0} link set eth7 up; ip -n {1} link set eth8 up
ip -n {1} link set eth0 up; ip -n {1} link set eth1 up
ip -n {0} link set lo up; ip -n {1} link set lo up
"""
# A command on a host: its network, its files of /etc, its name.
ON_HOST = """exec ip netns exec "$0" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$0" "$@" """
COUNT = """
import sys, time
from pathlib import Path
from spgnn.comm import connect, guarded
from spgnn.errors import InputError

try:
    comm = connect(sys.argv[1])
except InputError as error:
    sys.exit(f"error: {error}")
with guarded(comm):
    print("sum", comm.agree(comm.rank, "sum"), flush=True)
    if len(sys.argv) > 2:
        Path(sys.argv[2], str(comm.rank)).touch()
        while True:
            comm.agree(1)
            time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def hosts():
    """Their names. Only root makes such, where iproute2 is installed."""
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("needs root, and ip of iproute2")
    files = [Path("/etc/netns", host) for host in HOSTS]
    made = subprocess.run(
        ["sh", "-c", NETWORK.format(*HOSTS)], check=False, capture_output=True, text=True
    )
    try:
        if made.returncode:
            pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        for own, other, address in ((0, 1, "10.77.0.2"), (1, 0, "10.77.0.1")):
            files[own].mkdir(parents=True)
            (files[own] / "hosts").write_text(
                f"127.0.0.1 localhost\n127.0.1.1 {HOSTS[own]}\n{address} {HOSTS[other]}\n"
                "fd77::1 six\n"
            )
        yield HOSTS
    finally:
        for host, folder in zip(HOSTS, files, strict=True):
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def start(host: str, *command: object, **environment: object) -> subprocess.Popen[str]:
    """Start a command on a host, with what it prints in a pipe."""
    return subprocess.Popen(
        ["sh", "-c", ON_HOST, host, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, **{name: str(value) for name, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(*jobs: subprocess.Popen[str]) -> list[tuple[int, str]]:
    """Exit status and output of each; what does not end is killed."""
    try:
        said = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
        return [(job.returncode, out) for job, out in zip(jobs, said, strict=True)]
    finally:
        kill(jobs)


def kill(jobs: Sequence[subprocess.Popen[str]]) -> None:
    """End what has not ended."""
    for job in jobs:
        if not job.stdout.closed:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            os.set_blocking(job.stdout.fileno(), True)
            job.communicate()


def by_hand(rank: int, master: str, port: int, **more: object) -> dict[str, object]:
    """One rank on each host."""
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    return {**place, "MASTER_ADDR": master, "MASTER_PORT": port, **more}


def test_two_machines_whose_own_names_lead_to_their_loopback(tmp_path, hosts):
    """gloo would tell the other machine to come to 127.0.1.1; either may be rank 0."""

    def body() -> None:
        host = hosts[int(os.environ["LOOK_AT"])]
        with open(f"/run/netns/{host}") as network:
            assert ctypes.CDLL(None).setns(network.fileno(), 0) == 0
        comm = connect("gloo")
        part = comm.subgroup([[0, 1]])
        said = comm.agree(comm.rank + 1, "sum"), part.agree(1, "sum")
        print(*said, os.environ["GLOO_SOCKET_IFNAME"], comm.job.rank)
        comm.close()

    for first, names in ((0, ("127.0.1.1", "10.77.0.1")), (1, ("127.0.1.1", "10.77.0.2"))):
        port = free_port()
        places = [by_hand(rank, names[rank], port, LOOK_AT=first ^ rank) for rank in (0, 1)]
        jobs = [
            Forked(body, tmp_path, {k: str(v) for k, v in place.items()}, name=f"rank{rank}")
            for rank, place in enumerate(places)
        ]
        interfaces = ["eth7", "eth8"][:: 1 - 2 * first]
        assert [job.wait().out for job in jobs] == [
            f"3 2 {name} {rank}\n" for rank, name in enumerate(interfaces)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("rendezvous", ["c10d", "c10d by number", "static"])
def test_torchrun(tmp_path, hosts, check_report, rendezvous):
    port, report = free_port(), tmp_path / "report.json"
    jobs = []
    for node, host in enumerate(hosts):
        where = {
            "c10d": ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts[0]}:{port}"],
            # Where the host's name leads to the loopback, torchrun does not know its own number.
            "c10d by number": [
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.77.0.1:{port}"),
                *(["--rdzv-conf", "is_host=1", "--local-addr", "10.77.0.1"] * (node == 0)),
            ],
            "static": [*("--node-rank", node, "--master-addr", hosts[0], "--master-port", port)],
        }[rendezvous]
        torchrun = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 2]
        jobs.append(start(host, sys.executable, *torchrun, *where, *TRAINING, "--json", report))
    ended = finish(*jobs)
    assert [status for status, _ in ended] == [0, 0], "\n".join(out for _, out in ended)
    check_report(report, 4)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_mpiexec(tmp_path, hosts, check_report, backend):
    report, remote = tmp_path / "report.json", tmp_path / "remote"
    # Hydra calls it as it would ssh: [options] host command.
    remote.write_text(
        '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\nhost=$1; shift\n'
        'exec ip netns exec $host unshare --uts sh -c "hostname $host; $*"\n'
    )
    remote.chmod(0o755)
    mpiexec = [MPIEXEC, "-launcher", "rsh", "-launcher-exec", remote, "-n", 4]
    there = ["-iface", "eth7", "-hosts", ",".join(f"{host}:2" for host in hosts)]
    program = [*TRAINING, "--json", report, "--backend", backend]
    job = start(hosts[0], *mpiexec, *there, sys.executable, *program)
    [(status, out)] = finish(job)
    assert status == 0, out
    check_report(report, 4)
    assert json.loads(report.read_text())["config"]["backend"] == backend


@pytest.mark.slow
@pytest.mark.parametrize("only_v6", [False, True])
def test_a_master_of_ipv6_alone(hosts, only_v6):
    numbers = [("10.77.0.1/24", "eth7"), ("10.77.0.2/24", "eth8")]

    def address(action: str) -> None:
        for host, (number, link) in zip(hosts, numbers, strict=True):
            command = ["ip", "-n", host, "addr", action, number, "dev", link]
            subprocess.run(command, check=True)

    if only_v6:
        address("del")
    try:
        port = free_port()
        count = [sys.executable, "-c", COUNT, "gloo"]
        ended = finish(
            *(start(host, *count, **by_hand(r, "six", port)) for r, host in enumerate(hosts))
        )
    finally:
        if only_v6:
            address("add")
    assert [(status, "sum 1\n" in out) for status, out in ended] == [(0, True)] * 2, ended


@pytest.mark.slow
def test_a_host_that_vanishes(tmp_path, hosts):
    """Its connections stay open, and nothing answers: both sides end, each with a line."""
    port = free_port()
    count = [sys.executable, "-c", COUNT, "gloo", tmp_path]
    jobs = [
        start(host, *count, **by_hand(rank, "10.77.0.1", port)) for rank, host in enumerate(hosts)
    ]
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    link = ["ip", "-n", hosts[1], "link", "set", "eth8"]
    subprocess.run([*link, "down"], check=True)
    try:
        ended = finish(*jobs)
    finally:
        subprocess.run([*link, "up"], check=True)
    for (status, out), lost in zip(ended, (1, 0), strict=True):
        assert status == 1
        assert f"lost contact with rank {lost}" in out
