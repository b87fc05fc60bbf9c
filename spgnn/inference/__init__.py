"""Trained models on whole graphs: weights from files, one forward, results to files."""

from __future__ import annotations

from spgnn.inference.embeddings import Embeddings
from spgnn.inference.forward import infer
from spgnn.inference.weights import load_weights, save_weights

__all__ = ["Embeddings", "infer", "load_weights", "save_weights"]
