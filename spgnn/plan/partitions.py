"""Partitions made once and kept in a directory, by what they are of."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from spgnn.errors import InputError
from spgnn.files import digest
from spgnn.partition import partition, read_labels, write_labels
from spgnn.partition.adjacency import Int32Array
from spgnn.partition.methods import Preset
from spgnn.plan.subject import Subject
from spgnn.progress import Progress

# Part of every key: labels of a partitioner that has changed are others.
_GENERATION = "1"


def cache_directory(given: str | None) -> Path:
    """Directory for partitions: as given, or in ``$SPGNN_CACHE`` or ``~/.cache/spgnn``."""
    if given is not None:
        return Path(given)
    home = os.environ.get("SPGNN_CACHE")
    return (Path(home) if home else Path.home() / ".cache" / "spgnn") / "partitions"


class Partitions:
    """Labels of one graph, computed at the first request.

    Parameters
    ----------
    subject : Subject
    directory : Path
        Files have METIS's format, one label a line. Their names describe the partition and have
        a digest of the labels, so a damaged file is recomputed.
    seed : int
    imbalance : float
    preset : {"fast", "default", "strong"}
    progress : Progress, optional

    Raises
    ------
    InputError
        If the directory cannot be made.
    """

    def __init__(
        self,
        subject: Subject,
        directory: Path,
        *,
        seed: int = 0,
        imbalance: float = 0.05,
        preset: Preset = "default",
        progress: Progress | None = None,
    ) -> None:
        self._subject, self._directory, self._preset = subject, directory, preset
        self._seed, self._imbalance, self._progress = seed, imbalance, progress
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or error
            raise InputError(f"--cache {directory}: cannot be made: {said}") from None

    def labels(
        self, method: str, objective: str, parts: int, nodes: int | None = None
    ) -> Int32Array:
        """The part of each vertex, int32 [n]; with nodes, of a partition of two levels."""
        return self._found(method, objective, parts, nodes)[0]

    def file(self, method: str, objective: str, parts: int, nodes: int | None = None) -> Path:
        """File of the labels."""
        return self._found(method, objective, parts, nodes)[1]

    def _found(
        self, method: str, objective: str, parts: int, nodes: int | None
    ) -> tuple[Int32Array, Path]:
        key = self._key(method, objective, parts, nodes)
        for path in sorted(self._directory.glob(f"{key}-*.labels")):
            with suppress(InputError):
                labels = read_labels(path, self._subject.vertices, parts)
                if path == self._path(key, labels):
                    return labels, path
            with suppress(OSError):
                path.unlink()
        labels, _ = partition(
            self._subject.looped,
            parts,
            method,
            objective="cover" if objective == "cover" else "column",
            imbalance=self._imbalance,
            seed=self._seed,
            preset=self._preset,
            nodes=nodes,
            minimum=False,
            progress=self._progress,
        )
        path = self._path(key, labels)
        write_labels(path, labels)
        return labels, path

    def _key(self, method: str, objective: str, parts: int, nodes: int | None) -> str:
        what: tuple[object, ...] = (_GENERATION, self._subject.digest, method, objective, parts)
        what += () if nodes is None else (nodes,)
        text = "/".join(map(str, (*what, self._seed, float(self._imbalance), self._preset)))
        return digest(text.encode())

    def _path(self, key: str, labels: Int32Array) -> Path:
        return self._directory / f"{key}-{digest(np.ascontiguousarray(labels).data)}.labels"


class GivenLabels:
    """Labels that are what they are: of a file, or of a graph that is cut already.

    Parameters
    ----------
    labels : int32 [n]
    parts : int
    """

    def __init__(self, labels: Int32Array, parts: int) -> None:
        self._labels, self.parts = labels, parts

    def labels(
        self, method: str, objective: str, parts: int, nodes: int | None = None
    ) -> Int32Array:
        """The same, whatever is asked for."""
        return self._labels
