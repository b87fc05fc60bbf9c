"""The configuration of recommenders: its records, the published recipes, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from spgnn.addons.recommend.interactions import Split
from spgnn.addons.recommend.pairs import Draw, PairLoss
from spgnn.addons.recommend.readers import Form
from spgnn.addons.recommend.tables import RowOptimizer
from spgnn.config import Job as UsualJob
from spgnn.config import Training as Usual
from spgnn.errors import InputError
from spgnn.exchange import Algorithm as Scheme
from spgnn.options import Configuration, Record, flag, key, rare
from spgnn.registry import LARGEST_IMBALANCE, SCHEMES, CoverChoice

RecipeName = Literal["none", "gowalla", "yelp2018", "amazon-book"]


class Recipe(NamedTuple):
    """Options of a published result, and Recall@20 and NDCG@20 that it reached."""

    options: dict[str, Any]
    recall: float
    ndcg: float


_LIGHTGCN = {
    "layers": 3,
    "dim": 64,
    "lr": 1e-3,
    "weight_decay": 1e-4,
    "batch_size": 2048,
    "epochs": 1000,
    "draw": "users",
    "optimizer": "adam",
}
# He et al., LightGCN, SIGIR 2020, table 3.
RECIPES = {
    "gowalla": Recipe(_LIGHTGCN, 0.1830, 0.1554),
    "yelp2018": Recipe(_LIGHTGCN, 0.0649, 0.0530),
    "amazon-book": Recipe(_LIGHTGCN, 0.0411, 0.0315),
}


@dataclass(frozen=True)
class Data(Record):
    """The interactions."""

    dataset: Annotated[
        str,
        flag(
            "a file, a directory with train.txt and test.txt, or interactions-USERS-ITEMS-COUNT: "
            "made up",
            "PATH_OR_NAME",
        ),
    ] = "interactions-1000-500-20000"
    recipe: Annotated[
        RecipeName, flag("options of a published result; others that are given count more")
    ] = "none"
    test_share: Annotated[float, key("of one file, held out", high=1)] = 0.2
    split: Annotated[
        Split, flag("hold out random interactions or the latest; auto: these, if there are times")
    ] = "auto"
    form: Annotated[Form, key("of lines: 'user item [rating [time]]' or 'user item item …'")] = (
        "auto"
    )
    least_rating: Annotated[float | None, key("interactions rated lower do not count")] = None


@dataclass(frozen=True)
class Algorithm(Record):
    """The scheme and its partition."""

    algo: Annotated[str, rare("how the matrix is distributed over ranks", choices=SCHEMES)] = "1d"
    c: Annotated[int, rare("copies of a block row", low=1)] = 1
    cover: Annotated[
        CoverChoice, rare("rows of H, partial sums, or whichever are fewer; auto: these, in memory")
    ] = "auto"
    partition: Annotated[str, flag("a method, or a file of labels", "METHOD_OR_FILE")] = "gvb"
    imbalance: Annotated[float, rare("of the partition", high=LARGEST_IMBALANCE)] = 0.05


@dataclass(frozen=True)
class Model(Record):
    """Embeddings and their propagation."""

    layers: Annotated[int, flag("number of products; 0: matrix factorisation", high=100)] = 3
    dim: Annotated[int, flag("width of embeddings", low=1)] = 64
    weights: Annotated[
        str, key("of E, A E, A² E, …: mean, last, ppr:ALPHA, or as many numbers", "W,W,…")
    ] = "mean"

    @property
    def of_layers(self) -> tuple[float, ...]:
        """A weight for each power of A, from 0 on."""
        last, text = self.layers, self.weights
        if text == "mean":
            return (1 / (last + 1),) * (last + 1)
        if text == "last":
            return (*(0.0,) * last, 1.0)
        words = text.removeprefix("ppr:").split(",")
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            numbers = []
        if text.startswith("ppr:") and len(numbers) == 1 and 0 < numbers[0] <= 1:
            alpha = numbers[0]
            return (*(alpha * (1 - alpha) ** k for k in range(last)), (1 - alpha) ** last)
        finite = all(abs(number) < 1e6 for number in numbers)
        if text.startswith("ppr:") or len(numbers) != last + 1 or not finite or not any(numbers):
            raise InputError(
                f"model.weights {text}: must be mean, last, ppr:ALPHA with ALPHA in (0, 1], or "
                f"{last + 1} numbers, one more than --layers"
            )
        return tuple(numbers)


@dataclass(frozen=True)
class Sampling(Record):
    """Pairs, negatives and their loss."""

    batch_size: Annotated[int, flag("pairs of a step, of all ranks together; 0: all")] = 2048
    loss: Annotated[PairLoss, flag("bpr, softmax over negatives, or over the items of a step")] = (
        "bpr"
    )
    negatives: Annotated[int, flag("of each pair, drawn anew in each epoch", low=1)] = 1
    temperature: Annotated[float, key("that scores are divided by in a softmax", low=1e-6)] = 1.0
    draw: Annotated[
        Draw, key("each interaction once an epoch, or random users, as LightGCN's authors do")
    ] = "interactions"
    k: Annotated[int, flag("of Recall@K, NDCG@K and --top-k", low=1)] = 20


@dataclass(frozen=True)
class Storage(Record):
    """Embeddings and graph on a disk."""

    spill: Annotated[
        str | None, flag("keep graph, embeddings and their optimiser there", "DIR")
    ] = None
    chunks: Annotated[int, key("of --spill: work through rows in K chunks", low=1)] = 16


@dataclass(frozen=True)
class Training(Usual):
    """Epochs, optimiser, seeds and checkpoints."""

    lr: Annotated[float, flag("learning rate")] = 0.001
    weight_decay: Annotated[float, flag("of the embeddings of a step's pairs")] = 1e-4
    optimizer: Annotated[RowOptimizer, flag("of rows; row-…: one second moment a row")] = "adam"  # type: ignore[assignment]
    eval_every: Annotated[int, rare("evaluate each N-th epoch", "N", low=1)] = 10


@dataclass(frozen=True)
class Job(UsualJob):
    """Ranks, and files that are written."""

    top_k: Annotated[
        str | None, flag("write the --k best new items of every user, as .npz or .parquet", "FILE")
    ] = None


@dataclass(frozen=True)
class RecommendConfig(Configuration):
    """One run. ``RecommendConfig.of(dim=32)`` sets some options by name."""

    program: ClassVar[str] = "lightgcn.py"
    fixed: ClassVar[tuple[str, ...]] = ("dtype", "runs", "clip", "patience", "device")
    about: ClassVar[str] = (
        "Train LightGCN on the whole graph of users and items, on one or many ranks. "
        "docs/recommend.md explains it."
    )

    data: Data = field(default_factory=Data)
    algorithm: Algorithm = field(default_factory=Algorithm)
    model: Model = field(default_factory=Model)
    sampling: Sampling = field(default_factory=Sampling)
    storage: Storage = field(default_factory=Storage)
    training: Training = field(default_factory=Training)
    job: Job = field(default_factory=Job)

    @classmethod
    def given(cls, words: Sequence[str] | None = None, program: str = "") -> dict[str, Any]:
        """The options that a command line sets, and those of the recipe that it names."""
        values = super().given(words, program)
        recipe = RECIPES.get(values.get("recipe", "none"))
        return values if recipe is None else {**recipe.options, **values}

    @property
    def distribution(self) -> Scheme:
        """The scheme; where the cover is left open, with minimum covers, from a disk whole rows."""
        how = self.algorithm
        if how.cover != "auto":
            return Scheme(how.algo, how.c, cover=how.cover)
        scheme = Scheme(how.algo, how.c)
        return scheme if self.storage.spill is not None else scheme.for_products

    def refused(self, ranks: int) -> Iterator[str]:
        """Say what cannot work on that many ranks."""
        self.distribution.check(ranks)
        _ = self.model.of_layers
        sampling, spills = self.sampling, self.storage.spill is not None
        if self.training.lr_schedule == "plateau":
            yield "training.lr-schedule plateau: recommenders have no validation loss"
        if sampling.loss == "in-batch" and sampling.negatives > 1:
            yield "--negatives: with --loss in-batch they are the items of other pairs"
        if sampling.temperature != 1 and sampling.loss == "bpr":
            yield "sampling.temperature needs --loss softmax or in-batch"
        if spills and sampling.loss == "in-batch":
            yield "--spill needs --loss bpr or softmax: steps are larger than memory"
        if spills and self.distribution != Scheme():
            yield "--spill needs --algo 1d and --cover column"
        if spills and self.training.checkpoint is not None:
            yield "--spill: embeddings on a disk are not copied: no --checkpoint"
