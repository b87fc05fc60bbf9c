# O is the name of attention's sums in all of its literature.
# ruff: noqa: E741
"""Attention over the nonzeros of a block, scores, softmax and weighted sum in one pass.

Nothing of the size nnz × heads is kept. The nonzeros of a block give each row a running triple, and
triples of blocks of one matrix can be merged, so blocks may come one after the other, or from other
ranks. `attention` and `attention_v2` are the whole of it as torch operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spgnn.errors import InputError
from spgnn.kernels.checks import check_array, check_dense, check_is
from spgnn.kernels.library import define, kernels_for
from spgnn.kernels.recycling import new_rows
from spgnn.pattern import Pattern
from spgnn.sparse import SUM_DTYPE
from spgnn.torch_internals import traced

STORED, MERGED, FINISHED = range(3)  # Ending of types.hpp and heads.cuh


@dataclass(frozen=True, eq=False)
class AttentionDropout:
    """Dropout of attention weights, a function of the edge's original ends: docs/kernels.md."""

    key: int  # 64 bits made from seed, epoch and layer
    p: float
    row_ids: Tensor  # int64 [rows], global numbers of the destinations
    col_ids: Tensor  # int64 [cols], of the sources

    def __post_init__(self) -> None:
        for name in ("row_ids", "col_ids"):
            check_is(name, getattr(self, name), Tensor)
            object.__setattr__(self, name, getattr(self, name).contiguous())

    @property
    def signed_key(self) -> int:
        """The key as operators and kernels take it."""
        return (int(self.key) + 2**63) % 2**64 - 2**63


class Gat(NamedTuple):
    """GAT: scores LeakyReLU(d_i + s_j [+ t_ij]), sums of Z."""

    d: Tensor
    s: Tensor
    Z: Tensor

    @property
    def joint(self) -> bool:
        """True if a head's columns are scored together."""
        return False

    @property
    def features(self) -> Tensor:
        """The rows that are summed."""
        return self.Z

    @property
    def heads(self) -> int:
        return int(self.d.shape[1])


class GatV2(NamedTuple):
    """GATv2: scores a · LeakyReLU(x_i + y_j [+ t_ij]), sums of y."""

    x: Tensor
    y: Tensor
    a: Tensor

    @property
    def joint(self) -> bool:
        return True

    @property
    def features(self) -> Tensor:
        return self.y

    @property
    def heads(self) -> int:
        return int(self.a.shape[0])


class Rules(NamedTuple):
    """Rules by which scores and weights are computed."""

    slope: float = 0.2
    edges: Tensor | None = None
    dropout: AttentionDropout | None = None

    @property
    def drops(self) -> AttentionDropout | None:
        """The dropout, if it drops anything."""
        return self.dropout if self.dropout is not None and self.dropout.p else None

    def check(self, pattern: Pattern, operands: Gat | GatV2) -> None:
        """Refuse what does not fit, and a slope that is not monotone."""
        check_is("pattern", pattern, Pattern)
        _check_operands(pattern, operands, self.edges)
        if not self.slope >= 0:
            raise InputError(f"slope must be at least 0, got {self.slope}")
        if self.dropout is None:
            return
        if not 0.0 <= self.dropout.p < 1.0:
            raise InputError(f"p must be in [0, 1), got {self.dropout.p}")
        ids = self.dropout.row_ids, self.dropout.col_ids
        for name, array, length in zip(("row_ids", "col_ids"), ids, pattern.shape, strict=True):
            check_array(name, array, (length,), pattern.indptr, torch.int64)


def _check_operands(pattern: Pattern, operands: Gat | GatV2, edges: Tensor | None) -> None:
    """Refuse operands that do not fit each other."""
    Z, cols = operands.features, pattern.shape[1]
    check_dense("y" if operands.joint else "Z", Z)
    wide = SUM_DTYPE[Z.dtype]
    if isinstance(operands, GatV2):
        a = operands.a
        check_is("a", a, Tensor)
        check_array("a", a, a.shape if a.dim() == 2 else (1, 0), Z, wide)
        names, width, dtype = ("x", "y", "edge_features"), a.numel(), Z.dtype
    else:
        check_is("d", operands.d, Tensor)
        width = operands.heads if operands.d.dim() == 2 else 0
        names, dtype = ("d", "s", "edge_scores"), wide
    arrays = *operands[:2], edges
    for name, array, length in zip(names, arrays, (*pattern.shape, pattern.nnz), strict=True):
        if array is not None:
            check_array(name, array, (length, width), Z, dtype)
    if width < 1 or Z.shape[0] != cols or Z.shape[1] % width:
        raise InputError(f"Z must be [{cols}, {width} · width], got {list(Z.shape)}")


@dataclass(eq=False)
class AttentionState:
    """Partial softmax of each row: what the nonzeros seen so far give it."""

    m: Tensor
    n: Tensor
    O: Tensor
    P: Tensor | None = None
    pi: Tensor | None = None

    @classmethod
    def new(cls, rows: int, Z: Tensor, heads: int, gradients: bool) -> AttentionState:
        """Uninitialised rows for features like those of Z."""
        wide = Z.new_empty((0, Z.shape[1]), dtype=SUM_DTYPE[Z.dtype])
        m, n, O = wide.new_empty(rows, heads), wide.new_empty(rows, heads), new_rows(rows, wide)
        if not gradients:
            return cls(m, n, O)
        return cls(m, n, O, new_rows(rows, wide), torch.empty_like(n))

    @property
    def arrays(self) -> tuple[Tensor | None, ...]:
        """m, n, O, P, pi."""
        return self.m, self.n, self.O, self.P, self.pi


class Target(NamedTuple):
    """Destination of the rows' softmaxes."""

    ending: int
    arrays: tuple[Tensor | None, ...]
    out: Tensor | None = None
    lse: Tensor | None = None


def attend_(
    pattern: Pattern,
    operands: Gat | GatV2,
    rules: Rules,
    state: AttentionState | None = None,
    *,
    gradients: bool = True,
) -> AttentionState:
    """Merge a block's nonzeros into running triples."""
    rules.check(pattern, operands)
    ending = STORED if state is None else MERGED
    if state is None:
        twice = gradients and not operands.joint
        state = AttentionState.new(pattern.shape[0], operands.features, operands.heads, twice)
    target = Target(ending, state.arrays)
    kernels_for(operands.features).attend(pattern, operands, rules, target)
    return state


def attend_backward(
    pattern: Pattern, operands: Gat | GatV2, rules: Rules, G: Tensor, lse: Tensor, D: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradients by the nonzeros of a block."""
    rules.check(pattern, operands)
    backward: Any = kernels_for(operands.features).attend_backward
    return tuple(backward(pattern, operands, rules, G, lse, D))


def finish(state: AttentionState, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Sums O / n of rows that have seen all nonzeros, and m + log n; 0 and −∞ where none are."""
    out, lse = torch.empty_like(state.O, dtype=dtype), torch.empty_like(state.m)
    kernels_for(out).attention_finish(state.m, state.n, state.O, out, lse)
    return out, lse


def head_products(G: Tensor, X: Tensor, heads: int) -> Tensor:
    """<G[i, h], X[i, h]> for every row and head: [rows, heads], dtype of sums."""
    products = G.new_empty((G.shape[0], heads), dtype=SUM_DTYPE[G.dtype])
    kernels_for(G).head_products(G, X, products)
    return products


def attention(
    pattern: Pattern,
    d: Tensor,
    s: Tensor,
    Z: Tensor,
    *,
    slope: float = 0.2,
    edge_scores: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """Weighted sums over the nonzeros of each row, weights as in GAT.

    ``Y_i = Σ_j α_ij Z_j`` for every head, ``α_i = softmax_j LeakyReLU(d_i + s_j [+ t_ij])``.
    Nothing of the size nnz × heads is made, but for derivatives of higher order. Bits do not depend
    on the number of threads.

    Parameters
    ----------
    pattern : Pattern [rows, cols]
    d : Tensor [rows, heads], dtype of sums
    s : Tensor [cols, heads], dtype of sums
    Z : Tensor [cols, heads * width], float32, float64 or bfloat16
        Sums are taken in float32, float64 and float32.
    slope : float
        Of LeakyReLU below 0; at least 0.
    edge_scores : Tensor [nnz, heads], dtype of sums, optional
        t_ij, in the order of the pattern's nonzeros.
    dropout : AttentionDropout, optional
        Of weights, after the softmax.

    Returns
    -------
    Tensor [rows, heads * width], dtype of Z
        Zeros for rows without nonzeros.
    """
    return _whole(pattern, Gat(d, s, Z), Rules(slope, edge_scores, dropout))


def attention_v2(
    pattern: Pattern,
    x: Tensor,
    y: Tensor,
    a: Tensor,
    *,
    slope: float = 0.2,
    edge_features: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> Tensor:
    """Weighted sums over the nonzeros of each row, weights as in GATv2."""
    return _whole(pattern, GatV2(x, y, a), Rules(slope, edge_features, dropout))


def _whole(pattern: Pattern, operands: Gat | GatV2, rules: Rules) -> Tensor:
    rules.check(pattern, operands)
    if traced():
        pattern.make_other_side()
    T, edges = pattern.T, rules.edges
    order = None if edges is None else pattern.order
    block = pattern.indptr, pattern.indices, T.indptr, T.indices, order
    drops = rules.drops
    drawn = (
        (None, None, 0, 0.0)
        if drops is None
        else (drops.row_ids, drops.col_ids, drops.signed_key, float(drops.p))
    )
    gradients = torch.is_grad_enabled() and any(
        array is not None and array.requires_grad for array in (*operands, edges)
    )
    operator = _attention_v2 if operands.joint else _attention
    more = () if operands.joint else (gradients,)
    out: Tensor = operator(*block, *operands, edges, float(rules.slope), *drawn, *more)[0]
    return out


def _read(joint: bool, arguments: tuple[Any, ...]) -> tuple[Pattern, Gat | GatV2, Rules]:
    """An operator's arguments as they are otherwise; the pattern has its other side."""
    indptr, indices, t_indptr, t_indices, order = arguments[:5]
    operands = (GatV2 if joint else Gat)(*arguments[5:8])
    edges, slope, row_ids, col_ids, key, p = arguments[8:14]
    shape = indptr.shape[0] - 1, operands.features.shape[0]
    pattern = Pattern.trusted(indptr, indices, shape)
    pattern.__dict__["_other_side"] = Pattern.trusted(t_indptr, t_indices, shape[::-1])
    if order is not None:
        pattern.__dict__["order"] = order
    drops = None if row_ids is None else AttentionDropout(key, p, row_ids, col_ids)
    return pattern, operands, Rules(slope, edges, drops)


def _new_results(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    """Sums and lse and, of GAT, P and pi, which are empty where no gradient is asked for."""
    operands = (GatV2 if joint else Gat)(*arguments[5:8])
    return _new_rows(operands, arguments[0].shape[0] - 1, gradients=joint or arguments[14])


def _new_rows(operands: Gat | GatV2, rows: int, *, gradients: bool) -> tuple[Tensor, ...]:
    Z = operands.features
    out, lse = new_rows(rows, Z), Z.new_empty((rows, operands.heads), dtype=SUM_DTYPE[Z.dtype])
    if operands.joint:
        return out, lse
    some, sums = rows if gradients else 0, out.new_empty((0, out.shape[1]), dtype=lse.dtype)
    return out, lse, new_rows(some, sums), lse.new_empty(some, operands.heads)


def attend_whole(
    pattern: Pattern, operands: Gat | GatV2, rules: Rules, *, gradients: bool
) -> tuple[Tensor, ...]:
    """Finished sums and lse of rows that have no other nonzeros; of GAT P / n and pi / n too."""
    rules.check(pattern, operands)
    results = _new_rows(operands, pattern.shape[0], gradients=gradients)
    more = results[2:] if gradients and not operands.joint else (None, None)
    target = Target(FINISHED, (None, None, None, *more), *results[:2])
    kernels_for(operands.features).attend(pattern, operands, rules, target)
    return results


def _forward(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    return attend_whole(*_read(joint, arguments), gradients=joint or arguments[14])


def _backward_of(joint: bool, *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients in the three operands and the edges."""
    pattern, operands, rules = _read(joint, arguments)
    G, out, lse, *more = arguments[14:]
    D = head_products(G, out, operands.heads)
    gradients: list[Any]
    *gradients, edges = attend_backward(pattern, operands, rules, G, lse, D)
    if not joint:
        P, pi = more
        # Over all nonzeros of a row, α (<g, z> − D) adds up to 0: the term in `slope` is none.
        dd = (head_products(G, P, operands.heads) - D * pi) * (1 - rules.slope)
        gradients = [dd, gradients[1], gradients[0]]
    return *gradients, operands[0].new_empty(0) if edges is None else edges


def _new_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    edges = arguments[8]
    dt = arguments[5].new_empty(0) if edges is None else torch.empty_like(edges)
    return *(new_rows(len(operand), operand) for operand in arguments[5:8]), dt


def _save(joint: bool, ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
    *arrays, ctx.slope, row_ids, col_ids, ctx.key, ctx.p = inputs if joint else inputs[:-1]
    ctx.save_for_backward(*arrays, row_ids, col_ids, *output)
    ctx.set_materialize_grads(False)


def gradients_again(
    rows: Callable[..., Tensor], operands: Sequence[Tensor | None], G: Tensor
) -> list[Tensor | None]:
    """Gradients of ``<G, rows(*operands)>`` that autograd can differentiate."""
    leaves = [  # all of them, as on other ranks, and each its own, even if they are one tensor
        t if t is None else t.view_as(t) if t.requires_grad else t.detach().requires_grad_()
        for t in operands
    ]
    out, own = rows(*leaves), [leaf for leaf in leaves if leaf is not None]
    gradients = torch.autograd.grad(out, own, G.to(out.dtype), create_graph=True)
    return [*gradients, *[None] * (len(leaves) - len(own))]


def _differentiate(
    joint: bool, backward: Any, ctx: Any, G: Tensor | None, *others: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients by an operator of its own, which compilers see as one."""
    saved = ctx.saved_tensors
    if G is None:
        return (None,) * len(ctx.needs_input_grad)
    arguments = *saved[:9], ctx.slope, *saved[9:11], ctx.key, ctx.p
    if torch.is_grad_enabled() and not traced():  # to be differentiated itself
        from spgnn.kernels.torch_kernels import attended

        pattern, operands, rules = _read(joint, arguments)

        def rows(*leaves: Any) -> Tensor:
            return attended(pattern, type(operands)(*leaves[:3]), rules._replace(edges=leaves[3]))

        *gradients, of_edges = gradients_again(rows, saved[5:9], G)
    else:
        *gradients, edges = backward(*arguments, G, *saved[11:])
        of_edges = None if saved[8] is None else edges
    return (None,) * 5 + (*gradients, of_edges) + (None,) * (len(ctx.needs_input_grad) - 9)


def _define(name: str, joint: bool, operands: str, more: str, results: str) -> Any:
    """An operator, and one for its gradients."""
    arguments = (
        "Tensor indptr, Tensor indices, Tensor t_indptr, Tensor t_indices, Tensor? order, "
        f"{operands}, Tensor? edges, float slope, "
        "Tensor? row_ids, Tensor? col_ids, int key, float p"
    )
    outputs = ", ".join(["Tensor"] * len(results.split(", ")))
    operator = define(
        f"{name}({arguments}{more}) -> ({outputs})",
        new=partial(_new_results, joint),
        compute=partial(_forward, joint),
    )
    tensors = ", ".join(f"Tensor {result}" for result in results.split(", "))
    backward = define(
        f"{name}_backward({arguments}, Tensor G, {tensors}) -> (Tensor, Tensor, Tensor, Tensor)",
        new=_new_gradients,
        compute=partial(_backward_of, joint),
    )
    torch.library.register_autograd(
        operator, partial(_differentiate, joint, backward), setup_context=partial(_save, joint)
    )
    return operator


_attention = _define(
    "attention", False, "Tensor d, Tensor s, Tensor Z", ", bool gradients", "out, lse, P, pi"
)
_attention_v2 = _define("attention_v2", True, "Tensor x, Tensor y, Tensor a", "", "out, lse")
