"""In which order configurations are counted, and which of a large graph are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spgnn.exchange import Algorithm
from spgnn.plan.census import Census
from spgnn.plan.configurations import MANY_RANKS, Configuration
from spgnn.plan.counted import Counted
from spgnn.plan.predict import Prediction
from spgnn.plan.subject import Setting

# Algorithms with which reach and ghosts are tried: of a small graph, of a large one, and of one on
# very many ranks. Of a large graph the most promising hierarchy is tried.
_SHORTLIST, _SHORTER, _SHORTEST = 8, 2, 1
# A plan foretold to be so many times slower than the first may still turn out to be the faster one.
CLOSE = 1.15
# Whether reach, ghosts, and A·X made once: what plans of one algorithm differ in.
Plans = tuple[bool, bool, bool]
# Method and objective of the partition, and the algorithm.
_Group = tuple[str, str, Algorithm]


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


@dataclass(frozen=True)
class Outpaced:
    """A configuration of a large graph that was not counted, for others promise more.

    Attributes
    ----------
    configuration : Configuration
    seconds : float
        Of one epoch, at best.
    """

    configuration: Configuration
    seconds: float


class Price(Protocol):
    """Prices a configuration."""

    def __call__(
        self,
        one: Configuration,
        setting: Setting,
        counted: dict[Plans, Counted],
        faster: float = 1.0,
    ) -> Planned:
        """In a setting; `counted` keeps what is counted on the way."""


class Arrange(Protocol):
    """Makes settings."""

    def __call__(self, one: Configuration, whole: Census | None = None) -> Setting:
        """Of a configuration, with plans that were counted before if given."""


def arrangement(one: Configuration) -> tuple[object, ...]:
    """What says which rank owns which rows."""
    how = one.algorithm
    return one.method, one.objective, one.parts, how.copies(one.ranks), one.nodes or 1


class Search:
    """All configurations for one number of ranks, one algorithm at a time in memory.

    Parameters
    ----------
    candidates : list of Configuration
    price : callable
        Of a configuration in a setting; the last argument makes the network between nodes so many
        times faster.
    arrange : callable
        Makes the setting of a configuration, with plans that were counted before if given.
    large : bool
        Whether there is no time to price all of them.
    tell : callable
        Progress: ranks, done, of how many.

    Attributes
    ----------
    outpaced : list of Outpaced
    """

    def __init__(
        self,
        candidates: Sequence[Configuration],
        price: Price,
        arrange: Arrange,
        *,
        large: bool,
        tell: Callable[[int, int, int], None],
    ) -> None:
        self._price, self._arrange, self._large, self._tell = price, arrange, large, tell
        self._groups: dict[_Group, list[Configuration]] = {}
        for one in sorted(candidates, key=arrangement):  # sorting is stable
            group = one.method, one.objective, one.algorithm
            self._groups.setdefault(group, []).append(one)
        self._base: dict[_Group, float] = {}
        self._least: dict[_Group, float] = {}
        self._whole: dict[_Group, Census] = {}
        self._done = 0
        self.outpaced: list[Outpaced] = []

    def priced(self) -> Iterator[Planned]:
        """Plans of the whole matrix first, of every algorithm that is not outpaced.

        Reach and ghosts, which take plans of their own for each layer, are tried with those
        algorithms that then look best.
        """
        twins = [group for group in self._groups if self._flat_twin(group) is not None]
        for group in self._groups:
            if group not in twins:
                yield from self._plain(group)
        for group in self._promising(twins):
            yield from self._plain(group)
        best = sorted(self._base, key=self._base.__getitem__)[: self._shortlisted]
        for group in self._groups:
            members = [one for one in self._groups[group] if one.reach or one.ghosts]
            if group not in best or not members:
                continue
            self._tell_of(members[0])
            setting = self._arrange(members[0], self._whole[group])
            counted: dict[Plans, Counted] = {}
            yield from (self._price(one, setting, counted) for one in members)

    def _plain(self, group: _Group) -> Iterator[Planned]:
        """Of the whole matrix, if it was asked for; and what it says of its twin."""
        members = self._groups[group]
        self._tell_of(members[0])
        setting = self._arrange(members[0])
        plain = replace(members[0], reach=False, ghosts=False, order="auto")
        counted: dict[Plans, Counted] = {}
        priced = self._price(plain, setting, counted)
        self._base[group], self._whole[group] = priced.seconds, setting.whole
        for twin, others in self._groups.items():
            if self._flat_twin(twin) == group:
                size = others[0].algorithm.node_size
                self._least[twin] = self._price(plain, setting, counted, size).seconds
        if plain in members:
            yield priced

    def _flat_twin(self, group: _Group) -> _Group | None:
        """The flat algorithm that says the least which one with hierarchy takes.

        At best every row that crosses is one that all ranks of the node need, so that its exchange
        is the flat one's over a network as many times faster. That holds on the same partition, and
        gvb makes another. Small graphs have everything priced.
        """
        method, objective, algorithm = group
        if not self._large or algorithm.node_size == 1 or method == "gvb":
            return None
        flat = method, objective, replace(algorithm, node_size=1)
        return flat if flat in self._groups else None

    def _promising(self, twins: Sequence[_Group]) -> Iterator[_Group]:
        """The one worth counting, if there is one; the others are outpaced."""
        for place, group in enumerate(sorted(twins, key=self._least.__getitem__)):
            least = self._least[group]
            if place == 0 and least <= CLOSE * min(self._base.values()):
                yield group
            else:
                self.outpaced += [Outpaced(one, least) for one in self._groups[group]]

    @property
    def _shortlisted(self) -> int:
        """With how many algorithms more is tried."""
        if not self._large:
            return _SHORTLIST
        ranks = max((group[0].ranks for group in self._groups.values()), default=1)
        return _SHORTER if ranks <= MANY_RANKS else _SHORTEST

    def _tell_of(self, one: Configuration) -> None:
        self._tell(one.ranks, self._done, len(self._groups) + self._shortlisted)
        self._done += 1
