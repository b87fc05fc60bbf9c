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

from spgnn.chunked.budget import (
    LIBRARIES,
    Budget,
    choose_recomputed,
    decide,
    memory_needed,
    merged,
)
from spgnn.chunked.model import ChunkedModel
from spgnn.chunked.sizes import OWN_MATRIX, Sizes
from spgnn.chunked.tables import Placement
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

_NOTHING = Budget(1, Placement(), 0)
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
            "chunks": self.budget.chunks,
            "on_disk": sorted(self.budget.placement.on_disk),
            "panel_bytes": self.budget.placement.panel_bytes,
            "recomputed_layers": sorted(self.budget.recomputed),
            "planned_read_bytes": self.read_bytes,
            "planned_written_bytes": self.written_bytes,
        }

    def written(self) -> list[str]:
        """As they are written on the command line, without those that are defaults."""
        memory = [] if self.memory is None else ["--memory", str(self.memory)]
        parts = ["--spill", self.spill, "--chunks", str(self.budget.chunks)]
        return [*super().written(), *memory, *parts]

    def __str__(self) -> str:
        return f"{super().__str__()} from disk, {self.budget.chunks} chunks"


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

        def decided(recomputed: frozenset[int]) -> Budget:
            best[:] = self._budgets(ahead, recomputed)
            return best[0]

        try:
            choose_recomputed(ahead[0].reads_own, "auto", decided)
        except InputError:
            return None
        moved = [budget.traffic(sizes) for budget, sizes in zip(best, exact, strict=True)]
        slow = machine.slowdown(one.ranks)
        # All ranks of a node share its disk.
        here = min(one.ranks, machine.ranks_a_node)
        each_row = _row_seconds(network, machine)
        again = slow * max(_recomputing(each, best[0].recomputed, each_row) for each in exact)
        seconds = {**(price.seconds or {}), "again": again}
        moving = here * max(map(sum, moved)) / self.disk
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

    def _budgets(self, sizes: Sequence[Sizes], recomputed: frozenset[int]) -> list[Budget]:
        """Of all ranks, which agree on chunks and on what lies on the disk."""
        itself = self.idle + LIBRARIES
        memory = None if self.memory is None else self.memory - itself
        options: dict[str, Any] = {"spill": True, "itself": itself, "recomputed": recomputed}
        budgets = merged([decide(one, memory, None, **options) for one in sizes])
        return [
            replace(budget, bytes=memory_needed(one, budget.chunks, budget.placement, recomputed))
            for one, budget in zip(sizes, budgets, strict=True)
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
        model = ChunkedModel(network.model().to_empty(device="cpu"))
        reads_own = [model.reads_own(number) for number in range(layers)]
        order, rows = setting.arranged.order, [LayerRows()] * layers
        # Outputs of all layers need the same rows of each; moments are those of all rows.
        prunes = one.reach and not model.jumps and not network.takes_all_rows
        if prunes:
            wanted = subject.labelled[order].numpy()
            rows = layer_rows(A, wanted, reads_own, loops=subject.loops, ranks=one.ranks)
        judged = self._judged[order]
        ahead, exact = list[Sizes](), list[Sizes]()
        for rank in range(one.ranks):
            own = slice(*layout.range(rank))
            base = self._of_all_rows(A, own, network, model, on_file=self._on_file(one.ranks))
            here, lengths = judged[own], A.row_lengths[own]
            known = int(here.sum())
            base = base.with_labels(known, network.widths[-1])
            asked = int(lengths[here].sum()), int(lengths.sum())
            ahead.append(base.at_most(known, *asked) if prunes else base)
            made = [_count(layer.made, own, base.rows) for layer in rows]
            read = [_count(layer.sources, own, base.rows) for layer in rows]
            exact.append(base.with_rows(made, read, [layer.small for layer in rows]))
        return ahead, exact

    def _of_all_rows(
        self, A: CSR, own: slice, network: Network, model: ChunkedModel, *, on_file: bool
    ) -> Sizes:
        """Of a rank whose layers make all its rows."""
        meta, rows = self.source.meta, own.stop - own.start
        columns = A.indices[int(A.indptr[own.start]) : int(A.indptr[own.stop])]
        # Scales and ids; features that were not made up.
        features = 0 if on_file or not meta.features else network.itemsize * network.widths[0]
        return model.sizes(
            network.widths,
            rows=rows,
            received=len(torch.unique(columns[(columns < own.start) | (columns >= own.stop)])),
            nonzeros=len(columns),
            weighted=meta.weighted,
            symmetric=not meta.directed and not meta.weighted,
            itemsize=network.itemsize,
            fixed_bytes=(16 + features) * rows,
            sparse=network.keeps_sparse,
            propagates=network.propagated,
            in_files=on_file,
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
    A: CSR, wanted: Mask, reads_own: Sequence[bool], *, loops: bool, ranks: int
) -> list[LayerRows]:
    """Rows of each layer if only some outputs are needed, as in chunked training.

    Parameters
    ----------
    A : CSR [n, n]
        Of all ranks.
    wanted : bool [n]
    reads_own : sequence of bool
        Whether a layer reads its own rows as well as the product.
    loops : bool
        Whether every vertex has a self-loop.
    ranks : int
    """
    indptr, indices = A.indptr.numpy(), A.indices.numpy()
    lengths = np.diff(indptr)
    found = [LayerRows()] * len(reads_own)
    for number in range(len(reads_own) - 1, -1, -1):
        if lengths[wanted].sum() > OWN_MATRIX * len(indices):
            if not wanted.all():
                found[number] = LayerRows(wanted)
            break
        sources = np.zeros(len(wanted), bool)
        sources[indices[np.repeat(wanted, lengths)]] = True
        if reads_own[number] or loops:
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


def _recomputing(sizes: Sizes, recomputed: frozenset[int], row_seconds: Sequence[float]) -> float:
    """Seconds of computing layers again of their products: all but the last, and inputs."""
    layers = sizes.layers
    inputs = [0.0] * len(layers)
    for number in sorted(recomputed):
        # A row that the layer before makes; and the input of that, in its turn.
        before = layers[number - 1].rows * row_seconds[number - 1]
        inputs[number] = before + inputs[number - 1]
    seconds = sum(sizes.passes(number) * each for number, each in enumerate(inputs))
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
