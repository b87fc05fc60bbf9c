"""The configuration of mini-batch training: its records, and what they refuse."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal

from spgnn.addons.batches import Mode, Rows
from spgnn.addons.diskbatches.cached_rows import PolicyName
from spgnn.config import Aim, Data, TrainConfig, refused_models
from spgnn.config import Job as OfAnyJob
from spgnn.config import Model as OfWhole
from spgnn.config import Training as Usual
from spgnn.errors import InputError
from spgnn.options import Configuration, Option, Record, flag, key, options_of, rare
from spgnn.registry import LARGEST_IMBALANCE, MODELS, MODES, SAMPLERS, TABLES


class FeatureTable(Rows):
    """A table before the features on a disk, if a key of ``storage`` asks for it.

    `spgnn.registry.TABLES` has these classes by name.

    Attributes
    ----------
    keys : Record
        Its options, whose section is ``storage``; it is used if the first is set.
    """

    keys: ClassVar[type[Record]]

    @classmethod
    def check(cls, config: MiniBatchConfig) -> None:
        """Refuse a configuration with an InputError, whether it is used or not."""
        return

    @classmethod
    @abstractmethod
    def of(cls, rows: Rows, options: Any, directory: Any) -> FeatureTable:
        """Before a table, with all options by name and a directory for files of this process."""

    def report(self) -> Mapping[str, int]:
        """Numbers for the report, whose sums over ranks are shown."""
        return {}


def model_names() -> tuple[str, ...]:
    """Values of ``--model``: batches have no features of edges, and some vertices."""
    models = {name: MODELS[name] for name in MODELS}
    needs = "needs_edges", "attends_globally"  # of several vertex types: refused with a reason
    return tuple(n for n, one in models.items() if not any(getattr(one, need) for need in needs))


def mode_names() -> tuple[str, ...]:
    """Values of ``--distributed``."""
    return ("none", *MODES)


# Options of full-graph training that mean nothing here.
@dataclass(frozen=True)
class Model(OfWhole):
    """The network."""

    model: Annotated[str, flag("GraphSAGE (mean) or another one", choices=model_names)] = "sage"
    layers: Annotated[int, flag("0: one for each of --num-neighbors", high=1000)] = 0
    hidden: Annotated[int, flag("width of the layers between", low=1)] = 256
    input_dropout: Annotated[bool, key("drop the features as well, not hidden layers alone")] = (
        False
    )


@dataclass(frozen=True)
class Sampling(Record):
    """Sampled neighbourhoods."""

    sampler: Annotated[str, flag("of neighbourhoods", choices=SAMPLERS)] = "neighbor"
    num_neighbors: Annotated[str, flag("of a vertex, the seeds' hop first; -1: all", "N,N,…")] = (
        "15,10,5"
    )
    batch_size: Annotated[int, flag("seeds of a batch", low=1)] = 1024
    seed_clusters: Annotated[int, key("clusters whose seeds follow each other; 0: none")] = 0
    fixed: Annotated[
        bool, key("batches of the first epoch; with storage.store-dir written once")
    ] = False
    replace: Annotated[bool, key("draw with replacement")] = False
    resample: Annotated[bool, key("draw neighbours of a vertex anew in each layer")] = False
    degrees: Annotated[
        Literal["graph", "batch"], key("that layers are scaled by: of the whole graph, or as PyG")
    ] = "graph"
    workers: Annotated[int, key("threads that sample; 0: none beside the training", high=1024)] = 1
    prefetch: Annotated[int, key("batches (on parts, steps) that are made ahead", high=100_000)] = 2
    superbatch: Annotated[
        int, key("batches sampled before features are read; 0: by a profile, or 1", high=1_000_000)
    ] = 0
    overlap: Annotated[
        bool, key("sample while features are read; else each stage has all of --cache")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.fanouts

    @property
    def fanouts(self) -> list[int]:
        """Neighbours of each vertex, hop by hop."""
        words = self.num_neighbors.split(",")
        try:
            counts = [int(word) for word in words if len(word) < 10]
        except ValueError:
            counts = []
        if len(counts) != len(words) or min(counts) < -1:
            raise InputError(
                f"--num-neighbors {self.num_neighbors}: numbers, one a layer, as in 15,10,5"
            )
        return counts


@dataclass(frozen=True)
class Storage(Record):
    """Features in memory or on a disk."""

    store: Annotated[
        Literal["memory", "disk"], flag("disk: rows are read when they are needed, past its cache")
    ] = "memory"
    store_dir: Annotated[
        str | None, key("for samples of superbatches, and features of other files", "DIR")
    ] = None
    cache: Annotated[
        int, flag("rows of features in memory: 200MB, 2GiB", "BYTES", in_bytes=True)
    ] = 0
    cache_policy: Annotated[PolicyName, flag("belady: rows that are needed soonest")] = "belady"
    structure: Annotated[
        Literal["memory", "disk"], key("disk: neighbours of a graph directory, as --store")
    ] = "memory"
    structure_cache: Annotated[
        int | None,
        key("neighbours in memory; by default all of --cache in turn", "BYTES", in_bytes=True),
    ] = None
    structure_policy: Annotated[
        Literal["ratio", "degree", "lru"],
        key("ratio: whole lists, fewest reads; degree: blocks, fewest bytes; lru"),
    ] = "ratio"
    memory: Annotated[
        int, key("of this process; --cache is what a profile leaves of it", "BYTES", in_bytes=True)
    ] = 0

    def check_together(self) -> None:
        """Refuse flags that do not go together."""
        on_disk = self.store == "disk"
        # Without any room these would say what is kept of nothing.
        needs = {} if self.memory else {"cache_policy": "cache"}
        if not self.memory and not self.cache:
            needs["structure_policy"] = "structure_cache"
        sized = "storage.memory chooses the size of a cache: --store disk without --cache"
        cached = self.structure_cache and self.structure == "memory"
        _refuse(
            (self.cache and not on_disk, "--cache needs --store disk"),
            (self.memory and (not on_disk or self.cache), sized),
            (self.store_dir is not None and not on_disk, "storage.store-dir needs --store disk"),
            (cached, "storage.structure-cache needs storage.structure disk"),
        )
        options = {option.name: option for option in options_of(type(self))}
        for name, other in needs.items():
            value = getattr(self, name)
            if value not in (options[name].default, "none") and not getattr(self, other):
                raise InputError(f"{options[name].written} {value} needs {options[other].written}")


@dataclass(frozen=True)
class Distribution(Record):
    """Parts of the graph that ranks hold, and the modes of their batches."""

    distributed: Annotated[
        str,
        flag(
            "none: every rank holds the whole graph; else its part. exact: the same batches; "
            "local: of its part; historical: and past rows of others; cluster: its clusters",
            choices=mode_names,
        ),
    ] = "none"
    partition: Annotated[str, flag("a method, or a file of labels", "METHOD_OR_FILE")] = "gvb"
    balance: Annotated[
        str, key("what parts get equal shares of: nnz, vertices, train, or several", "A,B")
    ] = "nnz"
    imbalance: Annotated[float, rare("of the partition", high=LARGEST_IMBALANCE)] = 0.05


def _refuse(*cases: tuple[object, str]) -> None:
    for wrong, message in cases:
        if wrong:
            raise InputError(message)


@dataclass(frozen=True)
class Comparison(Record):
    """Full-graph training to compare with, for time to accuracy."""

    compare: Annotated[Literal["none", "full"], rare("full: the same model on the whole graph")] = (
        "none"
    )
    full_epochs: Annotated[int, key("of full-graph training", low=1)] = 200
    full_lr: Annotated[float, key("its learning rate")] = 0.01
    plot: Annotated[str | None, rare("draw scores against seconds of training", "FILE")] = None
    target: Annotated[
        float | None, key("a test score: the report counts epochs to within 0.01 of it")
    ] = None


@dataclass(frozen=True)
class Training(Usual):
    """Epochs, optimiser, early stopping and checkpoints."""

    epochs: Annotated[int, flag("number of epochs", low=1)] = 10
    lr: Annotated[float, flag("learning rate")] = 0.003
    weight_decay: Annotated[float, rare("of the first layer")] = 0.0
    checkpoint_every: Annotated[int, key("epochs", "N", low=1)] = 1


@dataclass(frozen=True)
class Job(OfAnyJob):
    """Ranks, devices, and files that are written."""

    # Not "auto": nobody has trained on batches with a real GPU yet.
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        rare("that ranks compute on; processors sample and gather in any case"),
    ] = "cpu"


@dataclass(frozen=True)
class MiniBatchConfig(Configuration):
    """One run of mini-batch training. ``MiniBatchConfig.of(hidden=64)`` sets options by name."""

    program: ClassVar[str] = "minibatch.py"
    fixed: ClassVar[tuple[str, ...]] = ("normalisation", "inductive", "runs", "dtype")
    about: ClassVar[str] = (
        "Train a graph neural network on sampled neighbourhoods. docs/guides/minibatch.md and "
        "distributed-minibatch.md explain them."
    )

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    sampling: Sampling = field(default_factory=Sampling)
    storage: Storage = field(default_factory=Storage)
    distribution: Distribution = field(default_factory=Distribution)
    aim: Aim = field(default_factory=Aim)
    training: Training = field(default_factory=Training)
    comparison: Comparison = field(default_factory=Comparison)
    job: Job = field(default_factory=Job)

    @classmethod
    def sections(cls) -> dict[str, type[Record]]:
        """The records by name, and those of modes and tables that are registered."""
        more = {f"{name}.keys": kinds[name].keys for kinds in (MODES, TABLES) for name in kinds}
        return super().sections() | {name: keys for name, keys in more.items() if keys is not None}

    @property
    def options(self) -> Any:
        """All options by name."""
        return SimpleNamespace(**self.flat())

    @property
    def mode(self) -> type[Mode] | None:
        """The mode of batches; that which extends it, if one of its keys is set."""
        name = self.distribution.distributed
        if name == "none":
            return None
        kinds: list[type[Mode]] = [MODES[each] for each in MODES]
        more = [kind for kind in kinds if kind.extends == name and self._set_of(kind.keys)]
        return more[0] if more else MODES[name]

    @property
    def table(self) -> type[FeatureTable] | None:
        """The table before the features, if a key asks for one."""
        kinds: list[type[FeatureTable]] = [TABLES[name] for name in TABLES]
        options = self.options
        used = [kind for kind in kinds if getattr(options, options_of(kind.keys)[0].name)]
        return used[0] if used else None

    def _set_of(self, record: type[Record] | None) -> list[tuple[Option, Any]]:
        """The options of a registered record that are not as by default, and their values."""
        return [pair for one in self.extra if type(one) is record for pair in one.changed]

    def refused(self, ranks: int) -> Iterator[str]:
        """Say what cannot work on that many ranks."""
        hops, layers = len(self.sampling.fanouts), self.model.layers
        if self.model.registered.typed:
            yield (
                f"--model {self.model.model} is of several vertex types, and this command's "
                "batches are of one: spgnn.NeighborLoader makes theirs"
            )
        if layers and layers != hops:
            yield f"--layers {layers} needs as many --num-neighbors, got {hops}"
        yield from refused_models(self.settled().model, self.aim)
        yield from (message for wrong, message in self._refused(ranks) if wrong)
        self._check_distribution()
        for name in TABLES:
            TABLES[name].check(self)

    def _refused(self, ranks: int) -> Iterable[tuple[object, str]]:
        """Conditions under which a message says what would be right."""
        how, store, mode = self.sampling, self.storage, self.distribution.distributed
        links, turns = self.aim.task == "links", self.model.jk != "none"
        whole = self.comparison.compare == "full"
        clusters = f"sampling.seed-clusters {how.seed_clusters} needs"
        yield how.seed_clusters and mode != "none", f"{clusters} --distributed none, not {mode}"
        yield how.seed_clusters and links, f"{clusters} --task vertices: links have two ends"
        by_rows = [name for name in SAMPLERS if SAMPLERS[name].needs != "graph"]
        on_disk = "storage.structure disk"
        if store.structure == "disk":
            needed = f"{on_disk} needs --sampler {' or '.join(by_rows)}"
            yield how.sampler not in by_rows, needed
            yield turns, f"{on_disk} needs --jk none: layers are evaluated in turn"
            yield whole, "--compare full needs storage.structure memory"
            yield self.data.symmetrise, f"{on_disk}: graph directories are ready: no --symmetrise"
            yield links, "--task links takes links out of the graph: storage.structure memory"
            yield how.seed_clusters, f"{clusters} storage.structure memory"
        if store.store == "disk":
            yield turns, "--store disk needs --jk none: evaluation goes layer by layer"
            yield whole, "--compare full needs --store memory"
        if self.job.device != "cpu":
            device = f"--device {self.job.device}"
            yield mode != "none", f"{device} needs --distributed none: parts are on CPUs"
            yield links, f"{device} needs --task vertices, not links"
            yield turns, f"{device} needs --jk none: evaluation goes layer by layer"
        chosen = f"sampling.superbatch {how.superbatch}" if how.superbatch else "--cache"
        rest = "" if how.superbatch else ", or sampling.superbatch 1, which looks nowhere ahead"
        needed = f"{chosen} needs storage.store-dir DIR, for the samples of superbatches{rest}"
        yield store.store == "disk" and not store.store_dir and self.superbatch != 1, needed
        needed = "sampling.overlap needs superbatches whose features lie on a disk"
        yield how.overlap and (store.store == "memory" or self.superbatch == 1), needed
        yield how.fixed and mode != "none", f"sampling.fixed needs --distributed none, not {mode}"
        yield whole and ranks > 1, f"--compare full needs one rank, not {ranks}"

    @property
    def looks_ahead(self) -> bool:
        """True if a cache before a disk knows the batches of a superbatch beforehand."""
        how = self.storage
        room = how.cache or how.memory
        return room > 0 and how.cache_policy == "belady" and self.table is None

    @property
    def superbatch(self) -> int:
        """Batches of a superbatch; 0: a profile chooses."""
        return self.sampling.superbatch or int(not self.looks_ahead)

    @property
    def structure_cache(self) -> int:
        """Bytes of cached neighbours; all of --cache, unless both caches are in memory at once."""
        how = self.storage
        if how.structure_cache is not None:
            return how.structure_cache
        return how.cache * self.takes_turns

    @property
    def takes_turns(self) -> bool:
        """True if the caches of features and of neighbours are in memory one after the other."""
        return self.superbatch != 1 and not self.sampling.overlap

    def _check_distribution(self) -> None:
        how, mode = self.distribution, self.mode
        for name in MODES:
            needed = MODES[name].extends or name
            for option, value in self._set_of(MODES[name].keys):
                if mode is None or not issubclass(mode, MODES[name]):
                    where = f"--distributed {needed}, not {how.distributed}"
                    raise InputError(f"{option.written} {value} needs {where}")
        for option, value in how.changed:
            if mode is None:
                raise InputError(f"{option.written} {value} needs --distributed")
        if mode is None:
            return
        named, sampler = f"--distributed {how.distributed} needs", self.sampling.sampler
        samplers = mode.samplers
        if samplers is None:
            kinds = {name: SAMPLERS[name] for name in SAMPLERS}
            samplers = [n for n, kind in kinds.items() if kind.needs != "graph" or kind.on_ranks]
        needed = f"{named} --sampler {' or '.join(samplers)}, not {sampler}"
        _refuse(
            (self.aim.task == "links", f"{named} --task vertices, not links"),
            (self.storage.store != "memory", f"{named} --store memory"),
            (self.storage.structure != "memory", f"{named} storage.structure memory"),
            (sampler not in samplers, needed),
        )
        mode.check(self)

    def settled(self) -> MiniBatchConfig:
        """The same with as many layers as there are hops."""
        model = replace(self.model, layers=len(self.sampling.fanouts))
        return replace(self, model=model)

    def of_whole_graph(self) -> TrainConfig:
        """Full-graph training of the same model."""
        names = {name for one in (Data(), OfWhole(), Aim(), Usual()) for name in vars(one)}
        same = {name: value for name, value in self.settled().flat().items() if name in names}
        same |= {"epochs": self.comparison.full_epochs, "lr": self.comparison.full_lr}
        same |= {"checkpoint": None, "resume": False}
        same |= {name: getattr(self.distribution, name) for name in ("partition", "imbalance")}
        return TrainConfig.of(**same)
