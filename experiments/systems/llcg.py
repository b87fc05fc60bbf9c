"""Learn Locally, Correct Globally (Ramezani et al., ICLR 2022): local steps, and corrections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from spgnn.addons.batches import BatchOptions, mask_of, of_all_ranks
from spgnn.addons.diskbatches import (
    BatchTrainer,
    VertexBatches,
    average_gradients,
    means_over_ranks,
)
from spgnn.addons.historical import Local
from spgnn.comm import Communicator
from spgnn.data import RankShare
from spgnn.errors import InputError
from spgnn.options import Record, key
from spgnn.train import OPTIMIZERS, set_optimizer
from systems.replicas import Replicated, ReplicatedBatches


class CorrectedTrainer(BatchTrainer):
    """Ranks take steps of their own; models are averaged and corrected now and then.

    After so many local steps, parameters become their mean over all ranks, and a server takes some
    steps on exact batches, which take out the bias of gradients that knew of no other rank's
    vertices. The server, rank 0, fetches the graph once: from then on parameters alone travel.
    Averages and corrections also end each epoch, so that all ranks evaluate one model.
    """

    def __init__(self, task: VertexBatches, config: Any, comm: Communicator, *more: Any) -> None:
        super().__init__(task, config, comm, *more)
        how = config.options
        self._every, self._corrections, self._round = how.correct_every, how.correct_steps, 0
        if self._corrections:
            server: Any = task.part_loader(Server()).strategy
            self._server, self._batches = server.loader, server.steps
        optimizer = OPTIMIZERS[config.training.optimizer]
        self._corrector = optimizer(task.parameter_groups(), lr=config.training.lr)
        self._steps_agree = False

    def update(self, step: int, loss: Tensor | None, weight: float) -> Tensor:
        """A local step, and perhaps a correction. Collective."""
        sums = torch.zeros(2)
        if loss is not None:
            self._step()
            sums = torch.stack((loss.detach() * weight, loss.new_tensor(weight)))
        self.clock.lap("other")
        if (step + 1) % self._every == 0 or step + 1 == self.steps_per_epoch:
            self._correct()
        return sums

    def total(self, totals: Tensor) -> Tensor:
        """The sums of an epoch over all ranks. Collective."""
        self.comm.all_reduce(totals).wait()
        return totals

    def _correct(self) -> None:
        """Average the models, and learn of exact batches. Collective."""
        model, clock = self.task.model, self.clock
        average_parameters(model, self.comm)
        clock.lap("allreduce")
        for group in self._corrector.param_groups:
            group["lr"] = self.optimizer.param_groups[0]["lr"]
        for _ in range(self._corrections):
            place = divmod(self._round, self._batches)
            batch = None if self.comm.rank else self._server.sample(*place)
            self._round += 1
            clock.lap("sampling")
            loss, weight = self.task.loss_of(batch)
            clock.lap("forward")
            if loss is not None:
                loss.backward()
            clock.lap("backward")
            average_gradients(model, self.comm, weight)
            clock.lap("allreduce")
            self._corrector.step()
            self._corrector.zero_grad()
            clock.lap("other")

    def _state(self) -> dict[str, Any]:
        correction = {"round": self._round, "optimizer": self._corrector.state_dict()["state"]}
        state = {"optimizer": self.optimizer.state_dict()["state"], "correction": correction}
        return {**super()._state(), **state}

    def _load_state(self, state: Mapping[str, Any]) -> None:
        set_optimizer(self.optimizer, state["optimizer"])
        self._round = state["correction"]["round"]
        set_optimizer(self._corrector, state["correction"]["optimizer"])


class Server(Replicated):
    """Batches of all training vertices on rank 0, and none elsewhere."""

    def strategy(
        self, share: RankShare, comm: Communicator, options: BatchOptions
    ) -> ReplicatedBatches:
        """Rank 0 fetches what they reach. Collective."""
        own = mask_of(share, options.input_nodes, comm).nonzero()[:, 0]
        first, ids = share.layout.range(comm.rank)[0], share.vertex_ids[own]
        seeds, _ = of_all_ranks(own + first, ids, comm)
        return ReplicatedBatches(share, comm, options, seeds[:0] if comm.rank else seeds)


class Corrected(Local):
    """Local batches, whose models are averaged and corrected."""

    @dataclass(frozen=True)
    class Keys(Record):
        """Its options."""

        section = "distribution"
        correct_every: Annotated[
            int, key("local: average models only after so many steps, and correct them", "STEPS")
        ] = 0
        correct_steps: Annotated[int, key("of a correction, on exact batches of the server")] = 1

    keys = Keys
    extends = "local"
    trainer = CorrectedTrainer

    @classmethod
    def check(cls, config: Any) -> None:
        """As of local batches; and without a rhythm there is no correction."""
        super().check(config)
        if not config.options.correct_every:
            raise InputError("distribution.correct-steps needs distribution.correct-every")

    @classmethod
    def describe(cls, batches: str, options: Any, ranks: int) -> str:
        """In words."""
        how = f"corrected by {options.correct_steps} after {options.correct_every}"
        return f"{batches}, {how} (local)"


def average_parameters(model: nn.Module, comm: Communicator) -> None:
    """Make every parameter its mean over all ranks. Collective; one all-reduce."""
    if comm.size == 1:
        return
    parameters = [p.detach() for p in model.parameters()]
    for parameter, mean in zip(parameters, means_over_ranks(parameters, 1, comm)[0], strict=True):
        parameter.copy_(mean)
