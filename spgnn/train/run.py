"""One training job under any launcher."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from spgnn.comm import (
    Communicator,
    connect,
    default_threads,
    guarded,
    launch,
    launched_rank,
    refuse,
)
from spgnn.errors import InputError
from spgnn.train import report as reporting
from spgnn.train.config import TrainConfig, parse
from spgnn.train.loop import Trainer
from spgnn.train.memory import give_back_large_blocks, resident_bytes
from spgnn.train.setup import prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """The training command; returns its exit status.

    Started by torchrun, mpiexec or srun, this process is one rank. Started plainly, it forks
    ``--nproc`` ranks.
    """
    try:
        place = launched_rank()
        config = parse(arguments)
        if place is not None and config.nproc > 1 and place[1] != config.nproc:
            raise InputError(
                f"--nproc {config.nproc} starts ranks, but a launcher has already started "
                f"{place[1]}; leave one of them out"
            )
        ranks = config.nproc if place is None else place[1]
        config.check(ranks)
    except InputError as error:
        return refuse(error)
    if place is None and config.nproc > 1:
        threads = config.threads or default_threads(config.nproc)
        return launch(lambda: run_rank(config), config.nproc, threads)
    if config.threads or place is not None:
        torch.set_num_threads(config.threads or default_threads())
    return run_rank(config)


def run_rank(config: TrainConfig) -> int:
    """The whole job on one rank: connect, train, write and print the report on rank 0."""
    try:
        comm = connect(config.backend, config.device)
    except InputError as error:
        return refuse(error)
    with guarded(comm):
        result = train(config, comm, comm.device)
        if comm.rank == 0:
            if config.json:
                reporting.write(result, config.json)
            reporting.show(result)
    return 0


def train(config: TrainConfig, comm: Communicator, device: torch.device) -> dict[str, Any]:
    """Prepare the data, train, and return the training report. Collective.

    Raises
    ------
    InputError
        If the data set, the partition or the checkpoint is wrong.
    """
    give_back_large_blocks()
    idle = resident_bytes()
    trainer = Trainer(config, prepare(config, comm, device), comm, device)
    comm.settled()
    trainer.run()
    return reporting.assemble(trainer, comm, idle)
