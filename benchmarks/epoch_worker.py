"""One contestant of bench_epoch.py: trains a model in a process of its own, an epoch a request.

Runs with the interpreter of the library it times, which need not have spgnn. Reads lines ``epoch``
and answers each with a line ``RESULT seconds loss faults bytes``, the last being the most memory so
far beyond that before the first epoch; what libraries print is ignored. Seconds are those of a
wall clock, or, after a last argument ``cpu``, of all threads of the process.
"""

import resource
import sys
import time
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HEADS = 8


def main() -> None:
    kind, model, path = sys.argv[1:4]
    hidden, threads = map(int, sys.argv[4:6])
    clock = time.process_time if sys.argv[6:] == ["cpu"] else time.perf_counter
    warnings.filterwarnings("ignore")  # of torch, that its CSR tensors are new
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    with np.load(path) as file:
        data = {name: file[name] for name in file.files}
    epoch = {"spgnn": of_spgnn, "dgl": of_dgl, "pyg": of_pyg}[kind](data, path, model, hidden)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    print("RESULT ready", flush=True)
    for _ in sys.stdin:
        faults, started = page_faults(), clock()
        loss = epoch()
        seconds = clock() - started
        grown = status("VmHWM") - before
        print("RESULT", seconds, loss, page_faults() - faults, grown, flush=True)


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def status(name):
    """Bytes of this process, as the kernel counts them."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(name + ":")[2].split()[0])


def of_spgnn(data, path, model, hidden):
    from spgnn.comm import connect
    from spgnn.config import TrainConfig
    from spgnn.frontend.from_config import training_graph
    from spgnn.memory import give_back_freed, keep_freed
    from spgnn.train import Trainer
    from spgnn.train.vertices import NodeClassification

    options = {"heads": HEADS} if model == "gat" else {}
    config = TrainConfig.of(
        dataset=path, model=model, hidden=hidden, weight_decay=0, prune=False, **options
    )
    give_back_freed()
    comm = connect()
    task = NodeClassification(config, training_graph(config, comm))
    trainer = Trainer(task, options=config.training)
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


def neighbours(data, model):
    """Indptr and indices of what the model works on: the pattern, with its diagonal or without."""
    if model not in ("sage", "gin"):
        return with_loops(data)
    n = int(data["shape"][0])
    return torch.from_numpy(data["indptr"].astype(np.int64)), torch.from_numpy(data["indices"]), n


def of_dgl(data, path, model, hidden):
    import dgl
    from dgl.nn import GATConv, GINConv, GraphConv, SAGEConv

    indptr, indices, n = neighbours(data, model)
    row = torch.arange(n).repeat_interleave(indptr.diff())
    # Attention's kernels need the edges' own ids, and their list.
    given = (indices.long(), row) if model == "gat" else ("csc", (indptr, indices.long(), row[:0]))
    graph = dgl.graph(given, num_nodes=n).int()
    graph = graph.formats(["coo", "csc", "csr"] if model == "gat" else ["csc", "csr"])
    graph.create_formats_()
    widths = widths_of(data, hidden)
    made = {
        "gcn": lambda a, b: GraphConv(a, b, norm="both"),
        "sage": lambda a, b: SAGEConv(a, b, "mean"),
        "gin": lambda a, b: GINConv(two_linear(a, b), "sum"),
        "gat": lambda a, b: GATConv(a, b, HEADS),
    }[model]
    if model == "gat":
        layers = attention_layers(made, widths)
    else:
        layers = torch.nn.ModuleList(made(a, b) for a, b in pairwise(widths))
    X = torch.from_numpy(data["x"])

    def forward(layers):
        H = X
        for number, layer in enumerate(layers):
            H = layer(graph, torch.relu(H) if number else H)
            if model == "gat":
                H = H.flatten(1) if number + 1 < len(layers) else H.mean(dim=1)
        return H

    return steps(layers, data, forward)


def two_linear(a, b):
    """What a layer of a graph isomorphism network does after its sum."""
    return torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, b))


def attention_layers(made, widths):
    """Hidden layers of HEADS heads that lie side by side; the last one's are averaged."""
    layers = [made(a, b // HEADS) for a, b in pairwise(widths[:-1])]
    return torch.nn.ModuleList([*layers, made(*widths[-2:])])


def of_pyg(data, path, model, hidden):
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

    indptr, indices, n = neighbours(data, model)
    degree = indptr.diff().float()
    row = torch.arange(n).repeat_interleave(indptr.diff())
    if model == "gat":  # knows no CSR tensors where it has no torch-sparse
        adjacency = torch.stack((indices.long(), row))
    else:
        values = degree.pow(-0.5)[row] * degree.pow(-0.5)[indices.long()]
        values = torch.ones(len(indices)) if model in ("sage", "gin") else values
        adjacency = torch.sparse_csr_tensor(indptr, indices.long(), values, (n, n))
    widths = widths_of(data, hidden)
    if model == "gat":
        layers = attention_layers(lambda a, b: GATConv(a, b, HEADS, add_self_loops=False), widths)
        layers[-1] = GATConv(*widths[-2:], HEADS, concat=False, add_self_loops=False)
    else:
        made = {
            "gcn": lambda a, b: GCNConv(a, b, normalize=False),
            "sage": SAGEConv,
            "gin": lambda a, b: GINConv(two_linear(a, b)),
        }[model]
        layers = torch.nn.ModuleList(made(a, b) for a, b in pairwise(widths))
    X = torch.from_numpy(data["x"])

    def forward(layers):
        H = X
        for number, layer in enumerate(layers):
            H = layer(torch.relu(H) if number else H, adjacency)
        return H

    return steps(layers, data, forward)


if __name__ == "__main__":
    main()
