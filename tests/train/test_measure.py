"""The operator clock runs in few epochs, and these do not count; nothing else waits."""

from __future__ import annotations

from functools import cache
from itertools import count

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spgnn import CSR, DistMatrix, Mesh, RowLayout
from spgnn.attention import attend
from spgnn.comm import Communicator, Ledger, SoloCommunicator
from spgnn.comm.failure import Job
from spgnn.comm.traffic import RowCounts
from spgnn.kernels import gather_rows, scatter_add_rows, sddmm, spmm
from spgnn.spmm import product as distributed
from spgnn.train import measure
from spgnn.train import measure as clocks
from spgnn.train.measure import CATEGORIES, Measurements, OperatorClock, timed

CPU = torch.device("cpu")


class Clock:
    """Seconds by a counter, so that nothing depends on how fast anything is."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def product() -> torch.Tensor:
    """One operator that the clock times."""
    return (torch.ones(300, 300) @ torch.ones(300, 300)).sum()


@pytest.mark.parametrize(
    ("epochs", "clocked", "counted"),
    [
        (0, [], []),
        (1, [], [0]),
        (2, [1], [0]),
        (3, [1], [2]),
        (12, [1, 11], [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (23, [1, 11, 21], [*range(2, 11), *range(12, 21), 22]),
    ],
)
def test_which_epochs_are_clocked_and_which_count(monkeypatch, epochs, clocked, counted):
    """Never the first; a run of two epochs has a breakdown all the same."""
    clock, entered = Clock(), []
    enter = measure.OperatorClock.__enter__
    monkeypatch.setattr(
        measure.OperatorClock,
        "__enter__",
        lambda self: (entered.append(len(measured.seconds)), enter(self))[1],
    )
    measured = Measurements(Ledger(clock=clock), CPU)

    def body() -> torch.Tensor:
        clock.now += 1 + len(measured.seconds)
        return torch.ones(3).sum()

    assert [measured.epoch(body) for _ in range(epochs)] == [3.0] * epochs
    assert entered == clocked
    assert len(measured.breakdowns) == len(clocked)
    assert measured.seconds == [1.0 + number for number in range(epochs)]
    assert timed(measured.seconds) == [1.0 + number for number in counted]
    assert len(measured.mean_breakdown()) == len(CATEGORIES)


def test_breakdowns_add_up_to_their_epochs():
    measured = Measurements(Ledger(), CPU)
    for _ in range(12):
        measured.epoch(product)
    gemm = CATEGORIES.index("gemm")
    assert all(parts[gemm] > 0 for parts in measured.breakdowns)
    for number, parts in zip((1, 11), measured.breakdowns, strict=True):
        assert sum(parts) == pytest.approx(measured.seconds[number])
    mean = [sum(parts) / 2 for parts in zip(*measured.breakdowns, strict=True)]
    assert measured.mean_breakdown() == pytest.approx(mean)


class Stream(TorchDispatchMode):
    """A stream of a pretended GPU: dense products take 3 s there, and the host goes on at once."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.end, self.waits = clock, 0.0, 0

    def work(self, seconds: float, begin: float = 0.0) -> float:
        """Enqueue something; returns its end."""
        self.end = max(self.end, self.clock.now, begin) + seconds
        return self.end

    def synchronize(self) -> None:
        self.waits += 1
        self.clock.now = max(self.clock.now, self.end)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition(".")[0]
        self.work(3.0 if name == "aten::mm" else 0.0)
        if name == "aten::_local_scalar_dense":
            self.synchronize()
        return func(*args, **(kwargs or {}))


class Streamed(SoloCommunicator):
    """As NCCL: rows take 7 s on a stream of their own, and a wait is an order for the other."""

    def __init__(self, stream: Stream) -> None:
        job = Job(0, 2)
        Communicator.__init__(self, 0, job, job.everyone())
        self.stream, self.end = stream, 0.0

    def _alltoallv(self, send, recv, counts):
        arrival = self.end = max(self.end, self.stream.end, self.stream.clock.now) + 7.0

        def wait() -> None:
            self.stream.end = max(self.stream.end, arrival)

        return wait


def test_exchanges_on_a_stream_of_their_own(monkeypatch):
    """The host waits for the loss alone, and what is under way goes on; a clocked epoch waits."""
    clock = Clock()
    stream = Stream(clock)
    comm = Streamed(stream)
    monkeypatch.setattr(measure, "perf_counter", clock)
    comm.ledger.clock = clock
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.delattr(torch.cuda, "synchronize")
    measured = Measurements(comm.ledger, torch.device("cuda", 0))
    rows, counts = torch.ones(2, 2), RowCounts([0, 2], [0, 2], 2)
    delayed = []

    def body() -> torch.Tensor:
        if delayed:
            delayed.pop().wait()
        stream.work(5.0)  # an operator that no category has
        pending = comm.alltoallv(rows, torch.empty(2, 2), counts)
        product()
        pending.wait()
        delayed.append(comm.alltoallv(rows, torch.empty(2, 2), counts))
        return product()

    waits = []
    with stream:
        for _ in range(3):
            before = stream.waits
            measured.epoch(body)
            waits.append(stream.waits - before)
    assert (waits[0], waits[2]) == (1, 1)
    # The delayed rows of an epoch arrive while the next one begins.
    assert measured.seconds == [15.0, 4.0 + 5 + 7 + 3, 4.0 + 5 + 7 + 3]
    (parts,) = measured.breakdowns
    found = {name: seconds for name, seconds in zip(CATEGORIES, parts, strict=True) if seconds}
    assert found == {"gemm": 6.0, "alltoall": 4.0 + 4.0, "other": 5.0}
    assert comm.ledger.of("alltoall").seconds == 8.0
    assert comm.ledger.wait is None


def test_bytes_of_rows_do_not_count_gradients():
    ledger = Ledger()
    measured = Measurements(ledger, CPU)

    def body() -> torch.Tensor:
        for name, sent in (
            ("alltoall", 1),
            ("broadcast", 20),
            ("reduce", 300),
            ("all_reduce", 4000),
        ):
            account = ledger.of(name)
            account.calls += 1
            account.sent_bytes += sent
            account.received_bytes += 2 * sent
        return torch.zeros(())

    for _ in range(2):
        measured.epoch(body)
    assert measured.sent_bytes == [321, 321]
    assert measured.received_bytes == [642, 642]


def block() -> CSR:
    """Values, scalings, and a transpose that is another matrix."""
    indptr, indices = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 2, 0, 1, 2])
    scale = torch.tensor([1.0, 2.0, 3.0])
    return CSR.of(indptr, indices, (3, 3), torch.rand(5)).with_scales(scale, scale)


@cache
def distributed_block() -> DistMatrix:
    """One for all: a graph refers to it by a number, and does not keep it."""
    mesh = Mesh.grid(SoloCommunicator())
    return DistMatrix.build(block().with_scales(None, None), RowLayout.even(3, 1), mesh)


ROWS = torch.tensor([2, 0, 2])


def learnt_product(X: torch.Tensor) -> torch.Tensor:
    A = block()
    return spmm(A.with_values(A.values.requires_grad_()), X)


def compiled_product(X: torch.Tensor) -> torch.Tensor:
    D = distributed_block()
    return torch.compile(lambda X: distributed(D, X), backend="aot_eager", fullgraph=True)(X)


def product_of_a_graph(X: torch.Tensor) -> torch.Tensor:
    D = distributed_block()
    return torch.ops.spgnn.product(X, D.handle, D.rows, D.columns, False)


def attention_of_rows(X):
    """Scores of sources are a dense product; what is neither that nor an exchange is weighing."""
    A = distributed_block()
    return attend(A, X, torch.ones(2, 2), torch.zeros(A.rows, 2))


@pytest.mark.parametrize(
    ("call", "forward", "backward"),
    [
        (lambda X: spmm(block(), X), {"spmm": 1}, {"spmm": 1}),
        (lambda X: spmm(block().T, X.detach(), torch.ones(3, 4), True), {"spmm": 1}, None),
        (learnt_product, {"spmm": 1}, {"spmm": 2}),
        (lambda X: sddmm(block(), X, X), {"spmm": 1}, {"spmm": 2}),
        (lambda X: distributed_block() @ X, {"spmm": 1}, {"spmm": 1}),
        (product_of_a_graph, {"spmm": 1}, {"spmm": 1}),
        (compiled_product, {"spmm": 1}, {"spmm": 1}),
        (lambda X: gather_rows(X, ROWS), {"pack": 1}, {"pack": 1}),
        (lambda X: gather_rows(X.detach(), ROWS, None, torch.ones(3, 4)), {"pack": 1}, None),
        (lambda X: scatter_add_rows(torch.ones(3, 4), ROWS, X.detach()), {"pack": 1}, None),
        (attention_of_rows, {"gemm": 1, "spmm": 2}, {"gemm": 2, "spmm": 3}),
        (lambda X: X @ torch.ones(4, 2), {"gemm": 1}, {"gemm": 1}),
        (lambda X: X.view(3, 2, 2).bmm(torch.ones(3, 2, 5)), {"gemm": 1}, {"gemm": 1}),
    ],
)
def test_every_product_is_timed_once(monkeypatch, call, forward, backward):
    """By a clock that is one second later whenever it is asked: nothing is counted in another."""
    ticks = count()
    monkeypatch.setattr(clocks, "perf_counter", lambda: float(next(ticks)))
    X = torch.rand(3, 4, requires_grad=True)
    with OperatorClock(CPU) as clock:
        Y = call(X)
    assert clock.seconds == forward
    if backward is not None:
        with OperatorClock(CPU) as clock:
            Y.sum().backward()
        assert clock.seconds == backward


def test_every_operator_of_the_kernels_that_multiplies_or_moves_rows_is_timed():
    """All that there are, but for those that only change numbers where they lie."""
    registered = {name for name in torch._C._dispatch_get_all_op_names() if "spgnn::" in name}
    names = {name.partition(".")[0] for name in registered}
    assert names - set(clocks.COMPUTE) - {clocks.COMPOSED, *clocks.ATTENTION} == {
        "spgnn::all_reduced",  # an exchange, which the ledger times
        "spgnn::cross_entropy",
        "spgnn::cross_entropy_gradient",
        "spgnn::dropout_rows",
        "spgnn::edge_softmax",
        "spgnn::row_sums",
        "spgnn::update_rows",
        "spgnn::update_rows_backward",
    }
    assert {name for name in clocks.COMPUTE if "spgnn::" in name} <= names
