"""Reddit (Hamilton, Ying & Leskovec 2017) from DGL's home."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch

from spgnn.data.edges import csr_from_edges
from spgnn.data.formats.reading import reading
from spgnn.data.graph import Graph
from spgnn.data.sets.download import fetch
from spgnn.progress import Progress

URL = "https://data.dgl.ai/dataset/reddit.zip"
DIGEST = "sha256:9a16353c28f8ddd07148fc5ac9b57b818d7911ea0fbe9052d66d49fc32b372bf"
TRAIN, VAL, TEST = 1, 2, 3  # values of node_types


def load_reddit(
    cache: Path, progress: Progress | None = None, url: str = URL, digest: str = DIGEST
) -> Graph:
    """Fetch the archive of two .npz files and put the graph together.

    Raises
    ------
    InputError
        If it cannot be fetched or is not the published one.
    """
    archive = fetch(url, cache / "reddit.zip", digest, progress)
    with reading(archive, "not the published file"), zipfile.ZipFile(archive) as files:
        with files.open("reddit_graph.npz") as file, np.load(file, allow_pickle=False) as edges:
            row, col, shape = edges["row"], edges["col"], edges["shape"]
        with files.open("reddit_data.npz") as file, np.load(file, allow_pickle=False) as data:
            x = torch.from_numpy(data["feature"].astype(np.float32, copy=False))
            y = torch.from_numpy(data["label"].astype(np.int64, copy=False))
            kinds = torch.from_numpy(data["node_types"])
    return Graph(
        "reddit",
        csr_from_edges(col, row, int(shape[0]), symmetric=True, loops=False),
        directed=False,
        x=x,
        y=y,
        train_mask=kinds == TRAIN,
        val_mask=kinds == VAL,
        test_mask=kinds == TEST,
    )
