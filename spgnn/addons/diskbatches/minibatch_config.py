"""The configuration of mini-batch training: its records, and what they refuse."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, get_args

from spgnn.addons.batches import SamplerName
from spgnn.addons.diskbatches.cached_rows import PolicyName
from spgnn.addons.historical import History
from spgnn.config import Aim, Data, TrainConfig, refused_models
from spgnn.config import Job as OfAnyJob
from spgnn.config import Model as OfWhole
from spgnn.config import Training as Usual
from spgnn.errors import InputError
from spgnn.options import Configuration, Record, flag, key, options_of, rare


# Options of full-graph training that mean nothing here.
@dataclass(frozen=True)
class Model(OfWhole):
    """The network."""

    model: Annotated[
        Literal["gcn", "sage", "gin", "gat", "gatv2"],
        flag("of Kipf & Welling, GraphSAGE (mean), Xu et al., Veličković et al., or Brody et al."),
    ] = "sage"
    layers: Annotated[int, flag("0: one for each of --num-neighbors", high=1000)] = 0
    hidden: Annotated[int, flag("width of the layers between", low=1)] = 256
    input_dropout: Annotated[bool, key("drop the features as well, not hidden layers alone")] = (
        False
    )


@dataclass(frozen=True)
class Sampling(Record):
    """Sampled neighbourhoods."""

    sampler: Annotated[SamplerName, flag("of neighbourhoods")] = "neighbor"
    num_neighbors: Annotated[
        str, flag("of each vertex, the seeds' hop first; -1: all of them", "N,N,…")
    ] = "15,10,5"
    batch_size: Annotated[int, flag("seeds of a batch", low=1)] = 1024
    seed_clusters: Annotated[
        int,
        key("seeds of a cluster follow each other, clusters in random order; 0: all at random"),
    ] = 0
    fixed: Annotated[
        bool,
        key(
            "the first epoch's batches in every epoch; with storage.pack neighbourhoods and "
            "features are written once and read in order"
        ),
    ] = False
    replace: Annotated[bool, key("draw with replacement")] = False
    resample: Annotated[
        bool, key("draw neighbours of a vertex anew in each layer, rather than first ones of many")
    ] = False
    degrees: Annotated[
        Literal["graph", "batch"], key("that layers are scaled by: of the whole graph, or as PyG")
    ] = "graph"
    workers: Annotated[int, key("threads that sample; 0: none beside the training", high=1024)] = 1
    prefetch: Annotated[
        int,
        key(
            "batches made ahead (--distributed none, local, replicated); with exact, columns, "
            "cluster: whether the next ones are sampled and their rows travel during this one's "
            "steps; historical: nothing",
            high=100_000,
        ),
    ] = 2
    superbatch: Annotated[
        int,
        key(
            "batches sampled before the first one's features are read; 0: chosen by a short "
            "profile where a cache before a disk looks ahead, else 1",
            high=1_000_000,
        ),
    ] = 0
    overlap: Annotated[
        bool,
        key(
            "sample the next superbatch while features of this one are read, with both caches in "
            "memory; otherwise each stage has all of --cache"
        ),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.fanouts

    @property
    def fanouts(self) -> list[int]:
        """Neighbours of each vertex, hop by hop."""
        words = self.num_neighbors.split(",")
        try:
            found = [int(word) for word in words if len(word) < 10]
        except ValueError:
            found = []
        if len(found) != len(words) or min(found) < -1:
            raise InputError(
                f"--num-neighbors {self.num_neighbors}: must be numbers of neighbours, one a "
                "layer, as in 15,10,5; -1 is all of them"
            )
        return found


@dataclass(frozen=True)
class Storage(Record):
    """Features in memory or on a disk."""

    store: Annotated[
        Literal["memory", "disk"],
        flag("disk: read rows of features when they are needed, past the page cache"),
    ] = "memory"
    store_dir: Annotated[
        str | None,
        key(
            "samples of superbatches are written there, and features of sets that are not graph "
            "directories",
            "DIR",
        ),
    ] = None
    cache: Annotated[
        int, flag("rows of features in memory: 200MB, 2GiB", "BYTES", in_bytes=True)
    ] = 0
    cache_policy: Annotated[
        PolicyName, flag("which rows these are; belady: what is needed soonest in the superbatch")
    ] = "belady"
    pack: Annotated[
        int,
        key(
            "of disk, in store-dir: copies of each batch's rows in one stretch, written before "
            "its epoch; --cache then keeps the rows of most batches",
            "BYTES",
            in_bytes=True,
        ),
    ] = 0
    pack_epochs: Annotated[int, key("whose batches are packed together", low=1)] = 1
    structure: Annotated[
        Literal["memory", "disk"],
        key("disk: read neighbours of a graph directory when they are needed, past the page cache"),
    ] = "memory"
    structure_cache: Annotated[
        int | None,
        key(
            "neighbours in memory: 200MB, 2GiB; by default all of --cache while a superbatch is "
            "sampled, unless sampling.overlap",
            "BYTES",
            in_bytes=True,
        ),
    ] = None
    structure_policy: Annotated[
        Literal["ratio", "degree", "lru"],
        key(
            "ratio: whole lists of neighbours, out-degree over in-degree first, for fewest reads; "
            "degree: blocks, for fewest bytes; lru: blocks used last"
        ),
    ] = "ratio"
    memory: Annotated[
        int,
        key(
            "of this rank's process; --cache is what a short profile leaves of it",
            "BYTES",
            in_bytes=True,
        ),
    ] = 0

    def check(self) -> None:
        """Refuse flags that do not go together."""
        if self.cache and self.store == "memory":
            raise InputError("--cache needs --store disk: features in memory need none")
        if self.memory and (self.store == "memory" or self.cache or self.pack):
            raise InputError(
                "storage.memory chooses the size of a cache: it needs --store disk, and neither "
                "--cache nor storage.pack"
            )
        if self.pack and (self.store == "memory" or self.store_dir is None):
            raise InputError("storage.pack needs --store disk and storage.store-dir for it")
        if self.store_dir is not None and self.store == "memory":
            raise InputError("storage.store-dir needs --store disk: nothing is written otherwise")
        if self.structure_cache and self.structure == "memory":
            raise InputError("storage.structure-cache needs storage.structure disk")
        # Without any room these would say what is kept of nothing.
        needs = {"pack_epochs": "pack"}
        if not self.memory:
            needs["cache_policy"] = "cache"
        if not self.memory and not self.cache:
            needs["structure_policy"] = "structure_cache"
        options = {option.name: option for option in options_of(type(self))}
        for name, wanted in needs.items():
            given = getattr(self, name)
            if given not in (options[name].default, "none") and not getattr(self, wanted):
                raise InputError(f"{options[name].written} {given} needs {options[wanted].written}")


@dataclass(frozen=True)
class Distribution(Record):
    """Parts of the graph that ranks hold, and the modes of their batches."""

    distributed: Annotated[
        Literal["none", "exact", "columns", "replicated", "local", "historical", "cluster"],
        flag(
            "none: every rank holds the whole graph; otherwise its part. exact: the same batches; "
            "columns: the same, with columns of all features on each rank; "
            "replicated: seeds of its part, all they reach is on it; "
            "local: neighbours of its part; historical: and past rows of others; cluster: whole "
            "clusters of its part"
        ),
    ] = "none"
    partition: Annotated[str, flag("a method, or a file of labels", "METHOD_OR_FILE")] = "gvb"
    balance: Annotated[
        str, key("what parts get equal shares of: nnz, vertices, train, or several", "A,B")
    ] = "nnz"
    imbalance: Annotated[float, rare("allowed excess of the largest part")] = 0.05
    seeds: Annotated[
        Literal["all", "own"],
        key(
            "exact: where a rank's batches begin; own: at its part's training vertices, which "
            "moves less, as in DistDGL; all: at anyone's, as on one process"
        ),
    ] = "all"
    historical: Annotated[
        str | None,
        flag(
            "rows of each layer's cache; iterations that a row lives, and after which it may be "
            "used; most rows sent to a peer for each layer; features: push them too. paper: "
            "DistGNN-MB's 1000000,2,1,2000,features",
            "SIZE,LIFE,DELAY,PUSH",
        ),
    ] = None
    misses: Annotated[
        Literal["drop", "fetch"], key("rows that are not in a cache: left out, or made here")
    ] = "drop"
    past: Annotated[Literal["float32", "bfloat16"], key("of historical rows, sent and kept")] = (
        "float32"
    )
    correct_every: Annotated[
        int, key("local: average models only after so many steps, and correct them", "STEPS")
    ] = 0
    correct_steps: Annotated[int, key("of a correction, each on an exact batch a rank")] = 1
    clusters: Annotated[int, key("of each rank's part", low=1)] = 16
    clusters_a_batch: Annotated[int, key("of --distributed cluster", low=1)] = 1
    boundary: Annotated[int, key("hops around clusters that belong to a batch", "HOPS")] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.historical is not None:
            History.parse(self.historical)

    def check(self) -> None:
        """Refuse flags that do not go together."""
        mode = self.distributed
        if (mode == "historical") != (self.historical is not None):
            raise InputError(
                "--distributed historical and --historical SIZE,LIFE,DELAY,PUSH need each other"
            )
        needs = {"misses": "historical", "past": "historical"}
        needs |= {"seeds": "exact"}
        needs |= {"correct_every": "local", "correct_steps": "local"}
        needs |= {"clusters": "cluster", "clusters_a_batch": "cluster", "boundary": "cluster"}
        for option in options_of(type(self)):
            given = getattr(self, option.name)
            if given == option.default:
                continue
            wanted = needs.get(option.name, mode)
            if mode != wanted:
                raise InputError(
                    f"{option.written} {given} needs --distributed {wanted}, not {mode}"
                )
            if option.name in ("partition", "balance", "imbalance") and mode == "none":
                raise InputError(f"{option.written} {given} needs --distributed")


@dataclass(frozen=True)
class Comparison(Record):
    """Full-graph training to compare with, for time to accuracy."""

    compare: Annotated[
        Literal["none", "full"], rare("full: the same model on the whole graph in every step")
    ] = "none"
    full_epochs: Annotated[int, key("of full-graph training", low=1)] = 200
    full_lr: Annotated[float, key("its learning rate")] = 0.01
    plot: Annotated[str | None, rare("draw scores against seconds of training", "FILE")] = None
    target: Annotated[
        float | None,
        key("a test score, as of one process: the report counts epochs to within 0.01 of it"),
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
    fixed: ClassVar[tuple[str, ...]] = (
        "normalisation",
        "inductive",
        "runs",
        "dtype",
    )
    about: ClassVar[str] = (
        "Train a graph neural network on sampled neighbourhoods. docs/guides/minibatch.md and "
        "distributed-minibatch.md list more flags, and all keys of --set and --config."
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

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks; an InputError says what would be right."""
        self.check_fixed()
        hops, layers = len(self.sampling.fanouts), self.model.layers
        if layers and layers != hops:
            raise InputError(f"--layers {layers} needs as many --num-neighbors, got {hops}")
        for message in refused_models(self.settled().model, self.aim):
            raise InputError(message)
        self.storage.check()
        if self.sampling.seed_clusters:
            self._check_seed_clusters()
        if self.storage.structure == "disk":
            self._check_structure()
        self.aim.check()
        self.training.check()
        if self.storage.store == "disk" and self.model.jk != "none":
            raise InputError("--store disk needs --jk none: evaluation goes layer by layer")
        self._check_distribution()
        if self.job.device != "cpu":
            self._check_device()
        self._check_superbatch()
        if self.sampling.fixed:
            self._check_packed_batches()
        if self.aim.task == "links" and self.storage.structure == "disk":
            raise InputError("--task links takes links out of the graph: storage.structure memory")
        if self.comparison.compare == "full" and ranks > 1:
            raise InputError(f"--compare full needs one rank, not {ranks}")
        if self.comparison.compare == "full" and self.storage.store == "disk":
            raise InputError("--compare full needs --store memory")

    def _check_seed_clusters(self) -> None:
        """Clusters are of the whole graph, in memory."""
        what = f"sampling.seed-clusters {self.sampling.seed_clusters} needs"
        if self.distribution.distributed != "none":
            raise InputError(f"{what} --distributed none, not {self.distribution.distributed}")
        if self.aim.task == "links":
            raise InputError(f"{what} --task vertices: links have two ends")
        if self.storage.structure == "disk":
            raise InputError(f"{what} storage.structure memory")

    def _check_structure(self) -> None:
        if self.sampling.sampler == "fastgcn":
            raise InputError("storage.structure disk needs --sampler neighbor, labor or ladies")
        if self.model.jk != "none":
            raise InputError("storage.structure disk needs --jk none: layers are evaluated in turn")
        if self.comparison.compare == "full":
            raise InputError("--compare full needs storage.structure memory")
        if self.data.symmetrise:
            raise InputError("storage.structure disk: graph directories are ready: no --symmetrise")

    def _check_device(self) -> None:
        named = f"--device {self.job.device}"
        if self.distribution.distributed != "none":
            raise InputError(f"{named} needs --distributed none: parts of ranks are on CPUs")
        if self.aim.task == "links":
            raise InputError(f"{named} needs --task vertices, not links")
        if self.model.jk != "none":
            raise InputError(f"{named} needs --jk none: evaluation goes layer by layer")

    @property
    def looks_ahead(self) -> bool:
        """True if a cache before a disk knows the batches of a superbatch beforehand."""
        how = self.storage
        return (how.cache or how.memory) > 0 and how.cache_policy == "belady" and not how.pack

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

    def _check_packed_batches(self) -> None:
        """Neighbourhoods on a disk lie there with their features."""
        if self.distribution.distributed != "none":
            named = self.distribution.distributed
            raise InputError(f"sampling.fixed needs --distributed none, not {named}")
        if self.storage.store == "disk" and not self.storage.pack:
            raise InputError(
                "sampling.fixed needs storage.pack under --store disk: both are packed"
            )
        if self.storage.pack_epochs > 1:
            given = f"storage.pack-epochs {self.storage.pack_epochs}"
            raise InputError(f"{given} needs sampling.fixed off: fixed batches are packed once")

    def _check_superbatch(self) -> None:
        how, store = self.sampling, self.storage
        if store.store == "disk" and store.store_dir is None and self.superbatch != 1:
            given = f"sampling.superbatch {how.superbatch}" if how.superbatch else "--cache"
            rest = "" if how.superbatch else ", or sampling.superbatch 1, which looks nowhere ahead"
            raise InputError(
                f"{given} needs storage.store-dir DIR, for the samples of superbatches{rest}"
            )
        if how.overlap and (store.store == "memory" or self.superbatch == 1):
            raise InputError("sampling.overlap needs superbatches whose features lie on a disk")

    def _check_distribution(self) -> None:
        how = self.distribution
        how.check()
        if how.distributed == "none":
            return
        if self.aim.task == "links":
            raise InputError(f"--distributed {how.distributed} needs --task vertices, not links")
        for name in ("store", "structure"):
            if getattr(self.storage, name) != "memory":
                named = "--store" if name == "store" else "storage.structure"
                raise InputError(f"--distributed {how.distributed} needs {named} memory")
        known = get_args(SamplerName)
        if how.distributed == "replicated":
            known = tuple(name for name in known if name != "fastgcn")
        elif how.distributed not in ("exact", "columns"):
            known = ("neighbor",)
        if self.sampling.sampler not in known:
            raise InputError(
                f"--distributed {how.distributed} needs --sampler {' or '.join(known)}, "
                f"not {self.sampling.sampler}"
            )
        if how.distributed == "columns":
            self._check_columns()
        if how.distributed in ("local", "historical") and self.model.jk != "none":
            raise InputError(f"--distributed {how.distributed} needs --jk none")

    def _check_columns(self) -> None:
        """The first layer must be W X, summed over neighbours."""
        model = self.model
        wrong = ""
        if model.attends:
            # P3 itself adds partial H W up at one more exchange, before attention.
            wrong = f"--model gcn, sage or gin, whose first layer is a sum, not {model.model}"
        elif model.reduces_rows:
            wrong = f"--aggregate mean or sum, not {model.aggregate}"
        elif model.residual:
            wrong = "no --residual: no rank has whole rows of features"
        elif model.input_dropout:
            wrong = "model.input-dropout off"
        if wrong:
            raise InputError(f"--distributed columns needs {wrong}")

    def settled(self) -> MiniBatchConfig:
        """The same with as many layers as there are hops."""
        model = replace(self.model, layers=len(self.sampling.fanouts))
        return replace(self, model=model)

    def of_whole_graph(self) -> TrainConfig:
        """Full-graph training of the same model."""
        known = {
            *vars(Data()),
            *vars(OfWhole()),
            *vars(Aim()),
            *vars(Usual()),
        }
        same = {name: value for name, value in self.settled().flat().items() if name in known}
        same |= {"epochs": self.comparison.full_epochs, "lr": self.comparison.full_lr}
        same |= {"checkpoint": None, "resume": False}
        same |= {name: getattr(self.distribution, name) for name in ("partition", "imbalance")}
        return TrainConfig.of(**same)
