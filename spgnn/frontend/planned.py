"""``distribute(plan="auto")``: who computes what is chosen by what it would cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from spgnn.command import nbytes
from spgnn.config import TrainConfig
from spgnn.data import GraphSource
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.exchange import Algorithm
from spgnn.frontend.sources import Placement
from spgnn.nn import MODELS
from spgnn.partition import METHODS
from spgnn.partition.adjacency import Int32Array
from spgnn.plan import Machine, Planner
from spgnn.plan.epoch import edges_of
from spgnn.progress import ProgressBar

AUTO = "auto"


@dataclass(frozen=True)
class Hints:
    """Facts of the model to be trained that the planner needs.

    Attributes
    ----------
    kind : {"gcn", "sage", "gin", "gat", "gatv2"}
        Where it is none of these, the one whose layers multiply most like its own.
    hidden_channels, num_layers : int
    halo : bool
        Whether rows of the halo are wanted, rather than products with the matrix alone.
    memory : int, float or str, optional
        Bytes each rank may use: 2e10, or "20GiB".
    """

    kind: str = "gcn"
    hidden_channels: int = 64
    num_layers: int = 2
    halo: bool = True
    memory: int | float | str | None = None

    def check(self) -> None:
        """Refuse what is no such thing.

        Raises
        ------
        InputError
        """
        check_choice("plan_for", self.kind, MODELS)
        check_integer("hidden_channels", self.hidden_channels, 1)
        check_integer("num_layers", self.num_layers, 1)
        _ = self.bytes

    @property
    def config(self) -> TrainConfig:
        """The model as the training command has it."""
        return TrainConfig.of(model=self.kind, hidden=self.hidden_channels, layers=self.num_layers)

    @property
    def edges(self) -> tuple[str, ...]:
        """Kinds of attention whose cost per edge the machine model needs."""
        return edges_of(self.config)

    @property
    def bytes(self) -> float | None:
        """The memory, as a number."""
        if not isinstance(self.memory, str):
            return self.memory
        try:
            return nbytes(self.memory)
        except InputError as error:
            raise InputError(f"memory: {error}") from None


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best plan.

    Attributes
    ----------
    algorithm : Algorithm
    labels : int32 [n]
        The partition it was priced with.
    record : dict
        What was predicted, and why it is the best.
    """

    algorithm: Algorithm
    labels: Int32Array
    record: dict[str, Any]


def choose(
    source: GraphSource,
    widths: tuple[int, int],
    hints: Hints,
    how: Placement,
    ranks: int,
    machine: Machine,
) -> Chosen:
    """Price everything that can be had on so many ranks; on rank 0 alone.

    Parameters
    ----------
    source : GraphSource
    widths : two int
        Of x and of what is predicted, if the source has neither.
    hints, how, ranks, machine

    Raises
    ------
    InputError
        If nothing fits into memory, or the partition is given.
    """
    method = how.partition
    if not isinstance(method, str) or method not in METHODS:
        raise InputError('plan="auto" makes partitions by itself: give it a method, as "gvb"')
    config = hints.config.but(
        split=how.split or 0,
        random_features=widths[0],
        random_classes=widths[1],
        seed=how.seed,
        symmetrise=how.symmetrise,
        partition=method,
        imbalance=how.imbalance,
        # All layers work on all own rows.
        prune=False,
        recompute_halo=False,
        order="auto",
    )
    given = ["partition", "prune", "recompute_halo", "order"]
    if hints.halo:
        config, given = config.but(algo="1d", cover="column"), [*given, "algo", "cover"]
        given.append("hierarchy")  # none: rows travel whole
    with ProgressBar() as progress:
        planner = Planner(
            source, config, machine, given=given, memory=hints.bytes, progress=progress
        )
        choice = planner.choose(ranks)
        best = choice.plans[0]
        labels = planner.labels(best)
    record = {**best.record, "why": choice.why(best)}
    del record["command"]  # of the training command, which this is not
    return Chosen(best.config.algorithm.distribution, labels, record)


def told(chosen: Chosen | None) -> Any:
    """The chosen plan as JSON-serialisable data for the other ranks; ``None`` without one."""
    if chosen is None:
        return None
    return {"algorithm": asdict(chosen.algorithm), "record": chosen.record}
