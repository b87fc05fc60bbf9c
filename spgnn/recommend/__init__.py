"""Recommenders on the whole graph of users and items: LightGCN and other propagations."""

from spgnn.recommend.command import main, train
from spgnn.recommend.config import RecommendConfig
from spgnn.recommend.interactions import Interactions, open_interactions

__all__ = [
    "Interactions",
    "RecommendConfig",
    "main",
    "open_interactions",
    "train",
]
