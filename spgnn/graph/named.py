"""Values of vertices and edges by name, as PyG's ``Data`` and its stores present it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any


class Named(ABC):
    """Values by name: ``graph["train_mask"]``, ``"x" in graph``, ``graph.keys()``.

    A name that the graph has for itself (``mean``, ``device``) is the data's here.
    """

    @abstractmethod
    def keys(self) -> list[str]:
        """Names of all values that are there."""

    @abstractmethod
    def _value(self, name: str) -> Any:
        """A value that is there. Collective where that of an attribute is."""

    def __getitem__(self, name: str) -> Any:
        """The value of a name."""
        if name in self.keys():
            return self._value(name)
        raise KeyError(f"no {name!r} here; there are {', '.join(self.keys())}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, or something else where there is none."""
        return self._value(name) if name in self.keys() else default

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __call__(self, *names: str) -> Iterator[tuple[str, Any]]:
        """Names and values, of those names that are there; without any, of all."""
        return iter([(key, self._value(key)) for key in names or self.keys() if key in self.keys()])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def items(self) -> Iterator[tuple[str, Any]]:
        """All names and their values."""
        return self()
