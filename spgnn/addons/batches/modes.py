"""Options of loaders, and which batches each rank gets of a graph on several: modes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from spgnn.addons.batches.feature_rows import Counts, Rows
from spgnn.addons.batches.sampled_graph import StoredPattern
from spgnn.addons.batches.sampling import Sample, SampleCounts, Sampler
from spgnn.addons.batches.threads import in_order
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.options import Record

Scaling = Literal["graph", "batch"]
Finish = Callable[[Sequence[Sample]], Generator[Any, None, None]]
_OF_A_RANK = ("input_nodes", "store", "structure", "seed_clusters", "data_dir", "mode", "comm")


@dataclass(frozen=True)
class Superbatch:
    """So many batches are sampled, in memory, before any of their features are fetched."""

    size: int = 1

    def __post_init__(self) -> None:
        check_integer("superbatch", self.size, 1)

    def run(
        self,
        sample: Callable[[int], Sample],
        finish: Finish,
        count: int,
        *,
        threads: int,
        ahead: int,
        stage: Callable[[str], None],
    ) -> Generator[Any, None, None]:
        """The results of the samples 0 … count − 1, in order.

        Threads sample; one more finishes them, `ahead` of the caller. `stage` is called with the
        name of each stage that begins alone, ``"sample"`` or ``"gather"``.
        """
        return in_order(sample, finish, count, threads=threads, ahead=ahead, together=self.size)

    def store(self, sample: Callable[[int], Sample], count: int) -> Sequence[Sample] | None:
        """Samples of all epochs, which are the same, unless they are to be made again."""
        return None


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """Arguments of a loader by name, which modes take; the first ones are PyG's.

    Attributes
    ----------
    sampler : str or Sampler
        ``neighbor``; ``labor``, in which neighbours of several vertices are drawn together (Balin &
        Çatalyürek 2023); a name that is registered; or an object that makes samples.
    resample : bool
        Draw neighbours of a vertex anew in each layer, as DGL does. Otherwise a vertex has one
        random order of its neighbours in a step, and each layer takes the first ones.
    normalise : {"graph", "batch"}
        Degrees that `Batch.layers` are scaled by: in the whole graph, so that each layer estimates
        that of full-graph training; or in the batch, as layers of PyG see it.
    edge_ids : bool, optional
        Whether batches know `e_id`; by default those of a ``Data``, and where edges have weights.
    seed : int
    seed_clusters : Tensor of integers [inputs], optional
        Clusters of the input nodes. Those of one follow each other, and it is clusters that come in
        another order in each epoch, as seeds do within one (2PGraph; Zhang et al. 2021).
    fixed : bool
        The batches of the first epoch in every epoch. A `DiskSuperbatch` samples them once.
    superbatch : int or Superbatch
        So many batches are sampled before any of their features are fetched; rows that several of
        them need are fetched once. A `DiskSuperbatch` writes the samples to a disk.
    prefetch : int
        Batches that are made ahead.
    store : Rows [n, f], optional
        Features, instead of the data's own.
    structure : StoredPattern [n, n], optional
        The graph, instead of the data's own, such as a `DiskPattern`; not for disjoint or induced
        samples.
    data_dir : str, optional
        Where named sets are looked for.
    rank, ranks : int
        Of several loaders alike on whole graphs, this one hands out the batches of one rank.
    mode : str or Mode
        Of a graph on several ranks: ``"exact"``, the batches of one process; ``"own"``, exact ones
        of each rank's own seeds; ``"local"``, neighbours of a rank's own part; a `History`, these
        and stale embeddings of others' vertices; `Clusters` of a rank's part; or a name that is
        registered.
    comm : Communicator, optional
        All ranks, where the data are a rank's share rather than a `DistGraph`.
    """

    num_neighbors: Sequence[int]
    input_nodes: Any = None
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    replace: bool = False
    num_workers: int = 1
    sampler: str | Sampler = "neighbor"
    resample: bool = False
    normalise: Scaling = "graph"
    edge_ids: bool | None = None
    seed: int = 0
    seed_clusters: Tensor | None = None
    fixed: bool = False
    superbatch: int | Superbatch = 1
    prefetch: int = 2
    store: Rows | None = None
    structure: StoredPattern | None = None
    data_dir: str | None = None
    rank: int = 0
    ranks: int = 1
    mode: str | Mode = "exact"
    comm: Communicator | None = None

    def __post_init__(self) -> None:
        lowest = {"batch_size": 1, "prefetch": 0, "seed": 0, "ranks": 1}
        for name, low in lowest.items():
            check_integer(name, getattr(self, name), low)
        check_integer("num_workers", self.num_workers, 0, 1024)
        check_integer("rank", self.rank, 0, self.ranks - 1)
        check_choice("normalise", self.normalise, get_args(Scaling))
        if self.seed_clusters is not None and not self.shuffle:
            raise InputError("seed_clusters needs shuffle=True: it is an order of its own")

    @property
    def of_graph(self) -> bool:
        """True if layers are scaled by degrees in the whole graph."""
        return self.normalise == "graph"

    @property
    def together(self) -> Superbatch:
        """The superbatch."""
        size = self.superbatch
        return size if isinstance(size, Superbatch) else Superbatch(size)

    def check_agreement(self, comm: Communicator, **more: Any) -> None:
        """Refuse what differs between ranks, of these and more. Collective."""
        options = {name: value for name, value in vars(self).items() if name not in _OF_A_RANK}
        options["num_neighbors"] = tuple(self.num_neighbors)
        comm.check_agreement("NeighborLoader", **options, **more)


class Strategy(ABC):
    """The batches of one rank. All calls are collective.

    Attributes
    ----------
    steps : int
        Of an epoch, the same on all ranks.
    counts : Counts
        Rows of features that batches needed, and those that came from other ranks.
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
