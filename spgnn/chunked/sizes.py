"""A rank's share of the work in chunks, in numbers, and the bytes of its tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from spgnn.chunked.room import Places
from spgnn.kernels.attention_panel import packed_bytes


class Heads(NamedTuple):
    """Attention heads of a layer.

    Attributes
    ----------
    number : int
    channels : int
        Columns of each head's messages.
    joint : bool
        Whether a destination's score has all channels (GATv2), not one number.
    """

    number: int
    channels: int
    joint: bool

    @property
    def end(self) -> int:
        """Columns of one head's destination scores."""
        return self.channels if self.joint else 1

    @property
    def ends(self) -> int:
        """Columns of all heads' destination scores."""
        return self.number * self.end

    def packed(self, panel: int, itemsize: int) -> int:
        """Bytes of a source in a panel of so many columns, as kernels take it."""
        dtype = torch.float64 if itemsize > 4 else torch.float32
        return packed_bytes(panel // self.channels, self.channels, dtype, joint=self.joint)


# A layer gets a matrix of its own rows if these have at most this share of all nonzeros.
OWN_MATRIX = 0.125


@dataclass(frozen=True)
class Sizes:
    """Row counts, widths and bytes of a rank's share of the work.

    Attributes
    ----------
    rows, received : int
        Own rows, and rows of other ranks that their product needs.
    matrix_bytes : int
        Bytes of one pass over the adjacency.
    operands : tuple of int
        Width of each layer's operand; 0 for a first layer that takes A·X.
    widths : tuple of int
        Widths of the features, and of each layer's output.
    features_bytes : int
        Bytes of A·X, if features are propagated; else 0.
    looks : tuple of bool
        Whether each layer reads its own input rows as well as the product.
    made : tuple of int
        Own rows that each layer makes, at most.
    sources : tuple of int
        Own rows that each layer's product reads, at most.
    itemsize : int
        Bytes of a number.
    fixed_bytes : int
        Bytes that are in memory under every budget.
    sides : int
        Number of copies of the adjacency in `matrix_bytes`: 2 with its transpose.
    small : tuple of bool
        Whether each layer has a matrix of its own, with few rows, in memory.
    source_bytes : int
        Bytes of reading the features from their source once; 0 in memory.
    learns : bool
        Whether the first layer's operand depends on a weight.
    jumps : bool
        Whether model outputs depend on the outputs of all layers.
    norms : tuple of int
        Number of each layer's norms that need moments over all vertices; empty: none.
    extremes : bool
        Whether layers take the largest of their neighbours instead of products.
    heads : tuple of Heads or None
        Attention heads of each layer; empty: no layer has any.
    scored_bytes : int
        Bytes of the outputs that are in memory at the same time, for the metrics.
    """

    rows: int
    received: int
    matrix_bytes: int
    operands: tuple[int, ...]
    widths: tuple[int, ...]
    features_bytes: int
    looks: tuple[bool, ...]
    made: tuple[int, ...]
    sources: tuple[int, ...]
    itemsize: int
    fixed_bytes: int
    sides: int = 1
    small: tuple[bool, ...] = ()
    source_bytes: int = 0
    learns: bool = True
    jumps: bool = False
    norms: tuple[int, ...] = ()
    extremes: bool = False
    heads: tuple[Heads | None, ...] = ()
    scored_bytes: int = 0


def scored(labelled: int, width: int, itemsize: int) -> tuple[int, int]:
    """Bytes that the metrics read: outputs of labelled rows, and their labels and masks.

    Parameters
    ----------
    labelled, width : int
        Rows, and columns of an output.
    itemsize : int
    """
    # Row and label, int64, for all and once more for those of training; three masks.
    return labelled * width * itemsize, labelled * (2 * (8 + 8) + 3)


def at_most(sizes: Sizes, wanted: int, nonzeros: int, total: int) -> Sizes:
    """The same if outputs of few rows are looked at, from how many these are alone.

    Parameters
    ----------
    sizes : Sizes
        With layers that make all rows.
    wanted : int
        Own rows of the last layer that are looked at.
    nonzeros : int
        In these rows.
    total : int
        In all own rows.
    """
    rows, layers = sizes.rows, len(sizes.operands)
    made, sources = [rows] * layers, [rows] * layers
    made[-1] = wanted
    if nonzeros > OWN_MATRIX * total:
        return replace(sizes, made=tuple(made))
    before = min(rows, nonzeros + wanted)
    if layers > 1:
        made[-2] = before
    # On several ranks, its columns are all own rows.
    sources[-1] = rows if sizes.received else before
    own_bytes = 2 * (8 * (nonzeros + wanted) + 8 * sources[-1]) + 8 * before
    return replace(
        sizes,
        made=tuple(made),
        sources=tuple(sources),
        small=(False,) * (layers - 1) + (True,),
        fixed_bytes=sizes.fixed_bytes + own_bytes,
    )


@dataclass(frozen=True)
class Tables:
    """Of one way to share out a rank's memory.

    Attributes
    ----------
    sizes : Sizes
    places : Places
    again : frozenset of int
        Layers whose input rows are recomputed, and not kept.
    """

    sizes: Sizes
    places: Places
    again: frozenset[int]

    @property
    def layers(self) -> int:
        """Number of layers."""
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
        # Nothing is recomputed if no products are kept, as they are for outputs of all layers.
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
        """Bytes of a layer's own input rows and destination scores."""
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
        """Bytes of a layer's operand in memory; those of a panel, if it is on the disk."""
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
        """Bytes of the operands of a layer's product during the product."""
        operand, packed = self._operand(layer, self.sizes.sources[layer]), self._packed(layer)
        if packed and self._on_disk("operand") and not self.sizes.received:
            return packed  # chunk after chunk
        return operand + packed

    def _following(self, layer: int) -> int:
        """Bytes of the next layer's operand; 0 if operands are on the disk."""
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
        """Bytes that the gradient of a layer's operand takes during its computation."""
        if layer >= self.layers:
            return 0
        several, rows = self.sizes.received > 0, self.sizes.sources[layer]
        operand = self._operand(layer, rows)
        if self._packed(layer):
            # The packed sources and their gradients; then gradients from other ranks. The operand
            # itself, too, if it is in memory.
            whole = self._on_disk("operand") and not several
            return 2 * self._packed(layer) + (0 if whole else operand * (1 + several))
        if self.sizes.extremes:
            # The operand, its gradient, and what other ranks send for that.
            return (2 + several) * operand
        # The gradient of the product is spread over all rows.
        return self._operand(layer, self.sizes.rows)
