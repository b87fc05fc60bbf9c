"""What ranks that train on batches of their own do together: gradients and parameters of all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator


def average_gradients(model: nn.Module, comm: Communicator, seeds: int) -> int:
    """Make every gradient that of the mean loss over the seeds of all ranks. Collective.

    One all-reduce. A rank without a batch takes part with no seeds, and gets the others' gradients.

    Parameters
    ----------
    model : Module
        The same on all ranks; each has the gradient of the mean loss over its own seeds.
    comm : Communicator
    seeds : int
        Of this rank's batch.

    Returns
    -------
    int
        Seeds of all ranks.
    """
    if comm.size == 1:
        return seeds
    learning = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None or not seeds else p.grad for p in learning]
    count = gradients[0].new_tensor([float(seeds)])
    flat = torch.cat([*(g.reshape(-1) * seeds for g in gradients), count])
    comm.all_reduce(flat).wait()
    total = flat[-1]
    _write_back(learning, flat[:-1] / total.clamp(min=1), grad=True)
    return int(total)


def average_parameters(model: nn.Module, comm: Communicator) -> None:
    """Make every parameter its mean over all ranks. Collective; one all-reduce."""
    if comm.size == 1:
        return
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    comm.all_reduce(flat).wait()
    _write_back(parameters, flat / comm.size, grad=False)


def _write_back(parameters: Sequence[nn.Parameter], flat: Tensor, *, grad: bool) -> None:
    with torch.no_grad():
        parts = flat.split([p.numel() for p in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            if grad and parameter.grad is None:
                parameter.grad = part.view_as(parameter).clone()
            else:
                target = parameter.grad if grad else parameter
                assert target is not None
                target.copy_(part.view_as(parameter))
