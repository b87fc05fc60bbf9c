"""One rank alone: every exchange is a copy to itself."""

from __future__ import annotations

from torch import Tensor

from spgnn.comm.base import Communicator
from spgnn.comm.counts import RowCounts
from spgnn.comm.job import Group, Job
from spgnn.comm.transport import Reduction, Wait


class SoloCommunicator(Communicator):
    """The communicator of a single rank, of a whole job or of a subgroup; needs no backend."""

    def __init__(self, job: Job | None = None, group: Group | None = None) -> None:
        job = Job() if job is None else job
        super().__init__(0, job, job.everyone() if group is None else group)

    def _alltoallv(self, send: Tensor, recv: Tensor, counts: RowCounts) -> Wait:
        recv.copy_(send)
        return _done

    def _broadcast(self, buffer: Tensor, root: int) -> Wait:
        return _done

    def _reduce(self, buffer: Tensor, root: int) -> Wait:
        return _done

    def _all_reduce(self, buffer: Tensor, op: Reduction) -> Wait:
        return _done

    def _split(self, group: Group) -> Communicator:
        raise AssertionError("a single rank has no subgroup but itself")


def _done() -> None:
    return None
