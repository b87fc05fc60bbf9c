"""Sums over the vertices of one rank, before those of all ranks are added up."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.operands import check_strided


def added(t: Tensor, mask: Tensor | None, own_rows: int, halo_rows: int | None) -> Tensor:
    """The sum over this rank's vertices, or those of a mask.

    Parameters
    ----------
    t : Tensor [own rows, …], or a scalar
        A scalar is the sum already.
    mask : Tensor bool [own rows], optional
    own_rows : int
    halo_rows : int, optional
        If that is known: for the message.

    Returns
    -------
    Tensor […]

    Raises
    ------
    InputError
        If these are not the rows of own vertices.
    """
    check_strided("the tensor", t)
    if t.dim() and len(t) != own_rows:
        raise InputError(
            f"this rank holds {own_rows} vertices, the tensor has {len(t)} rows"
            + ("; these are rows of the halo" if len(t) == halo_rows else "")
        )
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != (own_rows,) or not t.dim():
            found = f"{mask.dtype} {list(mask.shape)}"
            raise InputError(f"a mask must be bool [{own_rows}], got {found}")
        t = t[mask]
    return t.sum(0) if t.dim() else t
