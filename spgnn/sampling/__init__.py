"""Neighbourhoods of a few vertices, as functions of hashes."""

from spgnn.sampling.induced import ClusterSampler, induced
from spgnn.sampling.labor import LaborSampler
from spgnn.sampling.layerwise import FastGCNSampler, LadiesSampler, VertexSampler
from spgnn.sampling.negatives import NegativeSampler, negatives
from spgnn.sampling.neighbor import NeighborSampler, relabel
from spgnn.sampling.saint import SaintSampler
from spgnn.sampling.sample import Draw, Hop, Sample, Sampler

__all__ = [
    "ClusterSampler",
    "Draw",
    "FastGCNSampler",
    "Hop",
    "LaborSampler",
    "LadiesSampler",
    "NegativeSampler",
    "NeighborSampler",
    "SaintSampler",
    "Sample",
    "Sampler",
    "VertexSampler",
    "induced",
    "negatives",
    "relabel",
]
