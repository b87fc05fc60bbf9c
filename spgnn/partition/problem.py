"""A graph to be partitioned, and what its parts must be like; and checks of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import scipy

from spgnn import _native
from spgnn.errors import InputError, check_choice, check_integer
from spgnn.layout import Float64Array, Int32Array, Int64Array
from spgnn.memory import processors
from spgnn.progress import Progress
from spgnn.registry import MOST_THREADS, Objective, Preset

PRESETS: tuple[Preset, ...] = get_args(Preset)
BALANCES = ("nnz", "vertices", "train")
LARGEST_SEED = 2**31 - 1
_ALWAYS_ALLOWED = 1 << 16  # parts


def check_parts(parts: object, vertices: int, name: str = "k") -> int:
    """The number of parts: at most 65,536, or four times as many as vertices."""
    return check_integer(name, parts, 1, min(max(_ALWAYS_ALLOWED, 4 * vertices), 2**31 - 1))


def check_threads(threads: int | None) -> int:
    return processors() if threads is None else check_integer("threads", threads, 1, MOST_THREADS)


def check_nodes(nodes: int | None, parts: int, name: str = "nodes") -> int | None:
    """The number of nodes among which parts are divided evenly; ``None`` stays."""
    if nodes is not None and parts % check_integer(name, nodes, 1):
        raise InputError(f"{name} {nodes} must divide the number of parts, which is {parts}")
    return nodes


def integers(values: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """A vector of integers of any width; an empty one may have any dtype."""
    return _vector(values, f"{name} must be a vector of integers", "iu")


def numbers(values: npt.ArrayLike, name: str, count: int, one: str) -> npt.NDArray[Any]:
    """A vector of real numbers, one for each `one` of `count`; none is infinite or negative."""
    array = _vector(values, f"{name} must be a vector of numbers", "biuf")
    if len(array) != count:
        raise InputError(f"{len(array)} {name} for {count} {one}; there must be one for each")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if len(bad):
        entry = f"{name}[{bad[0]}] is {array[bad[0]]}"
        raise InputError(f"{entry}; {name} are finite numbers that are not negative")
    return array


def _vector(values: Any, rule: str, kinds: str) -> npt.NDArray[Any]:
    try:
        if hasattr(values, "detach"):  # a tensor on a GPU, or of bfloat16, or with a gradient
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists
        raise InputError(f"{rule}: {error}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in kinds):
        raise InputError(f"{rule}, got {array.dtype} {list(array.shape)}")
    return array


def check_weights(weights: npt.ArrayLike, vertices: int) -> tuple[Float64Array, Int64Array]:
    """Weights beside the largest, and as integers [vertices]: fractions are parts of 2⁵⁰."""
    array = numbers(weights, "weights", vertices, "vertices").astype(np.float64)
    largest = array.max(initial=0) or 1.0
    relative = array / largest
    total = relative.sum()
    if (array == np.rint(array)).all() and total <= 2.0**53 / largest:  # float64 counts to there
        return relative, array.astype(np.int64)
    return relative, np.rint(relative * (2.0**50 / total)).astype(np.int64)


def part_bounds(
    totals: npt.ArrayLike, parts: npt.ArrayLike, imbalance: npt.ArrayLike
) -> Int64Array:
    """The most that each of `parts` shares may have of each total, or its largest row."""
    totals, parts = np.asarray(totals, np.int64), np.asarray(parts)
    allowed = np.floor(np.minimum(totals * (1 + np.asarray(imbalance)) / parts, 2.0**62))
    return np.asarray(np.maximum(allowed, np.ceil(totals / parts * (1 - 1e-12))), np.int64)


@dataclass(frozen=True, eq=False)
class Adjacency:
    """The nonzeros of a square matrix: row v needs the rows of H its columns name."""

    indptr: Int64Array
    indices: Int32Array
    on_disk: bool = False

    @classmethod
    def of(cls, A: Any) -> Adjacency:
        """Take a SciPy sparse matrix, a CSR block, or a graph on disk."""
        if isinstance(A, Adjacency):
            return A
        is_block = hasattr(getattr(A, "indptr", None), "cpu")
        arrays = ("indptr", "indices", "shape")
        if not (is_block or scipy.sparse.issparse(A) or all(hasattr(A, x) for x in arrays)):
            raise InputError(
                f"cannot partition a {type(A).__name__}; give a SciPy sparse matrix, a CSR block "
                "or a graph on disk"
            )
        if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
            raise InputError(
                f"the matrix is {' × '.join(map(str, A.shape))}; a partition labels rows and "
                "columns alike, so it must be square"
            )
        vertices = A.shape[0]
        if vertices >= 2**31:
            raise InputError(f"{vertices} vertices; at most 2³¹ − 1 can be partitioned")
        on_disk = False
        if is_block:
            indptr, indices = A.indptr.cpu().numpy(), A.indices.cpu().numpy()
        elif scipy.sparse.issparse(A):
            form, A = A.format, scipy.sparse.csr_array(A)
            indptr, indices = A.indptr, A.indices
            if form == A.format or not A.has_canonical_format:
                indptr, indices = without_duplicates(indptr, indices)
        else:
            indptr, indices, on_disk = A.indptr, A.indices, True
        begin, columns = integers(indptr, "indptr"), integers(indices, "indices")
        if len(begin) != vertices + 1:
            raise InputError(f"indptr must have {vertices + 1} entries, got {len(begin)}")
        if begin[0] or begin[-1] != len(columns) or not (begin[1:] >= begin[:-1]).all():
            raise InputError(f"indptr must rise from 0 to the number of nonzeros, {len(columns)}")
        if columns.dtype != np.int32:
            check_columns(columns, vertices)
        columns = np.ascontiguousarray(columns, np.int32)
        return cls(np.ascontiguousarray(begin, np.int64), columns, on_disk)

    @property
    def vertices(self) -> int:
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of nonzeros, the diagonal included."""
        return len(self.indices)

    @property
    def row_lengths(self) -> Int64Array:
        """Nonzeros of each row, int64 [vertices]: the work that a vertex brings to its owner."""
        return np.diff(self.indptr)

    def describe(self, parts: int) -> str:
        return f"{self.vertices:,} vertices, {self.edges:,} nonzeros, {parts:,} parts"

    @cached_property
    def undirected(self) -> tuple[Int64Array, Int32Array]:
        """(indptr, indices) of A + Aᵀ without diagonal and duplicates."""
        return _native.symmetrize(self.indptr, self.indices)

    @cached_property
    def column_nets(self) -> tuple[Int64Array, Int32Array]:
        """(begin, pins): net v holds v and every row that needs it."""
        return _native.column_nets(self.indptr, self.indices)


def without_duplicates(
    indptr: npt.NDArray[Any], indices: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """A copy of a pattern, columns sorted and none twice in a row."""
    n = len(indptr) - 1
    # One byte an entry, for values say nothing here, and SciPy copies them as well.
    A = scipy.sparse.csr_array(
        (np.ones(len(indices), np.bool_), indices, indptr), shape=(n, n), copy=True
    )
    A.sum_duplicates()
    return A.indptr, A.indices


def check_columns(columns: npt.NDArray[Any], vertices: int) -> None:
    if len(columns) and (columns.min() < 0 or columns.max() >= vertices):
        worst = columns.max() if columns.max() >= vertices else columns.min()
        raise InputError(f"column index {worst} outside [0, {vertices}): the matrix must be square")


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked graph and options; `weights` [vertices, constraints] are to be balanced."""

    adjacency: Adjacency
    parts: int
    weights: Int64Array
    imbalance: float
    seed: int
    preset: Preset
    objective: Objective
    targets: Int64Array
    hops: int
    shares: Float64Array | None
    fixed: Int32Array | None
    initial: Int32Array | None
    threads: int
    progress: Progress | None
    nodes: int | None
    outside: int
    weighted: bool = False  # by the caller, not by the matrix

    @property
    def node_size(self) -> int:
        """Parts of a node; 1 where all are on one, as where each is on its own."""
        return 1 if self.nodes is None or self.nodes == 1 else self.parts // self.nodes

    @property
    def weight(self) -> Int64Array:
        """The only balanced weight, int64 [vertices]."""
        return self.weights[:, 0]

    @property
    def small_weight(self) -> Int64Array:
        """The same for packages that count to 2³¹; the caller's so large that 1 is next to 0."""
        scale = 2.0**30 / max(1, int(self.weight.sum()))
        if self.weighted or scale < 1:
            return np.asarray(np.rint(self.weight * scale), np.int64)
        return self.weight

    @property
    def portions(self) -> Float64Array:
        """One over the share of the work of each part, float64 [parts]: 3 for a third."""
        shares = np.ones(self.parts) if self.shares is None else self.shares
        return np.asarray(shares.sum() / shares)

    def bounds(self, weight: Int64Array) -> list[int]:
        """The most that each part may have of a weight of the vertices."""
        return [*map(int, part_bounds(weight.sum(), self.portions, self.imbalance))]


def balanced_weights(
    adjacency: Adjacency, balance: Sequence[str], train_mask: npt.NDArray[np.bool_] | None
) -> Int64Array:
    """Weights of which each part has its share, int64 [vertices, constraints]."""
    names = balance.split(",") if isinstance(balance, str) else balance
    if not isinstance(names, Sequence) or not names:
        raise InputError(f"balance must name one or more of {', '.join(BALANCES)}")
    columns: list[npt.NDArray[Any]] = []
    for name in names:
        check_choice("balance", name, BALANCES)
        if name == "nnz":
            columns.append(adjacency.row_lengths)
        elif name == "vertices":
            columns.append(np.ones(adjacency.vertices, np.int64))
        else:
            columns.append(checked_mask(adjacency, train_mask, "balance train"))
    if len(set(names)) != len(names):
        raise InputError(f"balance names a quantity twice: {', '.join(names)}")
    return np.stack(columns, axis=1).astype(np.int64, copy=False)


def checked_mask(
    adjacency: Adjacency, train_mask: npt.NDArray[np.bool_] | None, what: str
) -> npt.NDArray[np.bool_]:
    """A train mask of the vertices; `what` says who needs it."""
    need = f"{what} needs a train mask, bool [{adjacency.vertices}]; the graph has"
    if train_mask is None:
        raise InputError(f"{need} none")
    mask = np.asarray(train_mask)
    if mask.shape != (adjacency.vertices,) or mask.dtype != np.bool_:
        raise InputError(f"{need} {mask.dtype} {list(mask.shape)}")
    return mask
