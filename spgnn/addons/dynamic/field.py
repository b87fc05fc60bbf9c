"""The receptive field of changed rows as a graph of its own, and how far a model looks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from spgnn.addons.dynamic.updates import ChangingEdges, Int64
from spgnn.comm import SoloCommunicator
from spgnn.data import RankShare, VertexData
from spgnn.graph import DistGraph, Edges, Features
from spgnn.inference import infer
from spgnn.layout import RowLayout
from spgnn.sparse import CSR, take_rows

_PATHS, _LENGTH = 4, 129


def rows_of(H: Features, at: Tensor) -> Tensor | CSR:
    """Some rows of dense or sparse ones."""
    assert isinstance(H, Tensor | CSR)
    return take_rows(H, at) if isinstance(H, CSR) else H.index_select(0, at)


def field_of(
    graph: DistGraph, edges: ChangingEdges, changed: Int64, hops: int
) -> tuple[DistGraph, Tensor, Int64] | None:
    """The graph that decides the rows which these reach. Collective.

    With where they stand there, and the rows themselves. ``None`` if it is half of the whole graph.
    """
    rows = edges.led_to(changed, hops)
    full = edges.leading_to(rows, hops)  # of their neighbours, the degrees count as well
    every = edges.leading_to(full, 1)
    if 2 * graph.comm.agree(len(every), "sum") > graph.num_nodes:
        return None
    share, number = edges.share_of(every, full)
    listed = graph.given_edges
    at = torch.from_numpy(every).to(graph.device)
    state = {name: rows_of(values, at) for name, values in _rows_of_vertices(graph).items()}
    part = None if listed is None else edges.edges_of(listed, full, number)
    places = torch.from_numpy(np.searchsorted(every, rows))
    return graph.of_share(share, part, state), places, rows


def _rows_of_vertices(graph: DistGraph) -> dict[str, Tensor | CSR]:
    assert graph.x is not None
    return {"x": graph.x, **graph.attributes}


def hops_of(model: nn.Module, graph: DistGraph) -> int | None:
    """Count the edges over which a vertex and its in-edges reach a model's rows. Collective.

    ``None`` where rows depend on others than such paths lead to them from. The model runs on paths:
    once as they are, once with NaN half-way, once with an edge more between any two of them,
    and once beside as many vertices again.
    """
    try:
        hops = _hops(model, graph)
    except Exception:  # a model that cannot run on other graphs
        hops = None
    return None if graph.comm.agree(int(hops is None)) else graph.comm.agree(hops or 0)


def _hops(model: nn.Module, graph: DistGraph) -> int | None:
    if not all(values.is_floating_point() for values in (graph.x,) if isinstance(values, Tensor)):
        return None
    n, middle, paths = 2 * _PATHS * _LENGTH, _LENGTH // 2, 2 * _PATHS
    halfway = torch.arange(_PATHS) * _LENGTH + middle
    begins = torch.arange(n).reshape(paths, -1)[:, :-1].flatten()
    path = torch.stack((begins, begins + 1))
    across = torch.stack((halfway, halfway + n // 2))
    state = {}
    for number, (name, like) in enumerate(_rows_of_vertices(graph).items()):
        dtype = torch.float32 if isinstance(like, CSR) else like.dtype
        state[name] = _drawn((n, *like.shape[1:]), dtype, number)
    broken = {name: rows.clone() for name, rows in state.items()}
    doubled = {name: torch.cat((rows, rows)) for name, rows in state.items()}
    for values in broken.values():
        if values.is_floating_point():
            values[halfway] = torch.nan
    usual = _run(model, graph, path, state)
    apart = 1e-5 * usual.abs().max()
    reached = []
    for index, rows in ((path, broken), (torch.cat((path, across), 1), state), (path, doubled)):
        same = (_run(model, graph, index, rows)[:n] - usual).abs() <= apart
        reached.append(~same.flatten(1).all(1).reshape(2, _PATHS, _LENGTH).any(1))
    (through, elsewhere), (before, beyond), more = reached
    far = (through | beyond).nonzero()[:, 0]
    wrong = elsewhere.any() or before.any() or more.any() or not len(far)
    if wrong or far.min() < middle or far.max() == _LENGTH - 1:
        return None
    return int(far.max()) - middle


def _drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _run(model: nn.Module, graph: DistGraph, index: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The outputs of a model on a graph of these edges, on this rank alone."""
    n, edges = len(state["x"]), index.shape[1]
    order = index[1].argsort(stable=True)
    index = index[:, order]
    indptr = torch.zeros(n + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(index[1], minlength=n), 0, out=indptr[1:])
    weights = torch.ones(edges) if graph.meta.weighted else None
    meta = replace(graph.meta, vertices=n, edges=edges, offsets=(0, n))
    A = CSR.of(indptr, index[0], (n, n), weights)
    share = RankShare(meta, RowLayout(np.array((0, n))), A, torch.arange(n), VertexData())
    listed = None
    if graph.given_edges is not None:
        attributes = {
            name: _drawn((2 * n, *t.shape[1:]), t.dtype, 0)[order]  # of a path, always the same
            for name, t in graph.given_edges.attributes.items()
        }
        listed = Edges(index, attributes)
    outputs: Tensor = infer(model, graph.of_share(share, listed, state, SoloCommunicator()))
    return outputs.double().cpu()
