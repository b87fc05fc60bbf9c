"""Recommenders on the whole graph of users and items: LightGCN and other propagations."""

import lazy_loader

from spgnn.registry import PROGRAMS

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

PROGRAMS.add("lightgcn.py", "spgnn.addons.recommend.config:RecommendConfig")
