"""Machine files: how fast a cluster computes and moves rows, measured or written by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from spgnn.errors import InputError, shortened, suggestion
from spgnn.files import AnyPath, atomic_file

FORMAT, VERSION = "spgnn machine", 3
# What has been added since may be missing.
READ = (2, 3)
LARGEST_FILE = 1 << 20
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Link:
    """One collective on one level: seconds of a call and of a message, bytes a second of a rank."""

    call: float
    latency: float
    bandwidth: float

    def seconds(self, messages: Any, nbytes: Any) -> Any:
        """Time of one call with so many messages of so many bytes in all; numbers or arrays."""
        return self.call * (messages > 0) + self.latency * messages + nbytes / self.bandwidth


@dataclass(frozen=True)
class Level:
    """Links of the ranks of one node ("inside"), or of several nodes ("between")."""

    alltoallv: Link
    allreduce: Link


@dataclass(frozen=True)
class Levels:
    """Both levels; a machine of one node, or with ranks all alike, has only the first."""

    inside: Level
    between: Level | None = None


@dataclass(frozen=True)
class Spmm:
    """Products of sparse with dense matrices, by bytes of the operand and its columns."""

    operand_bytes: tuple[float, ...]
    widths: tuple[float, ...]
    seconds_per_nonzero: tuple[tuple[float, ...], ...]
    seconds_per_row: tuple[float, ...]

    def seconds(self, nonzeros: Any, rows: Any, width: float, operand_bytes: Any) -> Any:
        """Time of one product; numbers or arrays."""
        by_size = [between(self.widths, row, width) for row in self.seconds_per_nonzero]
        # Caches fill up over decades of sizes.
        sizes = np.log(np.asarray(self.operand_bytes, np.float64))
        each = np.interp(np.log(np.maximum(operand_bytes, 1)), sizes, by_size)
        return nonzeros * each + rows * between(self.widths, self.seconds_per_row, width)


@dataclass(frozen=True)
class EdgeRates:
    """A layer that works on its edges: tables of one head; seconds a nonzero, row, further head."""

    forward: Spmm
    backward: Spmm
    forward_head: float = 0.0
    backward_head: float = 0.0
    forward_row_head: float = 0.0
    backward_row_head: float = 0.0
    forward_drop: float = 0.0
    backward_drop: float = 0.0

    def seconds(
        self,
        nonzeros: Any,
        rows: Any,
        width: float,
        operand_bytes: Any,
        heads: int,
        adjoint: bool,
        drops: bool = False,
    ) -> Any:
        """Time of one layer, or of its gradient; numbers or arrays."""
        way = "backward" if adjoint else "forward"
        table: Spmm = getattr(self, way)
        one_head = table.seconds(nonzeros, rows, width, operand_bytes)
        of_nonzero = (heads - 1) * getattr(self, f"{way}_head")
        of_nonzero += heads * drops * getattr(self, f"{way}_drop")
        return (
            one_head + nonzeros * of_nonzero + rows * (heads - 1) * getattr(self, f"{way}_row_head")
        )


@dataclass(frozen=True)
class Edges:
    """Layers of attention or largest neighbours; ``None`` if not measured."""

    gat: EdgeRates | None = None
    gatv2: EdgeRates | None = None
    largest: EdgeRates | None = None


@dataclass(frozen=True)
class Gather:
    """Copies of rows in any order."""

    widths: tuple[float, ...]
    seconds_per_row: tuple[float, ...]

    def seconds(self, rows: Any, width: float) -> Any:
        """Time of so many rows."""
        return rows * between(self.widths, self.seconds_per_row, width)


@dataclass(frozen=True)
class Gemm:
    """Dense products of tall matrices; the width is the smaller of their two other dimensions."""

    widths: tuple[float, ...]
    flops_per_second: tuple[float, ...]

    def seconds(self, flops: Any, width: int) -> Any:
        """Time of so many operations."""
        return flops / np.interp(width, self.widths, self.flops_per_second)


@dataclass(frozen=True)
class Streams:
    """Bytes read and written a second by what goes through rows once."""

    elementwise: float
    dropout: float
    softmax: float


@dataclass(frozen=True)
class Overhead:
    """Seconds of each operator, exchange and epoch, whatever its size; bytes of an idle rank."""

    operation: float
    exchange: float
    epoch: float
    memory: float


@dataclass(frozen=True)
class Conditions:
    """Ranks of one node that worked at the same time during the measurement, and their threads."""

    ranks_here: int
    threads: int


@dataclass(frozen=True)
class Machine:
    """Measured rates of a cluster; docs/machine.md describes each entry of its file.

    Attributes
    ----------
    cores : int
        Processors (or GPUs) of one node.
    ranks_a_node : int
        Ranks of one node: rank r is on node r // ranks_a_node.
    memory : float
        Bytes each rank may use; 0 if unknown.
    overlap : float in [0, 1]
        Share of the shorter of an exchange and a product that is hidden behind the longer.
    disk : float
        Bytes a second that a node's disk reads or writes; 0 if unknown.
    """

    name: str
    cores: int
    ranks_a_node: int
    memory: float
    conditions: Conditions
    levels: Levels
    overlap: float
    spmm: Spmm
    gather: Gather
    gemm: Gemm
    streams: Streams
    overhead: Overhead
    source: str = ""
    disk: float = 0.0
    edges: Edges = Edges()

    def edges_of(self, kind: str) -> EdgeRates:
        """Cost of edges in one kind of layer, ``gat``, ``gatv2`` or ``largest``, if measured."""
        rates: EdgeRates | None = getattr(self.edges, kind)
        if rates is None:
            raise InputError(
                f"machine {self.name}: says nothing of edges.{kind}; spgnn machine --json FILE "
                "measures it"
            )
        return rates

    def nodes(self, ranks: int) -> int:
        """Nodes that so many ranks fill."""
        return -(-ranks // self.ranks_a_node)

    def slowdown(self, ranks: int) -> float:
        """Slowdown of a rank among so many, compared with the measurement."""
        here = min(ranks, self.ranks_a_node)
        now = min(1.0, self.cores / here) * max(1, self.cores // here)
        then = self.conditions
        turns = min(1.0, self.cores / (then.ranks_here * then.threads))
        return then.threads * turns / now


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Interpolated linearly; beyond the last point along the last piece, below the first level."""
    if len(xs) > 1 and x > xs[-1]:
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        return ys[-1] + max(slope, 0.0) * (x - xs[-1])
    return float(np.interp(x, xs, ys))


def _read(kind: Any, value: Any, where: str, name: str) -> Any:
    """A value of JSON as a field of a record; an `InputError` names the field."""

    def check(fits: bool, form: str) -> None:
        if not fits:
            shown = shortened(repr(value), 40)
            raise InputError(f"{where}: {name or 'the file'} must be {form}, got {shown}")

    if get_origin(kind) in (Union, types.UnionType):
        return None if value is None else _read(get_args(kind)[0], value, where, name)
    if dataclasses.is_dataclass(kind):
        check(isinstance(value, dict), "an object")
        hints, prefix = get_type_hints(kind), f"{name}." if name else ""
        for key in value:
            if key not in hints:
                meant = suggestion(str(key), hints)
                raise InputError(f"{where}: {prefix}{key} is not known{meant}")
        for item in dataclasses.fields(kind):
            if item.name not in value and item.default is dataclasses.MISSING:
                raise InputError(f"{where}: {prefix}{item.name} is missing")
        record: Any = kind
        return record(**{k: _read(hints[k], v, where, prefix + k) for k, v in value.items()})
    if get_origin(kind) is tuple:
        check(isinstance(value, list), "a list")
        inner = get_args(kind)[0]
        values = tuple(_read(inner, one, where, name) for one in value)
        check(inner is not float or all(one > 0 for one in values), "a list of numbers above 0")
        return values
    if kind is str:
        check(isinstance(value, str), "a text")
        return value
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        check(isinstance(value, int) and real and 1 <= value < 2**31, "an integer of at least 1")
        return value
    check(real and math.isfinite(value) and value >= 0, "a number of at least 0")
    return float(value)


def write_machine(machine: Machine, path: AnyPath, what: str | None = None) -> None:
    """Write a machine file."""
    record = {"format": FORMAT, "version": VERSION, **asdict(machine)}
    with atomic_file(path, what) as file:
        file.write((json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def read_machine(path: AnyPath) -> Machine:
    """Read a machine file; refuse another format or version, and numbers out of range."""
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read: {reason}") from None
    try:
        record = json.loads(text) if len(text) <= LARGEST_FILE else None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(
            f'{path}: no machine file: it should be JSON with "format": "{FORMAT}"; '
            "spgnn machine --json FILE writes one"
        )
    if record.get("version") not in READ:
        raise InputError(
            f"{path}: is a machine file of version {shortened(repr(record.get('version')), 40)}; "
            f"this program reads version {' and '.join(map(str, READ))}"
        )
    fields = {k: v for k, v in record.items() if k not in ("format", "version")}
    machine: Machine = _read(Machine, fields, str(path), "")
    # Tables whose axes do not fit, and a share that is none.
    tables: list[tuple[str, Sequence[float], Sequence[Any]]] = [
        ("gather.seconds_per_row", machine.gather.widths, machine.gather.seconds_per_row),
        ("gemm.flops_per_second", machine.gemm.widths, machine.gemm.flops_per_second),
    ]
    sparse = {"spmm": machine.spmm}
    for kind, rates in vars(machine.edges).items():
        if rates is not None:
            sparse[f"edges.{kind}.forward"] = rates.forward
            sparse[f"edges.{kind}.backward"] = rates.backward
    for name, table in sparse.items():
        each = f"{name}.seconds_per_nonzero"
        tables.append((f"{name}.seconds_per_row", table.widths, table.seconds_per_row))
        tables.append((each, table.operand_bytes, table.seconds_per_nonzero))
        tables += [(each, table.widths, row) for row in table.seconds_per_nonzero]
    for name, axis, values in tables:
        rises = all(a < b for a, b in pairwise(axis))
        if not axis or not rises or len(axis) != len(values):
            raise InputError(
                f"{path}: {name} needs one entry for each of widths (or operand_bytes) that rise"
            )
    speeds = {f"streams.{name}": rate for name, rate in vars(machine.streams).items()}
    for level, links in vars(machine.levels).items():
        for name, link in vars(links).items() if links is not None else ():
            speeds[f"levels.{level}.{name}.bandwidth"] = link.bandwidth
    for name, rate in speeds.items():
        if rate <= 0:
            raise InputError(f"{path}: {name} must be above 0, got {rate:g}")
    if machine.overlap > 1:
        raise InputError(f"{path}: overlap must be in [0, 1], got {machine.overlap:g}")
    return machine
