"""Products as autograd sees them: operands are checked, and what is linear is differentiated."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from spgnn.comm import CommunicationError, Communicator
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Step
from spgnn.exchange.codec import Policy
from spgnn.kernels.gemm import (
    add_times_transposed_,
    gradient_of,
    sum_of_products,
    times_transposed,
    transposed_times,
    two_gradients,
    two_products,
)
from spgnn.kernels.update import relu_of
from spgnn.torch_internals import casting, recorder, tracing, watched, with_name

# Number of first products that are each compared with the other ranks' (a program's mistakes show
# early); after them only products not seen before are worth a message.
FIRST_COMPARED = 64
# The same of layers and sums, which have more to refuse.
FIRST_AGREED = 4
Result = TypeVar("Result")


class Operands:
    """Checks operands of a matrix with a plan; exact without a policy, without data if `dry`."""

    def __init__(
        self, comm: Communicator, policy: Policy | None = None, *, plan: int = 0, dry: bool = False
    ) -> None:
        self._comm, self._policy, self._dry = comm, policy, dry
        self._plan = f"planned in call {plan}" if plan else "of no call"
        self._begun = self._products = 0
        self._compared = 0
        self._known: set[tuple[object, ...]] = set()

    def dry(self) -> Operands:
        """The same rules for operands without data, counted from the first one."""
        return Operands(self._comm, self._policy, dry=True)

    def next(
        self, dense: object, rows: int, *, exact: bool = False, wrong: str = "", **facts: object
    ) -> Step:
        """Check `dense` [rows, f], count its product; refused on one, it is on all. Collective."""
        facts.setdefault("direction", "forward")
        if tracing():
            raise InputError(
                "torch.jit.trace, and SummaryWriter.add_graph, which traces, record no rows of "
                "other ranks: trace the model on one process, with a small graph"
            )
        policy = self._policy
        if policy is None:
            self.check(dense, rows, wrong=wrong, **facts)
            return EXACT
        approximate = not exact and policy.approximates(dense)
        self.check(dense, rows, wrong=wrong, approximate=approximate, **facts)
        if not approximate:
            return EXACT
        if self._begun != policy.epochs_begun:
            self._begun, self._products = policy.epochs_begun, 0
        step = Step(policy.epoch, self._products)
        self._products += 1
        return step

    def check(self, dense: object, rows: int, *, wrong: str = "", **facts: object) -> None:
        """Check what belongs to a product that has been. Collective."""
        if wrong:
            pass
        elif not isinstance(dense, Tensor):
            wrong = f"the operand must be a torch tensor, got {type(dense).__name__}"
        elif dense.layout != torch.strided:
            wrong = f"the operand must be dense, got layout {dense.layout}: take to_dense()"
        elif dense.dim() != 2 or dense.shape[0] != rows:
            wrong = f"the rank holds {rows} rows, the operand has shape {list(dense.shape)}"
        if self._comm.size > 1 and not self._dry:
            self._compare(dense, wrong, facts)
        if not wrong and dense.is_meta and not self._dry:  # type: ignore[attr-defined]
            wrong = "the operand has no data: it is on the device meta"
        if wrong:
            error = InputError(wrong)
            error.everywhere = not self._dry  # the others were told
            raise error

    def _compare(self, dense: Any, wrong: str, facts: dict[str, object]) -> None:
        what = "the operand of a product"
        if wrong:  # perhaps on this rank alone: the others hear of it, and wait for no rows
            with suppress(InputError, CommunicationError):
                self._comm.check_agreement(what, shape=wrong)
            return
        needs_gradient = dense.requires_grad and torch.is_grad_enabled()
        kind = dense.shape[1], dense.dtype, dense.device.type, needs_gradient, *facts.values()
        if kind in self._known and self._compared >= FIRST_COMPARED:
            return
        self._compared += 1
        names = ("width", "dtype", "device", "requires_grad", *facts)
        numbers = dict(zip(names, kind, strict=True))
        self._comm.check_agreement(what, shape="as it should be", plan=self._plan, **numbers)
        self._known.add(kind)


def as_given(rows: object) -> dict[str, Any]:
    """Facts to agree on of rows [n, …] that travel as [n, f] of some other dtype."""
    return {"dtype": rows.dtype, "width": (*rows.shape[1:],)} if isinstance(rows, Tensor) else {}


def agreeing(owner: Any, comm: Communicator | None, work: Callable[[], Result]) -> Result:
    """Do what may refuse this rank's rows; refused on one rank in the first calls, it is on all."""
    if comm is None or owner.calls_agreed == FIRST_AGREED or torch.compiler.is_compiling():
        return work()
    owner.calls_agreed += 1
    return comm.on_every_rank(work)


def check_strided(name: str, rows: Tensor) -> None:
    """Refuse sparse tensors."""
    if rows.layout != torch.strided:
        raise InputError(f"{name} must be dense, got layout {rows.layout}: take to_dense()")


class Linear(Protocol):
    """All that autograd needs to know of a distributed matrix.

    Attributes
    ----------
    handle : int
        A number by which compiled graphs name it.
    """

    handle: int

    @property
    def rows(self) -> int:
        """Rows this rank makes."""

    @property
    def columns(self) -> int:
        """Rows of the operand that this rank holds."""

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """``A·H``. Collective."""

    def adjoint(self, G_local: Tensor, step: Step) -> Tensor:
        """``Aᵀ·G``. Collective."""

    def next_step(self, H_local: Tensor) -> Step:
        """Count a product that is about to begin."""


class _Apply(torch.autograd.Function):
    """forward Z = A H, or Aᵀ G; each is the other's backward, so all derivatives are exact."""

    @staticmethod
    def forward(H_local: Tensor, A: Linear, step: Step) -> Tensor:
        return A.adjoint(H_local, step) if step.adjoint else A.forward(H_local, step)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.A, ctx.step = inputs

    @staticmethod
    def backward(ctx: Any, *G_local: Tensor) -> tuple[Tensor | None, None, None]:
        return _apply(G_local[0], ctx.A, ctx.step.reversed()), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _apply(tangents[0], ctx.A, ctx.step)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], H_local: Tensor, A: Linear, step: Step
    ) -> tuple[Tensor, int]:
        # Batches are more columns: one exchange for all of them.
        batched = H_local.movedim(in_dims[0] or 0, -1)
        rows, width, batches = batched.shape
        wide = batched.reshape(rows, width * batches)
        return _apply(wide, A, step).view(-1, width, batches), 2


def _apply(H_local: Tensor, A: Linear, step: Step) -> Tensor:
    """A product, recorded where somebody watches."""
    run = recorder(_Apply) if watched(H_local) else _Apply.forward
    return run(H_local, A, step)


def in_own_dtype(device: str) -> AbstractContextManager[object]:
    """A context in which torch.autocast changes nothing, on a type of devices."""
    if not casting() or not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _as_forward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward that is the same inside of torch.autocast as outside."""

    def wrapped(ctx: Any, *gradients: Tensor | None) -> Any:
        with in_own_dtype(ctx.device):
            return backward(ctx, *gradients)

    return wrapped


class _PaperLayer(torch.autograd.Function):
    """forward Z = (A H) W; U = Aᵀ G; dgrad dH = U Wᵀ; wgrad dW = Hᵀ U (nothing of A H is kept)."""

    @staticmethod
    def forward(H_local: Tensor, W: Tensor, A: Linear, step: Step) -> Tensor:
        return A.forward(H_local, step) @ W

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        H_local, W, ctx.A, ctx.step = inputs
        ctx.device = H_local.device.type
        ctx.save_for_backward(H_local, W)

    @staticmethod
    @_as_forward
    def backward(ctx: Any, *G_local: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        H_local, W = ctx.saved_tensors
        U = _apply(G_local[0], ctx.A, ctx.step.reversed())
        dH = U @ W.T if ctx.needs_input_grad[0] else None
        return dH, H_local.T @ U, None, None


class _BesideItself(torch.autograd.Function):
    """forward A (H W) + H₀ R or (A H) W + H₀ R, H₀ the first rows of H; and A H if dW needs it."""

    @staticmethod
    def forward(
        H_local: Tensor, W: Tensor, R: Tensor, A: Linear, step: Step, first: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not first or W.shape[0] == H_local.shape[1]:
            # As wide either way: the sum of two products writes its result once.
            AH = A.forward(H_local, step)
            return sum_of_products(AH, W, H_local[: A.rows], R), None if first else AH
        if A.rows < H_local.shape[0]:
            Z_local = A.forward(times_transposed(H_local, W), step)
            return add_times_transposed_(Z_local, H_local[: A.rows], R), None
        XW, XR = two_products(H_local, W, R)
        return A.forward(XW, step).add_(XR), None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> None:
        H_local, W, R, ctx.A, ctx.step, _ = inputs
        ctx.device = H_local.device.type
        ctx.relu = relu_of(H_local)
        ctx.save_for_backward(H_local, W, R, output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    @_as_forward
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        H_local, W, R, AH = ctx.saved_tensors
        G, of_AH = gradients
        back = ctx.step.reversed()
        if G is None:  # a second derivative may ask for A H alone
            G = H_local.new_zeros(ctx.A.rows, len(W))
        dH = None
        if AH is None:
            U = _apply(G, ctx.A, back)
            if U.shape[0] == G.shape[0]:
                dW, dR = two_gradients(U, H_local, G, H_local)
                if ctx.needs_input_grad[0]:
                    dH = gradient_of(H_local, ctx.relu, U, W.T, G, R.T)
                return dH, dW, dR, None, None, None
            dW, dR = transposed_times(U, H_local), transposed_times(G, H_local[: ctx.A.rows])
            if ctx.needs_input_grad[0]:
                dH = times_transposed(U, W.T)
        else:
            dW, dR = two_gradients(G, AH, G, H_local[: ctx.A.rows])
            if ctx.needs_input_grad[0]:
                dAH = times_transposed(G, W.T)
                dAH = dAH if of_AH is None else of_AH + dAH
                dH = _apply(dAH, ctx.A, back)
        if dH is not None:
            if torch.is_grad_enabled():
                missing = len(dH) - ctx.A.rows
                dH = dH + torch.nn.functional.pad(G @ R, (0, 0, 0, missing))
            else:
                add_times_transposed_(dH[: ctx.A.rows], G, R.T)
        return dH, dW, dR, None, None, None


class _Procedure(torch.autograd.Function):
    """A tensor whose gradient is handed to a procedure."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, values: list[Tensor], backward: Callable[[Tensor], None]
    ) -> Tensor:
        ctx.procedure = backward
        return values.pop()  # it is no input, so whoever gets it may write over it

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.procedure(gradients[0])
        return None, None, None


def with_backward(value: Tensor, backward: Callable[[Tensor], None]) -> Tensor:
    """The same tensor, without a history and given away; a procedure gets its gradient."""
    anchor = torch.zeros((), dtype=value.dtype, requires_grad=True)
    return recorder(_Procedure)(anchor, [value], backward)  # type: ignore[no-any-return]


def product(A: Linear, H_local: Tensor, step: Step | None = None, *, cast: bool = True) -> Tensor:
    """``A @ H``, differentiable at every order, collective over A's ranks.

    Parameters
    ----------
    A : Linear
    H_local : Tensor [A.columns, f]
        If no rank's H requires a gradient, backward costs nothing. All ranks must agree on it.
    step : Step, optional
        As ``A.next_step`` makes it; by default, it is asked now.
    cast : bool
        Under torch.autocast, cast H as the operand of a dense product is; not where rows are moved
        and no more.

    Returns
    -------
    Tensor [A.rows, f]
    """
    if cast:
        H_local = autocast(H_local)
    if torch.compiler.is_compiling():
        handed = H_local, A.handle, A.rows, A.columns, False
        return torch.ops.spgnn.product(*handed)  # type: ignore[no-any-return]
    if step is None:
        step = A.next_step(H_local)
    if (composed := getattr(A, "composed", None)) is not None:  # of a matrix whose values learn
        return composed(H_local)  # type: ignore[no-any-return]
    return _apply(H_local, A, step)


def paper_layer(A: Linear, H_local: Tensor, W: Tensor) -> Tensor:
    """``(A @ H) @ W`` with the backward of Tripathy et al. (SC'20), which multiplies A by G."""
    H_local, W = autocast(H_local), autocast(W)
    if getattr(A, "composed", None) is not None:
        return product(A, H_local) @ W
    with in_own_dtype(H_local.device.type):
        return recorder(_PaperLayer)(H_local, W, A, A.next_step(H_local))  # type: ignore[no-any-return]


def product_beside_itself(
    A: Linear, H_local: Tensor, W: Tensor, R: Tensor, *, first: bool
) -> Tensor:
    """``A @ H @ Wᵀ + H₀ @ Rᵀ``, H₀ the first rows of H; W multiplies `first` or not. Collective."""
    if casting():
        H_local, W, R = autocast(H_local), autocast(W), autocast(R)
    if torch.compiler.is_compiling() or getattr(A, "composed", None) is not None:
        Z_local = product(A, H_local @ W.T) if first else product(A, H_local) @ W.T
        return Z_local + H_local[: A.rows] @ R.T
    operand = H_local
    if first and not (H_local.requires_grad and W.shape[0] == H_local.shape[1]):
        # Looked at, as that which travels, before it is made.
        like = H_local[:, :1] if H_local.requires_grad else W[:1, :1]
        operand = like.expand(H_local.shape[0], W.shape[0])
    step = A.next_step(operand)
    with in_own_dtype(H_local.device.type):
        return recorder(_BesideItself)(H_local, W, R, A, step, first)[0]  # type: ignore[no-any-return]


def autocast(operand: Any) -> Any:
    """The operand of a product as torch.autocast casts it; not float16, which no kernel knows."""
    if not casting() or not isinstance(operand, Tensor):
        return operand  # what is no tensor is refused by whoever takes it
    device = operand.device.type
    # Devices without data know no autocast.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return operand
    dtype = torch.get_autocast_dtype(device)
    dtype = torch.float32 if dtype == torch.float16 else dtype
    # As torch does: double precision is never lowered.
    return operand if operand.dtype == torch.float64 else operand.to(dtype)


class _AllReduce(torch.autograd.Function):
    """forward y = Σ_r t_r on every rank; its adjoint is the same sum."""

    @staticmethod
    def forward(t: Tensor, comm: Communicator) -> Tensor:
        total = t.clone(memory_format=torch.contiguous_format)
        comm.all_reduce(total).wait()
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.comm = inputs

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return recorder(_AllReduce)(gradient[0], ctx.comm), None


def all_reduced(t: Tensor, comm: Communicator) -> Tensor:
    """The sum over all ranks, on every rank; differentiable: its adjoint is itself. Collective."""
    if comm.size == 1:
        return t.clone()
    if torch.compiler.is_compiling():
        return torch.ops.spgnn.all_reduced(t, comm.handle)  # type: ignore[no-any-return]
    return recorder(_AllReduce)(t, comm)  # type: ignore[no-any-return]


@torch.library.custom_op("spgnn::all_reduced", mutates_args=())
def _all_reduced(t: Tensor, comm: int) -> Tensor:
    return _AllReduce.forward(t, with_name(comm))


_all_reduced.register_fake(lambda t, comm: t.new_empty(t.shape))
_all_reduced.register_autograd(
    lambda ctx, gradient: (torch.ops.spgnn.all_reduced(gradient, ctx.comm), None),
    setup_context=_AllReduce.setup_context,
)


@torch.library.custom_op("spgnn::product", mutates_args=())
def _product(H_local: Tensor, handle: int, rows: int, columns: int, adjoint: bool) -> Tensor:
    """The product as compiled graphs call it; they see its shape and nothing else."""
    A = with_name(handle)
    if getattr(A, "composed", None) is not None:
        raise InputError(
            "torch.compile of a matrix whose values require a gradient: call it as it is"
        )
    if adjoint:  # as its forward, where autograd did not record
        return A.adjoint(H_local, EXACT.reversed())  # type: ignore[no-any-return]
    return A.forward(H_local, A.next_step(H_local))  # type: ignore[no-any-return]


@_product.register_fake
def _(H_local: Tensor, handle: int, rows: int, columns: int, adjoint: bool) -> Tensor:
    return H_local.new_empty((columns if adjoint else rows, H_local.shape[1]))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, *ctx.named, ctx.adjoint = inputs


def _product_backward(ctx: Any, G_local: Tensor) -> tuple[Any, ...]:
    dH = torch.ops.spgnn.product(G_local, *ctx.named, not ctx.adjoint)
    return dH, None, None, None, None


_product.register_autograd(_product_backward, setup_context=_save)
