"""What training epochs fault in: ``python -m tests.train.page_faults`` prints bytes as JSON.

In an interpreter of its own: what the allocator does depends on all that was freed before. With
pages of the usual size, whatever the system would make of large blocks: a fault is one of them.
"""

from __future__ import annotations

import ctypes
import json
import resource
from unittest.mock import patch

import numpy as np

from spgnn import memory
from spgnn.comm import connect
from spgnn.config import TrainConfig
from spgnn.testing import run_ranks
from spgnn.train import Trainer, train

_PR_SET_THP_DISABLE = 41


def faults_of_epochs(rank: int, keep: bool) -> list[int]:
    """Bytes of each epoch, evaluation included, of a training run in this process."""
    counts = []
    train_epoch = Trainer.train_epoch

    def counted(self: Trainer, epoch: int) -> object:
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
        return train_epoch(self, epoch)

    # Each activation is of 4 MiB.
    flags = {"random_features": 64, "random_classes": 64, "hidden": 64, "partition": "block"}
    kept = memory.keep_freed if keep else lambda: None
    with patch.object(Trainer, "train_epoch", counted), patch.object(memory, "keep_freed", kept):
        epochs = 17 if keep else 8  # a few that take a block anew do not count
        train(TrainConfig.of(dataset="rmat-14-4", epochs=epochs, **flags), connect())
    return (np.diff(counts) * resource.getpagesize()).tolist()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)  # inherited by the rank
    print(json.dumps([run_ranks(faults_of_epochs, 1, keep)[0] for keep in (True, False)]))
