"""AGL's neighbourhoods of k hops (Zhang et al., VLDB 2020): made once, stored, merged by batch."""

from __future__ import annotations

from collections.abc import Sequence
from tempfile import TemporaryFile
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from spgnn.addons.batches import (
    Draw,
    Growth,
    Needs,
    NeighborSampler,
    RowEntries,
    Sample,
    offsets_of,
)
from spgnn.errors import InputError
from spgnn.pattern import Pattern
from spgnn.sparse import CSR


class StoredNeighbourhoods(NeighborSampler):
    """Neighbourhoods of all vertices, by one round of messages a hop, in files without a name.

    A vertex draws its neighbours of each hop once, and hands them to those whose neighbourhood it
    is in. A batch reads those of its seeds and merges them: nothing is drawn in training.
    Parameters are those of `NeighborSampler`; edges have neither weights, times nor numbers.
    """

    needs: ClassVar[Needs] = "graph"

    def __init__(self, pattern: Pattern | CSR, num_neighbors: Sequence[int], **options: Any):
        super().__init__(pattern, num_neighbors, **options)
        self._check_square()
        if self._edge_ids or self.disjoint or options.get("weights") is not None:
            raise InputError("sampler agl stores neighbours, without what the graph says of edges")
        n = pattern.shape[0]
        owner = target = everyone = torch.arange(n)
        self._stored = []  # of each hop: where a vertex's entries begin; entry, target, source
        for hop in range(len(self.num_neighbors)):
            indptr, columns, *_ = self.sample_hop(everyone, hop, Draw(0))
            lengths = indptr.diff()[target]
            entries = _spans(indptr[target], lengths)
            owners, targets = (ends.repeat_interleave(lengths) for ends in (owner, target))
            sources = columns[entries].long()
            records = torch.stack((entries, targets, sources), 1).numpy()
            with TemporaryFile() as file:
                file.write(records.tobytes() or bytes(24))
                file.flush()
                read = np.memmap(file, np.int64, "r").reshape(-1, 3)
            self._stored.append((offsets_of(torch.bincount(owners, minlength=n)), read))
            pairs = torch.cat((owner * n + target, owners * n + sources)).unique()
            owner, target = pairs // n, pairs % n

    def sample_many(
        self, seeds: Sequence[Tensor], draws: Sequence[Draw], times: Sequence[Tensor] | None = None
    ) -> list[Sample]:
        """The stored neighbourhoods of some seeds, whatever the draws."""
        return [self._merged(*batch) for batch in zip(seeds, draws, strict=True)]

    def _merged(self, seeds: Tensor, draw: Draw) -> Sample:
        growth = Growth(seeds, draw)
        for hop, (begins, stored) in enumerate(self._stored):
            read = stored[_spans(begins[seeds], begins[seeds + 1] - begins[seeds]).numpy()]
            _, first = np.unique(read[:, 0], return_index=True)  # entries rise with targets
            targets, sources = torch.from_numpy(read[first, 1:].T.copy())
            begin = torch.searchsorted(targets, growth.targets)
            lengths = torch.searchsorted(targets, growth.targets, right=True) - begin
            rows = RowEntries(offsets_of(lengths), sources[_spans(begin, lengths)])
            growth.take(rows, hop)
        return growth.result()[0]


def _spans(begins: Tensor, lengths: Tensor) -> Tensor:
    """Numbers from each begin on, so many."""
    shift = begins - offsets_of(lengths)[:-1]
    return torch.arange(int(lengths.sum())) + shift.repeat_interleave(lengths)
