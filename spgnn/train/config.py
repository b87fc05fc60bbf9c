"""The training command's flags, checked before anything is started."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spgnn.comm import BACKENDS
from spgnn.data.normalise import Normalisation
from spgnn.errors import InputError
from spgnn.exchange import COVERS, STRATEGIES, Cover, Strategy
from spgnn.layout import ProcessGrid
from spgnn.nn import ORDERS, Order


@dataclass(frozen=True)
class TrainConfig:
    """One training run; the fields are the flags of ``experiments/gcn.py``."""

    dataset: str = "sbm"
    data_dir: str | None = None
    symmetrise: bool = False
    split: int = 0
    feature_norm: str = "auto"
    random_features: int = 0
    random_classes: int = 0
    normalisation: Normalisation = "sym"
    algo: str = "1d"
    c: int = 1
    exchange: Strategy = "sparsity-aware"
    cover: Cover = "column"
    partition: str = "gvb"
    imbalance: float = 0.05
    overlap: bool = True
    layers: int = 3
    hidden: int = 16
    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.0
    optimizer: str = "adam"
    seed: int = 0
    order: Order = "auto"
    eval_every: int = 1
    patience: int = 0
    backend: str = "auto"
    device: str = "auto"
    nproc: int = 1
    threads: int = 0
    json: str | None = None
    checkpoint: str | None = None
    checkpoint_every: int = 10
    resume: bool = False

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks.

        Raises
        ------
        InputError
            Names the flag and what would be right.
        """
        if self.algo == "1d" and self.c != 1:
            raise InputError(f"--c {self.c} needs --algo 1.5d; the 1D algorithm has c = 1")
        try:
            ProcessGrid(ranks, self.c)
        except InputError:
            raise InputError(
                f"--c {self.c} must divide the number of ranks, which is {ranks}"
            ) from None
        if self.exchange == "oblivious" and self.cover != "column":
            raise InputError(f"--cover {self.cover} needs --exchange sparsity-aware")
        if self.resume and self.checkpoint is None:
            raise InputError("--resume needs --checkpoint DIR, where the checkpoint lies")
        if self.json is not None and not Path(self.json).absolute().parent.is_dir():
            raise InputError(f"--json {self.json}: its directory does not exist")


def parse(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Read the command line; exits with status 2 and one line on a wrong flag."""
    options = vars(_parser().parse_args(arguments))
    return TrainConfig(**options)


def _parser() -> argparse.ArgumentParser:
    d = TrainConfig()
    parser = _OneLineParser(
        prog="gcn.py",
        description="Train a graph convolutional network on a whole graph, on one or many ranks.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    data = parser.add_argument_group("data")
    data.add_argument("--dataset", default=d.dataset, metavar="NAME_OR_PATH")
    data.add_argument("--data-dir", default=d.data_dir, metavar="DIR", help="downloads go here")
    data.add_argument("--symmetrise", action="store_true", help="make a directed graph undirected")
    data.add_argument("--split", type=_at_least(0), default=d.split, help="column of the masks")
    data.add_argument("--feature-norm", choices=("auto", "row", "none"), default=d.feature_norm)
    data.add_argument(
        "--normalisation",
        choices=("sym", "row", "none"),
        default=d.normalisation,
        help="of the adjacency with self-loops: D^-1/2 A D^-1/2, D^-1 A, or A",
    )
    data.add_argument(
        "--random-features",
        type=_at_least(0),
        default=0,
        metavar="F",
        help="for timing: F random features a vertex where the data set has none",
    )
    data.add_argument(
        "--random-classes",
        type=_at_least(0),
        default=0,
        metavar="C",
        help="for timing: C random classes where the data set has no labels",
    )

    algorithm = parser.add_argument_group("algorithm")
    algorithm.add_argument("--algo", choices=("1d", "1.5d"), default=d.algo)
    algorithm.add_argument("--c", type=_at_least(1), default=d.c, help="replication factor (1.5D)")
    algorithm.add_argument("--exchange", choices=STRATEGIES, default=d.exchange)
    algorithm.add_argument("--cover", choices=COVERS, default=d.cover)
    algorithm.add_argument("--partition", default=d.partition, metavar="METHOD_OR_FILE")
    algorithm.add_argument("--imbalance", type=_real(0), default=d.imbalance)
    algorithm.add_argument("--order", choices=ORDERS, default=d.order)
    algorithm.add_argument(
        "--no-overlap",
        dest="overlap",
        action="store_false",
        help="wait for the exchange before the local product (for measurements)",
    )

    model = parser.add_argument_group("model")
    model.add_argument("--layers", type=_at_least(1), default=d.layers)
    model.add_argument("--hidden", type=_at_least(1), default=d.hidden)
    model.add_argument("--epochs", type=_at_least(1), default=d.epochs)
    model.add_argument("--lr", type=_real(0), default=d.lr)
    model.add_argument("--weight-decay", type=_real(0), default=d.weight_decay)
    model.add_argument("--dropout", type=_real(0, 1), default=d.dropout)
    model.add_argument("--optimizer", choices=("adam", "sgd"), default=d.optimizer)
    model.add_argument("--seed", type=_at_least(0), default=d.seed)
    model.add_argument("--eval-every", type=_at_least(1), default=d.eval_every, metavar="N")
    model.add_argument(
        "--patience",
        type=_at_least(0),
        default=d.patience,
        metavar="N",
        help="stop once the validation loss exceeds the mean of the N before it; 0: never",
    )

    job = parser.add_argument_group("job")
    job.add_argument("--backend", choices=BACKENDS, default=d.backend)
    job.add_argument("--device", choices=("auto", "cpu", "cuda"), default=d.device)
    job.add_argument(
        "--nproc", type=_at_least(1), default=d.nproc, help="fork this many ranks on this machine"
    )
    job.add_argument(
        "--threads", type=_at_least(0), default=d.threads, help="of each rank; 0: an even share"
    )
    job.add_argument("--json", default=d.json, metavar="FILE", help="write the training report")
    job.add_argument("--checkpoint", default=d.checkpoint, metavar="DIR")
    job.add_argument(
        "--checkpoint-every", type=_at_least(1), default=d.checkpoint_every, metavar="N"
    )
    job.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser


class _OneLineParser(argparse.ArgumentParser):
    """A wrong flag is one clear line, not a page of usage."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise InputError(message)


class _at_least:
    """An integer not below a bound."""

    def __init__(self, low: int) -> None:
        self.low = low

    def __call__(self, text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = self.low - 1
        if value < self.low:
            raise argparse.ArgumentTypeError(f"'{text}' must be an integer ≥ {self.low}")
        return value


class _real:
    """A finite number in [low, high)."""

    def __init__(self, low: float, high: float = float("inf")) -> None:
        self.low, self.high = low, high

    def __call__(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not self.low <= value < self.high:
            raise argparse.ArgumentTypeError(f"'{text}' must be in [{self.low}, {self.high})")
        return value
