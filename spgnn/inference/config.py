"""Options of ``spgnn infer``: those of training, and which weights make what."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from spgnn.config import TrainConfig
from spgnn.errors import InputError
from spgnn.options import Record, flag


@dataclass(frozen=True)
class Inference(Record):
    """The weights, and the file of the results."""

    weights: Annotated[
        str | None,
        flag("a directory of --checkpoint, or a state_dict of torch.save", "FILE_OR_DIR"),
    ] = None
    output: Annotated[
        str | None,
        flag("an .npy file of all vertices, or a directory of one a rank", "FILE_OR_DIR"),
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
        """Refuse what cannot work on that many ranks.

        Raises
        ------
        InputError
            Names the flag and what would be right.
        """
        if self.inference.weights is None:
            raise InputError(
                "--weights FILE is needed: a checkpoint, or a state_dict of torch.save"
            )
        if self.inference.output is None:
            raise InputError("--output FILE is needed: an .npy file, or a new directory")
        if self.aim.label_propagation:
            raise InputError(
                "aim.label-propagation: such a model takes labels; training writes --predictions"
            )
        if self.inference.layer > self.model.layers:
            raise InputError(
                f"--layer {self.inference.layer}: the model has --layers {self.model.layers}"
            )
        settled = self.settled(1)
        settled.algorithm.distribution.check(ranks)
        if self.storage.asked:
            TrainConfig.check(settled, ranks)  # its own would ask for this again
            if self.inference.layer not in (0, self.model.layers):
                raise InputError("--layer: with --memory, --spill or --chunks, scores are written")

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
