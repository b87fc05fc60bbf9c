"""The halo: own rows followed by the rows of others that this rank's edges start at."""

from __future__ import annotations

import copy
from dataclasses import dataclass, fields
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import _native
from spgnn.autograd import Operands, as_given, product
from spgnn.comm import Communicator, Mesh, connect
from spgnn.errors import InputError, unknown
from spgnn.exchange import Algorithm, Executor, Plan, Stage, build
from spgnn.exchange.needs import Needs
from spgnn.exchange.plan import Hop, Volume
from spgnn.kernels.recycling import new_rows
from spgnn.layout import EVERYONE, Int64Array, RowLayout, grouped_order
from spgnn.pattern import INT32_LIMIT, Pattern, Selection, described
from spgnn.sparse import CSR, SUM_DTYPE
from spgnn.spmm import Adjoint, DistMatrix, HaloMap

# What torch adds.
_ADDED = {torch.float16, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
_ADDED |= SUM_DTYPE.keys()


class Halo:
    """Own rows of a tensor, then those of other ranks that this rank's edges start at.

    Made by :meth:`build` from edges, owners and a group of ranks; it needs neither a graph nor a
    matrix. Sources and targets of the edges may be the same vertices, or different sets with owners
    of their own.

    Attributes
    ----------
    local_edge_index : Tensor int64 [2, e]
        The edges in the order in which they were given. Row 0 numbers rows of ``halo(x)``, row 1
        this rank's targets.
    own, received : int
        Own source rows, and rows of others: ``halo(x)`` has both.
    own_targets : int
        Targets that this rank owns.
    comm : Communicator
    """

    own: int
    received: int
    local_edge_index: Tensor

    def __init__(self, comm: Communicator, sources: OwnedIds, targets: OwnedIds) -> None:
        self.comm, self._sources, self._targets = comm, sources, targets
        self.own_targets = int(targets.layout.sizes[comm.rank])

    @classmethod
    def build(
        cls,
        edge_index: Tensor,
        owner: npt.ArrayLike | Tensor | RowLayout,
        group: Any = None,
        *,
        target_owner: npt.ArrayLike | Tensor | RowLayout | None = None,
    ) -> Halo:
        """Plan the exchange of this rank's edges. Collective.

        Parameters
        ----------
        edge_index : Tensor int64 or int32 [2, e]
            Global ids, sources and targets, of the edges that end at this rank's own targets, in
            any order. The halo lives on their device.
        owner : integers in [0, P), [n], or RowLayout
            The rank that owns each source id, or contiguous ids for each rank; the same on all
            ranks. A rank's rows are those of its ids in rising order.
        group : Communicator, ProcessGroup, DeviceMesh or mpi4py.MPI.Intracomm, optional
            The ranks; by default those of :func:`spgnn.connect`.
        target_owner : as owner, optional
            The same of the targets, if they are another set of vertices.

        Raises
        ------
        InputError
            On all ranks, if an id is out of range, an edge ends at what another rank owns, an owner
            is no rank, or ranks do not agree on the owners.
        """
        if not isinstance(group, Communicator):
            on_gpu = isinstance(edge_index, Tensor) and edge_index.is_cuda
            group = connect(group=group, device="auto" if on_gpu else "cpu")
        comm: Communicator = group

        def owners() -> tuple[OwnedIds, OwnedIds]:
            sources = OwnedIds.of("owner", owner, comm.size)
            if target_owner is None:
                return sources, sources
            return sources, OwnedIds.of("target_owner", target_owner, comm.size)

        sources, targets = comm.on_every_rank(owners)
        comm.check_agreement(
            "Halo.build",
            owner=sources.layout.offsets if sources.numbers is None else sources.numbers,
            target_owner=targets.layout.offsets if targets.numbers is None else targets.numbers,
            bipartite=target_owner is not None,
        )
        halo = cls(comm, sources, targets)
        halo.rebuild(edge_index)
        return halo

    def rebuild(self, edge_index: Tensor) -> None:
        """Plan again, for other edges of the same vertices and owners. Collective.

        In place: a backward of what was computed before still goes the old way. Takes two passes
        over the edges and one exchange of ids. What is refused leaves the halo as it was.

        Parameters
        ----------
        edge_index : Tensor int64 or int32 [2, e]
            As of :meth:`build`.
        """
        comm, sources, targets = self.comm, self._sources, self._targets

        def inspect() -> tuple[Tensor, Needs]:
            if not isinstance(edge_index, Tensor) or (
                edge_index.dtype not in (torch.int64, torch.int32)
                or edge_index.dim() != 2
                or len(edge_index) != 2
            ):
                raise InputError(
                    f"edge_index must be int64 or int32 [2, edges], got {described(edge_index)}"
                )
            edges = edge_index.detach().cpu().contiguous()
            local = new_rows(2, edges.new_empty(0, edges.shape[1], dtype=torch.int64))
            rows, columns = _native.halo_edges(
                edges[0].numpy(),
                edges[1].numpy(),
                sources.layout.offsets,
                sources.numbers,
                targets.layout.offsets,
                targets.numbers,
                comm.rank,
                local[0].numpy(),
                local[1].numpy(),
            )
            return local, Needs(rows, rows, None, torch.from_numpy(columns), None)

        local, needs = comm.on_every_rank(inspect)
        own, device = int(sources.layout.sizes[comm.rank]), edge_index.device
        hops: tuple[Hop, ...] = ()
        if comm.size > 1:
            send, counts = build(needs.exchange(EVERYONE, own), {EVERYONE: comm})
            hops = (Hop(EVERYONE, send, counts),)
        stage = Stage(CSR(Selection(torch.arange(own, device="cpu"), own)), None, hops)
        executor = Executor(Plan((stage.to(device),)), {EVERYONE: comm})
        self._map = HaloMap(executor, Operands(comm, plan=executor.plan.call))
        self._needs = needs
        self.own, self.received = own, len(needs.columns)
        self.local_edge_index = local.to(device)

    def __call__(self, x: Tensor) -> Tensor:
        """Own rows, then those received, in the order of their owners and ids. Collective.

        Differentiable at every order. Nothing is rounded, whatever the dtype.

        Parameters
        ----------
        x : Tensor [own, …]
            Of any dtype and trailing shape, both the same on all ranks.

        Returns
        -------
        Tensor [own + received, …]
        """
        return _exchanged(self._map, x)

    def adjoint(self, g: Tensor) -> Tensor:
        """The transpose: rows of a halo, added up at their owners. Collective.

        Differentiable at every order. Of booleans it is ``or``; float16 and bfloat16 are added in
        float32 and rounded once.

        Parameters
        ----------
        g : Tensor [own + received, …]

        Returns
        -------
        Tensor [own, …]
        """
        return _exchanged(self._map.T, g)

    @property
    def volume(self) -> Volume:
        """Rows that this rank sends and receives in one call; the adjoint swaps them."""
        return self._map.executor.plan.volume

    @property
    def ids(self) -> Tensor:
        """The id of each row of ``halo(x)``, int64 [own + received]."""
        return self._sources.ids_of(self._numbers)

    @property
    def target_ids(self) -> Tensor:
        """The id of each own target, int64 [own_targets]."""
        return self._targets.ids_of(np.arange(*self._targets.layout.range(self.comm.rank)))

    @property
    def _numbers(self) -> Int64Array:
        """Numbers of the rows of the halo, among those of all ranks."""
        layout, needs = self._sources.layout, self._needs
        received = np.repeat(layout.offsets[:-1], needs.rows) + needs.columns.numpy()
        return np.concatenate((np.arange(*layout.range(self.comm.rank)), received))

    def matrix(self, values: Tensor | None = None, **how: Any) -> DistMatrix:
        """The edges as a distributed matrix, under any cover or hierarchy. Collective.

        ``halo.matrix(values) @ x`` adds ``values[e] · x[source of e]`` at the target of each edge:
        [own, f] to [own_targets, f]. Partial sums travel where they are fewer than rows, unless
        ``cover="column"`` is named.

        Parameters
        ----------
        values : Tensor [e], optional
            By default, ones.
        **how
            Fields of :class:`spgnn.exchange.Algorithm`, as ``cover``, ``node_size``, ``c``; a cover
            may be ``"auto"``, as by default.
        """
        names = [field.name for field in fields(Algorithm)]
        for name in how:
            if name not in names:
                raise unknown("halo.matrix(…)", name, names)
        is_open = how.get("cover", "auto") == "auto"
        algorithm = Algorithm(**({**how, "cover": "column"} if is_open else how))
        products = algorithm.for_products if is_open and self.comm.size > 1 else algorithm
        A = self._matrix(values, products)
        if products != algorithm:
            # What these edges and values are now, should its halo be asked for.
            now = copy.copy(self), None if values is None else values.clone()
            A.build_with_halo = cache(lambda: now[0]._matrix(now[1], algorithm))
        return A

    def _matrix(self, values: Tensor | None, algorithm: Algorithm) -> DistMatrix:
        comm, (starts, ends) = self.comm, self.local_edge_index.cpu()

        def block() -> CSR:
            algorithm.check(comm.size)
            if values is not None and getattr(values, "shape", None) != starts.shape:
                raise InputError(f"values must be a tensor [{len(starts)}], one for each edge")
            order = torch.argsort(ends, stable=True)
            columns = torch.from_numpy(self._numbers)[starts[order]]
            indptr = torch.zeros(self.own_targets + 1, dtype=torch.int64, device="cpu")
            torch.cumsum(torch.bincount(ends, minlength=self.own_targets), 0, out=indptr[1:])
            pattern = Pattern(indptr, columns, (self.own_targets, self._sources.layout.rows))
            return CSR(pattern, None if values is None else values.cpu()[order])

        mine = comm.on_every_rank(block)
        mesh = Mesh.build(comm, algorithm.axes(comm.size))
        layout, of_rows = self._sources.layout, self._targets.layout
        A = DistMatrix.build(mine, layout, mesh, row_layout=of_rows, algorithm=algorithm)
        return A.to(self.local_edge_index.device)

    def __repr__(self) -> str:
        place = f"rank {self.comm.rank} of {self.comm.size}"
        return (
            f"Halo(own={self.own}, received={self.received}, targets={self.own_targets}, {place})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Halo:
        # Of a module that has one: both have this plan, and each is planned again by itself.
        return copy.copy(self)


@dataclass(frozen=True, eq=False)
class OwnedIds:
    """Ids in [0, n) and the rank that owns each; numbers are owner by owner, in order of ids."""

    layout: RowLayout  # of the numbers
    numbers: npt.NDArray[np.int32] | None = None  # [n], of each id; ``None`` if ids are numbers
    order: Int64Array | None = None  # [n], the id of each number

    @classmethod
    def of(cls, name: str, owner: npt.ArrayLike | Tensor | RowLayout, ranks: int) -> OwnedIds:
        """From labels or a layout, which are checked."""
        if isinstance(owner, RowLayout):
            if owner.parts != ranks:
                raise InputError(f"{name} is a layout of {owner.parts} parts for {ranks} ranks")
            if owner.sizes.max() >= INT32_LIMIT:
                raise InputError(f"{name} gives a rank {owner.sizes.max()} ids; at most 2^31 - 1")
            return cls(owner)
        try:
            array = owner.detach().cpu().numpy() if isinstance(owner, Tensor) else owner
            labels = np.asarray(array)
        except (TypeError, ValueError):
            raise InputError(f"{name} must be one rank for each id, got a ragged list") from None
        if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) >= INT32_LIMIT:
            raise InputError(
                f"{name} must be integers [vertices], fewer than 2^31, or a RowLayout, got "
                f"{labels.dtype} {list(labels.shape)}"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < ranks:
            wrong = int(np.flatnonzero((labels < 0) | (labels >= ranks))[0])
            raise InputError(
                f"{name}[{wrong}] is {labels[wrong]}, no rank of {ranks}; the first id of each "
                "rank and the end are RowLayout(offsets)"
            )
        order = grouped_order(labels, ranks)
        numbers = np.empty(len(labels), np.int32)
        numbers[order] = np.arange(len(labels), dtype=np.int32)
        return cls(RowLayout.from_labels(labels, ranks), numbers, order)

    def ids_of(self, numbers: Int64Array) -> Tensor:
        """The ids that have these numbers."""
        return torch.from_numpy(numbers if self.order is None else self.order[numbers])


def _exchanged(A: HaloMap | Adjoint, rows: Tensor) -> Tensor:
    """Rows of any dtype and trailing shape through a halo, or through its adjoint."""
    flat, wrong = rows, ""
    if isinstance(rows, Tensor) and rows.layout == torch.strided and rows.dim():
        if rows.is_complex():
            flat = torch.view_as_real(rows.resolve_conj())
        elif isinstance(A, Adjoint) and rows.dtype not in _ADDED:
            wrong = f"rows of {rows.dtype} cannot be added up: pass another dtype"
        flat = flat if flat.dim() == 2 else flat.reshape(len(flat), prod(flat.shape[1:]))
    step = None
    if not torch.compiler.is_compiling():
        step = A.next_step(flat, wrong=wrong, **as_given(rows))
    every = product(A, flat, step, cast=False)
    if rows.is_complex():
        return torch.view_as_complex(every.reshape(A.rows, *rows.shape[1:], 2))
    return every.reshape(A.rows, *rows.shape[1:])
