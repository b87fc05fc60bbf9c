"""The codecs of one matrix: a stack of them for each hop, and the names of its rows.

Both ends of an exchange have to draw alike, so its rows have names that both of them know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.compression import CodecLayer, ExactMeans, Quantise, Sample
from spgnn.exchange.delay import Delay, SendNothing
from spgnn.exchange.needs import Communicators, swap_rows
from spgnn.exchange.plan import Carried, Factor, Hop, Plan, Turned
from spgnn.exchange.transport import Names, Step, Transport
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
    """The codecs of one matrix's hops, and how often each product has been computed."""

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


# New names, int64, for so many rows that are no vertex's: sums.
NamesOfSums = Callable[[Tensor, int], Tensor]


def name_rows(plan: Plan, ids: Tensor, mesh: Communicators, rank: int) -> Plan:
    """The plan of this rank with names of the rows of all its hops. Collective."""
    places, stages = count(), []

    def sums(like: Tensor, rows: int) -> Tensor:
        # Below zero, and of this rank alone: there are at most 2²⁰ ranks, and 2³⁶ rows at a time.
        first = (next(places) * 2**20 + rank) * 2**36 + 1
        return -torch.arange(first, first + rows, device=like.device)

    for stage in plan.stages:
        stages.append(_named(stage, ids, mesh, sums))
        # What one stage hands to the next are sums.
        ids = sums(ids, stage.shape[0])
    return Plan(tuple(stages))


def _named(stage: Factor, ids: Tensor, mesh: Communicators, sums: NamesOfSums) -> Factor:
    if isinstance(stage, Turned):
        turn, inner = stage.before, []
        everyone = ids.new_empty(turn.all, 1)
        mesh[turn.axis].all_gather(ids[:, None].contiguous(), everyone, turn.rows.tolist())
        ids = everyone[:, 0]
        for each in stage.stages:
            inner.append(_named(each, ids, mesh, sums))
            ids = sums(ids, each.shape[0])
        return replace(stage, stages=tuple(inner))
    hops: list[Hop] = []
    received = ids[:0]
    for hop in stage.hops:
        # A row is named after its vertex where it is one row as it is, or passed on.
        sent = sums(ids, hop.send.shape[0])
        of_H = hop.send.row_lengths.to(ids.device)
        passed = torch.zeros_like(of_H)
        if hop.relay is not None:
            passed = hop.relay.row_lengths.to(ids.device)
            _name(sent, hop.relay, received, (of_H == 0) & (passed == 1))
        _name(sent, hop.send, ids, (of_H == 1) & (passed == 0))
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
