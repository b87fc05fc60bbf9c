"""The codecs of one matrix: one for each hop, put together as a `Codec` asks for them.

Both ends of an exchange have to draw alike, so its rows have names that both of them know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.exchange.approximation import CodecSetting
from spgnn.exchange.compression import ExactMeans, Fresh, Quantise, Sample
from spgnn.exchange.delay import Delay, Never
from spgnn.exchange.needs import Communicators, swap_rows
from spgnn.exchange.plan import Carried, Factor, Hop, Names, Plan, Turned
from spgnn.exchange.transport import Exact, Step, Transport
from spgnn.pattern import Selection
from spgnn.sparse import CSR


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


_RANKS, _ROWS = 2**20, 2**36


class _Numbers:
    """Numbers for rows that are no vertex's: sums. Below zero, and of this rank alone."""

    def __init__(self, rank: int) -> None:
        self._rank, self._place = rank, 0

    def of(self, like: Tensor, count: int) -> Tensor:
        """So many new ones, int64."""
        first = (self._place * _RANKS + self._rank) * _ROWS + 1
        self._place += 1
        return -torch.arange(first, first + count, device=like.device)


def named(plan: Plan, ids: Tensor, mesh: Communicators, rank: int) -> Plan:
    """The plan with names of the rows of all its hops. Collective.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    ids : Tensor int64 [columns]
        Original ids of the vertices whose rows it takes.
    mesh : communicators by axis
    rank : int
        Of all.
    """
    numbers, stages = _Numbers(rank), []
    for stage in plan.stages:
        stages.append(_named(stage, ids, mesh, numbers))
        # What one stage hands to the next are sums.
        ids = numbers.of(ids, stage.shape[0])
    return Plan(tuple(stages))


def _named(stage: Factor, ids: Tensor, mesh: Communicators, numbers: _Numbers) -> Factor:
    if isinstance(stage, Turned):
        turn, inner = stage.before, []
        everyone = ids.new_empty(turn.all, 1)
        mesh[turn.axis].all_gather(ids[:, None].contiguous(), everyone, turn.rows.tolist())
        ids = everyone[:, 0]
        for each in stage.stages:
            inner.append(_named(each, ids, mesh, numbers))
            ids = numbers.of(ids, each.shape[0])
        return replace(stage, stages=tuple(inner))
    hops: list[Hop] = []
    received = ids[:0]
    for hop in stage.hops:
        sent = _names_of(hop, ids, received, numbers)
        comm = mesh[hop.axis]
        arriving = swap_rows(comm, sent, hop.counts)
        hops.append(replace(hop, names=Names(sent, arriving, comm.rank)))
        received = torch.cat((received, arriving))
    return replace(stage, hops=tuple(hops))


def _names_of(hop: Hop, ids: Tensor, received: Tensor, numbers: _Numbers) -> Tensor:
    """Of the rows a hop sends: of its vertex, where it is one row as it is, or passed on."""
    names = numbers.of(ids, hop.send.shape[0])
    given = hop.send.row_lengths.to(ids.device)
    passed = torch.zeros_like(given)
    if hop.relay is not None:
        passed = hop.relay.row_lengths.to(ids.device)
        _name(names, hop.relay, received, (given == 0) & (passed == 1))
    _name(names, hop.send, ids, (given == 1) & (passed == 0))
    return names


def _name(names: Tensor, block: CSR, ids: Tensor, alone: Tensor) -> None:
    """Name rows that have a single nonzero after its column."""
    rows = alone.nonzero()[:, 0]
    entries = rows if isinstance(block.pattern, Selection) else block.indptr[rows]
    names[rows] = ids[block.indices[entries].long()]
