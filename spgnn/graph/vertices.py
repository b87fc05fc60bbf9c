"""Rows of all vertices: on rank 0, at their owners, in one file, and their sums."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.autograd import check_strided
from spgnn.comm import Communicator
from spgnn.comm.traffic import RowCounts
from spgnn.errors import InputError
from spgnn.exchange.needs import Gather, swap_rows
from spgnn.files import atomic_directory, atomic_file
from spgnn.layout import Int64Array, RowLayout
from spgnn.registry import WRITERS
from spgnn.torch_internals import on_cpu


def added(t: Tensor, mask: Tensor | None, own_rows: int, halo_rows: int | None) -> Tensor:
    """The sum of t over this rank's vertices, or those of a mask; a scalar is the sum already.

    t has a row for each own vertex, or for each of the mask. `halo_rows` are for the message.

    Raises
    ------
    InputError
        If these are not the rows of own vertices.
    """
    check_strided("the tensor", t)
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (own_rows,) or not t.dim()):
        raise InputError(f"a mask must be bool [{own_rows}], got {mask.dtype} {list(mask.shape)}")
    if not t.dim():
        return t
    if len(t) == own_rows:
        return (t if mask is None else t[mask]).sum(0)
    selected = None if mask is None else int(mask.sum())
    if len(t) == selected:
        return t.sum(0)
    raise InputError(
        f"this rank holds {own_rows} vertices, the tensor has {len(t)} rows"
        + ("; these are rows of the halo" if len(t) == halo_rows else "")
        + ("" if selected is None else f"; the mask has {selected}")
    )


_DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
    )
}


def _check_own(what: str, rows: Tensor, vertex_ids: Tensor, comm: Communicator) -> None:
    """Refuse what is not one row, of the same shape, for each vertex. Collective."""
    comm.check_agreement(
        what,
        width=tuple(rows.shape[1:]),
        dtype=rows.dtype,
        one_row_a_vertex=len(rows) == len(vertex_ids) or f"{len(rows)} for {len(vertex_ids)}",
    )
    if len(rows) != len(vertex_ids):
        raise InputError(f"{len(rows)} rows for {len(vertex_ids)} vertices of this rank")


def gather_rows(
    rows: Tensor, vertex_ids: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor | None:
    """Rows [own rows, …] of all vertices by their ids, on rank 0; else ``None``. Collective."""
    check_strided("rows", rows)
    _check_own("graph.gather", rows, vertex_ids, comm)
    every, ids = collected(rows, layout, comm), collected(vertex_ids, layout, comm)
    if comm.rank:
        return None
    whole = torch.empty_like(every)
    whole[ids] = every
    return whole


@on_cpu
def scatter_rows(
    rows: Tensor | None, vertex_ids: Tensor, layout: RowLayout, comm: Communicator
) -> Tensor:
    """The reverse: rank 0's rows [all vertices, …] to their owners. Collective."""

    def checked() -> Tensor:
        if not isinstance(rows, Tensor) or rows.shape[:1] != (layout.rows,):
            result = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"rank 0 must give a tensor [{layout.rows}, …], got {result}")
        check_sent("rows", rows)
        return rows.cpu()

    whole = comm.on_rank_zero(checked)
    ids = collected(vertex_ids, layout, comm)
    sent = {} if whole is None else {"rows": whole[ids]}
    return dealt(sent, layout.sizes, comm)["rows"]


def copied_from_rank_zero(values: Mapping[str, Any] | None, comm: Communicator) -> dict[str, Any]:
    """Copy rank 0's tensors and plain values of the whole graph to all ranks. Collective."""
    values = values if values is not None and comm.rank == 0 else {}
    tensors = {key: t for key, t in values.items() if isinstance(t, Tensor)}
    plain = comm.broadcast_value(
        {key: value for key, value in values.items() if key not in tensors}
    )
    copies = {key: t.expand(comm.size, *t.shape) for key, t in tensors.items()}
    result = dealt(copies, np.ones(comm.size, np.int64), comm)
    return {**plain, **{key: t[0] for key, t in result.items()}}


def check_sent(name: str, rows: Tensor) -> None:
    """Refuse rows that cannot be handed out to ranks.

    Raises
    ------
    InputError
    """
    if str(rows.dtype) not in _DTYPES or rows.layout != torch.strided:
        kind = "" if rows.layout == torch.strided else "sparse "
        raise InputError(f"{name}: {kind}rows of {rows.dtype} cannot be handed out")
    if rows.requires_grad:
        raise InputError(
            f"{name} requires a gradient, which does not come back from ranks: give {name}.detach()"
        )


@on_cpu
def dealt(arrays: dict[str, Tensor], counts: Int64Array, comm: Communicator) -> dict[str, Tensor]:
    """Rows that rank 0 has sorted by who is to get them, to every rank its own. Collective.

    `counts` [P] are the rows of each rank, on rank 0.
    """
    what = {name: [list(t.shape[1:]), str(t.dtype)] for name, t in arrays.items()}
    sizes = comm.broadcast_value({"counts": counts.tolist(), "arrays": what})
    result = {}
    for name, (width, dtype) in sizes["arrays"].items():
        mine = torch.empty((sizes["counts"][comm.rank], *width), dtype=_DTYPES[dtype])
        comm.scatter(arrays[name].contiguous() if comm.rank == 0 else mine, mine, sizes["counts"])
        result[name] = mine
    return result


def collected(rows: Tensor, layout: RowLayout, comm: Communicator) -> Tensor:
    """Everyone's rows on rank 0, one rank after another; nothing elsewhere. Collective."""
    send, receive = [0] * comm.size, [0] * comm.size
    send[0] = len(rows)
    if comm.rank == 0:
        receive = layout.sizes.tolist()
    counts = RowCounts(send, receive, int(layout.sizes.max()))
    return swap_rows(comm, rows.detach().cpu(), counts)


@on_cpu
def rows_of_all(rows: Tensor, comm: Communicator) -> Tensor:
    """Everyone's rows on every rank, one rank after another. Collective."""
    every: Tensor | None = Gather("everyone", (rows.detach(),)).over(comm)[0]
    assert every is not None
    return every


CHUNK_BYTES = 1 << 23  # up to four copies of a chunk are in memory
Result = TypeVar("Result")


@on_cpu
def write_rows(
    path: str,
    arrays: Mapping[str, Tensor],
    vertex_ids: Tensor,
    comm: Communicator,
    what: str,
    after: Callable[[], None] | None = None,
    dataset: str | None = None,
    columns: Mapping[str, npt.NDArray[Any]] = MappingProxyType({}),
    names: Mapping[str, npt.NDArray[Any]] | None = None,
) -> None:
    """Write rows of all vertices aside, then rename what was written. Collective.

    An ``.npy`` file of one array; ``.npz``; ``.parquet``, a row a vertex with the source's ids; or
    a directory in which each rank has files of its rows and their ids. `after` is called after each
    stretch; `columns` are further ones of rank 0. `names` are those that arrays of these names
    number, on rank 0: a table then has no ids.
    """
    arrays = {name: t.float() if t.dtype == torch.bfloat16 else t for name, t in arrays.items()}
    after = after or (lambda: None)
    with ExitStack() as stack:
        if path.endswith(".parquet"):
            table = comm.on_rank_zero(
                lambda: stack.enter_context(_tables(what).open(path, what, dataset))
            )
            _write_table(table, arrays, vertex_ids, comm, what, after, columns, names)
        elif path.endswith((".npy", ".npz")):
            file: Any = comm.on_rank_zero(lambda: stack.enter_context(atomic_file(path, what)))
            packs, archive = path.endswith(".npz"), None
            if packs and file is not None:
                archive = stack.enter_context(zipfile.ZipFile(file, "w"))

            def begun(name: str) -> Any:
                if archive is None:
                    return file
                # Built from its name alone, it has no time of day: equal runs make equal files.
                entry = archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)
                return stack.enter_context(entry)  # after an error, an archive closes without any

            for name, rows in arrays.items():
                entry = _on_disk(comm, what, partial(begun, name))
                _write_array(entry, rows, vertex_ids, comm, what, after, (names or {}).get(name))
                if packs:
                    _on_disk(comm, what, lambda entry=entry: entry.close())  # type: ignore[misc]

            def rest() -> None:
                for name, column in columns.items():
                    with begun(name) as entry:
                        np.lib.format.write_array(entry, column, allow_pickle=False)

            _on_disk(comm, what, rest)
        else:
            aside = comm.from_rank_zero(lambda: str(stack.enter_context(atomic_directory(path))))

            def written() -> None:
                for name, tensor in (*arrays.items(), ("ids", vertex_ids)):
                    target = Path(aside, f"{name}-{comm.rank:05}.npy")
                    with atomic_file(target, what) as file:
                        np.save(file, tensor.detach().cpu().numpy(), allow_pickle=False)

            comm.on_every_rank(written)
        comm.on_rank_zero(stack.close)


def _write_table(
    table: Any,
    arrays: Mapping[str, Tensor],
    vertex_ids: Tensor,
    comm: Communicator,
    what: str,
    after: Callable[[], None],
    columns: Mapping[str, npt.NDArray[Any]],
    names: Mapping[str, npt.NDArray[Any]] | None,
) -> None:
    """A row a vertex, with the source's ids, into a table that rank 0 has open."""

    def write(stretches: tuple[Tensor | None, ...]) -> None:
        ids, *values = (t.numpy() for t in stretches if t is not None)
        here = slice(table.rows, table.rows + len(ids))
        if table.ids is not None:
            ids = table.ids.slice(table.rows, len(ids))
        extra = {name: column[here] for name, column in columns.items()}
        named = dict(zip(arrays, values, strict=True))
        named |= {name: texts[named[name]] for name, texts in (names or {}).items()}
        table.write({**({"id": ids} if names is None else {}), **extra, **named})

    everything = [vertex_ids, *arrays.values()]
    step = max(1, CHUNK_BYTES // sum(_row_bytes(tensor) for tensor in everything))
    pieces = [in_order(tensor, vertex_ids, comm, step) for tensor in everything]
    for stretches in zip(*pieces, strict=True):
        _on_disk(comm, what, partial(write, stretches))
        after()


def check_table(what: str) -> None:
    """Refuse a Parquet file where nothing can write one, before long work."""
    _tables(what).check(what)


def _tables(what: str) -> Any:
    return WRITERS.need(".parquet", what, "io")


def _row_bytes(rows: Tensor) -> int:
    return rows.element_size() * max(1, int(np.prod(rows.shape[1:])))


def _places(vertex_ids: Tensor, comm: Communicator) -> Tensor:
    """The place of each own vertex in the rising order of all ids, which may be any. Collective."""
    total = comm.agree(len(vertex_ids), "sum")
    if comm.agree(int(vertex_ids.max()) if len(vertex_ids) else -1) < total:
        return vertex_ids
    everyone = rows_of_all(vertex_ids.cpu(), comm)
    return torch.searchsorted(everyone.sort().values, vertex_ids.cpu()).to(vertex_ids.device)


@on_cpu
def in_order(
    rows: Tensor, vertex_ids: Tensor, comm: Communicator, step: int | None = None
) -> Iterator[Tensor | None]:
    """The rows of all vertices in the rising order of ids, `step` at a time, on rank 0's CPU."""
    _check_own("rows of all vertices", rows, vertex_ids, comm)
    total = comm.agree(len(vertex_ids), "sum")
    sorted_ids, order = _places(vertex_ids, comm).sort()
    step = step or max(1, CHUNK_BYTES // _row_bytes(rows))
    for first in range(0, total, step):
        bounds = torch.tensor([first, first + step], device=sorted_ids.device)
        begin, end = torch.searchsorted(sorted_ids, bounds).tolist()
        counts = comm.exchange_counts([end - begin, *[0] * (comm.size - 1)])
        sent = sorted_ids[begin:end], rows[order[begin:end]]
        ids, values = (swap_rows(comm, one.detach().cpu(), counts) for one in sent)
        if comm.rank:
            yield None
        else:
            stretch = torch.empty_like(values)
            stretch[ids - first] = values
            yield stretch


def _write_array(
    file: IO[bytes] | None,
    rows: Tensor,
    vertex_ids: Tensor,
    comm: Communicator,
    what: str,
    after: Callable[[], None],
    names: npt.NDArray[Any] | None,
) -> None:
    """An array of the rows of all vertices, as NumPy's files have it, into a file of rank 0."""
    dtype = torch.empty(0, dtype=rows.dtype).numpy().dtype if names is None else names.dtype
    descr = np.lib.format.dtype_to_descr(dtype)
    shape = (comm.agree(len(rows), "sum"), *rows.shape[1:])
    header = {"descr": descr, "fortran_order": False, "shape": shape}

    def write(stretch: Tensor | None) -> None:
        assert file is not None
        if stretch is None:
            np.lib.format.write_array_header_2_0(file, header)
        else:
            values = stretch.numpy()
            file.write((values if names is None else names[values]).tobytes())

    _on_disk(comm, what, partial(write, None))
    for stretch in in_order(rows, vertex_ids, comm):
        _on_disk(comm, what, partial(write, stretch))
        after()


def _on_disk(comm: Communicator, what: str, work: Callable[[], Result]) -> Result | None:
    """Do something with a file on rank 0; a full disk is everyone's error."""

    def done() -> Result:
        try:
            return work()
        except OSError as error:
            raise InputError(f"{what}: cannot be written: {error.strerror or error}") from None

    return comm.on_rank_zero(done)
