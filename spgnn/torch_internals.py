"""All that spgnn uses of torch that is not public.

A product of a small graph takes microseconds, and torch's public way to an operator takes 20 to 50:
it looks at Python signatures, and calls autograd's own function even where nothing is recorded.
These shortcuts leave out what would find nothing to do. Each has a public detour, named here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import timedelta
from functools import wraps
from itertools import count
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.autograd import Function, forward_ad
from torch.optim.optimizer import _global_optimizer_post_hooks as _hooks_after
from torch.optim.optimizer import _global_optimizer_pre_hooks as _hooks_before
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from spgnn.errors import InputError


def below_autograd() -> AbstractContextManager[None]:
    """Operators run without asking autograd, as under ``torch.no_grad()`` but not through it."""
    guard: AbstractContextManager[None] = torch._C._AutoDispatchBelowAutograd()
    return guard


def direct(overload: Any) -> Callable[..., Any]:
    """The overload's own function: ``overload`` without one more call from Python."""
    function: Callable[..., Any] = overload._op
    return function


def recorder(node: type[Function]) -> Callable[..., Any]:
    """``node.apply``, or, where no transform is at work, what looks at no signature."""
    if transforms_active():
        return node.apply
    apply: Callable[..., Any] = super(Function, node).apply  # type: ignore[misc]
    return apply


# True while a transform of ``torch.func`` is at work; torch has no public way to ask.
transforms_active: Callable[[], bool] = torch._C._are_functorch_transforms_active
# True while ``torch.jit.trace`` records; its own word is not typed.
tracing: Callable[[], object] = torch._C._get_tracing_state
# Looked up once: a chain of attributes takes as long as the call.
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled
is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
# True while torch.autocast is at work for some type of devices; its public way asks for one type.
casting: Callable[[], bool] = torch._C._is_any_autocast_enabled


def transformed() -> bool:
    """True while a transform of ``torch.func`` or forward-mode differentiation is at work."""
    return transforms_active() or forward_ad._current_level >= 0


def traced() -> bool:
    """True while operations are recorded: to be compiled, batched or differentiated."""
    return torch.compiler.is_compiling() or transforms_active() or forward_ad._current_level >= 0


def watched(*arguments: object) -> bool:
    """True if autograd, a transform or a tracer records operations on these."""
    if is_compiling() or transforms_active() or forward_ad._current_level >= 0:
        return True
    if is_grad_enabled():
        for argument in arguments:
            if argument is not None and isinstance(argument, Tensor) and argument.requires_grad:
                return True
    return False


def operators_seen(*arguments: object) -> bool:
    """True if a transform, mode, profiler, subclass or the dispatcher sees calls of operators."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            plain = type(argument) is Tensor or type(argument) is nn.Parameter
            if not plain or argument.is_neg() or argument.is_meta:
                return True
    return (
        dispatch_modes() > 0
        or function_modes() > 0
        or profiled()
        or tracing() is not None
        or transforms_active()
        or forward_ad._current_level >= 0
    )


def forward_mode() -> bool:
    """True while forward-mode differentiation is at work; torch has no public way to ask."""
    return forward_ad._current_level >= 0


def is_fake(tensor: Tensor) -> bool:
    """True for a tracer's tensor, which has no memory; torch has no public way to ask."""
    return isinstance(tensor, FakeTensor)


def has_hooks(module: nn.Module, *ours: Callable[..., object]) -> bool:
    """True if more than its forward runs when a module is called; hooks of ours do not count."""
    return bool(
        module._forward_hooks
        or any(hook not in ours for hook in module._forward_pre_hooks.values())
        or module._backward_hooks
        or module._backward_pre_hooks
        or nn.modules.module._has_any_global_hook()
    )


def constant_when_compiled(function: Callable[..., None]) -> Callable[..., None]:
    """``torch.compiler.assume_constant_result``, without importing the compiler: a second more."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


_by_handle: WeakValueDictionary[int, Any] = WeakValueDictionary()
_handles = count(1)  # never one again: a backward may come after its matrix was forgotten


def named(owner: object) -> int:
    """A number for an object, under which compiled graphs find it as long as it lives."""
    handle = next(_handles)
    _by_handle[handle] = owner
    return handle


def with_name(handle: int) -> Any:
    """The object of a number; InputError if it is gone, as where a halo was planned again."""
    owner = _by_handle.get(handle)
    if owner is None:
        raise InputError(
            "a compiled function names a matrix, a halo or a group that is there no more"
        )
    return owner


def without_compiler(optimizer: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """An optimiser that does not import ``torch._dynamo``, which takes as long as torch."""
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict", "step")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    whole = optimizer.profile_hook_step(torch.no_grad()(methods["step"]))

    def step(self: Any, closure: Any = None) -> Any:
        return None if closure is None and _stepped(self) else whole(self, closure)

    step.hooked = True  # type: ignore[attr-defined]
    return type(optimizer.__name__, (optimizer,), {**methods, "step": step})


def _stepped(optimizer: Any) -> bool:
    """Take a fused step of Adam on the CPU; False, and none is taken, if anything is otherwise.

    What torch does besides, hooks, notes for profilers and lists by device, takes twice as long.
    """
    groups, state = optimizer.param_groups, optimizer.state
    every = [p for group in groups for p in group["params"] if p.grad is not None]
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    if (
        (hooks or _hooks_before or _hooks_after or profiled() or hasattr(optimizer, "grad_scale"))
        or not isinstance(optimizer, torch.optim.Adam)
        or not all([p.is_cpu and p in state and not p.grad.is_sparse for p in every])
        or not all([g["fused"] and not g["amsgrad"] and type(g["lr"]) is float for g in groups])
        or len({p.dtype for p in every}) != 1
    ):
        return False
    with below_autograd():
        for group in groups:
            learnt = [p for p in group["params"] if p.grad is not None]
            if not learnt:
                continue
            names = "exp_avg", "exp_avg_sq", "step"
            means, squares, counts = ([state[p][name] for p in learnt] for name in names)
            for number in counts:  # a third of the time that torch._foreach_add_ takes
                number.fill_(number.item() + 1)
            lists: Any = learnt, [p.grad for p in learnt], means, squares, [], counts
            numbers = {name: group[name] for name in ("lr", "weight_decay", "eps", "maximize")}
            numbers["beta1"], numbers["beta2"] = group["betas"]
            run = torch._fused_adamw_ if group.get("decoupled_weight_decay") else torch._fused_adam_
            run(*lists, amsgrad=False, **numbers)
    return True


class DispatchMode(TorchDispatchMode):
    """A mode whose handler the compiler leaves alone; torch imports ``torch._dynamo`` to say so."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        handler = type(self).__torch_dispatch__
        if "torch._dynamo" in sys.modules and not hasattr(handler, "_torchdynamo_disable"):
            type(self).__torch_dispatch__ = torch.compiler.disable(handler)  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def graph_break(why: str, owner: Any) -> Exception:
    """An error at which torch.compile runs a frame as it is; it never looks into `owner` again."""
    from torch._dynamo.exc import Unsupported

    if isinstance(vars(owner)["__torch_function__"], classmethod):
        owner.__torch_function__ = staticmethod(torch.compiler.disable(owner.__torch_function__))
    return Unsupported(why)


def below_modes(device: torch.device) -> Any:
    """The key by which an operator that a mode holds goes on to its kernel for a device."""
    keys = torch._C.DispatchKey
    return torch._C.DispatchKeySet(keys.CUDA if device.type == "cuda" else keys.CPU)


def in_backward() -> bool:
    """True while autograd is at work, as where ``torch.utils.checkpoint`` runs a forward again."""
    return torch._C._current_graph_task_id() >= 0


@contextmanager
def untraced() -> Iterator[None]:
    """Hide from tracers and transforms whatever is computed within: once, and kept."""
    with _disable_current_modes(), torch._C._DisableFuncTorch():
        yield


def groups_made() -> int:
    """Process groups in this process, after which torch names the next one."""
    return len(torch.distributed.distributed_c10d._world.pg_names)


def set_timeout(process_group: Any, timeout: timedelta) -> None:
    """Change the time-out of a process group; NCCL has it in no call's arguments."""
    torch.distributed.distributed_c10d._set_pg_timeout(timeout, process_group)


def store_of(process_group: Any) -> Any:
    """The store through which the members of a process group met; ``None`` if they had none."""
    return torch.distributed.distributed_c10d._world.pg_map[process_group][1]


def timeout_of(process_group: Any, device: torch.device) -> timedelta:
    """Time-out of a process group, of its backend for a device."""
    timeout: timedelta = process_group._get_backend(device).options._timeout
    return timeout


def unlisted_group(
    store: Any, rank: int, size: int, name: str, timeout: timedelta, cuda: bool
) -> Any:
    """A process group of gloo, with `cuda` also NCCL, that torch does not list or number."""
    dist: Any = torch.distributed
    group, kinds = dist.ProcessGroup(store, rank, size), dist.ProcessGroup.BackendType
    group._set_default_backend(kinds.NCCL if cuda else kinds.GLOO)
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("cpu", store), rank, size, timeout)
    gloo._set_sequence_number_for_group()
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    if cuda:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        nccl = dist.ProcessGroupNCCL(dist.PrefixStore("cuda", store), rank, size, options)
        nccl._set_sequence_number_for_group()
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    group._set_group_name(name)
    group._set_group_desc(name)
    return group


def plain_tensors() -> AbstractContextManager[None]:
    """Within it subclasses of Tensor are tensors, and nothing asks them what to do."""
    guard: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()
    return guard


def current_stream(device: int) -> int:
    """The address of torch's current stream, without the object around it: a fifth of the time."""
    stream: int = torch._C._cuda_getCurrentRawStream(device)
    return stream


def at_work(device: int) -> AbstractContextManager[Any]:
    """Makes a device the current one, at no cost where it is."""
    if torch._C._cuda_getDevice() == device:
        return nullcontext()
    return torch.cuda.device(device)


def forked_from_cuda() -> bool:
    """True in a fork of a process whose torch has begun to use GPUs, which a fork cannot."""
    return bool(torch.cuda._is_in_bad_fork()) and torch.cuda._device_count_nvml() > 0


def default_device(device: torch.device) -> AbstractContextManager[Any]:
    """Within it tensors are made there if nobody says where, whatever the program's default is."""
    nothing = not torch._C._len_torch_function_stack()  # as there is without such a default
    return nullcontext() if nothing else device


CPU = torch.device("cpu")
F = TypeVar("F", bound=Callable[..., Any])


def on_cpu(function: F) -> F:
    """A function or generator whose own lists lie on the CPU, whatever the default device."""

    @wraps(function)
    def guarded(*arguments: Any, **named: Any) -> Any:
        if not function_modes():  # as there is without such a default
            return function(*arguments, **named)
        with CPU:
            return function(*arguments, **named)

    @wraps(function)
    def step_by_step(*arguments: Any, **named: Any) -> Any:
        with closing(function(*arguments, **named)) as steps:
            while True:
                with default_device(CPU):
                    step = next(steps, steps)
                if step is steps:
                    return
                yield step

    wrapped: Any = step_by_step if inspect.isgeneratorfunction(function) else guarded
    return cast(F, wrapped)
