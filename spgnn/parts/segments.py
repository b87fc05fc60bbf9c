"""A model's layers on some rows, with the products between them taken apart.

A layer is called twice. The first call ends where it multiplies with the graph's matrix, and says
with what: the *operand*. The second gets the product in its place, and goes on. So any layer whose
rows depend on each other through one product alone can be worked through part by part, and it does
not know. What both calls make is recorded by autograd as ever, for these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from spgnn.attention import Weighing
from spgnn.autograd import named, product
from spgnn.errors import InputError
from spgnn.exchange import Step
from spgnn.nn import DropoutKeys, Stack
from spgnn.nn.aggregation import Extreme
from spgnn.nn.attention_conv import AttentionConv
from spgnn.nn.convolution import Convolution
from spgnn.nn.dropout import dropout
from spgnn.nn.features import Features, Propagated
from spgnn.nn.gat import GATv2Conv
from spgnn.nn.moments import Moments, moments
from spgnn.nn.norm import Norm
from spgnn.nn.propagation import HasMatrices, LayerGraph, Normalised
from spgnn.parts.heads import Heads
from spgnn.parts.moments import Known
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix


class Stopped(NamedTuple):
    """Where a layer stops in its first call.

    Attributes
    ----------
    operand : Tensor [rows, f]
        What is multiplied, or weighed.
    asked : Weighing, optional
        How, if it is weighed.
    """

    operand: Tensor
    asked: Weighing | None = None


class _Found(BaseException):
    """Ends the first call of a layer."""

    def __init__(self, stopped: Stopped) -> None:
        self.stopped = stopped


class _Asked(BaseException):
    """Ends a call of a layer at a norm whose moments are not known yet: what that takes."""

    def __init__(self, norm: Norm, x: Tensor) -> None:
        self.norm, self.x = norm, x


class Taken(HasMatrices):
    """A graph whose only matrix gives what was multiplied elsewhere; linear, as autograd asks for.

    Parameters
    ----------
    ids : Tensor int64 [rows]
        Original ids of the vertices.
    Z : Tensor [rows, f], optional
        The product; without, whoever multiplies is stopped.
    known : sequence of Known, optional
        Moments over all vertices, for the norms of the layer in their order. The norm that comes
        after the last of them is stopped. Without, norms look at these rows alone.
    leaf : int
        Of which of them gradients are asked for; −1: of none.

    Attributes
    ----------
    leaves : list of Tensor [f]
        Mean and variance of that one, once the norm was there.
    gradient : Tensor or None
        Of the product, once it is known.
    made_elsewhere : bool
        What is multiplied needs a history of its own: a layer may not take it into one of its own.
    """

    made_elsewhere = True

    def __init__(
        self,
        ids: Tensor,
        Z: Tensor | None = None,
        known: Sequence[Known] | None = None,
        leaf: int = -1,
    ) -> None:
        self._known, self._leaf, self._asked = known, leaf, 0
        self.leaves: list[Tensor] = []
        self.vertex_ids = ids
        self.rows = self.columns = len(ids)
        self.handle = named(self)
        self.gradient: Tensor | None = None
        self._Z = Z

    def given_moments(self, norm: Norm, x: Tensor) -> Moments:
        """Moments for the next norm, which takes these rows [rows, f]."""
        if self._known is None:
            found = moments(x, None, None)
            # Some rows that are tried, perhaps a single one.
            return replace(found, count=max(found.count, 2))
        number, self._asked = self._asked, self._asked + 1
        if number == len(self._known):
            raise _Asked(norm, x)
        found, leaves = self._known[number].of(x, leaf=number == self._leaf)
        self.leaves += leaves
        return found

    def matrix(self, normalised: Normalised) -> DistMatrix:
        """Itself; the rows are those of the matrix that the caller multiplies with."""
        return cast(DistMatrix, self)

    def next_step(self, H: Tensor) -> Step:
        """Stop here, in the first call."""
        if self._Z is None:
            raise _Found(Stopped(H))
        return Step(0, 0, 0, False)

    def attended(self, asked: Weighing) -> Tensor:
        """Weighed sums, as a product is given."""
        if self._Z is None:
            raise _Found(Stopped(asked.Z, asked))
        return product(self, asked.Z)

    def forward(self, H: Tensor, step: Step) -> Tensor:
        """The product; what it is multiplied with does not matter any more."""
        # Given away: it will know its origin, which knows this object.
        Z, self._Z = self._Z, None
        assert Z is not None
        self._shape = H.shape
        return Z

    def adjoint(self, G: Tensor, step: Step) -> Tensor:
        """Keep the gradient; the rows that were multiplied get theirs elsewhere."""
        self.gradient = G
        return G.new_zeros(self._shape)


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
        """How many there are."""
        return self.model.num_layers

    @property
    def jumps(self) -> bool:
        """Whether outputs are made of what all layers make, and not of the last one alone."""
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
        """Whether a layer needs its input's rows again, beside the product."""
        return self.model.convolutions[number].looks_at_itself or len(self.model.residuals) > 0

    def reduction(self, number: int) -> Extreme | None:
        """What a layer makes of neighbours, if it is no product with the matrix."""
        return reduction_of(self.model.convolutions[number])

    def heads(self, number: int) -> Heads | None:
        """How a layer weighs neighbours, if it does."""
        layer = self.model.convolutions[number]
        if not isinstance(layer, AttentionConv):
            return None
        return Heads(layer.heads, layer.out_channels, isinstance(layer, GATv2Conv))

    @property
    def drops_edges(self) -> bool:
        """Whether a layer drops what it weighs, as a function of original ids, in training."""
        layers = self.model.convolutions
        return any(isinstance(layer, AttentionConv) and layer.dropout > 0 for layer in layers)

    @property
    def all_heads(self) -> tuple[Heads | None, ...]:
        """Of each layer; empty if none weighs neighbours."""
        found = tuple(self.heads(number) for number in range(self.layers))
        return found if any(found) else ()

    def head_count(self, number: int) -> int:
        """How many heads a layer has, if it weighs neighbours; else 0."""
        heads = self.heads(number)
        return 0 if heads is None else heads.number

    @property
    def multiplies(self) -> bool:
        """Whether any layer is a product with the matrix, its adjoint one with the transpose."""
        return not all(
            self.reduction(number) or self.heads(number) for number in range(self.layers)
        )

    def norms(self, number: int) -> int:
        """How often a layer asks for moments over all vertices, as the model is now."""
        parts = (self.model.convs[number], self.model.norms[number])
        every = (module for part in parts for module in part.modules())
        return sum(isinstance(module, Norm) and module.asks_moments for module in every)

    def operands(self, widths: Sequence[int], *, sparse: bool) -> list[Tensor]:
        """What each layer multiplies in training, of no vertices: its width, and if it learns.

        Parameters
        ----------
        widths : sequence of int
            Features, and what each layer makes.
        sparse : bool
            Whether features are.
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
        """What a layer multiplies with the matrix, of these rows [rows, f]."""
        return self.stopped(number, H, ids, keys).operand

    def stopped(self, number: int, H: Features, ids: Tensor, keys: DropoutKeys | None) -> Stopped:
        """What a layer multiplies or weighs, of these rows [rows, f]."""
        try:
            self.model.advance(number, H, cast(LayerGraph, Taken(ids)), keys)
        except _Found as found:
            return found.stopped
        raise AssertionError("the layer has multiplied nothing")

    def layer(
        self,
        number: int,
        H: Features,
        Z: Tensor | None,
        ids: Tensor,
        keys: DropoutKeys | None,
        known: Sequence[Known] | None = None,
        leaf: int = -1,
    ) -> tuple[Tensor, Taken]:
        """What a layer makes of these rows, given the product.

        Parameters
        ----------
        number : int
        H : Tensor [rows, f] or Propagated
            What it takes. Where it does not look at it again, its rows are not looked at.
        Z : Tensor [rows, f'], optional
            The product; ``None`` if features are propagated.
        ids : Tensor int64 [rows]
        keys : DropoutKeys, optional
        known, leaf
            Of its norms, as of `Taken`.

        Returns
        -------
        H : Tensor [rows, f'']
        product
            Has the gradient of Z after backward.
        """
        if not isinstance(H, Propagated) and not self.looks_at_itself(number):
            assert isinstance(H, Tensor)
            H, ids = H[:0].detach().requires_grad_(H.requires_grad), ids[:0]
        on = Taken(ids, Z, known, leaf)
        return self.model.advance(number, H, cast(LayerGraph, on), keys), on

    def before_norm(
        self,
        number: int,
        H: Features,
        Z: Tensor | None,
        ids: Tensor,
        keys: DropoutKeys | None,
        known: Sequence[Known],
    ) -> tuple[Norm, Tensor]:
        """What the first norm takes whose moments are not known, of these rows [rows, f].

        Parameters
        ----------
        number, H, Z, ids, keys
            As of `layer`.
        known : sequence of Known
            Of the norms before it.
        """
        try:
            self.layer(number, H, Z, ids, keys, known)
        except _Asked as found:
            return found.norm, found.x
        raise AssertionError("the layer has asked for no more moments")


def check_model(model: Stack) -> None:
    """Refuse models that cannot be worked through in parts.

    Raises
    ------
    InputError
    """
    kind = type(model).__name__
    for layer in model.convolutions:
        if isinstance(layer, AttentionConv):
            if layer.edge_dim is not None or layer.res is not None or not layer.add_self_loops:
                raise InputError(
                    f"{kind}: --parts and --spill know attention without edge features or a skip "
                    "of its own, and with self-loops"
                )
        elif not layer.propagates and not reduction_of(layer):
            raise InputError(
                f"{kind}: --parts and --spill need layers that are a product with the graph's "
                "matrix, the largest neighbour or attention"
            )


def reduction_of(layer: Convolution) -> Extreme | None:
    """What a layer makes of neighbours, if it is no product with the matrix."""
    found = getattr(layer, "aggr", None)
    return found if found in ("max", "min") else None
