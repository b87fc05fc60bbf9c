"""One door to every data set: built in, generated, downloaded, a file, or a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spgnn.data.formats import FORMATS, edge_file, read_graph, read_in_memory, suffix_of
from spgnn.data.formats.npz import write_npz
from spgnn.data.formats.npz_source import NpzSource
from spgnn.data.graph import Graph
from spgnn.data.sets.generators import NAMES as GENERATED
from spgnn.data.sets.generators import generate
from spgnn.data.sets.ogb import SETS as OGB_SETS
from spgnn.data.sets.ogb import load_ogb
from spgnn.data.sets.planetoid import FILES as PLANETOID_SETS
from spgnn.data.sets.planetoid import load_planetoid
from spgnn.data.sets.reddit import load_reddit
from spgnn.data.shards import is_graph_directory, open_shards
from spgnn.data.source import GraphSource, MemorySource
from spgnn.data.union import BETWEEN, disjoint_union
from spgnn.errors import InputError, meant, shortened, unknown
from spgnn.progress import Progress

DOWNLOADS = (*PLANETOID_SETS, "reddit", *OGB_SETS)
_SHOWN = 60


def load_dataset(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Graph:
    """A graph by name or path.

    Parameters
    ----------
    name_or_path : str or path
        ``sbm``, the built-in set; ``rmat-SCALE-FACTOR``; a stand-in such as ``reddit-like@0.01``;
        each of them also with a seed, ``sbm@seed=3`` or ``reddit-like@0.01,seed=3``; a name that
        can be downloaded (`DOWNLOADS`); the name of an .npz file in ``data_dir``; a file that
        `spgnn.data.read_graph` reads; or a graph directory (`spgnn.data.open_shards`). Several,
        joined by ``+``, are one graph without edges between them.
    data_dir : path, optional
        Where named sets are looked for and downloads are kept: by default the directory named by
        the environment variable SPGNN_DATA, or else ``~/.cache/spgnn``.
    seed : int
        Of generated graphs whose name gives none.
    progress : called with (what, done, all), optional

    Raises
    ------
    InputError
        If there is nothing of that name, or it cannot be read.
    """
    text = os.fspath(name_or_path)
    names = _several(text)
    if names:
        return disjoint_union([load_dataset(name, data_dir, seed, progress) for name in names])
    generated = generate(text, seed)
    if generated is not None:
        return generated
    path = _located(text, data_dir)
    if path is None:
        return download(text, data_dir, progress)
    return open_shards(path).graph() if os.path.isdir(path) else read_graph(path, progress)


def open_source(
    name_or_path: str | os.PathLike[str],
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    graph_split: Sequence[int] | None = None,
) -> GraphSource:
    """As `load_dataset`, but rows of features stay where they are until they are asked for.

    An .npz file and a graph directory hand out rows; any other set is in memory as a whole.

    Parameters
    ----------
    name_or_path, data_dir, seed, progress
        As of `load_dataset`.
    graph_split : three int, optional
        Of several data sets, so many are for training, validation and testing.

    Raises
    ------
    InputError
    """
    text = os.fspath(name_or_path)
    names = _several(text)
    if names or graph_split is not None:
        graphs = [load_dataset(name, data_dir, seed, progress) for name in names or [text]]
        return MemorySource(disjoint_union(graphs, graph_split))
    generated = generate(text, seed)
    if generated is not None:
        return MemorySource(generated)
    path = _located(text, data_dir)
    if path is not None and os.path.isdir(path):
        return open_shards(path)
    if path is None:
        return MemorySource(download(text, data_dir, progress))
    file = edge_file(path)
    if file is None:
        return NpzSource(path)
    return MemorySource(read_in_memory(path, file, progress), file.decided())


def download(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Fetch a public set and keep it as .npz; the files as published stay beside it.

    Raises
    ------
    InputError
        If there is no such set, no network, or a file is not the published one.
    """
    if name not in DOWNLOADS:
        raise unknown("to download", name, DOWNLOADS)
    home = data_directory(data_dir)
    raw = home / "raw"
    if name in PLANETOID_SETS:
        graph = load_planetoid(name, raw, progress)
    elif name == "reddit":
        graph = load_reddit(raw, progress)
    else:
        graph = load_ogb(name, raw, progress)
    write_npz(graph, home / f"{name}.npz", compressed=False)
    return graph


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where named sets are looked for."""
    chosen = data_dir or os.environ.get("SPGNN_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "spgnn"


def _several(text: str) -> list[str]:
    """The data sets that a text joins; none, if it names one."""
    if BETWEEN not in text or os.path.exists(text):
        return []
    return text.split(BETWEEN)


def _located(text: str, data_dir: str | os.PathLike[str] | None) -> Path | None:
    """The file or directory that is meant, or ``None`` for a set that has to be downloaded."""
    path = Path(text)
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    there = os.path.isfile(path) or is_graph_directory(path)
    if text and (there or path.parent != Path() or suffix_of(path) in FORMATS):
        return path
    home = data_directory(data_dir)
    stored = home / f"{text}.npz"
    if os.path.exists(stored):
        return stored
    if text in DOWNLOADS:
        return None
    choices = (*GENERATED, *DOWNLOADS)
    near = meant(text, (*choices, *(kept.stem for kept in home.glob("*.npz"))))
    shown = shortened(text, _SHOWN)
    raise InputError(
        f"no data set '{shown}': neither a file, nor {shortened(str(stored), _SHOWN)}, nor one of "
        f"{', '.join(choices)}{near}"
    )
