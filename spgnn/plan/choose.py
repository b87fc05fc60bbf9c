"""Price every configuration, leave out what does not fit, and rank the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from spgnn.errors import InputError
from spgnn.plan.census import Census
from spgnn.plan.counted import Counted
from spgnn.plan.estimate import can_be_estimated, estimated_setting
from spgnn.plan.machine import Machine
from spgnn.plan.network import Epoch, Network
from spgnn.plan.out_of_core import OutOfCore
from spgnn.plan.partitions import GivenLabels, Partitions
from spgnn.plan.predict import price
from spgnn.plan.search import (
    Configuration,
    Outpaced,
    Planned,
    Plans,
    Search,
    arrangement,
    configurations,
)
from spgnn.plan.subject import Setting, Subject, set_up
from spgnn.plan.tracing import trace
from spgnn.plan.wired import Wired
from spgnn.progress import Progress

# Nonzeros of a graph up to which every configuration is priced, and up to which plans are made.
THOROUGH, EXACT = 3_000_000, 100_000_000


@dataclass(frozen=True, eq=False)
class Choice:
    """Plans for one number of ranks, the best first.

    Attributes
    ----------
    ranks : int
    plans : list of Planned
    dropped : list of Planned
        Plans that need more memory than there is.
    outpaced : list of Outpaced
        Plans that were ruled out before their rows were counted.
    """

    ranks: int
    plans: list[Planned]
    dropped: list[Planned]
    outpaced: list[Outpaced]

    def why(self, planned: Planned) -> str:
        """One line: why a plan is where it is."""
        first, spent = self.plans[0], planned.prediction.seconds or {}
        if planned is first:
            kind = max(spent, key=lambda name: spent[name])
            share = spent[kind] / max(planned.seconds, 1e-30)
            return f"the least seconds; {share:.0%} of them are {kind}"
        best = first.prediction.seconds or {}
        more = {kind: seconds - best.get(kind, 0.0) for kind, seconds in spent.items()}
        kind = max(more, key=lambda name: more[name])
        slower = planned.seconds / max(first.seconds, 1e-30)
        moved = planned.prediction.volume["total_bytes"]
        least = first.prediction.volume["total_bytes"]
        bytes_ = f"{moved / least:.2g} times the bytes" if least else f"{moved:,} bytes, not 0"
        if moved == least:
            bytes_ = "the same bytes"
        return f"{slower:.2f} times the first: {1e3 * more[kind]:.3g} ms more {kind}, {bytes_}"


class Planner:
    """Plans for one graph and model; partitions and counts are made once.

    Parameters
    ----------
    subject : Subject
    network : Network
    machine : Machine
    partitions : Partitions or GivenLabels
    methods : sequence of str
        Of the partitioner.
    memory : float, optional
        Bytes each rank may use; by default the machine's, if that knows.
    progress : Progress, optional
    beside : OutOfCore, optional
        Prices training from a disk as well.
    wired : Wired, optional
        Codecs of the messages in training, if any compresses or delays them.
    """

    def __init__(
        self,
        subject: Subject,
        network: Network,
        machine: Machine,
        partitions: Partitions | GivenLabels,
        *,
        methods: Sequence[str],
        memory: float | None = None,
        progress: Progress | None = None,
        beside: OutOfCore | None = None,
        wired: Wired | None = None,
    ) -> None:
        self.subject, self.network, self.machine = subject, network, machine
        self._beside = beside
        self.partitions, self.methods = partitions, methods
        self.memory = memory if memory is not None else machine.memory or float("inf")
        self.estimates = subject.structure.nnz > EXACT
        self._progress = progress
        self._thorough = subject.structure.nnz <= THOROUGH
        self._trace = cache(trace)
        self._wired = wired
        self._last: tuple[object, Setting] | None = None

    def choose(self, ranks: int, candidates: Iterable[Configuration] | None = None) -> Choice:
        """Price all configurations for so many ranks, and rank what fits by seconds.

        Parameters
        ----------
        ranks : int
        candidates : iterable of Configuration, optional
            Those of one partition and algorithm follow each other. By default all there are.

        Raises
        ------
        InputError
            If nothing fits into memory: says the least that would.
        """
        if candidates is None:
            candidates = configurations(
                ranks,
                self.network,
                self.methods,
                ranks_a_node=self.machine.ranks_a_node,
                thorough=self._thorough,
            )
        if self.estimates and self.network.links is not None:
            raise InputError(f"--task links: pairs are planned of at most {EXACT} nonzeros")
        if self.estimates:
            candidates = filter(can_be_estimated, candidates)
        search = Search(
            list(candidates), self._price, self._setting, large=not self._thorough, tell=self._tell
        )
        priced = list(search.priced())
        if not priced:
            raise InputError(f"no configuration works on {ranks} ranks")
        fitting = [one for one in priced if one.prediction.memory_bytes <= self.memory]
        dropped = [one for one in priced if one.prediction.memory_bytes > self.memory]
        fitting += self._from_disk(ranks)
        if not fitting:
            least = min(one.prediction.memory_bytes for one in priced)
            raise InputError(
                f"--memory {self.memory:.0f}: no plan for {ranks} ranks fits; the smallest needs "
                f"{least} bytes a rank"
            )
        fitting.sort(key=lambda one: (one.seconds, one.prediction.memory_bytes))
        return Choice(ranks, fitting, dropped, search.outpaced)

    def _from_disk(self, ranks: int) -> list[Planned]:
        # Out of core there is neither dropout of messages nor link prediction.
        network = self.network
        if self._beside is None or network.message_dropout or network.links is not None:
            return []
        found = list[Planned]()
        for one in self._beside.configurations(ranks, self.methods, reach=not self.estimates):
            setting = self._setting(one)
            plan = self._price(one, setting, {}).prediction
            made = self._beside.planned(one, plan, setting, self.network, self.machine)
            found += [] if made is None else [Planned(*made, self.estimates)]
        return found

    def _price(
        self,
        one: Configuration,
        setting: Setting,
        counted: dict[Plans, Counted],
        faster: float = 1.0,
    ) -> Planned:
        network = one.network(self.network)
        key = one.reach, one.ghosts, network.propagated
        if key not in counted:
            counted[key] = setting.counted(
                network.layers,
                reach=one.reach and not network.takes_all_rows,
                ghosts=one.ghosts,
                propagated=network.propagated,
            )
        epoch: Epoch = self._trace(network)
        machine = self.machine.with_network(faster) if faster != 1 else self.machine
        found = price(counted[key], epoch, network, setting.words, machine)
        return Planned(one, found, self.estimates)

    def _tell(self, ranks: int, done: int, every: int) -> None:
        if self._progress is not None:
            self._progress(f"{ranks} ranks", done, every)

    def _setting(self, one: Configuration, whole: Census | None = None) -> Setting:
        """A graph arranged for a configuration; rows and scales of the last one, if they fit."""
        how, node = one.algorithm, self.machine.ranks_a_node
        key = one.ranks, *arrangement(one)
        if self._last is None or self._last[0] != key:
            labels = self.partitions.labels(one.method, one.objective, one.parts, one.nodes)
            setting = set_up(self.subject, labels, how, one.ranks, node)
            setting = replace(setting, wired=self._wired, weighs=self.network.attends)
            self._last = key, estimated_setting(setting) if self.estimates else setting
        setting = self._last[1].under(how)
        if whole is not None:
            setting.__dict__["whole"] = whole
        return setting
