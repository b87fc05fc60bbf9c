"""Parameters that all ranks hold, and the averages of their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from spgnn.autograd import all_reduced
from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.graph.foreign import pad_alike, refuse_one_rank, takes_hooks
from spgnn.graph.outputs import Marks

# Models that were seen to be the same on all ranks.
_checked: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
# Those whose parameters have hooks.
_replicas: WeakKeyDictionary[nn.Module, _Replica] = WeakKeyDictionary()
# So much of a parameter, and so much at all where it is small, may be what the rounding of machines
# of different kinds has come to.
_DRIFT, _LEAST_APART = 1e-2, 1e-3
# The same of losses, in the first so many backwards of a model.
_LOSS_DRIFT, _LEAST_LOSS, _FIRST_LOSSES = 1e-3, 1e-6, 16


def replicate(model: nn.Module, comm: Communicator) -> nn.Module:
    """Give all ranks the parameters and buffers of rank 0, in place. Collective."""
    _check_model(model, comm, lambda: pad_alike(model, comm))
    broadcast_((tensor for _, tensor in _tensors(model)), comm)
    _checked[model] = True
    if comm.size > 1:
        if model not in _replicas:
            _replicas[model] = _Replica(model)
        _replicas[model].hook(model, comm)
    return model


@torch.no_grad()
def broadcast_(tensors: Iterable[Tensor], comm: Communicator) -> None:
    """Overwrite tensors with those of rank 0. Collective."""
    for tensor in tensors:
        sent = tensor.detach().contiguous()
        comm.broadcast(sent, 0).wait()
        tensor.copy_(sent)


def check_replicated(model: nn.Module, comm: Communicator) -> None:
    """Make sure that all ranks hold the same parameters; name one that differs. Collective."""
    _check_model(model, comm)
    comm.check_agreement(
        "the model; give all ranks the same with graph.replicate(model), or the same seed",
        **{name: p.detach() for name, p in model.named_parameters()},
    )
    _checked[model] = True


def synchronise(model: nn.Module, comm: Communicator) -> nn.Module:
    """See :meth:`spgnn.graph.DistGraph.synchronise`."""
    if comm.size > 1 and isinstance(model, nn.Module) and not takes_hooks(model):
        raise InputError(
            "the model is scripted, and cannot fetch rows of other ranks: give the module that it "
            "was made of; modules inside it that do not see edge_index may be scripted"
        )
    replicate(model, comm)
    if comm.size > 1:
        if not _replicas[model].averages:
            Marks(comm, _replicas[model].note_loss).follow(model)
        _replicas[model].averages = True
    return model


def note_loss(comm: Communicator, loss: Tensor | None) -> None:
    """Note a loss of pairs, of whichever model, that is differentiated, and that it was."""
    for replica in list(_replicas.values()):
        replica.note_loss(comm, loss)


class _Replica:
    """Hooks of a model's parameters: their gradients become those of one process."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self.averages = False
        self._known: dict[int, ref[Tensor]] = {}
        self._returned: dict[str, Tensor] = {}  # or added up in .grad, which is not known yet
        self._added_up = False
        self._loss: Tensor | None = None  # of this backward
        self._compared = 0

    def hook(self, model: nn.Module, comm: Communicator) -> None:
        """Register hooks of the parameters that have none; `comm` averages from now on."""
        # Hooks of parameters live until the interpreter ends; the communicator must end before.
        self._comm = ref(comm)
        for name, p in model.named_parameters():
            hooked = self._known.get(id(p))
            if p.requires_grad and (hooked is None or hooked() is not p):
                self._known[id(p)] = ref(p)
                p.register_hook(_Hook(self, name))
                p.register_post_accumulate_grad_hook(_Hook(self, name))

    def gradient(self, name: str, gradient: Tensor | None) -> Tensor | None:
        """The gradient of a parameter is there; it may be returned, or added up."""
        comm = self._comm()
        if comm is None or gradient is None:  # nothing of it was looked at
            return gradient
        if torch.is_grad_enabled():  # it will be differentiated: all ranks do this for each
            dense = gradient.to_dense() if gradient.is_sparse else gradient
            return all_reduced(dense, comm) / comm.size
        self._returned[name] = gradient = gradient.clone()
        self._at_the_end()
        return gradient

    def note_loss(self, comm: Communicator, loss: Tensor | None) -> None:
        """Note the loss whose gradients are to come: where they are averaged, ranks compare it."""
        model = self._model()
        compares = model is not None and model.training and self._compared < _FIRST_LOSSES
        if loss is None or not compares or self._comm() is not comm:
            self._loss = None
            return
        if not self._compared:
            _warn_of_others(loss)
        self._loss = loss.detach()

    def added_up(self, name: str) -> None:
        """The gradient of a parameter was added up in ``.grad``."""
        if self._returned.pop(name, None) is not None:
            self._added_up = True
            self._at_the_end()

    def _at_the_end(self) -> None:
        # As DistributedDataParallel does it. Once would do, but a backward may fail.
        torch.autograd.Variable._execution_engine.queue_callback(self._average)

    def _average(self) -> None:
        returned, self._returned = self._returned, {}
        added_up, self._added_up = self._added_up, False
        model, comm = self._model(), self._comm()
        if comm is None:
            return
        if returned:
            sparse = [name for name, gradient in returned.items() if gradient.is_sparse]
            if sparse:
                why = "whose gradient is sparse: call backward instead"
                raise InputError(f"torch.autograd.grad of {sparse[0]}, {why}")
            comm.check_agreement("torch.autograd.grad", parameters=sorted(returned))
            _average(list(returned.values()), comm)
        if added_up and self.averages and model is not None:
            self._compared += 1
            average_gradients(model, comm, self._loss)


def _warn_of_others(loss: Tensor) -> None:
    """Say which parameters of a loss no graph averages: ranks may learn different ones."""
    hooked = {i for replica in list(_replicas.values()) for i in replica._known}
    nodes, seen = [loss.grad_fn], set[Any]()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [after for after, _ in node.next_functions]
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in hooked:
            warnings.warn(
                f"the loss has a parameter {list(leaf.shape)} of a module that no graph was given: "
                "graph.synchronise(module) averages its gradients over the ranks",
                stacklevel=2,
            )
            return


class _Hook:
    """A hook of one parameter; copies of the parameter have none."""

    def __init__(self, replica: _Replica, name: str) -> None:
        self._replica, self._name = replica, name

    def __call__(self, value: Tensor) -> Tensor | None:
        if isinstance(value, nn.Parameter):
            self._replica.added_up(self._name)
            return None
        return self._replica.gradient(self._name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of the model is on its own."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _average(gradients: list[Tensor], comm: Communicator) -> None:
    """Overwrite gradients with their averages over all ranks. Collective."""
    for kind in dict.fromkeys((g.dtype, g.device) for g in gradients):  # all ranks have this order
        group = [g for g in gradients if (g.dtype, g.device) == kind]
        flat = torch.cat([g.reshape(-1) for g in group])
        comm.all_reduce(flat).wait()
        flat /= comm.size
        for g, part in zip(group, flat.split([g.numel() for g in group]), strict=True):
            g.copy_(part.view_as(g))


@torch.no_grad()
def average_gradients(model: nn.Module, comm: Communicator, loss: Tensor | None = None) -> None:
    """See :meth:`spgnn.graph.DistGraph.average_gradients`."""
    if comm.size == 1:
        return
    if model not in _checked:
        check_replicated(model, comm)
    else:
        refuse_one_rank(model)  # it may have been in evaluation
    parameters = _with_gradients(model, comm, loss)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        elif p.grad.is_sparse:
            p.grad = p.grad.to_dense()
    _average([p.grad for p in parameters if p.grad is not None], comm)


def _with_gradients(
    model: nn.Module, comm: Communicator, loss: Tensor | None
) -> list[nn.Parameter]:
    """Parameters that have a gradient on some rank. Collective."""
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    there = torch.tensor(
        [p.grad is not None for _, p in learning], dtype=torch.float64, device="cpu"
    )
    sample = _sample([p for _, p in learning])
    # Ranks without a loss have none that is larger or less.
    ends = sample.new_full((2,), -torch.inf)
    if loss is not None:
        value = loss.double().cpu().reshape(()).nan_to_num(1e300, 1e301, -1e301)
        ends = torch.stack((value, -value))
    compared = torch.cat((there, sample, -sample, ends))
    comm.all_reduce(compared, "max").wait()
    there, largest, least = compared[:-2].view(3, -1)
    apart = largest + least > _DRIFT * torch.maximum(largest.abs(), least.abs()) + _LEAST_APART
    if apart.any():
        number = int(apart.nonzero()[0])
        raise InputError(
            f"ranks hold different {learning[number][0]} of the model, {-float(least[number]):.4g} "
            f"to {float(largest[number]):.4g} at one place: after reset_parameters(), or loading "
            "on one rank, call graph.replicate(model)"
        )
    most, lowest = float(compared[-2]), -float(compared[-1])
    if most - lowest > _LOSS_DRIFT * max(abs(most), abs(lowest)) + _LEAST_LOSS:
        raise InputError(
            f"backward of a loss that is {lowest:.5g} on one rank and {most:.5g} on another: each "
            "took it over its own rows; take graph.mean(loss_of_each_row, mask), graph.sum of each "
            "rank's share, or F.binary_cross_entropy_with_logits(model.decoder(z, pairs, "
            "sigmoid=False), ones) of graph.pairs(…)"
        )
    return [p for (_, p), some in zip(learning, there.tolist(), strict=True) if some]


def _sample(parameters: list[nn.Parameter]) -> Tensor:
    """The element in the middle of each, float64 [parameters]; 0 where there is none."""
    with torch.no_grad():
        elements = [
            p.reshape(-1)[p.numel() // 2] if p.numel() else p.new_zeros(()) for p in parameters
        ]
        if len({p.device for p in elements}) > 1:
            elements = [one.cpu() for one in elements]
        wide = [one.abs().double() if one.is_complex() else one.double() for one in elements]
        sample = torch.stack(wide) if wide else torch.zeros(0, dtype=torch.float64, device="cpu")
    # What has diverged is compared by its numbers alone.
    return sample.nan_to_num(0, 0, 0).cpu()


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _check_model(
    model: nn.Module, comm: Communicator, prepare: Callable[[], None] = lambda: None
) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, got {type(model).__name__}")
    for name, p in _tensors(model):
        if p.is_meta:
            raise InputError(f"{name} of the model is on device meta, without values: to_empty()")
    prepare()
    lazy = [name for name, p in _tensors(model) if nn.parameter.is_lazy(p)]
    if lazy:
        raise InputError(f"{lazy[0]} of the model has no shape yet: run it once before")
    if comm.size > 1:
        refuse_one_rank(model)
    comm.check_agreement(
        "the model",
        **{name: (str(t.dtype), tuple(t.shape), t.requires_grad) for name, t in _tensors(model)},
    )
