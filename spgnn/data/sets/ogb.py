"""Node-property sets of the Open Graph Benchmark (Hu et al. 2020), without its package."""

from __future__ import annotations

import gzip
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import torch

from spgnn.data.edges import csr_from_edges
from spgnn.data.formats.archive import Archive
from spgnn.data.formats.reading import GuardedFile, reading
from spgnn.data.formats.text import Grammar, parse_stream
from spgnn.data.graph import Graph
from spgnn.data.sets.download import fetch
from spgnn.errors import InputError
from spgnn.files import written_aside
from spgnn.progress import Progress

HOME = "http://snap.stanford.edu/ogb/data/nodeproppred"


@dataclass(frozen=True)
class OgbSet:
    """Where a set lives, and how its archive is laid out.

    ``digest`` is ``None`` where no published one is known: then only the length and the
    checksums inside the archive are checked.
    """

    url: str
    digest: str | None
    split: str
    undirected: bool
    binary: bool = False


SETS = {
    "ogbn-arxiv": OgbSet(
        f"{HOME}/arxiv.zip",
        "sha256:49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
        split="time",
        undirected=False,
    ),
    "ogbn-products": OgbSet(
        f"{HOME}/products.zip",
        "sha256:5ea0a112edaec2141c0a2a612dd4aed58df97ff3e1ab1a0ca8238f43cbbb50a8",
        split="sales_ranking",
        undirected=True,
    ),
    "ogbn-papers100M": OgbSet(
        f"{HOME}/papers100M-bin.zip", None, split="time", undirected=False, binary=True
    ),
}


def load_ogb(
    name: str, cache: Path, progress: Progress | None = None, source: OgbSet | None = None
) -> Graph:
    """Fetch the archive and put the graph together, in memory as a whole.

    Edge (u, v) of the files is stored in row v, column u; the edges of undirected sets, which the
    files hold once, in both directions.

    Raises
    ------
    InputError
        If it cannot be fetched or is not the published one.
    """
    source = source or SETS[name]
    archive = fetch(source.url, cache / source.url.rsplit("/", 1)[-1], source.digest, progress)
    with reading(archive, "not the published file"), zipfile.ZipFile(archive) as files:
        root = files.namelist()[0].split("/", 1)[0]
        read = _read_binary if source.binary else _read_text
        edges, x, y = read(files, root, cache)
        adjacency = csr_from_edges(edges[0], edges[1], len(x), symmetric=source.undirected)
        del edges
        masks = {}
        for mask, file in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
            chosen = _table(files, f"{root}/split/{source.split}/{file}.csv.gz", np.int64, 1)
            masks[mask] = torch.zeros(len(x), dtype=torch.bool)
            masks[mask][torch.from_numpy(chosen[:, 0])] = True
    return Graph(
        name,
        adjacency,
        directed=not source.undirected,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        **masks,
    )


def labels_of(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """OGB's labels [n] or [n, 1], NaN where there is none, as int64 [n] with −1."""
    flat = values.reshape(-1)
    return np.where(np.isnan(flat), -1, flat).astype(np.int64) if flat.dtype.kind == "f" else flat


Arrays = tuple[npt.NDArray[Any], npt.NDArray[np.float32], npt.NDArray[np.int64]]


def _read_text(files: zipfile.ZipFile, root: str, cache: Path) -> Arrays:
    edges = _table(files, f"{root}/raw/edge.csv.gz", np.int64, 2).T
    x = _table(files, f"{root}/raw/node-feat.csv.gz", np.float32)
    y = _table(files, f"{root}/raw/node-label.csv.gz", np.float64, 1)
    return edges, x, labels_of(y)


def _read_binary(files: zipfile.ZipFile, root: str, cache: Path) -> Arrays:
    # An .npz is read with seeks, which inside another archive would start from its beginning.
    with Archive(_extracted(files, f"{root}/raw/data.npz", cache)) as arrays:
        edges = arrays.array("edge_index")
        x = arrays.array("node_feat").astype(np.float32, copy=False)
    with Archive(_extracted(files, f"{root}/raw/node-label.npz", cache)) as arrays:
        y = arrays.array("node_label")
    return edges, x, labels_of(y)


def _extracted(files: zipfile.ZipFile, member: str, cache: Path) -> Path:
    target = cache / member.replace("/", "-")
    if not target.exists():
        with files.open(member) as packed, written_aside(target) as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    return target


def _table(
    files: zipfile.ZipFile, member: str, dtype: npt.DTypeLike, columns: int | None = None
) -> npt.NDArray[Any]:
    """A gzipped table of numbers inside the archive, [lines, columns]."""
    kind = "i" if np.dtype(dtype).kind == "i" else "f"
    grammar = Grammar("" if columns is None else kind * columns, kind if columns is None else "")
    pieces = []
    with files.open(member) as packed, gzip.open(packed) as file:
        guarded = GuardedFile(cast(BinaryIO, file), Path(member))
        for numbers in parse_stream(guarded, member, grammar):
            if not len(numbers.counts):
                continue
            columns = columns or int(numbers.counts[0])
            if (numbers.counts != columns).any():
                line = numbers.lines[np.argmax(numbers.counts != columns)]
                raise InputError(f"{member}, line {line}: not {columns} numbers")
            values = numbers.integers if kind == "i" else numbers.reals
            pieces.append(values.reshape(-1, columns).astype(dtype))
    return np.concatenate(pieces or [np.empty((0, columns or 0), dtype)])
