"""Sums over the vertices of one rank, before those of all ranks are added up."""

from __future__ import annotations

import torch
from torch import Tensor

from spgnn.autograd import check_strided
from spgnn.errors import InputError


def added(t: Tensor, mask: Tensor | None, own_rows: int, halo_rows: int | None) -> Tensor:
    """The sum over this rank's vertices, or those of a mask.

    Parameters
    ----------
    t : Tensor [own rows, …] or [rows of the mask, …], or a scalar
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
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (own_rows,) or not t.dim()):
        found = f"{mask.dtype} {list(mask.shape)}"
        raise InputError(f"a mask must be bool [{own_rows}], got {found}")
    if t.dim() and len(t) != own_rows:
        selected = None if mask is None else int(mask.sum())
        if len(t) != selected:
            raise InputError(
                f"this rank holds {own_rows} vertices, the tensor has {len(t)} rows"
                + ("; these are rows of the halo" if len(t) == halo_rows else "")
                + ("" if selected is None else f"; the mask has {selected}")
            )
    elif mask is not None:
        t = t[mask]
    return t.sum(0) if t.dim() else t
