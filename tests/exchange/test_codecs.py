"""Every codec under every scheme: exact where it should be, its bytes, its adjoint, its state."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, InputError
from spgnn.comm import connect
from spgnn.exchange import Algorithm, Codec, Executor, Step
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.needs import COVERS
from spgnn.exchange.plan import carried_by_level
from spgnn.exchange.transport import Transport
from spgnn.testing import run_ranks
from tests.exchange.coded import distributed, land, with_codec
from tests.matrices import random_matrix, uneven_layout

N, F, EPOCHS = 26, 5, 4
SCHEMES = {
    "1d": Algorithm("1d"),
    "1.5d": Algorithm("1.5d", 2),
    "feature": Algorithm("feature", 2),
    "2d": Algorithm("2d"),
    "3d": Algorithm("3d", 2),
    "vertex-cut": Algorithm("vertex-cut"),
    "1.5d-replicated": Algorithm("1.5d-replicated", 2),
    "hierarchy": Algorithm("1d", node_size=2),
    "1.5d hierarchy": Algorithm("1.5d", 2, node_size=2),
    "relays": Algorithm("1d", relays=True),
    "1.5d relays": Algorithm("1.5d", 2, relays=True),
    "hierarchy relays": Algorithm("1d", node_size=2, relays=True),
    "peers": Algorithm("1d", schedule="peers", buffer=4096),
    "vertex-cut peers": Algorithm("vertex-cut", schedule="peers", buffer=4096),
}
OFTEN = [
    ("1d", "minimum"),
    ("1.5d", "column"),
    ("feature", "column"),
    ("vertex-cut", "minimum"),
    ("hierarchy", "minimum"),
    ("relays", "row"),
    ("peers", "minimum"),
]
HALF = ((0, 0.6),)
LINEAR = {
    "sampled": Codec(sampling=HALF, exact_means=False),
    "sampled, means": Codec(sampling=HALF, exact_means=True),
}
KEEPING = {
    "delayed": Codec(delay=2, bins=2, exact_means=False),
    "fresh": Codec(((0, 4),), feedback=True, extra=(("fresh", 0.2),)),
    "bits": Codec(((0, 2),)),
    "delayed, means": Codec(((0, 8),), delay=2, bins=2, exact_means=True),
    "delayed samples": Codec(delay=2, bins=2, sampling=HALF, exact_means=False),
}
CHANGING = {
    "falling": Codec(sampling=((0, 1.0), (1, 0.3), (2, 0.1)), exact_means=False),
    "falling, means": Codec(sampling=((0, 1.0), (1, 0.3)), exact_means=True),
    "never": Codec(delay=None),
    "means alone": Codec(delay=None, exact_means=True),
}


class Trial:
    """One matrix under one scheme, on this rank."""

    def __init__(self, scheme: str, cover: str) -> None:
        self.comm, how = connect(), replace(SCHEMES[scheme], cover=cover)
        self.layout = uneven_layout(N, self.comm.size, seed=3)
        A = random_matrix(N, 0.2, 1, weighted=True)
        self.exact, self.own = distributed(A, self.layout, self.comm, how)
        ids = torch.arange(self.own.start, self.own.stop)
        self._named = with_codec(self.exact, Codec(), ids)  # once for all codecs
        rng = np.random.default_rng(self.comm.rank)
        shape = 2, self.own.stop - self.own.start, F
        self.H, self.G = torch.from_numpy(rng.standard_normal(shape))
        self.codecs = LINEAR | CHANGING | ({} if "peers" in scheme else KEEPING)

    def on(self, codec: Codec) -> DistMatrix:
        return with_codec(self._named, codec, torch.empty(0))

    def summed(self, number: torch.Tensor) -> float:
        total = number.clone()
        self.comm.all_reduce(total).wait()
        return float(total)


def multiplied(A: DistMatrix, X: torch.Tensor, step: Step) -> torch.Tensor:
    return A.adjoint(X, step) if step.adjoint else A.forward(X, step)


def check_schemes(_: int, cases: list[tuple[str, str]]) -> None:
    connect().ledger.node_size = 2
    for case in cases:
        trial = Trial(*case)
        check_exact(trial, f"{case}")
        check_bytes(trial, f"{case}")
        check_adjoint(trial, f"{case}")


def check_exact(trial: Trial, what: str) -> None:
    """At their exact settings, and in exact steps, codecs hand on rows as they are."""
    Z, dH = trial.exact.forward(trial.H), trial.exact.adjoint(trial.G)
    for name, codec in trial.codecs.items():
        # All epochs are among the last ones; or the first has nothing to do yet.
        matrices = [trial.on(replace(codec, exact_last=1, epochs=1))]
        matrices += [trial.on(codec)] if "falling" in name else []
        for A in matrices:
            assert torch.equal(A.forward(trial.H, Step()), Z), (what, name)
            assert torch.equal(A.adjoint(trial.G, Step().reversed()), dH), (what, name)
        A = trial.on(codec)
        assert torch.equal(A.forward(trial.H), Z), (what, name)
        assert torch.equal(A.adjoint(trial.G, Step(exact=True).reversed()), dH), (what, name)


def check_bytes(trial: Trial, what: str) -> None:
    """The ledger counts what codecs say, in both directions, by level."""
    ledger, mesh = trial.comm.ledger, trial.exact.mesh
    for name, codec in trial.codecs.items():
        A = trial.on(codec)
        for epoch in range(EPOCHS):
            for step in (Step(epoch), Step(epoch).reversed()):
                before = ledger.copy()
                multiplied(A, trial.G if step.adjoint else trial.H, step)
                moved = ledger.since(before).of("alltoall")
                carried = A.executor.carried(F, torch.float64, step)
                level = carried_by_level(carried, mesh.axes, mesh.rank, group_sizes=(2,))
                both = level["inside"] + level["between"]
                assert (both.sent_bytes, both.received_bytes) == (
                    moved.sent_bytes,
                    moved.received_bytes,
                ), (what, name, step)
                between = level["between"]
                assert (between.sent_bytes, between.received_bytes) == (
                    int(np.atleast_1d(moved.sent_out)[-1]),
                    moved.received_between,
                ), (what, name, step)
        land(A)


def check_adjoint(trial: Trial, what: str) -> None:
    """The adjoint of a product has its draws: <A~ H, G> is <H, A~ᵀ G>; others have their own."""
    exact = trial.exact.forward(trial.H)
    for name, codec in LINEAR.items():
        A, seen = trial.on(codec), set()
        for step in (Step(0), Step(0, 1), Step(1)):
            Z, dH = A.forward(trial.H, step), A.adjoint(trial.G, step.reversed())
            forward = trial.summed((Z * trial.G).sum())
            assert forward == pytest.approx(trial.summed((dH * trial.H).sum()), rel=1e-12)
            seen.add(trial.summed((Z - exact).abs().sum()))
        assert len(seen) == 3, (what, name)


def test_codecs_under_schemes():
    run_ranks(check_schemes, 4, OFTEN)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_codecs_under_all_schemes_and_covers(scheme):
    run_ranks(check_schemes, 4, [(scheme, cover) for cover in COVERS])


def samples_of(rank: int) -> list[tuple[int, int]]:
    """Vertices whose rows arrive here in one step, and how many could."""
    trial = Trial("1d", "column")
    A = trial.on(Codec(sampling=((0, 0.5),), exact_means=False))
    ones = torch.ones(len(trial.H), 1, dtype=torch.float64)
    (codec,), (hop,) = A.codecs.hops, A.plan.hops
    out = torch.empty(hop.counts.received, 1, dtype=torch.float64)
    comm = A.mesh[hop.axis]
    codec.begin(ones[hop.selected_rows], out, hop.route(), comm, Step()).wait()
    return [(int(name), int(x)) for name, x in zip(hop.names.received, out, strict=True)]


def test_receivers_of_a_row_draw_for_themselves():
    found: dict[int, set[int]] = {}
    for name, arrived in chain.from_iterable(run_ranks(samples_of, 4)):
        found.setdefault(name, set()).add(arrived)
    assert set().union(*found.values()) == {0, 2}
    # Else half of the gradient of a vertex with many receivers would be missing at once.
    assert any(len(arrived) == 2 for arrived in found.values())


def stored(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors as a file may give them: neighbours in one storage."""
    found = {}
    for dtype in {tensor.dtype for tensor in state.values()}:
        named = {name: t for name, t in state.items() if t.dtype == dtype}
        flat = torch.cat([tensor.flatten() for tensor in named.values()])
        parts = flat.split([tensor.numel() for tensor in named.values()])
        found |= {n: p.view(named[n].shape) for n, p in zip(named, parts, strict=True)}
    return found


def resumed(codec: Codec, scheme: str, cover: str) -> None:
    trial = Trial(scheme, cover)
    first, second = (trial.on(replace(codec, epochs=2 * EPOCHS)) for _ in range(2))
    rng, shape = np.random.default_rng(trial.comm.rank), (2, *trial.H.shape)
    operands = torch.ones(shape, dtype=torch.float64)
    for epoch in range(2 * EPOCHS):
        if epoch == EPOCHS:
            for old, new in zip(first.codecs.hops, second.codecs.hops, strict=True):
                new.load(stored(old.state()))
        # Rows move a little, or much.
        moves = 0.3 * rng.standard_normal(shape) * rng.random((*shape[:2], 1))
        operands += torch.from_numpy(moves)
        for step, X in zip((Step(epoch), Step(epoch, adjoint=True)), operands, strict=True):
            found = multiplied(first, X, step)
            if epoch >= EPOCHS:
                assert torch.equal(multiplied(second, X, step), found), (codec, scheme, step)
    land(first, second)


RESUMED = [
    (Codec(extra=(("fresh", 0.3),)), "1d", "minimum"),
    (Codec(extra=(("fresh", 0.3),), delay=2), "hierarchy", "column"),
    (Codec(((0, 4),), feedback=True, extra=(("fresh", 0.3),)), "vertex-cut", "column"),
    (Codec(delay=3, bins=3, smoothing=0.5), "vertex-cut", "column"),
    (Codec(delay=3, smoothing=0.5, exact_last=2, exact_means=True), "2d", "column"),
    (Codec(((0, 2),), feedback=True, delay=2), "feature", "column"),
    (Codec(delay=1, sampling=((0, 0.5),)), "1.5d", "column"),
    (Codec(((0, 4),), delay=2, sampling=HALF, exact_means=True), "1d", "column"),
]


def test_a_run_that_is_resumed_is_the_same():
    run_ranks(lambda rank: [resumed(*case) for case in RESUMED], 4)


class Seeing(Transport):
    """Keeps what it carries."""

    def begin(self, rows, out, route, comm, step):
        self.sent, self.out, self.route = rows.clone(), out, route
        return super().begin(rows, out, route, comm, step)


def names_of(rank: int, cases: list[Algorithm]) -> list[list[tuple[np.ndarray, ...]]]:
    """Of each hop: names and rows sent, names and rows received, of a matrix times the ids."""
    comm, found = connect(), []
    for algorithm in cases:
        layout = uneven_layout(N, comm.size, seed=3)
        A, own = distributed(random_matrix(N, 0.2, 1, weighted=False), layout, comm, algorithm)
        ids = 1000 + torch.arange(own.start, own.stop)
        A = with_codec(A, CodecSetting(Codec()), ids)
        seen = [Seeing() for _ in A.plan.hops]
        # As wide as there are shares of the columns.
        width = algorithm.copies(comm.size)[1]
        rows = ids.double()[:, None].expand(-1, width).contiguous()
        Executor(A.plan, A.mesh, seen).forward(rows, Step())
        found.append(
            [(s.route.names.sent.numpy(), s.sent.numpy(), s.route.names.received.numpy(),
              s.out.numpy()) for s in seen]
        )  # fmt: skip
    return found


def test_both_ends_know_a_row_by_the_same_name():
    """That of its vertex, where a row of H travels as it is; a sum has a name of its own."""
    cases = [replace(how, cover=cover) for how in SCHEMES.values() for cover in COVERS]
    for algorithm, *by_rank in zip(cases, *run_ranks(names_of, 4, cases), strict=True):
        for hops in zip(*by_rank, strict=True):
            sent = np.concatenate([names for names, *_ in hops])
            received = np.concatenate([names for _, _, names, _ in hops])
            np.testing.assert_array_equal(np.sort(sent), np.sort(received))
            for sides in hops:
                for names, rows in (sides[:2], sides[2:]):
                    vertices = names >= 0
                    np.testing.assert_array_equal(rows[vertices, 0], names[vertices])
            if algorithm.cover == "column" and algorithm.algo == "1d":
                assert (sent >= 0).all()
            sums = sent[sent < 0]
            if algorithm.algo != "1.5d-replicated":  # where gathered rows go to several ranks
                assert len(np.unique(sums)) == len(sums)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": (("fresh", -0.1),)}, "fresh must be"),
        ({"extra": (("fresh", float("nan")),)}, "fresh must be"),
        ({"extra": (("fresh", 0.1),), "sampling": ((0, 0.5),)}, "fresh compares .* sampling"),
        ({"extra": (("fresh", 0.1),), "delay": 2, "bins": 2}, "fresh compares .* bins"),
        ({"feedback": True, "bits": ((0, 8), (5, 1))}, "feedback needs 2 bits or more"),
        ({"bits": 8}, r"pairs of \(epoch, number\): Codec\.of "),
    ],
)
def test_what_cannot_be_had_together_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Codec(**options)


def refused(rank: int) -> list[str]:
    comm, said = connect(), []
    layout, A = uneven_layout(N, comm.size, 3), random_matrix(N, 0.2, 1, weighted=True)
    for how, codec in (
        (Algorithm(exchange="oblivious"), Codec(((0, 8),))),
        (Algorithm(schedule="peers", buffer=4096), Codec(delay=1)),
    ):
        matrix, own = distributed(A, layout, comm, how)
        with pytest.raises(InputError) as error:
            matrix.set_codec(CodecSetting(codec), torch.arange(own.start, own.stop))
        said.append(str(error.value))
    return said


def test_codecs_that_a_scheme_cannot_have_are_refused():
    for whole, grouped in run_ranks(refused, 2):
        assert "a codec needs --exchange sparsity-aware" in whole
        assert "schedule peers needs a codec that keeps no rows" in grouped
