"""Graphs with the shape of the paper's data sets, at any scale."""

from __future__ import annotations

from dataclasses import dataclass

from spgnn.data.graph import Graph
from spgnn.data.sets.generators.block_model import block_model
from spgnn.errors import InputError, check_choice


@dataclass(frozen=True)
class Shape:
    """Sizes of a data set, and how its degrees and communities are spread."""

    vertices: int
    edges: int
    features: int
    classes: int
    skew: float
    homophily: float


STAND_INS = {
    "reddit-like": Shape(232_965, 114_848_857, 602, 41, skew=2.2, homophily=0.75),
    "amazon-like": Shape(14_249_639, 230_788_269, 300, 24, skew=2.3, homophily=0.6),
    "protein-like": Shape(8_745_542, 2_116_240_124, 300, 24, skew=3.5, homophily=0.95),
    "papers-like": Shape(111_059_956, 3_231_371_744, 128, 172, skew=2.6, homophily=0.7),
}


def stand_in(name: str, scale: float = 1.0, *, seed: int = 0) -> Graph:
    """The stand-in of that name with ``scale`` times the vertices and edges of the original.

    Raises
    ------
    InputError
        If there is none of that name, or the scale is not in (0, 1].
    """
    check_choice("stand-in", name, STAND_INS)
    if not 0 < scale <= 1:
        raise InputError(f"the scale of {name} must be in (0, 1], got {scale}")
    shape = STAND_INS[name]
    return block_model(
        max(round(shape.vertices * scale), 1),
        round(shape.edges * scale),
        classes=shape.classes,
        features=shape.features,
        homophily=shape.homophily,
        skew=shape.skew,
        seed=seed,
        name=f"{name}@{scale:g}",
    )
