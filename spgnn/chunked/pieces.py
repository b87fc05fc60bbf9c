"""A layer on the rows of one chunk, from the tables kept between forward and backward."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from spgnn.chunked.matrix import Attending
from spgnn.chunked.moments import Known
from spgnn.chunked.room import Room
from spgnn.chunked.segments import ChunkRows, Segments, Stopped
from spgnn.chunked.sizes import Heads
from spgnn.chunked.state import Kept, Layers, Piece, Vertices
from spgnn.chunked.table import Table
from spgnn.graph.features import Features, Propagated
from spgnn.graph.protocol import AttentionScores
from spgnn.nn import DropoutKeys
from spgnn.nn.norm import Norm
from spgnn.sparse import CSR, take_rows


class Pieces:
    """The layers of a model, one chunk's rows at a time.

    Parameters
    ----------
    segments : Segments
    vertices : Vertices
    room : Room
        Says where tables lie.
    again : set of int
        Layers whose input rows, in training, are not kept but recomputed from the product of the
        layer before them.
    """

    def __init__(
        self, segments: Segments, vertices: Vertices, room: Room, again: frozenset[int]
    ) -> None:
        self.segments, self.vertices, self.room = segments, vertices, room
        self.again, self._keeps, self._learns = again, False, False
        self._kept = Kept(room, segments.head_count)
        self._stopped_at: dict[int, Stopped] = {}  # without rows
        self._attending: dict[int, Attending] = {}
        self._known: dict[int, list[Known]] = {}
        self._widths: dict[int, int] = {}
        self._operand_learns = False

    def _layer(
        self,
        at: Piece,
        Z: Tensor | None,
        keys: DropoutKeys | None,
        H_in: Features | None = None,
        leaf: int = -1,
    ) -> tuple[Tensor, ChunkRows]:
        """Output of a layer, from the given product or the one that was kept."""
        H_in = self._input(at, keys) if H_in is None else H_in
        Z, ids = self._product(at, Z), self.vertices.ids_of(at.part, at.chosen)
        known = self._known.get(at.number, [])
        first = self._is_first(at.number)
        return self.segments.layer(at.number, H_in, Z, ids, _of(keys, ids), first, known, leaf)

    def _is_first(self, number: int) -> bool:
        """True if a layer applies its weight before the product."""
        return number in self._stopped_at and self._stopped_at[number].first

    def _before_norm(
        self, at: Piece, Z: Tensor | None, keys: DropoutKeys | None
    ) -> tuple[Norm, Tensor, Tensor | None]:
        """The first norm of a layer whose moments are not known, its rows, and a bias apart."""
        H_in, Z = self._input(at, keys), self._product(at, Z)
        ids, known = self.vertices.ids_of(at.part, at.chosen), self._known.get(at.number, [])
        with self._as_made:
            norm, x, shift = self.segments.before_norm(
                at.number, H_in, Z, ids, _of(keys, ids), self._is_first(at.number), known
            )
        return norm, x.detach(), shift

    @property
    def _as_made(self) -> AbstractContextManager[object]:
        """Autograd records, or does not, as when products were made.

        Which way round a layer multiplies depends on that.
        """
        return torch.set_grad_enabled(self._learns)

    def _product(self, at: Piece, Z: Tensor | None) -> Tensor | None:
        """The product, or the one that was kept, scaled; ``None`` if features are propagated."""
        number, part, chosen = at.number, at.part, at.chosen
        if Z is None and number in self._kept.products:
            Z = self._kept.products[number].read(part)
        if Z is not None:
            scale = self.vertices.scale(self.vertices.row_scale, part, chosen)
            # A tensor of its own: layers write over it.
            Z = Z.clone() if scale is None else Z * scale
        return Z

    def _finished(
        self, at: Piece, H: Tensor, keys: DropoutKeys | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Model outputs from the last layer's, and the other layers' if the outputs depend on them.

        The others' are recomputed from products; none is kept.
        """
        earlier, learns = list[Tensor](), torch.is_grad_enabled()
        for number in range(at.number) if self.segments.jumps else ():
            with self._as_made:
                found, _ = self._layer(Piece(at.layers, number, at.part), None, keys)
            earlier.append(found.detach().requires_grad_(learns))
        ids = self.vertices.ids_of(at.part, at.chosen)
        return self.segments.finish([*earlier, H], _of(keys, ids)), earlier

    def _input(self, at: Piece, keys: DropoutKeys | None) -> Features:
        """Input rows of a layer; no rows if it does not read them."""
        number, part, learns = at.number, at.part, torch.is_grad_enabled()
        if number in self._kept.taken:
            return self._kept.taken[number].read(part).clone().requires_grad_(learns)
        if self._makes_again(number):
            before = Piece(at.layers, number - 1, part)
            with self._as_made:
                H, _ = self._layer(before, None, keys)
            return _picked(H.detach(), before.inside).requires_grad_(learns)
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
        """True if a layer's input rows are recomputed from the kept product of the layer before."""
        return self._keeps and number in self.again and self.segments.looks_at_itself(number)

    def _nobody(self, width: int) -> Tensor:
        """Input without rows, for a layer that does not read them."""
        return torch.empty(0, width, dtype=self.room.dtype)

    def _handed_on(self, at: Piece, H: Tensor, keys: DropoutKeys | None) -> Tensor:
        """Operand of the next layer; if that reads its own input rows, they are kept."""
        following = at.number + 1
        self._widths[following] = H.shape[1]
        if self.segments.looks_at_itself(following) and not self._makes_again(following):
            own = _picked(H, at.inside).detach()
            cuts = at.layers.matrices[following].row_bounds
            self._kept.into(self._kept.taken, following, "taken", cuts, own).write(at.part, own)
        found = self._stopped(following, H, at.part, at.chosen, keys)
        self._keep_ends(at.layers, following, at.part, found.scores, at.inside)
        return found.operand.detach()

    def _keep_ends(
        self,
        layers: Layers,
        number: int,
        part: int,
        scores: AttentionScores | None,
        inside: Tensor | None,
    ) -> None:
        """Keep the destination scores of some rows, if the layer uses attention."""
        heads = self.segments.heads(number)
        if scores is None or heads is None:
            return
        cuts = layers.matrices[number].row_bounds
        ends = _picked(scores.destinations, inside).detach()
        panel = self._panel_of_ends(heads)
        table = self._kept.into(self._kept.ends, number, "taken", cuts, ends, panel=panel)
        table.write(part, ends)

    def _like_ends(self, number: int, ends: Table) -> Table:
        """For the gradient of what rows say of their own scores."""
        heads, like = self.segments.heads(number), torch.empty(0, ends.width)
        assert heads is not None
        return self.room.table("skipped", ends.bounds, like, panel=self._panel_of_ends(heads))

    def _panel_of_ends(self, heads: Heads) -> int:
        """Columns for as many heads as a panel has."""
        panel = self.room.panel(heads.number * heads.channels, heads.number)
        return panel // heads.channels * heads.end

    def _stopped(
        self,
        number: int,
        H: Features,
        part: int,
        chosen: Tensor | None,
        keys: DropoutKeys | None,
    ) -> Stopped:
        """Scaled operand of a layer, and its attention scores, for some rows of a chunk."""
        ids = self.vertices.ids_of(part, chosen)
        found = self.segments.stopped(number, H, ids, _of(keys, ids))
        scores = found.scores
        if scores is not None:
            none = scores.destinations[:0].detach()
            scores = replace(scores, destinations=none, vector=scores.vector.detach())
        self._stopped_at[number] = found._replace(operand=found.operand[:0].detach(), scores=scores)
        scale = self.vertices.scale(self.vertices.column_scale, part, chosen)
        return found if scale is None else found._replace(operand=found.operand * scale)

    def _of_operand(
        self, number: int, part: int, stopped: Stopped, inside: Tensor | None, dO: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """A layer's operand and destination scores, and the gradients of both."""
        ends, gradients, scores = [stopped.operand], [dO], stopped.scores
        if scores is not None:
            ends.append(_picked(scores.destinations, inside))
            gradients.append(self._kept.of_ends[number].read(part))
            of_vector = self._attending[number].of_vector
            if of_vector is not None:  # once, and not in every chunk
                ends.append(scores.vector)
                gradients.append(of_vector)
                self._attending[number].of_vector = None
        return ends, gradients

    def _ends(
        self, at: Piece, H: Tensor, dO: Tensor, keys: DropoutKeys | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Tensors computed from a layer's output, and their gradients."""
        following = at.number + 1
        stopped = self._stopped(following, H, at.part, at.chosen, keys)
        ends, gradients = self._of_operand(following, at.part, stopped, at.inside, dO)
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
        """Save gradients for the layer before: the product's, over the product, and the input's.

        `like` is the product of the last layer, which was not kept: it gives the table's width.
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
        """Keep the gradients of the other layers' outputs."""
        for number, H in enumerate(earlier):
            assert H.grad is not None
            cuts = at.layers.matrices[number].row_bounds
            table = self._kept.into(self._kept.jumps, number, "skipped", cuts, H.grad)
            table.write(at.part, H.grad)


def _of(keys: DropoutKeys | None, ids: Tensor) -> DropoutKeys | None:
    return None if keys is None else DropoutKeys(ids, keys.seed, keys.epoch)


def _picked(H: Tensor, inside: Tensor | None) -> Tensor:
    return H if inside is None else H[inside]
