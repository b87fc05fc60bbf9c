"""All ranks arranged along axes, and the group of each rank's peers along each of them."""

from __future__ import annotations

from typing import Any

from spgnn.comm.communicator import Communicator
from spgnn.comm.failure import guests, world
from spgnn.errors import InputError
from spgnn.layout import EVERYONE, Axes


class Mesh:
    """All ranks arranged along axes; ``mesh["row"]`` are this rank's peers along "row".

    Made by :meth:`build` or :meth:`grid`, once for each arrangement of a communicator.

    Attributes
    ----------
    axes : Axes
    everyone : Communicator
        All ranks.
    """

    def __init__(self, axes: Axes, everyone: Communicator, along: dict[str, Communicator]) -> None:
        self.axes = axes
        self.everyone = everyone
        self._along = along

    @classmethod
    def build(cls, everyone: Communicator, axes: Axes) -> Mesh:
        """Arrange all ranks. Collective; the same arrangement again costs nothing.

        Raises
        ------
        InputError
            If it is no communicator of spgnn, or the axes have another number of ranks.
        """
        _check(everyone)
        if axes.ranks != everyone.size:
            raise InputError(
                f"axes {axes.sizes} hold {axes.ranks} ranks, there are {everyone.size}"
            )
        meshes = _meshes_of(everyone)
        if axes not in meshes:
            along = {name: everyone.subgroup(axes.groups(name), name) for name in axes.names}
            meshes[axes] = cls(axes, everyone, along)
        return meshes[axes]

    @classmethod
    def grid(cls, everyone: Communicator, c: int = 1) -> Mesh:
        """P/c × c ranks, "row" by "replica" (:meth:`spgnn.layout.Axes.grid`). Collective."""
        _check(everyone)
        return cls.build(everyone, Axes.grid(everyone.size, c))

    @property
    def rank(self) -> int:
        """Number of this rank among all."""
        return self.everyone.rank

    def coordinate(self, axis: str) -> int:
        """The place of this rank on an axis."""
        return self.axes.coordinate(axis, self.rank)

    def __getitem__(self, axis: str) -> Communicator:
        return self.everyone if axis == EVERYONE else self._along[axis]

    def __reduce__(self) -> tuple[Any, ...]:
        # Groups cannot be pickled; the job that unpickles has to have the same arrangement.
        return _known_mesh, (self.axes,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Mesh:
        return self


def _check(everyone: object) -> None:
    if not isinstance(everyone, Communicator):
        raise InputError(
            f"a Mesh is of a communicator of spgnn, got {type(everyone).__name__}: write "
            "Mesh.grid(spgnn.connect(group=…))"
        )


def _known_mesh(axes: Axes) -> Mesh:
    own = world()
    groups = [_meshes_of(comm) for comm in ([own] if own else guests)]
    meshes = [by_axes[axes] for by_axes in groups if axes in by_axes]
    shape = " × ".join(map(str, axes.sizes))
    if not meshes:
        raise InputError(
            f"what is unpickled lives on {shape} ranks; build a Mesh of that shape first, on all"
        )
    if len(meshes) > 1:
        raise InputError(f"what is unpickled lives on {shape} ranks; several groups here have them")
    return meshes[0]


def _meshes_of(everyone: Communicator) -> dict[Axes, Mesh]:
    """The meshes made of a communicator, which live as long as it does."""
    meshes: dict[Axes, Mesh] = everyone.__dict__.setdefault("_meshes", {})
    return meshes
