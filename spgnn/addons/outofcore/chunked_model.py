"""A model's layers on the rows of one chunk, with the products between them computed elsewhere.

Of a layer, everything but its aggregation treats rows independently. So its request is computed
chunk by chunk, the product streams by, and the layer goes on from it, chunk by chunk, with norms
that are given the moments of all vertices. Autograd records both as ever, for these rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spgnn.addons.outofcore.edges import EdgeRows
from spgnn.addons.outofcore.matrix import Request
from spgnn.autograd import with_backward
from spgnn.comm import Communicator, RowCounts
from spgnn.errors import InputError
from spgnn.graph import (
    Aggregation,
    Features,
    Graph,
    Matrix,
    Moments,
    Normalisation,
    Propagated,
    densified,
    times,
)
from spgnn.kernels import bfloat16, transposed_times
from spgnn.nn import (
    AttentionConv,
    DropoutKeys,
    Norm,
    Stack,
    dropout,
    keys_on,
    layer_widths,
    run_stages,
)
from spgnn.pattern import Pattern
from spgnn.sparse import CSR, SUM_DTYPE

NO_KEYS = DropoutKeys(torch.empty(0, dtype=torch.int64), 0, 0)


class VertexMoments:
    """Mean and variance over all vertices of what one norm takes, whose rows come by chunks."""

    leaves = 2
    # both float64 over all ranks, once computed: rows sent backward then have their share
    gradient: list[Tensor] | None = None
    count: int
    variance: Tensor

    def __init__(self) -> None:
        self._rows = 0
        self.mean = self._squares = torch.zeros(0, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Rows [rows, f] that a norm takes."""
        if len(self.mean) != x.shape[1]:
            self.mean = self._squares = x.new_zeros(x.shape[1], dtype=torch.float64)
        rows = len(x)
        if not rows:
            return
        centre = x.mean(0)
        variance, rest = torch.var_mean(x - centre, 0, correction=0)
        apart = centre.double() + rest.double() - self.mean
        total = self._rows + rows
        self.mean = self.mean + apart * (rows / total)
        between = apart.square() * (self._rows * rows / total)
        self._squares = self._squares + rows * variance.double() + between
        self._rows = total

    def over_ranks(self, comm: Communicator) -> None:
        """From the rows of this rank to all vertices. Collective."""
        self.count, squares = self._rows, self._squares
        if comm.size > 1:
            total = torch.cat((self.count * self.mean, self.mean.new_tensor([self.count])))
            comm.all_reduce(total).wait()
            self.count = int(total[-1])
            middle = total[:-1] / max(self.count, 1)
            squares = squares + self._rows * (self.mean - middle).square()
            comm.all_reduce(squares).wait()
            self.mean = middle
        self.variance = squares / max(self.count, 1)

    def of(self, x: Tensor, *, leaf: bool, updates: bool = False) -> tuple[Moments, list[Tensor]]:
        """As the norm takes them, of some rows [rows, f]; and the leaves, mean and variance."""
        centre = self.mean.to(x.dtype)
        mean = (self.mean - centre).to(x.dtype).requires_grad_(leaf)
        variance = self.variance.to(x.dtype).requires_grad_(leaf)
        centred = x - centre
        if self.gradient is not None and centred.requires_grad:
            # Rows have a share in the gradients of mean and variance.
            of_mean, of_variance = ((each / self.count).to(centred.dtype) for each in self.gradient)
            shift, rows = of_mean - 2 * of_variance * mean.detach(), centred.detach()
            centred.register_hook(lambda G: torch.addcmul(G + shift, rows, 2 * of_variance))
        moments = Moments(centred, centre, mean, variance, self.count, updates=updates)
        return moments, [mean, variance] if leaf else []


class VertexTotal:
    """A sum over all vertices, whose shares come by chunks."""

    leaves = 1
    # float64 over all ranks, once computed: rows sent backward then have it
    gradient: list[Tensor] | None = None
    value: Tensor | None = None

    def add(self, own: Tensor) -> None:
        """The share of some rows."""
        self.value = own.double() if self.value is None else self.value + own

    def over_ranks(self, comm: Communicator) -> None:
        """From the shares of this rank to the sum over all vertices. Collective."""
        assert self.value is not None
        if comm.size > 1:
            comm.all_reduce(self.value).wait()

    def of(self, own: Tensor, *, leaf: bool) -> tuple[Tensor, list[Tensor]]:
        """The sum, as some rows take it that have a share in it; and the leaf."""
        assert self.value is not None
        value = self.value.to(own.dtype).requires_grad_(leaf)
        if self.gradient is not None and own.requires_grad:
            (gradient,) = (each.to(own.dtype) for each in self.gradient)
            nothing = own - own.detach()
            nothing.register_hook(lambda G: gradient)
            value = value + nothing
        return value, [value] if leaf else []


VertexSums = VertexMoments | VertexTotal
"""Sums over all vertices, whose shares come chunk by chunk."""


class Arrived(Exception):
    """A layer has come to what was to be computed of it."""


class MomentGradients:
    """Gradients of sums over all vertices, added up chunk by chunk."""

    def __init__(self) -> None:
        self._total: list[Tensor] = []

    def add(self, H: Tensor, dH: Tensor, leaves: list[Tensor]) -> None:
        """Add the gradients that some output rows of a layer contribute."""
        gradients = torch.autograd.grad(H, leaves, dH, allow_unused=True)
        self._total = self._total or [torch.zeros_like(leaf).double() for leaf in leaves]
        for total, gradient in zip(self._total, gradients, strict=True):
            if gradient is not None:
                total.add_(gradient.detach())

    def over_ranks(self, comm: Communicator, group: Sequence[Any]) -> None:
        """Give the gradients of all rows to what they are of. Collective."""
        for one in group:
            one.gradient, self._total = self._total[: one.leaves], self._total[one.leaves :]
            for gradient in one.gradient if comm.size > 1 else ():
                comm.all_reduce(gradient).wait()


class ChunkRows(Graph):
    """The rows of one chunk, as a layer's graph: its aggregation is a product that is given.

    It stops a layer at its aggregation, or once it has so many shares of further sums.
    """

    request: Aggregation | None = None
    stops_at_request = False
    stop = 0

    def __init__(
        self,
        vertex_ids: Tensor,
        product: Tensor | None = None,
        *,
        first: bool = False,
        groups: Sequence[Sequence[Any]] = (),
        leaf: int = -1,
        updates: bool = False,
        num_nodes: int | None = None,
        keep: Callable[[Tensor], None] | None = None,
        saved: Tensor | None = None,
    ) -> None:
        self.vertex_ids, self.num_nodes = vertex_ids, num_nodes
        self.leaves: list[Tensor] = []
        self.gradient: Tensor | None = None
        self._product, self._first = product, first
        self._sums = [(one, number == leaf) for number, group in enumerate(groups) for one in group]
        self.passes, self.shares = len(groups), list[tuple[VertexSums, Tensor]]()
        self._taken, self._updates = 0, updates
        self._keep, self._kept = keep, saved

    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """There is none: products are computed elsewhere."""
        raise InputError("a layer that aggregates several times cannot be processed in chunks")

    def aggregate(self, request: Aggregation) -> Tensor:
        """The given product, with what a layer adds to it."""
        first = self._first
        if self.stops_at_request:
            self.request = request
            raise Arrived
        if self._product is None:
            return self._of_propagated(request)
        operand = Z = self.product()
        if request.self_loop is not None and first:
            assert request.weight is not None
            assert not isinstance(request.operand, Propagated)
            operand = times(request.operand, request.weight)
        elif request.self_loop is not None:
            operand = request.dense
        return self._combine(request, Z, operand, first=first)

    def product(self) -> Tensor:
        """The given product, whose gradient is kept."""
        Z, self._product = self._product, None  # or autograd's graph, which knows it, were a cycle
        assert Z is not None
        keep = partial(setattr, self, "gradient")
        return with_backward(Z, keep) if torch.is_grad_enabled() else Z

    def _of_propagated(self, request: Aggregation) -> Tensor:
        """Multiply A·X with the weights, or take the product that was kept."""
        H, saved = request.operand, self._kept
        if saved is None:
            Z = super().aggregate(request)
            if self._keep is not None:
                self._keep(Z.detach())
            return Z
        assert isinstance(H, Propagated)
        if not torch.is_grad_enabled():
            return saved
        operands = [(request.weight, H.AX_local), (request.root, H.X_local)]

        def to_weights(G: Tensor) -> None:
            for weight, X in operands:
                if weight is not None and X is not None and weight.requires_grad:
                    product = bfloat16.gradient if G.dtype == torch.bfloat16 else transposed_times
                    torch.autograd.backward(weight, product(G, X))

        return with_backward(saved, to_weights)

    def moments(self, x: Tensor) -> Moments:
        """Moments over all vertices for the next norm; before they are known, any."""
        if self._collects(VertexMoments(), x.detach().to(SUM_DTYPE[x.dtype])):
            one = x.new_ones(x.shape[1])
            return Moments(x - one, one, one - one, one, 2, updates=False)
        moments: Moments = self._next(x, updates=self._updates)
        return moments

    def total(self, own: Tensor) -> Tensor:
        """A sum over all vertices; before it is known, any."""
        if self._collects(VertexTotal(), own.detach()):
            return torch.ones_like(own)
        total: Tensor = self._next(own)
        return total

    def ring(self, rows: int) -> list[RowCounts]:
        """A way of all rows around the ranks, which are not in memory."""
        raise InputError("softmax attention to all vertices needs all rows in memory: no chunks")

    def _collects(self, sums: VertexSums, share: Tensor) -> bool:
        """Collect a share of what is not known yet."""
        if self._taken < len(self._sums):
            return False
        if not self.stop:
            raise InputError("a sum over all vertices inside a layer needs all rows at once")
        self.shares.append((sums, share))
        if len(self.shares) == self.stop:
            raise Arrived
        return True

    def _next(self, x: Tensor, **options: Any) -> Any:
        """The next sums over all vertices, as these rows take them."""
        one, leaf = self._sums[self._taken]
        self._taken += 1
        result, leaves = one.of(x, leaf=leaf, **options)
        self.leaves += leaves
        return result


class ChunkedModel:
    """The layers of a model, one at a time, on the rows of any chunk."""

    takes_propagated = True  # where the first layer begins with a product

    def __init__(self, model: Stack, edge_dim: int = 0) -> None:
        self.model, self.layers, self.edge_dim = model, model.num_layers, edge_dim
        # Layers that look at edges one by one, and the columns of what they make.
        self.edgewise: dict[int, int] = {}
        # True if model outputs depend on the outputs of all layers, not of the last one alone.
        self.jumps = model.jk_mode not in (None, "last")
        ends = model.in_channels, model.hidden_channels, model.num_layers, model.out_channels
        self.widths = layer_widths(*ends, model.jk_mode)
        # What each layer asks for in training, of no rows.
        self.dtype = next(model.parameters()).dtype
        self.requests = [self.of_no_rows(n, width) for n, width in enumerate(self.widths[:-1])]

    def reads_own(self, number: int) -> bool:
        """True if a layer reads its own input rows as well as the product."""
        by_layer = number not in self.edgewise and self.model.convolutions[number].uses_own_rows
        return by_layer or len(self.model.residuals) > 0

    def multiplies_in(self, number: int) -> bool:
        """True if a layer has a product."""
        return True

    def inner(self, number: int) -> int:
        """Columns that a layer makes beside those that it returns."""
        return 0

    @property
    def multiplies(self) -> bool:
        """True if any layer multiplies with the matrix, and its adjoint with the transpose."""
        return any(request.linear for request in self.requests)

    @property
    def drops_edges(self) -> bool:
        """True if a layer drops attention weights in training, as a function of original ids."""
        layers = self.model.convolutions
        return any(
            request.dropped is not None or (number in self.edgewise and layers[number].uses_keys)
            for number, request in enumerate(self.requests)
        )

    def norms(self, number: int) -> int:
        """Norms of a layer that need moments over all vertices, as the model is now."""
        parts = (self.model.convs[number], self.model.norms[number])
        every = (module for part in parts for module in part.modules())
        return sum(isinstance(module, Norm) and module.needs_moments for module in every)

    @property
    def keeps_first(self) -> bool:
        """True if backward has a use for what the first layer makes of A·X."""
        H = torch.empty(0, self.widths[0], dtype=self.dtype)
        rows = ChunkRows(torch.empty(0, dtype=torch.int64))
        request = self._aggregation(0, Propagated(H, H), rows, None)
        return self.layers > 1 and request.weight is not None and request.self_loop is None

    def zeros(self, rows: int, *, sparse: bool = False) -> Tensor | CSR:
        """Features that are 0 in every row."""
        if not sparse:
            return torch.zeros(rows, self.widths[0], dtype=self.dtype)
        indptr = torch.zeros(rows + 1, dtype=torch.int64)
        none = torch.empty(0, dtype=torch.int32), torch.empty(0, dtype=self.dtype)
        return CSR.of(indptr, none[0], (rows, self.widths[0]), none[1])

    def of_no_rows(self, number: int, width: int, *, sparse: bool = False) -> Request:
        """A layer's request in training.

        One that is no single product, reduction or attention with self-loops looks at edges one by
        one; refuses layers that cannot do so either.
        """
        layer, nobody = self.model.convolutions[number], torch.empty(0, dtype=torch.int64)
        H: Features = torch.empty(0, width, dtype=self.dtype).requires_grad_()
        if not number:
            H = self.zeros(0, sparse=sparse)
        with torch.enable_grad(), suppress(InputError):  # if it needs features of edges
            if layer.aggregates_once or number in self.edgewise:
                request = self.request(number, H, nobody, NO_KEYS)
                fits = layer.accepts_propagated or not request.linear
                loops = layer.add_self_loops if isinstance(layer, AttentionConv) else True
                skips = request.scores is not None and (layer.uses_own_rows or not loops)
                if fits and not skips:
                    return request
        pattern = Pattern(torch.tensor([0, 0]), nobody, (1, 1))
        block = CSR(pattern, torch.empty(0, self.edge_dim) if self.edge_dim else None)
        x = torch.zeros(1, width, dtype=self.dtype)
        try:
            with torch.no_grad():
                Z = self._of_edges(number, NO_KEYS, x, block, torch.zeros(1, dtype=torch.int64))
        except InputError as error:
            raise InputError(
                f"{type(self.model).__name__}: --memory, --spill and --chunks: {error}"
            ) from None
        self.edgewise[number] = Z.shape[1]
        return self.request(number, H, nobody, NO_KEYS)

    def _of_edges(
        self, number: int, keys: DropoutKeys | None, x: Tensor, block: CSR, ids: Tensor
    ) -> Tensor:
        """The rows of a layer that looks at edges one by one, up to its tail."""
        layer, edges = self.model.convolutions[number], block
        if not self.edge_dim:
            edges = CSR(block.pattern)  # without weights
        graph = EdgeRows(edges, ids, x.dtype, self.model)
        keys = keys_on(keys, ids) if layer.uses_keys else None
        if layer.aggregates_once:
            return layer.update(graph.aggregate(layer.aggregation(x, graph, None, keys)), x, graph)
        Z: Tensor = layer(x, graph, **({"keys": keys} if layer.uses_keys else {}))
        return Z

    def request(self, number: int, H: Features, ids: Tensor, keys: DropoutKeys | None) -> Request:
        """A layer's request for the rows that it is given [rows, f], with their ids."""
        rows = ChunkRows(ids)
        if number in self.edgewise:
            H = self.model.entering(number, H, rows, keys)
            assert not isinstance(H, Propagated)
            operand = densified(H) if isinstance(H, CSR) else H
            rows_of = partial(self._of_edges, number, keys)
            return Request(operand, rows_of=rows_of, width=self.edgewise[number])
        request = self._aggregation(number, H, rows, keys)
        operand, first = rows.operand(request)
        return Request(operand, first, request.reduce, request.scores, request.dropped)

    def _aggregation(
        self, number: int, H: Features, rows: ChunkRows, keys: DropoutKeys | None
    ) -> Aggregation:
        """The aggregation of a layer, which goes no further."""
        rows.stops_at_request = True
        with suppress(Arrived):
            self.layer(number, H, rows, keys)
        assert rows.request is not None
        return rows.request

    def layer(self, number: int, H: Features, rows: ChunkRows, keys: DropoutKeys | None) -> Tensor:
        """Output rows of a layer [rows, f], of its input: no rows where it does not read them."""
        model, layer = self.model, self.model.convolutions[number]
        H = model.entering(number, H, rows, keys)
        if number in self.edgewise:
            Z = rows.product()
        else:
            keys = keys if layer.uses_keys else None
            Z = layer.update(rows.aggregate(layer.aggregation(H, rows, None, keys)), H, rows)
        stages = model.call_of(number).stages(H, rows)
        if not layer.aggregates_once:
            return run_stages(stages, Z, rows)
        return run_stages([*layer.tail(), *stages], Z, rows, layer.shift)

    def sums_of(self, number: int, done: int) -> int:
        """Number of sums over all vertices that a layer's next pass computes."""
        return 1

    def shares(
        self, number: int, H: Features, rows: ChunkRows, keys: DropoutKeys | None
    ) -> list[tuple[VertexSums, Tensor]]:
        """Shares of some rows in the next sums over all vertices."""
        rows.stop = self.sums_of(number, rows.passes)
        with suppress(Arrived):
            self.layer(number, H, rows, keys)
        assert len(rows.shares) == rows.stop
        return rows.shares

    def update_running(self, number: int, groups: Sequence[Sequence[Any]]) -> None:
        """Let the norms of a layer update their running moments: a run on no rows."""
        request, Z = self.requests[number], None
        if self.multiplies_in(number):
            Z = torch.zeros(0, request.width or request.operand.shape[1], dtype=self.dtype)
        how: dict[str, Any] = {"first": request.first, "groups": groups, "updates": True}
        rows = ChunkRows(NO_KEYS.vertex_ids, Z, num_nodes=2, **how)
        with torch.no_grad():
            H = torch.zeros(0, self.widths[number], dtype=self.dtype)
            self.layer(number, H, rows, NO_KEYS)

    def outputs(self, of_layers: Sequence[Tensor], keys: DropoutKeys | None) -> Tensor:
        """Model outputs of some rows, from the outputs [rows, f] of all layers or of the last."""
        model = self.model
        if model.jk_mode is None:
            return of_layers[-1]
        # As the layer that follows drops it.
        first = self.layers - len(of_layers) + 1
        dropped = [
            dropout(H, model.dropout, keys, number) for number, H in enumerate(of_layers, first)
        ]
        logits: Tensor = model.lin(model.jk(dropped))
        return logits
