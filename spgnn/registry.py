"""Everything that can be extended from outside: names, and what they stand for.

An add-on registers what it brings in its ``__init__``, by the text ``"module:name"``, which is
imported when the name is first used. A program of a user's own does the same, with texts or with
the things themselves.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from spgnn.errors import InputError, unknown


class Registry:
    """Things by their names, of one kind as messages call it; `values` are the engine's own."""

    def __init__(self, kind: str, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.kind = kind
        self._added, self._values = dict(values), dict(values)  # as registered; as imported

    def add(self, name: str, value: Any) -> None:
        """Register a thing, or ``"module:name"`` of one that is imported when it is first used."""
        if self._added.setdefault(name, value) != value:
            raise InputError(f"{self.kind} {name}: is registered already")
        self._values.setdefault(name, value)

    def __iter__(self) -> Iterator[str]:
        _import_addons()
        return iter(list(self._values))

    def __contains__(self, name: object) -> bool:
        if name not in self._values:  # nothing is imported inside a compiled function
            _import_addons()
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        """The thing of this name."""
        if name not in self:
            raise unknown(self.kind, name, self)
        self._values[name] = value = imported(self._values[name])
        return value

    def need(self, name: str, option: str, addon: str) -> Any:
        """The thing of this name, which an option of the engine takes from an add-on."""
        if name not in self:
            raise InputError(f"{option}: needs spgnn.addons.{addon}, which is not installed")
        return self[name]


def imported(value: Any) -> Any:
    """The thing itself, which may be given as ``"module:name"``."""
    if not isinstance(value, str):
        return value
    module, attribute = value.split(":")
    return getattr(import_module(module), attribute)


# Closed lists of names and bounds, which options are read by before any room is imported.
Cover = Literal["column", "row", "minimum"]
CoverChoice = Literal[Cover, "auto"]  # of a matrix or a model; decided before an `Algorithm` is
Schedule = Literal["overlap", "peers"]
Strategy = Literal["sparsity-aware", "oblivious"]
Order = Literal["auto", "paper"]
Precision = Literal["float32", "bfloat16", "float64"]
Objective = Literal["both", "send", "cover"]
Preset = Literal["fast", "default", "strong"]
BACKENDS = ("auto", "shm", "gloo", "nccl", "mpi")
BITS = (32, 16, 8, 4, 2, 1)
# Drawn rows stand for all others: as 1/p of themselves, which has to be a number of their dtype.
LEAST_SAMPLE = 1e-9
LIBRA = "libra"  # gives parts to nonzeros, and then to vertices
MORTON = "morton"  # a method that needs positions, not a graph
LARGEST_IMBALANCE = 1  # 0.05 is 5 %: whoever writes 5 means that
MOST_THREADS = 1024
# Who computes what: an `exchange.NamedScheme`
SCHEMES = Registry(
    "algo",
    {
        "1d": "spgnn.exchange.algorithm:ONE_D",
        "1.5d": "spgnn.exchange.algorithm:ONE_AND_A_HALF_D",
        "feature": "spgnn.exchange.algorithm:FEATURE",
        "2d": "spgnn.exchange.algorithm:TWO_D",
        "3d": "spgnn.exchange.algorithm:THREE_D",
        "vertex-cut": "spgnn.exchange.algorithm:VERTEX_CUT",
    },
)
# How messages are compressed or delayed: a subclass of `exchange.CodecLayer`, whose argument is
# given by its name: ``Codec.of(NAME=ARGUMENT)``
CODECS = Registry("codec")
# Of `spgnn`: (about, function of the words, its options where the function needs more)
COMMANDS = Registry(
    "command",
    {
        "info": ("Print what a graph holds.", "spgnn.commands:run_info"),
        "shard": (
            "Partition a graph and write each part into a folder of its own.",
            "spgnn.commands:run_shard",
        ),
        "train": (
            "Train a graph neural network on a whole graph.",
            "spgnn.train.run:run_train",
            "spgnn.config:TrainConfig",
        ),
        "infer": (
            "Run a trained model on a whole graph.",
            "spgnn.inference.cli:run_infer",
            "spgnn.config:InferConfig",
        ),
        "plot": (
            "Draw the losses and scores of a training report against its epochs.",
            "spgnn.commands:run_plot",
        ),
        "weights": (
            "Write the weights of a checkpoint, or of a file of torch, as plain safetensors.",
            "spgnn.commands:run_weights",
        ),
    },
)
# Whose a flag is: an `options.Configuration` or `Record`, by the program that reads it
PROGRAMS = Registry(
    "program",
    {
        "gcn.py": "spgnn.config:TrainConfig",
        "spgnn infer": "spgnn.config:InferConfig",
        "spgnn-partition": "spgnn.partition.__main__:Options",
    },
)
DOWNLOADS = Registry("data set to download")  # functions of (name, folder, progress): a Graph
READERS = Registry("file format")  # classes of `spgnn.data.GraphFile`, by suffix
WRITERS = Registry("table format")  # by suffix: classes as `spgnn.addons.io.TableWriter`
# Slots that add-ons fill: "through disk" opens a graph that is larger than memory, "several types"
# a directory of tables, if it is one: its `adjacency`, `columns` of vertices, `described` tables;
# "typed batches" is what batches of several types are drawn from (`spgnn.addons.hetero.batches`).
OPENERS = Registry("way to open a graph")
LAYERS = Registry("layer")  # of `spgnn.nn`, from elsewhere
# For tensors of a device, "cuda": a function that returns a module of what `kernels.torch_kernels`
# has, and a line that says why it cannot run here, or nothing
KERNELS = Registry("kernels of a device")
# Over the neighbours of a row, besides their sum: functions of (A, X) as in `kernels.reductions`
REDUCTIONS = Registry("reduce")
# What the training command trains: a subclass of `spgnn.nn.Network`
MODELS = Registry(
    "model",
    {
        "gcn": "spgnn.nn.models:GCN",
        "sage": "spgnn.nn.models:GraphSAGE",
        "gin": "spgnn.nn.models:GIN",
        "gine": "spgnn.nn.models:GINE",
        "gat": "spgnn.nn.models:GAT",
        "gatv2": "spgnn.nn.models:GATv2",
    },
)
# Of partitioning: a function of a `partition.Problem` to labels
METHODS = Registry(
    "method",
    {
        name: f"spgnn.partition.{module}:{name.replace('-', '_')}"
        for module, names in (
            ("ours", "block random"),
            ("packages", "metis metis-volume kahypar mtkahypar mtkahypar-deterministic kaminpar"),
            ("ours", "gvb stream pagraph"),
        )
        for name in names.split()
    },
)
# Made up, by their names; capitals stand for anything: a function of the name, the directory of
# named sets, the seed and progress, as of `load_dataset`, that returns a Graph, or `None`
DATASETS = Registry(
    "data set", dict.fromkeys(("sbm", "rmat-SCALE-FACTOR"), "spgnn.data.generators:generate")
)
# More keys of a command, by the name of its configuration and one of its own,
# ``TrainConfig.clones``: an `options.Record`
SECTIONS = Registry("section of the configuration")
# Slots that an add-on fills: a function for "training" fills in what a configuration leaves open,
# one for "distribute" chooses the placement of a graph, one for "types" that of several types.
PLANNERS = Registry("planner")
# For `spgnn.distribute`: (function that recognises such data, function that distributes them).
DATA = Registry("kind of data")
# Slots too, as "update": functions of the graph and of the method's arguments.
GRAPH_METHODS = Registry("method of DistGraph or HeteroDistGraph")
# Of mini-batches:
SAMPLERS = Registry("sampler")  # a class of `spgnn.addons.batches.GraphSampler`
MODES = Registry("mode")  # of a graph on several ranks: a class of `spgnn.addons.batches.Mode`
TABLES = Registry("table")  # of features on a disk: a `spgnn.addons.diskbatches.FeatureTable`


@cache
def _import_addons() -> None:
    """Let each add-on register what it brings."""
    try:
        addons = import_module("spgnn.addons")
    except ModuleNotFoundError:
        return  # the engine alone
    for addon in pkgutil.iter_modules(addons.__path__):
        import_module(f"spgnn.addons.{addon.name}")
