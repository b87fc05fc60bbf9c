"""What all models here are: layers, with norms, activations, dropout and skips between them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from spgnn.errors import InputError, check_choice, check_number
from spgnn.nn.activation import Activation, activated, activation_of, rule_of
from spgnn.nn.block import Block
from spgnn.nn.convolution import (
    Convolution,
    Linear,
    begin_anew,
    glorot_,
    layer_widths,
    lazy_parts,
    linear_of_own,
    width_of,
)
from spgnn.nn.dropout import DropoutKeys, dropout, keys_on
from spgnn.nn.features import Features, Propagated
from spgnn.nn.jumping import JUMPS, JumpingKnowledge, Jumps
from spgnn.nn.norm import Norm
from spgnn.nn.norms import applied, norm_of, takes_all_rows, takes_shift
from spgnn.nn.propagation import (
    Graph,
    LayerGraph,
    arrived,
    by_layer,
    ids_of,
    ids_of_rows,
    own_rows,
)
from spgnn.nn.update import Update


class Stack(nn.Module):
    """Layers with norms, activations, dropout and skip connections between them.

    Arguments, their order and the names of parameters are those of PyG's ``BasicGNN``, so either
    loads the other's ``state_dict``. Weights are replicated: the same seed gives the same ones on
    every rank and at any P.

    Parameters
    ----------
    in_channels : int
        Features; −1 finds them at the first call.
    hidden_channels : int, or a sequence of one width a hidden layer
    num_layers : int
    out_channels : int, optional
        By default as many as the last hidden layer would have.
    dropout : float
        Probability, on what each hidden layer makes.
    act : str, callable or None
        Activation; see :func:`spgnn.nn.activation.activation_of`.
    act_first : bool, whether it comes before the norm
    act_kwargs : dict, optional
    norm : str, Module or None
        ``batch``, ``layer``, ``graph``, ``pair``; see :func:`spgnn.nn.norm.norm_of`.
    norm_kwargs : dict, optional
    jk : {"last", "cat", "max", "lstm"}, optional
        All layers are hidden ones, and a linear layer makes the output of the last of them, or of
        all together (Xu et al. 2018).
    residual : bool
        Adds a linear map of what a layer takes to what it makes, as tuned full-batch GCNs do (Luo
        et al. 2024). PyG's models have none but GAT, which hands it to its layers.
    input_dropout : bool
        Whether features are dropped as well.
    seed : int
        Of the weights: matrices are drawn from it (Glorot & Bengio 2010, uniform), and all else is
        left as the layer made it.
    options
        For every layer.

    Attributes
    ----------
    convolution : type of Convolution
        What the layers are.
    """

    convolution: ClassVar[type[Convolution]]
    act: Activation | None

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | Sequence[int],
        num_layers: int,
        out_channels: int | None = None,
        dropout: float = 0.0,
        act: str | Activation | None = "relu",
        act_first: bool = False,
        act_kwargs: dict[str, Any] | None = None,
        norm: str | nn.Module | type[nn.Module] | None = None,
        norm_kwargs: dict[str, Any] | None = None,
        jk: Jumps | Literal["none"] | None = None,
        *,
        residual: bool = False,
        input_dropout: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.dropout = check_number("dropout", dropout, 0, 1)
        self.input_dropout = input_dropout
        self.act = activation_of(act, act_kwargs or {})
        self.act_first = act_first
        self.jk_mode = None if jk is None or jk == "none" else jk
        check_choice("jk", jk or "none", JUMPS)
        widths = layer_widths(in_channels, hidden_channels, num_layers, out_channels, self.jk_mode)
        self.in_channels, self.num_layers = widths[0], num_layers
        self.out_channels = widths[-1] if out_channels is None else out_channels
        self.hidden_channels = hidden_channels
        self._norm = norm if isinstance(norm, str) else None  # as in PyG; a module would be a part
        self._norm_kwargs = norm_kwargs or {}
        ends = out_channels is not None and self.jk_mode is None
        self.convs = nn.ModuleList(
            self.init_conv(f_in, f_out, last=ends and number == num_layers - 1, **options)
            for number, (f_in, f_out) in enumerate(pairwise(widths))
        )
        hidden = widths[1:] if self.jk_mode else widths[1:-1]
        self.norms = nn.ModuleList(norm_of(norm, width, norm_kwargs or {}) for width in hidden)
        self.norms.extend([nn.Identity()] * (num_layers - len(hidden)))
        if self.jk_mode is not None:
            self.jk = JumpingKnowledge(self.jk_mode, widths[1:])
            self.lin = Linear(self.jk.width, self.out_channels)
        self.residuals = nn.ModuleList(
            [Linear(f_in, f_out) for f_in, f_out in pairwise(widths)] if residual else []
        )
        self.seed, self._drawn, self._calls, self._replayed = seed, False, 0, 0
        self._draw()

    def init_conv(self, f_in: int, f_out: int, *, last: bool, **options: Any) -> Convolution:
        """A layer of these widths.

        Parameters
        ----------
        f_in, f_out : int
        last : bool, whether it makes the output
        options
            Those that the model was given.
        """
        made: Any = self.convolution
        try:
            found: Convolution = made(f_in, f_out, **options)
        except TypeError as error:
            raise InputError(f"{type(self).__name__}: {error}") from None
        return found

    @classmethod
    def of(cls, widths: Sequence[int], **options: Any) -> Self:
        """A model of these widths: features, those of the hidden layers, classes."""
        first, *hidden, last = widths
        if options.get("jk") not in (None, "none"):
            hidden.append(hidden[-1] if hidden else last)
        layers = len(widths) - 1
        return cls(first, hidden, layers, last, **options)

    @classmethod
    def size(cls, widths: Sequence[int], **options: Any) -> int:
        """Numbers in the parameters of a model of these widths; nothing is allocated."""
        try:
            with torch.device("meta"):
                model = cls.of(widths, **options)
        except RuntimeError:  # a matrix of more bytes than 64 bits can count
            return sys.maxsize
        return sum(parameter.numel() for parameter in model.parameters())

    @property
    def convolutions(self) -> list[Convolution]:
        """The layers."""
        return [layer for layer in self.convs if isinstance(layer, Convolution)]

    @property
    def takes_all_rows(self) -> bool:
        """Whether a norm takes statistics over all vertices: then no layer may leave rows out."""
        return takes_all_rows(self)

    @property
    def propagates(self) -> bool:
        """Whether the first layer may be given A·X, made once, in the place of X."""
        return self.convolutions[0].propagates

    @property
    def keeps_features(self) -> bool:
        """Whether X is needed beside A·X."""
        return self.convolutions[0].looks_at_itself or len(self.residuals) > 0

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Parameters of each layer, with its norm and its skip; and, last, of all else."""
        parts = [self.convs, self.norms, self.residuals]
        found: list[list[nn.Parameter]] = [
            [p for part in layer for p in part.parameters()]
            for layer in zip(*(part for part in parts if len(part)), strict=True)
        ]
        known = {id(p) for layer in found for p in layer}
        return [*found, [p for p in self.parameters() if id(p) not in known]]

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Draw all matrices anew, layer after layer; biases zero, norms as they began."""
        for layer in self.convolutions:
            layer.reset(generator)
        for part in self.norms:
            if isinstance(part, Norm):
                part.reset_parameters()
        others = [*self.residuals, *([self.jk, self.lin] if self.jk_mode else [])]
        for parameter in (p for part in others for p in part.parameters()):
            if parameter.dim() >= 2:
                glorot_(parameter, generator)
            else:
                nn.init.zeros_(parameter)

    def reset_parameters(self) -> None:
        """As layers do: matrices from torch's own generator, all else as it began."""
        if not any(lazy_parts(self)):
            begin_anew(self)
            self.reset()

    def _draw(self) -> None:
        if not any(lazy_parts(self)):
            self.reset(torch.Generator().manual_seed(self.seed))
            self._drawn = True

    def _find_widths(self, X_local: Features) -> None:
        """Shapes of what waited for the first features; weights of the seed, as without waiting."""
        self.in_channels = width_of(X_local)
        for part in lazy_parts(self):
            part.materialise(self.in_channels)
        self._draw()

    def forward(self, x: Features, graph: Graph, keys: DropoutKeys | None = None) -> Tensor:
        """Logits [rows of the last layer, classes]. Collective.

        Parameters
        ----------
        x : Tensor or CSR [columns of the first layer, features], or Propagated
            Propagated features have the rows that the first layer makes. They cannot be dropped:
            A·dropout(X) changes every epoch.
        graph : DistMatrix, a graph that has matrices, or a sequence of one Propagation a layer
            A matrix stands for every layer. Each layer of a sequence takes the rows that the one
            before it made. The blocks of a mini-batch are such a sequence: ``batch.layers``.
        keys : DropoutKeys, optional
            Of the masks, in training. Without them, they are the graph's ids of vertices, the
            model's seed, and the number of the call.

        Raises
        ------
        InputError
            In training with dropout, if there are neither keys nor ids of vertices.
        """
        if not self._drawn and any(lazy_parts(self)):
            self._find_widths(x)
        layers = by_layer(graph, len(self.convs))
        keys = self._keys(keys, layers[0])
        kept: list[Tensor] = []
        Z: Features = x
        update: Update | None = None
        for number, on in enumerate(layers):
            if update is None or update.keys is None:
                Z = self._dropped(number, Z, on, keys)
            if number and self.jk_mode:
                kept = [own_rows(on, made) for made in (*kept, Z) if isinstance(made, Tensor)]
            update = self._update(number, self._keys_after(number, layers, keys))
            Z = self._layer(number, Z, on, keys, update)
        if self.jk_mode is not None:
            if isinstance(Z, Tensor) and (update is None or update.keys is None):
                Z = dropout(Z, self.dropout, keys_on(keys, ids_of_rows(on)), len(layers))
            Z = self.lin(self.jk([*kept, Z]))
        assert isinstance(Z, Tensor)
        return Z

    def advance(self, number: int, H: Features, on: LayerGraph, keys: DropoutKeys | None) -> Tensor:
        """One layer with all that comes before the next one. Collective.

        Parameters
        ----------
        number : int, from 0
        H : Tensor or CSR [columns, f], or Propagated
            What the layer before it made, or features.
        on : LayerGraph
        keys : DropoutKeys, optional
        """
        H = self._dropped(number, H, on, keys)
        return self._layer(number, H, on, keys, self._update(number, None))

    def _dropped(
        self, number: int, H: Features, on: LayerGraph, keys: DropoutKeys | None
    ) -> Features:
        """What a layer takes, after dropout."""
        if number and isinstance(H, Tensor):
            H = arrived(on, H)
        if isinstance(H, Propagated) or not (number or self.input_dropout):
            return H
        return dropout(H, self.dropout, keys_on(keys, ids_of(on)), number)

    def made_by(self, number: int, H: Features, graph: LayerGraph) -> Tensor:
        """What one layer makes, with its norm and activation, of what the one before made.

        For whoever works layer by layer; nothing is dropped. Collective.

        Parameters
        ----------
        number : int, from 0
        H : Tensor or CSR [columns, f]
        graph : LayerGraph
        """
        return self._layer(number, H, graph, None, self._update(number, None))

    def _layer(
        self,
        number: int,
        H: Features,
        on: LayerGraph,
        keys: DropoutKeys | None,
        update: Update | None,
    ) -> Tensor:
        """A layer, its skip, its norm, and its update or else its activation."""
        layer, norm, owned = self.convolutions[number], self.norms[number], True
        given: dict[str, Any] = {"keys": keys} if layer.drops_edges else {}
        bare = isinstance(norm, nn.Identity)
        if layer.updates and not layer._forward_hooks:
            if bare and not self.residuals:
                # Nothing comes between its bias and the update.
                given["update"], update = update, None
            elif self._shifts(number, on):
                made: Tensor = layer(
                    H, on, update=partial(self._normed, number, H, on, update), **given
                )
                return made
        Z: Tensor = layer(H, on, **given)
        if len(self.residuals):
            Z = Z + linear_of_own(self.residuals[number], H, on)
        if given.get("update") or self._ends(number):
            return Z
        if self.act_first and update is None:
            Z = activated(self.act, Z, owned=True)
        if not bare:
            Z, owned = applied(norm, Z, on), isinstance(norm, Norm)
        if update is not None:
            return update(Z)
        return Z if self.act_first else activated(self.act, Z, owned=owned)

    def _shifts(self, number: int, on: LayerGraph) -> bool:
        """Whether the norm of a layer comes first after its bias, and can be given that apart."""
        known = hasattr(on, "given_moments")  # of what the layer makes, its bias among it
        first = not self.act_first and not self._ends(number)
        return first and not known and takes_shift(self.norms[number])

    def _normed(
        self,
        number: int,
        H: Features,
        on: LayerGraph,
        update: Update | None,
        Z: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """The skip, norm, and update or activation of a layer, of its rows without its bias."""
        if len(self.residuals):
            Z = Z + linear_of_own(self.residuals[number], H, on)
        Z = applied(self.norms[number], Z, on, bias)
        return activated(self.act, Z, owned=True) if update is None else update(Z)

    def _ends(self, number: int) -> bool:
        """Whether a layer makes the output, which nothing comes after."""
        return number == self.num_layers - 1 and self.jk_mode is None

    def _update(self, number: int, keys: DropoutKeys | None) -> Update | None:
        """What comes last in a layer, in one pass: activation, and the dropout of what follows.

        ``None`` where nothing is to be done, the activation is another one, or a norm follows it.
        """
        norm, rule = self.norms[number], rule_of(self.act)
        last = isinstance(norm, nn.Identity) or (isinstance(norm, Norm) and not self.act_first)
        if self._ends(number) or not last or rule is None or (self.act is None and keys is None):
            return None
        return Update(rule, self.dropout, keys, number + 1)

    def _keys_after(
        self, number: int, layers: Sequence[LayerGraph], keys: DropoutKeys | None
    ) -> DropoutKeys | None:
        """Of the dropout after a layer, if what it makes is all that is dropped there."""
        if keys is None or not self.dropout:
            return None
        if number + 1 == len(layers):
            return keys_on(keys, ids_of_rows(layers[number]))
        following = layers[number + 1]
        if isinstance(following, Block) and type(following).arrived is not Block.arrived:
            return None
        return keys_on(keys, ids_of(following))

    def _keys(self, keys: DropoutKeys | None, first: LayerGraph) -> DropoutKeys | None:
        """Those of this call; none outside training."""
        drops = self.dropout or any(
            getattr(c, "dropout", 0) or getattr(c, "message_dropout", 0) for c in self.convs
        )
        if not self.training or not drops:
            return None
        if keys is not None:
            return keys
        ids = ids_of(first)
        if ids is None:
            raise InputError(
                "dropout is a function of the vertex, and a matrix does not know its vertices: "
                "give keys=DropoutKeys(vertex_ids, seed, epoch), or a graph with vertex_ids; "
                "model.eval() drops nothing"
            )
        return DropoutKeys(ids, self.seed, self._call())

    def _call(self) -> int:
        """The number of this call; a recomputation in backward has that of the first time."""
        if torch._C._current_graph_task_id() < 0:
            self._calls += 1
        elif self._calls - self._replayed > 1:
            raise InputError(
                "a checkpointed model that is called several times a step needs keys: give "
                "keys=DropoutKeys(vertex_ids, seed, epoch)"
            )
        else:
            self._replayed = self._calls
        return self._calls - 1
