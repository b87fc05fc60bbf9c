"""The front end: a user's data to each rank's share of a distributed graph."""

from __future__ import annotations

from spgnn.frontend.distribute import distribute

__all__ = ["distribute"]
