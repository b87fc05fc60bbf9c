"""What ranks that train on batches of their own do together: gradients and parameters of all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator


def average_gradients(
    model: nn.Module, comm: Communicator, weight: float, loss: Tensor | None = None
) -> Tensor:
    """Make every gradient the weighted mean of those of all ranks. Collective; one all-reduce.

    Parameters
    ----------
    model : Module
        The same on all ranks; each has gradients of its own batch.
    comm : Communicator
    weight : float
        Of this rank's gradients, such as its seeds; a rank without a batch takes part with 0.
    loss : Tensor, scalar, optional
        Of this rank's batch.

    Returns
    -------
    Tensor [2]
        The loss, averaged alike, and the sum of the weights.
    """
    learning = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None or not weight else p.grad for p in learning]
    own = gradients[0].new_zeros(2)
    own[1] = weight
    if loss is not None and weight:
        own[0] = loss.detach() * weight
    flat = torch.cat([*(g.reshape(-1) * weight for g in gradients), own])
    comm.all_reduce(flat).wait()
    total = flat[-1].clone()
    flat /= total.clamp(min=torch.finfo(flat.dtype).tiny)
    _write_back(learning, flat[:-2], grad=True)
    return torch.stack((flat[-2], total))


def average_parameters(model: nn.Module, comm: Communicator) -> None:
    """Make every parameter its mean over all ranks. Collective; one all-reduce."""
    if comm.size == 1:
        return
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    comm.all_reduce(flat).wait()
    _write_back(parameters, flat / comm.size, grad=False)


def average_buffers(model: nn.Module, comm: Communicator, weight: float) -> None:
    """Make running moments the weighted mean of those of all ranks. Collective; one all-reduce.

    Ranks that see batches of their own remember moments of their own; a model is evaluated, and
    kept in a checkpoint, with one of them.

    Parameters
    ----------
    model : Module
    comm : Communicator
    weight : float
        Of this rank's, such as its batches; with 0 on all ranks nothing changes.
    """
    held = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if comm.size == 1 or not held:
        return
    told = torch.tensor([weight], dtype=torch.float64)
    flat = torch.cat([*(b.reshape(-1).double() * weight for b in held), told])
    comm.all_reduce(flat).wait()
    if not flat[-1]:
        return
    parts = (flat[:-1] / flat[-1]).split([b.numel() for b in held])
    for buffer, part in zip(held, parts, strict=True):
        buffer.copy_(part.view_as(buffer))
    for buffer in model.buffers():
        if not buffer.is_floating_point():
            buffer.fill_(comm.agree(int(buffer)))


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
