"""How jobs start: the local launcher, ranks that cannot meet, jobs side by side."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import queue
import resource
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
from torch import distributed as dist
from torch.distributed import TCPStore

from spgnn import InputError
from spgnn.comm import connect, launch
from spgnn.comm.failure import Job, Lifelines, world
from spgnn.testing import run_ranks
from spgnn.train.run import main
from tests.comm.jobs import (
    MPIEXEC,
    PATIENCE,
    ROOT,
    Ended,
    Forked,
    announce,
    free_port,
    is_alive,
    needs_mpi,
    on_their_own,
    wait_for,
)

JOINING = importlib.import_module("spgnn.comm.connect")
LAUNCHER = importlib.import_module("spgnn.comm.launch")
INTERFACE = "GLOO_SOCKET_IFNAME"
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


# The local launcher.


def test_a_rank_of_the_local_launcher():
    """It is described as under torchrun, and connects once; what its parent is, it is not."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert connect().size == 1

    def look(rank: int) -> list[object]:
        comm = connect()
        assert connect() is comm is world()
        found = [comm.rank, comm.size, torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]]
        return [*found, *(os.environ[name] for name in names)]

    found = run_ranks(look, 3, threads=3)
    port = found[0][-1]
    assert found == [[r, 3, 3, "3", str(r), str(r), "3", "3", "127.0.0.1", port] for r in range(3)]
    assert "RANK" not in os.environ


def named(descriptor: Path) -> str:
    """The file of a descriptor, if it is still there."""
    with suppress(FileNotFoundError):
        return os.readlink(descriptor).removesuffix(" (deleted)")
    return ""


def test_where_ranks_of_the_local_launcher_meet(tmp_path):
    """Nobody but they can open it, and nothing listens where another user could connect."""

    def rank() -> None:
        comm = connect("gloo")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
        own = Path(f"/proc/{os.getpid()}/fd")
        (theirs,) = (own / fd for fd in os.listdir(own) if named(own / fd) == "/memfd:spgnn store")
        comm.barrier()
        if comm.rank == 0 and os.getuid() == 0:
            child = os.fork()
            if child == 0:
                os.setuid(65534)
                with suppress(PermissionError):
                    theirs.read_bytes()
                    os._exit(1)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        comm.barrier()

    ended = Forked(lambda: launch(rank, 2), tmp_path).wait()
    assert ended == Ended(0, "", "")


def test_ranks_are_not_forked_from_a_process_with_a_group(tmp_path):
    def program() -> int:
        dist.init_process_group("gloo")
        status = launch(lambda: None, 2)
        if os.fork() == 0:
            try:
                connect()
            except InputError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        dist.destroy_process_group()
        return status

    (ended,) = on_their_own(program, tmp_path, 1)
    assert ended.status == 2
    assert ended.err.startswith("error: ranks cannot be forked from a process that has a process")
    assert ended.out.startswith("group: this process is a fork of one with a process group")


def raising(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("victim", "end", "status", "words"),
    [
        (1, lambda: None, 0, []),
        (1, lambda: 0, 0, []),
        (1, lambda: 7, 7, []),
        (2, lambda: sys.exit(5), 5, []),
        (2, sys.exit, 0, []),
        (2, lambda: sys.exit("no number"), 1, ["error: rank 2: no number\n"]),
        (0, lambda: os.kill(os.getpid(), signal.SIGTERM), 143, ["rank 0 was terminated"]),
        (1, lambda: os.kill(os.getpid(), 36), 164, ["rank 1 was killed by SIGRTMIN+2\n"]),
        (2, lambda: os.kill(os.getpid(), 64), 192, ["rank 2 was killed by SIGRTMAX\n"]),
        (1, lambda: raising(LookupError("no bridge")), 1, ["error: rank 1:", "no bridge"]),
    ],
)
def test_status_of_a_job(tmp_path, victim, end, status, words):
    body = lambda: end() if os.environ["RANK"] == str(victim) else 0  # noqa: E731
    ended = Forked(lambda: launch(body, 3), tmp_path).wait()
    assert ended.status == status
    assert all(word in ended.err for word in words)
    assert bool(ended.err) == bool(words)


def test_failed_ranks_have_no_results(capfd):
    def fail_on_one(rank: int) -> None:
        assert rank != 1, "not me"

    with pytest.raises(RuntimeError, match="a rank failed with status 1"):
        run_ranks(fail_on_one, 2)
    assert "error: rank 1: AssertionError: not me" in capfd.readouterr().err


def test_output_is_whole(tmp_path):
    """What ranks print just before they end is not lost."""
    job = Forked(lambda: launch(lambda: print("x" * 5000), 3), tmp_path)
    assert sorted(job.wait().out.split()) == ["x" * 5000] * 3


def test_systems_and_parents_of_their_own_kind(tmp_path, monkeypatch):
    """Some have no descriptors of processes; some parents ignore the end of their children."""

    def body() -> int:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        return launch(lambda: int(os.environ["RANK"]) * 3, 2)

    assert Forked(body, tmp_path).wait().status == 3

    def refused(*given: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert run_ranks(lambda rank: rank, 2) == [0, 1]


def test_loopback_that_cannot_be_reached(tmp_path):
    def body() -> int:
        if ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            return 77
        return launch(lambda: None, 2)

    ended = Forked(body, tmp_path).wait()
    if ended.status == 77:
        pytest.skip("needs a network namespace of its own")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert ended.err.startswith("error: ranks meet at 127.0.0.1, which this process cannot reach (")


def test_limit_of_processes(tmp_path, monkeypatch):
    """The ranks that could start are ended."""
    fork, pids = LAUNCHER._fork, []

    def limited() -> int:
        if len(pids) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        pids.append(fork())
        if pids[-1]:
            (tmp_path / str(pids[-1])).touch()
        return pids[-1]

    monkeypatch.setattr(LAUNCHER, "_fork", limited)
    ended = Forked(lambda: launch(lambda: time.sleep(1000), 3), tmp_path).wait()
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "2 of 3 ranks could start (Resource temporarily unavailable): start fewer" in ended.err
    started = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(started) == 2
    assert not any(is_alive(pid) for pid in started)


def test_ranks_are_started_once(tmp_path):
    """A rank of mpiexec may fork ranks; --nproc must say how many a launcher has started."""
    outer = {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}
    job = Forked(lambda: launch(lambda: connect("gloo").size, 2), tmp_path, outer)
    assert job.wait().status == 2
    ended = Forked(
        lambda: main(["--nproc", "2"]), tmp_path, {"RANK": "0", "WORLD_SIZE": "3"}
    ).wait()
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "--nproc 2" in ended.err
    assert "already started 3" in ended.err


# Ranks that cannot meet.


def rank_of_two(rank: int, port: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SPGNN_START_SECONDS": "1",
    } | more


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


def refusal(directory: Path, environment: dict[str, str]) -> str:
    """The error of connect in a process of its own."""
    return of_each(directory, lambda: connect("gloo"), environment)[0]


def test_nobody_keeps_the_store(tmp_path, monkeypatch):
    """As when rank 0 never started, or torchrun has been killed; who waits long says for whom."""
    monkeypatch.setattr(JOINING, "NOTE_SECONDS", 0.2)
    for agent in {}, {"TORCHELASTIC_USE_AGENT_STORE": "True"}:
        port = free_port()
        place = rank_of_two(1, port, LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", **agent)
        said = refusal(tmp_path, place)
        assert said == f"rank 1 did not reach rank 0's store at 127.0.0.1:{port} within 1 s"
        note = f"note: rank 1 waits for rank 0 at 127.0.0.1:{port} (Connection refused), for "
        assert (tmp_path / "rank0.err").read_text().startswith("" if agent else note)


def test_some_rank_does_not_come(tmp_path, monkeypatch):
    # Its own store rank 0 reaches sooner or later, however busy the machine.
    store = JOINING._store
    monkeypatch.setattr(JOINING, "_store", lambda *given: store(*given[:-1], PATIENCE))
    monkeypatch.setattr(JOINING, "NOTE_SECONDS", 0.2)
    said = refusal(tmp_path, rank_of_two(0, free_port()))
    assert said == "rank 0 waited 1 s for all 2 ranks to start"
    note = "note: rank 0 waits for rank 1 to start, for "
    assert (tmp_path / "rank0.err").read_text().startswith(note)


def test_port_is_taken(tmp_path):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(tmp_path, rank_of_two(0, port))
    assert f"rank 0 cannot listen on port {port}: is another job there? Set MASTER_PORT" in said


def test_addresses_that_lead_nowhere(tmp_path, monkeypatch):
    """To no machine, to a name server that does not answer, or to another one's (192.0.2.1)."""
    monkeypatch.setattr(JOINING, "NAME_SECONDS", 0.5)
    monkeypatch.setattr(JOINING, "REACH_SECONDS", 0.5)
    port, patient = free_port(), {"SPGNN_START_SECONDS": "600"}
    for rank in (0, 1):
        said = refusal(
            tmp_path, rank_of_two(rank, port, MASTER_ADDR="no-such-machine.invalid") | patient
        )
        assert "no-such-machine.invalid, where rank 0 should be according to MASTER_ADDR" in said
    said = refusal(tmp_path, rank_of_two(0, port, MASTER_ADDR="192.0.2.1") | patient)
    assert f"rank 0 listens on port {port}, but 192.0.2.1:{port} leads elsewhere" in said
    monkeypatch.setattr(socket, "getaddrinfo", lambda *given, **named: time.sleep(1000))
    said = refusal(tmp_path, rank_of_two(1, port, MASTER_ADDR="node7"))
    assert "leads to no address (no name server answers); set MASTER_ADDR" in said


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
    assert said == f"rank 1 did not reach rank 0's store at 127.0.0.1:{port} within 1 s"


def test_ranks_that_do_not_fit_together(tmp_path):
    """All are told, and none waits for a rank that does not come."""
    patient = {"SPGNN_START_SECONDS": "600"}
    port = free_port()
    places = [rank_of_two(rank, port, **patient, WORLD_SIZE=str(rank + 2)) for rank in (0, 1)]
    [said, other] = of_each(tmp_path, connect, *places)
    assert said == other
    words = [f"rank {one} was told of {one + 2} ranks, others of {3 - one}" for one in (0, 1)]
    assert said in words
    port = free_port()
    places = [rank_of_two(rank, port, **patient, WORLD_SIZE="3") for rank in (0, 1, 1)]
    said = "two processes were told to be rank 1 of 3"
    assert of_each(tmp_path, connect, *places) == [said] * 3


def test_interface_of_another_machine(tmp_path):
    """It is an error where a network is needed, and does not matter where memory is shared."""
    named = {INTERFACE: "nosuch0", "LOCAL_WORLD_SIZE": "2"}
    patient = {"SPGNN_START_SECONDS": "600"}

    def ranks() -> list[dict[str, str]]:
        port = free_port()
        one, other = (rank_of_two(rank, port, **patient, LOCAL_RANK=str(rank)) for rank in (0, 1))
        return [one | named | {INTERFACE: "lo"}, other | named]

    def shared() -> int:
        comm = connect("shm")
        total = comm.agree(1, "sum")
        comm.close()
        return total

    said = of_each(tmp_path, lambda: connect("gloo"), *ranks())
    assert len(set(said)) == 1
    assert said[0].startswith(f"{INTERFACE}=nosuch0 names no interface with an address on th")
    assert of_each(tmp_path, shared, *ranks()) == ["2", "2"]


# Other launchers.


def test_ranks_die_with_torchrun(tmp_path):
    """Its ranks have nobody else to end them; here its part is played by a fork of ours."""

    def rank(number: int, port: int) -> None:
        agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "here"}
        os.environ.update(rank_of_two(number, port, SPGNN_START_SECONDS="300", **agent))
        connect("gloo").barrier()
        announce(tmp_path / str(number), str(os.getpid()))
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


@needs_mpi
@pytest.mark.slow
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


# Connections of a job.


def test_strangers_take_no_slot():
    """Who does not know the secret is turned away, however much it says."""
    published: queue.Queue[str] = queue.Queue()
    zero = Job(0, 3)

    def publish(text: str | None) -> str:
        published.put(text or "")
        return text or ""

    def meet() -> None:
        zero.lifelines = Lifelines(zero, "", publish, 1000.0)

    first = threading.Thread(target=meet)
    first.start()
    said = published.get(timeout=PATIENCE)
    port, token = said.split()
    strangers = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(4)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n" * 10)
    almost = token[:-1] + ("0" if token[-1] != "0" else "1")
    strangers[1].sendall(json.dumps(["here", almost, 1]).encode() + b"\n")
    strangers[2].sendall(json.dumps(["here", token, 3]).encode() + b"\n")  # there is no such rank
    one, two = (Lifelines(Job(r, 3), "127.0.0.1", lambda text: said, 1000.0) for r in (1, 2))
    first.join(PATIENCE)
    for stranger in strangers:
        stranger.close()
    assert zero.lifelines.lost is None
    two.leave()
    wait_for(lambda: set(zero.lifelines.ended) == {2} == set(one.ended))
    assert zero.lifelines.lost is None
    one._lines[0].shutdown(socket.SHUT_RDWR)  # as the system does when a rank is killed
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

    assert Forked(lambda: launch(body, 3), tmp_path).wait() == Ended(0, "", "")
