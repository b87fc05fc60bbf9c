"""What sampling has done so far."""

from __future__ import annotations

import threading

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

    def add(self, sample: Sample, seconds: float) -> None:
        """Count one more."""
        with self._lock:
            self.batches += 1
            self.vertices += len(sample.nodes)
            self.edges += sum(hop.edges for hop in sample.hops)
            self.seconds += seconds

    @property
    def edges_per_second(self) -> float:
        """Of one thread."""
        return self.edges / self.seconds if self.seconds else 0.0
