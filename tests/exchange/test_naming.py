"""Names of rows: the same at both ends, of a vertex where a row is its row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, Mesh
from spgnn.comm import connect
from spgnn.exchange import COVERS, Algorithm, Exact, Executor, Step
from spgnn.exchange.codecs import named
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout

N = 40


class Seeing(Exact):
    """Keeps what it carries."""

    def begin(self, rows, out, route, comm, step):
        self.sent, self.out, self.route = rows.clone(), out, route
        return super().begin(rows, out, route, comm, step)


def names_of(rank: int, algorithm: Algorithm, weighted: bool) -> list[tuple[np.ndarray, ...]]:
    """Of each hop: names and rows sent, names and rows received, of a matrix times the ids."""
    comm = connect()
    layout = uneven_layout(N, comm.size, seed=3)
    own = slice(*layout.range(rank))
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    block = block_row(random_matrix(N, 0.2, 1, weighted=weighted), own.start, own.stop)
    A = DistMatrix.build(block, layout, mesh, algorithm=algorithm)
    ids = 1000 + torch.arange(own.start, own.stop)
    plan = named(A.plan, ids, mesh, rank)
    wires = [Seeing() for _ in plan.hops]
    # As wide as there are shares of the columns.
    width = algorithm.copies(comm.size)[1]
    rows = ids.double()[:, None].expand(-1, width).contiguous()
    Executor(plan, mesh, wires).forward(rows, Step())
    return [
        tuple(
            each.numpy()
            for each in (wire.route.names.sent, wire.sent, wire.route.names.received, wire.out)
        )
        for wire in wires
    ]


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize(
    ("ranks", "how"),
    [
        (3, {}),
        (4, {"algo": "1.5d", "c": 2}),
        (4, {"algo": "feature", "c": 2}),
        (4, {"algo": "2d"}),
        (3, {"algo": "vertex-cut"}),
        (4, {"node_size": 2}),
        (3, {"schedule": "peers", "buffer": 10**6}),
    ],
    ids=str,
)
def test_both_ends_know_a_row_by_the_same_name(ranks, how, cover):
    algorithm = Algorithm(cover=cover, **how)
    found = run_ranks(names_of, ranks, algorithm, False)
    for hops in zip(*found, strict=True):
        sent = np.concatenate([names for names, *_ in hops])
        received = np.concatenate([names for _, _, names, _ in hops])
        np.testing.assert_array_equal(np.sort(sent), np.sort(received))
        for sides in hops:
            for names, rows in (sides[:2], sides[2:]):
                vertices = names >= 0
                # A row with a vertex's name is that vertex's row.
                np.testing.assert_array_equal(rows[vertices, 0], names[vertices])
        sums = sent[sent < 0]
        assert len(np.unique(sums)) == len(sums)
