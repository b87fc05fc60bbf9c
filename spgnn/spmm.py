"""DistMatrix: a sparse matrix distributed over a mesh of ranks, and its halo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn import kernels
from spgnn.attention import Attention, TurnedAttention
from spgnn.autograd import Operands, product
from spgnn.comm import Mesh
from spgnn.errors import InputError
from spgnn.exchange import EXACT, Algorithm, Executor, Plan, Stage, Step, build
from spgnn.exchange.codec import CodecSetting
from spgnn.exchange.executor import Exchange, Workspace
from spgnn.exchange.peers import Peers
from spgnn.exchange.plan import Turned, Volume
from spgnn.exchange.schemes import check_labels
from spgnn.exchange.stacks import Codecs, name_rows
from spgnn.layout import RowLayout
from spgnn.pattern import Pattern, Selection
from spgnn.registry import Cover, Schedule, Strategy
from spgnn.sparse import CSR, as_csr, side_by_side
from spgnn.torch_internals import named

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

BACK, LEARNT = "adjoint", "values that require a gradient"


class DistMatrix:
    """A sparse matrix A over the ranks of a mesh; ``A @ H`` is differentiable in H.

    And in the values of A, if those that it was built from require a gradient.

    Dense operands are distributed by rows: each rank holds those that `layout` gives it. Use
    :meth:`build` with this rank's block row at hand; any other plan is as good.

    Parameters
    ----------
    plan : Plan
        Of this rank.
    layout : RowLayout
        Which rank owns which rows of H.
    mesh : Mesh
    row_layout : RowLayout, optional
        Which rank makes which rows of ``A @ H``, where A is not square.
    schedule : {"overlap", "peers"}
        All rows at once, or those of a few peers at a time.
    buffer : int
        Bytes of received rows that ``peers`` may hold at a time.
    workspace : Workspace, optional
        Buffers shared with other matrices, which may not be multiplied at the same time.
    setting : CodecSetting, optional
        Of its codec; the rows of the plan have names then. See :meth:`set_codec`.

    Attributes
    ----------
    build_with_halo : callable or None
        Makes the same matrix with whole rows, where this one is for products alone.
    """

    def __init__(
        self,
        plan: Plan,
        layout: RowLayout,
        mesh: Mesh,
        *,
        row_layout: RowLayout | None = None,
        schedule: Schedule = "overlap",
        buffer: int = 0,
        workspace: Workspace | None = None,
        setting: CodecSetting | None = None,
    ) -> None:
        self.layout, self.mesh = layout, mesh
        self.row_layout = layout if row_layout is None else row_layout
        self.schedule, self.buffer = schedule, buffer
        self.rows, self.columns = plan.shape
        self.handle = named(self)
        self.build_with_halo: Callable[[], DistMatrix] | None = None
        self.whole_rows: Callable[[], DistMatrix] | None = None  # the same, for derivatives
        self._arrange(plan, setting, workspace)

    def _arrange(
        self, plan: Plan, setting: CodecSetting | None, workspace: Workspace | None
    ) -> None:
        """Make what runs a plan, with a codec or without."""
        self.plan = plan
        self._learnt = any(b.values is not None and b.values.requires_grad for b in plan.blocks)
        self.codecs = None if setting is None else Codecs(plan, setting)
        policy = None if setting is None else setting.policy
        self.operands = Operands(self.mesh.everyone, policy, plan=plan.call)
        hops = None if self.codecs is None else self.codecs.hops
        self.executor: Executor = (
            Executor(plan, self.mesh, hops, workspace)
            if self.schedule == "overlap"
            else Peers(plan, self.mesh, self.buffer, hops, workspace)
        )
        for name in ("attention", "_halo"):
            self.__dict__.pop(name, None)

    def set_codec(self, setting: CodecSetting | None, ids: Tensor) -> None:
        """From now on, products that are not exact go through a codec; it begins anew. Collective.

        By default, what autograd records is approximate, and all else exact (``setting.policy``);
        ``None`` is no codec any more. `ids` [columns] are the original ids of the vertices whose
        rows it takes. It is an `InputError` if whole block rows are broadcast, the codec keeps rows
        that the schedule has no room for, or values require a gradient.
        """
        plan = self.plan
        if self.build_with_halo is not None:
            self.with_halo.set_codec(setting, ids)
        if setting is not None and self._learnt:
            raise InputError(f"{LEARNT} need exact messages, and no codec")
        if setting is not None and any(hop.names is None for hop in plan.hops):
            plan = name_rows(plan, ids, self.mesh, self.mesh.rank)
        self._arrange(plan, setting, self.executor.workspace)
        if setting is not None and setting.codec.delay:
            for axis in dict.fromkeys(hop.axis for hop in plan.hops):
                self.mesh[axis].apart()  # connected now, and not in an epoch

    @classmethod
    def build(
        cls,
        block: Any,
        layout: RowLayout,
        mesh: Mesh,
        *,
        row_layout: RowLayout | None = None,
        exchange: Strategy = "sparsity-aware",
        cover: Cover = "column",
        algorithm: Algorithm | None = None,
        column_scale: Tensor | None = None,
        edge_labels: Tensor | None = None,
        schedule: Schedule = "overlap",
        buffer: int = 0,
    ) -> DistMatrix:
        """Inspect this rank's rows of a matrix. Collective.

        Parameters
        ----------
        block : CSR, or a sparse matrix of SciPy or torch [own rows of A, n]
            Global columns; may carry values and a ``row_scale``. These are copied; the pattern,
            which cannot change, is shared where this rank has all columns. Values may require a
            gradient, on all ranks or on none: build anew when they have changed.
        layout : RowLayout
            Rows of H over all P ranks.
        mesh : Mesh
            Of :meth:`Mesh.grid`, P/c × c ranks; or of the axes that an `algorithm` asks for.
        row_layout : RowLayout, optional
            Rows of A over all P ranks; by default A is square, and `layout` is that of its rows.
        exchange, cover
            See :func:`spgnn.exchange.schemes.grid`.
        algorithm : Algorithm, optional
            Who computes what, in place of `exchange`, `cover`, `schedule` and `buffer`; by default
            1D or, with c > 1 on the mesh, 1.5D.
        column_scale : Tensor [own rows], optional
            Scaling of the columns this rank owns.
        edge_labels : Tensor, integers [nnz], optional
            The rank that multiplies each nonzero of the block, in a vertex cut; on all ranks or on
            none.
        schedule, buffer
            As of the class.

        Raises
        ------
        InputError
            If shapes do not fit each other, ranks disagree, or values require a gradient and the
            algorithm adds rows up on their way, shares columns out or goes by groups of peers; on
            all ranks alike.
        """
        if not isinstance(mesh, Mesh):
            raise InputError(
                f"DistMatrix.build(A, layout, mesh): mesh must be a Mesh, got "
                f"{type(mesh).__name__}: write Mesh.grid(comm)"
            )
        comm = mesh.everyone
        block = comm.on_every_rank(lambda: as_csr(block))
        if algorithm is None:
            c = mesh.axes.size("replica")
            algo = "1d" if c == 1 else "1.5d"
            algorithm = Algorithm(algo, c, exchange, cover, schedule=schedule, buffer=buffer)
        learnt = block.values is not None and block.values.requires_grad and torch.is_grad_enabled()
        comm.check_agreement(
            "DistMatrix.build",
            layout=layout.offsets,
            row_layout=None if row_layout is None else row_layout.offsets,
            **vars(algorithm),
            values=None if block.values is None else block.values.dtype,
            values_require_grad=learnt,
            column_scale=None if column_scale is None else column_scale.dtype,
            edge_labels=edge_labels is not None,
        )
        rows = layout if row_layout is None else row_layout
        comm.on_every_rank(lambda: _check_block(block, layout, rows, mesh, algorithm, column_scale))
        if learnt and "learnt_values" not in algorithm.can:
            raise InputError(
                f"{LEARNT} need algo 1d, 1.5d, 2d or vertex-cut, no hierarchy (node_size 1) and "
                "schedule overlap; detach() makes them constants"
            )
        if edge_labels is not None:
            comm.on_every_rank(lambda: check_labels(edge_labels, block, layout))
        block = block.with_own_numbers()
        column_scale = None if column_scale is None else column_scale.clone()
        scheme = algorithm.scheme(block, layout, mesh.rank, column_scale, edge_labels=edge_labels)
        plan = build(scheme, mesh).ready()
        how: dict[str, Any] = {"schedule": algorithm.schedule, "buffer": algorithm.buffer}
        return cls(plan, layout, mesh, row_layout=rows, **how)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole matrix."""
        return self.row_layout.rows, self.layout.rows

    @property
    def own_rows(self) -> int:
        """Rows of a dense operand that this rank holds."""
        return self.columns

    @property
    def volume(self) -> Volume:
        """Rows this rank sends and receives in one product, partial sums included."""
        return self.plan.volume

    def __matmul__(self, H_local: Tensor) -> Tensor:
        """``A @ H``; H_local [own rows, f] or [own rows] to Z_local of its form. Collective.

        The same as ``product(A, H)``, which is how compiled functions have to say it: torch.compile
        does not look at an operator between a tensor and something else.
        """
        return _times(self, H_local)

    @property
    def T(self) -> Adjoint:
        """The transpose: ``A.T @ G`` runs the same plan backwards."""
        return Adjoint(self)

    def aslinearoperator(self) -> LinearOperator:
        """The matrix as SciPy's solvers and eigensolvers take it. Each product is collective.

        Its vectors are whole ones, NumPy arrays [n] that every rank has: so all ranks call the
        same solver, with the same arguments, and each gets the whole answer (docs/guides/hpc.md).

        Returns
        -------
        scipy.sparse.linalg.LinearOperator [rows, columns]
            Of the dtype of the values, or float64 without. A product raises an ``InputError`` on
            all ranks if their vectors differ, as random ones do: give the solver a start.
        """
        from scipy.sparse.linalg import LinearOperator

        numbers = (a for b in self.plan.blocks for a in (b.values, b.row_scale, b.col_scale))
        dtype = next((a.dtype for a in numbers if a is not None), torch.float64)
        comm, device = self.mesh.everyone, self.plan.blocks[0].device

        def whole(A: DistMatrix | Adjoint, begins: RowLayout, ends: RowLayout) -> Any:
            def multiply(X: npt.NDArray[Any]) -> npt.NDArray[Any]:
                if np.iscomplexobj(X):
                    result: npt.NDArray[Any] = multiply(X.real) + 1j * multiply(X.imag)
                    return result
                comm.check_agreement("aslinearoperator()", vector=X)
                mine = np.array(X[slice(*begins.range(comm.rank))])
                with torch.no_grad():
                    rows = A @ torch.from_numpy(mine).to(device, dtype).reshape(len(mine), -1)
                every = rows.new_empty(ends.rows, rows.shape[1])
                comm.all_gather(rows.contiguous(), every, ends.sizes.tolist())
                return every.cpu().numpy().reshape(ends.rows, *X.shape[1:])

            return multiply

        there = whole(self, self.layout, self.row_layout)
        back = whole(self.T, self.row_layout, self.layout)
        numpy_dtype = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
        return LinearOperator(self.shape, there, back, there, numpy_dtype, back)

    @property
    def with_halo(self) -> DistMatrix:
        """The same matrix whose rows travel whole: another one, if this is for products alone.

        Collective, if that has to be built.
        """
        return self if self.build_with_halo is None else self.build_with_halo()

    def halo(self, H_local: Tensor, *, exact: bool = False) -> Tensor:
        """Own rows of H, then the rows of others that this rank's rows of A need. Collective.

        Differentiable. `local_matrix` has its columns in the same order, so a layer that takes
        (sources, destinations) and edges is exact on ``(A.halo(H), H)`` and the local pattern.

        Parameters
        ----------
        H_local : Tensor [own rows, f]
        exact : bool
            Whatever the codec: for ids, and what is made once.

        Returns
        -------
        Tensor [own + received, f]

        Raises
        ------
        InputError
            If rows of H are not what this rank receives: c > 1, or a cover other than columns.
        """
        step = None
        if exact and not torch.compiler.is_compiling():
            step = self.operands.next(H_local, self.columns, exact=True)
        return product(self._halo, H_local, step)

    def halo_sum(self, G_halo: Tensor) -> Tensor:
        """The adjoint of `halo`, differentiable: its rows added up at their owners. Collective."""
        return product(self._halo.T, G_halo)

    @cached_property
    def attention(self) -> Attention:
        """Attention over the nonzeros of A: see :func:`spgnn.attention.attend`."""
        if self.build_with_halo is not None:
            return self.with_halo.attention
        kind = TurnedAttention if isinstance(self.plan.stages[0], Turned) else Attention
        return kind(self.plan, self.mesh, self.executor.workspace, self.codecs, buffer=self.buffer)

    @cached_property
    def _halo(self) -> HaloMap:
        if self.build_with_halo is not None:
            return self.with_halo._halo
        return HaloMap(self.executor, self.operands, self.codecs)

    @cached_property
    def local_pattern(self) -> Pattern:
        """Own rows of A as a pattern [own rows, own + received], as `halo` orders them."""
        return self._unscaled.pattern

    def local_matrix(self) -> CSR:
        """Own rows of A on the halo: `local_pattern` with values and scalings. Collective.

        ``spmm(A.local_matrix(), A.halo(H))`` is ``A @ H``.
        """
        stage = self._halo.stage
        own_scale = stage.local.col_scale
        col_scale = None
        if own_scale is not None:
            col_scale = self.halo(own_scale[:, None], exact=True)[:, 0].contiguous()
        return self._unscaled.with_scales(stage.local.row_scale, col_scale)

    @property
    def _unscaled(self) -> CSR:
        if self.build_with_halo is not None:
            return self.with_halo._unscaled
        # Values that require a gradient are put together anew, with a history of their own.
        stage, learnt = self._halo.stage, self._learnt
        return side_by_side(stage.local, stage.remote) if learnt else self._constant

    @cached_property
    def _constant(self) -> CSR:
        stage = self._halo.stage
        return side_by_side(stage.local, stage.remote)

    @property
    def composed(self) -> Callable[[Tensor], Tensor] | None:
        """The product of which autograd sees each part, if values require a gradient."""
        return self._composed if self._learnt else None

    def _composed(self, H_local: Tensor) -> Tensor:
        """``A·H`` as autograd follows it into the values: stages and exchanges one by one."""
        first = 0
        for stage in self.plan.stages:
            assert isinstance(stage, Stage)  # the algorithm was checked
            Z_local, received = kernels.spmm(stage.local, H_local), H_local[:0]
            for number, hop in enumerate(stage.hops):
                rows = kernels.spmm(hop.send, H_local)
                if hop.relay is not None:
                    rows = rows + kernels.spmm(hop.relay, received)
                moved = HopMap(self.executor.exchange(stage, first), number)
                received = torch.cat((received, product(moved, rows, EXACT, cast=False)))
            if stage.remote is not None:
                Z_local = Z_local + kernels.spmm(stage.remote, received)
            first, H_local = first + len(stage.hops), Z_local
        return H_local

    def next_step(self, H_local: Tensor) -> Step:
        """Check a product that is about to begin, and say whether it is exact. Collective."""
        return self.operands.next(H_local, self.columns)

    def forward(self, H_local: Tensor, step: Step | None = None) -> Tensor:
        """``A·H`` without autograd; without a step, exact. Collective."""
        if step is None:
            step = self.operands.next(H_local, self.columns, exact=True)
        if self.codecs is not None:
            step = _begun(self.codecs, self.executor, H_local, step)
        return self.executor.forward(H_local, step)

    def adjoint(self, G_local: Tensor, step: Step | None = None) -> Tensor:
        """``Aᵀ·G``: the same plan run backwards; same counts, same bytes. Collective."""
        if step is None:
            step = self.operands.next(G_local, self.rows, exact=True, direction=BACK).reversed()
        if self.codecs is not None:
            step = _begun(self.codecs, self.executor, G_local, step)
        return self.executor.adjoint(G_local.contiguous(), step)

    def to(self, target: torch.device | torch.dtype | str) -> DistMatrix:
        """The same on a device, or for another dtype; a codec begins anew. Collective, with one."""
        if self.codecs is not None:
            self.codecs.land()
        matrix, build = self._with(self.plan.to(target).ready()), self.build_with_halo
        if build is not None:
            matrix.build_with_halo = cache(lambda: build().to(target))
        return matrix

    def another(self, plan: Plan) -> DistMatrix:
        """A matrix of another plan that shares buffers: both may not be multiplied at once."""
        shared = self.executor.workspace
        return DistMatrix(plan, self.layout, self.mesh, workspace=shared, **self._how)

    def _with(self, plan: Plan) -> DistMatrix:
        setting = None if self.codecs is None else self.codecs.setting
        return DistMatrix(plan, self.layout, self.mesh, setting=setting, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        how = {"schedule": self.schedule, "buffer": self.buffer}
        return how | {"row_layout": self.row_layout}

    def __deepcopy__(self, memo: dict[int, Any]) -> DistMatrix:
        matrix = self._with(self.plan)
        matrix.build_with_halo = self.build_with_halo
        return matrix

    def __reduce__(self) -> tuple[Any, ...]:
        # What is pickled has no codec.
        return partial(DistMatrix, **self._how), (self.plan, self.layout, self.mesh)


def _check_block(
    block: CSR,
    layout: RowLayout,
    row_layout: RowLayout,
    mesh: Mesh,
    algorithm: Algorithm,
    column_scale: Tensor | None,
) -> None:
    ranks = mesh.axes.ranks
    algorithm.check(ranks)
    for one in (layout, row_layout):
        if one.parts != ranks:
            raise InputError(f"layout has {one.parts} parts, the mesh {ranks} ranks")
    if mesh.axes != algorithm.axes(ranks):
        raise InputError(f"{algorithm} needs a mesh of {algorithm.axes(ranks)}, got {mesh.axes}")
    own = int(layout.sizes[mesh.rank])
    expected = int(row_layout.sizes[mesh.rank]), layout.rows
    if block.shape != expected:
        raise InputError(f"this rank's rows are {block.shape}, the layout asks for {expected}")
    if block.col_scale is not None:
        raise InputError(
            "a rank's rows have no col_scale: it would have to know that of remote columns; pass "
            "the scale of the columns it owns as column_scale"
        )
    if column_scale is not None and column_scale.shape != (own,):
        raise InputError(
            f"column_scale must be [{own}], this rank's rows, got {list(column_scale.shape)}"
        )
    for name, scale in (("row_scale", block.row_scale), ("column_scale", column_scale)):
        if scale is not None and scale.requires_grad and torch.is_grad_enabled():
            raise InputError(
                f"{name} is a constant, which cannot require a gradient: scale rows of the operand "
                "or of the product"
            )


def _begun(codecs: Codecs | None, executor: Executor, rows: Tensor, step: Step) -> Step:
    """The step of a product that begins, as its codec has it."""
    if codecs is None or step.exact:
        return step
    width, dtype = rows.shape[1], rows.dtype
    return codecs.begin(step, lambda at: executor.carried(width, dtype, at))


def _times(A: DistMatrix | Adjoint, H_local: Tensor) -> Tensor:
    """The product with rows [own rows, f], or with numbers [own rows]."""
    if isinstance(H_local, Tensor) and H_local.dim() == 1:
        return product(A, H_local[:, None])[:, 0]
    return product(A, H_local)


class HopMap:
    """The rows of one hop of a stage at the ranks that need them; linear, its adjoint back."""

    def __init__(self, exchange: Exchange, number: int) -> None:
        hop = exchange.stage.hops[number]
        self._exchange, self._number = exchange, number
        self.rows, self.columns = hop.counts.received, hop.send.shape[0]
        self.handle = named(self)

    def next_step(self, rows: Tensor) -> Step:
        """Exact, always."""
        return EXACT

    def forward(self, rows: Tensor, step: Step) -> Tensor:
        """[rows to send, f] to [received rows, f]. Collective."""
        return self._over(rows, self.rows, step)

    def adjoint(self, G_recv: Tensor, step: Step) -> Tensor:
        """[received rows, f] to [rows to send, f]. Collective."""
        return self._over(G_recv, self.columns, step)

    def _over(self, rows: Tensor, count: int, step: Step) -> Tensor:
        arrived = rows.new_empty(count, rows.shape[1])
        self._exchange.start(self._number, rows.contiguous(), arrived, step).wait()
        return arrived


class HaloMap:
    """H to [own, received rows of H], linear; InputError if the plan receives anything else."""

    def __init__(
        self, executor: Executor, operands: Operands, codecs: Codecs | None = None
    ) -> None:
        plan = executor.plan
        stage = plan.stages[0]
        if (
            len(plan.stages) > 1
            or not isinstance(stage, Stage)
            or not all(hop.sends_rows for hop in stage.hops)
        ):
            raise InputError(
                "a halo needs whole rows of H: build a 1D matrix, with cover='column' and c = 1"
            )
        self.stage = stage
        own, device = stage.local.shape[1], stage.local.device
        identity = CSR(Selection(torch.arange(own, device=device), own))
        hops = (replace(hop, send=hop.send.with_scales(None, None)) for hop in stage.hops)
        fetched = Stage(identity, None, tuple(hops))
        self._codecs = codecs
        self.executor, self._exchange = executor, Exchange(fetched, 0, executor)
        self.columns, self.rows = own, own + stage.received[-1]
        self.handle = named(self)
        self.operands = operands

    def next_step(self, H_local: Tensor, **facts: Any) -> Step:
        """Check and count a halo that is about to be fetched. Collective."""
        return self.operands.next(H_local, self.columns, **facts)

    def forward(self, H_local: Tensor, step: Step) -> Tensor:
        """H_local [own, f] to [own + received, f]. Collective."""
        halo = H_local.new_empty(self.rows, H_local.shape[1])
        step = _begun(self._codecs, self.executor, H_local, step)
        arriving = self._exchange.begin(H_local.contiguous(), step, halo[self.columns :])
        try:
            halo[: self.columns] = H_local
        finally:
            arriving.wait()
        return halo

    def adjoint(self, G_halo: Tensor, step: Step) -> Tensor:
        """Add up what belongs to each own row: [own + received, f] to [own, f]. Collective."""
        G_halo = G_halo.contiguous()
        step = _begun(self._codecs, self.executor, G_halo, step)
        returning = G_halo[self.columns :]
        if len(self.stage.hops) > 1:  # to which relays add what comes back to them
            returning = returning.clone()
        flight = self._exchange.begin_adjoint(returning, step)
        try:
            dH_local = G_halo[: self.columns].clone()
        finally:
            flight.wait()
        flight.add_to(dH_local)
        return dH_local

    @cached_property
    def T(self) -> Adjoint:
        """Its adjoint: [own rows, received rows] to own rows."""
        return Adjoint(self)


class Adjoint:
    """The transpose of a matrix or of a halo; its products are the adjoint's, and back."""

    def __init__(self, A: DistMatrix | HaloMap) -> None:
        self.T = A
        self.columns, self.rows = A.rows, A.columns
        self.handle = named(self)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole matrix; of a halo, that of this rank."""
        rows, columns = self.T.shape if isinstance(self.T, DistMatrix) else (self.T.rows, self.rows)
        return columns, rows

    def __matmul__(self, G_local: Tensor) -> Tensor:
        """``Aᵀ @ G``; own rows of ``A @ H``, or as many numbers, to those of H. Collective."""
        return _times(self, G_local)

    @property
    def composed(self) -> Callable[[Tensor], Tensor] | None:
        """The adjoint of what autograd follows into the values of A, if they are learnt."""
        forward = getattr(self.T, "composed", None)
        return None if forward is None else partial(_pulled_back, forward, self.rows)

    def next_step(self, H_local: Tensor, **facts: Any) -> Step:
        """Check and count a product that is about to begin. Collective."""
        return self.T.operands.next(H_local, self.columns, direction=BACK, **facts)

    def forward(self, G_local: Tensor, step: Step) -> Tensor:
        """``Aᵀ·G``. Collective."""
        return self.T.adjoint(G_local, step.reversed())

    def adjoint(self, H_local: Tensor, step: Step) -> Tensor:
        """``A·H``. Collective."""
        return self.T.forward(H_local, step.reversed())


def _pulled_back(forward: Callable[[Tensor], Tensor], columns: int, G_local: Tensor) -> Tensor:
    """``Aᵀ·G`` of a linear function A, differentiable in all that A is."""
    at = G_local.new_zeros(columns, G_local.shape[1]).requires_grad_()
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        (result,) = torch.autograd.grad(forward(at), at, G_local, create_graph=recorded)
    return result
