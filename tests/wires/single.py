"""A matrix on one rank, which sends rows to itself: wires without a job of several ranks."""

from __future__ import annotations

import copy

import scipy.sparse as sp
import torch
from torch import Tensor

from spgnn import CSR, DistMatrix, Mesh, RowLayout
from spgnn.comm import RowCounts, SoloCommunicator
from spgnn.exchange import CodecSetting, Hop, Plan, Stage
from spgnn.pattern import Selection

N = 60


def diagonal() -> sp.csr_array:
    """The matrix whose product with H is H: the second half of it has been under way."""
    return sp.csr_array(sp.eye_array(N))


def sending_to_itself(A: sp.csr_array) -> DistMatrix:
    """A [N, N] on one rank, which sends itself the rows of the second half of its columns."""
    half = N // 2
    local, remote = A.copy().tolil(), A[:, half:]
    local[:, half:] = 0
    rows = N - half
    send = CSR(Selection(torch.arange(half, N, dtype=torch.int32), N))
    hop = Hop("row", send, RowCounts([rows], [rows], rows))
    stage = Stage(CSR.from_scipy(sp.csr_array(local)), CSR.from_scipy(remote), (hop,))
    return DistMatrix(Plan((stage,)), RowLayout.even(N, 1), Mesh.grid(SoloCommunicator()))


def with_codec(A: DistMatrix, setting: CodecSetting, ids: Tensor) -> DistMatrix:
    """A copy of a matrix with a codec, in its first epoch."""
    A = copy.deepcopy(A)
    A.set_codec(setting, ids)
    setting.policy.begin_epoch(0)
    return A


def begin(A: DistMatrix, epoch: int) -> None:
    """Begin an epoch of the codec of a matrix, if it has one."""
    if A.codecs is not None:
        A.codecs.setting.policy.begin_epoch(epoch)
