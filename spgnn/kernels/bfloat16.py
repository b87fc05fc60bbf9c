"""Dense products in bfloat16 under torch.autocast, with the same bits for any number of threads.

oneDNN makes each, with one thread, of some rows: threads that share a small product spend their
time on waiting for each other, above all where another process has a core.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from spgnn.kernels.library import Operator
from spgnn.kernels.recycling import new_rows
from spgnn.kernels.update import relu_of
from spgnn.torch_internals import traced

Made = TypeVar("Made")
_starting = threading.Lock()

# Rows at a time: a multiple of a step, as oneDNN writes code for each number of rows, and keeps it.
FEWEST, MOST, STEP = 512, 2048, 64
# Pieces that threads have to share, where there are rows enough: never by the number of threads.
PIECES = 16


def narrows(X: Tensor, W: Tensor) -> bool:
    """True if autocast multiplies these in bfloat16."""
    return (
        torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and X.device.type == W.device.type == "cpu"
        and {X.dtype, W.dtype} <= {torch.float32, torch.bfloat16}
        and X.dim() == W.dim() == 2
        and X.numel() > 0
        and W.numel() > 0
        and not traced()
    )


def _rows_of_a_piece(rows: int) -> int:
    most = min(max(-(-rows // PIECES), FEWEST), MOST)
    pieces = -(-rows // most)
    return -(-rows // (pieces * STEP)) * STEP if rows else STEP


def _multiply(X: Tensor, W: Tensor) -> Tensor:
    X, narrow = X.detach(), W.detach().bfloat16().T.contiguous()
    Z = new_rows(len(X), narrow[:0])
    most = _rows_of_a_piece(len(X))

    def multiply(begin: int) -> None:
        some = X[begin : begin + most].bfloat16()
        if len(some) == most:
            torch.mm(some, narrow, out=Z[begin : begin + most])
        else:
            Z[begin:] = (_filled_up(some, most) @ narrow)[: len(some)]

    at_the_same_time(multiply, range(0, len(X), most))
    return Z


def _add_up(G: Tensor, X: Tensor) -> Tensor:
    if not len(X):
        return torch.zeros(G.shape[1], X.shape[1])
    G, X = G.detach(), X.detach()
    most = _rows_of_a_piece(len(X))
    begins = range(0, len(X), most)
    each = -(-len(begins) // PIECES)

    def sum_of(some: range) -> Tensor:
        total: Tensor | None = None
        for begin in some:
            g, x = (_filled_up(rows[begin : begin + most].bfloat16(), most) for rows in (G, X))
            product = (g.T @ x).float()
            total = product if total is None else total.add_(product)
        assert total is not None
        return total

    sums = [begins[first : first + each] for first in range(0, len(begins), each)]
    total, *others = at_the_same_time(sum_of, sums)
    for other in others:  # NumPy adds in this thread
        np.add(total.numpy(), other.numpy(), out=total.numpy())
    return total


def _filled_up(some: Tensor, rows: int) -> Tensor:
    """With rows of zeros at the end, if there are fewer."""
    missing = rows - len(some)
    return some if not missing else torch.cat((some, some.new_zeros(missing, some.shape[1])))


def at_the_same_time(make: Callable[[Any], Made], parts: Sequence[Any]) -> list[Made]:
    """Make something of each part, in order: each by one thread, as many at once as torch has."""
    threads, inference = torch.get_num_threads(), torch.is_inference_mode_enabled()
    if threads == 1:
        return [make(part) for part in parts]

    def make_as_here(part: Any) -> Made:
        with torch.inference_mode(inference):
            return make(part)

    with _starting:
        pool = _pool(threads, os.getpid())
    return list(pool.map(make_as_here, parts))


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads of this process whose products take one thread; a forked process has its own."""
    ready = threading.Barrier(threads)

    def take_one() -> None:
        # Torch sets its own number when a thread first asks, so the thread asks before.
        torch.get_num_threads()
        torch.set_num_threads(1)

    pool = ThreadPoolExecutor(threads, "bfloat16-gemm", take_one)
    # Every thread has begun when all of them wait.
    list(pool.map(lambda _: ready.wait(), range(threads)))
    torch.set_num_threads(threads)  # of threads that begin from now on, as before
    return pool


def save_pair(ctx: Any, inputs: Any, output: Tensor) -> None:
    """Save each operand of a product for the other's gradient."""
    first, second = inputs
    ctx.relu = relu_of(first)
    ctx.save_for_backward(
        first if ctx.needs_input_grad[1] else None, second if ctx.needs_input_grad[0] else None
    )


def _product_backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
    X, W = ctx.saved_tensors
    return (None if W is None else product(G, W.T), None if X is None else gradient(G, X))


def _gradient_backward(ctx: Any, C: Tensor) -> tuple[Tensor | None, Tensor | None]:
    G, X = ctx.saved_tensors
    return (None if X is None else product(X, C), None if G is None else product(G, C.T))


# ``X Wᵀ`` in bfloat16, and its gradient ``Gᵀ X`` in float32.
product = Operator(
    "gemm_narrow_product(Tensor X, Tensor W) -> Tensor",
    new=lambda X, W: X.new_empty(X.shape[0], W.shape[0], dtype=torch.bfloat16),
    compute=_multiply,
    save=save_pair,
    backward=_product_backward,
)
gradient = Operator(
    "gemm_narrow_gradient(Tensor G, Tensor X) -> Tensor",
    new=lambda G, X: G.new_empty(G.shape[1], X.shape[1], dtype=torch.float32),
    compute=_add_up,
    save=save_pair,
    backward=_gradient_backward,
)
