"""The codecs of one matrix: one for each hop, put together as a `Codec` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

from spgnn.errors import InputError
from spgnn.exchange.approximation import CodecSetting
from spgnn.exchange.compression import ExactMeans, Fresh, Quantise, Sample
from spgnn.exchange.delay import Delay, Never
from spgnn.exchange.plan import Plan
from spgnn.exchange.traffic import Carried
from spgnn.exchange.transport import Exact, Step, Transport


class Codecs:
    """The codecs of one matrix's hops, and how often each product has been computed.

    Several losses have a backward each, and the gradient of a gradient multiplies once more: these
    are other rows, and what a codec keeps of the first ones is not for them.

    Parameters
    ----------
    setting : CodecSetting
    hops : iterable of Transport
        One for each hop.
    """

    def __init__(self, setting: CodecSetting, hops: Iterable[Transport]) -> None:
        self.setting, self.hops = setting, list(hops)
        self._remembers = any(transport.remembers for transport in self.hops)
        self._uses: dict[tuple[int, bool], tuple[int, int]] = {}

    def begin(self, step: Step, carried: Callable[[Step], Iterator[Carried]]) -> Step:
        """The step of a product, or its adjoint, that begins now and moves what `carried` says."""
        if self._remembers:
            product = step.product, step.adjoint
            epoch, uses = self._uses.get(product, (step.epoch, 0))
            use = uses if epoch == step.epoch else 0
            self._uses[product] = step.epoch, use + 1
            step = replace(step, use=use)
        self.setting.policy.note(partial(carried, step))
        return step


def codecs_of(plan: Plan, setting: CodecSetting) -> list[Transport]:
    """The transport of each hop of a plan, whose rows have names, as a codec asks for them.

    Raises
    ------
    InputError
        If whole block rows are broadcast.
    """
    if any(hop.broadcast for hop in plan.hops):
        raise InputError("a codec needs --exchange sparsity-aware: rows, not block rows")
    return [_stack(setting) for _ in plan.hops]


def _stack(setting: CodecSetting) -> Transport:
    codec = setting.codec
    transport: Transport = Quantise(setting) if codec.quantises else Exact()
    if codec.samples:
        transport = Sample(transport, setting)
    if codec.fresh:
        transport = Fresh(transport, setting)
    if codec.delay is None:
        transport = Never(transport, setting)
    elif codec.delay:
        transport = Delay(transport, setting)
    return ExactMeans(transport, setting) if codec.sends_means else transport


def attention_codec(setting: CodecSetting) -> Transport:
    """The codec of rows that attention weighs where they arrive.

    It leaves no row out: attention draws the sample itself, for a row's weight goes with it.

    Parameters
    ----------
    setting : CodecSetting
        Checked by :meth:`Codec.check_attention`.
    """
    codec = setting.codec
    transport: Transport = Quantise(setting) if codec.quantises else Exact()
    if codec.fresh:
        transport = Fresh(transport, setting)
    return Delay(transport, setting) if codec.delay else transport


def delay_alone(setting: CodecSetting) -> Transport:
    """The codec of what belongs to such rows and stays exact: as late as they are."""
    return Delay(Exact(), setting) if setting.codec.delay else Exact()
