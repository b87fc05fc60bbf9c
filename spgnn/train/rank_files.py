"""What each rank keeps of its own beside a checkpoint: rows that wires hold, in a file a rank.

The checkpoint names the files by what is in them, and they are there before it is. So whatever is
killed when, a checkpoint and the files that it names are of one moment; others are removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spgnn.comm import Communicator, on_every_rank
from spgnn.errors import InputError
from spgnn.files import digest, write_archive

_TOLD = "told"
_DIGEST = re.compile(r"[0-9a-f]{32}")
Arrays = Mapping[str, npt.NDArray[Any]]


class TaskState(NamedTuple):
    """What a task keeps from epoch to epoch beside its model.

    Attributes
    ----------
    own : dict of Tensor, or None
        This rank's; ``None`` on all of them where they keep nothing.
    place : str
        A fingerprint of what its own tensors belong to.
    """

    own: dict[str, Tensor] | None
    place: str = ""


def write(directory: str, state: TaskState, epochs: int, comm: Communicator) -> dict[str, Any]:
    """Write the files of all ranks; returns what the checkpoint is to say of them. Collective.

    Parameters
    ----------
    directory : str
        Of the checkpoint.
    state : TaskState
    epochs : int
        That have been trained.
    comm : Communicator

    Raises
    ------
    InputError
        On all ranks, if one cannot write; files of the checkpoint before are still there.
    """
    if state.own is None:
        return {"epochs": epochs, "digests": None}
    arrays = _arrays(state)
    mine = _digest(arrays)
    path = Path(directory) / _name(epochs, comm.rank, mine)

    def put() -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--checkpoint {directory}: cannot be written: {error.strerror}"
            ) from None
        write_archive(path, arrays, f"--checkpoint {directory}")

    on_every_rank(comm, put)
    words = torch.frombuffer(bytearray(bytes.fromhex(mine)), dtype=torch.uint8)
    every = torch.empty(comm.size, len(words), dtype=torch.uint8)
    comm.all_gather(words[None], every, [1] * comm.size)
    digests = [bytes(row.tolist()).hex() for row in every]
    return {"epochs": epochs, "digests": digests}


def remove_others(directory: str, told: Mapping[str, Any] | None, comm: Communicator) -> None:
    """Remove what the checkpoint does not name: rank 0 all that it sees, others their own."""
    digests = (told or {}).get("digests") or []
    named = {_name(told["epochs"], rank, each) for rank, each in enumerate(digests)} if told else ()
    mine = "*" if comm.rank == 0 else str(comm.rank)
    with suppress(OSError):
        for path in Path(directory).glob(f"wires-*-{mine}-*.npz"):
            if path.name not in named:
                path.unlink(missing_ok=True)


def read(
    checkpoint: Path, told: Mapping[str, Any] | None, mine: TaskState | None, comm: Communicator
) -> TaskState | None:
    """What this rank had kept, of a checkpoint that says this of it. Collective.

    Parameters
    ----------
    checkpoint : Path
    told : mapping or None
        As of :func:`checked`.
    mine : TaskState or None
        What this run keeps.
    comm : Communicator

    Raises
    ------
    InputError
        On all ranks, if it was kept by other ranks, for another partition, or not at all, or files
        are missing or damaged.
    """
    if mine is None and told is None:
        return None
    if mine is None or told is None or (mine.own is None) != (told["digests"] is None):
        raise InputError(f"{checkpoint}: was made with other wires")
    digests = told["digests"]
    if digests is None:
        return mine
    if len(digests) != comm.size:
        raise InputError(
            f"{checkpoint}: was made on {len(digests)} ranks, not {comm.size}; its wires keep rows "
            "of each rank"
        )
    name = _name(told["epochs"], comm.rank, digests[comm.rank])
    path, place = checkpoint.with_name(name), mine.place
    own = on_every_rank(comm, lambda: _read(path, digests[comm.rank], place))
    return TaskState(own, place)


def checked(told: Any) -> dict[str, Any] | None:
    """What a checkpoint says of rank files, if it can be.

    Raises
    ------
    TypeError, ValueError, KeyError
    """
    if told is None:
        return None
    epochs, digests = told["epochs"], told["digests"]
    if type(epochs) is not int or epochs < 0:
        raise ValueError("its files are of no epoch")
    if digests is not None and not all(_DIGEST.fullmatch(each) for each in digests):
        raise ValueError("its files have no digests")
    return {"epochs": epochs, "digests": digests}


def _name(epochs: int, rank: int, content: str) -> str:
    return f"wires-{epochs}-{rank}-{content[:12]}.npz"


def _arrays(state: TaskState) -> dict[str, npt.NDArray[Any]]:
    """What is in a file; bfloat16, which NumPy has not, as the integers of its bits."""
    arrays, halves = dict[str, npt.NDArray[Any]](), list[str]()
    for name, tensor in (state.own or {}).items():
        kept = tensor.detach().cpu()
        if kept.dtype == torch.bfloat16:
            halves.append(name)
            kept = kept.view(torch.int16)
        arrays[name] = kept.contiguous().numpy()
    told = json.dumps({"place": state.place, "bfloat16": halves})
    return {**arrays, _TOLD: np.frombuffer(told.encode(), np.uint8)}


def _digest(arrays: Arrays) -> str:
    """Of names, types, shapes and contents."""
    pieces: list[memoryview | bytes] = []
    for name in sorted(arrays):
        array = arrays[name]
        pieces.append(f"{name} {array.dtype} {array.shape};".encode())
        pieces.append(array.tobytes())
    return digest(*pieces)


def _read(path: Path, content: str, place: str) -> dict[str, Tensor]:
    try:
        # Opened here, because np.load leaves a file that it cannot read open.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: np.array(file[name], order="C") for name in file.files}
        if _digest(arrays) != content:
            raise ValueError("its contents are not what the checkpoint says")
        told = json.loads(arrays.pop(_TOLD).tobytes())
    except FileNotFoundError:
        raise InputError(f"--resume: there is no {path}, which the checkpoint needs") from None
    except Exception as error:
        # Readers of zip archives and .npy headers raise a dozen types for damaged bytes.
        said = str(error) or type(error).__name__
        raise InputError(f"{path}: a damaged file of a checkpoint ({said})") from None
    if told["place"] != place:
        raise InputError(f"{path}: holds rows of another partition, or of another --algo")
    return {name: _tensor(array, name in told["bfloat16"]) for name, array in arrays.items()}


def _tensor(array: npt.NDArray[Any], halves: bool) -> Tensor:
    found = torch.from_numpy(array)
    # Arrays without rows come with strides that kernels do not take.
    tensor = torch.empty(found.shape, dtype=found.dtype).copy_(found)
    return tensor.view(torch.bfloat16) if halves else tensor


def place_of(numbers: Sequence[npt.NDArray[np.int64]]) -> str:
    """A fingerprint of some arrays of numbers."""
    lengths = np.array([len(each) for each in numbers], np.int64)
    return digest(*(each.tobytes() for each in (lengths, *numbers)))
