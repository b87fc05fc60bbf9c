"""A rank's share of the work that is done in parts, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spgnn.parts.heads import Heads

# A layer gets a matrix of its own rows if these have at most this share of all nonzeros.
OWN_MATRIX = 0.125


@dataclass(frozen=True)
class Sizes:
    """What a rank's share of the work needs, in numbers.

    Attributes
    ----------
    rows, received : int
        Own rows, and those of others that their product needs.
    matrix_bytes : int
        To go through the adjacency once.
    operands : tuple of int
        Width of what each layer multiplies; 0 for a first layer that takes A·X.
    widths : tuple of int
        Features, and what each layer makes.
    features_bytes : int
        Of A·X, if that is made; else 0.
    looks : tuple of bool
        Whether each layer looks at its input beside the product.
    made : tuple of int
        Own rows that each layer makes, at most.
    sources : tuple of int
        Own rows that each layer's product is made of, at most.
    itemsize : int
        Bytes of a number.
    fixed_bytes : int
        What is in memory whatever is decided.
    sides : int
        How many copies of the adjacency `matrix_bytes` are: 2 with its transpose.
    small : tuple of bool
        Which layers have a matrix of their own, of few rows, in memory.
    source_bytes : int
        To read the features, as they were found, once; 0 in memory.
    learns : bool
        Whether the first layer's operand depends on a weight.
    jumps : bool
        Whether outputs are made of what all layers make.
    norms : tuple of int
        How often each layer asks for moments over all vertices; empty: none does.
    extremes : bool
        Whether layers take the largest neighbours, and no products.
    heads : tuple of Heads or None
        How each layer weighs neighbours; empty: none does.
    scored_bytes : int
        Outputs that are together in memory at the end, to be judged.
    """

    rows: int
    received: int
    matrix_bytes: int
    operands: tuple[int, ...]
    widths: tuple[int, ...]
    features_bytes: int
    looks: tuple[bool, ...]
    made: tuple[int, ...]
    sources: tuple[int, ...]
    itemsize: int
    fixed_bytes: int
    sides: int = 1
    small: tuple[bool, ...] = ()
    source_bytes: int = 0
    learns: bool = True
    jumps: bool = False
    norms: tuple[int, ...] = ()
    extremes: bool = False
    heads: tuple[Heads | None, ...] = ()
    scored_bytes: int = 0


def scored(labelled: int, width: int, itemsize: int) -> tuple[int, int]:
    """Bytes of what is judged: outputs of labelled rows, and what is known of these.

    Parameters
    ----------
    labelled, width : int
        Rows, and columns of an output.
    itemsize : int
    """
    # Row and label, int64, for all and once more for those of training; three masks.
    return labelled * width * itemsize, labelled * (2 * (8 + 8) + 3)


def at_most(sizes: Sizes, wanted: int, nonzeros: int, total: int) -> Sizes:
    """The same if outputs of few rows are looked at, from how many these are alone.

    Parameters
    ----------
    sizes : Sizes
        With layers that make all rows.
    wanted : int
        Own rows of the last layer that are looked at.
    nonzeros : int
        In these rows.
    total : int
        In all own rows.
    """
    rows, layers = sizes.rows, len(sizes.operands)
    made, sources = [rows] * layers, [rows] * layers
    made[-1] = wanted
    if nonzeros > OWN_MATRIX * total:
        return replace(sizes, made=tuple(made))
    before = min(rows, nonzeros + wanted)
    if layers > 1:
        made[-2] = before
    # On several ranks, its columns are all own rows.
    sources[-1] = rows if sizes.received else before
    own_bytes = 2 * (8 * (nonzeros + wanted) + 8 * sources[-1]) + 8 * before
    return replace(
        sizes,
        made=tuple(made),
        sources=tuple(sources),
        small=(False,) * (layers - 1) + (True,),
        fixed_bytes=sizes.fixed_bytes + own_bytes,
    )
