"""Checkpoints: weights, optimiser and history in one file, which rank 0 alone writes and reads.

What ranks keep of their own lies beside it (:mod:`spgnn.train.rank_files`).

The random state needs no room: every draw is a function of the seed and the epoch.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from spgnn.comm import Communicator, broadcast_value, on_rank_zero
from spgnn.errors import InputError
from spgnn.files import check_writable, write_archive
from spgnn.train import rank_files
from spgnn.train.rank_files import TaskState

FILE = "checkpoint.npz"
_PROGRESS, _KEPT = "progress", "kept"
Arrays = dict[str, npt.NDArray[Any]]
History = list[dict[str, Any]]


def save(
    directory: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    history: History,
    *,
    kept: Mapping[str, Any] | None = None,
) -> None:
    """Write the checkpoint; called on rank 0, since weights are replicated.

    Parameters
    ----------
    directory, model, optimizer, signature, history
    kept : mapping, optional
        What :func:`spgnn.train.rank_files.write` says of the files of all ranks.

    Raises
    ------
    InputError
        If it cannot be written (a full disk), or weights are not finite; the previous one stays.
    """
    arrays: Arrays = {}
    for name, tensor in _state(model, optimizer).items():
        if not _is_finite(tensor):
            raise InputError(f"{name} is not finite after {len(history)} epochs; not saved")
        arrays[name] = _to_array(tensor)
    progress = {"signature": dict(signature), "history": history}
    told = json.dumps(progress if kept is None else {**progress, _KEPT: kept}, allow_nan=False)
    arrays[_PROGRESS] = np.frombuffer(told.encode(), np.uint8)
    target, what = Path(directory) / FILE, f"--checkpoint {directory}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what}: cannot be written: {error.strerror}") from None
    write_archive(target, arrays, what)


def load(
    directory: str | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    comm: Communicator,
    *,
    steps: int = 1,
    kept: TaskState | None = None,
) -> tuple[History, TaskState | None]:
    """Read the checkpoint into model and optimiser on all ranks. Collective.

    Parameters
    ----------
    directory, model, optimizer, signature, comm
    steps : int
        Of the optimiser in an epoch.
    kept : TaskState, optional
        What the task keeps beside its model.

    Returns
    -------
    history : list of dict
    kept : TaskState or None
        What it had kept, on this rank.

    Raises
    ------
    InputError
        On all ranks, if there is none, it is damaged, or it was made with another signature; model
        and optimiser are then left as they were.
    """
    path = Path(directory or "") / FILE
    wanted = _state(model, optimizer)
    found = on_rank_zero(comm, lambda: _read(path, wanted, signature, steps))
    tensors = {} if found is None else found[0]
    history: History = broadcast_value(comm, None if found is None else found[1])
    told = rank_files.checked(broadcast_value(comm, None if found is None else found[2]))
    state = rank_files.read(path, told, kept, comm)
    for name, like in wanted.items():
        tensor = tensors.get(name)
        if tensor is None:
            tensor = torch.empty_like(like, device="cpu", memory_format=torch.contiguous_format)
        comm.broadcast(tensor, root=0).wait()
        tensors[name] = tensor
    model.load_state_dict({name: tensors[f"weight/{name}"] for name in model.state_dict()})
    moments: dict[int, dict[str, Tensor]] = {}
    for name in wanted:
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            index, _, key = rest.partition("/")
            moments.setdefault(int(index), {})[key] = tensors[name]
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return history, state


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights of a checkpoint, by name in the model, and the signature it was made with.

    Raises
    ------
    InputError
        If there is no such file, or it is damaged.
    """
    arrays = _arrays(path)
    signature = _told(path, arrays.pop(_PROGRESS, None))["signature"]
    found = {
        name.removeprefix("weight/"): torch.from_numpy(np.array(array, order="C"))
        for name, array in arrays.items()
        if name.startswith("weight/")
    }
    return found, dict(signature)


def check_target(directory: str, resume: bool) -> None:
    """Find out before training whether checkpoints can be written, or read; makes nothing.

    Raises
    ------
    InputError
    """
    path = Path(directory)
    # os.path answers where Path raises: names that are too long.
    if resume and not os.path.exists(path / FILE):
        raise InputError(f"--resume: there is no checkpoint {path / FILE}")
    if os.path.isdir(path):
        check_writable(path / FILE, "--checkpoint")
        return
    if os.path.lexists(path):
        raise InputError(f"--checkpoint {path}: cannot be written: is no directory")
    # The first directory that would have to be made.
    while not os.path.exists(path.parent):
        path = path.parent
    check_writable(path, "--checkpoint")


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All that training changes, by name in the file; moments that do not exist yet are zeros."""
    found = {f"weight/{name}": tensor for name, tensor in model.state_dict().items()}
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        return found
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        if parameter.requires_grad:
            zero = torch.zeros_like(parameter)
            state = {"step": torch.tensor(0.0), "exp_avg": zero, "exp_avg_sq": zero}
            for key, tensor in (state | optimizer.state.get(parameter, {})).items():
                found[f"optimizer/{index}/{key}"] = tensor
    return found


def _read(
    path: Path, wanted: Mapping[str, Tensor], signature: Mapping[str, Any], steps: int
) -> tuple[dict[str, Tensor], History, dict[str, Any] | None]:
    """Everything in the file, checked against what this run needs."""
    arrays = _arrays(path)
    progress = _told(path, arrays.pop(_PROGRESS, None))
    _check_signature(path, progress["signature"], signature)
    history: History = progress["history"]
    for name in (*wanted, *arrays):
        if name not in arrays:
            raise InputError(f"{path}: a damaged checkpoint: no array '{name}'")
        if name not in wanted:
            raise InputError(f"{path}: a damaged checkpoint: array '{name}' is of another one")
    tensors = {}
    for name, like in wanted.items():
        array, expected = arrays[name], _to_array(torch.empty_like(like, device="cpu"))
        if array.dtype != expected.dtype or array.shape != expected.shape:
            raise InputError(
                f"{path}: a damaged checkpoint: '{name}' is {array.dtype} {list(array.shape)}, "
                f"not {expected.dtype} {list(expected.shape)}"
            )
        tensors[name] = torch.from_numpy(np.array(array, order="C")).view(like.dtype)
        key = name.rpartition("/")[2] if name.startswith("optimizer/") else ""
        impossible = (
            not _is_finite(tensors[name])
            or (key == "exp_avg_sq" and bool((tensors[name] < 0).any()))
            or (key == "step" and float(tensors[name]) != steps * len(history))
        )
        if impossible:
            raise InputError(f"{path}: a damaged checkpoint: '{name}' holds impossible numbers")
    return tensors, history, progress[_KEPT]


def _arrays(path: Path) -> Arrays:
    """The arrays of the file; whatever its readers raise of it becomes one line."""
    try:
        # Opened here, because np.load leaves a file that it cannot read open.
        with warnings.catch_warnings(), path.open("rb") as raw:
            warnings.simplefilter("error")
            with np.load(raw, allow_pickle=False) as file:
                if len(set(file.files)) != len(file.files):
                    raise ValueError("an array occurs twice")
                arrays = {name: file[name] for name in file.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise TypeError(f"'{name}' is no array")
        return arrays
    except FileNotFoundError:
        raise InputError(f"--resume: there is no checkpoint {path}") from None
    except Exception as error:
        # Readers of zip archives and .npy headers raise a dozen types for damaged bytes.
        said = str(error) or type(error).__name__
        raise InputError(f"{path}: not a checkpoint, or a damaged one ({said})") from None


def _check_signature(path: Path, theirs: Mapping[str, Any], signature: Mapping[str, Any]) -> None:
    """Refuse another run than the one to be resumed."""
    differing = [k for k in {**theirs, **signature} if theirs.get(k) != signature.get(k)]
    if differing:
        name = differing[0]
        raise InputError(
            f"{path}: was made with {name} {theirs.get(name)}, not {signature.get(name)}"
        )


def _told(path: Path, told: Any) -> dict[str, Any]:
    """What a file holds of a run, if that can be: signature, history, and what ranks kept."""
    try:
        progress = json.loads(told.tobytes().decode(), parse_constant=_refuse_constant)
        if not isinstance(progress["history"], list):
            raise TypeError("no list of epochs")
        for epoch, record in enumerate(progress["history"]):
            _check_record(record, epoch)
        kept = rank_files.checked(progress.get(_KEPT))
        signature, history = dict(progress["signature"]), progress["history"]
        return {"signature": signature, "history": history, _KEPT: kept}
    except Exception as error:
        said = str(error) or type(error).__name__
        raise InputError(f"{path}: a damaged checkpoint: its progress ({said})") from None


def _check_record(record: Any, epoch: int) -> None:
    for name in ("epoch", "loss", "seconds"):
        if type(record[name]) not in (int, float):
            raise ValueError(f"{name} of epoch {epoch} is no number")
    for name, value in record.items():
        if value is not None and (type(value) not in (int, float) or not math.isfinite(value)):
            raise ValueError(f"{name} of epoch {epoch} is no number")
    if record["epoch"] != epoch or record["seconds"] < 0:
        raise ValueError(f"epoch {epoch} is missing")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} in its history")


def _to_array(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor as NumPy can hold it: bfloat16 as the integers of its bits."""
    tensor = torch.as_tensor(tensor).detach().cpu()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
