"""The executor: runs a plan on real rows, forward and adjoint, with exchanges overlapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.exchange.needs import Communicators
from spgnn.exchange.plan import Carried, Factor, Hop, Plan, Stage, Turn, Turned
from spgnn.exchange.transport import Broadcast, Handle, Step, Transport, View
from spgnn.kernels.recycling import new_rows
from spgnn.sparse import SUM_DTYPE


class Workspace:
    """Buffers that outlive an exchange: no epoch should fault in new pages."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, *tuple[int, ...]], Tensor] = {}

    def rows(self, role: tuple[str, *tuple[int, ...]], count: int, like: Tensor) -> Tensor:
        """An uninitialised [count, f] with the width, dtype and device of `like`."""
        width = like.shape[1]
        buffer = self._buffers.get(role)
        if (
            buffer is None
            or buffer.numel() < count * width
            or buffer.dtype != like.dtype
            or buffer.device != like.device
        ):
            # The old memory goes before the new comes.
            del buffer
            self._buffers.pop(role, None)
            buffer = torch.empty(count * width, dtype=like.dtype, device=like.device)
            self._buffers[role] = buffer
        return buffer[: count * width].view(count, width)

    def held(self, *names: str) -> int:
        """Bytes of the buffers, for roles of some names or, without, for all."""
        chosen = (each for role, each in self._buffers.items() if not names or role[0] in names)
        return sum(buffer.nbytes for buffer in chosen)

    def release(self) -> None:
        """Give the memory back; the next exchange takes what it needs."""
        self._buffers.clear()


class Executor:
    """Runs the stages of one plan one after the other.

    Parameters
    ----------
    plan : Plan
    mesh : communicators by axis
    codecs : sequence of Transport, optional
        One for each hop of the plan: what its rows go through in a step that is not exact.
    workspace : Workspace, optional
        Buffers to share with executors that never run at the same time.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Communicators,
        codecs: Sequence[Transport] | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        self.plan, self.mesh = plan, mesh
        self.transports = [Broadcast() if hop.broadcast else Transport() for hop in plan.hops]
        self.codecs = self.transports if codecs is None else list(codecs)
        self.workspace = Workspace() if workspace is None else workspace
        self._runners = self.runners(plan.stages)
        if type(self) is Executor and len(self._runners) == 1:
            # A plan of one stage is run by that stage: a call less in every product.
            (alone,) = self._runners
            self.forward, self.adjoint = alone.forward, alone.adjoint  # type: ignore[method-assign]

    def runners(self, stages: Iterable[Factor], first: int = 0) -> list[Exchange | Turning]:
        """Runners of some stages, whose first hop has this number in the plan."""
        runners: list[Exchange | Turning] = []
        for stage in stages:
            if isinstance(stage, Turned):
                runners.append(Turning(stage, first, self))
            else:
                runners.append(self.exchange(stage, first))
            first += len(stage.hops)
        return runners

    def exchange(self, stage: Stage, first: int = 0) -> Exchange:
        """The runner of ``L + R·Π·S``, which can be taken apart for halos and attention."""
        return Exchange(stage, first, self)

    def check(self, width: int, dtype: torch.dtype) -> None:
        """Refuse products that cannot be made so wide; here, all can."""

    def widest(self, dtype: torch.dtype) -> int | None:
        """The most columns of a product, if there is a limit."""
        return None

    def carried(self, width: int, dtype: torch.dtype, step: Step) -> Iterator[Carried]:
        """Bytes of one product, exchange by exchange, as the transports carry it."""
        codecs = enumerate(self.transports if step.exact else self.codecs)
        for moved in self.plan.carried(width, dtype, adjoint=step.adjoint):
            if moved.hop is None:
                yield moved
            else:
                number, codec = next(codecs)
                route, at = moved.hop.route(adjoint=step.adjoint), step.at(number)
                yield Carried(moved.axis, *codec.bytes(route, moved.width, dtype, at))

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """``A·H``; H_local [columns, f] to Z_local [rows, f]. Collective."""
        self.check(H_local.shape[1], H_local.dtype)
        for number, stage in enumerate(self._runners):
            H_local = stage.forward(H_local, step, self._between(number, H_local))
        return H_local

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """``Aᵀ·G``, stage by stage backwards; G_local [rows, f] to dH [columns, f]. Collective."""
        self.check(G_local.shape[1], G_local.dtype)
        for number, stage in reversed(list(enumerate(self._runners))):
            G_local = stage.adjoint(G_local, step, self._between(number - 1, G_local))
        return G_local

    def _between(self, number: int, like: Tensor) -> Tensor | None:
        """A buffer for the rows that a stage hands to the next one; ``None`` at either end."""
        if not 0 <= number < len(self._runners) - 1:
            return None
        rows = self.plan.stages[number].shape[0]
        return self.workspace.rows(("between", number), rows, like)


class Exchange:
    """Runs one stage; its hops also for what is not a product."""

    def __init__(self, stage: Stage, first: int, executor: Executor) -> None:
        self.stage, self.first, self.executor = stage, first, executor
        # Looked up once, for products are short where graphs are small.
        self.rows_sent = [hop.send.shape[0] for hop in stage.hops]
        self._comms = [executor.mesh[hop.axis] for hop in stage.hops]
        self._routes = [(hop.route(), hop.route(adjoint=True)) for hop in stage.hops]
        self._has_remote = stage.remote is not None and stage.remote.nnz > 0
        self._has_codecs = executor.codecs is not executor.transports

    def forward(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """``L·H + R·Π·S·H``, in `out` if given. Collective."""
        stage = self.stage
        if not stage.hops:
            return kernels.spmm(stage.local, H_local, out=out)
        # Where R only names the received rows, they arrive in the result.
        if out is None and stage.adds_received:
            out = new_rows(stage.local.shape[0], H_local)
        arriving = self.begin(H_local, step, out if stage.adds_received else None)
        try:
            Z_local = local_product(stage, H_local, None if stage.adds_received else out)
        finally:
            # Whatever happened here: peers write into these buffers.
            H_recv = arriving.wait()
        if stage.adds_received:
            return H_recv.add_(Z_local)
        if stage.local_run is not None:  # rows of the operand
            Z_local = Z_local.clone()
        if not self._has_remote or stage.remote is None:
            return Z_local
        return kernels.spmm(stage.remote, H_recv, out=Z_local, accumulate=True)

    def adjoint(self, G_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """``Lᵀ·G + Sᵀ·Πᵀ·Rᵀ·G``, in `out` if given. Collective."""
        stage = self.stage
        if not stage.hops:
            return kernels.spmm(stage.local.T, G_local, out=out)
        if stage.fold is not None and (step.exact or not self._has_codecs):
            dH_local = new_rows(stage.local.shape[1], G_local) if out is None else out
            self._comms[0].all_gather(G_local, dH_local, stage.fold)
            return dH_local
        R_G = G_local
        if stage.remote is not None and not stage.adds_received:
            rows = stage.received[-1]
            buffer = None
            if len(stage.hops) == 1 and not step.exact:
                transport = self.executor.codecs[self.first]
                buffer = transport.send_buffer(rows, G_local, step.at(self.first))
            if buffer is None:
                buffer = self.received(G_local)
            R_G = kernels.spmm(stage.remote.T, G_local, out=buffer)
        if out is None and stage.rearranges:
            out = new_rows(stage.local.shape[1], G_local)
        returning = self.begin_adjoint(R_G, step, out if stage.rearranges else None)
        try:
            dH_local = adjoint_product(stage, G_local, out)
        finally:
            returning.wait()
        if not stage.rearranges:
            returning.add_to(dH_local)
        return dH_local

    def begin(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Arriving:
        """Start Π·S·H. The received rows are written to `out` [received rows, f], if given."""
        return Arriving(self, H_local, out, step)

    def begin_adjoint(self, R_G: Tensor, step: Step, out: Tensor | None = None) -> Returning:
        """Start Πᵀ of `R_G` [received rows, f]."""
        return Returning(self, R_G, step, out)

    def received(self, like: Tensor) -> Tensor:
        """The buffer of received rows, with the width and dtype of `like`."""
        rows = self.stage.received[-1]
        return self.executor.workspace.rows(("receive", self.first), rows, like)

    def send_rows(self, hop: int, like: Tensor) -> Tensor:
        """The buffer of rows to send by one of the stage's hops, and of those that come back."""
        role = "send", self.first + hop
        return self.executor.workspace.rows(role, self.rows_sent[hop], like)

    def slice_of(self, hop: int, received: Tensor) -> Tensor:
        """The rows of one hop among all that are received."""
        return received[self.stage.received[hop] : self.stage.received[hop + 1]]

    def start(self, hop: int, rows: Tensor, out: Tensor, step: Step) -> Handle:
        """Hand the rows of one hop to its transport."""
        number, route, comm = self.first + hop, self._routes[hop][step.adjoint], self._comms[hop]
        if step.exact:
            return self.executor.transports[number].begin(rows, out, route, comm, step)
        return self.executor.codecs[number].begin(rows, out, route, comm, step.at(number))


class Arriving:
    """Rows on their way to this rank."""

    def __init__(self, exchange: Exchange, H_local: Tensor, out: Tensor | None, step: Step) -> None:
        self._exchange, self._given = exchange, out is not None
        self._H, self._step = H_local, step
        self._out = exchange.received(H_local) if out is None else out
        self._handles: dict[int, Handle] = {}
        hops = exchange.stage.hops
        for number, hop in enumerate(hops):
            if hop.relay is None:
                self._start(number, hop)
        # Start what only waits for rows from inside the node, to have it cross meanwhile.
        relays = [number for number, hop in enumerate(hops) if hop.relay is not None]
        for number, hop in enumerate(hops[: relays[-1]] if relays else ()):
            if number not in self._handles:
                self._start(number, hop)
            if not hop.near:
                break
            self._handles[number].wait()

    def wait(self) -> Tensor:
        """The received rows [received rows, f], all hops done."""
        hops = self._exchange.stage.hops
        for number, hop in enumerate(hops):
            if number not in self._handles:
                self._start(number, hop)
            handle = self._handles[number]
            if isinstance(handle, View) and not self._given and len(hops) == 1:
                return handle.view()
            handle.wait()
        return self._out

    def _start(self, number: int, hop: Hop) -> None:
        exchange, step = self._exchange, self._step
        before = self._out[: exchange.stage.received[number]]
        rows = rows_in_place(hop, self._H)
        if rows is None:
            if not step.exact:
                place, count = exchange.first + number, exchange.rows_sent[number]
                codec = exchange.executor.codecs[place]
                rows = codec.send_buffer(count, self._H, step.at(place))
            if rows is None:
                rows = exchange.send_rows(number, self._H)
            if hop.passed_rows is not None:
                kernels.gather_rows(before, hop.passed_rows, out=rows)
            else:
                rows = pack(hop, self._H, rows)
                if hop.relay is not None:
                    kernels.spmm(hop.relay, before, out=rows, accumulate=True)
        out = exchange.slice_of(number, self._out)
        self._handles[number] = exchange.start(number, rows, out, step)


class Returning:
    """Gradients of rows of others, on their way back to them."""

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
                G_recv = exchange.send_rows(number, R_G)
            else:
                assert hop.run is not None
                G_recv = out[hop.run : hop.run + exchange.rows_sent[number]]
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
            unpack_add(hop, G_recv, dH_local)


class Way(NamedTuple):
    """Runs a turn of rows of one width; the turn back is the adjoint."""

    turn: Turn
    comm: Communicator
    width: int
    elements: Callable[[Tensor, int, str], Tensor] = lambda like, count, role: like.new_empty(count)

    def forward(self, rows: Tensor) -> Tensor:
        """[own rows, width] to [rows of the group, share]. Collective."""
        turn, share = self.turn, self.turn.share(self.width)
        message = self.elements(rows, rows.numel(), "message")
        for columns, block in self._blocks(rows, message):
            block.copy_(columns)
        # Blocks arrive in the order of ranks: together they are the rows of the group.
        result = self.elements(rows, turn.all * share, "share")
        self.comm.alltoallv(message, result, turn.counts(self.width)).wait()
        return result.view(turn.all, share)

    def adjoint(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows of the group, share] to [own rows, width], in `out` if given. Collective."""
        message = self.elements(rows, self.turn.own * self.width, "message")
        counts = self.turn.counts(self.width).reversed()
        self.comm.alltoallv(rows.contiguous().view(-1), message, counts).wait()
        result = rows.new_empty(self.turn.own, self.width) if out is None else out
        for columns, block in self._blocks(result, message):
            columns.copy_(block)
        return result

    def _blocks(self, rows: Tensor, message: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        shares = self.turn.shares(self.width).tolist()
        blocks = message.split([len(rows) * share for share in shares])
        for columns, block in zip(rows.split(shares, 1), blocks, strict=True):
            yield columns, block.view(columns.shape)


class Turning:
    """Runs a :class:`Turned`: turn, multiply shares of the columns, turn back."""

    def __init__(self, stage: Turned, first: int, executor: Executor) -> None:
        self._stage, self._first, self._executor = stage, first, executor
        self._runners = executor.runners(stage.stages, first)

    def forward(self, H_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """Turn, multiply, turn back. Collective."""
        before, after = self._ways(H_local.shape[1])
        H_share = before.forward(H_local)
        for stage in self._runners:
            H_share = stage.forward(H_share, step)
        return after.adjoint(H_share, out)

    def adjoint(self, G_local: Tensor, step: Step, out: Tensor | None = None) -> Tensor:
        """The same backwards. Collective."""
        before, after = self._ways(G_local.shape[1])
        G_share = after.forward(G_local)
        for stage in reversed(self._runners):
            G_share = stage.adjoint(G_share, step)
        return before.adjoint(G_share, out)

    def _ways(self, width: int) -> list[Way]:
        turns = self._stage.before, self._stage.after
        return [Way(t, self._executor.mesh[t.axis], width, self._elements) for t in turns]

    def _elements(self, like: Tensor, count: int, role: str) -> Tensor:
        one_wide = like.new_empty(0, 1)
        return self._executor.workspace.rows((role, self._first), count, one_wide).view(-1)


def local_product(stage: Stage, H_local: Tensor, out: Tensor | None = None) -> Tensor:
    """``L·H``; rows of H themselves, rather than a copy, where L only names neighbouring ones."""
    if (first := stage.local_run) is None:
        return kernels.spmm(stage.local, H_local, out=out)
    return H_local[first : first + stage.local.pattern.shape[0]]


def adjoint_product(
    stage: Stage, G_local: Tensor, out: Tensor | None = None, zeroed: bool = False
) -> Tensor:
    """``Lᵀ·G``; rows that it does not write are zero if others do not arrive there, or `zeroed`."""
    block = stage.local
    if (first := stage.local_run) is None:
        return kernels.spmm(block.T, G_local, out=out)
    dH_local = new_rows(block.shape[1], G_local) if out is None else out
    if zeroed or not stage.rearranges:
        dH_local.zero_()
    dH_local[first : first + block.shape[0]] = G_local
    return dH_local


def rows_in_place(hop: Hop, H_local: Tensor) -> Tensor | None:
    """``S·H`` as rows of H itself, where S only names neighbouring ones."""
    first = hop.run
    if first is None or hop.relay is not None or not H_local.is_contiguous():
        return None
    return H_local[first : first + hop.send.pattern.shape[0]]


def pack(hop: Hop, H_local: Tensor, out: Tensor) -> Tensor:
    """``S·H``, in `out`."""
    if hop.selected_rows is None:
        return kernels.spmm(hop.send, H_local, out=out)
    if H_local.dtype not in SUM_DTYPE:  # which kernels do not know
        return torch.index_select(H_local, 0, hop.selected_rows, out=out)
    return kernels.gather_rows(H_local, hop.selected_rows, scale=hop.selected_scale, out=out)


def unpack_add(hop: Hop, G_recv: Tensor, dH_local: Tensor) -> None:
    """``dH += Sᵀ·G``, in place."""
    if (first := hop.run) is not None:
        dH_local[first : first + hop.send.shape[0]] += G_recv
    elif G_recv.dtype not in SUM_DTYPE and hop.selected_rows is not None:
        wide = torch.float32 if G_recv.dtype == torch.float16 else G_recv.dtype
        sums = dH_local.to(wide).index_add_(0, hop.selected_rows, G_recv.to(wide))
        dH_local.copy_(sums)
    elif hop.send.nnz:
        kernels.spmm(hop.send.T, G_recv, out=dH_local, accumulate=True)
