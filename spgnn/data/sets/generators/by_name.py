"""Generated sets by name: ``NAME``, or ``NAME@OPTION,OPTION`` with a scale or ``seed=N``."""

from __future__ import annotations

import re
from dataclasses import replace

from spgnn.data.graph import Graph
from spgnn.data.sets.generators.block_model import block_model
from spgnn.data.sets.generators.rmat import rmat
from spgnn.data.sets.generators.stand_ins import STAND_INS, stand_in
from spgnn.errors import InputError, shortened

NAMES = ("sbm", "rmat-SCALE-FACTOR", *STAND_INS)
_RMAT = re.compile(r"rmat-([0-9]{1,9})-([0-9]{1,9})")
_SEED = re.compile(r"seed=([0-9]{1,10})")
_LARGEST_SEED = 2**31 - 1


def generate(text: str, seed: int = 0) -> Graph | None:
    """The generated set of a name, or ``None`` if no generator has it.

    Parameters
    ----------
    text : str
        ``sbm``, ``rmat-SCALE-FACTOR`` or a stand-in; behind an @ a stand-in's scale and, for each
        of them, ``seed=N``: ``reddit-like@0.01,seed=3``.
    seed : int
        Where the name gives none.

    Raises
    ------
    InputError
        If what follows the @ is wrong, or the graph cannot be made.
    """
    name, at, options = text.partition("@")
    sizes = _RMAT.fullmatch(name)
    if name != "sbm" and name not in STAND_INS and sizes is None:
        return None
    scale, given = _options(text, name, options) if at else (None, None)
    seed = seed if given is None else given
    if name == "sbm":
        # Sized for seconds an epoch on a laptop; a three-layer GCN reaches about 90 %.
        graph = block_model(20_000, 300_000, homophily=0.6, signal=0.75, seed=seed)
    elif sizes is not None:
        graph = rmat(int(sizes[1]), int(sizes[2]), seed=seed)
    else:
        graph = stand_in(name, 1.0 if scale is None else scale, seed=seed)
    if given is None:
        return graph
    between = "@" if scale is None and name not in STAND_INS else ","
    return replace(graph, name=f"{graph.name}{between}seed={given}")


def _options(text: str, name: str, options: str) -> tuple[float | None, int | None]:
    """The scale and the seed that follow the @."""
    scales = name in STAND_INS
    example = f"{name}@0.01 or {name}@0.01,seed=3" if scales else f"{name}@seed=3"
    wrong = InputError(f"'{shortened(text, 60)}': what follows @ must be as in {example}")
    scale: float | None = None
    seed: int | None = None
    for option in options.split(","):
        if match := _SEED.fullmatch(option):
            if seed is not None or int(match[1]) > _LARGEST_SEED:
                raise wrong
            seed = int(match[1])
        elif scales and scale is None:
            try:
                scale = float(option)
            except ValueError:
                raise wrong from None
        else:
            raise wrong
    return scale, seed
