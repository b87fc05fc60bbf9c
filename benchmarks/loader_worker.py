"""An epoch of mini-batches by DGL for bench_loader.py; runs in an environment of its own.

Arguments: a file of arrays, the contestant, and a JSON text of options. Answers each line with the
seconds and the sampled edges of an epoch.
"""

import itertools
import json
import sys
import time

import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
import torch.nn.functional as F
from dgl.nn import GATConv, SAGEConv


class Model(torch.nn.Module):
    """Three layers of means, or of attention with four heads, as ours."""

    def __init__(self, name, widths):
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        if name == "sage":
            layers = [SAGEConv(a, b, "mean") for a, b in pairs]
        else:
            layers = [GATConv(a, b // 4, 4) for a, b in pairs[:-1]] + [GATConv(*pairs[-1], 4)]
        self.layers = torch.nn.ModuleList(layers)

    def forward(self, blocks, x):
        """Scores of the seeds."""
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            last = number == len(self.layers) - 1
            if x.dim() == 3:
                x = x.mean(1) if last else x.flatten(1)
            if not last:
                x = F.dropout(F.relu(x), 0.5, self.training)
        return x


def dgl_loader(arrays, options):
    n = len(arrays["indptr"]) - 1
    parts = torch.from_numpy(arrays["indptr"]), torch.from_numpy(arrays["indices"]).long()
    graph = dgl.graph(("csc", (*parts, torch.tensor([], dtype=torch.int64))), num_nodes=n)
    graph = graph.int().formats("csc")
    graph.ndata["x"] = torch.from_numpy(arrays["x"])
    graph.ndata["y"] = torch.from_numpy(arrays["y"])
    # DGL names the outermost hop first, and so does GraphBolt.
    sampler = dgl.dataloading.NeighborSampler(
        options["fanouts"][::-1], prefetch_node_feats=["x"], prefetch_labels=["y"]
    )
    seeds = torch.from_numpy(arrays["seeds"]).int()
    # Without a worker process, its prefetching of features on a CPU ends the process.
    loader = dgl.dataloading.DataLoader(
        graph, seeds, sampler, batch_size=options["batch_size"], shuffle=True, num_workers=1
    )
    for _, _, blocks in loader:
        yield blocks, blocks[0].srcdata["x"], blocks[-1].dstdata["y"]


def graphbolt_loader(arrays, options):
    graph = gb.fused_csc_sampling_graph(
        torch.from_numpy(arrays["indptr"]), torch.from_numpy(arrays["indices"])
    )
    key = ("node", None, "feat")
    feature = gb.TorchBasedFeature(torch.from_numpy(arrays["x"]))
    store = gb.BasicFeatureStore({key: feature})
    y = torch.from_numpy(arrays["y"])
    seeds = torch.from_numpy(arrays["seeds"]).int()
    items = gb.ItemSet((seeds, y[seeds.long()]), names=("seed_nodes", "labels"))
    pipe = gb.ItemSampler(items, batch_size=options["batch_size"], shuffle=True)
    fanouts = [torch.tensor([k]) for k in options["fanouts"][::-1]]
    pipe = pipe.sample_neighbor(graph, fanouts)
    pipe = pipe.fetch_feature(store, node_feature_keys=["feat"])
    pipe = pipe.to_dgl() if hasattr(pipe, "to_dgl") else pipe
    for batch in gb.DataLoader(pipe, num_workers=0):
        x = batch.node_features["feat"]
        yield batch.blocks, x, batch.labels


def main():
    path, contestant, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(options["threads"])
    names = "indptr", "indices", "x", "y", "seeds"
    arrays = {name: np.load(f"{path}/{name}.npy") for name in names}
    make = {
        "dgl": lambda: dgl_loader(arrays, options),
        "graphbolt": lambda: graphbolt_loader(arrays, options),
    }[contestant]
    model = Model(options["model"], [arrays["x"].shape[1], *options["hidden"], options["classes"]])
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    for line in sys.stdin:
        if line.strip() == "ready":
            print("answer: ready", flush=True)
            continue
        started, edges, vertices = time.perf_counter(), 0, 0
        for blocks, x, y in make():
            if line.strip() == "train":
                loss = F.cross_entropy(model(blocks, x), y.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            edges += sum(block.num_edges() for block in blocks)
            vertices += len(x)
        seconds = time.perf_counter() - started
        print(f"answer: {seconds} {edges} {vertices}", flush=True)


if __name__ == "__main__":
    main()
