"""The configuration of training, inference and planning: its records, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from spgnn import exchange, graph, nn  # doors, which import nothing yet: --help needs no torch
from spgnn.errors import InputError, suggestion
from spgnn.options import Configuration, Option, Record, flag, key, options_of, rare
from spgnn.registry import (
    BACKENDS,
    BITS,
    CODECS,
    LARGEST_IMBALANCE,
    LEAST_SAMPLE,
    MODELS,
    REDUCTIONS,
    SCHEMES,
    CoverChoice,
    Objective,
    Order,
    Precision,
    Schedule,
    Strategy,
)

if TYPE_CHECKING:
    from torch.nn import Module

    from spgnn.comm import Communicator

Number = TypeVar("Number", int, float)
Added = TypeVar("Added", bound="Extension")
NEVER = "never"
ObjectiveChoice = Literal[Objective, "auto"]
# What a reduction of rows of neighbours needs, and features of edges.
WHOLE_ROWS = "--algo 1d, --cover column, --hierarchy none and --schedule overlap: whole rows"
RESIDUALS = ("mse", "l1", "huber")
# Scores of each loss.
METRICS_OF = {
    "softmax": ("accuracy", "f1-micro", "f1-macro", "roc-auc"),
    "multilabel": ("f1-micro", "f1-macro", "roc-auc"),
    **dict.fromkeys(RESIDUALS, ("mae", "rmse", "r2")),
    "links": ("mrr", "hits@50", "roc-auc", "hits@10", "hits@20", "hits@100"),
}
METRICS = ("auto", *dict.fromkeys(name for names in METRICS_OF.values() for name in names))


def _digits(text: str) -> int | None:
    """A number from 0, of few digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _graph_split(text: str) -> tuple[int, ...]:
    numbers = [_digits(word) for word in text.split(",")]
    if len(numbers) != 3 or None in numbers or not numbers[0]:
        raise InputError(
            f"data.graph-split {text}: must be three numbers of graphs, as in 20,2,2, with one to "
            "train on"
        )
    return tuple(number or 0 for number in numbers)


def _group_sizes(text: str) -> tuple[int, ...]:
    if text in ("none", "auto"):
        return ()
    sizes = tuple(_digits(word) or 0 for word in text.split(","))
    if min(sizes) < 1:
        hint = suggestion(text, ("none", "auto"))
        raise InputError(
            f"--hierarchy {text}: must be none, auto or a number from 1, or sizes (2,4){hint}"
        )
    return () if sizes == (1,) else sizes


def _weights(text: str) -> tuple[float, ...]:
    if text in ("none", "balanced"):
        return ()
    try:
        weights = tuple(float(word) for word in text.split(","))
    except ValueError:
        weights = ()
    if not all(0 <= weight < math.inf for weight in weights) or not sum(weights):
        hint = suggestion(text, ("none", "balanced"))
        form = "must be none, balanced, or a weight for each class, as in 1,2.5,1"
        raise InputError(f"aim.class-weights {text}: {form}{hint}")
    return weights


@dataclass(frozen=True)
class Data(Record):
    """The graph, and what is made up of it."""

    dataset: Annotated[str, flag("a file, a directory or a data set's name", "NAME_OR_PATH")] = (
        "sbm"
    )
    data_dir: Annotated[str | None, key("where named sets live; default: $SPGNN_DATA", "DIR")] = (
        None
    )
    symmetrise: Annotated[bool, rare("make a directed graph undirected")] = False
    split: Annotated[int, flag("column of the masks")] = 0
    graph_split: Annotated[
        str | None,
        key("of data sets A+B+…: how many train, validate and test", "N,N,N", reads=_graph_split),
    ] = None
    feature_norm: Annotated[
        Literal["auto", "row", "none"], key("divide features by their sum; auto: bags of words")
    ] = "auto"
    normalisation: Annotated[
        Literal["auto", "sym", "row", "none"],
        key("of the adjacency: D^-1/2 A D^-1/2, D^-1 A, or A; auto: what the model is defined on"),
    ] = "auto"
    random_features: Annotated[
        int, rare("for timing: F random features a vertex where the data set has none", "F")
    ] = 0
    random_classes: Annotated[
        int, rare("for timing: C random classes where the data set has no labels", "C")
    ] = 0
    random_labels: Annotated[
        float, key("for timing: only this share of vertices gets a random class", high=1)
    ] = 0.0

    @property
    def graphs_of_splits(self) -> tuple[int, ...] | None:
        """Numbers of graphs for training, validation and testing, if splits go by graph."""
        return None if self.graph_split is None else _graph_split(self.graph_split)


@dataclass(frozen=True)
class Algorithm(Record):
    """The scheme, its partition, and the rows that are sent."""

    algo: Annotated[str, flag("how the matrix is distributed over ranks", choices=SCHEMES)] = "1d"
    c: Annotated[int, flag("copies of a block row; 1 lets 2d and 3d choose", low=1)] = 1
    exchange: Annotated[Strategy, rare("rows that are needed, or whole block rows")] = (
        "sparsity-aware"
    )
    cover: Annotated[
        CoverChoice,
        flag("rows of H, partial sums, or the fewest of both; auto: these where a model sums"),
    ] = "auto"
    hierarchy: Annotated[
        str,
        flag(
            "ranks of a node, or of groups that rise, nodes last: what crosses crosses once",
            "none|auto|N,…",
            reads=_group_sizes,
        ),
    ] = "none"
    nodes: Annotated[
        int | None, rare("that neighbouring ranks are on; default: as launched", "N", low=1)
    ] = None
    relays: Annotated[
        bool, rare("ranks that have time hand rows on, and add sums up, where others are busy")
    ] = False
    partition: Annotated[str, flag("a method, or a file of labels", "METHOD_OR_FILE")] = "gvb"
    edges: Annotated[
        str | None, key("vertex-cut: the part of each nonzero, of spgnn-partition", "FILE")
    ] = None
    objective: Annotated[
        ObjectiveChoice, rare("of the partition; auto: what is exchanged under the cover")
    ] = "auto"
    imbalance: Annotated[float, rare("of the partition", high=LARGEST_IMBALANCE)] = 0.05
    order: Annotated[Order, rare("paper: multiply A by X in every epoch")] = "auto"
    recompute_halo: Annotated[
        bool, flag("recompute the rows that the second layer needs, rather than receive them")
    ] = False
    prune: Annotated[bool, flag("leave out what no labelled training vertex needs")] = True
    schedule: Annotated[Schedule, rare("all rows at once, or those of a few peers at a time")] = (
        "overlap"
    )
    buffer: Annotated[
        int, rare("for received rows, under --schedule peers: 20MB, 2GiB", "BYTES", in_bytes=True)
    ] = 0
    plan: Annotated[
        str | None, flag("fill in what is not given: auto, or a file of spgnn plan", "AUTO_OR_FILE")
    ] = None
    machine: Annotated[
        str | None, rare("of spgnn machine, for --plan auto; measured without", "FILE")
    ] = None

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Ranks of groups of every size, nodes last; none without a hierarchy or a decided one."""
        return _group_sizes(self.hierarchy)

    @property
    def node_size(self) -> int:
        """Ranks of a node; 1 without a hierarchy, and while ``auto`` is not decided."""
        return self.group_sizes[-1] if self.group_sizes else 1


@dataclass(frozen=True)
class Messages(Record):
    """Compression, delay and sampling of messages."""

    bits: Annotated[
        str,
        flag("of an element that is sent: 32, 16, 8, 4, 2 or 1; 2,8@50: 8 from epoch 50 on", "B"),
    ] = "32"
    error_feedback: Annotated[
        bool, rare("add what rounding lost of a row to the one that is sent next in its place")
    ] = False
    delay: Annotated[
        str, flag("use rows R epochs after they were sent; never: nothing is sent", "R|never")
    ] = "0"
    delay_bins: Annotated[int, rare("send one of B bins of rows an epoch", "B", low=1)] = 1
    boundary_sampling: Annotated[
        str, flag("share of rows that is sent, drawn each epoch; 0.1,0.5@100: a schedule", "P")
    ] = "1"
    smoothing: Annotated[
        float, key("of delayed rows: share of the running mean that stays", high=1)
    ] = 0.0
    exact_means: Annotated[
        bool | None,
        key(
            "send the mean of each message exactly and at once; default: with --delay R and "
            "--boundary-sampling, not under attention"
        ),
    ] = None
    exact_last: Annotated[int, key("epochs at the end whose messages are exact", "K")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.codec

    @property
    def epochs_late(self) -> int | None:
        """The delay; ``None`` if nothing is ever sent."""
        if self.delay == NEVER:
            return None
        epochs = _digits(self.delay)
        if epochs is None:
            hint = suggestion(self.delay, (NEVER,))
            raise InputError(
                f"--delay {self.delay}: must be a number of epochs from 0, or never{hint}"
            )
        return epochs

    @property
    def codec(self) -> exchange.Codec:
        """The codec of these options alone; the exact one where nothing is lost nor late."""
        bits = _schedule(
            "--bits",
            self.bits,
            lambda text: next((bits for bits in BITS if str(bits) == text), None),
            "32, 16, 8, 4, 2 or 1, or a schedule as in 2,8@50,32@90: 8 from epoch 50 on",
        )
        sampling = _schedule(
            "--boundary-sampling",
            self.boundary_sampling,
            _share,
            "a share in (0, 1], or a schedule as in 0.1,0.5@100; --delay never sends nothing",
        )
        delay, least = self.epochs_late, min(value for _, value in bits)
        samples = any(share < 1 for _, share in sampling)
        if least == 32 and not samples and delay == 0:
            return exchange.Codec()
        if self.error_feedback and least < 2:
            raise InputError("--error-feedback needs --bits 2 or more: 1 loses more than it sends")
        return exchange.Codec(
            bits=bits,
            feedback=self.error_feedback,
            delay=delay,
            bins=self.delay_bins,
            smoothing=self.smoothing,
            exact_means=self.exact_means,
            exact_last=self.exact_last,
            sampling=sampling,
        )


def all_reductions() -> tuple[str, ...]:
    """Names of sums and of registered reductions over neighbours."""
    return "sum", *REDUCTIONS


@dataclass(frozen=True)
class Model(Record):
    """The network."""

    model: Annotated[
        str,
        flag(
            "of Kipf & Welling, GraphSAGE, Xu et al., Hu et al., Veličković et al., Brody et al.; "
            "sgformer, polynormer and gps attend to all vertices",
            choices=MODELS,
        ),
    ] = "gcn"
    layers: Annotated[int, flag("number of layers", low=1, high=1000)] = 3
    hidden: Annotated[int, flag("width of the layers between", low=1)] = 16
    dropout: Annotated[float, flag("on the input of every layer", high=1)] = 0.0
    input_dropout: Annotated[bool, key("drop the features as well, not hidden layers alone")] = True
    act: Annotated[
        Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid"],
        key("between layers"),
    ] = "relu"
    norm: Annotated[
        Literal["none", "batch", "layer", "node", "graph", "pair"],
        flag("before it; layer: of all vertices together, as PyG's, node: of each one"),
    ] = "none"
    residual: Annotated[bool, rare("add a linear map of what a layer takes")] = False
    jk: Annotated[
        Literal["none", "last", "cat", "max"],
        rare("a linear layer makes the scores, of the last hidden layer, or of all of them"),
    ] = "none"
    aggregate: Annotated[str, rare("of sage: over the neighbours", choices=all_reductions)] = "mean"
    heads: Annotated[
        int, flag("of attention; of gat and gatv2 side by side --hidden wide", low=1, high=1024)
    ] = 1
    attention_dropout: Annotated[
        float | None, key("of gat and gatv2: on edges; without, as --dropout", "P", high=1)
    ] = None
    edge_dim: Annotated[int, key("of gine, gat and gatv2: features of an edge")] = 0
    message_dropout: Annotated[
        float, key("of gat and gatv2: on what is weighed, as the authors of GAT do", "P", high=1)
    ] = 0.0

    @property
    def registered(self) -> type[nn.Network]:
        """The class of the model."""
        result: type[nn.Network] = MODELS[self.model]
        return result

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the model besides widths and dropout that are not the defaults."""
        others = "model", "layers", "hidden", "dropout", "input_dropout"
        result = {_argument(o): value for o, value in self.changed if o.name not in others}
        if self.norm == "node":
            result |= {"norm": "layer", "norm_kwargs": {"mode": "node"}}
        return result

    @property
    def described(self) -> dict[str, Any]:
        """The kind of model and its options, which shapes do not tell, if not the defaults."""
        others = {option.name: value for option, value in self.changed}
        return {"model": self.model, **{n: others[n] for n in DESCRIBED if n in others}}

    @property
    def keeps_features(self) -> bool:
        """True if the model reads X as well as A·X."""
        return self.model != "gcn" or self.residual

    @property
    def propagates(self) -> bool:
        """True if the first layer begins with a product with A."""
        sums = self.layer.accepts_propagated and not self.aggregates_several_times
        return sums and self.multiplies and not self.attends_globally

    @property
    def multiplies(self) -> bool:
        """True if all aggregations are products with A."""
        return not self.attends and not self.reduces_rows and not self.uses_edges

    @property
    def layer(self) -> type[nn.Convolution]:
        """The class of its layers, of a stack of them."""
        kind: type[nn.Convolution] = getattr(self.registered, "convolution", nn.Convolution)
        return kind

    @property
    def uses_edges(self) -> bool:
        """True if layers take features of edges, which are those of whole rows of the matrix."""
        return bool(self.edge_dim) or self.registered.needs_edges

    @property
    def makes_all_rows(self) -> bool:
        """True if no layer may leave rows out."""
        # Other norms take statistics over all vertices.
        if self.norm not in ("none", "node") or self.uses_edges or self.attends_globally:
            return True
        if self.aggregates_several_times:
            return True
        import torch

        with torch.device("meta"):  # a registered model may have norms that no flag tells of
            widths = [2 * self.heads] * (min(self.layers, 2) + 1)
            network: Any = self.registered.of(widths, **self.options)
        return isinstance(network, nn.Stack) and network.needs_all_rows

    @property
    def aggregates_several_times(self) -> bool:
        """True if its layers do more than one product."""
        return self.layer.forward is not nn.Convolution.forward

    @property
    def reduces_rows(self) -> bool:
        """True if a reduction needs whole rows of neighbours: it is no product with A."""
        return self.aggregate not in ("mean", "sum")

    @property
    def drops_features(self) -> bool:
        """True if the first layer's input changes in every epoch."""
        return self.dropout > 0 and self.input_dropout

    @property
    def attends(self) -> bool:
        """True if layers make weights of their own for the edges."""
        return self.registered.attends

    @property
    def attends_globally(self) -> bool:
        """True if each vertex attends to all."""
        return bool(self.registered.attends_globally)


# What shapes of weights do not tell of a model.
DESCRIBED = tuple(
    option.name
    for option in options_of(Model)
    if option.name not in ("layers", "hidden") and not option.name.endswith("dropout")
)


def _argument(option: Option) -> str:
    """The argument of models that an option is."""
    return "aggr" if option.name == "aggregate" else option.name


@dataclass(frozen=True)
class Aim(Record):
    """The task, its loss, and its metric."""

    task: Annotated[
        Literal["vertices", "links"], flag("labels of vertices, or links between them")
    ] = "vertices"
    loss: Annotated[
        Literal["auto", "softmax", "multilabel", "mse", "l1", "huber"],
        rare("auto: what the labels are, one class a vertex, several, or numbers"),
    ] = "auto"
    metric: Annotated[
        str, rare("that early stopping and the best epoch go by; auto: val_loss", choices=METRICS)
    ] = "auto"
    class_weights: Annotated[
        str, key("W0,W1,…: one a class; balanced: n / (classes × its vertices)", reads=_weights)
    ] = "none"
    label_smoothing: Annotated[float, key("share of a target that all classes get", high=1)] = 0.0
    inductive: Annotated[
        bool, key("train on the subgraph of the training vertices, evaluate on the whole graph")
    ] = False
    decoder: Annotated[
        Literal["dot", "mlp"], key("of links: z·z', or a network of two layers on z⊙z'")
    ] = "dot"
    negatives: Annotated[int, key("made-up pairs for each link, drawn each epoch", low=1)] = 1
    eval_negatives: Annotated[int, key("for each link that is scored", low=1)] = 100
    val_links: Annotated[float, key("share that is held out for validation", high=1)] = 0.05
    test_links: Annotated[float, key("share that is held out for testing", high=1)] = 0.1

    def check_together(self) -> None:
        """Refuse options and scores that the task does not know."""
        links = self.task == "links"
        of_vertices = "loss", "class_weights", "label_smoothing", "inductive"
        of_links = "decoder", "negatives", "eval_negatives", "val_links", "test_links"
        for option, _ in self.changed:
            if option.name in (of_vertices if links else of_links):
                needed = "--task vertices, not links" if links else "--task links"
                raise InputError(f"{option.written} needs {needed}")
        if links and self.val_links + self.test_links >= 1:
            raise InputError("aim.val-links and aim.test-links leave nothing to train on: sum ≥ 1")
        check_metric("links" if links else self.loss, self.metric)

    @property
    def given_weights(self) -> tuple[float, ...]:
        """Weights of classes that are given one by one."""
        return _weights(self.class_weights)


@dataclass(frozen=True)
class Training(Record):
    """Epochs, optimiser, seeds and checkpoints."""

    epochs: Annotated[int, flag("number of epochs", low=1)] = 100
    dtype: Annotated[
        Precision, flag("of activations, messages and features; weights are float32 at least")
    ] = "float32"
    lr: Annotated[float, flag("learning rate")] = 0.01
    weight_decay: Annotated[float, rare("of the first layer")] = 5e-4
    optimizer: Annotated[Literal["adam", "adamw", "sgd"], rare("that takes the steps")] = "adam"
    lr_schedule: Annotated[
        Literal["none", "cosine", "step", "linear", "plateau"],
        key("of the rate after warmup: to 0 at the end, or times lr-factor now and then"),
    ] = "none"
    lr_every: Annotated[
        int, key("step: epochs; plateau: evaluations without a lower validation loss", "N", low=1)
    ] = 50
    lr_factor: Annotated[float, key("of the schedules step and plateau", high=1)] = 0.5
    warmup: Annotated[int, key("let the rate rise for so many epochs", "EPOCHS")] = 0
    clip: Annotated[float, key("largest norm of all gradients together; 0: any", "NORM")] = 0.0
    seed: Annotated[int, flag("of weights, dropout, the partition, and all else drawn")] = 0
    runs: Annotated[
        int, rare("train from so many seeds; the graph and its split stay", "N", low=1, high=10_000)
    ] = 1
    eval_every: Annotated[int, rare("evaluate each N-th epoch", "N", low=1)] = 1
    patience: Annotated[
        int, rare("early stopping, once the validation loss exceeds the mean of N before; 0: never")
    ] = 0
    checkpoint: Annotated[str | None, flag("keep weights and history there", "DIR")] = None
    checkpoint_every: Annotated[int, key("epochs", "N", low=1)] = 10
    resume: Annotated[bool, flag("go on from the checkpoint")] = False

    def check_together(self) -> None:
        """Refuse options that do not go together."""
        if self.resume and self.checkpoint is None:
            raise InputError("--resume needs --checkpoint DIR, where the checkpoint lies")
        if self.warmup and self.warmup >= self.epochs:
            raise InputError(
                f"training.warmup {self.warmup} must be less than --epochs {self.epochs}"
            )


@dataclass(frozen=True)
class Job(Record):
    """Ranks, devices, and files that are written."""

    backend: Annotated[str, rare("of torch.distributed, or mpi", choices=BACKENDS)] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], rare("that ranks compute on")] = "auto"
    nproc: Annotated[int, flag("fork this many ranks on this machine", low=1, high=4096)] = 1
    threads: Annotated[int, rare("of each rank; 0: an even share", high=1024)] = 0
    json: Annotated[str | None, flag("write the report", "FILE")] = None
    log: Annotated[
        str | None, rare("follow the run there: CSV, and TensorBoard if it is installed", "DIR")
    ] = None
    predictions: Annotated[
        str | None,
        flag("write classes, scores or embeddings of every vertex, as .npz or .parquet", "FILE"),
    ] = None
    config: Annotated[
        str | None, flag("read options from there: TOML, JSON (a report, too) or YAML", "FILE")
    ] = None


class Extension(Record):
    """Base of records that are registered for ``TrainConfig``, and of what they change there."""

    def distribution(self, config: TrainConfig, how: exchange.Algorithm) -> exchange.Algorithm:
        """The scheme, where `how` would be taken without the extension."""
        return how

    def codec(self, config: TrainConfig, codec: exchange.Codec) -> exchange.Codec:
        """The codec of messages, in place of `codec`."""
        return codec

    def changes_features(self, config: TrainConfig) -> str | None:
        """The option of the extension that changes the first layer's features in each epoch."""
        return None

    def model(self, config: TrainConfig, layers: Module, classes: int, width: int) -> Module:
        """The model, of layers that take features of some width."""
        return layers

    def task(self, config: TrainConfig) -> Callable[[TrainConfig, Any], Any] | None:
        """The task, if it is another one: a ``spgnn.train.GraphTask``."""
        return None

    def opener(self, config: TrainConfig) -> Callable[..., Any] | None:
        """The task, if it opens its data itself: of (config, comm, bytes before it, outputs)."""
        return None

    def share(self, config: TrainConfig, comm: Communicator) -> tuple[Any, dict[str, Any]] | None:
        """A rank's part of the graph, if the extension makes it, and more of the report."""
        return None

    def refused(self, config: TrainConfig) -> Iterator[str]:
        """Say what cannot be had together."""
        return iter(())


@dataclass(frozen=True)
class TrainConfig(Configuration):
    """One training run. ``TrainConfig.of(hidden=64, epochs=5)`` sets some options by name."""

    program: ClassVar[str] = "gcn.py"
    about: ClassVar[str] = (
        "Train a graph neural network on a whole graph, on one or many ranks: docs/training.md."
    )

    data: Data = field(default_factory=Data)
    algorithm: Algorithm = field(default_factory=Algorithm)
    messages: Messages = field(default_factory=Messages)
    model: Model = field(default_factory=Model)
    aim: Aim = field(default_factory=Aim)
    training: Training = field(default_factory=Training)
    job: Job = field(default_factory=Job)

    @property
    def distribution(self) -> exchange.Algorithm:
        """The scheme; where the cover is left open, with the one that moves less."""
        is_open = self.algorithm.cover == "auto" and self.whole_rows is None
        return self._by_rows.for_products if is_open else self._by_rows

    @property
    def _by_rows(self) -> exchange.Algorithm:
        """The scheme, with whole rows where the cover is left open."""
        how = self.algorithm
        result = exchange.Algorithm(
            how.algo,
            how.c,
            how.exchange,
            "column" if how.cover == "auto" else how.cover,
            how.node_size,
            how.schedule,
            how.buffer,
            how.group_sizes[:-1],
            how.relays,
        )
        for extension in self.extensions:
            result = extension.distribution(self, result)
        return result

    @property
    def codec(self) -> exchange.Codec:
        """The codec, which compresses or delays messages."""
        result = self.messages.codec
        for extension in self.extensions:
            result = extension.codec(self, result)
        return result

    @property
    def described_messages(self) -> str:
        """Options of messages that are not the defaults; exact means if any are sent."""
        means = (self.codec.sends_means and not self.model.attends) or None
        messages = replace(self.messages, exact_means=means)
        return " ".join(_changed_messages(messages, *self.extensions))

    @property
    def changes_features(self) -> str | None:
        """The option that has the first layer take other features in each epoch."""
        return next((why for each in self.extensions if (why := each.changes_features(self))), None)

    def extension(self, record: type[Added]) -> Added:
        """The registered record of a class."""
        return next((each for each in self.extra if isinstance(each, record)), record())

    @property
    def extensions(self) -> list[Extension]:
        """The registered records that change more than their own options."""
        return [record for record in self.extra if isinstance(record, Extension)]

    @property
    def whole_rows(self) -> str | None:
        """Why whole rows travel where the cover is left open; ``None``: sums may, too."""
        how, model = self.algorithm, self.model
        if how.cover != "auto":
            return None
        reasons = {
            "messages are approximate": not self.codec.exact,
            f"--algo {self._by_rows.algo}": "partial_sums" not in self._by_rows.can,
            f"--exchange {how.exchange} with --schedule {how.schedule}": (
                self._by_rows.for_products == self._by_rows
            ),
            f"--model {model.model}: attention weighs rows": model.attends,
            "--recompute-halo": how.recompute_halo,
        }
        for why, holds in reasons.items():
            if holds:
                return why
        return next(replace(self, algorithm=replace(how, cover="minimum")).contradictions, None)

    @property
    def contradictions(self) -> Iterator[str]:
        """Reasons why this cannot work on any number of ranks."""
        yield from chain.from_iterable(one.refused(self) for one in self.extensions)
        yield from refused(self)

    def check_sources(self) -> None:
        """Refuse a data set that is not there."""
        from spgnn.data.load import check_dataset  # which needs torch

        if self.opener is None:
            check_dataset(self.data.dataset, self.data.data_dir)

    @property
    def opener(self) -> Callable[..., Any] | None:
        """The task that opens its data itself, if an extension has one."""
        return next((task for one in self.extensions if (task := one.opener(self))), None)

    @property
    def objective(self) -> Objective:
        """The partition's objective; by default the rows that the cover exchanges."""
        how = self.algorithm
        return objective_for(self.distribution.cover, how.partition, how.objective)

    def nodes(self, ranks: int) -> int | None:
        """Nodes that the parts are on, neighbours on one; ``None`` if nothing says, or all are."""
        return self.distribution.nodes(ranks, ranks // (self.algorithm.nodes or ranks))

    def decided(self) -> Self:
        """The same with the cover that was left open."""
        return self.but(cover=self.distribution.cover)

    def widths(self, features: int, outputs: int) -> list[int]:
        """Features, widths of the hidden layers, outputs of the last one."""
        model = self.model
        hidden = model.layers - 1 + bool(model.registered.linear_end)
        return [features, *[model.hidden] * hidden, outputs]

    def network(self, features: int, outputs: int) -> nn.Network:
        """The model, its weights drawn from the seed."""
        model = self.model
        order, options = self.algorithm.order, model.options
        if order != "auto":  # which others than GCN do not know
            options["order"] = order
        network = model.registered.of(
            self.widths(features, outputs),
            dropout=model.dropout,
            input_dropout=model.input_dropout,
            seed=self.training.seed,
            **options,
        )
        matrix = int(network.loops), network.normalisation
        for layer in getattr(network, "convolutions", ()):
            wants = getattr(layer, "normalisation", None)
            if wants is not None and graph.RECIPES[wants] != matrix:
                raise InputError(
                    f"--model {model.model}: its layers take the matrix {wants!r}, and it is "
                    f"registered with normalisation {matrix[1]!r}, loops {network.loops}"
                )
        return network

    def propagates_once(self, *, sparse: bool) -> bool:
        """True if A·X is computed once; of sparse X, which fills in, only for recomputed halos."""
        how, model = self.algorithm, self.model
        changes = model.drops_features or self.changes_features is not None
        if how.order != "auto" or changes or not model.propagates:
            return False
        return how.recompute_halo or not sparse

    def refused(self, ranks: int) -> Iterator[str]:
        """Say what cannot work on that many ranks."""
        yield from chain.from_iterable(one.refused(self) for one in self.extensions)
        self.distribution.check(ranks)
        model = self.model
        own_forward = model.attends and model.aggregates_several_times
        if own_forward and ranks > 1 and self.opener is None:
            why = "has layers with a forward of their own: spgnn.Trainer(model, graph) trains it"
            yield f"--model {model.model} {why}"
        nodes, size = self.algorithm.nodes, self.distribution.node_size
        if nodes is not None and ranks % nodes:
            yield f"--nodes {nodes} must divide the number of ranks, which is {ranks}"
        if nodes is not None and size > 1 and nodes * size != ranks:
            yield (
                f"--nodes {nodes} and --hierarchy {self.algorithm.hierarchy} contradict each "
                f"other: a node has {ranks // nodes} of {ranks} ranks, or {size}"
            )
        yield from refused(self)


@dataclass(frozen=True)
class Inference(Record):
    """The weights, and the file of the results."""

    weights: Annotated[
        str | None,
        flag("a directory of --checkpoint, or a state_dict (safetensors, torch)", "FILE_OR_DIR"),
    ] = None
    output: Annotated[
        str | None, flag("an .npy or .parquet file of all vertices, or a directory", "FILE_OR_DIR")
    ] = None
    layer: Annotated[
        int, flag("write what this layer hands to the next one; 0: the scores", "K", high=1000)
    ] = 0


@dataclass(frozen=True)
class InferConfig(TrainConfig):
    """One run over a whole graph; options that only training looks at are read and not used."""

    program: ClassVar[str] = "spgnn infer"
    about: ClassVar[str] = (
        "Run a trained model on a whole graph, alone or as a rank of a launcher. Flags are those "
        "of training, which say how the model was made."
    )

    inference: Inference = field(default_factory=Inference)

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks."""
        if self.inference.weights is None:
            raise InputError(
                "--weights FILE is needed: a checkpoint, or a state_dict (safetensors, torch)"
            )
        if self.inference.output is None:
            raise InputError("--output FILE is needed: an .npy or .parquet file, or a directory")
        if self.changes_features:
            raise InputError(
                f"{self.changes_features}: such a model takes more than features; training writes "
                "--predictions"
            )
        if self.inference.layer > self.model.layers:
            raise InputError(
                f"--layer {self.inference.layer}: the model has --layers {self.model.layers}"
            )
        settled = self.settled(1)
        settled.distribution.check(ranks)
        if self.opener is not None:
            TrainConfig.check(settled, ranks)  # its own would ask for this again
            if self.inference.layer not in (0, self.model.layers):
                raise InputError(
                    "--layer: of several vertex types, and with --memory, --spill or --chunks, "
                    "scores are written"
                )

    def settled(self, outputs: int) -> TrainConfig:
        """The configuration of a model in evaluation, on a graph that may have no labels."""
        return self.but(
            recompute_halo=False,
            prune=False,
            dropout=0.0,
            plan=None,
            resume=False,
            task="vertices",
            inductive=False,
            random_classes=self.data.random_classes or outputs,
        )


def objective_for(cover: str, partition: Any, objective: ObjectiveChoice) -> Objective:
    """The objective of a partition for exchanges under a cover: only gvb knows minimum covers."""
    if objective != "auto":
        return objective
    return "cover" if cover == "minimum" and partition == "gvb" else "both"


def refused(config: TrainConfig) -> Iterator[str]:
    """Say what cannot be had together, however many ranks there are."""
    how, model, aim = config.algorithm, config.model, config.aim
    cuts = "edge_labels" in config.distribution.can
    if how.edges is not None and not cuts:
        yield "algorithm.edges needs --algo vertex-cut"
    if how.partition == "libra" and (not cuts or how.edges is not None or how.plan):
        yield "--partition libra needs --algo vertex-cut, and neither algorithm.edges nor --plan"
    if how.order != "auto" and "order" not in model.registered.takes():
        yield f"--order paper needs --model gcn, not {model.model}"

    if how.plan and aim.inductive:
        yield "--plan knows training on the whole graph, not aim.inductive True"
    if how.plan and how.edges is not None:
        yield "--plan makes vertex cuts of its own: no algorithm.edges"
    if how.recompute_halo and config.changes_features:
        yield f"--recompute-halo needs fixed features: no {config.changes_features}"
    if aim.loss in RESIDUALS:
        for option, _ in aim.changed:
            if option.name in ("class_weights", "label_smoothing"):
                yield f"{option.written} needs classes, and --loss {aim.loss} has none"

    with_edges = f"--model {model.model} with features of edges"
    for named, ability, is_asked in (
        (with_edges, "whole_rows", model.uses_edges),
        (f"--aggregate {model.aggregate}", "whole_rows", model.reduces_rows),
        (f"--model {model.model}", "attention", model.attends),
    ):
        if not is_asked:
            continue
        if ability == "attention":
            from spgnn.attention.pieces import check_attention

            check_attention(config.distribution, named)
        elif ability not in config.distribution.can:
            yield f"{named} needs {WHOLE_ROWS}"
        if named != with_edges and config.data.normalisation not in ("auto", "none"):
            yield f"{named} weighs edges itself: it needs data.normalisation auto"
    if model.registered.needs_edges and not model.edge_dim:
        named = f"--model {model.model}"
        yield f"{named} needs the width of the edges' features: --set model.edge-dim=K"
    if model.uses_edges and (aim.inductive or aim.task != "vertices"):
        yield f"{with_edges} trains labels of vertices on the whole graph"
    if model.attends_globally and how.recompute_halo:
        yield f"--model {model.model} looks at each vertex once: no --recompute-halo"
    if model.attends_globally and config.training.dtype == "bfloat16":
        yield f"--model {model.model} sums over all vertices: it needs --dtype float32 or float64"
    yield from refused_models(model, aim)

    if how.recompute_halo:
        if not model.propagates:
            named = with_edges if model.uses_edges else f"--model {model.model}"
            named = f"--aggregate {model.aggregate}" if model.reduces_rows else named
            yield f"{named} cannot begin with A·X: no --recompute-halo"
        if model.layers < 2:
            yield "--recompute-halo needs --layers 2 or more: one layer has no hidden rows"
        if how.order == "paper":
            yield "--recompute-halo needs --order auto: paper multiplies A by X in every epoch"
        if model.drops_features:
            yield (
                "--recompute-halo needs model.input-dropout=false: A·X changes in every epoch if X "
                "is dropped"
            )

    yield from _refused_messages(config)


def refused_models(model: Model, aim: Aim) -> Iterator[str]:
    """Say which options of a model do not go together, on whole graphs and in mini-batches."""
    takes = model.registered.takes()
    for option, value in model.changed:
        argument = _argument(option)
        able = [] if argument in takes else [n for n in MODELS if argument in MODELS[n].takes()]
        if able:
            *others, last = able
            names = f"{', '.join(others)} or {last}" if others else last
            yield f"{option.written} {value} needs --model {names}, not {model.model}"
    hidden = model.layers > 1 or model.jk != "none"
    if hidden and model.layers == 1 and aim.task == "vertices" and model.heads > 1:
        yield (
            f"--layers 1 --jk {model.jk} makes one layer as wide as there are classes: it "
            f"needs --heads 1, not {model.heads}"
        )
    if model.attends and hidden and model.hidden % model.heads:
        yield f"--hidden {model.hidden} must be a multiple of --heads {model.heads}"


def _changed_messages(*records: Record) -> Iterator[str]:
    """Options of messages that are not as by default, as they are written."""
    for option, value in (pair for record in records for pair in record.changed):
        if option.section == "messages":
            yield f"{option.written} {value}"


def _refused_messages(config: TrainConfig) -> Iterator[str]:
    """Say what approximate messages cannot be combined with."""
    messages, how, model = config.messages, config.algorithm, config.model
    codec, delay, epochs = config.codec, messages.epochs_late, config.training.epochs
    if delay is not None and delay >= epochs:
        yield f"--delay {delay} must be less than --epochs {epochs}"
    if messages.exact_last > epochs:
        yield f"messages.exact-last {messages.exact_last} exceeds --epochs {epochs}"
    if not delay:
        if messages.delay_bins != 1:
            yield f"--delay-bins {messages.delay_bins} needs --delay R of one epoch or more"
        if messages.smoothing:
            yield f"messages.smoothing {messages.smoothing} needs --delay R of one epoch or more"
    if messages.error_feedback and not codec.quantises:
        yield "--error-feedback needs --bits 16 or fewer"
    if codec.exact:
        if messages.exact_means:
            yield (
                "messages.exact-means needs --bits, --delay or --boundary-sampling: it says what "
                "they are done to"
            )
        return
    named = next(_changed_messages(replace(messages, delay_bins=1), *config.extensions))
    if how.exchange != "sparsity-aware":
        yield f"{named} needs --exchange sparsity-aware: rows, not whole block rows"
    if model.attends and how.relays:
        yield f"{named} with --model {model.model} needs --no-relays: its rows travel once"
    if model.attends and how.schedule == "peers":
        yield f"{named} with --model {model.model} needs --schedule overlap: its rows come once"
    if model.attends and "peers" not in config.distribution.named.can:
        yield f"{named} with --model {model.model} needs --algo 1d, 1.5d, 2d or vertex-cut"
    if model.attends and codec.exact_means:
        yield f"--model {model.model}: messages.exact-means needs rows without scores"
    if model.attends and codec.samples and codec.delay:
        yield (
            f"--model {model.model}: --boundary-sampling cannot be had with --delay {delay}: edges "
            "of rows that are left out are left out in the same epoch"
        )
    if model.reduces_rows and (codec.samples or codec.delay is None):
        yield (
            f"{named} needs --aggregate mean or sum: rows that are left out are zeros, which count"
        )
    if how.schedule == "peers":
        for option, keeps in (
            (f"--delay {delay}", delay),
            ("--error-feedback", codec.feedback),
            *((f"messages.{name} {value}", CODECS[name].remembers) for name, value in codec.extra),
        ):
            if keeps:
                yield f"{option} needs --schedule overlap: it keeps rows that peers has no room for"


def check_metric(loss: str, metric: str) -> None:
    """Refuse a score that a loss, or "links", does not have; any loss of vertices may be "auto"."""
    if metric == "auto":
        return
    fitting = [name for name, names in METRICS_OF.items() if metric in names]
    if loss in fitting or (loss == "auto" and fitting != ["links"]):
        return
    needed = " or ".join(f"--loss {name}" for name in fitting if name != "links") or "--task links"
    metrics = METRICS_OF.get(loss)
    choose = f": choose one of {', '.join(metrics)}" if metrics else ""
    raise InputError(f"--metric {metric} needs {needed}, not {loss}{choose}")


def _schedule(
    named: str, text: str, read: Callable[[str], Number | None], form: str
) -> tuple[tuple[int, Number], ...]:
    """Values, each from an epoch on, as in ``2,8@50,32@90``."""
    result: list[tuple[int, Number]] = []
    for place, word in enumerate(text.split(",")):
        value, at, epoch = word.strip().partition("@")
        number = read(value) if len(value) <= 20 else None
        first = _digits(epoch) or 0
        if number is None or bool(at) != bool(place) or (result and first <= result[-1][0]):
            raise InputError(f"{named} {text}: must be {form}")
        result.append((first, number))
    return tuple(result)


def _share(text: str) -> float | None:
    try:
        share = float(text)
    except ValueError:
        return None
    return share if LEAST_SAMPLE <= share <= 1 else None
