"""A run that is resumed from what its wires keep is the run that was not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from spgnn import DistMatrix, Mesh
from spgnn.comm import Communicator, connect
from spgnn.exchange import Algorithm, Codec, CodecSetting, Step
from spgnn.exchange.approximation import Errors
from spgnn.testing import run_ranks
from tests.matrices import block_row, random_matrix, uneven_layout
from tests.wires.single import with_codec

N, F, EPOCHS = 30, 3, 8


def matrix_on(comm: Communicator, asked: Codec, algorithm: Algorithm) -> DistMatrix:
    layout = uneven_layout(N, comm.size, seed=3)
    own = slice(*layout.range(comm.rank))
    block = block_row(random_matrix(N, 0.25, 0, weighted=True), own.start, own.stop)
    mesh = Mesh.build(comm, algorithm.axes(comm.size))
    exact = DistMatrix.build(block, layout, mesh, algorithm=algorithm)
    setting = CodecSetting(replace(asked, epochs=EPOCHS), Errors(), seed=5)
    return with_codec(exact, setting, torch.arange(own.start, own.stop))


def stored(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors as a file may give them: neighbours in one storage."""
    found = {}
    for dtype in {tensor.dtype for tensor in state.values()}:
        named = {name: t for name, t in state.items() if t.dtype == dtype}
        flat = torch.cat([tensor.flatten() for tensor in named.values()])
        parts = flat.split([tensor.numel() for tensor in named.values()])
        found |= {n: p.view(named[n].shape) for n, p in zip(named, parts, strict=True)}
    return found


def resumed(_: int, asked: Codec, algorithm: Algorithm) -> None:
    comm = connect()
    first, second = (matrix_on(comm, asked, algorithm) for _ in range(2))
    rng, shape = np.random.default_rng(comm.rank), (2, first.columns, F)
    operands = torch.ones(shape, dtype=torch.float64)
    for epoch in range(EPOCHS):
        if epoch == 4:
            for old, new in zip(first.codecs.hops, second.codecs.hops, strict=True):
                new.load(stored(old.state()))
        # Rows move a little, or much.
        moves = 0.3 * rng.standard_normal(shape) * rng.random((*shape[:2], 1))
        operands += torch.from_numpy(moves)
        for step, X in zip((Step(epoch), Step(epoch, adjoint=True)), operands, strict=True):
            found = multiplied(first, X, step)
            if epoch >= 4:
                assert torch.equal(multiplied(second, X, step), found), step
    for wire in (*first.codecs.hops, *second.codecs.hops):
        wire.land()


def multiplied(A: DistMatrix, X: torch.Tensor, step: Step) -> torch.Tensor:
    return A.adjoint(X, step) if step.adjoint else A.forward(X, step)


@pytest.mark.parametrize(
    ("asked", "algorithm"),
    [
        (Codec(fresh=0.3), Algorithm("1d", cover="minimum")),
        (Codec(fresh=0.3, delay=2), Algorithm("1d", node_size=2)),
        (Codec(((0, 4),), feedback=True, fresh=0.3), Algorithm("vertex-cut")),
        (Codec(delay=3, bins=3, smoothing=0.5), Algorithm("vertex-cut")),
        (Codec(delay=3, smoothing=0.5, exact_last=2, exact_means=True), Algorithm("2d")),
        (Codec(((0, 2),), feedback=True, delay=2), Algorithm("feature", 2)),
        (Codec(delay=1, sampling=((0, 0.5),)), Algorithm("1.5d", 2)),
        (Codec(((0, 4),), delay=2, sampling=((0, 0.5),), exact_means=True), Algorithm("1d")),
    ],
    ids=str,
)
def test_a_resumed_run_is_the_same(asked, algorithm):
    run_ranks(resumed, 4, asked, algorithm)
