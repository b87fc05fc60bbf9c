"""Bytes of the tables that are in memory while a layer is worked on."""

from __future__ import annotations

from dataclasses import dataclass

from spgnn.parts.room import Places
from spgnn.parts.sizes import Sizes


@dataclass(frozen=True)
class Tables:
    """Of one way to share out a rank's memory.

    Attributes
    ----------
    sizes : Sizes
    places : Places
    again : frozenset of int
        Layers for which what they look at is made again, and not kept.
    """

    sizes: Sizes
    places: Places
    again: frozenset[int]

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self.sizes.operands)

    @property
    def most(self) -> int:
        """At the worst moment of an epoch, and of evaluating after it."""
        passes = self.forward, self.backward, self.evaluating
        return max(self.first, *(of(layer) for layer in range(self.layers) for of in passes))

    @property
    def first(self) -> int:
        """While what the first layer multiplies gets its gradient, if anything is learnt by it."""
        if not self.sizes.learns:
            return 0
        return self._returning(0) + self._product(0) + self._taken(0) + self._skipped(0)

    def forward(self, layer: int) -> int:
        """While a layer is made; the last one's gradients are made as well."""
        found = self._multiplying(layer) + self._following(layer) + self._kept(layer)
        found += self._taken(layer + 1)
        if layer < self.layers - 1:
            return found
        return found + self._skipped(layer) + self._waiting(layer) + self._jumps(layer)

    def backward(self, layer: int) -> int:
        """While a layer gets its gradients, from those of what the next one multiplies."""
        beside = self._skipped(layer + 1) + self._skipped(layer) + self._waiting(layer)
        kept = self._kept(layer) + self._product(layer + 1) + self._taken(layer + 1)
        return self._returning(layer + 1) + kept + beside + self._jumps(layer)

    def evaluating(self, layer: int) -> int:
        """While it is made and nothing is learnt."""
        judged = self.sizes.scored_bytes if layer == self.layers - 1 else 0
        if self.sizes.jumps:
            return self.forward(layer) + judged
        # Nothing is made again where no products are kept, as they are for outputs of all layers.
        asked = self._looked_at(layer, "taken") + self._looked_at(layer + 1, "taken")
        # Norms that look at all vertices go through a layer's product again.
        asked += self._product(layer) if self._norms(layer) else 0
        return self._multiplying(layer) + self._following(layer) + asked + judged

    def _on_disk(self, purpose: str) -> bool:
        return purpose in self.places.on_disk

    def _size(self, rows: int, width: int) -> int:
        return self.sizes.itemsize * rows * width

    def _product(self, layer: int) -> int:
        if layer >= self.layers or self._on_disk("product"):
            return 0
        return self._size(self.sizes.made[layer], self.sizes.operands[layer])

    def _looked_at(self, layer: int, purpose: str) -> int:
        """What a layer takes and looks at beside the product, and what rows say of their scores."""
        if layer >= self.layers or self._on_disk(purpose):
            return 0
        found, rows = self._ends(layer), self.sizes.made[layer]
        if layer and self.sizes.looks[layer]:
            found += self._size(rows, self.sizes.widths[layer])
        return found

    def _ends(self, layer: int) -> int:
        heads = self.sizes.heads[layer] if self.sizes.heads else None
        return 0 if heads is None else self._size(self.sizes.made[layer], heads.ends)

    def _taken(self, layer: int) -> int:
        if layer in self.again:
            return 0 if self._on_disk("taken") else self._ends(layer)
        return self._looked_at(layer, "taken")

    def _skipped(self, layer: int) -> int:
        return self._looked_at(layer, "skipped")

    def _operand(self, layer: int, rows: int) -> int:
        """What a layer multiplies, or takes the largest of; by panels, if it lies on the disk."""
        if layer >= self.layers:
            return 0
        return (rows + self.sizes.received) * self.sizes.itemsize * self._panel(layer)

    def _panel(self, layer: int) -> int:
        """Columns of a panel."""
        width, heads = self.sizes.operands[layer], self.sizes.heads[layer : layer + 1]
        if not self._on_disk("operand") or not width:
            return width
        number = heads[0].number if heads and heads[0] is not None else 0
        return self.places.panel(width, self.sizes.itemsize, number)

    def _packed(self, layer: int) -> int:
        """A panel of sources as attention packs them; what is sent to them takes as much."""
        heads = self.sizes.heads[layer] if layer < self.layers and self.sizes.heads else None
        if heads is None:
            return 0
        rows = self.sizes.sources[layer] + self.sizes.received
        return rows * heads.packed(self._panel(layer), self.sizes.itemsize)

    def _multiplying(self, layer: int) -> int:
        """What a layer's product is made of, while it is."""
        operand, packed = self._operand(layer, self.sizes.sources[layer]), self._packed(layer)
        if packed and self._on_disk("operand") and not self.sizes.received:
            return packed  # part after part
        return operand + packed

    def _following(self, layer: int) -> int:
        """What the next layer multiplies; on the disk it is in memory one at a time."""
        if self._on_disk("operand") or layer + 1 >= self.layers:
            return 0
        return self._operand(layer + 1, self.sizes.sources[layer + 1])

    def _looked_back(self, layer: int) -> int:
        """The operand that is kept until its largest rows, or its weights, get their gradients."""
        asked = self.sizes.extremes or any(self.sizes.heads)
        if not asked or self._on_disk("operand") or not (layer or self.sizes.learns):
            return 0
        return self._operand(layer, self.sizes.sources[layer])

    def _kept(self, layer: int) -> int:
        """Of all layers up to this one."""
        before = range(layer + 1)
        return sum(self._product(n) + self._taken(n) + self._looked_back(n) for n in before)

    def _jumps(self, layer: int) -> int:
        """Gradients of what layers make, from outputs that look at all of them."""
        if not self.sizes.jumps or self._on_disk("skipped"):
            return 0
        last = layer == self.layers - 1
        before, widths = range(layer if last else layer + 1), self.sizes.widths
        return sum(self._size(self.sizes.made[n], widths[n + 1]) for n in before)

    def _norms(self, layer: int) -> int:
        return self.sizes.norms[layer] if self.sizes.norms else 0

    def _waiting(self, layer: int) -> int:
        """The gradient of what a layer makes, which waits for that of its norms' moments."""
        last = layer == self.layers - 1
        waits = self._norms(layer) and (last or not self.sizes.looks[layer + 1])
        if not waits or self._on_disk("skipped"):
            return 0
        return self._size(self.sizes.made[layer], self.sizes.widths[layer + 1])

    def _returning(self, layer: int) -> int:
        """What the gradient of a layer's operand is made of, while it is."""
        if layer >= self.layers:
            return 0
        several, rows = self.sizes.received > 0, self.sizes.sources[layer]
        operand = self._operand(layer, rows)
        if self._packed(layer):
            # What is sent, and to what; then what other ranks send. The operand itself, too, if it
            # is in memory.
            whole = self._on_disk("operand") and not several
            return 2 * self._packed(layer) + (0 if whole else operand * (1 + several))
        if self.sizes.extremes:
            # The operand, its gradient, and what other ranks send for that.
            return (2 + several) * operand
        # The gradient of the product is spread over all rows.
        return self._operand(layer, self.sizes.rows)
