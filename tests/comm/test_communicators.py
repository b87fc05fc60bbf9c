"""Each backend against the protocol."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from spgnn import InputError
from spgnn.comm import Communicator, RowCounts, connect
from spgnn.testing import run_ranks
from tests.comm import protocol
from tests.comm.jobs import MPIEXEC, PATIENCE, ROOT, needs_mpi
from tests.training import write_dataset

MORE_RANKS = [pytest.param(ranks, marks=pytest.mark.slow) for ranks in (3, 8)]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
@pytest.mark.parametrize("ranks", [1, 2, 5, *MORE_RANKS])
def test_one_machine(ranks, backend):
    run_ranks(lambda rank: protocol.check_all(connect()), ranks, backend=backend)


def test_under_debug(monkeypatch):
    monkeypatch.setenv("SPGNN_DEBUG", "1")
    run_ranks(lambda rank: protocol.check_outstanding(connect()), 3)


def test_staged_through_host_memory(monkeypatch):
    """As CUDA tensors are where the transport cannot reach them."""
    monkeypatch.setattr(Communicator, "_reaches", lambda self, buffer: False)
    run_ranks(lambda rank: protocol.check_all(connect()), 3)


def test_only_what_is_sent_is_copied_to_the_host(monkeypatch):
    """Not what an operation receives into, whose contents mean nothing."""
    copied: list[int] = []

    def staged(self: Communicator, buffer: torch.Tensor, filled: bool) -> torch.Tensor:
        copied.extend([buffer.data_ptr()] * filled)
        return buffer.clone() if filled else torch.empty_like(buffer)

    def copies(rank: int) -> list[list[bool]]:
        comm = connect()
        send, received = torch.full((2, 3), float(rank)), torch.zeros(2, 3)
        ones = RowCounts([1, 1], [1, 1], 1)
        operations = [
            lambda: comm.alltoallv(send, received, ones).wait(),
            lambda: comm.broadcast(received, 0).wait(),
            lambda: comm.reduce(received, 0).wait(),
            lambda: comm.all_reduce(received).wait(),
            lambda: comm.scatter(send, received[:1], [1, 1]),
        ]
        found = []
        for operation in operations:
            copied.clear()
            operation()
            found.append([buffer.data_ptr() in copied for buffer in (send, received)])
        return found

    monkeypatch.setattr(Communicator, "_staged", staged)
    yes, no = True, False
    sender = [[yes, no], [no, yes], [no, yes], [no, yes], [yes, no]]
    receiver = [[yes, no], [no, no], [no, yes], [no, yes], [no, no]]
    assert run_ranks(copies, 2) == [sender, receiver]


# As torchrun would start them: ranks that meet at a store of their parent and end as interpreters
# do. They are forked before anything but torch itself is imported, which takes most of the time.
FORKED_RANKS = """
import os, socket, sys
from datetime import timedelta
import torch

ranks = int(sys.argv.pop(1))
listener = socket.create_server(("127.0.0.1", 0))
address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}
agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "here"}
pids = []
for rank in range(ranks):
    pids.append(os.fork())
    if pids[-1] == 0:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update(address | agent | {name: str(value) for name, value in place.items()})
        listener.close()
        break
else:
    port, descriptor = listener.getsockname()[1], listener.detach()
    wait = timedelta(seconds=300)
    store = torch.distributed.TCPStore(
        "127.0.0.1", port, None, True, wait, False, master_listen_fd=descriptor
    )
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(any(statuses))
"""

# One that does may meet an interpreter that is going down, and then aborts the process. What is
# registered first runs last.
NO_THREAD_OF_GLOO_IS_LEFT = """
import atexit
from tests.comm.threads import names_of_threads
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

def threads():
    return sum("gloo" in name for name in names_of_threads())

def check():
    if threads():
        print(threads(), "threads are left", flush=True)
        os._exit(1)

atexit.register(check)
from spgnn.comm import connect
connect("gloo").barrier()
assert threads() > 0, "gloo calls its threads something else now"
"""


def run_in_fresh_interpreters(folder: Path, ranks: int, program: str, *arguments: str) -> None:
    path = folder / "program.py"
    path.write_text(FORKED_RANKS + NO_THREAD_OF_GLOO_IS_LEFT + program)
    command = [sys.executable, str(path), str(ranks), *arguments]
    ours = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])}
    done = subprocess.run(
        command,
        env=os.environ | ours,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_thread_of_gloo_outlives_training(tmp_path, ranks):
    """A module of torch that is first imported after connecting may keep the process group.

    Some take it as a default argument.
    """
    data = ["--dataset", str(write_dataset(tmp_path / "graph.npz")), "--partition", "random"]
    options = ["--threads", "1", "--epochs", "1", "--algo", "1.5d", "--c", "2"]
    program = "from spgnn.train import main\nmain()\nassert threads() == 0"
    run_in_fresh_interpreters(tmp_path, ranks, program, *data, *options)


def test_no_thread_of_gloo_outlives_a_program_that_never_closes(tmp_path):
    readme = (ROOT / "README.md").read_text()
    program = "\n".join(part.split("```")[0] for part in readme.split("```python\n")[1:])
    assert "close" not in program
    run_in_fresh_interpreters(tmp_path, 2, program)


def test_results_come_back_in_rank_order():
    assert run_ranks(lambda rank, factor: rank * factor, 5, 3) == [0, 3, 6, 9, 12]


@needs_mpi
@pytest.mark.parametrize(
    "sizes",
    [
        [4],
        pytest.param([2, 3, 6], marks=pytest.mark.slow),
        pytest.param([4, 8, 16], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_mpi_protocol_products_and_training(tmp_path, sizes):
    """One start serves every smaller number of ranks too: importing torch is what takes time."""
    path = write_dataset(tmp_path / "graph.npz")
    cases = [sys.executable, "-m", "tests.comm.mpi_cases", path, *map(str, sizes)]
    command = [MPIEXEC, "-n", str(sizes[-1]), *cases]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"checked on {sizes} ranks" in done.stdout


def test_buffers_must_be_contiguous():
    ones = RowCounts((2,), (2,), 2)
    with pytest.raises(ValueError, match="contiguous"):
        connect().alltoallv(torch.zeros(3, 2).T, torch.zeros(2, 3), ones)


@pytest.mark.parametrize(
    ("send", "received", "words"),
    [
        (torch.zeros(3, 2), torch.zeros(2, 2), "sends 3 rows and receives 2, .* say 2 and 2"),
        (torch.zeros(2, 2), torch.zeros(1, 2), "sends 2 rows and receives 1, .* say 2 and 2"),
        (torch.zeros(2, 2), torch.zeros(2, 3), r"float32 \[2, 2\] .*float32 \[2, 3\]"),
        (torch.zeros(2, 2), torch.zeros(2, 2).double(), "float32 .*float64"),
    ],
)
def test_buffers_must_fit_the_counts(send, received, words):
    with pytest.raises(InputError, match=words):
        connect().alltoallv(send, received, RowCounts((2,), (2,), 2))


def test_unknown_backend_is_refused():
    with pytest.raises(InputError, match="--backend tcp: choose one of auto, shm, gloo, nccl, mpi"):
        connect("tcp")
