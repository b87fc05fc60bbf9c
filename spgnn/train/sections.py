"""The sections of the training command's configuration: records whose fields are its flags."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from spgnn.comm import BACKENDS
from spgnn.command import real
from spgnn.errors import InputError, meant
from spgnn.exchange import Algo, Cover, Schedule, Strategy
from spgnn.exchange import Algorithm as Distribution
from spgnn.nn import Order, Precision
from spgnn.train.flags import Flag, Record
from spgnn.train.judged import METRICS, check_metric

_OF_VERTICES = ("loss", "class_weights", "label_smoothing", "inductive", "label_propagation")
_OF_LINKS = ("decoder", "negatives", "eval_negatives", "val_links", "test_links")
# What shapes of weights do not tell.
DESCRIBED = ("model", "act", "norm", "residual", "jk", "aggregate", "heads")


@dataclass(frozen=True)
class Data(Record):
    """Which graph, and what is made of it."""

    dataset: Annotated[str, Flag(metavar="NAME_OR_PATH")] = "sbm"
    data_dir: Annotated[str | None, Flag("downloads go here", "DIR")] = None
    symmetrise: Annotated[bool, Flag("make a directed graph undirected")] = False
    split: Annotated[int, Flag("column of the masks")] = 0
    graph_split: Annotated[
        str | None, Flag("of data sets A+B+…: how many train, validate and test", "N,N,N")
    ] = None
    feature_norm: Literal["auto", "row", "none"] = "auto"
    normalisation: Annotated[
        Literal["auto", "sym", "row", "none"],
        Flag("of the adjacency: D^-1/2 A D^-1/2, D^-1 A, or A; auto: what the model is defined on"),
    ] = "auto"
    random_features: Annotated[
        int, Flag("for timing: F random features a vertex where the data set has none", "F")
    ] = 0
    random_classes: Annotated[
        int, Flag("for timing: C random classes where the data set has no labels", "C")
    ] = 0
    random_labels: Annotated[
        float, Flag("for timing: only this share of vertices gets one of --random-classes", high=1)
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.graphs_of_splits

    @property
    def graphs_of_splits(self) -> tuple[int, ...] | None:
        """How many graphs are for training, validation and testing, if that goes by graph."""
        if self.graph_split is None:
            return None
        words = self.graph_split.split(",")
        numbers = [int(w) for w in words if w.isascii() and w.isdigit() and len(w) < 10]
        if len(words) != 3 or len(numbers) != 3 or not numbers[0]:
            raise InputError(
                f"--graph-split {self.graph_split}: must be three numbers of graphs, as in 20,2,2, "
                "with one to train on"
            )
        return tuple(numbers)


@dataclass(frozen=True)
class Algorithm(Record):
    """Who computes what, and what is sent."""

    algo: Algo = "1d"
    c: Annotated[int, Flag("copies of a block row; 1 lets 2d and 3d choose", low=1)] = 1
    exchange: Strategy = "sparsity-aware"
    cover: Cover = "column"
    hierarchy: Annotated[
        str,
        Flag("N ranks are a node: they send others what they share once", "{none,auto,N}"),
    ] = "none"
    partition: Annotated[str, Flag(metavar="METHOD_OR_FILE")] = "gvb"
    edges: Annotated[
        str | None, Flag("vertex-cut: the part of each nonzero, of spgnn-partition", "FILE")
    ] = None
    imbalance: Annotated[float, Flag("of the partition", high=1000)] = 0.05
    order: Order = "auto"
    ghosts: Annotated[
        int,
        Flag("1: recompute the rows that the second layer needs, rather than receive them", high=1),
    ] = 0
    reach: Annotated[bool, Flag("leave out what no labelled training vertex needs")] = True
    schedule: Annotated[Schedule, Flag("all rows at once, or those of a few peers at a time")] = (
        "overlap"
    )
    buffer: Annotated[
        int, Flag("for received rows, under --schedule peers: 20MB, 2GiB", "BYTES", in_bytes=True)
    ] = 0
    overlap: Annotated[
        bool, Flag("let the local product hide the exchange; without, only for measurements")
    ] = True
    plan: Annotated[
        str | None, Flag("fill in what is not given: auto, or a file of spgnn plan", "AUTO_OR_FILE")
    ] = None
    machine: Annotated[
        str | None, Flag("of spgnn machine, for --plan auto; measured without", "FILE")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.node_size

    @property
    def distribution(self) -> Distribution:
        """What the exchange has to know of it."""
        return Distribution(
            self.algo,
            self.c,
            self.exchange,
            self.cover,
            self.node_size,
            self.schedule,
            self.buffer,
        )

    @property
    def node_size(self) -> int:
        """Ranks of a node; 1 without a hierarchy, and while ``auto`` is not decided."""
        text = self.hierarchy
        if text in ("none", "auto"):
            return 1
        size = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
        if size < 1:
            hint = meant(text, ("none", "auto"))
            raise InputError(f"--hierarchy {text}: must be none, auto or a number from 1{hint}")
        return size


@dataclass(frozen=True)
class Model(Record):
    """The network."""

    model: Annotated[
        Literal["gcn", "sage", "gin", "gat", "gatv2"],
        Flag("of Kipf & Welling, GraphSAGE (mean), Xu et al., Veličković et al., or Brody et al."),
    ] = "gcn"
    layers: Annotated[int, Flag(low=1, high=1000)] = 3
    hidden: Annotated[int, Flag("width of the layers between", low=1)] = 16
    dropout: Annotated[float, Flag("on the input of every layer", high=1)] = 0.0
    input_dropout: Annotated[bool, Flag("drop the features as well, not hidden layers alone")] = (
        True
    )

    act: Annotated[
        Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid"],
        Flag("between layers"),
    ] = "relu"
    norm: Annotated[
        Literal["none", "batch", "layer", "node", "graph", "pair"],
        Flag("before it; layer: of all vertices together, as PyG's, node: of each one"),
    ] = "none"
    residual: Annotated[bool, Flag("add a linear map of what a layer takes")] = False
    jk: Annotated[
        Literal["none", "last", "cat", "max"],
        Flag("a linear layer makes the scores, of the last hidden layer, or of all of them"),
    ] = "none"
    aggregate: Annotated[
        Literal["mean", "sum", "max"], Flag("of sage: what is made of the neighbours")
    ] = "mean"
    heads: Annotated[
        int, Flag("of gat and gatv2; side by side they are --hidden wide", low=1, high=1024)
    ] = 1
    attention_dropout: Annotated[
        float | None, Flag("of gat and gatv2: on edges; without, as --dropout", "P", high=1)
    ] = None
    message_dropout: Annotated[
        float, Flag("of gat and gatv2: on what is weighed, as the authors of GAT do", "P", high=1)
    ] = 0.0

    @property
    def options(self) -> dict[str, Any]:
        """What a model of `nn.MODELS` is given beside its widths; only what it may not know."""
        found: dict[str, Any] = {"act": self.act} if self.act != "relu" else {}
        if self.norm == "node":
            found |= {"norm": "layer", "norm_kwargs": {"mode": "node"}}
        elif self.norm != "none":
            found["norm"] = self.norm
        if self.residual:
            found["residual"] = True
        if self.jk != "none":
            found["jk"] = self.jk
        if self.aggregate != "mean":
            found["aggr"] = self.aggregate
        if self.attends:
            found |= {"heads": self.heads, "attention_dropout": self.attention_dropout}
        if self.message_dropout:
            found["message_dropout"] = self.message_dropout
        return found

    @property
    def described(self) -> dict[str, Any]:
        """What shapes of weights do not tell: its kind, and options that are not the defaults."""
        default = Model()
        others = {n: v for n in DESCRIBED if (v := getattr(self, n)) != getattr(default, n)}
        return {"model": self.model, **others}

    @property
    def takes_all_rows(self) -> bool:
        """Whether a norm takes statistics over all vertices, so that none may be left out."""
        return self.norm not in ("none", "node")

    @property
    def keeps_features(self) -> bool:
        """Whether something looks at X beside A·X."""
        return self.model != "gcn" or self.residual

    @property
    def propagates(self) -> bool:
        """Whether the first layer begins with a product with A."""
        return not self.attends and self.aggregate != "max"

    @property
    def drops_features(self) -> bool:
        """Whether the first layer's input changes in every epoch."""
        return self.dropout > 0 and self.input_dropout

    @property
    def attends(self) -> bool:
        """Whether layers make weights of their own for the edges."""
        return self.model in ("gat", "gatv2")


@dataclass(frozen=True)
class Aim(Record):
    """What is learnt, and what tells how well."""

    task: Annotated[
        Literal["vertices", "links"], Flag("labels of vertices, or links between them")
    ] = "vertices"
    loss: Annotated[
        Literal["auto", "softmax", "multilabel", "mse", "l1", "huber"],
        Flag("auto: what the labels are, one class a vertex, several, or numbers"),
    ] = "auto"
    metric: Annotated[
        str,
        Flag("that early stopping and the best epoch go by; auto: val_loss", choices=METRICS),
    ] = "auto"
    class_weights: Annotated[
        str, Flag("W0,W1,…: one a class; balanced: n / (classes × its vertices)", "WEIGHTS")
    ] = "none"
    label_smoothing: Annotated[float, Flag("share of a target that all classes get", high=1)] = 0.0
    inductive: Annotated[
        bool, Flag("train on the subgraph of the training vertices, evaluate on the whole graph")
    ] = False
    label_propagation: Annotated[
        float,
        Flag(
            "show the labels of this share of training vertices, learn the others", "RATE", high=1
        ),
    ] = 0.0
    decoder: Annotated[
        Literal["dot", "mlp"], Flag("of links: z·z', or a network of two layers on z⊙z'")
    ] = "dot"
    negatives: Annotated[int, Flag("made-up pairs for each link, drawn each epoch", low=1)] = 1
    eval_negatives: Annotated[int, Flag("for each link that is scored", low=1)] = 100
    val_links: Annotated[float, Flag("share that is held out for validation", high=1)] = 0.05
    test_links: Annotated[float, Flag("share that is held out for testing", high=1)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.given_weights

    def check(self) -> None:
        """Refuse flags and scores that the task does not know; what labels are is found out later.

        Raises
        ------
        InputError
        """
        unset, links = Aim(), self.task == "links"
        for name in _OF_VERTICES if links else _OF_LINKS:
            if getattr(self, name) != getattr(unset, name):
                needed = "--task vertices, not links" if links else "--task links"
                raise InputError(f"--{name.replace('_', '-')} needs {needed}")
        if links and self.val_links + self.test_links >= 1:
            raise InputError("--val-links and --test-links leave nothing to train on: sum ≥ 1")
        check_metric("links" if links else self.loss, self.metric)

    @property
    def given_weights(self) -> tuple[float, ...]:
        """Weights of classes that are given one by one."""
        text = self.class_weights
        if text in ("none", "balanced"):
            return ()
        try:
            weights = tuple(real(0, math.inf)(word) for word in text.split(","))
        except ArgumentTypeError:
            weights = ()
        if not sum(weights):
            hint = meant(text, ("none", "balanced"))
            wanted = "must be none, balanced, or a weight for each class, as in 1,2.5,1"
            raise InputError(f"--class-weights {text}: {wanted}{hint}")
        return weights


@dataclass(frozen=True)
class Training(Record):
    """How long, with which steps, and what is kept of it."""

    epochs: Annotated[int, Flag(low=1)] = 100
    dtype: Annotated[
        Precision, Flag("of activations, messages and features; weights are float32 at least")
    ] = "float32"
    lr: float = 0.01
    weight_decay: Annotated[float, Flag("of the first layer")] = 5e-4
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    lr_schedule: Annotated[
        Literal["none", "cosine", "step", "linear", "plateau"],
        Flag("of the rate after --warmup: to 0 at the end, or times --lr-factor now and then"),
    ] = "none"
    lr_every: Annotated[
        int, Flag("step: epochs; plateau: evaluations without a lower validation loss", "N", low=1)
    ] = 50
    lr_factor: Annotated[float, Flag("of --lr-schedule step and plateau", high=1)] = 0.5
    warmup: Annotated[int, Flag("let the rate rise for so many epochs", "EPOCHS")] = 0
    clip: Annotated[float, Flag("largest norm of all gradients together; 0: any", "NORM")] = 0.0
    seed: Annotated[int, Flag("of weights, dropout, the partition, and all else drawn")] = 0
    runs: Annotated[
        int, Flag("train from so many seeds; the graph and its split stay", "N", low=1, high=10_000)
    ] = 1
    eval_every: Annotated[int, Flag(metavar="N", low=1)] = 1
    patience: Annotated[
        int, Flag("stop once the validation loss exceeds the mean of the N before it; 0: never")
    ] = 0
    checkpoint: Annotated[str | None, Flag("keep weights and history there", "DIR")] = None
    checkpoint_every: Annotated[int, Flag("epochs", "N", low=1)] = 10
    resume: Annotated[bool, Flag("go on from the checkpoint")] = False

    def check(self) -> None:
        """Refuse flags that do not go together.

        Raises
        ------
        InputError
        """
        if self.resume and self.checkpoint is None:
            raise InputError("--resume needs --checkpoint DIR, where the checkpoint lies")
        if self.warmup and self.warmup >= self.epochs:
            raise InputError(f"--warmup {self.warmup} must be less than --epochs {self.epochs}")


@dataclass(frozen=True)
class Job(Record):
    """Where it runs, and where the report goes."""

    backend: Annotated[str, Flag(choices=BACKENDS)] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    nproc: Annotated[int, Flag("fork this many ranks on this machine", low=1, high=4096)] = 1
    threads: Annotated[int, Flag("of each rank; 0: an even share", high=1024)] = 0
    json: Annotated[str | None, Flag("write the training report", "FILE")] = None
    log: Annotated[
        str | None, Flag("follow the run there: CSV, and TensorBoard if it is installed", "DIR")
    ] = None
    predictions: Annotated[
        str | None, Flag("write class and scores of every vertex, as .npz", "FILE")
    ] = None
    config: Annotated[
        str | None, Flag("read flags from there: TOML, JSON (a report, too) or YAML", "FILE")
    ] = None
    write_config: Annotated[str | None, Flag("write the flags of this run", "FILE")] = None


@dataclass(frozen=True)
class Storage(Record):
    """Graphs larger than memory: what lies on a disk, and is worked through in parts."""

    memory: Annotated[
        int, Flag("of each rank, everything counted: 20GB, 512MiB", "BYTES", in_bytes=True)
    ] = 0
    spill: Annotated[str | None, Flag("what does not fit goes there, and is removed", "DIR")] = None
    parts: Annotated[int, Flag("work through a rank's rows in K parts; 0: as many as fit", "K")] = 0
    spill_dtype: Annotated[
        Literal["float32", "bfloat16"], Flag("of features and of A·X on the disk")
    ] = "float32"

    recompute: Annotated[
        Literal["auto", "never", "always"],
        Flag("make again what layers look at beside products, instead of keeping it"),
    ] = "auto"

    @property
    def asked(self) -> bool:
        """Whether a rank's rows are worked through in parts."""
        return bool(self.memory or self.spill or self.parts)
