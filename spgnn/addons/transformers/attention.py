"""Attention of every vertex to all vertices, exactly, over any number of ranks.

Where attention is linear (a feature map φ in place of the softmax), row i is

    out_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / (φ(q_i) Σ_j φ(k_j))

and what is global are the sums over j alone: heads · d · (d + 1) numbers, one all-reduce. All else
treats rows independently. Softmax attention needs all keys and values on every rank. Arguments
and names of parameters are PyG's, but for dropout, which is the model's.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spgnn.autograd import agreeing
from spgnn.errors import InputError
from spgnn.graph import AnyGraph, Graph, as_graph
from spgnn.nn import GraphModule

# Logits of a softmax attention that are in memory at a time.
_TILE = 1 << 22


class GlobalAttention(GraphModule):
    """Base of attentions to all vertices; ``attention(x, graph)`` is collective."""

    calls_agreed = 0

    def graph_of_all(self, x: Tensor, graph: AnyGraph) -> Graph:
        """The graph; refused on all ranks if one of them has not just its own rows. Collective."""
        on = as_graph(graph)

        def check() -> None:
            rows = getattr(on, "own_rows", None)
            if len(on.own(x)) != len(x) or rows not in (None, len(x)):
                raise InputError(
                    "attention to all vertices needs each vertex once: a graph that makes other "
                    "rows than it is given (a hop of a batch, a pruned layer, a recomputed halo) "
                    f"leaves some out; got {len(x)} rows, use the whole graph or batch.graph"
                )

        agreeing(self, on.comm, check)
        return on


class LinearAttention(GlobalAttention):
    """Base of linear attentions."""

    pays_itself = False  # N times more than another vertex, N vertices in all
    floor = 0.0  # added to denominators

    @abstractmethod
    def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """φ(q), φ(k) [heads, rows, m] and v [heads, rows, d] of x [rows, channels]."""

    @abstractmethod
    def result(self, x: Tensor, attended: Tensor) -> Tensor:
        """Rows of the layer, one by one, of x [rows, channels] and out [heads, rows, d]."""

    def forward(self, x: Tensor, graph: AnyGraph) -> Tensor:
        """X [rows, channels] to rows of the layer. Collective; at every order differentiable."""
        on = self.graph_of_all(x, graph)
        q, k, v = self.operands(x)
        ones = v.new_ones(*v.shape[:2], 1)
        product = q @ on.total(k.transpose(1, 2) @ torch.cat((v, ones), 2))
        product, share = product[..., :-1], product[..., -1:] + self.floor
        if self.pays_itself:
            count = getattr(on, "num_nodes", None) or on.total(
                torch.tensor(len(x), dtype=torch.float64, device=x.device)
            )
            product, share = product + count * v, share + count
        return self.result(x, product / share)


def _heads(x: Tensor, heads: int) -> Tensor:
    """[rows, heads · d] to [heads, rows, d]."""
    return x.reshape(len(x), heads, x.shape[1] // heads).transpose(0, 1)


class SGFormerAttention(LinearAttention):
    """Attention of SGFormer (Wu et al., NeurIPS 2023), which every vertex pays itself N times more.

    ``(N v_i + q̂_i Σ k̂_j v_jᵀ) / (N + q̂_i Σ k̂_j)``, q̂ and k̂ of length one, the mean over heads.
    """

    pays_itself = True

    def __init__(
        self, channels: int, heads: int = 1, head_channels: int = 64, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (
            nn.Linear(channels, heads * head_channels, bias=qkv_bias) for _ in range(3)
        )

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys of length one, and values."""
        q, k, v = (_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        q, k = (torch.where(t == 0, 1e-6, t) for t in (q, k))
        return *(t / torch.linalg.vector_norm(t, dim=-1, keepdim=True) for t in (q, k)), v

    def result(self, x: Tensor, attended: Tensor) -> Tensor:
        """The mean over heads [rows, head_channels]."""
        return attended.mean(0)


class PolynormerAttention(LinearAttention):
    """Global attention of Polynormer (Deng et al., ICLR 2024): φ is the sigmoid."""

    floor = 1e-6

    def __init__(
        self,
        channels: int,
        heads: int,
        head_channels: int = 64,
        beta: float = 0.9,
        qkv_bias: bool = False,
        qk_shared: bool = True,
    ) -> None:
        super().__init__()
        inner = heads * head_channels
        self.heads, self.beta = heads, beta
        self.h_lins = nn.Linear(channels, inner)
        self.q = None if qk_shared else nn.Linear(channels, inner, bias=qkv_bias)
        self.k, self.v = (nn.Linear(channels, inner, bias=qkv_bias) for _ in range(2))
        self.lns, self.lin_out = nn.LayerNorm(inner), nn.Linear(inner, inner)

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sigmoids of queries and keys, and values; heads are the fastest index, as in PyG."""
        k = self.k(x).sigmoid()
        q = k if self.q is None else self.q(x).sigmoid()
        q, k, v = (t.unflatten(1, (-1, self.heads)).permute(2, 0, 1) for t in (q, k, self.v(x)))
        return q, k, v

    def result(self, x: Tensor, attended: Tensor) -> Tensor:
        """Rows [rows, heads · head_channels]."""
        rows = self.lns(attended.permute(1, 2, 0).flatten(1)) * (self.h_lins(x) + self.beta)
        return F.relu(self.lin_out(rows))


class _Projection(nn.Module):
    """The random features of `PerformerAttention`, under PyG's name."""

    projection_matrix: Tensor

    def __init__(self, columns: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("projection_matrix", _orthogonal(columns, seed))


class PerformerAttention(LinearAttention):
    """Attention of Performers (Choromanski et al., ICLR 2021): φ(x) = kernel(x P) + 0.001.

    P is a buffer, drawn from `seed`: the same on every rank.
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        head_channels: int = 64,
        kernel: Callable[[Tensor], Tensor] | None = None,
        qkv_bias: bool = False,
        attn_out_bias: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        inner = heads * head_channels
        self.heads = heads
        self.fast_attn = _Projection(head_channels, seed)
        self.kernel = nn.ReLU() if kernel is None else kernel
        self.q, self.k, self.v = (nn.Linear(channels, inner, bias=qkv_bias) for _ in range(3))
        self.attn_out = nn.Linear(inner, channels, bias=attn_out_bias)

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Random features of queries and keys, and values."""
        q, k, v = (_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        P = self.fast_attn.projection_matrix
        q, k = (self.kernel(t @ P.T) + 0.001 for t in (q, k))
        return q, k, v

    def result(self, x: Tensor, attended: Tensor) -> Tensor:
        """Rows [rows, channels]."""
        rows: Tensor = self.attn_out(attended.transpose(0, 1).flatten(1))
        return rows


def _orthogonal(columns: int, seed: int) -> Tensor:
    """Blocks of orthogonal rows, ``columns · ln(columns)`` in all."""
    rows, generator = int(columns * math.log(columns)), torch.Generator().manual_seed(seed)
    squares = [
        torch.linalg.qr(torch.randn(columns, columns, generator=generator))[0].T
        for _ in range(-(-rows // columns))
    ]
    return torch.cat(squares)[:rows]


class SoftmaxAttention(GlobalAttention):
    """Attention of all vertices by a softmax; parameters are those of torch's MultiheadAttention.

    Every rank gets all keys and values, 2 · channels numbers a vertex; logits are computed by tiles
    of rows, forward and again backward. For graphs of up to some 10⁵ vertices: work grows with
    their square.
    """

    def __init__(self, channels: int, heads: int, bias: bool = True) -> None:
        super().__init__()
        if channels % heads:
            raise InputError(f"heads: {heads} do not divide {channels} channels")
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * channels, channels))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * channels)) if bias else None
        self.out_proj = nn.Linear(channels, channels, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch's."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(self, x: Tensor, graph: AnyGraph) -> Tensor:
        """X [rows, channels] to the same shape. Collective; at every order differentiable."""
        on = self.graph_of_all(x, graph)
        q, k, v = F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, 1)
        k, v = (_heads(t, self.heads) for t in on.gathered(torch.cat((k, v), 1)).chunk(2, 1))
        q = _heads(q, self.heads) / math.sqrt(k.shape[2])
        step = max(1, _TILE // max(1, k.shape[1] * self.heads))
        tiles = [checkpoint(_softmax, t, k, v, use_reentrant=False) for t in q.split(step, 1)]
        rows: Tensor = self.out_proj(torch.cat(tiles, 1).transpose(0, 1).flatten(1))
        return rows


def _softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(1, 2), 2) @ v
