"""A model's layers on some rows of a rank, with the products between them computed elsewhere.

Of a layer, everything but its aggregation treats rows independently. So the rows that are
multiplied are computed chunk by chunk (`stopped`), the product streams by, and the layer goes on
from it, chunk by chunk (`layer`), with norms that are given the moments of all vertices. Autograd
records both as ever, for these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spgnn.autograd import with_backward
from spgnn.chunked.moments import Known
from spgnn.chunked.sizes import Heads
from spgnn.errors import InputError
from spgnn.graph.features import Features, Propagated, times
from spgnn.graph.moments import Moments
from spgnn.graph.protocol import (
    Aggregation,
    AttentionScores,
    DroppedEdges,
    Graph,
    Matrix,
    Normalisation,
)
from spgnn.nn import DropoutKeys, Stack
from spgnn.nn.convolution import Convolution
from spgnn.nn.gat import AttentionConv, GATv2Conv
from spgnn.nn.norm import Norm, Stage, flatten_stages, run_stages, run_until
from spgnn.nn.rowwise import dropout
from spgnn.sparse import CSR

Extreme = Literal["max", "min"]


class Stopped(NamedTuple):
    """The aggregation that a layer asks for, of some rows.

    Attributes
    ----------
    operand : Tensor [rows, f]
        The rows that are multiplied or weighed.
    first : bool
        Whether the layer's weight is in them already.
    scores : AttentionScores, optional
        With attention.
    dropped : DroppedEdges, optional
        With attention, in training.
    """

    operand: Tensor
    first: bool = False
    scores: AttentionScores | None = None
    dropped: DroppedEdges | None = None


class ChunkRows(Graph):
    """Some rows of a rank: what a layer asks before and after its product.

    Parameters
    ----------
    vertex_ids : Tensor int64 [rows]
    known : sequence of Known
        Moments over all vertices, for the norms of the layer in their order.
    leaf : int
        The one that gradients are needed for; −1: none.

    Attributes
    ----------
    leaves : list of Tensor [f]
        Mean and variance of that one, once the norm has run.
    gradient : Tensor or None
        Of the product, after backward.
    """

    updates_norms = False

    def __init__(self, vertex_ids: Tensor, known: Sequence[Known] = (), leaf: int = -1) -> None:
        self.vertex_ids = self._ids = vertex_ids
        self.leaves: list[Tensor] = []
        self.gradient: Tensor | None = None
        self._known, self._leaf, self._norms = known, leaf, 0

    def nobody(self) -> ChunkRows:
        """No rows."""
        return ChunkRows(self._ids[:0])

    def matrix(self, normalisation: Normalisation = "none") -> Matrix:
        """There is none: products are computed elsewhere."""
        raise InputError("a layer that aggregates several times cannot be worked through in chunks")

    def moments(self, x: Tensor) -> Moments:
        """Moments over all vertices for the next norm, which is given these rows [rows, f]."""
        number, self._norms = self._norms, self._norms + 1
        found, leaves = self._known[number].of(x, leaf=number == self._leaf)
        self.leaves += leaves
        return found

    def given(self, Z: Tensor) -> Tensor:
        """The product, as autograd sees it: its gradient is kept."""
        if not torch.is_grad_enabled():
            return Z

        def keep(gradient: Tensor) -> None:
            self.gradient = gradient

        return with_backward(Z, keep)


class Segments:
    """The layers of a model, one at a time, on any rows.

    Parameters
    ----------
    model : Stack

    Raises
    ------
    InputError
        If its rows depend on one another in other ways than products.
    """

    def __init__(self, model: Stack) -> None:
        self.model = model
        check_model(model)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.model.num_layers

    @property
    def jumps(self) -> bool:
        """True if model outputs depend on the outputs of all layers, not of the last one alone."""
        return self.model.jk_mode not in (None, "last")

    def finish(self, made: Sequence[Tensor], keys: DropoutKeys | None) -> Tensor:
        """Outputs of some rows, of what the last layers make of these.

        Parameters
        ----------
        made : sequence of Tensor [rows, f]
            All layers', if outputs look at them; else the last one's.
        keys : DropoutKeys, optional
            With the ids of these rows.
        """
        model = self.model
        if model.jk_mode is None:
            return made[-1]
        # As the layer that follows drops it.
        first = self.layers - len(made) + 1
        taken = [dropout(H, model.dropout, keys, number) for number, H in enumerate(made, first)]
        logits: Tensor = model.lin(model.jk(taken))
        return logits

    def looks_at_itself(self, number: int) -> bool:
        """True if a layer reads its own input rows as well as the product."""
        return self.model.convolutions[number].uses_own_rows or len(self.model.residuals) > 0

    def reduction(self, number: int) -> Extreme | None:
        """Extreme of the neighbours that a layer takes; ``None`` if it multiplies or attends."""
        return reduction_of(self.model.convolutions[number])

    def heads(self, number: int) -> Heads | None:
        """Attention heads of a layer; ``None`` if it has none."""
        layer = self.model.convolutions[number]
        if not isinstance(layer, AttentionConv):
            return None
        return Heads(layer.heads, layer.out_channels, isinstance(layer, GATv2Conv))

    @property
    def drops_edges(self) -> bool:
        """True if a layer drops attention weights in training, as a function of original ids."""
        layers = self.model.convolutions
        return any(isinstance(layer, AttentionConv) and layer.dropout > 0 for layer in layers)

    @property
    def all_heads(self) -> tuple[Heads | None, ...]:
        """Of each layer; empty if none weighs neighbours."""
        found = tuple(self.heads(number) for number in range(self.layers))
        return found if any(found) else ()

    def head_count(self, number: int) -> int:
        """Number of attention heads of a layer; 0 without attention."""
        heads = self.heads(number)
        return 0 if heads is None else heads.number

    @property
    def multiplies(self) -> bool:
        """True if any layer multiplies with the matrix, and its adjoint with the transpose."""
        return not all(
            self.reduction(number) or self.heads(number) for number in range(self.layers)
        )

    def norms(self, number: int) -> int:
        """Norms of a layer that need moments over all vertices, as the model is now."""
        parts = (self.model.convs[number], self.model.norms[number])
        every = (module for part in parts for module in part.modules())
        return sum(isinstance(module, Norm) and module.needs_moments for module in every)

    def operands(self, widths: Sequence[int], *, sparse: bool) -> list[Tensor]:
        """Operand of each layer in training, without rows, for its width and ``requires_grad``.

        Parameters
        ----------
        widths : sequence of int
            Widths of the features, and of each layer's output.
        sparse : bool
            Whether features are sparse.
        """
        dtype = next(self.model.parameters()).dtype
        nobody = torch.empty(0, dtype=torch.int64)
        found = []
        with torch.enable_grad():
            for number, width in enumerate(widths[:-1]):
                H: Features = torch.empty(0, width, dtype=dtype).requires_grad_(number > 0)
                if sparse and not number:
                    empty = torch.empty(0, dtype=torch.int32)
                    start, none = torch.zeros(1, dtype=torch.int64), torch.empty(0, dtype=dtype)
                    H = CSR.of(start, empty, (0, width), none)
                found.append(self.operand(number, H, nobody, None))
        return found

    def operand(self, number: int, H: Features, ids: Tensor, keys: DropoutKeys | None) -> Tensor:
        """Operand of a layer's product, for these rows [rows, f]."""
        return self.stopped(number, H, ids, keys).operand

    def stopped(self, number: int, H: Features, ids: Tensor, keys: DropoutKeys | None) -> Stopped:
        """The rows that a layer multiplies or weighs, of those it is given [rows, f]."""
        rows = ChunkRows(ids)
        H = self.model.entering(number, H, rows, keys)
        request = self._request(number, H, rows, keys)
        operand, first = rows.operand(request)
        return Stopped(operand, first, request.scores, request.dropped)

    def layer(
        self,
        number: int,
        H: Features,
        Z: Tensor | None,
        ids: Tensor,
        keys: DropoutKeys | None,
        first: bool,
        known: Sequence[Known] = (),
        leaf: int = -1,
    ) -> tuple[Tensor, ChunkRows]:
        """The rows of a layer, of the product.

        Parameters
        ----------
        number : int
        H : Tensor [rows, f] or Propagated
            The rows that it is given. No rows where it does not look at them again.
        Z : Tensor [rows, f'], optional
            The product, which is overwritten; ``None`` if features are propagated.
        ids : Tensor int64 [rows]
        keys : DropoutKeys, optional
        first : bool
            Whether the layer's weight is in the product already.
        known, leaf
            Of its norms, as of `ChunkRows`.

        Returns
        -------
        H : Tensor [rows, f'']
        rows : ChunkRows
            Has the gradient of Z after backward.
        """
        rows = ChunkRows(ids, known, leaf)
        Z, stages, shift = self._after(number, H, Z, rows, keys, first)
        return run_stages(stages, Z, rows, shift), rows

    def before_norm(
        self,
        number: int,
        H: Features,
        Z: Tensor | None,
        ids: Tensor,
        keys: DropoutKeys | None,
        first: bool,
        known: Sequence[Known],
    ) -> tuple[Norm, Tensor, Tensor | None]:
        """The first norm whose moments are not known, the rows it is given, and a bias apart.

        Parameters
        ----------
        number, H, Z, ids, keys, first
            As of `layer`.
        known : sequence of Known
            Of the norms before it.
        """
        rows = ChunkRows(ids, known)
        Z, stages, shift = self._after(number, H, Z, rows, keys, first)
        norms = [
            (place, stage)
            for place, stage in enumerate(stages)
            if isinstance(stage, Norm) and stage.needs_moments
        ]
        place, norm = norms[len(known)]
        return norm, *run_until(place, stages, Z, rows, shift)

    def _request(
        self, number: int, H: Features, rows: ChunkRows, keys: DropoutKeys | None
    ) -> Aggregation:
        layer = self.model.convolutions[number]
        return layer.aggregation(H, rows, None, keys if layer.uses_keys else None)

    def _after(
        self,
        number: int,
        H: Features,
        Z: Tensor | None,
        rows: ChunkRows,
        keys: DropoutKeys | None,
        first: bool,
    ) -> tuple[Tensor, list[Stage], Tensor | None]:
        """The rows of a layer after its update, the stages that follow, and its bias."""
        model, layer = self.model, self.model.convolutions[number]
        rows_given = rows
        if not isinstance(H, Propagated) and not self.looks_at_itself(number):
            assert isinstance(H, Tensor)
            H, rows_given = H[:0].detach().requires_grad_(H.requires_grad), rows.nobody()
        H = model.entering(number, H, rows_given, keys)
        request = self._request(number, H, rows_given, keys)
        if Z is None:
            Z = rows.aggregate(request)
        else:
            operand = Z
            if request.self_loop is not None and request.weight is not None and first:
                assert not isinstance(request.operand, Propagated)
                operand = times(request.operand, request.weight)
            elif request.self_loop is not None:
                operand = request.dense
            Z = rows.combine(request, rows.given(Z), operand, first=first)
        Z = layer.update(Z, H, rows_given)
        return Z, flatten_stages([*layer.tail(), *model.stages(number, H, rows_given)]), layer.shift


def check_model(model: Stack) -> None:
    """Refuse models that cannot be processed chunk by chunk.

    Raises
    ------
    InputError
    """
    kind = type(model).__name__
    for layer in model.convolutions:
        if isinstance(layer, AttentionConv):
            if layer.edge_dim is not None or layer.res is not None or not layer.add_self_loops:
                raise InputError(
                    f"{kind}: --memory, --spill and --chunks know attention without edge features "
                    "or a skip of its own, and with self-loops"
                )
        elif not layer.aggregates_once or not (layer.accepts_propagated or reduction_of(layer)):
            raise InputError(
                f"{kind}: --memory, --spill and --chunks need layers that are a product with the "
                "graph's matrix, the largest neighbour or attention"
            )


def reduction_of(layer: Convolution) -> Extreme | None:
    """Extreme of the neighbours that a layer takes; ``None`` if it multiplies or attends."""
    found = getattr(layer, "aggr", None)
    return found if found in ("max", "min") else None
