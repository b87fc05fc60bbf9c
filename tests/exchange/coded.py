"""Matrices with codecs, on several ranks and on one that sends rows to itself."""

from __future__ import annotations

import copy

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR, DistMatrix, Mesh, RowLayout
from spgnn.comm import Communicator, SoloCommunicator
from spgnn.comm.traffic import RowCounts
from spgnn.exchange import Algorithm, Codec, Plan, Stage
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.plan import Hop
from spgnn.pattern import Selection
from tests.matrices import block_row

ALONE = 60


def distributed(A: sp.csr_array, layout: RowLayout, comm: Communicator, how: Algorithm):
    """A matrix of this rank's block row, and which rows these are."""
    own = slice(*layout.range(comm.rank))
    mesh = Mesh.build(comm, how.axes(comm.size))
    return DistMatrix.build(block_row(A, own.start, own.stop), layout, mesh, algorithm=how), own


def with_codec(A: DistMatrix, codec: Codec | CodecSetting, ids: Tensor) -> DistMatrix:
    """A copy of a matrix with a codec, in its first epoch."""
    A = copy.deepcopy(A)
    A.set_codec(codec if isinstance(codec, CodecSetting) else CodecSetting(codec, seed=5), ids)
    begin(A, 0)
    return A


def begin(A: DistMatrix, epoch: int) -> None:
    """Begin an epoch of the codec of a matrix, if it has one."""
    if A.codecs is not None:
        A.codecs.setting.policy.begin_epoch(epoch)


def land(*matrices: DistMatrix) -> None:
    """Wait for all rows that are under way."""
    for A in matrices:
        if A.codecs is not None:
            A.codecs.land()


def diagonal() -> sp.csr_array:
    """The matrix whose product with H is H: the second half of it has been under way."""
    return sp.csr_array(sp.eye_array(ALONE))


def sending_to_itself(A: sp.csr_array) -> DistMatrix:
    """A [n, n] on one rank, which sends itself the rows of the second half of its columns."""
    half = ALONE // 2
    local, remote = A.copy().tolil(), A[:, half:]
    local[:, half:] = 0
    rows = ALONE - half
    send = CSR(Selection(torch.arange(half, ALONE, dtype=torch.int32), ALONE))
    hop = Hop("row", send, RowCounts([rows], [rows], rows))
    stage = Stage(CSR.from_scipy(sp.csr_array(local)), CSR.from_scipy(remote), (hop,))
    return DistMatrix(Plan((stage,)), RowLayout.even(ALONE, 1), Mesh.grid(SoloCommunicator()))


def alone(codec: Codec | CodecSetting) -> DistMatrix:
    """The diagonal matrix on one rank with a codec."""
    return with_codec(sending_to_itself(diagonal()), codec, torch.arange(ALONE))


def scores(errors: list[np.ndarray]) -> np.ndarray:
    """By entry: the mean error in standard errors, where enough happens."""
    errors = np.stack(errors)
    mean, deviation = errors.mean(axis=0), errors.std(axis=0, ddof=1)
    spread = np.ptp(errors, axis=0)
    spread = np.median(spread[spread > 1e-9])
    # An element next to a code is rounded to another one in a few of the draws, or in none.
    often = deviation > 0.07 * spread
    assert (np.abs(mean[~often]) <= 0.01 * spread).all()
    return mean[often] / (deviation[often] / np.sqrt(len(errors)))
