"""The approximate wires of a training run: where they are put, and what they have done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from spgnn.nn import Matrices, Propagation, matrices_of
from spgnn.spmm import DistMatrix
from spgnn.train.rows import TrainingRows
from spgnn.wires import Approximation, Dials, Errors, Layer, Setting


class Planned(NamedTuple):
    """Bytes that one epoch moves on this rank, according to plans and wires.

    Attributes
    ----------
    sent, received : int
    between : int
        What of the sent ones goes to other nodes, where nodes are known.
    """

    sent: int
    received: int
    between: int


class Wiring:
    """Puts the matrices of training on approximate wires; evaluation keeps its own. Collective.

    Parameters
    ----------
    asked : Approximation
    exact : TrainingRows
    seed : int
    epochs : int
        Of the whole run.

    Attributes
    ----------
    exact : TrainingRows
        On exact wires.
    training : TrainingRows
        The same on approximate ones.
    dials : Dials
        What all wires ask.
    errors : list of Errors, one a matrix
        In the order of the layers.
    planned : list of Planned, one each epoch
    """

    def __init__(self, asked: Approximation, exact: TrainingRows, seed: int, epochs: int) -> None:
        self.exact = exact
        self.dials = Dials(asked, epochs)
        self.errors: list[Errors] = []
        self.planned: list[Planned] = []
        self._seed = seed
        graph = self._put(exact.graph, exact.vertex_ids)
        self.training = replace(exact, graph=graph)
        self.matrices = matrices_of(graph)

    def land(self) -> None:
        """Wait for all rows that are under way. Collective."""
        for wire in self.wires:
            wire.land()

    @property
    def wires(self) -> list[Layer]:
        """Those of all matrices, in an order that all ranks know."""
        return [wire for A in self.matrices for wire in A.wires]

    def _put(self, graph: Matrices, ids: Tensor) -> Matrices:
        if not isinstance(graph, Sequence):
            return self._approximated(graph, ids)
        found: dict[int, DistMatrix] = {}

        def put(layer: Propagation) -> Propagation:
            if layer.A is None:
                return layer
            # Layers may share a matrix.
            if id(layer.A) not in found:
                found[id(layer.A)] = self._approximated(layer.A, layer.sources)
            return replace(layer, A=found[id(layer.A)])

        return [put(layer) for layer in graph]

    def _approximated(self, A: DistMatrix, ids: Tensor) -> DistMatrix:
        self.errors.append(Errors())
        setting = Setting(self.dials, self.errors[-1], self._seed, len(self.errors) - 1)
        return A.approximated(setting, ids)
