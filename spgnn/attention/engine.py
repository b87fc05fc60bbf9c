"""Attention over a distributed matrix, forward and backward: what is asked, and by which codecs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from spgnn.attention.codecs import AttentionCodecs
from spgnn.attention.drawn import Drawn
from spgnn.attention.passes import EdgeParts, Load, Pass, Way
from spgnn.attention.pieces import Pieces, pieces
from spgnn.attention.scores import Forward, Gradients, Ids, Rate, Scores
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Carried, CodecSetting, Executor, Plan, Step
from spgnn.exchange.codecs import Codecs
from spgnn.exchange.compression import CodecLayer
from spgnn.exchange.executor import Workspace
from spgnn.exchange.needs import Communicators


class Attention:
    """Distributed attention over the nonzeros of one matrix.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    mesh : communicators by axis
    workspace : Workspace, optional
        Buffers to share with what never runs at the same time.
    setting : CodecSetting, optional
        Of a codec; the rows of the plan have names then.

    Attributes
    ----------
    pieces : Pieces
    rows, columns : int
        Rows this rank makes, and rows of Z it holds.

    Raises
    ------
    InputError
        If rows take a way on which they are added up, or are cut into columns; or the setting is
        none for attention.
    """

    def __init__(
        self,
        plan: Plan,
        mesh: Communicators,
        workspace: Workspace | None = None,
        setting: CodecSetting | None = None,
    ) -> None:
        self.pieces: Pieces = pieces(plan)
        self.rows, self.columns = plan.shape
        self._mesh, self._workspace = mesh, workspace
        self._coded = (
            None if setting is None else AttentionCodecs(self.pieces, mesh, workspace, setting)
        )
        self._uses = None if setting is None else Codecs(setting, self.codecs.values())
        self._ids: tuple[Tensor, Tensor | None, Ids] | None = None

    @cached_property
    def _exact(self) -> tuple[Drawn, Pass]:
        """All pieces and their pass, for exact rows."""
        parts, exchange = self.pieces, None
        if parts.fetch is not None:
            plan = Plan((parts.fetch,))
            executor = Executor(plan, self._mesh, workspace=self._workspace)
            exchange = executor.exchange(parts.fetch)
        sums, fold = (
            None if each is None else Way(each, self._mesh[each.axis])
            for each in (parts.sums, parts.fold)
        )
        return Drawn(parts), Pass(parts, exchange, sums, fold)

    @property
    def codecs(self) -> dict[int, CodecLayer]:
        """Those that approximate, by what they are called in a step."""
        codecs = {} if self._coded is None else self._coded.codecs
        return {number: codec for number, codec in codecs.items() if isinstance(codec, CodecLayer)}

    def _at(self, step: Step) -> tuple[Drawn, Pass]:
        return self._exact if self._coded is None or step.exact else self._coded.at(step)

    def _begun(self, Z: Tensor, scores: Scores, step: Step) -> Step:
        if self._uses is None or step.exact:
            return step
        facts, whole_rows = (Z.shape[1], scores.heads, Z.dtype), scores.whole_rows
        return self._uses.begin(step, lambda at: self.carried(*facts, at, whole_rows=whole_rows))

    @property
    def edges(self) -> int:
        """Nonzeros of this rank's rows, those of partials apart."""
        remote = self.pieces.remote
        return self.pieces.local.nnz + (0 if remote is None else remote.nnz)

    def check_edges(self, edges: Tensor | None, *, wanted: bool = False) -> None:
        """Refuse edge scores that do not lie where the edges are.

        Parameters
        ----------
        edges : Tensor [edges, …], optional
        wanted : bool
            Whether there will be some.

        Raises
        ------
        InputError
        """
        if edges is None and not wanted:
            return
        if self.pieces.sums is not None or self.pieces.fold is not None:
            raise InputError(
                "edge features lie where the edge ends: they need --algo 1d and --cover column"
            )
        if edges is not None and edges.shape[0] != self.edges:
            raise InputError(
                f"this rank has {self.edges} edges, there are edge features of {edges.shape[0]}"
            )

    def ids(self, sources: Tensor, targets: Tensor | None) -> Ids:
        """Original numbers of all vertices that take part; of tensors seen before, as they were.

        Collective where they are new.

        Parameters
        ----------
        sources : Tensor int64 [columns]
        targets : Tensor int64 [rows], optional
            Which column each row is; without it, row i is column i.
        """
        if self._ids is not None and self.knows(sources, targets):
            return self._ids[2]
        rows = sources[: self.rows] if targets is None else sources[targets]
        parts, (_, exact) = self.pieces, self._exact
        (rows,) = exact.everywhere(Load(None, (rows[:, None],)), EXACT)
        asked = fetched = sources[:0]
        if exact.sums is not None:
            asked = exact.sums.back(Load(None, (rows,)), EXACT).wait()[0][:, 0]
        if exact.exchange is not None:
            # Rows of two numbers that float64 holds exactly: whatever the codec is, it knows rows.
            halves = torch.stack((sources >> 32, sources & 0xFFFFFFFF), 1).double()
            received = halves.new_empty(parts.fetched, 2)
            high, low = exact.exchange.begin(halves, EXACT, received).wait().long().unbind(1)
            fetched = (high << 32) + low
        found = Ids(rows[:, 0], sources, fetched, asked)
        self._ids = sources, targets, found
        return found

    def knows(self, sources: Tensor | None, targets: Tensor | None) -> bool:
        """True if the last request for ids was for these very tensors."""
        return self._ids is not None and self._ids[0] is sources and self._ids[1] is targets

    def carried(
        self, width: int, heads: int, dtype: torch.dtype, step: Step, *, whole_rows: bool
    ) -> Iterator[Carried]:
        """Messages of a step, exchange by exchange, as codecs carry them.

        Parameters
        ----------
        width, heads, dtype, whole_rows
            As of :meth:`Pieces.messages`.
        step : Step
        """
        _, run = self._at(step)
        if run.exchange is not None:
            yield from run.exchange.executor.carried(width, dtype, step)
        for way in (run.fold, run.sums):
            if way is not None:
                yield from way.carried(width, heads, dtype, step, whole_rows=whole_rows)

    def forward(
        self,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        step: Step,
        *,
        edges: Tensor | None = None,
        rate: Rate | None = None,
        gradients: bool = True,
    ) -> Forward:
        """Weighted sums of rows of Z. Collective.

        Parameters
        ----------
        Z : Tensor [columns, heads * channels]
        ends : Tensor [rows, …]
            The destinations' side of scores.
        scores : Scores
        step : Step
        edges : Tensor [edges, …], optional
            What edges add to scores, in the order of the nonzeros of [local, remote].
        rate : Rate, optional
            Dropout of weights.
        gradients : bool
            Whether to keep what these need.
        """
        drawn, run = self._at(step)
        if self._coded is not None and not step.exact:
            self._coded.measure(Z, drawn, step)
        return run.forward(
            Z,
            ends,
            scores,
            self._begun(Z, scores, step),
            edges=self._split(edges, drawn),
            rate=_of(rate, drawn),
            gradients=gradients,
        )

    def backward(
        self,
        G: Tensor,
        Z: Tensor,
        ends: Tensor,
        scores: Scores,
        made: Forward,
        *,
        step: Step,
        edges: Tensor | None = None,
        rate: Rate | None = None,
    ) -> Gradients:
        """Gradients in all operands, from that in the rows that were made. Collective.

        Parameters
        ----------
        G : Tensor [rows, heads * channels]
        Z, ends, scores, step, edges, rate
            As forward.
        made : Forward
            What that returned.
        """
        drawn, run = self._at(step)
        found, of_remote = run.backward(
            G,
            Z,
            ends,
            scores,
            made,
            step=self._begun(Z, scores, step.reversed()),
            edges=self._split(edges, drawn),
            rate=_of(rate, drawn),
        )
        return found._replace(edges=self._joined(found.edges, of_remote, drawn))

    def _split(self, edges: Tensor | None, drawn: Drawn) -> EdgeParts:
        """Split data of edges into those of the local block and those of the remote block."""
        if edges is None or self.pieces.remote is None:
            return edges, None
        local, remote = self._places
        some = drawn.edges(self.pieces)
        return edges[local], edges[remote if some is None else remote[some]]

    def _joined(self, local: Tensor | None, remote: Tensor | None, drawn: Drawn) -> Tensor | None:
        if local is None or self.pieces.remote is None:
            return local
        places, joined = self._places, local.new_zeros(self.edges, *local.shape[1:])
        joined[places[0]] = local
        if remote is not None:
            some = drawn.edges(self.pieces)
            joined[places[1] if some is None else places[1][some]] = remote
        return joined

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


def _of(rate: Rate | None, drawn: Drawn) -> Rate | None:
    return None if rate is None else rate._replace(ids=drawn.ids(rate.ids))
