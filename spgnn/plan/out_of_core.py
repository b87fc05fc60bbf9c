"""Training from a disk, priced next to plans that fit into memory.

What each layer of each rank works on is counted on the graph itself, as the training command makes
it; how memory is shared out, and what is read and written, is what that command decides and
predicts (`spgnn.chunked`). Seconds are those of the same products in memory, of the layers that are
recomputed in backward, and of the disk as far as these do not hide it: panels are read ahead, and
rows written behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.chunked.budget import LIBRARIES, Budget, decide, merged, needed, recomputed
from spgnn.chunked.predict import Forecast
from spgnn.chunked.room import Places
from spgnn.chunked.segments import Segments
from spgnn.chunked.sizes import OWN_MATRIX, Sizes, at_most, scored
from spgnn.data.graph import labelled
from spgnn.data.shards import is_graph_directory, open_shards
from spgnn.data.source import GraphSource
from spgnn.direct import DirectFile, Transfers
from spgnn.errors import InputError
from spgnn.exchange import Algorithm
from spgnn.files import scratch_directory
from spgnn.plan.machine import Machine
from spgnn.plan.network import Network
from spgnn.plan.predict import Prediction
from spgnn.plan.search import Configuration
from spgnn.plan.subject import Setting
from spgnn.sparse import CSR

_NOTHING = Budget(1, Places(), 0)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FromDisk(Configuration):
    """A configuration whose ranks process their rows chunk by chunk.

    Attributes
    ----------
    budget : Budget
        What all ranks agree on; its bytes are the first one's.
    read_bytes, written_bytes : int
        Of all ranks, in an epoch.
    spill : str
    memory : int, optional
        Bytes of each rank, as given to the training command.
    """

    budget: Budget = _NOTHING
    read_bytes: int = 0
    written_bytes: int = 0
    spill: str = ""
    memory: int | None = None

    @property
    def storage(self) -> dict[str, Any]:
        """Predicted chunks, tables and traffic of the disk, as the training report names them."""
        return {
            "chunks": self.budget.parts,
            "on_disk": sorted(self.budget.places.on_disk),
            "panel_bytes": self.budget.places.panel_bytes,
            "recomputed_layers": sorted(self.budget.again),
            "planned_read_bytes": self.read_bytes,
            "planned_written_bytes": self.written_bytes,
        }

    def written(self) -> list[str]:
        """As they are written on the command line, without those that are defaults."""
        memory = [] if self.memory is None else ["--memory", str(self.memory)]
        parts = ["--spill", self.spill, "--chunks", str(self.budget.parts)]
        return [*super().written(), *memory, *parts]

    def __str__(self) -> str:
        return f"{super().__str__()} from disk, {self.budget.parts} parts"


@dataclass(frozen=True, eq=False)
class LayerRows:
    """Rows that one layer makes, and rows that it reads for them: bool [n], ``None`` for all.

    Attributes
    ----------
    made, sources : bool [n], optional
    small : bool
        Whether the layer gets a matrix of its own rows, in memory.
    """

    made: Mask | None = None
    sources: Mask | None = None
    small: bool = False


@dataclass(frozen=True, eq=False)
class OutOfCore:
    """Options of training one graph from a disk.

    Attributes
    ----------
    source : GraphSource
    dataset : str
        As the command line names it.
    split : int
    spill : str
        Directory to write to.
    disk : float
        Bytes a second that its disk reads or writes.
    memory : int, optional
        Bytes of each rank, everything counted; ``None`` puts everything on the disk.
    idle : int
        Bytes of a process that has no data.
    """

    source: GraphSource
    dataset: str
    split: int
    spill: str
    disk: float
    memory: int | None
    idle: int

    def configurations(
        self, ranks: int, methods: Sequence[str], *, reach: bool
    ) -> Iterator[Configuration]:
        """Configurations that can train from the disk: 1D with whole columns."""
        for method in methods:
            yield Configuration(ranks, method, "column", Algorithm(), reach=reach)

    def planned(
        self,
        one: Configuration,
        price: Prediction,
        setting: Setting,
        network: Network,
        machine: Machine,
    ) -> tuple[FromDisk, Prediction] | None:
        """Plan of a configuration's training from the disk; ``None`` if memory is too small.

        Parameters
        ----------
        one : Configuration
        price : Prediction
            In memory.
        setting : Setting
        network : Network
        machine : Machine

        Returns
        -------
        configuration : FromDisk
        price : Prediction
        """
        ahead, exact = self._sizes(one, setting, network)
        best = list[Budget]()

        def decided(again: frozenset[int]) -> Budget:
            best[:] = self._budgets(ahead, again)
            return best[0]

        try:
            recomputed(ahead[0].looks, "auto", decided)
        except InputError:
            return None
        forecasts = [Forecast.of_sizes(*pair) for pair in zip(exact, best, strict=True)]
        moved = [forecast.bytes() for forecast in forecasts]
        slow = machine.slowdown(one.ranks)
        # All ranks of a node share its disk.
        here = min(one.ranks, machine.ranks_a_node)
        each_row = _row_seconds(network, machine)
        again = slow * max(_recomputing(f, each_row) for f in forecasts)
        seconds = {**(price.seconds or {}), "again": again}
        moving = here * max(each.bytes for each in moved) / self.disk
        seconds["disk"] = max(0.0, moving - sum(seconds.values()))
        needs = np.array([budget.bytes for budget in best])
        memory = {"parts": needs, "process": np.full_like(needs, self.idle + LIBRARIES)}
        known = {name: getattr(one, name) for name in Configuration.__dataclass_fields__}
        made = FromDisk(
            **known,
            budget=best[0],
            read_bytes=sum(each.read for each in moved),
            written_bytes=sum(each.written for each in moved),
            spill=self.spill,
            memory=self.memory,
        )
        setup = np.zeros_like(price.setup)
        return made, replace(price, memory=memory, setup=setup, seconds=seconds)

    def _budgets(self, sizes: Sequence[Sizes], again: frozenset[int]) -> list[Budget]:
        """Of all ranks, which agree on chunks and on what lies on the disk."""
        itself = self.idle + LIBRARIES
        memory = None if self.memory is None else self.memory - itself
        found = merged(
            [decide(one, memory, None, spill=True, itself=itself, again=again) for one in sizes]
        )
        return [
            replace(budget, bytes=needed(one, budget.parts, budget.places, again))
            for one, budget in zip(sizes, found, strict=True)
        ]

    @cached_property
    def _judged(self) -> Tensor:
        """Vertices that are trained on or evaluated, bool [n]."""
        found = []
        for first, piece in self.source.pieces():
            rows = piece.select_split(self.split)
            count = min(first + self.source.piece_rows, self.source.meta.vertices) - first
            known = torch.ones(count, dtype=torch.bool) if rows.y is None else labelled(rows.y)
            masks = [m for m in (rows.train_mask, rows.val_mask, rows.test_mask) if m is not None]
            if rows.train_mask is not None:
                known = known & torch.stack(masks).any(dim=0)
            found.append(known)
        return torch.cat(found)

    def _sizes(
        self, one: Configuration, setting: Setting, network: Network
    ) -> tuple[list[Sizes], list[Sizes]]:
        """Of each rank: as the budget takes them, at most, and as they will be."""
        subject, layout, layers = setting.subject, setting.arranged.ranks, network.layers
        A = setting.arranged.rows(subject.structure, 0, subject.vertices)
        segments = Segments(network.model().to_empty(device="cpu"))
        looks = [segments.looks_at_itself(number) for number in range(layers)]
        order, rows = setting.arranged.order, [LayerRows()] * layers
        # Outputs that look at all layers need the same rows of each; moments are those of all rows.
        reaches = one.reach and not segments.jumps and not network.takes_all_rows
        if reaches:
            wanted = subject.labelled[order].numpy()
            rows = layer_rows(A, wanted, looks, loops=subject.loops, ranks=one.ranks)
        judged = self._judged[order]
        ahead, exact = list[Sizes](), list[Sizes]()
        for rank in range(one.ranks):
            own = slice(*layout.range(rank))
            base = self._of_all_rows(A, own, network, segments, on_file=self._on_file(one.ranks))
            here, lengths = judged[own], A.row_lengths[own]
            outputs, known = scored(int(here.sum()), network.widths[-1], base.itemsize)
            base = replace(base, scored_bytes=outputs, fixed_bytes=base.fixed_bytes + known)
            asked = int(lengths[here].sum()), int(lengths.sum())
            ahead.append(at_most(base, int(here.sum()), *asked) if reaches else base)
            exact.append(
                replace(
                    base,
                    made=tuple(_count(layer.made, own, base.rows) for layer in rows),
                    sources=tuple(_count(layer.sources, own, base.rows) for layer in rows),
                    small=tuple(layer.small for layer in rows),
                )
            )
        return ahead, exact

    def _of_all_rows(
        self, A: CSR, own: slice, network: Network, segments: Segments, *, on_file: bool
    ) -> Sizes:
        """Of a rank whose layers make all its rows."""
        meta, rows, layers = self.source.meta, own.stop - own.start, network.layers
        item = network.itemsize
        columns = A.indices[int(A.indptr[own.start]) : int(A.indptr[own.stop])]
        # Weights and the largest of neighbours need no transpose.
        sides = 2 if segments.multiplies and (meta.directed or meta.weighted) else 1
        widths = network.widths
        if segments.model.jk_mode is not None and layers > 1:
            widths = (*widths[:-1], widths[-2])  # a linear layer makes the outputs
        operands = segments.operands(widths, sparse=network.keeps_sparse)
        features = item * rows * network.widths[0]
        # Scales and ids; features that were not made up.
        known = 16 * rows + (0 if on_file or not meta.features else features)
        return Sizes(
            rows=rows,
            received=len(torch.unique(columns[(columns < own.start) | (columns >= own.stop)])),
            matrix_bytes=sides * (8 * rows + (4 + 4 * meta.weighted) * len(columns)),
            operands=tuple(
                0 if network.propagated and not number else operand.shape[1]
                for number, operand in enumerate(operands)
            ),
            widths=widths,
            features_bytes=features if network.propagated else 0,
            looks=tuple(segments.looks_at_itself(number) for number in range(layers)),
            made=(rows,) * layers,
            sources=(rows,) * layers,
            itemsize=item,
            fixed_bytes=known,
            sides=sides,
            source_bytes=4 * rows * network.widths[0] if on_file else 0,
            learns=operands[0].requires_grad and not network.propagated,
            jumps=segments.jumps,
            norms=tuple(segments.norms(number) for number in range(layers)),
            extremes=network.extreme,
            heads=segments.all_heads,
        )

    def _on_file(self, ranks: int) -> bool:
        """True if features stay in their files: a graph directory with a part for each rank."""
        if not is_graph_directory(self.dataset):
            return False
        return self.source.meta.features > 0 and open_shards(self.dataset).meta.parts == ranks


def speed_of(spill: str) -> float:
    """Bytes a second of the disk that holds a directory, which is made if it does not exist.

    Raises
    ------
    InputError
        If nothing can be written there.
    """
    with scratch_directory(spill, f"--spill {spill}") as directory:
        return _disk_speed(directory)


def layer_rows(
    A: CSR, wanted: Mask, looks: Sequence[bool], *, loops: bool, ranks: int
) -> list[LayerRows]:
    """Rows of each layer if only some outputs are needed, as `chunked.rows.reached` finds them.

    Parameters
    ----------
    A : CSR [n, n]
        Of all ranks.
    wanted : bool [n]
    looks : sequence of bool
        Whether a layer reads its own rows as well as the product.
    loops : bool
        Whether every vertex has a self-loop.
    ranks : int
    """
    indptr, indices = A.indptr.numpy(), A.indices.numpy()
    lengths = np.diff(indptr)
    found = [LayerRows()] * len(looks)
    for number in range(len(looks) - 1, -1, -1):
        if lengths[wanted].sum() > OWN_MATRIX * len(indices):
            if not wanted.all():
                found[number] = LayerRows(wanted)
            break
        sources = np.zeros(len(wanted), bool)
        sources[indices[np.repeat(wanted, lengths)]] = True
        if looks[number] or loops:
            sources |= wanted
        compact = ranks == 1 and number > 0
        found[number] = LayerRows(wanted, sources if compact else None, small=True)
        wanted = sources
    return found


def _count(mask: Mask | None, own: slice, rows: int) -> int:
    return rows if mask is None else int(mask[own].sum())


def _disk_speed(directory: Path) -> float:
    """Bytes a second of one long transfer there and back."""
    path, values = directory / "speed", np.zeros(1 << 24, np.uint8)
    begin = perf_counter()
    file = DirectFile(path, Transfers(), create=True)
    file.write(0, values)
    file.read(0, len(values))
    spent = perf_counter() - begin
    file.close()
    path.unlink()
    return 2 * len(values) / max(spent, 1e-9)


def _recomputing(forecast: Forecast, row_seconds: Sequence[float]) -> float:
    """Seconds of computing layers again of their products: all but the last, and inputs."""
    layers = forecast.layers
    inputs = [0.0] * len(layers)
    for number in sorted(forecast.again):
        # A row that the layer before makes; and the input of that, in its turn.
        before = layers[number - 1].rows * row_seconds[number - 1]
        inputs[number] = before + inputs[number - 1]
    seconds = sum(forecast.uses(number) * each for number, each in enumerate(inputs))
    return seconds + sum(n.rows * each for n, each in zip(layers[:-1], row_seconds, strict=False))


def _row_seconds(network: Network, machine: Machine) -> tuple[float, ...]:
    """Of each layer, at most: products with all its matrices, and a pass over what it makes."""
    found = []
    for number, parameters in enumerate(network.model().parameters_by_layer()[: network.layers]):
        weights = sum(p.numel() for p in parameters if p.dim() > 1)
        given, made = network.widths[number : number + 2]
        moved = 2 * network.itemsize * (given + made)
        gemm = float(machine.gemm.seconds(2 * weights, min(given, made)))
        found.append(gemm + moved / machine.streams.elementwise)
    return tuple(found)
