# Attention has many operands, and O is the name of its sums in all of its literature.
"""Host side of the kernels of attention, forward, and of what becomes of triples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spgnn.kernels.attention_rules import Rules
from spgnn.kernels.attention_state import FINISHED, MERGED, STORED, Target
from spgnn.kernels.cuda import device
from spgnn.kernels.cuda.device import Argument
from spgnn.kernels.cuda.heads import HeadShape, dropout_arguments
from spgnn.kernels.cuda.rows import listed
from spgnn.kernels.cuda.shapes import instance
from spgnn.kernels.cuda.spmm import tiling_of
from spgnn.kernels.cuda.tiling import CarriedRows
from spgnn.kernels.library import dense, unit_stride
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE


def attend(pattern: Pattern, d: Tensor, s: Tensor, Z: Tensor, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says. Bitwise reproducible on one device."""
    Z = unit_stride(Z)
    operands = d.contiguous(), s.contiguous(), Z, Z.stride(0), dense(rules.edges)
    _over_rows("attend", pattern, operands, [Z], d.shape[1], rules, target)


def attend_v2(
    pattern: Pattern, x: Tensor, y: Tensor, a: Tensor, rules: Rules, target: Target
) -> None:
    """The same with GATv2's scores."""
    x, y, a, features = unit_stride(x), unit_stride(y), a.contiguous(), dense(rules.edges)
    operands = x, x.stride(0), y, y.stride(0), a, features
    matrices = [y, x] if features is None else [y, x, features]
    _over_rows("attend_v2", pattern, operands, matrices, a.shape[0], rules, target, a)


def _over_rows(
    kernel: str,
    pattern: Pattern,
    operands: Sequence[Argument],
    matrices: list[Tensor],
    heads: int,
    rules: Rules,
    target: Target,
    *wide: Tensor,
) -> None:
    """Start a forward kernel, and the merging of what rows that cross tiles have left."""
    rows, Z = pattern.shape[0], matrices[0]
    if not rows:
        return
    twice = target.arrays[3] is not None
    written = matrices if target.out is None else [*matrices, target.out]
    shape = HeadShape.of(heads, written, [*target.arrays[2:4], *wide], 1 + twice)
    if target.ending == MERGED and shape.column_tiles > 1:
        # Every sweep over the columns would need the numbers that the first one overwrites.
        made = Target(
            STORED, tuple(None if a is None else torch.empty_like(a) for a in target.arrays)
        )
        _over_rows(kernel, pattern, operands, matrices, heads, rules, made, *wide)
        merge(target.arrays, None, made.arrays)
        return
    tiling = tiling_of(pattern.indptr)
    carry = _carry(tiling.carried, shape, twice, Z)
    sizes = (twice,) if kernel == "attend" else ()
    device.launch(
        instance(kernel, Z.dtype, pattern.indices.dtype, *sizes, *shape.parameters, tiling.items),
        (len(tiling.tiles) - 1, shape.tiles),
        (
            pattern.indptr,
            pattern.indices,
            tiling.tiles,
            *operands,
            float(rules.slope),
            *dropout_arguments(rules.drops),
            *shape.arguments,
            *_words(target),
            carry,
            0 if carry is None else carry.stride(0),
        ),
    )
    _merge_carried(tiling.carried, carry, shape, target, Z)


def _carry(carried: CarriedRows | None, shape: HeadShape, twice: bool, Z: Tensor) -> Tensor | None:
    """Room for the triples of rows that cross tiles."""
    if carried is None:
        return None
    like = Z.new_empty(0, dtype=SUM_DTYPE[Z.dtype])
    return shape.carry(len(carried.indices), 1 + twice, 3, like)


def _merge_carried(
    carried: CarriedRows | None, carry: Tensor | None, shape: HeadShape, target: Target, Z: Tensor
) -> None:
    """Bring what several tiles have found of a row together, again by the merge path."""
    if carried is None or carry is None:
        return
    rows, tiling, twice = carried.rows, carried.tiling, target.arrays[3] is not None
    further = _carry(tiling.carried, shape, twice, Z)
    device.launch(
        instance("merge_carried", Z.dtype, twice, *shape.parameters, tiling.items),
        (len(tiling.tiles) - 1, shape.tiles),
        (
            carried.indptr,
            carried.indices,
            tiling.tiles,
            rows,
            carry,
            carry.stride(0),
            *shape.arguments,
            *_words(target),
            further,
            0 if further is None else further.stride(0),
        ),
    )
    if tiling.carried is not None:
        deeper = tiling.carried
        there = CarriedRows(rows[deeper.rows], deeper.indptr, deeper.indices, deeper.tiling)
        _merge_carried(there, further, shape, target, Z)


def merge(
    into: Sequence[Tensor | None], rows: Tensor | None, other: Sequence[Tensor | None]
) -> None:
    """Merge triples (m, n, O, P or None, pi or None) into listed rows of others, in place."""
    _end_triples([dense(array) for array in other], rows, Target(MERGED, tuple(into)), into[2])


def finish(arrays: Sequence[Tensor | None], out: Tensor, lse: Tensor) -> None:
    """O / n and m + log n of triples (m, n, O, …)."""
    target = Target(FINISHED, (None,) * 5, out, lse)
    _end_triples([*arrays[:3], None, None], None, target, out)


def _end_triples(
    arrays: list[Tensor | None], rows: Tensor | None, target: Target, like: Tensor | None
) -> None:
    m = arrays[0]
    assert m is not None
    assert like is not None
    count, heads = m.shape
    if not count:
        return
    twice = target.arrays[3] is not None
    shape = HeadShape.of(heads, [like], [*arrays[2:4], *target.arrays[2:4]], 1 + twice)
    blocks = -(-count // (device.THREADS // shape.group))
    device.launch(
        instance("end_triples", like.dtype, twice, *shape.parameters),
        (blocks, shape.head_tiles),
        (*arrays, *listed(rows), count, heads, shape.width, *_words(target)),
    )


def _words(target: Target) -> tuple[Argument, ...]:
    return (*target.arrays, target.ending, target.out, target.lse)
