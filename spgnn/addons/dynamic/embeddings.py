"""Results of all layers of a model on a graph that changes, kept up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from spgnn import _native
from spgnn.addons.dynamic.field import field_of, hops_of, rows_of
from spgnn.addons.dynamic.updates import ChangingEdges, Int64, changing_edges
from spgnn.data import POWERS
from spgnn.errors import InputError
from spgnn.exchange import swap_rows
from spgnn.graph import (
    RECIPES,
    Aggregation,
    DistGraph,
    DistributedGraph,
    Features,
    Graph,
    LocalEdges,
    LocalMatrix,
    Matrix,
    Normalisation,
    check_replicated,
    times,
)
from spgnn.inference import infer
from spgnn.nn import AttentionConv, Norm, Stack, evaluating, find_widths, run_stages
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE, check_degrees
from spgnn.torch_internals import has_hooks, on_cpu


class _Rows(Graph):
    """Some rows of a graph, as layers take it; with a block, the sums of their neighbours."""

    def __init__(self, weights: Tensor | None, block: CSR | None = None) -> None:
        self._weights, self._block = weights, block

    @property
    def local_edges(self) -> LocalEdges:
        """Their weights, where edges have some."""
        return LocalEdges(self.matrix, attributes={"edge_weight": self._weights})

    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """The block, of whatever normalisation."""
        if self._block is None:
            raise InputError("infer(since=…): a layer looks at its edges; leave since out")
        return LocalMatrix(self._block)

    def _multiplies_first(self, f_in: int, f_out: int, *, gradient: bool) -> bool:
        """Always: so few rows are multiplied as changed."""
        return True


@dataclass(eq=False)
class _Layer:
    """State of a layer: of each row of its input, what it hands to those it is a neighbour of."""

    operand: Tensor | None = None
    root: Tensor | None = None
    destinations: Tensor | None = None
    output: Tensor | None = None
    scaled: bool = False


class Embeddings:
    """Outputs of a model on a graph, brought up to date after updates. Collective.

    Everything is computed once. After :meth:`spgnn.DistGraph.update`, ``spgnn.infer(model, graph,
    since=embeddings)`` computes those rows again that an update reaches, of a `Stack` whose layers
    aggregate once layer by layer, from their neighbours' rows: what is left is never added to, so
    errors do not grow. Rows of other ranks travel where they changed. Any other model runs on the
    graph that such rows depend on; if they depend on all of it, everything is computed.

    Parameters
    ----------
    model : Module
        As :func:`spgnn.infer` takes it.
    graph : DistGraph
        With features.

    Attributes
    ----------
    outputs : Tensor [own rows, …]
        What the model returns; overwritten when it is brought up to date.
    changed : Tensor int64 [k]
        Own rows whose outputs the last call changed.
    layers : list of Tensor [own rows, …]
        What each layer hands to the next one; the last, what it makes. Empty, where a model does
        not work layer by layer.
    version : int
        Of the graph.
    """

    outputs: Tensor
    changed: Tensor
    _receivers: Int64
    _features: npt.NDArray[np.bool_]
    _structure: npt.NDArray[np.bool_]
    _joint: Tensor | None

    @on_cpu
    def __init__(self, model: nn.Module, graph: DistGraph) -> None:
        candidate: object = graph
        if not isinstance(candidate, DistGraph):
            if isinstance(candidate, DistributedGraph):
                raise InputError(
                    "Embeddings: rows that follow updates are of graphs of one vertex type; "
                    "infer(model, graph) computes those of several"
                )
            kind = type(candidate).__name__
            raise InputError(f"Embeddings: give a graph of spgnn.distribute, not a {kind}")
        graph.comm.on_every_rank(lambda: _check(model, graph))
        self.model, self.graph, self.version = model, graph, -1
        self._edges: ChangingEdges = changing_edges(graph)
        self._stack = model if _by_layers(model) else None
        self._hops: int | None = None
        self._parameters: list[Tensor] = []
        self._cast: torch.dtype | None = None
        self._begin()
        self._edges.watchers.add(self)
        self.update()

    @property
    def layers(self) -> list[Tensor]:
        """Output of each layer."""
        return [layer.output for layer in self._layers if layer.output is not None]

    def edges_changed(self, targets: Int64, receivers: Int64) -> None:
        """Note rows whose neighbours an update changed, and rows that other ranks ask for."""
        if not self._knows_features():
            self._features[:] = True
        self._structure[targets] = True
        self._receivers = np.concatenate((self._receivers, receivers), axis=1)

    def rows_changed(self, rows: Mapping[str, Int64]) -> None:
        """Note vertices of which an update changed what the model may look at."""
        for name in rows:
            if name == "x" or (self._stack is None and name in self.graph.attributes):
                self._features[rows[name]] = True
        self._inputs = self._seen()

    def vertices_added(self, first: int, count: int) -> None:
        """Make room for rows of new vertices, which differ from whatever is computed of them."""

        def grown(rows: Tensor | None) -> Tensor | None:
            if rows is None:
                return None
            new = rows.new_full((count, *rows.shape[1:]), torch.nan)
            return torch.cat((rows[:first], new, rows[first:]))

        for layer in self._layers:
            for name in ("operand", "root", "destinations", "output"):
                setattr(layer, name, grown(getattr(layer, name)))
        self._joint = grown(self._joint)
        new = np.ones(count, np.bool_)
        self._features = np.append(self._features, new)
        self._structure = np.append(self._structure, new)

    def _seen(self) -> list[tuple[object, int]]:
        """Rows of vertices that the model may look at, and how often torch wrote to them."""
        rows = [self.graph.x, *(self.graph.attributes.values() if self._stack is None else ())]
        return [(one, one._version if isinstance(one, Tensor) else 0) for one in rows]

    def _knows_features(self) -> bool:
        """False if somebody else wrote to the features, or put others in their place."""
        seen = self._seen()
        return len(seen) == len(self._inputs) and all(
            one is other and version == before
            for (one, version), (other, before) in zip(seen, self._inputs, strict=True)
        )

    @on_cpu
    def update(self) -> None:
        """Compute again what changed since the last time. Collective."""
        self.graph.comm.check_agreement("infer(since=…)", version=self.graph.version)
        with evaluating(self.model), torch.no_grad():
            self._update()

    def _update(self) -> None:
        comm, model = self.graph.comm, self.model
        device = self.graph.device.type
        cast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        stores = [store for part in model.modules() for store in (part._parameters, part._buffers)]
        state = [t for store in stores for t in store.values() if t is not None]
        same = len(state) == len(self._parameters) and cast == self._cast
        same = same and self._knows_features() and all(map(_equal, state, self._parameters))
        if comm.agree(int(not same)):
            check_replicated(model, comm)
            self._begin()
            self._parameters, self._cast = [t.detach().clone() for t in state], cast
        changed, structure = np.flatnonzero(self._features), np.flatnonzero(self._structure)
        # If anything fails half-way, all of it is computed the next time.
        parameters, self._parameters = self._parameters, []
        if self._stack is None:
            changed = self._run_whole(np.union1d(changed, structure))
        else:
            changed = self._run_layers(changed, structure)
        self.changed, self._parameters = torch.from_numpy(changed), parameters
        self._features[:], self._structure[:] = False, False
        self._receivers = self._receivers[:, :0]
        self.version = self.graph.version

    def _run_layers(self, changed: Int64, structure: Int64) -> Int64:
        """Run layer by layer on what changed; the rows of the outputs that did."""
        model, weighted = self._stack, self._edges.sources.weighted
        assert model is not None
        self._convolutions = model.convolutions
        self._on = _Rows(torch.ones(0) if weighted else None)
        H: Features | None = self.graph.x
        assert H is not None
        joined = changed[:0]
        for number, layer in enumerate(self._layers):
            changed = self._run(number, H, changed, structure)
            if model.jk_mode is not None:
                joined = np.union1d(joined, changed)
            assert layer.output is not None
            H = layer.output
        self.outputs = self.layers[-1]
        if model.jk_mode is not None:
            self.outputs, changed = self._joined(joined), joined
        return changed

    def _run_whole(self, changed: Int64) -> Int64:
        """Run a model of any kind on the graph that decides the rows which these reach."""
        graph, part, before = self.graph, None, self._joint
        if before is not None and not graph.comm.agree(len(changed)):
            return changed
        if before is not None and self._hops is not None:
            part = field_of(graph, self._edges, changed, self._hops)
        if part is None or before is None:
            self.outputs = self._joint = infer(self.model, graph)
            if before is None:
                self._hops = hops_of(self.model, graph)
                return np.arange(graph.own_rows)
            return _different(before, self.outputs)
        some, places, rows = part
        at = torch.from_numpy(rows).to(graph.device)
        old, new = before.index_select(0, at), infer(self.model, some)[places.to(graph.device)]
        self.outputs = before.index_copy_(0, at, new)
        return rows[_different(old, new)]

    def _begin(self) -> None:
        """Everything is out of date."""
        own, edges = self._edges.own_rows, self._edges
        self._layers = [_Layer() for _ in range(self._stack.num_layers if self._stack else 0)]
        self._features, self._structure = np.ones((2, own), np.bool_)
        indptr, ranks, _ = edges.receivers.take(np.arange(own))
        self._receivers = np.stack((np.repeat(np.arange(own), np.diff(indptr)), ranks))
        self._joint = None
        self._inputs = self._seen()

    def _run(self, number: int, H: Features, changed: Int64, structure: Int64) -> Int64:
        """Run a layer on what changed of its input H; the rows of its result that did."""
        layer, state, edges = self._convolutions[number], self._layers[number], self._edges
        inputs = np.union1d(changed, structure) if state.scaled else changed
        at = torch.from_numpy(inputs).to(self.graph.device)
        some = rows_of(H, at)
        request = layer.aggregation(some, self._on, None, None)
        loops, scaling = RECIPES[request.normalisation]
        if edges.sources.weighted and scaling != "none":
            ids = self.graph.vertex_ids.cpu()[torch.from_numpy(structure)]
            degrees = self._degrees(structure, loops)
            self.graph.comm.on_every_rank(lambda: check_degrees(degrees, ids))
        rows, _ = self._on.operand(request)
        assert isinstance(rows, Tensor)
        if state.operand is None:
            state.scaled = request.reduce == "sum" and scaling == "sym"
        if state.scaled:
            rows = rows * self._scale(inputs, loops, POWERS[scaling], rows)[:, None]
        state.operand = _written(state.operand, at, rows, edges.columns)
        if request.root is not None:
            root = times(some, request.root).to(rows.dtype)
            state.root = _written(state.root, at, root, edges.own_rows)
        if request.scores is not None:
            destinations = request.scores.destinations
            state.destinations = _written(state.destinations, at, destinations, edges.own_rows)
        received = self._exchange(inputs, state.operand)
        columns, others = np.concatenate((inputs, received)), np.concatenate((inputs, structure))
        reached = edges.targets.ends(columns, others, edges.own_rows)
        return self._computed(number, request, H, reached)

    def _exchange(self, inputs: Int64, operand: Tensor) -> Int64:
        """Send rows that changed to the ranks that have them; the columns that arrived here."""
        edges, comm = self._edges, self.graph.comm
        if comm.size == 1:
            return inputs[:0]
        rows, counts, columns = edges.spread(inputs, self._receivers)
        sent = operand.index_select(0, torch.from_numpy(rows).to(operand.device))
        at = torch.from_numpy(columns).to(operand.device)
        operand.index_copy_(0, at, swap_rows(comm, sent, counts))
        return columns

    def _computed(self, number: int, request: Aggregation, H: Features, reached: Int64) -> Int64:
        """Compute rows of a layer's result; those that are others than before."""
        layer, state, model = self._convolutions[number], self._layers[number], self._stack
        assert model is not None
        at = torch.from_numpy(reached).to(self.graph.device)
        Z = self._reduced(request, state, reached, at)
        # Where own rows are part of the sum already, nobody looks at them again.
        summed = request.root is not None or request.self_loop is not None
        looks = layer.uses_own_rows and not summed
        own = rows_of(H, at) if looks or len(model.residuals) else Z[:0]
        Z = layer.update(Z, own, self._on)
        stages = [*layer.tail(), *model.call_of(number).stages(own, self._on)]
        Z = run_stages(stages, Z, self._on, layer.shift)
        if state.output is None or not Z.is_cpu:
            before = None if state.output is None else state.output.index_select(0, at)
            state.output = _written(state.output, at, Z, self._edges.own_rows)
            return reached if before is None else reached[_different(before, Z)]
        return _native.put_rows(state.output, reached, Z.to(state.output.dtype))

    def _reduced(self, request: Aggregation, state: _Layer, rows: Int64, at: Tensor) -> Tensor:
        """Rows of an aggregation, of all their neighbours' operands."""
        operand, edges, loops = state.operand, self._edges, RECIPES[request.normalisation][0]
        assert operand is not None
        bare = ~edges.looped[rows] & bool(loops)
        indptr, columns, values = edges.sources.take(rows, ~bare)
        if loops > 1:
            values = np.ones(len(columns), np.float32) if values is None else values
            values[indptr[:-1][bare]] = loops
        shape = len(rows), len(operand)
        pattern = Pattern.trusted(torch.from_numpy(indptr), torch.from_numpy(columns), shape)
        linear, scores, scale = request.reduce == "sum", request.scores, None
        scaling = RECIPES[request.normalisation][1]
        if scaling != "none":
            scale = self._scale(rows, loops, POWERS[scaling], operand)
        of_edges = None if values is None or not linear else torch.from_numpy(values)
        block = CSR(pattern, of_edges).to(operand.device)
        if scores is not None:
            assert state.destinations is not None
            scores = replace(scores, destinations=state.destinations.index_select(0, at))
        # What is kept of each row was multiplied before it is added up.
        weight = None if linear else request.weight
        mine: dict[str, Any] = {"operand": operand, "weight": weight, "scores": scores}
        on = _Rows(None, block.with_scales(scale, None))
        Z = on.aggregate(replace(request, **mine, root=None, self_loop=None))
        if linear and request.self_loop is not None:
            Z = Z.addcmul_(operand.index_select(0, at), request.self_loop)
        return Z if state.root is None else Z.add_(state.root.index_select(0, at))

    def _degrees(self, rows: Int64, loops: int) -> npt.NDArray[np.float64]:
        return self._edges.degrees[rows] + loops * ~self._edges.looped[rows]

    def _scale(self, rows: Int64, loops: int, power: float, like: Tensor) -> Tensor:
        """Powers of the degrees of own rows, 0 of 0, as sums of rows like these need them."""
        degree = self._degrees(rows, loops)
        scale = np.zeros_like(degree)
        np.power(degree, power, out=scale, where=degree > 0)
        return torch.from_numpy(scale).to(like.device, SUM_DTYPE[like.dtype])

    def _joined(self, changed: Int64) -> Tensor:
        """Compute rows of the output of all layers together."""
        model: Any = self._stack
        at = torch.from_numpy(changed).to(self.graph.device)
        rows = model.jk([layer.index_select(0, at) for layer in self.layers])
        self._joint = _written(self._joint, at, model.lin(rows), self._edges.own_rows)
        return self._joint


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)


def _different(before: Tensor, after: Tensor) -> Int64:
    return np.flatnonzero((before != after).flatten(1).any(1).cpu().numpy())


def _written(array: Tensor | None, at: Tensor, rows: Tensor, count: int) -> Tensor:
    """An array of at least so many rows, these among them."""
    if array is None or len(array) < count:
        larger = rows.new_zeros(count if array is None else count + count // 8, *rows.shape[1:])
        if array is not None:
            larger[: len(array)] = array
        array = larger
    return array.index_copy_(0, at, rows.to(array.dtype))


def _check(model: object, graph: DistGraph) -> None:
    """Refuse what no model can be run on."""
    if graph.x is None:
        raise InputError("Embeddings: the graph has no features")
    if not isinstance(model, nn.Module):
        raise InputError(f"Embeddings: give a torch.nn.Module, not {type(model).__name__}")
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise InputError("Embeddings: the model does not know its widths: call it once before")
    for part in model.modules():
        if getattr(part, "cached", None) is True:  # as layers of PyG
            kind = type(part).__name__
            raise InputError(
                f"Embeddings: {kind}(cached=True) stays with the edges of its first call"
            )


def _by_layers(model: nn.Module) -> TypeGuard[Stack]:
    """True for a stack of layers that are one aggregation of rows each, and look at no others."""
    if type(model).forward is not Stack.forward or not isinstance(model, Stack):
        return False
    for layer in model.convolutions:
        plain = isinstance(layer, AttentionConv) and layer.lin_edge is None
        looks_at_edges = layer.uses_edges and not plain
        if not layer.aggregates_once or has_hooks(layer, find_widths) or looks_at_edges:
            return False
    with evaluating(model):
        return not any(isinstance(p, Norm) and p.needs_moments for p in model.modules())
