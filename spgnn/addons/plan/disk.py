"""Training from a disk, priced next to plans that fit into memory.

The rows of each layer are counted on the graph itself, as the training command makes them; how
memory is shared out, and what is read and written, is what that command decides and predicts
(`spgnn.addons.outofcore`). Seconds are those of the same products in memory, of the layers that are
recomputed in backward, and of the disk as far as these do not hide it: panels are read ahead, and
rows written behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np
import torch

from spgnn.addons.outofcore import (
    LIBRARIES,
    Blocks,
    Budget,
    ChunkMatrix,
    DryPass,
    LayerSizes,
    Sizes,
    Storage,
    choose,
    chunked,
    decide_together,
    rows_of_layers,
)
from spgnn.addons.plan.epoch import Epoch
from spgnn.addons.plan.predict import Prediction
from spgnn.addons.plan.ranks import VirtualRanks
from spgnn.comm import SoloCommunicator
from spgnn.config import TrainConfig
from spgnn.data import is_graph_directory, open_shards
from spgnn.direct import DirectFile, Transfers
from spgnn.errors import InputError
from spgnn.files import scratch_directory
from spgnn.machine import Machine
from spgnn.nn import Stepwise


@dataclass(frozen=True, eq=False)
class Disk:
    """Training of one graph from a disk."""

    dataset: str  # as the command line names it
    storage: Storage  # without memory, everything is on the disk
    known_speed: float  # bytes a second that the disk reads or writes; 0: not measured yet
    idle: int  # bytes of a process that has no data
    is_asked: bool = True  # else it comes after all plans in memory

    @cached_property
    def speed(self) -> float:
        """Bytes a second that the disk reads or writes."""
        assert self.storage.spill is not None
        return self.known_speed or speed_of(self.storage.spill)

    def planned(
        self,
        config: TrainConfig,
        in_memory: Prediction,
        virtual: VirtualRanks,
        epoch: Epoch,
        machine: Machine,
    ) -> tuple[Storage, Prediction, dict[str, Any]] | None:
        """Options, price and tables of training from the disk; ``None`` if memory is too small."""
        itself = self.idle + LIBRARIES
        memory = self.storage.memory - itself if self.storage.memory else None

        def decided(sizes: Sequence[Sizes], recomputed: frozenset[int]) -> list[Budget]:
            return decide_together(sizes, memory, spill=True, itself=itself, recomputed=recomputed)

        upper, exact_for = self._sizes(config, virtual, epoch)
        try:
            sizes, budgets = choose(upper, self.storage.recompute, decided)
        except InputError:
            return None
        first, keeps = budgets[0], sizes[0].keeps
        exact = exact_for(first, all(one.can_sort(memory) for one in budgets))
        exact = [replace(each, keeps=keeps) for each in exact]
        moved = np.array(
            [budget.traffic(each) for budget, each in zip(budgets, exact, strict=True)]
        )
        each_row = _row_seconds(epoch, machine, len(exact[0].layers))
        recomputing = max(_recomputing(each, first.recomputed, each_row) for each in exact)
        seconds = dict(in_memory.seconds or {})
        seconds["again"] = machine.slowdown(virtual.ranks) * recomputing
        # All ranks of a node share its disk.
        here = min(virtual.ranks, machine.ranks_a_node)
        moving = here * float(moved.sum(axis=1).max()) / self.speed
        seconds["disk"] = max(0.0, moving - sum(seconds.values()))
        needs = np.array([budget.bytes for budget in budgets])
        read, written = map(int, moved.sum(axis=0))
        record = {**first.record, "planned_read_bytes": read, "planned_written_bytes": written}
        prediction = replace(
            in_memory,
            memory={"chunks": needs, "process": np.full_like(needs, itself)},
            setup=np.zeros_like(in_memory.setup),
            seconds=seconds,
        )
        return replace(self.storage, chunks=first.chunks), prediction, record

    def _sizes(
        self, config: TrainConfig, virtual: VirtualRanks, epoch: Epoch
    ) -> tuple[list[Sizes], Callable[[Budget, bool], list[Sizes]]]:
        """Sizes of each rank: as the budget takes them, at most, and as they will be with it."""
        if config.aim.task != "vertices":
            raise InputError("--task links is planned in memory: no --memory, --spill and --chunks")
        dataset, order = virtual.dataset, virtual.arranged.order
        A = virtual.arranged.rows(dataset.structure, 0, dataset.vertices)
        edge_dim = config.model.edge_dim if config.model.uses_edges else 0
        model = chunked(deepcopy(epoch.model).to_empty(device="cpu").float(), edge_dim)
        symmetric = not dataset.directed and not dataset.weighted
        dry = DryPass(model, sparse=epoch.sparse, propagates=epoch.propagated, symmetric=symmetric)
        # Outputs of all layers need the same rows of each; moments are those of all rows.
        prunes = config.algorithm.prune and not model.jumps and not config.model.makes_all_rows
        scored = (dataset.labelled if dataset.scored is None else dataset.scored)[order]
        # Features stay in their files: those of a graph directory with a part for each rank.
        in_files = (
            is_graph_directory(self.dataset)
            and not dataset.random_features
            and open_shards(self.dataset).meta.parts == virtual.ranks
        )
        # Features that were neither made up nor left in their files.
        dense = 0 if in_files or dataset.random_features else epoch.itemsize * epoch.widths[0]
        upper, bases = list[Sizes](), list[Sizes]()
        for rank in range(virtual.ranks):
            own = slice(*virtual.layout.range(rank))
            many = own.stop - own.start
            columns = A.indices[int(A.indptr[own.start]) : int(A.indptr[own.stop])]
            here, lengths = scored[own], A.row_lengths[own]
            labels = int(here.sum())
            base = dry.sizes(
                rows=many,
                received=len(torch.unique(columns[(columns < own.start) | (columns >= own.stop)])),
                nonzeros=len(columns),
                values=edge_dim or dataset.weighted,
                itemsize=epoch.itemsize,
                fixed_bytes=(16 + dense) * many,  # scales and ids
                in_files=in_files,
            ).with_labels(labels, epoch.widths[-1])
            nonzeros = int(lengths[here].sum()), int(lengths.sum())
            upper.append(base.at_most(labels, *nonzeros) if prunes else base)
            bases.append(base)

        def exact_for(budget: Budget, sorts: bool) -> list[Sizes]:
            if not prunes:
                return bases
            n, loops = dataset.vertices, torch.empty(0) if virtual.loops else None
            whole = ChunkMatrix(Blocks.of(A, (0, n)), (0, n), loops)
            files, alone = sorts and "matrix" in budget.placement.on_disk, virtual.ranks == 1
            labelled, solo = dataset.labelled[order], SoloCommunicator()
            rows = rows_of_layers(whole, labelled, dry.reads_own, solo, files=files)
            sizes = list[Sizes]()
            for rank, base in enumerate(bases):
                own, layers = slice(*virtual.layout.range(rank)), list[LayerSizes]()
                for number, (targets, sources, place) in enumerate(rows):
                    here = base.rows if targets is None else int(targets[own].sum())
                    # Sources are numbered alone on one rank, if they are not the features' rows.
                    numbered = sources is not None and alone and number > 0
                    read = int(sources.sum()) if numbered and sources is not None else base.rows
                    matrix = (0, 0) if place == "memory" else None
                    if targets is not None and place == "files":
                        # Row offsets of each block, and of the rows of others in one more.
                        nonzeros = int(A.row_lengths[own][targets[own]].sum())
                        entries = (4 + 4 * dataset.weighted) * nonzeros
                        offsets = 8 * (base.received + 1) * (base.received > 0)
                        matrix = (forward := 8 * (here + budget.chunks) + entries), forward
                        if model.multiplies:
                            matrix = forward, 8 * (read + budget.chunks) + offsets + entries
                    layers.append(LayerSizes(here, read, matrix))
                sizes.append(replace(base, layers=tuple(layers)))
            return sizes

        return upper, exact_for


def speed_of(spill: str) -> float:
    """Bytes a second of one long transfer to the disk that holds a directory, and back."""
    with scratch_directory(spill, f"--spill {spill}") as directory:
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
    """Seconds of recomputing layers from their products: all but the last, and inputs."""
    layers = sizes.layers
    inputs = [0.0] * len(layers)
    for number in sorted(recomputed):
        # A row that the layer before makes; and the input of that, in its turn.
        before = layers[number - 1].rows * row_seconds[number - 1]
        inputs[number] = before + inputs[number - 1]
    seconds = sum(sizes.dry.passes(number) * each for number, each in enumerate(inputs))
    again = [n.rows * each for n, each in zip(layers[:-1], row_seconds, strict=False)]
    return seconds + sum(again[sizes.keeps :])


def _row_seconds(epoch: Epoch, machine: Machine, layers: int) -> list[float]:
    """Seconds of a row of each layer, at most: all products of the row, and a pass over it.

    Steps are taken to have the same share of all products.
    """
    alike = layers if isinstance(epoch.model, Stepwise) else 1
    by_layer = epoch.model.parameters_by_layer()[: epoch.layers]
    by_layer = [list(epoch.model.parameters())] * layers if alike > 1 else by_layer
    seconds = []
    for number, parameters in enumerate(by_layer):
        weights = sum(p.numel() for p in parameters if p.dim() > 1) // alike
        width, next_width = epoch.widths[number : number + 2] if alike == 1 else epoch.widths[1:3]
        gemm = float(machine.gemm.seconds(2 * weights, min(width, next_width)))
        seconds.append(
            gemm + 2 * epoch.itemsize * (width + next_width) / machine.streams.elementwise
        )
    return seconds
