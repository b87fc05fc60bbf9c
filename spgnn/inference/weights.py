"""Weights in files: a checkpoint of ours, or a state_dict in safetensors or as torch saves it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.files import write_file
from spgnn.train.checkpoint import (
    EXTRA_STATE,
    FILE,
    SUFFIX,
    packed,
    read_weights,
    sent_to_all,
    separate,
    unpacked,
)

State = dict[str, Any]  # tensors, and the extra states of modules
# By these a model of layers is known, ours or PyG's.
LAYERS = "convs."
# What torch.compile, FSDP and activation checkpointing put between names; no module is called so.
_WRAPPERS = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_DEEPEST = 4  # of tables in tables
_AVERAGED = "n_averaged"
_VALUES = "values"  # in the metadata of a file: what is no tensor


def load_weights(model: nn.Module, path: str, comm: Communicator) -> None:
    """Give the model the weights of a file, on all ranks. Collective.

    A directory of checkpoints, a checkpoint, or a ``state_dict`` as ``.safetensors`` or as
    ``torch.save`` wrote it. Rank 0 reads it. Nothing in it is run: files of torch are loaded as
    tensors alone.

    Raises
    ------
    InputError
        On all ranks, if there is no such file, or it is of another model: names the array and its
        shape.
    """
    first = next(iter(model.state_dict()), LAYERS)
    state = comm.on_rank_zero(lambda: read_state(path, first)[0])
    deal_weights(model, state, path, comm)


def read_state(path: str, first: str = LAYERS) -> tuple[State, dict[str, Any]]:
    """The weights in a file by name, and what a checkpoint says it was made with."""
    if os.path.isdir(path):
        path = os.path.join(path, FILE)
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file")
    loaded: Any = None
    if path.endswith(SUFFIX):
        try:
            with safetensors.safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if "digest" not in metadata:  # of a checkpoint
                    loaded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                    if _VALUES in metadata:
                        loaded = unpacked(json.loads(metadata[_VALUES]), loaded)
        except Exception:
            loaded = None
        if loaded is None:
            return read_weights(Path(path))  # and says what is wrong
    try:
        if loaded is None:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Readers of archives and of pickles raise a dozen types; what they advise is not safe.
        raise InputError(
            f"{path}: not a state_dict: torch.load finds no tensors alone in it "
            f"({type(error).__name__}); torch.save(model.state_dict(), FILE) writes one"
        ) from None
    result = _states(loaded, first)
    if len(result) > 1:
        _refuse_several(path, [repr(place) for place in result])
    state = next(iter(result.values()), loaded)
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{path}: not a state_dict, but a {type(state).__name__}")
    for name, value in state.items():
        if isinstance(name, str) and name.endswith(EXTRA_STATE):
            continue
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{path}: not a state_dict: '{name}' is a {type(value).__name__}")
        if value.layout != torch.strided or value.is_meta:
            what = "has no numbers" if value.is_meta else f"is {value.layout}, not dense"
            raise InputError(f"{path}: '{name}' {what}")
    return _unwrapped(state, first, path), {}


def save_weights(model: nn.Module, path: str, comm: Communicator) -> None:
    """Write the ``state_dict`` of a model that all ranks have, as safetensors. Collective.

    Rank 0 writes, aside, and renames; :func:`load_weights` reads it, and so does any program that
    knows the format.

    Raises
    ------
    InputError
        On all ranks, if it cannot be written.
    """
    comm.on_rank_zero(lambda: write_state(model.state_dict(), path, path))


def write_state(state: Mapping[str, Any], path: str, what: str) -> None:
    """Write a state by name as safetensors; an error calls the file `what`."""
    tensors, values = packed(state)
    metadata = None if tensors.keys() == state.keys() else {_VALUES: json.dumps(values)}
    write_file(path, [safetensors.torch.save(separate(tensors), metadata)], what)


def _states(loaded: Any, first: str, place: str = "", depth: int = 0) -> dict[str, Any]:
    """Tables with tensors that such a model has, by where they lie in others."""
    if not isinstance(loaded, Mapping) or depth > _DEEPEST:
        return {}
    if any(
        isinstance(name, str) and isinstance(value, Tensor) and _prefix(name, first) is not None
        for name, value in loaded.items()
    ):
        return {place: loaded}
    result = dict[str, Any]()
    for name, value in loaded.items():
        inside = f"{place}/{name}" if place else str(name)
        result.update(_states(value, first, inside, depth + 1))
    return result


def _prefix(name: str, first: str) -> str | None:
    """The prefix of the model's own name, which begins so; ``None`` if that is not in it."""
    plain = _WRAPPERS.sub("", name)
    at = f".{plain}".find(f".{first}")
    return None if at < 0 else plain[:at]


def _unwrapped(state: Mapping[str, Any], first: str, path: str) -> State:
    """The weights by the model's own names."""
    plain = State()
    for name, tensor in state.items():
        own = _WRAPPERS.sub("", name)
        if own in plain:
            raise InputError(f"{path}: holds '{own}' twice, with and without a wrapper's name")
        plain[own] = tensor
    result = {p for name in plain for p in [_prefix(name, first)] if p is not None}
    prefixes = sorted(result or {""}, key=len)
    prefix = prefixes[0]
    if prefix.endswith("module."):  # of torch.optim.swa_utils, perhaps
        averaged = plain.pop(prefix.removesuffix("module.") + _AVERAGED, None)
        if averaged is not None and averaged.numel() == 1 and not averaged.item():
            raise InputError(f"{path}: {_AVERAGED} is 0: no weights were averaged into this model")
    for name in plain:
        if not name.startswith(prefix):
            if len(prefixes) > 1:
                _refuse_several(path, [f"'{one}{first}'" for one in prefixes])
            raise InputError(
                f"{path}: '{name}' lies beside the weights of '{prefix}'; "
                "torch.save the state_dict of that module alone"
            )
    return {name.removeprefix(prefix): tensor for name, tensor in plain.items()}


def _refuse_several(path: str, places: Sequence[str]) -> NoReturn:
    raise InputError(
        f"{path}: holds weights under {' and under '.join(places)}; torch.save one of them"
    )


def deal_weights(model: nn.Module, state: State | None, path: str, comm: Communicator) -> None:
    """Give the model weights that rank 0 has read, on all ranks. Collective."""
    expected = model.state_dict()
    fitted = comm.on_rank_zero(lambda: _fitted(state or {}, expected, path))
    model.load_state_dict(sent_to_all(fitted, comm))


def outputs_of(state: State, path: str, linear_end: str = "") -> int:
    """The width of what the last layer of a model of ours or of PyG makes."""
    if f"{linear_end}.bias" in state:
        return len(state[f"{linear_end}.bias"])
    numbers = [part for name in state if name.startswith("convs.") for part in [name.split(".")[1]]]
    layers = [int(number) for number in numbers if number.isdigit()]
    last = "lin." if "lin.weight" in state else f"convs.{max(layers, default=0)}."
    of_last = {name.removeprefix(last): t for name, t in state.items() if name.startswith(last)}
    bias = of_last.get("bias")
    # GINE has a matrix of edges beside its perceptron, which makes the output.
    of_last = {n: t for n, t in of_last.items() if n.startswith("nn.")} or of_last
    matrices = [t for t in of_last.values() if t.dim() == 2]
    if not layers or (bias is None and not matrices):
        raise InputError(
            f"{path}: not the weights of a model of layers 'convs.0', 'convs.1', …: its first "
            f"array is '{next(iter(state), '')}'"
        )
    return len(bias if bias is not None else matrices[0])


def _fitted(state: Mapping[str, Any], expected: Mapping[str, Any], path: str) -> State:
    """The arrays of the model, in its dtypes, if these are they."""
    other = "these are the weights of another model"
    beyond = [f"'{name}' {_shape(state[name])}" for name in state if name not in expected]
    for name, like in expected.items():
        if name not in state:
            instead = f"; it has {beyond[0]}" if beyond else ""
            raise InputError(f"{path}: no '{name}' {_shape(like)}{instead}: {other}")
    if beyond:
        raise InputError(f"{path}: {beyond[0]} has no place in the model: {other}")
    result = {}
    for name, like in expected.items():
        tensor = state[name]
        if name.endswith(EXTRA_STATE):
            result[name] = tensor
            continue
        if tensor.shape != like.shape:
            raise InputError(
                f"{path}: '{name}' is {list(tensor.shape)}, not {list(like.shape)}: {other}, "
                "or of another graph"
            )
        if tensor.is_floating_point() != like.is_floating_point():
            raise InputError(f"{path}: '{name}' is {tensor.dtype}, not {like.dtype}: {other}")
        narrowed = tensor.detach().to(like.dtype).cpu().contiguous()
        if not bool(narrowed.isfinite().all()):
            raise InputError(f"{path}: '{name}' holds numbers that are not finite in {like.dtype}")
        result[name] = narrowed
    return result


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__
