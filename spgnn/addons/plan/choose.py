"""Price every configuration of training a graph, leave out what does not fit, and rank the rest.

A candidate is a configuration of training whose algorithm record has been filled in.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spgnn.addons.outofcore import Storage
from spgnn.addons.plan.counts import LEVELS, MatrixCounts
from spgnn.addons.plan.disk import Disk
from spgnn.addons.plan.epoch import Epoch, trace
from spgnn.addons.plan.graphs import Dataset, Partitions, cache_directory
from spgnn.addons.plan.predict import Prediction, codec_of, price
from spgnn.addons.plan.ranks import EXACT, ModelCounts, VirtualRanks, can_be_estimated
from spgnn.command import plural
from spgnn.config import Algorithm as AlgorithmOptions
from spgnn.config import TrainConfig
from spgnn.data import GraphSource
from spgnn.errors import InputError
from spgnn.exchange import COVERS, Algorithm
from spgnn.layout import Int32Array
from spgnn.machine import Machine
from spgnn.partition import OURS
from spgnn.progress import Progress
from spgnn.registry import SCHEMES, Objective

# Options of training that plans choose.
CHOSEN = (
    *("algo", "c", "exchange", "cover", "hierarchy", "nodes", "relays"),
    *("order", "recompute_halo", "prune", "partition"),
)
# Options that a printed command does not repeat: of planning itself, and of this run.
_NOT_IN_COMMAND = (
    *("graph", "ranks", "top", "plot", "cache", "disk_speed"),
    *("plan", "machine", "json", "nproc", "config"),
)
# Nonzeros of a graph up to which every configuration is priced; larger ones are partitioned by
# streaming, unless it is said how.
THOROUGH = STREAMED = 3_000_000
# Beyond so many replicas a fold costs more than any exchange of rows it spares.
MOST_REPLICAS = 16
# Beyond so many, the plans of all ranks take a second or more for each algorithm.
MANY_RANKS = 512
# Algorithms with which pruning and recomputed halos are tried: of a small graph, of a large one
# (where hierarchies are among what is tried), and of one on very many ranks.
_SHORTLIST, _SHORTER, _SHORTEST = 8, 2, 1
# A plan predicted to be so many times slower than the first may still turn out the faster one.
CLOSE = 1.15


@dataclass(frozen=True, eq=False)
class PricedPlan:
    """A configuration and its price.

    Attributes
    ----------
    config : TrainConfig
        Complete: its partition is a method.
    ranks : int
    prediction : Prediction
    estimated : bool
        Whether rows were counted of a sample of vertices, rather than of plans.
    storage : dict, optional
        Use of the disk, if rows are processed chunk by chunk.
    """

    config: TrainConfig
    ranks: int
    prediction: Prediction
    estimated: bool = False
    storage: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        """Seconds of one epoch."""
        seconds = self.prediction.epoch_seconds
        assert seconds is not None
        return seconds

    @property
    def flags(self) -> dict[str, Any]:
        """Options of its scheme, by name."""
        how = self.config.algorithm
        return {name: getattr(how, name) for name in (*CHOSEN, "schedule", "buffer")}

    @property
    def name(self) -> str:
        """A few words for tables."""
        how = self.config.algorithm
        extras = {
            f"c={how.c}": how.c > 1,
            how.cover: True,
            f"nodes of {how.node_size}": how.node_size > 1,
            "relays": how.relays,
            "recomputed halo": how.recompute_halo,
            self.config.distribution.algo: self.config.distribution.algo != how.algo,
            "not pruned": not how.prune,
            "paper order": how.order == "paper",
            f"from disk, {self.config.extension(Storage).chunks} chunks": self.storage is not None,
        }
        return " ".join([how.algo, *(words for words, there in extras.items() if there)])

    @property
    def command(self) -> str:
        """The command line that trains it."""
        words = ["torchrun", "--nproc-per-node", str(self.ranks), "-m", "spgnn", "train"]
        return shlex.join([*words, *self.config.written(*_NOT_IN_COMMAND)])

    @property
    def record(self) -> dict[str, Any]:
        """The whole configuration, its price, and the command that runs it, for JSON."""
        price, flags = self.prediction, self.flags
        volume, levels = price.volume, price.volume_by_level
        return {
            "ranks": self.ranks,
            **{name: flags[name] for name in (*CHOSEN, "schedule")},
            "objective": self.config.objective if flags["partition"] in OURS else None,
            "bytes": volume["total_bytes"],
            "max_send_bytes": volume["max_send_bytes"],
            "max_recv_bytes": volume["max_recv_bytes"],
            "bytes_by_level": {level: levels[level]["total_bytes"] for level in LEVELS},
            "messages": int(price.messages.sum()),
            "largest_message_rows": price.largest_message,
            "bound_seconds": price.bound_seconds,
            "memory_bytes": price.memory_bytes,
            "memory": {name: int(bytes_.max()) for name, bytes_ in price.memory.items()},
            "seconds": self.seconds,
            "seconds_by_kind": price.seconds,
            "estimated": self.estimated,
            "storage": self.storage,
            "command": self.command,
        }


@dataclass(frozen=True, eq=False)
class Choice:
    """Plans for one number of ranks, the best first.

    Attributes
    ----------
    ranks : int
    plans, dropped : list of PricedPlan
        Plans that fit into memory, and that do not.
    """

    ranks: int
    plans: list[PricedPlan]
    dropped: list[PricedPlan]

    def why(self, plan: PricedPlan) -> str:
        """One line: why a plan is where it is."""
        first, spent = self.plans[0], plan.prediction.seconds or {}
        if plan is first:
            kind = max(spent, key=lambda name: spent[name])
            share = spent[kind] / max(plan.seconds, 1e-30)
            return f"the least seconds; {share:.0%} of them are {kind}"
        best = first.prediction.seconds or {}
        more = {kind: seconds - best.get(kind, 0.0) for kind, seconds in spent.items()}
        kind = max(more, key=lambda name: more[name])
        slower = plan.seconds / max(first.seconds, 1e-30)
        moved = plan.prediction.volume["total_bytes"]
        least = first.prediction.volume["total_bytes"]
        bytes_ = f"{moved / least:.2g} times the bytes" if least else f"{moved:,} bytes, not 0"
        if moved == least:
            bytes_ = "the same bytes"
        return f"{slower:.2f} times the first: {1e3 * more[kind]:.3g} ms more {kind}, {bytes_}"

    @property
    def record(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {
            "plans": [{**one.record, "why": self.why(one)} for one in self.plans],
            "dropped": [one.record for one in self.dropped],
        }


def algorithms(
    ranks: int,
    ranks_a_node: int = 1,
    most_replicas: int = MOST_REPLICAS,
    fixed: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Algorithm]:
    """Every algorithm that works on so many ranks, each once."""
    groups = [(), (ranks_a_node,)] if 1 < ranks_a_node < ranks else [()]
    groups = [fixed["group_sizes"]] if "group_sizes" in fixed else groups
    copies = [c for c in range(1, min(ranks, most_replicas) + 1) if ranks % c == 0]
    relays = [fixed["relays"]] if "relays" in fixed else [False, True]
    shapes: set[tuple[bool, int, int]] = set()
    for algo in [fixed["algo"]] if "algo" in fixed else SCHEMES:
        # Shares of feature columns are not folded: with all ranks as shares no row is exchanged.
        several = sorted({*copies, ranks}) if algo == "feature" else copies
        for c in [fixed["c"]] if "c" in fixed else several:
            plain = Algorithm(algo, c)
            if not _works(plain, ranks):
                continue
            if algo != "vertex-cut":
                shape = c > 1 and "comparison" in plain.can, *plain.copies(ranks)
                if shape in shapes:
                    continue  # the same under another name, as 2D of two replicas and 1.5D are
                shapes.add(shape)
            covers: Iterable[Any] = [fixed["cover"]] if "cover" in fixed else COVERS
            passes = relays if plain.parts(ranks) > 1 else [False]
            for cover, sizes, passes_on in product(covers, groups, passes):
                how = {"cover": cover, "groups": sizes[:-1], "relays": passes_on}
                one = replace(plain, node_size=sizes[-1] if sizes else 1, **how)
                if _works(one, ranks):
                    yield one


def _works(how: Algorithm | TrainConfig, ranks: int) -> bool:
    try:
        # Of training, also where planning refuses more.
        TrainConfig.check(how, ranks) if isinstance(how, TrainConfig) else how.check(ranks)
    except InputError:
        return False
    return True


def candidates(
    config: TrainConfig,
    ranks: int,
    methods: Sequence[str],
    *,
    pinned: Collection[str] = (),
    ranks_a_node: int = 1,
    thorough: bool = True,
) -> Iterator[TrainConfig]:
    """All configurations, those of one algorithm and partition one after another."""
    how = replace(config.algorithm, plan=None, machine=None)
    # Where norms take all rows, pruning makes no difference.
    prunes = not config.model.makes_all_rows
    fixed = {name: getattr(how, name) for name in pinned}
    if not prunes:
        fixed.pop("prune", None)
    if fixed.get("hierarchy") == "auto":
        del fixed["hierarchy"]  # the machine says what a node is
    if fixed.get("cover") == "auto":
        del fixed["cover"]
    sizes = {"group_sizes": how.group_sizes} if "hierarchy" in fixed else {}
    methods = [name for name in methods if name == fixed.get("partition", name)]
    most = MOST_REPLICAS if thorough else 4
    for algorithm in algorithms(ranks, ranks_a_node, most, fixed | sizes):
        if "comparison" in algorithm.can and "algo" not in fixed:
            continue  # never better than another
        if config.model.attends and algorithm.copies(ranks)[1] > 1:
            continue  # heads that ranks share out have no price
        if not thorough and not _likely(algorithm, ranks):
            continue
        node_size = algorithm.node_size
        plain = replace(
            how,
            algo=algorithm.algo,
            c=algorithm.c,
            cover=algorithm.cover,
            hierarchy=str(node_size) if node_size > 1 else "none",
            nodes=algorithm.nodes(ranks, ranks_a_node),
            relays=algorithm.relays,
            order="auto",
            recompute_halo=False,
            prune=prunes,
        )
        variants = [plain, *([replace(plain, prune=False)] if prunes else [])]
        variants += [replace(plain, recompute_halo=True)] if ranks > 1 else []
        variants += [replace(plain, order="paper")] if thorough else []
        # Those that are fixed may leave some that are equal.
        variants = list(dict.fromkeys(replace(variant, **fixed) for variant in variants))
        for method in methods:
            for variant in variants:
                # Storage: first of all rows are in memory.
                candidate = replace(config, algorithm=replace(variant, partition=method))
                candidate = candidate.having(Storage())
                if _works(candidate, ranks):
                    yield candidate


def _likely(algorithm: Algorithm, ranks: int) -> bool:
    """True if an algorithm is worth planning on a large graph."""
    if ranks <= MANY_RANKS:
        return algorithm.cover != "row"
    if algorithm.node_size > 1:
        return False
    if algorithm.algo == "1d":
        return algorithm.cover != "row"
    return algorithm.algo in ("1.5d", "feature") and algorithm.cover == "column"


# Method of the partition, and the algorithm.
_Group = tuple[str, Algorithm]


class Planner:
    """Plans for training one graph; partitions and counts are made once.

    Parameters
    ----------
    source : GraphSource
    config : TrainConfig
        What its algorithm record says is planned anew, but for options that are pinned.
    machine : Machine
    pinned : names of options
        That stay as they are in `config`. A partition may name several methods, as ``gvb,random``.
    labels : (int32 [n], int), optional
        Instead: a partition that cannot be chosen, and its parts.
    memory : float, optional
        Bytes each rank may use; by default the machine's, if that knows.
    disk : Disk, optional
        Prices training from a disk as well.
    cache : str, optional
        Directory of partitions; by default the user's.
    progress : Progress, optional

    Attributes
    ----------
    dataset : Dataset
    partitions : Partitions
    estimates : bool
        Whether the graph is too large for plans, so that rows of a sample are counted.
    """

    def __init__(
        self,
        source: GraphSource,
        config: TrainConfig,
        machine: Machine,
        *,
        pinned: Collection[str] = (),
        labels: tuple[Int32Array, int] | None = None,
        memory: float | None = None,
        disk: Disk | None = None,
        cache: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._codec = codec_of(config)
        self.dataset = dataset = Dataset.of(source, config)
        self.partitions = Partitions(
            dataset,
            cache_directory(cache),
            seed=config.training.seed,
            imbalance=config.algorithm.imbalance,
            progress=progress,
        )
        self.config, self.machine = config, machine
        self.estimates = dataset.structure.nnz > EXACT
        self.memory = memory if memory is not None else machine.memory or float("inf")
        large = dataset.structure.nnz > STREAMED
        self._methods = ["stream" if large else "gvb"]
        if "partition" in pinned or labels is not None:
            self._methods = list(dict.fromkeys(config.algorithm.partition.split(",")))
        self._pinned = set(pinned) & {*CHOSEN} - {"partition"}
        self._labels, self._disk, self._progress = labels, disk, progress
        self._thorough = dataset.structure.nnz <= THOROUGH
        self._epochs: dict[tuple[object, ...], Epoch] = {}
        self._last: tuple[object, VirtualRanks] | None = None
        self._known: dict[object, dict[Algorithm, MatrixCounts]] = {}

    def choose(
        self, ranks: int, only: Callable[[TrainConfig], bool] = lambda config: True
    ) -> Choice:
        """Price all configurations for so many ranks, and rank what fits by seconds.

        Parameters
        ----------
        ranks : int
        only : callable
            Whether a configuration may be chosen.

        Raises
        ------
        InputError
            If nothing fits into memory: says the least that would.
        """
        parts = None if self._labels is None else self._labels[1]
        possible = [
            one
            for one in candidates(
                self.config,
                ranks,
                self._methods,
                pinned=self._pinned,
                ranks_a_node=self.machine.ranks_a_node,
                thorough=self._thorough or bool(self._pinned),
            )
            if only(one)
            and (parts is None or one.distribution.parts(ranks) == parts)
            and (not self.estimates or can_be_estimated(one))
        ]
        priced = list(self._priced(possible, ranks))
        if not priced:
            self.config.having(Storage()).check(ranks)  # which says why
            raise InputError(f"no configuration works on {plural(ranks, 'rank')}")
        fitting = [one for one in priced if one.prediction.memory_bytes <= self.memory]
        dropped = [one for one in priced if one.prediction.memory_bytes > self.memory]
        fitting += self._from_disk(ranks)
        if not fitting:
            least = min(one.prediction.memory_bytes for one in priced)
            raise InputError(
                f"--memory {self.memory:.0f}: no plan for {plural(ranks, 'rank')} fits; the "
                f"smallest needs {least} bytes a rank"
            )
        last = self._disk is not None and not self._disk.is_asked
        fitting.sort(
            key=lambda one: (
                last and one.storage is not None,
                one.seconds,
                one.prediction.memory_bytes,
            )
        )
        return Choice(ranks, fitting, dropped)

    def labels(self, plan: PricedPlan) -> Int32Array:
        """The partition that a plan was priced with, int32 [n]."""
        return self._labels_of(plan.config, plan.ranks)

    def partition_file(self, plan: PricedPlan) -> Path | None:
        """The file of that partition; ``None`` if it could not be chosen."""
        if self._labels is not None:
            return None
        return self.partitions.file(*_partition_of(plan.config, plan.ranks))

    def _labels_of(self, config: TrainConfig, ranks: int) -> Int32Array:
        if self._labels is not None:
            return self._labels[0]
        return self.partitions.labels(*_partition_of(config, ranks))

    def _priced(self, possible: Iterable[TrainConfig], ranks: int) -> Iterator[PricedPlan]:
        """Plans of the whole matrix first, of every algorithm."""

        def arrangement(one: TrainConfig) -> tuple[object, ...]:
            how = one.distribution
            method, objective, parts, nodes = _partition_of(one, ranks)
            return method, objective, parts, how.copies(ranks), nodes or 1

        groups: dict[_Group, list[TrainConfig]] = {}
        for one in sorted(possible, key=arrangement):  # sorting is stable
            group = one.algorithm.partition, one.distribution
            groups.setdefault(group, []).append(one)
        seconds: dict[_Group, float] = {}
        shortlist = _SHORTLIST
        if not self._thorough:
            shortlist = _SHORTER if ranks <= MANY_RANKS else _SHORTEST

        def best() -> list[_Group]:
            return sorted(seconds, key=seconds.__getitem__)[:shortlist]

        def tell() -> None:
            if self._progress is not None:
                self._progress(f"{ranks} ranks", len(seconds), len(groups) + shortlist)

        def price_whole(group: _Group) -> Iterator[PricedPlan]:
            tell()
            first = groups[group][0]
            how = replace(first.algorithm, prune=False, recompute_halo=False, order="auto")
            plain = replace(first, algorithm=how)
            counted = self._virtual(plain, ranks).counted(plain)
            priced = self._price(plain, ranks, counted)
            seconds[group] = priced.seconds
            if plain in groups[group]:
                yield priced

        def plainer(group: _Group) -> _Group:
            how = group[1]
            if how.relays:
                return group[0], replace(how, relays=False)
            return group if self._thorough else (group[0], replace(how, node_size=1, groups=()))

        # Relays, pruning and recomputed halos take plans of their own: they are tried with those
        # algorithms that look best without; of a large graph, so are hierarchies.
        for relays in (False, True):
            several = [one for one in groups if one[1].relays == relays]
            later = [one for one in several if one != plainer(one) in groups]
            for group in several:
                if group not in later:
                    yield from price_whole(group)
            leading = best()
            for group in later:
                if plainer(group) in leading:
                    yield from price_whole(group)
        leading = best()
        for group, every in groups.items():
            members = [one for one in every if one.algorithm.prune or one.algorithm.recompute_halo]
            if group not in leading or not members:
                continue
            tell()
            virtual = self._virtual(members[0], ranks)
            counts: dict[tuple[object, ...], ModelCounts] = {}
            for one in members:
                how = one.algorithm
                propagated = one.propagates_once(sparse=self.dataset.sparse)
                key = how.prune, how.recompute_halo, one.distribution.algo, propagated
                if key not in counts:
                    counts[key] = virtual.counted(one)
                yield self._price(one, ranks, counts[key])

    def _virtual(self, config: TrainConfig, ranks: int) -> VirtualRanks:
        """The graph arranged for a configuration; the last one again, if that fits."""
        key = ranks, _partition_of(config, ranks), config.distribution.copies(ranks)
        if self._last is None or self._last[0] != key:
            labels = self._labels_of(config, ranks)
            node = self.machine.ranks_a_node
            counted = self._known.setdefault(key, {})
            self._last = key, VirtualRanks(self.dataset, labels, config, ranks, node, counted)
        return self._last[1]

    def _epoch(self, config: TrainConfig) -> Epoch:
        how = config.algorithm
        key = how.order, how.recompute_halo
        if key not in self._epochs:
            dataset = self.dataset
            self._epochs[key] = trace(
                config, dataset.features, dataset.classes, sparse=dataset.sparse
            )
        return self._epochs[key]

    def _price(self, config: TrainConfig, ranks: int, counted: ModelCounts) -> PricedPlan:
        prediction = price(counted, self._epoch(config), self._codec, self.machine)
        return PricedPlan(config, ranks, prediction, self.estimates)

    def _from_disk(self, ranks: int) -> list[PricedPlan]:
        """Plans from a disk, which are of 1D and whole rows: none if what is given is another."""
        config, disk = self.config, self._disk
        if disk is None:
            return []
        plans, defaults = list[PricedPlan](), AlgorithmOptions()
        chosen = {name: getattr(defaults, name) for name in CHOSEN} | {"prune": not self.estimates}
        chosen |= {n: getattr(config.algorithm, n) for n in self._pinned}
        if chosen["cover"] == "auto":
            chosen["cover"] = "column"
        for method in self._methods:
            chosen |= {"partition": method, "plan": None, "machine": None}
            how = replace(config.algorithm, **chosen)
            one = replace(config, algorithm=how).having(Storage())
            if not _works(one.having(disk.storage), ranks):
                continue
            virtual = self._virtual(one, ranks)
            in_memory = self._price(one, ranks, virtual.counted(one)).prediction
            planned = disk.planned(one, in_memory, virtual, self._epoch(one), self.machine)
            if planned is not None:
                storage, prediction, record = planned
                full = one.having(storage)
                plans.append(PricedPlan(full, ranks, prediction, self.estimates, record))
        return plans


def _partition_of(config: TrainConfig, ranks: int) -> tuple[str, Objective, int, int | None]:
    """Method, objective, parts and nodes of the partition, as training makes it."""
    parts = config.distribution.parts(ranks)
    return config.algorithm.partition, config.objective, parts, config.nodes(ranks)
