"""Neighbourhoods of a few vertices, as functions of hashes."""

from spgnn.sampling.neighbor import NeighborSampler, relabel
from spgnn.sampling.sample import Draw, Hop, Sample, Sampler

__all__ = ["Draw", "Hop", "NeighborSampler", "Sample", "Sampler", "relabel"]
