"""The operators as torch knows them, and the ways to them.

Every operation is an operator ``torch.ops.spgnn.*``, so profilers and dispatch modes see its name.
What can be differentiated is an `Operator`: autograd, transforms and tracers find it there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from spgnn.errors import InputError

native: Any = importlib.import_module("spgnn._native")
_library: Any = torch.library.Library("spgnn", "DEF")

# Below this many multiplications a second thread costs more than it saves.
SERIAL_LIMIT = 32768
_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_INDEX_NAMES = {torch.int32: "int32", torch.int64: "int64"}


def by_type(function: str) -> dict[torch.dtype, Any]:
    """A C++ function for every dtype."""
    return {dtype: getattr(native, f"{function}_{name}") for dtype, name in _NAMES.items()}


def by_types(function: str) -> dict[tuple[torch.dtype, torch.dtype], Any]:
    """A C++ function for every dtype and dtype of indices."""
    return {
        (dtype, index): getattr(native, f"{function}_{name}_{index_name}")
        for dtype, name in _NAMES.items()
        for index, index_name in _INDEX_NAMES.items()
    }


def threads(work: int) -> int:
    """How many threads so many multiplications are worth."""
    return 1 if work < SERIAL_LIMIT else torch.get_num_threads()


def address(array: Tensor | None) -> int:
    """Where an array begins; 0 stands for none."""
    return 0 if array is None else array.data_ptr()


def dense(array: Tensor | None) -> Tensor | None:
    """The array without gaps."""
    return None if array is None else array.contiguous()


def unit_stride(X: Tensor) -> Tensor:
    """X with neighbouring columns next to each other."""
    return X if X.stride(-1) == 1 or X.shape[-1] == 1 else X.contiguous()


def on_cuda(name: str) -> Callable[..., None]:
    """The CUDA kernel of that name, imported on first use: CuPy is an optional dependency."""

    def kernel(*arguments: Any) -> None:
        cuda = importlib.import_module("spgnn.kernels.cuda")
        getattr(cuda.implementation(), name)(*arguments)

    return kernel


def define(
    schema: str,
    *,
    cpu: Callable[..., None],
    cuda: Callable[..., None] | None,
    empty: Callable[..., Tensor] | None = None,
) -> Any:
    """Register an operator.

    Parameters
    ----------
    schema : str
        Without the namespace.
    cpu, cuda
        Kernels: they take the operator's arguments, and then the result that they are to write.
        ``None`` where nobody calls it on such tensors.
    empty
        Makes the result, uninitialised, from the arguments. Also all that tracers ask for. Without
        it the operator returns nothing.

    Returns
    -------
    OpOverload
    """
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    for device, kernel in (("CPU", cpu), ("CUDA", cuda)):
        if kernel is not None:
            _library.impl(name, kernel if empty is None else _making(empty, kernel), device)
    torch.library.register_fake(f"spgnn::{name}", _nothing if empty is None else empty)
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.spgnn, packet), overload or "default")


def define_computed(schema: str, *, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register an operator that makes its results itself, on any device.

    Parameters
    ----------
    schema : str
        Without the namespace.
    compute
        Returns what the schema says, from the operator's arguments.
    fake
        The same, uninitialised: all that tracers ask for.

    Returns
    -------
    OpOverload
    """
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    for device in ("CPU", "CUDA"):
        _library.impl(name, compute, device)
    torch.library.register_fake(f"spgnn::{name}", fake)
    return getattr(torch.ops.spgnn, name).default


def _making(empty: Callable[..., Tensor], kernel: Callable[..., None]) -> Callable[..., Tensor]:
    def make(*arguments: Any) -> Tensor:
        result = empty(*arguments)
        kernel(*arguments, result)
        return result

    return make


def _nothing(*arguments: Any) -> None:
    return None


operators: dict[str, Operator] = {}
"""By name: operations that are each other's gradients find each other here."""


def watched(*arguments: object) -> bool:
    """Whether somebody looks on: autograd, a transform, a tracer."""
    if traced():
        return True
    if torch.is_grad_enabled():
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.requires_grad:
                return True
    return False


def traced() -> bool:
    """Whether what happens now is to be done again otherwise: compiled, batched, differentiated."""
    return torch.compiler.is_compiling() or transformed()


def transformed() -> bool:
    """Whether a transform of torch.func or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


class Operator:
    """An operator with derivatives of every order, in forward mode too, and batches.

    Parameters
    ----------
    overload : OpOverload
        Of :func:`define`.
    save, backward
        As for :func:`torch.library.register_autograd`; ``backward`` uses operators only, so that it
        can be differentiated itself.
    batched
        As for :func:`torch.library.register_vmap`.
    tangent : optional
        Makes the derivative along tangents (``None`` where there is none) from the arguments and
        these. Without it the operator is linear in every argument that has one.
    in_place : OpOverload, optional
        Takes the same arguments and writes the result over the first of them.
    """

    def __init__(
        self,
        overload: Any,
        *,
        save: Callable[..., None],
        backward: Callable[..., Any],
        batched: Callable[..., tuple[Tensor, int]],
        tangent: Callable[..., Tensor] | None = None,
        in_place: Any = None,
    ) -> None:
        self.overload, self.in_place = overload, in_place
        self.save, self.backward, self.batched = save, backward, batched
        self.tangent = tangent or self._linear
        operators[overload._schema.name.partition("::")[2]] = self
        torch.library.register_autograd(overload, backward, setup_context=save)
        torch.library.register_vmap(overload, batched)

    def __call__(self, *arguments: Any) -> Tensor:
        """The result, recorded by whoever looks on."""
        result: Tensor
        if torch.compiler.is_compiling():
            result = self.overload(*arguments)
        elif torch._C._are_functorch_transforms_active():
            result = _Recorded.apply(*arguments, self)  # type: ignore[no-untyped-call]
        elif watched(*arguments):
            # What `apply` does where there are no transforms, without looking at signatures.
            result = super(Function, _Recorded).apply(*arguments, self)  # type: ignore[no-untyped-call]
        else:
            with torch._C._AutoDispatchBelowAutograd():
                result = self.overload._op(*arguments)
        return result

    def overwriting(self, *arguments: Any) -> Tensor:
        """The result, written over the first argument; traced, it is a tensor of its own."""
        if traced():
            return self(*arguments)
        result: Tensor = arguments[0]
        if watched(*arguments):
            result = super(Function, _Overwritten).apply(*arguments, self)  # type: ignore[no-untyped-call]
        else:
            with torch._C._AutoDispatchBelowAutograd():
                self.in_place._op(*arguments)
        return result

    def _linear(self, arguments: Sequence[Any], tangents: Sequence[Tensor | None]) -> Tensor:
        terms = [
            self(*arguments[:place], tangent, *arguments[place + 1 :])
            for place, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return sum(terms[1:], terms[0])


def only_batched(name: str, in_dims: Sequence[int | None], *places: int) -> None:
    """Refuse batches of anything but the arguments at these places."""
    if any(dim is not None for place, dim in enumerate(in_dims) if place not in places):
        raise InputError(
            f"{name}: vmap takes batches of dense matrices and values, of nothing else"
        )


def with_batch(X: Tensor, dim: int | None, info: Any, place: int) -> Tensor:
    """X with its batch dimension at a place from the end; what has none is the same for all."""
    if dim is not None:
        return X.movedim(dim, place)
    wide = X.unsqueeze(place)
    shape = list(wide.shape)
    shape[place] = info.batch_size
    return wide.expand(shape)


class _Recorded(Function):
    """An operator as a node of autograd, which transforms can take apart."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = arguments[-1].overload._op(*arguments[:-1])
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *arguments, ctx.operator = inputs
        ctx.operator.save(ctx, arguments, output)
        if forward_ad._current_level >= 0:
            kept = [argument if isinstance(argument, Tensor) else None for argument in arguments]
            ctx.others = [None if isinstance(a, Tensor) else a for a in arguments]
            ctx.save_for_forward(*kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *ctx.operator.backward(ctx, *grads), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        kept = zip(ctx.saved_tensors, ctx.others, strict=True)
        arguments = [other if tensor is None else tensor for tensor, other in kept]
        result: Tensor = ctx.operator.tangent(arguments, tangents[:-1])
        return result

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        result: tuple[Tensor, int] = arguments[-1].batched(info, in_dims[:-1], *arguments[:-1])
        return result


class _Overwritten(_Recorded):
    """The same, written over the first argument."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            arguments[-1].in_place._op(*arguments[:-1])
        result: Tensor = arguments[0]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_dirty(output)
        _Recorded.setup_context(ctx, inputs, output)
