"""Labels of one vertex type of several, learnt from a directory of tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from spgnn.addons.hetero.chunks import HeteroChunks
from spgnn.addons.hetero.data import distribute_types
from spgnn.addons.hetero.typed_graph import HeteroDistGraph, VertexType
from spgnn.addons.hetero.typed_models import TypedModel
from spgnn.addons.hetero.typed_options import Types
from spgnn.addons.io import typed_place
from spgnn.addons.outofcore import Storage
from spgnn.comm import Communicator
from spgnn.config import TrainConfig
from spgnn.data import label_columns
from spgnn.errors import InputError
from spgnn.frontend import Placement
from spgnn.graph import GraphCodecs
from spgnn.nn import evaluating, weights_of
from spgnn.progress import working
from spgnn.train import GivenModel, Predictions, decaying_first


class TypedTask(GivenModel):
    """A registered model of several vertex types, on a directory of tables. Collective.

    With `outputs`, the numbers that the model makes of a vertex, it is there to infer.
    """

    graph: HeteroDistGraph
    vertices: VertexType
    model: TypedModel

    def __init__(
        self, config: TrainConfig, comm: Communicator, idle_bytes: int, outputs: int | None = None
    ) -> None:
        self.config, training, how = config, config.training, config.model
        with working(f"reading {config.data.dataset}", shown=comm.rank == 0):
            graph = _opened(config, comm)
        vertices = graph.labelled_vertices(config.extension(Types).target)
        learns, width = outputs is None, outputs or 0
        if learns:
            if "y" not in vertices.attributes:
                types = graph.vertices.values()
                others = ", ".join(one.name for one in types if "y" in one.attributes) or "none"
                raise InputError(
                    f"--target {vertices.name}: its vertices have no labels y; types that have "
                    f"them: {others}"
                )
            width = comm.agree(label_columns(vertices.y))
        kind: Any = how.registered
        model = kind(
            graph,
            how.hidden,
            how.layers,
            width,
            target=vertices.name,
            dropout=how.dropout,
            seed=training.seed,
            **how.options,
        ).to(graph.device, weights_of(training.dtype))
        storage, self._chunks = config.extension(Storage), None
        if storage.spill is not None:
            self.has_budget, memory = True, storage.memory or None
            self._chunks = HeteroChunks(graph, spill=storage.spill, memory=memory)
        self.graph, self.comm, self.model, self.vertices = graph, comm, model, vertices
        self._forward, self._seed, self._epoch = self._chunks, training.seed, -1
        if learns:
            super().__init__(
                model,
                graph,
                config.aim,
                target=vertices.name,
                forward=self._chunks,
                metrics=(),
                seed=training.seed,
                weight_decay=training.weight_decay,
            )

    def close(self) -> None:
        """Remove what lies on the disk."""
        if self._chunks is not None:
            self._chunks.close()

    def results(self) -> Predictions:
        """The outputs of all own vertices of the type. Collective."""
        with torch.no_grad(), evaluating(self.model):
            rows = self._call()
        return Predictions(self.vertices.vertex_ids, {"rows": rows}, columns=self.names)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The linear maps of features decay, as the first layer of other models."""
        return decaying_first(self.model, self.model, self.config.training.weight_decay)

    @property
    def signature(self) -> Mapping[str, Any]:
        """Model, layers, seed, and the size of the graph."""
        how = self.config.model
        return {**super().signature, **how.described, "layers": how.layers, "hidden": how.hidden}

    def sections(self) -> dict[str, Any]:
        """The graph, and what the partitioner predicted."""
        graph, vertices = self.graph, self.vertices
        described = {
            "name": graph.attributes["name"],
            "vertices": graph.num_nodes,
            "edges": graph.num_edges,
            "features": graph.num_features,
            "classes": vertices.num_classes,
            "target": vertices.name,
        }
        return {"graph": described, "partition": graph.partition_report}


def _opened(config: TrainConfig, comm: Communicator) -> HeteroDistGraph:
    """A rank's part of a directory of tables, its features in the dtype of training. Collective."""
    path, how, named = config.data.dataset, config.algorithm, f"--model {config.model.model}"

    def check() -> None:
        if typed_place(path) is None:
            tables = "nodes/TYPE.parquet and edges/SOURCE__NAME__TARGET.parquet"
            missing = "" if os.path.exists(path) else "no such file or directory; "
            raise InputError(f"{path}: {missing}{named} needs a directory of {tables}")

    comm.on_rank_zero(check)
    placement = Placement(
        config.distribution,
        how.partition,
        objective=how.objective,
        imbalance=how.imbalance,
        seed=config.training.seed,
        split=config.data.split,
    )
    codecs = GraphCodecs(config.codec, comm, config.training.seed)
    graph = distribute_types(path, placement, codecs, comm, {})
    for one in graph.vertices.values():
        if "x" in one.attributes:
            one.attributes["x"] = one.attributes["x"].to(weights_of(config.training.dtype))
    return graph
