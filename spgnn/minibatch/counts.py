"""What sampling has done so far."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from spgnn.sampling import Sample


class Sampled:
    """Counts of a loader's samples; threads may add to them.

    Attributes
    ----------
    batches, vertices, edges : int
        Edges of all layers together.
    seconds : float
        Of all threads together.
    """

    def __init__(self) -> None:
        self.batches = self.vertices = self.edges = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    def add(self, samples: Sequence[Sample], seconds: float) -> None:
        """Count some more."""
        with self._lock:
            self.batches += len(samples)
            self.vertices += sum(len(sample.nodes) for sample in samples)
            self.edges += sum(hop.edges for sample in samples for hop in sample.hops)
            self.seconds += seconds

    @property
    def edges_per_second(self) -> float:
        """Of one thread."""
        return self.edges / self.seconds if self.seconds else 0.0
