"""Ranks that cannot meet end soon and say why; jobs side by side do not meet each other."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from spgnn import InputError
from spgnn.comm import connect, launch
from spgnn.comm.failure import Job, Lifelines
from spgnn.testing import run_ranks
from tests.comm.jobs import (
    MPIEXEC,
    PATIENCE,
    ROOT,
    Forked,
    free_port,
    is_alive,
    needs_mpi,
    wait_for,
)

JOINING = importlib.import_module("spgnn.comm.connect")
INTERFACE = "GLOO_SOCKET_IFNAME"
pytestmark = pytest.mark.usefixtures("clean_environment")


def rank_of_two(rank: int, port: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SPGNN_START_SECONDS": "1",
    } | more


def refusal(directory: Path, environment: dict[str, str]) -> str:
    """What connect raises in a process of its own."""

    def body() -> int:
        with pytest.raises(InputError) as caught:
            connect("gloo")
        print(caught.value)
        return 0

    ended = Forked(body, directory, environment).wait()
    assert ended.status == 0, ended
    return ended.out


@pytest.mark.parametrize(
    "agent", [{}, {"TORCHELASTIC_USE_AGENT_STORE": "True"}], ids=["rank 0", "agent"]
)
def test_nobody_keeps_the_store(tmp_path, agent):
    """As when torchrun has been killed, or rank 0 never started."""
    port = free_port()
    said = refusal(tmp_path, rank_of_two(1, port, **agent))
    assert said == f"rank 1 did not reach rank 0's store at 127.0.0.1:{port} within 1 s\n"


def test_some_rank_does_not_come(tmp_path, monkeypatch):
    # Its own store rank 0 reaches sooner or later, however busy the machine.
    store = JOINING._store
    monkeypatch.setattr(JOINING, "_store", lambda *given: store(*given[:-1], PATIENCE))
    said = refusal(tmp_path, rank_of_two(0, free_port()))
    assert said == "rank 0 waited 1 s for all 2 ranks to start\n"


def test_port_is_taken(tmp_path):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(tmp_path, rank_of_two(0, port))
    assert said.startswith(
        f"rank 0 cannot listen on port {port}: is another job there? Set MASTER_PORT"
    )


def test_name_that_leads_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(JOINING, "NAME_SECONDS", 0.5)
    for rank in (0, 1):
        place = rank_of_two(rank, free_port(), MASTER_ADDR="no-such-machine.invalid")
        said = refusal(tmp_path, place | {"SPGNN_START_SECONDS": "600"})
        assert said.startswith("no-such-machine.invalid, where rank 0 should be according to MAS")


def test_name_server_that_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(JOINING, "NAME_SECONDS", 0.5)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: time.sleep(1000))
    said = refusal(tmp_path, rank_of_two(1, free_port(), MASTER_ADDR="node7"))
    assert "leads to no address (no name server answers); set MASTER_ADDR" in said


def test_rank_0_is_not_where_the_environment_says(tmp_path, monkeypatch):
    """192.0.2.1 is nobody's."""
    monkeypatch.setattr(JOINING, "REACH_SECONDS", 0.5)
    port = free_port()
    place = rank_of_two(0, port, MASTER_ADDR="192.0.2.1")
    said = refusal(tmp_path, place | {"SPGNN_START_SECONDS": "600"})
    assert said.startswith(f"rank 0 listens on port {port}, but 192.0.2.1:{port} leads elsewhere")


@pytest.mark.parametrize("answer", [None, b"", b"SSH-2.0-OpenSSH_9\r\n"])
def test_another_service_listens_there(tmp_path, answer):
    """It may be silent, hang up, or talk in its own way."""
    stopped = threading.Event()

    def serve(server: socket.socket) -> None:
        with ExitStack() as lines:
            while not stopped.is_set():
                with suppress(TimeoutError):
                    line = lines.enter_context(server.accept()[0])
                    line.close() if answer == b"" else line.sendall(answer or b"")

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        said = refusal(tmp_path, rank_of_two(1, port))
        stopped.set()
        thread.join()
    assert said == f"rank 1 did not reach rank 0's store at 127.0.0.1:{port} within 1 s\n"


def of_each(
    directory: Path, body: Callable[[], object], *environments: dict[str, str]
) -> list[str]:
    """What ranks that different environments describe print, or are refused with."""

    def rank() -> None:
        try:
            print(body())
        except InputError as error:
            print(error)

    jobs = [
        Forked(rank, directory, environment, name=f"rank{number}")
        for number, environment in enumerate(environments)
    ]
    return [job.wait().out.strip() for job in jobs]


def test_ranks_that_do_not_fit_together(tmp_path):
    """All are told, and none waits for a rank that does not come."""
    patient = {"SPGNN_START_SECONDS": "600"}
    port = free_port()
    places = [rank_of_two(rank, port, **patient, WORLD_SIZE=str(rank + 2)) for rank in (0, 1)]
    [said, other] = of_each(tmp_path, connect, *places)
    assert said == other
    assert said in [
        f"rank {one} was told of {one + 2} ranks, others of {3 - one}" for one in (0, 1)
    ]
    port = free_port()
    places = [rank_of_two(rank, port, **patient, WORLD_SIZE="3") for rank in (0, 1, 1)]
    said = "two processes were told to be rank 1 of 3"
    assert of_each(tmp_path, connect, *places) == [said] * 3


def test_interface_of_another_machine(tmp_path):
    """It is an error where a network is needed, and does not matter where memory is shared."""
    named = {"GLOO_SOCKET_IFNAME": "nosuch0", "LOCAL_WORLD_SIZE": "2"}
    patient = {"SPGNN_START_SECONDS": "600"}

    def ranks() -> list[dict[str, str]]:
        port = free_port()
        one, other = (rank_of_two(rank, port, **patient, LOCAL_RANK=str(rank)) for rank in (0, 1))
        return [one | named | {"GLOO_SOCKET_IFNAME": "lo"}, other | named]

    def shared() -> int:
        comm = connect("shm")
        total = comm.agree(1, "sum")
        comm.close()
        return total

    said = of_each(tmp_path, lambda: connect("gloo"), *ranks())
    assert len(set(said)) == 1
    assert said[0].startswith("GLOO_SOCKET_IFNAME=nosuch0 names no interface with an address on th")
    assert of_each(tmp_path, shared, *ranks()) == ["2", "2"]


NAMESPACES = """
set -e
ip netns add spgnn-a; ip netns add spgnn-b
ip -n spgnn-a link add eth7 type veth peer name eth8 netns spgnn-b
ip -n spgnn-a addr add 10.77.0.1/24 dev eth7; ip -n spgnn-b addr add 10.77.0.2/24 dev eth8
ip -n spgnn-a link set eth7 up; ip -n spgnn-b link set eth8 up
ip -n spgnn-a link set lo up; ip -n spgnn-b link set lo up
"""


@pytest.fixture
def two_machines():
    """Their names; a network joins them. Only root makes such, where iproute2 is installed."""
    names = ["spgnn-a", "spgnn-b"]
    remove = ["sh", "-c", "".join(f"ip netns del {name} 2>/dev/null;" for name in names)]
    if shutil.which("ip") is None or os.getuid() != 0:
        pytest.skip("needs root, and ip of iproute2")
    subprocess.run(remove, check=False)
    made = subprocess.run(["sh", "-c", NAMESPACES], check=False, capture_output=True, text=True)
    try:
        if made.returncode:
            pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        yield names
    finally:
        subprocess.run(remove, check=False)


def test_two_machines_whose_own_names_lead_to_their_loopback(tmp_path, two_machines):
    """As Debian sets up: gloo would tell the other machine to come to 127.0.1.1."""

    def body() -> object:
        name = two_machines[int(os.environ["RANK"])]
        with open(f"/run/netns/{name}") as network:
            assert ctypes.CDLL(None).setns(network.fileno(), 0) == 0
        comm = connect("gloo")
        part = comm.subgroup([[0, 1]])
        said = comm.agree(comm.rank + 1, "sum"), part.agree(1, "sum"), os.environ[INTERFACE]
        comm.close()
        return *said, comm.job.rank

    port = free_port()
    patient = {"SPGNN_START_SECONDS": "600", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    places = [
        rank_of_two(0, port, **patient, MASTER_ADDR="127.0.1.1"),
        rank_of_two(1, port, **patient, MASTER_ADDR="10.77.0.1"),
    ]
    said = of_each(tmp_path, body, *places)
    assert said == ["(3, 2, 'eth7', 0)", "(3, 2, 'eth8', 1)"]


def test_ranks_die_with_torchrun(tmp_path):
    """Its ranks have nobody else to end them; here its part is played by a fork of ours."""

    def rank(number: int, port: int) -> None:
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "here"}
        os.environ.update(rank_of_two(number, port, SPGNN_START_SECONDS="300", **agent))
        connect("gloo").barrier()
        begun = tmp_path / f"{number}.begun"  # a name is there once there is something in the file
        begun.write_text(str(os.getpid()))
        begun.rename(tmp_path / str(number))
        time.sleep(1000)

    def torchrun() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        for number in range(2):
            if os.fork() == 0:
                rank(number, listener.getsockname()[1])
        port, descriptor = listener.getsockname()[1], listener.detach()
        wait = timedelta(seconds=300)
        store = TCPStore("127.0.0.1", port, None, True, wait, False, master_listen_fd=descriptor)
        time.sleep(1000)
        del store

    job = Forked(torchrun, tmp_path)
    wait_for(lambda: all((tmp_path / str(number)).exists() for number in range(2)))
    job.signal(signal.SIGKILL)
    pids = [int((tmp_path / str(number)).read_text()) for number in range(2)]
    wait_for(lambda: not any(is_alive(pid) for pid in pids))
    assert job.wait().status == -signal.SIGKILL


def test_torchrun_is_told_by_its_variables():
    """Those that decide who keeps the store, and with whom ranks die."""
    source = Path(torch.__file__).parent / "distributed/elastic/agent/server/local_elastic_agent.py"
    for name in (
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
    ):
        assert name in source.read_text()


@needs_mpi
def test_two_jobs_side_by_side():
    """Under mpiexec the ranks of gloo agree on a free port through MPI."""
    program = (
        "from spgnn.comm import connect, guarded\n"
        "comm = connect('gloo')\n"
        "with guarded(comm):\n"
        "    for _ in range(50): comm.barrier()\n"
        "    total = comm.agree(comm.rank, 'sum')\n"
        "    if comm.rank == 0: print(type(comm).__name__, total)\n"  # mpiexec mixes their lines
    )
    command = [MPIEXEC, "-n", "2", sys.executable, "-c", program]
    pipe = subprocess.PIPE
    jobs = [subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) for _ in "ab"]
    ended = [(*job.communicate(timeout=PATIENCE), job.returncode) for job in jobs]
    for out, err, status in ended:
        assert (status, out) == (0, "TorchCommunicator 1\n"), err


def test_strangers_take_no_slot():
    """Who does not know the secret is turned away, however much it says."""
    published: queue.Queue[str] = queue.Queue()
    zero = Job(0, 3)

    def publish(text: str | None) -> str:
        published.put(text or "")
        return text or ""

    first = threading.Thread(
        target=lambda: setattr(zero, "lifelines", Lifelines(zero, "", publish, 1000.0))
    )
    first.start()
    said = published.get(timeout=PATIENCE)
    port, token = said.split()
    strangers = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(4)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n" * 10)
    almost = token[:-1] + ("0" if token[-1] != "0" else "1")
    strangers[1].sendall(json.dumps(["here", almost, 1]).encode() + b"\n")
    strangers[2].sendall(json.dumps(["here", token, 3]).encode() + b"\n")  # there is no such rank
    others = {
        rank: Lifelines(Job(rank, 3), "127.0.0.1", lambda text: said, 1000.0) for rank in (1, 2)
    }
    first.join(PATIENCE)
    for stranger in strangers:
        stranger.close()
    assert zero.lifelines.lost is None
    others.pop(2).leave()
    wait_for(lambda: set(zero.lifelines.ended) == {2} == set(others[1].ended))
    assert zero.lifelines.lost is None
    others[1]._lines[0].shutdown(socket.SHUT_RDWR)  # as the system does when a rank is killed
    wait_for(lambda: zero.lifelines.lost == 1)
    assert set(zero.lifelines.ended) == {2}


def test_as_many_descriptors_as_the_system_allows():
    def limits(rank: int) -> tuple[int, int]:
        return resource.getrlimit(resource.RLIMIT_NOFILE)

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(500, before[1]), before[1]))
        assert run_ranks(limits, 2) == [(before[1], before[1])] * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_nothing_is_said_of_destroyed_groups(tmp_path):
    """torch warns of groups with several backends once any module has registered another one."""

    def body() -> None:
        import torch.testing._internal.distributed.fake_pg  # noqa: F401

        comm = connect("gloo")
        comm.subgroup([[0, 1], [2]]).barrier()
        comm.close()

    ended = Forked(lambda: launch(body, 3), tmp_path).wait()
    assert (ended.status, ended.err) == (0, "")


def test_a_process_group_of_the_programs_own(tmp_path):
    """Would be made twice: the line says what to leave out."""

    def program() -> None:
        torch.distributed.init_process_group("gloo")
        with pytest.raises(InputError, match="leave out init_process_group"):
            connect()
        # Rank 0 holds the store that rank 1 may still be making its group with.
        (tmp_path / f"refused {os.environ['RANK']}").touch()
        wait_for(lambda: len(list(tmp_path.glob("refused ?"))) == 2)

    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_port())
    ranks = [
        Forked(program, tmp_path, place | {"RANK": rank, "LOCAL_RANK": rank}, name=f"rank{rank}")
        for rank in ("0", "1")
    ]
    assert [rank.wait().status for rank in ranks] == [0, 0]
