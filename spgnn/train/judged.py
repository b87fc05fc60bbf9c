"""Which scores there are, what they are called, and whether more is better."""

from __future__ import annotations

from typing import NamedTuple

from spgnn.errors import InputError

RESIDUALS = ("mse", "l1", "huber")
# Scores of each loss; what is reported without asking comes first, as far as it is in `DEFAULTS`.
BY_LOSS = {
    "softmax": ("accuracy", "f1-micro", "f1-macro", "roc-auc"),
    "multilabel": ("f1-micro", "f1-macro", "roc-auc"),
    **dict.fromkeys(RESIDUALS, ("mae", "rmse", "r2")),
    "links": ("mrr", "hits@50", "roc-auc", "hits@10", "hits@20", "hits@100"),
}
DEFAULTS = {
    "softmax": ("accuracy",),
    "multilabel": ("f1-micro", "f1-macro"),
    **dict.fromkeys(RESIDUALS, ("mae", "rmse", "r2")),
    "links": ("mrr", "hits@50", "roc-auc"),
}
METRICS = ("auto", *dict.fromkeys(name for names in BY_LOSS.values() for name in names))
LOWER_IS_BETTER = {"mae", "rmse"}
_SHORT = {"accuracy": "acc"}


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

    def better(self, one: float, other: float) -> bool:
        """Whether one score is better than another; equal ones are not."""
        return one > other if self.higher else one < other


def criterion_of(metric: str) -> Criterion:
    """The validation score of a ``--metric``; ``auto`` is the validation loss."""
    if metric == "auto":
        return Criterion()
    return Criterion(score_name("val", metric), metric not in LOWER_IS_BETTER)


def score_name(split: str, metric: str) -> str:
    """What a score is called in the history, say ``val_acc`` or ``test_roc_auc``."""
    return f"{split}_{_SHORT.get(metric, metric.replace('-', '_'))}"


def metrics_of(loss: str, metric: str) -> tuple[str, ...]:
    """The scores that are reported: the usual ones, and the one that was asked for."""
    asked = () if metric == "auto" else (metric,)
    return tuple(dict.fromkeys((*DEFAULTS[loss], *asked)))


def check_metric(loss: str, metric: str) -> None:
    """Refuse a score that a loss does not have.

    Parameters
    ----------
    loss : str
        Or "links"; with ``auto`` any loss of vertices may have it.
    metric : str

    Raises
    ------
    InputError
    """
    if metric == "auto":
        return
    fitting = [name for name, names in BY_LOSS.items() if metric in names]
    if loss in fitting or (loss == "auto" and fitting != ["links"]):
        return
    needed = " or ".join(f"--loss {name}" for name in fitting if name != "links") or "--task links"
    known = BY_LOSS.get(loss)
    choose = f": choose one of {', '.join(known)}" if known else ""
    raise InputError(f"--metric {metric} needs {needed}, not {loss}{choose}")
