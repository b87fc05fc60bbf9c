"""One contestant of bench_epoch.py: trains a GCN in a process of its own, an epoch a request.

Runs with the interpreter of the library it times, which need not have spgnn. Reads lines ``epoch``
and answers each with a line ``RESULT seconds loss faults``; what libraries print is ignored.
"""

import resource
import sys
import time
import warnings
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F


def main() -> None:
    kind, path, hidden, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    warnings.filterwarnings("ignore")  # of torch, that its CSR tensors are new
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    epoch = {"spgnn": of_spgnn, "dgl": of_dgl, "pyg": of_pyg}[kind](data, path, hidden)
    print("RESULT ready", flush=True)
    for _ in sys.stdin:
        faults, started = page_faults(), time.perf_counter()
        loss = epoch()
        seconds = time.perf_counter() - started
        print("RESULT", seconds, loss, page_faults() - faults, flush=True)


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def of_spgnn(data, path, hidden):
    from spgnn.comm import connect
    from spgnn.train import NodeClassification, TrainConfig, Trainer, prepare
    from spgnn.train.memory import give_back_freed, keep_freed

    config = TrainConfig.of(dataset=path, hidden=int(hidden), weight_decay=0, reach=False)
    give_back_freed()
    comm = connect()
    trainer = Trainer(
        NodeClassification(config, prepare(config, comm), comm), config.training, comm
    )
    keep_freed()
    count = iter(range(10**9))
    return lambda: float(trainer.train_epoch(next(count)))


def steps(model, data, forward):
    """One full-graph epoch: forward, masked loss, backward, Adam."""
    y = torch.from_numpy(data["y"])
    mask = torch.from_numpy(data["train_mask"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def epoch():
        optimizer.zero_grad()
        loss = F.cross_entropy(forward(model)[mask], y[mask])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return epoch


def widths_of(data, hidden):
    return [data["x"].shape[1], hidden, hidden, int(data["y"].max()) + 1]


def with_loops(data):
    """Indptr and indices of the symmetric pattern with its diagonal."""
    import scipy.sparse as sp

    n = int(data["shape"][0])
    ones = np.ones(len(data["indices"]), bool)
    A = sp.csr_array((ones, data["indices"], data["indptr"]), shape=(n, n))
    A = sp.csr_array(A + sp.eye_array(n, dtype=bool))
    return torch.from_numpy(A.indptr.astype(np.int64)), torch.from_numpy(A.indices), n


def of_dgl(data, path, hidden):
    import dgl
    from dgl.nn import GraphConv

    indptr, indices, n = with_loops(data)
    nothing = torch.tensor([], dtype=torch.int64)
    graph = dgl.graph(("csc", (indptr, indices.long(), nothing)), num_nodes=n).int()
    graph = graph.formats(["csc", "csr"])
    graph.create_formats_()
    widths = widths_of(data, hidden)
    layers = torch.nn.ModuleList(GraphConv(a, b, norm="both") for a, b in pairwise(widths))
    X = torch.from_numpy(data["x"])

    def forward(layers):
        H = X
        for number, layer in enumerate(layers):
            H = layer(graph, torch.relu(H) if number else H)
        return H

    return steps(layers, data, forward)


def of_pyg(data, path, hidden):
    from torch_geometric.nn import GCNConv

    indptr, indices, n = with_loops(data)
    degree = indptr.diff().float()
    values = degree.pow(-0.5).repeat_interleave(indptr.diff()) * degree.pow(-0.5)[indices.long()]
    adjacency = torch.sparse_csr_tensor(indptr, indices.long(), values, (n, n))
    widths = widths_of(data, hidden)
    layers = torch.nn.ModuleList(GCNConv(a, b, normalize=False) for a, b in pairwise(widths))
    X = torch.from_numpy(data["x"])

    def forward(layers):
        H = X
        for number, layer in enumerate(layers):
            H = layer(torch.relu(H) if number else H, adjacency)
        return H

    return steps(layers, data, forward)


if __name__ == "__main__":
    main()
