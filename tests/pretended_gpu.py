"""A GPU that is pretended: tensors that lie on the host, and behave as if they lay on a GPU.

They say that they are on ``cuda:0``. An operation on them and on tensors of the host together is
refused, and so is reading them as arrays; a copy to the host, and whatever else makes the host wait
for the device, is counted with the line that asked for it. The kernels of the device are either the
CPU's, on the same memory, or those of :mod:`spgnn.kernels.torch_kernels`.

A process group can be pretended as well (:func:`late_group`), which takes such tensors, as NCCL
does, and does nothing before it is waited for.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

import spgnn
from spgnn.comm.torchdist import TorchCommunicator
from spgnn.kernels import cpu, extremes, library, torch_kernels
from spgnn.torch_internals import in_backward

if TYPE_CHECKING:
    from tests.addons.cuda.emulation import EmulatedDevice

GPU, HOST = torch.device("cuda", 0), torch.device("cpu")
PACKAGE = str(Path(spgnn.__file__).parent)
# These return something whose size depends on numbers on the device.
SIZES = ("nonzero", "masked_select", "unique", "_unique2", "unique_dim", "unique_consecutive")
READS = ("_local_scalar_dense", "equal", "is_nonzero", "item")
ON_HOST = [False]
waits: Counter[str] = Counter()


def waited(what: str) -> None:
    """Count a wait of the host, by the innermost line of the package that asked for it."""
    frame: Any = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    where = "elsewhere"
    if frame is not None:
        where = f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
    waits[f"{where} {what}"] += 1


@contextmanager
def on_host() -> Iterator[None]:
    """Within it tensors of the device are what they are: memory of the host."""
    before, ON_HOST[0] = ON_HOST[0], True
    try:
        with torch._C._DisableTorchDispatch():
            yield
    finally:
        ON_HOST[0] = before


class Pretended(Tensor):
    """A tensor on the pretended GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: HOST if ON_HOST[0] else GPU)  # type: ignore[assignment]
    is_cuda = property(lambda self: not ON_HOST[0])  # type: ignore[assignment]
    is_cpu = property(lambda self: ON_HOST[0])  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace == "spgnn":
            check_one_device(func, args, kwargs)
            key = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
            return func.redispatch(key, *args, **kwargs)
        return computed(func, args, kwargs)

    def get_device(self) -> int:
        return 0

    def numpy(self, **how: Any) -> Any:
        if ON_HOST[0]:
            return plain(self).numpy(**how)
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def __array__(self, *how: Any, **more: Any) -> Any:
        if ON_HOST[0]:
            return plain(self).__array__(*how, **more)
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def as_subclass(self, cls: type[Tensor]) -> Any:
        """The same memory, still on the device."""
        kind = Pretended if cls is Tensor else _of_both(cls)
        with torch._C._DisableTorchDispatch():
            return Tensor._make_subclass(kind, self)

    def tolist(self) -> Any:
        waited("tolist")
        return plain(self).tolist()

    def new_tensor(self, *args: Any, **kwargs: Any) -> Tensor:
        return away(torch.tensor(*args, **{"dtype": self.dtype} | kwargs))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = away(plain(self.detach()).clone()).requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return away, (plain(self.detach()),)

    def __repr__(self, **how: Any) -> str:
        return f"on {GPU}: {plain(self.detach())!r}"


@cache
def _of_both(cls: type[Tensor]) -> type[Tensor]:
    """A subclass of tensors, on the device."""
    return type(cls.__name__, (cls, Pretended), {})


def away(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of the device."""
    if isinstance(tensor, Pretended):
        return tensor
    with torch._C._DisableTorchDispatch():
        return Tensor._make_subclass(Pretended, tensor)


def plain(tensor: Tensor) -> Tensor:
    """The same memory as a tensor of the host."""
    if not isinstance(tensor, Pretended):
        return tensor
    with torch._C._DisableTorchDispatch():
        return Tensor._make_subclass(Tensor, tensor)


def tensors_of(*values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def check_one_device(func: Any, args: Any, kwargs: Any) -> None:
    """As torch does it: single numbers of the host may go with tensors of the device."""
    here = [t for t in tensors_of(args, kwargs) if not isinstance(t, Pretended)]
    foreign = here if func.namespace == "spgnn" else [t for t in here if t.dim()]
    if func is torch.ops.aten.cat.default and in_backward():
        foreign = []  # a split's gradients, of which torch makes those that are zero
    if foreign:
        shapes = [list(t.shape) for t in foreign]
        raise RuntimeError(f"{func}: operands on {GPU} and, of shape {shapes}, on the host")


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute where the memory is; results are on the device unless the host was named."""
    name = func.overloadpacket.__name__
    if func.namespace == "c10d":
        raise RuntimeError(f"{func}: gloo was given tensors of the device")
    if name == "copy_":
        if isinstance(args[0], Pretended) != isinstance(args[1], Pretended):
            # From pageable memory, or to any memory that the host then reads.
            waited("copy_")
    else:
        check_one_device(func, args, kwargs)
    if name in SIZES or name in READS or _by_mask(name, args):
        waited(name)
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        waited(name)
    if "device" in kwargs:
        kwargs["device"] = HOST  # which autograd passes as well, taking the memory at its word
    kwargs.pop("pin_memory", None)
    with torch._C._DisableTorchDispatch():
        result = func(*args, **kwargs)
    return pytree.tree_map_only(Tensor, away, result)


def _by_mask(name: str, args: Any) -> bool:
    """True for an index that is a mask: its places are looked for first."""
    if name not in ("index", "index_put", "index_put_"):
        return False
    return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.to``."""
    values = list(args)
    target, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    if values and isinstance(values[0], Tensor):
        other = values.pop(0)
        target, dtype = other.device, other.dtype
    else:
        if values and (values[0] is None or isinstance(values[0], (str, int, torch.device))):
            target = values.pop(0)
        if values and (values[0] is None or isinstance(values[0], torch.dtype)):
            dtype = values.pop(0)
    how = dict(zip(("non_blocking", "copy"), values, strict=False)) | kwargs
    if target is not None:
        target = torch.device("cuda", target) if isinstance(target, int) else torch.device(target)
    if target is not None and target.type == "meta":
        return torch.empty_like(plain(tensor), device=target, dtype=dtype)
    dtype, there = dtype or tensor.dtype, isinstance(tensor, Pretended)
    if target is None or (target.type == "cuda") == there:
        return torch._C.TensorBase.to(tensor, dtype, **how)
    if there:
        waited("to the host")
    elif not how.get("non_blocking"):
        waited("to the device")
    copied = Crossing.apply(tensor, not there, dtype)
    made = getattr(streams, "made", None)
    if made is not None and how.get("non_blocking") and not there:
        if not tensor.is_pinned():
            raise AssertionError("a copy beside the training is from memory that is not pinned")
        made.late.append((copied, plain(copied).clone()))
        spoil(plain(copied))
    return copied


def apply(module: torch.nn.Module, move: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
    """``Module._apply``: parameters that cross are others, which torch would write over."""
    for part in module.children():
        part._apply(move)
    for name, parameter in module._parameters.items():
        if isinstance(parameter, UninitializedParameter):
            parameter.lies_there = isinstance(move(torch.empty(0)), Pretended)
            parameter.data = plain(move(parameter.data))
        elif parameter is not None:
            moved = move(parameter.detach())
            if isinstance(moved, Pretended) == isinstance(parameter, Pretended):
                parameter.data = moved
                continue
            other = parameter.__dict__.get("other_side")
            if other is None:  # or it was met before, in another module
                other = torch.nn.Parameter(moved, parameter.requires_grad)
                parameter.other_side = other
            module._parameters[name] = other
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = move(buffer)
    return module


def materialize(parameter: Any, *args: Any, **kwargs: Any) -> None:
    """``UninitializedParameter.materialize``, on the device if it was moved there."""
    _materialize(parameter, *args, **kwargs)
    if getattr(parameter, "lies_there", False):
        there = torch.nn.Parameter(away(parameter.detach()), parameter.requires_grad)
        torch.utils.swap_tensors(parameter, there)


_materialize = UninitializedParameter.materialize


def _lazy_device(parameter: Any) -> torch.device:
    return GPU if parameter.__dict__.get("lies_there") else HOST


class Crossing(torch.autograd.Function):
    """A copy to the device or back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, there: bool, dtype: torch.dtype) -> Tensor:
        ctx.dtype = tensor.dtype
        copied = torch._C.TensorBase.to(plain(tensor), dtype, copy=True)
        return away(copied) if there else copied

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return to(grad, HOST if isinstance(grad, Pretended) else GPU, ctx.dtype), None, None


def factory(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch that makes tensors, with the pretended device among its devices."""

    @wraps(make)
    def made(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type != "cuda":
            result = make(*args, **kwargs, **({} if device is None else {"device": device}))
            return pinned(result) if pin_memory else result
        if make in (torch_as_tensor, torch_tensor) and isinstance(args[0], Tensor):
            return to(args[0].clone() if make is torch_tensor else args[0], GPU)
        result = make(*args, **kwargs)
        return away(result.detach()).requires_grad_(result.requires_grad)

    return made


def like(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes tensors like its first argument, on its device or on another."""

    @wraps(make)
    def made(
        first: Tensor, *args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any
    ):
        if device is None or torch.device(device).type == "meta":
            return make(first, *args, **kwargs, **({} if device is None else {"device": device}))
        result = make(plain(first), *args, **kwargs)
        return result if torch.device(device).type == "cpu" else away(result)

    return made


def by_memory(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of torch that makes tensors where the memory of its first argument is."""

    @wraps(function)
    def run(first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = function(plain(first), *args, **kwargs)
        return away(result) if isinstance(first, Pretended) else result

    return run


torch_as_tensor, torch_tensor = torch.as_tensor, torch.tensor
FACTORIES = (
    *("empty", "zeros", "ones", "full", "arange", "tensor", "as_tensor", "rand", "randn", "eye"),
    *("randint", "randperm", "linspace", "empty_strided"),
)
LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
NEW = ("new_empty", "new_zeros", "new_ones", "new_full")


class OfTheCpu:
    """The CPU's kernels, for tensors of the device."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(cpu, name)

        @wraps(kernel)
        def run(*args: Any) -> Any:
            with on_host():
                found = kernel(*args)
            return pytree.tree_map_only(Tensor, away, found)

        return run


def launch(emulated: EmulatedDevice, kernel: str, grid: Any, arguments: Any) -> None:
    """Run a kernel of the device, emulated."""
    with on_host():
        emulated.launch(kernel, grid, arguments)


KERNELS = {"cpu": OfTheCpu(), "torch": torch_kernels}


class Stream:
    """A stream whose work is done at once; one that was made, when its event is waited for.

    Until then what it copies to is garbage.
    """

    cuda_stream = 0

    def __init__(self, device: Any = None) -> None:
        self.late: list[tuple[Tensor, Tensor]] = []

    def record_event(self) -> Any:
        copies, self.late = self.late, []
        return SimpleNamespace(copies=copies)

    def wait_event(self, event: Any) -> None:
        for target, source in getattr(event, "copies", ()):
            plain(target).copy_(source)

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None:
        waited("synchronize")


streams = threading.local()  # the one of this thread that was made, while it is the current one


@contextmanager
def stream(made: Stream) -> Iterator[None]:
    """``torch.cuda.stream``."""
    streams.made = made
    try:
        yield
    finally:
        del streams.made


def pinned(tensor: Tensor) -> Tensor:
    """The same memory, said to be pinned."""
    tensor.lies_pinned = True  # type: ignore[attr-defined]
    return tensor


class Event:
    """An event on a stream whose work is done at once."""

    def __init__(self, **how: Any) -> None: ...

    def record(self, stream: Any = None) -> None: ...

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        waited("event")


@contextmanager
def pretended_gpu(kernels: str | EmulatedDevice = "cpu", count: int = 1) -> Iterator[Counter[str]]:
    """Within it there are GPUs; yields the waits of the host, by line and operation.

    Its kernels are the CPU's, those of :mod:`spgnn.kernels.torch_kernels` (``"torch"``), or its
    own, emulated. For a process of its own, as ranks of :func:`spgnn.testing.run_ranks` are.
    """
    _device_constructors()  # of torch.device as a context: torch's own functions
    functions = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: waited("synchronize"),
        "current_stream": lambda device=None: Stream(),
        "Event": Event,
        "Stream": Stream,
        "stream": stream,
        "_lazy_init": lambda: None,
        "empty_cache": lambda: None,
        "get_device_properties": lambda device: SimpleNamespace(
            total_memory=2**33, multi_processor_count=8, name="pretended"
        ),
    }
    autocast, enabled = torch.autocast, torch.is_autocast_enabled
    dtype = torch.get_autocast_dtype
    with ExitStack() as stack:

        def change(where: Any, name: str, new: Any) -> None:
            stack.enter_context(patch.object(where, name, new))

        for name, function in functions.items():
            change(torch.cuda, name, function)
        for name in FACTORIES:
            change(torch, name, factory(getattr(torch, name)))
        for name in LIKE:
            change(torch, name, like(getattr(torch, name)))
        for name in NEW:
            change(torch.Tensor, name, like(getattr(torch.Tensor, name)))
        change(torch.nn.functional, "one_hot", by_memory(torch.nn.functional.one_hot))
        change(UninitializedParameter, "materialize", materialize)
        change(UninitializedParameter, "device", property(_lazy_device))
        change(torch.Tensor, "to", to)
        change(torch.Tensor, "is_pinned", lambda tensor, *a: hasattr(tensor, "lies_pinned"))
        change(torch.Tensor, "pin_memory", lambda tensor, *a: pinned(tensor.clone()))
        change(torch.Tensor, "record_stream", lambda tensor, stream: None)
        change(torch.Tensor, "cpu", lambda tensor, **how: to(tensor, HOST))
        change(torch.Tensor, "cuda", lambda tensor, *where, **how: to(tensor, GPU))
        change(torch, "autocast", lambda device, *a, **k: autocast("cpu", *a, **k))
        change(torch, "is_autocast_enabled", lambda device="cpu": enabled("cpu"))
        change(torch, "get_autocast_dtype", lambda device: dtype("cpu"))
        if isinstance(kernels, str):
            change(library, "cuda_kernels", lambda: KERNELS[kernels])
        else:
            from spgnn.addons.cuda import device
            from spgnn.addons.cuda import kernels as native
            from tests.addons.cuda.emulation import cpu_properties

            change(library, "cuda_kernels", lambda: native)
            change(device, "launch", partial(launch, kernels))
            change(device, "properties", cpu_properties)
        if kernels == "cpu":
            change(extremes, "adds_in_order", lambda G: True)
        change(torch.nn.Module, "_apply", apply)
        stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        waits.clear()
        yield waits


class LateGroup:
    """A process group that takes tensors of any device, and is done where it is waited for.

    Until then what it writes to is garbage. What it reads must not change, and what it writes to
    must not be written by others.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def alltoall_base(self, recv: Tensor, send: Tensor, *counts: Any) -> Any:
        taken, made = plain(send).clone(), torch.empty_like(plain(recv))
        work = self._group.alltoall_base(made, taken, *counts)
        return LateWork(work, [(send, taken)], [(recv, made)])

    def _allgather_base(self, parts: Tensor, mine: Tensor) -> Any:
        taken, made = plain(mine).clone(), torch.empty_like(plain(parts))
        work = self._group._allgather_base(made, taken)
        return LateWork(work, [(mine, taken)], [(parts, made)])

    def allgather(self, parts: list[list[Tensor]], mine: list[Tensor]) -> Any:
        """Of parts of any sizes, which gloo does not know."""
        (blocks,), (own,) = parts, mine
        taken, made = plain(own).clone(), [torch.empty_like(plain(block)) for block in blocks]
        copies = taken.repeat(len(blocks), *[1] * (own.dim() - 1))
        received = torch.cat(made)
        counts = [len(block) for block in blocks], [len(own)] * len(blocks)
        work = self._group.alltoall_base(received, copies, *counts, dist.AllToAllOptions())
        written = zip(blocks, received.split(counts[0]), strict=True)
        return LateWork(work, [(own, taken)], list(written))

    def broadcast(self, buffers: list[Tensor], options: Any) -> Any:
        (buffer,) = buffers
        made, root = plain(buffer).clone(), options.rootRank == self._group.rank()
        pairs = [(buffer, made)]
        work = self._group.broadcast([made], options)
        return LateWork(work, pairs if root else [], [] if root else pairs)

    def reduce(self, buffers: list[Tensor], options: Any) -> Any:
        (buffer,) = buffers
        taken, root = plain(buffer).clone(), options.rootRank == self._group.rank()
        made = taken.clone()
        work = self._group.reduce([made], options)
        return LateWork(work, [] if root else [(buffer, taken)], [(buffer, made)] if root else [])

    def allreduce(self, buffers: list[Tensor], options: Any) -> Any:
        (buffer,) = buffers
        made = plain(buffer).clone()
        return LateWork(self._group.allreduce([made], options), [], [(buffer, made)])


class LateWork:
    """An operation of a :class:`LateGroup`."""

    def __init__(self, work: Any, read: Any, written: Any) -> None:
        self._work, self._read, self._written = work, read, written
        for buffer, _ in written:
            spoil(plain(buffer))
        self._spoilt = [plain(buffer).clone() for buffer, _ in written]

    def wait(self, *patience: Any) -> None:
        self._work.wait(*patience)
        for buffer, taken in self._read:
            if not same_bits(plain(buffer), plain(taken)):
                raise AssertionError("what is sent was written to before the end was waited for")
        for (buffer, made), spoilt in zip(self._written, self._spoilt, strict=True):
            if not same_bits(plain(buffer), spoilt):
                raise AssertionError("what is received was written to before the end")
            plain(buffer).copy_(plain(made))


def spoil(buffer: Tensor) -> None:
    """Write NaN, or the largest number."""
    if buffer.is_floating_point():
        buffer.fill_(torch.nan)
    elif buffer.dtype != torch.bool:
        buffer.fill_(torch.iinfo(buffer.dtype).max)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(t.contiguous().view(-1).view(torch.uint8) for t in (a, b)))


@contextmanager
def late_group() -> Iterator[None]:
    """Within it torch's process groups take tensors of the device, and are late."""
    group_for = TorchCommunicator._group_for
    with (
        patch.object(TorchCommunicator, "_group_for", lambda c, b: LateGroup(group_for(c, b))),
        patch.object(TorchCommunicator, "moves_cuda", property(lambda c: True, lambda c, _: None)),
    ):
        yield
