"""Algorithm 2 of DistGNN-MB line by line: its pipeline of pushes begins anew in every epoch.

`--distributed historical` looks rows up and pushes them in all iterations; `--distributed aep`
looks none up in the first `delay` ones of an epoch (line 7), and pushes none in the last (line 14).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spgnn.addons.batches import BatchOptions
from spgnn.addons.historical import History
from spgnn.addons.historical.historical import PartBatches
from spgnn.comm import Communicator
from spgnn.data import RankShare


class EmbeddingPush(History):
    """Historical embeddings, pushed within epochs."""

    keys = None  # type: ignore[assignment]  # those of `historical`

    def strategy(self, share: RankShare, comm: Communicator, options: BatchOptions) -> PartBatches:
        """The batches of this rank. Collective."""
        return PushedBatches(share, comm, options, self)


class PushedBatches(PartBatches):
    """Batches of a rank's part and the rows that were pushed to it in this epoch or before."""

    def _hop(self, targets: Tensor, drawn: Any, cache: Any, iteration: int) -> Any:
        assert self.history is not None
        filled = iteration % self.steps >= self.history.delay  # line 7
        return super()._hop(targets, drawn, cache if filled else None, iteration)

    def end(self, iteration: int) -> None:
        """Send the rows that this iteration made, if they may still be used. Collective."""
        assert self.history is not None
        if iteration % self.steps < self.steps - self.history.delay:  # line 14
            super().end(iteration)
