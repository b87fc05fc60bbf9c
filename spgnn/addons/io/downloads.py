"""Public data sets: fetched, compared with their digests, put together."""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import shutil
import urllib.request
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

import numpy as np
import numpy.typing as npt
import scipy
import torch

from spgnn.addons.io.options import Download
from spgnn.addons.io.text import Grammar, parse_stream
from spgnn.command import say
from spgnn.data import Archive, Graph, csr_from_edges, data_directory, download, single_labels
from spgnn.errors import InputError
from spgnn.files import atomic_file, reading
from spgnn.options import command_of
from spgnn.progress import Progress, ProgressBar

PIECE = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


def fetch(url: str, target: Path, digest: str | None, progress: Progress | None = None) -> Path:
    """Download a file unless it is there already; it appears whole and verified, or not at all."""
    if target.exists():
        return target
    folder = target.parent
    missing = [p for p in (folder, *folder.parents) if not os.path.exists(p)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as file:
            done = expected = 0
            for piece, expected in _received(url, target):
                file.write(piece)
                done += len(piece)
                if progress is not None:
                    progress(url.rsplit("/", 1)[-1], done, max(expected, done))
            if expected and done != expected:
                raise InputError(
                    f"{url}: the connection ended after {done} of {expected} bytes; try again"
                )
            file.flush()
            if digest is not None:
                _verify(url, Path(file.name), digest)
    except BaseException as error:
        with suppress(OSError):  # another process may have put something there
            for parent in missing:
                parent.rmdir()
        if isinstance(error, OSError):
            reason = error.strerror or error
            raise InputError(f"{folder}: cannot be written: {reason}") from None
        raise
    return target


def _received(url: str, target: Path) -> Iterator[tuple[bytes, int]]:
    """The bytes piece by piece, each with the length that was announced (0: none was)."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
            expected = int(response.headers.get("Content-Length") or 0)
            while piece := response.read(PIECE):
                yield piece, expected
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise InputError(
            f"{url}: cannot be fetched ({reason}); without a network, put the file at {target}"
        ) from None


def _verify(url: str, path: Path, digest: str) -> None:
    kind, _, expected = digest.partition(":")
    # git hashes a file's content behind a header that names its kind and length.
    name, header = kind, b""
    if kind == "git":
        name, header = "sha1", b"blob %d\0" % path.stat().st_size
    with open(path, "rb") as file:
        actual = hashlib.file_digest(
            file, lambda: hashlib.new(name, header, usedforsecurity=False)
        ).hexdigest()
    if actual != expected:
        raise InputError(f"{url}: not the published file: {kind} is {actual}, expected {expected}")


def _mask(vertices: int, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    mask = torch.zeros(vertices, dtype=torch.bool)
    mask[torch.from_numpy(rows)] = True
    return mask


COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"
PLANETOID = f"https://raw.githubusercontent.com/kimiyoung/planetoid/{COMMIT}/data"
VALIDATION = 500  # vertices after the training ones

# The ids git gives to the files of that commit.
_KINDS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")
_IDS = {
    "cora": """
        c4a91d008245403e7f26aa616b437191509793c0 58e30ef120d3553cfaac33ff28c6b5436dbef661
        6e856d777401ee15dc8619db76c97d0a40ba2d60 da1734ab670b5c8ecee78a9c30b35566df916f4b
        44d53b1fece343538e45592caac521d73c6f98d6 04fbd0b083d09341fcf16b395c642329637f0542
        4d3bf85dfc8b1c105a2c995597a1b3eed6947925 ded8092db4cd767a367eebe09003b954a5316f24
    """,
    "citeseer": """
        f094104a66f2689ffbd01085fe6a856689e9db9e e857ac49b611da98e101a068cf4855350274f68a
        b2aff18aa1fc6f4f5e8c64db7643b59b24e42584 3795f79df0cd1123f4478b77c148a5fbacc4cefb
        592091071ac35b78599c722d0e60b1c655711728 7503f81a0b6ac1cc21cb5a97073542a6b1dfe99c
        a01dca663d0103c130f525017a4a9c313037e286 62d9e3d5ed53c66b069125af98529d76c70d9b3e
    """,
    "pubmed": """
        16c0eca8d2b3297014ff80327416f9332eda10d7 e86670576c85340eeb2271b3c918bfa89322b2cf
        eee4f3c988fde0da87a9ec7b01ca5e7863c1b1f1 225a0bb9bb6430e3925d04688daf6a0da964c07a
        3b86bccf08111c37c632a9dd8ab63db25ea76361 4c8bcdc80882dd225fe4dd4fafd723baa616ac97
        76eb87e628a6b9d43fc31ea42c8c6c8f3e52b404 41f6befcb7750cc4858cb852f2b349a9598cb2f4
    """,
}
FILES: dict[str, dict[str, str]] = {
    name: dict(zip(_KINDS, ids.split(), strict=True)) for name, ids in _IDS.items()
}


def load_planetoid(
    name: str, cache: Path, progress: Progress | None = None, home: str = PLANETOID
) -> Graph:
    """Fetch the eight files of a set and put the graph together; loops are dropped."""
    paths = {}
    for kind, blob in FILES[name].items():
        file = f"ind.{name}.{kind}"
        paths[kind] = fetch(f"{home}/{file}", cache / file, f"git:{blob}", progress)
    test = np.loadtxt(paths.pop("test.index"), dtype=np.int64, ndmin=1)
    loaded = {kind: _unpickle(path) for kind, path in paths.items()}
    neighbours = loaded["graph"]
    vertices = len(neighbours)
    first = loaded["allx"].shape[0]
    # Rows of tx and ty are vertices in the order of test.index; allx and ally are the first ones.
    row_of = np.concatenate((np.arange(first), test))
    x = np.zeros((vertices, loaded["allx"].shape[1]), np.float32)
    x[row_of] = scipy.sparse.vstack((loaded["allx"], loaded["tx"])).toarray()
    y = torch.full((vertices,), -1, dtype=torch.int64)
    one_hot = np.vstack((loaded["ally"], loaded["ty"]))
    y[torch.from_numpy(row_of)] = torch.from_numpy(one_hot.argmax(axis=1))
    y[torch.from_numpy(row_of[one_hot.sum(axis=1) == 0])] = -1
    training = loaded["x"].shape[0]
    target = np.repeat(np.fromiter(neighbours, np.int64), [len(v) for v in neighbours.values()])
    source = np.fromiter((u for v in neighbours.values() for u in v), np.int64)
    return Graph(
        name,
        csr_from_edges(source, target, vertices, symmetric=True, loops=False),
        directed=False,
        x=torch.from_numpy(x),
        y=y,
        train_mask=_mask(vertices, np.arange(training)),
        val_mask=_mask(vertices, np.arange(training, training + VALIDATION)),
        test_mask=_mask(vertices, test),
    )


class _SparseState:
    """Stands for ``scipy.sparse.csr_matrix`` while a pickle is read: it only keeps the arrays."""

    indptr: npt.NDArray[Any]
    indices: npt.NDArray[Any]
    data: npt.NDArray[Any]
    _shape: tuple[int, int]


class _ArrayUnpickler(pickle.Unpickler):
    """Reads pickled arrays and dictionaries of lists; any other name in the file is refused."""

    NAMES: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("scipy.sparse.csr", "csr_matrix"): _SparseState,
        ("collections", "defaultdict"): lambda *_: {},
        ("__builtin__", "list"): list,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}") from None


def _unpickle(path: Path) -> Any:
    """Arrays of a file whose digest was checked; even so nothing but arrays can be made of it."""
    with (
        reading(path, "not the published file"),
        open(path, "rb") as file,
        warnings.catch_warnings(),
    ):
        # Python 2 wrote these files; NumPy warns about how they spell its types.
        warnings.simplefilter("ignore")
        loaded = _ArrayUnpickler(file, encoding="latin1").load()
    if isinstance(loaded, _SparseState):
        arrays = (loaded.data, loaded.indices, loaded.indptr)
        return scipy.sparse.csr_array(arrays, shape=loaded._shape)
    return loaded


URL = "https://data.dgl.ai/dataset/reddit.zip"
DIGEST = "sha256:9a16353c28f8ddd07148fc5ac9b57b818d7911ea0fbe9052d66d49fc32b372bf"
TRAIN, VAL, TEST = 1, 2, 3  # values of node_types


def load_reddit(
    name: str, cache: Path, progress: Progress | None = None, url: str = URL, digest: str = DIGEST
) -> Graph:
    """Fetch the archive of two .npz files and put the graph together."""
    archive = fetch(url, cache / "reddit.zip", digest, progress)
    with reading(archive, "not the published file"), zipfile.ZipFile(archive) as files:
        with files.open("reddit_graph.npz") as file, np.load(file, allow_pickle=False) as edges:
            row, col, shape = edges["row"], edges["col"], edges["shape"]
        with files.open("reddit_data.npz") as file, np.load(file, allow_pickle=False) as data:
            x = torch.from_numpy(data["feature"].astype(np.float32, copy=False))
            y = torch.from_numpy(data["label"].astype(np.int64, copy=False))
            kinds = torch.from_numpy(data["node_types"])
    return Graph(
        name,
        csr_from_edges(col, row, int(shape[0]), symmetric=True, loops=False),
        directed=False,
        x=x,
        y=y,
        train_mask=kinds == TRAIN,
        val_mask=kinds == VAL,
        test_mask=kinds == TEST,
    )


OGB = "http://snap.stanford.edu/ogb/data/nodeproppred"


@dataclass(frozen=True)
class OgbSet:
    """The address of a set, and the layout of its archive."""

    url: str
    digest: str | None
    split: str
    undirected: bool
    binary: bool = False


SETS: dict[str, OgbSet] = {
    "ogbn-arxiv": OgbSet(
        f"{OGB}/arxiv.zip",
        "sha256:49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
        split="time",
        undirected=False,
    ),
    "ogbn-products": OgbSet(
        f"{OGB}/products.zip",
        "sha256:5ea0a112edaec2141c0a2a612dd4aed58df97ff3e1ab1a0ca8238f43cbbb50a8",
        split="sales_ranking",
        undirected=True,
    ),
    "ogbn-papers100M": OgbSet(
        f"{OGB}/papers100M-bin.zip", None, split="time", undirected=False, binary=True
    ),
}


def load_ogb(
    name: str, cache: Path, progress: Progress | None = None, source: OgbSet | None = None
) -> Graph:
    """Fetch the archive and put the graph together, in memory as a whole."""
    source = source or SETS[name]
    archive = fetch(source.url, cache / source.url.rsplit("/", 1)[-1], source.digest, progress)
    with reading(archive, "not the published file"), zipfile.ZipFile(archive) as files:
        root = files.namelist()[0].split("/", 1)[0]
        if source.binary:
            # An .npz is read with seeks, which inside another archive would start from its
            # beginning.
            arrays: dict[str, npt.NDArray[Any]] = {}
            for member, names in (
                ("data", ("edge_index", "node_feat")),
                ("node-label", ("node_label",)),
            ):
                path = f"{root}/raw/{member}.npz"
                extracted = cache / path.replace("/", "-")
                if not extracted.exists():
                    with files.open(path) as packed, atomic_file(extracted) as file:
                        shutil.copyfileobj(packed, file, PIECE)
                with Archive(extracted) as opened:
                    arrays |= {name: opened.array(name) for name in names}
            edges, labels = arrays.pop("edge_index"), arrays["node_label"]
            x = arrays.pop("node_feat").astype(np.float32, copy=False)
        else:
            edges = _table(files, f"{root}/raw/edge.csv.gz", np.int64, 2).T
            x = _table(files, f"{root}/raw/node-feat.csv.gz", np.float32)
            labels = _table(files, f"{root}/raw/node-label.csv.gz", np.float64, 1)
        y = torch.from_numpy(single_labels(labels))
        adjacency = csr_from_edges(edges[0], edges[1], len(x), symmetric=source.undirected)
        del edges
        masks = {}
        for mask, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
            rows = _table(files, f"{root}/split/{source.split}/{part}.csv.gz", np.int64, 1)
            masks[mask] = _mask(len(x), rows[:, 0])
    directed = not source.undirected
    return Graph(name, adjacency, directed, x=torch.from_numpy(x), y=y, **masks)


def _table(
    files: zipfile.ZipFile, member: str, dtype: npt.DTypeLike, columns: int | None = None
) -> npt.NDArray[Any]:
    """A gzipped table of numbers inside the archive, [lines, columns]."""
    kind = "i" if np.dtype(dtype).kind == "i" else "f"
    grammar = Grammar("" if columns is None else kind * columns, kind if columns is None else "")
    pieces = []
    with files.open(member) as packed, gzip.open(packed) as file:
        for numbers in parse_stream(cast(BinaryIO, file), Path(member), grammar):
            if not len(numbers.counts):
                continue
            columns = columns or int(numbers.counts[0])
            if (numbers.counts != columns).any():
                line = numbers.lines[np.argmax(numbers.counts != columns)]
                raise InputError(f"{member}, line {line}: not {columns} numbers")
            values = numbers.integers if kind == "i" else numbers.reals
            pieces.append(values.reshape(-1, columns).astype(dtype))
    return np.concatenate(pieces or [np.empty((0, columns or 0), dtype)])


def _download(options: Download) -> None:
    with ProgressBar() as progress:
        graph = download(options.name, options.data_dir, progress)
    say(str(data_directory(options.data_dir) / f"{graph.name}.npz"))


run_download = command_of(Download, _download)
