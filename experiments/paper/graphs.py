"""The paper's graphs: stand-ins at a scale, or a real file."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from systems.stand_ins import STAND_INS, Shape, nested_model, stand_in

from spgnn.addons.plan.graphs import Dataset
from spgnn.config import TrainConfig
from spgnn.data import open_source
from spgnn.errors import InputError, check_choice
from spgnn.files import atomic_file, digest
from spgnn.sparse import CSR

# Scales at which a command takes minutes. Below, classes of a stand-in have fewer vertices than its
# vertices have neighbours, and fill up.
DEFAULT_SCALES = {"reddit": 0.1, "amazon": 0.02, "protein": 0.002, "papers": 0.001}
# And those at which dozens of trainings of up to 64 ranks on two cores do.
MEASURED_SCALES = {"reddit": 0.01, "amazon": 0.001, "protein": 0.0005, "papers": 0.0001}
DATASETS = tuple(DEFAULT_SCALES)


@dataclass(frozen=True, eq=False)
class PaperGraph:
    """A graph to count on, and what its counts stand for.

    Attributes
    ----------
    dataset : str
        As the paper calls it, or the real graph's name.
    data : Dataset
    factor : float
        Vertices of the original for each of the data's: 1 for a real graph or at full scale.
    """

    dataset: str
    data: Dataset
    factor: float

    @property
    def vertices(self) -> int:
        """Of the original."""
        return round(self.data.vertices * self.factor)


def shape_of(dataset: str) -> Shape:
    """Sizes of one of the paper's graphs.

    Raises
    ------
    InputError
    """
    check_choice("--datasets", dataset, DATASETS)
    return STAND_INS[f"{dataset}-like"]


def stand_in_of(
    dataset: str, scale: float, seed: int = 0, directory: Path | None = None
) -> PaperGraph:
    """The stand-in's structure; features are a width only, so that full size fits into memory.

    In a directory it is kept for the next time.

    Raises
    ------
    InputError
        If there is none of that name, or the scale is not in (0, 1].
    """
    shape = shape_of(dataset)
    if not 0 < scale <= 1:
        raise InputError(f"--scale must be in (0, 1], got {scale:g}")
    name = f"{dataset}-like@{scale:g}"
    how = f"{shape}{inspect.signature(nested_model)}{seed}"
    path = directory and directory / f"{name}-{digest(how.encode())[:12]}.npz"
    if path is not None and path.exists():
        try:
            with np.load(path) as file:
                indptr, indices, trained = (
                    torch.from_numpy(file[key]) for key in ("indptr", "indices", "train_mask")
                )
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it") from None
        structure = CSR.of(indptr, indices, (len(trained), len(trained)))
    else:
        graph = stand_in(f"{dataset}-like", scale, features=0, seed=seed)
        assert graph.train_mask is not None
        structure, trained = graph.adjacency, graph.train_mask
        if path is not None:
            with atomic_file(path, f"--cache {path}") as out:
                np.savez(
                    out,
                    indptr=structure.indptr.numpy(),
                    indices=structure.indices.numpy(),
                    train_mask=trained.numpy(),
                )
    data = Dataset(name, structure, shape.features, shape.classes, trained)
    return PaperGraph(dataset, data, shape.vertices / data.vertices)


def real_graph(name: str, data_dir: str | None = None) -> PaperGraph:
    """A graph of a file or a set's name, as it stands.

    Raises
    ------
    InputError
    """
    source = open_source(name, data_dir)
    made_up = TrainConfig.of(random_features=300, random_classes=24)
    return PaperGraph(source.meta.name, Dataset.of(source, made_up), 1.0)
