"""Local training that is averaged and corrected now and then."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.config import Training
from spgnn.errors import check_integer
from spgnn.minibatch.batch import Batch
from spgnn.minibatch.distributed import DistributedLoader
from spgnn.minibatch.together import average_gradients, average_parameters
from spgnn.train.loop import OPTIMIZERS


class Learnt(Protocol):
    """What is trained; see `spgnn.minibatch.ranked.RankedTask`."""

    @property
    def model(self) -> nn.Module:
        """The same on all ranks after a correction."""

    @property
    def comm(self) -> Communicator:
        """All ranks."""

    def loss_of(self, batch: Batch | None) -> tuple[Tensor | None, float]:
        """The mean over the seeds of a batch, and what they weigh."""

    def parameter_groups(self) -> list[dict[str, Any]]:
        """As an optimiser takes them."""


class Correction:
    """Averages and corrects models that ranks train on their own.

    Learn Locally, Correct Globally (Ramezani et al., ICLR 2022).

    After so many local steps, parameters become their mean over all ranks, and some steps follow on
    exact batches, whose neighbourhoods lie on all ranks: they take out the bias of gradients that
    knew of no other rank's vertices. In the paper a server takes them; here all ranks do, each on a
    batch of its own. Averages and corrections also end each epoch, so that all ranks evaluate
    one model.

    Parameters
    ----------
    task : Learnt
    exact : DistributedLoader
        Its rounds are taken one after the other, epoch after epoch.
    options : Training
        Of which it uses the optimiser; it has moments of its own, the same on all ranks.
    every : int
        Local steps between two corrections.
    steps : int
        Rounds of a correction; 0: parameters are averaged alone.
    """

    def __init__(
        self,
        task: Learnt,
        exact: DistributedLoader,
        options: Training,
        *,
        every: int,
        steps: int = 1,
    ) -> None:
        self.every = check_integer("correct_every", every, 1)
        self.steps = check_integer("correct_steps", steps, 0)
        self._task, self._exact = task, exact
        self._optimizer = OPTIMIZERS[options.optimizer](task.parameter_groups(), lr=options.lr)
        self._round = 0

    def after(self, step: int, steps: int, lr: float) -> bool:
        """What follows a local step; whether models were averaged. Collective if they are.

        Parameters
        ----------
        step, steps : int
            Of the epoch; the same on all ranks.
        lr : float
        """
        if (step + 1) % self.every and step + 1 < steps:
            return False
        model, comm = self._task.model, self._task.comm
        average_parameters(model, comm)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for _ in range(self.steps):
            loss, weight = self._task.loss_of(self._next())
            if loss is not None:
                loss.backward()
            average_gradients(model, comm, weight)
            self._optimizer.step()
            self._optimizer.zero_grad()
        return True

    def _next(self) -> Batch | None:
        """The next round's batch; ``None`` if the round has none for this rank."""
        epoch, turn = divmod(self._round, len(self._exact))
        self._round += 1
        return self._exact.round(epoch, turn)
