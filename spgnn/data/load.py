"""Every graph by its name: built in, generated, downloaded, a file, a directory, or several."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from spgnn.data.graph import MASKS, Graph
from spgnn.data.npz import NpzSource, read_npz, write_npz
from spgnn.data.shards import is_graph_directory, open_shards
from spgnn.data.source import GraphFile, GraphSource, MemorySource
from spgnn.data.structure import stack_rows
from spgnn.errors import InputError, shortened, suggestion
from spgnn.files import PACKED, AnyPath, check_regular, errors_of, unpacked
from spgnn.pattern import index_dtype
from spgnn.progress import Progress
from spgnn.registry import DATASETS, DOWNLOADS, READERS
from spgnn.sparse import CSR
from spgnn.torch_internals import on_cpu

BETWEEN = "+"  # the names of several data sets
_NOT_UNPACKED = (".zst", ".zip", ".7z", ".lz4", ".z", ".tar", ".tgz", ".tbz", ".txz", ".rar")
_PICKLES = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".p", ".joblib", ".bin", ".dgl")
# Files of others, and what makes of them something that `distribute` takes.
_READ_BY = {
    ".mat": "read it by scipy.io.loadmat, take its sparse matrix",
    **dict.fromkeys((".graphml", ".gml", ".gexf"), "read it by networkx, make it a SciPy matrix"),
    **dict.fromkeys((".h5", ".hdf5"), "read its arrays by h5py, make them a PyG Data"),
    **dict.fromkeys((".xlsx", ".json", ".jsonl"), "read it by pandas, save its table as Parquet"),
    ".npy": "an array alone is no graph; make it a PyG Data with an edge_index",
}


def read_graph(path: AnyPath, progress: Progress | None = None) -> Graph:
    """Read a graph file: .npz, or another format that has a reader (``spgnn.registry.READERS``)."""
    path = Path(path)
    file = graph_file(path)
    with _memory_of(path):
        return read_npz(path) if file is None else file.source(progress).graph()


def graph_file(path: AnyPath) -> GraphFile | None:
    """A file that a reader of its suffix opens, or a folder or pattern of such; ``None`` for .npz.

    Raises
    ------
    InputError
        If there is no such file, or no reader for it.
    """
    path = Path(path)
    if reader := _reader_of_several(path):
        return reader(path)
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    if os.path.isdir(path):
        raise InputError(f"{path}: is a directory, not a graph file")
    check_regular(path)
    suffix = suffix_of(path)
    readable = suffix in READERS
    text = readable and READERS[suffix].is_text
    packed = path.suffix.lower() in PACKED and not text and (readable or suffix in (".npz", ".tar"))
    if packed or path.suffix.lower() in _NOT_UNPACKED:
        only = f"text in {', '.join(PACKED)}"
        raise InputError(f"{path}: unpack it first; of packed files only {only} are read")
    if suffix == ".npz":
        return None
    if not readable:
        raise InputError(f"{path}: {_unknown_format(suffix)}")
    file: GraphFile = READERS[suffix](path)
    return file


def is_graph_file(path: AnyPath) -> bool:
    """True for what `graph_file` opens by a reader: a file, or a folder or a pattern of files."""
    if os.path.isfile(path):
        return suffix_of(Path(path)) in READERS
    several = is_graph_directory(path) or names_of_several(os.fspath(path))
    return not several and _reader_of_several(path) is not None


def _reader_of_several(path: AnyPath) -> type[GraphFile] | None:
    """The reader of a folder or a pattern of files, if this is one."""
    readers: dict[type[GraphFile], None] = {}
    if not os.path.isfile(path):
        readers = dict.fromkeys(READERS[suffix] for suffix in READERS)
    return next((reader for reader in readers if reader.recognises(path)), None)


def _unknown_format(suffix: str) -> str:
    """A message about a file that is not read: how else it comes in."""
    if suffix in _PICKLES:
        return (
            "is not read, since pickles can run code; load it in Python, and hand the Data, "
            "HeteroData or DGLGraph to spgnn.distribute(DATA)"
        )
    if suffix in _READ_BY:
        return f"is not read; {_READ_BY[suffix]}, and hand the result to spgnn.distribute(DATA)"
    formats = (".npz", *READERS)
    choices = f"known are {', '.join(formats)} (text also with {', '.join(PACKED)})"
    if len(formats) == 1:
        choices = "known is .npz; text and tables need spgnn.addons.io, which is not installed"
    return f"unknown format; {choices}{suggestion(suffix, formats)}"


def suffix_of(path: Path) -> str:
    """The suffix that names the format: ``.mtx`` of ``a.mtx.gz``, and of ``A.MTX``."""
    return Path(unpacked(path)).suffix.lower()


def names_of_several(text: str) -> list[str]:
    """The data sets that a text joins by ``+``; none, if it names one: a path may hold it too."""
    match = re.fullmatch(r"(.+)@[a-z_]+=[^,=]+(?:,[a-z_]+=[^,=]+)*", text, re.DOTALL)
    path = match[1] if match else text
    names, folder = text.split(BETWEEN), os.path.dirname(path)
    if len(names) == 1 or "" in names or os.path.exists(text):
        return []
    one = BETWEEN in path and (
        os.path.exists(path)
        or (BETWEEN in folder and os.path.isdir(folder))
        or (glob.has_magic(path) and bool(glob.glob(path)))
    )
    return [] if one else names


def disjoint_union(graphs: Sequence[Graph], split: Sequence[int] | None = None) -> Graph:
    """One graph whose adjacency has those of several along its diagonal."""
    if not graphs:
        raise InputError("a union of no graphs")
    first = graphs[0]
    for graph in graphs[1:]:
        for what in ("x", "y"):
            ours, theirs = _kind(getattr(first, what)), _kind(getattr(graph, what))
            if ours != theirs:
                raise InputError(
                    f"{graph.name} has {what} {theirs}, but {first.name} {ours}; "
                    "graphs that are joined must agree"
                )
    data: dict[str, Any] = {}
    for what in ("x", "y"):
        if getattr(first, what) is not None:
            data[what] = stack_rows([getattr(graph, what) for graph in graphs])
    sizes = np.array([graph.vertices for graph in graphs])
    if split is not None:
        if len(split) != len(MASKS) or sum(split) != len(graphs) or min(split) < 0:
            shown = ",".join(map(str, split))
            raise InputError(
                f"data.graph-split {shown}: must be three numbers of graphs that add up to "
                f"{len(graphs)}"
            )
        part = torch.from_numpy(np.repeat(np.repeat(np.arange(len(MASKS)), split), sizes))
        data |= {name: part == number for number, name in enumerate(MASKS)}
    for name in MASKS if split is None else ():
        masks = [getattr(graph, name) for graph in graphs]
        widths = {tuple(mask.shape[1:]) for mask in masks if mask is not None}
        if len(widths) > 1:
            raise InputError(f"{name}: graphs that are joined must have equally many splits")
        for width in widths:
            none = [torch.zeros((int(rows), *width), dtype=torch.bool) for rows in sizes]
            pairs = zip(masks, none, strict=True)
            data[name] = torch.cat([zeros if mask is None else mask for mask, zeros in pairs])
    n, weighted = int(sizes.sum()), any(graph.weighted for graph in graphs)
    blocks = []
    for graph, begin in zip(graphs, (np.cumsum(sizes) - sizes).tolist(), strict=True):
        A = graph.adjacency
        values = torch.ones(A.nnz) if weighted and A.values is None else A.values
        indices = (A.indices.long() + begin).to(index_dtype(n))
        blocks.append(CSR.of(A.indptr, indices, (A.shape[0], n), values))
    name = BETWEEN.join(graph.name for graph in graphs)
    if len(graphs) > 3:
        name = f"{first.name}{BETWEEN}{len(graphs) - 1} others"
    return Graph(name, stack_rows(blocks), any(graph.directed for graph in graphs), **data)


def _kind(array: Tensor | CSR | None) -> str:
    """The kind and width of features or labels, in words."""
    if array is None:
        return "of no kind"
    kind = "sparse" if isinstance(array, CSR) else str(array.dtype)
    return f"{kind} of width {array.shape[1] if len(array.shape) == 2 else 1}"


_SHOWN = 60


@on_cpu
def load_dataset(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Graph:
    """A graph by name or path.

    Parameters
    ----------
    name_or_path : str or path
        ``sbm``, the built-in set; ``rmat-SCALE-FACTOR``; either also with a seed, ``sbm@seed=3``;
        a name that is registered, can be downloaded, or is that of an .npz file in `data_dir`; a
        file; or a graph directory. Several, joined by ``+``, are one graph without edges between
        them.
    data_dir : path, optional
        Of named sets and downloads: by default the directory that the environment variable
        SPGNN_DATA names, or else ``~/.cache/spgnn``.
    seed : int
        Of generated graphs whose name gives none.
    progress : called with (what, done, all), optional
    """
    text = os.fspath(name_or_path)
    if names := names_of_several(text):
        with errors_of(f"{text}, data sets joined by '{BETWEEN}'"):
            graphs = [load_dataset(name, data_dir, seed, progress) for name in names]
        return disjoint_union(graphs)
    place = _find(text, data_dir, seed, progress)
    if isinstance(place, Graph):
        return place
    return open_shards(place).graph() if _is_directory(place) else read_graph(place, progress)


@contextmanager
def _memory_of(path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise InputError(f"{path}: does not fit into the memory of this machine") from None


@on_cpu
def open_source(
    name_or_path: AnyPath,
    data_dir: AnyPath | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    graph_split: Sequence[int] | None = None,
) -> GraphSource:
    """As `load_dataset`, but rows of features stay where they are until they are needed.

    An .npz file and a graph directory hand out rows; any other set is in memory as a whole. With
    `graph_split`, so many of several data sets are for training, validation and testing.
    """
    text = os.fspath(name_or_path)
    names = names_of_several(text)
    if names or graph_split is not None:
        with errors_of(f"{text}, data sets joined by '{BETWEEN}'") if names else nullcontext():
            graphs = [load_dataset(name, data_dir, seed, progress) for name in names or [text]]
        return MemorySource(disjoint_union(graphs, graph_split))
    place = _find(text, data_dir, seed, progress)
    if isinstance(place, Graph):
        return MemorySource(place)
    if _is_directory(place):
        return open_shards(place)
    file = graph_file(place)
    if file is None:
        return NpzSource(place)
    with _memory_of(place):
        return file.source(progress)


def download(name: str, data_dir: AnyPath | None = None, progress: Progress | None = None) -> Graph:
    """Fetch a public set and keep it as .npz; the files as published stay next to it."""
    fetch, home = DOWNLOADS[name], data_directory(data_dir)
    graph: Graph = fetch(name, home / "raw", progress)
    write_npz(graph, home / f"{name}.npz", compressed=False)
    return graph


def data_directory(data_dir: AnyPath | None = None) -> Path:
    home = data_dir or os.environ.get("SPGNN_DATA")
    return Path(home) if home else Path.home() / ".cache" / "spgnn"


def _is_directory(place: Path) -> bool:
    """True for a graph directory, or what can be no other; a folder may hold tables."""
    return os.path.isdir(place) and (is_graph_directory(place) or not _reader_of_several(place))


def check_dataset(name: str, data_dir: AnyPath | None) -> None:
    """``InputError`` if there is no data set of that name or path; none is read or generated."""
    for text in names_of_several(name) or [name]:
        if text in DOWNLOADS or any(_matches(text, pattern) for pattern in DATASETS):
            continue
        place = cast(Path, _find(text, data_dir, 0, None))
        if not os.path.exists(place) and not _reader_of_several(place):
            raise InputError(f"{place}: no such file")


def _find(
    text: str, data_dir: AnyPath | None, seed: int, progress: Progress | None
) -> Graph | Path:
    """A set that is generated or downloaded, or the file or directory that is meant."""
    for pattern in DATASETS:
        if _matches(text, pattern):
            graph: Graph | None = DATASETS[pattern](text, data_dir, seed, progress)
            if graph is not None:
                return graph
    path = Path(text)
    stored = data_directory(data_dir) / f"{text}.npz"
    named = path.parent == Path() and (text in DOWNLOADS or os.path.exists(stored))
    if not named and os.path.isdir(path) and _is_directory(path) and not is_graph_directory(path):
        raise InputError(
            f"{text}: not a graph directory: it has no meta.json, nor Parquet or Arrow files; of a "
            "data set of PyG or OGB, hand dataset[0] to spgnn.distribute"
        )
    # os.path answers where Path raises: names that are too long, or that hold a NUL.
    there = os.path.isfile(path) or is_graph_directory(path) or _reader_of_several(path)
    if text and (there or path.parent != Path() or suffix_of(path) in (".npz", *READERS)):
        return path
    if os.path.exists(stored):
        return stored
    if text in DOWNLOADS:
        return download(text, data_dir, progress)
    choices = (*DATASETS, *DOWNLOADS)
    near = suggestion(text, (*choices, *(path.stem for path in stored.parent.glob("*.npz"))))
    shown = shortened(text, _SHOWN)
    raise InputError(
        f"no data set '{shown}': neither a file, nor {shortened(str(stored), _SHOWN)}, nor one of "
        f"{', '.join(choices)}{near}"
    )


def _matches(text: str, pattern: str) -> bool:
    """True if a name is that of a registered set, in which capitals stand for anything."""
    begin = re.split("[A-Z]", pattern)[0]
    return text.startswith(begin) if begin != pattern else text.partition("@")[0] == pattern
