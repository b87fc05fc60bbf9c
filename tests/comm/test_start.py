"""Ranks that cannot meet end soon and say why; jobs side by side do not meet each other."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.distributed import TCPStore

from spgnn import InputError
from spgnn.comm import connect, launch, rendezvous
from spgnn.comm.lifeline import KEY, Lifelines
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
    store = rendezvous._store
    monkeypatch.setattr(rendezvous, "_store", lambda *given: store(*given[:-1], PATIENCE))
    said = refusal(tmp_path, rank_of_two(0, free_port()))
    assert said == "rank 0 waited 1 s for all 2 ranks to start\n"


def test_port_is_taken(tmp_path):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(tmp_path, rank_of_two(0, port))
    assert said.startswith(
        f"rank 0 cannot listen on port {port}: is another job there? Set MASTER_PORT"
    )


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
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60), False)
    welcomed: list[Lifelines] = []
    first = threading.Thread(target=lambda: welcomed.append(Lifelines(store.clone(), "", 0, 3)))
    first.start()
    port, token = store.get(KEY).decode().split()
    strangers = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(4)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n" * 10)
    almost = bytearray.fromhex(token)
    almost[-1] ^= 1
    strangers[1].sendall(almost + (1).to_bytes(8))
    strangers[2].sendall(bytes.fromhex(token) + (3).to_bytes(8))  # There is no such rank.
    others = {rank: Lifelines(store, "127.0.0.1", rank, 3) for rank in (1, 2)}
    first.join(PATIENCE)
    [zero] = welcomed
    assert zero.lost() is None
    for stranger in strangers:
        stranger.close()
    assert zero.lost() is None
    others.pop(2).leave()
    assert zero.lost() is None
    others[1]._lines.popitem()[1][0].close()  # As the system does when a rank is killed.
    wait_for(lambda: zero.lost() == 1)


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
