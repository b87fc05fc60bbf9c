"""Models of numbered steps on the rows of one chunk.

A step's aggregation comes first; then its norms take moments of all vertices, and attention to all
of them takes sums. Those that do not depend on each other are one more pass over the chunks. A run
on no rows tells which these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from spgnn.addons.outofcore.chunked_model import NO_KEYS, ChunkedModel, ChunkRows
from spgnn.addons.outofcore.matrix import Request
from spgnn.comm import RowCounts
from spgnn.errors import InputError
from spgnn.graph import Aggregation, Features, Graph, Matrix, Moments, Normalisation
from spgnn.nn import DropoutKeys, Network, Stack, Stepwise, keys_on, layer_widths, run_stages


class _NoRows(ChunkRows):
    """No rows, which a step is run on to see what it asks for."""

    def __init__(self) -> None:
        super().__init__(torch.empty(0, dtype=torch.int64), num_nodes=2)
        self.groups, self.inner = list[int](), 0  # numbers of sums; columns that attention makes
        self._unknown = list[Tensor]()  # sums of the last group

    def aggregate(self, request: Aggregation) -> Tensor:
        """A product without rows; refuses what is no single product that comes first."""
        first = self.request is None and not self.groups
        if not first or request.reduce != "sum" or request.edge or request.dropped:
            raise InputError(
                "--memory, --spill and --chunks: steps, and layers that aggregate several times, "
                "need products with the graph's matrix, before any norm or attention, and none of "
                "whose edges are dropped"
            )
        self.request = request
        operand, first = self.operand(request)
        return self._combine(request, operand * 0, operand, first=first)

    def moments(self, x: Tensor) -> Moments:
        """Moments that depend on nothing."""
        one = self._of_group(x, x.new_ones(x.shape[1]))
        return Moments(x, x.new_ones(x.shape[1]), one, one, 2, updates=False)

    def total(self, own: Tensor) -> Tensor:
        """A sum that depends on nothing."""
        heads, *widths = own.shape if own.dim() == 3 else (1, *own.shape)
        self.inner = max(self.inner, heads * sum(widths))
        return self._of_group(own, torch.ones_like(own))

    def _of_group(self, x: Tensor, result: Tensor) -> Tensor:
        """A result that is computed in one pass with those before it that x does not depend on."""
        depends = not self.groups
        if self._unknown and x.requires_grad:
            of_sums = torch.autograd.grad(
                x.sum(), self._unknown, allow_unused=True, retain_graph=True
            )
            depends = any(gradient is not None for gradient in of_sums)
        if depends:
            self.groups.append(0)
            self._unknown = []
        self.groups[-1] += 1
        self._unknown.append(result.requires_grad_())
        return result


class ChunkedSteps(ChunkedModel):
    """The steps of a model, one at a time, on the rows of any chunk.

    What a step takes of the one before it, one or several tensors, is one table.
    """

    model: Stepwise | StackSteps  # type: ignore[assignment]  # a stack is cut into layers otherwise
    keeps_first = drops_edges = takes_propagated = False

    def __init__(self, model: Stepwise | StackSteps) -> None:
        self.model, self.layers, self.jumps = model, model.steps, False
        self.edge_dim, self.edgewise = 0, {}
        self.dtype = next(model.parameters()).dtype
        self._seen: dict[tuple[int, bool], _NoRows] = {}
        self._parts, self.widths = [[model.in_channels]], list[int]()
        for number in range(self.layers):
            self.widths.append(sum(self._parts[number]))
            self._parts.append(self._see(number))
        self.widths.append(sum(self._parts[-1]))
        self.requests = [self.of_no_rows(n, width) for n, width in enumerate(self.widths[:-1])]

    def _see(self, number: int) -> list[int]:
        """Run a step on no rows; the widths of what it returns."""
        rows = self._seen[number, self.model.training] = _NoRows()
        with torch.enable_grad():
            results = self._run(number, self._nothing(number), rows, NO_KEYS)
        return [one.shape[1] for one in results]

    def _nothing(self, number: int) -> Tensor:
        return torch.zeros(0, self.widths[number], dtype=self.dtype)

    def _run(
        self, number: int, H: Features, rows: ChunkRows, keys: DropoutKeys | None
    ) -> tuple[Tensor, ...]:
        assert isinstance(H, Tensor)
        parts = self._parts[number]
        inputs = [part.contiguous() for part in H.split(parts, 1)] if len(parts) > 1 else [H]
        return self.model.step(number, tuple(inputs), rows, keys_on(keys, rows.vertex_ids))

    def _asks(self, number: int) -> _NoRows:
        """The run on no rows, of a step as the model is now."""
        if (number, self.model.training) not in self._seen:
            self._see(number)
        return self._seen[number, self.model.training]

    def reads_own(self, number: int) -> bool:
        """Always: what it takes is all that there is."""
        return True

    def multiplies_in(self, number: int) -> bool:
        """True if a step has an aggregation."""
        return self._asks(number).request is not None

    def norms(self, number: int) -> int:
        """Passes of a step that compute sums over all vertices, as the model is now."""
        return len(self._asks(number).groups)

    def inner(self, number: int) -> int:
        """Columns that a step makes for its sums."""
        return self._asks(number).inner

    def of_no_rows(self, number: int, width: int, *, sparse: bool = False) -> Request:
        """A step's request; of no columns, if it has none."""
        request = self._asks(number).request
        if request is None:
            return Request(torch.empty(0, 0, dtype=self.dtype))
        operand, first = self._asks(number).operand(request)
        return Request(operand, first)

    def layer(self, number: int, H: Features, rows: ChunkRows, keys: DropoutKeys | None) -> Tensor:
        """The results of a step, side by side."""
        results = self._run(number, H, rows, keys)
        return results[0] if len(results) == 1 else torch.cat(results, 1)

    def sums_of(self, number: int, done: int) -> int:
        """Number of sums over all vertices that a step's next pass computes."""
        return self._asks(number).groups[done]

    def outputs(self, of_layers: Sequence[Tensor], keys: DropoutKeys | None) -> Tensor:
        """The result of the last step."""
        return of_layers[-1]


class _NextHop(Exception):
    """A layer has come to the product after the one that it was to make."""


class _Hops(Graph):
    """A layer's graph: its first products are known, one more is computed, and there it ends."""

    def __init__(self, on: Graph, products: Sequence[Tensor]) -> None:
        self._on, self.products, self.vertex_ids = on, list(products), on.vertex_ids
        self._taken, self._first_new = 0, len(products)

    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """That of the step's graph."""
        return self._on.matrix(normalisation)

    def aggregate(self, request: Aggregation) -> Tensor:
        """The next product, which layers may overwrite."""
        if self._taken > self._first_new:
            raise _NextHop
        if self._taken == self._first_new:
            self.products.append(self._on.aggregate(request))
        self._taken += 1
        return self.products[self._taken - 1].clone()

    def _multiplies_first(self, f_in: int, f_out: int, *, gradient: bool) -> bool:
        """The narrower is multiplied, in every step and pass."""
        return f_out <= f_in

    def moments(self, x: Tensor) -> Moments:
        """Moments that the step's graph has."""
        return self._on.moments(x)

    def total(self, own: Tensor) -> Tensor:
        """That of the step's graph."""
        return self._on.total(own)

    def ring(self, rows: int) -> list[RowCounts]:
        """That of the step's graph."""
        return self._on.ring(rows)


class StackSteps:
    """A stack whose layers aggregate several times, as steps: a layer begins anew with each.

    Besides what a layer takes, the products so far go from step to step.
    """

    def __init__(self, stack: Stack) -> None:
        if stack.jk_mode is not None:
            raise InputError("--memory, --spill and --chunks: several products a layer need no jk")
        self.stack, self.in_channels, self.parameters = stack, stack.in_channels, stack.parameters
        self._places = list[tuple[int, int]]()
        ends = stack.in_channels, stack.hidden_channels, stack.num_layers, stack.out_channels
        dtype = next(stack.parameters()).dtype
        for number, width in enumerate(layer_widths(*ends, None)[:-1]):
            H, hops = torch.zeros(0, width, dtype=dtype), _Hops(_NoRows(), [])
            while self._of_layer(number, H, hops, NO_KEYS) is None:
                hops = _Hops(_NoRows(), hops.products)
            self._places += [(number, hop) for hop in range(max(len(hops.products), 1))]

    @property
    def training(self) -> bool:
        """As of the stack."""
        return self.stack.training

    @property
    def steps(self) -> int:
        """Number of products."""
        return len(self._places)

    def step(
        self, number: int, rows: tuple[Tensor, ...], on: Graph, keys: DropoutKeys | None
    ) -> tuple[Tensor, ...]:
        """A product of a layer, and after the last one all that follows."""
        (layer, hop), (H, *products) = self._places[number], rows
        if not hop:
            dropped = self.stack.entering(layer, H, on, keys)
            assert isinstance(dropped, Tensor)
            H = dropped
        hops = _Hops(on, products)
        Z = self._of_layer(layer, H, hops, keys)
        if Z is None:
            return (H, *hops.products)
        return (run_stages(self.stack.call_of(layer).stages(H, on), Z, on),)

    def _of_layer(
        self, number: int, H: Tensor, on: Graph, keys: DropoutKeys | None
    ) -> Tensor | None:
        """The rows of a layer; none if it needs one more product."""
        layer, Z = self.stack.convolutions[number], None
        with suppress(_NextHop):
            Z = layer(H, on, **({"keys": keys} if layer.uses_keys else {}))
        return Z


def chunked(model: Network | StackSteps, edge_dim: int = 0) -> ChunkedModel:
    """The layers, or steps, of a model, on edges with so many features."""
    if isinstance(model, Stack) and any(
        not (layer.aggregates_once or layer.uses_edges) for layer in model.convolutions
    ):
        model = StackSteps(model)
    if isinstance(model, Stepwise | StackSteps):
        return ChunkedSteps(model)
    if isinstance(model, Stack):
        return ChunkedModel(model, edge_dim)
    raise InputError(
        f"{type(model).__name__}: --memory, --spill and --chunks need a Stack or a Stepwise"
    )
