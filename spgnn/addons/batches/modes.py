"""Which batches each rank gets of a graph on several ranks: what every mode of a loader has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from spgnn.addons.batches.feature_rows import Counts
from spgnn.addons.batches.sampling import SampleCounts
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.options import Record


@dataclass(frozen=True)
class BatchOptions:
    """A loader's arguments of these names, which every mode takes."""

    num_neighbors: Sequence[int]
    input_nodes: Any = None
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    sampler: str = "neighbor"
    replace: bool = False
    resample: bool = False
    of_graph: bool = True
    superbatch: int = 1
    prefetch: int = 0
    num_workers: int = 1
    seed: int = 0

    def check_agreement(self, comm: Communicator, **more: Any) -> None:
        """Refuse what differs between ranks: all but the input nodes, and more. Collective."""
        options = {**vars(self), "num_neighbors": tuple(self.num_neighbors)}
        del options["input_nodes"]
        comm.check_agreement("NeighborLoader", **options, **more)


class Strategy(ABC):
    """The batches of one rank. All calls are collective.

    Attributes
    ----------
    steps : int
        Of an epoch, the same on all ranks.
    counts : Counts
        Rows of features that batches needed, and those that came from other ranks.
    sampled : SampleCounts
    is_whole : bool
        A step is one of one process with the seeds of all ranks.
    is_shared : bool
        Models, and their backward, are collective: gradients come from all ranks' batches.
    pushed : (float, float)
        Seconds of pushes so far, and of these those in which exchanges blocked them.
    """

    steps: int
    counts: Counts
    sampled: SampleCounts
    is_whole: bool = False
    is_shared: ClassVar[bool] = False
    pushed: tuple[float, float] = (0.0, 0.0)

    @abstractmethod
    def epoch(self, epoch: int) -> Iterator[Any]:
        """Batches of this rank; ``None`` in a step that has none for it."""

    def join(self, model: Any, batch: Any) -> Tensor | None:
        """Call of a model what other ranks need, for a batch without seeds."""
        return None

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs besides the model."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        return

    def close(self) -> None:
        """Wait for what is under way, when training is over."""
        return

    def report(self) -> dict[str, Any]:
        """Entries of the training report."""
        return {}


class Mode(ABC):
    """A mode of `NeighborLoader`; `spgnn.registry.MODES` has them by name.

    The rest is for the training command.

    Attributes
    ----------
    keys : Record, optional
        Its options, whose section is ``distribution``.
    extends : str, optional
        The mode that becomes this one if one of `keys` is set.
    samplers : sequence of str, optional
        Those that it knows; None: all that sample a graph on several ranks.
    trainer : class, optional
        Instead of the command's `BatchTrainer`.
    """

    keys: ClassVar[type[Record] | None] = None
    extends: ClassVar[str | None] = None
    samplers: ClassVar[Sequence[str] | None] = ("neighbor",)
    trainer: ClassVar[Any] = None

    @classmethod
    def of(cls, options: Any, model: Any) -> Mode:
        """From all options of the command, by name, for a model."""
        return cls()

    @classmethod
    def check(cls, config: Any) -> None:
        """Refuse a configuration with an InputError."""
        return

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """The batches of a run in words; of a checkpoint they must be the same."""
        return batches

    @abstractmethod
    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> Strategy:
        """The batches of this rank. Collective."""
