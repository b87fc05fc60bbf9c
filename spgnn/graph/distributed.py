"""Graphs over ranks, of one vertex type or several: equal models, epochs, exact evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from spgnn.autograd import all_reduced
from spgnn.comm import Communicator
from spgnn.exchange import Codec
from spgnn.exchange.plan import Traffic
from spgnn.graph.codecs import GraphCodecs
from spgnn.graph.dist_vertices import DistVertices
from spgnn.graph.foreign import watch
from spgnn.graph.parameters import average_gradients, replicate, synchronise


class DistributedGraph(ABC):
    """A graph that is distributed over ranks, of one vertex type or of several."""

    comm: Communicator
    device: torch.device
    version: int  # how often it was updated
    num_nodes: Any  # these are properties of the graph, or attributes
    num_edges: Any
    row_counts: Any
    _codecs: GraphCodecs
    _coded_matrix: Any = None  # builds the matrix that has a state, where that may not be there

    @abstractmethod
    def model_inputs(self, takes_graph: bool) -> tuple[Any, Any]:
        """The features and the graph as a model is called with them, or edges in its place."""

    @abstractmethod
    def labelled_vertices(self, name: str | None) -> DistVertices:
        """The vertices whose labels are learnt, if need be by the name of their type."""

    def replicate(self, model: nn.Module) -> nn.Module:
        """Give all ranks the parameters and buffers of rank 0, in place. Collective.

        PyG's LSTM and GRU aggregations, which pad the neighbours of each vertex to the largest
        number of neighbours, use that of all ranks from then on. What ``torch.autograd.grad``
        returns for its parameters is the average over all ranks from then on, and so are gradients
        that are differentiated any further (``create_graph=True``); all ranks ask for the same.
        """
        self._codecs.policy.models.add(replicate(model, self.comm))
        self._watch(model)
        return model

    def synchronise(self, model: nn.Module) -> nn.Module:
        """Replicate a model, and average its gradients at the end of every backward. Collective.

        What ``DistributedDataParallel`` is for others, under any launcher. Every backward must
        then reach some parameter on all ranks, as that of a loss from `mean` or `sum` does.
        """
        self._codecs.policy.models.add(synchronise(model, self.comm))
        self._watch(model)
        return model

    def _watch(self, model: nn.Module) -> None:
        if self.comm.size > 1:
            watch(model, self)

    def replicated(self, t: Tensor) -> Tensor:
        """The same tensor, whose gradient is averaged over the ranks. Collective, twice.

        For tensors that all ranks hold alike and that are no parameters of a replicated model, as
        the weights after a step that is itself differentiated (meta-learning): give
        ``graph.replicated(w)`` to the model, and ask for the gradient of w. At every order.
        """
        mean = all_reduced(t, self.comm) / self.comm.size
        return t.detach() + (mean - mean.detach())

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients of replicated parameters over all ranks. Collective.

        To be called between ``backward`` and the optimiser's step, where neither `synchronise` nor
        ``DistributedDataParallel`` does it. A parameter that has a gradient on some rank
        counts as zero on the others.

        Raises
        ------
        InputError
            Before the first average: if the model is not the same on all ranks, or takes
            statistics over one rank's vertices.
        """
        average_gradients(model, self.comm)

    @property
    def codec(self) -> Codec:
        """Settings of what messages lose in training."""
        return self._codecs.codec

    def next_epoch(self) -> int:
        """Begin an epoch of training, for a codec; returns its number, from 0 on.

        Collective. To be called before the first product of each epoch; without codecs, it counts.
        """
        return self._codecs.next_epoch()

    def exact(self) -> AbstractContextManager[None]:
        """Everything inside ``with graph.exact():`` is exact, and so are its gradients.

        What autograd does not record is exact anyway, and so is all, while each model that was
        given to `replicate`, `synchronise` or ``distribute(model=…)`` is in evaluation.
        """
        return self._codecs.policy.exact()

    def codec_state(self) -> dict[str, Tensor]:
        """State that codecs keep between epochs on this rank, for a checkpoint. Collective."""
        return self._codecs.state()

    def load_codec_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `codec_state` of this rank: with the same partition and codecs. Collective.

        Raises
        ------
        InputError
            On all ranks, if it is none of this.
        """
        self._codecs.load(state, self.device, self._coded_matrix)

    def codec_traffic(self) -> Traffic:
        """Traffic of this epoch's rows on this rank so far, as codecs count it.

        Exactly what ``graph.comm.ledger`` has counted of all-to-alls meanwhile.
        """
        return self._codecs.policy.traffic()

    def codec_errors(self) -> dict[str, list[dict[str, Any]]]:
        """The relative error that codecs made, ‖received − exact‖ / ‖exact‖. Collective.

        Of all ranks, in the first ten epochs and every tenth; by matrix (halos are of ``"none"``).
        For each ``product`` of an epoch and ``direction``, the ``error``, and what made it, ``by``.
        Empty without codecs.
        """
        return self._codecs.relative_errors()
