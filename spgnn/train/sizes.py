"""Sizes for the budget of a rank that works through its rows in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from spgnn.chunked.blocks import Stretch
from spgnn.chunked.rows import Adjacency, Inspected, nonzeros_in
from spgnn.chunked.segments import Segments
from spgnn.chunked.sizes import Sizes, at_most, scored
from spgnn.config import TrainConfig
from spgnn.sparse import CSR
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
        Features, what each hidden layer makes, and outputs.
    labels : Labelled, optional
        ``None`` if nothing is learnt.
    """
    rows, X = adjacency.blocks.bounds[-1], found.X
    if segments.model.jk_mode is not None and len(widths) > 2:
        widths = [*widths[:-1], widths[-2]]  # a linear layer makes the outputs
    propagates = first_propagates(config, X)
    itemsize = 8 if config.training.dtype == "float64" else 4
    operands = segments.operands(widths, sparse=isinstance(X, CSR))
    stored = 2 if config.storage.spill_dtype == "bfloat16" else itemsize
    sides = 2 if segments.multiplies and not adjacency.symmetric else 1
    sizes = Sizes(
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
        made=(rows,) * segments.layers,
        sources=(rows,) * segments.layers,
        itemsize=itemsize,
        fixed_bytes=_fixed(found, seen),
        sides=sides,
        source_bytes=4 * rows * widths[0] if isinstance(X, Stretch) else 0,
        learns=operands[0].requires_grad and not propagates,
        jumps=segments.jumps,
        norms=tuple(segments.norms(number) for number in range(segments.layers)),
        extremes=all(segments.reduction(number) for number in range(segments.layers)),
        heads=segments.all_heads,
    )
    if labels is None:
        return sizes
    outputs, known = scored(len(labels.rows), labels.classes, itemsize)
    fixed_bytes = sizes.fixed_bytes + known
    sizes = replace(sizes, scored_bytes=outputs, fixed_bytes=fixed_bytes)
    if not reaches(config, segments):
        return sizes
    wanted = labels.taken_by(rows, training=False)
    nonzeros = [nonzeros_in(adjacency.blocks, mask) for mask in (wanted, None)]
    return at_most(sizes, len(labels.rows), *nonzeros)


def reaches(config: TrainConfig, segments: Segments) -> bool:
    """True if layers may leave out rows that no labelled vertex needs."""
    # Outputs that look at all layers need the same rows of each; moments are those of all vertices.
    everything = segments.jumps or config.model.takes_all_rows
    return config.algorithm.prune and not everything


def first_propagates(config: TrainConfig, X: object) -> bool:
    """True if the first layer takes A·X, computed once, instead of features X."""
    model = config.model
    return model.propagates and not isinstance(X, CSR) and not model.drops_features


def _fixed(found: Found, seen: Inspected) -> int:
    """Bytes that are in memory whatever is decided."""
    known = [seen.loops, seen.row_scale, found.X, None if isinstance(found.ids, int) else found.ids]
    nbytes = sum(tensor.nbytes for tensor in known if isinstance(tensor, Tensor))
    return nbytes + (2 * found.X.nnz * 8 if isinstance(found.X, CSR) else 0)
