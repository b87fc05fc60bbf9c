"""Attention of every vertex to all vertices, exactly, over any number of ranks.

Where attention is linear (a feature map φ in place of the softmax), row i is

    out_i = φ(q_i) Σ_j φ(k_j) v_jᵀ / (φ(q_i) Σ_j φ(k_j))

and what is global are the sums over j alone: heads · d · (d + 1) numbers, one all-reduce. All else
treats rows independently. Softmax attention has all keys and values come by. Arguments and names of
parameters are PyG's, but for dropout, which is the model's.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spgnn.autograd import agreeing, in_own_dtype
from spgnn.comm import Communicator, RowCounts
from spgnn.errors import InputError
from spgnn.exchange import swap_rows
from spgnn.graph import AnyGraph, Graph, as_graph
from spgnn.nn import GraphModule
from spgnn.torch_internals import recorder

# Logits of a softmax attention that are in memory at a time.
_TILE = 1 << 18


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

    Keys and values go around the ranks, 2 · channels numbers a vertex, and backward once more with
    their gradients; a rank has those of one rank at a time, and logits of one tile. For graphs of
    up to some 10⁵ vertices: work grows with their square.
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
        on, channels = self.graph_of_all(x, graph), x.shape[1]
        rows = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        q, kv = wide.split((channels, 2 * channels), 1)
        q = _heads(q, self.heads) / math.sqrt(channels // self.heads)
        ring = on.ring(len(x))
        with in_own_dtype(x.device.type):
            if torch.compiler.is_compiling():
                k, v = (_heads(t, self.heads) for t in kv.chunk(2, 1))
                attended = torch.softmax(q @ k.mT, 2) @ v
            else:
                attended = recorder(_RingAttention)(q, kv, on.comm, ring)[0]
        out: Tensor = self.out_proj(attended.transpose(0, 1).flatten(1).to(rows.dtype))
        return out


def _keys_and_values(kv: Tensor, heads: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Tiles [heads, rows, d] of rows [rows, 2 · channels]."""
    both = (_heads(t, heads).split(_side(heads), 1) for t in kv.chunk(2, 1))
    return zip(*both, strict=True)


def _side(heads: int) -> int:
    """Rows and columns of a tile."""
    return max(1, math.isqrt(_TILE // heads))


class _RingAttention(torch.autograd.Function):
    """softmax(q kᵀ) v [heads, rows, d], and logarithms of its sums [heads, rows, 1].

    Backward is made of differentiable operations of both results, so all derivatives are exact.
    """

    @staticmethod
    def forward(
        q: Tensor, kv: Tensor, comm: Communicator, ring: list[RowCounts]
    ) -> tuple[Tensor, Tensor]:
        out, largest = torch.zeros_like(q), q.new_full((*q.shape[:2], 1), -math.inf)
        sums, side = torch.zeros_like(largest), _side(len(q))
        rows = [t.split(side, 1) for t in (q, out, largest, sums)]
        for step in range(max(1, len(ring))):
            kv = swap_rows(comm, kv, ring[step - 1]) if step else kv
            for k, v in _keys_and_values(kv, len(q)) if len(kv) else ():
                for queries, result, most, total in zip(*rows, strict=True):
                    logits = queries @ k.mT
                    before = most.clone()
                    torch.maximum(before, logits.amax(2, keepdim=True), out=most)
                    shares, less = logits.sub_(most).exp_(), before.sub_(most).exp_()
                    total.mul_(less).add_(shares.sum(2, keepdim=True))
                    result.mul_(less).baddbmm_(shares, v)
        return out.div_(sums), largest.add_(sums.log_())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *operands, ctx.comm, ctx.ring = inputs
        ctx.save_for_backward(*operands, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, G: Tensor | None, of_sums: Tensor | None) -> tuple[Tensor | None, ...]:
        q, kv, out, sums = ctx.saved_tensors
        with in_own_dtype(q.device.type):
            G = torch.zeros_like(out) if G is None else G
            less = (G * out).sum(2, keepdim=True) - (0 if of_sums is None else of_sums)
            rows = [t.split(_side(len(q)), 1) for t in (q, G, sums, less)]
            of_rows = [torch.zeros_like(t) for t in rows[0]]
            own, width, travelling = _of_block(kv, rows, of_rows), kv.shape[1], kv
            for counts in ctx.ring[:-1]:
                travelling = swap_rows(ctx.comm, travelling, counts)
                kv, *before = travelling.split(width, 1)
                of_kv = sum(before, _of_block(kv, rows, of_rows))
                travelling = torch.cat((kv, of_kv), 1)
            if ctx.ring:
                own = own + swap_rows(ctx.comm, of_kv, ctx.ring[-1])
        return torch.cat(of_rows, 1), own, None, None


def _of_block(kv: Tensor, rows: Sequence[Sequence[Tensor]], of_rows: list[Tensor]) -> Tensor:
    """The gradient of some keys and values; adds theirs to the gradients of queries."""
    gradients = []
    for k, v in _keys_and_values(kv, len(of_rows[0])):
        of_k, of_v = torch.zeros_like(k), torch.zeros_like(v)
        for of_q, *tile in zip(of_rows, *rows, strict=True):
            if torch.is_grad_enabled():  # logits of one tile, for second derivatives too
                more = checkpoint(_of_tile, k, v, *tile, use_reentrant=False)
            else:
                more = _of_tile(k, v, *tile)
            for total, one in zip((of_q, of_k, of_v), more, strict=True):
                total.add_(one)
        gradients.append(torch.cat((of_k, of_v)).permute(1, 0, 2).flatten(1))
    return torch.cat(gradients)


def _of_tile(
    k: Tensor, v: Tensor, q: Tensor, G: Tensor, sums: Tensor, less: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values."""
    shares = torch.exp(q @ k.mT - sums)
    of_logits = shares * (G @ v.mT - less)
    return of_logits @ k, of_logits.mT @ q, shares.mT @ G
