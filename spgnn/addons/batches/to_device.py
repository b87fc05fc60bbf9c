"""Batches of the host on their way to a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.addons.batches.batch import Batch


class CopyAhead:
    """Copies features of batches to a GPU, on a stream of its own, while it trains on others.

    A loader's ``transform``, so it is called by the thread that fetches. Rows that were gathered
    into pinned memory (`Rows.pinned`) go from there; others, sparse ones apart, by way of it.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def __call__(self, batch: Batch) -> Batch:
        x = batch.x
        if isinstance(x, Tensor):
            with torch.cuda.stream(self._stream):
                rows = x if x.is_pinned() else x.pin_memory()
                batch.x = rows.to(self.device, non_blocking=True)
                batch.copied = self._stream.record_event()
        return batch

    def arrived(self, batch: Batch) -> Batch:
        """The batch on the device: what is computed from now on waits for its features there."""
        if batch.copied is not None:
            assert isinstance(batch.x, Tensor)
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(batch.copied)
            batch.x.record_stream(stream)  # or its memory goes to the next batch too early
        return batch.to(self.device)
