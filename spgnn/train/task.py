"""Tasks: a model, a loss and scores; the trainer knows nothing else."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.graph.dry import Recorded, recorded_products
from spgnn.memory import check_memory
from spgnn.nn import (
    GAT,
    MODELS,
    DropoutKeys,
    Stack,
    dtype_of,
)
from spgnn.progress import Progress
from spgnn.train.checkpoint import TaskState
from spgnn.train.setup import Problem
from spgnn.train.wiring import Moving, Planned, Wiring

Scores = dict[str, float | None]


LOWER_IS_BETTER = {"mae", "rmse"}


def score_name(split: str, metric: str) -> str:
    """Name of a score in the history, say ``val_acc`` or ``test_roc_auc``."""
    return f"{split}_{'acc' if metric == 'accuracy' else metric.replace('-', '_')}"


class Criterion(NamedTuple):
    """The score by which epochs are compared.

    Attributes
    ----------
    name : str
    higher : bool
        Whether more is better.
    """

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
    """Predictions for this rank's vertices.

    Attributes
    ----------
    vertex_ids : Tensor int64 [own rows]
        Original ids.
    arrays : dict of Tensor [own rows, …], by name
    give_back : callable, optional
        To be called now and then while they are read: lets go of memory.
    """

    vertex_ids: Tensor
    arrays: dict[str, Tensor]
    give_back: Callable[[], None] | None = None


class Task(Protocol):
    """Base of everything that a :class:`~spgnn.train.Trainer` trains: a model and a loss.

    Attributes
    ----------
    model : Module
        Its parameters are the same on all ranks, and stay so.
    criterion : Criterion
        The score that selects the best epoch and stops training early.
    progress : Progress, optional
        While a trainer runs: receives the progress of long work inside an epoch.
    """

    model: nn.Module
    criterion: Criterion = Criterion()
    progress: Progress | None = None

    @abstractmethod
    def loss(self, epoch: int) -> Tensor:
        """The share of the loss that is this rank's, a scalar; the shares of all ranks add up.

        Called once an epoch, on all ranks; may be collective.
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

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The parameters as torch's optimisers take them."""
        return [{"params": list(self.model.parameters())}]

    @property
    def signature(self) -> Mapping[str, Any]:
        """Names, numbers and texts that must be equal where a checkpoint is resumed."""
        return {}

    def state(self) -> TaskState | None:
        """State for a checkpoint besides the model; called on all ranks, may be collective.

        Before the first epoch it says what will be kept.
        """
        return None

    def load_state(self, state: TaskState) -> None:
        """Go on from what `state` gave on this rank."""
        return


def decaying_first(layers: Stack, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameters of a model as torch's optimisers take them: its first layer decays.

    Parameters
    ----------
    layers : Stack
        Its first layer decays.
    model : Module
    weight_decay : float
    """
    first = layers.parameters_by_layer()[0]
    decaying = {"params": first, "weight_decay": weight_decay}
    known = set(map(id, first))
    others = [p for p in model.parameters() if id(p) not in known]
    return [decaying, {"params": others, "weight_decay": 0.0}] if others else [decaying]


class GraphTask(Task):
    """A task whose model, built from the flags, is a stack of layers on a graph.

    Parameters
    ----------
    config : TrainConfig
    problem : Problem
    comm : Communicator
        All ranks.
    outputs : int
        Width of the last layer.

    Attributes
    ----------
    layers : Stack
    network : Module
        Called as ``network(X, graph, keys)``; its products are an epoch's traffic: the layers, or
        these and what stands before them.
    model : Module
        All that is trained; here the network.
    wiring : Wiring, optional
        The codecs of this run, where they approximate.
    beside : list
        Messages of this epoch's loss, forward and backward, besides the network's products.
    planned : list of Planned
        One each epoch, where epochs may differ.

    Raises
    ------
    InputError
        If the weights could never fit into memory; on all ranks alike.
    """

    def __init__(
        self, config: TrainConfig, problem: Problem, comm: Communicator, outputs: int
    ) -> None:
        messages, training = config.messages, config.training
        self.wiring: Wiring | None = None
        self.beside: list[Moving] = []
        self.planned: list[Planned] = []
        if not messages.codec.exact:
            self.wiring = Wiring(
                messages,
                problem.training,
                seed=training.seed,
                epochs=training.epochs,
                weighed=config.model.attends,
            )
        self.problem = problem
        self.comm = comm
        self.seed = config.training.seed
        self.weight_decay = config.training.weight_decay
        self.dtype = dtype_of(config.training.dtype)
        self.widths = widths_of(config, problem.features, outputs)
        self.described = config.model.described
        self.layers = model_of(config, problem.features, outputs).to(problem.y.device)
        if isinstance(self.layers, GAT):
            # Now: an epoch moves what the plan says.
            self.layers.fetch_ids(problem.training.graph, problem.training.vertex_ids)
        self.model: nn.Module = self.layers
        self.network: nn.Module = self.layers
        if config.algorithm.schedule == "peers":
            self._check_budget()

    def begin(self, epoch: int) -> DropoutKeys:
        """Begin an epoch of training; where its dropout comes from."""
        rows = self.problem.training
        if self.wiring is not None:
            self.wiring.policy.begin_epoch(epoch)
        return DropoutKeys(rows.vertex_ids, self.seed, epoch)

    def end_epoch(self, epoch: int, loss: float) -> None:
        """Note what the epoch has moved, where another one may not move the same."""
        beside, self.beside = self.beside, []
        if self.wiring is None and not beside:
            return
        moved: list[Moving] = [*self._products, *beside]
        self.planned.append(Planned.of(moved, epoch, self.comm.ledger.node_size))

    def finish(self) -> None:
        """Wait for rows that no epoch uses; of several runs, each gives its buffers back."""
        if self.wiring is not None:
            self.wiring.finish()

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As Kipf & Welling (2017, section 5.2), only the first layer decays."""
        return decaying_first(self.layers, self.model, self.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, and the size of the graph."""
        meta = self.problem.meta
        size = f"{meta.vertices} vertices and {meta.edges} edges"
        told = {"layers": self._layers, "seed": self.seed, "a graph of": size}
        if self.wiring is not None:
            told["codecs"] = self.wiring.described
        return {**self.described, **told}

    def state(self) -> TaskState | None:
        """State of the codecs. Collective: rows under way arrive."""
        return None if self.wiring is None else self.wiring.state()

    def load_state(self, state: TaskState) -> None:
        """Restore the state of the codecs."""
        assert self.wiring is not None
        self.wiring.load(state)

    def planned_bytes(self, epoch: int = 0) -> tuple[int, int]:
        """Bytes that this rank sends and receives for the network's products in an epoch.

        According to plans and codecs.

        Where codecs approximate, of the last epoch, or of one whose bytes do not depend on data.
        """
        planned = Planned.of(self._products, epoch)
        return planned.sent, planned.received

    def planned_between(self, node_size: int, epoch: int = 0) -> int:
        """Those of these bytes that go to other nodes of so many neighbouring ranks."""
        return Planned.of(self._products, epoch, node_size).between

    def _check_budget(self) -> None:
        """Refuse a budget that an epoch would exceed: before it begins, naming what it needs."""
        made = list(self._products)
        made += recorded_products(self.network, self.problem.X, self.problem.A, self.dtype)
        for product in sorted(made, key=lambda product: -product.width):
            product.A.executor.check(product.width, product.dtype)

    @cached_property
    def _products(self) -> list[Recorded]:
        """Those of one training epoch."""
        rows = self.problem.training
        return recorded_products(self.network, rows.X, rows.graph, self.dtype)

    @property
    def _layers(self) -> str:
        return "→".join(map(str, self.widths))


_COPIES = 4  # of the weights: themselves, their gradient, and two moments of Adam


def widths_of(config: TrainConfig, features: int, classes: int) -> list[int]:
    """Features, widths of the hidden layers, classes."""
    return [features, *[config.model.hidden] * (config.model.layers - 1), classes]


def model_of(config: TrainConfig, features: int, classes: int) -> Stack:
    """The model on so many features and classes, its weights drawn from the seed.

    Raises
    ------
    InputError
        If the weights could never fit into memory.
    """
    kind, widths = MODELS[config.model.model], widths_of(config, features, classes)
    shown = "→".join(map(str, widths))
    options: dict[str, Any] = dict(config.model.options)
    check_memory(f"the weights of layers {shown}", _COPIES * 4 * kind.size(widths, **options))
    if config.model.model == "gcn":  # the others know one order only
        options["order"] = config.algorithm.order
    return kind.of(
        widths,
        dropout=config.model.dropout,
        input_dropout=config.model.input_dropout,
        seed=config.training.seed,
        **options,
    )
