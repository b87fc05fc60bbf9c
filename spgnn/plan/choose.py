"""Price every configuration, leave out what does not fit, and rank the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.plan.census import Census
from spgnn.plan.configurations import MANY_RANKS, Configuration, configurations
from spgnn.plan.estimate import can_be_estimated, estimated_setting
from spgnn.plan.machine import Machine
from spgnn.plan.network import Epoch, Network, trace
from spgnn.plan.partitions import GivenLabels, Partitions
from spgnn.plan.predict import Prediction, price
from spgnn.plan.subject import Counted, Setting, Subject, set_up
from spgnn.progress import Progress

# Nonzeros of a graph up to which every configuration is priced, and up to which plans are made.
THOROUGH, EXACT = 3_000_000, 100_000_000
# Algorithms with which reach and ghosts are tried: of a small graph, of a large one, and of one on
# very many ranks.
_SHORTLIST, _SHORTER, _SHORTEST = 8, 2, 1


@dataclass(frozen=True, eq=False)
class Planned:
    """A configuration and its price.

    Attributes
    ----------
    configuration : Configuration
    prediction : Prediction
    estimated : bool
        Whether λ̄ is that of a sample of vertices, rather than plans counted.
    """

    configuration: Configuration
    prediction: Prediction
    estimated: bool = False

    @property
    def seconds(self) -> float:
        """Of one epoch."""
        seconds = self.prediction.epoch_seconds
        assert seconds is not None
        return seconds


@dataclass(frozen=True, eq=False)
class Choice:
    """What is left for one number of ranks, best first.

    Attributes
    ----------
    ranks : int
    plans : list of Planned
    dropped : list of Planned
        Those that need more memory than there is.
    """

    ranks: int
    plans: list[Planned]
    dropped: list[Planned]

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


def _arrangement(one: Configuration) -> tuple[object, ...]:
    """What says which rank owns which rows."""
    how = one.algorithm
    return one.method, one.objective, one.parts, how.copies(one.ranks), one.nodes or 1


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
    ) -> None:
        self.subject, self.network, self.machine = subject, network, machine
        self.partitions, self.methods = partitions, methods
        self.memory = memory if memory is not None else machine.memory or float("inf")
        self.estimates = subject.structure.nnz > EXACT
        self._progress = progress
        self._trace = cache(trace)
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
            thorough = self.subject.structure.nnz <= THOROUGH
            candidates = configurations(
                ranks,
                self.network,
                self.methods,
                ranks_a_node=self.machine.ranks_a_node,
                thorough=thorough,
            )
        if self.estimates:
            candidates = filter(can_be_estimated, candidates)
        priced = list(self._priced(list(candidates)))
        if not priced:
            raise InputError(f"no configuration works on {ranks} ranks")
        fitting = [one for one in priced if one.prediction.memory_bytes <= self.memory]
        dropped = [one for one in priced if one.prediction.memory_bytes > self.memory]
        if not fitting:
            least = min(one.prediction.memory_bytes for one in priced)
            raise InputError(
                f"--memory {self.memory:.0f}: no plan for {ranks} ranks fits; the smallest needs "
                f"{least} bytes a rank"
            )
        fitting.sort(key=lambda one: (one.seconds, one.prediction.memory_bytes))
        return Choice(ranks, fitting, dropped)

    def _priced(self, candidates: list[Configuration]) -> Iterator[Planned]:
        """Plans of one algorithm at a time are in memory.

        Plans of the whole matrix come first, of every algorithm. Reach and ghosts, which take plans
        of their own for each layer, are tried with those algorithms that then look best.
        """
        if not candidates:
            return
        groups: dict[tuple[str, str, Algorithm], list[Configuration]] = {}
        for one in sorted(candidates, key=_arrangement):  # sorting is stable
            groups.setdefault((one.method, one.objective, one.algorithm), []).append(one)
        base: dict[tuple[str, str, Algorithm], float] = {}
        whole: dict[tuple[str, str, Algorithm], Census] = {}
        for done, (key, members) in enumerate(groups.items()):
            self._tell(members[0].ranks, done, 2 * len(groups))
            setting = self._setting(members[0])
            plain = replace(members[0], reach=False, ghosts=False, order="auto")
            priced = self._price(plain, setting, {})
            base[key], whole[key] = priced.seconds, setting.whole
            if plain in members:
                yield priced
        best = sorted(groups, key=lambda key: base[key])[: self._shortlisted(candidates[0].ranks)]
        shortlist = [key for key in groups if key in best]
        for done, key in enumerate(shortlist):
            members = [one for one in groups[key] if one.reach or one.ghosts]
            if not members:
                continue
            self._tell(members[0].ranks, len(groups) + done, len(groups) + len(shortlist))
            setting = self._setting(members[0], whole[key])
            counted: dict[tuple[bool, bool, bool], Counted] = {}
            yield from (self._price(one, setting, counted) for one in members)

    def _shortlisted(self, ranks: int) -> int:
        """With how many algorithms reach and ghosts are tried."""
        if self.subject.structure.nnz <= THOROUGH:
            return _SHORTLIST
        return _SHORTER if ranks <= MANY_RANKS else _SHORTEST

    def _tell(self, ranks: int, done: int, every: int) -> None:
        if self._progress is not None:
            self._progress(f"{ranks} ranks", done, every)

    def _price(
        self,
        one: Configuration,
        setting: Setting,
        counted: dict[tuple[bool, bool, bool], Counted],
    ) -> Planned:
        network = one.network(self.network)
        key = one.reach, one.ghosts, network.propagated
        if key not in counted:
            counted[key] = setting.counted(
                network.layers, reach=one.reach, ghosts=one.ghosts, propagated=network.propagated
            )
        epoch: Epoch = self._trace(network)
        found = price(counted[key], epoch, network, setting.words, self.machine)
        return Planned(one, found, self.estimates)

    def _setting(self, one: Configuration, whole: Census | None = None) -> Setting:
        """A graph arranged for a configuration; rows and scales of the last one, if they fit."""
        how, node = one.algorithm, self.machine.ranks_a_node
        key = one.ranks, *_arrangement(one)
        if self._last is None or self._last[0] != key:
            labels = self.partitions.labels(one.method, one.objective, one.parts, one.nodes)
            setting = set_up(self.subject, labels, how, one.ranks, node)
            self._last = key, estimated_setting(setting) if self.estimates else setting
        setting = self._last[1].under(how)
        if whole is not None:
            setting.__dict__["whole"] = whole
        return setting
