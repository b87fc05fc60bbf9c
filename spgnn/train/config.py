"""The training command's configuration: its sections, and what they ask of one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spgnn.attention import check_attention
from spgnn.errors import InputError
from spgnn.exchange import Algorithm as Distribution
from spgnn.train.approximate import Wires
from spgnn.train.flags import Config
from spgnn.train.judged import RESIDUALS
from spgnn.train.sections import Aim, Algorithm, Data, Job, Model, Storage, Training


@dataclass(frozen=True)
class TrainConfig(Config):
    """One training run. ``TrainConfig.of(hidden=64, epochs=5)`` sets some flags by name."""

    data: Data = field(default_factory=Data)
    algorithm: Algorithm = field(default_factory=Algorithm)
    wires: Wires = field(default_factory=Wires)
    storage: Storage = field(default_factory=Storage)
    model: Model = field(default_factory=Model)
    aim: Aim = field(default_factory=Aim)
    training: Training = field(default_factory=Training)
    job: Job = field(default_factory=Job)

    def check(self, ranks: int) -> None:
        """Refuse what cannot work on that many ranks.

        Raises
        ------
        InputError
            Names the flag and what would be right.
        """
        self.algorithm.distribution.check(ranks)
        if self.algorithm.edges is not None and self.algorithm.algo != "vertex-cut":
            raise InputError("--edges needs --algo vertex-cut")
        if self.algorithm.order == "paper" and self.model.model != "gcn":
            raise InputError(f"--order paper needs --model gcn, not {self.model.model}")
        self._check_aim()
        self.training.check()
        self._check_model()
        if self.model.attends:
            self._check_attention()
        if self.algorithm.ghosts:
            self._check_ghosts()
        self.wires.check(self)
        if self.storage.asked:
            self._check_storage()
        elif self.storage != Storage():
            flag = "--recompute" if self.storage.recompute != "auto" else "--spill-dtype"
            raise InputError(f"{flag} needs --memory, --spill or --parts")

    def _check_storage(self) -> None:
        """What working through rows in parts does not know."""
        how, flag = self.algorithm, "--memory, --spill and --parts"
        if self.storage.memory and self.storage.memory < 1 << 20:
            raise InputError(
                f"--memory: {self.storage.memory} bytes are less than any process takes by itself; "
                "give more, with a unit as in 20GB"
            )
        asked = how.order != "auto" or how.ghosts or how.plan
        if how.distribution != Distribution() or asked:
            raise InputError(
                f"{flag} need --algo 1d, --cover column, --order auto, --ghosts 0 and no "
                "--hierarchy, --schedule or --plan: the disk is what they plan for"
            )
        if self.aim.task != "vertices" or self.aim.inductive or self.aim.label_propagation:
            raise InputError(
                f"{flag} need labels of vertices: no links, --inductive or --label-propagation"
            )
        if self.training.dtype == "bfloat16" or self.training.runs > 1:
            raise InputError(
                f"{flag} need --dtype float32 or float64, and --runs 1; "
                "--spill-dtype bfloat16 halves what lies on the disk"
            )
        if self.job.device == "cuda":
            raise InputError(f"{flag} work on CPUs: --device cpu")
        if self.model.message_dropout:
            raise InputError(f"{flag} weigh the rows that were scored: --message-dropout 0")

    def _check_model(self) -> None:
        """Options that the model does not know, and what the algorithm cannot do with them."""
        model = self.model
        if model.aggregate != "mean" and model.model != "sage":
            raise InputError(f"--aggregate {model.aggregate} needs --model sage, not {model.model}")
        for name in ("heads", "attention_dropout", "message_dropout"):
            value, default = getattr(model, name), getattr(Model(), name)
            if value != default and not model.attends:
                flag = "--" + name.replace("_", "-")
                raise InputError(f"{flag} {value} needs --model gat or gatv2, not {model.model}")
        hidden = model.layers > 1 or model.jk != "none"
        if hidden and model.layers == 1 and self.aim.task == "vertices" and model.heads > 1:
            raise InputError(
                f"--layers 1 --jk {model.jk} makes one layer as wide as there are classes: it "
                f"needs --heads 1, not {model.heads}"
            )
        if model.attends and hidden and model.hidden % model.heads:
            raise InputError(f"--hidden {model.hidden} must be a multiple of --heads {model.heads}")
        if model.aggregate == "max":
            self._check_max()

    def _check_max(self) -> None:
        """The largest of all neighbours needs their whole rows, and no weights."""
        how, asked = self.algorithm, self.data.normalisation
        whole_rows = "1d", "column", "sparsity-aware"
        if (how.algo, how.cover, how.exchange) != whole_rows:
            raise InputError("--aggregate max needs --algo 1d and --cover column: whole rows")
        if how.node_size > 1 or how.schedule != "overlap" or how.ghosts:
            raise InputError(
                "--aggregate max needs --hierarchy none, --schedule overlap and --ghosts 0"
            )
        if asked not in ("auto", "none"):
            raise InputError("--aggregate max needs --normalisation auto: weights do not count")

    def _check_attention(self) -> None:
        """Attention adds nothing up before its weights are known."""
        how, named = self.algorithm, f"--model {self.model.model}"
        check_attention(how.distribution, named)
        if how.ghosts:
            raise InputError(f"{named} needs --ghosts 0: it cannot begin with A·X")
        if self.data.normalisation not in ("auto", "none"):
            raise InputError(f"{named} makes weights of its own: it needs --normalisation auto")

    def _check_aim(self) -> None:
        """Scores and weights that a loss has not; what the labels are is found out later."""
        aim, unset = self.aim, Aim()
        for name in ("inductive", "label_propagation") if self.algorithm.plan else ():
            if getattr(aim, name) != getattr(unset, name):
                flag = f"--{name.replace('_', '-')} {getattr(aim, name)}"
                raise InputError(f"--plan knows training on the whole graph, not {flag}")
        aim.check()
        if aim.label_propagation and self.algorithm.ghosts:
            raise InputError("--ghosts 1 needs fixed features: leave out --label-propagation")
        if aim.loss in RESIDUALS:
            for name in ("class_weights", "label_smoothing", "label_propagation"):
                if getattr(aim, name) != getattr(unset, name):
                    flag = f"--{name.replace('_', '-')}"
                    raise InputError(f"{flag} needs classes, and --loss {aim.loss} has none")

    def _check_ghosts(self) -> None:
        """Ghosts recompute the first hidden layer from A·X, so there has to be one."""
        if self.model.layers < 2:
            raise InputError("--ghosts 1 needs --layers 2 or more: one layer has no hidden rows")
        if self.algorithm.order == "paper":
            raise InputError(
                "--ghosts 1 needs --order auto: paper multiplies A by X in every epoch"
            )
        if self.model.drops_features:
            raise InputError(
                "--ghosts 1 needs --no-input-dropout: A·X changes in every epoch if X is dropped"
            )


def parse(arguments: Sequence[str] | None = None) -> TrainConfig:
    """Read the command line; a wrong flag is an InputError."""
    about = "Train a graph neural network on a whole graph, on one or many ranks."
    return TrainConfig.read(arguments, prog="gcn.py", description=about)
