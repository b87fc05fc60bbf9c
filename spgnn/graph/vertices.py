"""Rows of all vertices on rank 0, in the source's order, and every rank's own ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spgnn.autograd import check_strided
from spgnn.comm import Communicator, RowCounts, broadcast_value, on_rank_zero
from spgnn.errors import InputError
from spgnn.layout import Int64Array, RowLayout

_DTYPES = {str(dtype): dtype for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16)}
_DTYPES |= {str(dtype): dtype for dtype in (torch.int32, torch.int64, torch.bfloat16)}
_DTYPES |= {str(dtype): dtype for dtype in (torch.float16, torch.float32, torch.float64)}


def to_rank_zero(
    rows: Tensor, vertex_ids: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor | None:
    """Rows of all vertices by their ids, on rank 0; ``None`` elsewhere. Collective.

    Parameters
    ----------
    rows : Tensor [own rows, …]
    vertex_ids : Tensor int64 [own rows]
        Together a permutation.
    layout : RowLayout
    comm : Communicator
        All ranks.

    Raises
    ------
    InputError
        On all ranks, if these are not own rows, or of different width or dtype.
    """
    check_strided("rows", rows)
    comm.check_agreement(
        "graph.gather",
        width=tuple(rows.shape[1:]),
        dtype=rows.dtype,
        one_row_a_vertex=len(rows) == len(vertex_ids) or f"{len(rows)} for {len(vertex_ids)}",
    )
    if len(rows) != len(vertex_ids):
        raise InputError(f"{len(rows)} rows for {len(vertex_ids)} vertices of this rank")
    found = collected(rows, layout, comm)
    ids = collected(vertex_ids, layout, comm)
    if comm.rank:
        return None
    whole = torch.empty_like(found)
    whole[ids] = found
    return whole


def from_rank_zero(
    rows: Tensor | None, vertex_ids: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor:
    """The reverse: rank 0's rows of all vertices to their owners. Collective.

    Parameters
    ----------
    rows : Tensor [all vertices, …] on rank 0
    vertex_ids, layout, comm
        As of `to_rank_zero`.

    Raises
    ------
    InputError
        On all ranks, if rank 0 has none of these.
    """

    def checked() -> Tensor:
        if not isinstance(rows, Tensor) or rows.shape[:1] != (layout.rows,):
            found = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"rank 0 must give a tensor [{layout.rows}, …], got {found}")
        check_sent("rows", rows)
        return rows.detach().cpu()

    whole = on_rank_zero(comm, checked)
    ids = collected(vertex_ids, layout, comm)
    sent = {} if whole is None else {"rows": whole[ids]}
    return dealt(sent, layout.sizes, comm)["rows"]


def copied_from_rank_zero(values: Mapping[str, Any] | None, comm: Communicator) -> dict[str, Any]:
    """What rank 0 knows of the whole graph, on all ranks: tensors and plain values. Collective."""
    values = values if values is not None and comm.rank == 0 else {}
    tensors = {key: t for key, t in values.items() if isinstance(t, Tensor)}
    plain = broadcast_value(
        comm, {key: value for key, value in values.items() if key not in tensors}
    )
    copies = {key: t.expand(comm.size, *t.shape) for key, t in tensors.items()}
    found = dealt(copies, np.ones(comm.size, np.int64), comm)
    return {**plain, **{key: t[0] for key, t in found.items()}}


def check_sent(name: str, rows: Tensor) -> None:
    """Refuse rows that cannot be handed out to ranks.

    Raises
    ------
    InputError
    """
    if str(rows.dtype) not in _DTYPES or rows.layout != torch.strided:
        kind = "" if rows.layout == torch.strided else "sparse "
        raise InputError(f"{name}: {kind}rows of {rows.dtype} cannot be handed out")


def dealt(arrays: dict[str, Tensor], counts: Int64Array, comm: Communicator) -> dict[str, Tensor]:
    """Arrays that rank 0 has sorted by who is to get them, to every rank its rows. Collective.

    Parameters
    ----------
    arrays : dict of Tensor [sum(counts), …] on rank 0
    counts : int64 [P] on rank 0
        Rows of each rank.
    comm : Communicator
        All ranks.
    """
    what = {name: [list(t.shape[1:]), str(t.dtype)] for name, t in arrays.items()}
    told = broadcast_value(comm, {"counts": counts.tolist(), "what": what})
    found = {}
    for name, (width, dtype) in told["what"].items():
        mine = torch.empty((told["counts"][comm.rank], *width), dtype=_DTYPES[dtype])
        comm.scatter(arrays[name].contiguous() if comm.rank == 0 else mine, mine, told["counts"])
        found[name] = mine
    return found


def collected(rows: Tensor, layout: RowLayout, comm: Communicator) -> Tensor:
    """Everyone's rows on rank 0, one rank after another; nothing elsewhere. Collective."""
    mine = rows.detach().cpu().contiguous()
    send, receive = [0] * comm.size, [0] * comm.size
    send[0] = len(mine)
    if comm.rank == 0:
        receive = layout.sizes.tolist()
    whole = mine.new_empty((sum(receive), *mine.shape[1:]))
    comm.alltoallv(mine, whole, RowCounts(send, receive, int(layout.sizes.max()))).wait()
    return whole
