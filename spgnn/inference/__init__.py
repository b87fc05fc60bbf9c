"""Trained models on whole graphs: weights from files, one forward, results to files."""

from __future__ import annotations

from spgnn.inference.embeddings import Embeddings
from spgnn.inference.forward import infer

__all__ = ["Embeddings", "infer"]
