"""The operators as torch knows them, and who works on them.

Every operation is an operator ``torch.ops.spgnn.*``, so profilers and dispatch modes see its name.
What can be differentiated is an `Operator`: autograd, transforms and tracers find it there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from spgnn.errors import InputError
from spgnn.kernels.recycling import new_rows
from spgnn.registry import KERNELS
from spgnn.torch_internals import (
    below_autograd,
    direct,
    forward_mode,
    operators_seen,
    recorder,
    traced,
    watched,
)

_library: Any = torch.library.Library("spgnn", "DEF")
_functions: dict[Any, Callable[..., Any]] = {}


def kernels_for(tensor: Tensor) -> ModuleType:
    """The module with a function for each operation on tensors like this one."""
    return cuda_kernels() if tensor.is_cuda else _cpu_kernels()


@cache
def _cpu_kernels() -> ModuleType:
    return import_module("spgnn.kernels.cpu")


@cache
def cuda_kernels() -> ModuleType:
    """An add-on's kernels; torch's own operations, after one notice, where they cannot run."""
    trouble = "spgnn.addons.cuda is not installed"
    if "cuda" in KERNELS:
        kernels, trouble = KERNELS["cuda"]()
        if not trouble:
            return kernels  # type: ignore[no-any-return]
    notice = (
        f"spgnn's CUDA kernels cannot run here, so cuSPARSE multiplies through torch: {trouble}"
    )
    warnings.warn(notice, RuntimeWarning, stacklevel=3)
    return import_module("spgnn.kernels.torch_kernels")


def define(
    schema: str, *, new: Callable[..., Any] | None = None, compute: Callable[..., Any] | None = None
) -> Any:
    """Register an operator."""
    name = schema.partition("(")[0]
    packet, _, overload = name.partition(".")

    def fill(*arguments: Any) -> Any:
        results = () if new is None else new(*arguments)
        device = next(argument for argument in arguments if isinstance(argument, Tensor))
        every = results if isinstance(results, tuple) else (results,)
        getattr(kernels_for(device), packet)(*arguments, *every)
        return results if every else None

    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for device in ("CPU", "CUDA"):
        _library.impl(name, compute or fill, device)
    torch.library.register_fake(f"spgnn::{name}", new or (lambda *arguments: None))
    operator = getattr(getattr(torch.ops.spgnn, packet), overload or "default")
    _functions[operator] = compute or fill
    return operator


def unrecorded(operator: Any) -> Callable[..., Any]:
    """Runs an operator below autograd: its function itself, where nobody sees what torch calls."""
    dispatched, function = direct(operator), _functions[operator]

    def run(*arguments: Any) -> Any:
        if not operators_seen(*arguments):
            return function(*arguments)
        with below_autograd():
            return dispatched(*arguments)

    return run


class Writer:
    """An operator that returns nothing and writes into its arguments."""

    def __init__(self, schema: str, compute: Callable[..., None] | None = None) -> None:
        self._overload = define(schema, compute=compute)
        self._run = unrecorded(self._overload)

    def __call__(self, *arguments: Any) -> None:
        (self._overload if watched(*arguments) else self._run)(*arguments)


class Operator:
    """An operator with derivatives of every order, in forward mode too, and batches."""

    def __init__(
        self,
        schema: str,
        *,
        new: Callable[..., Any],
        compute: Callable[..., Any] | None = None,
        save: Callable[..., None],
        backward: Callable[..., Any],
        batched: Callable[..., tuple[Tensor, int]] | None = None,
        tangent: Callable[..., Tensor] | None = None,
        in_place: Any = None,
    ) -> None:
        self.name = schema.partition("(")[0]
        self.overload = define(schema, new=new, compute=compute)
        self.run = unrecorded(self.overload)
        self.run_in_place: Any = None if in_place is None else unrecorded(in_place)
        self.save, self.backward = save, backward
        self.batched = partial(batched, self) if batched else self._refuse_batches
        self.tangent = tangent or self._linear
        torch.library.register_autograd(self.overload, backward, setup_context=save)
        torch.library.register_vmap(self.overload, self.batched)

    def __call__(self, *arguments: Any) -> Tensor:
        """The result, recorded where somebody watches."""
        if not watched(*arguments):
            return self.run(*arguments)  # type: ignore[no-any-return]
        if torch.compiler.is_compiling():
            return self.overload(*arguments)  # type: ignore[no-any-return]
        return recorder(_Recorded)(*arguments, self)  # type: ignore[no-any-return]

    def overwriting(self, *arguments: Any) -> Tensor:
        """The result, written over the first argument; traced, it is a tensor of its own."""
        if not watched(*arguments):
            self.run_in_place(*arguments)
            return arguments[0]  # type: ignore[no-any-return]
        return self(*arguments) if traced() else recorder(_Overwritten)(*arguments, self)

    def refuse_batches_but(self, in_dims: Sequence[int | None], *places: int) -> None:
        """Refuse batches of anything but the arguments at these places."""
        if any(dim is not None for place, dim in enumerate(in_dims) if place not in places):
            raise InputError(
                f"{self.name}: vmap takes batches of dense matrices and values, of nothing else"
            )

    def _refuse_batches(self, info: Any, in_dims: Any, *arguments: Any) -> Any:
        self.refuse_batches_but(in_dims)

    def _linear(self, arguments: Sequence[Any], tangents: Sequence[Tensor | None]) -> Tensor:
        terms = [
            self(*arguments[:place], tangent, *arguments[place + 1 :])
            for place, tangent in enumerate(tangents)
            if tangent is not None
        ]
        return sum(terms[1:], terms[0])


def more_columns(
    operator: Operator, info: Any, in_dims: Any, X: Tensor, *others: Any
) -> tuple[Tensor, int]:
    """Batches of the first argument are more columns."""
    operator.refuse_batches_but(in_dims, 0)
    X = X.movedim(in_dims[0], -1)
    return operator(X.flatten(1), *others).unflatten(1, X.shape[1:]), 2


def new_like(X: Tensor, *others: Any) -> Tensor:
    """Uninitialised rows like those of the first argument."""
    return new_rows(X.shape[0], X)


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
    def forward(*arguments: Any) -> Any:
        return arguments[-1].run(*arguments[:-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *arguments, ctx.operator = inputs
        ctx.operator.save(ctx, arguments, output)
        if forward_mode():
            tensors = [a if isinstance(a, Tensor) else None for a in arguments]
            ctx.others = [None if isinstance(a, Tensor) else a for a in arguments]
            ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return *ctx.operator.backward(ctx, *grads), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        saved = zip(ctx.saved_tensors, ctx.others, strict=True)
        arguments = [other if tensor is None else tensor for tensor, other in saved]
        return ctx.operator.tangent(arguments, tangents[:-1])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        return arguments[-1].batched(info, in_dims[:-1], *arguments[:-1])


class _Overwritten(_Recorded):
    """The same, written over the first argument."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        arguments[-1].run_in_place(*arguments[:-1])
        return arguments[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_dirty(output)
        _Recorded.setup_context(ctx, inputs, output)
