"""Attention of rows that come block by block, over sources that stay; backward by rows, too.

Sources are packed once, and so are the sums of what rows send to them. A row has all of its scores
at hand, so backward needs no transpose, and nothing of forward: it makes its weights again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import _native
from spgnn.errors import InputError
from spgnn.kernels import (
    FINISHED,
    MERGED,
    STORED,
    AttentionDropout,
    AttentionState,
    PackedShape,
    Rules,
    finish,
    new_rows,
    side,
)
from spgnn.pattern import Pattern, described


class PanelLoops(NamedTuple):
    """One more nonzero of some rows: whether, bool [rows], and its column, int64 [rows]."""

    there: Tensor
    columns: Tensor

    def pattern(self, of: Pattern) -> Pattern:
        """These nonzeros alone, as a pattern of the shape of `of`."""
        indptr = torch.zeros(len(self.there) + 1, dtype=torch.int64, device="cpu")
        torch.cumsum(self.there, 0, out=indptr[1:])
        indices = self.columns[self.there].to(of.indices.dtype)
        return Pattern.trusted(indptr, indices, of.shape)


class PanelRows(NamedTuple):
    """Rows of one block [rows, sources], and their ends: what they say of their own scores."""

    pattern: Pattern
    ends: Tensor  # [rows, heads], in GATv2 [rows, heads * channels]
    loops: PanelLoops | None = None  # nonzeros besides
    dropout: AttentionDropout | None = None


def panel_bytes(heads: int, channels: int, dtype: torch.dtype, *, joint: bool) -> int:
    """Bytes of a source in a panel; of what rows send to it, as many."""
    return PackedShape(heads, channels).row_bytes(dtype, 1, 0 if joint else 1)


@dataclass(frozen=True, eq=False)
class AttentionPanel:
    """Sources of some of a layer's heads in `packed`, uint8 [sources, `panel_bytes`]."""

    packed: Tensor
    a: Tensor  # [heads, channels]
    slope: float
    joint: bool  # scores are a · LeakyReLU(x_i + z_j), GATv2's; else LeakyReLU(d_i + a · z_j)

    def __post_init__(self) -> None:
        if self.a.dtype not in (torch.float32, torch.float64) or self.a.is_cuda:
            raise InputError(f"a panel is float32 or float64 in memory, got {described(self.a)}")

    @property
    def shape(self) -> PackedShape:
        return PackedShape(*self.a.shape)

    def put(self, first: int, Z: Tensor) -> None:
        """Sources from number `first` on, [some, heads * channels]."""
        # <a, z>, head by head [some, heads].
        numbers = [] if self.joint else [(Z.reshape(len(Z), *self.a.shape) * self.a[None]).sum(2)]
        if len(Z):
            packed = self.packed[first : first + len(Z)]
            _native.attention_pack(self.shape.heads, [Z], numbers, packed)

    def attend(self, rows: PanelRows) -> Tensor:
        """Weighted sums of rows' neighbours [rows, heads * channels]."""
        heads, width = self.shape.heads, self.a.numel()
        count, like = rows.pattern.shape[0], self.a.new_empty(0, width)
        if rows.loops is None:
            here, none = self._side(rows, rows.pattern, None), (None,) * 5
            out, lse = new_rows(count, like), self.a.new_empty(count, heads)
            _native.attend(here, self.a, none, FINISHED, out, lse, self.joint)
            return out
        state = AttentionState.new(count, like, heads, gradients=False)
        loops = rows.loops.pattern(rows.pattern)
        for pattern, ending in ((rows.pattern, STORED), (loops, MERGED)):
            here = self._side(rows, pattern, None)
            _native.attend(here, self.a, state.arrays, ending, None, None, self.joint)
        return finish(state)[0]

    def scatter(self, rows: PanelRows, G: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Add what rows with gradients G send to `sums`, zero at first; gradients of ends and `a`.

        That of GAT's `a` is `vector_gradient`.
        """
        ends, da = torch.zeros_like(rows.ends), torch.zeros_like(self.a)
        there, columns = (None, None) if rows.loops is None else rows.loops
        here = self._side(rows, rows.pattern, G)
        _native.attention_scatter(here, there, columns, sums, ends, da, self.joint)
        return ends, da

    def vector_gradient(self, sums: Tensor, first: int, last: int) -> Tensor:
        """The gradient of `a` by sources [first, last), once all rows have sent to them; of GAT."""
        Z = self._unpacked(self.packed[first:last]).view(last - first, *self.a.shape)
        return (Z * self._numbers(sums[first:last])[:, :, None]).sum(0)

    def returned(self, sums: Tensor, first: int, last: int) -> Tensor:
        """The gradient of sources [first, last), [some, heads * channels]."""
        dZ = self._unpacked(sums[first:last])
        if not self.joint:
            by_head = dZ.view(len(dZ), *self.a.shape)
            by_head.addcmul_(self._numbers(sums[first:last])[:, :, None], self.a[None])
        return dZ

    def _side(self, rows: PanelRows, pattern: Pattern, G: Tensor | None) -> _native.AttentionSide:
        return side(
            pattern,
            self.shape,
            self.packed,
            Rules(self.slope, None, rows.dropout),
            first=rows.ends if self.joint else None,
            second=G,
            first_numbers=None if self.joint else rows.ends,
            vector=self.a if self.joint else None,
        )

    def _unpacked(self, packed: Tensor) -> Tensor:
        """Matrices of packed rows, as they are otherwise [some, heads * channels]; a copy."""
        (heads, width), padded = self.a.shape, self.shape.padded
        block = packed.view(self.a.dtype)[:, : width * padded]
        by_head = block.reshape(len(packed), width, padded)[:, :, :heads].transpose(1, 2)
        return by_head.reshape(len(packed), heads * width).clone()

    def _numbers(self, packed: Tensor) -> Tensor:
        """Numbers of heads next to the matrices of packed rows [some, heads]; a view."""
        first = self.shape.columns
        return packed.view(self.a.dtype)[:, first : first + self.shape.heads]
