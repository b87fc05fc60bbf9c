"""Checkpoints: weights, optimiser and history in a file of rank 0, other state in one of each rank.

All files are safetensors; what is no tensor is JSON in their metadata. A file has a digest of all
that is in it, and the checkpoint names the files of the ranks by theirs. These are there before it
is: whatever is killed when, a checkpoint and the files that it names are of one moment, and others
are removed.

The random state needs no room: every draw is a function of the seed and the epoch.
"""

from __future__ import annotations

import copy
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spgnn.comm import Communicator
from spgnn.errors import InputError
from spgnn.files import check_writable, digest, write_file
from spgnn.graph import DistributedGraph

SUFFIX = ".safetensors"
FILE = f"checkpoint{SUFFIX}"
EXTRA_STATE = "_extra_state"  # the last part of its name in a state_dict
History = list[dict[str, Any]]
Tensors = dict[str, Tensor]
Progress = dict[str, Any]
_DAMAGED = "not a checkpoint, or a damaged one"


def save(directory: str, graph: DistributedGraph | Communicator, /, **state: Any) -> None:
    """Write a checkpoint of a training loop, ``DIR/checkpoint.safetensors``. Collective.

    Rank 0 writes what all ranks have; another number of ranks may :func:`load` it, unless the graph
    has a codec that keeps rows: their state is a file of each rank.

    Parameters
    ----------
    directory : str
        Made if need be; a checkpoint in it is replaced when the new one is whole.
    graph : DistGraph, HeteroDistGraph or Communicator
        What :func:`spgnn.distribute` or :func:`spgnn.connect` made.
    **state
        By name: modules, optimisers, schedulers and whatever else has a ``state_dict``; tensors,
        numbers, texts, ``None``, and lists, tuples and dictionaries of these.

    Raises
    ------
    InputError
        On all ranks, if it cannot be written, weights are not finite, the ranks' states differ, or
        something is neither a tensor nor a number or text; the previous checkpoint stays.

    Examples
    --------
    >>> spgnn.save("run", graph, model=model, optimizer=optimizer, epoch=epoch)
    >>> epoch = spgnn.load("run", graph, model=model, optimizer=optimizer)["epoch"]
    """
    comm = _comm_of(graph)

    def digests() -> dict[str, str]:
        result = {}
        for name, one in state.items():
            if isinstance(one, nn.Module):
                _check_finite(one, name)
            tensors, values = packed(_state_of(one), name)
            result[name] = _digest(tensors, json.dumps(values))
        return result

    comm.check_agreement("spgnn.save", **comm.on_every_rank(digests))
    tensors, values = packed({name: _state_of(one) for name, one in state.items()})
    modules = [name for name, one in state.items() if isinstance(one, nn.Module)]
    progress, own = {"values": values, "modules": modules}, {}
    if not isinstance(graph, Communicator):
        progress["epoch"] = graph._codecs.policy.epoch
        own = graph.codec_state() if graph.codec.remembers else {}
    _write_all(directory, tensors, progress, comm, own, 0)


def load(directory: str, graph: DistributedGraph | Communicator, /, **state: Any) -> dict[str, Any]:
    """Read a checkpoint that :func:`save` wrote into these objects, on all ranks. Collective.

    Parameters
    ----------
    directory : str
    graph : DistGraph, HeteroDistGraph or Communicator
    **state
        Modules, optimisers and others with a ``load_state_dict``, by the names they were saved by.
        Rates and options of an optimiser become those that were saved.

    Returns
    -------
    dict
        All else that was saved, by name; tensors on the CPU.

    Raises
    ------
    InputError
        On all ranks, if there is none, it is damaged, or it is of other objects; these are then
        left as they were.
    """
    comm, path = _comm_of(graph), Path(directory) / FILE

    def read() -> tuple[dict[str, Any], Any]:
        if not os.path.exists(path):
            raise InputError(f"spgnn.load: there is no checkpoint {path}")
        tensors, progress = _read(path, _DAMAGED)
        if "modules" not in progress:
            raise InputError(f"{path}: is a Trainer's checkpoint: Trainer(…, resume=True) reads it")
        saved = unpacked(progress["values"], tensors)
        for name, one in state.items():
            if not hasattr(one, "load_state_dict"):
                raise InputError(f"spgnn.load: {name} is a {type(one).__name__}, and is returned")
            if name not in saved:
                raise InputError(f"{path}: holds no '{name}', but {', '.join(saved) or 'nothing'}")
            if isinstance(one, nn.Module):
                _check_fits(path, packed(saved[name], name)[0], packed(one.state_dict(), name)[0])
            elif isinstance(one, torch.optim.Optimizer):
                theirs, mine = _group_sizes(saved[name]), _group_sizes(one.state_dict())
                if theirs != mine:
                    raise InputError(
                        f"{path}: '{name}' has groups of {theirs} parameters, not {mine}"
                    )
                if not isinstance(saved[name]["state"], dict):
                    raise InputError(f"{path}: '{name}' is not the state of an optimiser")
        return saved, (progress["ranks"], progress.get("epoch", -1))

    result = comm.on_rank_zero(lambda: _as_written(path, read))
    ranks, epoch = comm.broadcast_value(None if result is None else result[1])
    own = {} if ranks is None else _own_of(path, ranks, comm)
    saved = sent_to_all(None if result is None else result[0], comm)
    for name, one in state.items():
        if isinstance(one, torch.optim.Optimizer):
            set_optimizer(one, saved[name]["state"], saved[name]["param_groups"])
        else:
            one.load_state_dict(saved[name])
    if not isinstance(graph, Communicator):
        graph._codecs.policy.begin_epoch(epoch)
        if own:
            graph.load_codec_state(own)
    return {name: value for name, value in saved.items() if name not in state}


def save_run(
    directory: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    history: History,
    comm: Communicator,
    own: Mapping[str, Any],
    called: Mapping[str, Any] | None = None,
) -> None:
    """Write the checkpoint, and the files of what each rank keeps besides, if any. Collective."""

    def state() -> tuple[Tensors, Progress]:
        try:
            _check_finite(model, "weight", optimizer)
        except InputError as error:
            raise InputError(f"{error} after {len(history)} epochs; not saved") from None
        learnt = {"weight": model.state_dict(), "optimizer": optimizer.state_dict()["state"]}
        if called is not None and any(state is not None for state in called["states"]):
            learnt["callbacks"] = dict(called)
        tensors, values = packed(learnt)
        return tensors, {"signature": dict(signature), "history": history, "values": values}

    tensors, progress = comm.on_rank_zero(state) or ({}, {})
    _write_all(directory, tensors, progress, comm, own, len(history))


def load_run(
    directory: str | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    comm: Communicator,
    *,
    steps: int | None = 1,
) -> tuple[History, dict[str, Any], Any]:
    """Read the checkpoint into model and optimiser on all ranks; what is left. Collective."""
    path = Path(directory or "") / FILE

    def check() -> tuple[dict[str, Any], History, dict[str, Any] | None]:
        return _checked(path, model, optimizer, signature, steps)

    read = comm.on_rank_zero(lambda: _as_written(path, check))
    history, ranks = comm.broadcast_value(None if read is None else read[1:])
    own = {} if ranks is None else _own_of(path, ranks, comm)
    saved = sent_to_all(None if read is None else read[0], comm)
    model.load_state_dict(saved["weight"])
    set_optimizer(optimizer, saved["optimizer"])
    return history, own, saved.get("callbacks")


def check_state(model: nn.Module, optimizer: torch.optim.Optimizer, comm: Communicator) -> None:
    """Refuse, before training, a state that a checkpoint could not hold. Collective."""
    comm.on_rank_zero(
        lambda: packed({"weight": model.state_dict(), "optimizer": _after_a_step(optimizer)})
    )


def packed(value: Any, name: str = "") -> tuple[Tensors, Any]:
    """Tensors by name, and the rest as JSON: of tables, lists and tuples of tensors and numbers."""
    tensors = Tensors()

    def encode(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            _check_tensor(value, name)
            while name in tensors:
                name += "'"
            tensors[name] = value
            return {"tensor": name}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, Mapping):
            return {
                "table": [[encode(k, name), encode(v, _inside(name, k))] for k, v in value.items()]
            }
        if type(value) in (list, tuple):
            items = [encode(item, _inside(name, number)) for number, item in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        raise InputError(
            f"checkpoints hold tensors, numbers and texts; '{name}' is a {type(value).__name__}"
        )

    return tensors, encode(value, name)


def unpacked(values: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The packed value."""
    if isinstance(values, list):
        return [unpacked(value, tensors) for value in values]
    if not isinstance(values, dict):
        return values
    ((kind, content),) = values.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(unpacked(value, tensors) for value in content)
    assert kind == "table"
    return {unpacked(key, tensors): unpacked(value, tensors) for key, value in content}


def sent_to_all(value: Any, comm: Communicator) -> Any:
    """Rank 0's value, which can be packed, on all ranks; tensors on the CPU. Collective."""
    tensors, values = packed(value)
    sizes = {name: [str(tensor.dtype), list(tensor.shape)] for name, tensor in tensors.items()}
    sizes, values = comm.broadcast_value((sizes, values))
    result = Tensors()
    for name, (dtype, shape) in sizes.items():
        if comm.rank == 0:
            tensor = _plain(tensors[name])
        else:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        comm.broadcast(tensor.reshape(-1).view(torch.uint8), root=0).wait()
        result[name] = tensor
    return unpacked(values, result)


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the weights of a checkpoint, by name in the model, and its signature."""

    def read() -> tuple[dict[str, Any], dict[str, Any]]:
        tensors, progress = _read(path, _DAMAGED)
        modules = progress.get("modules", ["weight"])
        if len(modules) != 1:
            listed = ", ".join(modules) or "no module"
            raise InputError(f"{path}: holds the weights of {listed}, not of one")
        weights = unpacked(progress["values"], tensors)[modules[0]]
        for name, value in weights.items():
            if not isinstance(value, Tensor) and not name.endswith(EXTRA_STATE):
                raise InputError(f"{path}: {_DAMAGED} ('{name}' is no tensor)")
        return weights, progress.get("signature", {})

    result: tuple[dict[str, Any], dict[str, Any]] = _as_written(path, read)
    return result


def check_target(directory: str, resume: bool) -> None:
    """Find out before training whether checkpoints can be written, or read; makes nothing."""
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


def _comm_of(graph: Any) -> Communicator:
    if isinstance(graph, Communicator):
        return graph
    if isinstance(graph, DistributedGraph):
        return graph.comm
    raise InputError(
        f"give the graph of spgnn.distribute, or spgnn.connect(), got {type(graph).__name__}"
    )


def _state_of(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value


def _group_sizes(state: Any) -> list[int]:
    """Parameters of each group of an optimiser's state."""
    groups = state.get("param_groups", []) if isinstance(state, Mapping) else []
    return [len(group["params"]) for group in groups]


def _inside(name: str, key: object) -> str:
    return f"{name}/{key}" if name else str(key)


def _after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, Any] | None:
    """The state of a copy after a step; ``None`` if that cannot be known."""
    try:
        other = copy.deepcopy(optimizer)
        for parameter in chain.from_iterable(group["params"] for group in other.param_groups):
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        other.step()
    except Exception:  # it needs a closure, sparse gradients, or memory
        return None
    state: dict[int, Any] = other.state_dict()["state"]
    return state


def set_optimizer(
    optimizer: torch.optim.Optimizer,
    state: Mapping[int, Any],
    groups: Sequence[Mapping[str, Any]] | None = None,
) -> None:
    """Set the state, and options if there are any.

    Torch alone would round numbers to the dtype of their parameter.
    """
    groups = groups or optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    every = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    for index, parameter in enumerate(every):
        now = optimizer.state[parameter] if index in state else {}
        for key, value in now.items():
            saved = state[index][key]
            if isinstance(saved, Tensor) and saved.shape == parameter.shape:
                # Lies as its parameter does, which fused optimisers take for granted.
                empty = torch.empty_like(parameter, dtype=saved.dtype, device=value.device)
                now[key] = empty.detach().copy_(saved)
            elif isinstance(saved, Tensor):
                now[key] = saved.to(value.device, copy=True)


def _checked(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    signature: Mapping[str, Any],
    steps: int | None,
) -> tuple[dict[str, Any], History, dict[str, Any] | None]:
    """Everything in the file, checked against what this run needs."""
    tensors, progress = _read(path, _DAMAGED)
    if "signature" not in progress:
        raise InputError(f"{path}: was written by spgnn.save, which spgnn.load reads")
    theirs, history = progress["signature"], progress["history"]
    for name in {**theirs, **signature}:
        if theirs.get(name) != signature.get(name):
            raise InputError(
                f"{path}: was made with {name} {theirs.get(name)}, not {signature.get(name)}"
            )
    expected = packed(model.state_dict(), "weight")[0]
    stepped = _after_a_step(optimizer)
    saved = unpacked(progress["values"], tensors)
    state = packed(saved["optimizer"], "optimizer")[0]
    tensors = packed(saved["weight"], "weight")[0] | state
    if stepped is None:
        expected |= state
    else:
        there = {name.split("/")[1] for name in state}  # parameters that had a gradient
        of_all = packed(stepped, "optimizer")[0]
        expected |= {n: t for n, t in of_all.items() if not there or n.split("/")[1] in there}
    _check_fits(path, tensors, expected)
    for name, tensor in state.items():
        if steps is not None and name.endswith("/step") and float(tensor) != steps * len(history):
            raise InputError(f"{path}: was made with other batches: steps of an epoch differ")
    return saved, history, progress["ranks"]


def _as_written(path: Path, check: Callable[[], Any]) -> Any:
    """Read a state from a file; one line if it is of another form than those that we write."""
    try:
        return check()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: {_DAMAGED} ({str(error) or type(error).__name__})") from None


def _check_fits(path: Path, tensors: Tensors, expected: Tensors) -> None:
    """Refuse tensors of other names, dtypes or shapes; what a module adds may be any."""
    for name in (*expected, *sorted(tensors)):
        if name.partition("/")[2].partition("/")[0].endswith(EXTRA_STATE):
            continue
        if name not in tensors:
            raise InputError(f"{path}: no tensor '{name}': of another model, optimiser or version")
        if name not in expected:
            raise InputError(f"{path}: tensor '{name}' is of another optimiser or version")
        tensor, like = tensors[name], expected[name]
        if tensor.dtype != like.dtype or tensor.shape != like.shape:
            raise InputError(
                f"{path}: '{name}' is {tensor.dtype} {list(tensor.shape)}, "
                f"not {like.dtype} {list(like.shape)}"
            )


def _own_of(checkpoint: Path, ranks: dict[str, Any], comm: Communicator) -> dict[str, Any]:
    """The state of this rank, if the checkpoint was made on as many ranks. Collective."""
    digests = ranks["digests"]
    if len(digests) != comm.size:
        raise InputError(
            f"{checkpoint}: was made on {len(digests)} ranks, not {comm.size}; it keeps rows of "
            "each rank"
        )
    content = digests[comm.rank]
    path = checkpoint.with_name(_rank_file(ranks["epochs"], comm.rank, content))

    def read() -> dict[str, Any]:
        tensors, values = _read(path, "a damaged file of a checkpoint", content)
        own: dict[str, Any] = unpacked(values, tensors)
        return own

    return comm.on_every_rank(read)


def _rank_file(epochs: int, rank: int, content: str) -> str:
    return f"codecs-{epochs}-{rank}-{content[:12]}.safetensors"


def _digest(tensors: Tensors, text: str) -> str:
    """A digest of names, dtypes, shapes and contents."""
    pieces: list[memoryview | bytes] = [text.encode()]
    for name in sorted(tensors):
        tensor = _plain(tensors[name])
        pieces.append(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        pieces.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest(*pieces)


def _plain(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, with memory of its own."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def _write_all(
    directory: str,
    tensors: Tensors,
    progress: Progress,
    comm: Communicator,
    own: Mapping[str, Any],
    epochs: int,
) -> None:
    """The files of the ranks, if any, then that of rank 0, whose state this is. Collective."""
    digests = list[str]()
    if own:

        def write_own() -> str:
            tensors, values = packed(own)
            text = json.dumps(values)
            content = _digest(tensors, text)
            path = Path(directory) / _rank_file(epochs, comm.rank, content)
            _write(path, tensors, text, directory)
            return content

        content = bytes.fromhex(comm.on_every_rank(write_own))
        words = torch.tensor([list(content)], dtype=torch.uint8)
        every = words.new_empty(comm.size, words.shape[1])
        comm.all_gather(words, every, [1] * comm.size)
        digests = [bytes(row.tolist()).hex() for row in every]
    ranks = {"epochs": epochs, "digests": digests} if own else None
    text = json.dumps({**progress, "ranks": ranks}, allow_nan=False)
    comm.on_rank_zero(lambda: _write(Path(directory) / FILE, tensors, text, directory))
    named = {_rank_file(epochs, rank, each) for rank, each in enumerate(digests)}
    # Rank 0 removes all that it sees, others their own: directories may be each rank's.
    with suppress(OSError):
        for path in Path(directory).glob(f"codecs-*-{comm.rank or '*'}-*.safetensors"):
            if path.name not in named:
                path.unlink(missing_ok=True)


def _write(path: Path, tensors: Tensors, text: str, directory: str) -> None:
    """A file of tensors and a text."""
    what = f"--checkpoint {directory}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what}: cannot be written: {error.strerror}") from None
    plain = separate(tensors)
    metadata = {"text": text, "digest": _digest(plain, text)}
    write_file(path, [safetensors.torch.save(plain, metadata)], what)


def separate(tensors: Mapping[str, Tensor]) -> Tensors:
    """As the library takes them: plain, and none shares memory with another."""
    plain, places = Tensors(), set[int]()
    for name, tensor in tensors.items():
        plain[name] = _plain(tensor)
        place = plain[name].untyped_storage().data_ptr()
        if place in places:
            plain[name] = plain[name].clone()
        places.add(place)
    return plain


def _read(path: Path, damaged: str, content: str | None = None) -> tuple[Tensors, Any]:
    """The tensors of a file and its table; whatever libraries raise of it becomes one line."""
    try:
        raw = path.read_bytes()
        tensors = safetensors.torch.load(raw)
        size = int.from_bytes(raw[:8], "little")
        metadata = json.loads(raw[8 : 8 + size])["__metadata__"]
        text: str = metadata["text"]
        if _digest(tensors, text) != metadata["digest"]:
            raise ValueError("its contents have another digest")
        table = json.loads(text)
        unpacked(table.get("values", table), tensors)
    except FileNotFoundError:
        raise InputError(f"--resume: there is no checkpoint {path}") from None
    except Exception as error:
        # Of damaged bytes the library raises what it likes.
        raise InputError(f"{path}: {damaged} ({str(error) or type(error).__name__})") from None
    if content is not None and metadata["digest"] != content:
        raise InputError(f"{path}: {damaged} (its contents are not what the checkpoint says)")
    return tensors, table


def _check_tensor(tensor: Tensor, name: str) -> None:
    """Refuse a tensor that is no array of numbers, or of numbers that files do not have."""
    wrong = ""
    if is_lazy(tensor):
        wrong = "has no shape yet; call the model once before"
    elif type(tensor) not in (Tensor, nn.Parameter, nn.Buffer):
        wrong = f"is a {type(tensor).__name__}"
    elif tensor.layout != torch.strided:
        wrong = f"is sparse ({tensor.layout}); save to_dense() of it"
    elif tensor.is_meta:
        wrong = "has no numbers (device meta)"
    elif tensor.is_quantized or not _is_stored(tensor.dtype):
        wrong = f"is {tensor.dtype}"
    if wrong:
        raise InputError(f"checkpoints hold dense tensors; '{name}' {wrong}")


@cache
def _is_stored(dtype: torch.dtype) -> bool:
    """True if the library writes and reads the dtype."""
    try:
        written = safetensors.torch.save({"one": torch.zeros(1).to(dtype)})
        return safetensors.torch.load(written)["one"].dtype == dtype
    except Exception:  # of a dtype that it does not know, it raises what it likes
        return False


def _check_finite(
    model: nn.Module, prefix: str, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Refuse parameters and moments that are not finite, and buffers that are not numbers."""
    learnt = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and not name.endswith(EXTRA_STATE):
            _check_numbers(value, f"{prefix}/{name}", infinite=name not in learnt)
    state = {} if optimizer is None else optimizer.state_dict()["state"]
    for name, value in packed(state, "optimizer")[0].items():
        _check_numbers(value, name, infinite=False)


def _check_numbers(tensor: Tensor, name: str, *, infinite: bool) -> None:
    """Refuse NaN and, unless they may be there, infinities."""
    if tensor.is_floating_point() or tensor.is_complex():
        plain = tensor.float() if tensor.dtype.itemsize == 1 else tensor
        bad = plain.isnan().any() if infinite else ~plain.isfinite().all()
        if bool(bad):
            raise InputError(f"{name} is not finite")
