"""Tasks: a model, a loss and scores; the trainer knows nothing else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data.source import GraphMeta
from spgnn.exchange.codec import relative_errors
from spgnn.exchange.plan import Carried, carried_by_level
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.dry import Recorded, agreed_products
from spgnn.graph.protocol import matrices_of
from spgnn.graph.training import TrainingGraph
from spgnn.memory import check_memory
from spgnn.nn import GAT, DropoutKeys, Network
from spgnn.nn.rowwise import dtype_of
from spgnn.progress import Progress
from spgnn.spmm import DistMatrix
from spgnn.train.measure import gathered, volume, volume_by_level

Scores = dict[str, float | None]
LOWER_IS_BETTER = {"mae", "rmse"}


def score_name(split: str, metric: str) -> str:
    """Name of a score in the history, say ``val_acc`` or ``test_roc_auc``."""
    return f"{split}_{'acc' if metric == 'accuracy' else metric.replace('-', '_')}"


class Criterion(NamedTuple):
    """The score by which epochs are compared, and whether more of it is better."""

    name: str = "val_loss"
    higher: bool = False

    @classmethod
    def of(cls, metric: str) -> Criterion:
        """The validation score of a ``--metric``; ``auto`` is the validation loss."""
        if metric == "auto":
            return cls()
        return cls(score_name("val", metric), metric not in LOWER_IS_BETTER)

    def better(self, one: float, other: float) -> bool:
        """True if one score is better than another; equal ones are not."""
        return one > other if self.higher else one < other


class Predictions(NamedTuple):
    """Predictions of own vertices: their original ids, and arrays [own rows, …] by name.

    `give_back` lets go of memory; it is called now and then while they are read. `columns` are
    arrays [all vertices] that rank 0 has, in rising order of ids: what the source calls them.
    """

    vertex_ids: Tensor
    arrays: dict[str, Tensor]
    give_back: Callable[[], None] | None = None
    columns: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})


class Task(Protocol):
    """Base of everything that a :class:`~spgnn.train.Trainer` trains: a model and a loss.

    Attributes
    ----------
    comm : Communicator
        All ranks.
    model : Module
        Its parameters are the same on all ranks, and stay so.
    criterion : Criterion
        The score that selects the best epoch and stops training early.
    progress : Progress, optional
        While a trainer runs: receives the progress of long work inside an epoch.
    steps : int
        Steps that the task itself takes in an epoch, on rows that lie at their owners; 0: the
        trainer takes one, of the model's parameters.
    lr : float
        The trainer's learning rate in this epoch, for these steps.
    has_budget : bool
        Whether it keeps to a budget of memory: then nothing that epochs free is saved for the next
        one, and predictions are made after all that is measured.
    """

    comm: Communicator
    model: nn.Module
    criterion: Criterion = Criterion()
    progress: Progress | None = None
    steps: int = 0
    lr: float = 0.0
    has_budget: bool = False

    @abstractmethod
    def loss(self, epoch: int) -> Tensor:
        """The share of the loss that is this rank's, a scalar; the shares of all ranks add up.

        Called once an epoch, on all ranks; may be collective. A task with `steps` takes them here,
        and returns the mean of their losses, of all ranks together.
        """

    def scores(self) -> Scores:
        """Scores besides the loss, the same on all ranks; ``None`` where there is none.

        Called on all ranks, without gradients; may be collective. Early stopping looks at the one
        that `criterion` names, by default ``val_loss``.
        """
        return {}

    def predictions(self) -> Predictions | None:
        """Predictions of each vertex for ``--predictions``; ``None`` if there are none.

        Called on all ranks, without gradients; may be collective.
        """
        return None

    def end_epoch(self, epoch: int, loss: float) -> None:
        """Called after an epoch of training with its loss, on all ranks; may be collective."""
        return

    def finish(self) -> None:
        """Called once no epoch follows, on all ranks; may be collective."""
        return

    def close(self) -> None:
        """Let go of files and memory; called at the end on each rank, whatever happened."""
        return

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The parameters as torch's optimisers take them."""
        return [{"params": list(self.model.parameters())}]

    @property
    def signature(self) -> Mapping[str, Any]:
        """Names, numbers and texts that must be equal where a checkpoint is resumed."""
        return {}

    def state(self) -> dict[str, Any]:
        """State of this rank between epochs besides the model, for a checkpoint.

        Tensors, numbers and texts. Called on all ranks; may be collective.
        """
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave on this rank; called if it was anything. Collective."""
        return

    def sections(self) -> dict[str, Any]:
        """Sections of the report about this task, besides what is measured. Collective."""
        return {}


def decaying_first(layers: Any, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters of a model as torch's optimisers take them: the first layer decays."""
    first = layers.parameters_by_layer()[0]
    ids = set(map(id, first))
    others = [p for p in model.parameters() if id(p) not in ids]
    if not weight_decay:  # an optimiser takes one group faster
        return [{"params": [*first, *others], "weight_decay": 0.0}]
    decaying = {"params": first, "weight_decay": weight_decay}
    return [decaying, {"params": others, "weight_decay": 0.0}] if others else [decaying]


class Moving(Protocol):
    """Something of an epoch that moves rows between the ranks of a matrix."""

    @property
    def A(self) -> DistMatrix:
        """The group of these ranks."""

    def carried(self, epoch: int = 0) -> Iterable[Carried]:
        """Its messages, exchange by exchange."""


def planned_bytes(
    moving: Iterable[Moving], epoch: int, group_sizes: Sequence[int] = ()
) -> tuple[int, ...]:
    """Bytes that an epoch sends, receives, and sends out of groups, by plans and codecs."""
    sent, received, levels = 0, 0, np.zeros(len(group_sizes), np.int64)
    for product in moving:
        mesh, moved = product.A.mesh, list(product.carried(epoch))
        sent += sum(int(each.sent.sum()) for each in moved)
        received += sum(int(each.received.sum()) for each in moved)
        if group_sizes:
            by_level = carried_by_level(moved, mesh.axes, mesh.rank, group_sizes=group_sizes)
            levels += [traffic.sent_bytes for traffic in by_level.values()][1:]
    out = np.cumsum(levels[::-1])[::-1]  # what leaves a node leaves all smaller groups as well
    return sent, received, *out.tolist()


class GraphTask(Task):
    """A task whose model, built from the flags, is a stack of layers on a graph."""

    def __init__(self, config: TrainConfig, data: TrainingGraph, outputs: int) -> None:
        training, codec = config.training, config.codec
        self.data, self.comm, whole = data, data.whole.comm, data.whole
        self.seed = training.seed
        self.weight_decay = training.weight_decay
        self.dtype = dtype_of(training.dtype)
        self.messages: list[Moving] = []
        self.planned: list[tuple[int, ...]] = []
        self.codecs: GraphCodecs | None = None
        widths = config.widths(whole.num_features, outputs)
        size = f"{whole.num_nodes} vertices and {whole.num_edges} edges"
        self._signature = {
            **config.model.described,
            "layers": "→".join(map(str, widths)),
            "seed": self.seed,
            "a graph of": size,
        }
        if not codec.exact:
            self._set_codecs(config)
        self.layers = model_of(config, whole.num_features, outputs).to(whole.device)
        if isinstance(self.layers, GAT):
            # Now: an epoch moves what the plan says.
            self.layers.fetch_ids(data.layers, data.graph.vertex_ids)
        self.model = self.network = self.network_of(self.layers)
        if config.algorithm.schedule == "peers":
            self._check_budget()

    def network_of(self, layers: Network) -> nn.Module:
        """The module that an epoch runs: the layers, or these and what stands before them."""
        return layers

    def _set_codecs(self, config: TrainConfig) -> None:
        """Give the matrices of training a codec, which evaluation does not use. Collective."""
        training, layers, own = config.training, self.data.layers, self.data.graph.vertex_ids
        codec = replace(config.codec, epochs=training.epochs)
        self.codecs = GraphCodecs(codec, self.comm, training.seed, least_width=1)
        self._signature["codecs"] = config.described_messages
        ids = {}
        if isinstance(layers, Sequence):
            ids = {id(g.A): g.vertex_ids for g in layers if g.vertex_ids is not None}
        for number, A in enumerate(matrices_of(layers)):
            self.codecs.put(A, str(number), number, ids.get(id(A), own))

    def begin(self, epoch: int) -> DropoutKeys:
        """Begin an epoch of training; where its dropout comes from."""
        if self.codecs is not None:
            self.codecs.policy.begin_epoch(epoch)
        return DropoutKeys(self.data.graph.vertex_ids, self.seed, epoch)

    def end_epoch(self, epoch: int, loss: float) -> None:
        """Note what the epoch has moved, where another one may not move the same."""
        messages, self.messages = self.messages, []
        if self.codecs is not None or messages:
            moved: list[Moving] = [*self._products, *messages]
            self.planned.append(planned_bytes(moved, epoch, self.comm.ledger.group_sizes))

    def finish(self) -> None:
        """Wait for rows that no epoch uses; of several runs, each gives its buffers back."""
        if self.codecs is not None:
            self.codecs.finish()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As Kipf & Welling (2017, section 5.2), only the first layer decays."""
        return decaying_first(self.layers, self.model, self.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, codecs, and the size of the graph."""
        return self._signature

    def state(self) -> dict[str, Tensor]:
        """State of the codecs that keep any. Collective: rows under way arrive."""
        if self.codecs is None or not self.codecs.codec.remembers:
            return {}
        return self.codecs.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state of the codecs. Collective."""
        assert self.codecs is not None
        self.codecs.load(state, self.data.whole.device)

    def sections(self) -> dict[str, Any]:
        """The graph, planned bytes (a mean where epochs differ), work and errors. Collective."""
        comm, data, whole = self.comm, self.data, self.data.whole
        sizes, epochs = comm.ledger.group_sizes, self.planned
        if not epochs and self.codecs is None and comm.size > 1:
            epochs = [planned_bytes(self._products, 0, sizes)]
        epochs = epochs or [(0, 0, *(0 for _ in sizes))]  # nothing moves
        sent, received, *out = (sum(one) // len(epochs) for one in zip(*epochs, strict=True))
        approximation = None
        if self.codecs is not None:
            errors = relative_errors(self.codecs.errors.values(), comm)
            approximation = {"codec": self._signature["codecs"], "errors": errors}
        layers = data.layers
        matrices = [layers] if isinstance(layers, DistMatrix) else [layer.A for layer in layers]
        # A first layer on propagated features multiplies nothing.
        nonzeros = [0 if A is None else A.plan.nonzeros for A in [data.A, *matrices]]
        by_rank = gathered(comm, [data.halo_rows, data.halo_bytes, *nonzeros]).astype(int)
        rows, bytes_, every, *of_layers = by_rank.sum(axis=0).tolist()
        most_rows, most_bytes = by_rank[:, :2].max(axis=0).tolist()
        multiplied = [None if A is None else n for A, n in zip(matrices, of_layers, strict=True)]
        return {
            "graph": graph_section(whole.meta),
            "planned_volume": volume(comm, sent, received),
            "planned_volume_by_level": volume_by_level(comm, sent, out),
            "work": {"whole_nonzeros": every, "layer_nonzeros": multiplied},
            "recomputed_halo": {
                "total_rows": rows,
                "max_rank_rows": most_rows,
                "total_bytes": bytes_,
                "max_rank_bytes": most_bytes,
            },
            "approximation": approximation,
            "partition": whole.partition_report,
        }

    def _check_budget(self) -> None:
        """Refuse a budget that an epoch would exceed: before it begins, naming what it needs."""
        data, products = self.data, list(self._products)
        products += agreed_products(
            self.comm, self.network, data.features, data.evaluated, self.dtype
        )
        for product in sorted(products, key=lambda product: -product.width):
            product.A.executor.check(product.width, product.dtype)

    @cached_property
    def _products(self) -> list[Recorded]:
        """The products of one training epoch. Collective."""
        data = self.data
        return agreed_products(self.comm, self.network, data.X, data.layers, self.dtype)


def graph_section(meta: GraphMeta) -> dict[str, Any]:
    """The graph, as reports describe it."""
    sizes = ("name", "vertices", "edges", "features", "classes")
    return {size: getattr(meta, size) for size in sizes}


_COPIES = 4  # of the weights: themselves, their gradient, and two moments of Adam


def model_of(config: TrainConfig, features: int, classes: int) -> Network:
    """The model on so many features and classes, its weights drawn from the seed."""
    widths = config.widths(features, classes)
    size = config.model.registered.size(widths, **config.model.options)
    check_memory(f"the weights of layers {'→'.join(map(str, widths))}", _COPIES * 4 * size)
    return config.network(features, classes)
