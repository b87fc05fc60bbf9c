"""Attention on a codec."""

from __future__ import annotations

from dataclasses import replace
from math import log

from torch import Tensor

from spgnn.attention.drawn import Drawn, Marks, left_out
from spgnn.attention.passes import ENDS, LATE, ROWS, Pass, Way
from spgnn.attention.pieces import Partials, Pieces
from spgnn.exchange import CodecSetting, Executor, Plan, Step
from spgnn.exchange.approximation import Errors
from spgnn.exchange.codecs import attention_codec, delay_alone
from spgnn.exchange.compression import chosen, pair_names
from spgnn.exchange.executor import Exchange, Workspace
from spgnn.exchange.needs import Communicators
from spgnn.exchange.plan import Route
from spgnn.exchange.transport import Transport

FETCH, SUMS, FOLD = 0, 1, 1 + len((ROWS, ENDS, LATE))
"""Numbers of the first codec of each exchange in a step."""


class AttentionCodecs:
    """Attention on approximate rows of others.

    Rows of heads × channels go through codecs. Scores do not: they are few, and stand under an
    exponential. A sample is one of sources and of partial softmaxes; the edges of the others are
    left out, and the weight of each that is drawn is 1/p times as large, in the sum and in what it
    is divided by.

    Parameters
    ----------
    pieces : Pieces
        With names.
    mesh : communicators by axis
    workspace : Workspace, optional
    setting : CodecSetting

    Attributes
    ----------
    codecs : dict
        By what each is called in a step.

    Raises
    ------
    InputError
        If the setting is none for rows that are weighed where they arrive.
    """

    def __init__(
        self,
        pieces: Pieces,
        mesh: Communicators,
        workspace: Workspace | None,
        setting: CodecSetting,
    ) -> None:
        setting.codec.check_attention()
        self._pieces, self._mesh, self._workspace = pieces, mesh, workspace
        self._setting = setting
        self.codecs: dict[int, Transport] = {}
        if pieces.fetch is not None:
            self.codecs[FETCH] = attention_codec(setting)
        # What is late with rows is no error of its own.
        silent = replace(setting, errors=Errors())
        for first, way in ((SUMS, pieces.sums), (FOLD, pieces.fold)):
            if way is not None:
                for which in (ROWS, ENDS):
                    self.codecs[first + which] = attention_codec(setting)
                self.codecs[first + LATE] = delay_alone(silent)
        self._all = self._pass(Drawn(pieces), 1.0)
        self._none = self._pass(Drawn.none(pieces), 1.0)
        self._sampled: dict[int, tuple[int, float, tuple[Drawn, Pass]]] = {}

    def at(self, step: Step) -> tuple[Drawn, Pass]:
        """The pieces that take part in a product, or its adjoint."""
        share = self._share(step.epoch)
        if share in (0.0, 1.0):
            return self._all if share else self._none
        epoch, before, found = self._sampled.get(step.product, (-1, 0.0, None))
        if found is None or (epoch, before) != (step.epoch, share):
            found = self._pass(self._draw(step, share), share)
            self._sampled[step.product] = step.epoch, share, found
        return found

    def measure(self, Z: Tensor, drawn: Drawn, step: Step) -> None:
        """Take down what is left out of a product."""
        errors, share = self._setting.errors, self._share(step.epoch)
        if share < 1 and errors.measured(step.epoch):
            lost = left_out(Z, self._pieces, drawn.pieces)
            if lost is not None:
                kind = "sampling" if share else "never"
                errors.account(kind, step, Z.device).add_(lost)

    def _share(self, epoch: int) -> float:
        """Of sources and partials that take part."""
        codec = self._setting.codec
        if codec.delay is None and not codec.is_exact(epoch):
            return 0.0
        return codec.sampling_at(epoch)

    def _draw(self, step: Step, share: float) -> Drawn:
        parts, marks = self._pieces, dict[str, Marks]()
        if parts.fetch is not None:
            marks["fetch"] = self._marks(parts.fetch.hops[0].route(), step.at(FETCH), share)
        for name, first, way in (("sums", SUMS, parts.sums), ("fold", FOLD, parts.fold)):
            if way is not None:
                marks[name] = self._marks(way.route, step.at(first), share)
        return Drawn.of(parts, marks)

    def _marks(self, route: Route, step: Step, share: float) -> Marks:
        key = self._setting.shared_key(step, "sample")
        marks = chosen(pair_names(route, adjoint=False), key, share)
        return marks[: route.counts.sent], marks[route.counts.sent :]

    def _pass(self, drawn: Drawn, share: float) -> tuple[Drawn, Pass]:
        parts = drawn.pieces
        sums, fold = self._way(parts.sums, SUMS), self._way(parts.fold, FOLD)
        return drawn, Pass(parts, self._exchange(parts), sums, fold, log(share))

    def _exchange(self, parts: Pieces) -> Exchange | None:
        if parts.fetch is None:
            return None
        plan, codecs = Plan((parts.fetch,)), [self.codecs[FETCH]]
        executor = Executor(plan, self._mesh, codecs, workspace=self._workspace)
        return executor.exchange(parts.fetch)

    def _way(self, partials: Partials | None, first: int) -> Way | None:
        if partials is None:
            return None
        codecs = {which: self.codecs[first + which] for which in (ROWS, ENDS, LATE)}
        return Way(partials, self._mesh[partials.axis], codecs, first)
