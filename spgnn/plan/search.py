"""The configurations for so many ranks, and the order in which they are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from spgnn.errors import InputError
from spgnn.exchange import COVERS, Algorithm
from spgnn.exchange.algorithm import ALGOS
from spgnn.nn import Order
from spgnn.plan.census import Census
from spgnn.plan.counted import Counted
from spgnn.plan.network import Network
from spgnn.plan.predict import Prediction
from spgnn.plan.subject import Setting

# Beyond so many replicas a fold costs more than any exchange of rows it spares.
MOST_REPLICAS = 16
# Beyond so many, the plans of all ranks take a second or more for each algorithm.
MANY_RANKS = 512


@dataclass(frozen=True)
class Configuration:
    """Everything that planning may choose.

    Attributes
    ----------
    ranks : int
    method, objective : str
        Of the partition.
    algorithm : Algorithm
    order : {"auto", "paper"}
    ghosts, reach : bool
    """

    ranks: int
    method: str
    objective: str
    algorithm: Algorithm
    order: Order = "auto"
    ghosts: bool = False
    reach: bool = True

    @property
    def parts(self) -> int:
        """Parts of the partition."""
        return self.algorithm.parts(self.ranks)

    @property
    def nodes(self) -> int | None:
        """Nodes that the partition knows, as the training command makes it."""
        return self.algorithm.nodes(self.parts) if self.method == "gvb" else None

    @property
    def storage(self) -> dict[str, Any] | None:
        """Use of the disk, if rows are processed chunk by chunk."""
        return None

    def network(self, given: Network) -> Network:
        """The model as this configuration trains it."""
        return replace(given, order=self.order, ghosts=self.ghosts)

    @property
    def flags(self) -> dict[str, Any]:
        """Of the training command, by name."""
        how = dict(vars(self.algorithm))
        node_size = how.pop("node_size")
        return {
            **how,
            "hierarchy": str(node_size) if node_size > 1 else "none",
            "order": self.order,
            "recompute_halo": self.ghosts,
            "prune": self.reach,
            "partition": self.method,
        }

    def written(self) -> list[str]:
        """The same as they are written, without those that are defaults."""
        found = []
        defaults = Configuration(self.ranks, "gvb", "column", Algorithm()).flags
        for name, value in self.flags.items():
            flag = "--" + name.replace("_", "-")
            if value == defaults[name]:
                continue
            if isinstance(value, bool):
                found.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                found += [flag, str(value)]
        return found

    def __str__(self) -> str:
        parts: list[str] = [self.algorithm.algo]
        if self.algorithm.c > 1:
            parts.append(f"c={self.algorithm.c}")
        parts.append(self.algorithm.cover)
        extras = {
            f"nodes of {self.algorithm.node_size}": self.algorithm.node_size > 1,
            "recomputed halo": self.ghosts,
            "not pruned": not self.reach,
            "paper order": self.order == "paper",
        }
        parts += [name for name, there in extras.items() if there]
        return " ".join(parts)


def algorithms(
    ranks: int, ranks_a_node: int = 1, most_replicas: int = MOST_REPLICAS
) -> Iterator[Algorithm]:
    """Every algorithm that works on so many ranks, each once.

    Parameters
    ----------
    ranks : int
    ranks_a_node : int
        Where there are several nodes, what crosses between them may be sent once.
    most_replicas : int
        Largest c.
    """
    copies = [c for c in range(1, min(ranks, most_replicas) + 1) if ranks % c == 0]
    known: set[tuple[int, int]] = set()
    for algo in ALGOS:
        # Shares of feature columns are not folded: with all ranks as shares no row is exchanged.
        for c in sorted({*copies, ranks}) if algo == "feature" else copies:
            plain = Algorithm(algo, c)  # type: ignore[arg-type]
            if not _works(plain, ranks):
                continue
            if algo != "vertex-cut":
                shape = plain.copies(ranks)
                if shape in known:
                    continue  # the same under another name, as 2D of two replicas and 1.5D are
                known.add(shape)
            for cover in COVERS:
                flat = replace(plain, cover=cover)  # type: ignore[arg-type]
                found = [flat, replace(flat, node_size=ranks_a_node)]
                several = 1 < ranks_a_node < ranks
                yield from (one for one in found[: 1 + several] if _works(one, ranks))


def configurations(
    ranks: int,
    network: Network,
    methods: Sequence[str],
    *,
    ranks_a_node: int = 1,
    thorough: bool = True,
) -> Iterator[Configuration]:
    """All configurations, those of one partition and algorithm one after another.

    Parameters
    ----------
    ranks : int
    network : Network
        Ghosts are left out where they do not fit it.
    methods : sequence of str
        Of the partitioner. gvb makes another partition for minimum covers.
    ranks_a_node : int
    thorough : bool
        Without, only what is likely to win: columns and minimum covers, up to 4 replicas, and the
        order that moves less; on very many ranks 1D, 1.5D and feature-parallel alone, without
        hierarchy.
    """
    for algorithm in algorithms(ranks, ranks_a_node, MOST_REPLICAS if thorough else 4):
        if not network.works_with(algorithm) or (not thorough and not _likely(algorithm, ranks)):
            continue
        for method in methods:
            for objective in _objectives(method, algorithm):
                # Where norms take all rows, reach makes no difference.
                every = network.takes_all_rows
                base = Configuration(ranks, method, objective, algorithm, reach=not every)
                yield base
                if not every:
                    yield replace(base, reach=False)
                if network.takes_ghosts and ranks > 1:
                    yield replace(base, ghosts=True)
                if thorough and network.kind == "gcn":
                    yield replace(base, order="paper")


def _likely(algorithm: Algorithm, ranks: int) -> bool:
    """True if an algorithm is worth planning on a large graph."""
    if ranks <= MANY_RANKS:
        return algorithm.cover != "row"
    if algorithm.node_size > 1:
        return False
    if algorithm.algo == "1d":
        return algorithm.cover != "row"
    return algorithm.algo in ("1.5d", "feature") and algorithm.cover == "column"


def fitting(
    candidates: Iterable[Configuration], given: Mapping[str, Any]
) -> Iterator[Configuration]:
    """The configurations that have all the flags that were given.

    Parameters
    ----------
    candidates : iterable of Configuration
    given : mapping of flag to value
        Of `Configuration.flags`.
    """
    # Never worth a thought of one's own, but somebody may compare with it, or be short of memory.
    fixed = {name: given[name] for name in ("exchange", "schedule", "buffer") if name in given}
    for one in candidates:
        algorithm = replace(one.algorithm, **fixed)
        found = replace(one, algorithm=algorithm)
        flags = found.flags
        fits = all(flags[name] == value for name, value in given.items())
        if fits and _works(found.algorithm, found.ranks):
            yield found


def _objectives(method: str, algorithm: Algorithm) -> tuple[str, ...]:
    """As the training command has them: gvb knows what minimum covers move."""
    return ("cover",) if method == "gvb" and algorithm.cover == "minimum" else ("column",)


def _works(algorithm: Algorithm, ranks: int) -> bool:
    try:
        algorithm.check(ranks)
    except InputError:
        return False
    return True


# Algorithms with which reach and ghosts are tried: of a small graph, of a large one, and of one on
# very many ranks. Of a large graph the most promising hierarchy is tried.
_SHORTLIST, _SHORTER, _SHORTEST = 8, 2, 1
# A plan predicted to be so many times slower than the first may still turn out the faster one.
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
    """Key of the assignment of rows to ranks."""
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
