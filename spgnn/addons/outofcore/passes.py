"""Forward and backward of a model over a whole graph, some rows at a time.

    forward   layer by layer, chunk by chunk:  Z = A·O;  H = layer(Z);  O' = the next operand
    the last  its loss and gradients at once, from the rows in memory:  dZ, and dW += …
    backward  the others, in reverse:          dO = Aᵀ·dZ';  H and O' recomputed;  dZ, and dW += …

Between the layers there are tables: the operand of the next product, and, from forward to backward,
each product (the layer is recomputed from it), and the input of a layer that reads its own rows as
well as the product. The gradient of a product overwrites the product; of the last product only the
gradient is ever saved. A norm over all vertices adds a pass over a layer's rows for its moments,
and one backward for their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from spgnn.addons.outofcore.chunked_model import (
    ChunkedModel,
    ChunkRows,
    MomentGradients,
    VertexSums,
)
from spgnn.addons.outofcore.matrix import ChunkMatrix, Request, ScoreTables
from spgnn.addons.outofcore.tables import Table, memory_rows, release
from spgnn.graph import Features, Propagated
from spgnn.nn import DropoutKeys, keys_on
from spgnn.sparse import CSR, SUM_DTYPE, take_rows

if TYPE_CHECKING:
    from spgnn.addons.outofcore.chunked_graph import ChunkedGraph

# The share of a loss that some rows have: (chunk, rows of it or None for all, outputs).
Share = Callable[[int, Tensor | None, Tensor], Tensor]
# The number of each chunk, and a product's rows: None if they are saved, or features propagated.
ChunkProducts = Iterator[tuple[int, Tensor | None]]
# What is computed of a chunk's output rows, and its gradients.
Ends = Callable[[int, Tensor], tuple[Sequence[Tensor], Sequence[Tensor | None]]]

# The tables of a layer, and for what purpose they are placed.
_PURPOSES = {
    "operand": "operand",  # saved, where backward looks at it again
    "product": "product",  # or its gradient
    "kept": "product",  # of the first layer, A·X times its weights
    "input": "input",  # its own input rows
    "input gradient": "gradient",
    "scores": "input",  # destination scores of attention
    "score gradient": "gradient",
    "jump gradient": "gradient",  # of its output, from model outputs that depend on all layers
    "output gradient": "gradient",  # until those of its norms' moments are computed
}


class ChunkedPass:
    """A model on a graph that is processed chunk by chunk."""

    def __init__(
        self,
        graph: ChunkedGraph,
        model: ChunkedModel,
        tick: Callable[[int, int], None] | None = None,
    ) -> None:
        self.graph, self.model = graph, model
        self._tick, self._ticks, self._all_ticks = tick, 0, 0
        self._matrices: Sequence[ChunkMatrix] = ()
        self._keys: DropoutKeys | None = None
        self._saves = self._saves_last = self._learns = self._operand_learns = False
        self._tables: dict[tuple[str, int], Table] = {}
        self._requests: dict[int, Request] = {}  # without rows
        self._vector_gradients: dict[int, Tensor] = {}  # of attention, until they are added
        self._moments: dict[int, list[list[Any]]] = {}  # and other sums, by passes
        self._widths: dict[int, int] = {}
        self._kept = set[int]()  # the chunks whose rows are kept
        self._moment_gradients = MomentGradients()
        self._parameters = list(model.model.parameters())
        self._gradients: list[Tensor | None] = [None] * len(self._parameters)

    def outputs(
        self, matrices: Sequence[ChunkMatrix], keys: DropoutKeys | None = None
    ) -> Iterator[tuple[int, Tensor | None, Tensor]]:
        """Outputs of the model, chunk after chunk. Collective; the caller must exhaust it."""
        last = self.model.layers - 1
        for chunk, Z in self._until_last(matrices, keys, learns=False):
            H, _ = self._layer(last, chunk, Z)
            yield chunk, self._chosen(last, chunk), self._outputs(chunk, H)[0]
        self.forget()

    def take(self, parameters: Iterable[nn.Parameter]) -> None:
        """Parameters besides those of the layers, which a loss has gradients of."""
        self._parameters += parameters
        self._gradients = [None] * len(self._parameters)

    def loss_of_all(
        self,
        matrices: Sequence[ChunkMatrix],
        keys: DropoutKeys | None,
        scored: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """A loss of all outputs [n, f] together, which adds to their gradient. Collective."""
        self._gradients = [None] * len(self._parameters)
        last, bounds, Z = self.model.layers - 1, self.graph.bounds, torch.empty(0)
        for chunk, product in self._until_last(matrices, keys, learns=True, again=True):
            with torch.no_grad():
                outputs, _ = self._outputs(chunk, self._layer(last, chunk, product)[0])
            if not chunk:
                dtype = SUM_DTYPE[outputs.dtype]
                Z = memory_rows(bounds[-1], outputs.shape[1], dtype)
            Z[slice(*bounds[chunk : chunk + 2])] = outputs
        with self._aside():
            dZ = memory_rows(bounds[-1], Z.shape[1], Z.dtype).zero_()
            total = scored(Z, dZ)
            del Z

            def of_chunk(chunk: int, outputs: Tensor) -> tuple[Tensor, Tensor]:
                return outputs, dZ[slice(*bounds[chunk : chunk + 2])].to(outputs.dtype)

            for chunk in range(self._chunks):
                self._through_last(chunk, None, partial(of_chunk, chunk))
                self._tell()
            self._through_norms(last)
        return total

    def loss(
        self, matrices: Sequence[ChunkMatrix], keys: DropoutKeys | None, share: Share
    ) -> Tensor:
        """A loss, and of its gradients those that the last layer has. Collective."""
        total = torch.zeros((), dtype=SUM_DTYPE[self.graph.dtype])
        self._gradients = [None] * len(self._parameters)
        last = self.model.layers - 1

        def of_chunk(chunk: int, outputs: Tensor) -> tuple[Tensor, None]:
            value = share(chunk, self._chosen(last, chunk), outputs)
            total.add_(value.detach())
            return value, None

        for chunk, Z in self._until_last(matrices, keys, learns=True):
            with self._aside():
                self._through_last(chunk, Z, partial(of_chunk, chunk))
        with self._aside():
            self._through_norms(last)
        return total

    def _through_last(
        self, chunk: int, Z: Tensor | None, end: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    ) -> None:
        """Through the last layer, from something of a chunk's outputs and its gradient."""

        def ends(chunk: int, H: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
            outputs, earlier[:] = self._outputs(chunk, H)
            value, gradient = end(outputs)
            return [value], [gradient]

        earlier = list[Tensor]()
        self._through_layer(self.model.layers - 1, chunk, Z, ends)
        for number, one in enumerate(earlier):
            assert one.grad is not None
            self._table("jump gradient", number, one.shape[1]).write(chunk, one.grad)

    def backward(self, scale: Tensor) -> None:
        """Add the gradients of the last `loss` to those of the parameters. Collective."""
        last = self.model.layers - 1
        adjoint_of_first = self._multiplies_first and self._operand_learns
        self._begin(sum(map(self._passes, range(last))) + adjoint_of_first)
        with self._aside():
            for number in range(last - 1, -1, -1):
                matrix = self._matrices[number + 1]
                for chunk, dO in self._operand_gradients(number + 1):
                    chosen = self._chosen(number, chunk) if matrix.sources is None else None
                    ends = partial(self._ends, number, dO=dO if dO is None else _picked(dO, chosen))
                    self._through_layer(number, chunk, None, ends)
                    self._tell()
                self._through_norms(number)
                names = "product", "operand", "scores", "score gradient", "input gradient"
                of_next = ((name, number + 1) for name in names)
                for key in (*of_next, ("input", number), ("jump gradient", number)):
                    release(self._tables.pop(key, None))
            if adjoint_of_first:
                for chunk, dO in self._operand_gradients(0):
                    assert dO is not None
                    with torch.enable_grad():
                        request = self._request(0, self.graph.features(chunk), chunk, None)
                        chosen = self._chosen(0, chunk)
                        if not request.operand.requires_grad:
                            continue  # parameters have had their gradients
                        outputs, gradients = self._request_ends(0, chunk, request, chosen, dO)
                    torch.autograd.backward(outputs, gradients)
                    self._tell()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if gradient is not None:
                scaled = gradient * scale
                parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
        self.forget()

    def forget(self) -> None:
        """Give up what was saved for `backward`."""
        while self._tables:
            self._tables.popitem()[1].release()
        for each in (self._moments, self._requests, self._vector_gradients, self._kept):
            each.clear()
        self._moment_gradients = MomentGradients()  # of an epoch that was broken off

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Autograd adds to gradients of this loss, apart from what parameters have already."""
        self._swap_gradients()
        try:
            yield
        finally:
            self._swap_gradients()

    def _swap_gradients(self) -> None:
        for place, parameter in enumerate(self._parameters):
            self._gradients[place], parameter.grad = parameter.grad, self._gradients[place]

    # Forward

    def _until_last(
        self,
        matrices: Sequence[ChunkMatrix],
        keys: DropoutKeys | None,
        *,
        learns: bool,
        again: bool = False,
    ) -> ChunkProducts:
        """All layers but the last, and the product of that one, which `again` saves, by chunks."""
        self.forget()
        self._matrices, self._keys, model = matrices, keys, self.model
        # Outputs that depend on all layers are computed from their products.
        self._saves = learns or model.jumps
        self._learns = torch.is_grad_enabled()
        last = model.layers - 1
        passes = sum(map(self._passes, range(last + 1))) + self._multiplies_first
        self._begin(passes + (model.norms(last) + again if learns else 0))
        self._saves_last = again
        operand = self._first_operand() if self._multiplies_first else None
        for number in range(last + 1):
            following: Table | None = None
            for chunk, Z in self._ready(number, operand):
                if number == last:
                    yield chunk, Z
                else:
                    H, _ = self._layer(number, chunk, Z)
                    following = self._next_operand(following, number, chunk, H)
                self._tell()
            # Backward reads the operand again for a reduction or for attention.
            again = not model.requests[number].linear
            learns_here = number > 0 or (self._multiplies_first and self._operand_learns)
            if operand is not None and learns and learns_here and again:
                self._tables["operand", number] = operand
            else:
                release(operand)
                release(self._tables.pop(("scores", number), None))
            operand = following
            if not self._saves:
                release(self._tables.pop(("input", number), None))
                release(self._tables.pop(("product", number), None))

    def _first_operand(self) -> Table:
        operand: Table | None = None
        for chunk in range(self._chunks):
            X, inside = self.graph.features(chunk), self._chosen(0, chunk)
            operand = self._write_operand(operand, 0, chunk, X, None, inside)
            self._tell()
        assert operand is not None
        return operand

    def _next_operand(
        self, operand: Table | None, number: int, chunk: int, H: Tensor
    ) -> Table | None:
        """Operand of the next layer; if that reads its own input rows, they are saved."""
        following, inside = number + 1, self._inside(number, chunk)
        self._widths[following] = H.shape[1]
        if self.model.reads_own(following) and not self._recomputes(following):
            own = _picked(H, inside).detach()
            self._table("input", following, own.shape[1]).write(chunk, own)
        if not self.model.multiplies_in(following):
            return None
        chosen = self._chosen(number, chunk)
        return self._write_operand(operand, following, chunk, H, chosen, inside)

    def _write_operand(
        self,
        operand: Table | None,
        number: int,
        chunk: int,
        H: Features,
        chosen: Tensor | None,
        inside: Tensor | None,
    ) -> Table:
        """The operand of a layer, of whose input the chosen rows are H; with attention, scores."""
        request, matrix = self._request(number, H, chunk, chosen), self._matrices[number]
        rows = request.operand
        if number == 0:
            self._operand_learns = rows.requires_grad or request.rows_of is not None
        if request.scores is not None:
            own = _picked(request.scores.destinations, inside).detach()
            self._table("scores", number, own.shape[1]).write(chunk, own)
        if operand is None:
            how = matrix.column_bounds, rows.shape[1], matrix.halo_rows
            operand = self.graph.tables.table("operand", *how, heads=request.whole)
        # The rows that a layer makes are the sources of the next one, if that has any.
        operand.write_some(chunk, chosen if matrix.sources is None else None, rows.detach())
        return operand

    def _ready(self, number: int, operand: Table | None) -> ChunkProducts:
        """A layer's product, chunk after chunk, after the moments of its norms. Collective."""
        norms, last = self.model.norms(number), number == self.model.layers - 1
        chunks = self._saved_products()
        if operand is not None:
            saves = bool(norms) or (self._saves and (self._saves_last or not last))
            chunks = self._products(number, operand, saves=saves)
        moments = self._moments[number] = []
        for _ in range(norms):
            sums = list[VertexSums]()
            for chunk, Z in chunks:
                H_in = self._input(number, chunk)
                with torch.set_grad_enabled(self._learns):
                    rows = self._rows(number, chunk, Z)
                    shares = self.model.shares(number, H_in, rows, self._keys)
                sums = sums or [one for one, _ in shares]
                for one, (_, share) in zip(sums, shares, strict=True):
                    one.add(share)
                self._tell()
            for one in sums:
                one.over_ranks(self.graph.comm)
            moments.append(sums)
            chunks = self._saved_products()
        if self.model.model.training and moments:
            self.model.update_running(number, moments)
        yield from chunks

    def _products(self, number: int, operand: Table, *, saves: bool) -> ChunkProducts:
        """A layer's product as it is computed. Collective."""
        request, scores = self._requests[number], self._scores(number)
        for chunk, Z in self._matrices[number].products(operand, request, scores):
            if saves:
                self._table("product", number, Z.shape[1]).write(chunk, Z)
            yield chunk, Z

    def _saved_products(self) -> ChunkProducts:
        return ((chunk, None) for chunk in range(self._chunks))

    def _scores(self, number: int, *, gradients: bool = False) -> ScoreTables | None:
        """Tables of a layer's attention scores, if it has any, and of their gradients."""
        request = self._requests[number]
        if request.scores is None:
            return None
        destinations, ids = self._tables["scores", number], None
        if request.dropped is not None:
            ids = self.graph.ids_of_columns(self._matrices[number])
        if not gradients:
            return ScoreTables(destinations, ids)
        of_vector = self._vector_gradients[number] = torch.zeros_like(request.scores.vector)
        of_rows = self._table("score gradient", number, destinations.width)
        return ScoreTables(destinations, ids, of_rows, of_vector)

    def _request(self, number: int, H: Features, chunk: int, chosen: Tensor | None) -> Request:
        """Scaled operand of a layer, and its attention scores, for some rows of a chunk."""
        request = self.model.request(number, H, self.graph.ids_of(chunk, chosen), self._keys)
        self._requests[number] = request.without_rows
        scale = self.graph.scale_of(self.graph.column_scale, chunk, chosen)
        return request._replace(operand=_scaled(request.operand, scale))

    # A layer on the rows of a chunk

    def _layer(
        self,
        number: int,
        chunk: int,
        Z: Tensor | None,
        H_in: Features | None = None,
        leaf: int = -1,
    ) -> tuple[Tensor, ChunkRows]:
        """Output of a layer, from the given product or the saved one."""
        H_in = self._input(number, chunk) if H_in is None else H_in
        rows = self._rows(number, chunk, Z, leaf)
        return self.model.layer(number, H_in, rows, self._keys), rows

    def _rows(self, number: int, chunk: int, Z: Tensor | None, leaf: int = -1) -> ChunkRows:
        """A chunk's rows of a layer, with the given product or the saved one, scaled."""
        chosen = self._chosen(number, chunk)
        if Z is None and ("product", number) in self._tables:
            Z = self._tables["product", number].read(chunk)
        if Z is not None:
            scale = self.graph.scale_of(self.graph.row_scale, chunk, chosen)
            # A tensor of its own: layers write over it.
            Z = Z.clone() if scale is None else _scaled(Z, scale)
        keep = saved = None
        if number == 0 and self._saves and self.graph.keeps_first:
            if chunk in self._kept:
                saved = self._tables["kept", 0].read(chunk).clone()
            else:
                keep = partial(self._keep, chunk)
        ids = self.graph.ids_of(chunk, chosen)
        ids = ids if self.model.reads_own(number) else ids[:0]
        first = number in self._requests and self._requests[number].first
        return ChunkRows(
            ids,
            Z,
            first=first,
            groups=self._moments[number],
            leaf=leaf,
            num_nodes=self.graph.num_nodes,
            keep=keep,
            saved=saved,
        )

    def _keep(self, chunk: int, Z: Tensor) -> None:
        self._table("kept", 0, Z.shape[1]).write(chunk, Z)
        self._kept.add(chunk)

    def _input(self, number: int, chunk: int) -> Features:
        """Input rows of a layer; no rows if it does not read them."""
        graph, learns = self.graph, torch.is_grad_enabled()
        if ("input", number) in self._tables:
            return self._tables["input", number].read(chunk).clone().requires_grad_(learns)
        if self._recomputes(number):
            with torch.set_grad_enabled(self._learns):
                H, _ = self._layer(number - 1, chunk, None)
            H = _picked(H.detach(), self._inside(number - 1, chunk))
            return H.requires_grad_(learns)
        if number:
            return torch.empty(0, self._widths[number], dtype=graph.dtype, requires_grad=learns)
        X: Tensor | CSR | None = None
        chosen = self._chosen(0, chunk)
        if self.model.reads_own(0):
            X = graph.features(chunk)
            if chosen is not None:
                X = take_rows(X, chosen) if isinstance(X, CSR) else X[chosen]
        if graph.propagated is None:
            return torch.empty(0, self.model.widths[0], dtype=graph.dtype) if X is None else X
        assert not isinstance(X, CSR)
        AX = graph.propagated.read(chunk).to(graph.dtype)
        return Propagated(_picked(AX, chosen), X)

    def _recomputes(self, number: int) -> bool:
        """True if a layer's input rows are recomputed from the product of the layer before."""
        recomputed = number in self.graph.recomputed
        return self._saves and recomputed and self.model.reads_own(number)

    def _outputs(self, chunk: int, H: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Model outputs from the last layer's, and from the recomputed other layers' if needed."""
        earlier, learns, last = list[Tensor](), torch.is_grad_enabled(), self.model.layers - 1
        for number in range(last) if self.model.jumps else ():
            with torch.set_grad_enabled(self._learns):
                output, _ = self._layer(number, chunk, None)
            earlier.append(output.detach().requires_grad_(learns))
        ids = self.graph.ids_of(chunk, self._chosen(last, chunk))
        return self.model.outputs([*earlier, H], keys_on(self._keys, ids)), earlier

    # Backward

    def _operand_gradients(self, number: int) -> ChunkProducts:
        """The gradient of a layer's operand, chunk after chunk, if it has any. Collective."""
        if not self.model.multiplies_in(number):
            return self._saved_products()
        G, operand = self._tables["product", number], self._tables.get(("operand", number))
        request, scores = self._requests[number], self._scores(number, gradients=True)
        heads = self.model.requests[number].heads.number
        new = partial(self.graph.tables.table, "operand", heads=heads)
        return self._matrices[number].adjoints(G, new, request, operand, scores)

    def _ends(
        self, number: int, chunk: int, H: Tensor, dO: Tensor | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors computed from a layer's output, and their gradients."""
        following, inside = number + 1, self._inside(number, chunk)
        ends, gradients = list[Tensor](), list[Tensor]()
        if dO is not None:
            request = self._request(following, H, chunk, self._chosen(number, chunk))
            ends, gradients = self._request_ends(following, chunk, request, inside, dO)
        more = (("input gradient", following), inside), (("jump gradient", number), None)
        for key, rows in more:
            if key in self._tables:
                ends.append(_picked(H, rows))
                gradients.append(self._tables[key].read(chunk))
        return ends, gradients

    def _request_ends(
        self, number: int, chunk: int, request: Request, inside: Tensor | None, dO: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """A layer's operand and destination scores, and the gradients of both."""
        ends, gradients, scores = [request.operand], [dO], request.scores
        if scores is not None:
            ends.append(_picked(scores.destinations, inside))
            gradients.append(self._tables["score gradient", number].read(chunk))
            vector = self._vector_gradients.pop(number, None)
            if vector is not None:  # once, and not in every chunk
                ends.append(scores.vector)
                gradients.append(vector)
        return ends, gradients

    def _through_layer(self, number: int, chunk: int, Z: Tensor | None, ends: Ends) -> None:
        """From what is computed of a layer's output to the gradients that layers before it need."""
        norms = len(self._moments[number])
        with torch.enable_grad():
            H_in = self._input(number, chunk)
            H, rows = self._layer(number, chunk, Z, H_in, norms - 1)
            output = H.detach().requires_grad_() if norms else H
            outputs, gradients = ends(chunk, output)
        torch.autograd.backward(outputs, gradients)
        if not norms:
            self._save_gradients(number, chunk, rows, H_in, Z)
            return
        # The gradient of its output waits until that of its last norm's moments is known.
        dH = torch.zeros_like(H) if output.grad is None else output.grad
        of_next = self._tables.get(("input gradient", number + 1))
        if of_next is not None:
            self._tables["output gradient", number] = of_next
        self._table("output gradient", number, dH.shape[1]).write(chunk, dH)
        self._moment_gradients.add(H, dH, rows.leaves)

    def _save_gradients(
        self, number: int, chunk: int, rows: ChunkRows, H_in: Features, like: Tensor | None = None
    ) -> None:
        """Save gradients for the layer before: the product's, over the product, and the input's."""
        learns, dZ = number > 0 or self._operand_learns, rows.gradient
        if like is not None and learns:
            self._table("product", number, like.shape[1])
        if ("product", number) in self._tables and learns:
            table = self._tables["product", number]
            if dZ is None:
                dZ = torch.zeros(table.lengths[chunk], table.width, dtype=table.dtype)
            chosen = self._chosen(number, chunk)
            scale = self.graph.scale_of(self.graph.row_scale, chunk, chosen)
            table.write(chunk, _scaled(dZ, scale))
        if number and self.model.reads_own(number):
            assert isinstance(H_in, Tensor)
            dH = torch.zeros_like(H_in) if H_in.grad is None else H_in.grad
            self._table("input gradient", number, dH.shape[1]).write(chunk, dH)

    def _through_norms(self, number: int) -> None:
        """From the gradient of a layer's output to that of its product. Collective."""
        moments = self._moments[number]
        for norm in range(len(moments) - 1, -1, -1):
            self._moment_gradients.over_ranks(self.graph.comm, moments[norm])
            self._moment_gradients = MomentGradients()
            for chunk in range(self._chunks):
                with torch.enable_grad():
                    H_in = self._input(number, chunk)
                    H, rows = self._layer(number, chunk, None, H_in, norm - 1)
                dH = self._tables["output gradient", number].read(chunk)
                if norm:
                    self._moment_gradients.add(H, dH, rows.leaves)
                else:
                    H.backward(dH)
                    self._save_gradients(number, chunk, rows, H_in)
                self._tell()
        gradient = self._tables.pop(("output gradient", number), None)
        if gradient is not self._tables.get(("input gradient", number + 1)):
            release(gradient)

    # Tables, rows and progress

    def _table(self, name: str, number: int, width: int) -> Table:
        """A table of the rows that a layer makes, created when it is first asked for."""
        if (name, number) not in self._tables:
            tables, matrix = self.graph.tables, self._matrices[number]
            heads, extra, panel = self.model.requests[number].heads, 0, None
            if name == "product" and not matrix.thinned and matrix.transposed is None:
                # Its gradient overwrites it, which a symmetric matrix is multiplied by.
                extra = matrix.halo_rows
            elif name in ("scores", "score gradient"):
                # Columns for as many heads as a panel has.
                panel = tables.panel(heads.number * heads.channels, heads.number)
                panel = panel // heads.channels * heads.score_width
            in_product = heads.number if name == "product" else 0
            self._tables[name, number] = tables.table(
                _PURPOSES[name], matrix.row_bounds, width, extra, panel=panel, heads=in_product
            )
        return self._tables[name, number]

    @property
    def _multiplies_first(self) -> bool:
        """True if the first layer has a product that is computed in each epoch."""
        return self.graph.propagated is None and self.model.multiplies_in(0)

    @property
    def _chunks(self) -> int:
        return len(self.graph.bounds) - 1

    def _chosen(self, number: int, chunk: int) -> Tensor | None:
        """Rows of a chunk that a layer makes, counted from its first row; ``None``: all."""
        return self._matrices[number].chosen(chunk)

    def _inside(self, number: int, chunk: int) -> Tensor | None:
        """The rows that the next layer makes among those that a layer makes; ``None``: all."""
        before, after = self._chosen(number, chunk), self._chosen(number + 1, chunk)
        if after is None or before is None:
            return after
        return torch.searchsorted(before, after)

    def _passes(self, number: int) -> int:
        """Number of passes over all chunks of a layer, forward or backward."""
        return 1 + self.model.norms(number)

    def _begin(self, passes: int) -> None:
        self._ticks, self._all_ticks = 0, passes * self._chunks

    def _tell(self) -> None:
        self._ticks += 1
        if self._tick is not None:
            self._tick(self._ticks, self._all_ticks)


def _scaled(H: Tensor, scale: Tensor | None) -> Tensor:
    return H if scale is None else (H * scale).to(H.dtype)


def _picked(H: Tensor, inside: Tensor | None) -> Tensor:
    return H if inside is None else H[inside]
