"""Each backend against the protocol, and what only one of them does."""

from __future__ import annotations

import os
import pickle
import resource
import sys
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from spgnn import DistMatrix, InputError, Mesh, RowLayout
from spgnn._native import Endpoint
from spgnn.comm import CommunicationError, Communicator, connect, launch, shared, torchdist
from spgnn.comm.communicator import Blocked, Pending
from spgnn.comm.failure import Job
from spgnn.comm.torchdist import TorchCommunicator, TorchJob
from spgnn.comm.traffic import RowCounts
from spgnn.testing import run_ranks
from tests import products
from tests.comm import protocol
from tests.comm.jobs import MPIEXEC, ROOT, Forked, needs_mpi, run_program
from tests.matrices import block_row, random_matrix
from tests.training import write_dataset


def slow(*values: object) -> list[object]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.mark.parametrize("backend", ["gloo", "shm"])
@pytest.mark.parametrize("ranks", [1, 3, *slow(2, 5, 8)])
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


class LateGroup:
    """As NCCL's: rows arrive when they are waited for, and are rubbish before; over gloo's group.

    `calls` are the operations, with the bytes that each of them is handed.
    """

    def __init__(self, group: object) -> None:
        self.group, self.calls = group, []

    def __getattr__(self, name: str) -> object:
        return getattr(self.group, name)

    def alltoall_base(self, out, rows, *sizes):
        return self._late(
            "alltoall", (out,), (rows,), lambda: self.group.alltoall_base(out, rows, *sizes)
        )

    def _allgather_base(self, out, rows):
        return self._late("gather", (out,), (rows,), lambda: self.group._allgather_base(out, rows))

    def allgather(self, blocks, rows):
        """Blocks of unlike sizes, as NCCL takes them: a broadcast of each."""

        def move():
            for root, block in enumerate(blocks[0]):
                if root == self.group.rank():
                    block.copy_(rows[0])
                if block.numel():
                    options = dist.BroadcastOptions()
                    options.rootRank = root
                    self.group.broadcast([block], options).wait()

        return self._late("gather", blocks[0], rows, move)

    def _late(self, name, outs, rows, move):
        self.calls.append((name, sum(r.nbytes for r in rows), sum(out.nbytes for out in outs)))
        given = [r.clone() for r in rows]
        for out in outs:
            out.fill_(77)

        def wait(*span):
            for r, before in zip(rows, given, strict=True):
                assert torch.equal(r, before), "written to while under way"
            if (work := move()) is not None:
                work.wait()

        return SimpleNamespace(wait=wait)


def test_gathers_of_nccl_move_each_row_once(monkeypatch):
    """With a stand-in: parts of unlike sizes are neither padded nor copied for each peer.

    So is the adjoint of partial sums that are added up.
    """

    def run(rank: int) -> list[tuple[str, int, int]]:
        comm = connect()
        group = comm.process_group = LateGroup(comm.process_group)
        protocol.check_scatter_and_gather(comm)
        group.calls.clear()
        for sizes in ([2, 2, 2], [4, 0, 3]):
            whole = torch.arange(sum(sizes) * 5, dtype=torch.float32).view(-1, 5)
            protocol.check_all_gather(comm, whole, sizes)
        moved = group.calls.copy()
        layout = RowLayout([0, 4, 4, 7])
        block = block_row(random_matrix(7, 0.4, 1, weighted=True), *layout.range(rank))
        partial_sums = DistMatrix.build(block, layout, Mesh.grid(comm, c=3))
        for _ in range(2):  # the first one also compares what all ranks hand over
            group.calls.clear()
            partial_sums.adjoint(torch.ones(block.shape[0], 5, dtype=torch.float64))
        last = group.calls[-1:]
        assert products.check_all(comm, every=20) > 0
        return moved + last

    over = SimpleNamespace(query=lambda: True)
    monkeypatch.setattr(torchdist, "_mark", lambda: over)
    monkeypatch.setattr(TorchCommunicator, "_on_stream", lambda self, buffer: True)
    for rank, calls in enumerate(run_ranks(run, 3, backend="gloo")):
        own = [4, 0, 3][rank]
        gathered = [("gather", 20 * 2, 20 * 6), ("gather", 20 * own, 20 * 7)]
        assert calls == [*gathered, ("gather", 40 * own, 40 * 7)]


@needs_mpi
@pytest.mark.parametrize("sizes", [[4], *slow([2, 3, 6], [4, 8, 16])], ids=str)
def test_mpi_protocol_products_and_training(tmp_path, sizes):
    """One start serves every smaller number of ranks too: importing torch is what takes time."""
    path = write_dataset(tmp_path / "graph.npz")
    mpiexec = [str(MPIEXEC), "-n", str(sizes[-1]), sys.executable]
    ended = run_program([*mpiexec, str(ROOT / "tests/comm/mpi_cases.py")], path, *sizes)
    assert ended.status == 0, ended.err[-3000:]
    assert f"checked on {sizes} ranks" in ended.out


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_operation_of_nccl(tmp_path):
    """Each on a group of one rank, whose result is what was given; calls end on the stream."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    try:
        job = TorchJob.__new__(TorchJob)  # a job of one rank has no connections to others
        Job.__init__(job, 0, 1, torch.device("cuda", torch.cuda.current_device()))
        job.members, job.under_way = [], 0
        comm = TorchCommunicator(job, job.everyone(), dist.group.WORLD)
        assert comm.moves_cuda
        comm.greeted()
        given = torch.randn(1000, 33, device=job.device)
        rows, counts = given.view(torch.uint8), RowCounts([1000], [1000], 1000)
        with Blocked(comm, comm._next_call("each")):
            for begin in (
                lambda out: comm._alltoallv(rows, out, counts),
                lambda out: comm._all_gather(rows, out, [1000]),
                lambda out: comm._waiter(dist.group.WORLD.allgather([[out]], [rows]), out),
                lambda out: comm._broadcast(out.copy_(rows), 0),
                lambda out: comm._reduce(out.copy_(rows).view(torch.float32), 0),
                lambda out: comm._all_reduce(out.copy_(rows).view(torch.float32), "sum"),
                lambda out: comm._all_reduce(out.copy_(rows).view(torch.float32), "max"),
            ):
                out = torch.zeros_like(rows)
                begin(out)()
                assert torch.equal(out.view(torch.float32), given)
        torch.cuda.synchronize()
        assert job.unfinished() == []
        assert job.on_stream[-1].call.what == "each"
        comm.settled()
    finally:
        dist.destroy_process_group()


# As torchrun would start them: ranks that meet at a store of their parent and end as interpreters
# do. They are forked before anything but torch itself is imported, which takes most of the time.
# A thread of gloo's may meet an interpreter that is going down, and then aborts the process. What
# is registered first runs last.
FRESH_RANKS = """
import atexit, os, socket, sys
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

from tests.comm.jobs import names_of_threads
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


def run_in_fresh_ranks(folder: Path, ranks: int, program: str, *arguments: str) -> None:
    path = folder / "program.py"
    path.write_text(FRESH_RANKS + program)
    ended = run_program([sys.executable, str(path)], ranks, *arguments)
    assert ended.status == 0, ended


def test_no_thread_of_gloo_outlives_a_program_that_never_closes(tmp_path):
    """A module of torch that is first imported after connecting may keep the process group.

    Some take it as a default argument.
    """
    readme = (ROOT / "README.md").read_text()
    program = "\n".join(part.split("```")[0] for part in readme.split("```python\n")[1:])
    assert "close" not in program
    run_in_fresh_ranks(tmp_path, 2, program)


# RowCounts against the plain arithmetic of their lists.
SEND, RECV = [3, 0, 2, 0], [0, 1, 2, 5]


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_row_counts(kind):
    mine = kind(SEND)
    counts = RowCounts(mine, kind(RECV), 5)
    if kind is np.array:
        mine[0] = 4  # It is a copy.
    assert counts.send.dtype == counts.recv.dtype == np.int64
    assert not counts.send.flags.writeable
    assert (counts.send.tolist(), counts.recv.tolist(), counts.largest) == (SEND, RECV, 5)
    assert (counts.send_list, counts.recv_list) == (SEND, RECV)
    assert (counts.sent, counts.received) == (5, 8)
    assert counts.targets == [(0, 0, 3), (2, 3, 5)]
    assert counts.sources == [(1, 0, 1), (2, 1, 3), (3, 3, 8)]
    assert counts.targets is counts.targets
    assert counts.reversed() == RowCounts(RECV, SEND, 5)
    assert counts.reversed().reversed() is counts
    same = pickle.loads(pickle.dumps(counts))
    assert same == counts
    assert hash(same) == hash(counts)
    assert not same.send.flags.writeable
    assert counts not in (RowCounts(RECV, SEND, 5), RowCounts(SEND, RECV, 6), (SEND, RECV, 5))


def all_to_all(send: torch.Tensor, received: torch.Tensor) -> object:
    return lambda: connect().alltoallv(send, received, RowCounts((2,), (2,), 2))


ZEROS = torch.zeros
REFUSALS = [
    (all_to_all(ZEROS(3, 2), ZEROS(2, 2)), "sends 3 rows and receives 2, .* say 2 and 2"),
    (all_to_all(ZEROS(2, 2), ZEROS(1, 2)), "sends 2 rows and receives 1, .* say 2 and 2"),
    (all_to_all(ZEROS(2, 2), ZEROS(2, 3)), r"float32 \[2, 2\] .*float32 \[2, 3\]"),
    (all_to_all(ZEROS(2, 2), ZEROS(2, 2).double()), "float32 .*float64"),
    (all_to_all(ZEROS(3, 2).T, ZEROS(2, 3)), "contiguous"),
    (lambda: connect("tcp"), "--backend tcp: choose one of auto, shm, gloo, nccl, mpi"),
    (lambda: RowCounts([1, 2], [1], 2), "2.* peers but received from .*1"),
    (lambda: RowCounts([1, -1], [1, 1], 2), "-1 to 1"),
    (lambda: RowCounts([1, 3], [1, 1], 2), r"\[0, 2\], got 1 to 3"),
    (lambda: RowCounts([1, 1], [3, 1], 2), r"\[0, 2\], got 1 to 3"),
]


@pytest.mark.parametrize(("call", "words"), REFUSALS)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words):
        call()


# Shared memory: room, order, threads, other sizes, and who may share.


def exchange(comm: Communicator, rows: int, value: float) -> tuple[torch.Tensor, Pending]:
    """So many rows from everyone to everyone: what arrives, and what is under way."""
    counts = RowCounts([rows] * comm.size, [rows] * comm.size, rows)
    send = torch.full((rows * comm.size, 3), value + comm.rank)
    received = torch.full_like(send, -1.0)
    return received, comm.alltoallv(send, received, counts)


def check_received(comm: Communicator, received: torch.Tensor, rows: int, value: float) -> None:
    ranks = torch.arange(comm.size).repeat_interleave(rows)[:, None]
    torch.testing.assert_close(received, (value + ranks).float().expand(-1, 3))


@pytest.mark.parametrize(
    ("budget", "limit", "operations"),
    [(1 << 10, 1 << 26, 20), (1 << 28, 1 << 26, 200), (99, 40, 5)],
)
def test_any_number_of_operations_before_the_first_wait(monkeypatch, budget, limit, operations):
    """More than there is room for, in bytes or in slots: ranks read while they wait for room.

    Long messages go in rounds.
    """
    monkeypatch.setattr(shared, "BUDGET", budget)
    monkeypatch.setattr(shared, "MESSAGE_LIMIT", limit)

    def run(rank: int) -> None:
        comm = connect("shm")
        begun = [exchange(comm, 7, 10.0 * number) for number in range(operations)]
        # In another order on each rank.
        order = range(operations) if rank % 2 else reversed(range(operations))
        for number in order:
            received, pending = begun[number]
            pending.wait()
            check_received(comm, received, 7, 10.0 * number)

    run_ranks(run, 3)


def test_sums_are_the_same_bits_everywhere():
    """Read by all, or by parts of unlike length; and several at once, waited for in any order."""

    def given(rank: int) -> list[torch.Tensor]:
        torch.manual_seed(rank)
        dtypes = torch.float32, torch.float64, torch.bfloat16, torch.int64
        return [(8 * torch.randn(n)).to(d) for d in dtypes for n in (1, 1000, 70_001, 70_001)]

    def run(rank: int) -> list[torch.Tensor]:
        comm, buffers = connect("shm"), given(rank)
        begun = [comm.all_reduce(buffer) for buffer in buffers]
        for pending in begun if rank % 2 else reversed(begun):
            pending.wait()
        return buffers

    found = run_ranks(run, 5)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(others, found[0], strict=True))
    for number, total in enumerate(found[0]):
        whole = torch.stack([given(rank)[number].double() for rank in range(5)]).sum(0)
        torch.testing.assert_close(total.double(), whole, rtol=2e-2, atol=2e-1)


def test_buffers_that_nobody_waits_for_are_let_go(monkeypatch):
    monkeypatch.setattr(shared, "_MANY", 4)

    def run(rank: int) -> int:
        comm = connect("shm")
        buffers = []
        for number in range(40):
            received, _ = exchange(comm, 2, float(number))
            buffers.append(weakref.ref(received.untyped_storage()))
            comm.barrier()
        del received
        return sum(buffer() is not None for buffer in buffers)

    assert max(run_ranks(run, 2)) <= 8


def test_what_is_dropped_is_never_written_to():
    """The memory of a buffer that nobody has any more stays until it has been read into."""

    def run(rank: int) -> None:
        comm = connect("shm")
        received, pending = exchange(comm, 1000, 1.0)
        del received, pending
        others = [torch.zeros(3000, 3) for _ in range(8)]
        comm.barrier()
        later, pending = exchange(comm, 5, 2.0)
        pending.wait()
        check_received(comm, later, 5, 2.0)
        assert not any(other.any() for other in others)

    run_ranks(run, 2)


def test_threads_of_a_rank():
    """Each with a communicator of its own: what one reads may be what the other waits for."""

    def run(rank: int) -> None:
        comm = connect("shm")
        pair, right = [comm, comm.apart()], []

        def work(which: int) -> None:
            for number in range(200):
                received, pending = exchange(pair[which], 4, number + 0.5 * which)
                pending.wait()
                check_received(comm, received, 4, number + 0.5 * which)
            right.append(which)

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(right) == [0, 1]

    run_ranks(run, 2)


def test_other_sizes_than_expected():
    def run(rank: int) -> str:
        comm = connect("shm")
        counts = RowCounts([0, 3], [0, 3], 3) if rank == 0 else RowCounts([2, 0], [3, 0], 3)
        send, received = torch.zeros(counts.sent, 2), torch.zeros(3, 2)
        try:
            comm.alltoallv(send, received, counts).wait()
        except CommunicationError as error:
            with pytest.raises(CommunicationError, match="no other can follow: ranks do not agree"):
                comm.barrier()
            return str(error)
        return ""

    first, second = run_ranks(run, 2)
    assert "ranks do not agree on alltoallv" in first
    assert "data of another size arrived" in first
    assert not second


def kind(rank: int) -> str:
    comm = connect()
    comm.barrier()
    return type(comm).__name__


def test_auto_shares_where_it_can(monkeypatch, capfd):
    """Otherwise it takes sockets and says why; shm is refused."""
    assert run_ranks(kind, 2) == ["SharedCommunicator"] * 2
    assert run_ranks(kind, 2, backend="gloo") == ["TorchCommunicator"] * 2

    class Shy(Endpoint):
        """As where a rank may not look into another's files."""

        def meet(self, rank: int, process: int, file: int, token: int) -> bool:
            return super().meet(rank, process, file, token + (rank == 2))

    with monkeypatch.context() as patch:
        patch.setattr(shared, "Endpoint", Shy)
        assert run_ranks(kind, 3) == ["TorchCommunicator"] * 3
    said = "auto takes gloo: the ranks cannot find each other's memory through /proc"
    assert said in capfd.readouterr().err
    monkeypatch.setattr(shared, "_machine", os.getpid)
    assert run_ranks(kind, 3) == ["TorchCommunicator"] * 3
    with pytest.raises(RuntimeError, match="a rank failed"):
        run_ranks(kind, 3, backend="shm")
    assert "--backend shm: the ranks are not all on one machine" in capfd.readouterr().err


def test_limit_of_addresses(tmp_path):
    """Auto says why it takes gloo, and shm is refused by the limit's name."""

    def limited(backend: str) -> None:
        limit = 100 << 30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        print(type(connect(backend)).__name__)

    said = "every rank needs 128 GiB of addresses, of which only what is used takes memory, and ul"
    ended = Forked(lambda: launch(lambda: limited("auto"), 2), tmp_path).wait()
    assert (ended.status, ended.out) == (0, "TorchCommunicator\n" * 2)
    assert ended.err.startswith(f"note: --backend auto takes gloo: {said}")
    assert ended.err.count("\n") == 1
    ended = Forked(lambda: launch(lambda: limited("shm"), 2), tmp_path).wait()
    assert ended.status == 1
    assert f"--backend shm: {said}imit -v of some rank allows less; use --b" in ended.err
