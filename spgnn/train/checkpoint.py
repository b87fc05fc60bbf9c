"""Checkpoints: weights, optimiser and history in a file of rank 0, codecs' rows in one of each.

All files are safetensors. A file has a digest of all that is in it, and the checkpoint names the
files of the ranks by theirs. These are there before it is: whatever is killed when, a checkpoint
and the files that it names are of one moment, and others are removed.

The random state needs no room: every draw is a function of the seed and the epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from spgnn.comm import (
    Communicator,
)
from spgnn.errors import InputError
from spgnn.files import atomic_file, check_writable, digest

SUFFIX = ".safetensors"
FILE = f"checkpoint{SUFFIX}"
History = list[dict[str, Any]]
Tensors = dict[str, Tensor]


def save(
    directory: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    history: History,
    comm: Communicator,
    own: Tensors,
) -> None:
    """Write the checkpoint, and the files of what each rank keeps besides, if any. Collective.

    Raises
    ------
    InputError
        On all ranks, if it cannot be written (a full disk), or weights are not finite; the previous
        checkpoint stays.
    """
    ranks: dict[str, Any] | None = None
    if own:

        def write_own() -> str:
            content = _digest(own, "{}")
            path = Path(directory) / _rank_file(len(history), comm.rank, content)
            _write(path, own, "{}", directory)
            return content

        words = torch.tensor(
            [list(bytes.fromhex(comm.on_every_rank(write_own)))], dtype=torch.uint8
        )
        every = words.new_empty(comm.size, words.shape[1])
        comm.all_gather(words, every, [1] * comm.size)
        digests = [bytes(row.tolist()).hex() for row in every]
        ranks = {"epochs": len(history), "digests": digests}

    def write() -> None:
        tensors = _training_state(model, optimizer)
        for name, tensor in tensors.items():
            if not _is_finite(tensor):
                raise InputError(f"{name} is not finite after {len(history)} epochs; not saved")
        progress = {"signature": dict(signature), "history": history, "ranks": ranks}
        text = json.dumps(progress, allow_nan=False)
        _write(Path(directory) / FILE, tensors, text, directory)

    comm.on_rank_zero(write)
    digests = [] if ranks is None else ranks["digests"]
    named = {_rank_file(len(history), rank, each) for rank, each in enumerate(digests)}
    # Rank 0 removes all that it sees, others their own: directories may be each rank's.
    with suppress(OSError):
        for path in Path(directory).glob(f"codecs-*-{comm.rank or '*'}-*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)


def load(
    directory: str | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    comm: Communicator,
    *,
    steps: int = 1,
) -> tuple[History, Tensors]:
    """Read the checkpoint into model and optimiser on all ranks. Collective.

    Parameters
    ----------
    steps : int
        Of the optimiser in an epoch.

    Returns
    -------
    history : list of dict
    own : dict of Tensor
        What this rank kept besides.

    Raises
    ------
    InputError
        On all ranks, if there is none, it is damaged, or it was made with another signature; model
        and optimiser are then left as they were.
    """
    path = Path(directory or "") / FILE
    wanted = _training_state(model, optimizer)
    read = comm.on_rank_zero(lambda: _checked(path, wanted, signature, steps))
    history, ranks = comm.broadcast_value(None if read is None else read[1:])
    own = {} if ranks is None else _own_of(path, ranks, comm)
    tensors = sent_to_all(None if read is None else read[0], wanted, comm)
    model.load_state_dict({name: tensors[f"weight/{name}"] for name in model.state_dict()})
    moments: dict[int, dict[str, Tensor]] = {}
    for name in wanted:
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            index, _, key = rest.partition("/")
            moments.setdefault(int(index), {})[key] = tensors[name]
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return history, own


def sent_to_all(tensors: Tensors | None, like: Tensors, comm: Communicator) -> Tensors:
    """Rank 0's tensors, which are as those in `like`, on all ranks. Collective."""
    result = Tensors()
    for name, one in like.items():
        empty = torch.empty_like(one, device="cpu", memory_format=torch.contiguous_format)
        result[name] = empty if tensors is None else tensors[name]
        comm.broadcast(result[name], root=0).wait()
    return result


def read_weights(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Read the weights of a checkpoint, by name in the model, and its signature.

    Raises
    ------
    InputError
        If there is no such file, or it is damaged.
    """
    tensors, progress = _read(path, "not a checkpoint, or a damaged one")
    prefix = "weight/"
    weights = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return weights, progress["signature"]


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


def _training_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """All that training changes, by name in the file; moments that do not exist yet are zeros."""
    state = {f"weight/{name}": tensor for name, tensor in model.state_dict().items()}
    if not isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)):
        if any(isinstance(t, Tensor) for state in optimizer.state.values() for t in state.values()):
            raise InputError(
                "checkpoints hold the state of Adam, AdamW, and SGD without momentum, not of "
                f"{type(optimizer).__name__}"
            )
        return state
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        if parameter.requires_grad:
            zero = torch.zeros_like(parameter)
            known = {"step": torch.tensor(0.0), "exp_avg": zero, "exp_avg_sq": zero}
            for key, tensor in (known | optimizer.state.get(parameter, {})).items():
                state[f"optimizer/{index}/{key}"] = torch.as_tensor(tensor)
    return state


def _checked(
    path: Path, wanted: Tensors, signature: Mapping[str, Any], steps: int
) -> tuple[Tensors, History, dict[str, Any] | None]:
    """Everything in the file, checked against what this run needs."""
    tensors, progress = _read(path, "not a checkpoint, or a damaged one")
    theirs, history = progress["signature"], progress["history"]
    for name in {**theirs, **signature}:
        if theirs.get(name) != signature.get(name):
            raise InputError(
                f"{path}: was made with {name} {theirs.get(name)}, not {signature.get(name)}"
            )
    for name in (*wanted, *sorted(tensors)):
        if name not in tensors:
            raise InputError(f"{path}: no tensor '{name}': of another version")
        if name not in wanted:
            raise InputError(f"{path}: tensor '{name}' is of another optimiser or version")
        tensor, like = tensors[name], wanted[name]
        if tensor.dtype != like.dtype or tensor.shape != like.shape:
            raise InputError(
                f"{path}: '{name}' is {tensor.dtype} {list(tensor.shape)}, "
                f"not {like.dtype} {list(like.shape)}"
            )
        step = name.startswith("optimizer/") and name.endswith("/step")
        if step and float(tensor) != steps * len(history):
            raise InputError(f"{path}: was made with other batches: steps of an epoch differ")
    return tensors, history, progress["ranks"]


def _own_of(checkpoint: Path, ranks: dict[str, Any], comm: Communicator) -> Tensors:
    """The state of this rank, if the checkpoint was made on as many ranks. Collective."""
    digests = ranks["digests"]
    if len(digests) != comm.size:
        raise InputError(
            f"{checkpoint}: was made on {len(digests)} ranks, not {comm.size}; it keeps rows of "
            "each rank"
        )
    content = digests[comm.rank]
    path = checkpoint.with_name(_rank_file(ranks["epochs"], comm.rank, content))
    damaged = "a damaged file of a checkpoint"
    return comm.on_every_rank(lambda: _read(path, damaged, content)[0])


def _rank_file(epochs: int, rank: int, content: str) -> str:
    return f"codecs-{epochs}-{rank}-{content[:12]}.safetensors"


def _digest(tensors: Tensors, text: str) -> str:
    """Of names, dtypes, shapes and contents."""
    pieces: list[memoryview | bytes] = [text.encode()]
    for name in sorted(tensors):
        tensor = _plain(tensors[name])
        pieces.append(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        pieces.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest(*pieces)


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, with memory of its own."""
    return tensor.detach().cpu().contiguous()


def _write(path: Path, tensors: Tensors, text: str, directory: str) -> None:
    """A file of tensors and a text."""
    what = f"--checkpoint {directory}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what}: cannot be written: {error.strerror}") from None
    plain, places = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        plain[name] = _plain(tensor)
        place = plain[name].untyped_storage().data_ptr()
        if place in places:  # the library takes no tensors that share memory
            plain[name] = plain[name].clone()
        places.add(place)
    metadata = {"text": text, "digest": _digest(plain, text)}
    with atomic_file(path, what) as file:
        file.write(safetensors.torch.save(plain, metadata))


def _read(path: Path, damaged: str, content: str | None = None) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of a file and its table; whatever libraries raise of it becomes one line."""
    try:
        raw = path.read_bytes()
        tensors = safetensors.torch.load(raw)
        size = int.from_bytes(raw[:8], "little")
        metadata = json.loads(raw[8 : 8 + size])["__metadata__"]
        text: str = metadata["text"]
        if _digest(tensors, text) != metadata["digest"]:
            raise ValueError("its contents have another digest")
        table: dict[str, Any] = json.loads(text)
    except FileNotFoundError:
        raise InputError(f"--resume: there is no checkpoint {path}") from None
    except Exception as error:
        # Of damaged bytes the library raises what it likes.
        said = str(error) or type(error).__name__
        raise InputError(f"{path}: {damaged} ({said})") from None
    if content is not None and metadata["digest"] != content:
        raise InputError(f"{path}: {damaged} (its contents are not what the checkpoint says)")
    return tensors, table


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
