"""Attention on codecs: exact where it should be, its bytes, its gradient, its mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.stats import norm
from torch import Tensor

from spgnn import DistMatrix, InputError
from spgnn.attention import EdgeDropout, attend
from spgnn.attention.passes import Inputs
from spgnn.attention.scores import Scores
from spgnn.comm import connect
from spgnn.exchange import Algorithm, Codec, Step
from spgnn.exchange.codec import CodecSetting, Errors
from spgnn.testing import run_ranks
from tests.exchange.coded import (
    ALONE,
    begin,
    distributed,
    land,
    scores,
    sending_to_itself,
    with_codec,
)
from tests.matrices import random_matrix, uneven_layout
from tests.products import moved

N, HEADS, CHANNELS, EPOCHS = 26, 2, 3, 3
WIDTH = HEADS * CHANNELS
SCHEMES = {"column": Algorithm(), "1.5d": Algorithm("1.5d", 2, cover="minimum")}
MORE = {
    "minimum": Algorithm(cover="minimum"),
    "row": Algorithm(cover="row"),
    "1.5d column": Algorithm("1.5d", 2),
    "1.5d row": Algorithm("1.5d", 2, cover="row"),
    "2d": Algorithm("2d"),
    "vertex-cut": Algorithm("vertex-cut"),
    "vertex-cut minimum": Algorithm("vertex-cut", cover="minimum"),
}
SAMPLED = {
    "sampled": Codec(sampling=((0, 0.6),)),
    "falling": Codec(sampling=((0, 1.0), (1, 0.3))),
    "never": Codec(delay=None),
}
CODECS = SAMPLED | {
    "8 bits": Codec(((0, 8),)),
    "feedback": Codec(((0, 2), (2, 8)), feedback=True),
    "late": Codec(delay=2, bins=2, smoothing=0.3),
    "late, few bits": Codec(((0, 4),), feedback=True, delay=1),
    "fresh": Codec(((0, 8),), extra=(("fresh", 0.3),)),
    "sampled, few bits": Codec(((0, 4),), feedback=True, sampling=((0, 0.5),)),
}
Given = tuple[Tensor, Tensor, Tensor, Tensor]  # Z, a, destinations; gradient in the rows


class Trial:
    """One matrix under one scheme, on this rank."""

    def __init__(self, algorithm: Algorithm, *, joint: bool, dtype=torch.float64) -> None:
        self.comm, self.joint, self.dtype = connect(), joint, dtype
        self.layout = uneven_layout(N, self.comm.size, seed=3)
        A = random_matrix(N, 0.2, 1, weighted=False)
        self.exact, self.own = distributed(A, self.layout, self.comm, algorithm)
        self.ids = torch.arange(self.own.start, self.own.stop) * 3
        self._named = with_codec(self.exact, Codec(), self.ids)  # once for all codecs
        self.rng = np.random.default_rng(self.comm.rank)
        self.a = torch.from_numpy(np.random.default_rng(9).standard_normal((HEADS, CHANNELS)))
        self.given = self.drawn()

    def drawn(self) -> Given:
        rows = len(self.ids)
        shapes = (rows, WIDTH), (rows, WIDTH if self.joint else HEADS), (rows, WIDTH)
        Z, dst, G = (torch.from_numpy(self.rng.standard_normal(shape)) for shape in shapes)
        return Z.to(self.dtype), self.a.to(self.dtype), dst.to(self.dtype), G

    def on(self, asked: Codec, epochs: int = 0, errors: Errors | None = None) -> DistMatrix:
        """The matrix on codecs."""
        setting = CodecSetting(replace(asked, epochs=epochs), errors or Errors(), seed=5)
        return with_codec(self._named, setting, self.ids)

    def attended(self, A: DistMatrix, given: Given, epoch: int = 0) -> list[Tensor]:
        """Rows, and gradients in Z, a (this rank's share) and destinations."""
        begin(A, epoch)
        leaves = [x.detach().clone().requires_grad_() for x in given[:3]]
        out = self.applied(A, *leaves)
        (out * given[3]).sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    def applied(self, A: DistMatrix, Z: Tensor, a: Tensor, dst: Tensor) -> Tensor:
        dropout = EdgeDropout(0.3, 7, self.ids)
        return attend(A, Z, a, dst, joint=self.joint, dropout=dropout)

    def summed(self, number: Tensor) -> float:
        total = number.detach().double().clone()
        self.comm.all_reduce(total).wait()
        return float(total)


Check = Callable[[Trial, str], None]


def check_schemes(_: int, schemes: dict[str, Algorithm], checks: list[Check]) -> None:
    for name, algorithm in schemes.items():
        for joint in (False, True):
            trial = Trial(algorithm, joint=joint)
            for check in checks:
                check(trial, f"{name} {joint}")


def check_exact(trial: Trial, what: str) -> None:
    """At their exact settings, codecs hand on rows as they are."""
    expected = trial.attended(trial.exact, trial.given)
    for name, asked in CODECS.items():
        matrices = [trial.on(replace(asked, exact_last=1), 1)]
        matrices += [trial.on(asked)] if name in ("falling", "late") else []
        for A in matrices:
            found = trial.attended(A, trial.given)
            assert all(map(torch.equal, found, expected)), (what, name)


def check_bytes(trial: Trial, what: str) -> None:
    """The ledger counts what codecs say, in both directions; without rows nothing moves."""
    for name, asked in CODECS.items():
        A = trial.on(asked)
        trial.attended(A, trial.given)  # numbers of vertices, which travel once
        for epoch in range(1, EPOCHS):
            before = trial.comm.ledger.copy()
            trial.attended(A, trial.drawn(), epoch)
            counted, said = moved(trial.comm.ledger.since(before)), np.zeros(2, int)
            for step in (Step(epoch), Step(epoch).reversed()):
                for each in A.attention.carried(
                    WIDTH, HEADS, torch.float64, step, joint=trial.joint
                ):
                    said += each.sent.sum(), each.received.sum()
            assert counted == tuple(said), (what, name, epoch)
            assert name != "never" or counted == (0, 0)
        land(A)


def check_gradient(trial: Trial, what: str) -> None:
    """Of what is made of a sample, the gradient is that; finite differences say so."""
    for name, asked in SAMPLED.items():
        A, (*given, G) = trial.on(asked), trial.given
        _, *gradients = trial.attended(A, trial.given, 1)
        Z, _, dst, _ = trial.drawn()
        ways = Z, trial.a.flip(0), dst
        slope = trial.summed(sum((g * v).sum() for g, v in zip(gradients, ways, strict=True)))

        def value(t: float, A: DistMatrix = A, given=given, ways=ways, G=G) -> float:
            begin(A, 1)
            at = [x + t * v for x, v in zip(given, ways, strict=True)]
            return trial.summed((trial.applied(A, *at) * G).sum())

        h = 1e-6
        found = (value(h) - value(-h)) / (2 * h)
        assert found == pytest.approx(slope, rel=1e-6, abs=1e-7), (what, name)


def check_near(trial: Trial, what: str) -> None:
    """Rows of many bits are nearly exact, and of few less so; the reports say how much."""
    expected, errors = trial.attended(trial.exact, trial.given), []
    for bits, tolerance in ((16, 0.03), (8, 0.03), (4, 0.4)):
        found = trial.attended(trial.on(Codec(((0, bits),))), trial.given)
        away = [trial.summed((x - y).square().sum()) for x, y in zip(found, expected, strict=True)]
        size = [trial.summed(y.square().sum()) for y in expected]
        errors.append(np.sqrt(np.array(away) / size))
        assert (errors[-1] < tolerance).all(), (what, bits)
        assert (errors[-1] > 0).any()
    assert (errors[2] > errors[1]).any()


def check_drawn_again(trial: Trial, what: str) -> None:
    """Each epoch has a sample of its own; the same epoch has the same one."""
    A = trial.on(SAMPLED["sampled"])
    one, other, again = (trial.attended(A, trial.given, e)[0] for e in (0, 1, 0))
    assert torch.equal(one, again)
    assert trial.summed((one - other).abs().sum()) > 0


CHECKS = [check_exact, check_bytes, check_gradient, check_near, check_drawn_again]


@pytest.mark.parametrize("schemes", [SCHEMES, pytest.param(MORE, marks=pytest.mark.slow)])
def test_attention_on_codecs(schemes):
    run_ranks(check_schemes, 4, schemes, CHECKS)


def check_alone(_: int) -> None:
    """Other dtypes; where nothing is sent, each rank weighs what it has; refusals; reports."""
    for dtype, joint in ((torch.float32, True), (torch.bfloat16, False)):
        trial = Trial(SCHEMES["1.5d"], joint=joint, dtype=dtype)
        for name in ("falling", "late, few bits", "fresh"):
            A = trial.on(CODECS[name])
            for epoch in range(EPOCHS):
                found = trial.attended(A, trial.drawn(), epoch)
                assert all(x.dtype == dtype and x.isfinite().all() for x in found)
            land(A)

    trial = Trial(Algorithm(), joint=False)
    own, (Z, a, dst, _) = trial.own, trial.given
    A = random_matrix(N, 0.2, 1, weighted=False).toarray()[own, own] != 0
    rows = Z.view(-1, HEADS, CHANNELS)
    scores = torch.nn.functional.leaky_relu(dst[:, None] + (rows * a).sum(-1)[None], 0.2)
    scores = scores.masked_fill(~torch.from_numpy(A)[:, :, None], -torch.inf)
    weights = torch.softmax(scores, 1).nan_to_num(0)
    found = attend(trial.on(SAMPLED["never"]), Z, a, dst)
    torch.testing.assert_close(found, torch.einsum("ijh,jhc->ihc", weights, rows).flatten(1))

    for asked, said in (
        (Codec(delay=1, exact_means=True), "exact_means: attention weighs rows by scores"),
        (Codec(delay=1, sampling=((0, 0.5),)), "sampling cannot be had with a delay"),
    ):
        A = trial.on(asked)
        before = trial.comm.ledger.copy()
        with pytest.raises(InputError, match=said):
            trial.attended(A, trial.given)
        assert moved(trial.comm.ledger.since(before)) == (0, 0)

    for asked, kind, low, high in (
        (Codec(sampling=((0, 0.5),)), "sampling", 0.3, 0.7),
        (Codec(delay=None), "never", 1.0, 1.0),
        (Codec(((0, 4),)), "rounding", 1e-5, 0.02),
    ):
        errors = Errors()
        trial.attended(trial.on(asked, errors=errors), trial.given)
        lost, norms = errors.sums[0, False, kind]
        assert low <= trial.summed(lost) / trial.summed(norms) <= high, kind


def test_dtypes_never_refusals_and_reports():
    run_ranks(check_alone, 4)


def check_scores(z: np.ndarray) -> None:
    """All together are in the interval that 99.9 % of such sets of scores are in."""
    assert len(z) > 30
    assert np.abs(z).max() < norm.isf(0.0005 / len(z))
    assert 0.4 < np.square(z).mean() < 1.8


def check_unbiased(_: int, algorithm: Algorithm, seeds: int) -> np.ndarray:
    """What rows are divided by, as a share of what it should be, and what is divided."""
    trial = Trial(algorithm, joint=False)
    (Z, a, dst, _), A = trial.given, trial.on(Codec(sampling=((0, 0.7),)))
    weighing = Scores(a, 0.2, joint=False)
    exact = trial.exact.attention.forward(Inputs(Z, dst, weighing), Step(), gradients=False)
    truth = torch.cat((torch.ones_like(exact.lse), exact.out), 1)
    seen, errors, attention = (exact.lse > -1e20).all(1), [], A.attention
    for seed in range(seeds):
        A.codecs.setting = replace(A.codecs.setting, seed=seed)
        attention._sampled.clear()
        made = attention.forward(Inputs(Z, dst, weighing), Step(), gradients=False)
        share = torch.exp(made.lse - exact.lse)
        sums = torch.cat((share, made.out * share.repeat_interleave(CHANNELS, 1)), 1)
        errors.append((sums - truth)[seen].numpy())
    return scores(errors)


@pytest.mark.parametrize(
    ("scheme", "seeds"),
    [
        ("column", 400),
        pytest.param("minimum", 2000, marks=pytest.mark.slow),
        pytest.param("1.5d", 2000, marks=pytest.mark.slow),
    ],
)
def test_a_sample_makes_sums_that_are_right_on_average(scheme, seeds):
    """Both sums of a softmax are; their quotient, which is the row, is not."""
    algorithm = {**SCHEMES, **MORE}[scheme]
    check_scores(np.concatenate(run_ranks(check_unbiased, 4, algorithm, seeds)))


@pytest.mark.parametrize("seeds", [500, pytest.param(2000, marks=pytest.mark.slow)])
def test_gradients_that_return_are_right_on_average(seeds):
    """Of eight bits, given the rows that were weighed, on one rank."""
    rng = np.random.default_rng(0)
    dense = sp.random_array((ALONE, ALONE), density=0.2, rng=rng, format="csr")
    exact, setting = sending_to_itself(dense), CodecSetting(Codec(((0, 8),)), Errors())
    A = with_codec(exact, setting, torch.arange(ALONE))
    Z, G = torch.from_numpy(rng.standard_normal((2, ALONE, WIDTH)))
    dst = torch.from_numpy(rng.standard_normal((ALONE, HEADS)))
    weighing = Scores(torch.from_numpy(rng.standard_normal((HEADS, CHANNELS))), 0.2, joint=False)
    made = exact.attention.forward(Inputs(Z, dst, weighing), Step())
    truth = exact.attention.backward(G, Inputs(Z, dst, weighing), made, Step())
    attention, errors = A.attention, []
    for seed in range(seeds):
        for codec in A.codecs.of_attention.values():
            codec.setting = replace(setting, seed=seed)
        found = attention.backward(G, Inputs(Z, dst, weighing), made, Step())
        errors.append((found.Z - truth.Z).numpy())
        assert torch.equal(found.dst, truth.dst)
        assert torch.equal(found.a, truth.a)
    check_scores(scores(errors))
