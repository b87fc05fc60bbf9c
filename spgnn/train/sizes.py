"""What the budget of a rank that works through its rows in parts has to know."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from spgnn.parts.blocks import Stretch
from spgnn.parts.budget import Sizes
from spgnn.parts.rows import OWN_MATRIX, Adjacency, Inspected, nonzeros_in
from spgnn.parts.segments import Segments
from spgnn.sparse import CSR
from spgnn.train.config import TrainConfig
from spgnn.train.found import Found, Labelled


def sizes_of(
    config: TrainConfig,
    segments: Segments,
    found: Found,
    adjacency: Adjacency,
    seen: Inspected,
    *,
    widths: Sequence[int],
    labels: Labelled | None,
) -> Sizes:
    """In numbers, at most.

    Parameters
    ----------
    config : TrainConfig
    segments : Segments
    found : Found
    adjacency : Adjacency
    seen : Inspected
    widths : sequence of int
        Features, and what each layer makes.
    labels : Labelled, optional
        ``None`` if nothing is learnt.
    """
    rows, X = adjacency.blocks.bounds[-1], found.X
    propagates = not isinstance(X, CSR) and not config.model.drops_features
    itemsize = 8 if config.training.dtype == "float64" else 4
    reached = labels is not None and config.algorithm.reach
    made, sources, small, own_bytes = (
        _reach(adjacency, labels, segments.layers, len(seen.needed))
        if reached and labels is not None
        else ((rows,) * segments.layers, (rows,) * segments.layers, (), 0)
    )
    operands = segments.operands(widths, sparse=isinstance(X, CSR))
    stored = 2 if config.storage.spill_dtype == "bfloat16" else itemsize
    sides = 1 if adjacency.symmetric else 2
    return Sizes(
        rows=rows,
        received=len(seen.needed),
        matrix_bytes=sides * (8 * rows + (4 + 4 * adjacency.weighted) * found.starts(rows)),
        operands=tuple(
            0 if propagates and not number else operand.shape[1]
            for number, operand in enumerate(operands)
        ),
        widths=tuple(widths),
        features_bytes=stored * rows * widths[0] if propagates else 0,
        looks=tuple(segments.looks_at_itself(n) for n in range(segments.layers)),
        made=made,
        sources=sources,
        itemsize=itemsize,
        fixed_bytes=own_bytes + _fixed(found, seen),
        sides=sides,
        small=small,
        source_bytes=4 * rows * widths[0] if isinstance(X, Stretch) else 0,
        learns=operands[0].requires_grad and not propagates,
    )


def _fixed(found: Found, seen: Inspected) -> int:
    """Bytes that are in memory whatever is decided."""
    known = [seen.loops, seen.row_scale, found.X, None if isinstance(found.ids, int) else found.ids]
    nbytes = sum(tensor.nbytes for tensor in known if isinstance(tensor, Tensor))
    return nbytes + (2 * found.X.nnz * 8 if isinstance(found.X, CSR) else 0)


def _reach(
    adjacency: Adjacency, labels: Labelled, layers: int, received: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], int]:
    """Rows that layers make, rows these are made of, which have a matrix of few rows, its bytes."""
    rows, last = adjacency.blocks.bounds[-1], len(labels.rows)
    everything, nobody = (rows,) * layers, (False,) * (layers - 1)
    wanted = labels.taken_by(rows, training=False)
    nonzeros = nonzeros_in(adjacency.blocks, wanted)
    if nonzeros > OWN_MATRIX * nonzeros_in(adjacency.blocks, None):
        return (*everything[1:], last), everything, (), 0
    before = min(rows, nonzeros + last)
    # On several ranks, its columns are all own rows.
    columns = rows if received else before
    own_bytes = 2 * (8 * (nonzeros + last) + 8 * columns) + 8 * before
    small = (*nobody, True)
    if layers == 1:
        return (last,), (columns,), small, own_bytes
    return (*everything[2:], before, last), (*everything[1:], columns), small, own_bytes
