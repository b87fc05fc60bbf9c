"""Price every configuration, leave out what does not fit, and rank the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from spgnn.errors import InputError
from spgnn.layout import Int64Array
from spgnn.plan.configurations import Configuration, configurations
from spgnn.plan.estimate import can_be_estimated, estimated_setting
from spgnn.plan.machine import Machine
from spgnn.plan.network import Epoch, Network, trace
from spgnn.plan.partitions import GivenLabels, Partitions
from spgnn.plan.predict import Prediction, price
from spgnn.plan.subject import Counted, Setting, Subject, set_up
from spgnn.progress import Progress

# Nonzeros of a graph up to which every configuration is priced, and up to which plans are made.
THOROUGH, EXACT = 3_000_000, 100_000_000


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


def _arrangement(one: Configuration) -> tuple[str, str, int]:
    """What says which rank owns which rows."""
    return one.method, one.objective, one.algorithm.parts(one.ranks)


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
        self._last: tuple[tuple[str, str, int, int], Setting] | None = None

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
        """Plans of one algorithm at a time are in memory."""
        done = 0
        candidates = sorted(candidates, key=_arrangement)  # sorting is stable
        alike = groupby(candidates, lambda one: (one.method, one.objective, one.algorithm))
        for _, group in alike:
            members = list(group)
            if self._progress is not None:
                self._progress(f"{members[0].ranks} ranks", done, len(candidates))
            done += len(members)
            setting, estimated = self._setting(members[0])
            counted: dict[tuple[bool, bool, bool], Counted] = {}
            words = setting.words
            for one in members:
                yield self._price(one, setting, counted, words, estimated)

    def _price(
        self,
        one: Configuration,
        setting: Setting,
        counted: dict[tuple[bool, bool, bool], Counted],
        words: Int64Array | None,
        estimated: bool,
    ) -> Planned:
        network = one.network(self.network)
        key = one.reach, one.ghosts, network.propagated
        if key not in counted:
            counted[key] = setting.counted(
                network.layers, reach=one.reach, ghosts=one.ghosts, propagated=network.propagated
            )
        epoch: Epoch = self._trace(network)
        return Planned(one, price(counted[key], epoch, network, words, self.machine), estimated)

    def _setting(self, one: Configuration) -> tuple[Setting, bool]:
        parts = one.algorithm.parts(one.ranks)
        labels = self.partitions.labels(one.method, one.objective, parts)
        node = self.machine.ranks_a_node
        key = one.method, one.objective, parts, one.ranks
        if self._last is not None and self._last[0] == key:
            # Arranged alike: rows and their scales are at hand.
            setting = self._last[1].under(one.algorithm)
        else:
            setting = set_up(self.subject, labels, one.algorithm, one.ranks, node)
        self._last = key, setting
        return (estimated_setting(setting), True) if self.estimates else (setting, False)
