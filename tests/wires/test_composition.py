"""Every wire under every scheme: exact where it should be, its bytes, its adjoint, its mean."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, Mesh
from spgnn.comm import Communicator, connect
from spgnn.exchange import COVERS, Algorithm, Codec, CodecSetting, Step, carried_by_level
from spgnn.exchange.approximation import Errors
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.wires.single import begin, with_codec

N, F, EPOCHS = 26, 5, 4
SCHEMES = {
    "1d": Algorithm("1d"),
    "1.5d": Algorithm("1.5d", 2),
    "feature": Algorithm("feature", 2),
    "2d": Algorithm("2d"),
    "3d": Algorithm("3d", 2),
    "vertex-cut": Algorithm("vertex-cut"),
    "hierarchy": Algorithm("1d", node_size=2),
    "1.5d hierarchy": Algorithm("1.5d", 2, node_size=2),
    "peers": Algorithm("1d", schedule="peers", buffer=4096),
    "vertex-cut peers": Algorithm("vertex-cut", schedule="peers", buffer=4096),
}
OFTEN = [
    ("1d", "column"),
    ("1d", "row"),
    ("1.5d", "minimum"),
    ("feature", "column"),
    ("vertex-cut", "minimum"),
    ("hierarchy", "minimum"),
    ("peers", "minimum"),
]
LINEAR = {
    "sampled": Codec(sampling=((0, 0.6),), exact_means=False),
    "centred": Codec(sampling=((0, 0.6),), exact_means=True),
}
KEEPING = {
    "delayed": Codec(delay=2, bins=2, exact_means=False),
    "fresh": Codec(((0, 4),), feedback=True, fresh=0.2),
    "bits": Codec(((0, 2),)),
    "delayed and centred": Codec(((0, 8),), delay=2, bins=2, exact_means=True),
    "delayed samples": Codec(delay=2, bins=2, sampling=((0, 0.6),), exact_means=False),
}
CHANGING = {
    "falling": Codec(sampling=((0, 1.0), (1, 0.3), (2, 0.1)), exact_means=False),
    "falling, centred": Codec(sampling=((0, 1.0), (1, 0.3)), exact_means=True),
    "never": Codec(delay=None),
    "means": Codec(delay=None, exact_means=True),
}


class Trial:
    """One matrix under one scheme, on this rank."""

    def __init__(self, comm: Communicator, scheme: str, cover: str) -> None:
        self.comm = comm
        algorithm = replace(SCHEMES[scheme], cover=cover)
        self.mesh = Mesh.build(comm, algorithm.axes(comm.size))
        layout = uneven_layout(N, comm.size, seed=3)
        self.own = slice(*layout.range(comm.rank))
        A = random_matrix(N, 0.2, 1, weighted=True)
        block = block_row(A, self.own.start, self.own.stop)
        self.exact = DistMatrix.build(block, layout, self.mesh, algorithm=algorithm)
        rng = np.random.default_rng(comm.rank)
        rows = self.own.stop - self.own.start
        self.H, self.G = torch.from_numpy(rng.standard_normal((2, rows, F)))

    def on(self, asked: Codec, epochs: int = 0) -> DistMatrix:
        """The matrix on approximate wires."""
        setting = CodecSetting(replace(asked, epochs=epochs), Errors(), seed=5)
        return with_codec(self.exact, setting, torch.arange(self.own.start, self.own.stop))

    def summed(self, number: torch.Tensor) -> float:
        total = number.clone()
        self.comm.all_reduce(total).wait()
        return float(total)


def settings_for(scheme: str) -> dict[str, Codec]:
    return LINEAR | CHANGING | ({} if "peers" in scheme else KEEPING)


def check_schemes(_: int, cases: list[tuple[str, str]]) -> None:
    comm = connect()
    comm.ledger.node_size = 2
    for scheme, cover in cases:
        trial = Trial(comm, scheme, cover)
        for check in (check_exact, check_bytes, check_adjoint):
            check(trial, f"{scheme} {cover}")


def check_exact(trial: Trial, what: str) -> None:
    """At their exact settings, wires hand on rows as they are."""
    Z, dH = trial.exact.forward(trial.H), trial.exact.adjoint(trial.G)
    for name, asked in settings_for(what).items():
        # All epochs are among the last ones; or the first has nothing to do yet.
        matrices = [trial.on(replace(asked, exact_last=1), 1)]
        matrices += [trial.on(asked)] if "falling" in name else []
        for A in matrices:
            assert A.codecs.hops, (what, name)
            begin(A, 0)
            assert torch.equal(A.forward(trial.H, Step()), Z), (what, name)
            assert torch.equal(A.adjoint(trial.G, Step().reversed()), dH), (what, name)


def check_bytes(trial: Trial, what: str) -> None:
    """The ledger counts what wires say, in both directions, by level."""
    ledger, rank = trial.comm.ledger, trial.mesh.rank
    for name, asked in settings_for(what).items():
        A = trial.on(asked)
        for epoch in range(EPOCHS):
            for step in (Step(epoch), Step(epoch).reversed()):
                before = ledger.copy()
                _ = A.adjoint(trial.G, step) if step.adjoint else A.forward(trial.H, step)
                moved = ledger.since(before).of("alltoall")
                carried = A.executor.carried(F, torch.float64, step)
                level = carried_by_level(carried, trial.mesh.axes, rank, node_size=2)
                inside, between = level["inside"], level["between"]
                said = [
                    inside.sent_bytes + between.sent_bytes,
                    inside.received_bytes + between.received_bytes,
                    between.sent_bytes,
                    between.received_bytes,
                ]
                assert said == [
                    moved.sent_bytes,
                    moved.received_bytes,
                    moved.sent_between,
                    moved.received_between,
                ], (what, name, step)
        for wire in A.codecs.hops:
            wire.land()


def check_adjoint(trial: Trial, what: str) -> None:
    """The adjoint of a product has its draws: <A~ H, G> is <H, A~ᵀ G>; others have their own."""
    exact = trial.exact.forward(trial.H)
    for name, asked in LINEAR.items():
        A, seen = trial.on(asked), set()
        for step in (Step(0), Step(0, 1), Step(1)):
            Z, dH = A.forward(trial.H, step), A.adjoint(trial.G, step.reversed())
            forward = trial.summed((Z * trial.G).sum())
            assert forward == pytest.approx(trial.summed((dH * trial.H).sum()), rel=1e-12)
            seen.add(trial.summed((Z - exact).abs().sum()))
        assert len(seen) == 3, (what, name)


def test_wires_under_schemes():
    run_ranks(check_schemes, 4, OFTEN)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_wires_under_all_schemes_and_covers(scheme):
    run_ranks(check_schemes, 4, [(scheme, cover) for cover in COVERS])


def samples_of(rank: int) -> list[tuple[int, int]]:
    """Vertices whose rows arrive here in one step, and how many could."""
    trial = Trial(connect(), "1d", "column")
    A = trial.on(Codec(sampling=((0, 0.5),), exact_means=False))
    ones = torch.ones(len(trial.H), 1, dtype=torch.float64)
    (wire,), (hop,) = A.codecs.hops, A.plan.hops
    out = torch.empty(hop.counts.received, 1, dtype=torch.float64)
    rows = ones[hop.selected_rows]
    wire.begin(rows, out, hop.route(), trial.mesh[hop.axis], Step()).wait()
    return [(int(name), int(x)) for name, x in zip(hop.names.received, out, strict=True)]


def test_receivers_of_a_row_draw_for_themselves():
    found: dict[int, set[int]] = {}
    for name, arrived in chain.from_iterable(run_ranks(samples_of, 4)):
        found.setdefault(name, set()).add(arrived)
    assert set().union(*found.values()) == {0, 2}
    # Else half of the gradient of a vertex with many receivers would be missing at once.
    assert any(len(arrived) == 2 for arrived in found.values())
