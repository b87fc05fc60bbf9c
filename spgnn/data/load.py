"""One door to every data set: built in, generated, downloaded, or a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from spgnn.data.download import Progress
from spgnn.data.generators import STAND_INS, block_model, rmat, stand_in
from spgnn.data.graph import Graph
from spgnn.data.npz import read_npz, write_npz
from spgnn.data.ogb import SETS as OGB_SETS
from spgnn.data.ogb import load_ogb
from spgnn.data.planetoid import FILES as PLANETOID_SETS
from spgnn.data.planetoid import load_planetoid
from spgnn.data.read import READERS, read_graph
from spgnn.data.reddit import load_reddit
from spgnn.errors import InputError

DOWNLOADS = (*PLANETOID_SETS, "reddit", *OGB_SETS)


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
        a name that can be downloaded (`DOWNLOADS`); the name of an .npz file in ``data_dir``; or
        a file that `spgnn.data.read.read_graph` reads.
    data_dir : path, optional
        Where named sets are looked for and downloads are kept: by default the directory named by
        the environment variable SPGNN_DATA, or else ``~/.cache/spgnn``.
    seed : int
        Of generated graphs.
    progress : called with (what, done, all), optional

    Raises
    ------
    InputError
        If there is nothing of that name, or it cannot be read.
    """
    text = os.fspath(name_or_path)
    generated = _generate(text, seed)
    if generated is not None:
        return generated
    path = Path(text)
    if path.is_file() or path.parent != Path() or _has_known_suffix(path):
        return read_graph(path, progress)
    home = data_directory(data_dir)
    stored = home / f"{text}.npz"
    if stored.exists():
        return read_npz(stored)
    if text not in DOWNLOADS:
        raise InputError(
            f"no data set '{text}': neither a file, nor {stored}, nor one of "
            f"sbm, rmat-SCALE-FACTOR, {', '.join((*STAND_INS, *DOWNLOADS))}"
        )
    return download(text, data_dir, progress)


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
        raise InputError(f"'{name}' cannot be downloaded: choose {', '.join(DOWNLOADS)}")
    home = _writable(data_directory(data_dir))
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


def _writable(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{directory}: cannot be made: {error.strerror}") from None
    return directory


def _generate(text: str, seed: int) -> Graph | None:
    if text == "sbm":
        # Sized for seconds an epoch on a laptop; a three-layer GCN reaches about 90 %.
        return block_model(20_000, 300_000, homophily=0.6, signal=0.75, seed=seed)
    if match := re.fullmatch(r"rmat-(\d+)-(\d+)", text):
        return rmat(int(match[1]), int(match[2]), seed=seed)
    name, _, scale = text.partition("@")
    if name not in STAND_INS:
        return None
    try:
        factor = float(scale or 1)
    except ValueError:
        raise InputError(f"'{text}': what follows @ must be a number, as in {name}@0.01") from None
    return stand_in(name, factor, seed=seed)


def _has_known_suffix(path: Path) -> bool:
    return Path(path.name.removesuffix(".gz")).suffix.lower() in READERS
