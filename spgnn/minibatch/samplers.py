"""The sampler that a loader's arguments describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spgnn.errors import InputError, check_choice
from spgnn.minibatch.expansion import Anew, Once
from spgnn.minibatch.names import SAMPLERS
from spgnn.minibatch.source import Source, is_integer
from spgnn.minibatch.structure import DiskSampler, DiskTogether
from spgnn.pattern import described
from spgnn.sampling import FastGCNSampler, LaborSampler, LadiesSampler, NeighborSampler, Sampler
from spgnn.sampling.neighbor import TEMPORAL_STRATEGIES
from spgnn.store import DiskPattern


@dataclass(frozen=True)
class Drawing:
    """How neighbourhoods are drawn: arguments of `NeighborLoader` of these names."""

    sampler: str = "neighbor"
    replace: bool = False
    disjoint: bool = False
    induced: bool = False
    resample: bool = False
    weight_attr: str | None = None
    time_attr: str | None = None
    temporal_strategy: str = "uniform"
    seeds_have_times: bool = False

    def of(
        self, source: Source, num_neighbors: Sequence[int], *, edge_ids: bool, threads: int | None
    ) -> Sampler:
        """The sampler of a graph.

        Raises
        ------
        InputError
            If an argument is wrong, or does not go with the sampler.
        """
        check_choice("sampler", self.sampler, SAMPLERS)
        check_choice("temporal_strategy", self.temporal_strategy, TEMPORAL_STRATEGIES)
        if isinstance(num_neighbors, Sequence) and not len(num_neighbors):
            raise InputError("num_neighbors must name one number a hop, got none")
        given: dict[str, Any] = {"edge_ids": edge_ids, "threads": threads}
        given["vertex_ids"] = source.vertex_ids
        if isinstance(source.pattern, DiskPattern):
            return self._on_disk(source.pattern, num_neighbors, given)
        if self.sampler == "neighbor":
            return self._neighbors(source, num_neighbors, given)
        for name in ("replace", "disjoint", "induced", "weight_attr", "time_attr"):
            if getattr(self, name):
                raise InputError(f"sampler {self.sampler} knows no {name}")
        if self.sampler == "labor":
            return LaborSampler(source.structure, num_neighbors, **given)
        kind = LadiesSampler if self.sampler == "ladies" else FastGCNSampler
        weight = source.edge_weight
        values = None if weight is None else weight.abs()
        return kind(source.structure, num_neighbors, values=values, **given)

    def _on_disk(
        self, pattern: DiskPattern, num_neighbors: Sequence[int], given: dict[str, Any]
    ) -> Sampler:
        if self.sampler == "fastgcn":
            raise InputError("sampler fastgcn needs the structure in memory")
        for name in ("disjoint", "induced", "weight_attr", "time_attr"):
            if getattr(self, name):
                raise InputError(f"{name} needs the structure in memory")
        if self.sampler != "neighbor":
            if self.replace:
                raise InputError(f"sampler {self.sampler} knows no replace")
            return DiskTogether(self.sampler, pattern, num_neighbors, **given)
        made = DiskSampler(pattern, num_neighbors, replace=self.replace, **given)
        return Anew(made) if self.resample else Once(made)

    def _neighbors(
        self, source: Source, num_neighbors: Sequence[int], given: dict[str, Any]
    ) -> Sampler:
        made = NeighborSampler(
            source.structure,
            num_neighbors,
            replace=self.replace,
            weights=self._weights(source),
            disjoint=self.disjoint,
            directed=not self.induced,
            temporal_strategy=self.temporal_strategy,
            **given | self._times(source),
        )
        whole = self.resample or self.induced or made.disjoint
        return made if whole else Once(made)

    def _weights(self, source: Source) -> Tensor | None:
        name = self.weight_attr
        if name is None:
            return None
        if name not in source.edges:
            known = ", ".join(source.edges) or "nothing"
            raise InputError(f"weight_attr {name}: of edges, {source.name} knows {known}")
        weights = source.of_nonzeros(name)
        if weights.numel() != len(weights) or weights.is_complex():
            count = len(weights)
            raise InputError(
                f"weight_attr {name} must be real [{count}], a number an edge, "
                f"got {described(weights)}"
            )
        return weights.reshape(-1).double()

    def _times(self, source: Source) -> dict[str, Tensor]:
        name = self.time_attr
        if name is None:
            return {}
        if name in source.vertices:
            return {"node_times": _integers(name, source.vertices[name])}
        if name in source.edges:
            if not self.seeds_have_times:
                raise InputError(
                    f"time_attr {name}: times of edges need input_time, those of the seeds"
                )
            return {"edge_times": _integers(name, source.of_nonzeros(name))}
        raise InputError(f"time_attr {name}: {source.name} knows no such thing")


def _integers(name: str, times: Tensor) -> Tensor:
    if not is_integer(times) or times.numel() != len(times):
        raise InputError(
            f"time_attr {name} must be integers [{len(times)}], got {described(times)}"
        )
    return times.reshape(-1).long()
