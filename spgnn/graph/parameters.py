"""Parameters that all ranks hold, and the averages of their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.graph.modules import pad_alike, refuse_one_rank

# Models of which all ranks were seen to hold the same.
_checked: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
# So much of a parameter, and so much at all where it is small, may be what the rounding of machines
# of different kinds has come to.
_DRIFT, _LEAST_APART = 1e-2, 1e-3


def replicate(model: nn.Module, comm: Communicator) -> nn.Module:
    """Give all ranks the parameters and buffers of rank 0, in place. Collective.

    Modules that pad the neighbours of each vertex to the largest number of neighbours are told that
    of all ranks from then on.

    Raises
    ------
    InputError
        If they differ in more than values; if the model takes statistics over one rank's rows.
    """
    pad_alike(model)
    _check_model(model, comm)
    with torch.no_grad():
        for _, tensor in _tensors(model):
            buffer = tensor.detach().contiguous()
            comm.broadcast(buffer, 0).wait()
            tensor.copy_(buffer)
    _checked[model] = True
    return model


def check_replicated(model: nn.Module, comm: Communicator) -> None:
    """Make sure that all ranks hold the same parameters. Collective.

    Raises
    ------
    InputError
        The same on all ranks; names a parameter and which ranks hold which.
    """
    _check_model(model, comm)
    comm.check_agreement(
        "the model; give all ranks the same with graph.replicate(model), or the same seed",
        **{name: p.detach() for name, p in model.named_parameters()},
    )
    _checked[model] = True


def synchronise(model: nn.Module, comm: Communicator) -> nn.Module:
    """See :meth:`spgnn.graph.DistGraph.synchronise`."""
    replicate(model, comm)
    if comm.size > 1:
        average = _AtTheEnd(model, comm)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(average)
    return model


class _AtTheEnd:
    """A hook of parameters that averages all gradients once, when a backward is over."""

    def __init__(self, model: nn.Module, comm: Communicator) -> None:
        self._model, self._comm = ref(model), comm
        self._waiting = False

    def __call__(self, parameter: Tensor) -> None:
        if not self._waiting:
            self._waiting = True
            # As DistributedDataParallel does it.
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        self._waiting = False
        model = self._model()
        if model is not None:
            average_gradients(model, self._comm)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model is on its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def average_gradients(model: nn.Module, comm: Communicator) -> None:
    """See :meth:`spgnn.graph.DistGraph.average_gradients`."""
    if comm.size == 1:
        return
    if model not in _checked:
        check_replicated(model, comm)
    else:
        refuse_one_rank(model)  # it may have been in evaluation
    for group in _by_kind(_with_gradients(model, comm)):
        gradients = [_gradient(p) for p in group]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        comm.all_reduce(flat).wait()
        flat /= comm.size
        for p, part in zip(group, flat.split([p.numel() for p in group]), strict=True):
            if p.grad is None or p.grad.is_sparse:
                p.grad = part.view_as(p)
            else:
                p.grad.copy_(part.view_as(p))


def _with_gradients(model: nn.Module, comm: Communicator) -> list[nn.Parameter]:
    """Parameters that have a gradient on some rank. Collective.

    What no rank's loss looks at stays without a gradient, as on one process. In the same all-reduce
    one element of each parameter is compared: they were the same once, but a model may have been
    drawn anew since, by every rank from a generator of its own, or loaded on one rank alone.

    Raises
    ------
    InputError
        On all ranks, if they hold different ones.
    """
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    there = torch.tensor([p.grad is not None for _, p in learning], dtype=torch.float64)
    sample = _sample([p for _, p in learning])
    told = torch.cat((there, sample, -sample))
    comm.all_reduce(told, "max").wait()
    there, largest, least = told.view(3, -1)
    apart = largest + least > _DRIFT * torch.maximum(largest.abs(), least.abs()) + _LEAST_APART
    if apart.any():
        number = int(apart.nonzero()[0])
        raise InputError(
            f"ranks hold different {learning[number][0]} of the model, {-float(least[number]):.4g} "
            f"to {float(largest[number]):.4g} at one place: after reset_parameters(), or loading "
            "on one rank, call graph.replicate(model)"
        )
    return [p for (_, p), some in zip(learning, there.tolist(), strict=True) if some]


def _sample(parameters: list[nn.Parameter]) -> Tensor:
    """The element in the middle of each, float64 [parameters]; 0 where there is none."""
    with torch.no_grad():
        found = [
            p.reshape(-1)[p.numel() // 2] if p.numel() else p.new_zeros(()) for p in parameters
        ]
        kinds = {p.device for p in found}
        if len(kinds) > 1:
            found = [one.cpu() for one in found]
        wide = [one.abs().double() if one.is_complex() else one.double() for one in found]
        sample = torch.stack(wide) if wide else torch.zeros(0, dtype=torch.float64)
    # What has diverged is compared by its numbers alone.
    return sample.nan_to_num(0, 0, 0).cpu()


def _gradient(p: Tensor) -> Tensor:
    if p.grad is None:
        return torch.zeros_like(p)
    return p.grad.to_dense() if p.grad.is_sparse else p.grad


def _by_kind(parameters: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Those of one dtype and device together, in an order that all ranks have."""
    kinds = dict.fromkeys((p.dtype, p.device) for p in parameters)
    for kind in kinds:
        yield [p for p in parameters if (p.dtype, p.device) == kind]


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _check_model(model: nn.Module, comm: Communicator) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    lazy = [name for name, p in _tensors(model) if nn.parameter.is_lazy(p)]
    if lazy:
        raise InputError(f"{lazy[0]} of the model has no shape yet: run it once before")
    if comm.size > 1:
        refuse_one_rank(model)
    comm.check_agreement(
        "the model",
        **{name: (str(t.dtype), tuple(t.shape), t.requires_grad) for name, t in _tensors(model)},
    )
