"""The executor: runs a plan on real rows, forward and adjoint, with exchanges overlapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from typing import Protocol

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.exchange.plan import Factor, Hop, Plan, Stage, run_of
from spgnn.exchange.traffic import Carried
from spgnn.exchange.transport import Handle, Step, Transport, View, transport_of
from spgnn.exchange.workspace import Workspace
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import CSR


class Communicators(Protocol):
    """Communicators by axis; a Mesh is one."""

    def __getitem__(self, axis: str) -> Communicator: ...


class Runner(Protocol):
    """One stage of a plan at work; `out` is where the result may be written, if given."""

    def forward(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """Its product. Collective."""

    def adjoint(self, G_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """The product with its transpose. Collective."""


class Executor:
    """Runs the stages of one plan one after the other.

    Parameters
    ----------
    plan : Plan
    mesh : communicators by axis
    codecs : sequence of Transport, optional
        One for each hop of the plan: what its rows go through in a step that is not exact.
    overlap : bool
        Let local products run while rows travel. Off, they start after those have arrived; only
        measurements want that.
    workspace : Workspace, optional
        Buffers to share with executors that never run at the same time.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Communicators,
        codecs: Sequence[Transport] | None = None,
        overlap: bool = True,
        workspace: Workspace | None = None,
    ) -> None:
        self.plan = plan
        self.mesh = mesh
        self.transports = [transport_of(hop) for hop in plan.hops]
        self.codecs = self.transports if codecs is None else list(codecs)
        self.overlap = overlap
        self.workspace = Workspace() if workspace is None else workspace
        self._runners = self.runners(plan.stages)
        if type(self) is Executor and len(self._runners) == 1:
            # A plan of one stage is run by that stage: a call less in every product.
            (alone,) = self._runners
            self.forward, self.adjoint = alone.forward, alone.adjoint  # type: ignore[method-assign]

    def wire(self, hop: int, step: Step) -> Transport:
        """What carries the rows of a hop of the plan in a step."""
        return self.transports[hop] if step.exact else self.codecs[hop]

    def runners(self, stages: Iterable[Factor], first: int = 0) -> list[Runner]:
        """What runs some stages, the first hop of which has this number in the plan."""
        found = []
        for stage in stages:
            found.append(runner(stage, first, self))
            first += len(stage.hops)
        return found

    def check(self, width: int, dtype: torch.dtype) -> None:
        """Refuse products that cannot be made so wide; here, all can."""

    def widest(self, dtype: torch.dtype) -> int | None:
        """The most columns of a product, if there is a limit."""
        return None

    def carried(self, width: int, dtype: torch.dtype, step: Step) -> Iterator[Carried]:
        """What one product moves, exchange by exchange, as the wires carry it."""
        hops = enumerate(self.plan.hops)
        for moved in self.plan.messages(width, adjoint=step.adjoint):
            if not moved.wired:
                yield moved.carried(dtype)
                continue
            number, hop = next(hops)
            route, wire = hop.route(adjoint=step.adjoint), self.wire(number, step)
            yield Carried(moved.axis, *wire.bytes(route, moved.width, dtype, step.at(number)))

    def exchange(self, stage: Stage, first: int = 0) -> Exchange:
        """What runs ``L + R·Π·S``, and can be taken apart for what is not a product."""
        return Exchange(stage, first, self)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """``A·H``; H_local [columns, f] to Z_local [rows, f]. Collective."""
        for number, stage in enumerate(self._runners):
            H_local = stage.forward(H_local, step, self._between(number, H_local))
        return H_local

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """``Aᵀ·G``, stage by stage backwards; G_local [rows, f] to dH [columns, f]. Collective."""
        for number, stage in reversed(list(enumerate(self._runners))):
            G_local = stage.adjoint(G_local, step, self._between(number - 1, G_local))
        return G_local

    def _between(self, number: int, like: Tensor) -> Tensor | None:
        """Where the rows that stage `number` hands to the next one lie; ``None`` at either end.

        They are made in every product and nobody else sees them. Taken from the system anew, each
        page of them would cost a fault.
        """
        if not 0 <= number < len(self._runners) - 1:
            return None
        rows = self.plan.stages[number].shape[0]
        return self.workspace.rows(("between", number), rows, like)


@singledispatch
def runner(stage: object, first: int, executor: Executor) -> Runner:
    """What runs a stage on real rows; registered where each kind of stage is at home.

    Parameters
    ----------
    stage : Factor
    first : int
        The number of its first hop in the plan.
    executor : Executor
        Whose wires, communicators and buffers it uses.
    """
    raise TypeError(f"nothing runs a {type(stage).__name__}")


@runner.register
def _(stage: Stage, first: int, executor: Executor) -> Runner:
    return executor.exchange(stage, first)


class Exchange:
    """Runs one stage; its hops also for what is not a product.

    Parameters
    ----------
    stage : Stage
    first : int
        The number of its first hop in the plan.
    executor : Executor
        Whose wires, communicators and buffers it uses.
    """

    def __init__(self, stage: Stage, first: int, executor: Executor) -> None:
        self.stage = stage
        self.first = first
        self.executor = executor

    def forward(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """``L·H + R·Π·S·H``. Collective."""
        stage = self.stage
        if not stage.hops:
            return kernels.spmm(stage.local, H_local, out=out)
        # Where R only names what is received, that arrives in the result.
        if out is None and stage.adds_received:
            out = new_rows(stage.local.shape[0], H_local)
        handle = self.begin(H_local, step, out if stage.adds_received else None)
        try:
            if not self.executor.overlap:
                handle.wait()
            Z_local = product(stage.local, H_local, None if stage.adds_received else out)
        finally:
            # Whatever happened here: peers write into these buffers.
            H_recv = handle.wait()
        return added(stage, H_recv, Z_local)

    def adjoint(self, G_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """``Lᵀ·G + Sᵀ·Πᵀ·Rᵀ·G``. Collective."""
        stage = self.stage
        if not stage.hops:
            return kernels.spmm(stage.local.T, G_local, out=out)
        R_G = G_local
        if stage.remote is not None and not stage.adds_received:
            R_G = kernels.spmm(stage.remote.T, G_local, out=self.to_return(G_local, step))
        if out is None and stage.rearranges:
            out = new_rows(stage.local.shape[1], G_local)
        handle = self.begin_adjoint(R_G, step, out if stage.rearranges else None)
        try:
            if not self.executor.overlap:
                handle.wait()
            dH_local = adjoint_product(stage, G_local, out)
        finally:
            handle.wait()
        if not stage.rearranges:
            handle.add_to(dH_local)
        return dH_local

    def begin(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Arriving:
        """Start Π·S·H. What arrives is written to `out` [received rows, f], if given."""
        return Arriving(self, H_local, out, step)

    def begin_adjoint(self, R_G: Tensor, step: Step, out: Tensor | None = None) -> Returning:
        """Start Πᵀ of `R_G` [received rows, f].

        What arrives is written to its rows of `out` [columns, f], if given; S must only name
        neighbouring ones.
        """
        return Returning(self, R_G, step, out)

    def received(self, like: Tensor) -> Tensor:
        """The buffer of received rows, with the width and dtype of `like`."""
        rows = self.stage.received[-1]
        return self.executor.workspace.rows(("receive", self.first), rows, like)

    def to_return(self, like: Tensor, step: Step) -> Tensor:
        """Where the rows to send back are put: those of all hops together."""
        if len(self.stage.hops) > 1:
            return self.received(like)
        wire, rows = self.executor.wire(self.first, step), self.stage.received[-1]
        buffer = wire.send_buffer(rows, like, step.at(self.first))
        return self.received(like) if buffer is None else buffer

    def to_send(self, hop: int, like: Tensor, step: Step) -> Tensor:
        """The buffer of rows to send by one of the stage's hops."""
        number, rows = self.first + hop, self.stage.hops[hop].send.shape[0]
        buffer = self.executor.wire(number, step).send_buffer(rows, like, step.at(number))
        return self.returned(hop, like) if buffer is None else buffer

    def returned(self, hop: int, like: Tensor) -> Tensor:
        """The buffer of what comes back of them."""
        role, rows = ("send", self.first + hop), self.stage.hops[hop].send.shape[0]
        return self.executor.workspace.rows(role, rows, like)

    def slice_of(self, hop: int, received: Tensor) -> Tensor:
        """The rows of one hop among all that are received."""
        return received[self.stage.received[hop] : self.stage.received[hop + 1]]

    def start(self, hop: int, rows: Tensor, out: Tensor, step: Step) -> Handle:
        """Hand the rows of one hop to its wire."""
        executor, number, which = self.executor, self.first + hop, self.stage.hops[hop]
        comm, route = executor.mesh[which.axis], which.route(adjoint=step.adjoint)
        return executor.wire(number, step).begin(rows, out, route, comm, step.at(number))


class Arriving:
    """Rows on their way to this rank."""

    def __init__(self, exchange: Exchange, H_local: Tensor, out: Tensor | None, step: Step) -> None:
        self._exchange, self._given = exchange, out is not None
        self._H, self._step = H_local, step
        self._out = exchange.received(H_local) if out is None else out
        self._handles: dict[int, Handle] = {}
        for number, hop in enumerate(exchange.stage.hops):
            if hop.relay is None:
                self._start(number, hop)
        self._start_relays()

    def wait(self) -> Tensor:
        """The received rows [received rows, f], all hops done."""
        for number, hop in enumerate(self._exchange.stage.hops):
            if number not in self._handles:
                self._start(number, hop)
            handle = self._handles[number]
            if isinstance(handle, View) and not self._given and len(self._handles) == 1:
                return handle.view()
            handle.wait()
        return self._out

    def _start_relays(self) -> None:
        """Start what only waits for rows from inside the node, to have it cross meanwhile."""
        hops = self._exchange.stage.hops
        relays = [number for number, hop in enumerate(hops) if hop.relay is not None]
        for number, hop in enumerate(hops[: relays[-1]] if relays else ()):
            if number not in self._handles:
                self._start(number, hop)
            if not hop.near:
                break
            self._handles[number].wait()

    def _start(self, number: int, hop: Hop) -> None:
        exchange = self._exchange
        before = self._out[: exchange.stage.received[number]]
        rows = lying_ready(hop, self._H)
        if rows is None:
            rows = exchange.to_send(number, self._H, self._step)
            if hop.passed_rows is not None:
                kernels.gather_rows(before, hop.passed_rows, out=rows)
            else:
                rows = packed(hop, self._H, rows)
                if hop.relay is not None:
                    kernels.spmm(hop.relay, before, out=rows, accumulate=True)
        out = exchange.slice_of(number, self._out)
        self._handles[number] = exchange.start(number, rows, out, self._step)


class Returning:
    """What belongs to rows of others, on its way back to them."""

    def __init__(self, exchange: Exchange, R_G: Tensor, step: Step, out: Tensor | None) -> None:
        self._handles: list[tuple[Handle, Hop, Tensor]] = []
        self._given = out is not None
        self._rest = self._started(exchange, R_G, step, out)
        next(self._rest, None)

    def wait(self) -> None:
        """Return when all of it has arrived."""
        for _ in self._rest:
            pass
        for number, (handle, hop, _) in enumerate(self._handles):
            if isinstance(handle, View) and not self._given and hop.relay is None:
                self._handles[number] = handle, hop, handle.view()
            else:
                handle.wait()

    def _started(
        self, exchange: Exchange, R_G: Tensor, step: Step, out: Tensor | None
    ) -> Iterator[None]:
        """Start hop after hop; stop where it takes long to know what the next ones return."""
        for number in reversed(range(len(exchange.stage.hops))):
            hop = exchange.stage.hops[number]
            if out is None:
                G_recv = exchange.returned(number, R_G)
            else:
                assert hop.run is not None
                G_recv = out[hop.run : hop.run + hop.send.shape[0]]
            handle = exchange.start(number, exchange.slice_of(number, R_G), G_recv, step)
            self._handles.append((handle, hop, G_recv))
            if hop.relay is not None:
                if not hop.near:
                    yield
                handle.wait()
                before = R_G[: exchange.stage.received[number]]
                kernels.spmm(hop.relay.T, G_recv, out=before, accumulate=True)

    def add_to(self, dH_local: Tensor) -> None:
        """Add Sᵀ · what arrived to dH, hop by hop."""
        for _, hop, G_recv in reversed(self._handles):
            add_unpacked(hop, G_recv, dH_local)


def product(block: CSR, H_local: Tensor, out: Tensor | None = None) -> Tensor:
    """``L·H``; rows of H themselves, rather than a copy, where L only names neighbouring ones."""
    if (first := run_of(block)) is None:
        return kernels.spmm(block, H_local, out=out)
    return H_local[first : first + block.shape[0]]


def added(stage: Stage, H_recv: Tensor, Z_local: Tensor) -> Tensor:
    """``Z + R·received``, in place: in what was received if R does nothing to it."""
    remote = stage.remote
    if stage.adds_received:
        return H_recv.add_(Z_local)
    if run_of(stage.local) is not None:  # rows of the operand
        Z_local = Z_local.clone()
    if remote is None or not remote.nnz:
        return Z_local
    return kernels.spmm(remote, H_recv, out=Z_local, accumulate=True)


def adjoint_product(
    stage: Stage, G_local: Tensor, out: Tensor | None = None, apart: bool = False
) -> Tensor:
    """``Lᵀ·G``; beside what arrives, if that has its place in `out` and does not come apart."""
    block = stage.local
    if (first := run_of(block)) is None:
        return kernels.spmm(block.T, G_local, out=out)
    dH_local = new_rows(block.shape[1], G_local) if out is None else out
    if apart or not stage.rearranges:
        dH_local.zero_()
    dH_local[first : first + block.shape[0]] = G_local
    return dH_local


def lying_ready(hop: Hop, H_local: Tensor) -> Tensor | None:
    """``S·H`` as rows of H itself, where S only names neighbouring ones."""
    first = hop.run
    if first is None or hop.relay is not None or not H_local.is_contiguous():
        return None
    return H_local[first : first + hop.send.shape[0]]


def packed(hop: Hop, H_local: Tensor, out: Tensor) -> Tensor:
    """``S·H``, in `out`."""
    if hop.selected_rows is None:
        return kernels.spmm(hop.send, H_local, out=out)
    return kernels.gather_rows(H_local, hop.selected_rows, scale=hop.selected_scale, out=out)


def add_unpacked(hop: Hop, G_recv: Tensor, dH_local: Tensor) -> None:
    """``dH += Sᵀ·G``, in place."""
    if (first := hop.run) is not None:
        dH_local[first : first + hop.send.shape[0]] += G_recv
    elif hop.send.nnz:
        kernels.spmm(hop.send.T, G_recv, out=dH_local, accumulate=True)
