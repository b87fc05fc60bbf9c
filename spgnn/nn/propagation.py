"""What one layer of a model works on: a matrix, and which vertices its columns and rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from spgnn import kernels
from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.nn.block import Block
from spgnn.nn.local import LocalMatrix
from spgnn.spmm import DistMatrix


@dataclass(frozen=True, eq=False)
class Propagation:
    """The matrix of one layer, which may make fewer rows than the rank owns, or take ghosts.

    Attributes
    ----------
    A : DistMatrix or None
        Rows [rows] that the layer makes of the rows [columns] that the layer before it made.
        ``None`` is for a first layer whose features are propagated already: it needs no product.
    sources : Tensor int64 [columns]
        Original ids of the vertices of its columns: own ones, then ghosts. Dropout asks for them.
        Without a matrix, ids of the rows that the layer makes.
    targets : Tensor int64 [rows], optional
        Which column each row is; ``None`` if row i is column i.
    own : int, optional
        How many of its rows are own ones, if the last ones are ghosts. Norms ask for it.
    comm : Communicator, optional
        All ranks, where there is no matrix to ask.
    """

    A: DistMatrix | None
    sources: Tensor
    targets: Tensor | None = None
    own: int | None = None
    comm: Communicator | None = None


# What layers ask a graph for: D^-1/2 (A + I) D^-1/2; D^-1 A, the mean; A as it is; A + I.
Normalised = Literal["sym", "row", "none", "loops"]


class HasMatrices(Protocol):
    """A graph that makes the matrices that layers ask for."""

    def matrix(self, normalised: Normalised) -> DistMatrix:
        """Its adjacency, with or without self-loops and scalings. Collective when first asked."""


# A matrix alone stands for every layer, whatever that asks for: its rows are its columns, and all
# of them are own ones.
LayerGraph = DistMatrix | Propagation | HasMatrices | Block
Graph = LayerGraph | Sequence[Propagation] | Sequence[Block]
LayerMatrix = DistMatrix | LocalMatrix
Matrices = DistMatrix | Sequence[Propagation]


def by_layer(graph: Graph, layers: int) -> Sequence[LayerGraph]:
    """What each of so many layers works on.

    Raises
    ------
    InputError
        If there are more or fewer propagations, or blocks of a batch, than layers.
    """
    if not isinstance(graph, Sequence):
        check_graph(graph)
        return [graph] * layers
    if len(graph) != layers:
        what = "blocks" if len(graph) and isinstance(graph[0], Block) else "propagations"
        raise InputError(f"a model of {layers} layers needs as many {what}, got {len(graph)}")
    return graph


def check_graph(graph: object) -> None:
    """Refuse what is no graph, as the edge_index that layers of PyG take.

    Raises
    ------
    InputError
    """
    if graph is None or isinstance(graph, Tensor) or _is_data(graph):
        raise InputError(
            "layers of spgnn.nn are called with x and the graph that spgnn.distribute returns, got "
            f"a {type(graph).__name__} for the graph: edge_index is what layers of PyG take"
        )


def _is_data(graph: object) -> bool:
    """Whether it is a graph of PyG; ours must not be asked for edge_index, which is collective."""
    return not hasattr(graph, "matrix") and hasattr(graph, "edge_index")


def matrix_of(graph: LayerGraph, normalised: Normalised) -> LayerMatrix:
    """The matrix of one layer, which a graph has to be asked for. Collective when first asked.

    Raises
    ------
    InputError
        If it has none.
    """
    if isinstance(graph, DistMatrix):
        return graph
    if not isinstance(graph, Propagation):
        check_graph(graph)
        return graph.matrix(normalised)
    if graph.A is None:
        raise InputError("a layer without a matrix needs features that are propagated already")
    return graph.A


def matrices_of(graph: Matrices) -> list[DistMatrix]:
    """The matrices of all layers, each once."""
    if not isinstance(graph, Sequence):
        return [graph]
    return list({id(layer.A): layer.A for layer in graph if layer.A is not None}.values())


def own_rows(graph: LayerGraph, H_local: Tensor) -> Tensor:
    """Of what a layer takes [columns, f], the vertices whose rows it makes [rows, f]."""
    if isinstance(graph, Block):
        return H_local[: graph.rows]
    if not isinstance(graph, Propagation):
        return H_local
    if graph.targets is None:
        return H_local if graph.A is None else H_local[: graph.A.rows]
    return kernels.gather_rows(H_local, graph.targets)


def adds_up(graph: LayerGraph) -> bool:
    """Whether a product with its matrix and one with own rows may be made together.

    Not where own rows are not the first of those that a layer takes, or products made elsewhere.
    """
    listed = isinstance(graph, Propagation) and graph.targets is not None
    return not listed and not getattr(graph, "made_elsewhere", False)


def arrived(graph: LayerGraph, made: Tensor) -> Tensor:
    """What a layer takes [columns, f], where the layer before it made these rows."""
    return graph.arrived(made) if isinstance(graph, Block) else made


def comm_of(graph: Graph | Communicator) -> Communicator | None:
    """All ranks that a graph is distributed over; ``None`` if it does not know them."""
    if isinstance(graph, Communicator):
        return graph
    if isinstance(graph, DistMatrix):
        return graph.mesh.everyone
    if isinstance(graph, Propagation):
        return comm_of(graph.A) if isinstance(graph.A, DistMatrix) else graph.comm
    if isinstance(graph, Sequence):
        return next((found for found in map(comm_of, graph) if found is not None), None)
    found = getattr(graph, "comm", None)
    return found if isinstance(found, Communicator) else None


def own_of(graph: Graph | Communicator) -> int | None:
    """How many of the rows that a layer makes are own ones; ``None`` if all are."""
    return graph.own if isinstance(graph, Propagation) else None


def ids_of(graph: LayerGraph) -> Tensor | None:
    """Original ids of a layer's columns; ``None`` if it does not know them."""
    if isinstance(graph, Propagation):
        return graph.sources
    found = getattr(graph, "vertex_ids", None)
    return found if isinstance(found, Tensor) else None


def ids_of_rows(graph: LayerGraph) -> Tensor | None:
    """Original ids of the rows that a layer makes."""
    ids = ids_of(graph)
    if ids is not None and isinstance(graph, Block):
        return ids[: graph.rows]
    if ids is None or not isinstance(graph, Propagation) or graph.A is None:
        return ids
    return ids[: graph.A.rows] if graph.targets is None else ids[graph.targets]
