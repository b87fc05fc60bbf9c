"""The operators as torch knows them, and who works on them.

Every operation is an operator ``torch.ops.spgnn.*``, so profilers and dispatch modes see its name.
What can be differentiated is an `Operator`: autograd, transforms and tracers find it there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spgnn.errors import InputError
from spgnn.torch_internals import (
    below_autograd,
    direct,
    forward_mode,
    record,
    transforms_active,
)

_library: Any = torch.library.Library("spgnn", "DEF")


def kernels_for(tensor: Tensor) -> ModuleType:
    """The module with a function for each operation on tensors like this one.

    On CPUs the C++ functions, for the instruction set at work; on GPUs those of
    `spgnn.kernels.cuda`, imported on first use. Arguments have been checked; each function writes
    its result into its last arguments.
    """
    if tensor.is_cuda:
        module: ModuleType = importlib.import_module("spgnn.kernels.cuda").implementation()
        return module
    return importlib.import_module("spgnn.kernels.cpu")


def define(schema: str, *, compute: Callable[..., Any], fake: Callable[..., Any] | None) -> Any:
    """Register an operator.

    Parameters
    ----------
    schema : str
        Without the namespace.
    compute
        Makes what the schema says from the operator's arguments, on any device.
    fake
        The same, uninitialised: all that tracers ask for. ``None`` where nothing is returned.

    Returns
    -------
    OpOverload
    """
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    name = schema.partition("(")[0]
    for device in ("CPU", "CUDA"):
        _library.impl(name, compute, device)
    torch.library.register_fake(f"spgnn::{name}", fake or (lambda *arguments: None))
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.spgnn, packet), overload or "default")


operators: dict[str, Operator] = {}
"""By name: operations that are each other's gradients find each other here."""


def watched(*arguments: object) -> bool:
    """True if autograd, a transform or a tracer records operations on these."""
    if traced():
        return True
    if torch.is_grad_enabled():
        for argument in arguments:
            if isinstance(argument, Tensor) and argument.requires_grad:
                return True
    return False


def traced() -> bool:
    """True while operations are recorded: to be compiled, batched or differentiated."""
    return torch.compiler.is_compiling() or transformed()


def transformed() -> bool:
    """True while a transform of torch.func or forward-mode differentiation is at work."""
    return transforms_active() or forward_mode()


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
        self.overload, self.run = overload, direct(overload)
        self.run_in_place: Any = None if in_place is None else direct(in_place)
        self.save, self.backward, self.batched = save, backward, batched
        self.tangent = tangent or self._linear
        operators[overload.name().partition("::")[2].partition(".")[0]] = self
        torch.library.register_autograd(overload, backward, setup_context=save)
        torch.library.register_vmap(overload, batched)

    def __call__(self, *arguments: Any) -> Tensor:
        """The result, recorded where somebody watches."""
        result: Tensor
        if torch.compiler.is_compiling():
            result = self.overload(*arguments)
        elif transforms_active():
            result = _Recorded.apply(*arguments, self)  # type: ignore[no-untyped-call]
        elif watched(*arguments):
            result = record(_Recorded, *arguments, self)
        else:
            with below_autograd():
                result = self.run(*arguments)
        return result

    def overwriting(self, *arguments: Any) -> Tensor:
        """The result, written over the first argument; traced, it is a tensor of its own."""
        if traced():
            return self(*arguments)
        result: Tensor = arguments[0]
        if watched(*arguments):
            result = record(_Overwritten, *arguments, self)
        else:
            with below_autograd():
                self.run_in_place(*arguments)
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
        with below_autograd():
            result: Tensor = arguments[-1].run(*arguments[:-1])
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *arguments, ctx.operator = inputs
        ctx.operator.save(ctx, arguments, output)
        if forward_mode():
            tensors = [argument if isinstance(argument, Tensor) else None for argument in arguments]
            ctx.others = [None if isinstance(a, Tensor) else a for a in arguments]
            ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *ctx.operator.backward(ctx, *grads), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        saved = zip(ctx.saved_tensors, ctx.others, strict=True)
        arguments = [other if tensor is None else tensor for tensor, other in saved]
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
        with below_autograd():
            arguments[-1].run_in_place(*arguments[:-1])
        result: Tensor = arguments[0]
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_dirty(output)
        _Recorded.setup_context(ctx, inputs, output)
