"""Samples for bench_sampling.py; runs where spgnn is installed or in an environment with DGL 2.1.0.

Reads ``fanouts how first count`` lines (``15,10,5 uniform 0 20``) and answers each with the seconds
that so many batches took, and with the edges and vertices in them.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

BATCH = 1024


def spgnn(indptr, indices, weights):
    from spgnn.addons.batches import Draw, LaborSampler, NeighborSampler
    from spgnn.pattern import Pattern

    n = len(indptr) - 1
    pattern = Pattern(indptr, indices, (n, n))
    made = {}

    def sample(fanouts, how, seeds, number):
        if (sampler := made.get((fanouts, how))) is None:
            if how == "labor":
                sampler = LaborSampler(pattern, list(fanouts))
            else:
                options = {"weights": weights} if how == "weighted" else {}
                sampler = NeighborSampler(
                    pattern, list(fanouts), replace=how == "replace", **options
                )
            made[fanouts, how] = sampler
        result = sampler.sample(seeds, Draw(1, 0, number))
        return sum(hop.edges for hop in result.hops), len(result.nodes)

    return sample


def graphbolt(indptr, indices, weights):
    import dgl.graphbolt as gb

    graph = gb.fused_csc_sampling_graph(indptr, indices, edge_attributes={"w": weights})

    def sample(fanouts, how, seeds, number):
        draw = graph.sample_layer_neighbors if how == "labor" else graph.sample_neighbors
        probability = "w" if how == "weighted" else None
        edges = 0
        for fanout in fanouts:
            drawn = draw(seeds, torch.tensor([fanout]), how == "replace", probability)
            seeds, compact = gb.unique_and_compact_csc_formats(drawn.sampled_csc, seeds)
            edges += len(compact.indices)
        return edges, len(seeds)

    return sample


def dgl(indptr, indices, weights):
    import dgl as library

    none = torch.tensor([], dtype=indices.dtype)
    arrays = (indptr.to(indices.dtype), indices, none)
    graph = library.graph(("csc", arrays), num_nodes=len(indptr) - 1)
    graph.edata["w"] = weights
    made = {}

    def sample(fanouts, how, seeds, number):
        if (sampler := made.get((fanouts, how))) is None:
            inward = list(reversed(fanouts))
            if how == "labor":
                sampler = library.dataloading.LaborSampler(inward)
            else:
                prob = "w" if how == "weighted" else None
                sampler = library.dataloading.NeighborSampler(
                    inward, prob=prob, replace=how == "replace"
                )
            made[fanouts, how] = sampler
        nodes, _, blocks = sampler.sample_blocks(graph, seeds)
        return sum(block.num_edges() for block in blocks), len(nodes)

    return sample


def main() -> None:
    kind, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    with np.load(path) as file:
        indptr, indices = torch.from_numpy(file["indptr"]), torch.from_numpy(file["indices"])
        weights = torch.from_numpy(file["weights"])
    n = len(indptr) - 1
    sample = {"spgnn": spgnn, "graphbolt": graphbolt, "dgl": dgl}[kind](indptr, indices, weights)
    batches = list(torch.from_numpy(np.random.default_rng(0).permutation(n)).split(BATCH))
    dtype = torch.int64 if kind == "spgnn" else indices.dtype
    batches = [batch.to(dtype) for batch in batches]
    print("RESULT ready", flush=True)
    for line in sys.stdin:
        fanouts, how, first, count = line.split()
        counts = tuple(int(k) for k in fanouts.split(","))
        started, edges, nodes = time.perf_counter(), 0, 0
        for number in range(int(first), int(first) + int(count)):
            drawn, met = sample(counts, how, batches[number % len(batches)], number)
            edges, nodes = edges + drawn, nodes + met
        print("RESULT", time.perf_counter() - started, edges, nodes, flush=True)


if __name__ == "__main__":
    main()
