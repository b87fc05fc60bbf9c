# O is the name of attention's sums in all of its literature.
# ruff: noqa: E741
"""The operations in plain torch: on CUDA without CuPy, and as a second opinion in tests.

The same functions as in `cpu` and `cuda`. Sparse products are cuSPARSE's. Integers of hashes and
codes are int64 here, taken as 64 bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import leaky_relu

from spgnn.kernels.attention import FINISHED, MERGED, Gat, GatV2, Rules, Target
from spgnn.kernels.extremes import PICK
from spgnn.kernels.quantise import HEADER
from spgnn.pattern import INT32_LIMIT, Pattern
from spgnn.sparse import CSR, SUM_DTYPE

GATHERED_BYTES = 2**26  # of rows that are gathered at a time, where there is no kernel

# --- products ---------------------------------------------------------------------------------


def as_torch(A: CSR, dtype: torch.dtype) -> Tensor:
    """A CSR block as a torch sparse tensor, scalings multiplied in."""
    values = A.values
    if values is None:
        values = torch.ones(A.nnz, dtype=dtype, device=A.device)
    if A.row_scale is not None:
        values = values * A.row_scale.repeat_interleave(A.row_lengths, output_size=A.nnz)
    if A.col_scale is not None:
        values = values * A.col_scale[A.indices]
    index_type = torch.int32 if max(A.nnz, A.shape[1]) < INT32_LIMIT else torch.int64
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            A.indptr.to(index_type),
            A.indices.to(index_type),
            values.to(dtype),
            A.shape,
            check_invariants=False,
        )


def spmm(*arguments: Any) -> None:
    """Y = A X or Y += A X, into ``out``."""
    indptr, indices, values, row_scale, col_scale, X, out, accumulate = arguments
    if X.dim() == 3:
        for head in range(X.shape[1]):
            block = indptr, indices, values[:, head], row_scale, col_scale
            spmm(*block, X[:, head], out[:, head], accumulate)
        return
    wide = X.to(SUM_DTYPE[X.dtype])
    pattern = Pattern.trusted(indptr, indices, (len(out), len(X)))
    Y = torch.sparse.mm(as_torch(CSR(pattern, values, row_scale, col_scale), wide.dtype), wide)
    if accumulate:
        Y += out
    out.copy_(Y)


def sddmm(*arguments: Any) -> None:
    """out[e] = row_scale[i] col_scale[j] <G[i], X[j]>; few rows are gathered at a time."""
    indptr, indices, row_scale, col_scale, G, X, out = arguments
    rows = _rows(indptr, len(indices))
    each = max(1, GATHERED_BYTES // max(1, 2 * X[:1].numel() * out.element_size()))
    for i, j, products in zip(rows.split(each), indices.split(each), out.split(each), strict=True):
        torch.sum(G[i].to(out.dtype) * X[j].to(out.dtype), -1, out=products)
        for scale, places in ((row_scale, i), (col_scale, j)):
            if scale is not None:
                products.mul_(scale[places].view(-1, *[1] * (out.dim() - 1)))


def edge_softmax(indptr: Tensor, scores: Tensor, out: Tensor) -> None:
    """exp(scores) over their sum in each row; zeros where all of a row is −∞."""
    wide = scores.to(SUM_DTYPE[scores.dtype])
    rows = _rows(indptr, len(scores))
    largest = torch.segment_reduce(wide, "max", offsets=indptr, axis=0)
    largest = torch.where(largest == -torch.inf, 0.0, largest)
    powers = torch.exp(wide - largest[rows])
    sums = torch.segment_reduce(powers, "sum", offsets=indptr, axis=0)
    out.copy_(powers / torch.where(sums == 0, 1.0, sums)[rows])


def row_sums(indptr: Tensor, a: Tensor, b: Tensor | None, out: Tensor) -> None:
    """The sum of a · b (or of a) over the row, for every nonzero."""
    wide = a.to(SUM_DTYPE[a.dtype])
    products = wide if b is None else wide * b
    sums = torch.segment_reduce(products, "sum", offsets=indptr, axis=0)
    out.copy_(sums[_rows(indptr, len(a))])


def _rows(indptr: Tensor, nnz: int) -> Tensor:
    """The row of each nonzero."""
    numbers = torch.arange(len(indptr) - 1, device=indptr.device)
    return numbers.repeat_interleave(indptr.diff(), output_size=nnz)


def extreme(*arguments: Any) -> None:
    """Largest or smallest elements into ``out``, their columns or nonzeros into ``arg``."""
    indptr, indices, X, largest, begun, first_column, out, arg = arguments
    best, nonzeros = _extremes(indptr, X.to(SUM_DTYPE[X.dtype]).index_select(0, indices), largest)
    listed = nonzeros.to(arg.dtype)
    if first_column >= 0 and len(indices):
        columns = first_column + indices.to(arg.dtype)[nonzeros.clamp_min(0)]
        listed = torch.where(nonzeros < 0, listed, columns)
    better = torch.ones_like(listed, dtype=torch.bool)
    if begun:
        better = best > out if largest else best < out
        better = (listed >= 0) & (better | (arg < 0) | (best.isnan() & ~out.isnan()))
    out.copy_(torch.where(better, best.to(out.dtype), out))
    arg.copy_(torch.where(better, listed, arg))


def _extremes(indptr: Tensor, messages: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """All rows at once: the extremes of each, and the first nonzeros that have them."""
    rows, nnz, columns = len(indptr) - 1, *messages.shape
    if not nnz:
        return messages.new_zeros(rows, columns), indptr.new_full((rows, columns), -1)
    best = torch.segment_reduce(messages, "max" if largest else "min", offsets=indptr)
    row = _rows(indptr, nnz)
    # What is no number equals nothing, so its own place counts as equal.
    equal = (messages == best[row]) | messages.isnan()
    places = torch.where(equal, torch.arange(nnz, device=indptr.device)[:, None], nnz)
    first = torch.full(best.shape, nnz, device=indptr.device)
    first = first.scatter_reduce(0, row[:, None].expand_as(places), places, "amin")
    inside = first < nnz
    return torch.where(inside, best, 0.0), torch.where(inside, first, -1)


def _messages(op: int, x: Tensor | None, v: Tensor, w: Tensor | None) -> Tensor:
    """The result of an EdgeOp on numbers of columns x, nonzeros v and rows w."""
    if x is None:
        return v
    picked = (
        lambda: x * v,
        lambda: x + v,
        lambda: x - v,
        lambda: x / v,
        lambda: v,
        lambda: torch.relu(x + v),
        lambda: x.new_zeros(()) if w is None else torch.where(w + v > 0, x, 0.0),
    )[op]()
    return picked


def edge_sum(*arguments: Any) -> None:
    """Sums of what nonzeros make of rows of X (or W) and V, a piece of memory for each of them."""
    indptr, indices, order, X, W, V, op, out = arguments
    wide, rows = SUM_DTYPE[out.dtype], _rows(indptr, len(indices))
    if op == PICK:
        named = V.index_select(0, indices) == order[:, None]
        picked = torch.where(named, X.index_select(0, indices).to(wide), 0.0)
        out.copy_(torch.segment_reduce(picked, "sum", offsets=indptr, axis=0))
        return
    x = None if X is None else X.to(wide).index_select(0, indices)
    w = None if W is None else W.to(wide)[rows]
    v = (V if order is None else V.index_select(0, order)).to(wide)
    v = v.repeat_interleave(out.shape[1] // v.shape[1], 1)
    out.copy_(torch.segment_reduce(_messages(op, x, v, w), "sum", offsets=indptr, axis=0))


def edge_products(*arguments: Any) -> None:
    """Results of nonzeros, of rows of G, X and V, a row each."""
    indptr, indices, G, X, V, op, out = arguments
    wide, rows = SUM_DTYPE[out.dtype], _rows(indptr, len(out))
    if op == PICK:
        g, named = (t.unflatten(0, (len(indptr) - 1, -1)).index_select(0, rows) for t in (G, V))
        numbers = torch.arange(len(out), device=out.device)[:, None, None]
        out.copy_(torch.where(named == numbers, g.to(wide), 0.0).sum(1))
        return
    g = None if G is None else G.to(wide)[rows]
    x = None if X is None else X.to(wide).index_select(0, indices)
    v = None if V is None else V.to(wide)
    if op == 1:
        terms = [term for term in (g, x, v) if term is not None]
        out.copy_(sum(terms[1:], terms[0]))
        return
    assert g is not None
    assert x is not None
    out.copy_(g * x if v is None else torch.where(x + v > 0, g, 0.0))


def edge_extremes(*arguments: Any) -> None:
    """Largest or smallest of what nonzeros make of X and V, and which they are."""
    indptr, indices, X, V, op, largest, out, arg = arguments
    wide = SUM_DTYPE[out.dtype]
    v = V.to(wide).repeat_interleave(out.shape[1] // V.shape[1], 1)
    x = None if X is None else X.to(wide).index_select(0, indices)
    best, nonzeros = _extremes(indptr, _messages(op, x, v, None), largest)
    out.copy_(best)
    arg.copy_(nonzeros)


# --- rows -------------------------------------------------------------------------------------


def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Y[i] = scale[i] X[rows[i]], into ``out``."""
    Y = X.index_select(0, rows)
    out.copy_(Y if scale is None else scale[:, None] * Y)


def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None:
    """Y[rows[i]] += scale[i] X[i]; on a GPU torch adds equal rows in no fixed order."""
    Y.index_add_(0, rows, X if scale is None else (scale[:, None] * X).to(Y.dtype))


def dropout_keeps(vertex: Tensor, column: Tensor, key: int, p: float) -> Tensor:
    """True where element (vertex, column) is kept; int64 operands of one shape, or broadcast."""
    bits = mix64(_stream(vertex, key) + _GOLDEN * (column // 2 + 1))
    half = torch.where(column % 2 == 0, bits & 0xFFFFFFFF, _shift_right(bits, 32))
    return half >= round(p * 2**32)


def dropout_mask(vertex_ids: Tensor, columns: int, key: int, p: float) -> Tensor:
    """A mask of the elements that dropout keeps, bool [n, columns]."""
    column = torch.arange(columns, device=vertex_ids.device)
    return dropout_keeps(vertex_ids[:, None], column, key, p)


def dropped(X: Tensor, vertex_ids: Tensor, key: int, p: float) -> Tensor:
    """The result of `dropout_rows`, to the bit: the product is taken in the dtype of the sum."""
    wide = X.to(SUM_DTYPE[X.dtype])
    factor = torch.tensor(1.0 / (1.0 - p), dtype=wide.dtype, device=X.device)
    keeps = dropout_mask(vertex_ids, X.shape[1], key, p)
    return torch.where(keeps, wide * factor, 0.0).to(X.dtype)


def mix64(z: Tensor) -> Tensor:
    """Finalizer of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014)."""
    z = (z ^ _shift_right(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift_right(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift_right(z, 31)


def _stream(ids: Tensor, key: int) -> Tensor:
    seed = mix64(torch.tensor(_signed(key % 2**64), device=ids.device))
    return mix64(seed + _GOLDEN * (ids + 1))


def _shift_right(z: Tensor, bits: int) -> Tensor:
    # Torch shifts the sign in; a logical shift has zeros there.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(bits: int) -> int:
    return bits - 2**64 if bits >= 2**63 else bits


_GOLDEN = _signed(0x9E3779B97F4A7C15)


def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None:
    """X / (1 - p) where kept, 0 elsewhere, into ``out``."""
    out.copy_(dropped(X, vertex_ids, key, p))


def update_rows(*arguments: Any) -> None:
    """``dropout(act(Z + b))`` into ``out``, which may be Z."""
    Z, bias, vertex_ids, key, p, act, alpha, out = arguments
    Y = Z if bias is None else Z + bias.to(Z.dtype)
    if act:
        Y = (torch.relu, F.leaky_relu, F.elu)[act - 1](Y, *[alpha] * (act > 1))
    out.copy_(Y if vertex_ids is None else dropped(Y, vertex_ids, key, p))


def update_rows_backward(*arguments: Any) -> None:
    """Write the gradient in Z into ``dZ``, and its column sums into ``sums`` if it has columns."""
    G, Y, vertex_ids, key, p, act, alpha, dZ, sums = arguments
    if act == 1:
        dZ.copy_(torch.where(Y <= 0, 0.0, G * (1.0 / (1.0 - p))))
    else:
        dZ.copy_(G if vertex_ids is None else dropped(G, vertex_ids, key, p))
    if act > 1:
        factor = 1.0 if vertex_ids is None else 1.0 - p
        wide = Y.to(SUM_DTYPE[Y.dtype])
        slope = wide * factor + alpha if act == 3 else alpha
        positive = ~(wide <= 0) if act == 3 else wide > 0
        dZ.copy_(dZ.to(wide.dtype) * torch.where(positive, 1.0, slope))
    if len(sums):
        torch.sum(dZ, 0, dtype=sums.dtype, out=sums)


def cross_entropy(
    X: Tensor,
    target: Tensor,
    mask: Tensor | None,
    divisor: float,
    out: Tensor,
    gradient: Tensor | None,
) -> None:
    """The loss of the rows that count, and its gradient, with zeros in the others."""
    counts = target >= 0 if mask is None else mask & (target >= 0)
    classes = torch.where(counts, target, -100)
    out.copy_(F.cross_entropy(X, classes, reduction="sum", ignore_index=-100)).div_(divisor)
    if gradient is not None:
        torch.softmax(X, 1, out=gradient)
        factor = counts.to(X.dtype)[:, None]
        gradient.scatter_add_(1, target.clamp(min=0)[:, None], -factor).mul_(factor / divisor)


# --- rows in few bits: the definition of every bit ----------------------------------------------

_NAN = 0x7FC0
_LEAST_SCALE = 2.0**-110


def quantise_rows(*arguments: Any) -> None:
    """Packed rows into ``out``, what was lost into ``residual`` and ``lost``."""
    X, bits, ids, key, stochastic, rows, residual, lost, out = arguments
    X = X if rows is None else X[rows]
    V = X.to(SUM_DTYPE[X.dtype])
    V = V if residual is None else V + residual.to(V.dtype)
    halves = random_halves(ids, X.shape[1], key)
    halves = halves if stochastic else torch.full_like(halves, 0x8000)
    out.copy_(_in_bfloat16(V, halves) if bits == 16 else _in_codes(V, bits, halves))
    arrived = _unpacked(out, bits, X.shape[1], X.dtype)
    if residual is not None:
        left = (V - arrived.to(V.dtype)).to(X.dtype)
        residual.copy_(torch.where(arrived.isfinite(), left, 0.0))
    if lost is not None:
        exact = X.double()
        lost += torch.stack(((arrived.double() - exact).square().sum(), exact.square().sum()))


def dequantise_rows(packed: Tensor, bits: int, rows: Tensor | None, out: Tensor) -> None:
    """Unpacked rows into ``out``."""
    unpacked = _unpacked(packed, bits, out.shape[1], out.dtype)
    out[slice(None) if rows is None else rows] = unpacked


def random_halves(ids: Tensor, columns: int, key: int) -> Tensor:
    """16 random bits for every element, int64 [n, columns]."""
    stream = _stream(ids, key)[:, None]
    start, factor = stream & 0xFFFFFFFF, _shift_right(stream, 32) | 1
    column = torch.arange(columns, device=ids.device)
    pair = column // 32 * 16 + column % 16
    z = (start + pair * 0x9E3779B9) & 0xFFFFFFFF
    z = ((z ^ (z >> 16)) * factor) & 0xFFFFFFFF
    z = z ^ (z >> 16)
    return torch.where(column % 32 < 16, z & 0xFFFF, z >> 16)


def _unpacked(packed: Tensor, bits: int, columns: int, dtype: torch.dtype) -> Tensor:
    packed, wide = packed.long(), SUM_DTYPE[dtype]
    if bits == 16:
        return _float32((packed[:, ::2] | packed[:, 1::2] << 8) << 16).to(dtype)
    low, scale = (
        _float32((packed[:, at] | packed[:, at + 1] << 8) << 16).to(wide)[:, None] for at in (0, 2)
    )
    shifts = torch.arange(0, 8, bits, device=packed.device)
    codes = packed[:, HEADER:, None] >> shifts & (1 << bits) - 1
    return (low + scale * codes.flatten(1)[:, :columns].to(wide)).to(dtype)


def _in_bfloat16(V: Tensor, halves: Tensor) -> Tensor:
    number = _bits(V.float())
    rounded = torch.where(V.isnan(), 0x7FC00000, number + halves) >> 16
    return torch.stack((rounded & 0xFF, rounded >> 8 & 0xFF), -1).flatten(1).byte()


def _in_codes(V: Tensor, width: int, halves: Tensor) -> Tensor:
    most = (1 << width) - 1
    low, scale, fits = _low_and_scale(V, most)
    wide_low, wide_scale = (_float32(number << 16).to(V.dtype) for number in (low, scale))
    inverse = torch.full_like(wide_scale, 65536) / wide_scale
    inverse = torch.where(fits & (scale > 0), inverse, 0.0)
    steps = torch.where(fits[:, None], (V - wide_low[:, None]) * inverse[:, None], 0.0)
    codes = torch.clamp(steps.round().long() + halves >> 16, max=most)
    codes = torch.where(fits[:, None], codes, 0)
    each = 8 // width
    codes = F.pad(codes, (0, -codes.shape[1] % each)).unflatten(1, (-1, each))
    shifts = torch.arange(0, 8, width, device=V.device)
    low, scale = torch.where(fits, low, _NAN), torch.where(fits, scale, _NAN)
    header = torch.stack((low & 0xFF, low >> 8, scale & 0xFF, scale >> 8), 1)
    return torch.cat((header, (codes << shifts).sum(2)), 1).byte()


def _low_and_scale(V: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Minimum and scale of each row, bfloat16 as integers, and whether these hold the row."""
    if V.shape[1] == 0:
        nothing = torch.zeros(len(V), dtype=torch.int64, device=V.device)
        return nothing, nothing, nothing == 0
    smallest, largest = V.amin(1), V.amax(1)
    low = _down(smallest)
    wide = _float32(low << 16).to(V.dtype)
    span = largest - wide + 0.0  # no -0
    # The rounding error of the difference (Knuth's two-sum).
    back = span - largest
    beyond = (largest - (span - back)) - (wide + back)
    # On CUDA torch multiplies by the reciprocal of a number, which is another rounding.
    scale = _up(span / torch.full_like(span, most))
    reach = _float32(scale << 16).to(V.dtype) * most
    scale = scale + ((reach < span) | (reach == span) & (beyond > 0)).long()
    least = int(_bits(torch.tensor(_LEAST_SCALE))) >> 16
    scale = torch.where(scale > 0, torch.clamp(scale, min=least), 0)
    fits = V.isfinite().all(1) & (_float32(scale << 16) * most).isfinite()
    fits &= (low & 0x7F80) < 0x7F80
    return low, scale, fits


def _down(x: Tensor) -> Tensor:
    """The largest bfloat16 that is not above x, as an integer; +0 for both zeros."""
    nearest = x.float()
    below = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf))
    number = _bits(torch.where(nearest > x, below, nearest) + 0.0)
    negative = number >> 31
    return (number + negative * 0xFFFF) >> 16


def _up(x: Tensor) -> Tensor:
    """The smallest bfloat16 that is not below x ≥ 0, as an integer."""
    nearest = x.float()
    above = torch.nextafter(nearest, torch.full_like(nearest, torch.inf))
    return (_bits(torch.where(nearest < x, above, nearest)) + 0xFFFF) >> 16


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32).long() & 0xFFFFFFFF


def _float32(bits: Tensor) -> Tensor:
    signed = torch.where(bits >= 2**31, bits - 2**32, bits)
    return signed.int().view(torch.float32)


# --- attention, edge by edge: arrays of the size nnz × heads × width ----------------------------


def attend(pattern: Pattern, operands: Gat | GatV2, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says."""
    numbers, scores = logits_and_scores(pattern, operands, rules)
    above = numbers > 0 if target.arrays[3] is not None else None
    m, n, O, *sums = _partial(pattern, scores, operands.features, rules, above)
    if target.ending == MERGED:
        _merge(target.arrays, m, (n, O, *sums))
        return
    partial: tuple[Tensor | None, ...] = (m, n, O, *sums)
    if target.ending == FINISHED:
        assert target.out is not None
        assert target.lse is not None
        attention_finish(m, n, O, target.out, target.lse)
        partial = tuple(None if array is None else _divided(array, n) for array in partial)
    for place, array in zip(target.arrays, partial, strict=True):
        if place is not None and array is not None:
            place.copy_(array)


def attend_backward(
    pattern: Pattern, operands: Gat | GatV2, rules: Rules, G: Tensor, lse: Tensor, D: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients in Z, s and the scores of edges; or in x, y, a and the features of edges."""
    rows, cols = _rows(pattern.indptr, pattern.nnz), pattern.indices.long()
    Z = operands.features
    numbers, scores = logits_and_scores(pattern, operands, rules)
    de, sent = _through_softmax(pattern, scores, Z, G, lse, D, rules)
    slopes = torch.full_like(numbers, rules.slope).masked_fill(numbers > 0, 1.0)
    if isinstance(operands, Gat):
        de = de * slopes
        dZ = de.new_zeros(Z.shape).index_add_(0, cols, sent)
        ds = torch.zeros_like(operands.s).index_add_(0, cols, de)
        return dZ.to(Z.dtype), ds, None if rules.edges is None else de
    x, y, a = operands
    da = (de[:, :, None] * leaky_relu(numbers.view(-1, *a.shape), rules.slope)).sum(0)
    dt = (de[:, :, None] * a).flatten(1) * slopes
    dx = a.new_zeros(x.shape).index_add_(0, rows, dt)
    dy = a.new_zeros(y.shape).index_add_(0, cols, dt + sent)
    return dx.to(x.dtype), dy.to(x.dtype), da, None if rules.edges is None else dt.to(x.dtype)


def attended(pattern: Pattern, operands: Gat | GatV2, rules: Rules) -> Tensor:
    """Finished sums in their own dtype; differentiable at every order."""
    _, scores = logits_and_scores(pattern, operands, rules)
    _, n, O, *_ = _partial(pattern, scores, operands.features, rules, None)
    return _divided(O, n)


def attention_finish(m: Tensor, n: Tensor, O: Tensor, out: Tensor, lse: Tensor) -> None:
    """O / n and m + log n of triples."""
    out.copy_(_divided(O, n))
    lse.copy_(m + torch.where(n == 0, 1.0, n).log())


def head_products(G: Tensor, X: Tensor, products: Tensor) -> None:
    """<G[i, h], X[i, h]> for every row and head."""
    wide = G.to(products.dtype) * X.to(products.dtype)
    torch.sum(by_heads(wide, products.shape[1]), -1, out=products)


def by_heads(X: Tensor, heads: int) -> Tensor:
    """[rows, heads * width] as [rows, heads, width]; [rows, heads] as [rows, heads, 1]."""
    return X.reshape(len(X), heads, X.shape[1] // heads if heads else 0)


def logits_and_scores(
    pattern: Pattern, operands: Gat | GatV2, rules: Rules
) -> tuple[Tensor, Tensor]:
    """Arguments of LeakyReLU, [nnz, heads], in GATv2 [nnz, heads * width]; and [nnz, heads]."""
    wide = operands[0] if isinstance(operands, Gat) else operands.a
    first, second = operands[0].to(wide.dtype), operands[1].to(wide.dtype)
    numbers = first[_rows(pattern.indptr, pattern.nnz)] + second[pattern.indices.long()]
    if rules.edges is not None:
        numbers = numbers + rules.edges.to(wide.dtype)
    scores = leaky_relu(numbers, rules.slope)
    if isinstance(operands, GatV2):
        scores = (scores.view(len(numbers), *wide.shape) * wide).sum(-1)
    return numbers, scores


def dropout_factors(pattern: Pattern, rules: Rules, scores: Tensor) -> Tensor | None:
    """Factors by which dropout multiplies weights, like scores [nnz, heads], or ``None``."""
    if rules.drops is None:
        return None
    rows, cols = _rows(pattern.indptr, pattern.nnz), pattern.indices.long()
    heads = torch.arange(scores.shape[1], device=pattern.device)
    column = rules.drops.col_ids[cols][:, None] * scores.shape[1] + heads
    key, p = rules.drops.key, rules.drops.p
    keeps = dropout_keeps(rules.drops.row_ids[rows][:, None], column, key, p)
    return keeps.to(scores.dtype) / (1.0 - p)


def _partial(
    pattern: Pattern, scores: Tensor, Z: Tensor, rules: Rules, above: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The running triple of a block, and P and pi over the nonzeros that are `above`."""
    rows, cols = _rows(pattern.indptr, pattern.nnz), pattern.indices.long()
    heads = scores.shape[1]
    m = scores.new_full((pattern.shape[0], heads), -torch.inf)
    m = m.scatter_reduce(0, rows[:, None].expand_as(scores), scores.detach(), "amax")
    powers = _exponentials(scores, m[rows])
    factors = dropout_factors(pattern, rules, scores)

    def summed(powers: Tensor) -> tuple[Tensor, Tensor]:
        n = torch.zeros_like(m).index_add(0, rows, powers)
        weights = powers if factors is None else powers * factors
        messages = weights[:, :, None] * by_heads(Z[cols].to(scores.dtype), heads)
        return n, scores.new_zeros((len(m), Z.shape[1])).index_add(0, rows, messages.flatten(1))

    n, O = summed(powers)
    if above is None:
        return m, n, O, None, None
    pi, P = summed(powers.masked_fill(~above, 0.0))
    return m, n, O, P, pi


def _through_softmax(
    pattern: Pattern, scores: Tensor, Z: Tensor, G: Tensor, lse: Tensor, D: Tensor, rules: Rules
) -> tuple[Tensor, Tensor]:
    """Gradients in scores [nnz, heads], and what nonzeros send to Z by their weights alone."""
    rows, cols = _rows(pattern.indptr, pattern.nnz), pattern.indices.long()
    weights = _exponentials(scores, lse[rows])
    factors = dropout_factors(pattern, rules, scores)
    g = by_heads(G[rows].to(scores.dtype), scores.shape[1])
    products = (g * Z[cols].to(scores.dtype).view(g.shape)).sum(-1)
    dropped_weights = weights
    if factors is not None:
        products, dropped_weights = products * factors, weights * factors
    return weights * (products - D[rows]), (dropped_weights[:, :, None] * g).flatten(1)


def _merge(into: Sequence[Tensor | None], its_m: Tensor, other: Sequence[Tensor | None]) -> None:
    """Merge triples into others, in place; P and pi without their like are rescaled alone."""
    m = into[0]
    assert m is not None
    top = torch.maximum(m, its_m)
    mine, its = _exponentials(m, top), _exponentials(its_m, top)
    m.copy_(top)
    for array, added in zip(into[1:], other, strict=True):
        if array is None:
            continue
        after = by_heads(array, m.shape[1]) * mine[:, :, None]
        if added is not None:
            after += by_heads(added, m.shape[1]) * its[:, :, None]
        array.copy_(after.view(array.shape))


def _exponentials(scores: Tensor, of: Tensor) -> Tensor:
    """exp(scores − of); none where there is nothing but scores of −∞, rather than of −∞ + ∞."""
    return torch.exp(scores - torch.where(of == -torch.inf, 0.0, of))


def _divided(sums: Tensor, n: Tensor) -> Tensor:
    n = torch.where(n == 0, 1.0, n)
    return (by_heads(sums, n.shape[1]) / n[:, :, None]).reshape(sums.shape)
