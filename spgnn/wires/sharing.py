"""How bits are shared out between rows: by a threshold, without a solver.

What a row loses falls with every step to more bits, each time by less for a byte than the time
before: its choices are the corners of a convex curve. So, whatever bytes some rows may take, the
steps that take away most for a byte are the best ones, up to the one that does not fit any more;
and where several messages have a limit each, they do not touch each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spgnn import kernels
from spgnn.layout import Int64Array

WIDTHS = (1, 2, 4, 8)
PLAIN = 16
"""Bits of a row that is rounded to bfloat16, element by element."""
# Of a row's squared norm. Elements m·2ᵉ, m in [1, 2), are 2ᵉ⁻⁷ apart in bfloat16. Rounded at random
# they lose a sixth of the square of that on average, as codes do; and m² is about 2.
OF_BFLOAT16 = 2.0**-14 / 6 / 2


class Limits(NamedTuple):
    """Rows that share bytes, group after group.

    Attributes
    ----------
    rows : int64 [groups]
        Of each.
    bytes : int64 [groups]
        All its rows together may take.
    """

    rows: Int64Array
    bytes: Int64Array


class _Steps(NamedTuple):
    """What each row can take, one after the other, [steps, rows] both.

    Attributes
    ----------
    rates : Tensor float64
        Variance that is taken away, for a byte; 0 for what is no step of this row. They fall.
    costs : Tensor int64
        Bytes.
    """

    rates: Tensor
    costs: Tensor


def chosen(
    variances: Tensor,
    width: int,
    limits: Limits,
    widths: Sequence[int] = WIDTHS,
    *,
    plain: Tensor | None = None,
) -> Tensor:
    """Bits for each row that take away most variance, where groups of rows share bytes.

    Exact up to the rows of one threshold a group: no other choice in which each group takes as
    many bytes as here has less.

    Parameters
    ----------
    variances : Tensor float64 [rows]
        With one bit. With b bits, it is (2ᵇ − 1)² times less.
    width : int
        Columns of each row.
    limits : Limits
    widths : sequence of int
        Of which a row can have one, below 16.
    plain : Tensor float64 [rows], optional
        Variances with 16 bits, which rows can have as well then.

    Returns
    -------
    Tensor uint8 [rows]
    """
    device, rows = variances.device, len(variances)
    # Rows that are not finite are not mended by bits.
    variances = variances.nan_to_num(0, 0, 0)
    steps, costs = _in_codes(variances, width, widths), _costs(width, widths)
    jumps = plain is not None and kernels.packed_bytes(width, PLAIN) > costs[-1]
    if plain is not None and jumps:
        steps = _with_plain(steps, variances, plain, width, widths)
    group = torch.arange(len(limits.rows)).repeat_interleave(torch.tensor(limits.rows))
    room = torch.tensor(limits.bytes - limits.rows * costs[0], device=device)
    taken = _taken(steps, group.to(device), room)
    found = torch.bincount(taken % max(1, rows), minlength=rows)
    bits = torch.tensor((*widths, PLAIN), dtype=torch.uint8, device=device)
    if jumps:
        last = (len(steps.rates) - 1) * rows
        found[taken[taken >= last] - last] = len(widths)
    return bits[found]


def _in_codes(variances: Tensor, width: int, widths: Sequence[int]) -> _Steps:
    """From each width to the next."""
    left = _left(widths, variances.device)
    gains = (left[:-1] - left[1:]) * variances
    costs = torch.tensor(_costs(width, widths), device=variances.device)
    more = costs.diff()[:, None].expand(gains.shape)
    # Bytes that cost nothing come first.
    return _Steps(torch.where(gains > 0, gains / more, 0.0), more)


def _with_plain(
    steps: _Steps, variances: Tensor, plain: Tensor, width: int, widths: Sequence[int]
) -> _Steps:
    """The same, and one from some width to 16 bits, in place of those that it passes.

    The corner from which the curve goes on to 16 bits is the one from which it falls least.
    """
    costs = torch.tensor(_costs(width, widths), device=plain.device)
    before = _left(widths, plain.device) * variances
    further = kernels.packed_bytes(width, PLAIN) - costs[:, None]
    rate, corner = ((before - plain.nan_to_num(torch.inf)) / further).min(dim=0)
    useful = rate > 0
    number = torch.arange(len(steps.rates), device=plain.device)[:, None]
    rates = torch.where(useful & (number >= corner), 0.0, steps.rates)
    # Rounding must not put it before the step that leads to its corner.
    leading = rates.gather(0, (corner - 1).clamp(min=0)[None])
    rate = torch.where(corner > 0, torch.minimum(rate, leading[0]), rate)
    rates = torch.cat((rates, torch.where(useful, rate, 0.0)[None]))
    return _Steps(rates, torch.cat((steps.costs, further[corner].T)))


def _taken(steps: _Steps, group: Tensor, room: Tensor) -> Tensor:
    """The steps worth most for a byte, as far as each group has room, as step · rows + row."""
    rates, rows = steps.rates.reshape(-1), max(1, len(group))
    # Of one row, the first step comes first.
    order = rates.argsort(descending=True, stable=True)
    order = order[group[order % rows].argsort(stable=True)]
    of, costs = group[order % rows], steps.costs.reshape(-1)[order]
    spent = costs.cumsum(0)
    whole = torch.zeros_like(room).index_add_(0, of, costs)
    spent -= (whole.cumsum(0) - whole)[of]
    return order[(spent <= room[of]) & (rates[order] > 0)]


def _costs(width: int, widths: Sequence[int]) -> list[int]:
    """Bytes of a row."""
    return [kernels.packed_bytes(width, b) for b in widths]


def _left(widths: Sequence[int], device: torch.device) -> Tensor:
    """What is left of the variance with one bit, float64 [widths, 1]."""
    left = [(2.0**b - 1) ** -2 for b in widths]
    return torch.tensor(left, dtype=torch.float64, device=device)[:, None]
