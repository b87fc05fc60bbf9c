"""The codecs of one matrix: a stack of them for each hop, and the names of its rows.

Both ends of an exchange have to draw alike, so its rows have names that both of them know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.compression import CodecLayer, ExactMeans, Quantise, Sample
from spgnn.exchange.delay import Delay, SendNothing
from spgnn.exchange.needs import Communicators, swap_rows
from spgnn.exchange.plan import Carried, Factor, Hop, Plan, Turned
from spgnn.exchange.route import Names
from spgnn.exchange.transport import Step, Transport
from spgnn.pattern import Selection
from spgnn.registry import CODECS
from spgnn.sparse import CSR


def stack(setting: CodecSetting, *, attended: bool = False) -> Transport:
    """The codecs of one hop, the last of which sends."""
    codec = setting.codec
    transport: Transport = Quantise(Transport(), setting) if codec.quantises else Transport()
    if codec.samples and not attended:
        transport = Sample(transport, setting)
    for name, argument in codec.extra:
        transport = CODECS[name](transport, setting, argument)
    if codec.delay:
        transport = Delay(transport, setting)
    if codec.delay is None and not attended:
        transport = SendNothing(transport, setting)
    return ExactMeans(transport, setting) if codec.sends_means and not attended else transport


class Codecs:
    """The codecs of one matrix's hops, and how often each product has been computed.

    Raises
    ------
    InputError
        If whole block rows are broadcast.
    """

    def __init__(self, plan: Plan, setting: CodecSetting) -> None:
        if any(hop.broadcast for hop in plan.hops):
            raise InputError("a codec needs --exchange sparsity-aware: rows, not block rows")
        self.setting, self.hops = setting, [stack(setting) for _ in plan.hops]
        self.of_attention: dict[int, Transport] = {}  # of its exchanges, once there is one
        self._uses: dict[tuple[int, bool], tuple[int, int]] = {}

    @property
    def named(self) -> dict[str, CodecLayer]:
        """All that may keep something, by the names that a checkpoint has for them."""
        codecs = {str(number): codec for number, codec in enumerate(self.hops)}
        codecs |= {f"attention-{number}": codec for number, codec in self.of_attention.items()}
        return {name: codec for name, codec in codecs.items() if isinstance(codec, CodecLayer)}

    def land(self) -> None:
        """Wait for all rows that are under way. Collective."""
        for codec in self.named.values():
            codec.land()

    def begin(self, step: Step, carried: Callable[[Step], Iterator[Carried]]) -> Step:
        """The step of a product, or its adjoint, that begins now and moves what `carried` says."""
        if self.setting.codec.remembers:
            product = step.product, step.adjoint
            epoch, use = self._uses.get(product, (step.epoch, 0))
            use = use if epoch == step.epoch else 0
            self._uses[product] = step.epoch, use + 1
            step = replace(step, use=use)
        self.setting.policy.note(partial(carried, step))
        return step


def name_rows(plan: Plan, ids: Tensor, mesh: Communicators, rank: int) -> Plan:
    """The plan of this rank with names of the rows of all its hops. Collective."""
    numbers, stages = _Numbers(rank), []
    for stage in plan.stages:
        stages.append(_named(stage, ids, mesh, numbers))
        # What one stage hands to the next are sums.
        ids = numbers.of(ids, stage.shape[0])
    return Plan(tuple(stages))


class _Numbers:
    """Numbers for rows that are no vertex's: sums. Below zero, and of this rank alone."""

    def __init__(self, rank: int) -> None:
        self._rank, self._place = rank, 0

    def of(self, like: Tensor, count: int) -> Tensor:
        """So many new ones, int64; there are at most 2²⁰ ranks, and 2³⁶ rows at a time."""
        first = (self._place * 2**20 + self._rank) * 2**36 + 1
        self._place += 1
        return -torch.arange(first, first + count, device=like.device)


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
        # A row is named after its vertex where it is one row as it is, or passed on.
        sent = numbers.of(ids, hop.send.shape[0])
        given = hop.send.row_lengths.to(ids.device)
        passed = torch.zeros_like(given)
        if hop.relay is not None:
            passed = hop.relay.row_lengths.to(ids.device)
            _name(sent, hop.relay, received, (given == 0) & (passed == 1))
        _name(sent, hop.send, ids, (given == 1) & (passed == 0))
        comm = mesh[hop.axis]
        arriving = swap_rows(comm, sent, hop.counts)
        hops.append(replace(hop, names=Names(sent, arriving, comm.rank)))
        received = torch.cat((received, arriving))
    return replace(stage, hops=tuple(hops))


def _name(names: Tensor, block: CSR, ids: Tensor, alone: Tensor) -> None:
    """Name rows that have a single nonzero after its column."""
    rows = alone.nonzero()[:, 0]
    entries = rows if isinstance(block.pattern, Selection) else block.indptr[rows]
    names[rows] = ids[block.indices[entries].long()]
