"""Vertices that are distributed over ranks: halos, sums, rows on rank 0, and values by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from spgnn.autograd import agreeing, all_reduced, as_given
from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.graph.outputs import plain
from spgnn.graph.vertices import added, gather_rows, rows_of_all, scatter_rows
from spgnn.layout import RowLayout
from spgnn.spmm import DistMatrix


class DistVertices(ABC):
    """One rank's vertices, those of a graph or of one type of vertices.

    Attributes
    ----------
    comm : Communicator
        All ranks.
    vertex_ids : Tensor int64 [own rows]
        Where these vertices stood in the source.
    device : torch.device
    """

    comm: Communicator
    vertex_ids: Tensor
    device: torch.device
    num_classes: Any  # a property
    bipartite = False  # its edges start and end at vertices of the same numbers
    calls_agreed = 0
    names_of_all: npt.NDArray[Any] | None = None  # ids of the source, on rank 0

    @property
    def data_name(self) -> str:
        """The name that messages use."""
        return "vertices"

    @property
    @abstractmethod
    def layout(self) -> RowLayout:
        """The layout of rows over ranks."""

    @property
    @abstractmethod
    def A(self) -> DistMatrix:
        """A matrix whose columns are these vertices, and whose halo they have. Collective."""

    def halo_matrix(self) -> DistMatrix:
        """The matrix whose halo is that of these vertices. Collective when first used."""
        return self.A

    @abstractmethod
    def exact(self) -> AbstractContextManager[None]:
        """Inside, rows arrive as they were sent."""

    @property
    def _has_halo(self) -> bool:
        """True if that is built already."""
        return True

    @property
    def own_rows(self) -> int:
        """Vertices of this rank."""
        return len(self.vertex_ids)

    @property
    def row_counts(self) -> frozenset[int]:
        """Numbers of rows that tensors of own vertices may have."""
        return frozenset((self.own_rows,))

    def halo(self, H_local: Tensor) -> Tensor:
        """Own rows of H, then the rows of others that edges of own vertices start at. Collective.

        Differentiable at every order: the gradient of a row that others received is added up.
        ``conv((graph.halo(H), H), graph.edge_index)`` is exact for any convolution that takes
        (sources, destinations).

        Parameters
        ----------
        H_local : Tensor [own rows, …]
            Integers and booleans as well, exactly up to 2⁵³; their halo has their dtype.

        Returns
        -------
        Tensor [own + received, …]
            Where nothing is received, one row of zeros takes its place: so a halo never has as
            many rows as there are own vertices, unless the rank is alone.
        """
        rows = self._exchanged(self.halo_matrix().halo, H_local, self.own_rows)
        if self._padding:
            rows = F.pad(rows, (0, 0, 0, 1))
        return rows.reshape(self.halo_rows, *H_local.shape[1:])

    def _exchanged(self, exchange: Callable[[Tensor], Tensor], t: Tensor, rows_here: int) -> Tensor:
        """Rows of any dtype through an exchange of floating ones; integers exactly up to 2⁵³."""
        rows, wrong = t, ""
        if isinstance(t, Tensor) and t.dim():
            rows = as_rows(t)
        else:
            got = "a scalar" if isinstance(t, Tensor) else type(t).__name__
            wrong = f"a halo is of a tensor [{rows_here}, …], got {got}"
        if not torch.compiler.is_compiling():
            self.halo_matrix().operands.check(rows, rows_here, wrong=wrong, **as_given(t))
        if rows.is_floating_point():
            return exchange(rows.float() if rows.dtype == torch.float16 else rows).to(rows.dtype)
        with self.exact():
            return exchange(rows.double()).to(rows.dtype)

    @property
    def halo_rows(self) -> int:
        """Rows of a halo, own ones included. Collective when first used."""
        return self.own_rows + self.halo_matrix().volume.receive + self._padding

    def _received(self, rows: Tensor) -> Tensor:
        """A halo without padding. Collective."""
        return self.halo(rows)[: self.halo_rows - self._padding]

    @property
    def _padding(self) -> int:
        return int(self.comm.size > 1 and not self.halo_matrix().volume.receive)

    def looked_up(self, rows: Tensor) -> Tensor:
        """Rows of a halo, as a look-up at sources returns them."""
        return rows

    def halo_sum(self, G_halo: Tensor) -> Tensor:
        """The adjoint of :meth:`halo`: rows of the halo, added up at their owners. Collective.

        Of [halo rows, …] to [own rows, …]; sums of integers are exact up to 2⁵³.
        """
        rows = self.halo_rows - self._padding
        own = self._exchanged(self.halo_matrix().halo_sum, G_halo[:rows], rows)
        return own.reshape(self.own_rows, *G_halo.shape[1:])

    def sum(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The sum over the vertices of all ranks, the same on each; differentiable. Collective.

        Parameters
        ----------
        t : Tensor [own rows, …] or [rows of the mask, …], or a scalar
            A scalar is what this rank adds.
        mask : Tensor bool [own rows], optional
        """
        return self._sum(t, mask, scalar=True)

    def _sum(self, t: Tensor, mask: Tensor | None, *, scalar: bool) -> Tensor:
        halo_rows = self.halo_rows if self._has_halo else None

        def of_this_rank() -> Tensor:
            if not (scalar or t.dim()):
                raise InputError(f"a mean is of a tensor [{self.own_rows}, …], got a scalar: sum")
            return added(plain(t), mask, self.own_rows, halo_rows)

        return all_reduced(agreeing(self, self.comm, of_this_rank), self.comm)

    def mean(self, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean over the vertices of all ranks, the same on each; differentiable. Collective.

        A loss computed from it is the same number on all ranks. Each calls ``backward`` on it, and
        then the gradients have to be averaged over the ranks: by :meth:`average_gradients`, or by
        ``DistributedDataParallel``.

        Parameters
        ----------
        t : Tensor [own rows, …] or [rows of the mask, …]
            Losses of labels that are unknown outside the mask, −1 or NaN, are those of its rows:
            ``graph.mean(cross_entropy(out[mask], y[mask], reduction="none"), mask)``.
        mask : Tensor bool [own rows], optional
            Of the vertices that count.

        Returns
        -------
        Tensor […]
            NaN if no vertex counts.
        """
        floating = t if t.is_floating_point() else t.float()
        total = self._sum(floating, mask, scalar=False)
        counted = self.own_rows if mask is None else int(mask.sum())
        return total / self.comm.agree(counted, "sum")

    def scatter(self, rows: Tensor | None) -> Tensor:
        """Send rank 0's rows [all vertices, …] to their owners, as [own rows, …]. Collective.

        They are in the source's order; what other ranks pass does not count.
        """
        return scatter_rows(rows, self.vertex_ids, self.layout, self.comm).to(self.device)

    def gather(self, rows: Tensor) -> Tensor | None:
        """Rows [own rows, …] of all ranks on rank 0, in the source's order. Collective.

        Detached, in memory of the CPU; ``None`` on other ranks.
        """
        return gather_rows(rows, self.vertex_ids, self.layout, self.comm)

    def all_gather(self, rows: Tensor) -> Tensor:
        """Rows [any, …] of all ranks, one rank's after another's, detached, on all. Collective.

        For scores that need all at once: ``roc_auc_score(graph.all_gather(labels),
        graph.all_gather(scores))``. Not in the order of the data, unlike `gather`: row i of own
        rows is that of ``graph.all_gather(graph.vertex_ids)[i]``.
        """
        shape = tuple(rows.shape[1:]) if rows.dim() else None
        self.comm.check_agreement("all_gather", width=shape, dtype=rows.dtype)
        if shape is None:
            raise InputError("all_gather takes rows [any, …], got a scalar; see sum")
        return rows_of_all(rows, self.comm)


def as_rows(t: Tensor) -> Tensor:
    """A tensor [n, …] as [n, columns]."""
    return t if t.dim() == 2 else t.reshape(len(t), prod(t.shape[1:]))


class Named(ABC):
    """Values by name: ``graph["train_mask"]``, ``"x" in graph``, ``graph.keys()``.

    A name that the graph has for itself (``mean``, ``device``) is the data's here.
    """

    @abstractmethod
    def keys(self) -> list[str]:
        """Names of all values that are there."""

    @abstractmethod
    def _value(self, name: str) -> Any:
        """A value that is there. Collective where that of an attribute is."""

    def __getitem__(self, name: str) -> Any:
        """The value of a name."""
        if name in self.keys():
            return self._value(name)
        raise KeyError(f"no {name!r} here; there are {', '.join(self.keys())}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or something else where there is none."""
        return self._value(name) if name in self.keys() else default

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __call__(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Names and values, of those names that are there; without any, of all."""
        return iter([(key, self._value(key)) for key in names or self.keys() if key in self.keys()])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def items(self) -> Iterator[tuple[str, Any]]:
        """All names and their values."""
        return self()
