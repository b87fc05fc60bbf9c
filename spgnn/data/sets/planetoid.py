"""Cora, CiteSeer and PubMed with the split of Yang, Cohen & Salakhutdinov 2016."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from spgnn.data.edges import csr_from_edges
from spgnn.data.formats.reading import reading
from spgnn.data.graph import Graph
from spgnn.data.sets.download import fetch
from spgnn.progress import Progress

COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"
HOME = f"https://raw.githubusercontent.com/kimiyoung/planetoid/{COMMIT}/data"
VALIDATION = 500  # vertices after the training ones

# The ids git gives to the files of that commit.
FILES = {
    "cora": {
        "x": "c4a91d008245403e7f26aa616b437191509793c0",
        "y": "58e30ef120d3553cfaac33ff28c6b5436dbef661",
        "tx": "6e856d777401ee15dc8619db76c97d0a40ba2d60",
        "ty": "da1734ab670b5c8ecee78a9c30b35566df916f4b",
        "allx": "44d53b1fece343538e45592caac521d73c6f98d6",
        "ally": "04fbd0b083d09341fcf16b395c642329637f0542",
        "graph": "4d3bf85dfc8b1c105a2c995597a1b3eed6947925",
        "test.index": "ded8092db4cd767a367eebe09003b954a5316f24",
    },
    "citeseer": {
        "x": "f094104a66f2689ffbd01085fe6a856689e9db9e",
        "y": "e857ac49b611da98e101a068cf4855350274f68a",
        "tx": "b2aff18aa1fc6f4f5e8c64db7643b59b24e42584",
        "ty": "3795f79df0cd1123f4478b77c148a5fbacc4cefb",
        "allx": "592091071ac35b78599c722d0e60b1c655711728",
        "ally": "7503f81a0b6ac1cc21cb5a97073542a6b1dfe99c",
        "graph": "a01dca663d0103c130f525017a4a9c313037e286",
        "test.index": "62d9e3d5ed53c66b069125af98529d76c70d9b3e",
    },
    "pubmed": {
        "x": "16c0eca8d2b3297014ff80327416f9332eda10d7",
        "y": "e86670576c85340eeb2271b3c918bfa89322b2cf",
        "tx": "eee4f3c988fde0da87a9ec7b01ca5e7863c1b1f1",
        "ty": "225a0bb9bb6430e3925d04688daf6a0da964c07a",
        "allx": "3b86bccf08111c37c632a9dd8ab63db25ea76361",
        "ally": "4c8bcdc80882dd225fe4dd4fafd723baa616ac97",
        "graph": "76eb87e628a6b9d43fc31ea42c8c6c8f3e52b404",
        "test.index": "41f6befcb7750cc4858cb852f2b349a9598cb2f4",
    },
}


def load_planetoid(
    name: str, cache: Path, progress: Progress | None = None, home: str = HOME
) -> Graph:
    """Fetch the eight files of a set and put the graph together; loops are dropped.

    Vertices that are in the graph but in no label file (15 of CiteSeer) have no features and
    y = −1.

    Raises
    ------
    InputError
        If a file cannot be fetched or is not the published one.
    """
    paths = {}
    for kind, blob in FILES[name].items():
        file = f"ind.{name}.{kind}"
        paths[kind] = fetch(f"{home}/{file}", cache / file, f"git:{blob}", progress)
    test = np.loadtxt(paths.pop("test.index"), dtype=np.int64, ndmin=1)
    loaded = {kind: _unpickle(path) for kind, path in paths.items()}
    neighbours = loaded["graph"]
    vertices = len(neighbours)
    known = loaded["allx"].shape[0]
    # Rows of tx and ty are vertices in the order of test.index; allx and ally are the first ones.
    row_of = np.concatenate((np.arange(known), test))
    x = np.zeros((vertices, loaded["allx"].shape[1]), np.float32)
    x[row_of] = sp.vstack((loaded["allx"], loaded["tx"])).toarray()
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


def _mask(vertices: int, chosen: npt.NDArray[np.int64]) -> torch.Tensor:
    mask = torch.zeros(vertices, dtype=torch.bool)
    mask[torch.from_numpy(chosen)] = True
    return mask


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
        """The few names these files need."""
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
        return sp.csr_array(arrays, shape=loaded._shape)
    return loaded
