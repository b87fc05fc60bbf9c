"""Attention over a distributed matrix, forward and backward: its pieces, samples and codecs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from math import log

import torch
from torch import Tensor

from spgnn.attention.passes import (
    DST,
    LATE,
    ROWS,
    Fetch,
    Forward,
    Inputs,
    PartialsExchange,
    Pass,
    Payload,
    Share,
    Shares,
)
from spgnn.attention.pieces import Marks, Partials, Pieces, pieces
from spgnn.attention.scores import Gradients
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Executor, Plan, Step
from spgnn.exchange.codec import Errors
from spgnn.exchange.delay import Delay
from spgnn.exchange.executor import Workspace
from spgnn.exchange.needs import Communicators
from spgnn.exchange.peers import Group, cut, under_way
from spgnn.exchange.plan import Carried, Stage
from spgnn.exchange.stacks import Codecs, stack
from spgnn.exchange.transport import Transport
from spgnn.kernels.attention import AttentionDropout
from spgnn.sparse import CSR

FETCH, SUMS, FOLD = 0, 1, 1 + len((ROWS, DST, LATE))
"""Numbers of the first codec of each exchange in a step."""


class Attention:
    """Distributed attention over the nonzeros of one matrix.

    On a codec, rows of heads × channels of others are approximate. Scores are not: they are few,
    and stand under an exponential. A sample is one of sources and of partial softmaxes; the edges
    of the others are left out, and the weight of each that is drawn is 1/p times as large, in the
    sum and in what it is divided by.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    mesh, workspace
        As of :class:`Executor`.
    codecs : Codecs, optional
        Of the matrix, which get those of attention; the rows of the plan have names then.
    buffer : int
        Bytes of fetched rows at a time, where the plan exchanges with a few peers at a time: they
        are fetched again in backward.

    Raises
    ------
    InputError
        If rows take a way on which they are added up, or are cut into columns; or the codec is none
        for rows that are weighed where they arrive.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Communicators,
        workspace: Workspace | None = None,
        codecs: Codecs | None = None,
        *,
        buffer: int = 0,
    ) -> None:
        self.pieces: Pieces = pieces(plan)
        self.rows, self.columns = plan.shape
        self._mesh, self._codecs, self._buffer = mesh, codecs, buffer
        self._workspace = Workspace() if workspace is None else workspace
        self._in_groups: dict[tuple[Group, ...] | None, Pass] = {}
        self._ids: tuple[Tensor, Tensor | None, tuple[Tensor, ...]] | None = None
        self._sampled: dict[int, tuple[int, float, Pass]] = {}
        if codecs is None:
            return
        setting, own = codecs.setting, codecs.of_attention
        setting.codec.check_attention()
        if self.pieces.rounds is not None:
            raise InputError("attention with a codec needs --schedule overlap: its rows come once")
        if self.pieces.fetch is not None and len(self.pieces.fetch.hops) > 1:
            raise InputError("attention with a codec needs --no-relays: its rows travel once")
        if self.pieces.fetch is not None:
            own[FETCH] = stack(setting, attended=True)
        # What is late with rows is no error of its own.
        silent = replace(setting, errors=Errors())
        for first, partials in ((SUMS, self.pieces.sums), (FOLD, self.pieces.fold)):
            if partials is not None:
                own |= {first + which: stack(setting, attended=True) for which in (ROWS, DST)}
                late = Delay(Transport(), silent) if setting.codec.delay else Transport()
                own[first + LATE] = late

    @property
    def edges(self) -> int:
        """Nonzeros of this rank's rows, those of partials apart."""
        remote = self.pieces.remote
        return self.pieces.local.nnz + (0 if remote is None else remote.nnz)

    @property
    def ends_here(self) -> bool:
        """True if every edge lies where it ends."""
        return self.pieces.sums is None and self.pieces.fold is None

    def check_edges(self, edges: Tensor | None, *, needed: bool = False) -> None:
        """Refuse scores of edges [edges, …] that do not lie where edges do; `needed`: will not."""
        if edges is None and not needed:
            return
        if not self.ends_here:
            raise InputError(
                "edge features, and second derivatives, are of edges that lie where they end: they "
                "need --algo 1d and --cover column"
            )
        if edges is not None and edges.shape[0] != self.edges:
            raise InputError(
                f"this rank has {self.edges} edges, there are edge features of {edges.shape[0]}"
            )

    def ids(self, vertex_ids: Tensor, row_columns: Tensor | None) -> tuple[Tensor, ...]:
        """Original ids of all vertices that take part; of tensors seen before, as they were.

        Collective where they are new.

        Parameters
        ----------
        vertex_ids : Tensor int64 [columns]
        row_columns : Tensor int64 [rows], optional
            Which column each row is; without it, row i is column i.

        Returns
        -------
        tensors int64
            Of partial rows, columns, fetched rows, and destinations of partials for others.
        """
        if self._ids is not None and self.knows(vertex_ids, row_columns):
            return self._ids[2]
        rows = vertex_ids[: self.rows] if row_columns is None else vertex_ids[row_columns]
        run = self._exact(2 * vertex_ids.itemsize, check=False)
        (rows,) = run.unfold(Payload(None, (rows[:, None],)), EXACT)
        requested = fetched = vertex_ids[:0]
        if run.sums is not None:
            requested = run.sums.to_makers(Payload(None, (rows,)), EXACT)()[0][:, 0]
        if run.fetches:
            # Rows of two numbers that float64 holds exactly: whatever the codec is, it knows rows.
            halves = torch.stack((vertex_ids >> 32, vertex_ids & 0xFFFFFFFF), 1).double()
            fetched = vertex_ids.new_empty(self.pieces.fetched)
            for fetch in run.fetches:
                high, low = fetch.exchange.begin(halves, EXACT).wait().long().unbind(1)
                fetched[slice(None) if fetch.among is None else fetch.among] = (high << 32) + low
        ids = rows[:, 0], vertex_ids, fetched, requested
        self._ids = vertex_ids, row_columns, ids
        return ids

    def knows(self, vertex_ids: Tensor | None, row_columns: Tensor | None) -> bool:
        """True if the last request for ids was for these very tensors."""
        return self._ids is not None and self._ids[0] is vertex_ids and self._ids[1] is row_columns

    def carried(
        self, width: int, heads: int, dtype: torch.dtype, step: Step, *, joint: bool
    ) -> Iterator[Carried]:
        """Bytes of a step, exchange by exchange, as codecs carry them.

        Of rows of heads × channels columns, in a dtype; scores travel in that of its sums, and need
        the destination's whole row if `joint`.
        """
        run = self._at(step, width * dtype.itemsize)
        directions = {step.adjoint, False} if self.pieces.rounds is not None else {step.adjoint}
        for adjoint, fetch in product(sorted(directions), run.fetches[:1]):  # its executor has all
            at = replace(step, adjoint=adjoint)
            yield from fetch.exchange.executor.carried(width, dtype, at)
        for way in (run.fold, run.sums):
            if way is not None:
                # Destinations go to where their sources are, and sums come back; then gradients of
                # these go, with what every weight of the row needs, and those of the ends return.
                yield from way.carried(width, heads, dtype, step, joint=joint)

    def forward(self, inputs: Inputs, step: Step, *, gradients: bool = True) -> Sequence[Tensor]:
        """Weighted sums [rows, heads * channels], and all that gradients need. Collective."""
        run = self._at(step, inputs.Z.shape[1] * inputs.Z.itemsize)
        if self._codecs is not None and not step.exact:
            self._measure(inputs.Z, run.pieces, step)
            step = self._begin(inputs, step)
        return run.forward(inputs, self._shares(inputs, run), step, gradients=gradients)

    def backward(
        self,
        G: Tensor,
        inputs: Inputs,
        saved: Sequence[Tensor],
        step: Step,
        D: Tensor | None = None,
    ) -> Gradients:
        """Gradients in all operands, from G [rows, heads * channels]. Collective.

        `saved` is what `forward` returned of the same inputs, and `D` [rows, heads] the products of
        G with the result, if that is not among it.
        """
        run, step = self._at(step, inputs.Z.shape[1] * inputs.Z.itemsize), step.reversed()
        if self._codecs is not None and not step.exact:
            step = self._begin(inputs, step)
        shares = self._shares(inputs, run)
        gradients, of_fetches = run.backward(G, inputs, shares, Forward(*saved), step, D)
        return gradients._replace(edges=self._joined(gradients.edges, of_fetches, run))

    def _exact(self, row_bytes: int, *, check: bool = True) -> Pass:
        """All pieces, for exact rows of so many bytes."""
        rounds, groups = self.pieces.rounds, None
        if rounds is not None:
            budget, least = self._buffer, rounds.least_budget(row_bytes)
            if check and budget < least:
                raise InputError(
                    f"--buffer {budget}: attention to rows of {row_bytes} bytes needs {least} "
                    "bytes at least; give more, or --schedule overlap"
                )
            groups = rounds.groups(max(budget, least), row_bytes)
        if groups not in self._in_groups:
            self._in_groups[groups] = self._pass(self.pieces, 1.0, {}, groups)
        return self._in_groups[groups]

    def _at(self, step: Step, row_bytes: int) -> Pass:
        """The pieces that take part in a product, or its adjoint, and their exchanges."""
        if self._codecs is None or step.exact:
            return self._exact(row_bytes)
        share = self._share(step.epoch)
        if share in (0, 1):
            return self._all if share else self._none
        epoch, before, run = self._sampled.get(step.product, (-1, 0.0, None))
        if run is None or (epoch, before) != (step.epoch, share):
            run = self._pass(self._sample(step, share), share, self._codecs.of_attention)
            self._sampled[step.product] = step.epoch, share, run
        return run

    @cached_property
    def _all(self) -> Pass:
        assert self._codecs is not None
        return self._pass(self.pieces, 1.0, self._codecs.of_attention)

    @cached_property
    def _none(self) -> Pass:
        return self._pass(self.pieces.without_exchanges(), 1.0, {})

    def _pass(
        self,
        parts: Pieces,
        share: float,
        codecs: dict[int, Transport],
        groups: tuple[Group, ...] | None = None,
    ) -> Pass:
        own = [codecs[FETCH]] if codecs else None
        fetches = list(self._fetches(parts, own, groups))

        def way(partials: Partials | None, first: int) -> PartialsExchange | None:
            if partials is None:
                return None
            own = {which: codecs[first + which] for which in (ROWS, DST, LATE)} if codecs else None
            return PartialsExchange(partials, self._mesh[partials.axis], own, first)

        ways, at_once = (way(parts.sums, SUMS), way(parts.fold, FOLD)), under_way(self._buffer)
        return Pass(parts, fetches, *ways, log(share), at_once)

    def _fetches(
        self, parts: Pieces, codecs: list[Transport] | None, groups: tuple[Group, ...] | None
    ) -> Iterator[Fetch]:
        """All sources of others at once, or group by group."""
        if parts.fetch is None or parts.remote is None:
            return
        if groups is None or parts.rounds is None:
            plan = Plan((parts.fetch,))
            executor = Executor(plan, self._mesh, codecs, workspace=self._workspace)
            yield Fetch(executor.exchange(parts.fetch), parts.remote, parts.sampled_fetches)
            return
        whole = replace(parts.fetch, remote=CSR(parts.remote))
        cuts = cut(whole, groups, parts.rounds)
        stages = [Stage(parts.fetch.local, None, (piece.hop,)) for piece in cuts]
        executor = Executor(Plan(tuple(stages)), self._mesh, workspace=self._workspace)
        for number, (piece, stage) in enumerate(zip(cuts, stages, strict=True)):
            among = None
            if piece.received is not None:
                among = torch.zeros(parts.fetched, dtype=torch.bool, device=parts.remote.device)
                among[piece.received] = True
            # Buffers take turns.
            exchange = executor.exchange(stage, number % under_way(self._buffer))
            yield Fetch(exchange, piece.remote.pattern, among)

    def _share(self, epoch: int) -> float:
        """The share of sources and partials that take part."""
        assert self._codecs is not None
        codec = self._codecs.setting.codec
        if codec.delay is None and not codec.is_exact(epoch):
            return 0.0
        return codec.sampling_at(epoch)

    def _sample(self, step: Step, share: float) -> Pieces:
        assert self._codecs is not None
        parts, setting, marks = self.pieces, self._codecs.setting, dict[str, Marks]()
        for name, first, part in (
            ("fetch", FETCH, parts.fetch),
            ("sums", SUMS, parts.sums),
            ("fold", FOLD, parts.fold),
        ):
            if part is not None:
                route = part.route if isinstance(part, Partials) else part.hops[0].route()
                key = setting.shared_key(step.at(first), "sample")
                marks[name] = route.draw(key, share, adjoint=False)
        return parts.sample(marks)

    def _begin(self, inputs: Inputs, step: Step) -> Step:
        assert self._codecs is not None
        Z, scores = inputs.Z, inputs.scores
        sizes = Z.shape[1], scores.heads, Z.dtype
        return self._codecs.begin(step, lambda at: self.carried(*sizes, at, joint=scores.joint))

    def _measure(self, Z: Tensor, some: Pieces, step: Step) -> None:
        """Note the squared norm of rows that are not sent, and of all that could be."""
        assert self._codecs is not None
        errors, share = self._codecs.setting.errors, self._share(step.epoch)
        if share == 1 or not errors.measured(step.epoch) or self.pieces.fetch is None:
            return
        norms = torch.linalg.vector_norm(Z, dim=1, dtype=torch.float64).square_()
        everything = lost = norms[self.pieces.fetch.hops[0].send.indices].sum()
        if some.fetch is not None:
            lost = everything - norms[some.fetch.hops[0].send.indices].sum()
        account = errors.account("sampling" if share else "never", step, Z.device)
        account.add_(torch.stack((lost, everything)))

    def _shares(self, inputs: Inputs, run: Pass) -> Shares:
        """Contributions of edges and dropout, block by block."""
        edges, some = inputs.edges, run.pieces
        of_fetches: list[Tensor | None] = [None] * len(run.fetches)
        if edges is not None and self.pieces.remote is not None:
            of_fetches = [edges[self._remote(fetch)] for fetch in run.fetches]
            edges = edges[self._places[0]]
        if inputs.drops is None:
            return Shares(Share(edges), [Share(each) for each in of_fetches], Share())
        key, p, vertex_ids, row_columns = inputs.drops
        rows, columns, fetched, requested = self.ids(vertex_ids, row_columns)
        if some.sampled_rows is not None:
            rows = rows[some.sampled_rows]
        if some.sampled_sums is not None:
            requested = requested[some.sampled_sums]
        parts, number = inputs.part
        if parts > 1:  # elements of a share of the heads are numbered as among all
            columns, fetched = (each * parts + number for each in (columns, fetched))
        drops = partial(AttentionDropout, key, p)
        local, summed = drops(rows, columns), drops(requested, columns)
        among = (fetched if f.among is None else fetched[f.among] for f in run.fetches)
        shares = [Share(e, drops(rows, ids)) for e, ids in zip(of_fetches, among, strict=True)]
        return Shares(Share(edges, local), shares, Share(None, summed))

    def _joined(
        self, local: Tensor | None, of_fetches: list[Tensor | None], run: Pass
    ) -> Tensor | None:
        if local is None or self.pieces.remote is None:
            return local
        joined = local.new_zeros(self.edges, *local.shape[1:])
        joined[self._places[0]] = local
        for fetch, remote in zip(run.fetches, of_fetches, strict=True):
            assert remote is not None
            joined[self._remote(fetch)] = remote
        return joined

    def _remote(self, fetch: Fetch) -> Tensor:
        """Places of the edges from the sources of a fetch among all."""
        remote, whole = self._places[1], self.pieces.remote
        if fetch.among is None or whole is None:
            return remote
        return remote[fetch.among[whole.indices.long()]]

    @cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Positions of both blocks' nonzeros among those of [local, remote], int64."""
        left, right = self.pieces.local, self.pieces.remote
        assert right is not None
        # Entries move right by what their row has of the other block before them.
        before = right.indptr[:-1].repeat_interleave(left.row_lengths)
        after = left.indptr[1:].repeat_interleave(right.row_lengths)
        return before + torch.arange(left.nnz, device=left.device), after + torch.arange(
            right.nnz, device=left.device
        )
