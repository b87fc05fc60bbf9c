"""Link prediction: pairs of vertices are scored by embeddings that live on many ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from spgnn.autograd import autocast
from spgnn.comm import Communicator, Mesh
from spgnn.config import Aim, TrainConfig
from spgnn.data.splits import Directory, Pairs
from spgnn.errors import InputError
from spgnn.exchange import Step, build
from spgnn.exchange.needs import request_bytes
from spgnn.exchange.plan import Carried
from spgnn.exchange.schemes import fetch
from spgnn.graph.dry import Recorded
from spgnn.graph.training import TrainingGraph
from spgnn.layout import RowLayout
from spgnn.nn.links import DotProduct, HadamardMLP, ScoredPairs, pairs_cross_entropy
from spgnn.nn.metrics import areas, hits, mean_reciprocal_rank
from spgnn.pattern import Selection
from spgnn.sparse import CSR
from spgnn.spmm import DistMatrix
from spgnn.train.task import Criterion, GraphTask, Predictions, Scores, score_name
from spgnn.train.vertices import metrics_of

HELD_OUT = ("val", "test")


class LinkModel(nn.Module):
    """An encoder, which makes embeddings, and a decoder, which scores pairs of them."""

    def __init__(self, encoder: nn.Module, decoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    @classmethod
    def of(cls, aim: Aim, encoder: nn.Module, width: int, seed: int) -> LinkModel:
        """With the decoder that was asked for, of embeddings of a width."""
        decoder = DotProduct() if aim.decoder == "dot" else HadamardMLP(width, seed)
        return cls(encoder, decoder)


@dataclass(frozen=True)
class LinkScores:
    """Scores of links that were held out; the validation loss looks at `negatives` of each."""

    metrics: tuple[str, ...]
    criterion: Criterion
    negatives: int

    @classmethod
    def of(cls, aim: Aim) -> LinkScores:
        """From the options."""
        metrics = metrics_of("links", aim.metric)
        return cls(metrics, Criterion.of(aim.metric), min(aim.negatives, aim.eval_negatives))

    def of_split(
        self, split: str, links: Tensor, others: Tensor, total: int, comm: Communicator
    ) -> Scores:
        """Scores of "val", with the loss, or of "test". Collective.

        Scores of links [own pairs], and of made-up ones [own pairs, of each]; `total` links on all
        ranks.
        """
        result: Scores = {}
        if split == "val":
            result["val_loss"] = None
            if total:
                share = pairs_cross_entropy(links, others[:, : self.negatives])
                loss = share.double().reshape(1).cpu()
                comm.all_reduce(loss).wait()
                result["val_loss"] = float(loss) / ((1 + self.negatives) * total)
        for metric in self.metrics:
            result[score_name(split, metric)] = _score(metric, links, others, total, comm)
        return result


class PairRequests(NamedTuple):
    """Messages that find the sources of an epoch's pairs, and request their rows."""

    A: DistMatrix
    moved: tuple[Carried, ...]

    def carried(self, epoch: int = 0) -> tuple[Carried, ...]:
        """Exchange by exchange."""
        return self.moved


class LinkPrediction(GraphTask):
    """A model that tells links from pairs that are made up; cross-entropy over both."""

    def __init__(self, config: TrainConfig, data: TrainingGraph) -> None:
        aim, width, whole = config.aim, config.model.hidden, data.whole
        comm, self.pairs = whole.comm, whole.links
        counts = torch.tensor([len(pairs.targets) for pairs in self.pairs])
        comm.all_reduce(counts).wait()
        self.counts: list[int] = counts.tolist()
        if not self.counts[0]:
            raise InputError(f"{whole.meta.name}: no link is left to train on")
        super().__init__(config, data, width)
        model = LinkModel.of(aim, self.layers, width, self.seed)
        self.model = model
        self.decoder = model.decoder.to(whole.device)
        self._signature |= {"task": "links", "decoder": aim.decoder}
        self.negatives = aim.negatives
        self.link_scores = LinkScores.of(aim)
        self.criterion = self.link_scores.criterion
        self._directory = Directory(whole.vertex_ids.cpu(), whole.layout, comm)
        self._evaluated = [
            self._scored(pairs, aim.eval_negatives, purpose_of(split))
            for split, pairs in zip(HELD_OUT, self.pairs[1:], strict=True)
        ]
        self.messages = []  # these are no epoch's

    def loss(self, epoch: int) -> Tensor:
        """A share of the mean over all training links and as many made-up ones each. Collective."""
        drawn = self._scored(self.pairs[0], self.negatives, f"negatives of epoch {epoch}")
        Z_local = self.layers(self.data.X, self.data.layers, self.begin(epoch))
        scores = drawn.scores(Z_local, self.decoder)
        travels, A = autocast(Z_local), drawn.sources
        assert isinstance(A, DistMatrix)
        for adjoint in (False, True)[: 1 + travels.requires_grad]:
            width, dtype = travels.shape[1], travels.dtype
            self.messages.append(Recorded(A, width, dtype, Step(adjoint=adjoint)))
        return pairs_cross_entropy(*scores) / ((1 + self.negatives) * self.counts[0])

    def scores(self) -> Scores:
        """Validation loss, then scores on links for validation and for testing. Collective."""
        Z_local = self.outputs()
        result: Scores = {}
        for split, drawn, total in zip(HELD_OUT, self._evaluated, self.counts[1:], strict=True):
            scores = drawn.scores(Z_local, self.decoder)
            result |= self.link_scores.of_split(split, *scores, total, self.comm)
        return result

    def outputs(self) -> Tensor:
        """Embeddings of own vertices. Collective."""
        outputs: Tensor = self.layers(self.data.features, self.data.A)
        return outputs

    def predictions(self) -> Predictions:
        """The embedding (float32 [own rows, width]) of every own vertex. Collective."""
        return Predictions(self.data.whole.vertex_ids, {"embedding": self.outputs().float()})

    def _scored(self, pairs: Pairs, count: int, purpose: str) -> ScoredPairs:
        """Links with so many made-up ones each. Collective."""
        A = self.data.A
        how = self.seed, purpose, self._directory, A.layout, A.mesh
        result, moved = scored_pairs(pairs, count, *how)
        self.messages.append(PairRequests(A, moved))
        return result


def scored_pairs(
    pairs: Pairs,
    count: int,
    seed: int,
    purpose: str,
    directory: Directory,
    layout: RowLayout,
    mesh: Mesh,
) -> tuple[ScoredPairs, tuple[Carried, ...]]:
    """Links with `count` drawn ones each, and the messages that found their sources. Collective."""
    rank, device = mesh.rank, mesh.everyone.device
    rows, moved = directory.rows(pairs.drawn(layout.rows, count, seed, purpose).flatten())
    chosen = CSR(Selection(torch.cat((pairs.sources, rows)), layout.rows))
    plan = build(fetch(chosen, layout, rank), mesh)
    moved_too = (request_bytes(hop.counts, rank) for hop in plan.hops)
    sources = DistMatrix(plan.to(device).ready(), layout, mesh)
    return ScoredPairs(pairs.targets.to(device), sources, count), (*moved, *moved_too)


def purpose_of(split: str) -> str:
    """Name of the draw of made-up pairs for validation or testing."""
    return f"{split} negatives"


def _score(
    metric: str, links: Tensor, others: Tensor, total: int, comm: Communicator
) -> float | None:
    if metric == "mrr":
        return mean_reciprocal_rank(links, others, total, comm)
    if metric == "roc-auc":
        every = torch.cat((links, others.flatten()))[:, None]
        truth = torch.zeros_like(every, dtype=torch.bool)
        truth[: len(links)] = True
        (area,) = areas(every, truth, torch.ones_like(truth), comm, rounded=True)
        return area if total else None
    most = int(metric.removeprefix("hits@"))
    return hits(links, others, [most], total, comm)[0]
