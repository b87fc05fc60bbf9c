"""Inference over the whole graph: PyG's own models, any number of ranks, any layer, any module."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import spgnn
from spgnn import InputError
from spgnn.comm import connect
from spgnn.inference.weights import load_weights
from spgnn.registry import MODELS
from spgnn.testing import run_ranks

N, FEATURES, HIDDEN, CLASSES = 61, 13, 8, 5


def edges(seed: int = 0) -> torch.Tensor:
    """A directed graph with a hub, and vertices without any edge."""
    A = torch.rand(N, N, generator=torch.Generator().manual_seed(seed)) < 0.06
    A[7], A[13], A[:, 13] = True, False, False
    A.fill_diagonal_(False)
    return A.nonzero().T.contiguous()


def features() -> torch.Tensor:
    return torch.randn(N, FEATURES, generator=torch.Generator().manual_seed(1))


def theirs(name: str, layers: int = 3, **options: object) -> nn.Module:
    """A model of PyG."""
    models = pytest.importorskip("torch_geometric.nn.models")
    torch.manual_seed(4)
    model = getattr(models, name)(FEATURES, HIDDEN, layers, CLASSES, **options)
    for p in model.parameters():  # biases too
        nn.init.uniform_(p, -0.5, 0.5)
    return model.eval()


PYG = [
    ("gcn", "GCN", {}),
    ("sage", "GraphSAGE", {}),
    ("gin", "GIN", {"act": "elu"}),
    ("gat", "GAT", {"heads": 2, "dropout": 0.5}),
    ("gatv2", "GAT", {"heads": 4, "v2": True}),
    ("sage", "GraphSAGE", {"norm": "batch", "jk": "cat", "act": "elu"}),
]


@pytest.mark.parametrize(("kind", "name", "options"), PYG, ids=[kind for kind, *_ in PYG])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_state_dict_of_pyg_on_ranks_equals_pyg_on_one(tmp_path, kind, name, options, ranks):
    """Scores and the embeddings of every layer."""
    model, x, edge_index = theirs(name, **options), features(), edges()
    path, H = str(tmp_path / "model.pt"), x
    if "norm" in options:  # whose running statistics come with the weights
        model.train()(x, edge_index)
    torch.save(model.eval().state_dict(), path)
    with torch.no_grad():
        expected = {None: model(x, edge_index)}
        for number in (1, 2) if "norm" not in options else ():
            H = model.act(model.convs[number - 1](H, edge_index))
            expected[number] = H
    expected.setdefault(3, expected[None])

    def body(rank: int) -> dict:
        data = pytest.importorskip("torch_geometric.data").Data(x=x, edge_index=edge_index)
        graph = spgnn.distribute(data if rank == 0 else None, partition="random")
        # Other weights on all ranks, until those of the file are read.
        mine = MODELS[kind].of([FEATURES, HIDDEN, HIDDEN, CLASSES], seed=rank, **options)
        mine.train()
        load_weights(mine, path if rank == 0 else "elsewhere", connect())
        found = {}
        for layer in expected:
            rows = spgnn.infer(mine, graph, layer=layer)
            assert not rows.requires_grad
            found[layer] = graph.gather(rows)
        assert mine.training
        return found

    found = run_ranks(body, ranks)[0]
    for layer, rows in expected.items():
        torch.testing.assert_close(found[layer], rows, rtol=1e-5, atol=1e-5)


class Kept(nn.Module):
    """Has another model's name of a module, and takes the graph."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.convs = module, nn.ModuleList([nn.Identity(), nn.Identity()])

    def forward(self, x, graph):
        return self.module(x, graph.edge_index)


def layers_of(rank: int, x: torch.Tensor, edge_index: torch.Tensor) -> None:
    """Models of PyG and their averages, whose every layer is compared with one process."""
    data = pytest.importorskip("torch_geometric.data").Data(x=x, edge_index=edge_index)
    graph = spgnn.distribute(data, partition="random")
    for _, name, options in PYG:
        model, rows = theirs(name, **options), x
        mean = torch.optim.swa_utils.AveragedModel(model)
        with torch.no_grad():
            expected = {3: model(x, edge_index)}
            for layer in (1, 2):
                rows = model.convs[layer - 1](rows, edge_index)
                expected[layer] = rows = model.act(model.norms[layer - 1](rows))
        for layer, rows in expected.items():
            for one in (model.train(), mean) if layer == 2 else (model.train(),):
                embeddings = graph.gather(spgnn.infer(one, graph, layer=layer))
                if rank == 0:
                    torch.testing.assert_close(embeddings, rows, rtol=1e-5, atol=1e-5)
        assert model.training
        assert torch.equal(spgnn.infer(Kept(model), graph), spgnn.infer(model, graph))
    with pytest.raises(InputError, match=r"Kept does not call convs\[1\]"):
        spgnn.infer(Kept(model), graph, layer=1)
    # Weights and features of edges, where the model has a use for them.
    generator = torch.Generator().manual_seed(1)
    weight = torch.rand(edge_index.shape[1], generator=generator)
    attr = torch.rand(edge_index.shape[1], 3, generator=generator)
    data.edge_weight, data.edge_attr = weight, attr
    data.y, data.train_mask = torch.arange(len(x)) % 2, torch.ones(len(x), dtype=torch.bool)
    graph = spgnn.distribute(data, partition="random")
    for name, options, edges in (
        ("GCN", {}, {"edge_weight": weight}),
        ("GAT", {"edge_dim": 3}, {"edge_attr": attr}),
        ("GAT", {"v2": True}, {}),
    ):
        model = theirs(name, **options)
        with torch.no_grad():
            rows = model(x, edge_index, **edges)
        outputs = graph.gather(spgnn.infer(model, graph))
        loss = spgnn.Trainer(model, graph, lr=1e-9, optimizer="sgd").fit(1)[0]["loss"]
        if rank == 0:
            torch.testing.assert_close(outputs, rows, rtol=1e-5, atol=1e-5)
            expected_loss = torch.nn.functional.cross_entropy(rows, data.y)
            assert loss == pytest.approx(float(expected_loss), rel=1e-4)


def test_layers_of_models_of_pyg():
    run_ranks(layers_of, 2, features(), edges())


class Elsewhere(nn.Module):
    """A module of somebody else's: PyG's layer on the halo."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pytest.importorskip("torch_geometric.nn").GATv2Conv(
            FEATURES, CLASSES, dropout=0.9
        )

    def forward(self, x, graph):
        assert not torch.is_grad_enabled()
        assert not self.training
        return self.conv((graph.halo(x), x), graph.edge_index)


def test_any_module(tmp_path):
    pyg = pytest.importorskip("torch_geometric.data")
    x, edge_index = features(), edges()

    def body(rank: int) -> torch.Tensor:
        graph = spgnn.distribute(pyg.Data(x=x, edge_index=edge_index), partition="random")
        torch.manual_seed(3)
        return graph.gather(spgnn.infer(Elsewhere(), graph))

    one, three = run_ranks(body, 1)[0], run_ranks(body, 3)[0]
    torch.testing.assert_close(three, one, rtol=1e-5, atol=1e-6)


def graph_of(name: str = "random"):
    import scipy.sparse as sp

    source, target = edges().numpy()
    A = sp.csr_array((np.ones(source.size, np.float32), (target, source)), shape=(N, N))
    return spgnn.distribute(A, x=features(), partition=name)


class Wrong(nn.Module):
    def __init__(self, made) -> None:
        super().__init__()
        self.weight, self.made = nn.Parameter(torch.ones(1)), made

    def forward(self, x, graph):
        return self.made(x, connect().rank)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda x, rank: x[rank:], "a row for each of the"),
        (lambda x, rank: x.sum(), r"vertices of this rank, got \[\]"),
        (lambda x, rank: x[:, rank:], "width of what the model returns"),
        (lambda x, rank: x.double() if rank else x, "dtype of what the model returns"),
        (lambda x, rank: (x, x) if rank else x, "must return a tensor, got tuple"),
    ],
)
def test_models_that_return_something_else(made, said):
    def body(rank: int) -> None:
        with pytest.raises(InputError, match=said):
            spgnn.infer(Wrong(made), graph_of())

    run_ranks(body, 2)


def test_what_cannot_be_asked():
    def body(rank: int) -> None:
        graph = graph_of()
        model = MODELS["gcn"].of([FEATURES, 4, CLASSES])
        for layer in (0, 3, 1.5):
            with pytest.raises(InputError, match=r"layer must be an integer in \[1, 2\]"):
                spgnn.infer(model, graph, layer=layer if rank else 0)
        with pytest.raises(InputError, match=r"layer=1 needs .* layers called convs; Wrong"):
            spgnn.infer(Wrong(None), graph, layer=1)
        with pytest.raises(InputError, match=r"must be a torch.nn.Module, got int"):
            spgnn.infer(3, graph)
        with pytest.raises(InputError, match="the graph has no features; give x"):
            spgnn.infer(model, graph.matrix("sym"))
        other = MODELS["gcn"].of([FEATURES, 4, CLASSES], seed=rank)
        with pytest.raises(InputError, match=r"convs.0.lin.weight of the model.* on rank 1"):
            spgnn.infer(other, graph)

    run_ranks(body, 2)


def test_memory_is_that_of_two_layers():
    """Of 12 layers, never more than two activations live beside the features."""
    from torch.utils._python_dispatch import TorchDispatchMode

    graph = graph_of("block")
    model = MODELS["gcn"].of([FEATURES] + [64] * 12)
    activation = N * 64 * 4
    alive, most = {}, 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            import weakref

            nonlocal most
            made = func(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, tuple | list) else [made]:
                if isinstance(tensor, torch.Tensor) and tensor.shape[:1] == (N,):
                    storage = tensor.untyped_storage()
                    if storage._cdata not in alive:
                        alive[storage._cdata] = storage.nbytes()
                        weakref.finalize(storage, alive.pop, storage._cdata, None)
            most = max(most, sum(alive.values()))
            return made

    expected = model(graph.x, graph).detach()
    with Watch():
        found = spgnn.infer(model, graph)
    torch.testing.assert_close(found, expected)
    # H W and A (H W) beside H.
    assert most <= 3 * activation + graph.x.nbytes


def test_example_of_the_page():
    text = (Path(__file__).parents[2] / "docs" / "infer.md").read_text()
    scope: dict = {}
    exec(
        compile(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0], "infer.md", "exec"),
        scope,
    )
    assert scope["scores"].shape == (4, 3)
    assert scope["embeddings"].shape == (4, 16)
