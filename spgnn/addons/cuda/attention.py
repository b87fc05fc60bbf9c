"""Host side of the kernels of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn.addons.cuda import device
from spgnn.addons.cuda.device import (
    PACK_BYTES,
    WARP,
    Argument,
    dense,
    dropout_rule,
    instance,
    lanes_for,
    listed,
    strided,
    unit_stride,
    vector_width,
)
from spgnn.addons.cuda.operations import Operand, multiply_into, tiling_of
from spgnn.addons.cuda.tiling import CarriedRows, Tiling
from spgnn.kernels import FINISHED, MERGED, STORED, Gat, GatV2, Rules, Target
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE

MOST_PACKS = 4
SUM_BYTES = 64  # of a thread's running sums; more would not fit into shared memory


class HeadShape(NamedTuple):
    """Threads that compute a row of heads: ``group`` of them, ``lanes`` for each head."""

    heads: int
    width: int
    vector: int
    lanes: int
    group: int
    packs: int

    @classmethod
    def of(
        cls, heads: int, matrices: Sequence[Tensor], sums: Sequence[Tensor | None], arrays: int
    ) -> HeadShape:
        """The fewest lanes that hold a head, for each of them recomputes the score."""
        width = matrices[0].shape[1] // heads
        vector = vector_width(*(matrix.unflatten(1, (heads, width)) for matrix in matrices))
        wide = max(4, matrices[0].element_size())
        while vector > 1 and not all(_aligned(array, vector) for array in sums):
            vector //= 2
        needed = max(1, -(-width // vector))
        most_packs = min(MOST_PACKS, max(1, SUM_BYTES // (vector * wide * arrays)))
        lanes = lanes_for(-(-needed // most_packs))
        sweeps = -(-needed // (lanes * most_packs))
        group = min(WARP, lanes * lanes_for(heads))
        return cls(heads, width, vector, lanes, group, -(-needed // (lanes * sweeps)))

    @property
    def parameters(self) -> tuple[int, int, int, int]:
        """As the templates take them."""
        return self.vector, self.lanes, self.group, self.packs

    @property
    def column_tiles(self) -> int:
        """Sweeps over the columns of a head."""
        return max(1, -(-self.width // (self.vector * self.lanes * self.packs)))

    @property
    def tiles(self) -> int:
        """Second dimension of the grid."""
        return self.column_tiles * self.head_tiles

    @property
    def head_tiles(self) -> int:
        """Groups of threads for the heads of a row."""
        return -(-self.heads // (self.group // self.lanes))

    @property
    def arguments(self) -> tuple[int, int, int]:
        """As the kernels take them."""
        return self.heads, self.width, self.column_tiles

    def carry(self, slots: int, arrays: int, numbers: int, like: Tensor) -> Tensor:
        """Rows that cross tiles: arrays as wide as rows, then numbers of heads."""
        columns = arrays * self.heads * self.width + numbers * self.heads
        return like.new_empty((slots, -(-columns // 4) * 4))


def _aligned(array: Tensor | None, vector: int) -> bool:
    if array is None:
        return True
    return array.data_ptr() % min(PACK_BYTES, vector * array.element_size()) == 0


def _walk(
    pattern: Pattern, tiling: Tiling, operands: Sequence[Argument], rules: Rules, shape: HeadShape
) -> tuple[Argument, ...]:
    """First arguments of kernels that walk along the tiles of a pattern."""
    block = pattern.indptr, pattern.indices, tiling.tiles
    drops = rules.drops
    drawn: tuple[Argument, ...] = (None, None, 0, 0, 1.0)
    if drops is not None:
        drawn = drops.row_ids, drops.col_ids, drops.signed_key, *dropout_rule(drops.p)
    return *block, *operands, float(rules.slope), *drawn, *shape.arguments


def attend(pattern: Pattern, operands: Gat | GatV2, rules: Rules, target: Target) -> None:
    """Softmaxes of rows, to where the target says. Bitwise reproducible on one device."""
    edges = dense(rules.edges)
    if isinstance(operands, Gat):
        d, s, Z = operands.d.contiguous(), operands.s.contiguous(), unit_stride(operands.Z)
        _over_rows("attend", pattern, (d, s, *strided(Z), edges), [Z], d.shape[1], rules, target)
        return
    x, y, a = unit_stride(operands.x), unit_stride(operands.y), operands.a.contiguous()
    matrices = [y, x] if edges is None else [y, x, edges]
    of_kernel = *strided(x), *strided(y), a, edges
    _over_rows("attend_v2", pattern, of_kernel, matrices, a.shape[0], rules, target, a)


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
        partial = Target(
            STORED, tuple(None if a is None else torch.empty_like(a) for a in target.arrays)
        )
        _over_rows(kernel, pattern, operands, matrices, heads, rules, partial, *wide)
        _end_triples(partial.arrays, target, target.arrays[2])
        return
    tiling = tiling_of(pattern.indptr)
    carry = _carry(tiling.carried, shape, twice, Z)
    sizes = (twice,) if kernel == "attend" else ()
    device.launch(
        instance(kernel, Z.dtype, pattern.indices.dtype, *sizes, *shape.parameters, tiling.items),
        (len(tiling.tiles) - 1, shape.tiles),
        (*_walk(pattern, tiling, operands, rules, shape), *_words(target), *strided(carry)),
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
    block = carried.indptr, carried.indices, tiling.tiles, rows
    device.launch(
        instance("merge_carried", Z.dtype, twice, *shape.parameters, tiling.items),
        (len(tiling.tiles) - 1, shape.tiles),
        (*block, *strided(carry), *shape.arguments, *_words(target), *strided(further)),
    )
    if tiling.carried is not None:
        deeper = tiling.carried
        there = CarriedRows(rows[deeper.rows], deeper.indptr, deeper.indices, deeper.tiling)
        _merge_carried(there, further, shape, target, Z)


def attention_finish(m: Tensor, n: Tensor, O: Tensor, out: Tensor, lse: Tensor) -> None:  # noqa: E741
    """O / n and m + log n of triples."""
    _end_triples((m, n, O, None, None), Target(FINISHED, (None,) * 5, out, lse), out)


def _end_triples(arrays: Sequence[Tensor | None], target: Target, like: Tensor | None) -> None:
    """Merge triples into others, or finish them."""
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
        (*arrays, count, heads, shape.width, *_words(target)),
    )


def _words(target: Target) -> tuple[Argument, ...]:
    return (*target.arrays, target.ending, target.out, target.lse)


def attend_backward(
    pattern: Pattern, operands: Gat | GatV2, rules: Rules, G: Tensor, lse: Tensor, D: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients in Z, s and the scores of edges; or in x, y, a and the features of edges."""
    G, lse, D, edges = unit_stride(G), lse.contiguous(), D.contiguous(), dense(rules.edges)
    order = listed(None if edges is None else pattern.order)
    dt = None if edges is None else torch.empty_like(edges)
    if isinstance(operands, Gat):
        d, s, Z = operands.d.contiguous(), operands.s.contiguous(), unit_stride(operands.Z)
        dZ = torch.empty_like(Z, memory_format=torch.contiguous_format)
        ds = torch.empty_like(s)
        shape = HeadShape.of(d.shape[1], [Z, G, dZ], (), arrays=2)
        of_kernel = d, s, *strided(Z), *strided(G), lse, D, edges, *order
        _sum_over_rows("attend_backward", pattern.T, of_kernel, shape, rules, (dZ, ds), (dt,))
        return dZ, ds, dt
    x, y, a = unit_stride(operands.x), unit_stride(operands.y), operands.a.contiguous()
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    dy = torch.empty_like(y, memory_format=torch.contiguous_format)
    matrices = [x, y, G, dx, dy] if edges is None else [x, y, G, dx, dy, edges]
    shape = HeadShape.of(a.shape[0], matrices, (a,), arrays=2)
    both = *strided(x), *strided(y), a, edges, *strided(G), lse, D
    _sum_over_rows("attend_v2_columns", pattern.T, (*both, *order), shape, rules, (dy, None), ())
    if not len(dx):
        return dx, dy, torch.zeros_like(a), dt
    of_tiles = a.new_empty((len(tiling_of(pattern.indptr).tiles) - 1, *a.shape))
    _sum_over_rows("attend_v2_rows", pattern, both, shape, rules, (dx, None), (dt, of_tiles))
    return dx, dy, of_tiles.sum(0), dt


def head_products(G: Tensor, X: Tensor, products: Tensor) -> None:
    """<G[i, h], X[i, h]> for every row and head."""
    count, heads = products.shape
    if not count:
        return
    G, X = unit_stride(G), unit_stride(X) if X.dtype == G.dtype else X.contiguous()
    shape = HeadShape.of(heads, [G, X] if X.dtype == G.dtype else [G], (X,), arrays=2)
    device.launch(
        instance("head_products", G.dtype, X.dtype, *shape.parameters),
        (-(-count // (device.THREADS // shape.group)), shape.head_tiles),
        (*strided(G), *strided(X), products, count, heads, shape.width),
    )


def _sum_over_rows(
    kernel: str,
    pattern: Pattern,
    operands: Sequence[Argument],
    shape: HeadShape,
    rules: Rules,
    sums: tuple[Tensor, Tensor | None],
    others: Sequence[Tensor | None],
) -> None:
    """Start a kernel that sums rows of gradients, and numbers of their heads, over nonzeros."""
    rows, numbers = sums
    if not len(rows):
        return
    places = *(sums if numbers is not None else (rows,)), *others
    tiling, carry = tiling_of(pattern.indptr), None
    if (carried := tiling.carried) is not None:
        like = rows.new_empty(0, dtype=SUM_DTYPE[rows.dtype])
        carry = shape.carry(len(carried.indices), 1, 0 if numbers is None else 1, like)
    device.launch(
        instance(kernel, rows.dtype, pattern.indices.dtype, *shape.parameters, tiling.items),
        (len(tiling.tiles) - 1, shape.tiles),
        (*_walk(pattern, tiling, operands, rules, shape), *places, *strided(carry)),
    )
    if carry is None or carried is None:
        return
    A = Operand(carried.indptr, carried.indices, row_map=carried.rows)
    columns = rows.shape[1]
    if columns:
        multiply_into(A, carried.tiling, carry[:, :columns], rows, accumulate=False)
    if numbers is not None:
        its = carry[:, columns : columns + shape.heads]
        multiply_into(A, carried.tiling, its, numbers, accumulate=False)
