"""A model over a whole graph, forward and backward, some rows at a time.

    forward   layer by layer, chunk by chunk:  Z = A·O;  H = layer(Z);  O' = the next operand
    the last  its loss and gradients at once, from the rows in memory:  dZ, and dW += …
    backward  the others, in reverse:          dO = Aᵀ·dZ';  H and O' recomputed;  dZ, and dW += …

Between the layers there are tables: the operand of the next product, and, from forward to backward,
each product (the layer is recomputed from it), and the input of a layer that reads its own rows as
well as the product. The gradient of a product overwrites the product; of the last product only the
gradient is ever kept. A norm over all vertices adds a pass over a layer's rows for its moments, and
one backward for their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from spgnn.chunked.matrix import Attending, NewTable, extreme_adjoints, extreme_products
from spgnn.chunked.moments import Gathered, Returned
from spgnn.chunked.pieces import Pieces
from spgnn.chunked.room import Room
from spgnn.chunked.segments import ChunkRows, Segments
from spgnn.chunked.state import Aside, Layers, Piece, Vertices, release
from spgnn.chunked.table import Table
from spgnn.comm import Communicator
from spgnn.nn import DropoutKeys

# The share of a loss that some rows have: (chunk, rows of it or None for all, outputs).
LossOf = Callable[[int, Tensor | None, Tensor], Tensor]


class Network(Pieces):
    """A model on a graph that is processed chunk by chunk.

    Parameters
    ----------
    segments : Segments
    vertices : Vertices
    room : Room
        Says where tables lie.
    again : set of int
        Layers whose input rows, in training, are not kept but recomputed from the product of the
        layer before them.
    tick : callable, optional
        Called with (chunks done, chunks in all) during a pass over the layers.
    comm : Communicator, optional
        All ranks, for moments over all vertices.
    """

    def __init__(
        self,
        segments: Segments,
        vertices: Vertices,
        room: Room,
        again: frozenset[int] = frozenset(),
        tick: Callable[[int, int], None] | None = None,
        comm: Communicator | None = None,
    ) -> None:
        super().__init__(segments, vertices, room, again)
        self._comm = comm
        self._tick, self._ticks, self._all_ticks = tick, 0, 0
        self._gradients = Aside(segments.model.parameters())
        self._returned = Returned()

    def outputs(
        self, layers: Layers, keys: DropoutKeys | None = None
    ) -> Iterator[tuple[int, Tensor | None, Tensor]]:
        """Outputs of the last layer, chunk after chunk. Collective; the caller must exhaust it.

        Parameters
        ----------
        layers : Layers
        keys : DropoutKeys, optional
            Keys of the dropout masks; their ids are ignored.

        Yields
        ------
        part : int
        chosen : Tensor int64, optional
            Rows of the chunk; ``None``: all.
        outputs : Tensor [rows, columns]
        """
        for at, Z in self._until_last(layers, keys, learns=False):
            H, _ = self._layer(at, Z, keys)
            yield at.part, at.chosen, self._finished(at, H, keys)[0]
        self.forget()

    def loss(self, layers: Layers, keys: DropoutKeys | None, share: LossOf) -> Tensor:
        """A loss, and of its gradients those that the last layer has. Collective.

        Parameters
        ----------
        layers : Layers
        keys : DropoutKeys, optional
            Keys of the dropout masks; their ids are ignored.
        share : callable

        Returns
        -------
        Tensor
            A number; its gradients are `backward`'s.
        """
        total = torch.zeros((), dtype=self.room.dtype)
        self._gradients.clear()
        for at, Z in self._until_last(layers, keys, learns=True):
            norms = len(self._known.get(at.number, []))
            with torch.enable_grad():
                H_in = self._input(at, keys)
                H, product = self._layer(at, Z, keys, H_in, norms - 1)
                made = H.detach().requires_grad_() if norms else H
                outputs, earlier = self._finished(at, made, keys)
                value = share(at.part, at.chosen, outputs)
            total += value.detach()
            with self._gradients:
                value.backward()
            if norms:
                self._into_norms(at, H, made, product)
            else:
                self._keep_gradients(at, product.gradient, H_in, like=Z)
            self._keep_jumps(at, earlier)
        with self._gradients:
            self._through_norms(layers, self.segments.layers - 1, keys)
        return total

    def backward(self, layers: Layers, keys: DropoutKeys | None, scale: Tensor) -> None:
        """Add the gradients of a loss to those of the parameters. Collective.

        Parameters
        ----------
        layers, keys
            As `loss` got them, which has kept what is needed.
        scale : Tensor
            The gradient of the loss itself.
        """
        last = self.segments.layers - 1
        self._begin(layers, sum(map(self._passes, range(last))) + self._begins_with_adjoint)
        with self._gradients:
            for number in range(last - 1, -1, -1):
                for part, dO in self._adjoints(number, layers):
                    at = Piece(layers, number, part)
                    norms = len(self._known.get(number, []))
                    with torch.enable_grad():
                        H_in = self._input(at, keys)
                        H, product = self._layer(at, None, keys, H_in, norms - 1)
                        made = H.detach().requires_grad_() if norms else H
                        ends, gradients = self._ends(at, made, dO, keys)
                    torch.autograd.backward(ends, gradients)
                    if norms:
                        self._into_norms(at, H, made, product)
                    else:
                        self._keep_gradients(at, product.gradient, H_in)
                    self._tell()
                self._through_norms(layers, number, keys)
                self._kept.done(number)
            self._first_backward(layers, keys)
        self._gradients.add(scale)
        self.forget()

    def _until_last(
        self, layers: Layers, keys: DropoutKeys | None, *, learns: bool
    ) -> Iterator[tuple[Piece, Tensor | None]]:
        """All layers but the last, and the product of that one, chunk after chunk."""
        self.forget()
        # Outputs that depend on all layers are computed from their products.
        self._keeps = learns or self.segments.jumps
        self._learns = torch.is_grad_enabled()
        last = self.segments.layers - 1
        passes = sum(map(self._passes, range(last + 1))) + (self.vertices.propagated is None)
        self._begin(layers, passes + (self.segments.norms(last) if learns else 0))
        operand = self._first_operand(layers, keys)
        for number in range(last + 1):
            following: Table | None = None
            for at, Z in self._ready(layers, number, operand, keys):
                if number == last:
                    yield at, Z
                    self._tell()
                    continue
                H, _ = self._layer(at, Z, keys)
                outgoing = self._handed_on(at, H, keys)
                matrix = layers.matrices[number + 1]
                if following is None:
                    cuts, extra = matrix.column_bounds, matrix.halo_rows
                    heads = self.segments.head_count(number + 1)
                    following = self.room.table("operand", cuts, outgoing, extra, heads=heads)
                # The rows that a layer makes are the sources of the next one, if that has any.
                following.write_some(
                    at.part, at.chosen if matrix.sources is None else None, outgoing
                )
                self._tell()
            if operand is not None and learns and self._looks_back(number):
                self._kept.operands[number] = operand
            else:
                release(operand)
                release(self._kept.ends.pop(number, None))
            operand = following
            if not self._keeps:
                release(self._kept.taken.pop(number, None))
                release(self._kept.products.pop(number, None))

    def _ready(
        self, layers: Layers, number: int, operand: Table | None, keys: DropoutKeys | None
    ) -> Iterator[tuple[Piece, Tensor | None]]:
        """A layer's product, chunk after chunk, after the moments of its norms. Collective.

        Each norm takes a pass over all rows; the first one computes the products, and keeps them.
        """
        norms, last = self.segments.norms(number), number == self.segments.layers - 1
        keeps = bool(norms) or (self._keeps and not last)
        found = self._products(layers, number, operand, keep=keeps)
        known = self._known[number] = []
        for _ in range(norms):
            gathered = Gathered()
            for at, Z in found:
                gathered.add(*self._before_norm(at, Z, keys))
                self._tell()
            known.append(gathered.over_ranks(self._comm))
            found = self._pieces(layers, number)
        for each in known:
            if self.segments.model.training:
                each.remembered(self.room.dtype)
        yield from found

    def _products(
        self, layers: Layers, number: int, operand: Table | None, *, keep: bool
    ) -> Iterator[tuple[Piece, Tensor | None]]:
        """A layer's product as it is made; ``None`` if it takes A·X. Collective."""
        for part, Z in self._forward_products(number, layers, operand):
            if keep and Z is not None:
                self._kept.product(number, layers, Z).write(part, Z)
            yield Piece(layers, number, part), Z

    def _pieces(self, layers: Layers, number: int) -> Iterator[tuple[Piece, Tensor | None]]:
        """All chunks of a layer whose product is kept."""
        return ((Piece(layers, number, part), None) for part in range(len(layers.bounds) - 1))

    def _passes(self, number: int) -> int:
        """Number of passes over all chunks of a layer, forward or backward."""
        return 1 + self.segments.norms(number)

    def _into_norms(self, at: Piece, H: Tensor, made: Tensor, product: ChunkRows) -> None:
        """Keep the gradient of what a layer makes, until that of its last norm's moments is known.

        It overwrites the gradient that the next layer sends back past its product: a summand of it.
        """
        dH = torch.zeros_like(H) if made.grad is None else made.grad
        following, cuts = at.number + 1, at.layers.matrices[at.number].row_bounds
        if following in self._kept.skipped:
            self._kept.made[at.number] = self._kept.skipped[following]
        self._kept.into(self._kept.made, at.number, "skipped", cuts, dH).write(at.part, dH)
        self._returned.add(H, dH, product.leaves)

    def _through_norms(self, layers: Layers, number: int, keys: DropoutKeys | None) -> None:
        """From the gradient of what a layer makes to that of its product. Collective.

        The gradients of the moments of its norms are needed before: a pass over all rows gives
        those of one norm, the last one's first.
        """
        known = self._known.get(number, [])
        for site in range(len(known) - 1, -1, -1):
            known[site].gradient, self._returned = self._returned.over_ranks(self._comm), Returned()
            for at, _ in self._pieces(layers, number):
                with torch.enable_grad():
                    H_in = self._input(at, keys)
                    H, product = self._layer(at, None, keys, H_in, site - 1)
                dH = self._kept.made[number].read(at.part)
                if site:
                    self._returned.add(H, dH, product.leaves)
                else:
                    H.backward(dH)
                    self._keep_gradients(at, product.gradient, H_in)
                self._tell()
        made = self._kept.made.pop(number, None)
        if made is not self._kept.skipped.get(number + 1):
            release(made)

    def forget(self) -> None:
        """Give up what was kept for `backward`."""
        self._kept.forget()
        for known in (self._known, self._stopped_at, self._attending):
            known.clear()
        self._returned = Returned()  # of an epoch that was broken off

    def _first_operand(self, layers: Layers, keys: DropoutKeys | None) -> Table | None:
        """Operand of the first layer; ``None`` if features are propagated."""
        if self.vertices.propagated is not None:
            return None
        table: Table | None = None
        for part in range(len(layers.bounds) - 1):
            X = self.vertices.features.rows(part)
            stopped = self._stopped(0, X, part, None, keys)
            self._keep_ends(layers, 0, part, stopped.scores, layers.chosen(0, part))
            outgoing = stopped.operand
            self._operand_learns = outgoing.requires_grad
            if table is None:
                extra, heads = layers.matrices[0].halo_rows, self.segments.head_count(0)
                table = self.room.table("operand", layers.bounds, outgoing, extra, heads=heads)
            table.write(part, outgoing.detach())
            self._tell()
        return table

    @property
    def _begins_with_adjoint(self) -> bool:
        """True if the operand of the first layer depends on a weight."""
        return self.vertices.propagated is None and self._operand_learns

    def _first_backward(self, layers: Layers, keys: DropoutKeys | None) -> None:
        """The part that the first layer's operand has in the gradients."""
        if not self._begins_with_adjoint:
            return
        for part, dO in self._operand_gradients(0, layers):
            with torch.enable_grad():
                X = self.vertices.features.rows(part)
                stopped = self._stopped(0, X, part, None, keys)
                ends = self._of_operand(0, part, stopped, layers.chosen(0, part), dO)
            torch.autograd.backward(*ends)
            self._tell()

    def _forward_products(
        self, number: int, layers: Layers, operand: Table | None
    ) -> Iterator[tuple[int, Tensor | None]]:
        """The product of a layer, chunk after chunk; ``None`` if it takes A·X."""
        if operand is None:
            yield from ((part, None) for part in range(len(layers.bounds) - 1))
            return
        panel, new = self._in_panels(number, operand.width)
        matrix, reduction = layers.matrices[number], self.segments.reduction(number)
        heads = self.segments.heads(number)
        if heads is not None:
            stopped = self._stopped_at[number]
            assert stopped.scores is not None
            ids = None if stopped.dropped is None else self.vertices.ids_of_columns(matrix)
            attending = Attending(matrix, heads, stopped.scores, stopped.dropped, ids)
            self._attending[number] = attending
            yield from attending.products(operand, self._kept.ends[number], panel, new)
        elif reduction is None:
            yield from matrix.products(operand, panel, new)
        else:
            yield from extreme_products(matrix, operand, panel, new, largest=reduction == "max")

    def _in_panels(self, number: int, width: int) -> tuple[int, NewTable]:
        """Columns of a layer's panels, and what makes tables of such panels."""
        heads = self.segments.head_count(number)
        return self.room.panel(width, heads), partial(self.room.table_of, heads=heads)

    def _looks_back(self, number: int) -> bool:
        """True if backward needs the operand of a layer, for an extreme or for attention."""
        learns = number > 0 or self._begins_with_adjoint
        segments = self.segments
        return learns and bool(segments.reduction(number) or segments.heads(number))

    def _operand_gradients(self, number: int, layers: Layers) -> Iterator[tuple[int, Tensor]]:
        """The gradient of a layer's operand, chunk after chunk. Collective."""
        G, matrix = self._kept.products[number], layers.matrices[number]
        reduction = self.segments.reduction(number)
        panel, new = self._in_panels(number, G.width)
        if number in self._attending:
            kept = self._kept
            operand, ends = kept.operands[number], kept.ends[number]
            of_ends = kept.of_ends[number] = self._like_ends(number, ends)
            return self._attending[number].adjoints(operand, ends, G, of_ends, panel, new)
        if reduction is None:
            return matrix.adjoints(G, panel, new)
        operand = self._kept.operands[number]
        return extreme_adjoints(matrix, operand, G, panel, new, largest=reduction == "max")

    def _adjoints(self, number: int, layers: Layers) -> Iterator[tuple[int, Tensor]]:
        """The gradient of a layer's output through the next product, chunk after chunk."""
        matrix = layers.matrices[number + 1]
        for part, dO in self._operand_gradients(number + 1, layers):
            chosen = layers.chosen(number, part) if matrix.sources is None else None
            yield part, dO if chosen is None else dO[chosen]

    def _begin(self, layers: Layers, passes: int) -> None:
        self._ticks, self._all_ticks = 0, passes * (len(layers.bounds) - 1)

    def _tell(self) -> None:
        self._ticks += 1
        if self._tick is not None:
            self._tick(self._ticks, self._all_ticks)
