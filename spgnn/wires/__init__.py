"""Approximate wires: what is lost of rows on their way, when they are used, and the error."""

from __future__ import annotations

from spgnn.wires.approximation import BITS, Approximation, Dials
from spgnn.wires.base import Codecs, Layer, Setting
from spgnn.wires.centred import Centred
from spgnn.wires.delayed import Delayed, Never
from spgnn.wires.errors import Errors
from spgnn.wires.fresh import Fresh
from spgnn.wires.policy import Policy
from spgnn.wires.quantised import Quantised
from spgnn.wires.sampled import Sampled
from spgnn.wires.stack import late_wire, weighed_wire, wires_of

__all__ = [
    "BITS",
    "Approximation",
    "Centred",
    "Codecs",
    "Delayed",
    "Dials",
    "Errors",
    "Fresh",
    "Layer",
    "Never",
    "Policy",
    "Quantised",
    "Sampled",
    "Setting",
    "late_wire",
    "weighed_wire",
    "wires_of",
]
