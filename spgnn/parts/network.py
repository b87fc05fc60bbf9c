"""A model over a whole graph, forward and backward, some rows at a time.

    forward   layer by layer, part by part:  Z = A·O;  H = layer(Z);  O' = what the next multiplies
    the last  its loss and gradients, at once, of the rows that are at hand:  dZ, and dW += …
    backward  the others, backwards:         dO = Aᵀ·dZ';  H and O' once more;  dZ, and dW += …

Between the layers there are tables: the operand of the next product, and, from forward to backward,
each product (of which the layer is made again), and what a layer takes if it looks at it beside the
product. The gradient of a product takes the place of the product; of the last product nothing else
is ever kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from spgnn.blocks import take_rows
from spgnn.nn import DropoutKeys
from spgnn.nn.features import Features, Propagated
from spgnn.parts.aside import Aside
from spgnn.parts.kept import Kept, release
from spgnn.parts.layers import Layers, Piece, Vertices
from spgnn.parts.room import Room
from spgnn.parts.segments import Segments, Taken
from spgnn.parts.table import Table
from spgnn.sparse import CSR

# The share of a loss that some rows have: (part, rows of it or None for all, outputs).
LossOf = Callable[[int, Tensor | None, Tensor], Tensor]


class Network:
    """A model on a graph that is worked through in parts.

    Parameters
    ----------
    segments : Segments
    vertices : Vertices
    room : Room
        Says where tables lie.
    again : set of int
        Layers for which, in training, what they look at beside the product is not kept, but made
        again of the product of the layer before them.
    tick : callable, optional
        Told (parts done, parts in all) while a pass over the layers goes on.
    """

    def __init__(
        self,
        segments: Segments,
        vertices: Vertices,
        room: Room,
        again: frozenset[int] = frozenset(),
        tick: Callable[[int, int], None] | None = None,
    ) -> None:
        self.segments, self.vertices, self.room = segments, vertices, room
        self.again, self._keeps = again, False
        self._tick, self._ticks, self._all_ticks = tick, 0, 0
        self._gradients = Aside(segments.model.parameters())
        self._kept = Kept(room)
        self._widths: dict[int, int] = {}
        self._operand_learns = False

    def outputs(
        self, layers: Layers, keys: DropoutKeys | None = None
    ) -> Iterator[tuple[int, Tensor | None, Tensor]]:
        """What the last layer makes, part after part. Collective; to be run to its end.

        Parameters
        ----------
        layers : Layers
        keys : DropoutKeys, optional
            Of the masks; their ids do not count.

        Yields
        ------
        part : int
        chosen : Tensor int64, optional
            Which of its rows; ``None``: all.
        outputs : Tensor [rows, columns]
        """
        for at, Z in self._until_last(layers, keys, keep=False):
            H, _ = self._layer(at, Z, keys)
            yield at.part, at.chosen, self._finished(at, H, keys)[0]
        self.forget()

    def loss(self, layers: Layers, keys: DropoutKeys | None, share: LossOf) -> Tensor:
        """A loss, and of its gradients those that the last layer has. Collective.

        Parameters
        ----------
        layers : Layers
        keys : DropoutKeys, optional
            Of the masks; their ids do not count.
        share : callable

        Returns
        -------
        Tensor
            A number; its gradients are `backward`'s.
        """
        total = torch.zeros((), dtype=self.room.dtype)
        self._gradients.clear()
        for at, Z in self._until_last(layers, keys, keep=True):
            with torch.enable_grad():
                H_in = self._input(at, keys)
                H, product = self._layer(at, Z, keys, H_in)
                outputs, earlier = self._finished(at, H, keys)
                value = share(at.part, at.chosen, outputs)
            total += value.detach()
            with self._gradients:
                value.backward()
            self._keep_gradients(at, product.gradient, H_in, like=Z)
            self._keep_jumps(at, earlier)
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
        self._begin(layers, last + self._begins_with_adjoint)
        with self._gradients:
            for number in range(last - 1, -1, -1):
                for part, dO in self._adjoints(number, layers):
                    at = Piece(layers, number, part)
                    with torch.enable_grad():
                        H_in = self._input(at, keys)
                        H, product = self._layer(at, None, keys, H_in)
                        ends, gradients = self._ends(at, H, dO, keys)
                    torch.autograd.backward(ends, gradients)
                    self._keep_gradients(at, product.gradient, H_in)
                    self._tell()
                self._kept.done(number)
            self._first_backward(layers, keys)
        self._gradients.add(scale)
        self.forget()

    def _until_last(
        self, layers: Layers, keys: DropoutKeys | None, *, keep: bool
    ) -> Iterator[tuple[Piece, Tensor | None]]:
        """All layers but the last, and the product of that one, part after part."""
        self.forget()
        # Outputs that are made of all layers are made of their products.
        self._keeps = keep = keep or self.segments.jumps
        last = self.segments.layers - 1
        self._begin(layers, last + 1 + (self.vertices.propagated is None))
        operand = self._first_operand(layers, keys)
        for number in range(last + 1):
            following: Table | None = None
            for part, Z in self._forward_products(number, layers, operand):
                at = Piece(layers, number, part)
                if number == last:
                    yield at, Z
                    self._tell()
                    continue
                if keep and Z is not None:
                    self._kept.product(number, layers, Z).write(part, Z)
                H, _ = self._layer(at, Z, keys)
                outgoing = self._handed_on(at, H, keys)
                matrix = layers.matrices[number + 1]
                if following is None:
                    cuts, extra = matrix.column_bounds, matrix.halo_rows
                    following = self.room.table("operand", cuts, outgoing, extra)
                # The rows that a layer makes are the sources of the next one, if that has any.
                following.write_some(part, at.chosen if matrix.sources is None else None, outgoing)
                self._tell()
            if operand is not None:
                operand.release()
            operand = following
            if not keep:
                release(self._kept.taken.pop(number, None))

    def forget(self) -> None:
        """Give up what was kept for `backward`."""
        self._kept.forget()

    def _first_operand(self, layers: Layers, keys: DropoutKeys | None) -> Table | None:
        """What the first layer multiplies, if features are not propagated."""
        if self.vertices.propagated is not None:
            return None
        table: Table | None = None
        for part in range(len(layers.bounds) - 1):
            X = self.vertices.features.rows(part)
            outgoing = self._operand(0, X, part, None, keys)
            self._operand_learns = outgoing.requires_grad
            if table is None:
                extra = layers.matrices[0].halo_rows
                table = self.room.table("operand", layers.bounds, outgoing, extra)
            table.write(part, outgoing.detach())
            self._tell()
        return table

    @property
    def _begins_with_adjoint(self) -> bool:
        """Whether what the first layer multiplies depends on a weight."""
        return self.vertices.propagated is None and self._operand_learns

    def _first_backward(self, layers: Layers, keys: DropoutKeys | None) -> None:
        """The part that the first layer's operand has in the gradients."""
        if not self._begins_with_adjoint:
            return
        for part, dO in layers.matrices[0].adjoints(
            self._kept.products[0],
            self.room.panel(self._kept.products[0].width),
            self.room.table_of,
        ):
            with torch.enable_grad():
                O = self._operand(0, self.vertices.features.rows(part), part, None, keys)  # noqa: E741
            O.backward(dO)
            self._tell()

    def _forward_products(
        self, number: int, layers: Layers, operand: Table | None
    ) -> Iterator[tuple[int, Tensor | None]]:
        """The product of a layer, part after part; ``None`` if it takes A·X."""
        if operand is None:
            yield from ((part, None) for part in range(len(layers.bounds) - 1))
            return
        panel = self.room.panel(operand.width)
        yield from layers.matrices[number].products(operand, panel, self.room.table_of)

    def _adjoints(self, number: int, layers: Layers) -> Iterator[tuple[int, Tensor]]:
        """The gradient of what a layer hands on, part after part."""
        G, matrix = self._kept.products[number + 1], layers.matrices[number + 1]
        for part, dO in matrix.adjoints(G, self.room.panel(G.width), self.room.table_of):
            chosen = layers.chosen(number, part) if matrix.sources is None else None
            yield part, dO if chosen is None else dO[chosen]

    def _layer(
        self, at: Piece, Z: Tensor | None, keys: DropoutKeys | None, H_in: Features | None = None
    ) -> tuple[Tensor, Taken]:
        """What a layer makes, of its product or the one that was kept."""
        number, part, chosen = at.number, at.part, at.chosen
        if H_in is None:
            H_in = self._input(at, keys)
        if Z is None and number in self._kept.products:
            Z = self._kept.products[number].read(part)
        if Z is not None:
            scale = self.vertices.scale(self.vertices.row_scale, part, chosen)
            # A tensor of its own: layers write over it.
            Z = Z.clone() if scale is None else Z * scale
        ids = self.vertices.ids_of(part, chosen)
        return self.segments.layer(number, H_in, Z, ids, _of(keys, ids))

    def _finished(
        self, at: Piece, H: Tensor, keys: DropoutKeys | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Outputs, of what the last layer makes; and what the others make, if they look at that.

        That is made again, of products; nothing of it is kept.
        """
        earlier, learns = list[Tensor](), torch.is_grad_enabled()
        for number in range(at.number) if self.segments.jumps else ():
            with torch.no_grad():
                found, _ = self._layer(Piece(at.layers, number, at.part), None, keys)
            earlier.append(found.requires_grad_(learns))
        ids = self.vertices.ids_of(at.part, at.chosen)
        return self.segments.finish([*earlier, H], _of(keys, ids)), earlier

    def _input(self, at: Piece, keys: DropoutKeys | None) -> Features:
        """What a layer takes; no rows where it does not look at them."""
        number, part, learns = at.number, at.part, torch.is_grad_enabled()
        if number in self._kept.taken:
            return self._kept.taken[number].read(part).clone().requires_grad_(learns)
        if self._makes_again(number):
            before = Piece(at.layers, number - 1, part)
            with torch.no_grad():
                H, _ = self._layer(before, None, keys)
            return _picked(H, before.inside).requires_grad_(learns)
        if number:
            return self._nobody(self._widths[number]).requires_grad_(learns)
        chosen, table = at.chosen, self.vertices.propagated
        X: Tensor | CSR | None = None
        if self.segments.looks_at_itself(0):
            X = self.vertices.features.rows(part)
            if chosen is not None:
                X = take_rows(X, chosen) if isinstance(X, CSR) else X[chosen]
        if table is None:
            return self._nobody(self.segments.model.in_channels) if X is None else X
        assert not isinstance(X, CSR)
        AX = table.read(part).to(self.room.dtype)
        return Propagated(AX if chosen is None else AX[chosen], X)

    def _makes_again(self, number: int) -> bool:
        """Whether what a layer looks at is made of the product of the one before, which is kept."""
        return self._keeps and number in self.again and self.segments.looks_at_itself(number)

    def _nobody(self, width: int) -> Tensor:
        """What a layer takes that does not look at it."""
        return torch.empty(0, width, dtype=self.room.dtype)

    def _handed_on(self, at: Piece, H: Tensor, keys: DropoutKeys | None) -> Tensor:
        """What the next layer multiplies; what it looks at itself is kept."""
        following = at.number + 1
        self._widths[following] = H.shape[1]
        if self.segments.looks_at_itself(following) and not self._makes_again(following):
            own = _picked(H, at.inside).detach()
            cuts = at.layers.matrices[following].row_bounds
            self._kept.into(self._kept.taken, following, "taken", cuts, own).write(at.part, own)
        return self._operand(following, H, at.part, at.chosen, keys).detach()

    def _operand(
        self,
        number: int,
        H: Features,
        part: int,
        chosen: Tensor | None,
        keys: DropoutKeys | None,
    ) -> Tensor:
        """What a layer multiplies, of some rows of a part; scaled."""
        ids = self.vertices.ids_of(part, chosen)
        found = self.segments.operand(number, H, ids, _of(keys, ids))
        scale = self.vertices.scale(self.vertices.column_scale, part, chosen)
        return found if scale is None else found * scale

    def _ends(
        self, at: Piece, H: Tensor, dO: Tensor, keys: DropoutKeys | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """What a layer's output is used for, and the gradients of that."""
        following = at.number + 1
        ends = [self._operand(following, H, at.part, at.chosen, keys)]
        gradients = [dO]
        if following in self._kept.skipped:
            ends.append(_picked(H, at.inside))
            gradients.append(self._kept.skipped[following].read(at.part))
        if at.number in self._kept.jumps:
            ends.append(H)
            gradients.append(self._kept.jumps[at.number].read(at.part))
        return ends, gradients

    def _keep_gradients(
        self, at: Piece, dZ: Tensor | None, H_in: Features, like: Tensor | None = None
    ) -> None:
        """For the layer before: of the product, in its place, and of what was looked at beside.

        Of the last layer, whose product was not kept, that product says how wide it is.
        """
        number, part = at.number, at.part
        if like is not None and (number or self._operand_learns):
            self._kept.product(number, at.layers, like)
        if number in self._kept.products and (number or self._operand_learns):
            table = self._kept.products[number]
            if dZ is None:
                dZ = torch.zeros(table.lengths[part], table.width, dtype=table.dtype)
            scale = self.vertices.scale(self.vertices.row_scale, part, at.chosen)
            table.write(part, dZ if scale is None else dZ * scale)
        if number and self.segments.looks_at_itself(number):
            assert isinstance(H_in, Tensor)
            dH = torch.zeros_like(H_in) if H_in.grad is None else H_in.grad
            cuts = at.layers.matrices[number].row_bounds
            self._kept.into(self._kept.skipped, number, "skipped", cuts, dH).write(part, dH)

    def _keep_jumps(self, at: Piece, earlier: list[Tensor]) -> None:
        """Of what the other layers make, the gradients that outputs give it."""
        for number, H in enumerate(earlier):
            assert H.grad is not None
            cuts = at.layers.matrices[number].row_bounds
            table = self._kept.into(self._kept.jumps, number, "skipped", cuts, H.grad)
            table.write(at.part, H.grad)

    def _begin(self, layers: Layers, passes: int) -> None:
        self._ticks, self._all_ticks = 0, passes * (len(layers.bounds) - 1)

    def _tell(self) -> None:
        self._ticks += 1
        if self._tick is not None:
            self._tick(self._ticks, self._all_ticks)


def _of(keys: DropoutKeys | None, ids: Tensor) -> DropoutKeys | None:
    return None if keys is None else DropoutKeys(ids, keys.seed, keys.epoch)


def _picked(H: Tensor, inside: Tensor | None) -> Tensor:
    return H if inside is None else H[inside]
